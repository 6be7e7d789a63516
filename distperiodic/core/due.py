# SPDX-License-Identifier: Apache-2.0
"""Which ticks of an object are due, which are given up, and why.

Everything follows from values that the store keeps, the clock and the job's
policy, never from what a process remembers::

    settled          since                                    now
       |--- tick ------|--- tick ------- tick ------- tick ----|
            not due:         given up    given up     runs
            it was not       (misfire='latest' runs the newest)
            listed yet

*settled* is the object's watermark: the newest tick that was claimed, skipped
or given up for it. *since* is the instant from which its schedule counts: it
was listed then, or its schedule changed then, whichever came later. A tick of
the future is never due and never given up.

A job with ``spread`` gives each object a phase, from its position on the ring.
The tick keeps its place on the grid, which all objects share; the object is
due for it at that tick plus its phase.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core import schedule as schedule_
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Schedule

#: Earlier than any instant.
ALWAYS = -2 ** 63
#: In the place of a schedule: the store has not recorded it yet.
UNRECORDED = '?'
#: Missed ticks of one object that ``misfire='all'`` runs at most.
CATCH_UP = 100
# Seconds; the default grace of ``misfire='skip'`` is one period, but no more.
# A whole period of a day would make 'skip' run whatever 'latest' runs.
_LONGEST_GRACE = 60
# To remember earlier verdicts pays from this number of rows on.
_MANY = 4


class Row(NamedTuple):
    """What the store knows of one listed object."""

    object: str
    #: Its place on the ring.
    position: int
    #: The newest tick that was claimed, skipped or given up for it.
    settled: Instant
    #: The instant from which its schedule counts.
    since: Instant
    #: The text of its own schedule; empty: it follows its job's. It may be
    #: :data:`UNRECORDED`.
    rule: str = ''
    #: Whether no claim of it is open.
    free: bool = True
    #: When a run of it was last done, by the store's clock. None: never.
    served: Instant | None = None


class Verdict(NamedTuple):
    """What is to be done with an object now."""

    #: Ticks to run, oldest first.
    run: tuple[Instant, ...]
    #: Number of ticks that are given up; all are older than those that run.
    given_up: int
    #: The newest tick that is given up. None: none is.
    until: Instant | None
    #: Why they are given up; empty: none are.
    reason: str


NOTHING = Verdict((), 0, None, '')


class Around(NamedTuple):
    """The ticks of a schedule for which objects may be due at an instant."""

    now: Instant
    tick: Instant | None
    #: 0: no object has a phase in it.
    period: int = 0
    before: Instant | None = None

    def newest(self, position: int) -> Instant | None:
        """The newest tick for which the object at *position* is due."""
        if (self.tick is not None and self.period and self.now - self.tick
                < schedule_.phase_us(position, self.period)):
            return self.before
        return self.tick


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """When the objects that follow one schedule are due, and what becomes of
    the ticks that they miss.
    """

    schedule: Schedule
    misfire: Misfire = Misfire.LATEST
    #: Seconds that ``misfire='skip'`` runs a tick late. None: one period, but
    #: at most a minute.
    grace: float | None = None
    #: Whether each object has its own phase in the period.
    spread: bool = False
    #: Whether the instant at which an object was listed is its first tick.
    immediate: bool = False
    #: Since when the job has this schedule; its ticks before that are not due.
    since: Instant = ALWAYS

    def phase(self, tick: Instant, position: int) -> Instant:
        """Microseconds from *tick* until the object at *position* is due."""
        if not self.spread:
            return 0
        return schedule_.phase_us(position, self.schedule.period_us(tick))

    def newest(self, now: Instant, position: int = 0) -> Instant | None:
        """The newest tick for which an object is due by *now*; None: there
        is none.
        """
        return self.around(now).newest(position)

    def floor(self, settled: Instant, since: Instant, position: int = 0,
              around: Callable[[Instant], Around] | None = None) -> Instant:
        """The instant after which the ticks of the schedule count for an
        object: the later of its watermark and of the last tick for which it
        was not listed yet.

        :param around: :meth:`around`, or what remembers its answers.
        """
        if self.immediate:
            # The instant of its listing is its first tick.
            settled, since = max(settled, since), self.since
        else:
            since = max(since, self.since)
        if since <= settled:
            return settled
        if not self.spread:
            return since - 1
        newest = (around or self.around)(since - 1).newest(position)
        return settled if newest is None else max(settled, newest)

    def around(self, now: Instant) -> Around:
        """The ticks for which objects may be due at *now*, whatever their
        phase.
        """
        tick = self.schedule.at_or_before(now)
        if tick is None or not self.spread:
            return Around(now, tick)
        return Around(now, tick, self.schedule.period_us(tick),
                       self.schedule.at_or_before(tick - 1))

    def grace_us(self, tick: Instant) -> int:
        """How late *tick* may run under ``misfire='skip'``, microseconds."""
        if self.grace is None:
            return min(self.schedule.period_us(tick), _LONGEST_GRACE * SECOND)
        return round(self.grace * SECOND)

    def verdict(self, row: Row, now: Instant) -> Verdict:
        """What is due of *row* by *now*.

        On a grid the cost does not grow with the number of missed ticks, but
        for :data:`CATCH_UP` of them; a cron line counts its years.
        """
        newest = self.newest(now, row.position)
        floor = self.floor(row.settled, row.since, row.position)
        return self._decide(newest, floor, self._first(row, now),
                            row.position, now)

    def _decide(self, newest: Instant | None, floor: Instant,
                first: Instant | None, position: int,
                now: Instant) -> Verdict:
        """What is due of the ticks after *floor*, up to *newest*, and of
        *first*, which is older than they are.
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
        """The instant at which *row* was listed, if that is a tick and still
        to run.
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
        grace = schedule_.seconds_text(self.grace_us(tick) / SECOND)
        if self.spread:
            # One reason for all of them, though each is late by its own.
            return f'misfire=skip and later than its grace of {grace} s'
        seconds = schedule_.seconds_text(late / SECOND)
        return f'misfire=skip and {seconds} s late, grace is {grace} s'

    def _newest_ticks(self, newest: Instant,
                      number: int) -> tuple[Instant, ...]:
        """The *number* ticks up to *newest*, oldest first."""
        found: list[Instant] = []
        tick: Instant | None = newest
        while tick is not None and len(found) < number:
            found.append(tick)
            tick = self.schedule.at_or_before(tick - 1)
        return tuple(reversed(found))

    def count(self, row: Row, until: Instant) -> int:
        """Number of ticks after the watermark of *row*, up to *until*, for
        which it was due.
        """
        floor = self.floor(row.settled, row.since, row.position)
        total = max(0, self.schedule.count(floor, until))
        return total + (self._first(row, until) is not None)


def verdicts(rows: Iterable[Row], plan_of: Mapping[str, Plan],
             now: Instant) -> dict[tuple[str, Verdict], list[Row]]:
    """What is due of many objects, those alike together.

    Objects that are due for the same ticks of the same schedule are judged
    once: the usual million of them costs a look-up each.

    :param plan_of: the plan of each schedule, by its text; the job's own by
        the empty text. Rows of a schedule that is not in it are left out.
    :returns: rows by the text of their schedule and their verdict; those of
        which nothing is due are left out.
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
        if row.rule != text:
            text = row.rule
            verdict_of = judges.get(text, _unknown)
        verdict = verdict_of(row)
        if verdict is not NOTHING:
            alike = found.get((row.rule, verdict))
            if alike is None:
                alike = found[row.rule, verdict] = []
            alike.append(row)
    return found


def _unknown(row: Row) -> Verdict:
    return NOTHING


class _Judge:
    """One plan at one instant, with what was judged before."""

    __slots__ = ('_around', '_known', '_now', '_plan', '_present', '_shared')

    def __init__(self, plan: Plan, now: Instant):
        plan = dataclasses.replace(
            plan, schedule=schedule_.Remembered(plan.schedule))
        self._plan = plan
        self._now = now
        self._present = plan.around(now)
        self._around = functools.lru_cache(maxsize=1024)(plan.around)
        #: By watermark and listing; of objects without a phase.
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
        """The same of one object, with its phase."""
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
        # Wherever between two ticks they begin to count, the same are due.
        begin = plan.schedule.at_or_before(floor)
        if begin is not None:
            floor = begin
        key = newest, floor, first, in_time
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = plan._decide(
                newest, floor, first, row.position, self._now)
        return verdict
