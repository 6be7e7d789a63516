# SPDX-License-Identifier: Apache-2.0
"""Queries that read the tasks and ordered queues of one group."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import counting
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.core.claim import State
from distperiodic.core.task import Command
from distperiodic.core.task import Queue
from distperiodic.core.task import Step
from distperiodic.core.task import Task
from distperiodic.core.task import TaskFilter
from distperiodic.core.task import TaskPage
from distperiodic.core.task import command_of
from distperiodic.core.task import moment
from distperiodic.core.workflow import Status

_claim = tables.claim
_job = tables.job
_lease = tables.lease
_queue = tables.queue
_task = tables.task
_task_at_head = tables.task.alias()


class CommandClaim(NamedTuple):
    """The claim of a task's current command."""

    state: State
    #: Worker to which the run was granted. None means that no run has been
    #: granted.
    worker: str | None
    #: Holder of the lease. Empty means that the lease has no holder.
    holder: str
    #: When the run was granted, in microseconds. None means that the command
    #: does not run.
    granted: int | None
    #: When the lease expires. If the claim waits for a retry, this is when the
    #: retry is due.
    until: int


def page(connection: sa.Connection, namespace: str,
         page: TaskPage) -> list[Task]:
    """Return the tasks of a page, in the order of their submission.

    :raises UnknownTask: No task has the id ``page.after``.
    """
    after = None
    if page.after is not None:
        created = connection.scalar(sa.select(_task.c.created).where(
            _task.c.space == namespace, _task.c.id == page.after))
        if created is None:
            raise unknown(namespace, page.after)
        after = created, page.after
    return selected(connection, namespace, TaskFilter(
        tuple(Status) if page.status is None else (page.status,),
        page.type, page.queue), page.limit, after)


def selected(connection: sa.Connection, namespace: str, which: TaskFilter,
             limit: int, after: tuple[int, str] | None = None) -> list[Task]:
    """Return the first tasks that *which* selects, in the order of their
    submission.

    :param after: Time and id of a task. Only tasks that were submitted later
        are returned. None means all tasks.
    """
    return [task_of(task_rows.TaskRow(row), None) for row in _first(
        connection, namespace, which, limit, after, _task,
        _unbegun(_task, namespace).label('unbegun'))]


def keys(connection: sa.Connection, namespace: str, which: TaskFilter,
         limit: int, after: tuple[int, str] | None, until: int
         ) -> list[tuple[int, str]]:
    """Return the times and ids of the tasks that :func:`selected` returns.

    :param until: Only tasks that were submitted at this instant or earlier,
        in microseconds.
    """
    return [(row.created, row.id) for row in _first(
        connection, namespace, which, limit, after, _task.c.created,
        _task.c.id, until=until)]


def number(connection: sa.Connection, namespace: str,
           which: TaskFilter) -> int:
    """Return the number of tasks that *which* selects."""
    return sum(
        connection.scalar(sa.select(sa.func.count()).select_from(_task).where(
            *_conditions(namespace, which), one)) or 0
        for one in _of_statuses(namespace, which.statuses))


def _first(connection: sa.Connection, namespace: str, which: TaskFilter,
           limit: int, after: tuple[int, str] | None, *columns: Any,
           until: int | None = None) -> Sequence[Any]:
    """Return *columns* of the first tasks, in the order of their submission.
    """
    conditions = _conditions(namespace, which)
    if after is not None:
        created, last = after
        conditions.extend([_task.c.created >= created, sa.or_(
            _task.c.created > created, _task.c.id > last)])
    if until is not None:
        conditions.append(_task.c.created <= until)
    # In each index the status precedes the time. So the tasks of one status
    # are read in the order of the index, and only up to the limit.
    ids = sa.union_all(*(
        sa.select(sa.select(_task.c.id).where(*conditions, one).order_by(
            _task.c.created, _task.c.id).limit(limit).subquery().c.id)
        for one in _of_statuses(namespace, which.statuses)))
    return connection.execute(
        sa.select(*columns).where(
            _task.c.id.in_(sa.select(ids.subquery().c.id)))
        .order_by(_task.c.created, _task.c.id).limit(limit)).all()


