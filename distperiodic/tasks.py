# SPDX-License-Identifier: Apache-2.0
"""Tasks: one-off work in steps, with claims like those of periodic jobs.

A class declares commands, and a client submits tasks that run them::

    class Modules(PeriodicTasks):

        @tasks.command('mysql', 'init_instance')
        def init(self, context, parameters):
            return {'Port': start(parameters['Host'])}

    client = tasks.Client(conf)
    task = client.submit('create_instance', {'Host': 'h7'})
    client.wait(task, timeout=600)

The commands are run by the same schedulers and workers that run the periodic
jobs of the class.
"""

import datetime
import functools
import logging
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import ports
from distperiodic.adapters.local import notices
from distperiodic.adapters.local import tracing
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.process_slot import host_name
from distperiodic.adapters.local.process_slot import user_name
from distperiodic.adapters.local.tracing import TRACING
from distperiodic.adapters.local.workflow_file import read_workflows
from distperiodic.adapters.messaging.notices import TaskNotices
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_arguments
from distperiodic.adapters.sql.task_arguments import shown
from distperiodic.adapters.sql.task_store import SqlTaskStore
from distperiodic.core import definitions
from distperiodic.core import workflow
from distperiodic.core.new_task import NewTask
from distperiodic.core.task import Command
from distperiodic.core.task import Queue
from distperiodic.core.task import Step
from distperiodic.core.task import Task
from distperiodic.core.task import new_id
from distperiodic.core.workflow import Status
from distperiodic.periodic import command
from distperiodic.store import Connections
from distperiodic.store import check_store

__all__ = [
    'Client', 'Command', 'Queue', 'Status', 'Step', 'Task', 'command']

LOG = logging.getLogger(__name__)

# Maximum seconds for which close() waits for the broker.
_CLOSING = 2.0
# Seconds between two reads of a task in wait(). The interval grows from
# _FIRST_LOOK to _LONGEST_LOOK.
_FIRST_LOOK = 0.01
_LONGEST_LOOK = 0.5
_MOST_PRIORITY = 2 ** 31 - 1
# Maximum number of tasks that are cancelled or retried in one transaction.
_AT_A_TIME = 100
# Key in the ``info`` of an SQLAlchemy session. The value is a list of
# functions to call after the commit.
_CALLS = 'distperiodic_after_commit'
# Arguments of submit() that describe a task, except its type, with their
# defaults.
_ARGUMENTS: dict[str, Any] = {
    'parameters': None, 'key': None, 'queue': None, 'at': None, 'priority': 0}


