# SPDX-License-Identifier: Apache-2.0
"""The scheduler service, which claims due objects and dispatches them.

One thread runs :mod:`distperiodic.flow`. All input from other threads (views,
reports, catalogues) reaches this thread through one queue. Only the reports of
this process's own pool have a queue of their own.
"""

import collections
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.coordination.solo import SoloMembership
from distperiodic.adapters.local import notices
from distperiodic.adapters.local.bus import LocalBus
from distperiodic.adapters.local.inline_queue import InlineStoreQueue
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.adapters.local.reader import ThreadReader
from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.adapters.local.tracing import TRACING
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.bus import Endpoint
from distperiodic.adapters.messaging.bus import MessagingWorkBus
from distperiodic.adapters.messaging.routes import PartitionBuses
from distperiodic.core import message
from distperiodic.core import redaction
from distperiodic.core.catalogue import Reading
from distperiodic.core.claim import Authority
from distperiodic.core.control import MemberCommand
from distperiodic.core.control import MemberOutcome
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job_set import JobSet
from distperiodic.core.member import Member
from distperiodic.core.member import View
from distperiodic.core.member import parse_entry
from distperiodic.core.member import ring_digest
from distperiodic.core.member import worker_group
from distperiodic.core.pruning import ages_of
from distperiodic.core.refusal import Refusal
from distperiodic.core.task import ring_key
from distperiodic.flow import events
from distperiodic.flow import leases
from distperiodic.flow.scheduler import pipeline
from distperiodic.flow.wiring import SchedulerWiring
from distperiodic.flow.worker.cancellations import Cancellations
from distperiodic.flow.worker.runs import RunCallbacks
from distperiodic.service import lease_names
from distperiodic.service import lifecycle
from distperiodic.service.handlers import Handlers
from distperiodic.service.pruner import ServicePruner

LOG = logging.getLogger(__name__)

# Seconds to wait during a burst before the results of this process's own pool
# are handled, so that several results are handled together. There is no delay
# while objects wait to be dispatched.
_LINGER = 0.02
# Number of objects without an outcome up to which results are handled at once.
_FEW = 20
# Number of results or events to handle before the clock is read again.
_AT_A_TIME = 200

# Maximum numbers of paused jobs and of failing catalogues in a report, because
# a report is one message.
_REPORTED_JOBS, _REPORTED_CATALOGUES = 100, 50

# Partition of the jobs of scope "member" if workers run the other jobs, or if
# there is a store.
_LOCAL = '-'

_GUARANTEES = {
    (False, 'local'): 'one process owns every object',
    (True, 'local'): 'ring only: the members share the load; a change of '
                     'members can double or skip a tick',
    (True, 'messaging'): 'ring only: the members share the load; a change of '
                         'members can double or skip a tick; messages are '
                         'trusted, so '
                         'set signing_key if others can write to the broker',
}
_EMBEDDED = 'one process owns every object; its claims are kept in'
_CLAIMED = ('each (job, object, tick) is started under one live claim; no '
            'tick is lost while one member and the store are alive; each '
            'result counts once')


