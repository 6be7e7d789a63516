# SPDX-License-Identifier: Apache-2.0
"""Audit of all due ticks: it assigns a class to each object and tick.

The watermark of an object divides its ticks. The history records the outcomes
of the ticks up to the watermark. The ticks after the watermark are computed
from the row of the object, with :mod:`distperiodic.core.due`::

    since                      watermark                          now
      |---- tick ---- tick ---- tick |---- tick ---- tick ---------|
            recorded in the history         due but undecided

The audit has these classes. The classes lost and unexplained are errors::

    on time            its run succeeded, and its first run began in time
    late               its run succeeded, but its first run began too late
    dead               its last attempt failed or was lost
    superseded         claimed, but not started before its next tick
    cancelled          claimed, and given up before a run succeeded
    skipped            not run, because an earlier run was still in progress
                       (overlap) or because the job was paused
    passed over        given up by the misfire policy, or because the object
                       left the catalogue before it was claimed
    lost               due while schedulers served the job, but not run
    pending            claimed but not ended, or due but undecided
    not listed         in the catalogue but not in the store's listing
    unexplained        the numbers of the history contradict each other: more
                       or fewer claims have ended than were acquired

The audit compares the history with the rows of the objects. From the row of an
object it computes the ticks, up to the watermark, for which the object was
due. For each of these ticks, the history must count the object at that tick,
or as missed at a newer tick. Otherwise the object is lost: its watermark
advanced, but no outcome was recorded.

This module does not access a store. The same code audits the rows of a store
and the record of a simulated cluster.
"""

import bisect
import collections
import functools
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core.due import Plan
from distperiodic.core.due import Row
from distperiodic.core.due import Verdict
from distperiodic.core.job import schedule_named
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.core.outcomes import Counts
from distperiodic.core.outcomes import Fate
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Schedule
from distperiodic.core.schedule import last_scattered
from distperiodic.core.schedule import scattered

#: Classes that are errors. No object should be in one of them.
FINDINGS = (Fate.LOST, Fate.UNEXPLAINED)


# Number of a tick, class of the objects that it counts, and True if they are
# also included in the number of skipped objects.
_FATES = [(at, outcome.fate, outcome.skipped_by is not None)
          for at, outcome in enumerate(OUTCOMES.values())
          if outcome.fate is not None]


def classify(counts: Counts, lost: int = 0,
             undecided: Mapping[Fate, int] | None = None
             ) -> collections.Counter[Fate]:
    """Return the number of objects of a tick by class.

    The history does not record the outcome of each late run. So the result
    assumes that as many late runs as possible succeeded.

    :param lost: Number of objects that are missing in the history.
    :param undecided: Number of objects by class, among the objects whose
        watermark is before the tick.
    """
    late = min(counts.late, counts.done)
    # The history and the rows must agree on the number of claims that have not
    # ended.
    without_end = counts.due - counts.ended
    found = collections.Counter({
        Fate.ON_TIME: -late, Fate.LATE: late, Fate.LOST: lost})
    for at, fate, in_skipped in _FATES:
        found[fate] += counts[at]
        if in_skipped:
            found[Fate.SKIPPED] -= counts[at]
    # A negative number means that more claims left a class than entered it,
    # for example because more claims were requeued than had been dead.
    too_few = -sum(number for number in found.values() if number < 0)
    classes = collections.Counter({
        **found,
        Fate.UNEXPLAINED: abs(without_end - counts.open) + too_few})
    classes.update(undecided or {})
    return +classes


def balance(ticks: Mapping[Instant, Counts],
            expected: Mapping[Instant, int],
            undecided: Mapping[Instant, Mapping[Fate, int]]
            ) -> dict[Instant, collections.Counter[Fate]]:
    """Return the number of objects by class for each tick.

    If an object has missed several ticks, the history counts all of them at
    the newest of these ticks. So the number of missed objects of a tick can
    explain why objects are not counted at earlier ticks. A run that an
    operator triggered outside the schedule explains no other tick.

    :param expected: For each tick, the number of objects that were due for the
        tick and whose watermark is not before the tick.
    :param undecided: For each tick, the number of objects by class, among the
        objects whose watermark is before the tick.
    """
    fates: dict[Instant, collections.Counter[Fate]] = {}
    missed = 0
    for tick in sorted({*ticks, *expected, *undecided}, reverse=True):
        counts = ticks.get(tick, Counts())
        lost = max(0, expected.get(tick, 0) - (counts.due - counts.missed))
        made_up = min(lost, missed)
        missed += counts.missed - made_up
        fates[tick] = classify(counts, lost - made_up, undecided.get(tick))
    return fates