class Client:
    """Client that controls tasks and their ordered queues.

    A client connects to the store at its first call. Threads may share a
    client, and a client may be created before a fork.

    :param conf: Configuration of the service. The first call reads the
        options.
    :param workflows: Steps of each type of task, in the format of a workflow
        file; see :doc:`/reference/workflows`. A type that is defined here
        replaces the same type in the file of the option ``workflows``.
    :raises InvalidWorkflow: One of *workflows* is invalid.
    """

    def __init__(self, conf: Any, workflows: Mapping[str, Any] | None = None):
        self._conf = conf
        self._given = definitions.parse_workflows(
            {} if workflows is None else workflows)
        self._clock = SystemClock()
        self._connections: Connections[ports.TaskStore] = Connections(
            self._task_store,
            lambda: check_store(self._settings, self._conf))

    # -- submit

    def submit(self, type: str,  # noqa: A002
               parameters: Mapping[str, Any] | None = None, *,
               key: str | None = None, queue: str | None = None,
               at: datetime.datetime | None = None, priority: int = 0,
               session: Any = None) -> str:
        """Submit a task, and return its id.

        The task and its steps are written in one transaction. If the task may
        start at once, the client sends a notice to the schedulers after the
        commit. If no notice reaches a scheduler, the schedulers find the task
        at their next sweep.

        :param type: Type of a workflow, or ``module.command`` for a task of
            one step.
        :param parameters: Values that the steps share: a dictionary that JSON
            can represent, of at most 1,000,000 characters as JSON. Values are
            nested at most 100 levels deep, integers have at most 300 digits,
            and the keys of all dictionaries are text.
        :param key: The caller's own name for the task. If a task with this key
            exists, the call writes nothing and returns the id of that task.
        :param queue: Ordered queue. Its tasks run one at a time, in the order
            in which they were submitted. Priorities do not change this order.
        :param at: Earliest start, an aware datetime. In an ordered queue, the
            later tasks wait for this one.
        :param priority: Tasks with a higher priority are claimed first.
        :param session: SQLAlchemy session or connection to the database of the
            tasks. The call then writes the task in the open transaction of
            the session, which the caller commits.
        :raises InvalidWorkflow: The type is unknown.
        :raises InvalidTask: An argument cannot be used, or the key belongs to
            a task that was submitted with another type, queue or parameters.
        :raises ConfigError: There is no store.
        :raises StoreUnavailable: The database did not answer, and the task may
            or may not have been written. The caller can safely repeat the call
            if the task has a key.
        """
        return self._submit([self._new(
            type, parameters, key, queue, at, priority)], session)[0]

    def submit_many(self, tasks: Iterable[Mapping[str, Any]], *,
                    session: Any = None) -> list[str]:
        """Submit tasks in one transaction, and return their ids in order.

        :param tasks: For each task a dictionary with the key ``type``, and
            optionally with other arguments of :meth:`submit`.
        :param session: As in :meth:`submit`.
        :raises InvalidTask: An argument of a task cannot be used, as in
            :meth:`submit`. No task is written.
        """
        if not isinstance(tasks, Iterable):
            raise exceptions.InvalidTask(
                f'tasks are {shown(tasks)}; give a list of dictionaries')
        new = []
        for index, task in enumerate(tasks):
            if not isinstance(task, Mapping):
                raise exceptions.InvalidTask(
                    f'task {index} is {shown(task)}; give a dictionary with '
                    f'the keys type, {", ".join(_ARGUMENTS)}')
            for name in task:
                if name != 'type' and name not in _ARGUMENTS:
                    raise exceptions.InvalidTask(
                        f'task {index}: unknown key {name!r}; the keys are '
                        f'type, {", ".join(_ARGUMENTS)}')
            if 'type' not in task:
                raise exceptions.InvalidTask(
                    f"task {index}: the key 'type' is missing")
            new.append(self._new(task['type'], **{
                name: task.get(name, default)
                for name, default in _ARGUMENTS.items()}))
        return self._submit(new, session) if new else []

    def _submit(self, tasks: Sequence[NewTask], session: Any) -> list[str]:
        if session is not None:
            task_arguments.check_session(session)
            # Write on the connection of the session. Another connection could
            # wait forever for a lock that the caller's transaction holds.
            ids = self._task_store().submit_in(session, tasks)
            _after_commit(session, lambda: self._notify(ids))
            return ids
        with self._connections.lend() as store:
            ids = store.submit(tasks)
        now = [id_ for id_, task in zip(ids, tasks, strict=True)
               if task.due is None]
        if now:
            self._notify(now)
        return ids

    def _notify(self, tasks: Sequence[str]) -> None:
        """Send a notice about *tasks* to the schedulers.

        Each of these tasks may have a step that is ready to run.
        """
        settings = self._settings
        here = notices.notify(
            (settings.connection, settings.group), tasks)
        if self._notices is not None:
            self._notices.notify(tasks)
        elif not here:
            LOG.debug('no scheduler notified: tasks=%d; the schedulers find '
                      'them at their next sweep', len(tasks))

    def _new(self, type_: Any, parameters: Any, key: Any, queue: Any,
             at: Any, priority: Any) -> NewTask:
        definition = self._definition(type_)
        task_arguments.check_name(
            'key', key, tables.LONGEST_ID, optional=True)
        task_arguments.check_name('queue', queue, optional=True)
        task_arguments.check_whole(
            'priority', priority, -_MOST_PRIORITY, _MOST_PRIORITY)
        return NewTask(new_id(self._clock.now(), queue), type_, definition,
                       task_arguments.parameters_text(parameters), key, queue,
                       task_arguments.instant(at), priority,
                       None if TRACING.tracer is None
                       else TRACING.tracer.current())

    def _definition(self, type_: Any) -> workflow.Definition:
        """Return the workflow of a type of task.

        :raises InvalidWorkflow: The type is unknown.
        """
        for known in (self._given, self._of_file):
            if isinstance(type_, str) and type_ in known:
                return known[type_]
        problem = (definitions.single_problem(type_)
                   if isinstance(type_, str) else 'the type is not text')
        if not problem:
            return definitions.single(type_)
        names = ', '.join(sorted({**self._of_file, **self._given}))
        raise exceptions.InvalidWorkflow(
            f'type is {shown(type_)}; '
            + (f'the types are {names}' if names else
               'no types are known, so set [distperiodic] workflows to a file '
               'that defines them')
            + '; or give MODULE.COMMAND for a task of one step, but '
            + problem)

    @functools.cached_property
    def _of_file(self) -> dict[str, workflow.Definition]:
        """Workflows of the file that the option ``workflows`` names."""
        path = self._settings.workflows
        return read_workflows(path) if path else {}

    @functools.cached_property
    def _notices(self) -> TaskNotices | None:
        """Sender of notices to other processes.

        None means that there is no broker.
        """
        settings = self._settings
        if settings.dispatcher != 'messaging':
            return None
        return TaskNotices(self._conf, group=settings.group,
                           keys=settings.signing_key)

    @functools.cached_property
    def _settings(self) -> opts.Settings:
        settings = opts.settings(self._conf)
        if settings.traces:
            tracing.install(f'[{opts.GROUP}] traces')
        return settings

    def _task_store(self) -> ports.TaskStore:
        settings = self._settings
        if not settings.connection:
            raise exceptions.ConfigError(
                'tasks need a store; set [distperiodic] connection to the '
                'database of the service')
        return SqlTaskStore(settings.connection, namespace=settings.group)

    # -- read

    def get(self, id_: str) -> Task:
        """Return a task.

        :param id_: Id of the task.
        :raises UnknownTask: No task of this group has that id.
        """
        with self._connections.lend() as store:
            return store.get(task_arguments.task_id(id_))

    def list(self, status: str | None = None,
             type: str | None = None,  # noqa: A002
             queue: str | None = None, limit: int = 100,
             after: str | None = None) -> list[Task]:
        """Return tasks in the order in which they were submitted.

        :param status: Only tasks with this status; see :class:`Status`.
        :param type: Only tasks of this type.
        :param queue: Only tasks of this ordered queue.
        :param limit: Maximum number of tasks.
        :param after: Id of a task, usually that of the last task on the
            previous page. Only tasks that were submitted later are returned.
        :raises UnknownTask: No task has the id *after*.
        :raises InvalidTask: An argument cannot be used.
        """
        page = task_arguments.page(status, type, queue, limit, after)
        with self._connections.lend() as store:
            return store.page(page)

    def wait(self, id_: str, timeout: float | None = None) -> Task:
        """Wait until a task has ended or is stuck, and return it.

        :param id_: Id of the task.
        :param timeout: Maximum number of seconds to wait. If the task has not
            ended by then, it is returned with its current status. None means
            no limit.
        :raises UnknownTask: No task of this group has that id.
        :raises InvalidTask: *timeout* is not a number.
        """
        task_arguments.check_timeout(timeout)
        end = None if timeout is None else self._clock.monotonic() + timeout
        pause = _FIRST_LOOK
        never = threading.Event()
        while True:
            task = self.get(id_)
            if task.ended or task.status is Status.STUCK:
                return task
            left = (pause if end is None
                    else min(pause, end - self._clock.monotonic()))
            if left <= 0:
                return task
            never.wait(left)
            pause = min(_LONGEST_LOOK, 1.5 * pause)

    # -- control

    def cancel(self, id_: str, why: str = '', by: str = '') -> Status:
        """Cancel a task, and return its status.

        A task that waits is cancelled at once. A task that runs is rolled
        back after its current step has ended. Within some seconds,
        ``context.cancelled`` becomes true in the handler of this step. If that
        step has not started yet, or waits for a retry, the rollback begins at
        once. A task that is stuck in a step rolls back this step and the steps
        before it. If the rollback of a step is stuck, the task gives up this
        rollback, and rolls back the steps before that step.

        :param id_: Id of the task.
        :param why: Reason, which is shown with the task.
        :param by: Operator. Empty means the user and the host of this process.
        :raises UnknownTask: No task of this group has that id.
        :raises InvalidTask: The task has ended, or *why* cannot be used.
        """
        return _only(self.cancel_many([task_arguments.task_id(id_)], why, by))

    def cancel_many(self, ids: Iterable[str], why: str = '', by: str = ''
                    ) -> ports.TaskAnswers:
        """Cancel tasks as :meth:`cancel` does, many in one transaction.

        :param ids: Ids of the tasks.
        :param why: Reason, which is shown with the tasks.
        :param by: As in :meth:`cancel`.
        :returns: For each id the new status of the task, or the error because
            of which the task was not changed: :class:`.UnknownTask` or
            :class:`.InvalidTask`.
        :raises InvalidTask: *why* cannot be used.
        :raises StoreUnavailable: The database did not answer. Some of the
            tasks may have been changed.
        """
        task_arguments.check_reason(why)
        text = _reason(why, by)
        return self._change(ids, lambda store, some: store.cancel(some, text))

    def _change(self, ids: Iterable[str], change: Callable[
            [ports.TaskStore, Sequence[str]], ports.TaskAnswers]
            ) -> ports.TaskAnswers:
        answers: ports.TaskAnswers = {}
        usable = []
        for id_ in ids:
            try:
                usable.append(task_arguments.task_id(id_))
            except exceptions.UnknownTask as exc:
                answers[id_] = exc
        for start in range(0, len(usable), _AT_A_TIME):
            with self._connections.lend() as store:
                some = change(store, usable[start:start + _AT_A_TIME])
            answers |= some
            changed = [id_ for id_, answer in some.items()
                       if isinstance(answer, Status)]
            if changed:
                self._notify(changed)
        return answers

    def retry(self, id_: str, back: bool | None = None) -> Status:
        """Continue a task that is stuck, has failed or was cancelled.

        A task that has failed or was cancelled starts again from its first
        step.

        :param id_: Id of the task.
        :param back: Direction of a stuck task. False runs the stuck step and
            the steps after it. True rolls back the stuck step and the steps
            before it. None keeps the direction in which the task is stuck.
        :returns: The new status.
        :raises UnknownTask: No task of this group has that id.
        :raises InvalidTask: The task is not stuck, has not failed, and was not
            cancelled. Or *back* cannot be used.
        """
        return _only(self.retry_many([task_arguments.task_id(id_)], back))

    def retry_many(self, ids: Iterable[str], back: bool | None = None
                   ) -> ports.TaskAnswers:
        """Continue tasks as :meth:`retry` does, many in one transaction.

        :param ids: Ids of the tasks.
        :param back: As in :meth:`retry`.
        :returns: As for :meth:`cancel_many`.
        :raises InvalidTask: *back* cannot be used.
        :raises StoreUnavailable: The database did not answer. Some of the
            tasks may have been changed.
        """
        if back is not None and not isinstance(back, bool):
            raise exceptions.InvalidTask(
                f'back is {shown(back)}; give True to roll back, False to go '
                'forward, or None to keep the direction')
        return self._change(ids, lambda store, some: store.retry(some, back))

    # -- ordered queues

    def queues(self, name: str | None = None) -> Sequence[Queue]:
        """Return the ordered queues, in the order of their names.

        :param name: Only the queue with this name.
        :raises UnknownTask: There is no queue with this name.
        :raises InvalidTask: The name cannot be used.
        """
        task_arguments.check_name('queue', name, optional=True)
        with self._connections.lend() as store:
            return store.queues(name)

    def resume_queue(self, name: str) -> bool:
        """Resume a halted queue.

        :param name: Name of the queue.
        :returns: True if the queue was halted.
        :raises UnknownTask: There is no queue with this name.
        :raises InvalidTask: The name cannot be used.
        """
        task_arguments.check_name('queue', name)
        with self._connections.lend() as store:
            resumed = store.resume(name)
            head = store.queues(name)[0].head
        if resumed and head is not None:
            self._notify([head])
        return resumed

    def halt_queue(self, name: str, why: str = '', by: str = '') -> bool:
        """Halt a queue.

        A task that has started continues. No other task of the queue starts
        until the queue is resumed.

        :param name: Name of the queue.
        :param why: Reason, which is shown with the queue.
        :param by: As in :meth:`cancel`.
        :returns: True if this call halted the queue. False if the queue was
            already halted.
        :raises UnknownTask: There is no queue with this name.
        :raises InvalidTask: The name or the reason cannot be used.
        """
        task_arguments.check_name('queue', name)
        task_arguments.check_reason(why)
        with self._connections.lend() as store:
            return store.halt(name, _reason(why, by))

    def set_queue(self, name: str, *, on_failure: str) -> None:
        """Set the policy of a queue for failed tasks.

        The call creates the queue if it does not exist.

        :param name: Name of the queue.
        :param on_failure: ``'halt'`` halts the queue when a task fails, until
            the queue is resumed. This is the default of a new queue.
            ``'go_on'`` runs the next task.
        :raises InvalidTask: *on_failure* is unknown, or the name cannot be
            used.
        """
        if on_failure not in ('halt', 'go_on'):
            raise exceptions.InvalidTask(
                f'on_failure is {shown(on_failure)}; give halt or go_on')
        task_arguments.check_name('queue', name)
        with self._connections.lend() as store:
            store.set_goes_on(name, on_failure == 'go_on')

    def close(self) -> None:
        """Send the notices that are queued, and close the connections.

        The next call opens new connections.
        """
        sender: TaskNotices | None = vars(self).pop('_notices', None)
        if sender is not None:
            sender.close(_CLOSING)
        self._connections.close()


