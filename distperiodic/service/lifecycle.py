# SPDX-License-Identifier: Apache-2.0
"""Start and stop of a service, common to schedulers and workers."""

import abc
import collections
import contextlib
import logging
import queue
import signal
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import Protocol

from oslo_config import cfg
from oslo_service import backend
from oslo_service import opts as service_opts
from oslo_service.backend.base import ServiceBase

from distperiodic import exceptions
from distperiodic import loading
from distperiodic import opts
from distperiodic import periodic
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.local import tracing
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.process_slot import ProcessSlot
from distperiodic.adapters.local.process_slot import host_name
from distperiodic.adapters.local.store_thread import StoreThread
from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.core import metric_table
from distperiodic.core.control import Me
from distperiodic.core.control import MemberCommand
from distperiodic.core.control import MemberOutcome
from distperiodic.core.control_message import ControlReply
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import check_identity
from distperiodic.core.member import process_of
from distperiodic.core.tally import Tally
from distperiodic.core.telemetry import MemberJoined
from distperiodic.core.telemetry import MemberLeft
from distperiodic.core.telemetry import MemberRole
from distperiodic.core.telemetry import QueueHalted
from distperiodic.core.telemetry import TaskMoved
from distperiodic.core.workflow import ENDED
from distperiodic.core.workflow import Status
from distperiodic.flow import events
from distperiodic.flow.log_throttle import LogThrottle
from distperiodic.service import heap
from distperiodic.service import metrics_endpoint
from distperiodic.service.checks import check_backend
from distperiodic.service.checks import check_main_thread
from distperiodic.service.checks import check_options
from distperiodic.service.checks import check_service
from distperiodic.service.checks import warn_of_options
from distperiodic.service.checks import warn_of_workflows
from distperiodic.service.handlers import Handlers
from distperiodic.service.member_control import MemberControl
from distperiodic.service.member_report import MemberReports
from distperiodic.store import check_store

LOG = logging.getLogger(__name__)

#: Seconds of graceful_shutdown_timeout that are reserved for the closing of
#: connections.
CLOSING = 2.0
# Maximum number of seconds between two attempts to connect.
_LONGEST_PAUSE = 3.0
# Seconds until the same reason for a failed start is logged again.
_LOG_AGAIN = 30.0
_NO_SCHEDULER = MemberOutcome(
    False, 'it is a worker, and only schedulers carry out commands on jobs')
# Maximum number of characters of an error in a report.
_REPORTED = 300
# Maximum number of subscribers in a report.
_REPORTED_SUBSCRIBERS = 5
# Statuses of the tasks that a process counts.
_NOT_ACTIVE = (*sorted(ENDED), Status.STUCK)
#: Seconds between two checks of timeouts, leases and back-offs.
SWEEP = 0.25


def read_again(conf: cfg.ConfigOpts) -> None:
    """Read the mutable options of *conf* again.

    If a file has an error, all options keep their values, and one log line
    states the error.
    """
    # oslo.config has no public way to restore the previous values.
    before = conf._mutable_ns
    try:
        conf.mutate_config_files()
        # An invalid value is detected only when the option is read.
        opts.settings(conf)
    except (cfg.Error, exceptions.ConfigError, ValueError, OSError) as exc:
        # A process that is forked later must not fail because of the error.
        conf._mutable_ns = before
        # This clears the values that conf has cached.
        conf.register_opts([])
        LOG.error('options not read again: reason=%s; all options keep their '
                  'values; correct the file and send SIGHUP again',
                  ' '.join(str(exc).split()))


class ServiceBus(Protocol):
    """The message bus, to which a service connects before the store."""

    @property
    def problem(self) -> str | None: ...

    def start(self, timeout: float) -> None: ...

    def reply(self, reply: ControlReply, word: str) -> None: ...


