# SPDX-License-Identifier: Apache-2.0
"""The flow of one scheduler, assembled from its components.

    ticker ─► claimer ─┐
                       ├─► dispatcher ─► (grants) ─► bus ─► worker
    ticker ─► claimer ─┘       ▲             │                 │
                               └─────────────┴──── reports ◄───┘

A scheduler has at most two books: one with the jobs whose claims are in a
shared store, and one with the jobs whose claims are in the memory of the
scheduler. The books use different clocks, so each book has its own ticker and
its own claimer. All claims go through one dispatcher. Each batch states the
authority over its claims.

Usually the worker requests the grant of a run from the store. The scheduler
itself grants the run if the worker is the scheduler's own pool, or if there is
no shared store.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic import exceptions
from distperiodic.core import message
from distperiodic.core.claim import Authority
from distperiodic.core.control import MemberOutcome
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import Member
from distperiodic.flow import events
from distperiodic.flow import leases
from distperiodic.flow import store_clock
from distperiodic.flow.run_leases import RunLeases
from distperiodic.flow.scheduler import tick
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.authority import RULES
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.scheduler.job_orders import NOT_SERVED
from distperiodic.flow.scheduler.job_orders import JobOrders
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.part import without_catalogue
from distperiodic.flow.scheduler.step_source import StepSource
from distperiodic.flow.wiring import SchedulerWiring


class _Source:
    """Components that claim the due objects of one book.

    :param pump: Sends waiting claims to workers.
    """

    def __init__(self, book: leases.Book, dispatcher: Dispatcher,
                 wiring: SchedulerWiring, pump: Callable[[], None]):
        self.book = book
        store = book.store
        identity = wiring.identity
        self._clock = clock = wiring.clock
        self.grants: RunLeases | None = None
        if book.grants_here:
            self.grants = RunLeases(
                book, wiring, run=wiring.bus.send,
                report=lambda report, _: wiring.put(events.Ended(report)))
        commands = {name: job for name, job in book.jobs.items()
                    if job.scope is Scope.TASK}
        self.steps: StepSource | None = None
        if commands:
            self.steps = StepSource(
                book._replace(jobs=commands), wiring, dispatcher, pump)
        jobs = {name: job for name, job in book.jobs.items()
                if job.enabled and name not in commands}
        ticking = book._replace(jobs=jobs)

        def members(job: str) -> Collection[int] | None:
            try:
                view = wiring.membership.view(wiring.group)
            except exceptions.ViewUnknown:
                return None
            if view.rings is None:
                return ()
            if (view.me is None or not view.me.points
                    or not view.trusted(clock.monotonic())):
                return None
            return view.rings.marks(job)
        self._attendance = Attendance(
            clock, store, jobs, book.sweep_interval, members=members,
            patience=book.silence_timeout + 1.0)
        parts = {name: Part(job, clock.now(),
                            without_catalogue(job, identity))
                 for name, job in jobs.items()}
        authority = RULES[book.authority](wiring, self._attendance)
        self._claimer = Claimer(
            ticking, wiring, piece=authority.piece,
            owns=lambda job, row: authority.owns(parts[job], row),
            # The time until a dead owner leaves the ring, until the next
            # sweep, and until the turn of the second pair of scanners ends.
            promise=book.silence_timeout + 1.0 + 3 * wiring.late_after,
            attendance=self._attendance, dispatcher=dispatcher)
        self.ticker = tick.Ticker(
            parts, ticking, wiring, authority=authority,
            claimer=self._claimer, dispatcher=dispatcher, pump=pump)
        self.orders = JobOrders(
            {name: job for name, job in book.jobs.items()
             if name not in commands},
            attendance=self._attendance, ticker=self.ticker,
            dispatcher=dispatcher)
        self._renewed = clock.monotonic()
        self._renew_interval = min(
            wiring.lease, book.silence_timeout or wiring.lease) / 4

    def begin(self) -> None:
        """Start the ticks when the store's time and the status of the jobs are
        known.
        """
        self._attendance.refresh(self.ticker.begin)

    @property
    def settled(self) -> bool:
        """True if no request is pending that acquires or releases claims."""
        return self._claimer.settled and (
            self.steps is None or self.steps.settled)

    def close(self) -> None:
        """Claim nothing more. In a shared store, also start nothing more."""
        self.ticker.close()
        if self.steps is not None:
            self.steps.close()

    def released(self, job: Job, objects: Sequence[str]) -> None:
        """Handle the end of runs of *objects*."""
        if job.scope is not Scope.TASK:
            self._claimer.released(job, objects)
        elif self.steps is not None:
            self.steps.notified(objects)

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the local clock is ahead of the store's clock.

        None means that the store is not shared, or unknown.
        """
        return None

    def clock_differs(self) -> None:
        """Query the store's clock, because the estimate of it is wrong."""

    def sweep_grants(self) -> None:
        """Check the store's clock, and the runs that were granted here."""
        if self.grants is None:
            return
        now = self._clock.monotonic()
        if now - self._renewed >= self._renew_interval:
            self._renewed = now
            self.grants.renew()
        self.grants.sweep()

    def hurry(self) -> None:
        """Read the status of the jobs at the next sweep."""

    def sweep_claims(self) -> None:
        """Check the steps and objects that wait to be claimed, and the status
        of the jobs.
        """
        if self.steps is not None:
            self.steps.sweep()
        self._claimer.sweep()


