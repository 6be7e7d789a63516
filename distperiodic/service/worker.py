# SPDX-License-Identifier: Apache-2.0
"""The service that runs the batches that schedulers send.

With a store, a run starts only under a lease that the store has granted to
this worker. Without a store, a run starts only while this worker is certain of
its membership. The bus, the store and the pool have threads of their own. With
a store, the events of these threads reach the service's main thread through
one queue.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import periodic
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.adapters.local.tracing import TRACING
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.bus import Endpoint
from distperiodic.adapters.messaging.bus import MessagingReportBus
from distperiodic.adapters.messaging.notices import TaskNotices
from distperiodic.core import message
from distperiodic.core import redaction
from distperiodic.core.claim import Authority
from distperiodic.core.control import MemberOutcome
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import View
from distperiodic.core.member import parse_entry
from distperiodic.core.member import worker_group
from distperiodic.core.refusal import Refusal
from distperiodic.core.telemetry import MemberActive
from distperiodic.flow import events
from distperiodic.flow.leases import Book
from distperiodic.flow.run_leases import RunLeases
from distperiodic.flow.run_times import RunTimeBook
from distperiodic.flow.store_clock import StoreClock
from distperiodic.flow.wiring import Wiring
from distperiodic.flow.worker import runs
from distperiodic.flow.worker.cancellations import Cancellations
from distperiodic.flow.worker.standby import RoleCallbacks
from distperiodic.service import lease_names
from distperiodic.service import lifecycle
from distperiodic.service.handlers import Handlers
from distperiodic.service.partition_role import PartitionRole

LOG = logging.getLogger(__name__)


class WorkerService(lifecycle.Lifecycle):
    """The service that runs handlers for the batches that schedulers send.

    The constructor opens no connections, so it may run before a fork.

    :param conf: Configuration of the service. Its options are read when the
        service starts.
    :param tasks: Instance of the :class:`.PeriodicTasks` class that the
        schedulers use, too.
    :param partition: Topic of the jobs that this worker runs.
    :raises ConfigError: oslo.service runs on eventlet, and threads are not
        patched.
    """

    _kind = 'worker'

    def __init__(self, conf: cfg.ConfigOpts, tasks: periodic.PeriodicTasks,
                 partition: str = 'default'):
        super().__init__(conf, tasks)
        self._partition = self._part = partition

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._conf, self._tasks, self._partition)

    def _prepare(self) -> None:
        settings = self._settings
        self._topic = settings.topic_of(self._partition)
        self._slots = settings.pool_size_of(self._topic)
        partition = settings.partitions.get(self._topic)
        standby = partition is not None and partition.standby
        if partition is not None and standby:
            drivers.check_standby(self._conf, partition)
        self._group = worker_group(settings.group, self._topic)
        self._member_id = self._identity(self._group)
        self._tenures: dict[str, int] = {}
        # Schedulers send nothing to a worker without slots.
        self._member = self._group_member = self._membership(
            self._member_id, Announced(
                slots=0 if standby else self._slots,
                traces=TRACING.tracer is not None))
        self._member.join(self._group, self._put_view if standby else None)
        self._bus = MessagingReportBus(
            Endpoint(
                self._conf, partition.transport_url if partition else None,
                group=settings.group, me=self._member.me.entry,
                keys=settings.signing_key, quorum=settings.quorum_queues,
                sink=SUBSCRIBERS),
            partition=self._topic,
            on_batch=lambda batch: self._accept(batch),
            on_control=lambda request: self._control.put(request))
        tasks = self._tasks_of(self._topic)
        jobs = {n: (j, tasks.handler(n))
                for n, j in self._known_jobs(tasks).items()
                if j.topic == self._topic
                and j.scope is not Scope.MEMBER}
        self._run_leases: RunLeases | None = None
        self._notices = TaskNotices(
            self._conf, partition.transport_url if partition else None,
            group=settings.group, keys=settings.signing_key)
        report, may_start = self._send_report, self._may_start
        if settings.connection:
            self._store = self._store_thread()
        self._role = PartitionRole(
            self._topic, self._member, self._group, settings=settings,
            store=self._store, clock=self._clock, callbacks=RoleCallbacks(
                busy=self._is_busy, changed=self._role_changed,
                lost=lambda: self._executor.cancel()))
        #: Estimate of the store's clock. None means that there is no store.
        self._store_clock: StoreClock | None = None
        if self._store is not None:
            self._store_clock = StoreClock(
                self._clock, self._store, lambda: None)
            self._run_leases = RunLeases(
                Book(Authority.STORE, {n: j for n, (j, _) in jobs.items()},
                     self._store, grants_here=True,
                     silence_timeout=settings.session_timeout),
                Wiring(
                    clock=self._store_clock, new_lease=lease_names.new_lease,
                    lease=settings.lease,
                    late_after=settings.late_claim_after, sink=SUBSCRIBERS,
                    sure=lambda entry: self._trusted(entry) is None,
                    partitions=settings.partitions),
                run=lambda batch: self._executor.accept(batch),
                report=self._send_report, proceeds=True,
                notify=self._notices.notify,
                elected=self._role.standby)
            report, may_start = self._put_report, self._may_start_granted
        self._handlers = Handlers(
            jobs, {self._topic: tasks}, conf=self._conf, settings=settings,
            clock=self._clock, callbacks=runs.RunCallbacks(
                report, may_start,
                None if settings.connection else self._time_reporter()),
            grants=lambda: self._run_leases)
        self._executor = self._handlers.executor
        self._cancellations = None if self._store is None else Cancellations(
            self._executor, self._store, self._clock)
        if settings.dispatcher == 'local':
            LOG.warning(
                'no work expected: dispatcher=local; schedulers run the work '
                'themselves; to use workers, set dispatcher = messaging in '
                'the file that schedulers and workers read')
        LOG.info('worker: member=%s group=%s partition=%s slots=%d '
                 'backend=%s', self._member_id, settings.group,
                 self._topic, self._slots,
                 redaction.redact(settings.backend_url))

    def _runs(self, settings: opts.Settings) -> list[str]:
        return [settings.topic_of(self._partition)]

    @property
    def title(self) -> str:
        return f'distperiodic: worker of {self._partition} {self.member_id}'

    def _time_reporter(self) -> runs.Timed:
        """Return a function that reports times of runs to the subscribers.

        With a store, the component that grants the runs does this.
        """
        book = RunTimeBook(
            self._clock.now, self._clock.monotonic,
            self._settings.late_claim_after, SUBSCRIBERS)

        def report(job: Job, batch: message.Batch,
                   timings: Sequence[message.Timing]) -> None:
            if SUBSCRIBERS.open:
                book.note(job, batch.tick, batch.objects, timings)
        return report

    def _accept(self, batch: message.Batch) -> None:
        if self._run_leases is None:
            self._executor.accept(batch)
        else:
            self._inbox.put(events.Accepted(batch))

    def _put_view(self, view: View) -> None:
        self._inbox.put(events.Viewed(view))

    def _is_busy(self) -> bool:
        """Return whether handlers run here, or may begin to run.

        This includes handlers whose runs have timed out, and runs that the
        store may still grant.
        """
        assert self._run_leases is not None
        return bool(self._executor.busy or self._executor.hanging
                    or self._run_leases.busy)

    def _role_changed(self) -> None:
        """Publish the slots of this worker after a change of its role."""
        if self._stopping.is_set():
            return
        self._set_slots()
        if not self._role.open:
            self._executor.return_unstarted(Refusal.NOT_ACTIVE)
        active = self._role.standby and self._role.standby.active()
        if active and SUBSCRIBERS.open:
            SUBSCRIBERS.put(MemberActive(
                self._partition, self._member_id, active.fence))

    def _send_report(self, report: message.Report, to_entry: str) -> None:
        """Send a report to a scheduler. Any thread may call this."""
        self._executor.address(report, to_entry)
        self._bus.report(report, to_entry)

    def _put_report(self, report: message.Report, to_entry: str) -> None:
        """Queue a report. Any thread may call this."""
        self._inbox.put(events.Ran(report, to_entry))

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.Called(call):
                call()
            case events.Accepted(batch) if self._run_leases is not None:
                self._run_leases.accept(batch)
            case events.Ran(report, to_entry) if self._run_leases is not None:
                self._run_leases.reported(report, to_entry)
            case events.Viewed():
                self._role.hurry()

    def _may_start(self, batch: message.Batch) -> Refusal | None:
        """Return the reason why a run must not start, or None if it may start.

        The pool calls this before each run.
        """
        return self._trusted(batch.worker)

    def _may_start_granted(self, batch: message.Batch) -> Refusal | None:
        """Return the reason why a run that the store has granted must not
        start. None means that it may start.
        """
        assert self._run_leases is not None
        if not self._role.shares():
            return Refusal.NOT_ACTIVE
        return self._run_leases.may_start(batch)

    def _trusted(self, entry: str) -> Refusal | None:
        """Return None if this process is certainly a member, else the refusal.

        :param entry: Entry of this process. If its tenure has ended, the
            result is a refusal.
        """
        tenure = self._tenures.get(entry)
        if tenure is None:
            member = parse_entry(entry)
            tenure = self._tenures[entry] = (
                member.tenure if member else 0)
        try:
            view = self._member.view(self._group)
        except exceptions.ViewUnknown:
            # Other members can see the entry of this process before this
            # process itself can.
            return Refusal.NOT_A_MEMBER
        if (view.me is not None and view.me.tenure == tenure
                and view.trusted(self._clock.monotonic())):
            return None
        # The schedulers may already have sent the run to another worker.
        return Refusal.NOT_A_MEMBER

    def _entry(self) -> str:
        return self._member.me.entry

    def _watched(self) -> Iterable[str]:
        return self._group,

    def _messages(self) -> MessagingReportBus:
        return self._bus

    def hurry(self) -> None:
        """Read the store at once, after an operator has changed it."""
        self._role.hurry()

    def open_runs(self) -> int:
        """Return the number of objects whose runs have not ended."""
        return self._executor.busy

    def report(self) -> dict[str, Any]:
        standby = self._role.standby
        return super().report() | {'partition_role': (
            'shared' if standby is None else str(standby.role))}

    def set_drained(self, drained: bool) -> None:
        """Publish no slots, or publish the slots of this worker again.

        :param drained: True means that schedulers send no more work to this
            worker. With ``mode = standby``, the worker also returns the runs
            that have not started, and releases the partition.
        """
        self._role.set_drained(drained)
        self._set_slots()
        if self._run_leases is not None:
            self._run_leases.proceeds = not drained

    def set_pool_size(self, size: int | None) -> MemberOutcome:
        """Set the number of threads, and the slots that schedulers see.

        :param size: None means that the option ``pool_size`` applies.
        """
        outcome = super().set_pool_size(size)
        self._set_slots()
        return outcome

    def _set_slots(self) -> None:
        closed = (
            self._stopping.is_set() or self._control.drained
            or not self._role.open)
        self._member.publish(
            slots=0 if closed else self._handlers.pools()[self._topic]['size'])

    def _work(self) -> None:
        # Listen before joining, because schedulers may send as soon as they
        # see this worker.
        if not self._connect(self._bus):
            return
        self._member.start()
        next_heartbeat = next_sweep = 0.0
        while not self._drained.is_set():
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=lifecycle.SWEEP))
            now = self._last_turn = self._clock.monotonic()
            if now < next_sweep:
                continue
            next_sweep = now + lifecycle.SWEEP
            self._executor.watch()
            self._executor.send_changes()
            if self._cancellations is not None:
                self._cancellations.sweep()
            self._control.sweep()
            if self._run_leases is not None:
                self._run_leases.sweep()
            if self._store_clock is not None:
                self._store_clock.sweep()
            self._role.sweep()
            if now >= next_heartbeat:
                interval = self._settings.lease
                if self._run_leases is not None:
                    interval = min(interval, self._settings.session_timeout)
                next_heartbeat = now + interval / 4
                self._executor.send_heartbeats()
                if self._run_leases is not None:
                    self._run_leases.renew()

    def _check_store(self) -> None:
        super()._check_store()
        self._role.start_sharing(self._partition)

    def _leave(self, timeout: float = lifecycle.CLOSING) -> None:
        self._member.stop(timeout)

    def status(self) -> dict[str, Any]:
        """Return the state of this worker for a health check.

        The result can be written as JSON. The keys ``member``, ``healthy``,
        ``problem``, ``pools`` and ``tasks`` have the same meaning as for a
        scheduler. ``partition`` is the name of the partition that this worker
        serves. ``runs`` is the number of objects whose runs here have not
        ended. ``role`` is the role of this worker, if workers of its partition
        elect the active worker: ``starting``, ``standby``, ``active`` or
        ``stopping``. In other partitions it is None.
        """
        standby = self._role.standby if self._started.is_set() else None
        return super().status() | {
            'partition': self._partition,
            'role': None if standby is None else str(standby.role),
            'runs': self._executor.busy if self._started.is_set() else 0,
        }

    def start(self) -> None:
        """Start the threads of the service and return at once.

        The service connects in its main thread. A service that was stopped can
        be started again.

        :raises ConfigError: An option cannot be used, or the service is
            already started.
        :raises InvalidMemberId: The option ``member_id`` is too long for a
            coordination service, or has characters that it cannot store.
        """
        self._drained = threading.Event()
        self._pause = threading.Event()
        self._returned = False
        super().start()

    def stop(self, graceful: bool = True) -> None:
        """Reject new work, finish the runs in progress, and leave the group.

        Runs that have not started are returned to the schedulers. The call
        waits for the runs for at most ``graceful_shutdown_timeout`` minus 2
        seconds, so that it can close the connections before the launcher kills
        the process. The call does nothing if the service was not started or is
        already stopping.

        :param graceful: Ignored; accepted because oslo.service passes it.
        """
        if not self._started.is_set() or self._stopping.is_set():
            return
        self._stop_requested()
        # Publish zero slots, but stay visible. Schedulers then send nothing
        # more, and do not repeat the runs that are still in progress here.
        self._member.publish(slots=0)
        self._inbox.put(events.Called(self._return_unstarted))
        self._executor.drain()
        end = self._clock.monotonic() + lifecycle.grace(self._conf)
        while not self._is_idle() and self._clock.monotonic() < end:
            self._executor.watch()
            self._pause.wait(0.02)
        if self._executor.busy:
            LOG.warning(
                'stopped before the end: member=%s running=%d; these runs '
                'had not ended; the schedulers send their objects to other '
                'workers, except those of at_most_once jobs',
                self._member_id, self._executor.busy)
            self._executor.cancel()
        elif not self._is_idle():
            LOG.warning(
                'stopped before the end: member=%s running=0; the store has '
                'not recorded all results and returned runs; the schedulers '
                'take these objects over when their leases expire, at most '
                '%g s from now', self._member_id, self._settings.lease)
        self._handlers.stop_threads()
        if self._store is not None and not self._is_busy():
            # Other workers then need not wait until the lease has expired.
            self._inbox.put(events.Called(self._role.depart))
        if self._store is not None and self._serving.is_set():
            self._control.stopped()
            self._flush(end)
        # Send the reports before leaving the group, because schedulers regard
        # a worker that has left as lost. Reserve some of the time for leaving.
        leave_by = end + lifecycle.CLOSING
        self._notices.close(timeout=self._share(0.2, leave_by))
        self._bus.close(timeout=self._share(0.4, leave_by))
        self._leave(self._share(1.0, leave_by))
        self._drained.set()
        self._inbox.put(events.Woken())
        self._ended.wait(self._share(0.7, leave_by))
        if self._store is not None:
            self._store.stop(self._share(1.0, leave_by))
        self._close_rest(leave_by)
        LOG.info('worker stopped: member=%s', self._member_id)

    def _return_unstarted(self) -> None:
        """Return the work that no handler has started, and take no more."""
        self._role.close()
        if self._run_leases is not None:
            self._run_leases.close()
        self._returned = True

    def _is_idle(self) -> bool:
        """Return whether all runs are recorded or returned to the store."""
        if self._executor.busy:
            return False
        if self._run_leases is None or not self._serving.is_set():
            return True
        return self._returned and self._run_leases.settled

    def _flush(self, end: float) -> None:
        """Record and report all results; stop at *end*."""
        assert self._store is not None
        handled = threading.Event()
        for _ in range(2):
            # Do this twice, because the reports in the inbox send requests to
            # the store, and the answers come back through the inbox.
            handled.clear()
            self._inbox.put(events.Called(handled.set))
            handled.wait(max(0.1, end - self._clock.monotonic()))
            self._store.flush(max(0.1, end - self._clock.monotonic()))
