# SPDX-License-Identifier: Apache-2.0
"""The figures of the demo, computed from the records of the handlers and
from the changes of the group.

One run is due for each object and tick, from the first tick after the start to
the last tick that is counted. A run is served if a ping of the object for this
tick has finished, in any process. The run is served twice if more than one
such ping has finished, and missed if none has finished.
"""

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic.core.ring import Ring
from distperiodic.demo import record

# A change also affects the ticks up to this number of microseconds before it:
# a process may be killed while runs of these ticks are in progress.
_REACH_US = 500_000


@dataclasses.dataclass(frozen=True, slots=True)
class Movement:
    """The objects that one change of the ring moved."""

    moved: int
    #: Number of objects that had to move, because their old owner left or
    #: their new owner joined.
    least: int

    @property
    def between_others(self) -> int:
        return self.moved - self.least


@dataclasses.dataclass
class Change:
    """A planned or unplanned change of the group."""

    what: str
    who: str
    #: Microseconds since the epoch.
    at: int
    #: Instant at which the other members noticed the change. None means that
    #: they have not noticed the change yet.
    noticed: int | None = None
    movement: Movement | None = None
    #: True if the change was part of the plan. If no member notices a planned
    #: change, the account is incomplete.
    planned: bool = True

    @property
    def delay(self) -> float | None:
        """Seconds until the other members noticed the change."""
        return None if self.noticed is None else (
            (self.noticed - self.at) / 1e6)


class Tick:
    """The runs of one tick."""

    def __init__(self, instant: int):
        self.instant = instant
        self.runs: collections.Counter[str] = collections.Counter()
        #: For each object, the process id of the process that served it last.
        self.by: dict[str, int] = {}
        self.late: list[float] = []

    def add(self, run: record.Run) -> None:
        self.runs[run.object] += 1
        self.by[run.object] = run.pid
        self.late.append(run.late)

    @property
    def served(self) -> int:
        """Number of objects that were served at least once."""
        return len(self.runs)

    @property
    def twice(self) -> int:
        """Number of objects that were served more than once."""
        return sum(1 for number in self.runs.values() if number > 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """Sums over several ticks."""

    ticks: int
    due: int
    once: int
    twice: int
    missed: int


class Account:
    """All runs, by tick.

    :param hosts: The objects.
    :param period: Microseconds between two ticks.
    """

    def __init__(self, hosts: Sequence[str], period: int):
        self.hosts = hosts
        self._period = period
        self.ticks: dict[int, Tick] = {}
        self.changes: list[Change] = []
        #: The first and the last tick that are counted.
        self.first = 0
        self.last = 0

    def add(self, run: record.Run) -> None:
        tick = self.ticks.get(run.tick)
        if tick is None:
            tick = self.ticks[run.tick] = Tick(run.tick)
        tick.add(run)

    def tick_at(self, instant: int) -> Tick:
        """Return the tick of *instant*, even if it has no runs."""
        return self.ticks.get(instant) or Tick(instant)

    def due_ticks(self) -> list[Tick]:
        return [self.tick_at(i) for i in range(
            self.first, self.last + 1, self._period)]

    def total(self, ticks: Iterable[Tick] | None = None) -> Total:
        """Return the sums over *ticks*. None means all counted ticks."""
        counted = list(self.due_ticks() if ticks is None else ticks)
        due = len(counted) * len(self.hosts)
        served = sum(t.served for t in counted)
        twice = sum(t.twice for t in counted)
        return Total(len(counted), due, served - twice, twice, due - served)

    def after(self, change: Change) -> Total:
        """Return the sums over the ticks from *change* to the next change."""
        later = [c.at for c in self.changes if c.at > change.at]
        end = min(later, default=self.last + 1 + _REACH_US)
        return self.total(
            t for t in self.due_ticks()
            if change.at <= t.instant + _REACH_US < end)

    def lateness(self, *parts: float) -> list[float]:
        """Return quantiles of the seconds from a tick to the start of its
        runs, for fractions such as 0.5.
        """
        return quantiles(
            [late for tick in self.due_ticks() for late in tick.late], *parts)


def quantiles(values: list[float], *parts: float) -> list[float]:
    """Return the quantile of *values* for each of the fractions *parts*.

    If there are no values, each quantile is zero.
    """
    placed = sorted(values)
    return [placed[min(len(placed) - 1, int(part * len(placed)))]
            if placed else 0.0 for part in parts]


def movement(hosts: Sequence[str], before: Ring, after: Ring,
             who: Collection[str]) -> Movement:
    """Count the objects that moved when the members *who* joined or left."""
    if not len(before) or not len(after):
        return Movement(0, 0)
    moved = least = 0
    for host in hosts:
        old, new = before.owner_of(host), after.owner_of(host)
        moved += old != new
        least += old in who or new in who
    return Movement(moved, least)