class _SharedSource(_Source):
    """Source of claims in a store that members share."""

    def __init__(self, book: leases.Book, dispatcher: Dispatcher,
                 wiring: SchedulerWiring, pump: Callable[[], None]):
        self._store_clock = store_clock.StoreClock(
            wiring.clock, book.store,
            lambda: self._attendance.refresh(self.ticker.begin))
        super().__init__(book, dispatcher, dataclasses.replace(
            wiring, clock=self._store_clock), pump)

    def begin(self) -> None:
        self._store_clock.sync()

    @property
    def settled(self) -> bool:
        return super().settled and (
            self.grants is None or self.grants.settled)

    def close(self) -> None:
        super().close()
        if self.grants is not None:
            self.grants.close()

    @property
    def clock_ahead(self) -> float | None:
        return self._store_clock.ahead

    def clock_differs(self) -> None:
        self._store_clock.sync()

    def sweep_grants(self) -> None:
        self._store_clock.sweep()
        super().sweep_grants()

    def hurry(self) -> None:
        self._attendance.hurry()

    def sweep_claims(self) -> None:
        super().sweep_claims()
        self._attendance.sweep()


_SOURCES = {Authority.STORE: _SharedSource, Authority.RING: _Source}


class Pipeline:
    """The flow of one scheduler; see the docstring of this module.

    :param books: At most one book for each authority. Each job is in only one
        book.
    :param wiring: The thread of the flow passes the events that are put to
        :meth:`handle`.
    """

    def __init__(self, books: Sequence[leases.Book], wiring: SchedulerWiring):
        self._bus = wiring.bus
        self.counters = wiring.counters
        self.dispatcher = Dispatcher(books, wiring, bus=self)
        self._sources = {book.authority: _SOURCES[book.authority](
            book, self.dispatcher, wiring, self.pump) for book in books}
        self._source_of = {name: source for source in self._sources.values()
                           for name in source.book.jobs}
        #: Sources with jobs that the ring divides among members.
        self._ring_sources = [
            source for source in self._sources.values() if any(
                job.scope is not Scope.MEMBER
                for job in source.book.jobs.values())]
        #: One ticker for each book.
        self.tickers = [source.ticker for source in self._sources.values()]
        for source in self._sources.values():
            source.begin()

    def grants_of(self, authority: Authority) -> RunLeases | None:
        """Return the component that grants the runs of *authority* here.

        None means that the workers request the grants.
        """
        source = self._sources.get(authority)
        return None if source is None else source.grants

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the local clock is ahead of the clock of a shared
        store. None means that no store is shared, or unknown.
        """
        return next((source.clock_ahead for source in self._sources.values()
                     if source.clock_ahead is not None), None)

    def failing_catalogues(self) -> list[dict[str, Any]]:
        """Return the catalogues that fail or are slow, for a report."""
        return [one for ticker in self.tickers
                for one in ticker.failing_catalogues()]

    def run_due(self) -> float:
        """Handle all due timers.

        :returns: Seconds until the next call is needed.
        """
        return min([ticker.run_due() for ticker in self.tickers])

    def view_changed(self) -> None:
        """Handle a new view, or a change in whether the view is trusted."""
        for ticker in self.tickers:
            ticker.view_changed()

    def set_drained(self, drained: bool) -> None:
        """Set whether this member is drained.

        A drained member claims nothing for jobs that the ring divides among
        members. A drained member still dispatches existing claims, continues
        its runs, and continues the jobs that run on every member.
        """
        for source in self._sources.values():
            source.ticker.set_drained(drained)
            if source.steps is not None:
                source.steps.set_drained(drained)
        self.dispatcher.set_drained(drained)

    @property
    def settled(self) -> bool:
        """True if this scheduler holds no claims, and acquires none."""
        return self.dispatcher.settled and all(
            source.settled for source in self._sources.values())

    @property
    def recording(self) -> bool:
        """True if the outcomes of runs that were granted here are not recorded
        yet.
        """
        return any([source.grants is not None and source.grants.recording
                    for source in self._sources.values()])

    def drain(self) -> None:
        """Claim nothing more, and release the claims that were not started.

        Claims in a store that only this scheduler uses are still dispatched,
        because no other process can run their objects. The runs that have been
        passed to the pool of this process are not affected.
        """
        for source in self._sources.values():
            source.close()
        self.dispatcher.drain()

    def send(self, batch: message.Batch) -> None:
        """Send *batch* to its worker, or first request a grant for its runs.

        The grant is requested here if this process grants the runs. The
        dispatcher uses this object as its bus; see
        :class:`distperiodic.ports.WorkBus`.
        """
        grants = self.grants_of(batch.authority)
        if grants is None:
            self._bus.send(batch)
        else:
            grants.accept(batch)

    def handle(self, event: events.Event) -> None:
        """Handle one event."""
        match event:
            case events.Reported(reports):
                for report in reports:
                    self.reported(report)
            case events.Ended(report):
                self.dispatcher.reported(report)
            case events.Released(job, objects):
                self._source_of[job.name].released(job, objects)
            case events.Sent(batch):
                self.dispatcher.sent(batch)
            case events.Unsent(batch, reason):
                self.dispatcher.unsent(batch, reason)
            case events.CatalogueRead(name, ticket, reading):
                self._source_of[name].ticker.catalogue_read(
                    name, ticket, reading)
            case events.Unlisted(name, objects):
                self._source_of[name].ticker.compare_again(name, objects)
            case events.ClockDiffers(name):
                self._source_of[name].clock_differs()
            case events.Submitted(tasks):
                for source in self._sources.values():
                    if source.steps is not None:
                        source.steps.notified(tasks)
            case events.Called(call):
                call()

    def workers_changed(self, partition: str, members: Iterable[Member], *,
                        own: bool = False) -> None:
        """Set the workers of *partition*.

        :param own: True means that only this scheduler uses these workers.
        """
        self.dispatcher.workers_changed(partition, members, own=own)
        # Steps of a module are not claimed while it has no worker.
        self._take_steps()

    def _take_steps(self) -> None:
        for source in self._sources.values():
            if source.steps is not None:
                source.steps.turn()

    def pump(self) -> None:
        """Send waiting claims to the workers that have room."""
        self.dispatcher.pump_all(self._sure)

    def _sure(self) -> bool:
        return all([source.ticker.sure() for source in self._ring_sources])

    def reported(self, report: message.Report) -> None:
        """Handle a report of a worker on a batch.

        A report without outcomes is a heartbeat.
        """
        grants = self._granted_by(report.batch)
        if grants is None:
            self.dispatcher.reported(report)
            if not report.size:
                # Other schedulers may use fewer slots now.
                self._take_steps()
        else:
            grants.reported(report, self.dispatcher.entry())

    def _granted_by(self, batch: str) -> RunLeases | None:
        """Return the component that grants the runs of *batch* here.

        None means that the worker requests the grant, or that the batch is
        not known.
        """
        entry = self.dispatcher.entry()
        for source in self._sources.values():
            # Granted runs may continue even if the dispatcher has reclaimed
            # the batch.
            if source.grants is not None and source.grants.has(batch, entry):
                return source.grants
        authority = self.dispatcher.authority_of(batch)
        return None if authority is None else self.grants_of(authority)

    def confirm_job(self, verb: str, job: str, arguments: Mapping[str, Any],
                    then: Callable[[MemberOutcome], None]) -> None:
        """Apply an operator's command, which is in the store, to a job.

        The parameters are those of :meth:`.JobOrders.confirm`.
        """
        source = self._sources.get(Authority.STORE)
        if source is None:
            then(NOT_SERVED)
        else:
            source.orders.confirm(verb, job, arguments, then)

    def order_jobs(self, verb: str, arguments: Mapping[str, Any],
                   why: str) -> MemberOutcome:
        """Execute an operator's command, which came over the bus, on jobs.

        The parameters are those of :meth:`.JobOrders.execute`.
        """
        source = self._sources.get(Authority.RING)
        if source is None:
            return MemberOutcome(False, 'it has no job')
        return source.orders.execute(verb, arguments, why)

    @property
    def paused_jobs(self) -> list[str]:
        """Names of the jobs that are paused in this process only."""
        source = self._sources.get(Authority.RING)
        return [] if source is None else source.orders.paused

    def hurry(self) -> None:
        """Read the status of the jobs, and search for expired leases, at the
        next sweep.

        Call this when an operator has changed the status of a job or has
        triggered runs.
        """
        for source in self._sources.values():
            source.hurry()
        self.dispatcher.hurry()

    def sweep(self) -> None:
        """Check leases and heartbeats, and send waiting claims.

        Call this several times per second.
        """
        for source in self._sources.values():
            source.sweep_grants()
        self.dispatcher.sweep()
        self.pump()
        for source in self._sources.values():
            source.sweep_claims()
