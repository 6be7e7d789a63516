# SPDX-License-Identifier: Apache-2.0
"""The facts about a group as metrics, which need no running process.

The findings are those of :mod:`.health`; nothing here judges the group again.
"""

import threading
from collections.abc import Callable
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import audit
from distperiodic.core import metric_table as table
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.tally import Tally
from distperiodic.operator import health
from distperiodic.operator.health import Facts
from distperiodic.operator.health import JobFacts
from distperiodic.operator.member_rows import topics
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    # These modules load SQLAlchemy, which a group without a store lacks.
    from distperiodic import ports
    from distperiodic.operator.waiting import Waiting

# Minimum seconds between two readings for a server, and the minimum pause as a
# multiple of the time that a reading takes.
_EVERY, _PAUSE_FACTOR = 1.0, 4
# Maximum seconds that a client waits for a reading.
_PATIENCE = 0.5


class GroupMetrics(NamedTuple):
    """The metrics of a group, and what could not be read."""

    tally: Tally
    #: One line for each source that could not be read.
    problems: list[str]


def read(sources: Sources, expected: int | None = None,
         expected_workers: int | None = None) -> GroupMetrics:
    """Return the metrics of a group.

    If the store or the coordination service cannot be read, the metrics say
    so.

    :param expected: Number of expected schedulers. None means unknown.
    :param expected_workers: Number of expected workers. None means unknown.
    """
    clock = sources.clock
    began = clock.monotonic()
    facts = sources.facts(
        expected=expected, expected_workers=expected_workers)
    tally, problems = of_facts(facts), [
        one for one in (facts.store, facts.coordination) if one]
    if facts.stored and not facts.unread:
        from distperiodic.operator import activity
        from distperiodic.operator import waiting
        try:
            waits, successes = sources.store.share(lambda store: (
                waiting.waiting(store), activity.last_successes(store)))
        except exceptions.DistperiodicError as exc:
            problems.append(str(exc))
        else:
            _set_waiting(tally, facts, waits)
            for job, tick in successes.items():
                tally.set(table.LAST_SUCCESS, job, value=tick / SECOND)
    tally.set(table.FACTS_COMPLETE, value=not (problems or facts.unread))
    tally.set(table.FACTS_TIMESTAMP, value=clock.now() / SECOND)
    tally.set(table.FACTS_DURATION, value=clock.monotonic() - began)
    return GroupMetrics(tally, problems)


def of_facts(facts: Facts) -> Tally:
    """Return the metrics that the facts about a group contain."""
    tally = Tally()
    for name, code in health.CODES.items():
        tally.set(table.FINDINGS, name, code.severity.value, value=0)
    for one in health.findings(facts):
        tally.count(table.FINDINGS, one.code, one.severity.value)
    if facts.stored or facts.store:
        tally.set(table.STORE_UP, value=facts.stored)
    if facts.live is not None or facts.coordination:
        tally.set(table.COORDINATION_UP, value=facts.live is not None)
    _set_members(tally, facts)
    for capacity in facts.capacities:
        tally.set(table.NEEDED_SLOTS, capacity.partition,
                  value=capacity.needed)
    for job in facts.jobs:
        tally.set(table.JOB_PAUSED, job.name, value=job.paused)
        tally.set(table.LOST_OBJECTS, job.name,
                  value=sum(tick.lost for tick in job.ticks))
        if job.period is not None:
            tally.set(table.JOB_PERIOD, job.name, value=job.period / SECOND)
    if facts.stored:
        tally.set(table.HALTED_QUEUES, value=len(facts.halted))
        if 'stuck' not in facts.unread:
            tally.set(table.STUCK_TASKS, value=(
                0 if facts.stuck is None else facts.stuck.number))
    return tally


