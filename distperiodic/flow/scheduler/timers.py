# SPDX-License-Identifier: Apache-2.0
"""The timers of all jobs of one member.

The timers are a heap of instants. Each job has a timer for its ticks, which is
set again after each tick. All other timers fire once; :class:`TimerKind` lists
their purposes. If a job has several timers of one kind, only the earliest
timer fires.

Timers only determine when the scheduler acts. :mod:`distperiodic.core.due`
determines which ticks are due.
"""

import bisect
import enum
import heapq
import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core.attributes import Attributes
from distperiodic.core.catalogue import Catalogue
from distperiodic.core.job import Job
from distperiodic.core.job import schedule_named
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Schedule

#: Microseconds until the next attempt for a job that cannot continue now.
RETRY_AFTER = SECOND // 4


class TimerKind(enum.Enum):
    """The purpose of a timer."""

    # Each member of an enumeration exists once, so its identity can be its
    # hash.
    __hash__ = object.__hash__

    TICK = 'tick of the schedule of the job'
    LOOK = 'a change that may have made a tick due'
    OWN = 'objects with a schedule of their own'
    SPREAD = 'objects with a phase'
    REST = 'more claims of a large tick'
    LATE = 'ticks that other members should have claimed'


class SpreadCursor:
    """Cursor over the objects of one tick, in the order of their phases.

    :param since: Objects that were due at or before this instant are left out.
    """

    def __init__(self, tick: Instant, catalogue: Catalogue,
                 period_us: int, since: Instant):
        self.tick = tick
        self.catalogue = catalogue
        self._phases, self._indexes = catalogue.by_phase(period_us)
        self._at = bisect.bisect_right(self._phases, since - tick)

    @property
    def next(self) -> Instant | None:
        """Instant at which the next object is due.

        None means that no object is left.
        """
        if self._at == len(self._phases):
            return None
        return self.tick + self._phases[self._at]

    def take(self, now: Instant) -> Sequence[int]:
        """Return the indexes of the due objects, in the order of their phases.
        """
        start = self._at
        self._at = max(start, bisect.bisect_right(
            self._phases, now - self.tick))
        return self._indexes[start:self._at]


