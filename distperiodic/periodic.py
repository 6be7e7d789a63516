# SPDX-License-Identifier: Apache-2.0
"""The decorator and the base class with which a service declares jobs::

    class NodeTasks(PeriodicTasks):

        def list_nodes(self, context):
            return db.nodes()

        @periodic_task(spacing=60, objects='list_nodes')
        def poll(self, context, node_id):
            ...

A service passes an instance of such a class to the scheduler service and to
the worker service, and these run the jobs of the class. Alternatively, a
service runs its tasks in a loop of its own, as with oslo.service. The loop
then calls :meth:`PeriodicTasks.run_periodic_tasks`.

Methods decorated by ``oslo_service.periodic_task`` are jobs, too. This module
recognises such methods by the attributes that the decorator sets. It does not
import oslo.service, because the import would select the default backend for
the whole process.

The file is long because it documents each argument of the decorator.
"""

import difflib
import functools
import inspect
import logging
import os
import sys
import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import TypeVar
from typing import cast
from typing import overload

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import task_values
from distperiodic.core.context import Context
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import Row
from distperiodic.core.job import Delivery
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job import check_ended
from distperiodic.core.job import command_job
from distperiodic.core.job import schedule_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.core.schedule import datetime_of
from distperiodic.core.suggestion import did_you_mean
from distperiodic.exceptions import InvalidJob
from distperiodic.exceptions import InvalidSchedule
from distperiodic.exceptions import InvalidWorkflow
from distperiodic.exceptions import JobNameTaken
from distperiodic.ports import Clock

LOG = logging.getLogger(__name__)

# Default spacing of a task in seconds, as in oslo.service. This is also the
# maximum that run_periodic_tasks() returns.
DEFAULT_SPACING = 60.0

#: Type of a decorated method. The decorator returns a method of the same type.
Method = TypeVar('Method', bound=Callable[..., Any])

_MARK = '_distperiodic_job'
_DOORS = ('jobs', 'commands', 'handler', 'catalogue')


@overload
def periodic_task(method: Method, /) -> Method: ...


@overload
def periodic_task(
    *,
    spacing: float | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    objects: str | None = None,
    scope: Scope | str | None = None,
    misfire: Misfire | str = Misfire.LATEST,
    overlap: Overlap | str = Overlap.SKIP,
    spread: bool = False,
    retries: int = 0,
    retry_backoff: float = 1.0,
    timeout: float | None = None,
    priority: int = 0,
    topic: str = 'default',
    max_in_flight: int | None = None,
    delivery: Delivery | str = Delivery.AT_LEAST_ONCE,
    name: str | None = None,
    enabled: bool = True,
    run_immediately: bool = False,
    grace: float | None = None,
) -> Callable[[Method], Method]: ...


