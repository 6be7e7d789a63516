# SPDX-License-Identifier: Apache-2.0
"""One run of a cluster with faults, from its start to the findings::

    start ── calm ────────── faults ──── recovery ──── calm ───── end
             measure load    apply the   wait until    measure    check
             and resources   plan        the backlog   resources  the
                                         is gone       again      record
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
from tests.chaos import standby
from tests.chaos import tasks
from tests.chaos import times
from tests.chaos.bus import Bus
from tests.chaos.cluster import ALONE
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import Cluster
from tests.chaos.pace import PACE
from tests.chaos.plan import EVERY
from tests.chaos.plan import LOOSE
from tests.chaos.plan import ON_A_SMALL_DISK
from tests.chaos.plan import Fault
from tests.chaos.plan import draw

SECOND = checker.SECOND

#: Seconds of normal operation before the first fault.
CALM = 15.0 * PACE
#: Seconds of normal operation after the recovery. The record ends with this
#: time. This time is longer than :data:`tests.chaos.books.PATIENCE`, so the
#: checker requires an end of every claim that was acquired before the recovery
#: was complete.
AFTERWARDS = 22.0 * PACE
# The calm time starts as soon as every job with a period of at most this
# number of seconds has run. The faults follow the calm time.
_FIRST = 20 * PACE
# Seconds after the last fault within which the cluster must finish its
# backlog.
_PATIENCE = 90.0 * PACE
#: Final states of claims. Each must occur in a run of the cluster.
ENDINGS = ('done', 'dead', 'skipped', 'superseded')


@dataclasses.dataclass
class Lived:
    """The results of one run of a cluster."""

    seed: int
    #: Class of the bus; see :class:`tests.chaos.bus.Bus`.
    bus: type[Bus]
    plan: list[Fault]
    record: books.Record
    #: Time at which the last fault ended, in microseconds.
    healed: int
    #: Each transition of each claim; see :mod:`tests.chaos.journal`.
    moves: list[Any]
    #: The time of each fault.
    windows: list[books.Window]
    #: (microseconds, host): the time at which a process died, or was stopped
    #: for longer than its session.
    deaths: list[tuple[int, str]]
    findings: list[checker.Finding]
    #: Number of faults by kind. Planned faults that could not be applied do
    #: not count.
    happened: collections.Counter[str]
    #: Names of the failpoints that at least one process passed.
    passed: set[str]
    #: For each failpoint, the number of processes that faults killed or
    #: stopped there.
    struck: collections.Counter[str]
    #: Number of claims by final state. 'skipped' also counts the ticks that
    #: were skipped without a claim.
    endings: collections.Counter[str]
    #: For each server, its mean rate of requests before the first fault, and
    #: its maximum rate afterwards.
    rates: dict[str, tuple[float, float]]
    #: The resources in use before the first fault and at the end; see
    #: :func:`tests.chaos.gauges.sizes`.
    sizes: tuple[dict[str, int], dict[str, int]]
    #: Seconds from the end of the last fault until one of the last two ticks
    #: of each object was settled.
    caught_up: float
    #: Number of due ticks by outcome; see :mod:`tests.oracle.fates`.
    fates: collections.Counter[str]
    #: For each job, the number of required claims and of due ticks.
    required: dict[str, tuple[int, int]]
    #: For each job, the number of due ticks by its schedule and by the store's
    #: history; see :func:`tests.chaos.books.due`.
    due: dict[str, tuple[int, int]]
    #: Number of tasks by their last status.
    tasks: collections.Counter[str]
    #: Number of runs of commands by outcome.
    steps: collections.Counter[str]
    #: Results for the partition with one active worker.
    partition: standby.Verdict


def live(place, seed, seconds, bus, only=(), pause=LOOSE,
         kinds=EVERY, tell=lambda text: None):
    """Start a cluster, apply the faults of *seed*, and check its record.

    :param place: an empty directory for logs and records. They are not
        deleted.
    :param seconds: length of the plan in seconds. All planned faults begin and
        end within this time.
    :param bus: subclass of :class:`tests.chaos.bus.Bus`.
    :param only: kinds of the faults to apply. Empty means all kinds.
    :param pause: see :func:`tests.chaos.plan.draw`.
    :param kinds: kinds of faults that the plan contains, such as
        :data:`tests.chaos.plan.OF_THE_BUS`.
    :param tell: called with each line of text about the progress.
    :returns: a :class:`Lived`.
    """
    began = time.monotonic()

    def told(text):
        tell(f'{time.monotonic() - began:7.1f} {text}')
    with Cluster(place, bus) as cluster:
        told('the servers serve clients')
        without = bus.without | (EVERY - kinds)
        if cluster.disk is None:
            without |= ON_A_SMALL_DISK
        plan = [fault for fault in draw(seed, seconds, pause, without)
                if not only or fault.kind in only]
        driver = faults.Driver(cluster, told)
        rates = gauges.Rates(cluster)
        engine = journal.connect(cluster.postgresql.url)
        cluster.start()
        waiting.wait_until(lambda: _all_run(cluster), 180 * PACE)
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
            partition = journal.partition(connection, ALONE)
        engine.dispose()
        lines = cluster.told()
        told('read')
    _keep(place / 'journal.jsonl', moves)
    _keep(place / 'partition.jsonl', partition)
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
    of_partition = standby.judge(lines, partition, driver, begin, end)
    facts, of_tasks = tasks.judge(
        client, lines, task_rows, steps, driver.stalls, begin, end,
        books.PATIENCE)
    lived = Lived(
        seed, bus, plan, record, healed, moves, driver.windows,
        _deaths(lines, driver),
        [*driver.findings, *judged.findings, *of_tasks,
         *of_partition.findings,
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
        collections.Counter(run.outcome or 'going on' for run in facts.runs),
        of_partition)
    lived.findings += [*_growth(lived), *books.beyond(lived.due)]
    lived.findings += times.check(
        moves, lived.deaths, lived.windows, record, healed)
    if not only:
        lived.findings += _vacuity(lived, lines)
    return lived


def _keep(path, rows):
    with path.open('w') as file:
        for row in rows:
            file.write(json.dumps(row._asdict()) + '\n')


def _until_caught_up(engine, rates):
    """Wait until one of the last two ticks of each object is settled.

    :returns: Duration of the wait in seconds. A number greater than
        ``_PATIENCE`` means that the wait timed out.
    """
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
    """Return (microseconds, host) of each death of a process, and of each stop
    of a process for longer than its session.
    """
    hosts = {line['pid']: line['host'] for line in lines}
    return sorted(
        [(line['at'], line['host']) for line in lines
         if line['what'] == 'gone'] + [
             (stall.begin, hosts[int(stall.process)])
             for stall in driver.stalls if int(stall.process) in hosts
             and stall.end - stall.begin > SESSION * SECOND])


def _history(connection):
    """Return the store's history: counts by (job, tick)."""
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
    """Find request storms, resource leaks, and a backlog that was not finished
    in time.
    """
    found = [checker.Finding('storm', (
        f'{most:.0f} {gauges.unit(server, lived.bus)} a second, '
        f'{calm:.0f} in calm times'))
        for server, (calm, most) in lived.rates.items()
        if most > gauges.STORM * calm]
    found += [checker.Finding('leak', text)
              for text in gauges.leaks(*lived.sizes)]
    if lived.caught_up > _PATIENCE:
        found.append(checker.Finding('recovery', (
            'the backlog was not worked off '
            f'{lived.caught_up:.0f} s after the last fault')))
    return found


def _vacuity(lived, lines):
    """Find all that should have occurred but did not, and so was not tested:
    faults, failpoints, jobs, final states, outcomes of tasks, required claims,
    take-overs of a partition, and promotions.
    """
    ran = {line['job'] for line in lines if line['what'] == 'end'}
    missing = {
        'fault': {one.kind for one in lived.plan} - set(lived.happened),
        'step': set(failpoints.POINTS) - lived.passed,
        'job': set(jobs.POLICIES) - ran,
        'ending': {one for one in ENDINGS if not lived.endings[one]},
        'task': {'succeeded', 'failed'} - set(lived.tasks),
        'required claim': {job for job in jobs.RARE
                           if not lived.required[job][0]},
        'election': lived.partition.missing(lived.happened),
    }
    return [checker.Finding('vacuous', f'{what} {name!r} did not occur')
            for what, names in missing.items() for name in sorted(names)]