def _conditions(namespace: str, which: TaskFilter
                ) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of *which*, except those on the status."""
    conditions = [_task.c.space == namespace]
    if which.type is not None:
        conditions.append(_task.c.type == which.type)
    if which.queue is not None:
        conditions.append(_task.c.queue == which.queue)
    if which.ids is not None:
        conditions.append(_task.c.id.in_(which.ids))
    return conditions


def _of_statuses(namespace: str, statuses: Sequence[Status]
                 ) -> list[sa.ColumnElement[bool]]:
    """Return conditions, each of which an index supports.

    Each task with one of *statuses* meets exactly one of them.
    """
    unbegun = _unbegun(_task, namespace)
    found = []
    for status in statuses:
        condition = _task.c.status == status
        if status is Status.WAITING and Status.RUNNING not in statuses:
            found.append(unbegun)
        elif status is Status.RUNNING and Status.WAITING not in statuses:
            condition = sa.and_(condition, ~unbegun)
        found.append(condition)
    return found


def queues(connection: sa.Connection, namespace: str,
           name: str | None) -> list[Queue]:
    """Return the ordered queues by name.

    :raises UnknownTask: No queue has the name *name*.
    """
    waiting = counting.waiting_in_queue(namespace)
    query = sa.select(
        _queue, waiting.label('waiting'), sa.case(
            (_unbegun(_task_at_head, namespace),
             sa.literal(Status.WAITING, _task.c.status.type)),
            else_=_task_at_head.c.status).label('head_status')).outerjoin(
            _task_at_head, _task_at_head.c.id == _queue.c.head).where(
                _queue.c.space == namespace).order_by(_queue.c.name)
    if name is not None:
        query = query.where(_queue.c.name == name)
    rows = connection.execute(query).all()
    if name is not None and not rows:
        raise unknown_queue(namespace, name)
    return [Queue(row.name, row.head, row.head_status, row.waiting,
                  bool(row.goes_on), moment(row.halted), row.halted_why,
                  row.halted_by)
            for row in rows]


def read(connection: sa.Connection, dialect: Dialect, namespace: str,
         task: str) -> tuple[task_rows.TaskRow, CommandClaim | None]:
    """Return a task, and the claim of its current command if it has one.

    :raises UnknownTask: No task of the group has this id.
    """
    row = connection.execute(sa.select(
        _task, _unbegun(_task, namespace).label('unbegun')).where(
            _task.c.space == namespace, _task.c.id == task)).one_or_none()
    if row is None:
        raise unknown(namespace, task)
    found = task_rows.TaskRow(row)
    if not found.position.active:
        return found, None
    claim = connection.execute(
        sa.select(_claim.c.state, _claim.c.worker, _lease.c.holder,
                  dialect.at_tick_clock(_lease.c.made).label('made'),
                  dialect.at_tick_clock(_lease.c.until).label('until'))
        .join(_lease, _lease.c.id == _claim.c.lease)
        .join(_job, _job.c.id == _claim.c.job)
        .where(_claim.c.object == task, _job.c.space == namespace,
               _job.c.kind == tables.COMMAND,
               _job.c.name == found.action.name)).one_or_none()
    if claim is None:
        return found, None
    return found, CommandClaim(
        claim.state, claim.worker, claim.holder,
        claim.made if claim.state is State.RUNNING else None, claim.until)


def _unbegun(task: Any, namespace: str) -> sa.ColumnElement[bool]:
    """Return the condition that no process has begun a task.

    A scheduler has claimed the first command of the task, and no process has
    been granted the run, so the task still waits for a free slot.
    """
    return sa.and_(
        task.c.status == Status.RUNNING, task_rows.has_no_record(task),
        sa.exists().where(
            _claim.c.object == task.c.id, _claim.c.state == State.CLAIMED,
            _job.c.id == _claim.c.job, _job.c.space == namespace,
            _job.c.kind == tables.COMMAND))


def task_of(found: task_rows.TaskRow, running: CommandClaim | None, *,
            queued: bool = False) -> Task:
    """Return a task in the form that the public interface returns.

    :param found: The row of the task.
    :param running: The claim of the task's current command. None means that
        there is no claim, or that the claim is unknown.
    :param queued: True if the current run was granted, but still waits for a
        thread.
    """
    row, position = found.row, found.position
    unbegun = row.unbegun or (
        queued and position.status is Status.RUNNING and not found.records)
    live = None
    if running is not None and running.state is State.RUNNING and not queued:
        live = task_rows.record_key(position)
    steps = []
    for index, step in enumerate(found.definition):
        halves: dict[bool, Command | None] = {True: None}
        for back, action in ((False, step.normal), (True, step.rollback)):
            if action is None:
                continue
            name = task_rows.record_key(
                position._replace(step=index, back=back))
            record = found.records.get(name)
            if name == live and running is not None:
                record = {**(record or {}), 'code': 2,
                          'attempts': (record or {}).get('attempts', 0) + 1,
                          'worker': running.worker or ''}
                record.setdefault('started', running.granted)
            halves[back] = command_of(action, record, not back)
        normal = halves[False]
        assert normal is not None
        steps.append(Step(normal, halves[True]))
    created = moment(row.created)
    assert created is not None
    return Task(
        row.id, row.type, row.key,
        Status.WAITING if unbegun else position.status,
        row.message or None, position.cursor, row.queue, row.priority,
        found.parameters, created, moment(row.due),
        None if unbegun else moment(row.started), moment(row.ended),
        tuple(steps))


def unknown(namespace: str, task: str) -> exceptions.UnknownTask:
    """Return the error for the id of a task that does not exist."""
    return exceptions.UnknownTask(
        f'group {namespace!r} has no task {task[:100]!r} in this database; '
        'to list them: distperiodic task list')


def unknown_queue(namespace: str, queue: str) -> exceptions.UnknownTask:
    """Return the error for the name of a queue that does not exist."""
    return exceptions.UnknownTask(
        f'group {namespace!r} has no queue {queue[:100]!r} in this database; '
        'to list them: distperiodic queue list')
