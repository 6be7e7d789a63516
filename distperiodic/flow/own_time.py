# SPDX-License-Identifier: Apache-2.0
"""Objects that do not begin with the tick of their job.

A job with ``spread`` gives each object a phase of its own inside the period::

    tick                                          next tick
    |--a-------c------------b---------------d-----|--a-------c---

and an object with a schedule of its own follows that and not the job's; the
job's ticks then only say when the catalogue is read again.
"""

import bisect
import heapq
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic.core import catalogue as catalogue_
from distperiodic.core import ring
from distperiodic.core import schedule
from distperiodic.core.schedule import Instant


class Wave:
    """One tick of a job whose objects begin spread over the period.

    :param since: objects whose time came up to then are left out.
    :param behind: objects whose earlier ticks are being caught up on; what
        is claimed after the end of the wave comes to them.
    """

    def __init__(self, tick: Instant, catalogue: catalogue_.Catalogue,
                 period_us: int, since: Instant | None = None,
                 behind: set[str] | None = None):
        self.tick = tick
        self.end = tick + period_us
        self.catalogue = catalogue
        self.behind = set() if behind is None else behind
        #: In order, and the index of the object due at each.
        self._phases: Sequence[int]
        self._indexes: Sequence[int]
        self._phases, self._indexes = catalogue.by_phase(period_us)
        self._at = 0
        if since is not None:
            self.leave(since)

    @property
    def next(self) -> Instant | None:
        """When the next object is due; None: there is none left."""
        if self._at == len(self._phases):
            return None
        return self.tick + self._phases[self._at]

    def due(self, key: str) -> Instant:
        """When that object is due."""
        return self.tick + schedule.phase_us(
            ring.position_of(key), self.end - self.tick)

    def take(self, now: Instant) -> Sequence[int]:
        """The indexes of the objects that are due, oldest first."""
        start = self._at
        self._at = max(start, bisect.bisect_right(
            self._phases, now - self.tick))
        return self._indexes[start:self._at]

    def leave(self, until: Instant) -> int:
        """Pass over all that was due up to *until*; returns how many."""
        return len(self.take(until))


class OwnSchedules:
    """The objects of one job that follow schedules of their own."""

    def __init__(self) -> None:
        self.schedules: Mapping[str, schedule.Schedule] = {}
        self._next: dict[str, Instant] = {}
        self._heap: list[tuple[Instant, str]] = []

    @property
    def next(self) -> Instant | None:
        """When the next object is due; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def replace(self, schedules: Mapping[str, schedule.Schedule],
                now: Instant) -> None:
        """The catalogue was read again; unchanged objects keep their time."""
        if schedules == self.schedules:
            return
        kept = {}
        for key, rule in schedules.items():
            known = self._next.get(key)
            if known is None or self.schedules.get(key) != rule:
                known = rule.after(now)
            kept[key] = known
        self.schedules = schedules
        self._place(kept)

    def restart(self, now: Instant) -> None:
        """Go on from *now*, whatever was due before or is due much later."""
        self._place({key: rule.after(now)
                     for key, rule in self.schedules.items()})

    def _place(self, due: dict[str, Instant]) -> None:
        self._next = due
        self._heap = [(instant, key) for key, instant in due.items()]
        heapq.heapify(self._heap)

    def leave(self, until: Instant) -> None:
        """Pass over all that was due up to *until*."""
        while self._heap and self._heap[0][0] <= until:
            key = self._heap[0][1]
            self._set_next(key, self.schedules[key].after(until))

    def take(self, now: Instant) -> list[tuple[str, Instant, Instant]]:
        """What is due, earliest first: each object once, with the tick that
        came first and the newest one.
        """
        due = []
        while self._heap and self._heap[0][0] <= now:
            first, key = self._heap[0]
            rule = self.schedules[key]
            newest = first
            following = rule.after(first)
            if following <= now:
                newest = rule.at_or_before(now) or first
                following = rule.after(now)
            due.append((key, first, newest))
            self._set_next(key, following)
        return due

    def _set_next(self, key: str, instant: Instant) -> None:
        """Set the time of the object that is first now."""
        self._next[key] = instant
        heapq.heapreplace(self._heap, (instant, key))
