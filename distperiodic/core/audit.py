# SPDX-License-Identifier: Apache-2.0
"""The account of everything that was due, in classes that leave nothing out.

The watermark of an object divides its ticks. What became of those up to it
stands in the history; those after it follow from :mod:`distperiodic.core.due`,
over the object's row::

    since                      watermark                          now
      |---- tick ---- tick ---- tick |---- tick ---- tick ---------|
            the history has them           due, and undecided

Each object and tick comes to one class, and two of them are findings::

    on time, late      its run was done; late if it was claimed too late
    dead               its runs failed for good
    superseded         claimed, and not started before its next tick came
    cancelled          claimed, and ended without a run
    skipped            not run, since an earlier run went on (overlap) or
                       the job was paused
    passed over        given up by the misfire policy
    lost               due while schedulers attended the job, and not run
    pending            claimed and not over, or due and undecided
    not listed         in the catalogue, but not in the store's listing
    unexplained        the numbers contradict each other: an end is missing,
                       or there is one too many

The history is checked by the rows: an object whose row says that it was due
for a tick and that the tick is settled must be counted for that tick, or
among those that were missed until a newer one. If it is not, it is lost: a
watermark was moved and nothing was recorded.

Nothing here asks anybody: the rows of a store and the record of a simulated
cluster are judged by the same lines.
"""

import bisect
import collections
import enum
import functools
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core import due as due_
from distperiodic.core import job as job_
from distperiodic.core import schedule as schedule_
from distperiodic.core.claim import State
from distperiodic.core.due import Plan
from distperiodic.core.due import Row
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Schedule


class Fate(enum.StrEnum):
    """The classes; see above."""

    ON_TIME = 'on time'
    LATE = 'late'
    DEAD = 'dead'
    SUPERSEDED = 'superseded'
    CANCELLED = 'cancelled'
    SKIPPED = 'skipped'
    PASSED_OVER = 'passed over'
    LOST = 'lost'
    PENDING = 'pending'
    NOT_LISTED = 'not listed'
    UNEXPLAINED = 'unexplained'


#: Those that nobody should ever see.
FINDINGS = (Fate.LOST, Fate.UNEXPLAINED)


class Counts(NamedTuple):
    """What is known of one tick of a job, counted in objects."""

    #: Claimed, or skipped without a claim.
    due: int = 0
    done: int = 0
    dead: int = 0
    superseded: int = 0
    cancelled: int = 0
    #: By whatever.
    skipped: int = 0
    #: Of what was skipped: given up by the misfire policy, and given up
    #: though schedulers attended the job.
    by_misfire: int = 0
    by_lost: int = 0
    #: Of what was skipped, what was due for earlier ticks than this one.
    missed: int = 0
    #: Claimed too late.
    late: int = 0
    #: Claims that stand open, as their own rows have it.
    open: int = 0

    @property
    def ended(self) -> int:
        return (self.done + self.dead + self.skipped + self.superseded
                + self.cancelled)


def counts_of(endings: Iterable[State], *, due: int = 1, late: bool = False,
              still_open: bool = False) -> Counts:
    """The counts of one object and tick, from the ends that it came to."""
    number = collections.Counter(endings)
    return Counts(
        due, number[State.DONE], number[State.DEAD],
        skipped=number[State.SKIPPED],
        superseded=number[State.SUPERSEDED],
        cancelled=number[State.CANCELLED],
        late=int(late), open=int(still_open))


