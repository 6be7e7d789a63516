# SPDX-License-Identifier: Apache-2.0
"""The two services that an OpenStack-style service launches.

    launcher = oslo_service.service.launch(
        conf, SchedulerService(conf, tasks), workers=3)

Nothing connects before ``start()``, which runs in the process that does the
work, so any number of workers may be forked. The base class is the one that
all backends of oslo.service share: importing this module fixes no backend.

This is the only file that owns threads and that knows both the flow and the
adapters. Each scheduler has one thread for its flow; all that comes from
elsewhere (views, reports, catalogues) enters it through one queue.
"""

import collections
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Container
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import lifecycle
from distperiodic import opts
from distperiodic import periodic
from distperiodic import ports
from distperiodic.adapters import backend_url as backend_url_
from distperiodic.adapters import coordination
from distperiodic.adapters import local
from distperiodic.adapters import memory
from distperiodic.adapters import messaging
from distperiodic.adapters import pool as pool_
from distperiodic.adapters import store_thread
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.flow import grants as grants_
from distperiodic.flow import scheduling
from distperiodic.flow import tick
from distperiodic.flow import work

LOG = logging.getLogger(__name__)

# The flow looks at timeouts, leases and back-offs this often, in seconds.
_SWEEP = 0.25
# Results of this process's own pool are looked at this much later, in
# seconds, where nothing waits for room.
_LINGER = 0.02
# Results and other news that are looked at before the next look at the clock.
_AT_A_TIME = 200
# A pool in this process may be given much: what waits in it waits in this
# process either way, and leaves the order to the pool.
_LOCAL_WINDOW = 10000

# The partition of what runs in the scheduler's own process while the rest is
# sent to workers.
_HERE = '-'

_GUARANTEES = {
    (False, 'local'): 'one process owns every object',
    (True, 'local'): 'ring only: the load is split; a change of members can '
                     'double or skip a tick',
    (True, 'messaging'): 'ring only: the load is split; a change of members '
                         'can double or skip a tick; a message is trusted, '
                         'set signing_key if others can write to the broker',
}
_CLAIMED = ('each (job, object, tick) is started under one live claim; no '
            'tick is lost while one member and the store live; results count '
            'once')


