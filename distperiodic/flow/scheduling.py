# SPDX-License-Identifier: Apache-2.0
"""One scheduler's flow, put together.

    ticker ─► claimer ─┐
                       ├─► dispatcher ─► (grants) ─► bus ─► worker
    ticker ─► claimer ─┘       ▲             │                 │
                               └─────────────┴──── reports ◄───┘

There is a book for what a store decides and one for what the ring alone does:
each has a clock of its own, so each has a ticker and a claimer. What they have
claimed goes one way from there; each batch says which authority it is of.

Runs are granted here where the workers cannot reach the store: they are
this process's own pool, or there is no store that they could share.
"""

import random
from collections.abc import Callable
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import job as job_
from distperiodic.core import message
from distperiodic.core import partition as partition_
from distperiodic.core.claim import Authority
from distperiodic.flow import events
from distperiodic.flow import grants as grants_
from distperiodic.flow import leases
from distperiodic.flow import store_time
from distperiodic.flow.scheduler import attendance as attendance_
from distperiodic.flow.scheduler import authority as authority_
from distperiodic.flow.scheduler import claimer as claimer_
from distperiodic.flow.scheduler import late_claims
from distperiodic.flow.scheduler import part as part_
from distperiodic.flow.scheduler import reads as reads_
from distperiodic.flow.scheduler import tick
from distperiodic.flow.scheduler import timers as timers_
from distperiodic.flow.scheduler.dispatcher import Dispatcher

# Ticks of a job are claimed in pieces of so many objects where the store
# answers at once.
_PIECE = 2000
# Rows that are read from the store at once; all, where they are in memory.
_PAGE = 2000
_WHOLE = 1 << 62


class _Source:
    """What has the jobs of one book claimed when they are due.

    :param sure: as for :class:`Scheduling`.
    :param run: takes what was granted here.
    :param pump: gives waiting claims to workers.
    """

    def __init__(self, book: leases.Book, dispatcher: Dispatcher, *,
                 clock: ports.Clock, membership: ports.Membership,
                 group: str, identity: str, reader: ports.CatalogueReader,
                 put: events.Put, new_lease: Callable[[], str],
                 batch_size: int, lease: float, late_after: float,
                 sure: Callable[[str], bool],
                 run: Callable[[message.Batch], None],
                 pump: Callable[[], None],
                 random_: random.Random | None,
                 partitions: partition_.Partitions):
        self.book = book
        store, shared = book.store, book.shared
        self._clock = clock
        self.grants: grants_.Grants | None = None
        if book.grants_here:
            self.grants = grants_.Grants(
                book.jobs, store=store, clock=clock, lease=lease, run=run,
                report=lambda report, _: put(events.Ended(report)),
                new_lease=new_lease, sure=sure,
                shared=shared, silent=book.silent or None, random_=random_,
                partitions=partitions)
        jobs = {name: job for name, job in book.jobs.items() if job.enabled}
        self._time: store_time.StoreTime | None = None
        if shared:
            self._time = store_time.StoreTime(
                clock, store, lambda: self._attendance.look(
                    self.ticker.begin))
        time = self._time or clock
        self._attendance = attendance_.Attendance(
            time, store, jobs, book.sweep)
        self._claimer = claimer_.Claimer(
            jobs, clock=time, store=store, put=put,
            holder=dispatcher.holder, new_lease=new_lease, lease=lease,
            piece=batch_size if shared else _PIECE,
            sweep=book.sweep, promise=book.silent + 1.0 + 3 * late_after,
            attendance=self._attendance, dispatcher=dispatcher)
        timers = timers_.TimerQueue(time, jobs, shared)
        parts = {name: part_.Part(job, time.now(),
                                  part_.without_catalogue(job, identity))
                 for name, job in jobs.items()}
        page = _PAGE if shared else _WHOLE
        late = None
        if shared:
            late = late_claims.LateClaimer(
                time, store, self._claimer, timers, parts,
                identity=identity, after=late_after, page=page)
        self.ticker = tick.Ticker(
            parts, clock=time, identity=identity, store=store,
            authority=(authority_.StoreAuthority if shared
                       else authority_.RingAuthority)(
                time, membership, group, identity),
            timers=timers,
            reads=reads_.CatalogueReads(time, reader, identity),
            claimer=self._claimer, late=late, dispatcher=dispatcher,
            page=page, pump=pump)
        self._signs = clock.monotonic()
        self._every = min(lease, book.silent or lease) / 4

    def begin(self) -> None:
        """Begin to tick, once the time and the jobs are known."""
        if self._time is not None:
            self._time.look()
        else:
            self._attendance.look(self.ticker.begin)

    def released(self, job: job_.Job, objects: Sequence[str]) -> None:
        """These objects run no more."""
        self._claimer.released(job, objects)

    def clock_differs(self) -> None:
        """The store's clock is not where we take it to be."""
        if self._time is not None:
            self._time.look()

    def sweep_grants(self) -> None:
        """Look at the clock of the store and at what was granted here."""
        if self._time is not None:
            self._time.sweep()
        if self.grants is None:
            return
        now = self._clock.monotonic()
        if now - self._signs >= self._every:
            self._signs = now
            self.grants.renew()
        self.grants.sweep()

    def sweep_claims(self) -> None:
        """Look at what waits to be claimed, and how the jobs stand."""
        self._claimer.sweep()
        if self.book.shared:
            self._attendance.sweep()