def periodic_task(
    method: Any = None,
    /,
    *,
    spacing: float | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    objects: str | None = None,
    scope: Scope | str | None = None,
    misfire: Misfire | str = Misfire.LATEST,
    overlap: Overlap | str = Overlap.SKIP,
    spread: bool = False,
    retries: int = 0,
    retry_backoff: float = 1.0,
    timeout: float | None = None,
    priority: int = 0,
    topic: str = 'default',
    max_in_flight: int | None = None,
    delivery: Delivery | str = Delivery.AT_LEAST_ONCE,
    name: str | None = None,
    enabled: bool = True,
    run_immediately: bool = False,
    grace: float | None = None,
    **unknown: Any,
) -> Any:
    """Make a method a periodic job.

    The decorator may be used with or without parentheses. All arguments are
    checked when the module is imported, not at the first tick. The method that
    *objects* names is checked when the class is instantiated.

    :param method: The method, if the decorator is used without parentheses.
    :param spacing: Seconds between ticks, at least 0.001. All members share
        the same grid of ticks. The default is 60 if *cron* is not given.
    :param cron: Five-field cron line, instead of a spacing.
    :param timezone: Time zone of the cron line. The default is UTC.
    :param objects: Name of the method that lists the objects. The decorated
        method then runs once per object and tick. Without *objects*, *scope*
        applies.
    :param scope: ``'member'`` (default): every member runs each tick.
        ``'group'``: one member of the group runs each tick.
    :param misfire: Policy for missed ticks. ``'latest'`` (default) runs only
        the newest missed tick. ``'skip'`` runs it only within its *grace*.
        ``'all'`` runs all of them, up to a limit.
    :param overlap: Policy for a tick that is due while the previous one is
        still running: ``'skip'`` (default) or ``'wait'``.
    :param spread: True gives each object its own phase within the period, so
        that the objects do not all run at the same time.
    :param retries: Number of retries of a failed run. The default is 0.
    :param retry_backoff: Seconds until the first retry. Each further retry
        waits twice as long, at most 60 seconds. Each of these pauses is
        randomly shortened, by up to half. The default is 1.
    :param timeout: Seconds until a run counts as failed. A handler in a thread
        then continues, but its result does not count. None (default) means no
        limit.
    :param priority: Jobs with a higher number are dispatched first. The
        default is 0.
    :param topic: Partition whose workers run the job. The default is
        ``'default'``.
    :param max_in_flight: Number of objects of this job that may run at the
        same time. None (default) means no limit for the job.
    :param delivery: ``'at_least_once'`` (default) or ``'at_most_once'``.
    :param name: Name of the job. The default is the name of the method.
        Claims are stored under this name, so a new name creates a new job.
    :param enabled: False defines the job but never runs it.
    :param run_immediately: True runs the job for an object as soon as the
        object is listed, without waiting for its next tick. With a store, this
        happens when the object is first listed, and when it is listed again
        after it was removed. Without a store, and for a job that runs on every
        member, it happens each time a process starts.
    :param grace: Seconds by which a tick may be late under
        ``misfire='skip'``. The default is one period, at most 60.
    :raises InvalidSchedule: The spacing, cron line or time zone is invalid or
        yields no ticks, or these arguments contradict each other.
    :raises InvalidJob: Another argument has an illegal value or an unknown
        name. Or the method is a coroutine or generator function, or is
        decorated twice.
    :returns: The unchanged method if the decorator is used without
        parentheses; otherwise a decorator that returns the method unchanged.
    :rtype: Callable
    """

    if unknown:
        raise InvalidJob(f'{_caller()}: {_no_such_argument(min(unknown))}')
    if method is not None and not _is_method(method):
        raise InvalidJob(
            f'{_caller()}: periodic_task({method!r}) is not a method; pass '
            'options by name, e.g. periodic_task(spacing=60)'
        )

    def decorate(function: Any) -> Any:
        where = _defined_at(function)
        _check_runs_at_once(function, where)
        job_name = _plain(function).__name__ if name is None else name
        every = spacing
        if spacing is None and cron is None:
            every = DEFAULT_SPACING
        try:
            schedule = schedule_of(every, cron, timezone)
        except InvalidSchedule as error:
            raise InvalidSchedule(
                f'{where}: job {job_name!r}: {error}'
            ) from None
        default_scope = Scope.MEMBER if objects is None else Scope.OBJECTS
        job = Job(
            name=job_name,
            schedule=schedule,
            # Job converts text to enum members, or rejects it.
            scope=cast(Scope, default_scope if scope is None else scope),
            objects=objects,
            misfire=cast(Misfire, misfire),
            overlap=cast(Overlap, overlap),
            spread=spread,
            retries=retries,
            retry_backoff=retry_backoff,
            timeout=timeout,
            priority=priority,
            topic=topic,
            max_in_flight=max_in_flight,
            delivery=cast(Delivery, delivery),
            enabled=enabled,
            run_immediately=run_immediately,
            grace=grace,
            defined_at=where,
        )
        _mark(function, job)
        return function

    return decorate if method is None else decorate(method)


