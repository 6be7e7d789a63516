# SPDX-License-Identifier: Apache-2.0
"""Verdict on the due ticks of an object: which run, and which are given up.

The verdict depends only on the row of the object in the store, on the clock
and on the policies of the job, never on the memory of a process::

    settled          since                                    now
       |--- tick ------|--- tick ------- tick ------- tick ----|
            not due:         given up    given up     runs
            the object was   (misfire='latest' runs the newest)
            not listed yet

*settled* is the watermark of the object: the newest tick that was claimed,
skipped or given up for it. *since* is the instant from which the schedule of
the object applies: the time at which the object was listed or at which its
schedule changed, whichever is later. Ticks in the future are not considered.

All objects that follow the schedule of their job have the same ticks. A job
with ``spread`` also gives each of these objects a phase, which depends on the
position of the object on the ring. The object is then due at the tick plus its
phase. An object with its own schedule has no phase.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Remembered
from distperiodic.core.schedule import Schedule
from distperiodic.core.schedule import phase_us
from distperiodic.core.schedule import seconds_text

#: Earlier than any instant.
ALWAYS = -2 ** 63
#: Maximum number of missed ticks of one object that ``misfire='all'`` runs.
CATCH_UP = 100
# Maximum default grace of ``misfire='skip'``, in seconds. The default is one
# period. But for a daily job, a grace of a whole day would make 'skip' equal
# to 'latest'.
_LONGEST_GRACE = 60
# Minimum number of rows for which a cache of the verdicts saves time.
_MANY = 4


class Row(NamedTuple):
    """The store's record of one listed object."""

    object: str
    #: Position on the ring.
    position: int
    #: Watermark: the newest tick that was claimed, skipped or given up.
    settled: Instant
    #: The instant from which the schedule of the object applies.
    since: Instant
    attributes: Attributes = PLAIN
    #: True if the object has no open claim.
    free: bool = True
    #: Time at which the run of the last claim succeeded or failed for good, by
    #: the store's clock. None means that the run has not ended in this way, or
    #: that the object was never claimed.
    ended: Instant | None = None
    #: Time at which the first run of the last claim was granted, by the
    #: clock of the store, and too early by a small fraction; see
    #: :data:`distperiodic.core.claim.STARTED_EARLIER`. If the claim had
    #: several attempts, it is the tick of the claim, because the store records
    #: only the last grant. None means that the claim waits for its start, or
    #: that none of its runs was granted.
    began: Instant | None = None
    #: Time at which the reader requested the row of an object with an open
    #: claim. The claim was open then, or later. None means that the time is
    #: unknown.
    requested: Instant | None = None


def requested(rows: list[Row], at: Instant) -> list[Row]:
    """Return *rows*, which were requested at *at*."""
    return [row if row.free else row._replace(requested=at) for row in rows]


class Verdict(NamedTuple):
    """Decision on the due ticks of an object."""

    #: Ticks to run, oldest first.
    run: tuple[Instant, ...]
    #: Number of ticks to give up. These ticks are older than the ticks to run.
    given_up: int
    #: The newest tick to give up. None means that no tick is given up.
    until: Instant | None
    #: Reason for giving up ticks. Empty means that no tick is given up.
    reason: str


#: The verdict on an object without a due tick.
NOTHING = Verdict((), 0, None, '')