# A class derived from one without types would have any attribute.
@ServiceBase.register
class Lifecycle(abc.ABC):
    """Base class of the scheduler and the worker: a service of oslo.service.

    A service has one main thread, and its stop takes a limited time.
    """

    _kind = ''
    #: Handlers of this service. The subclass sets them before each start.
    _handlers: Handlers

    def __init__(self, conf: cfg.ConfigOpts, tasks: periodic.PeriodicTasks):
        super().__init__()
        self._conf = conf
        self._tasks = tasks
        #: Tasks of partitions that have their own class, by topic.
        self._own_tasks: dict[str, periodic.PeriodicTasks] = {}
        check_backend()
        self._clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process constructs this service.

        A launcher that spawns its processes pickles the service. Threads and
        connections exist only in the process that has started the service.
        """
        return type(self), (self._conf, self._tasks)

    def _clear(self) -> None:
        """Reset the state to that of a service that was never started."""
        self._started = threading.Event()
        #: Set once the bus and the store are connected and the main thread is
        #: about to read the inbox.
        self._serving = threading.Event()
        self._ended = threading.Event()
        self._stopping = threading.Event()
        #: Either the stop is requested first, or the service serves first.
        self._stop_lock = threading.Lock()
        self._problem: BaseException | None = None
        #: True if :func:`heap.freeze` was called but not undone yet.
        self._frozen = False
        self._slot: ProcessSlot | None = None
        self._member_id = ''
        #: Membership of this process. None means that it joins no group.
        self._group_member: ToozMembership | None = None
        #: Monotonic time of the last pass of the main thread's loop, in
        #: seconds.
        self._last_turn = 0.0
        #: Monotonic times in seconds: when the process started to serve, and
        #: since when it has not been healthy. None means that it is healthy.
        self._started_at = 0.0
        self._unhealthy_since: float | None = None
        self._store: StoreThread | None = None
        #: Number of tasks that ended or became stuck in store calls of this
        #: process, by status.
        self._task_outcomes: collections.Counter[Status] = (
            collections.Counter())
        #: Events from other threads, for the main thread.
        self._inbox: queue.SimpleQueue[events.Event] = (
            queue.SimpleQueue())

    def start(self) -> None:
        """Start the threads of the service and return at once.

        The service connects in its main thread. A service that was stopped can
        be started again.

        :raises ConfigError: An option cannot be used, or the service is
            already started.
        :raises InvalidMemberId: The option ``member_id`` is too long for a
            coordination service, or has characters that it cannot store.
        """
        check_backend()
        if self._started.is_set():
            if not self._ended.is_set():
                raise exceptions.ConfigError(
                    f'this {self._kind} is already started; call stop() '
                    'before you start it again')
            self._clear()
        self._settings = check_options(self._conf, self._kind)
        if self._settings.traces:
            tracing.install(f'[{opts.GROUP}] traces')
        self._warn_unknown_partitions()
        if self._tasks.commands and not self._settings.connection:
            LOG.warning(
                'commands without a store: commands=%s; tasks are kept in a '
                'store, so none runs here; set [distperiodic] connection',
                ', '.join(sorted(self._tasks.commands)))
        self.load_handlers(self._settings)
        warn_of_options(self._conf)
        warn_of_workflows(self._settings, self._tasks, self._kind)
        self._clock = SystemClock()
        self._last_turn = self._started_at = self._clock.monotonic()
        self._prepare()
        bus = self._messages()
        self._control = MemberControl(
            self, Me(self._settings.group, self._part, self._member_id),
            process_of(self._entry()), settings=self._settings,
            clock=self._clock, reply=None if bus is None else bus.reply,
            put=self._inbox.put)
        self._reports = MemberReports(
            self._kind, self._handlers.executor, self._commands(),
            stored=bool(self._settings.connection))
        self._started.set()
        self._remove_gauges = SUBSCRIBERS.add_gauges(self._add_gauges)
        SUBSCRIBERS.expect(self._known_jobs())
        self._stop_metrics = metrics_endpoint.start(self._settings)
        threading.Thread(target=self._main, daemon=True,
                         name=f'distperiodic-{self._kind}').start()

    def _warn_unknown_partitions(self) -> None:
        # Several services may share a configuration file, so an unknown
        # partition need not be an error.
        topics = sorted({job.topic for job in self._known_jobs().values()})
        for topic in sorted(set(self._settings.partitions) - set(topics)):
            LOG.warning(
                'partition of no job: section=%s topics=%s; its options have '
                'no effect here; it may belong to another service that reads '
                'the same file; otherwise correct its name',
                opts.PARTITION + self._settings.partitions[topic].name,
                ', '.join(topics))

    def _known_jobs(self, tasks: periodic.PeriodicTasks | None = None
                    ) -> dict[str, Job]:
        """Return the jobs that this service may run, by name.

        Commands are included only if there is a store.

        :param tasks: The object that defines the jobs. None means the object
            with which the service was started.
        """
        tasks = tasks or self._tasks
        jobs = dict(tasks.jobs)
        if self._settings.connection:
            jobs.update(tasks.commands)
        return jobs

    def _commands(self) -> set[str]:
        """Return the commands that this service claims or runs."""
        topic = self._settings.topic_of(self._part) if self._part else None
        tasks = self._tasks if topic is None else self._tasks_of(topic)
        return {job.name.removeprefix(COMMAND_PREFIX)
                for job in self._known_jobs(tasks).values()
                if job.scope is Scope.TASK and topic in (None, job.topic)}

    def _runs(self, settings: opts.Settings) -> Iterable[str]:
        """Return the topics whose jobs this service runs itself."""
        return ()

    def load_handlers(self, settings: opts.Settings) -> None:
        """Load the handler classes of partitions that have their own class.

        A class that was loaded before the fork is not loaded again.

        :param settings: Options of the service.
        :raises ConfigError: A class cannot be loaded, or lacks a job.
        """
        for topic in sorted(set(self._runs(settings))):
            if topic in self._own_tasks:
                continue
            tasks = loading.load_handler(
                self._conf, settings, topic, self._tasks)
            if tasks is None:
                continue
            self._own_tasks[topic] = tasks
            for job in (*self._tasks.jobs.values(),
                        *self._tasks.commands.values()):
                if (job.topic == topic and job.scope is not Scope.MEMBER
                        and job.name not in tasks.jobs
                        and job.name not in tasks.commands):
                    raise exceptions.ConfigError(
                        f'{type(tasks).__name__}, the handler of partition '
                        f'{topic!r}, has no job {job.name!r}, which '
                        f'{type(self._tasks).__name__} schedules there; '
                        'declare it, or give the job another topic')

    def _tasks_of(self, topic: str) -> periodic.PeriodicTasks:
        """Return the tasks whose handlers run the jobs of *topic*."""
        return self._own_tasks.get(topic, self._tasks)

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Build all parts of the service without opening connections."""

    def _messages(self) -> ServiceBus | None:
        """Return the message bus. None means that there is no bus."""
        return None

    @abc.abstractmethod
    def _work(self) -> None:
        """Connect, and work until the service stops.

        Called in the main thread.
        """

    def _main(self) -> None:
        try:
            self._work()
        except BaseException as exc:
            self._problem = exc
            LOG.critical(
                'the %s has stopped: error=%s: %s; the process ends, and '
                'its supervisor may start it again', self._kind,
                type(exc).__name__, exc, exc_info=not isinstance(
                    exc, exceptions.ConfigError))
        finally:
            if self._problem is not None:
                # Leave the group. Otherwise this member would own objects that
                # it does not run.
                self._leave()
            if self._frozen:
                heap.unfreeze()
            self._stop_metrics()
            self._remove_gauges()
            self._ended.set()

    @abc.abstractmethod
    def _leave(self, timeout: float = CLOSING) -> None:
        """Leave all groups within *timeout* seconds."""

    @property
    def member_id(self) -> str:
        """Name of this process in its group; empty before the first start."""
        return self._member_id

    @property
    def title(self) -> str:
        """Title, as shown by ps, of a process that only runs this service."""
        return f'distperiodic: {self._kind} {self.member_id}'

    def status(self) -> dict[str, Any]:
        """Return the state of this process for a health check.

        The result has the keys that schedulers and workers have in common; see
        :meth:`.SchedulerService.status`.
        """
        problem: object = self._problem
        healthy = self._started.is_set() and not self._ended.is_set()
        if not self._started.is_set():
            problem = f'the {self._kind} was not started'
        elif self._ended.is_set():
            problem = problem or f'the {self._kind} was stopped'
        member = self._group_member
        if member is not None:
            healthy = healthy and member.joined()
            problem = problem or member.problem
        if self._store is not None and self._store.problem is not None:
            healthy, problem = False, problem or self._store.problem
        if healthy and self._serving.is_set():
            seconds = self._clock.monotonic() - self._last_turn
            if seconds > self._settings.session_timeout:
                healthy = False
                problem = (
                    f'the main thread has been stalled for {seconds:.0f} s')
        status: dict[str, Any] = {
            'member': self._member_id,
            'healthy': healthy,
            'problem': str(problem) if problem else None,
            'pools': self._pools() if self._started.is_set() else {},
        }
        if self._store is not None and self._tasks.commands:
            status['tasks'] = {
                str(one): self._task_outcomes[one] for one in _NOT_ACTIVE}
        return status

    def _add_gauges(self, tally: Tally) -> None:
        """Add the state of this service to *tally*."""
        status = Lifecycle.status(self)
        tally.count(metric_table.SERVICES, self._kind)
        tally.count(metric_table.SERVICES_HEALTHY, self._kind,
                    number=status['healthy'])
        for topic, pool in status['pools'].items():
            for state, number in (
                    ('busy', pool['busy']), ('hanging', pool['hanging']),
                    ('free', max(0, pool['size'] - pool['busy']))):
                tally.count(metric_table.SLOTS, topic, state, number=number)
            tally.count(metric_table.OBJECTS_QUEUED, topic,
                        number=pool['queued'])
        if self._group_member is not None:
            seen: dict[MemberRole, int] = {}
            for group in self._watched():
                with contextlib.suppress(exceptions.ViewUnknown):
                    role = self._role_in(group)
                    seen[role] = seen.get(role, 0) + len(
                        self._group_member.view(group).members)
            for role, number in seen.items():
                tally.set(metric_table.MEMBERS_SEEN, role.value, value=number)

    @abc.abstractmethod
    def _watched(self) -> Iterable[str]:
        """Return the groups whose members this process knows."""

    def _role_in(self, group: str) -> MemberRole:
        return (MemberRole.SCHEDULER if group == self._settings.group
                else MemberRole.WORKER)

    def _pools(self) -> dict[str, dict[str, int]]:
        """Return the numbers of threads and of queued objects, by topic."""
        return self._handlers.pools()

    def exit_if_unusable(self, processes: int) -> None:
        """End the program if this service cannot start.

        :param processes: Number of processes that will run the service.
        :raises SystemExit: An option, a URL, a job or the tables cannot be
            used. The text is one line.
        """
        try:
            settings = check_service(self._conf, self._tasks, self._kind)
            self.load_handlers(settings)
            if processes > 1 and not settings.backend_url and any(
                    job.scope is not Scope.MEMBER
                    for job in (*self._tasks.jobs.values(),
                                *self._tasks.commands.values())):
                raise exceptions.ConfigError(
                    f'{processes} processes with an empty [distperiodic] '
                    'backend_url would each own all objects; set it, for '
                    'example to file:///var/lib/my-service, or run only one '
                    'process')
        except exceptions.ConfigError as exc:
            raise SystemExit(f'{self._kind}: {exc}') from None

    def run(self) -> None:
        """Start, work until SIGTERM or Ctrl-C, and stop gracefully.

        A program that runs only this service needs no launcher, but only this
        call. Call it in the main thread. SIGHUP makes the service read the
        mutable options again. A second Ctrl-C ends the process at once.

        :raises SystemExit: An option cannot be used; the text is one line.
        :raises RuntimeError: This is not the main thread.
        :raises Exception: The error that stopped the service, unless a stop
            was requested.
        """
        check_main_thread(
            'run()', 'call start(), and later stop() and wait()')
        # Select threads first. Otherwise oslo.messaging would select eventlet
        # for the whole process.
        backend.register_backend_default_hook(
            lambda: backend.BackendType.THREADING)
        arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        before: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A shell makes its background jobs ignore SIGINT. Do not change
            # that.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(
                    number, lambda number, frame: arrived.put(number))
        try:
            metrics_endpoint.check(opts.settings(self._conf))
            self.start()
            threading.Thread(
                target=self._report_end, args=(arrived,), daemon=True,
                name='distperiodic-run').start()
            while (received := arrived.get()) == signal.SIGHUP:
                self.reset()
            if received is not None:
                if signal.SIGINT in before:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                self.stop()
            self.wait()
        except exceptions.ConfigError as exc:
            # To the user of a command line, the message is more helpful than a
            # traceback.
            raise SystemExit(f'{self._kind}: {exc}') from None
        finally:
            for known, handler in before.items():
                signal.signal(known, handler)

    def _report_end(self, arrived: 'queue.SimpleQueue[int | None]') -> None:
        self._ended.wait()
        arrived.put(None)

    @abc.abstractmethod
    def stop(self, graceful: bool = True) -> None:
        """Finish the work in progress, and stop the service."""

    def wait(self) -> None:
        """Wait until the service has stopped.

        :raises Exception: The error that stopped the service, unless a stop
            was requested.
        """
        self._ended.wait()
        if self._problem is not None and not self._stopping.is_set():
            raise self._problem

    def reset(self) -> None:
        """Read the configuration files again and apply the mutable options.

        If an option cannot be used, all options keep their values, and the log
        states the error. The launchers call this method at SIGHUP.
        """
        read_again(self._conf)

    def _identity(self, group: str) -> str:
        if self._settings.member_id:
            return check_identity(self._settings.member_id)
        self._slot = ProcessSlot(
            self._settings.state_path, f'{self._kind}.{group}')
        return f'{host_name()}:{self._slot.number}'

    def _membership(self, identity: str,
                    announced: Announced) -> ToozMembership:
        return ToozMembership(
            self._settings.backend_url, identity, clock=self._clock,
            announced=announced,
            session_timeout=self._settings.session_timeout,
            heartbeat_interval=self._settings.coordinator_heartbeat_interval,
            changed=self._members_changed)

    def _members_changed(self, group: str, joined: Collection[str],
                         left: Collection[str]) -> None:
        """Report the members that have joined or left *group*."""
        if SUBSCRIBERS.open:
            role = self._role_in(group)
            for member in sorted(joined):
                SUBSCRIBERS.put(MemberJoined(group, role, member))
            for member in sorted(left):
                SUBSCRIBERS.put(MemberLeft(group, role, member))

    def _task_event(self, event: TaskMoved | QueueHalted) -> None:
        """Count a task that has ended or become stuck, and report *event*."""
        if isinstance(event, TaskMoved) and event.status in _NOT_ACTIVE:
            self._task_outcomes[event.status] += 1
        if SUBSCRIBERS.open:
            SUBSCRIBERS.put(event)

    def _store_thread(self) -> StoreThread:
        """Return a thread for the store, whose answers go to the inbox."""
        from distperiodic.adapters.sql.store import SqlClaimStore

        return StoreThread(
            lambda: SqlClaimStore(
                self._settings.connection, namespace=self._settings.group,
                report=self._task_event),
            lambda call: self._inbox.put(events.Called(call)),
            self._clock.monotonic)

    def _check_store(self) -> None:
        check_store(self._settings, self._conf)
        if self._store is not None:
            self._control.connect_store(self._store)

    # Control by operators; see distperiodic.service.control.Controlled.

    #: Partition of a worker. Empty means a scheduler.
    _part = ''

    @abc.abstractmethod
    def _entry(self) -> str:
        """Return the membership entry of this process."""

    @abc.abstractmethod
    def hurry(self) -> None:
        """Read the store at once, after an operator has changed it."""

    @abc.abstractmethod
    def set_drained(self, drained: bool) -> None:
        """Stop or resume the acquisition of work.

        :param drained: True stops the acquisition, except for jobs with scope
            ``'member'``. Work that is already acquired is finished in both
            cases.
        """

    @abc.abstractmethod
    def open_runs(self) -> int:
        """Return the number of objects that were acquired and have not ended.
        """

    def set_pool_size(self, size: int | None) -> MemberOutcome:
        """Set the number of threads for handlers.

        :param size: None means that the option ``pool_size`` applies.
        """
        return self._handlers.resize(size)

    def confirm_job(self, request: MemberCommand,
                    then: Callable[[MemberOutcome], None]) -> None:
        """Apply a command, which is in the store, to a job.

        Only schedulers do this.

        :param request: The command.
        :param then: Called with the answer when this service has applied the
            command.
        """
        then(_NO_SCHEDULER)

    def order_jobs(self, verb: str, arguments: Mapping[str, Any],
                   why: str) -> MemberOutcome:
        """Execute a command, which came over the bus, on jobs.

        Only schedulers do this.

        :param verb: The command.
        :param arguments: The jobs, and for a trigger the object.
        :param why: The operator's reason.
        """
        return _NO_SCHEDULER

    def report(self) -> dict[str, Any]:
        """Return the current activity of this member, for operators."""
        status, now = Lifecycle.status(self), self._clock.monotonic()
        self._note_health(status['healthy'], now)
        facts: dict[str, Any] = {'up_s': round(now - self._started_at, 3)}
        if self._unhealthy_since is not None:
            facts['unhealthy_s'] = round(now - self._unhealthy_since, 3)
        if self._store is not None:
            facts['store'] = self._store.facts()
        bus = self._messages()
        problem = None if bus is None else bus.problem
        if problem is not None:
            facts['broker'] = problem[:_REPORTED]
        unserved = metrics_endpoint.problem(self._settings)
        if unserved:
            facts['metrics'] = unserved[:_REPORTED]
        tracer = tracing.TRACING.tracer
        if tracer is not None and tracer.problem:
            facts['spans'] = tracer.problem[:_REPORTED]
        troubles = SUBSCRIBERS.troubles()
        if troubles:
            facts['subscribers'] = troubles[:_REPORTED_SUBSCRIBERS]
        return self._reports.current(
            status, open_runs=self.open_runs(),
            drained=self._control.drained) | facts

    def alarms(self) -> Hashable:
        """Return a value that changes when the report must be written at once.

        Call this several times per second.
        """
        status = Lifecycle.status(self)
        self._note_health(status['healthy'], self._clock.monotonic())
        return (status['healthy'],
                len(self._handlers.executor.hanging_runs()))

    def _note_health(self, healthy: bool, now: float) -> None:
        if healthy:
            self._unhealthy_since = None
        elif self._unhealthy_since is None:
            self._unhealthy_since = now

    def _connect(self, bus: ServiceBus | None) -> bool:
        """Connect the bus and the store.

        :return: False if the service was stopped meanwhile.
        """
        if bus is not None and not self._retry(
                lambda: bus.start(30.0), 'broker connection'):
            return False
        if not self._retry(self._check_store, 'the store'):
            return False
        with self._stop_lock:
            if self._stopping.is_set():
                return False
            self._serving.set()
        if self._store is not None:
            self._store.start()
        heap.freeze()
        self._frozen = True
        return True

    def _stop_requested(self) -> None:
        """Record that a stop was requested.

        If the main thread does not read the inbox yet, it never does.
        """
        with self._stop_lock:
            self._stopping.set()

    def _retry(self, start: Callable[[], None], what: str) -> bool:
        """Call *start* until it succeeds.

        :return: False if the service was stopped meanwhile.
        """
        pause = 0.5
        throttle = LogThrottle(self._clock, _LOG_AGAIN)
        while not self._stopping.is_set():
            try:
                start()
                return True
            except (exceptions.BusUnavailable, exceptions.SchemaError,
                    exceptions.StoreUnavailable) as exc:
                reason = str(exc)
            # Log outside the except block. Inside the block, oslo.log would
            # append the error to the line.
            if throttle.allow(reason):
                LOG.error(
                    '%s not started: reason=%s; the next attempt is in %g s',
                    what, reason, pause)
            self._stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return False

    def _close_rest(self, closed_by: float) -> None:
        """End the handler processes, and export the last spans.

        :param closed_by: As in :meth:`_share`.
        """
        self._handlers.close_processes()
        if self._slot is not None:
            self._slot.leave()
        if tracing.TRACING.tracer is not None:
            # A forked process ends without the exit handlers of the SDK.
            tracing.TRACING.tracer.flush(self._share(1.0, closed_by))

    def _share(self, share: float, closed_by: float) -> float:
        """Return the number of seconds for one step of closing.

        The result is a share of the time that is left until *closed_by*.
        """
        return min(CLOSING, max(
            0.3, share * (closed_by - self._clock.monotonic())))


def grace(conf: cfg.ConfigOpts) -> float:
    """Return the seconds for which a stop may wait for runs to end.

    The launcher kills the process after ``graceful_shutdown_timeout`` seconds.
    :data:`CLOSING` seconds of this time are reserved. If the option is 0, the
    result is one hour.
    """
    # A value in a file is unreadable without a registration.
    service_opts.register_service_opts(conf)
    total = conf.graceful_shutdown_timeout
    return max(0.5, total - CLOSING) if total else 3600.0