def command(module: str, name: str) -> Callable[[Method], Method]:
    """Make a method a command that the steps of tasks run.

    The method is called as ``method(context, parameters)``. It returns a
    dictionary to merge into the parameters of later steps, or None. An
    exception means that the step has failed.

    :param module: Name of the module: the partition whose workers run the
        command. It consists of letters, digits, ``_`` and ``-``.
    :param name: Name of the command within its module.
    :raises InvalidWorkflow: A name cannot be used.
    :raises InvalidJob: The method is a coroutine or generator function, or is
        decorated twice.
    :returns: A decorator that returns the method unchanged.
    """
    for value, is_module in ((module, True), (name, False)):
        if problem := task_values.name_problem(value, is_module):
            raise InvalidWorkflow(
                f'{_caller()}: the {"module" if is_module else "command"} is '
                f'{problem}')

    def decorate(function: Any) -> Any:
        where = _defined_at(function)
        _check_runs_at_once(function, where)
        _mark(function, command_job(module, name, where))
        return function
    return decorate


def _mark(function: Any, job: Job) -> None:
    """Attach *job* to the decorated *function*."""
    plain = _plain(function)
    if hasattr(plain, _MARK):
        raise InvalidJob(
            f'{job.defined_at}: {plain.__name__} is decorated twice; '
            'write a second method that calls the first'
        )
    setattr(plain, _MARK, job)


