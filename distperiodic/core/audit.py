# SPDX-License-Identifier: Apache-2.0
"""What became of everything that was due, in classes that leave nothing out.

An object is *due* for a tick if it was being served then: it was claimed
before, and is claimed, skipped or listed since. What is known of a tick are
numbers of objects: who was claimed or skipped for it, to what ends they came,
and how many claims stand open now. Each object that was due comes to one
class, and two of them are findings::

    on time, late      its run was done; late if it was claimed too late
    dead               its runs failed for good
    skipped            not run, by misfire, overlap or pause
    superseded         not started before a later tick took its place
    cancelled          not started, since somebody said so
    pending            claimed and not over, or not claimed and not late yet
    lost               nobody claimed or skipped it, and its time is over
    unexplained        the numbers contradict each other: an end is missing,
                       or there is one too many

Nothing here asks anybody: the rows of a store and the record of a simulated
cluster are judged by the same lines.
"""

import collections
import enum
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core import claim as claim_
from distperiodic.core.claim import State
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Schedule


class Fate(enum.StrEnum):
    """The classes; see above."""

    ON_TIME = 'on time'
    LATE = 'late'
    SKIPPED = 'skipped'
    SUPERSEDED = 'superseded'
    CANCELLED = 'cancelled'
    DEAD = 'dead'
    PENDING = 'pending'
    LOST = 'lost'
    UNEXPLAINED = 'unexplained'


#: Those that nobody should ever see.
FINDINGS = (Fate.LOST, Fate.UNEXPLAINED)


class Counts(NamedTuple):
    """What is known of one tick of a job, counted in objects."""

    #: Claimed, or skipped without a claim.
    due: int = 0
    done: int = 0
    dead: int = 0
    skipped: int = 0
    superseded: int = 0
    cancelled: int = 0
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
        due, number[State.DONE], number[State.DEAD], number[State.SKIPPED],
        number[State.SUPERSEDED], number[State.CANCELLED],
        late=int(late), open=int(still_open))


def classify(counts: Counts, lost: int = 0,
             pending: int = 0) -> collections.Counter[Fate]:
    """How many objects of a tick came to which class.

    Of those that were claimed too late as many as can be count among the
    done: the numbers do not tell which of them died.

    :param lost: objects that were due and that nobody may claim or skip for
        it any more, or should have by now.
    :param pending: those that were due, and that somebody still may.
    """
    late = min(counts.late, counts.done)
    # What has no end stands open, and what stands open has no end.
    without_end = counts.due - counts.ended
    found = {
        Fate.ON_TIME: counts.done - late, Fate.LATE: late,
        Fate.SKIPPED: counts.skipped, Fate.SUPERSEDED: counts.superseded,
        Fate.CANCELLED: counts.cancelled, Fate.DEAD: counts.dead,
        Fate.PENDING: counts.open + pending, Fate.LOST: lost}
    # Below zero: more were put back than had died.
    too_few = -sum(number for number in found.values() if number < 0)
    return +collections.Counter({
        **found,
        Fate.UNEXPLAINED: abs(without_end - counts.open) + too_few})


def balance(ticks: Mapping[Instant, Counts],
            expected: Mapping[Instant, int],
            waiting: Mapping[Instant, int],
            passed_over: Mapping[Instant, int]) -> dict[
                Instant, collections.Counter[Fate]]:
    """The classes of each tick.

    What was missed of several ticks is counted in the newest of them, so it
    makes up for those before that one. What an operator triggered, at a tick
    that is none of the schedule, stands for no other.

    :param expected: how many objects were due at each tick of the schedule
        and were claimed or skipped for it or for a later one.
    :param waiting: how many were due and were not, but may be.
    :param passed_over: how many were due and were not, though others were.
    """
    fates: dict[Instant, collections.Counter[Fate]] = {}
    missed = 0
    for tick in sorted({*ticks, *expected, *waiting, *passed_over},
                       reverse=True):
        counts = ticks.get(tick, Counts())
        lost = max(0, expected.get(tick, 0) - (counts.due - counts.missed))
        made_up = min(lost, missed)
        missed += counts.missed - made_up
        fates[tick] = classify(
            counts, lost - made_up + passed_over.get(tick, 0),
            waiting.get(tick, 0))
    return fates


class Served(NamedTuple):
    """A number of objects that were served alike."""

    #: For which tick they were first claimed, and for which they were last
    #: claimed or skipped.
    first: Instant
    last: Instant
    #: Whether their last tick has not come to its end.
    open: bool = False
    number: int = 1


def first_tick(fence: int) -> Instant:
    """The tick for which an object was first claimed, by its newest fence.

    It is too late by a millisecond for each 256 grants that it had since.
    """
    return fence // claim_.FENCES * 1000