class Scheduling:
    """See the picture above.

    :param books: where claims stand; no two have one job or one authority.
    :param identity: this member's name on the ring of *group*.
    :param me: this member's entry, asked at each claim and each batch.
    :param put: puts events into the inbox of this process, from which they
        come to :meth:`handle`.
    :param batch_size: claims in one batch, and in one lease of a store that
        is shared.
    :param lease: seconds.
    :param late_after: seconds after which others claim what is late.
    :param sure: whether this process surely still stands in its group under
        that entry.
    :param random_: of pauses; default: seeded anew.
    :param partitions: what is configured of partitions, by name.
    """

    def __init__(self, books: Sequence[leases.Book], *,
                 clock: ports.Clock, membership: ports.Membership,
                 group: str, identity: str, me: Callable[[], str],
                 bus: ports.WorkBus, reader: ports.CatalogueReader,
                 put: events.Put, new_lease: Callable[[], str],
                 batch_size: int = 500, lease: float = 60.0,
                 late_after: float = 5.0,
                 sure: Callable[[str], bool] = lambda entry: True,
                 random_: random.Random | None = None,
                 partitions: partition_.Partitions = partition_.NONE):
        self._bus = bus
        self.dispatcher = Dispatcher(
            books, bus=self, clock=clock, put=put, me=me,
            new_lease=new_lease, batch_size=batch_size, lease=lease,
            random_=random_, partitions=partitions)
        self._sources = {book.authority: _Source(
            book, self.dispatcher, clock=clock, membership=membership,
            group=group, identity=identity, reader=reader, put=put,
            new_lease=new_lease, batch_size=batch_size, lease=lease,
            late_after=late_after, sure=sure, run=bus.send, pump=self.pump,
            random_=random_, partitions=partitions) for book in books}
        self._of_job = {name: source for source in self._sources.values()
                        for name in source.book.jobs}
        #: Those with jobs that the ring divides.
        self._divided = [source for source in self._sources.values() if any(
            job.scope is not job_.Scope.MEMBER
            for job in source.book.jobs.values())]
        #: One for each book.
        self.tickers = [source.ticker for source in self._sources.values()]
        for source in self._sources.values():
            source.begin()

    def grants_of(self, authority: Authority) -> grants_.Grants | None:
        """What grants the runs of *authority* here. None: nothing does."""
        source = self._sources.get(authority)
        return None if source is None else source.grants

    def run_due(self) -> float:
        """Do all that is due; returns the seconds until the next is."""
        return min([ticker.run_due() for ticker in self.tickers])

    def view_changed(self) -> None:
        """Members came or went, or this one may be sure again."""
        for ticker in self.tickers:
            ticker.view_changed()

    def drain(self) -> None:
        """Start nothing more; give out what waits."""
        for ticker in self.tickers:
            ticker.close()
        self.dispatcher.drain()

    def send(self, batch: message.Batch) -> None:
        """The dispatcher's bus; see :class:`distperiodic.ports.WorkBus`."""
        grants = self.grants_of(batch.authority)
        if grants is None:
            self._bus.send(batch)
        else:
            grants.accept(batch)

    def handle(self, event: events.Event) -> None:
        """Go on with what an event says."""
        match event:
            case events.Reported(reports):
                for report in reports:
                    self.reported(report)
            case events.Ended(report):
                self.dispatcher.reported(report)
            case events.Released(job, objects):
                self._of_job[job.name].released(job, objects)
            case events.Sent(batch):
                self.dispatcher.sent(batch)
            case events.Unsent(batch, reason):
                self.dispatcher.unsent(batch, reason)
            case events.CatalogueRead(name, ticket, reading):
                self._of_job[name].ticker.catalogue_read(
                    name, ticket, reading)
            case events.Unlisted(name, objects):
                self._of_job[name].ticker.compare_again(name, objects)
            case events.ClockDiffers(name):
                self._of_job[name].clock_differs()
            case events.Called(call):
                call()

    def pump(self) -> None:
        """Give waiting claims to the workers that have room."""
        self.dispatcher.pump_all(self._sure)

    def _sure(self) -> bool:
        return all([source.ticker.sure() for source in self._divided])

    def reported(self, report: message.Report) -> None:
        """A worker tells what became of a batch, or that it lives."""
        grants = self._granted_by(report.batch)
        if grants is None:
            self.dispatcher.reported(report)
        else:
            grants.reported(report, self.dispatcher.entry())

    def _granted_by(self, batch: str) -> grants_.Grants | None:
        """What has granted a batch here, or should have."""
        entry = self.dispatcher.entry()
        for source in self._sources.values():
            # It may run on though the dispatcher has given it up.
            if source.grants is not None and source.grants.has(batch, entry):
                return source.grants
        authority = self.dispatcher.authority_of(batch)
        return None if authority is None else self.grants_of(authority)

    def sweep(self) -> None:
        """Look at leases and at what gave no sign; call it several times a
        second.
        """
        for source in self._sources.values():
            source.sweep_grants()
        self.dispatcher.sweep()
        self.pump()
        for source in self._sources.values():
            source.sweep_claims()
