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
recognises such methods by the attributes that the decorator sets. It imports
oslo.service only after it found such a method, because a program without
oslo.service should not pay for the import.
"""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import logging
import os
import sys
import types
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any
from typing import NamedTuple
from typing import TypeAlias
from typing import TypedDict
from typing import TypeVar
from typing import Unpack
from typing import get_args
from typing import get_origin
from typing import overload

from distperiodic.adapters.local import forks
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

#: Value of an option that turns a job off, by the convention of OpenStack.
_OFF = -1

#: Types of a returned value that is complete, and is not read later.
_READ = str, bytes, list, tuple, dict, set, frozenset

_MARK = '_distperiodic_job'
_DOORS = ('jobs', 'commands', 'handler', 'catalogue')

_Number = TypeVar('_Number', bound=float | str | None)
#: An argument of the decorator: the value itself, or a function that returns
#: the value for the configuration of the service.
Setting: TypeAlias = _Number | Callable[[Any], _Number]


class JobOptions(TypedDict, total=False):
    """Types of the options of :func:`periodic_task`, which describes them.

    :class:`~distperiodic.core.job.Job` has their defaults and checks them.
    """

    spacing: Setting[float | None]
    cron: Setting[str | None]
    timezone: Setting[str | None]
    objects: str | None
    scope: Scope | str | None
    misfire: Misfire | str
    overlap: Overlap | str
    spread: bool
    retries: Setting[int]
    retry_backoff: Setting[float]
    timeout: Setting[float | None]
    priority: Setting[int]
    topic: str
    max_in_flight: Setting[int | None]
    delivery: Delivery | str
    name: str | None
    enabled: Setting[bool]
    run_immediately: bool
    grace: Setting[float | None]


#: Options that may be functions of the configuration.
_SETTINGS = frozenset(
    option for option, kind in JobOptions.__annotations__.items()
    if any(get_origin(one) is Callable for one in get_args(kind)))


def _show_options(function: Any) -> Any:
    """Show the options in the signature of *function*, for ``help()``."""
    defaults = {field.name: field.default for field in dataclasses.fields(Job)
                if field.name != 'scope'}
    function.__signature__ = inspect.Signature([
        inspect.Parameter(
            'method', inspect.Parameter.POSITIONAL_ONLY, default=None),
        *(inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, annotation=kind,
            default=None if defaults.get(option) is dataclasses.MISSING
            else defaults.get(option))
          for option, kind in JobOptions.__annotations__.items())])
    return function


@overload
def periodic_task(method: Method, /) -> Method: ...


@overload
def periodic_task(
    **options: Unpack[JobOptions]) -> Callable[[Method], Method]: ...


@_show_options
def periodic_task(method: Any = None, /, **options: Any) -> Any:
    """Make a method a periodic job.

    The decorator may be used with or without parentheses. All arguments are
    checked when the module is imported, not at the first tick. The method that
    *objects* names is checked when the class is instantiated.

    Instead of a value, *spacing*, *cron*, *timezone*, *enabled*, *retries*,
    *retry_backoff*, *timeout*, *priority*, *max_in_flight* and *grace* accept
    a function of the configuration, so that the value may come from an option:
    ``spacing=lambda conf: conf.nodewatch.poll_interval``. Each instance of the
    class calls the function once, in its constructor, with the
    configuration that it received. The value is then checked in the same way.

    :param method: The method, if the decorator is used without parentheses.
    :param spacing: Seconds between ticks, at least 0.001. All members share
        the same grid of ticks. The default is 60 if *cron* is not given. The
        value -1 disables the job, as in oslo.service.
    :param cron: Five-field cron line, instead of a spacing; see
        :doc:`cron`.
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
        decorated twice. The constructor of the class raises both errors for
        values that a function of the configuration returned.
    :returns: The unchanged method if the decorator is used without
        parentheses; otherwise a decorator that returns the method unchanged.
    :rtype: Callable
    """
    if unknown := options.keys() - JobOptions.__annotations__:
        raise InvalidJob(f'{_caller()}: {_no_such_argument(min(unknown))}')
    if method is not None and not _is_method(method):
        raise InvalidJob(
            f'{_caller()}: periodic_task({method!r}) is not a method; pass '
            'options by name, e.g. periodic_task(spacing=60)'
        )
    name = options.pop('name', None)

    def decorate(function: Any) -> Any:
        where = _defined_at(function)
        _check_runs_at_once(function, where)
        _mark(function, _Declared.of(
            _plain(function).__name__ if name is None else name, where,
            options))
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
        _mark(function, _Declared(command_job(module, name, where), {}, {}))
        return function
    return decorate


class _Declared(NamedTuple):
    """Job of a decorated method, before the configuration is known."""

    #: The job with the defaults of the arguments that are not known yet.
    job: Job
    #: Arguments of the decorator whose values are known.
    arguments: Mapping[str, Any]
    #: The other arguments: functions of the configuration.
    settings: Mapping[str, Callable[[Any], Any]]

    @classmethod
    def of(cls, name: str, where: str,
           arguments: Mapping[str, Any]) -> '_Declared':
        """Check the *arguments* of the decorator.

        :raises InvalidSchedule: The schedule is invalid.
        :raises InvalidJob: Another argument is invalid.
        """
        settings = {argument: value for argument, value in arguments.items()
                    if argument in _SETTINGS and callable(value)}
        known = {argument: value for argument, value in arguments.items()
                 if argument not in settings}
        # The schedule is checked once all of its arguments are known.
        checked = known if settings.keys().isdisjoint(
            ('spacing', 'cron', 'timezone')) else {
                **known, 'spacing': None, 'cron': None, 'timezone': None}
        return cls(_job_from(name, where, checked), known, settings)

    def job_for(self, conf: Any) -> Job:
        """Return the job for a service with the configuration *conf*.

        :raises InvalidSchedule: The schedule is invalid.
        :raises InvalidJob: Another argument is invalid, or its function raised
            an exception.
        """
        if not self.settings:
            return self.job
        name, where = self.job.name, self.job.defined_at
        values = {}
        for argument, function in self.settings.items():
            try:
                values[argument] = function(conf)
            except Exception as error:
                raise InvalidJob(
                    f'{where}: job {name!r}: the function of {argument}= '
                    f'raised {type(error).__name__}: {error}; ' + (
                        'this instance was created without a configuration, '
                        'so pass conf' if conf is None else
                        'register its options on conf before '
                        'super().__init__(conf)')) from error
        return _job_from(name, where, {**self.arguments, **values})


def _job_from(name: str, where: str, arguments: Mapping[str, Any]) -> Job:
    """Return the job for the *arguments* of the decorator.

    :raises InvalidSchedule: The schedule is invalid.
    :raises InvalidJob: Another argument is invalid.
    """
    others = dict(arguments)
    spacing, cron, timezone = (
        others.pop(option, None) for option in ('spacing', 'cron', 'timezone'))
    # The value True equals 1, not -1.
    if spacing == _OFF and cron is None:
        others['enabled'], spacing = False, None
    if spacing is None and cron is None:
        spacing = DEFAULT_SPACING
    try:
        schedule = schedule_of(spacing, cron, timezone)
    except InvalidSchedule as error:
        raise InvalidSchedule(f'{where}: job {name!r}: {error}') from None
    if others.get('scope') is None:
        others['scope'] = (
            Scope.MEMBER if others.get('objects') is None else Scope.OBJECTS)
    return Job(name=name, schedule=schedule, defined_at=where, **others)


def _mark(function: Any, declared: _Declared) -> None:
    """Attach the job to the decorated *function*."""
    plain = _plain(function)
    if hasattr(plain, _MARK):
        raise InvalidJob(
            f'{declared.job.defined_at}: {plain.__name__} is decorated twice; '
            'write a second method that calls the first'
        )
    setattr(plain, _MARK, declared)


class PeriodicTasks:
    """Base class for the jobs of a service.

    Derive a class from this one and decorate its methods. A subclass inherits
    the jobs of its bases. If a subclass overrides a decorated method, the
    inherited job is replaced by the job of the new method. If the new method
    is not decorated, the inherited job is removed, and the constructor logs a
    warning. The override ``NAME = None`` removes the job without a warning.

    A mixin that is not derived from this class brings its jobs as well, unless
    they are decorated by oslo.service, which does not run them either.

    The signature of a decorated method is checked when the class is defined.

    The attributes of an instance are ``conf`` and ``periodic_clock``: the
    clock of :meth:`run_periodic_tasks`. A test may replace the clock by a
    :class:`distperiodic.testing.FrozenClock`.

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
        self.periodic_clock: Clock = SystemClock()
        self.__jobs: dict[str, Job] = {}
        self.__commands: dict[str, Job] = {}
        self.__handlers: dict[str, Callable[..., Any]] = {}
        self.__last_ticks: dict[str, Instant] = {}
        for door in _DOORS:
            if getattr(type(self), door) is not getattr(PeriodicTasks, door):
                raise InvalidJob(
                    f'{type(self).__name__}.{door} overrides a member of '
                    'PeriodicTasks that the services call; rename it'
                )
        for attribute, member in _members_of(type(self)).items():
            if not _is_decorated(member):
                _warn_removed(type(self), attribute, member)
            elif not _is_of_mixin(type(self), attribute, member):
                self.__add(_job_of(member, conf), getattr(self, attribute))

    @property
    def jobs(self) -> Mapping[str, Job]:
        """All jobs by name, including disabled ones. Read-only.

        :raises InvalidJob: A subclass has not called ``super().__init__()``.
        """
        return types.MappingProxyType(self.__known_jobs())

    @property
    def commands(self) -> Mapping[str, Job]:
        """Jobs of the commands by name, ``task:module.command``. Read-only.

        :raises InvalidJob: A subclass has not called ``super().__init__()``.
        """
        self.__known_jobs()
        return types.MappingProxyType(self.__commands)

    def handler(self, name: str) -> Callable[..., Any]:
        """Return the decorated method of job *name*, bound to this instance.

        :param name: Name of a job from :attr:`jobs` or :attr:`commands`.
        :raises InvalidJob: No job has this name.
        """
        if name not in self.commands:
            self.__job(name)
        return self.__in_context(self.__handlers[name])

    def catalogue(self, name: str) -> Callable[..., Any] | None:
        """Return the bound method that lists the objects of job *name*.

        :param name: Name of the job.
        :returns: The method. None means that the job has no objects.
        :raises InvalidJob: No job has this name.
        """
        method = self.__job(name).objects
        return None if method is None else self.__in_context(
            getattr(self, method), lists=True)

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

    def close_context(self, made: Any) -> None:
        """Release what :meth:`make_context` has acquired.

        Override this method to close, for example, a database session that
        belongs to the context. The services call it in the same thread, after
        the handler has returned or raised an exception, or after the catalogue
        was read. If it raises an exception, the run or the read fails.

        :param made: The object that :meth:`make_context` returned.
        """

    def __in_context(self, method: Callable[..., Any],
                     lists: bool = False) -> Callable[..., Any]:
        """Return a function that passes *method* a context of the class.

        :param lists: True if *method* lists objects, and its caller reads the
            returned value, such as a query, later.
        """
        if (type(self).make_context is PeriodicTasks.make_context
                and type(self).close_context is PeriodicTasks.close_context):
            return method

        @functools.wraps(method)
        def call(context: Context, *args: Any) -> Any:
            with contextlib.ExitStack() as end:
                made = self.make_context(context)
                end.callback(self.close_context, made)
                found = method(made, *args)
                if not lists or isinstance(found, _READ) or (
                        not isinstance(found, Iterable)):
                    return found
                return _read_until(found, end.pop_all())
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
        self.__known_jobs()
        if not _is_decorated(task):
            raise InvalidJob(
                f'{_defined_at(task)}: {task!r} is not a periodic task; '
                'decorate it with periodic_task'
            )
        job = _job_of(task, self.conf)
        _check_arguments(task)
        if not inspect.ismethod(task):
            task = types.MethodType(task, self)
        self.__add(job, task)

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
        own = self.__own_jobs()
        for job in own:
            self.__run(job, self.__take_due(job), context, raise_on_error)
        return self.__idle(own)

    def run_periodic_tasks_in_parallel(
        self, context: Any, raise_on_error: bool = False,
        processes: int | None = None
    ) -> float:
        """Run all due tasks at the same time, each in a thread.

        The method returns after the last task has ended. In other respects it
        is like :meth:`run_periodic_tasks`. oslo.service runs the tasks in
        processes instead. Threads do not need objects that can be pickled, but
        share the memory of the service.

        :param context: Passed unchanged to every task.
        :param raise_on_error: True raises the exception of a task after all
            tasks have ended.
        :param processes: Maximum number of threads. None means one thread for
            each due task.
        :returns: Seconds until the next task is due, from 0 to 60.
        :raises Exception: A task raised this exception, and *raise_on_error*
            is true.
        """
        own = self.__own_jobs()
        due = [(job, ticks) for job in own if (ticks := self.__take_due(job))]
        with futures.ThreadPoolExecutor(processes or len(due) or 1) as pool:
            runs = [pool.submit(self.__run, job, ticks, context,
                                raise_on_error) for job, ticks in due]
        for run in runs:
            run.result()
        return self.__idle(own)

    def __own_jobs(self) -> list[Job]:
        """Return the enabled jobs that need no scheduler service."""
        enabled = [job for job in self.__known_jobs().values() if job.enabled]
        for job in enabled:
            if job.scope is not Scope.MEMBER:
                self.__warn_left_out(job)
        return [job for job in enabled if job.scope is Scope.MEMBER]

    def __idle(self, own: list[Job]) -> float:
        """Return the seconds until the next tick of the jobs."""
        now = self.periodic_clock.now()
        waits = [
            job.schedule.after(self.__last_ticks[job.name]) - now
            for job in own
        ]
        idle = min(waits, default=SECOND * DEFAULT_SPACING) / SECOND
        return min(max(idle, 0.0), DEFAULT_SPACING)

    def __known_jobs(self) -> dict[str, Job]:
        try:
            return self.__jobs
        except AttributeError:
            cls = type(self).__name__
            raise InvalidJob(
                f'{cls} has no jobs yet; call super().__init__(conf) first '
                f'in {cls}.__init__'
            ) from None

    def __job(self, name: str) -> Job:
        jobs = self.__known_jobs()
        if name not in jobs:
            raise InvalidJob(
                f'{type(self).__name__} has no job {name!r}; its jobs are '
                f'{", ".join(jobs) or "none"}'
            )
        return jobs[name]

    def __add(self, job: Job, handler: Callable[..., Any]) -> None:
        taken = self.__jobs.get(job.name) or self.__commands.get(job.name)
        if taken is not None:
            raise JobNameTaken(job.name, taken.defined_at, job.defined_at)
        if job.objects is not None:
            self.__check_catalogue(job, job.objects)
        jobs = self.__commands if job.scope is Scope.TASK else self.__jobs
        jobs[job.name] = job
        self.__handlers[job.name] = handler

    def __check_catalogue(self, job: Job, method: str) -> None:
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

    def __take_due(self, job: Job) -> tuple[Instant, ...]:
        """Return the ticks of *job* to run now.

        Later calls do not return these ticks again, unless the clock was set
        back, or :meth:`_run` raised the exception of an earlier tick.
        """
        now = self.periodic_clock.now()
        newest = job.schedule.at_or_before(now)
        newest = now if newest is None else newest
        last = self.__last_ticks.get(job.name)
        if last is None:
            self.__last_ticks[job.name] = newest
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
            self.__last_ticks[job.name] = newest
            return ()
        if newest <= last:
            return ()
        self.__last_ticks[job.name] = newest
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

    def __run(
        self, job: Job, ticks: tuple[Instant, ...], context: Any,
        raise_on_error: bool
    ) -> None:
        handler = forks.ends_forked(self.__handlers[job.name])
        for tick in ticks:
            try:
                check_ended(job.name, handler(context))
            except KeyboardInterrupt:
                raise
            # A task that raises SystemExit, or a timeout of eventlet, must not
            # end the loop of the service.
            except BaseException:
                if raise_on_error:
                    # The next call runs the due ticks that come after this
                    # one.
                    self.__last_ticks[job.name] = min(
                        tick, self.__last_ticks[job.name])
                    raise
                LOG.exception(
                    'task failed: job=%s tick=%s; the other tasks continue, '
                    'and this one runs again at its next tick',
                    job.name,
                    datetime_of(tick).isoformat(),
                )

    def __warn_left_out(self, job: Job) -> None:
        if job.name in self.__last_ticks:
            return
        self.__last_ticks[job.name] = self.periodic_clock.now()
        LOG.warning(
            'job not run here: job=%s scope=%s; only a scheduler service can '
            'run this job; start one with these tasks',
            job.name,
            job.scope,
        )


