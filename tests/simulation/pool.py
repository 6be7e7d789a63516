# SPDX-License-Identifier: Apache-2.0
"""The pool of a simulated process, whose handlers take virtual time.

The handlers of :mod:`distperiodic.testing` and of the unit tests return at
once. Here a run begins at one event and ends at another. Between these events
its process can be killed, frozen or replaced.
"""

from distperiodic.flow.worker import runs
from tests import checker
from tests.oracle.facts import SECOND
from tests.threadless_pool import ThreadlessPool


class Pool(runs.Executor):
    """The executor of the product, whose runs take virtual time.

    :param jobs: jobs by name.
    :param report: called with each report, and with the entry of the member
        that receives the report.
    :param lease_of: returns the lease in which a batch runs.
    """

    def __init__(self, process, cluster, jobs, slots, *, may_start, report,
                 lease_of):
        super().__init__(
            {name: runs.Handled(job, None) for name, job in jobs.items()},
            clock=process.clock, pool=ThreadlessPool(),
            callbacks=runs.RunCallbacks(report, may_start),
            slots=lambda: slots)
        self._process = process
        self._cluster = cluster
        self._lease_of = lease_of
        self._free = slots
        #: Batch of each current run, by the id of the run.
        self._batches = {}

    def accept(self, batch):
        super().accept(batch)
        self._begin()

    def _begin(self):
        while self._free and (taken := self._pool.take()) is not None:
            source, chunk = taken
            source.run(chunk)

    def run(self, batch_run, chunk):
        """Begin the run of *chunk*, and schedule its end."""
        # A chunk has only one object, because the runs here take too long to
        # share a thread.
        [index] = runs.drain(chunk)
        batch, process = batch_run.batch, self._process
        refusal = self._may_start(batch)
        if refusal is not None:
            batch_run.outcomes.append(runs.Refused(index, refusal))
            self._settle(batch_run, 0, 0.0, self._clock.monotonic())
            return
        self._free -= 1
        if batch.steps is None:
            teller = self._cluster
            run = checker.Run(
                batch.job, batch.objects[index], batch.tick,
                batch.fences[index], batch.attempts[index], process.name,
                process.world.now)
        else:
            teller = self._cluster.tasks
            run = teller.run_of(batch, index, process)
        process.runs.append(run)
        self._batches[id(run)] = batch
        teller.began(run)
        process.world.tell(
            'RUN %s %s tick=%.0f fence=%d attempt=%d on %s', run.job,
            run.object, (run.tick - process.world.begin) / SECOND, run.fence,
            run.attempt, process.name)
        seconds, fails = teller.behaviour(run)
        process.later(seconds, self._end, batch_run, index, run, seconds,
                      fails, stream=f'run {id(run)}')

    def _end(self, batch_run, index, run, seconds, fails):
        self._free += 1
        process = self._process
        process.runs.remove(run)
        batch = self._batches.pop(id(run))
        stores = self._cluster.stores
        result = None if batch.steps is None else run.result
        unknown = False
        if not fails and stores.sessions and process.world.chance(
                stores.sessions):
            lease = self._lease_of(batch)
            if lease is not None and self._cluster.reaches_store(process):
                committed = stores.finish(run, lease, result)
                unknown = committed is None
                fails = not committed
        run.end = process.world.now
        run.outcome = 'failed' if fails else 'done'
        if batch.steps is not None and unknown:
            run.outcome = 'unknown'
        if batch.steps is None and not fails:
            self._cluster.effect(run)
        batch_run.outcomes.append(
            runs.FailedRun(index, 'Boom: it failed') if fails
            else index if result is None else runs.Done(index, result))
        self._settle(batch_run, 1, seconds, self._clock.monotonic())
        self._begin()

    def trusts(self, run):
        """Return whether this process still trusts the lease of *run*."""
        return self._may_start(self._batches[id(run)]) is None
