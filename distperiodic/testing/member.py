# SPDX-License-Identifier: Apache-2.0
"""One member of a cluster in memory: the flow of a scheduler and its pool."""

import collections
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from distperiodic import exceptions
from distperiodic import periodic
from distperiodic import ports
from distperiodic.adapters.local.bus import LocalBus
from distperiodic.adapters.local.inline_queue import InlineStoreQueue
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.adapters.local.reader import CatalogueMethods
from distperiodic.core import catalogue
from distperiodic.core import message
from distperiodic.core.claim import Authority
from distperiodic.core.context import Context
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import Member
from distperiodic.core.member import View
from distperiodic.core.member import parse_entry
from distperiodic.core.refusal import Refusal
from distperiodic.core.ring import Arc
from distperiodic.flow import events
from distperiodic.flow.leases import Book
from distperiodic.flow.scheduler.pipeline import Pipeline
from distperiodic.flow.wiring import SchedulerWiring
from distperiodic.flow.worker.runs import Executor
from distperiodic.flow.worker.runs import Handled
from distperiodic.flow.worker.runs import JobQueue
from distperiodic.flow.worker.runs import RunCallbacks
from distperiodic.testing.clock import FrozenClock
from distperiodic.testing.record import Record
from distperiodic.testing.record import Run

#: Topic of jobs with scope ``'member'``, which each member runs for itself.
_HERE = '-'
_POINTS = 40
# Number of runs that a member accepts at a time.
_SLOTS = 10_000
#: Seconds between two sweeps, and between two checks of timeouts.
SWEEP = 0.25


@dataclasses.dataclass(frozen=True)
class ClusterSettings:
    """The options of a cluster; see :class:`distperiodic.testing.Cluster`."""

    session_timeout: float
    late_claim_after: float
    lease: float
    run_time: float


class _Pool:
    """Pool that runs work in the thread of the test.

    :param run_time: Seconds from the submission of work to its run.
    """

    def __init__(self, clock: FrozenClock, run_time: float):
        self._clock = clock
        self._run_time = run_time
        self._sources: collections.deque[tuple[float, JobQueue]] = (
            collections.deque())

    def submit(self, priority: int, source: JobQueue) -> None:
        self._sources.append(
            (self._clock.monotonic() + self._run_time, source))

    def write_off(self, ident: int) -> int:
        return 0

    def recheck(self) -> None:
        """Do nothing, because this pool has no threads."""

    def next(self) -> float | None:
        """Return the time of the next run, in monotonic seconds.

        None means that no run waits.
        """
        return self._sources[0][0] if self._sources else None

    def run_due(self) -> bool:
        """Run all work that is due.

        :returns: True if any work was due.
        """
        ran = False
        while (self._sources
               and self._sources[0][0] <= self._clock.monotonic()):
            self._run_oldest(self._sources.popleft()[1])
            ran = True
        return ran

    @staticmethod
    def _run_oldest(source: JobQueue) -> None:
        """Run the oldest batch of a job. Younger batches are not due yet."""
        oldest = source.batch_runs[0] if source.batch_runs else None
        while (oldest is not None and oldest.queue
               and (chunk := source.take()[0]) is not None):
            source.run(chunk)
            if not source.batch_runs or source.batch_runs[0] is not oldest:
                return


class _Reader:
    """Reader that calls catalogue methods in the thread of the test."""

    def __init__(self, tasks: periodic.PeriodicTasks,
                 put: Callable[[events.Event], None]):
        self._methods = CatalogueMethods(tasks.catalogue, sort=False)
        self._put = put

    def read(self, job: Job, tick: int, ticket: int,
             arcs: Sequence[Arc]) -> None:
        found: catalogue.Reading | Exception
        try:
            found = self._methods.read(job, tick, arcs)
        except Exception as error:
            found = error
        self._put(events.CatalogueRead(job.name, ticket, found))


