# SPDX-License-Identifier: Apache-2.0
"""The figures of the demo: arithmetic on what the handlers wrote down.

A run is due for every object and tick between the first tick after the
start and the last before the end. It was served if its ping came to an end,
by whomever; twice if two did; missed if none did.
"""

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic.core import ring as ring_
from distperiodic.demo import record

# A tick this long before a change can still feel it: what was begun then is
# in the middle of its work when a process is killed.
_REACH_US = 500_000


@dataclasses.dataclass(frozen=True, slots=True)
class Movement:
    """What one change of the ring moved."""

    moved: int
    #: Objects that had to move: of who left, or for who came.
    least: int

    @property
    def between_others(self) -> int:
        return self.moved - self.least


@dataclasses.dataclass
class Change:
    """One thing that was done to the group, or that befell it."""

    what: str
    who: str
    #: Microseconds since the epoch.
    at: int
    #: When the others saw it; None: they have not.
    noticed: int | None = None
    movement: Movement | None = None
    #: It was part of the plan, so the account is not complete without it.
    planned: bool = True

    @property
    def delay(self) -> float | None:
        """Seconds until the others saw it."""
        return None if self.noticed is None else (
            (self.noticed - self.at) / 1e6)


class Tick:
    """The runs of one tick."""

    def __init__(self, instant: int):
        self.instant = instant
        self.runs: collections.Counter[str] = collections.Counter()
        #: Who served an object last, by process.
        self.by: dict[str, int] = {}
        self.late: list[float] = []

    def add(self, run: record.Run) -> None:
        self.runs[run.object] += 1
        self.by[run.object] = run.pid
        self.late.append(run.late)

    @property
    def served(self) -> int:
        """Objects that were served, however often."""
        return len(self.runs)

    @property
    def twice(self) -> int:
        """Objects that were served more than once."""
        return sum(1 for number in self.runs.values() if number > 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """The sums over some ticks."""

    ticks: int
    due: int
    once: int
    twice: int
    missed: int


class Account:
    """All runs, by tick.

    :param hosts: the objects.
    :param period: microseconds between two ticks.
    """

    def __init__(self, hosts: Sequence[str], period: int):
        self.hosts = hosts
        self._period = period
        self.ticks: dict[int, Tick] = {}
        self.changes: list[Change] = []
        #: The first and the last tick that count.
        self.first = 0
        self.last = 0

    def add(self, run: record.Run) -> None:
        tick = self.ticks.get(run.tick)
        if tick is None:
            tick = self.ticks[run.tick] = Tick(run.tick)
        tick.add(run)

    def tick_at(self, instant: int) -> Tick:
        """That tick, perhaps without any runs."""
        return self.ticks.get(instant) or Tick(instant)

    def due_ticks(self) -> list[Tick]:
        return [self.tick_at(i) for i in range(
            self.first, self.last + 1, self._period)]

    def total(self, ticks: Iterable[Tick] | None = None) -> Total:
        """The sums over *ticks*, default all that count."""
        counted = list(self.due_ticks() if ticks is None else ticks)
        due = len(counted) * len(self.hosts)
        served = sum(t.served for t in counted)
        twice = sum(t.twice for t in counted)
        return Total(len(counted), due, served - twice, twice, due - served)

    def after(self, change: Change) -> Total:
        """The sums over the ticks from *change* to the next one."""
        later = [c.at for c in self.changes if c.at > change.at]
        end = min(later, default=self.last + 1 + _REACH_US)
        return self.total(
            t for t in self.due_ticks()
            if change.at <= t.instant + _REACH_US < end)

    def lateness(self, *parts: float) -> list[float]:
        """Quantiles of the seconds from tick to start, e.g. of 0.5."""
        return quantiles(
            [late for tick in self.due_ticks() for late in tick.late], *parts)


def quantiles(values: list[float], *parts: float) -> list[float]:
    """The values below which those parts of all lie; none: zeros."""
    placed = sorted(values)
    return [placed[min(len(placed) - 1, int(part * len(placed)))]
            if placed else 0.0 for part in parts]


def movement(hosts: Sequence[str], before: ring_.Ring, after: ring_.Ring,
             who: Collection[str]) -> Movement:
    """What moved when those came or left."""
    if not len(before) or not len(after):
        return Movement(0, 0)
    moved = least = 0
    for host in hosts:
        old, new = before.owner_of(host), after.owner_of(host)
        moved += old != new
        least += old in who or new in who
    return Movement(moved, least)
