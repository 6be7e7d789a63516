# SPDX-License-Identifier: Apache-2.0
"""Schedulers and workers: the flow as it is, driven as the services do."""

import collections
import dataclasses

from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.flow import grants as grants_
from distperiodic.flow import scheduling
from tests import checker
from tests.simulation import wires
from tests.simulation import world as world_

SECOND = world_.SECOND
_SWEEP = 0.25
_REPORT_EVERY = 0.02


class _Load:
    """A batch in a pool."""

    def __init__(self, batch):
        self.batch = batch
        self.left = len(batch.objects)
        self.done = []
        self.failed = []
        self.refused = []
        self.seconds = 0.0
        self.reported = 0.0


class Pool:
    """A workshop and its threads, without the threads.

    It keeps the promises of :class:`distperiodic.flow.work.Workshop`: a
    batch is taken once, each run is preceded by the question whether it may
    start, results are reported as they come, and signs are given for what
    is still here.

    :param report: takes each report and the entry it is for.
    """

    def __init__(self, process, cluster, slots, *, may_start, report):
        self._process = process
        self._cluster = cluster
        self._may_start = may_start
        self._report = report
        self.free = slots
        self._seen = set()
        self._loads = {}
        self._lanes = {}
        self._turns = collections.deque()

    def accept(self, batch):
        key = batch.sender, batch.id
        if key in self._seen:
            return
        self._seen.add(key)
        load = self._loads[key] = _Load(batch)
        lane = self._lanes.setdefault(batch.job, collections.deque())
        if not lane:
            self._turns.append(batch.job)
        lane.extend((load, index) for index in range(len(batch.objects)))
        self._begin()

    def _begin(self):
        while self.free and self._turns:
            job = self._turns.popleft()
            lane = self._lanes[job]
            load, index = lane.popleft()
            if lane:
                self._turns.append(job)
            reason = self._may_start(load.batch)
            if reason is not None:
                load.refused.append((index, reason))
                self._settle(load)
                continue
            self._start(load, index)

    def _start(self, load, index):
        self.free -= 1
        batch, process = load.batch, self._process
        run = checker.Run(
            batch.job, batch.objects[index], batch.tick, batch.fences[index],
            batch.attempts[index], process.name, process.world.now)
        process.runs.append(run)
        self._cluster.began(run)
        process.world.tell(
            'RUN %s %s tick=%.0f fence=%d attempt=%d on %s', run.job,
            run.object, (run.tick - world_.BEGIN) / SECOND, run.fence,
            run.attempt, process.name)
        seconds, fails = self._cluster.behaviour(run)
        process.later(seconds, self._end, load, index, run, seconds, fails,
                      stream=f'run {id(run)}')

    def _end(self, load, index, run, seconds, fails):
        self.free += 1
        process = self._process
        process.runs.remove(run)
        run.end = process.world.now
        run.outcome = 'failed' if fails else 'done'
        if fails:
            load.failed.append((index, 'Boom: it failed'))
        else:
            load.done.append(index)
            self._cluster.effect(run)
        load.seconds += seconds
        self._settle(load)
        self._begin()

    def _settle(self, load):
        over = len(load.done) + len(load.failed) + len(load.refused)
        now = self._process.clock.monotonic()
        if not over or (
                over < load.left and now - load.reported < _REPORT_EVERY):
            return
        batch = load.batch
        load.left -= over
        load.reported = now
        report = message.Report(
            batch.id, batch.worker, load.done, load.failed,
            refused=load.refused, seconds=load.seconds)
        load.done, load.failed, load.refused = [], [], []
        load.seconds = 0.0
        if not load.left:
            del self._loads[batch.sender, batch.id]
        self._report(report, batch.sender)

    def look(self):
        for load in list(self._loads.values()):
            self._settle(load)

    def give_signs(self):
        for load in list(self._loads.values()):
            self._report(message.Report(load.batch.id, load.batch.worker),
                         load.batch.sender)

    def trusts(self, run):
        """Whether the lease of *run* is believed in here, as it goes on."""
        for load in self._loads.values():
            batch = load.batch
            if (batch.job, batch.tick) == (run.job, run.tick) and any(
                    key == run.object and fence == run.fence
                    for key, fence in zip(batch.objects, batch.fences,
                                          strict=True)):
                return self._may_start(batch) is None
        return False


