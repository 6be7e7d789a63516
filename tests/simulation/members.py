# SPDX-License-Identifier: Apache-2.0
"""Simulated schedulers and workers. They drive the product's flow as the
services do.

The members of :mod:`distperiodic.testing` and of :mod:`tests.unit.world` do
all due work when the clock moves. Here each step is an event. A killed process
does not process its later events, and a frozen process delays them.
"""

import collections
import dataclasses

from distperiodic.core.claim import Authority
from distperiodic.core.member import Member
from distperiodic.core.member import parse_entry
from distperiodic.flow import events
from distperiodic.flow import leases
from distperiodic.flow.run_leases import RunLeases
from distperiodic.flow.scheduler import pipeline
from distperiodic.flow.wiring import SchedulerWiring
from distperiodic.flow.wiring import Wiring
from tests.oracle.facts import FOREVER
from tests.oracle.facts import Scheduler as SchedulerFacts
from tests.oracle.facts import Span
from tests.simulation import ensemble
from tests.simulation import reading
from tests.simulation.pool import Pool
from tests.simulation.world import SECOND
from tests.simulation.world import Process
from tests.views import Views


class _Member(Process):
    """A process that is a member of its group, and has views of groups."""

    def __init__(self, cluster, identity, nonce):
        super().__init__(cluster.world, identity, nonce)
        self.cluster = cluster
        self.views = Views()

    def _sure(self, entry):
        """Return whether the process is certain that *entry* is its own
        current entry.

        Like the product, decide this by the time alone, without a request to
        the coordination service.
        """
        return (parse_entry(entry).tenure == self.member.tenure
                and self.world.t < self.sure_until)

    def thawed(self):
        self.cluster.ensemble.heard(self, self.group)


class Worker(_Member):
    """A worker process."""

    group = ensemble.WORKERS

    def __init__(self, cluster, identity, nonce=None):
        super().__init__(cluster, identity, nonce)
        slots = cluster.slots[identity]
        self.member = Member(
            identity, self.nonce, 1, slots=slots)
        self.store = cluster.queue(self)
        elected = self._elect()
        self.jobs = cluster.jobs_of(identity)
        jobs = cluster.with_commands(self.jobs)
        self.grants = RunLeases(
            leases.Book(Authority.STORE, jobs, self.store, grants_here=True,
                        silence_timeout=cluster.setup.session),
            Wiring(clock=self.clock, new_lease=self.world.name,
                   lease=cluster.setup.lease, sure=self._sure,
                   random=self.world.random, partitions=cluster.partitions),
            run=self._run, report=self._report,
            proceeds=bool(cluster.commands), elected=elected)
        self.pool = Pool(
            self, cluster, jobs, slots,
            may_start=self.grants.may_start, report=self._tell,
            lease_of=self.grants.lease_of)
        self._signs = 0.0
        cluster.ensemble.watch(self, self.group)
        cluster.ensemble.join(self, self.group, self.member)
        self._sweep()

    def _elect(self):
        """Return the object that takes part in the election of an active
        worker. None means that there is no election.
        """

    def _run(self, batch):
        self.pool.accept(batch)

    def _tell(self, report, to_entry):
        self.later(0.0002, self.grants.reported, report, to_entry)

    def _report(self, report, to_entry):
        self.pool.address(report, to_entry)
        self.cluster.broker.report(report, to_entry)

    def look(self, call, *args):
        call(*args)

    def accept(self, batch):
        self.grants.accept(batch)

    def viewed(self, view):
        """Ignore the view: a worker does not depend on the other members."""

    def _sweep(self):
        if (self.leaving and not self.runs and not self.pool.busy
                and self.grants.settled):
            self.cluster.ensemble.leave(self, self.group)
            self.cluster.stopped(self)
            self.end()
            return
        self.later(self.cluster.setup.sweep, self._sweep)
        self.pool.watch()
        self.pool.send_changes()
        self.grants.sweep()
        now = self.clock.monotonic()
        if now >= self._signs:
            self._signs = now + min(
                self.cluster.setup.lease, self.cluster.setup.session) / 4
            self.pool.send_heartbeats()
            self.grants.renew()

    def stop(self):
        """Accept no more work. Leave the group when the runs have ended."""
        self.leaving = True
        self.member = dataclasses.replace(self.member, slots=0)
        self.cluster.ensemble.publish(self, self.group)
        self.grants.close()
        self.pool.drain()