class PeriodicTasks:
    """Base class for the jobs of a service.

    Derive a class from this one and decorate its methods. A subclass inherits
    the jobs of its bases. If a subclass overrides a decorated method, the
    inherited job is replaced by the job of the new method. If the new method
    is not decorated, the inherited job is removed.

    The signature of a decorated method is checked when the class is defined.

    :param conf: Configuration of the service, or None. The instance keeps it
        as the attribute ``conf``.
    :raises JobNameTaken: Two methods define jobs with the same name.
    :raises InvalidJob: ``objects=`` names no usable method of this class, or a
        method of the class overrides a method that the services call. The
        definition of a subclass raises this error, too, if a decorated method
        has the wrong parameters.
    :raises InvalidSchedule: A method is decorated by oslo.service, with a
        spacing that yields no ticks.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for member in _members_of(cls).values():
            _check_arguments(member)

    def __init__(self, conf: Any = None) -> None:
        super().__init__()
        self.conf = conf
        self.clock: Clock = SystemClock()
        self._jobs: dict[str, Job] = {}
        self._commands: dict[str, Job] = {}
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._last_ticks: dict[str, Instant] = {}
        for door in _DOORS:
            if getattr(type(self), door) is not getattr(PeriodicTasks, door):
                raise InvalidJob(
                    f'{type(self).__name__}.{door} overrides a member of '
                    'PeriodicTasks that the services call; rename it'
                )
        for attribute, member in _members_of(type(self)).items():
            job = _job_of(member, conf)
            if job is not None:
                self._add(job, getattr(self, attribute))

    @property
    def jobs(self) -> Mapping[str, Job]:
        """All jobs by name, including disabled ones. Read-only.

        :raises InvalidJob: A subclass has not called ``super().__init__()``.
        """
        return types.MappingProxyType(self._known_jobs())

    @property
    def commands(self) -> Mapping[str, Job]:
        """Jobs of the commands by name, ``task:module.command``. Read-only.

        :raises InvalidJob: A subclass has not called ``super().__init__()``.
        """
        self._known_jobs()
        return types.MappingProxyType(self._commands)

    def handler(self, name: str) -> Callable[..., Any]:
        """Return the decorated method of job *name*, bound to this instance.

        :param name: Name of a job from :attr:`jobs` or :attr:`commands`.
        :raises InvalidJob: No job has this name.
        """
        if name not in self.commands:
            self._job(name)
        return self._in_context(self._handlers[name])

    def catalogue(self, name: str) -> Callable[..., Any] | None:
        """Return the bound method that lists the objects of job *name*.

        :param name: Name of the job.
        :returns: The method. None means that the job has no objects.
        :raises InvalidJob: No job has this name.
        """
        method = self._job(name).objects
        return None if method is None else self._in_context(
            getattr(self, method))

    def make_context(self, context: Context) -> Any:
        """Return the context to pass to a handler or a catalogue method.

        Override this method to pass a context of your own, such as the
        ``RequestContext`` that the rest of your service expects. The scheduler
        and worker services call it before each run and each catalogue read, in
        the thread of that run or read. If it raises an exception, the run or
        the read fails.

        :param context: Context of the run or the read; see
            :class:`distperiodic.Context`.
        :returns: The first argument of the handler or the catalogue method.
        """
        return context

    def _in_context(self, method: Callable[..., Any]) -> Callable[..., Any]:
        if type(self).make_context is PeriodicTasks.make_context:
            return method

        @functools.wraps(method)
        def call(context: Context, *args: Any) -> Any:
            return method(self.make_context(context), *args)
        return call

    def add_periodic_task(self, task: Callable[..., Any]) -> None:
        """Add a job that is not a method of this class.

        :param task: Decorated function, or decorated method of another
            object. A function is called with this instance as its first
            argument.
        :raises InvalidJob: *task* is not decorated, or has the wrong
            parameters, or its ``objects=`` names no usable method.
        :raises InvalidSchedule: *task* is decorated by oslo.service, with a
            spacing that yields no ticks.
        :raises JobNameTaken: A job with this name exists.
        """
        self._known_jobs()
        job = _job_of(task, self.conf)
        if job is None:
            raise InvalidJob(
                f'{_defined_at(task)}: {task!r} is not a periodic task; '
                'decorate it with periodic_task'
            )
        _check_arguments(task)
        if not inspect.ismethod(task):
            task = types.MethodType(task, self)
        self._add(job, task)

    def run_periodic_tasks(
        self, context: Any, raise_on_error: bool = False
    ) -> float:
        """Run all due tasks in this thread, one after the other.

        This method is for services that run their tasks in a loop of their
        own. Do not pass the same instance to a scheduler service, because each
        tick would then run twice. Only jobs with scope ``'member'`` run. There
        are no retries and no timeouts. A long run delays the runs that become
        due in the meantime, but does not shift the later ticks.

        :param context: Passed unchanged to every task.
        :param raise_on_error: True raises the exception of a task; the
            remaining tasks run at the next call. False logs the exception and
            continues with the next task.
        :returns: Seconds until the next task is due, from 0 to 60.
        :raises Exception: A task raised this exception, and *raise_on_error*
            is true.
        """
        own = []
        for job in self._known_jobs().values():
            if not job.enabled:
                continue
            if job.scope is not Scope.MEMBER:
                self._warn_left_out(job)
                continue
            own.append(job)
            for tick in self._take_due(job):
                self._run(job, tick, context, raise_on_error)
        now = self.clock.now()
        waits = [
            job.schedule.after(self._last_ticks[job.name]) - now for job in own
        ]
        idle = min(waits, default=SECOND * DEFAULT_SPACING) / SECOND
        return min(max(idle, 0.0), DEFAULT_SPACING)

    def _known_jobs(self) -> dict[str, Job]:
        try:
            return self._jobs
        except AttributeError:
            cls = type(self).__name__
            raise InvalidJob(
                f'{cls} has no jobs yet; call super().__init__(conf) first '
                f'in {cls}.__init__'
            ) from None

    def _job(self, name: str) -> Job:
        jobs = self._known_jobs()
        if name not in jobs:
            raise InvalidJob(
                f'{type(self).__name__} has no job {name!r}; its jobs are '
                f'{", ".join(jobs) or "none"}'
            )
        return jobs[name]

    def _add(self, job: Job, handler: Callable[..., Any]) -> None:
        taken = self._jobs.get(job.name) or self._commands.get(job.name)
        if taken is not None:
            raise JobNameTaken(job.name, taken.defined_at, job.defined_at)
        if job.objects is not None:
            self._check_catalogue(job, job.objects)
        jobs = self._commands if job.scope is Scope.TASK else self._jobs
        jobs[job.name] = job
        self._handlers[job.name] = handler

    def _check_catalogue(self, job: Job, method: str) -> None:
        cls = type(self)
        found = getattr(self, method, None)
        if not callable(found):
            names = [
                name
                for name in dir(cls)
                if not name.startswith('_')
                and not hasattr(PeriodicTasks, name)
                and callable(getattr(cls, name))
            ]
            hint = did_you_mean(method, names)
            raise InvalidJob(
                f'{job.defined_at}: job {job.name!r}: objects={method!r} '
                f'names no method of {cls.__name__}{hint or "; define it"}'
            )
        if inspect.iscoroutinefunction(found):
            raise InvalidJob(
                f'{job.defined_at}: job {job.name!r}: objects={method!r} is '
                'a coroutine function, but catalogue methods are not '
                'awaited; define it with def'
            )
        parameters = inspect.signature(found).parameters
        wanted = ('context', *(['arcs'] if 'arcs' in parameters else []))
        if not _takes(found, len(wanted), follow_wrapped=True):
            raise InvalidJob(
                f'{job.defined_at}: job {job.name!r}: {method}() is called '
                f'as {method}({", ".join(wanted)}), but its parameters '
                f'differ: {_defined_at(found)}'
            )

    def _take_due(self, job: Job) -> tuple[Instant, ...]:
        """Return the ticks of *job* to run now.

        Later calls do not return these ticks again, unless the clock was set
        back, or :meth:`_run` raised the exception of an earlier tick.
        """
        now = self.clock.now()
        newest = job.schedule.at_or_before(now)
        newest = now if newest is None else newest
        last = self._last_ticks.get(job.name)
        if last is None:
            self._last_ticks[job.name] = newest
            return (now,) if job.run_immediately else ()
        if job.schedule.after(now) < last:
            # The clock was set back by more than a period. The job continues
            # at its next tick by the new time. If the job waited until the
            # clock reached the last tick again, the job might not run for
            # hours. After a smaller change of the clock, the job does wait.
            LOG.warning(
                'clock set back: job=%s last_tick=%s; the job continues at '
                'its next tick by the new time, and ticks may run a second '
                'time',
                job.name,
                datetime_of(last).isoformat(),
            )
            self._last_ticks[job.name] = newest
            return ()
        if newest <= last:
            return ()
        self._last_ticks[job.name] = newest
        # Pass the schedule as if it were an object's own schedule, because the
        # plan then has no phase.
        due = job.plan(own=job.schedule).verdict(
            Row(job.name, 0, last, ALWAYS), now)
        if due.given_up:
            LOG.warning(
                'ticks missed: job=%s dropped=%d reason=%r; they do not run',
                job.name,
                due.given_up,
                due.reason,
            )
        return due.run

    def _run(
        self, job: Job, tick: Instant, context: Any, raise_on_error: bool
    ) -> None:
        try:
            check_ended(job.name, self._handlers[job.name](context))
        except Exception:
            if raise_on_error:
                # The next call runs the due ticks that come after this one.
                self._last_ticks[job.name] = min(
                    tick, self._last_ticks[job.name])
                raise
            LOG.exception(
                'task failed: job=%s tick=%s; the other tasks continue, and '
                'this one runs again at its next tick',
                job.name,
                datetime_of(tick).isoformat(),
            )

    def _warn_left_out(self, job: Job) -> None:
        if job.name in self._last_ticks:
            return
        self._last_ticks[job.name] = self.clock.now()
        LOG.warning(
            'job not run here: job=%s scope=%s; only a scheduler service can '
            'run this job; start one with these tasks',
            job.name,
            job.scope,
        )


def _members_of(cls: type) -> dict[str, Any]:
    """Return the attributes of *cls* and its bases by name, bases first.

    A method that a subclass overrides keeps the place of the original method
    in this order.
    """
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        members.update(vars(base))
    return members


def _check_arguments(member: Any) -> None:
    """Check that a handler accepts the arguments that its job passes.

    :raises InvalidJob: The handler does not accept these arguments. The
        message gives the file and line of the handler.
    """
    plain = _plain(member)
    job = getattr(plain, _MARK, None)
    if not isinstance(job, Job):
        return
    wanted = ['context', *(
        ['object_id'] if job.objects is not None else
        ['parameters'] if job.scope is Scope.TASK else [])]
    bound = isinstance(member, staticmethod) or inspect.ismethod(member)
    called = member if bound else plain
    if _takes(called, len(wanted) + (not bound)):
        return
    raise InvalidJob(
        f'{job.defined_at}: {plain.__name__} is called as '
        f'{plain.__name__}({", ".join(wanted)})'
        f'{" for each object" if job.objects is not None else ""}, and is '
        f'{plain.__name__}{inspect.signature(plain, follow_wrapped=False)}'
        + ('' if len(wanted) > 1 or not _takes(
            called, len(wanted) + 1 + (not bound))
           else "; give objects='METHOD' to run it for each object")
    )


def _takes(function: Any, number: int, follow_wrapped: bool = False) -> bool:
    """Return whether *function* accepts *number* positional arguments."""
    try:
        signature = inspect.signature(
            function, follow_wrapped=follow_wrapped)
    except ValueError:
        # Functions written in C may have no signature.
        return True
    try:
        signature.bind(*[None] * number)
    except TypeError:
        return False
    return True


def _no_such_argument(name: str) -> str:
    known = [
        parameter.name
        for parameter in inspect.signature(periodic_task).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    near = difflib.get_close_matches(name, known, 1)
    hint = (f'did you mean {near[0]!r}?' if near
            else f'its arguments are {", ".join(known)}')
    return f'periodic_task has no argument {name!r}; {hint}'


def _caller() -> str:
    """Return the file and line that called the caller of this function."""
    frame = sys._getframe(2)
    return _place(frame.f_code.co_filename, frame.f_lineno)


def _job_of(member: Any, conf: Any) -> Job | None:
    """Return the job of a decorated *member*.

    The decorator may be that of this module or that of oslo.service. None
    means that *member* is not decorated.
    """
    plain = _plain(member)
    job = getattr(plain, _MARK, None)
    if isinstance(job, Job):
        return job
    # Compare with 'is True', because a mock returns a true value for every
    # attribute.
    if getattr(plain, '_periodic_task', None) is True:
        return _oslo_job(plain, conf)
    return None


def _oslo_job(task: Any, conf: Any) -> Job:
    """Return the job of a method decorated by oslo.service.

    In ``oslo_service.periodic_task`` a spacing of 0 means the default
    spacing, and a negative spacing disables the task.
    """
    where = _defined_at(task)
    spacing = task._periodic_spacing
    enabled = bool(task._periodic_enabled)
    if task._periodic_external_ok:
        # The option exists only if oslo.service has registered it.
        enabled &= getattr(conf, 'run_external_periodic_tasks', True)
    if spacing < 0:
        enabled = False
    try:
        schedule = schedule_of(
            spacing if spacing > 0 else DEFAULT_SPACING, None, None
        )
    except InvalidSchedule as error:
        raise InvalidSchedule(
            f'{where}: job {task._periodic_name!r}: {error}'
        ) from None
    return Job(
        name=task._periodic_name,
        schedule=schedule,
        enabled=enabled,
        run_immediately=bool(task._periodic_immediate),
        defined_at=where,
    )


def _plain(function: Any) -> Any:
    """Return the function of a static, class or bound method."""
    return getattr(function, '__func__', function)


def _is_method(value: Any) -> bool:
    return inspect.isfunction(_plain(value))


def _check_runs_at_once(function: Any, where: str) -> None:
    """Reject coroutine and generator functions.

    A call of such a function does not execute its body.

    :raises InvalidJob: *function* is such a function.
    """
    plain = _plain(function)
    if (
        inspect.iscoroutinefunction(plain)
        or inspect.isgeneratorfunction(plain)
        or inspect.isasyncgenfunction(plain)
    ):
        raise InvalidJob(
            f'{where}: {plain.__name__} is a coroutine or generator '
            'function, so a call would not run it; define it with def and '
            'without yield'
        )


def _defined_at(function: Any) -> str:
    """Return the file and line of *function*, such as 'nodes.py:41'.

    If the function is decorated, the line is that of its first decorator.
    """
    code = getattr(inspect.unwrap(_plain(function)), '__code__', None)
    if code is None:
        return 'unknown place'
    return _place(code.co_filename, code.co_firstlineno)


def _place(path: str, line: int) -> str:
    return f'{os.path.basename(path)}:{line}'
