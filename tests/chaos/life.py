# SPDX-License-Identifier: Apache-2.0
"""One life of a cluster, from its start to the verdict::

    start ── calm ── faults ──────────── healed ── recovery ── the end
             rates,  as planned                    all as before?
             sizes
"""

import collections
import dataclasses
import json
import time
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql.tables import COMMAND
from tests import checker
from tests import waiting
from tests.chaos import books
from tests.chaos import failpoints
from tests.chaos import faults
from tests.chaos import gauges
from tests.chaos import jobs
from tests.chaos import journal
from tests.chaos import promises
from tests.chaos import tasks
from tests.chaos import times
from tests.chaos.bus import Bus
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import Cluster
from tests.chaos.plan import KINDS
from tests.chaos.plan import LOOSE
from tests.chaos.plan import OF_THE_BUS
from tests.chaos.plan import ON_A_SMALL_DISK
from tests.chaos.plan import Fault
from tests.chaos.plan import draw

SECOND = checker.SECOND

#: Seconds: before the faults, and after all has recovered from them; so long
#: that what was claimed then must have ended.
CALM = 15.0
AFTERWARDS = 22.0
# Jobs with a longer period may have their first ticks later, in seconds.
_FIRST = 20
# How long it may take to work off what was missed.
_PATIENCE = 90.0
#: The endings that each life has to show.
ENDINGS = ('done', 'dead', 'skipped', 'superseded')


@dataclasses.dataclass
class Lived:
    """What came of it."""

    seed: int
    #: Class of the bus; see :class:`tests.chaos.bus.Bus`.
    bus: type[Bus]
    plan: list[Fault]
    record: books.Record
    #: When the last fault was over: microseconds.
    healed: int
    #: Every move of every claim; see :mod:`tests.chaos.journal`.
    moves: list[Any]
    #: When what befell them.
    windows: list[books.Window]
    #: (microseconds, host): when a process died or was stopped.
    deaths: list[tuple[int, str]]
    findings: list[checker.Finding]
    #: How often each kind of fault has happened.
    happened: collections.Counter[str]
    #: Steps that were passed, and at which somebody was struck.
    passed: set[str]
    struck: collections.Counter[str]
    endings: collections.Counter[str]
    #: Server to its calm rate and its greatest one since.
    rates: dict[str, tuple[float, float]]
    sizes: tuple[dict[str, int], dict[str, int]]
    #: Seconds from the last fault until each object had one of its last
    #: ticks.
    caught_up: float
    #: What became of what was due; see :mod:`tests.oracle.fates`.
    fates: collections.Counter[str]
    #: Job to the number of required claims, and of due ticks.
    required: dict[str, tuple[int, int]]
    #: What the store's account has of each job; see :mod:`tests.chaos.books`.
    due: dict[str, tuple[int, int]]
    #: Tasks by their last status, and runs of commands by their outcome.
    tasks: collections.Counter[str]
    steps: collections.Counter[str]


def live(place, seed, seconds, bus, only=(), pause=LOOSE, bus_only=False,
         tell=lambda text: None):
    """Live through the plan of *seed*; faults come for so many seconds.

    :param place: an empty directory; logs and records stay in it.
    :param bus: subclass of :class:`tests.chaos.bus.Bus`.
    :param only: the kinds of faults that come; empty: all.
    :param pause: see :func:`tests.chaos.plan.draw`.
    :param bus_only: draw only faults of the bus; see
        :data:`tests.chaos.plan.OF_THE_BUS`.
    """
    began = time.monotonic()

    def told(text):
        tell(f'{time.monotonic() - began:7.1f} {text}')
    with Cluster(place, bus) as cluster:
        told('the servers are there')
        without = bus.without | (KINDS.keys() - OF_THE_BUS if bus_only
                                 else set())
        if cluster.disk is None:
            without |= ON_A_SMALL_DISK
        plan = [fault for fault in draw(seed, seconds, pause, without)
                if not only or fault.kind in only]
        driver = faults.Driver(cluster, told)
        rates = gauges.Rates(cluster)
        engine = journal.connect(cluster.postgresql.url)
        cluster.start()
        waiting.wait_until(lambda: _all_run(cluster), 90)
        client = tasks.Client(cluster, seed)
        client.start()
        told('calm')
        calm = time.monotonic()
        begin = time.time_ns() // 1000
        _wait(CALM, rates)
        before = gauges.sizes(cluster, engine)
        told('faults')
        first = time.monotonic()
        driver.live(plan, rates.look)
        healed = time.time_ns() // 1000
        client.stop()
        told('healed')
        caught_up = _until_caught_up(engine, rates)
        _wait(AFTERWARDS, rates)
        over = time.monotonic()
        after = gauges.sizes(cluster, engine)
        end = time.time_ns() // 1000
        with engine.connect().execution_options(
                isolation_level='REPEATABLE READ') as connection:
            moves = journal.read(connection)
            steps = journal.read(connection, kind=COMMAND)
            task_rows = journal.tasks(connection)
            booked = journal.effects(connection)
            history = _history(connection)
        engine.dispose()
        lines = cluster.told()
        told('read')
    _keep(place / 'journal.jsonl', moves)
    record = books.record(lines, moves, driver, begin, end)
    endings = collections.Counter(
        ending for claim in record.claims.values()
        for _, ending in claim.endings)
    endings['skipped'] += sum(one['skipped'] for one in history.values())
    calm_rates = rates.between(calm, first)
    wild_rates = rates.between(first, over)
    judged = promises.judge(
        record, moves,
        {line['pid']: line['host'] for line in lines})
    facts, of_tasks = tasks.judge(
        client, lines, task_rows, steps, driver.stalls, begin, end,
        books.PATIENCE)
    lived = Lived(
        seed, bus, plan, record, healed, moves, driver.windows,
        _deaths(lines, driver),
        [*driver.findings, *judged.findings, *of_tasks,
         *books.check(record, booked, history, driver.strangers)],
        collections.Counter(window.kind for window in driver.windows),
        {line['name'] for line in lines if line['what'] == 'point'},
        collections.Counter(
            line['name'] for line in lines if line['what'] == 'struck'),
        endings,
        {server: (sum(calm_rates[server]) / max(1, len(calm_rates[server])),
                  max(wild_rates[server], default=0.0))
         for server in SERVERS}, (before, after),
        caught_up, judged.fates, judged.required(),
        books.due(record, moves, history),
        collections.Counter({row.task: row.status
                             for row in facts.rows}.values()),
        collections.Counter(run.outcome or 'going on' for run in facts.runs))
    lived.findings += [*_growth(lived), *books.beyond(lived.due)]
    lived.findings += times.check(
        moves, lived.deaths, lived.windows, record, healed)
    if not only:
        lived.findings += _vacuity(lived, lines)
    return lived


