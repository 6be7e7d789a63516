# SPDX-License-Identifier: Apache-2.0
"""The service that runs what schedulers send.

What it holds it may start; the bus, the store and the pool each have threads
of their own, and all that they tell it enters its one thread through a queue.
"""

import contextlib
import logging
import queue
import threading
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import periodic
from distperiodic.adapters import messaging
from distperiodic.adapters import pool as pool_
from distperiodic.core import job as job_
from distperiodic.core import masking
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core.refusal import Refusal
from distperiodic.flow import events
from distperiodic.flow import grants as grants_
from distperiodic.flow.worker import runs
from distperiodic.service import lifecycle

LOG = logging.getLogger(__name__)


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
        self._group = lifecycle.worker_group(settings.group, self._partition)
        self._member_id = self._identity(self._group)
        self._tenures: dict[str, int] = {}
        self._member = self._group_member = self._membership(
            self._member_id, slots=settings.pool_size)
        self._member.join(self._group)
        self._pool = pool_.Pools(
            settings.pool_size, 'distperiodic-run', [self._partition])
        self._bus = messaging.MessagingReportBus(
            self._conf, None, group=settings.group,
            partition=self._partition, me=self._member.me.entry,
            on_batch=lambda batch: self._accept(batch),
            keys=settings.signing_key, quorum=settings.quorum_queues)
        jobs = {n: (j, self._tasks.handler(n))
                for n, j in self._tasks.jobs.items()
                if j.topic == self._partition
                and j.scope is not job_.Scope.MEMBER}
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
                shared=True, silent=settings.session_timeout,
                partitions=settings.partitions)
            report, may_start = self._tell_report, self._grants.may_start
        self._shop = runs.Workshop(
            jobs, clock=self._clock, pool=self._pool, report=report,
            may_start=may_start,
            finish=self._finisher(lambda: self._grants))
        if settings.dispatcher == 'local':
            LOG.warning(
                'no work expected: dispatcher=local; with that schedulers run '
                'the work themselves; set dispatcher = messaging in the file '
                'that schedulers and workers read')
        LOG.info('worker: member=%s group=%s partition=%s slots=%d '
                 'backend=%s', self._member_id, settings.group,
                 self._partition, settings.pool_size,
                 masking.mask(settings.backend_url))

    @property
    def title(self) -> str:
        return f'distperiodic: worker of {self._partition} {self.member_id}'

    def _accept(self, batch: message.Batch) -> None:
        if self._grants is None:
            self._shop.accept(batch)
        else:
            self._inbox.put(events.Accepted(batch))

    def _tell_report(self, report: message.Report, to_entry: str) -> None:
        """Called by the pool's threads, at the end of each run."""
        self._inbox.put(events.Ran(report, to_entry))

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.Called(call):
                call()
            case events.Accepted(batch) if self._grants is not None:
                self._grants.accept(batch)
            case events.Ran(report, to_entry) if self._grants is not None:
                self._grants.reported(report, to_entry)

    def _may_start(self, batch: message.Batch) -> Refusal | None:
        """Asked by the pool before each run."""
        return self._trusted(batch.worker)

    def _trusted(self, entry: str) -> Refusal | None:
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
            return Refusal.NOT_A_MEMBER
        if (view.me is not None and view.me.tenure == tenure
                and view.trusted(self._clock.monotonic())):
            return None
        # The schedulers may have given it to somebody else.
        return Refusal.NOT_A_MEMBER

    def _work(self) -> None:
        # Listen, then join: whoever sees us may send at once.
        if not self._connect(self._bus, 'the way from the schedulers'):
            return
        self._member.start()
        signs = sweep = 0.0
        while not self._drained.is_set():
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=lifecycle.SWEEP))
            now = self._turned = self._clock.monotonic()
            if now < sweep:
                continue
            sweep = now + lifecycle.SWEEP
            self._shop.watch()
            if self._grants is not None:
                self._grants.sweep()
            if now >= signs:
                every = self._settings.lease
                if self._grants is not None:
                    every = min(every, self._settings.session_timeout)
                signs = now + every / 4
                self._shop.give_signs()
                if self._grants is not None:
                    self._grants.renew()

    def _leave(self, timeout: float = lifecycle.CLOSING) -> None:
        self._member.stop(timeout)

    def status(self) -> dict[str, Any]:
        """Return the state of this worker for a health check.

        Beside what both services return, ``partition`` is the one that it
        serves, and ``runs`` the number of objects that it has and that have
        not ended.
        """
        return super().status() | {
            'partition': self._partition,
            'runs': self._shop.busy if self._begun.is_set() else 0,
        }

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
        if self._store is not None and self._serving.is_set():
            self._flush(end)
        # The reports first: a worker that left is taken for dead. But not for
        # all of the time that there is, or it would end without leaving.
        over = end + lifecycle.CLOSING
        self._bus.close(timeout=self._share(0.4, over))
        self._leave(self._share(1.0, over))
        self._drained.set()
        self._inbox.put(events.Woken())
        self._over.wait(1.0)
        if self._seat is not None:
            self._seat.leave()
        LOG.info('worker stopped: member=%s', self._member_id)

    def _share(self, share: float, over: float) -> float:
        """Seconds for one step of closing: a share of those until *over*."""
        return min(lifecycle.CLOSING, max(
            0.3, share * (over - self._clock.monotonic())))

    def _flush(self, end: float) -> None:
        """Have all results written and reported; bounded by *end*."""
        assert self._store is not None
        looked = threading.Event()
        for _ in range(2):
            # Results that are in the inbox ask the store, and its answers
            # come through the inbox.
            looked.clear()
            self._inbox.put(events.Called(looked.set))
            looked.wait(max(0.1, end - self._clock.monotonic()))
            self._store.flush(max(0.1, end - self._clock.monotonic()))