class ObjectTimers:
    """Timers of those objects of one job that have their own schedules."""

    def __init__(self) -> None:
        self.schedules: dict[str, Schedule] = {}
        self._attributes: Mapping[str, Attributes] = {}
        self._next: dict[str, Instant] = {}
        self._heap: list[tuple[Instant, str]] = []

    @property
    def next(self) -> Instant | None:
        """Instant at which the next object is due.

        None means that no object has its own schedule.
        """
        return self._heap[0][0] if self._heap else None

    def replace(self, attributes: Mapping[str, Attributes],
                since: Instant) -> None:
        """Replace the schedules of the objects.

        An object keeps its timer if its schedule has not changed.

        :param attributes: Attributes by object.
        :param since: Instant from which new schedules apply.
        """
        if attributes == self._attributes:
            return
        schedules, following = {}, {}
        for key, own in attributes.items():
            if not own.rule:
                continue
            known = self._attributes.get(key)
            if known is not None and known.rule == own.rule:
                schedules[key] = self.schedules[key]
                following[key] = self._next[key]
            else:
                schedules[key] = schedule_named(own.rule)
                following[key] = schedules[key].after(since - 1)
        self._attributes, self.schedules = attributes, schedules
        self._place(following)

    def restart(self, now: Instant) -> None:
        """Compute the next tick of each object again, from *now* on."""
        self._place({key: rule.after(now)
                     for key, rule in self.schedules.items()})

    def _place(self, due: dict[str, Instant]) -> None:
        self._next = due
        self._heap = [(instant, key) for key, instant in due.items()]
        heapq.heapify(self._heap)

    def take(self, now: Instant) -> list[tuple[str, Instant]]:
        """Return the objects that are due, each with its newest tick."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            tick, key = self._heap[0]
            rule = self.schedules[key]
            following = rule.after(tick)
            if following <= now:
                tick = rule.at_or_before(now) or tick
                following = rule.after(now)
            due.append((key, tick))
            self._next[key] = following
            heapq.heapreplace(self._heap, (following, key))
        return due


class JobTimers:
    """The timers of one job."""

    __slots__ = ('due', 'job')

    def __init__(self, job: Job):
        self.job = job
        #: Instants of the timers of this job, except the timer of its ticks.
        self.due: dict[TimerKind, Instant] = {}


class Pauses(NamedTuple):
    """Pauses after claims.

    Objects with a phase or with their own schedule are due at many different
    instants. After a claim, there is a pause of *grain* microseconds for each
    object that was claimed, but for at most *most* objects. So a few objects
    start almost exactly when they are due, and many objects are claimed in
    groups.
    """

    grain: int
    most: int


class TimerQueue:
    """The timers of all jobs, in the order in which they are due.

    :param pauses: Pauses after claims.
    """

    def __init__(self, clock: ports.Clock, jobs: Mapping[str, Job],
                 pauses: Pauses):
        self._clock = clock
        self._pauses = pauses
        self._heap: list[tuple[Instant, int, JobTimers, TimerKind]] = []
        self._order = itertools.count()
        self._jobs = {name: JobTimers(job) for name, job in jobs.items()}

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> Instant | None:
        """Instant at which the next timer is due, or None without timers."""
        return self._heap[0][0] if self._heap else None

    def restart(self, now: Instant) -> None:
        """Restart the timers of ticks from *now* on. Make all other timers due
        now.
        """
        self._heap.clear()
        for timers in self._jobs.values():
            kinds = list(timers.due)
            timers.due.clear()
            heapq.heappush(self._heap, (
                timers.job.schedule.after(now), next(self._order), timers,
                TimerKind.TICK))
            for kind in kinds:
                self.push(now, timers.job.name, kind)

    def push(self, due: Instant, job: str, kind: TimerKind) -> None:
        """Set a timer for *due*, unless an earlier timer of its kind is set.
        """
        timers = self._jobs[job]
        known = timers.due.get(kind)
        if known is None or due < known:
            timers.due[kind] = due
            heapq.heappush(self._heap, (due, next(self._order), timers, kind))

    def push_next(self, due: Instant | None, job: str, kind: TimerKind,
                  now: Instant, taken: int = 0) -> None:
        """Set a timer for the next object with a phase or its own schedule.

        :param due: Instant at which the next object is due. None means that
            there is no such object.
        :param taken: Number of objects that were claimed now.
        """
        if due is not None:
            grains = min(taken, self._pauses.most)
            self.push(max(due, now + self._pauses.grain * grains), job, kind)

    def retry(self, job: str, kind: TimerKind) -> None:
        """Set a timer for :data:`RETRY_AFTER` from now."""
        self.push(self._clock.now() + RETRY_AFTER, job, kind)

    def take(self, now: Instant) -> Iterator[tuple[str, TimerKind, Instant]]:
        """Remove the timers that are due by *now*, and yield them.

        Each timer is yielded with the instant at which it was due. The caller
        may set timers during the iteration.
        """
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, _, timers, kind = heap[0]
            schedule = timers.job.schedule
            if kind is TimerKind.TICK:
                following = schedule.after(due)
                if following <= now:
                    # Yield only the newest tick. At the newest tick, the store
                    # also reports the objects that missed older ticks.
                    due = schedule.at_or_before(now) or due
                    following = schedule.after(now)
                heapq.heapreplace(heap, (
                    following, next(self._order), timers, kind))
                yield timers.job.name, kind, due
                continue
            heapq.heappop(heap)
            if timers.due.get(kind) == due:
                del timers.due[kind]
                yield timers.job.name, kind, due
