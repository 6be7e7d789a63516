# SPDX-License-Identifier: Apache-2.0
"""The life of a tick, from the schedule to the dispatcher.

    due ─► view ─► catalogue ─► owned ─► claim ─► queue ─► send ─► granted
            │         │                    │                         │
           held   later, while             └─ busy, behind           ▼
                  its objects stay due                             ended

This module connects the steps. Other modules contain the details: the timers,
the rules about the view (authority), the reads of catalogues, the listing, and
the claims. From ``queue`` on, the dispatcher handles a claim
(:mod:`distperiodic.flow.scheduler.dispatcher`).

The rows of the store alone determine which ticks are due
(:mod:`distperiodic.core.due`). At a tick, the owner of the objects claims them
in large pieces. The answer of the store shows which of the objects have also
missed earlier ticks. The memory of a process determines only when the process
reads rows. A member that starts or gains arcs walks the rows of these arcs, so
it needs no information from the previous owner of the arcs.

All methods run in the thread of the flow. That thread never sleeps and never
blocks: :meth:`Ticker.run_due` returns the seconds until its next call.
"""

import logging
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic.core import schedule
from distperiodic.core import telemetry
from distperiodic.core.catalogue import Reading
from distperiodic.core.job import Scope
from distperiodic.core.member import View
from distperiodic.core.ring import Ring
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow.counters import Counted
from distperiodic.flow.leases import Book
from distperiodic.flow.scheduler import listing
from distperiodic.flow.scheduler.authority import MemberAuthority
from distperiodic.flow.scheduler.authority import MembershipChange
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.claimer import TriggerCounts
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.scheduler.part import CIRCLE
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.reads import CatalogueReads
from distperiodic.flow.scheduler.reads import Read
from distperiodic.flow.scheduler.timers import TimerKind
from distperiodic.flow.scheduler.timers import TimerQueue
from distperiodic.flow.wiring import SchedulerWiring

LOG = logging.getLogger(__name__)

_FOR_EVER = 3600.0