class SchedulerService(lifecycle.Lifecycle):
    """The service that claims and dispatches the due objects of this process.

    The constructor opens no connections, so it may run before a fork.

    :param conf: Configuration of the service. Its options are read when the
        service starts.
    :param tasks: Instance of the service's :class:`.PeriodicTasks`.
    :raises ConfigError: oslo.service runs on eventlet, and threads are not
        patched.
    """

    _kind = 'scheduler'

    def _prepare(self) -> None:
        settings = self._settings
        sends = settings.dispatcher == 'messaging'
        shared = bool(settings.connection)
        # A job of scope "member" runs separately in each process. It always
        # runs in the scheduler's process, even if workers run all other jobs.
        self._jobs = {
            name: dataclasses.replace(job, topic=_LOCAL)
            if (sends or shared) and job.scope is Scope.MEMBER else job
            for name, job in self._known_jobs().items()}
        #: Names of the periodic jobs, by topic, without the jobs of scope
        #: "member".
        self._topics_of_jobs: dict[str, list[str]] = {}
        for name, job in sorted(self._jobs.items()):
            if job.scope not in (Scope.MEMBER, Scope.TASK):
                self._topics_of_jobs.setdefault(job.topic, []).append(name)
        local = {name: (job, self._tasks_of(job.topic).handler(name))
                 for name, job in self._jobs.items()
                 if not sends or job.topic == _LOCAL}
        self._member_id = self._identity(settings.group)
        #: Reports of the pool that the main thread has not collected yet.
        self._results: collections.deque[message.Report] = (
            collections.deque())
        self._results_announced = False
        self._collect_at = float('inf')
        self._draining = False
        #: True if the main thread has returned the work that was not started.
        self._returned = False
        #: True if the main thread must end.
        self._finished = False
        self._idle = threading.Event()
        self._admitted_tenure = 1
        #: Identities of members on the ring that schedule other jobs than this
        #: process.
        self._other_jobs: frozenset[str] = frozenset()
        self._partitions: dict[str, str] = {}
        #: Key under which this process receives notices from its host. None
        #: means that it receives none.
        self._board: notices.Key | None = None
        membership: SoloMembership | ToozMembership = SoloMembership(
            self._member_id, settings.hash_ring_replicas_count,
            clock=self._clock)
        self._solo_member: Member = membership.me
        if settings.backend_url:
            membership = self._group_member = self._membership(
                self._member_id, Announced(
                    points=settings.hash_ring_replicas_count,
                    jobs=JobSet.of(self._jobs.values())))
            membership.join(settings.group, self._put_view)
        self._local_topics = {job.topic for job, _ in local.values()}
        self._handlers = Handlers(
            local, {topic: self._tasks_of(topic)
                    for topic in self._local_topics},
            conf=self._conf, settings=settings, clock=self._clock,
            callbacks=RunCallbacks(self._put_report, self._may_start),
            grants=lambda: self._flow.grants_of(Authority.STORE))
        self._executor = self._handlers.executor
        self._bus: PartitionBuses | None = None
        if sends:
            # check_options() rejects this dispatcher without a backend_url.
            assert self._group_member is not None
            self._bus = self._buses(membership.me.entry)
            for topic in {j.topic for j in self._jobs.values()} - {_LOCAL}:
                name = worker_group(settings.group, topic)
                self._partitions[name] = topic
                self._group_member.watch(name, self._put_view)
        self._reader = ThreadReader(
            self._tasks.catalogue, self._put_reading)
        self._flow = pipeline.Pipeline(
            self._books(shared, sends), SchedulerWiring(
                clock=self._clock,
                membership=membership, group=settings.group,
                identity=self._member_id, me=self._entry,
                bus=LocalBus(self._executor.accept, local, self._bus),
                reader=self._reader, put=self._inbox.put,
                new_lease=lease_names.new_lease,
                batch_size=settings.dispatch_batch_size, lease=settings.lease,
                late_after=settings.late_claim_after, sure=self._sure,
                sink=SUBSCRIBERS, tracer=TRACING.tracer,
                partitions=settings.partitions))
        self._cancellations = None if self._store is None else Cancellations(
            self._executor, self._store, self._clock)
        self._pruner = None if self._store is None else ServicePruner(
            self._store, self._clock, ages_of(
                settings.history_retention, settings.task_retention))
        self._announce_pools(self._local_topics)
        if self._group_member is None:
            self._flow.dispatcher.schedulers_changed([self._solo_member])
        if shared and self._tasks.commands:
            self._board = settings.connection, settings.group
        self._conf.register_mutate_hook(self._mutated)
        LOG.info(
            'scheduler: member=%s group=%s jobs=%d backend=%s dispatcher=%s '
            'guarantee=%s', self._member_id, settings.group,
            len(self._jobs),
            redaction.redact(settings.backend_url) or 'none',
            settings.dispatcher, self._guarantee())

    def _runs(self, settings: opts.Settings) -> set[str]:
        if settings.dispatcher == 'messaging':
            return set()
        return {job.topic for job in (
            *self._tasks.jobs.values(), *self._tasks.commands.values())
            if job.scope is not Scope.MEMBER}

    def _buses(self, me: str) -> PartitionBuses:
        """Return the buses of all partitions, one for each broker."""
        settings = self._settings

        main = drivers.url_of(self._conf)

        def bus_of(url: str) -> MessagingWorkBus:
            return MessagingWorkBus(
                Endpoint(self._conf, url, group=settings.group, me=me,
                         sink=SUBSCRIBERS,
                         keys=settings.signing_key,
                         quorum=settings.quorum_queues),
                on_report=lambda reports: self._inbox.put(
                    events.Reported(reports)),
                on_sent=lambda batch: self._inbox.put(events.Sent(batch)),
                on_unsent=lambda batch, reason: self._inbox.put(
                    events.Unsent(batch, reason)),
                on_notice=self._put_notice,
                # Each broker transports a copy of a command, so only one bus
                # handles commands.
                on_control=(
                    lambda request: self._control.put(request)
                ) if url == main else None,
                patience=settings.send_timeout)

        topics = {job.topic for job in self._jobs.values()}
        own = {name: partition.transport_url
               for name, partition in settings.partitions.items()
               if partition.transport_url and name in topics}
        buses = {url: bus_of(url) for url in {main, *own.values()}}
        return PartitionBuses(
            buses[main], {name: buses[url] for name, url in own.items()
                          if url != main}, self._clock.monotonic)

    def _guarantee(self) -> str:
        settings = self._settings
        if settings.embedded:
            return f'{_EMBEDDED} {settings.store_file}'
        return _CLAIMED if settings.connection else _GUARANTEES[
            bool(settings.backend_url), settings.dispatcher]

    def _books(self, shared: bool, sends: bool) -> list[leases.Book]:
        """Return the books of claims, each with its store and its jobs.

        Jobs of scope "member" are claimed in memory. All other jobs are
        claimed in the store, or in memory if there is no store.
        """
        settings, books = self._settings, []
        if shared:
            self._store = self._store_thread()
            books.append(leases.Book(
                Authority.STORE, self._jobs_of(members=False), self._store,
                grants_here=not sends, sweep_interval=settings.sweep_interval,
                silence_timeout=settings.session_timeout))
        books.append(leases.Book(
            Authority.RING,
            self._jobs_of(members=True) if shared else self._jobs,
            InlineStoreQueue(MemoryClaimStore(self._clock)),
            grants_here=True))
        return [book for book in books if book.jobs]

    def _jobs_of(self, members: bool) -> dict[str, Job]:
        """Return the jobs of scope "member", or all other jobs."""
        return {name: job for name, job in self._jobs.items()
                if (job.scope is Scope.MEMBER) is members}

    def _announce_pools(self, topics: Iterable[str]) -> None:
        """Announce this process's pools as the workers of *topics*.

        The announcement is for the dispatcher of this process. With a store,
        a pool has the identity and tenure of this process. So if this process
        is gone, other schedulers take over the runs of the pool before their
        leases expire.
        """
        solo, pools = self._solo_member, self._handlers.pools()
        me = None if self._store is None else parse_entry(self._entry())
        for topic in topics:
            worker = solo if topic == _LOCAL else me or solo
            self._flow.workers_changed(topic, [dataclasses.replace(
                worker, points=0, slots=pools[topic]['size'],
                traces=TRACING.tracer is not None)], own=True)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Number of objects or ticks by (job, outcome) since the start.

        Read this property only after a start of the service.
        :doc:`/reference/log-lines` lists the outcomes.
        """
        return {(job, counted.value): number for (job, counted), number
                in self._flow.counters.copy().items()}

    def _entry(self) -> str:
        if self._group_member is None:
            return self._solo_member.entry
        return self._group_member.me.entry

    def _watched(self) -> Iterable[str]:
        return self._settings.group, *self._partitions

    def _messages(self) -> PartitionBuses | None:
        return self._bus

    def hurry(self) -> None:
        """Read the store at once, after an operator has changed it."""
        self._flow.hurry()

    def confirm_job(self, request: MemberCommand,
                    then: Callable[[MemberOutcome], None]) -> None:
        """Apply a command, which is in the store, to a job.

        :param request: The command.
        :param then: Called with the answer when this service has applied the
            command.
        """
        self._flow.confirm_job(request.verb, request.target,
                               request.arguments, then)

    def order_jobs(self, verb: str, arguments: Mapping[str, Any],
                   why: str) -> MemberOutcome:
        """Execute a command, which came over the bus, on jobs.

        :param verb: The command.
        :param arguments: The jobs, and for a trigger the object.
        :param why: The operator's reason.
        """
        return self._flow.order_jobs(verb, arguments, why)

    def report(self) -> dict[str, Any]:
        """Return the current activity of this member, for operators."""
        failing = self._flow.failing_catalogues()
        report = super().report() | {
            'catalogues': failing[:_REPORTED_CATALOGUES],
            'more_catalogues': max(0, len(failing) - _REPORTED_CATALOGUES)}
        ahead = self._flow.clock_ahead
        if ahead is not None:
            report['clock_ahead_s'] = round(ahead, 1)
        with contextlib.suppress(exceptions.ViewUnknown):
            if self._group_member is not None:
                view = self._group_member.view(self._settings.group)
                now = self._clock.monotonic()
                report['view'] = {
                    'digest': ring_digest(view.members),
                    'members': len(view.members),
                    'age_s': round(now - view.since, 3),
                    'trusted': view.trusted(now)}
        if self._store is not None:
            # Operators find the jobs of a partition in this report.
            return report | {'topics': self._topics_of_jobs}
        paused = self._flow.paused_jobs[:_REPORTED_JOBS]
        return report | {'paused_jobs': paused} if paused else report

    def alarms(self) -> Hashable:
        """Return a value that changes when the report must be written at once.
        """
        return super().alarms(), frozenset(
            (one['job'], bool(one['error']), one['reading_s'] is None)
            for one in self._flow.failing_catalogues())

    def open_runs(self) -> int:
        """Return the number of objects whose claims here have not ended."""
        dispatcher = self._flow.dispatcher
        return dispatcher.waiting + dispatcher.outstanding

    def set_pool_size(self, size: int | None) -> MemberOutcome:
        """Set the number of threads, and send work for as many.

        :param size: None means that the option ``pool_size`` applies.
        """
        outcome = super().set_pool_size(size)
        self._announce_pools(self._local_topics)
        return outcome

    def set_drained(self, drained: bool) -> None:
        """Leave the ring but stay in the group, or join the ring again.

        :param drained: True leaves the ring.
        """
        self._flow.set_drained(drained)
        if self._group_member is not None and not self._draining:
            self._group_member.publish(points=0 if drained else opts.value(
                self._conf, 'hash_ring_replicas_count'))

    def _put_notice(self, tasks: Sequence[str]) -> None:
        """Queue a notice of those *tasks* that this member must check.

        All members receive the notice. The ring divides the tasks among the
        members, so that the members do not compete. It assigns all tasks of an
        ordered queue to one member. If a member misses a task, another member
        finds the task in a sweep.
        """
        if not self._tasks.commands:
            return
        try:
            view = self._group_member and self._group_member.view(
                self._settings.group)
        except exceptions.ViewUnknown:
            view = None
        ours = [task for task in tasks if not view or not len(view.ring)
                or view.ring.owner_of(ring_key(task)) == self._member_id]
        if ours:
            self._inbox.put(events.Submitted(ours))

    def _put_view(self, view: View) -> None:
        self._inbox.put(events.Viewed(view))

    def _put_reading(self, job: str, ticket: int,
                     found: Reading | Exception) -> None:
        self._inbox.put(events.CatalogueRead(job, ticket, found))

    def _put_report(self, report: message.Report, to_entry: str) -> None:
        """Queue a report. Any thread may call this."""
        self._results.append(report)
        if not self._results_announced:
            self._results_announced = True
            self._inbox.put(events.ResultsWait())

    def _sure(self, entry: str) -> bool:
        """Return whether this process is certainly still in its group.

        :param entry: Entry of this process. If its tenure has ended, the
            result is False.
        """
        if self._group_member is None:
            return True
        try:
            view = self._group_member.view(self._settings.group)
        except exceptions.ViewUnknown:
            # Jobs of scope "member" may run before this process has joined its
            # group.
            return False
        member = parse_entry(entry)
        return (view.me is not None and member is not None
                and view.me.tenure == member.tenure
                and view.trusted(self._clock.monotonic()))

    def _may_start(self, batch: message.Batch) -> Refusal | None:
        """Return the reason why a run must not start, or None if it may start.

        The pool calls this before each run.
        """
        if batch.authority is Authority.STORE:
            grants = self._flow.grants_of(Authority.STORE)
            if grants is not None:
                return grants.may_start(batch)
        if (self._group_member is None or self._draining
                or self._jobs[batch.job].scope is Scope.MEMBER):
            return None
        view = self._group_member.view(self._settings.group)
        if (view.me is not None and view.me.tenure == self._admitted_tenure
                and view.trusted(self._clock.monotonic())):
            return None
        return Refusal.NOT_A_MEMBER

    def _mutated(self, conf: Any, changes: Any) -> None:
        """Apply mutable options that were read again."""
        if self._group_member is None or self._draining:
            return
        points = opts.reloaded(conf, 'hash_ring_replicas_count')
        if points is not None and not self._control.drained:
            LOG.info('points: member=%s points=%d', self._member_id, points)
            self._group_member.publish(points=points)

    def _work(self) -> None:
        if not self._connect(self._bus):
            return
        # With a SQLite store, other processes send notices to a socket in the
        # directory of the database file. Listen only now: before the store is
        # connected, this directory may be missing.
        if self._board is not None:
            notices.listen(self._board, self._put_notice)
            if self._stopping.is_set():
                notices.unlisten(self._board, self._put_notice)
        # Join the ring only now, because a member must be able to dispatch the
        # objects that it owns.
        if self._group_member is not None:
            self._group_member.start()
        next_sweep = next_heartbeat = self._clock.monotonic()
        while not self._finished:
            self._last_turn = self._clock.monotonic()
            pause = self._flow.run_due()
            now = self._clock.monotonic()
            if now >= self._collect_at:
                self._collect()
            if now >= next_sweep:
                next_sweep = now + lifecycle.SWEEP
                self._flow.sweep()
                self._executor.watch()
                if self._cancellations is not None:
                    self._cancellations.sweep()
                self._control.sweep()
                if self._pruner is not None and not self._draining:
                    self._pruner.sweep()
                if now >= next_heartbeat:
                    next_heartbeat = now + self._settings.lease / 3
                    self._executor.send_heartbeats()
            if self._take(max(0.0, min(
                    pause, next_sweep - now, self._collect_at - now))):
                self._flow.pump()
            if (self._returned and not self._idle.is_set()
                    and self._drained()):
                self._idle.set()

    def _return_unstarted(self) -> None:
        """Return the work that no handler has started, and take no more."""
        self._flow.drain()
        self._executor.drain(Authority.STORE)
        self._returned = True

    def _drained(self) -> bool:
        """Return True if no work is left that this process can finish."""
        dispatcher = self._flow.dispatcher
        if self._flow.settled:
            return True
        now = self._clock.monotonic()
        if self._store is None or not self._store.away:
            self._last_answer = now
        if (now - self._last_answer >= self._settings.session_timeout
                and not (dispatcher.waiting or self._executor.busy
                         or self._flow.recording)):
            # No run of this process has a result that would be lost.
            self._warn_unfinished('the store does not answer')
            return True
        if not (dispatcher.waiting or dispatcher.outstanding):
            return False
        if not dispatcher.stranded:
            self._last_worker = now
            return False
        # Other schedulers take over the claims that are in a shared store. For
        # claims that exist only in memory, wait until new workers replace the
        # lost ones, but not longer than the session timeout.
        if (now - self._last_worker < self._settings.session_timeout
                and dispatcher.waits_for(Authority.RING)):
            return False
        self._warn_unfinished('no worker is left')
        return True

    def _warn_unfinished(self, reason: str) -> None:
        dispatcher = self._flow.dispatcher
        LOG.warning(
            'stopped before the end: member=%s objects=%d reason=%s; its '
            'unfinished claims %s', self._member_id, dispatcher.waiting
            + dispatcher.outstanding + dispatcher.releasing, reason,
            'are not taken over by other schedulers' if self._store is None
            else 'are taken over by other schedulers when their leases '
            f'expire, at most {self._settings.lease:g} s from now')

    def _check_store(self) -> None:
        super()._check_store()
        settings = self._settings
        if not settings.connection:
            return
        from distperiodic.operator import activity
        from distperiodic.operator.group_reader import GroupStore

        with contextlib.closing(GroupStore(
                settings.connection, settings.group)) as store:
            unknown = activity.unknown_jobs(store, self._jobs)
        if unknown:
            LOG.warning(
                'claims of unknown jobs: jobs=%s open=%d; this process does '
                'not run these jobs, but others may; if a job was renamed, '
                'restore its old name with name=...; if it was removed, '
                'delete its claims with: distperiodic db prune --claims DAYS',
                ', '.join(map(repr, unknown)), sum(unknown.values()))

    def _collect(self) -> None:
        """Handle the reports of the pool."""
        self._collect_at = float('inf')
        self._results_announced = False
        # Handle a limited number of reports, so that due ticks do not wait.
        for _ in range(_AT_A_TIME):
            if not self._results:
                break
            self._flow.reported(self._results.popleft())
        else:
            self._collect_at = 0.0
        self._flow.pump()

    def _take(self, pause: float) -> bool:
        """Handle the events of the inbox; wait *pause* seconds if it is empty.

        :return: True if there was an event.
        """
        try:
            event = self._inbox.get(timeout=pause) if pause else (
                self._inbox.get_nowait())
        except queue.Empty:
            return False
        for _ in range(_AT_A_TIME):
            self._handle(event)
            try:
                event = self._inbox.get_nowait()
            except queue.Empty:
                return True
        self._handle(event)
        return True

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.ResultsWait():
                # In a burst, hundreds of reports arrive. If each were handled
                # at once, the handlers would wait for the interpreter lock.
                dispatcher = self._flow.dispatcher
                burst = dispatcher.outstanding > _FEW
                self._collect_at = self._clock.monotonic() + (
                    _LINGER if burst and not dispatcher.waiting else 0.0)
            case events.Viewed(view):
                self._viewed(view)
            case events.Stopped():
                # The service may be started again only when this thread has
                # ended.
                self._finished = True
            case _:
                self._flow.handle(event)

    def _viewed(self, view: View) -> None:
        if view.group != self._settings.group:
            self._flow.workers_changed(
                self._partitions[view.group], view.members)
            return
        self._flow.dispatcher.schedulers_changed(view.members)
        self._report_other_jobs(view)
        if view.me is not None and view.me.tenure != self._admitted_tenure:
            # Other members may have owned this member's objects meanwhile.
            # They then run the objects that wait here. Set _admitted_tenure
            # last, because the pool starts runs as soon as it is set.
            if self._store is None:
                self._executor.return_unstarted(Refusal.NOT_A_MEMBER)
            else:
                self._announce_pools(self._local_topics - {_LOCAL})
            self._admitted_tenure = view.me.tenure
        self._flow.view_changed()

    def _report_other_jobs(self, view: View) -> None:
        """Log that members on the ring schedule other jobs."""
        if view.me is None:
            return
        others = frozenset(m.identity for m in view.members
                           if m.points and m.jobs != view.me.jobs)
        if others - self._other_jobs:
            LOG.info(
                'other jobs: group=%s members=%s; these members of the ring '
                'have other jobs or schedules than this process; each job '
                'runs on the members that have this job (not an error '
                'during an upgrade; otherwise give each service its own '
                '[distperiodic] group)',
                view.group, ', '.join(sorted(others)))
        self._other_jobs = others

    def status(self) -> dict[str, Any]:
        """Return the state of this member for a health check.

        The result can be written as JSON. ``member`` is the name of this
        process. ``healthy`` is false while the process is not certain of its
        membership, cannot reach its store, is stalled, or does not run.
        ``problem`` then gives the reason in one line. ``pools`` describes the
        pool of each partition: ``size`` is the maximum number of threads,
        ``busy`` the number of threads that run a handler, ``hanging`` the
        number of threads that were replaced because their handlers did not
        return in time, and ``queued`` the number of objects that wait for a
        thread. ``tasks`` gives, by status, the number of tasks that this
        process has recorded as ended or stuck. This key is missing if there
        are no commands or no store. ``members`` lists the identities in the
        group while ``healthy`` is true. ``counts`` gives the number of objects
        or ticks by job and outcome.
        """
        status = super().status()
        member = self._group_member
        counts: dict[str, dict[str, int]] = {}
        if self._started.is_set():
            for (job, outcome), number in self.counts.items():
                counts.setdefault(job, {})[outcome] = number
        return status | {
            'members': [m.identity for m in member.view(
                self._settings.group).members] if (
                    member is not None and status['healthy']) else [],
            'counts': counts,
        }

    def _pools(self) -> dict[str, dict[str, int]]:
        pools = super()._pools()
        for topic, pool in pools.items():
            # The pool only receives the objects that it can run soon. All
            # others wait in the dispatcher.
            pool['queued'] += self._flow.dispatcher.objects_waiting(topic)
        return pools

    def _leave(self, timeout: float = lifecycle.CLOSING) -> None:
        if self._group_member is not None:
            self._group_member.stop(timeout)

    def stop(self, graceful: bool = True) -> None:
        """Leave the ring, finish the started work, and close the connections.

        If members share a store, the claims that were not started are
        released, and other members take them over at once. Otherwise this
        process runs them, because no other process can do so.

        The call waits for the work for at most ``graceful_shutdown_timeout``
        minus 2 seconds, so that it can close the connections before the
        launcher kills the process. The call does nothing if the service was
        not started or is already stopping.

        :param graceful: Ignored; accepted because oslo.service passes it.
        """
        if not self._started.is_set() or self._stopping.is_set():
            return
        end = self._clock.monotonic() + lifecycle.grace(self._conf)
        self._stop_requested()
        self._last_worker = self._last_answer = self._clock.monotonic()
        self._draining = True
        if self._group_member is not None:
            # Leave the ring but stay in the group. If this process left the
            # group and then could not renew its leases, other members would
            # take over its runs.
            self._group_member.publish(points=0)
        if self._board is not None:
            notices.unlisten(self._board, self._put_notice)
        self._inbox.put(events.Called(self._return_unstarted))
        if (self._serving.is_set() and not self._ended.is_set()
                and not self._idle.wait(
                    max(0.0, end - self._clock.monotonic()))):
            self._warn_unfinished('the time for stopping has expired')
        if self._group_member is not None:
            # Leave only the group of the schedulers, since reports of workers
            # may still arrive.
            self._group_member.leave(self._settings.group, timeout=max(
                0.0, min(lifecycle.CLOSING,
                         end - self._clock.monotonic())))
        if self._store is not None:
            self._control.stopped()
            self._store.stop(max(0.0, min(
                lifecycle.CLOSING, end - self._clock.monotonic())))
        self._flow.dispatcher.close()
        # By now this process has left the group, unless the coordination
        # service is unavailable.
        self._leave(max(0.5, min(
            lifecycle.CLOSING, end - self._clock.monotonic())))
        self._executor.drain()
        self._executor.cancel()
        self._handlers.stop_threads()
        self._inbox.put(events.Stopped())
        closed_by = end + lifecycle.CLOSING
        if self._bus is not None:
            self._bus.close(timeout=self._share(0.7, closed_by))
        self._ended.wait(self._share(1.0, closed_by))
        self._ended.set()
        self._close_rest(closed_by)
        LOG.info('scheduler stopped: member=%s', self._member_id)
