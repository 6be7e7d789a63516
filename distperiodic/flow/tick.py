# SPDX-License-Identifier: Apache-2.0
"""The life of a tick, from the grid to the dispatcher.

    due ─► sure of the view? ─► read the catalogue ─► mine by the ring?
      │          │ no                   │                     │
      │        held                  failed                 claim ─► offer
      └─ dropped (misfire)                                    └─ busy (overlap)

A tick that finds this member unsure of its view is *held*: the job's clock
does not advance. If the member comes back in the same tenure nobody has taken
over, and the misfire policy decides what of it still runs; in a new tenure
the ticks belonged to whoever took over in between.

Everything here happens in one thread, the owner of the flow. It never
sleeps and never waits: :meth:`Ticker.run_due` says when to call it again.
"""

import collections
import dataclasses
import heapq
import itertools
import logging
from array import array
from collections.abc import Mapping, Sequence

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.core import catalogue as catalogue_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import schedule
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import SECOND
from distperiodic.flow import dispatch

LOG = logging.getLogger(__name__)

# Objects with a phase or schedule of their own are begun together if they
# are due within this time.
_GRAIN = SECOND // 50
# How long a tick that cannot run yet waits for the next look.
_LOOK_AGAIN = SECOND // 4
_FOR_EVER = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a catalogue method gave."""

    catalogue: catalogue_.Catalogue
    #: Ids that carry their own schedule.
    schedules: Mapping[str, schedule.Schedule]


class _Own:
    """The objects of one job that follow their own schedules."""

    def __init__(self) -> None:
        self.schedules: Mapping[str, schedule.Schedule] = {}
        self.next: dict[str, Instant] = {}
        self.heap: list[tuple[Instant, str]] = []

    def replace(self, schedules: Mapping[str, schedule.Schedule],
                now: Instant) -> None:
        """The catalogue was read again; unchanged objects keep their time."""
        kept = {}
        for key, rule in schedules.items():
            if self.schedules.get(key) == rule and key in self.next:
                kept[key] = self.next[key]
            else:
                kept[key] = rule.after(now)
        self.schedules = schedules
        self.next = kept
        self.heap = [(due, key) for key, due in kept.items()]
        heapq.heapify(self.heap)

    def take(self, now: Instant) -> dict[Instant, list[str]]:
        """The objects that are due, by their tick; sets their next ones."""
        due: dict[Instant, list[str]] = {}
        while self.heap and self.heap[0][0] <= now:
            tick, key = heapq.heappop(self.heap)
            due.setdefault(tick, []).append(key)
            after = self.schedules[key].after(now)
            self.next[key] = after
            heapq.heappush(self.heap, (after, key))
        return due


@dataclasses.dataclass(slots=True)
class _Wave:
    """One tick of a job whose objects start spread over the period."""

    tick: Instant
    catalogue: catalogue_.Catalogue
    #: Instants in order, and the index of the object due at each.
    due: Sequence[Instant]
    indexes: Sequence[int]
    at: int = 0

    def take(self, now: Instant) -> list[int]:
        start = self.at
        while self.at < len(self.due) and self.due[self.at] <= now:
            self.at += 1
        return list(self.indexes[start:self.at])


class _State:
    """Where one job stands."""

    def __init__(self, job: job_.Job, last: Instant):
        self.job = job
        self.last = last
        #: Ticks that wait for a catalogue that is being read.
        self.reading: tuple[Instant, ...] = ()
        self.reading_since = 0.0
        self.ticket = 0
        self.held = False
        self.own = _Own()
        self.wave: _Wave | None = None
        #: Objects that wait for their earlier run, and for what ticks.
        self.waiting: dict[str, collections.deque[Instant]] = {}
        self.told = -60.0


class Ticker:
    """The clockwork of one member.

    :param identity: this member's name on the ring.
    :param group: the group whose ring decides.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 clock: ports.Clock, membership: ports.Membership,
                 group: str, identity: str, claims: ports.ClaimStore,
                 dispatcher: dispatch.Dispatcher,
                 reader: ports.CatalogueReader):
        self._clock = clock
        self._membership = membership
        self._group = group
        self._identity = identity
        self._claims = claims
        self._dispatcher = dispatcher
        self._reader = reader
        self._tickets = itertools.count(1)
        self._order = itertools.count()
        self._heap: list[tuple[Instant, int, _State, str]] = []
        self._tenure: int | None = None
        self._closed = False
        #: (job, outcome) to a number of ticks or objects.
        self.counts = dispatcher.counts
        dispatcher.freed = self._freed
        now = self._seen = clock.now()
        self._states = {}
        for job in jobs.values():
            if job.enabled:
                newest = job.schedule.at_or_before(now)
                state = _State(job, now if newest is None else newest)
                self._states[job.name] = state
                if job.run_immediately:
                    state.last -= 1
                    self._push(now, state, 'again')
                self._push(job.schedule.after(now), state, 'tick')

    def _push(self, due: Instant, state: _State, what: str) -> None:
        heapq.heappush(self._heap, (due, next(self._order), state, what))

    # -- the clock

    def run_due(self) -> float:
        """Do all that is due; returns the seconds until the next is."""
        if self._closed:
            return _FOR_EVER
        now = self._clock.now()
        if now < self._seen - SECOND:
            self._clock_set_back(now)
        self._seen = now
        view = self._trusted_view()
        began = 0
        while self._heap and self._heap[0][0] <= now:
            _, _, state, what = heapq.heappop(self._heap)
            if what == 'tick':
                self._push(state.job.schedule.after(now), state, 'tick')
                self._tick(state, now, view)
            elif what == 'again':
                self._tick(state, now, view)
            elif what == 'own':
                self._own_due(state, now, view)
            else:
                self._wave_due(state, now, view)
            began += 1
            if not began % 64:
                self._dispatcher.pump_all()
        if began:
            self._dispatcher.pump_all()
        if not self._heap:
            return _FOR_EVER
        return max(0.0, (self._heap[0][0] - self._clock.now()) / SECOND)

    def _clock_set_back(self, now: Instant) -> None:
        LOG.warning(
            'clock set back: seconds=%.1f; all jobs go on from their next '
            'tick of the new time', (self._seen - now) / SECOND)
        self._heap.clear()
        for state in self._states.values():
            newest = state.job.schedule.at_or_before(now)
            state.last = now if newest is None else newest
            state.wave = None
            self._push(state.job.schedule.after(now), state, 'tick')
            if state.own.schedules:
                schedules, state.own = state.own.schedules, _Own()
                self._follow_own(state, schedules, now)

    # -- the view

    def _trusted_view(self) -> member_.View | None:
        """The view, if it can be trusted now; None: hold."""
        try:
            view = self._membership.view(self._group)
        except exceptions.ViewUnknown:
            return None
        if not view.trusted(self._clock.monotonic()) or view.me is None:
            return None
        if view.me.tenure != self._tenure:
            if self._tenure is not None:
                self._new_tenure()
            self._tenure = view.me.tenure
        return view

    def view_changed(self) -> None:
        """Members came or went, or this one may be sure again."""
        if self._trusted_view() is not None:
            for state in self._states.values():
                if state.held:
                    self._push(self._clock.now(), state, 'again')

    def _new_tenure(self) -> None:
        # Others may have had our objects since the last tenure ended; what
        # was due in between was theirs.
        self._dispatcher.abandon()
        now = self._clock.now()
        for state in self._states.values():
            if state.held:
                state.held = False
                newest = state.job.schedule.at_or_before(now)
                if newest is not None and newest > state.last:
                    state.last = newest
                    self.counts[state.job.name, 'left to others'] += 1

    def _hold(self, state: _State) -> None:
        if not state.held:
            state.held = True
            # Before the first view this is how every start looks.
            LOG.log(
                logging.INFO if self._tenure is None else logging.WARNING,
                'tick held: job=%s member=%s reason=not sure of the members; '
                'nothing of it starts here until the view is known again',
                state.job.name, self._identity)
        self.counts[state.job.name, 'held'] += 1

    # -- a tick of the job

    def _tick(self, state: _State, now: Instant,
              view: member_.View | None) -> None:
        job = state.job
        if job.scope is not job_.Scope.MEMBER and view is None:
            self._hold(state)
            return
        if state.reading:
            self._still_reading(state)
            return
        newest = job.schedule.at_or_before(now)
        if newest is None or newest <= state.last:
            return
        due = schedule.due_ticks(
            job.schedule, state.last, now, job.misfire,
            grace_us=job.grace_us(newest))
        state.held = False
        state.last = newest
        if due.dropped:
            self.counts[job.name, 'missed'] += due.dropped
            LOG.warning('ticks dropped: job=%s number=%d reason=%s',
                        job.name, due.dropped, due.reason)
        if not due.run:
            return
        if job.scope is job_.Scope.OBJECTS:
            state.reading = due.run
            state.reading_since = self._clock.monotonic()
            state.ticket = next(self._tickets)
            assert view is not None
            self._reader.read(job, newest, state.ticket,
                              view.ring.arcs(self._identity))
            return
        if job.scope is job_.Scope.GROUP:
            assert view is not None
            if view.ring.owner_of(job.name) != self._identity:
                return
            key = job.name
        else:
            key = self._identity
        for tick in due.run:
            self._claim(state, tick, [key])

    def _still_reading(self, state: _State) -> None:
        since = self._clock.monotonic() - state.reading_since
        self.counts[state.job.name, 'held'] += 1
        if self._clock.monotonic() - state.told > 30.0:
            state.told = self._clock.monotonic()
            LOG.warning(
                'catalogue slow: job=%s method=%s seconds=%.1f; its ticks '
                'are held until the method returns, the other jobs go on',
                state.job.name, state.job.objects, since)

    # -- the catalogue has been read

    def catalogue_read(self, job: str, ticket: int,
                       reading: 'Reading | Exception') -> None:
        """The answer to a read. An answer that nobody waits for any more is
        dropped."""
        state = self._states.get(job)
        if state is None or state.ticket != ticket or not state.reading:
            return
        ticks, state.reading = state.reading, ()
        now = self._clock.now()
        if isinstance(reading, Exception):
            self.counts[job, 'catalogue failed'] += len(ticks)
            LOG.error(
                'catalogue failed: job=%s method=%s ticks=%d error=%s: %s; '
                'no object runs for this tick, the next one reads it again',
                job, state.job.objects, len(ticks), type(reading).__name__,
                reading)
            return
        view = self._trusted_view()
        if view is None:
            # Read for nothing; the ticks wait like any held one.
            state.last = ticks[0] - 1
            self._hold(state)
            return
        self._follow_own(state, reading.schedules, now)
        for tick in ticks:
            if state.job.spread:
                self._begin_wave(state, tick, reading.catalogue, view)
            else:
                mine = reading.catalogue.subset_ids(
                    view.ring, self._identity)
                if reading.schedules:
                    mine = [i for i in mine if i not in reading.schedules]
                self._claim(state, tick, mine)
        self._dispatcher.pump_all()
        # A tick may have come while the method ran.
        self._push(now, state, 'again')

    # -- objects with their own time

    def _follow_own(self, state: _State,
                    schedules: Mapping[str, schedule.Schedule],
                    now: Instant) -> None:
        began = not state.own.heap
        state.own.replace(schedules, now)
        if state.own.heap and began:
            self._push(state.own.heap[0][0], state, 'own')

    def _own_due(self, state: _State, now: Instant,
                 view: member_.View | None) -> None:
        if not state.own.heap:
            return
        if view is None:
            self._push(now + _LOOK_AGAIN, state, 'own')
            return
        for tick, keys in sorted(state.own.take(now).items()):
            self._claim(state, tick, [
                k for k in keys if view.ring.owner_of(k) == self._identity])
        self._push(max(state.own.heap[0][0], now + _GRAIN), state, 'own')

    def _begin_wave(self, state: _State, tick: Instant,
                    catalogue: catalogue_.Catalogue,
                    view: member_.View) -> None:
        period = state.job.schedule.period_us(tick)
        phases, indexes = catalogue.by_phase(period)
        wave = _Wave(tick, catalogue,
                     array('q', (tick + phase for phase in phases)), indexes)
        running = state.wave is not None
        if state.wave is not None:
            # The last of the tick before are due by now, and no look at
            # them may have come in between.
            self._claim_wave(state, state.wave, self._clock.now(), view)
            self.counts[state.job.name, 'superseded'] += (
                len(state.wave.due) - state.wave.at)
        state.wave = wave
        if wave.due and not running:
            self._push(wave.due[0], state, 'wave')

    def _wave_due(self, state: _State, now: Instant,
                  view: member_.View | None) -> None:
        wave = state.wave
        if wave is None:
            return
        if view is None:
            self._push(now + _LOOK_AGAIN, state, 'wave')
            return
        self._claim_wave(state, wave, now, view)
        if wave.at < len(wave.due):
            self._push(max(wave.due[wave.at], now + _GRAIN), state, 'wave')
        else:
            state.wave = None

    def _claim_wave(self, state: _State, wave: _Wave, now: Instant,
                    view: member_.View) -> None:
        positions, ids = wave.catalogue.positions, wave.catalogue.ids
        self._claim(state, wave.tick, [
            ids[i] for i in wave.take(now)
            if view.ring.owner_at(positions[i]) == self._identity
            and ids[i] not in state.own.schedules])

    # -- claims

    def _claim(self, state: _State, tick: Instant,
               objects: list[str]) -> None:
        if not objects:
            return
        job = state.job
        claimed = self._claims.claim(
            job.name, tick, objects, owner=self._identity,
            supersede=job.misfire is not schedule.Misfire.ALL)
        self.counts[job.name, 'claimed'] += len(claimed.won)
        self._dispatcher.offer(job, claimed.won)
        if not claimed.busy:
            return
        if job.overlap is schedule.Overlap.SKIP:
            self.counts[job.name, 'skipped'] += len(claimed.busy)
            LOG.info(
                'skipped: job=%s tick=%s objects=%d first=%r reason=the run '
                'of an earlier tick goes on (overlap=skip)', job.name,
                schedule.datetime_of(tick).isoformat(), len(claimed.busy),
                claimed.busy[0])
            return
        for key in claimed.busy:
            queue = state.waiting.setdefault(key, collections.deque())
            if queue and job.misfire is not schedule.Misfire.ALL:
                # One run is going on, one waits: a newer tick replaces it.
                queue.clear()
                self.counts[job.name, 'superseded'] += 1
            queue.append(tick)

    def _freed(self, job: str, objects: list[str]) -> None:
        """Runs came to an end; what waited for them is claimed now."""
        state = self._states.get(job)
        if state is None or not state.waiting:
            return
        for key in objects:
            queue = state.waiting.get(key)
            if queue:
                tick = queue.popleft()
                if not queue:
                    del state.waiting[key]
                self._claim(state, tick, [key])

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True

