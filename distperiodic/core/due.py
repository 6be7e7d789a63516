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
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core import schedule as schedule_
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Schedule

#: Earlier than any instant.
ALWAYS = -2 ** 63
#: Missed ticks of one object that ``misfire='all'`` runs at most.
CATCH_UP = 100
# Seconds; the default grace of ``misfire='skip'`` is one period, but no more.
# A whole period of a day would make 'skip' run whatever 'latest' runs.
_LONGEST_GRACE = 60


class Row(NamedTuple):
    """What the store knows of one listed object."""

    object: str
    #: Its place on the ring.
    position: int
    #: The newest tick that was claimed, skipped or given up for it.
    settled: Instant
    #: The instant from which its schedule counts.
    since: Instant
    #: The text of its own schedule; empty: it follows its job's.
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
    #: Whether the instant at which an object was listed is a tick of its own.
    immediate: bool = False
    #: Since when the job has this schedule; ticks before that are not due.
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
        tick = self.schedule.at_or_before(now)
        if tick is not None and tick + self.phase(tick, position) > now:
            tick = self.schedule.at_or_before(tick - 1)
        return tick

    def floor(self, settled: Instant, since: Instant,
              position: int = 0) -> Instant:
        """The instant after which the ticks of an object count: the later of
        its watermark and of the last tick that came before it was listed.
        """
        since = max(since, self.since)
        if not self.spread or self.immediate:
            # What runs as soon as it is listed has no phase in that period.
            return max(settled, since - 1)
        newest = self.newest(since - 1, position)
        return settled if newest is None else max(settled, newest)

    def grace_us(self, tick: Instant) -> int:
        """How late *tick* may run under ``misfire='skip'``, microseconds."""
        if self.grace is None:
            return min(self.schedule.period_us(tick), _LONGEST_GRACE * SECOND)
        return round(self.grace * SECOND)

    def verdict(self, row: Row, now: Instant) -> Verdict:
        """What is due of *row* by *now*.

        The cost does not grow with the number of missed ticks, but for
        :data:`CATCH_UP` of them.
        """
        newest = self.newest(now, row.position)
        floor = self.floor(row.settled, row.since, row.position)
        total = 0
        if newest is not None and newest > floor:
            total = self.schedule.count(floor, newest)
        first = self._first(row, now)
        if first is not None:
            return self._with_first(first, newest, now, row, total)
        if not total:
            return NOTHING
        assert newest is not None
        return self._of_grid(newest, now, row, total)

    def _first(self, row: Row, until: Instant) -> Instant | None:
        """The instant at which *row* was listed, if that is a tick beside
        those of the schedule and still to run.
        """
        if (self.immediate and row.settled < row.since <= until
                and (self.spread or not self._names(row.since))):
            return row.since
        return None

    def _names(self, instant: Instant) -> bool:
        """Whether *instant* is a tick of the schedule."""
        return self.schedule.at_or_before(instant) == instant

    def _of_grid(self, newest: Instant, now: Instant, row: Row,
                 total: int) -> Verdict:
        run: tuple[Instant, ...]
        late = now - newest - self.phase(newest, row.position)
        if self.misfire is Misfire.ALL:
            run = self._newest_ticks(newest, min(CATCH_UP, total))
            reason = f'misfire=all runs the newest {CATCH_UP} missed ticks'
        elif self.misfire is Misfire.LATEST or late <= self.grace_us(newest):
            run = (newest,)
            reason = f'misfire={self.misfire.value} runs the newest tick only'
        else:
            run = ()
            reason = self._too_late(newest, late)
        given_up = total - len(run)
        if not given_up:
            return Verdict(run, 0, None, '')
        until = (self.schedule.at_or_before(run[0] - 1) if run else newest)
        return Verdict(run, given_up, until, reason)

    def _too_late(self, tick: Instant, late: int) -> str:
        seconds, grace = (schedule_.seconds_text(us / SECOND)
                          for us in (late, self.grace_us(tick)))
        return f'misfire=skip and {seconds} s late, grace is {grace} s'

    def _with_first(self, first: Instant, newest: Instant | None,
                    now: Instant, row: Row, total: int) -> Verdict:
        """The same, where *first* is due beside ticks of the schedule. It is
        older than they are.
        """
        if not total:
            late = now - first
            if self.misfire is Misfire.SKIP and late > self.grace_us(first):
                return Verdict((), 1, first, self._too_late(first, late))
            return Verdict((first,), 0, None, '')
        assert newest is not None
        rest = self._of_grid(newest, now, row, total)
        if self.misfire is Misfire.ALL and total < CATCH_UP:
            return rest._replace(run=(first, *rest.run))
        return rest._replace(
            given_up=rest.given_up + 1, until=max(first, rest.until or first),
            reason=rest.reason or (
                f'misfire={self.misfire.value} runs the newest tick only'))

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
    judges = {text: _Judge(plan, now) for text, plan in plan_of.items()}
    for row in rows:
        judge = judges.get(row.rule)
        if judge is None:
            continue
        verdict = judge.verdict(row)
        if verdict is not NOTHING:
            found.setdefault((row.rule, verdict), []).append(row)
    return found


class _Judge:
    """One plan at one instant, with what was judged before."""

    __slots__ = ('_grid', '_known', '_newest', '_now', '_plan')

    def __init__(self, plan: Plan, now: Instant):
        self._grid = schedule_.Remembered(plan.schedule)
        self._plan = dataclasses.replace(plan, schedule=self._grid)
        self._now = now
        self._newest = None if plan.spread else plan.newest(now)
        self._known: dict[tuple[Instant | None, Instant], Verdict] = {}

    def verdict(self, row: Row) -> Verdict:
        plan = self._plan
        if plan.immediate or (plan.spread and plan.misfire is Misfire.SKIP):
            # How late it is, and when it was listed, is its own.
            return plan.verdict(row, self._now)
        newest = self._newest
        if plan.spread:
            newest = plan.newest(self._now, row.position)
        if newest is None or newest <= row.settled:
            return NOTHING
        # Wherever between two ticks they begin to count, the same are due.
        key = self._grid.at_or_before(plan.floor(
            row.settled, row.since, row.position)), newest
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = plan.verdict(row, self._now)
        return verdict
