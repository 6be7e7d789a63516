# SPDX-License-Identifier: Apache-2.0
"""The life of a tick, from the grid to the dispatcher.

    due ─► sure of the view? ─► read the catalogue ─► mine by the ring?
      │          │ no                   │                     │
      │        held           failed: again later           claim ─► offer
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

import itertools
import logging
from collections.abc import Mapping

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from distperiodic.core import schedule
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import claiming
from distperiodic.flow import clockwork as clockwork_
from distperiodic.flow import dispatch
from distperiodic.flow import late
from distperiodic.flow import off_grid
from distperiodic.flow import own_part
from distperiodic.flow import quiet
from distperiodic.flow import work
from distperiodic.flow.clockwork import LOOK_AGAIN
from distperiodic.flow.clockwork import JobState
from distperiodic.flow.clockwork import Reading
from distperiodic.flow.clockwork import What

LOG = logging.getLogger(__name__)

_FOR_EVER = 3600.0
# Seconds from a catalogue method that failed to the next attempt: the first,
# and the longest. Each waits twice as long as the one before, and beyond the
# first none waits longer than a quarter of the period.
_PAUSES = 1.0, 60.0


class Ticker:
    """The clockwork of one member.

    :param identity: this member's name on the ring.
    :param group: the group whose ring decides.
    :param shared: whether all members claim in one store, which then decides
        what was ours to begin, and not how long we were members.
    :param late_after: seconds, but at most half a period, after which what
        its owner has not claimed is claimed by others.
    :param begins: whether it may begin at once; else with :meth:`begin`.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 clock: ports.Clock, membership: ports.Membership,
                 group: str, identity: str, claimer: claiming.Claimer,
                 dispatcher: dispatch.Dispatcher,
                 reader: ports.CatalogueReader, shared: bool = False,
                 late_after: float = 5.0, begins: bool = True):
        self._clock = clock
        self._membership = membership
        self._group = group
        self._identity = identity
        self._dispatcher = dispatcher
        self._claimer = claimer
        self._shared = shared
        self._reader = reader
        self._tickets = itertools.count(1)
        self._clockwork = clockwork_.Clockwork(clock, jobs, shared)
        self._states = self._clockwork.states
        self._part = own_part.OwnPart(
            clock, claimer, self._clockwork, identity=identity,
            shared=shared)
        self._off_grid = off_grid.OffGrid(self._part)
        self._late = late.Late(self._part, late_after)
        self._tenure: int | None = None
        self._ring: ring_.Ring | None = None
        self._held = 0
        self._began = self._closed = False
        self._told = quiet.Quiet(clock, 30.0)
        #: (job, outcome) to a number of ticks or objects.
        self.counts = dispatcher.counts
        dispatcher.sure = self._sure
        if begins:
            self.begin()

    def begin(self) -> None:
        """Go on from now; nothing is due before."""
        self._began = True
        now = self._seen = self._part.began = self._clock.now()
        self._clockwork.restart(now)
        for state in self._states.values():
            if state.immediate:
                self._clockwork.push(now, state, What.LOOK)

    # -- the clock

    def run_due(self) -> float:
        """Do all that is due; returns the seconds until the next is."""
        if self._closed or not self._began:
            return _FOR_EVER
        now = self._clock.now()
        if now < self._seen - SECOND:
            self._clock_set_back(now)
        self._seen = now
        view = self._view()
        began = 0
        for state, what, due in self._clockwork.take(now):
            if what is What.TICK or what is What.LOOK:
                self._tick(state, now, view, due)
            elif view is None or self._claimer.away:
                self._clockwork.push(now + LOOK_AGAIN, state, what)
            elif what is What.OWN:
                self._off_grid.own_due(state, now, view)
            elif what is What.WAVE:
                self._off_grid.wave_due(state, now, view)
            elif what is What.LATE:
                self._look_for_late(state, now, view)
            else:
                self._part.claim_piece(state)
            began += 1
            if not began % 64:
                self._dispatcher.pump_all()
                view = self._view()
        if began:
            self._dispatcher.pump_all()
        self._claimer.tell()
        self._part.tell()
        if self._clockwork.next is None:
            return _FOR_EVER
        return max(0.0, (self._clockwork.next - self._clock.now()) / SECOND)

    def _clock_set_back(self, now: Instant) -> None:
        LOG.warning(
            'clock set back: seconds=%.1f; all jobs go on from their next '
            'tick of the new time%s', (self._seen - now) / SECOND,
            '' if self._shared else ', and ticks may run a second time')
        self._clockwork.restart(now, keep=(What.LOOK, What.PIECES))

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
        if self._identity not in view.ring.members or not self._began:
            return None
        if self._shared:
            if self._tenure is None:
                self._join()
        elif view.me is None or not view.trusted(self._clock.monotonic()):
            return None
        elif view.me.tenure != self._tenure:
            self._enter(view, view.me.tenure)
        if view.ring is not self._ring:
            self._ring = view.ring
            self._look_for_newcomers()
            if self._shared:
                # Whoever went may have left ticks that it did not claim, and
                # they are ours now.
                for state in self._states.values():
                    state.looked = None
                self._clockwork.push_all(self._clock.now(), What.LATE)
        if self._held:
            self._go_on()
        return view

    def _sure(self) -> bool:
        # Once closed, what was claimed is finished: nobody else will.
        return self._closed or self._view() is not None

    def view_changed(self) -> None:
        """Members came or went, or this one may be sure again."""
        self._view()

    def _join(self) -> None:
        """The first view where a store knows what was begun: what came last
        before may have been missed by all, so it is asked for.
        """
        self._tenure = 0
        now = self._clock.now()
        for state in self._states.values():
            newest = state.job.schedule.at_or_before(now)
            if newest is not None:
                if state.job.spread or not state.job.too_late(newest, now):
                    state.last = newest - 1
                state.since = newest - 1
                self._clockwork.push(now, state, What.LOOK)

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
                state.since = self._part.began if ours else since
                self._clockwork.push(now, state, What.LOOK)

    def _look_for_newcomers(self) -> None:
        """Objects may have become ours that have a time of their own, and
        that a catalogue of our arcs alone does not know yet.
        """
        now = self._clock.now()
        for state in self._states.values():
            if self._has_newcomers(state):
                if state.since is None:
                    state.since = now
                self._clockwork.push(now, state, What.LOOK)

    @staticmethod
    def _has_newcomers(state: JobState) -> bool:
        return state.partial and (
            state.wave is not None or bool(state.own.schedules))

    def _leave(self, state: JobState, until: Instant) -> None:
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

    def _hold(self, state: JobState) -> None:
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
                self._clockwork.push(now, state, What.LOOK)

    # -- a tick of the job

    def _tick(self, state: JobState, now: Instant,
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
        if state.failures and self._too_soon(state, now):
            return
        if self._claimer.asked[job.name] or self._claimer.away:
            # The store is slow, or away. What is due then is decided when
            # it has answered.
            state.behind = True
            self.counts[job.name, 'held'] += 1
            self._clockwork.push(now + LOOK_AGAIN, state, What.LOOK)
            return
        if due is None or state.behind or state.last >= due:
            ticks = self._due_ticks(state, now)
        else:
            # The usual case: the tick before was looked at, and this one
            # comes in time. It costs two comparisons.
            ticks = (due,)
            state.last = due
        if ticks and self._shared:
            self._late.expect(state)
        if job.scope is job_.Scope.OBJECTS:
            if ticks or state.since is not None:
                assert view is not None
                state.reading = ticks
                state.asked = view.ring, now
                self._read(state, view, self._identity)
        elif ticks:
            key = self._identity
            if job.scope is job_.Scope.GROUP:
                assert view is not None
                key = job.name
                if view.ring.owner_of(key) != self._identity:
                    state.missed = 0, state.last, ''
                    return
            self._part.settle_missed(state, [key])
            self._claimer.claim(
                job, ticks, [key], fresh=self._part.fresh(job, ticks[-1]))

    def _due_ticks(self, state: JobState,
                   now: Instant) -> tuple[Instant, ...]:
        """The ticks since the last one that the misfire policy runs."""
        job = state.job
        newest = job.schedule.at_or_before(now)
        # A grace may be shorter than the lateness of one tick.
        state.behind = job.grace is not None
        if state.immediate:
            # Its catalogue may have to be read more than once.
            state.immediate = job.scope is job_.Scope.OBJECTS
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
            self._part.miss(state, due.dropped, first, due.reason)
        return due.run

    def _look_for_late(self, state: JobState, now: Instant,
                       view: member_.View) -> None:
        if state.partial and state.ticket is not None:
            # It has to read, and what is being read may be what it needs.
            self._clockwork.push(now + LOOK_AGAIN, state, What.LATE)
            return
        other = self._late.look(state, now, view)
        if other is not None:
            state.late_for = state.newest(state.last)
            state.late_own = other == self._identity
            state.asked = view.ring, now
            self._read(state, view, other)

    # -- the catalogue

    def _read(self, state: JobState, view: member_.View, of: str) -> None:
        """Have the objects of the part of a member read."""
        state.reading_since = self._clock.monotonic()
        state.ticket = next(self._tickets)
        self._reader.read(state.job, state.last, state.ticket,
                          view.ring.arcs(of))

    def _still_reading(self, state: JobState, now: Instant) -> None:
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

    def catalogue_read(self, job: str, ticket: int,
                       reading: Reading | Exception) -> None:
        """The answer to a read. An answer that nobody waits for any more is
        dropped.
        """
        view = self._view()
        state = self._states.get(job)
        if state is None or state.ticket != ticket or self._closed:
            return
        state.ticket = None
        ticks, state.reading = state.reading, ()
        late_for, state.late_for = state.late_for, None
        now = self._clock.now()
        # A tick may have come while the method ran.
        self._clockwork.push(now, state, What.LOOK)
        if isinstance(reading, Exception) and late_for is not None:
            if self._told.may('late ' + job):
                LOG.warning(
                    'late look failed: job=%s method=%s error=%s; what '
                    'another member did not claim stays for its next look',
                    job, state.job.objects, work.text_of(reading))
            return
        if isinstance(reading, Exception):
            self._read_failed(state, ticks, reading)
            return
        state.failures = 0
        if late_for is not None:
            if state.late_own:
                # Now it can be looked at, and whose turn it is beside us.
                state.read, state.read_for = reading, state.asked[0]
                self._clockwork.push(now, state, What.LATE)
            else:
                self._late.read(state, late_for, reading, now)
            return
        if view is None:
            # Read for nothing; the ticks wait like any held one.
            if ticks:
                state.last = ticks[0] - 1
            self._hold(state)
            return
        since, state.since = state.since, None
        state.immediate = False
        state.partial = reading.partial
        if self._shared:
            state.read, state.read_for = reading, state.asked[0]
        state.own.replace(reading.schedules, now)
        self._clockwork.push_own(state, now)
        if ticks:
            ticks = self._in_time(state, ticks, now)
            self._part.tell()
        if state.missed[0]:
            self._part.settle_missed(state, self._part.ids(view, reading))
        if not state.job.spread:
            if ticks:
                state.claimed = view.ring, ticks[-1]
                self._part.claim_all(
                    state, ticks, self._part.ids(view, reading))
        elif ticks:
            self._off_grid.begin_wave(state, ticks, reading, now, view, None)
        elif since is not None:
            self._off_grid.begin_wave(
                state, (state.last,), reading, now, view, since)
        ring, asked = state.asked
        if ring is not view.ring and self._has_newcomers(state):
            state.since = asked
        self._dispatcher.pump_all()

    def _read_failed(self, state: JobState, ticks: tuple[Instant, ...],
                     error: Exception) -> None:
        """Read it again, and decide by the misfire policy then."""
        job = state.job
        first, longest = _PAUSES
        period = job.schedule.period_us(state.last) / SECOND
        pause = min(first * 2 ** state.failures, max(first, period / 4),
                    longest)
        # No power of two is too big for a float before the longest is due.
        state.failures = min(state.failures + 1, 64)
        state.again_at = self._clock.monotonic() + pause, state.last
        state.behind = True
        if ticks:
            state.last = ticks[0] - 1
        self.counts[job.name, 'catalogue failed'] += len(ticks)
        LOG.error(
            'catalogue failed: job=%s method=%s ticks=%d error=%s; it is '
            'read again in %.0f s, or for the next tick if that is sooner',
            job.name, job.objects, len(ticks), work.text_of(error), pause)

    def _too_soon(self, state: JobState, now: Instant) -> bool:
        """Whether a catalogue that failed is left alone for now."""
        again, failed_for = state.again_at
        pause = again - self._clock.monotonic()
        newest = state.job.schedule.at_or_before(now)
        if pause <= 0 or newest is not None and newest > failed_for:
            return False
        state.behind = True
        self._clockwork.push(now + int(pause * SECOND) + 1, state, What.LOOK)
        return True

    def _in_time(self, state: JobState, ticks: tuple[Instant, ...],
                 now: Instant) -> tuple[Instant, ...]:
        """Those *ticks* that are not too late after a slow catalogue."""
        if not state.job.too_late(ticks[-1], now):
            return ticks
        self._part.miss(
            state, len(ticks), ticks[-1] + 1,
            'misfire=skip and the catalogue took longer than the grace')
        return ()

    def close(self) -> None:
        """Begin nothing more; what was claimed comes to its end."""
        self._closed = True
        self._claimer.close()