def _read_until(found: Iterable[Any],
                end: contextlib.ExitStack) -> Iterator[Any]:
    """Yield the objects of a catalogue, and then call *end*."""
    with end:
        yield from found


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
    declared = getattr(plain, _MARK, None)
    if not isinstance(declared, _Declared):
        return
    job = declared.job
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
    known = list(JobOptions.__annotations__)
    near = difflib.get_close_matches(name, known, 1)
    hint = (f'did you mean {near[0]!r}?' if near
            else f'its arguments are {", ".join(known)}')
    return f'periodic_task has no argument {name!r}; {hint}'


def _caller() -> str:
    """Return the file and line that called the caller of this function."""
    frame = sys._getframe(2)
    return _place(frame.f_code.co_filename, frame.f_lineno)


def _is_decorated(member: Any) -> bool:
    """Return whether this module or oslo.service decorated *member*."""
    return _is_ours(member) or _is_of_oslo(member)


def _is_ours(member: Any) -> bool:
    return isinstance(getattr(_plain(member), _MARK, None), _Declared)


def _is_of_oslo(member: Any) -> bool:
    # Compare with 'is True', because a mock returns a true value for every
    # attribute.
    return getattr(_plain(member), '_periodic_task', None) is True


def _job_of(member: Any, conf: Any) -> Job:
    """Return the job of a decorated *member*."""
    plain = _plain(member)
    if _is_ours(member):
        declared: _Declared = getattr(plain, _MARK)
        return declared.job_for(conf)
    return _oslo_job(plain, conf)


