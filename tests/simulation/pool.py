# SPDX-License-Identifier: Apache-2.0
"""The pool of a simulated process: handlers that run for a while."""

import collections

from distperiodic.core import message
from distperiodic.core.refusal import Refusal
from tests import checker
from tests.oracle.facts import SECOND

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

    It keeps the promises of :class:`distperiodic.flow.worker.runs.Executor`: a
    batch is taken once, each run is preceded by the question whether it may
    start, results are reported as they come, and signs are given for what
    is still here.

    :param report: takes each report and the entry it is for.
    :param lease_of: the lease in which a batch runs.
    """

    def __init__(self, process, cluster, slots, *, may_start, report,
                 lease_of):
        self._process = process
        self._cluster = cluster
        self._may_start = may_start
        self._report = report
        self._lease_of = lease_of
        self.free = slots
        self._seen = set()
        self._loads = {}
        self._lanes = {}
        self._turns = collections.deque()
        self._draining = False

    @property
    def busy(self):
        """Whether a batch is here that is not over."""
        return bool(self._loads)

    def drain(self):
        """Hand back what waits, and take nothing more."""
        self._draining = True
        self._turns.clear()
        for lane in self._lanes.values():
            while lane:
                load, index = lane.popleft()
                load.refused.append((index, Refusal.DRAINING))
        self.look()

    def accept(self, batch):
        key = batch.sender, batch.id
        if key in self._seen:
            return
        if self._draining:
            self._report(message.Report(
                batch.id, batch.worker, refused=[
                    (index, Refusal.DRAINING)
                    for index in range(len(batch.objects))]), batch.sender)
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
            run.object, (run.tick - process.world.begin) / SECOND, run.fence,
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
        stores = self._cluster.stores
        if not fails and stores.sessions and process.world.chance(
                stores.sessions):
            lease = self._lease_of(load.batch)
            if lease is not None and self._cluster.reaches_store(process):
                fails = not stores.finish(run, lease)
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

    def send_heartbeats(self):
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
