# SPDX-License-Identifier: Apache-2.0
"""The life of a tick, from the grid to the dispatcher.

    due ─► sure of the view? ─► read the catalogue ─► mine by the ring?
      │          │ no                   │                     │
      │        held                  failed                 claim ─► offer
      └─ dropped (misfire)                                    └─ busy (overlap)

A tick that finds this member unsure of its view is *held*: the job's clock
does not advance. If the member comes back in the same tenure nobody has taken
over, and the misfire policy decides what of it still runs; in a new tenure
the ticks belonged to whoever took over in between::

    tenure 1             not sure                tenure 2
    |--tick--tick--| tick    tick    tick |--tick--tick--
                   ^ held, then theirs    ^ ours from here

So does a member that joins others begin: with what is due after it joined.

Everything here happens in one thread, the owner of the flow. It never
sleeps and never waits: :meth:`Ticker.run_due` says when to call it again.
"""

import dataclasses
import heapq
import itertools
import logging
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.core import catalogue as catalogue_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from distperiodic.core import schedule
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import claiming
from distperiodic.flow import dispatch
from distperiodic.flow import own_time
from distperiodic.flow import quiet

LOG = logging.getLogger(__name__)

# Objects with a phase or schedule of their own: the more were due at a look,
# the longer until the next one, so that few begin to the millisecond, and
# beyond 4,000 a second many begin together.
_GRAIN = SECOND // 4000
_MOST_GRAINS = 80
# How long what cannot run yet waits for the next look.
_LOOK_AGAIN = SECOND // 4
_FOR_EVER = 3600.0