def _warn_removed(cls: type, attribute: str, member: Any) -> None:
    """Log a warning if *member* hides a job by mistake.

    :param member: Attribute of *cls* that is not decorated.
    """
    if not _is_method(member):
        return
    for base in cls.__mro__:
        if _is_decorated(hidden := vars(base).get(attribute)):
            LOG.warning(
                'job removed: method=%s.%s defined_at=%s; the method is not '
                'decorated but overrides the job defined at %s, which does '
                'not run; decorate the method, or set %s = None to remove '
                'the job without this warning',
                cls.__name__, attribute, _defined_at(member),
                _defined_at(hidden), attribute)
            return


def _is_of_mixin(cls: type, attribute: str, member: Any) -> bool:
    """Return whether oslo.service would ignore the decorated *member*.

    The metaclass of oslo.service collects only the methods of classes derived
    from its own PeriodicTasks.
    """
    if _is_ours(member):
        return False
    owner = next(base for base in cls.__mro__ if attribute in vars(base))
    if issubclass(owner, PeriodicTasks) or '_periodic_tasks' in vars(owner):
        return False
    LOG.warning(
        'task of a mixin ignored: method=%s.%s; oslo.service ignores it as '
        'well, so it does not run; derive %s from PeriodicTasks to run it',
        owner.__name__, attribute, owner.__name__)
    return True


def _oslo_job(task: Any, conf: Any) -> Job:
    """Return the job of a method decorated by oslo.service.

    In ``oslo_service.periodic_task`` a spacing of 0 means the default
    spacing, and a negative spacing disables the task.
    """
    where = _defined_at(task)
    spacing = task._periodic_spacing
    enabled = bool(task._periodic_enabled)
    if task._periodic_external_ok:
        enabled &= _runs_external(conf)
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


def _runs_external(conf: Any) -> bool:
    """Return the option of oslo.service ``run_external_periodic_tasks``.

    The base class of oslo.service registers the option. A value in a file is
    unreadable without a registration.
    """
    if hasattr(conf, 'register_opts'):
        from oslo_service import periodic_task as oslo
        conf.register_opts(oslo.list_opts()[0][1])
    return bool(getattr(conf, 'run_external_periodic_tasks', True))


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