def _after_commit(session: Any, call: Callable[[], None]) -> None:
    """Call *call* when the current transaction of *session* is committed."""
    if not hasattr(session, 'get_bind'):
        sa.event.listen(
            session, 'commit', lambda connection: call(), once=True)
        return
    if isinstance(session, orm.scoped_session):
        session = session()
    if _CALLS not in session.info:
        session.info[_CALLS] = []
        sa.event.listen(session, 'after_commit', _committed)
        sa.event.listen(session, 'after_soft_rollback', _rolled_back)
    session.info[_CALLS].append(call)


def _committed(session: Any) -> None:
    # SQLAlchemy also reports the release of a savepoint as a commit.
    if session.get_nested_transaction() is None:
        calls = list(session.info[_CALLS])
        session.info[_CALLS].clear()
        for call in calls:
            call()


def _rolled_back(session: Any, transaction: Any) -> None:
    # The transaction of a savepoint or of a flush has a parent transaction,
    # which may still commit tasks. So keep all notices. A notice about a task
    # that does not exist has no effect.
    if transaction.parent is None:
        session.info[_CALLS].clear()


def _only(answers: ports.TaskAnswers) -> Status:
    """Return the only answer, or raise it if it is an error."""
    [answer] = answers.values()
    if isinstance(answer, Status):
        return answer
    raise answer


def _reason(why: str, by: str) -> str:
    """Return an operator and a reason, as they are shown."""
    me = by or f'{user_name()}@{host_name()}'
    return f'{me}: {why}'.strip(': ')