def expected_of(rule: Schedule, served: Iterable[Served], since: Instant,
                until: Instant) -> dict[Instant, int]:
    """How many objects with this schedule were due at each of its ticks, of
    those that were claimed or skipped for it or for a later one.

    :param since: the first tick that is looked at.
    :param until: the last one.
    """
    change: collections.Counter[Instant] = collections.Counter()
    for one in served:
        if one.last >= since:
            change[max(one.first, since)] += one.number
            change[one.last + 1] -= one.number
    turns = sorted(change)
    found: dict[Instant, int] = {}
    tick, at, there = rule.after(since - 1), 0, 0
    while tick <= until and at < len(turns):
        while at < len(turns) and turns[at] <= tick:
            there += change[turns[at]]
            at += 1
        if there:
            found[tick] = there
        tick = rule.after(tick)
    return found


def awaited_of(rule: Schedule, listed: Iterable[Served], since: Instant,
               now: Instant, *, patience: int, newest: Instant) -> tuple[
                   dict[Instant, int], dict[Instant, int]]:
    """How many objects that are listed now were due at each tick after their
    last one: those that may still be claimed for it, and those that were
    passed over.

    Where nobody of the job was claimed for that tick or a later one, nobody
    was there to do it, or nobody could: whoever comes decides what runs.

    :param now: ticks up to here are due.
    :param patience: microseconds in which what is due is claimed at the
        latest where anybody claims.
    :param newest: the newest tick for which any object of the job was
        claimed or skipped.
    """
    waiting: collections.Counter[Instant] = collections.Counter()
    passed_over: collections.Counter[Instant] = collections.Counter()
    for one in listed:
        tick = rule.after(max(one.last, since - 1))
        while tick <= now:
            late = not one.open and tick <= min(newest, now - patience)
            (passed_over if late else waiting)[tick] += one.number
            tick = rule.after(tick)
    return dict(waiting), dict(passed_over)


class Row(NamedTuple):
    """What the claim of one object says of its ticks."""

    object: str
    served: Served
    tick: Instant
    #: The tick that it was claimed for before this one. None: there is none.
    previous: Instant | None


class Plan(NamedTuple):
    """What should have been: the job's schedule, and the objects that its
    catalogue lists now.
    """

    rule: Schedule
    objects: Collection[str]
    #: Those that have schedules of their own.
    own: Mapping[str, Schedule]
    #: Microseconds after its tick at which an object is late.
    late_after: int
    #: Whether the objects begin spread over the period.
    spread: bool = False

    def rule_of(self, row: Row) -> Schedule | None:
        """The schedule that an object has or had. None: nobody knows."""
        if row.object in self.own:
            return self.own[row.object]
        if row.object in self.objects or (
                self.rule.at_or_before(row.tick) == row.tick
                and row.previous in (
                    None, self.rule.at_or_before(row.tick - 1))):
            return self.rule
        return None

    def patience(self, rule: Schedule, now: Instant) -> int:
        """After that many microseconds what is due is claimed, where anybody
        claims: until the next tick is late, too.
        """
        return (rule.period_us(rule.at_or_before(now) or now)
                * (2 if self.spread else 1) + self.late_after)


def judge(ticks: Mapping[Instant, Counts], served: Iterable[Served],
          rows: Iterable[Row], plan: Plan, since: Instant,
          now: Instant) -> dict[Instant, collections.Counter[Fate]]:
    """The classes of each tick of a job.

    :param served: all objects that had a tick in that time.
    :param rows: one by one those of them that are behind the newest tick of
        the job, and those with a schedule of their own.
    """
    alike = list(served)
    newest = max((one.last for one in alike), default=since)
    by_rule: dict[Schedule, list[Served]] = {plan.rule: alike}
    listed: dict[Schedule, list[Served]] = {}
    for row in rows:
        rule = plan.rule_of(row)
        if rule is not plan.rule:
            alike.append(row.served._replace(number=-1))
            if rule is not None:
                by_rule.setdefault(rule, []).append(row.served)
        if row.object in plan.objects and rule is not None:
            listed.setdefault(rule, []).append(row.served)
    expected: collections.Counter[Instant] = collections.Counter()
    waiting: collections.Counter[Instant] = collections.Counter()
    passed_over: collections.Counter[Instant] = collections.Counter()
    for rule, some in by_rule.items():
        expected.update(expected_of(rule, some, since, now))
    for rule, some in listed.items():
        may_be, not_any_more = awaited_of(
            rule, some, since, now, newest=newest,
            patience=plan.patience(rule, now))
        waiting.update(may_be)
        passed_over.update(not_any_more)
    return balance(ticks, expected, waiting, passed_over)