def _keep(path, moves):
    with path.open('w') as file:
        for row in moves:
            file.write(json.dumps(row._asdict()) + '\n')


def _until_caught_up(engine, rates):
    """Wait until each object had one of its last ticks; the seconds."""
    began = time.monotonic()
    while time.monotonic() < began + _PATIENCE:
        with engine.connect() as connection:
            behind = connection.execute(sa.text(
                'SELECT name, extract(epoch FROM clock_timestamp()) '
                '* 1000000 - min(settled) AS behind FROM distperiodic_claim '
                'JOIN distperiodic_job ON distperiodic_job.id = job '
                "WHERE kind = 'job' GROUP BY name")).all()
        if all(row.behind < 2 * jobs.POLICIES[row.name].period + SECOND
               for row in behind):
            break
        _wait(0.5, rates)
    return time.monotonic() - began


def _wait(seconds, rates):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rates.look()
        time.sleep(0.1)


def _all_run(cluster):
    """Return whether each job has run, except those with very rare ticks."""
    ran = {line['job'] for line in cluster.told() if line['what'] == 'end'}
    return ran >= {job for job, policy in jobs.POLICIES.items()
                   if policy.period <= _FIRST * SECOND}


def _deaths(lines, driver):
    """When processes died or were stopped, and of which host."""
    hosts = {line['pid']: line['host'] for line in lines}
    return sorted(
        [(line['at'], line['host']) for line in lines
         if line['what'] == 'gone'] + [
             (stall.begin, hosts[int(stall.process)])
             for stall in driver.stalls if int(stall.process) in hosts
             and stall.end - stall.begin > SESSION * SECOND])


def _history(connection):
    """The store's account: (job, tick) to its counts."""
    rows = connection.execute(sa.text(
        'SELECT name, tick, sum(due) AS due, sum(done) AS done, '
        'sum(dead) AS dead, sum(skipped) AS skipped, '
        'sum(superseded) AS superseded, sum(cancelled) AS cancelled '
        'FROM distperiodic_history JOIN distperiodic_job '
        "ON distperiodic_job.id = job WHERE kind = 'job' "
        'GROUP BY name, tick')).mappings()
    return {(row['name'], row['tick']): collections.Counter(
        {name: int(value) for name, value in row.items()
         if name not in ('name', 'tick')}) for row in rows}


def _growth(lived):
    """Storms, leaks, and what was not worked off."""
    found = [checker.Finding('storm', (
        f'{most:.0f} {gauges.unit(server, lived.bus)} a second, '
        f'{calm:.0f} in calm times'))
        for server, (calm, most) in lived.rates.items()
        if most > gauges.STORM * calm]
    found += [checker.Finding('leak', text)
              for text in gauges.leaks(*lived.sizes)]
    if lived.caught_up > _PATIENCE:
        found.append(checker.Finding('recovery', (
            'what was missed was not worked off '
            f'{lived.caught_up:.0f} s after the last fault')))
    return found


def _vacuity(lived, lines):
    """What this life did not show, and so did not test."""
    ran = {line['job'] for line in lines if line['what'] == 'end'}
    missing = {
        'fault': {one.kind for one in lived.plan} - set(lived.happened),
        'step': set(failpoints.POINTS) - lived.passed,
        'job': set(jobs.POLICIES) - ran,
        'ending': {one for one in ENDINGS if not lived.endings[one]},
        'task': {'succeeded', 'failed'} - set(lived.tasks),
        'required claim': {job for job in jobs.RARE
                           if not lived.required[job][0]},
    }
    return [checker.Finding('vacuous', f'{what} {name!r} did not occur')
            for what, names in missing.items() for name in sorted(names)]
