# SPDX-License-Identifier: Apache-2.0
"""Leases of runs: from an arriving batch to granted runs and their outcomes.

    accept ─► start in the store ─► run the granted ones ─► outcomes
                    │                                           │
                    └─ lost: claimed by others                  │
                                                                ▼
       report ◄────────── done, dead or retried in the store ◄──┘

This component requests the grants from the store, so it runs in a process that
can access the store. If the worker shares the store with its schedulers, the
component runs in the worker, and passes granted batches to the executor.
Otherwise it runs in the scheduler, and passes granted batches to the bus.
Granted runs are in a lease, which is renewed while the worker sends
heartbeats. If the lease is lost, the results of its runs are rejected.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import random
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from distperiodic import ports
from distperiodic.core import message
from distperiodic.core import telemetry
from distperiodic.core import workflow
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import granted_lease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import holder_of
from distperiodic.core.member import process_of
from distperiodic.core.partition import limits_of
from distperiodic.core.refusal import Refusal
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.standby import Active
from distperiodic.flow import leases
from distperiodic.flow import log_throttle
from distperiodic.flow import run_times
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import PendingProcedures
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import call_steps
from distperiodic.flow.procedure import perform
from distperiodic.flow.procedure import start
from distperiodic.flow.wiring import Wiring
from distperiodic.flow.worker import admission

LOG = logging.getLogger(__name__)

#: Longest pause before a retry, in seconds.
RETRY_CAP = 60.0

#: Earlier than any time of the monotonic clock.
NEVER = float('-inf')

#: A failed run: its index in the granted batch, and the error.
Failed = tuple[int, str]


class Elected(Protocol):
    """Election of the active worker of a partition.

    Several threads call these methods, including threads that run handlers.
    """

    def active(self) -> Active | None:
        """Return the active worker and its fence, for requests that start
        runs.

        None means that this worker must not start any run.
        """

    def trusted(self) -> bool:
        """Return whether this worker is certainly the active worker.

        If so, its runs may continue, even if it must not start more runs.
        """


class LeaseRequest(NamedTuple):
    """A request for a lease, or for its renewal."""

    #: Monotonic time of the request, in seconds.
    at: float
    #: True if this process was certainly in its group at that time. Otherwise
    #: other processes may regard it as gone, and may take over the lease.
    sure: bool


class _Loaded(NamedTuple):
    """Data for the runs of steps of tasks."""

    #: Inputs of the steps, by task.
    steps: dict[str, workflow.StepInput]
    #: Progress of earlier attempts as JSON, by task.
    progress: dict[str, str]


class _Grants(NamedTuple):
    """Answer of the store to a request for grants."""

    #: Claims of the granted runs.
    claims: list[Claim]
    #: Number of runs in progress, by job.
    running: Mapping[str, int] = {}
    #: None means that no step of a task was granted.
    loaded: _Loaded | None = None
    #: False means that this worker is no longer the active worker of its
    #: partition.
    active: bool = True


class _Granted(NamedTuple):
    """The granted runs of a batch."""

    #: For each run, the index of its object in the batch as it arrived.
    indexes: Sequence[int]
    #: For each run of a command, the instant at which its step became ready.
    #: Empty for other jobs, whose ticks are due instants.
    due: Sequence[Instant] = ()


class _Ended(NamedTuple):
    """Runs that a report ends, as indexes in the granted batch."""

    done: list[int]
    failed: list[Failed]
    lost: list[int]
    refused: list[tuple[int, Refusal]]

    @property
    def number(self) -> int:
        """Number of the runs."""
        return (len(self.done) + len(self.failed) + len(self.lost)
                + len(self.refused))


class Grant:
    """A batch that waits for its grant or was granted."""

    __slots__ = ('batch', 'granted', 'holder', 'last_seen', 'lease', 'open',
                 'progress', 'request', 'saving', 'until')

    def __init__(self, batch: message.Batch, now: float,
                 lease: str | None = None):
        #: At first, the batch as it arrived. After the grant, the granted
        #: batch, which contains only the granted runs.
        self.batch = batch
        self.lease = HeldLease(lease or granted_lease(batch.lease, batch.id),
                               batch.job, batch.tick)
        self.holder = holder_of(batch.worker)
        #: The last successful request that created or renewed the lease. The
        #: duration of the lease counts from the time of this request.
        self.request = LeaseRequest(now, False)
        #: Monotonic time in seconds until which runs of the batch may begin.
        #: NEVER means that the lease was lost.
        self.until = now
        #: Monotonic time of the last heartbeat. It is infinite until the
        #: executor has the runs: however long the store takes to answer, runs
        #: that it grants must be started or returned.
        self.last_seen = math.inf
        #: For each granted run: 1 until its outcome was reported, 0
        #: afterwards.
        self.open = bytearray()
        #: The granted runs.
        self.granted = _Granted(())
        #: Progress of runs that has not been saved yet, by object.
        self.progress: dict[str, str] = {}
        #: True while a request to save progress is pending.
        self.saving = False

    @property
    def indexes(self) -> Sequence[int]:
        """For each granted run, the index of its object in the batch as it
        arrived.
        """
        return self.granted.indexes

    @property
    def is_lost(self) -> bool:
        """True if the lease was lost."""
        return self.until == NEVER

    def is_running(self, index: int) -> bool:
        """Return whether the granted run at *index* has no outcome yet.

        :param index: Index in the granted batch.
        """
        return 0 <= index < len(self.open) and self.open[index] == 1

    def take(self, index: int) -> bool:
        """Mark the run at *index* as ended.

        :param index: Index in the granted batch.
        :returns: False if the run already has an outcome, or was not granted.
        """
        if not self.is_running(index):
            return False
        self.open[index] = 0
        return True

    @property
    def over(self) -> bool:
        """True if all granted runs have ended."""
        return 1 not in self.open


class RunOutcomes:
    """Records of the outcomes of granted runs in the store::

        done ─────────────────────────► finish ────────────────┐
        failed, with attempts left ───► fail, into a new lease ├─► counted,
        failed for the last time ─────► fail, dead ────────────┘   or lost

    For commands, one call of ``advance`` records all outcomes of a report.

    A result is reported as done or failed only if the store has accepted it. A
    result that the store has rejected is reported as lost: the lease of the
    run had ended, so another worker may run the object. A failure is also
    rejected if the handler has already ended the run in its own transaction.
    Such a run is reported as done.

    :param store: Records the outcomes.
    :param random_: Source of the jitter of pauses before retries.
    :param throttle: Limits the rate of log lines about one job.
    :param sink: Receives the results that the store has rejected.
    """

    def __init__(self, jobs: Mapping[str, Job], store: ports.CallQueue, *,
                 new_lease: Callable[[], str], random_: random.Random,
                 throttle: log_throttle.LogThrottle,
                 sink: ports.EventSink):
        self._jobs = jobs
        self._store = store
        self._new_lease = new_lease
        self._random = random_
        self._throttle = throttle
        self._sink = sink

    def procedures(self, grant: Grant, done: list[int], failed: list[Failed],
                   report: message.Report, proceed: ports.Proceed | None,
                   times: ports.RunTimes
                   ) -> Sequence[Procedure[ports.Advanced | None]]:
        """Return the procedures that record outcomes, one for each call.

        :param done: Runs that succeeded, as indexes in the granted batch.
        :param failed: Runs that failed.
        :param report: Report to which the procedures add the outcomes that the
            store has accepted.
        :param proceed: Request for the grants of the next steps of the tasks.
            None means that this process runs no next step.
        :param times: Times of these runs.
        :returns: The procedures. The result of a procedure for a command is
            the answer of the store.
        """
        if self._jobs[grant.batch.job].scope is Scope.TASK:
            return [self._advance(
                grant, done, failed, report, proceed, times)]
        procedures = []
        if done:
            procedures.append(self._finish(grant, done, report, times))
            # Count each late start once.
            times = times.without_late()
        if failed:
            procedures += self._fail(grant, failed, report, times)
        return procedures

    def _advance(self, grant: Grant, done: list[int], failed: list[Failed],
                 report: message.Report, proceed: ports.Proceed | None,
                 times: ports.RunTimes) -> Procedure[ports.Advanced]:
        """Record outcomes of commands, and move their tasks to the next steps.
        """
        batch, job = grant.batch, self._jobs[grant.batch.job]
        into = self._new_lease()
        results = {batch.objects[i]: report.results.get(i) for i in done}
        errors = {batch.objects[i]: error for i, error in failed}
        advanced = yield from call_steps(
            self._store, ports.StepStore.advance, ports.EndedSteps(
                grant.lease, results, errors, times),
            into=into, pause=functools.partial(self.pause, job),
            proceed=proceed)
        late = []
        for index, error in [*((i, '') for i in done), *failed]:
            key, place = batch.objects[index], grant.indexes[index]
            if key in advanced.done:
                report.done.append(place)
            elif key in advanced.retried:
                report.retried.append((place, error))
            elif key in advanced.failed:
                report.failed.append((place, error))
            else:
                late.append(place)
        self._report_lost(grant, late, report)
        return advanced

    def _finish(self, grant: Grant, done: list[int], report: message.Report,
                times: ports.RunTimes) -> Procedure[None]:
        """Record successful runs.

        :param done: As in :meth:`procedures`.
        :param report: As in :meth:`procedures`.
        """
        batch = grant.batch
        counted = yield from call(
            self._store, ports.ClaimStore.finish, grant.lease,
            [batch.objects[i] for i in done], times)
        report.done = [grant.indexes[i] for i in done
                       if batch.objects[i] in counted]
        if len(report.done) < len(done):
            self._report_lost(grant, [
                grant.indexes[i] for i in done
                if batch.objects[i] not in counted], report)

    def _report_lost(self, grant: Grant, indexes: list[int],
                     report: message.Report) -> None:
        """Add the results that the store has rejected to *report*, as lost.

        :param indexes: Indexes in the batch as it arrived.
        """
        if indexes:
            report.lost = report.lost + indexes
            if self._sink.open:
                self._sink.put(telemetry.ResultsRejected(
                    grant.batch.job, grant.batch.tick, len(indexes)))
            if self._throttle.allow(grant.batch.job):
                LOG.warning(
                    'results dropped: job=%s batch=%s objects=%d worker=%s '
                    'reason=their lease had ended, so other workers may run '
                    'these objects',
                    grant.batch.job, grant.batch.id, len(indexes),
                    grant.batch.worker)

    def _fail(self, grant: Grant, failed: list[Failed],
              report: message.Report, times: ports.RunTimes
              ) -> list[Procedure[None]]:
        """Return the procedures that record failed runs.

        There is one for each length of the pause before the retry.

        :param failed: As in :meth:`procedures`.
        :param report: As in :meth:`procedures`.
        """
        job = self._jobs[grant.batch.job]
        by_pause: dict[float | None, list[Failed]] = {}
        pauses: dict[int, float] = {}
        for run in failed:
            attempt = grant.batch.attempts[run[0]]
            pause = None
            if job.tries_again(attempt):
                if attempt not in pauses:
                    pauses[attempt] = self.pause(job, attempt)
                pause = pauses[attempt]
            by_pause.setdefault(pause, []).append(run)
        return [self._fail_together(
            grant, pause, runs, report,
            times.without_late() if at else times)
            for at, (pause, runs) in enumerate(by_pause.items())]

    def pause(self, job: Job, attempt: int) -> float:
        """Return the seconds from the failure of *attempt* to the next
        attempt.

        The pause doubles with each attempt, up to a limit, and has equal
        jitter (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).
        """
        pause = min(RETRY_CAP,
                    job.retry_backoff * 2.0 ** min(attempt - 1, 16))
        return pause * (0.5 + self._random.random() / 2)

    def _fail_together(self, grant: Grant, pause: float | None,
                       failed: list[Failed], report: message.Report,
                       times: ports.RunTimes) -> Procedure[None]:
        batch = grant.batch
        failures = [Failure(batch.objects[i], error,
                            report.tracebacks.get(i, ''))
                    for i, error in failed]
        into = None if pause is None else NewLease(
            self._new_lease(), holder_of(batch.sender), pause)

        def fail(store: ports.ClaimStore) -> tuple[set[str], set[str]]:
            counted = store.fail(grant.lease, failures, into, times)
            others = [failure.object for failure in failures
                      if failure.object not in counted]
            # A handler may end its run in its own transaction, and raise an
            # exception afterwards. Such a run has succeeded.
            return counted, store.finish(
                grant.lease, others) if others else set()

        counted, done = yield from perform(self._store, fail)
        pairs = [(grant.indexes[i], error) for i, error in failed
                 if batch.objects[i] in counted]
        if pause is None:
            report.failed = report.failed + pairs
        else:
            report.retried = report.retried + pairs
        report.done = report.done + [
            grant.indexes[i] for i, _ in failed if batch.objects[i] in done]
        self._report_lost(grant, [
            grant.indexes[i] for i, _ in failed
            if batch.objects[i] not in counted | done], report)


# The last part of a lease, as a fraction of its duration, in which the holder
# no longer trusts the lease.
_MARGIN = 0.1

# A batch is forgotten if there was no heartbeat for this number of lease
# durations.
_FORGET_AFTER = 3


def _key(sender: str, batch_id: str) -> tuple[str, str]:
    """Return the key of a batch: the sender's process, and the batch id.

    The key contains the sender's process and not its entry, because the sender
    may have a new entry when the batch is reported. A process uses each batch
    id only once.
    """
    return process_of(sender), batch_id


def _reduced(batch: message.Batch, granted: list[Claim]) -> message.Batch:
    """Return *batch* without the runs that were not granted."""
    fences = [claim.fence for claim in granted]
    if fences == batch.fences:
        return batch
    return dataclasses.replace(
        batch, objects=[claim.object for claim in granted], fences=fences,
        attempts=[claim.attempt for claim in granted])


class RunLeases:
    """Granted batches and their leases.

    :param book: The jobs, and the store of their claims. If all schedulers
        share this store and the worker refuses granted runs, this component
        returns them to the store, so that any scheduler can take them over.
    :param run: Called with each granted batch, which contains only the granted
        runs.
    :param report: Called with each report, and with the membership entry of
        the scheduler that receives the report.
    :param proceeds: True if this process itself runs the next steps of tasks
        at once, provided that their commands are in *book*. If False, a
        scheduler sends the next steps.
    :param notify: Called with tasks that have a ready step which this process
        does not run. No scheduler learns of these steps from a report.
    :param elected: Election of the active worker of the partition. None means
        that all workers of the partition may start runs.
    """

    def __init__(self, book: leases.Book, wiring: Wiring, *,
                 run: Callable[[message.Batch], None],
                 report: Callable[[message.Report, str], None],
                 proceeds: bool = False,
                 notify: Callable[[Sequence[str]], None] = lambda tasks: None,
                 elected: Elected | None = None):
        store, clock, lease = book.store, wiring.clock, wiring.lease
        self._jobs = jobs = book.jobs
        self._elected = elected
        #: True if this process runs the next steps of tasks at once.
        self.proceeds = proceeds
        self._limits = limits_of(jobs, wiring.partitions)
        self._gate: admission.AdmissionGate[Grant] = admission.AdmissionGate(
            self._limits)
        self._counting = self._closed = False
        #: Number of pending requests whose answers may start runs.
        self._beginning = 0
        #: Procedures that record the outcomes of runs, and procedures that
        #: return runs.
        self._results = PendingProcedures()
        self._returns = PendingProcedures()
        self._store = store
        self._clock = clock
        self._lease = lease
        self._run = run
        self._notify = notify
        # Do not send reports on batches that _proceed() has created, because
        # no scheduler waits for such a report.
        self._report = report if not proceeds else (
            lambda report_, to_entry: None if to_entry == report_.worker
            else report(report_, to_entry))
        self._new_lease = wiring.new_lease
        self._sure = wiring.sure
        self._sink = wiring.sink
        self._shared = book.shared
        self._silence_timeout = min(lease, book.silence_timeout or lease)
        self._random = wiring.random
        self._grants: dict[tuple[str, str], Grant] = {}
        self._renewed = clock.monotonic()
        self._keeper = leases.LeaseKeeper(store, lease)
        self._throttle = log_throttle.LogThrottle(clock, 10.0)
        self._times = run_times.RunTimeBook(
            clock.now, clock.monotonic, wiring.late_after, wiring.sink)
        self._outcomes = RunOutcomes(
            jobs, store, new_lease=wiring.new_lease,
            random_=wiring.random, throttle=self._throttle, sink=wiring.sink)

    @property
    def busy(self) -> bool:
        """True while an answer of the store may still start runs."""
        return bool(self._beginning)

    @property
    def settled(self) -> bool:
        """True if no batch is here, and no request is pending that starts,
        ends or returns runs.
        """
        return not (self._grants or self._beginning or self._results
                    or self._returns)

    @property
    def recording(self) -> bool:
        """True if the store has not recorded the outcomes of some runs yet."""
        return bool(self._results)

    def close(self) -> None:
        """Refuse the batches that have not been granted, now and from now on.

        The executor refuses the batches that are granted later, so that their
        claims are returned.
        """
        self._closed = True
        self.proceeds = False
        for grant in self._gate.clear():
            self._forget(grant)
            self._refuse(grant.batch, Refusal.DRAINING)

    def accept(self, batch: message.Batch) -> None:
        """Request a grant for *batch*, and start the granted runs.

        In a shared store, the batch waits before the request while a limit of
        the job is reached.
        """
        if batch.job not in self._jobs:
            # The executor refuses batches of unknown jobs.
            self._run(batch)
            return
        key = _key(batch.sender, batch.id)
        if key in self._grants:
            LOG.info('batch dropped: batch=%s sender=%s reason=it was '
                     'delivered before', batch.id, batch.sender)
            return
        if self._closed:
            self._refuse(batch, Refusal.DRAINING)
            return
        now = self._clock.monotonic()
        grant = self._grants[key] = Grant(batch, now)
        if self._shared and self._gate.full(batch.job) is not None:
            self._gate.enqueue(grant, batch.job, now)
        else:
            self._start(grant, now)

    def _refuse(self, batch: message.Batch, refusal: Refusal) -> None:
        """Report that all runs of *batch* are refused."""
        self._report(message.Report(
            batch.id, batch.worker,
            refused=[(i, refusal) for i in range(len(batch.objects))]),
            batch.sender)

    def _start(self, grant: Grant, now: float) -> None:
        """Request a grant from the store, and then count the runs in progress.

        The runs are counted after the grant is committed. So if two concurrent
        grants together exceed a limit, the count of at least one of them shows
        this. The excess runs of that grant are refused.
        """
        batch = grant.batch
        active = None if self._elected is None else self._elected.active()
        if active is None and self._elected is not None:
            self._forget(grant)
            self._refuse(batch, Refusal.NOT_ACTIVE)
            return
        grant.request = LeaseRequest(now, self._sure(grant.batch.worker))
        self._gate.acquire(batch.job, len(batch.objects))
        start(self._request_grant(grant, active))

    def _request_grant(self, grant: Grant,
                       active: Active | None) -> Procedure[None]:
        batch, number = grant.batch, len(grant.batch.objects)
        jobs, snapshot = self._gate.jobs([batch.job]), self._gate.snapshot()
        granted = _Grants([])
        self._beginning += 1
        with contextlib.suppress(CallFailed):
            granted = yield from perform(self._store, functools.partial(
                self._grant, grant=grant, active=active, jobs=jobs))
        self._beginning -= 1
        if not granted.active:
            self._forget(grant)
            self._ended(batch.job, number)
            self._refuse(batch, Refusal.NOT_ACTIVE)
            return
        excess: tuple[int, Refusal | None] = 0, None
        if not granted.claims:
            self._ended(batch.job, number)
        elif jobs:
            excess = self._gate.record_count(
                batch.job, granted.running, snapshot, self._clock.monotonic())
        yield from self._begin(
            grant, granted.claims, granted.loaded, *excess)

    def _grant(self, store: ports.ClaimStore, *, grant: Grant,
               active: Active | None, jobs: Sequence[str]) -> _Grants:
        """Grant the runs of a batch, in the thread of the store.

        :param jobs: Jobs whose runs are counted.
        """
        batch = grant.batch
        claims = store.start(
            HeldLease(batch.lease, batch.job, batch.tick), batch.objects,
            NewLease(grant.lease.id, grant.holder, self._lease), active)
        if active is not None and not claims:
            assert store.partitions is not None
            if not store.partitions.is_in_force(active):
                return _Grants([], active=False)
        # The start is committed before the count begins.
        return _Grants(claims, store.running(jobs) if jobs and claims else {},
                       self._load(store, grant, claims))

    def _load(self, store: ports.ClaimStore, grant: Grant,
              granted: list[Claim]) -> _Loaded | None:
        """Read the inputs and the progress of the granted steps of tasks.

        :returns: None means that no step of a task was granted.
        """
        job = grant.batch.job
        if self._jobs[job].scope is not Scope.TASK or not granted:
            return None
        assert store.steps is not None
        again = [claim.object for claim in granted if claim.attempt > 1]
        return _Loaded(
            store.steps.load([claim.object for claim in granted]),
            store.load_progress(grant.lease, again) if again else {})

    def _ended(self, job: str, runs: int) -> None:
        """Record that *runs* runs of *job* ended, and start waiting batches.
        """
        self._gate.release(job, runs)
        self._start_next()

    def _start_next(self) -> None:
        while (grant := self._gate.next()) is not None:
            self._start(grant, self._clock.monotonic())

    def sweep(self) -> None:
        """Refuse batches that have waited too long, and start batches that may
        start now.

        Call this several times per second.
        """
        for grant, refusal in self._gate.expired(self._clock.monotonic()):
            self._forget(grant)
            self._refuse(grant.batch, refusal)
        waiting = self._gate.waiting
        if not waiting or self._counting:
            return
        start(self._count(waiting))

    def _count(self, waiting: Sequence[str]) -> Procedure[None]:
        """Count the runs of the jobs of waiting batches, and start batches.

        Runs of other processes may have ended.
        """
        jobs, snapshot = self._gate.jobs(waiting), self._gate.snapshot()
        self._counting = True
        try:
            running = yield from call(
                self._store, ports.ClaimStore.running, jobs)
        finally:
            self._counting = False
        now = self._clock.monotonic()
        for job in waiting:
            self._gate.record_count(job, running, snapshot, now)
        self._start_next()

    def _begin(self, grant: Grant, granted: list[Claim],
               loaded: _Loaded | None, excess: int,
               refusal: Refusal | None) -> Procedure[None]:
        batch, total = grant.batch, len(granted)
        grant.until = grant.request.at + self._lease * (1.0 - _MARGIN)
        grant.open = bytearray(b'\1' * total)
        indexes: Sequence[int] = range(total)
        if total < len(batch.objects):
            places = {key: i for i, key in enumerate(batch.objects)}
            indexes = [places.pop(c.object) for c in granted]
            self._report(message.Report(
                batch.id, batch.worker, lost=list(places.values())),
                batch.sender)
        grant.granted = _Granted(
            indexes, () if loaded is None else
            [claim.waiting for claim in granted])
        batch = grant.batch = _reduced(batch, granted)
        if excess and refusal is not None:
            granted = granted[:max(0, len(granted) - excess)]
            kept = len(granted)
            self._gate.release(batch.job, total - kept)
            self._report(message.Report(batch.id, batch.worker, refused=[
                (i, refusal) for i in grant.indexes[kept:]]), batch.sender)
            self._put_back(
                grant, range(kept, total), 0.5 + self._random.random())
            batch = _reduced(batch, granted)
        if not granted:
            self._forget(grant)
            return
        if loaded is not None:
            self._execute(grant, granted, dataclasses.replace(
                batch, steps=loaded.steps, progress=loaded.progress))
            return
        retries = [c.object for c in granted if c.attempt > 1]
        if retries:
            self._beginning += 1
            with contextlib.suppress(CallFailed):
                batch = dataclasses.replace(batch, progress=(
                    yield from call(
                        self._store, ports.ClaimStore.load_progress,
                        grant.lease, retries)))
            self._beginning -= 1
        self._execute(grant, granted, batch)

    def _request_next(self, ended: message.Batch) -> ports.Proceed | None:
        """Return a request for the grants of the next steps of the tasks.

        The next steps then need no message, and the threads whose runs have
        ended can run them. A step whose command has a limit is left out: only
        a scheduler sends such a step.

        :returns: The request. None means that this process runs no next step.
        """
        # Check the job first: a service may have thousands of periodic jobs.
        if not (self.proceeds and self._jobs[ended.job].scope is Scope.TASK):
            return None
        commands = [name for name, job in self._jobs.items()
                    if job.scope is Scope.TASK and not self._limits[name]]
        if not commands:
            return None
        active = None if self._elected is None else self._elected.active()
        if active is None and self._elected is not None:
            return None
        return ports.Proceed(commands, NewLease(
            self._new_lease(), holder_of(ended.worker), self._lease), active)

    def _proceed(self, ended: message.Batch, request: LeaseRequest,
                 advanced: ports.Advanced) -> None:
        """Run the next steps of tasks that were granted to this process."""
        worker = ended.worker
        for lease, steps in advanced.granted:
            batch = message.Batch(
                lease.id, lease.job, lease.tick,
                [one.object for one in lease.claims],
                [one.fence for one in lease.claims],
                [one.attempt for one in lease.claims], worker, worker,
                lease.id, self._jobs[lease.job].topic, trace=ended.trace)
            grant = Grant(batch, request.at, lease.id)
            grant.request = request
            grant.until = request.at + self._lease * (1.0 - _MARGIN)
            grant.open = bytearray(b'\1' * len(lease.claims))
            grant.granted = _Granted(
                range(len(lease.claims)),
                [claim.waiting for claim in lease.claims])
            self._grants[_key(worker, batch.id)] = grant
            self._gate.acquire(batch.job, len(batch.objects))
            self._execute(grant, lease.claims,
                          dataclasses.replace(batch, steps=steps))

    def _execute(self, grant: Grant, claims: Sequence[Claim],
                 batch: message.Batch) -> None:
        """Pass the granted runs of a batch to the executor.

        :param claims: Claims of these runs.
        """
        grant.last_seen = self._clock.monotonic()
        if self._sink.open:
            now = self._clock.now()
            since = collections.Counter(claim.waiting for claim in claims)
            self._sink.put(telemetry.RunsStarted(
                batch.job, batch.tick, batch.id, len(claims),
                [((now - at) / SECOND, number)
                 for at, number in since.items()]))
        self._run(batch)

    def _notify_of_ready(self, ended: message.Batch,
                         advanced: ports.Advanced) -> None:
        """Notify the schedulers of steps that other processes must run.

        If a scheduler has sent the batch, the report on the batch does this.
        """
        if ended.sender == ended.worker and advanced.ready:
            self._notify([*advanced.ready])

    def _forget(self, grant: Grant) -> None:
        self._grants.pop(_key(grant.batch.sender, grant.batch.id), None)

    def may_start(self, batch: message.Batch) -> Refusal | None:
        """Return None if runs of *batch* may start, or else the refusal.

        The threads that run handlers call this.
        """
        if self._elected is not None and not self._elected.trusted():
            return Refusal.NOT_ACTIVE
        grant = self._grants.get(_key(batch.sender, batch.id))
        now = self._clock.monotonic()
        if grant is None or now >= grant.until:
            return Refusal.LEASE_ENDED
        # Before the lease expires, other processes may take it over, unless
        # this process has renewed it recently or is certainly in its group.
        if (now >= grant.request.at + self._silence_timeout * (1.0 - _MARGIN)
                and not (grant.request.sure and self._sure(batch.worker))):
            return Refusal.LEASE_ENDED
        return None

    def runs_until(self, batch: message.Batch) -> float:
        """Return the monotonic time until which runs of *batch* may continue.

        No other process takes over the lease before this time, even if this
        process fails now. A take-over requires that the lease has expired, or
        that its holder has left the group and has not renewed the lease for
        *silence_timeout*. The threads that watch handler processes call this
        method.

        :returns: Seconds.
        """
        grant = self._grants.get(_key(batch.sender, batch.id))
        if grant is None:
            return NEVER
        request, until = grant.request, grant.until
        unheard = request.at + self._silence_timeout * (1.0 - _MARGIN)
        if request.sure and self._sure(batch.worker):
            # A view is trusted for two thirds of the session timeout. So this
            # process stays in its group for at least another third.
            unheard = max(unheard, self._clock.monotonic()
                          + self._silence_timeout / 3 * (1.0 - _MARGIN))
        return min(until, unheard)

    def has(self, batch: str, sender: str) -> bool:
        """Return whether a batch of *sender* was accepted and has not ended.
        """
        return _key(sender, batch) in self._grants

    def lease_of(self, batch: message.Batch) -> str | None:
        """Return the name of the lease in which *batch* runs.

        None means that the batch does not run, or that its lease was lost.
        """
        grant = self._grants.get(_key(batch.sender, batch.id))
        return None if grant is None or grant.is_lost else grant.lease.id

    def reported(self, report: message.Report, to_entry: str) -> None:
        """Record the outcomes of granted runs, and then send a report.

        :param report: The outcomes. Its indexes refer to the granted batch.
        :param to_entry: Entry of the scheduler that receives the report.
        """
        grant = self._grants.get(_key(to_entry, report.batch))
        if grant is None or grant.batch.worker != report.worker:
            # No grant matches the report, so all of its results are rejected.
            self._report(dataclasses.replace(
                report, done=[], failed=[], lost=[
                    *report.done, *(i for i, _ in report.failed)]), to_entry)
            return
        grant.last_seen = self._clock.monotonic()
        self._note_progress(grant, report)
        ended = self._end(grant, report)
        if grant.over:
            # The store calls still refer to the grant.
            self._forget(grant)
        # The result contains indexes in the batch as it arrived.
        result = dataclasses.replace(
            report, done=[], failed=[],
            lost=[grant.indexes[i] for i in ended.lost],
            refused=[(grant.indexes[i], refusal)
                     for i, refusal in ended.refused])
        if ended.done or ended.failed:
            self._record_outcomes(grant, ended, result, to_entry)
        else:
            self._report(result, to_entry)
        # Start waiting batches only now. The store then records the results
        # before it grants these batches.
        self._ended(grant.batch.job, ended.number)

    def _note_progress(self, grant: Grant, report: message.Report) -> None:
        for index, text in report.progress:
            if grant.is_running(index):
                grant.progress[grant.batch.objects[index]] = text
        if report.progress and (report.failed or not grant.saving):
            # Save the progress of a failed run before its failure is recorded.
            start(self._save(grant))

    def _end(self, grant: Grant, report: message.Report) -> _Ended:
        """End the runs of *report*, and return those that had not ended."""
        refused = set(self._put_back(
            grant, [i for i, _ in report.refused])) if report.refused else ()
        ended = _Ended(
            [i for i in report.done if grant.take(i)],
            [(i, error) for i, error in report.failed if grant.take(i)],
            [i for i in report.lost if grant.take(i)],
            [(i, refusal) for i, refusal in report.refused if i in refused])
        if ended.lost:
            # Do not renew the lease of lost runs. A scheduler takes over the
            # lease when it has expired in the store.
            grant.until = NEVER
        return ended

    def _record_outcomes(self, grant: Grant, ended: _Ended,
                         result: message.Report, to_entry: str) -> None:
        batch = grant.batch
        proceed = self._request_next(batch)
        request = LeaseRequest(grant.last_seen, self._sure(result.worker))
        *records, last = self._outcomes.procedures(
            grant, ended.done, ended.failed, result, proceed,
            self._times.note(self._jobs[batch.job], batch.tick, batch.objects,
                             result.timings, grant.granted.due,
                             batch.attempts))
        for record in records:
            start(self._results.counted(record))
        start(self._results.counted(self._record(
            grant, last, proceed, request, result, to_entry)))

    def _record(self, grant: Grant,
                record: Procedure[ports.Advanced | None],
                proceed: ports.Proceed | None, request: LeaseRequest,
                report: message.Report, to_entry: str) -> Procedure[None]:
        """Record the last outcomes of a report, and then send the report.

        Results that cannot be recorded are not reported.
        """
        self._beginning += proceed is not None
        try:
            advanced = yield from record
        finally:
            self._beginning -= proceed is not None
        if advanced is not None:
            if proceed is not None:
                self._proceed(grant.batch, request, advanced)
            self._notify_of_ready(grant.batch, advanced)
        if self._sink.open:
            self._put_outcomes(grant.batch, report)
        self._report(report, to_entry)

    def _put_outcomes(self, batch: message.Batch,
                      report: message.Report) -> None:
        """Report the recorded outcomes of *report* to the subscribers."""
        for outcome, objects in (
                (telemetry.RunOutcome.DONE, len(report.done)),
                (telemetry.RunOutcome.DEAD, len(report.failed))):
            if objects:
                self._sink.put(telemetry.RunsEnded(
                    batch.job, batch.tick, outcome, objects))
        if report.retried:
            self._sink.put(telemetry.RunsRetried(
                batch.job, batch.tick, len(report.retried)))

    def _put_back(self, grant: Grant, indexes: Sequence[int],
                  seconds: float = 0.0) -> list[int]:
        """End granted runs that were not started.

        In a shared store, also return their claims, so that any scheduler can
        take them over.

        :param indexes: Indexes in the granted batch.
        :param seconds: Seconds until the claims can be taken over.
        :returns: Those of *indexes* that had no outcome before.
        """
        returned = [i for i in indexes if grant.take(i)]
        if returned and self._shared:
            start(self._returns.counted(call(
                self._store, ports.ClaimStore.reclaim, [grant.lease],
                [grant.batch.objects[i] for i in returned],
                NewLease(self._new_lease(), '', seconds),
                count_attempt=False)))
        return returned

    def _save(self, grant: Grant) -> Procedure[None]:
        """Save the progress that has not been saved yet.

        While a request is pending, only a report with a failure sends another
        one. So few requests wait for a store that is unreachable for long.
        """
        grant.saving = True
        while grant.progress:
            progress, grant.progress = grant.progress, {}
            with contextlib.suppress(CallFailed):
                yield from call(
                    self._store, ports.ClaimStore.save_progress,
                    grant.lease, progress)
        grant.saving = False

    def renew(self) -> None:
        """Renew the leases of batches with recent heartbeats.

        Call this at least three times per lease. A long delay between two
        calls does not count as silence of the workers, because unread
        heartbeats may wait in the inbox of this process.
        """
        now = self._clock.monotonic()
        gap, self._renewed = now - self._renewed, now
        by_holder: dict[str, list[Grant]] = {}
        for grant in self._grants.values():
            if gap > self._lease / 2:
                grant.last_seen = max(
                    grant.last_seen, min(now, grant.last_seen + gap))
            if (not (grant.over or grant.is_lost)
                    and now - grant.last_seen <= self._lease):
                by_holder.setdefault(grant.holder, []).append(grant)
        for grant in [g for g in self._grants.values()
                      if now - g.last_seen > _FORGET_AFTER * self._lease]:
            self._forget(grant)
        for holder, grants in by_holder.items():
            start(self._renew(holder, grants, now))

    def _renew(self, holder: str, grants: list[Grant],
               now: float) -> Procedure[None]:
        requests = {worker: LeaseRequest(now, self._sure(worker))
                    for worker in {grant.batch.worker for grant in grants}}

        held = yield from self._keeper.renew(
            holder, [grant.lease.id for grant in grants])
        if held is None:
            return
        for grant in grants:
            if grant.is_lost:
                continue
            if grant.lease.id in held:
                grant.request = requests[grant.batch.worker]
                grant.until = now + self._lease * (1.0 - _MARGIN)
            else:
                # Another process has taken over the lease. The results of its
                # runs will be rejected.
                grant.until = NEVER
                if self._sink.open:
                    self._sink.put(telemetry.LeaseLost(
                        grant.batch.job, grant.batch.tick, sum(grant.open)))
