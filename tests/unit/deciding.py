# SPDX-License-Identifier: Apache-2.0
"""The parts of schedulers that decide on ticks, with a store in memory.

The listing, the claimer and the store are those of the product. There is no
dispatcher and no worker: a test starts and ends the runs. No tick is recorded
as lost here; ``test_claimer.py`` tests such records.
"""

import itertools
from typing import NamedTuple

from distperiodic.core import due
from distperiodic.core import schedule
from distperiodic.core.attributes import Attributes
from distperiodic.core.catalogue import Catalogue
from distperiodic.core.catalogue import Reading
from distperiodic.core.claim import Authority
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import NewLease
from distperiodic.core.job import text_of
from distperiodic.core.member import View
from distperiodic.core.ring import Ring
from distperiodic.core.schedule import SECOND
from distperiodic.flow.leases import Book
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.authority import StoreAuthority
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.listing import SharedListing
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.part import without_catalogue
from distperiodic.flow.scheduler.timers import TimerQueue
from distperiodic.testing import FrozenClock
from distperiodic.testing.store import SharedMemoryStore
from tests.unit.world import StoreQueue
from tests.unit.world import scheduler_wiring

#: Seconds. No test lasts as long as this.
_LONG = 1e9
_VIEW = View('group', (), Ring({'me': 40}), 1, 0.0, None, 0.0)


class End(NamedTuple):
    """A decision on ticks of one object."""

    #: The newest of these ticks.
    tick: int
    #: Reason of a skip. None means that the tick was claimed.
    by: SkippedBy | None
    number: int = 1


class Store(SharedMemoryStore):
    """A shared store that records the decisions on one object."""

    def __init__(self, clock):
        super().__init__(clock)
        self.ends = []

    def claim(self, request, lease):
        answer = super().claim(request, lease)
        self.ends.extend(End(one.tick, None) for one in answer.won)
        return answer

    def skip(self, request):
        before = self.rows_of(request.job, request.objects)
        settled = super().skip(request)
        if settled:
            [row] = before
            self.ends.append(End(
                request.tick, request.by, 1 + request.missed(row.settled)))
        return settled


class Bench:
    """One clock, one store, and processes that share them."""

    def __init__(self, at):
        self.clock = FrozenClock(schedule.datetime_of(at))
        self.store = Store(self.clock)
        self._names = itertools.count()
        #: Lease and claims of the open claim.
        self.lease = None
        self.processes = []
        self.job = ''

    def go_to(self, at):
        """Let time pass until *at*, or set the clock back to it."""
        passed = at - self.clock.now()
        if passed >= 0:
            self.clock.advance(passed / SECOND)
        else:
            self.clock.set(schedule.datetime_of(at))

    def begin(self, job):
        """Start a process that has *job*."""
        self.job = job.name
        self.processes.append(Process(self, job))

    def start(self):
        """Grant the open claim to a worker.

        :returns: The recorded start of the run, which is a little too early.
        """
        lease, [claim] = self.lease
        into = self.name()
        [claim] = self.store.start(
            HeldLease(lease, self.job, claim.tick), [claim.object],
            NewLease(into, 'w', _LONG))
        self.lease = into, [claim]
        return claim.place

    def end(self):
        """End the granted run as done, and report it to all processes."""
        lease, [claim] = self.lease
        assert self.store.finish(
            HeldLease(lease, self.job, claim.tick), [claim.object])
        for process in self.processes:
            process.ended(claim.object)

    def taken(self):
        """Return the decisions since the last call of this method."""
        ends, self.store.ends = self.store.ends, []
        return ends

    def name(self):
        return f'lease-{next(self._names)}'


class Process:
    """A scheduler with one job of one object."""

    def __init__(self, bench, job):
        self.job = job
        self._bench = bench
        clock, jobs = bench.clock, {job.name: job}
        queue = StoreQueue(bench.store)
        attendance = Attendance(clock, queue, jobs, 1.0)
        attendance.refresh()
        self.claimer = Claimer(
            Book(Authority.STORE, jobs, queue, grants_here=False,
                 sweep_interval=1.0),
            scheduler_wiring(clock),
            owns=lambda job, row: True, piece=100, promise=_LONG,
            attendance=attendance, dispatcher=self)
        self.part = Part(job, clock.now(), without_catalogue(job, 'me'))
        self._listing = SharedListing(
            {job.name: self.part}, clock=clock, identity='me', store=queue,
            timers=TimerQueue(clock, jobs, StoreAuthority.pauses),
            claimer=self.claimer, page=100, walked=lambda *_: None)

    # -- the dispatcher of the claimer

    def offer(self, job, lease, claims, superseded):
        self._bench.lease = lease.id, claims

    def objects(self, job):
        return set()

    def holder(self):
        return 'me'

    def new_lease(self):
        return NewLease(self._bench.name(), 'me', _LONG)

    # -- methods that a test calls

    def read(self, objects, at):
        """Read a catalogue: walk first, and compare readings later.

        :param objects: Own schedule of each object, or None.
        """
        before = self.part.reading
        reading = Reading(Catalogue([*objects]), {
            key: Attributes(text_of(own)) for key, own in objects.items()
            if own is not None})
        self.part.read(reading, at)
        if before is None:
            self._listing.walk_gained(self.part, at, _VIEW.ring)
        else:
            self._listing.record_differences(
                self.part, before, reading, at, _VIEW.ring)

    def join(self, at):
        """Walk the part of a job without a catalogue."""
        self._listing.walk_gained(self.part, at, _VIEW.ring)

    def tick(self, tick, key, own):
        """Start a tick, as its timer does."""
        self.claimer.start_tick(
            self.job, tick, [key], '' if own is None else text_of(own))

    def look(self, key):
        """Judge the row, as a late scan does."""
        store = self._bench.store
        self.claimer.judge(self.job, due.requested(
            store.rows_of(self.job.name, [key]), self._bench.clock.now()))

    def ended(self, key):
        self.claimer.released(self.job, [key])
        self.claimer.judge_released()