class Worker(world_.Process):
    """A worker process."""

    group = wires.WORKERS

    def __init__(self, cluster, identity, nonce=None):
        super().__init__(cluster.world, identity, nonce)
        self.cluster = cluster
        self.views = {}
        slots = cluster.setup.slots
        self.member = member_.Member(
            identity, self.nonce, 1, slots=slots)
        self.grants = grants_.Grants(
            cluster.jobs, store=cluster.queue(self), clock=self.clock,
            lease=cluster.setup.lease, run=self._run,
            report=cluster.broker.report, new_lease=self.world.name,
            random_=self.world.random, sure=self._sure,
            shared=True, silent=cluster.setup.session,
            partitions=cluster.partitions)
        self.pool = Pool(
            self, cluster, slots, may_start=self.grants.may_start,
            report=self._tell)
        self._signs = 0.0
        cluster.ensemble.watch(self, self.group)
        cluster.ensemble.join(self, self.group, self.member)
        self._sweep()

    def _sure(self, entry):
        """As the membership tells it: from its own clock alone."""
        return (member_.parse_entry(entry).tenure == self.member.tenure
                and self.world.t < self.sure_until)

    def thawed(self):
        self.cluster.ensemble.heard(self, self.group)

    def _run(self, batch):
        self.pool.accept(batch)

    def _tell(self, report, to_entry):
        self.later(0.0002, self.grants.reported, report, to_entry)

    def look(self, call, *args):
        call(*args)

    def accept(self, batch):
        self.grants.accept(batch)

    def viewed(self, view):
        """Nothing of the worker's depends on who else is there."""

    def _sweep(self):
        self.later(_SWEEP, self._sweep)
        self.pool.look()
        self.grants.sweep()
        now = self.clock.monotonic()
        if now >= self._signs:
            self._signs = now + min(
                self.cluster.setup.lease, self.cluster.setup.session) / 4
            self.pool.give_signs()
            self.grants.renew()


class Scheduler(world_.Process):
    """A scheduler process, with a pool of its own or without."""

    group = wires.SCHEDULERS

    def __init__(self, cluster, identity, nonce=None):
        super().__init__(cluster.world, identity, nonce)
        self.cluster = cluster
        self.views = {}
        setup = cluster.setup
        self.member = member_.Member(
            identity, self.nonce, 1, points=cluster.points[identity])
        self.reader = wires.Reader(
            self, cluster.objects_of, cluster.unread)
        local = setup.local
        self.flow = scheduling.Scheduling(
            cluster.jobs, clock=self.clock,
            membership=wires.Membership(self), group=self.group,
            identity=identity, me=lambda: self.member.entry,
            store=cluster.queue(self), bus=self, reader=self.reader,
            new_lease=self.world.name, batch_size=setup.batch_size,
            lease=setup.lease, shared=True, grants_here=local,
            late_after=setup.late_after, silent=setup.session,
            sure=self._sure, series='s', random_=self.world.random,
            partitions=cluster.partitions)
        self.pool = None
        self._wakes = float('inf')
        self._sweeps = self.clock.monotonic()
        self._signs = self._sweeps
        if local:
            self.pool = Pool(
                self, cluster, setup.slots,
                may_start=self.flow.grants.may_start, report=self._tell)
            self._work_here()
        else:
            cluster.ensemble.watch(self, wires.WORKERS)
        cluster.ensemble.watch(self, self.group)
        cluster.ensemble.join(self, self.group, self.member)
        self._wake()

    def _work_here(self):
        self._tenure = self.member.tenure
        self.flow.dispatcher.workers_changed('default', [
            dataclasses.replace(self.member, points=0, slots=10_000)])

    def _sure(self, entry):
        """As the membership tells it: from its own clock alone."""
        return (member_.parse_entry(entry).tenure == self.member.tenure
                and self.world.t < self.sure_until)

    # -- the way to the workers

    def send(self, batch):
        if self.pool is not None:
            self.pool.accept(batch)
        else:
            self.cluster.broker.send(self, batch)

    def sent(self, batch):
        self.look(self.flow.dispatcher.sent, batch)

    def unsent(self, batch, reason):
        self.look(self.flow.dispatcher.unsent, batch, reason)

    def _tell(self, report, to_entry):
        self.later(0.001, self.look, self.flow.reported, report)

    def reported(self, report):
        self.flow.reported(report)

    def thawed(self):
        self.cluster.ensemble.heard(self, self.group)

    # -- the main thread

    def look(self, call, *args):
        """Something came in."""
        call(*args)
        self.flow.dispatcher.pump_all()
        self._turn()

    def _wake(self):
        if self.world.t < self._wakes:
            return
        self._wakes = float('inf')
        self._turn()

    def _turn(self):
        pause = self.flow.ticker.run_due()
        now = self.clock.monotonic()
        if now >= self._sweeps:
            self._sweeps = now + _SWEEP
            if self.cluster.sweeps:
                self.flow.sweep()
            if self.pool is not None:
                self.pool.look()
                if now >= self._signs:
                    self._signs = now + self.cluster.setup.lease / 3
                    self.pool.give_signs()
        pause = min(pause, self._sweeps - now)
        wakes = self.world.t + max(1, int(pause * SECOND) + 1)
        if wakes < self._wakes:
            self._wakes = wakes
            self.world.at(wakes, self.happen, 'main', self._wake, ())

    def viewed(self, view):
        self.look(self._viewed, view)

    def _viewed(self, view):
        if view.group != self.group:
            self.flow.dispatcher.workers_changed('default', view.members)
            return
        if self.pool is not None and self.member.tenure != self._tenure:
            self._work_here()
        self.flow.dispatcher.schedulers_changed(view.members)
        self.flow.ticker.view_changed()