class AttendedInterval(NamedTuple):
    """Interval in which schedulers served a job without a gap."""

    since: Instant
    until: Instant


class AuditedJob(NamedTuple):
    """The properties of a job that the audit uses."""

    #: The schedule in force, with the policies of the job.
    plan: Plan
    #: True if the code of the job was loaded. False means that the policies of
    #: *plan* are defaults.
    known: bool = False
    #: None means that no service is recorded.
    attended: AttendedInterval | None = None
    #: Instant since which the job has been paused. None means not paused.
    paused: Instant | None = None
    #: Microseconds within which schedulers that serve the job must claim an
    #: object that is due.
    patience: int = 0

    def plan_of(self, rule: str) -> Plan:
        """Return the plan of objects whose own schedule has the text *rule*.

        :param rule: Text of the schedule. Empty means the plan of the job.
        :raises InvalidSchedule: The text is invalid.
        """
        if not rule:
            return self.plan
        return Plan(schedule_named(rule), self.plan.misfire,
                    self.plan.grace, immediate=self.plan.immediate)

    def fate(self, at: Instant, given_up: bool) -> Fate:
        """Return the class of an object that was due and is not claimed.

        :param at: Instant at which the object was due.
        :param given_up: True if the misfire policy now gives up this tick of
            the object.
        """
        if self.paused is not None and at >= self.paused:
            return Fate.PENDING
        if self.attended is not None and (
                self.attended.since <= at
                and at + self.patience <= self.attended.until):
            return Fate.LOST
        return Fate.PASSED_OVER if given_up and self.known else Fate.PENDING


def named(text: str) -> tuple[Schedule, bool]:
    """Return the schedule of a job from its text in the store.

    :returns: The schedule, and True if the job has ``spread``.
    :raises InvalidSchedule: The text is invalid.
    """
    bare = text.removesuffix(' spread')
    return schedule_named(bare), bare != text


def recorded(text: str | None) -> tuple[Schedule, bool] | None:
    """Return the schedule of a job from its text, as :func:`named` does.

    None means that there is no schedule, or that a later release has written
    it.
    """
    try:
        return named(text or '')
    except exceptions.InvalidSchedule:
        return None


def period_of(text: str | None, now: Instant) -> int | None:
    """Return the current period of the schedule *text*, in microseconds.

    None means that the schedule is unknown; see :func:`recorded`.
    """
    if (found := recorded(text)) is None:
        return None
    rule, _ = found
    return rule.period_us(rule.at_or_before(now) or now)


def judge(ticks: Mapping[Instant, Counts], alike: Iterable[tuple[Row, int]],
          placed: Iterable[tuple[Row, Sequence[int]]], job: AuditedJob,
          since: Instant, now: Instant
          ) -> dict[Instant, collections.Counter[Fate]]:
    """Return the number of objects by class for each tick of a job.

    :param ticks: History from *since* on.
    :param alike: Rows of listed objects, each with the number of objects that
        have this row. An instant in a row need not be exact if it is before
        *since*.
    :param placed: Groups of listed objects whose rows differ only in their
        positions on the ring. Each group is one row, and the positions of all
        objects of the group.
    :param since: First tick to audit.
    """
    due = _Due(job, since)
    kinds = itertools.chain.from_iterable(
        _by_phase(job, row, positions, now) for row, positions in placed)
    for row, number in itertools.chain(alike, kinds):
        due.expect(row, number)
        plan = job.plan_of(row.attributes.rule)
        row = row._replace(settled=max(row.settled, since - 1))
        due.wait(plan, plan.verdict(row, now), row, number)
    return balance(ticks, due.expected(), due.undecided)