class SchedulerService(lifecycle.Lifecycle):
    """Ticks, claims and dispatches what this process owns.

    :param tasks: an instance of the service's PeriodicTasks.
    """

    _kind = 'scheduler'

    def _prepare(self) -> None:
        settings = self._settings
        sends = settings.dispatcher == 'messaging'
        shared = bool(settings.connection)
        # A job of every member runs in the member itself, whoever runs the
        # rest, and is its own alone: it is about this process.
        self._jobs = {
            name: dataclasses.replace(job, topic=_HERE)
            if (sends or shared) and job.scope is job_.Scope.MEMBER else job
            for name, job in self._tasks.jobs.items()}
        here = {name: (job, self._tasks.handler(name))
                for name, job in self._jobs.items()
                if not sends or job.topic == _HERE}
        self._member_id = self._identity(settings.group)
        #: What the pool has run and nobody has looked at.
        self._results: collections.deque[message.Report] = (
            collections.deque())
        self._results_told = False
        self._collect_at = float('inf')
        self._draining = False
        self._idle = threading.Event()
        self._group_member: coordination.Membership | None = None
        self._admitted = 1
        self._partitions: dict[str, str] = {}
        view = memory.Alone(
            self._member_id, settings.hash_ring_replicas_count,
            clock=self._clock)
        membership: Any = view
        if settings.backend_url:
            membership = self._group_member = self._membership(
                self._member_id, points=settings.hash_ring_replicas_count)
            membership.join(settings.group, self._tell_view)
        self._pool = pool_.Pool(settings.pool_size, 'distperiodic-run')
        self._shop = work.Workshop(
            here, clock=self._clock, pool=self._pool,
            report=self._tell_report, may_start=self._may_start,
            finish=self._finisher(lambda: self._sides['s'].grants))
        self._bus: messaging.MessagingWorkBus | None = None
        if sends:
            entry = membership.me.entry
            self._bus = messaging.MessagingWorkBus(
                self._conf, None, group=settings.group, me=entry,
                on_report=lambda reports: self._inbox.put(
                    ('reports', reports)),
                on_sent=lambda batch: self._inbox.put(('sent', batch)),
                on_unsent=lambda batch, reason: self._inbox.put(
                    ('unsent', batch, reason)),
                keys=settings.signing_key, quorum=settings.quorum_queues,
                patience=settings.send_timeout)
            for topic in {j.topic for j in self._jobs.values()} - {_HERE}:
                name = worker_group(settings.group, topic)
                self._partitions[name] = topic
                membership.watch(name, self._tell_view)
        self._reader = local.ThreadReader(
            self._tasks.catalogue,
            lambda *answer: self._inbox.put(('read', *answer)))
        self._store: store_thread.StoreThread | None = None
        self._sides: dict[str, scheduling.Scheduling] = {}
        if shared:
            self._store = self._store_thread()
            self._side('s', [name for name, job in self._jobs.items()
                             if job.scope is not job_.Scope.MEMBER],
                       self._store, membership, here, grants_here=not sends)
        self._side('m', [name for name, job in self._jobs.items()
                         if job.scope is job_.Scope.MEMBER or not shared],
                   memory.Direct(memory.MemoryClaimStore(self._clock)),
                   membership, here)
        me = member_.Member(self._member_id, '0' * 16, 1,
                            slots=_LOCAL_WINDOW)
        for topic in {job.topic for job, _ in here.values()}:
            for side in self._sides.values():
                side.dispatcher.workers_changed(topic, [me])
        self._conf.register_mutate_hook(self._mutated)
        LOG.info(
            'scheduler: member=%s group=%s jobs=%d backend=%s dispatcher=%s '
            'guarantee=%s', self._member_id, settings.group,
            len(self._jobs),
            backend_url_.mask(settings.backend_url) or 'none',
            settings.dispatcher, _CLAIMED if shared else _GUARANTEES[
                bool(settings.backend_url), settings.dispatcher])

    def _side(self, series: str, names: list[str], store: ports.StoreQueue,
              membership: ports.Membership, here: Container[str],
              grants_here: bool = True) -> None:
        """Put together the flow of these jobs.

        :param series: how the ids of its batches begin.
        """
        settings = self._settings
        if not names:
            return
        self._sides[series] = scheduling.Scheduling(
            {name: self._jobs[name] for name in names}, clock=self._clock,
            membership=membership, group=settings.group,
            identity=self._member_id, me=self._entry, store=store,
            bus=local.LocalBus(self._shop.accept, here, self._bus),
            reader=self._reader, new_lease=lifecycle.new_lease,
            batch_size=settings.dispatch_batch_size, lease=settings.lease,
            shared=store is self._store, grants_here=grants_here,
            late_after=settings.late_claim_after,
            sweep=settings.sweep_interval if store is self._store else 0.0,
            silent=settings.session_timeout if store is self._store else 0.0,
            sure=self._sure,
            series=series)

    @property
    def member_id(self) -> str:
        """This process's name on the ring, once it was started."""
        return self._member_id

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """(job, outcome) to how many objects, since the start."""
        counts: dict[tuple[str, str], int] = {}
        for side in self._sides.values():
            counts |= side.dispatcher.counts
        return counts

    def _entry(self) -> str:
        if self._group_member is None:
            return f'{self._member_id}~{"0" * 16}~1~f1.t1'
        return self._group_member.me.entry

    def _tell_view(self, view: member_.View) -> None:
        self._inbox.put(('view', view))

    def _tell_report(self, report: message.Report, to_entry: str) -> None:
        """Called by the pool's threads, at the end of each run."""
        self._results.append(report)
        if not self._results_told:
            self._results_told = True
            self._inbox.put(('results',))

    def _sure(self, entry: str) -> bool:
        """Whether this process surely stands in its group."""
        if self._group_member is None:
            return True
        view = self._group_member.view(self._settings.group)
        return view.trusted(self._clock.monotonic())

    def _may_start(self, batch: message.Batch) -> str | None:
        """Asked by the pool before each run."""
        side = self._sides[batch.id[0]]
        if side.shared and side.grants is not None:
            return side.grants.may_start(batch)
        if (self._group_member is None or self._draining
                or self._jobs[batch.job].scope is job_.Scope.MEMBER):
            return None
        view = self._group_member.view(self._settings.group)
        if (view.me is not None and view.me.tenure == self._admitted
                and view.trusted(self._clock.monotonic())):
            return None
        return work.NOT_A_MEMBER

    def _mutated(self, conf: Any, changes: Any) -> None:
        """Mutable options were read again."""
        try:
            points = conf[opts.GROUP].hash_ring_replicas_count
        except ValueError as exc:
            LOG.error('option refused: option=hash_ring_replicas_count '
                      'reason=%s; the points stay as they are', exc)
            return
        if self._group_member is not None:
            LOG.info('points: member=%s points=%d', self._member_id, points)
            self._group_member.publish(points=points)

    def _work(self) -> None:
        bus = self._bus
        if bus is not None and not self._until_it_works(
                lambda: bus.start(30.0), 'the way to the workers'):
            return
        if not self._until_it_works(self._check_store, 'the store'):
            return
        if self._store is not None:
            self._store.start()
        # Only now into the ring: what a member owns it must be able to
        # dispatch.
        if self._group_member is not None:
            self._group_member.start()
        sweep = signs = self._clock.monotonic()
        while not self._over.is_set():
            pause = min(side.ticker.run_due()
                        for side in self._sides.values())
            now = self._clock.monotonic()
            if now >= self._collect_at:
                self._collect()
            if now >= sweep:
                sweep = now + _SWEEP
                for side in self._sides.values():
                    side.sweep()
                self._shop.watch()
                if now >= signs:
                    signs = now + self._settings.lease / 3
                    self._shop.give_signs()
            if self._take(max(0.0, min(
                    pause, sweep - now, self._collect_at - now))):
                self._pump()
            if self._draining and not any(
                    side.dispatcher.waiting or side.dispatcher.outstanding
                    for side in self._sides.values()):
                self._idle.set()

    def _pump(self) -> None:
        for side in self._sides.values():
            side.dispatcher.pump_all()

    def _reported(self, report: message.Report) -> None:
        side = self._sides.get(report.batch[:1])
        if side is not None:
            side.reported(report)

    def _collect(self) -> None:
        """Settle what the pool has run."""
        self._collect_at = float('inf')
        self._results_told = False
        # Not without an end: ticks that become due meanwhile come first.
        for _ in range(_AT_A_TIME):
            if not self._results:
                break
            self._reported(self._results.popleft())
        else:
            self._collect_at = 0.0
        self._pump()

    def _take(self, pause: float) -> bool:
        """Handle what came in, or wait so long for it; True: something
        did.
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

    def _handle(self, event: tuple[Any, ...]) -> None:
        what, *about = event
        if what == 'reports':
            for report in about[0]:
                self._reported(report)
        elif what == 'results':
            # In a burst they come by the hundred. To look at each at once
            # would take the interpreter from the handlers that still wait.
            self._collect_at = self._clock.monotonic() + (
                0.0 if any(side.dispatcher.waiting for side in
                           self._sides.values()) else _LINGER)
        elif what == 'read':
            job, ticket, found = about
            if not isinstance(found, Exception):
                found = tick.Reading(*found)
            self._side_of(job).ticker.catalogue_read(job, ticket, found)
        elif what == 'call':
            about[0]()
        elif what == 'sent':
            self._side_of(about[0].job).dispatcher.sent(about[0])
        elif what == 'unsent':
            self._side_of(about[0].job).dispatcher.unsent(*about)
        elif what == 'view':
            self._viewed(about[0])
        elif what == 'end':
            self._over.set()

    def _side_of(self, job: str) -> scheduling.Scheduling:
        return next(side for side in self._sides.values()
                    if job in side.jobs)

    def _viewed(self, view: member_.View) -> None:
        for side in self._sides.values():
            if view.group != self._settings.group:
                side.dispatcher.workers_changed(
                    self._partitions[view.group], view.members)
            else:
                side.dispatcher.schedulers_changed(view.members)
        if view.group != self._settings.group:
            return
        if view.me is not None and view.me.tenure != self._admitted:
            # Others had our objects meanwhile: what waits is theirs. Only
            # then may the pool start things again.
            if self._store is None:
                self._shop.hand_back(work.NOT_A_MEMBER)
            self._admitted = view.me.tenure
        for side in self._sides.values():
            side.ticker.view_changed()

    def status(self) -> dict[str, Any]:
        """How this member stands, for a health check.

        ``healthy`` is false while it is not surely in its group, or has
        stopped; ``problem`` then says why, in one line.
        """
        member = self._group_member
        sure = self._begun.is_set() and not self._over.is_set()
        problem: object = self._problem
        if member is not None:
            sure = sure and member.joined()
            problem = problem or member.problem
        return {
            'member': self._member_id,
            'healthy': sure,
            'problem': str(problem) if problem else None,
            'members': [m.identity for m in member.view(
                self._settings.group).members] if (
                    member is not None and sure) else [],
            'counts': self.counts,
        }

    def _leave(self) -> None:
        if self._group_member is not None:
            self._group_member.stop(timeout=5.0)

    def stop(self, graceful: bool = True) -> None:
        """Leave the ring, finish what was claimed, close; bounded by
        ``graceful_shutdown_timeout``.
        """
        if not self._begun.is_set() or self._stopping.is_set():
            return
        end = self._clock.monotonic() + self._grace()
        self._stopping.set()
        self._draining = True
        self._leave()
        for side in self._sides.values():
            side.ticker.close()
        # Nobody else will run what was claimed for this tick.
        self._inbox.put(('look',))
        if not self._over.is_set() and not self._idle.wait(
                max(0.0, end - self._clock.monotonic())):
            LOG.warning(
                'stopped before the end: member=%s; what it had claimed and '
                'not finished misses its tick', self._member_id)
        if self._store is not None:
            self._store.stop(max(0.0, min(
                lifecycle.CLOSING, end - self._clock.monotonic())))
        for side in self._sides.values():
            side.dispatcher.close()
        self._shop.drain()
        self._shop.cancel()
        self._pool.stop()
        self._inbox.put(('end',))
        if self._bus is not None:
            self._bus.close(timeout=lifecycle.CLOSING)
        self._over.wait(1.0)
        self._over.set()
        if self._seat is not None:
            self._seat.leave()
        LOG.info('scheduler stopped: member=%s', self._member_id)


class WorkerService(lifecycle.Lifecycle):
    """Runs what schedulers send; knows nothing but the jobs' handlers.

    :param tasks: an instance of the same class as the schedulers'.
    :param partition: which topic's work it takes.
    """

    _kind = 'worker'

    def __init__(self, conf: cfg.ConfigOpts, tasks: periodic.PeriodicTasks,
                 partition: str = 'default'):
        super().__init__(conf, tasks)
        self._partition = partition

    def _prepare(self) -> None:
        settings = self._settings
        self._group = worker_group(settings.group, self._partition)
        self._member_id = self._identity(self._group)
        self._tenures: dict[str, int] = {}
        self._member = self._membership(
            self._member_id, slots=settings.pool_size)
        self._member.join(self._group)
        self._pool = pool_.Pool(settings.pool_size, 'distperiodic-run')
        self._bus = messaging.MessagingReportBus(
            self._conf, None, group=settings.group,
            partition=self._partition, me=self._member.me.entry,
            on_batch=lambda batch: self._accept(batch),
            keys=settings.signing_key, quorum=settings.quorum_queues)
        jobs = {n: (j, self._tasks.handler(n))
                for n, j in self._tasks.jobs.items()
                if j.topic == self._partition
                and j.scope is not job_.Scope.MEMBER}
        self._store: store_thread.StoreThread | None = None
        self._grants: grants_.Grants | None = None
        report, may_start = self._bus.report, self._may_start
        if settings.connection:
            self._store = self._store_thread()
            self._grants = grants_.Grants(
                {n: j for n, (j, _) in jobs.items()}, store=self._store,
                clock=self._clock, lease=settings.lease,
                run=lambda batch: self._shop.accept(batch),
                report=self._bus.report, new_lease=lifecycle.new_lease,
                sure=lambda entry: self._trusted(entry) is None,
                silent=settings.session_timeout)
            report, may_start = self._tell_report, self._grants.may_start
        self._shop = work.Workshop(
            jobs, clock=self._clock, pool=self._pool, report=report,
            may_start=may_start,
            finish=self._finisher(lambda: self._grants))
        LOG.info('worker: member=%s group=%s partition=%s slots=%d '
                 'backend=%s', self._member_id, settings.group,
                 self._partition, settings.pool_size,
                 backend_url_.mask(settings.backend_url))

    @property
    def member_id(self) -> str:
        """This process's name, once it was started."""
        return self._member_id

    def _accept(self, batch: message.Batch) -> None:
        grants = self._grants
        if grants is None:
            self._shop.accept(batch)
        else:
            self._inbox.put(('call', lambda: grants.accept(batch)))

    def _tell_report(self, report: message.Report, to_entry: str) -> None:
        """Called by the pool's threads, at the end of each run."""
        grants = self._grants
        assert grants is not None
        self._inbox.put((
            'call', lambda: grants.reported(report, to_entry)))

    def _may_start(self, batch: message.Batch) -> str | None:
        """Asked by the pool before each run."""
        return self._trusted(batch.worker)

    def _trusted(self, entry: str) -> str | None:
        """None if this process surely is who stands under *entry*."""
        tenure = self._tenures.get(entry)
        if tenure is None:
            member = member_.parse_entry(entry)
            tenure = self._tenures[entry] = (
                member.tenure if member else 0)
        try:
            view = self._member.view(self._group)
        except exceptions.ViewUnknown:
            # The others see us before we see ourselves.
            return work.NOT_A_MEMBER
        if (view.me is not None and view.me.tenure == tenure
                and view.trusted(self._clock.monotonic())):
            return None
        # The schedulers may have given it to somebody else.
        return work.NOT_A_MEMBER

    def _work(self) -> None:
        # Listen, then join: whoever sees us may send at once.
        if not self._until_it_works(
                lambda: self._bus.start(30.0), 'the way from the schedulers'):
            return
        if not self._until_it_works(self._check_store, 'the store'):
            return
        if self._store is not None:
            self._store.start()
        self._member.start()
        signs = sweep = 0.0
        while not self._drained.is_set():
            with contextlib.suppress(queue.Empty):
                _, call = self._inbox.get(timeout=_SWEEP)
                call()
            now = self._clock.monotonic()
            if now < sweep:
                continue
            sweep = now + _SWEEP
            self._shop.watch()
            if now >= signs:
                every = self._settings.lease
                if self._grants is not None:
                    every = min(every, self._settings.session_timeout)
                signs = now + every / 4
                self._shop.give_signs()
                if self._grants is not None:
                    self._grants.renew()

    def _leave(self) -> None:
        self._member.stop(timeout=lifecycle.CLOSING)

    def start(self) -> None:
        self._drained = threading.Event()
        self._pause = threading.Event()
        super().start()

    def stop(self, graceful: bool = True) -> None:
        """Take nothing more, hand back what waits, finish what runs, leave;
        bounded by ``graceful_shutdown_timeout``.
        """
        if not self._begun.is_set() or self._stopping.is_set():
            return
        self._stopping.set()
        # Seen with no slots, but seen: what runs here is not repeated.
        self._member.publish(slots=0)
        self._shop.drain()
        end = self._clock.monotonic() + self._grace()
        while self._shop.busy and self._clock.monotonic() < end:
            self._shop.watch()
            self._pause.wait(0.02)
        if self._shop.busy:
            LOG.warning(
                'stopped before the end: member=%s running=%d; the '
                'schedulers give these objects to other workers',
                self._member_id, self._shop.busy)
            self._shop.cancel()
        self._pool.stop()
        if self._store is not None:
            self._flush(end)
        # The reports first: a worker that left is taken for dead.
        self._bus.close(timeout=lifecycle.CLOSING)
        self._leave()
        self._drained.set()
        self._inbox.put(('call', lambda: None))
        self._over.wait(1.0)
        if self._seat is not None:
            self._seat.leave()
        LOG.info('worker stopped: member=%s', self._member_id)

    def _flush(self, end: float) -> None:
        """Have all results written and reported; bounded by *end*."""
        assert self._store is not None
        looked = threading.Event()
        for _ in range(2):
            # Results that are in the inbox ask the store, and its answers
            # come through the inbox.
            looked.clear()
            self._inbox.put(('call', looked.set))
            looked.wait(max(0.1, end - self._clock.monotonic()))
            self._store.flush(max(0.1, end - self._clock.monotonic()))


def worker_group(group: str, partition: str) -> str:
    """The group in which the workers of *partition* announce themselves."""
    return f'{group}.workers.{partition}'
