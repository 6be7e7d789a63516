# SPDX-License-Identifier: Apache-2.0
"""What is due next, of all jobs of one member: a heap and where each stands.

The entry of a job's grid follows itself, tick after tick. The others are
looks: at something that has changed, at objects with a time of their own, at
what nobody has claimed. Of several looks of one kind the earliest counts.
"""

import dataclasses
import enum
import heapq
import itertools
from collections.abc import Iterator
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core import catalogue as catalogue_
from distperiodic.core import job as job_
from distperiodic.core import ring as ring_
from distperiodic.core import schedule
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import own_time

#: How long what cannot run yet waits for the next look.
LOOK_AGAIN = SECOND // 4
# Objects with a phase or schedule of their own: the more were due at a look,
# the longer until the next one, so that few begin to the millisecond, and
# beyond 4,000 a second many begin together. In a store that others share each
# claim is a transaction, hence beyond 200 a second.
_GRAIN = SECOND // 4000
_MOST_GRAINS = 80
_SHARED_GRAIN = SECOND // 200
_MOST_SHARED_GRAINS = 10


class What(enum.Enum):
    """What an entry is for."""

    # Members are singletons; see core.claim.
    __hash__ = object.__hash__

    TICK = 'tick of the grid'
    LOOK = 'something has changed, there may be a tick to run'
    OWN = 'objects with a schedule of their own'
    WAVE = 'objects with a phase'
    PIECES = 'more to claim of a big tick'
    LATE = 'what others should have claimed by now'


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a catalogue method gave."""

    catalogue: catalogue_.Catalogue
    #: Ids that carry their own schedule.
    schedules: Mapping[str, schedule.Schedule]
    #: Whether it holds the objects of the arcs that were asked for and no
    #: others.
    partial: bool = False


class JobState:
    """Where one job stands."""

    __slots__ = ('again_at', 'asked', 'behind', 'claimed', 'due', 'failures',
                 'held', 'immediate', 'job', 'last', 'late_for', 'late_own',
                 'late_since', 'looked', 'missed', 'own', 'partial', 'read',
                 'read_for', 'reading', 'reading_since', 'since', 'ticket',
                 'wave')

    def __init__(self, job: job_.Job, last: Instant):
        self.job = job
        #: The newest tick that needs no more attention.
        self.last = last
        self.held = False
        #: Ticks that were dropped and not taken down yet: how many, the
        #: newest, and why.
        self.missed: tuple[int, Instant, str] = 0, last, ''
        #: Whether more than the tick of this moment may be due.
        self.behind = True
        #: Its first run does not wait for the grid.
        self.immediate = job.run_immediately
        #: When its entries are due, but for those of the grid.
        self.due: dict[What, Instant] = {}
        #: Of the read under way; None: there is none.
        self.ticket: int | None = None
        self.reading_since = 0.0
        #: Reads that failed since one has not.
        self.failures = 0
        #: When, in seconds of the monotonic clock, it is read again for the
        #: tick for which it failed; for a newer one it is at once.
        self.again_at: tuple[float, Instant] = 0.0, last
        #: It is a read of another member's part, which may be late for this
        #: tick. None: it is one of ours.
        self.late_for: Instant | None = None
        #: For whose ring it was begun, and when.
        self.asked: tuple[ring_.Ring | None, Instant] = (None, last)
        #: Ticks that wait for it.
        self.reading: tuple[Instant, ...] = ()
        #: Whether that part is ours, since the ring has changed.
        self.late_own = False
        #: From when on the period that was under way is ours; None: it is
        #: already, or it does not matter.
        self.since: Instant | None = None
        #: What was read last; None: nothing, or nobody needs it again.
        self.read: Reading | None = None
        #: For which ring its parts were asked for.
        self.read_for: ring_.Ring | None = None
        #: The ring and the tick for which our part was claimed last.
        self.claimed: tuple[ring_.Ring | None, Instant] = (None, last)
        #: The last look for what is late, at this ring; None: there was none.
        self.looked: Instant | None = None
        #: The one before the look for which another's part is read.
        self.late_since: Instant | None = None
        #: Whether its catalogue holds only what was ours when it was read.
        self.partial = False
        self.own = own_time.OwnSchedules()
        self.wave: own_time.Wave | None = None

    def newest(self, now: Instant) -> Instant:
        """The tick of its grid at *now* or the last before; *now* if there
        was none.
        """
        newest = self.job.schedule.at_or_before(now)
        return now if newest is None else newest


class Clockwork:
    """The entries of all jobs, in the order in which they are due.

    :param shared: whether all members claim in one store.
    """

    def __init__(self, clock: ports.Clock, jobs: Mapping[str, job_.Job],
                 shared: bool = False):
        self._clock = clock
        self._grain, self._most_grains = (
            (_SHARED_GRAIN, _MOST_SHARED_GRAINS) if shared else
            (_GRAIN, _MOST_GRAINS))
        self._heap: list[tuple[Instant, int, JobState, What]] = []
        self._order = itertools.count()
        now = clock.now()
        self.states = {job.name: JobState(job, now)
                       for job in jobs.values() if job.enabled}

    def __len__(self) -> int:
        return len(self._heap)

    def now(self) -> Instant:
        return self._clock.now()

    @property
    def next(self) -> Instant | None:
        """When the next entry is due; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def restart(self, now: Instant, keep: tuple[What, ...] = ()) -> None:
        """All jobs go on from *now*, whatever was due before or is due much
        later.

        :param keep: entries of these kinds are due at once.
        """
        self._heap.clear()
        for state in self.states.values():
            state.last = state.newest(now)
            state.own.restart(now)
            kept = [what for what in keep if what in state.due]
            state.due.clear()
            heapq.heappush(self._heap, (
                state.job.schedule.after(now), next(self._order), state,
                What.TICK))
            for what in kept:
                self.push(now, state, what)
            self.push_own(state, now)
            self.push_wave(state, now)

    def push(self, due: Instant, state: JobState, what: What) -> None:
        """Come back at *due* at the latest; the earliest of several counts."""
        known = state.due.get(what)
        if known is None or due < known:
            state.due[what] = due
            heapq.heappush(self._heap, (due, next(self._order), state, what))

    def push_all(self, now: Instant, what: What) -> None:
        for state in self.states.values():
            self.push(now, state, what)

    def push_own(self, state: JobState, now: Instant,
                 taken: int = 0) -> None:
        """Come back for objects with a schedule of their own.

        :param taken: how many the look at *now* has found due.
        """
        if state.own.next is not None:
            self.push(max(state.own.next, self._look_after(now, taken)),
                      state, What.OWN)

    def push_wave(self, state: JobState, now: Instant,
                  taken: int = 0) -> None:
        """The same for objects with a phase."""
        if state.wave is not None and state.wave.next is not None:
            self.push(max(state.wave.next, self._look_after(now, taken)),
                      state, What.WAVE)

    def take(self, now: Instant) -> Iterator[
            tuple[JobState, What, Instant | None]]:
        """What is due by *now*; it may push while it goes through them.

        With a tick of the grid comes its instant, or None if there may be
        more than that one; with all others None.
        """
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, _, state, what = heap[0]
            if what is What.TICK:
                following = state.job.schedule.after(due)
                alone = following > now
                if not alone:
                    following = state.job.schedule.after(now)
                heapq.heapreplace(heap, (
                    following, next(self._order), state, what))
                yield state, what, due if alone else None
                continue
            heapq.heappop(heap)
            if state.due.get(what) == due:
                del state.due[what]
                yield state, what, None

    def _look_after(self, now: Instant, number: int) -> Instant:
        """When to look again, after one that found so many due."""
        return now + self._grain * min(number, self._most_grains)