def _by_phase(job: AuditedJob, row: Row, positions: Sequence[int],
              now: Instant) -> Iterator[tuple[Row, int]]:
    """Group objects with equal verdicts.

    The objects differ only in their positions, and so in their phases. A few
    instants divide the period. All objects whose phases are in the same part
    of the period have equal verdicts. So a million objects form only a few
    groups.

    :returns: For each group one row, and the number of objects.
    """
    plan = job.plan
    instants = [now, max(row.since, plan.since) - 1]
    newest = plan.schedule.at_or_before(now)
    for tick in (newest, newest and plan.schedule.at_or_before(newest - 1)):
        if tick is not None:
            instants.append(now - plan.grace_us(tick) - 1)
    if job.paused is not None:
        instants.append(job.paused - 1)
    if job.attended is not None:
        instants += [job.attended.since - 1,
                     job.attended.until - job.patience]
    cuts = set()
    for instant in instants:
        tick = plan.schedule.at_or_before(instant)
        if tick is not None:
            cuts.add(last_scattered(
                instant - tick, plan.schedule.period_us(tick)))
    ordered = sorted(cuts)
    found: dict[int, list[int]] = {}
    for position in positions:
        kind = bisect.bisect_left(ordered, scattered(position))
        known = found.get(kind)
        if known is None:
            found[kind] = [position, 1]
        else:
            known[1] += 1
    for position, number in found.values():
        yield row._replace(position=position), number


class _Due:
    """Numbers of the objects that were due since an instant, by tick."""

    def __init__(self, job: AuditedJob, since: Instant):
        self._job = job
        self._since = since
        self._around = functools.lru_cache(maxsize=1024)(job.plan.around)
        #: For each plan and instant: the number of objects that are due for
        #: the ticks after this instant, minus the number of objects that are
        #: due for the ticks up to it.
        self._changes: dict[Plan, collections.Counter[Instant]] = {}
        self._first: collections.Counter[Instant] = collections.Counter()
        self.undecided: dict[Instant, collections.Counter[Fate]] = (
            collections.defaultdict(collections.Counter))

    def expect(self, row: Row, number: int) -> None:
        """Count the due ticks of *row* up to its watermark.

        :param number: Number of objects that have this row.
        """
        plan = self._job.plan_of(row.attributes.rule)
        last = row.settled
        floor = plan.floor(self._since - 1, row.since, row.position,
                           None if row.attributes.rule else self._around)
        if plan.spread and not self._job.known:
            # The policies of the job are unknown. If the job has
            # ``run_immediately``, the object ran when it was listed, and not
            # in its phase.
            floor = max(floor, row.since)
        if floor < last:
            change = self._changes.setdefault(plan, collections.Counter())
            change[floor] += number
            change[last] -= number
        if plan.immediate and self._since <= row.since <= last:
            self._first[row.since] += number

    def expected(self) -> collections.Counter[Instant]:
        """Return the number of objects that were due for each tick, up to
        their watermarks.
        """
        found = self._first.copy()
        for plan, change in self._changes.items():
            turns = sorted(change)
            there = 0
            for turn, following in zip(turns, turns[1:], strict=False):
                there += change[turn]
                if there:
                    for tick in ticks_of(plan.schedule, turn, following):
                        found[tick] += there
        return found

    def wait(self, plan: Plan, verdict: Verdict, row: Row,
             number: int) -> None:
        """Count the due ticks of *row* after its watermark.

        :param number: Number of objects that have this row.
        """
        for tick in verdict.run:
            self._count(plan, tick, row, number, False)
        if verdict.until is None:
            return
        floor = plan.floor(row.settled, row.since, row.position,
                           self._around if plan is self._job.plan else None)
        if plan.immediate and row.settled < row.since:
            self._count(plan, row.since, row, number, True)
        for tick in ticks_of(plan.schedule, floor, verdict.until):
            self._count(plan, tick, row, number, True)

    def _count(self, plan: Plan, tick: Instant, row: Row, number: int,
               given_up: bool) -> None:
        if not row.free:
            # An earlier claim of the object has not ended, so this tick cannot
            # be decided yet.
            self.undecided[tick][Fate.PENDING] += number
            return
        at = tick
        if plan.spread and tick != row.since:
            at += plan.phase(tick, row.position)
        self.undecided[tick][self._job.fate(at, given_up)] += number


def ticks_of(rule: Schedule, after: Instant,
             until: Instant) -> Iterable[Instant]:
    """Return the ticks in (*after*, *until*], oldest first."""
    tick = rule.after(after)
    while tick <= until:
        yield tick
        tick = rule.after(tick)