class ClusterMember:
    """One member of a cluster.

    A member acts only when the cluster calls its methods.

    :param name: Name of the member on the ring.
    :param store: The store that all members share.
    :param nonce: Number of the member's process, from 1.
    """

    def __init__(self, name: str, tasks: periodic.PeriodicTasks, *,
                 clock: FrozenClock, store: ports.ClaimStore, record: Record,
                 settings: ClusterSettings, nonce: int):
        self.name = name
        self.tasks = tasks
        #: False while the process is frozen.
        self.awake = True
        #: Entry of this member in the group.
        self.entry = Member(name, f'{nonce:016x}', 1, _POINTS)
        self._clock = clock
        self._record = record
        self._settings = settings
        self._view: View | None = None
        self._inbox: collections.deque[events.Event] = collections.deque()
        self._results: collections.deque[message.Report] = (
            collections.deque())
        self._jobs = {
            job.name: dataclasses.replace(job, topic=_HERE)
            if job.scope is Scope.MEMBER else job
            for job in tasks.jobs.values()}
        self._pool = _Pool(clock, settings.run_time)
        self._executor = Executor(
            {name: Handled(job, functools.partial(self._run, job.name))
             for name, job in self._jobs.items()},
            clock=clock, pool=self._pool,
            callbacks=RunCallbacks(
                report=lambda report, _: self._results.append(report),
                may_start=self._may_start),
            finish=self._finish)
        leases = itertools.count(1)
        members = {n: j for n, j in self._jobs.items()
                   if j.scope is Scope.MEMBER}
        shared = {n: j for n, j in self._jobs.items() if n not in members}
        self._flow = Pipeline(
            [book for book in (
                Book(Authority.STORE, shared, InlineStoreQueue(store),
                     grants_here=True, sweep_interval=SWEEP,
                     silence_timeout=settings.session_timeout),
                Book(Authority.RING, members,
                     InlineStoreQueue(MemoryClaimStore(clock)),
                     grants_here=True)) if book.jobs],
            SchedulerWiring(
                clock=clock, membership=self, group='cluster', identity=name,
                me=lambda: self.entry.entry,
                bus=LocalBus(self._executor.accept, self._jobs),
                reader=_Reader(tasks, self._inbox.append),
                put=self._inbox.append,
                new_lease=lambda: f'{name}-{nonce}-{next(leases)}',
                lease=settings.lease, late_after=settings.late_claim_after,
                sure=self._sure, random=random.Random(nonce)))
        self._work_here()
        now = clock.monotonic()
        self._next_sweep = self._next_signs = now

    # -- the membership of the flow

    def view(self, group: str) -> View:
        if self._view is None:
            raise exceptions.ViewUnknown('the member has not joined yet')
        return self._view

    def show(self, view: View) -> None:
        """Set the member's view of its group."""
        again = self._view is not None and view.me != self._view.me
        self._view = view
        if view.me is not None:
            self.entry = view.me
        self._flow.dispatcher.schedulers_changed(view.members)
        if again:
            self._work_here()
        self._flow.view_changed()

    def distrust(self, until: float) -> None:
        """Make the member trust its view only until *until*.

        :param until: Monotonic seconds.
        """
        if self._view is not None:
            self._view = dataclasses.replace(self._view, trusted_until=until)

    def _sure(self, entry: str) -> bool:
        then = parse_entry(entry)
        view = self._view
        return (view is not None and view.me is not None and then is not None
                and view.me.tenure == then.tenure
                and view.trusted(self._clock.monotonic()))

    def _work_here(self) -> None:
        for topic in {job.topic for job in self._jobs.values()}:
            self._flow.workers_changed(topic, [
                dataclasses.replace(self.entry, points=0, slots=_SLOTS)],
                own=True)

    # -- one turn

    def turn(self) -> bool:
        """Do all work that is due.

        :returns: True if the member handled events or ran objects.
        """
        if not self.awake:
            return False
        busy = False
        self._flow.run_due()
        now = self._clock.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP
            self._flow.sweep()
            self._executor.watch()
            if now >= self._next_signs:
                self._next_signs = now + self._settings.lease / 3
                self._executor.send_heartbeats()
        while self._inbox or self._results or self._pool.run_due():
            busy = True
            while self._inbox:
                self._flow.handle(self._inbox.popleft())
            while self._results:
                self._flow.reported(self._results.popleft())
            self._flow.run_due()
            self._flow.pump()
        return busy

    def next(self) -> float:
        """Return the monotonic seconds of the member's next action."""
        now = self._clock.monotonic()
        due = [self._next_sweep, now + self._flow.run_due()]
        run = self._pool.next()
        if run is not None:
            due.append(run)
        return max(now, min(due))

    def drain(self) -> None:
        """Start no more runs, and refuse the runs that have not started."""
        self._flow.drain()
        self._executor.drain()
        self.turn()

    @property
    def idle(self) -> bool:
        """True if no run is in progress."""
        return not self._executor.busy

    # -- a run

    def _may_start(self, batch: message.Batch) -> Refusal | None:
        grants = self._flow.grants_of(batch.authority)
        return None if grants is None else grants.may_start(batch)

    def _finish(self, batch: message.Batch, key: str, session: Any,
                result: str | None) -> None:
        if self._may_start(batch) is not None:
            raise exceptions.RunReplaced(
                f'job {batch.job!r} object {key!r}: another process has '
                'taken over the run')

    def _run(self, job: str, context: Context, *arguments: Any) -> Any:
        run = Run(self._clock.time, job, context.object, context.tick,
                  context.attempt, context.fence, self.name)
        self._record.runs.append(run)
        try:
            found = self.tasks.handler(job)(context, *arguments)
        except BaseException as error:
            run.outcome, run.error = 'failed', error
            raise
        run.outcome = 'done'
        return found