# What an entry of the clockwork is for.
_TICK = 'tick'  # of the job's grid; the next follows by itself
_LOOK = 'look'  # something has changed, there may be a tick to run
_OWN = 'own'  # of an object's own schedule
_WAVE = 'wave'  # of objects with a phase
_PIECES = 'pieces'  # more to claim of a big tick
_LATE = 'late'  # what others should have claimed by now


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a catalogue method gave."""

    catalogue: catalogue_.Catalogue
    #: Ids that carry their own schedule.
    schedules: Mapping[str, schedule.Schedule]
    #: Whether it holds the objects of this member's arcs and no others.
    partial: bool = False


class _State:
    """Where one job stands."""

    __slots__ = ('asked', 'behind', 'due', 'held', 'immediate',
                 'job', 'last', 'missed', 'own', 'partial', 'read',
                 'reading', 'reading_since', 'since', 'ticket', 'wave')

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
        self.due: dict[str, Instant] = {}
        #: Of the read under way; None: there is none.
        self.ticket: int | None = None
        self.reading_since = 0.0
        #: For whose ring it was begun, and when.
        self.asked: tuple[ring_.Ring | None, Instant] = (None, last)
        #: Ticks that wait for it.
        self.reading: tuple[Instant, ...] = ()
        #: From when on the period that was under way is ours; None: it is
        #: already, or it does not matter.
        self.since: Instant | None = None
        #: What was read last; None: nothing, or nobody needs it again.
        self.read: Reading | None = None
        #: Whether its catalogue holds only what was ours when it was read.
        self.partial = False
        self.own = own_time.OwnSchedules()
        self.wave: own_time.Wave | None = None


def _grain(number: int) -> int:
    """How long to the next look, after one that found so many due."""
    return _GRAIN * max(1, min(number, _MOST_GRAINS))


class Ticker:
    """The clockwork of one member.

    :param identity: this member's name on the ring.
    :param group: the group whose ring decides.
    :param shared: whether all members claim in one store, which then decides
        what was ours to begin, and not how long we were members.
    :param late_after: seconds, but at most half a period, after which what
        its owner has not claimed is claimed by others.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 clock: ports.Clock, membership: ports.Membership,
                 group: str, identity: str, claimer: claiming.Claimer,
                 dispatcher: dispatch.Dispatcher,
                 reader: ports.CatalogueReader, shared: bool = False,
                 late_after: float = 5.0):
        self._clock = clock
        self._membership = membership
        self._group = group
        self._identity = identity
        self._dispatcher = dispatcher
        self._claimer = claimer
        self._shared = shared
        self._late_after = int(late_after * SECOND)
        self._reader = reader
        self._tickets = itertools.count(1)
        self._order = itertools.count()
        self._heap: list[tuple[Instant, int, _State, str]] = []
        self._tenure: int | None = None
        self._ring: ring_.Ring | None = None
        self._held = 0
        self._closed = False
        self._told = quiet.Quiet(clock, 30.0)
        #: Job, number and reason of what was dropped and not told yet.
        self._dropped: list[tuple[str, int, str]] = []
        #: (job, outcome) to a number of ticks or objects.
        self.counts = dispatcher.counts
        dispatcher.sure = self._sure
        now = self._seen = self._began = clock.now()
        self._states = {}
        for job in jobs.values():
            if job.enabled:
                newest = job.schedule.at_or_before(now)
                state = _State(job, now if newest is None else newest)
                self._states[job.name] = state
                self._push_tick(state, now)
                if state.immediate:
                    self._push(now, state, _LOOK)

    def _push_tick(self, state: _State, now: Instant) -> None:
        heapq.heappush(self._heap, (
            state.job.schedule.after(now), next(self._order), state, _TICK))

    def _push(self, due: Instant, state: _State, what: str) -> None:
        """Come back at *due* at the latest; the earliest of several counts."""
        known = state.due.get(what)
        if known is None or due < known:
            state.due[what] = due
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
        view = self._view()
        heap = self._heap
        began = 0
        while heap and heap[0][0] <= now:
            due, _, state, what = heap[0]
            if what is _TICK:
                following = state.job.schedule.after(due)
                alone = following > now
                if not alone:
                    following = state.job.schedule.after(now)
                heapq.heapreplace(heap, (
                    following, next(self._order), state, _TICK))
                self._tick(state, now, view, due if alone else None)
            else:
                heapq.heappop(heap)
                if state.due.get(what) != due:
                    continue
                del state.due[what]
                if what is _LOOK:
                    self._tick(state, now, view, None)
                elif what is _OWN:
                    self._own_due(state, now, view)
                elif what is _WAVE:
                    self._wave_due(state, now, view)
                elif what is _LATE:
                    self._late(state, now, view)
                else:
                    self._claim_piece(state, now, view)
            began += 1
            if not began % 64:
                self._dispatcher.pump_all()
                view = self._view()
        if began:
            self._dispatcher.pump_all()
        self._claimer.tell()
        if self._dropped:
            self._tell_dropped()
        if not heap:
            return _FOR_EVER
        return max(0.0, (heap[0][0] - self._clock.now()) / SECOND)

    def _clock_set_back(self, now: Instant) -> None:
        LOG.warning(
            'clock set back: seconds=%.1f; all jobs go on from their next '
            'tick of the new time, and ticks may run a second time',
            (self._seen - now) / SECOND)
        self._heap.clear()
        for state in self._states.values():
            newest = state.job.schedule.at_or_before(now)
            state.last = now if newest is None else newest
            state.own.restart(now)
            looks = [what for what in (_LOOK, _PIECES) if what in state.due]
            state.due.clear()
            self._push_tick(state, now)
            for what in looks:
                self._push(now, state, what)
            self._push_own(state, now)
            self._push_wave(state, now)

    # -- the view

    def _view(self) -> member_.View | None:
        """The view, if it can be trusted now; None: hold.

        Where a store decides, the last view will do: it only keeps members
        from getting in each other's way.
        """
        try:
            view = self._membership.view(self._group)
        except exceptions.ViewUnknown:
            return None
        if self._identity not in view.ring.members:
            return None
        if self._shared:
            if self._tenure is None:
                self._begin()
        elif view.me is None or not view.trusted(self._clock.monotonic()):
            return None
        elif view.me.tenure != self._tenure:
            self._enter(view, view.me.tenure)
        if view.ring is not self._ring:
            self._ring = view.ring
            self._look_for_newcomers()
            if self._shared:
                self._look_for_orphans()
        if self._held:
            self._go_on()
        return view

    def _sure(self) -> bool:
        # Once closed, what was claimed is finished: nobody else will.
        return self._closed or self._view() is not None

    def view_changed(self) -> None:
        """Members came or went, or this one may be sure again."""
        self._view()

    def _begin(self) -> None:
        """The first view where a store knows what was begun: what came last
        before may have been missed by all, so it is asked for.
        """
        self._tenure = 0
        now = self._clock.now()
        for state in self._states.values():
            newest = state.job.schedule.at_or_before(now)
            if newest is not None:
                state.last = newest - 1
                state.since = newest - 1
                self._push(now, state, _LOOK)

    def _fresh(self, job: job_.Job, tick: Instant) -> bool:
        """Whether *tick* is also for objects that never had one: a tick from
        before this process began is only for those that missed it.
        """
        return (not self._shared or tick > self._began
                or job.run_immediately)

    def _enter(self, view: member_.View, tenure: int) -> None:
        """A tenure begins. What was due before it belonged to others, unless
        there are none and never were.
        """
        first, self._tenure = self._tenure is None, tenure
        ours = first and len(view.ring.members) == 1
        now = self._clock.now()
        since = now - max(0, int(
            (self._clock.monotonic() - view.since) * SECOND))
        if not first:
            self._dispatcher.abandon()
        for state in self._states.values():
            if state.job.scope is job_.Scope.MEMBER:
                continue
            if not ours:
                self._leave(state, since)
            if state.job.scope is job_.Scope.OBJECTS and (
                    first or (state.job.spread and state.wave is None)):
                # Objects with a time of their own may be due before the next
                # tick of the job, and only the catalogue knows of them.
                state.since = self._began if ours else since
                self._push(now, state, _LOOK)

    def _look_for_newcomers(self) -> None:
        """Objects may have become ours that have a time of their own, and
        that a catalogue of our arcs alone does not know yet.
        """
        now = self._clock.now()
        for state in self._states.values():
            if self._has_newcomers(state):
                if state.since is None:
                    state.since = now
                self._push(now, state, _LOOK)

    def _look_for_orphans(self) -> None:
        """Whoever went may have left ticks that it did not claim, and they
        are ours now.
        """
        now = self._clock.now()
        for state in self._states.values():
            self._push(now, state, _LATE)

    @staticmethod
    def _has_newcomers(state: _State) -> bool:
        return state.partial and (
            state.wave is not None or bool(state.own.schedules))

    def _leave(self, state: _State, until: Instant) -> None:
        """Leave to others what was due up to *until* and did not begin."""
        job = state.job
        state.reading = ()
        self._claimer.leave(job)
        state.own.leave(until)
        if state.wave is not None:
            state.wave.leave(until)
        newest = job.schedule.at_or_before(until)
        if newest is not None and newest > state.last:
            self.counts[job.name, 'ticks left to others'] += (
                job.schedule.count(state.last, newest))
            state.last = newest
            # Its objects are spread over a period that is not over.
            state.wave = None

    def _hold(self, state: _State) -> None:
        self.counts[state.job.name, 'held'] += 1
        state.behind = True
        if state.held:
            return
        state.held = True
        self._held += 1
        if self._held == 1:
            # Before the first view this is how every start looks.
            LOG.log(
                logging.INFO if self._tenure is None else logging.WARNING,
                'ticks held: member=%s first=%s reason=not sure of the '
                'members; nothing that the ring divides starts here until '
                'the view is known again', self._identity, state.job.name)

    def _go_on(self) -> None:
        LOG.info('ticks go on: member=%s jobs=%d', self._identity,
                 self._held)
        self._held = 0
        now = self._clock.now()
        for state in self._states.values():
            if state.held:
                state.held = False
                self._push(now, state, _LOOK)

    # -- a tick of the job

    def _tick(self, state: _State, now: Instant,
              view: member_.View | None, due: Instant | None) -> None:
        """Begin what *state* has to run by *now*.

        :param due: the tick of this moment; None: it may be any number.
        """
        job = state.job
        if job.scope is not job_.Scope.MEMBER and view is None:
            self._hold(state)
            return
        if state.ticket is not None:
            self._still_reading(state, now)
            return
        if self._claimer.asked[job.name]:
            # The store is slow, or away. What is due then is decided when
            # it has answered.
            state.behind = True
            self.counts[job.name, 'held'] += 1
            self._push(now + _LOOK_AGAIN, state, _LOOK)
            return
        if due is None or state.behind or state.last >= due:
            ticks = self._due_ticks(state, now)
        else:
            # The usual case: the tick before was looked at, and this one
            # comes in time. It costs two comparisons.
            ticks = (due,)
            state.last = due
        if ticks and self._shared:
            self._push(state.last + self._grace(state), state, _LATE)
        if job.scope is job_.Scope.OBJECTS:
            if ticks or state.since is not None:
                assert view is not None
                state.reading = ticks
                state.reading_since = self._clock.monotonic()
                state.ticket = next(self._tickets)
                state.asked = view.ring, now
                self._reader.read(job, state.last, state.ticket,
                                  view.ring.arcs(self._identity))
        elif ticks:
            key = self._identity
            if job.scope is job_.Scope.GROUP:
                assert view is not None
                key = job.name
                if view.ring.owner_of(key) != self._identity:
                    state.missed = 0, state.last, ''
                    return
            self._settle_missed(state, [key])
            self._claimer.claim(
                job, ticks, [key], fresh=self._fresh(job, ticks[-1]))

    def _due_ticks(self, state: _State, now: Instant) -> tuple[Instant, ...]:
        """The ticks since the last one that the misfire policy runs."""
        job = state.job
        newest = job.schedule.at_or_before(now)
        # A grace may be shorter than the lateness of one tick.
        state.behind = job.grace is not None
        if state.immediate:
            state.immediate = False
            state.last = now if newest is None else newest
            return (state.last,)
        if newest is None or newest <= state.last:
            return ()
        due = schedule.due_ticks(
            job.schedule, state.last, now, job.misfire,
            grace_us=job.grace_us(newest))
        state.last = newest
        if due.dropped:
            first = due.run[0] if due.run else newest + 1
            self._missed(state, due.dropped, first, due.reason)
        return due.run

    def _missed(self, state: _State, number: int, before: Instant,
                reason: str) -> None:
        """That many ticks are not run, the last ones before *before*."""
        name = state.job.name
        self.counts[name, 'missed'] += number
        self._dropped.append((name, number, reason))
        state.missed = (
            state.missed[0] + number,
            state.job.schedule.at_or_before(before - 1) or before, reason)

    def _settle_missed(self, state: _State, objects: Sequence[str]) -> None:
        """Have it taken down what *objects* of ours have missed."""
        number, newest, reason = state.missed
        if number:
            state.missed = 0, newest, ''
            self._claimer.settle(state.job, newest, objects, reason, number)

    def _tell_dropped(self) -> None:
        # A process that stood still has missed ticks of all its jobs.
        dropped, self._dropped = self._dropped, []
        name, _, reason = dropped[0]
        LOG.warning(
            'ticks dropped: jobs=%d number=%d first=%s reason=%s',
            len({d[0] for d in dropped}), sum(d[1] for d in dropped), name,
            reason)
        for name, number, reason in dropped[1:]:
            LOG.debug('ticks dropped: job=%s number=%d reason=%s', name,
                      number, reason)

    def _still_reading(self, state: _State, now: Instant) -> None:
        state.behind = True
        newest = state.job.schedule.at_or_before(now)
        if newest is None or newest <= state.last:
            return
        self.counts[state.job.name, 'held'] += 1
        if self._told.may('slow ' + state.job.name):
            LOG.warning(
                'catalogue slow: job=%s method=%s seconds=%.1f; its ticks '
                'are held until the method returns, the other jobs go on',
                state.job.name, state.job.objects,
                self._clock.monotonic() - state.reading_since)

    # -- the catalogue has been read

    def catalogue_read(self, job: str, ticket: int,
                       reading: 'Reading | Exception') -> None:
        """The answer to a read. An answer that nobody waits for any more is
        dropped.
        """
        view = self._view()
        state = self._states.get(job)
        if state is None or state.ticket != ticket or self._closed:
            return
        state.ticket = None
        ticks, state.reading = state.reading, ()
        now = self._clock.now()
        # A tick may have come while the method ran.
        self._push(now, state, _LOOK)
        if isinstance(reading, Exception):
            state.since = None
            self.counts[job, 'catalogue failed'] += len(ticks)
            LOG.error(
                'catalogue failed: job=%s method=%s ticks=%d error=%s: %s; '
                'no object runs for this tick, the next one reads it again',
                job, state.job.objects, len(ticks), type(reading).__name__,
                reading)
            return
        if view is None:
            # Read for nothing; the ticks wait like any held one.
            if ticks:
                state.last = ticks[0] - 1
            self._hold(state)
            return
        since, state.since = state.since, None
        state.partial = reading.partial
        if self._shared:
            state.read = reading
        state.own.replace(reading.schedules, now)
        self._push_own(state, now)
        if ticks:
            ticks = self._in_time(state, ticks, now)
            if self._dropped:
                self._tell_dropped()
        if state.missed[0]:
            self._settle_missed(state, self._mine(view, reading))
        if not state.job.spread:
            if ticks:
                self._claim_all(state, ticks, self._mine(view, reading))
        elif ticks:
            self._begin_wave(state, ticks, reading, now, view, None)
        elif since is not None:
            self._begin_wave(
                state, (state.last,), reading, now, view, since)
        ring, asked = state.asked
        if ring is not view.ring and self._has_newcomers(state):
            state.since = asked
        self._dispatcher.pump_all()

    def _in_time(self, state: _State, ticks: tuple[Instant, ...],
                 now: Instant) -> tuple[Instant, ...]:
        """Those *ticks* that are not too late after a slow catalogue."""
        job = state.job
        if (job.misfire is not schedule.Misfire.SKIP
                or now - ticks[-1] <= job.grace_us(ticks[-1])):
            return ticks
        self._missed(state, len(ticks), ticks[-1] + 1, 'misfire=skip and the '
                     'catalogue took longer than the grace')
        return ()

    def _mine(self, view: member_.View, reading: Reading) -> list[str]:
        mine = reading.catalogue.subset_ids(view.ring, self._identity)
        if reading.schedules:
            mine = [i for i in mine if i not in reading.schedules]
        return mine

    # -- objects with a time of their own

    def _push_own(self, state: _State, now: Instant) -> None:
        due = state.own.next
        if due is not None:
            self._push(max(due, now), state, _OWN)

    def _own_due(self, state: _State, now: Instant,
                 view: member_.View | None) -> None:
        if view is None:
            self._push(now + _LOOK_AGAIN, state, _OWN)
            return
        job = state.job
        together: dict[tuple[Instant, ...], list[str]] = {}
        due = state.own.take(now)
        for key, first, newest in due:
            if view.ring.owner_of(key) == self._identity:
                ticks: tuple[Instant, ...] = (newest,)
                if first != newest or job.grace is not None:
                    ticks = self._caught_up(state, key, first, now)
                together.setdefault(ticks, []).append(key)
        for ticks in sorted(together):
            if ticks:
                self._claimer.claim(state.job, ticks, together[ticks])
        if state.own.next is not None:
            self._push(max(state.own.next, now + _grain(len(due))), state,
                       _OWN)

    def _caught_up(self, state: _State, key: str, first: Instant,
                   now: Instant) -> tuple[Instant, ...]:
        """What the misfire policy runs of an object's own ticks."""
        job = state.job
        rule = state.own.schedules[key]
        newest = rule.at_or_before(now) or first
        grace = (rule.period_us(newest) if job.grace is None
                 else job.grace_us(newest))
        due = schedule.due_ticks(
            rule, first - 1, now, job.misfire, grace_us=grace)
        if due.dropped:
            self.counts[job.name, 'missed'] += due.dropped
            following = due.run[0] if due.run else newest + 1
            self._claimer.settle(
                job, rule.at_or_before(following - 1) or newest, [key],
                due.reason, due.dropped)
        return due.run

    def _begin_wave(self, state: _State, ticks: tuple[Instant, ...],
                    reading: Reading, now: Instant, view: member_.View,
                    since: Instant | None) -> None:
        behind: set[str] = set()
        if state.wave is not None:
            # The last of the tick before are due by now, and no look at
            # them may have come in between.
            self._claim_wave(state, state.wave, now, view)
            if len(ticks) > 1:
                behind = state.wave.behind
        if len(ticks) > 1:
            # Periods that are over: all their objects are due.
            self._claimer.claim(state.job, ticks[:-1],
                                self._mine(view, reading), behind)
        state.wave = own_time.Wave(
            ticks[-1], reading.catalogue,
            state.job.schedule.period_us(ticks[-1]), since,
            behind)
        self._push_wave(state, now)

    def _push_wave(self, state: _State, now: Instant) -> None:
        due = None if state.wave is None else state.wave.next
        if due is not None:
            self._push(max(due, now), state, _WAVE)

    def _wave_due(self, state: _State, now: Instant,
                  view: member_.View | None) -> None:
        wave = state.wave
        if wave is None:
            return
        if view is None:
            self._push(now + _LOOK_AGAIN, state, _WAVE)
            return
        number = self._claim_wave(state, wave, now, view)
        if wave.next is not None:
            self._push(max(wave.next, now + _grain(number)), state, _WAVE)

    def _claim_wave(self, state: _State, wave: own_time.Wave, now: Instant,
                    view: member_.View) -> int:
        """Claim what is due and ours; returns how many were looked at."""
        job = state.job
        positions, ids = wave.catalogue.positions, wave.catalogue.ids

        def ours(indexes: Sequence[int]) -> list[str]:
            return [
                ids[i] for i in indexes
                if view.ring.owner_at(positions[i]) == self._identity
                and ids[i] not in state.own.schedules]
        if job.misfire is schedule.Misfire.SKIP and job.grace is not None:
            late = ours(wave.take(now - job.grace_us(wave.tick) - 1))
            self.counts[job.name, 'missed'] += len(late)
            self._claimer.settle(job, wave.tick, late,
                                 'misfire=skip and later than the grace')
        behind = wave.behind if wave.behind or now >= wave.end else None
        number = 0
        for until in (self._began, now):
            due = wave.take(until)
            number += len(due)
            mine = ours(due)
            if mine:
                self._claimer.claim(job, (wave.tick,), mine, behind,
                                    self._fresh(job, until))
        return number

    # -- what nobody has claimed

    def _grace(self, state: _State) -> Instant:
        """How late a tick is when others than its owner claim it."""
        return min(self._late_after,
                   state.job.schedule.period_us(state.last) // 2)

    def _late(self, state: _State, now: Instant,
              view: member_.View | None) -> None:
        """Claim what is due and nobody has claimed, of our part and of that
        of one other member. It takes turns: with members that agree each
        part is looked at by one more than its owner.
        """
        job, read = state.job, state.read
        if view is None or (job.misfire is schedule.Misfire.SKIP
                            and now - state.last > job.grace_us(state.last)):
            return
        if job.scope is job_.Scope.GROUP:
            if state.last > self._began:
                self._claimer.claim(job, (state.last,), [job.name])
            return
        if read is None or self._claimer.asked[job.name]:
            self._push(now + _LOOK_AGAIN, state, _LATE)
            return
        if state.missed[0]:
            self._settle_missed(state, self._mine(view, read))
        members = sorted(view.ring.members)
        others = len(members) - 1
        parts = [self._identity]
        if others and not state.partial:
            # By the tick, so that all take the same step and no part is left
            # out.
            turn = state.last // job.schedule.period_us(state.last) % others
            mine = members.index(self._identity)
            parts.append(members[(mine + 1 + turn) % len(members)])
        own: dict[Instant, list[str]] = {}
        for part in parts:
            ids = read.catalogue.subset_ids(view.ring, part)
            if read.schedules:
                for key in ids:
                    rule = read.schedules.get(key)
                    tick = rule and rule.at_or_before(now - self._late_after)
                    if tick and tick > self._began:
                        own.setdefault(tick, []).append(key)
                ids = [key for key in ids if key not in read.schedules]
            if state.wave is not None:
                self._late_in_wave(state, state.wave, ids, now)
            elif ids:
                self._claim_all(state, (state.last,), ids)
        for tick in sorted(own):
            self._claimer.claim(job, (tick,), own[tick])
        if state.wave is not None and now < state.wave.end:
            self._push(now + self._grace(state), state, _LATE)

    def _late_in_wave(self, state: _State, wave: own_time.Wave,
                      ids: list[str], now: Instant) -> None:
        """The same, of objects with a phase: those whose time has not come
        in this period are late for the one before.
        """
        until = now - self._grace(state)
        late: dict[Instant, list[str]] = {}
        before = state.job.schedule.at_or_before(wave.tick - 1)
        for key in ids:
            tick = wave.tick if wave.is_due(key, until) else before
            if tick is not None and tick > self._began:
                late.setdefault(tick, []).append(key)
        for tick in sorted(late):
            self._claim_all(state, (tick,), late[tick])

    # -- big ticks

    def _claim_all(self, state: _State, ticks: tuple[Instant, ...],
                   objects: Sequence[str]) -> None:
        self._claimer.claim_all(
            state.job, ticks, objects, self._fresh(state.job, ticks[-1]))
        self._push_pieces(state)

    def _claim_piece(self, state: _State, now: Instant,
                     view: member_.View | None) -> None:
        if view is None:
            self._push(now + _LOOK_AGAIN, state, _PIECES)
        else:
            self._claimer.claim_next(state.job)
            self._push_pieces(state)

    def _push_pieces(self, state: _State) -> None:
        if self._claimer.unfinished(state.job):
            # Later than now, so that all that is due has its turn first.
            self._push(self._clock.now() + 1, state, _PIECES)

    def close(self) -> None:
        """Begin nothing more; what was claimed comes to its end."""
        self._closed = True
        self._claimer.close()