class Scheduler(_Member):
    """A scheduler process, with or without its own pool."""

    group = ensemble.SCHEDULERS

    def __init__(self, cluster, identity, nonce=None):
        super().__init__(cluster, identity, nonce)
        setup = cluster.setup
        self.jobs = cluster.jobs_of(identity)
        self.member = Member(
            identity, self.nonce, 1, points=cluster.points[identity],
            jobs=cluster.ensemble.publish_jobs(self.jobs))
        self.store = cluster.queue(self)
        self.reader = reading.Reader(
            self, cluster.catalogues, cluster.catalogue_fails)
        local = setup.local
        self._events = collections.deque()
        jobs = cluster.with_commands(self.jobs)
        book = leases.Book(
            Authority.STORE, jobs, self.store, grants_here=local,
            silence_timeout=setup.session, sweep_interval=setup.sweep)
        self.flow = pipeline.Pipeline(
            [book], SchedulerWiring(
                clock=self.clock, membership=self.views, group=self.group,
                identity=identity, me=lambda: self.member.entry,
                bus=self, reader=self.reader,
                put=self._events.append, new_lease=self.world.name,
                batch_size=setup.batch_size,
                lease=setup.lease, late_after=setup.late_after,
                sure=self._sure, random=self.world.random,
                partitions=cluster.partitions))
        self.pool = None
        self._wakes = float('inf')
        self._sweeps = self.clock.monotonic()
        self._signs = self._sweeps
        if local:
            grants = self.flow.grants_of(Authority.STORE)
            self.pool = Pool(
                self, cluster, jobs, cluster.slots[identity],
                may_start=grants.may_start, report=self._tell,
                lease_of=grants.lease_of)
            self._work_here()
        else:
            cluster.ensemble.watch(self, ensemble.WORKERS)
        cluster.ensemble.watch(self, self.group)
        cluster.ensemble.join(self, self.group, self.member)
        self._wake()

    def _work_here(self):
        self._tenure = self.member.tenure
        self.flow.workers_changed('default', [
            dataclasses.replace(
                self.member, points=0,
                slots=self.cluster.slots[self.member.identity])],
            own=True)

    # -- messages to the workers

    def send(self, batch):
        if self.pool is not None:
            self.pool.accept(batch)
        else:
            self.cluster.broker.send(self, batch)

    def sent(self, batch):
        self.look(self.flow.handle, events.Sent(batch))

    def unsent(self, batch, reason):
        self.look(self.flow.handle, events.Unsent(batch, reason))

    def _tell(self, report, to_entry):
        self.later(0.001, self.look, self.flow.reported, report)

    def reported(self, report):
        self.flow.reported(report)

    def noticed(self, task):
        """Check a task that may have a step to run, if this process owns the
        task or has no ring.
        """
        view = self.views.get(self.group)
        if view is None or not view.ring or (
                view.ring.owner_of(task) == self.identity):
            self._events.append(events.Submitted([task]))

    # -- the main thread

    def look(self, call, *args):
        """Process an incoming event."""
        call(*args)
        self._handle()
        self._turn()

    def _wake(self):
        if self.world.t < self._wakes:
            return
        self._wakes = float('inf')
        self._turn()

    def _handle(self):
        while self._events:
            self.flow.handle(self._events.popleft())
        self.flow.pump()

    def _turn(self):
        """Do the work that is due, and schedule the next wake-up."""
        now = self.clock.monotonic()
        pause = self.flow.run_due()
        if now >= self._sweeps:
            self._sweep(now)
        while self._events:
            self._handle()
            pause = self.flow.run_due()
        pause = min(pause, self._sweeps - now)
        wakes = self.world.t + max(1, int(pause * SECOND) + 1)
        if wakes < self._wakes:
            self._wakes = wakes
            self.world.at(wakes, self.happen, 'main', self._wake, ())

    def _sweep(self, now):
        self._sweeps = now + self.cluster.setup.sweep
        if self.cluster.sweeps:
            self.flow.sweep()
        if self.pool is not None:
            self.pool.watch()
            if now >= self._signs:
                self._signs = now + self.cluster.setup.lease / 3
                self.pool.send_heartbeats()

    def viewed(self, view):
        self.look(self._viewed, view)

    def stop(self):
        """Leave the ring, finish the claimed work, and end."""
        self.leaving = True
        self.left = self.world.now
        self.member = dataclasses.replace(self.member, points=0)
        self.cluster.ensemble.publish(self, self.group)
        self.look(self._return_unstarted)
        self._drain(40)

    def _return_unstarted(self):
        self.flow.drain()
        if self.pool is not None:
            self.pool.drain(Authority.STORE)

    def _drain(self, looks):
        """End when no work is left, or after *looks* checks."""
        if looks and not self.flow.settled:
            self.later(0.5, self._drain, looks - 1)
            return
        self.cluster.ensemble.leave(self, self.group)
        if self.flow.settled:
            self.cluster.stopped(self)
        self.flow.dispatcher.close()
        self.end()

    def facts(self):
        """Return the oracle's record of this process."""
        unable = [*self.unable]
        if self.store.unanswered is not None:
            unable.append(Span(
                self.store.unanswered, FOREVER, 'no answer'))
        if self._out is not None:
            unable.append(Span(
                self._out, FOREVER, 'not a member'))
        unaware = [*self.cuts]
        if self.cut is not None:
            unaware.append(Span(self.cut, FOREVER, 'cut'))
        # The bound of the owner contains the usual delay of a view. But a view
        # also waits while the process is frozen, and then while it is cut off.
        usual = (0 if 'view lag' in self.cluster.setup.noise
                 else self.cluster.ensemble.longest)
        return SchedulerFacts(
            self.name, self.identity, self.jobs, self.entered, self.left,
            unable, self.reader.unread, unaware,
            [(at, seen - usual) for at, seen in self.seen])

    def _viewed(self, view):
        if view.group != self.group:
            self.flow.workers_changed('default', view.members)
            return
        if self.pool is not None and self.member.tenure != self._tenure:
            self._work_here()
        self.flow.dispatcher.schedulers_changed(view.members)
        self.flow.view_changed()