def _set_members(tally: Tally, facts: Facts) -> None:
    members = facts.members_by_role or {}
    for role, number in members.items():
        tally.set(table.MEMBERS, role, value=number)
        if facts.stored:
            tally.set(table.DRAINED_MEMBERS, role, value=sum(
                row.drained for row in facts.reporting if row.role == role))
    for row in facts.reporting:
        for pool in row.facts.pools:
            for state, number in (('busy', pool.busy), ('free', pool.free),
                                  ('hanging', pool.hanging)):
                tally.count(table.REPORTED_SLOTS, pool.partition, state,
                            number=number)


def _set_waiting(tally: Tally, facts: Facts,
                 waits: 'Iterable[Waiting]') -> None:
    """Set the metrics of work that waits."""
    partitions = topics(facts.members)
    for partition in {'default', *partitions.values()}:
        tally.set(table.RUNS_WAITING, partition, value=0)
    due = {job.name: first_unclaimed(job, facts.now) for job in facts.jobs}
    for one in waits:
        module = one.job.removeprefix(COMMAND_PREFIX).partition('.')[0]
        tally.count(table.RUNS_WAITING, module if one.job.startswith(
            COMMAND_PREFIX) else partitions.get(one.job, 'default'),
            number=one.number)
        due[one.job] = min(one.since, due.get(one.job) or one.since)
    for job, since in due.items():
        tally.set(table.OLDEST_DUE, job, value=0.0 if since is None else max(
            0.0, (facts.now - since) / SECOND))


def first_unclaimed(job: JobFacts, now: Instant) -> Instant | None:
    """Return the first tick of a job that was due while no scheduler had it.

    None means that a scheduler has the job, or that no tick is due.
    """
    if not job.unattended or job.paused or not job.period:
        return None
    schedule, _ = audit.named(job.schedule)
    # A tick that an operator triggered decides no tick of the schedule.
    known = [one.tick for one in job.ticks if one.tick <= now
             and schedule.at_or_before(one.tick) == one.tick]
    tick = schedule.after(max([job.attended or now, *known]))
    return tick if tick <= now else None


class ServedMetrics:
    """The metrics of a group for a server, whose clients may ask often.

    Clients that ask within a second, or within four times the duration of a
    reading, get the same values. A reading from a slow store does not delay
    the answer: Prometheus would give up, and show no value. A client gets the
    values of the last reading then, which have their own timestamp.

    :param ask: Reads the metrics.
    :param report: Called with each problem, when it begins.
    """

    def __init__(self, ask: Callable[[], GroupMetrics], clock: 'ports.Clock',
                 report: Callable[[str], None]):
        self._ask = ask
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()
        #: Values of the last reading. None means that none has ended.
        self._found: Tally | None = None
        self._reading: threading.Thread | None = None
        self._next = clock.monotonic()
        self._problems: list[str] = []

    def __call__(self) -> Tally:
        """Return the metrics. This never raises an error."""
        with self._lock:
            if self._reading is None and self._clock.monotonic() >= self._next:
                self._reading = threading.Thread(
                    target=self._renew, daemon=True,
                    name='distperiodic-reading')
                self._reading.start()
            reading, found = self._reading, self._found
        if reading is not None:
            reading.join(None if found is None else _PATIENCE)
        return self._found or Tally()

    def _renew(self) -> None:
        began = self._clock.monotonic()
        found = self._read()
        now = self._clock.monotonic()
        with self._lock:
            self._found, self._reading = found, None
            self._next = now + max(_EVERY, _PAUSE_FACTOR * (now - began))

    def _read(self) -> Tally:
        try:
            found = self._ask()
        except Exception as exc:
            # An error must not look like a server that is down.
            tally = Tally()
            tally.set(table.FACTS_COMPLETE, value=0)
            tally.set(table.FACTS_TIMESTAMP, value=self._clock.now() / SECOND)
            found = GroupMetrics(tally, [f'{type(exc).__name__}: {exc}'])
        for problem in found.problems:
            if problem not in self._problems:
                self._report(problem)
        self._problems = found.problems
        return found.tally