def classify(counts: Counts, lost: int = 0,
             undecided: Mapping[Fate, int] | None = None
             ) -> collections.Counter[Fate]:
    """Number of objects of a tick by class.

    Of those that were claimed too late as many as can be count among the
    done: the numbers do not tell which of them died.

    :param lost: objects that the history should have, and has not.
    :param undecided: classes of what was due after its watermark.
    """
    late = min(counts.late, counts.done)
    # What has no end stands open, and what stands open has no end.
    without_end = counts.due - counts.ended
    found = {
        Fate.ON_TIME: counts.done - late, Fate.LATE: late,
        Fate.DEAD: counts.dead, Fate.SUPERSEDED: counts.superseded,
        Fate.CANCELLED: counts.cancelled,
        Fate.SKIPPED: counts.skipped - counts.by_misfire - counts.by_lost,
        Fate.PASSED_OVER: counts.by_misfire,
        Fate.LOST: counts.by_lost + lost, Fate.PENDING: counts.open}
    # Below zero: more were put back than had died.
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
    """The classes of each tick.

    What was missed of several ticks is counted in the newest of them, so it
    makes up for those before that one. What an operator triggered, at a tick
    that is none of the schedule, stands for no other.

    :param expected: objects that were due for each tick, and whose watermark
        says that it is settled.
    :param undecided: classes of what was due after its watermark.
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


class Attendance(NamedTuple):
    """The time in which schedulers attended a job without a gap."""

    since: Instant
    until: Instant


class Job(NamedTuple):
    """A job as it is judged."""

    #: The schedule in force.
    plan: Plan
    #: Whether the policies of *plan* are the job's: its code was read.
    known: bool = False
    #: None: nobody attends it.
    attended: Attendance | None = None
    #: Since when an operator has paused it. None: it is not paused.
    paused: Instant | None = None
    #: Microseconds within which schedulers that attend claim what is due.
    patience: int = 0

    def plan_of(self, rule: str) -> Plan:
        """The plan of objects with a schedule of their own, by its text.

        :raises InvalidSchedule: nobody can read it.
        """
        if not rule:
            return self.plan
        return Plan(job_.schedule_named(rule), self.plan.misfire,
                    self.plan.grace, immediate=self.plan.immediate)

    def fate(self, at: Instant, given_up: bool) -> Fate:
        """The class of an undecided tick of an object without a claim.

        :param at: the instant at which it was due.
        :param given_up: whether the misfire policy would not run it any more.
        """
        if self.paused is not None and at >= self.paused:
            return Fate.PENDING
        if self.attended is not None and (
                self.attended.since <= at
                and at + self.patience <= self.attended.until):
            return Fate.LOST
        return Fate.PASSED_OVER if given_up and self.known else Fate.PENDING


def named(text: str) -> tuple[Schedule, bool]:
    """The schedule that the store keeps of a job, and whether the job spreads
    its objects over the period.

    :raises InvalidSchedule: it is nothing that a job would write.
    """
    bare = text.removesuffix(' spread')
    return job_.schedule_named(bare), bare != text


def judge(ticks: Mapping[Instant, Counts], alike: Iterable[tuple[Row, int]],
          placed: Iterable[tuple[Row, Sequence[int]]], job: Job,
          since: Instant, now: Instant
          ) -> dict[Instant, collections.Counter[Fate]]:
    """The classes of each tick of a job.

    :param ticks: the history from *since* on.
    :param alike: listed objects, those alike together with their number. What
        happened to them before *since* may be left out.
    :param placed: listed objects that are alike but for their places on the
        ring, which matter: one of them, and the places of all.
    :param since: the first tick that is judged.
    """
    due = _Due(job, since)
    kinds = itertools.chain.from_iterable(
        _by_phase(job, row, positions, now) for row, positions in placed)
    for row, number in itertools.chain(alike, kinds):
        due.expect(row, number)
        plan = job.plan_of(row.rule)
        row = row._replace(settled=max(row.settled, since - 1))
        due.wait(plan, plan.verdict(row, now), row, number)
    return balance(ticks, due.expected(), due.undecided)


def _by_phase(job: Job, row: Row, positions: Sequence[int],
              now: Instant) -> Iterator[tuple[Row, int]]:
    """Objects that are judged alike: one of them, and the number of all.

    What becomes of an object depends on whether its phase had come at a few
    instants, and on nothing else of it. A million of them fall into a handful
    of kinds.
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
            cuts.add(schedule_.last_scattered(
                instant - tick, plan.schedule.period_us(tick)))
    ordered = sorted(cuts)
    found: dict[int, list[int]] = {}
    for position in positions:
        kind = bisect.bisect_left(ordered, schedule_.scattered(position))
        known = found.get(kind)
        if known is None:
            found[kind] = [position, 1]
        else:
            known[1] += 1
    for position, number in found.values():
        yield row._replace(position=position), number


class _Due:
    """What was due from an instant on."""

    def __init__(self, job: Job, since: Instant):
        self._job = job
        self._since = since
        self._around = functools.lru_cache(maxsize=1024)(job.plan.around)
        #: By schedule, how many objects come or go after an instant.
        self._changes: dict[Plan, collections.Counter[Instant]] = {}
        self._first: collections.Counter[Instant] = collections.Counter()
        self.undecided: dict[Instant, collections.Counter[Fate]] = (
            collections.defaultdict(collections.Counter))

    def expect(self, row: Row, number: int) -> None:
        """Count the ticks up to its watermark for which *row* was due."""
        plan = self._job.plan_of(row.rule)
        last = row.settled
        floor = plan.floor(self._since - 1, row.since, row.position,
                           self._around if not row.rule else None)
        if plan.spread and not self._job.known:
            # It may have run at once, instead of in its phase.
            floor = max(floor, row.since)
        if floor < last:
            change = self._changes.setdefault(plan, collections.Counter())
            change[floor] += number
            change[last] -= number
        if plan.immediate and self._since <= row.since <= last:
            self._first[row.since] += number

    def expected(self) -> collections.Counter[Instant]:
        """Number of objects that were due for each tick and are past it."""
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

    def wait(self, plan: Plan, verdict: due_.Verdict, row: Row,
             number: int) -> None:
        """Count what was due of *row* after its watermark.

        :param number: objects that it stands for.
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
            # Its claim is not over, so nothing was decided.
            self.undecided[tick][Fate.PENDING] += number
            return
        at = tick
        if plan.spread and tick != row.since:
            at += plan.phase(tick, row.position)
        self.undecided[tick][self._job.fate(at, given_up)] += number


def ticks_of(rule: Schedule, after: Instant,
             until: Instant) -> Iterable[Instant]:
    """The ticks in (*after*, *until*], the oldest first."""
    tick = rule.after(after)
    while tick <= until:
        yield tick
        tick = rule.after(tick)