class Ticker:
    """Component that starts the ticks of one member.

    :param parts: This member's part of each job, by the name of the job.
    :param book: These jobs, and the store of their claims.
    :param pump: Sends waiting claims to workers.
    """

    def __init__(self, parts: Mapping[str, Part], book: Book,
                 wiring: SchedulerWiring, *, authority: MemberAuthority,
                 claimer: Claimer, dispatcher: Dispatcher,
                 pump: Callable[[], None]):
        self._clock = clock = wiring.clock
        self._identity = identity = wiring.identity
        self._authority = authority
        self._timers = TimerQueue(clock, book.jobs, authority.pauses)
        self._reads = CatalogueReads(clock, wiring.reader, identity)
        self._claimer = claimer
        #: Component that claims objects that other members have not claimed in
        #: time. None means that members do not share the store.
        self._late = None
        if authority.late_claimer is not None:
            self._late = authority.late_claimer(
                clock, book.store, claimer, self._timers, parts,
                identity=identity, after=wiring.late_after,
                page=authority.page)
        self._dispatcher = dispatcher
        self._parts = parts
        self._pump = pump
        self._listing = authority.listing(
            parts, clock=clock, identity=identity, store=book.store,
            timers=self._timers, claimer=claimer, page=authority.page,
            walked=self._arm)
        #: Instant of the last call of :meth:`run_due` or :meth:`begin`. None
        #: means that :meth:`begin` was not called yet.
        self._last_turn: Instant | None = None
        #: Timers that wait until this member has a view on which it may act,
        #: by job.
        self._held: dict[str, dict[TimerKind, None]] = {}
        #: Timers that wait until the store is reachable again, by job.
        self._delayed: dict[str, dict[TimerKind, None]] = {}
        self._closed = self._drained = False
        #: Value of ``Attendance.schedules`` at the last check of the rings.
        self._schedules = 0
        #: Number of ticks or objects, by (job, outcome).
        self._counters = wiring.counters
        self._sink = wiring.sink

    def begin(self) -> None:
        """Start the ticks from now on."""
        now = self._last_turn = self._clock.now()
        for part in self._parts.values():
            part.restart(now)
            if part.per_member:
                self._listing.walk(part, [CIRCLE],
                                   listing.counts_from(part, now), None)
            elif self._late is not None:
                # Late scans need no catalogue. So the objects that the store
                # lists are claimed even if the catalogue method never returns.
                self._late.start(part.job)
        self._timers.restart(now)

    def failing_catalogues(self) -> list[dict[str, Any]]:
        """Return the catalogues that fail or are slow, for a report."""
        return self._reads.facts()

    # -- the clock

    def run_due(self) -> float:
        """Handle all due timers.

        :returns: Seconds until the next call is needed.
        """
        if self._closed or self._last_turn is None:
            return _FOR_EVER
        now = self._clock.now()
        if now < self._last_turn - SECOND:
            self._clock_set_back(self._last_turn, now)
        self._last_turn = now
        for name in self._claimer.ready_again():
            self._timers.push(now, name, TimerKind.LOOK)
            if self._late is not None:
                self._timers.push(now, name, TimerKind.LATE)
        for name in self._claimer.attendance.reopened():
            if self._late is not None:
                self._timers.push(now, name, TimerKind.LATE)
        if self._delayed and not self._claimer.away:
            delayed, self._delayed = self._delayed, {}
            self._push_all(delayed, now)
            if self._late is not None:
                self._late.store_back(now)
        if self._claimer.attendance.schedules != self._schedules:
            # The ring of a job depends on the schedule in force.
            self._schedules = self._claimer.attendance.schedules
            self._view()
        handled = 0
        following = self._timers.next
        if self._held or following is not None and following <= now:
            handled = self._turns(now)
        if self._claimer.judge_released() or handled:
            self._pump()
        pause = self._claimer.retry_delayed()
        following = self._timers.next
        if following is None:
            return min(pause, _FOR_EVER)
        if handled:
            # Time has passed while the timers were handled.
            now = self._clock.now()
        return max(0.0, min(pause, _FOR_EVER, (following - now) / SECOND))

    def _turns(self, now: Instant) -> int:
        """Handle the timers that are due, and return their number."""
        view = self._view()
        handled = 0
        for name, kind, due in self._timers.take(now):
            self._turn(self._parts[name], kind, due, now, view)
            handled += 1
            if not handled % 64:
                self._pump()
                view = self._view()
        return handled

    def _turn(self, part: Part, kind: TimerKind, due: Instant,
              now: Instant, view: View | None) -> None:
        job = part.job
        if kind is TimerKind.TICK and self._sink.open:
            self._sink.put(telemetry.TickDue(job.name, due))
        ring = None if view is None else self._authority.ring(view, job)
        if ring is None and not part.per_member:
            self._hold(part, kind)
        elif kind is TimerKind.TICK:
            self._tick(part, due, now, ring)
        elif self._claimer.away:
            self._delayed.setdefault(job.name, {})[kind] = None
        elif kind is TimerKind.LOOK:
            self._look(part, now, ring)
        elif kind is TimerKind.REST:
            self._claimer.claim_rest(job.name)
            self._set_rest_timer(part)
        elif kind is TimerKind.OWN:
            self._claim_own(part, now, ring)
        elif kind is TimerKind.SPREAD:
            self._claim_spread(part, now, ring)
        elif self._late is not None and ring is not None:
            self._late.scan(job.name, now, ring)

    def _clock_set_back(self, seen: Instant, now: Instant) -> None:
        LOG.warning(
            'clock set back: seconds=%.1f; jobs without a store continue '
            'with their next tick of the new time, and these ticks may run '
            'a second time', (seen - now) / SECOND)
        for part in self._parts.values():
            part.restart(now)
            self._arm_timers(part, now)
        self._timers.restart(now)

    # -- due ─► view

    def _view(self) -> View | None:
        """Return the view if this member may act on it now.

        None means that this member must not start any tick now.
        """
        if self._last_turn is None or self._drained:
            return None
        view = self._authority.view()
        if view is None:
            return None
        change = self._authority.change(view)
        if change is not None:
            self._ring_changed(view, change)
        if self._held:
            self._release_held()
        return view

    def sure(self) -> bool:
        """Return whether this member may start jobs that the ring divides."""
        # A closed or drained member still dispatches its waiting claims,
        # because no other member can do so.
        return (self._closed or self._drained
                or self._view() is not None)

    def set_drained(self, drained: bool) -> None:
        """Set whether this member is drained.

        A drained member claims nothing for jobs that the ring divides among
        members.
        """
        self._drained = drained

    def trigger(self, job: str, key: str | None) -> TriggerCounts | str:
        """Claim this member's objects of a job now, although no tick is due.

        The objects are those of the last reading of the catalogue. The store
        must answer at once, as a store in memory does.

        :param key: Id of the object. None means all objects.
        :returns: The numbers of objects, or the reason why this member claims
            nothing.
        """
        part, view = self._parts[job], self._view()
        if view is None:
            return ('it is drained' if self._drained else
                    'it is not certain of the members of its group now')
        if part.reading is None:
            return 'it has not read the catalogue of this job yet'
        by_rule: dict[str, list[str]] = {}
        for one in part.reading.catalogue.placed_ids(
                self._authority.ring(view, part.job), self._identity):
            if key in (None, one):
                by_rule.setdefault(
                    part.reading.attributes_of(one).rule, []).append(one)
        answers: list[TriggerCounts] = []
        now = self._clock.now()
        for rule, keys in sorted(by_rule.items()):
            self._claimer.trigger(part.job, now, keys, rule, answers.append)
        self._pump()
        return TriggerCounts(sum(one.claimed for one in answers),
                             sum(one.busy for one in answers))

    def may_list(self, job: str, key: str) -> bool:
        """Return whether the catalogue may list an object.

        If a reading contains only this member's objects, it does not show
        which objects the other members own.
        """
        reading = self._parts[job].reading
        return reading is not None and (
            reading.partial or bool(reading.catalogue.indexes([key])))

    def view_changed(self) -> None:
        """Handle a new view, or a change in whether the view is trusted."""
        self._view()

    def _ring_changed(self, view: View,
                      change: MembershipChange) -> None:
        """Walk the arcs that this member gained."""
        now = self._clock.now()
        self._claimer.attendance.rings_changed()
        if change.abandon:
            self._dispatcher.abandon(self._parts)
        for part in self._parts.values():
            if part.per_member:
                continue
            ring = self._authority.ring(view, part.job)
            before, part.ring_seen = part.ring_seen, ring
            if not change.stayed:
                before = None
            elif before is ring:
                # Only rings of other jobs have changed.
                continue
            if change.since is not None:
                part.since = listing.counts_from(part, change.since)
            first = before is None and part.reading is None
            if before is None:
                self._claimer.forget(part.job.name)
                self._reads.invalidate(part.job.name)
                part.ring = None
            if self._must_read_first(part) and not first:
                self._listing.judge_gained(part, ring, before)
            if part.reading is None or self._must_read_first(part):
                self._timers.push(now, part.job.name, TimerKind.LOOK)
            else:
                self._listing.walk_gained(
                    part, listing.counts_from(part, now), ring,
                    discard_rows=change.abandon)

    def _must_read_first(self, part: Part) -> bool:
        """Return whether gained arcs can be walked only after a new read of
        the catalogue.
        """
        return (part.job.scope is Scope.OBJECTS
                and self._authority.must_read_again(part.reading))

    def _hold(self, part: Part,
              kind: TimerKind = TimerKind.LOOK) -> None:
        name = part.job.name
        self._counters[name, Counted.HELD] += 1
        if not (self._held or self._drained):
            # At the start, before the first view, this is normal.
            LOG.log(
                logging.INFO if part.ring is None else logging.WARNING,
                'ticks held: member=%s first=%s reason=the members are '
                'uncertain; jobs that the ring divides among members do not '
                'start here until the view is known again', self._identity,
                name)
        self._held.setdefault(name, {})[
            TimerKind.LOOK if kind is TimerKind.TICK else kind] = None

    def _release_held(self) -> None:
        LOG.info('ticks go on: member=%s jobs=%d', self._identity,
                 len(self._held))
        held, self._held = self._held, {}
        self._push_all(held, self._clock.now())

    def _push_all(self, timers: Mapping[str, Mapping[TimerKind, None]],
                  now: Instant) -> None:
        for name, kinds in timers.items():
            for kind in kinds:
                self._timers.push(now, name, kind)

    # -- view ─► catalogue

    def _tick(self, part: Part, tick: Instant, now: Instant,
              ring: Ring | None) -> None:
        """Handle a tick of the job."""
        job = part.job
        if not self._claimer.ready(job.name):
            # The store is slow or unreachable. When the store has answered,
            # run_due() handles the newest tick of the job.
            self._counters[job.name, Counted.HELD] += 1
        elif job.scope is not Scope.OBJECTS:
            part.last_tick = max(part.last_tick, tick)
            self._start(part, tick, now, ring)
        elif self._reads.under_way(job.name):
            self._counters[job.name, Counted.HELD] += 1
            self._reads.report_slow(job)
        else:
            assert ring is not None
            self._reads.request(job, ring, tick)

    def _look(self, part: Part, now: Instant,
              ring: Ring | None) -> None:
        """Start a tick that is due, or read the catalogue after a change."""
        job = part.job
        newest = job.schedule.at_or_before(now)
        if newest is not None and newest > part.last_tick:
            if self._may_read(job.name, newest, now):
                self._tick(part, newest, now, ring)
            return
        if part.per_member:
            return
        assert ring is not None
        if part.reading is not None and (
                part.ring is ring or not self._must_read_first(part)):
            if part.ring is None and part.walk is None:
                # The store could not read or record the whole listing, or does
                # not list an object of the catalogue.
                self._listing.walk_gained(
                    part, listing.counts_from(part, now), ring)
        elif (not self._reads.under_way(job.name)
                and self._may_read(job.name, part.last_tick, now)):
            self._reads.request(job, ring, listing.counts_from(part, now))

    def _may_read(self, job: str, tick: Instant, now: Instant) -> bool:
        """Return whether the catalogue may be read for *tick* now.

        If a recent failure prevents this, set a timer for the next attempt.
        """
        pause = self._reads.pause(job, tick)
        if pause:
            self._timers.push(now + int(pause * SECOND) + 1, job,
                              TimerKind.LOOK)
        return not pause

    def catalogue_read(self, job: str, ticket: int,
                       reading: Reading | Exception) -> None:
        """Handle the result of a read of a catalogue.

        The result is ignored if the read *ticket* is not pending.
        """
        view = self._view()
        read = self._reads.answered(job, ticket)
        part = self._parts.get(job)
        if part is None or read is None or self._closed:
            return
        now = self._clock.now()
        ring = None if view is None else self._authority.ring(view, part.job)
        # A tick may have become due while the catalogue method ran.
        self._timers.push(now, job, TimerKind.LOOK)
        if isinstance(reading, Exception):
            self._counters[job, Counted.CATALOGUE_FAILED] += 1
            error = self._reads.failed(
                part.job, max(read.at, part.last_tick), reading)
            if self._sink.open:
                self._sink.put(telemetry.CatalogueFailed(job, error))
            self._pump()
            return
        self._reads.succeeded(job)
        if self._sink.open:
            self._sink.put(telemetry.CatalogueListed(
                job, len(reading.catalogue),
                self._clock.monotonic() - read.began))
        if ring is None:
            self._hold(part)
        elif reading.partial and read.ring is not ring:
            # The catalogue method has listed the objects that this member
            # owned on another ring. Repeat the read for the same instant, so
            # that new objects can be due from this instant on.
            self._reads.request(part.job, ring, read.at)
        else:
            self._listed(part, reading, read, now, ring)
        self._pump()

    def compare_again(self, job: str, objects: Sequence[str]) -> None:
        """Walk this member's part again if the catalogue lists *objects*.

        :param objects: Objects that the store does not list.
        """
        part = self._parts[job]
        # A walk in progress lists the objects that it has not reached yet.
        if (part.walk is None and part.reading is not None
                and part.reading.catalogue.indexes(objects)
                and not self._closed):
            part.ring = None
            self._timers.push(self._clock.now(), job, TimerKind.LOOK)

    # -- catalogue ─► owned

    def _listed(self, part: Part, reading: Reading, read: Read,
                now: Instant, ring: Ring) -> None:
        """Handle a reading of the catalogue."""
        before = part.reading
        tick, at = read.at, max(read.at, part.since)
        part.read(reading, at)
        if tick > part.last_tick:
            part.removed = 0
        if (read.ring is not ring
                and self._authority.must_read_again(reading)):
            # The ring changed during the read. Read once more for the same
            # instant, so that new objects can be due from this instant on.
            # After that, the whole part is compared.
            part.ring = None
            part.removed = None
            self._reads.request(part.job, ring, read.at)
        else:
            differs = (before is not None and part.ring is not None
                       and reading != before)
            if part.ring is not ring:
                part.removed = None
                self._listing.walk_gained(part, at, ring)
            if before is not None and differs:
                self._listing.record_differences(
                    part, before, reading, at, ring)
        part.object_timers.replace(reading.attributes, at)
        if part.job.spread and part.cursor is None:
            # The first walk is in progress. The walk claims the objects that
            # it has not reached yet. The objects that the walk has already
            # passed may become due before it ends, so start their timers.
            newest = part.job.schedule.at_or_before(now)
            if newest is not None:
                part.spread(newest, at - 1)
        self._arm_timers(part, now)
        if (tick > part.last_tick
                and part.job.schedule.at_or_before(tick) == tick):
            part.last_tick = tick
            # The first walk itself claims the objects that it lists.
            if before is not None or part.walk is None:
                self._start(part, tick, now, ring)

    # -- owned ─► claim

    def _start(self, part: Part, tick: Instant, now: Instant,
               ring: Ring | None) -> None:
        """Claim this member's objects for a tick that is due."""
        job = part.job
        if tick < part.since:
            # Other members were responsible for this tick.
            return
        if job.spread:
            # All objects are due for the previous tick by now. Claim those
            # that were not claimed yet.
            self._claim_spread(part, now, ring)
            before = job.schedule.at_or_before(tick - 1)
            if (before is not None and part.cursor is not None
                    and part.cursor.tick < before):
                # The previous tick was not started, because no object could be
                # claimed when it was due.
                part.spread(before, before - 1)
                self._claim_spread(part, now, ring)
            part.spread(tick, tick - 1)
            self._arm_timers(part, now)
            return
        self._claimer.start_tick(job, tick, part.ids(ring, self._identity))
        self._set_rest_timer(part)

    def _claim_own(self, part: Part, now: Instant,
                   ring: Ring | None) -> None:
        """Claim this member's due objects that have their own schedules."""
        assert part.reading is not None
        due = part.object_timers.take(now)
        by_tick: dict[tuple[Instant, str], list[str]] = {}
        for key, tick in due:
            if part.owns(ring, self._identity, position_of(key)):
                rule = part.reading.attributes_of(key).rule
                by_tick.setdefault((tick, rule), []).append(key)
        for (tick, rule), keys in sorted(by_tick.items()):
            self._claimer.start_tick(part.job, tick, keys, rule)
        self._set_rest_timer(part)
        self._timers.push_next(part.object_timers.next, part.job.name,
                               TimerKind.OWN, now, len(due))

    def _claim_spread(self, part: Part, now: Instant,
                      ring: Ring | None) -> None:
        """Claim this member's objects that are due by their phase."""
        cursor, reading = part.cursor, part.reading
        if cursor is None or reading is None:
            return
        # Use the catalogue of the cursor, because in a later reading the
        # objects have other indexes.
        catalogue = cursor.catalogue
        ids, positions = catalogue.ids, catalogue.positions
        job, taken = part.job, 0
        too_late = now - job.plan().grace_us(cursor.tick) - 1

        def take(until: Instant) -> list[str]:
            nonlocal taken
            indexes = cursor.take(until)
            taken += len(indexes)
            return [ids[index] for index in indexes
                    if part.owns(ring, self._identity, positions[index])
                    and not reading.attributes_of(ids[index]).rule]
        if job.misfire is schedule.Misfire.SKIP:
            self._claimer.judge_objects(job, take(too_late))
        self._claimer.start_tick(job, cursor.tick, take(now))
        self._set_rest_timer(part)
        self._timers.push_next(cursor.next, job.name, TimerKind.SPREAD, now,
                               taken)

    def _set_rest_timer(self, part: Part) -> None:
        if self._claimer.has_rest(part.job.name):
            # Add a microsecond, so that all timers that are due now are
            # handled first.
            self._timers.push(self._clock.now() + 1, part.job.name,
                              TimerKind.REST)

    def _arm(self, part: Part, since: Instant,
             ring: Ring | None) -> None:
        """Set the timers of objects with a phase or with their own schedule.

        Call this at the end of a walk.

        :param since: Instant of the walk. The walk has claimed the ticks of
            the walked arcs that were due before.
        """
        now = self._clock.now()
        newest = part.job.schedule.at_or_before(now)
        if part.job.spread and newest is not None:
            # The walk did not include the arcs that this member already owned.
            # Claim the due objects on these arcs before the cursor is
            # replaced.
            self._claim_spread(part, now, ring)
            part.spread(newest, since - 1)
        self._arm_timers(part, now)

    def _arm_timers(self, part: Part, now: Instant) -> None:
        name = part.job.name
        self._timers.push_next(part.object_timers.next, name, TimerKind.OWN,
                               now)
        if part.cursor is not None:
            self._timers.push_next(
                part.cursor.next, name, TimerKind.SPREAD, now)

    def close(self) -> None:
        """Start no more ticks."""
        self._closed = True
        self._claimer.close()
