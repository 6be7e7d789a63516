# SPDX-License-Identifier: Apache-2.0
"""Read-only queries on tasks, their commands, and the causes of waits."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import counting
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_reader
from distperiodic.adapters.sql import task_rows
from distperiodic.core.claim import State
from distperiodic.core.task import Queue
from distperiodic.core.task import Task
from distperiodic.core.waiting import MOST_COUNTED
from distperiodic.core.waiting import Wait
from distperiodic.core.waiting import WaitReason
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status
from distperiodic.operator.group_reader import GroupReader

_job = tables.job
_lease = tables.lease
_queue = tables.queue
_ready = tables.ready
_task = tables.task

_HELD = (State.CLAIMED, State.RUNNING, State.RETRY)


class Look(NamedTuple):
    """A task at one moment, and the reason why it does not run."""

    task: Task
    position: Position
    #: The operator who requested the cancellation of the task, and the reason.
    #: None means that there is no such request.
    cancelled_by: str | None
    #: None means that the task runs or has ended.
    waiting: WaitReason | None
    #: Process to which the current run was granted, and the time of the grant
    #: in microseconds. The run may still wait for a thread of this process.
    #: Empty and None mean that no run has been granted.
    runner: str = ''
    granted: int | None = None
    #: The task as it is while the granted run waits for a thread. None means
    #: that no run has been granted.
    queued: Task | None = None


class Need(NamedTuple):
    """A command that tasks need, now or after a retry."""

    module: str
    command: str
    #: Number of tasks whose current step is ready, delayed, claimed, running
    #: or waiting for a retry. At most MOST_COUNTED ready or delayed steps are
    #: counted.
    tasks: int

    @property
    def name(self) -> str:
        """Name of the command, including its module."""
        return f'{self.module}.{self.command}'


class Overdue(NamedTuple):
    """A command whose steps have been ready for a long time."""

    module: str
    command: str
    #: Number of tasks whose step has been ready for that long.
    tasks: int
    #: Id of the task whose step became ready first, and the time at which the
    #: step became ready, in microseconds.
    first: str
    since: int


class StuckTask(NamedTuple):
    """A task that is stuck."""

    id: str
    #: When the command ended at which the task is stuck, in microseconds. None
    #: means unknown.
    since: int | None
    why: str


class Stuck(NamedTuple):
    """The tasks that are stuck."""

    number: int
    #: The stuck tasks that were submitted first.
    first: Sequence[StuckTask]


class Halted(NamedTuple):
    """An ordered queue that is halted."""

    name: str
    #: When the queue was halted, in microseconds.
    since: int
    why: str
    #: Id of the task whose failure halted the queue. None means that an
    #: operator halted the queue.
    by: str | None
    #: Number of tasks that have not started, at most MOST_COUNTED.
    waiting: int


def page(store: GroupReader, status: str | None, type_: str | None,
         queue: str | None, limit: int, after: str | None) -> list[Task]:
    """Return tasks; see :meth:`distperiodic.tasks.Client.list`.

    :raises UnknownTask: No task has the id *after*.
    :raises InvalidTask: An argument cannot be used.
    """
    from distperiodic.adapters.sql import task_arguments
    found = task_arguments.page(status, type_, queue, limit, after)
    return store.read(lambda connection: task_reader.page(
        connection, store.namespace, found))


def queues(store: GroupReader, name: str | None = None) -> list[Queue]:
    """Return the ordered queues, in the order of their names.

    :param name: Only the queue with this name.
    :raises UnknownTask: There is no queue with this name.
    :raises InvalidTask: The name cannot be used.
    """
    from distperiodic.adapters.sql import task_arguments
    task_arguments.check_name('queue', name, optional=True)
    return store.read(lambda connection: task_reader.queues(
        connection, store.namespace, name))


def look(store: GroupReader, task: str) -> Look:
    """Return a task with the reason why it does not run.

    :raises UnknownTask: No task of the group has this id.
    """
    def read(connection: sa.Connection) -> Look:
        found, running = task_reader.read(
            connection, store.dialect, store.namespace, task)
        look = Look(
            task_reader.task_of(found, running), found.position,
            found.row.cancelled_by,
            _waiting(store, connection, found, running))
        if running is None or running.granted is None:
            return look
        return look._replace(
            runner=running.holder, granted=running.granted,
            queued=task_reader.task_of(found, running, queued=True))
    return store.read_snapshot(read)


def needs(store: GroupReader) -> list[Need]:
    """Return the commands that tasks need, by name."""
    found: dict[str, int] = {}
    for query in (
            sa.select(_job.c.name, counting.count(
                _ready.c.job, _job.c.id).label('tasks')),
            sa.select(_job.c.name, sa.func.sum(
                _lease.c.remaining).label('tasks'))
            .join(_lease, _lease.c.job == _job.c.id)
            .group_by(_job.c.name)):
        for row in store.rows(query.where(
                _job.c.space == store.namespace,
                _job.c.kind == tables.COMMAND)):
            found[row.name] = found.get(row.name, 0) + int(row.tasks)
    return [Need(*_module_and_command(name), tasks)
            for name, tasks in sorted(found.items()) if tasks]


def overdue(store: GroupReader, seconds: float) -> list[Overdue]:
    """Return the commands with steps that no scheduler has claimed.

    :param seconds: Minimum time for which a step has been ready.
    """
    late = (_ready.c.delayed == 0, _ready.c.due
            <= store.dialect.now - round(seconds * 1e6))

    def read(connection: sa.Connection) -> list[Overdue]:
        found = []
        for row in connection.execute(
                sa.select(_job.c.id, _job.c.name,
                          sa.func.count().label('tasks'))
                .join(_ready, _ready.c.job == _job.c.id)
                .where(_job.c.space == store.namespace,
                       _job.c.kind == tables.COMMAND, *late)
                .group_by(_job.c.id, _job.c.name)
                .order_by(_job.c.name)).all():
            first = connection.execute(
                sa.select(_ready.c.task, _ready.c.due)
                .where(_ready.c.job == row.id, *late)
                .order_by(_ready.c.due, _ready.c.task).limit(1)
            ).one_or_none()
            if first is not None:
                found.append(Overdue(
                    *_module_and_command(row.name), row.tasks, *first))
        return found
    return store.read_snapshot(read)


def stuck(store: GroupReader, limit: int) -> Stuck:
    """Return the number of stuck tasks, and the oldest of them.

    :param limit: Maximum number of tasks to return.
    """
    stuck = (_task.c.space == store.namespace,
             _task.c.status == Status.STUCK)

    def read(connection: sa.Connection) -> Stuck:
        found = [task_rows.TaskRow(row) for row in connection.execute(
            sa.select(_task).where(*stuck).order_by(
                _task.c.created, _task.c.id).limit(limit))]
        number = len(found) if len(found) < limit else (
            connection.scalar(
                sa.select(sa.func.count()).where(*stuck)) or 0)
        return Stuck(number, [StuckTask(
            one.row.id, one.record().get('ended'),
            one.record().get('message') or one.row.message or '')
            for one in found])
    return store.read_snapshot(read)


def halted(store: GroupReader) -> list[Halted]:
    """Return the ordered queues that are halted, by name."""
    space = store.namespace
    waiting = counting.waiting_in_queue(space)
    return [Halted(row.name, row.halted, row.halted_why or '',
                   row.halted_by, row.waiting)
            for row in store.rows(
                sa.select(_queue, waiting.label('waiting')).where(
                    _queue.c.space == space,
                    _queue.c.halted.is_not(None))
                .order_by(_queue.c.name))]


def _waiting(store: GroupReader, connection: sa.Connection,
             found: task_rows.TaskRow,
             running: task_reader.CommandClaim | None) -> WaitReason | None:
    position = found.position
    if position.status is Status.STUCK:
        return _wait(found, Wait.STUCK)
    if not position.active:
        return None
    if running is not None and running.state in _HELD:
        return _held(store, connection, found, running)
    ready = connection.execute(
        sa.select(_ready, store.dialect.now.label('now')).where(
            _ready.c.task == found.row.id)).one_or_none()
    if ready is not None:
        if ready.delayed and ready.due > ready.now:
            return _wait(found, Wait.DELAYED, until=ready.due)
        return _wait(found, Wait.READY, since=ready.due)
    if found.row.queue is not None:
        return _queued(store, connection, found)
    return None


def _held(store: GroupReader, connection: sa.Connection,
          found: task_rows.TaskRow, running: task_reader.CommandClaim
          ) -> WaitReason | None:
    if running.state is State.RETRY:
        return _wait(found, Wait.RETRY, until=running.until)
    now = connection.scalar(sa.select(store.dialect.now)) or 0
    if running.until < now:
        return _wait(found, Wait.LEASE_ENDED, until=running.until,
                     holder=running.holder)
    if running.state is State.CLAIMED:
        return _wait(found, Wait.CLAIMED, holder=running.holder)
    return None


def _queued(store: GroupReader, connection: sa.Connection,
            found: task_rows.TaskRow) -> WaitReason:
    row, space = found.row, store.namespace
    queue = connection.execute(sa.select(_queue).where(
        _queue.c.space == space, _queue.c.name == row.queue)
    ).one_or_none()
    before = sa.select(_task.c.id, _task.c.status).where(
        _task.c.space == space, _task.c.queue == row.queue,
        _task.c.status == Status.WAITING, sa.or_(
            _task.c.created < row.created, sa.and_(
                _task.c.created == row.created, _task.c.id < row.id)))
    number = connection.scalar(sa.select(sa.func.count()).select_from(
        before.limit(MOST_COUNTED).subquery())) or 0
    head = None
    if queue is not None and queue.head is not None:
        head = connection.execute(
            sa.select(_task.c.id, _task.c.status).where(
                _task.c.id == queue.head)).one_or_none()
    # So far, the number includes a head that waits, but not a head with
    # another status.
    if head is not None and head.status is not Status.WAITING:
        number += 1
    first = head or connection.execute(before.order_by(
        _task.c.created, _task.c.id).limit(1)).one_or_none()
    more: dict[str, Any] = {} if first is None else {
        'ahead': first.id, 'ahead_status': first.status,
        'number_ahead': max(1, number)}
    if queue is not None and queue.halted is not None:
        return _wait(found, Wait.QUEUE_HALTED, halted=queue.halted,
                     halted_why=queue.halted_why or '',
                     halted_by=queue.halted_by, **more)
    return _wait(
        found, Wait.BEHIND if more else Wait.NEXT_IN_QUEUE, **more)


def _wait(found: task_rows.TaskRow, wait: Wait, **more: Any) -> WaitReason:
    return WaitReason(wait, found.action.module, found.action.command, **more)


def _module_and_command(name: str) -> tuple[str, str]:
    module, _, command = name.partition('.')
    return module, command
