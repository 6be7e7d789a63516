# SPDX-License-Identifier: Apache-2.0
"""Numbers of tasks by type and condition, for the audit.

The database groups and counts the tasks. A million tasks therefore cost one
pass over their rows, and the database sends only the numbers.
"""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import State
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.outcomes import Fate
from distperiodic.core.task_audit import Alike
from distperiodic.core.task_audit import Condition
from distperiodic.core.waiting import Wait
from distperiodic.core.workflow import ENDED
from distperiodic.core.workflow import Status
from distperiodic.operator.group_reader import GroupReader

_claim = tables.claim
_job = tables.job
_lease = tables.lease
_queue = tables.queue
_ready = tables.ready
_task = tables.task

#: Conditions in which the module of the next command matters.
_OF_MODULE = (Wait.READY, Wait.CLAIMED, Wait.LEASE_ENDED)
_CONDITIONS: dict[str, Condition] = {
    str(one): one for one in (*Status, *Wait, Fate.LOST, Fate.UNEXPLAINED)}


def tasks_alike(group: GroupReader, since: int) -> list[Alike]:
    """Return the numbers of tasks by type, condition and module.

    Tasks that have ended are counted only if they were submitted at or after
    *since*. Tasks that have not ended are always counted.

    :param since: Instant in microseconds.
    """
    def read(connection: sa.Connection) -> list[Alike]:
        modules = {row.id: row.name.removeprefix(COMMAND_PREFIX).partition(
            '.')[0] for row in connection.execute(
                sa.select(_job.c.id, _job.c.name).where(
                    _job.c.space == group.namespace,
                    _job.c.kind == tables.COMMAND))}
        found: dict[tuple[str, Condition, str], int] = {}
        for query in (_settled(group, since), _waiting(group),
                      _under_way(group)):
            for type_, text, job, number in connection.execute(query):
                condition = _CONDITIONS[text]
                key = type_, condition, (
                    modules.get(job, '') if condition in _OF_MODULE else '')
                found[key] = found.get(key, 0) + number
        return [Alike(*key, number) for key, number in found.items()]
    return group.read_snapshot(read)


def _settled(group: GroupReader, since: int) -> Any:
    """Count the tasks that have ended or are stuck."""
    return sa.select(
        _task.c.type, _task.c.status, sa.null(), sa.func.count()
    ).where(_task.c.space == group.namespace, sa.or_(
        _task.c.status == Status.STUCK, sa.and_(
            _task.c.status.in_(sorted(ENDED)), _task.c.created >= since))
    ).group_by(_task.c.type, _task.c.status)


def _ready_or(group: GroupReader, *others: Any, otherwise: Any) -> Any:
    """Return an SQL expression for the condition of a task.

    If the task has a delayed or ready step, the condition is "delayed" or
    "ready". Otherwise the first of *others* that applies determines the
    condition. If none of them applies, the condition is *otherwise*.
    """
    return sa.case(
        (sa.and_(_ready.c.delayed == 1, _ready.c.due > sa.select(
            group.dialect.now).scalar_subquery()), _text(Wait.DELAYED)),
        (_ready.c.task.is_not(None), _text(Wait.READY)),
        *others, else_=_text(otherwise))


def _waiting(group: GroupReader) -> Any:
    """Count tasks that have not started."""
    condition = _ready_or(
        group,
        (_task.c.queue.is_(None), _text(Fate.LOST)),
        # The head of a queue always has a ready step or a claim.
        (_queue.c.head == _task.c.id, _text(Fate.LOST)),
        (_queue.c.halted.is_not(None), _text(Wait.QUEUE_HALTED)),
        (_queue.c.head.is_not(None), _text(Wait.BEHIND)),
        otherwise=Wait.NEXT_IN_QUEUE).label('standing')
    return _grouped(_task.outerjoin(
        _ready, _ready.c.task == _task.c.id).outerjoin(_queue, sa.and_(
            _queue.c.space == _task.c.space,
            _queue.c.name == _task.c.queue)), condition, _ready.c.job
    ).where(_task.c.space == group.namespace,
            _task.c.status == Status.WAITING)


def _under_way(group: GroupReader) -> Any:
    """Count tasks that run or are being rolled back."""
    live = sa.select(
        _claim.c.object, _claim.c.job, _claim.c.state, _lease.c.until
    ).join(_lease, _lease.c.id == _claim.c.lease).join(
        _job, _job.c.id == _claim.c.job).where(
            _job.c.space == group.namespace, _job.c.kind == tables.COMMAND,
            _claim.c.state.in_([*OPEN, State.COMMITTED])).subquery()
    condition = sa.case(
        (sa.and_(_ready.c.task.is_not(None), live.c.object.is_not(None)),
         _text(Fate.UNEXPLAINED)),
        else_=_ready_or(
            group,
            (live.c.object.is_(None), _text(Fate.LOST)),
            (live.c.state == State.RETRY, _text(Wait.RETRY)),
            (live.c.until < sa.select(
                group.dialect.lease_now).scalar_subquery(),
             _text(Wait.LEASE_ENDED)),
            (live.c.state == State.CLAIMED, _text(Wait.CLAIMED)),
            (_task.c.status == Status.ROLLING_BACK,
             _text(Status.ROLLING_BACK)),
            otherwise=Status.RUNNING)).label('standing')
    return _grouped(_task.outerjoin(
        _ready, _ready.c.task == _task.c.id).outerjoin(
            live, live.c.object == _task.c.id), condition,
        sa.func.coalesce(_ready.c.job, live.c.job)
    ).where(_task.c.space == group.namespace, _task.c.status.in_(
        [Status.RUNNING, Status.ROLLING_BACK]))


def _grouped(rows: Any, condition: Any, job: Any) -> Any:
    # Group by labels, which every database allows. PostgreSQL treats two equal
    # expressions with parameters as different.
    named = job.label('of_job')
    return sa.select(
        _task.c.type, condition, named, sa.func.count()
    ).select_from(rows).group_by(
        _task.c.type, sa.literal_column('standing'),
        sa.literal_column('of_job'))


def _text(condition: Condition) -> Any:
    return sa.literal_column(f"'{condition.value}'")
