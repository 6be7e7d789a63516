# SPDX-License-Identifier: Apache-2.0
"""One scheduler's flow, put together over one store.

    ticker ─► claimer ─► dispatcher ─► (grants) ─► bus ─► worker
                             ▲             │                 │
                             └─────────────┴──── reports ◄───┘

Runs are granted here where the workers cannot reach the store: they are
this process's own pool, or there is no store that they could share.
"""

import random
from collections.abc import Callable
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core import job as job_
from distperiodic.core import message
from distperiodic.core import partition as partition_
from distperiodic.flow import dispatch
from distperiodic.flow import events
from distperiodic.flow import grants as grants_
from distperiodic.flow import store_time
from distperiodic.flow.scheduler import attendance as attendance_
from distperiodic.flow.scheduler import authority as authority_
from distperiodic.flow.scheduler import claimer as claimer_
from distperiodic.flow.scheduler import late_claims
from distperiodic.flow.scheduler import part as part_
from distperiodic.flow.scheduler import reads as reads_
from distperiodic.flow.scheduler import tick
from distperiodic.flow.scheduler import timers as timers_

# Ticks of a job are claimed in pieces of so many objects where the store
# answers at once.
_PIECE = 2000
# Rows that are read from the store at once; all, where they are in memory.
_PAGE = 2000
_WHOLE = 1 << 62


class Scheduling:
    """See the picture above.

    :param put: puts events into the inbox of this process, from which they
        come to :meth:`handle`.
    :param identity: this member's name on the ring of *group*.
    :param me: this member's entry, asked at each claim and each batch.
    :param shared: whether all members claim in this store.
    :param grants_here: whether runs are granted here and not by the workers.
    :param batch_size: claims in one batch, and in one lease of a store that
        is shared.
    :param lease: seconds.
    :param late_after: seconds after which others claim what is late.
    :param sweep: seconds between two looks for leases that ended.
    :param silent: seconds without a renewal after which the leases of a
        process that is gone from its group are taken over.
    :param sure: whether this process surely still stands in its group under
        that entry.
    :param series: how the ids of the batches begin.
    :param random_: of pauses; default: seeded anew.
    :param partitions: what is configured of partitions, by name.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 clock: ports.Clock, membership: ports.Membership,
                 group: str, identity: str, me: Callable[[], str],
                 store: ports.StoreQueue, bus: ports.WorkBus,
                 reader: ports.CatalogueReader, put: events.Put,
                 new_lease: Callable[[], str], batch_size: int = 500,
                 lease: float = 60.0, shared: bool = False,
                 grants_here: bool = True, late_after: float = 5.0,
                 sweep: float = 0.0, silent: float = 0.0,
                 sure: Callable[[str], bool] = lambda entry: True,
                 series: str = '', random_: random.Random | None = None,
                 partitions: partition_.Partitions = partition_.NONE):
        self.jobs = jobs
        self.shared = shared
        self._bus = bus
        self._lease = lease
        self._clock = clock
        self.grants: grants_.Grants | None = None
        if grants_here:
            self.grants = grants_.Grants(
                jobs, store=store, clock=clock, lease=lease, run=bus.send,
                report=lambda report, _: put(events.Ended(report)),
                new_lease=new_lease, sure=sure,
                shared=shared, silent=silent or None, random_=random_,
                partitions=partitions)
        self.dispatcher = dispatch.Dispatcher(
            jobs, store=store, bus=self, clock=clock, put=put, me=me,
            new_lease=new_lease, batch_size=batch_size, lease=lease,
            sweep=sweep, silent=silent, shared=shared, series=series,
            random_=random_, partitions=partitions)
        jobs = {name: job for name, job in jobs.items() if job.enabled}
        self._time: store_time.StoreTime | None = None
        if shared:
            self._time = store_time.StoreTime(
                clock, store, lambda: self._attendance.look(
                    self.ticker.begin))
        time = self._time or clock
        self._attendance = attendance_.Attendance(time, store, jobs, sweep)
        self._claimer = claimer_.Claimer(
            jobs, clock=time, store=store, put=put,
            holder=self.dispatcher.holder, new_lease=new_lease, lease=lease,
            piece=batch_size if shared else _PIECE,
            sweep=sweep, promise=silent + 1.0 + 3 * late_after,
            attendance=self._attendance, dispatcher=self.dispatcher)
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
            claimer=self._claimer, late=late, dispatcher=self.dispatcher,
            page=page, pump=self.pump)
        if self._time is not None:
            self._time.look()
        else:
            self._attendance.look(self.ticker.begin)
        self._signs = clock.monotonic()
        self._every = min(lease, silent or lease) / 4

    def send(self, batch: message.Batch) -> None:
        """The dispatcher's bus; see :class:`distperiodic.ports.WorkBus`."""
        if self.grants is None:
            self._bus.send(batch)
        else:
            self.grants.accept(batch)

    def handle(self, event: events.Event) -> None:
        """Go on with what an event of these jobs says."""
        match event:
            case events.Ended(report):
                self.dispatcher.reported(report)
            case events.Released(job, objects):
                self._claimer.released(job, objects)
            case events.Sent(batch):
                self.dispatcher.sent(batch)
            case events.Unsent(batch, reason):
                self.dispatcher.unsent(batch, reason)
            case events.CatalogueRead(name, ticket, reading):
                self.ticker.catalogue_read(name, ticket, reading)
            case events.TooEarly():
                if self._time is not None:
                    self._time.look()

    def pump(self) -> None:
        """Give waiting claims to the workers that have room."""
        self.dispatcher.pump_all(self.ticker.sure)

    def reported(self, report: message.Report) -> None:
        """A worker tells what became of a batch, or that it lives."""
        if self.grants is None:
            self.dispatcher.reported(report)
        else:
            self.grants.reported(report, self.dispatcher.entry())

    def sweep(self) -> None:
        """Look at leases and at what gave no sign; call it several times a
        second.
        """
        now = self._clock.monotonic()
        if self._time is not None:
            self._time.sweep()
        if self.grants is not None and now - self._signs >= self._every:
            self._signs = now
            self.grants.renew()
        if self.grants is not None:
            self.grants.sweep()
        self.dispatcher.sweep()
        self.pump()
        self._claimer.sweep()
        if self.shared:
            self._attendance.sweep()