class Around(NamedTuple):
    """The newest two ticks of a schedule at an instant.

    The newest tick for which an object is due is *tick* or *before*, depending
    on the phase of the object.
    """

    now: Instant
    #: The newest tick that is not after *now*.
    tick: Instant | None
    #: Microseconds from *tick* to the next tick. 0 means that objects have no
    #: phase.
    period: int = 0
    #: The tick before *tick*, if objects have a phase.
    before: Instant | None = None

    def newest(self, position: int) -> Instant | None:
        """Return the newest tick that is due for an object at *position*."""
        if (self.tick is not None and self.period and self.now - self.tick
                < phase_us(position, self.period)):
            return self.before
        return self.tick


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Schedule and misfire policy of the objects that follow one schedule."""

    schedule: Schedule
    misfire: Misfire = Misfire.LATEST
    #: Seconds by which a tick may be late under ``misfire='skip'``. None means
    #: one period, at most a minute.
    grace: float | None = None
    #: True if each object has its own phase within the period.
    spread: bool = False
    #: True if an object also has a tick at the instant at which it is listed.
    immediate: bool = False
    #: Instant since which the job has had this schedule. Earlier ticks are not
    #: due.
    since: Instant = ALWAYS

    def phase(self, tick: Instant, position: int) -> Instant:
        """Return the delay after *tick* at which an object is due.

        :param position: Position of the object on the ring.
        :returns: Microseconds.
        """
        if not self.spread:
            return 0
        return phase_us(position, self.schedule.period_us(tick))

    def newest(self, now: Instant, position: int = 0) -> Instant | None:
        """Return the newest tick for which an object is due by *now*.

        None means that there is no such tick.
        """
        return self.around(now).newest(position)

    def floor(self, settled: Instant, since: Instant, position: int = 0,
              around: Callable[[Instant], Around] | None = None) -> Instant:
        """Return the instant after which ticks of an object can be due.

        This is the watermark of the object, or the microsecond before the
        instant from which its schedule applies, whichever is later. With
        ``spread``, the second value is the last tick for which the object was
        due before that instant. With :attr:`immediate`, the watermark is at
        least the instant at which the object was listed.

        :param settled: Watermark of the object.
        :param since: Instant from which the schedule of the object applies.
        :param around: :meth:`around`, or a cached version of it.
        """
        if self.immediate:
            # The object has a tick at the instant at which it is listed. The
            # ticks of the schedule can be due only after that instant.
            settled, since = max(settled, since), self.since
        else:
            since = max(since, self.since)
        if since <= settled:
            return settled
        if not self.spread:
            return since - 1
        newest = (around or self.around)(since - 1).newest(position)
        return settled if newest is None else max(settled, newest)

    def floor_of_change(
            self, settled: Instant, since: Instant, position: int = 0,
            around: Callable[[Instant], Around] | None = None) -> Instant:
        """Return the watermark of a listed object that changes to this plan.

        Unlike a listing, the change itself is not a tick.

        :param settled: The watermark before the change.
        :param since: Instant from which the object follows this plan.
        :param around: As in :meth:`floor`.
        """
        if not self.immediate:
            return self.floor(settled, since, position, around)
        is_tick = (not self.spread
                   and self.schedule.at_or_before(since) == since)
        return max(settled, since - 1 if is_tick else since)

    def around(self, now: Instant) -> Around:
        """Return the newest ticks at *now*, for objects of any phase."""
        tick = self.schedule.at_or_before(now)
        if tick is None or not self.spread:
            return Around(now, tick)
        return Around(now, tick, self.schedule.period_us(tick),
                       self.schedule.at_or_before(tick - 1))

    def grace_us(self, tick: Instant) -> int:
        """Return the grace of *tick* under ``misfire='skip'``.

        :returns: Microseconds.
        """
        if self.grace is None:
            return min(self.schedule.period_us(tick), _LONGEST_GRACE * SECOND)
        return round(self.grace * SECOND)

    def verdict(self, row: Row, now: Instant) -> Verdict:
        """Return the ticks of *row* to run or to give up at *now*.

        The cost of the call does not grow with the number of missed ticks.
        With a cron line, it grows with the number of missed years.
        """
        newest = self.newest(now, row.position)
        floor = self.floor(row.settled, row.since, row.position)
        return self._decide(newest, floor, self._first(row, now),
                            row.position, now)

    def _decide(self, newest: Instant | None, floor: Instant,
                first: Instant | None, position: int,
                now: Instant) -> Verdict:
        """Return the verdict on *first* and the ticks in (*floor*, *newest*].

        :param first: The tick at which the object was listed. It is not in the
            schedule, and is older than the other ticks. None means that there
            is no such tick.
        """
        if newest is None or newest <= floor:
            return NOTHING if first is None else self._alone(first, now)
        total = self.schedule.count(floor, newest)
        verdict = self._of_grid(newest, self._late(newest, position, now),
                                total)
        if first is None:
            return verdict
        if self.misfire is Misfire.ALL and total < CATCH_UP:
            return verdict._replace(run=(first, *verdict.run))
        return verdict._replace(
            given_up=verdict.given_up + 1,
            until=max(first, verdict.until or first),
            reason=verdict.reason or self._too_many())

    def _late(self, tick: Instant, position: int, now: Instant) -> Instant:
        return now - tick - self.phase(tick, position)

    def _alone(self, first: Instant, now: Instant) -> Verdict:
        late = now - first
        if self.misfire is Misfire.SKIP and late > self.grace_us(first):
            return Verdict((), 1, first, self._too_late(first, late))
        return Verdict((first,), 0, None, '')

    def _first(self, row: Row, until: Instant) -> Instant | None:
        """Return the tick at which *row* was listed, if this tick is due.

        Such a tick exists only with :attr:`immediate`. The result is None if
        the tick does not exist, is not after the watermark, or is after
        *until*.
        """
        if self.immediate and row.settled < row.since <= until:
            return row.since
        return None

    def _of_grid(self, newest: Instant, late: int, total: int) -> Verdict:
        run: tuple[Instant, ...]
        if self.misfire is Misfire.ALL:
            run = self._newest_ticks(newest, min(CATCH_UP, total))
            reason = self._too_many()
        elif self.misfire is Misfire.LATEST or late <= self.grace_us(newest):
            run = (newest,)
            reason = self._too_many()
        else:
            run = ()
            reason = self._too_late(newest, late)
        given_up = total - len(run)
        if not given_up:
            return Verdict(run, 0, None, '')
        until = (self.schedule.at_or_before(run[0] - 1) if run else newest)
        return Verdict(run, given_up, until, reason)

    def _too_many(self) -> str:
        if self.misfire is Misfire.ALL:
            return f'misfire=all runs the newest {CATCH_UP} missed ticks'
        return f'misfire={self.misfire.value} runs the newest tick only'

    def _too_late(self, tick: Instant, late: int) -> str:
        grace = seconds_text(self.grace_us(tick) / SECOND)
        if self.spread:
            # The objects are late by different times, because they have
            # different phases. A common reason keeps them in one group.
            return f'misfire=skip and later than its grace of {grace} s'
        seconds = seconds_text(late / SECOND)
        return f'misfire=skip and {seconds} s late, grace is {grace} s'

    def _newest_ticks(self, newest: Instant,
                      number: int) -> tuple[Instant, ...]:
        """Return the last *number* ticks up to *newest*, oldest first."""
        found: list[Instant] = []
        tick: Instant | None = newest
        while tick is not None and len(found) < number:
            found.append(tick)
            tick = self.schedule.at_or_before(tick - 1)
        return tuple(reversed(found))

    def is_listing(self, row: Row, tick: Instant) -> bool:
        """Return whether *tick* is the instant of the listing, and is due.

        An object has no phase at such a tick. See :attr:`immediate`.
        """
        return tick == self._first(row, tick)

    def window(self, tick: Instant, position: int,
               listing: bool = False) -> tuple[Instant, Instant | None]:
        """Return the first and the last instant at which *tick* runs.

        Between these instants :meth:`verdict` runs *tick*, unless a newer tick
        of the object became due first. None as the last instant means that
        *tick* runs even if it is very late.

        :param listing: True if *tick* is the instant of the listing.
        """
        begin = tick if listing else tick + self.phase(tick, position)
        if self.misfire is Misfire.ALL:
            return begin, None
        newer = self.schedule.after(self.floor(tick, ALWAYS, position))
        end = newer + self.phase(newer, position) - 1
        if self.misfire is Misfire.SKIP:
            end = min(end, begin + self.grace_us(tick))
        return begin, end

    def count(self, row: Row, until: Instant) -> int:
        """Return the number of due ticks of *row* up to *until*.

        Only ticks after the watermark of *row* count.
        """
        floor = self.floor(row.settled, row.since, row.position)
        total = max(0, self.schedule.count(floor, until))
        return total + (self._first(row, until) is not None)


def listed_again(readings: Sequence[Instant],
                 delisted: Instant | None) -> Instant:
    """Return the instant from which the schedule of a relisted object applies.

    This is the instant of the first reading that is not before *delisted*, or
    of the last reading if all readings are before *delisted*.

    :param readings: Instants of the readings that contained the object, in
        ascending order.
    :param delisted: Instant of the reading in which the object was missing.
        None means that the object was never missing.
    """
    if delisted is None:
        return readings[0]
    return next((at for at in readings if at >= delisted), readings[-1])


def verdicts(rows: Iterable[Row], plan_of: Mapping[str, Plan],
             now: Instant) -> dict[tuple[str, Verdict], list[Row]]:
    """Return the verdicts on many objects, grouped by equal verdicts.

    A verdict is computed once for all objects that are due for the same ticks
    of the same schedule. Most objects then cost only a dictionary look-up.

    :param plan_of: Plan of each schedule, by the text of the schedule. The
        empty text means the schedule of the job. Rows with any other schedule
        are left out.
    :returns: Rows by the text of the schedule and the verdict. Rows without a
        due tick are left out.
    """
    found: dict[tuple[str, Verdict], list[Row]] = {}
    listed = rows if isinstance(rows, Sequence) else list(rows)
    judges: dict[str, Callable[[Row], Verdict]] = {
        text: _Judge(plan, now).verdict if len(listed) >= _MANY
        else functools.partial(plan.verdict, now=now)
        for text, plan in plan_of.items()}
    text: str | None = None
    verdict_of: Callable[[Row], Verdict] = _unknown
    for row in listed:
        rule = row.attributes.rule
        if rule != text:
            text = rule
            verdict_of = judges.get(text, _unknown)
        verdict = verdict_of(row)
        if verdict is not NOTHING:
            alike = found.get((rule, verdict))
            if alike is None:
                alike = found[rule, verdict] = []
            alike.append(row)
    return found


def _unknown(row: Row) -> Verdict:
    return NOTHING


class _Judge:
    """Cache of the verdicts of one plan at one instant."""

    __slots__ = ('_around', '_known', '_now', '_plan', '_present', '_shared')

    def __init__(self, plan: Plan, now: Instant):
        plan = dataclasses.replace(
            plan, schedule=Remembered(plan.schedule))
        self._plan = plan
        self._now = now
        self._present = plan.around(now)
        self._around = functools.lru_cache(maxsize=1024)(plan.around)
        #: Verdicts by the fields *settled* and *since* of a row, for plans
        #: without phases.
        self._shared: dict[tuple[Instant, Instant], Verdict] = {}
        self._known: dict[tuple[Instant | None, Instant, Instant | None,
                                bool], Verdict] = {}

    def verdict(self, row: Row) -> Verdict:
        if self._plan.spread:
            return self._of_its_own(row)
        key = row.settled, row.since
        verdict = self._shared.get(key)
        if verdict is None:
            verdict = self._shared[key] = self._of_its_own(row)
        return verdict

    def _of_its_own(self, row: Row) -> Verdict:
        """Return the verdict on an object that may have its own phase."""
        plan = self._plan
        newest = self._present.newest(row.position)
        floor = plan.floor(row.settled, row.since, row.position,
                           self._around)
        first = plan._first(row, self._now) if plan.immediate else None
        if newest is None or newest <= floor:
            newest = None
            if first is None:
                return NOTHING
        in_time = plan.misfire is not Misfire.SKIP or newest is None or (
            plan._late(newest, row.position, self._now)
            <= plan.grace_us(newest))
        # Replace the floor by the tick before it. All floors between two ticks
        # have the same verdict.
        begin = plan.schedule.at_or_before(floor)
        if begin is not None:
            floor = begin
        key = newest, floor, first, in_time
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = plan._decide(
                newest, floor, first, row.position, self._now)
        return verdict
