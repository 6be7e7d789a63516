# SPDX-License-Identifier: Apache-2.0
"""Deletion of old rows in small transactions, while services run."""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import history as sql_history
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.statements import CLOSED
from distperiodic.adapters.sql.statements import Statements
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.workflow import ENDED
from distperiodic.core.workflow import Status
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import connect

_action = tables.action
_answer = tables.answer
_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease
_member = tables.member
_partition_worker = tables.partition_worker
_queue = tables.queue
_ready = tables.ready
_task = tables.task

# Maximum number of rows per transaction, so that no transaction takes long.
_AT_A_TIME = 1000
# Maximum number of tasks per transaction. The number is lower, because a task
# also has a row for each of its commands.
_TASKS_AT_A_TIME = 200
_DAY = 86400 * 1_000_000
_ENDED = sorted(ENDED)
_DEAD = MOVES[Move.REQUEUE][0]


class Pruned(NamedTuple):
    """Numbers of deleted rows."""

    history: int
    failures: int
    claims: int
    tasks: int


class Step(NamedTuple):
    """One transaction that deleted old rows."""

    #: Kind of the rows, for the log.
    kind: str
    rows: int


class Pruner:
    """Deletion of old rows of one group."""

    def __init__(self, connection_url: str, *, namespace: str):
        self._database = connect(connection_url)
        self._sql: Statements = self._database.dialect.once(Statements)
        self.group = GroupReader(self._database, namespace)
        self.close = self.group.close

    def prune(self, *, history: float | None = None,
              dead: float | None = None,
              claims: float | None = None,
              tasks: float | None = None) -> Pruned:
        """Delete rows that are older than the given numbers of days.

        For each kind of rows, None keeps all rows.

        :param history: Maximum age of the history, by tick.
        :param dead: Maximum age of the records of runs that failed for good.
        :param claims: Maximum age of claims, by watermark. If all claims of a
            job are older, the job is unused: all of its claims, and its leases
            for older ticks, are deleted. For any other job, only closed claims
            of objects that are not listed are deleted.
        :param tasks: Maximum time since the end of tasks that have ended. The
            claims of deleted tasks are deleted as well. A task whose failure
            has halted a queue is kept until the queue is resumed.
        """
        numbers = list(self.group.names())
        return Pruned(
            0 if history is None else sum(
                self._until_few(functools.partial(
                    _prune_some_history, number=number,
                    before=_before(self.group, history)))
                for number in _with_commands(self.group)),
            0 if dead is None else self._until_few(functools.partial(
                _prune_some_failures, group=self.group,
                before=_before(self.group, dead))),
            0 if claims is None else self._prune_claims(
                numbers, _before(self.group, claims)),
            0 if tasks is None else sum(
                self._until_few(functools.partial(
                    _prune_some_tasks, group=self.group, status=status,
                    before=_before(self.group, tasks)), _TASKS_AT_A_TIME)
                for status in _ENDED))

    def _prune_claims(self, numbers: Sequence[int], before: int) -> int:
        unused = [row.job for row in self.group.rows(
            sa.select(_claim.c.job).where(_claim.c.job.in_(numbers))
            .group_by(_claim.c.job)
            .having(sa.func.max(_claim.c.settled) < before))]
        pruned = 0
        for number in numbers:
            old = [_claim.c.job == number, _claim.c.settled < before]
            if number not in unused:
                # Keep the row of a listed object, since the row determines
                # which ticks are due.
                old += [_claim.c.state.in_(CLOSED),
                        _claim.c.since.is_(None)]
            pruned += self._until_few(functools.partial(
                self._prune_some_claims, number=number, old=old))
        self._database.write(lambda connection: connection.execute(
            sa.delete(_lease).where(
                _lease.c.job.in_(unused), _lease.c.tick < before)))
        return pruned

    def _prune_some_claims(self, connection: sa.Connection, *, number: int,
                           old: list[Any]) -> int:
        last = connection.scalar(
            sa.select(_claim.c.object).where(*old)
            .order_by(_claim.c.object).limit(1).offset(_AT_A_TIME - 1))
        some = old if last is None else [*old, _claim.c.object <= last]
        tx = Transaction(connection, self.group.dialect, self._sql)
        # Count open claims as ended. Otherwise the history would show them as
        # open forever.
        for tick, state, still_open in connection.execute(
                sa.select(_claim.c.tick, _claim.c.state, sa.func.count())
                .where(*some, _claim.c.state.not_in(CLOSED))
                .group_by(_claim.c.tick, _claim.c.state)).all():
            ending = (State.DONE if state is State.COMMITTED
                      else State.CANCELLED)
            sql_history.count(
                tx, number, tick, '', **{ending.value: still_open})
        return connection.execute(sa.delete(_claim).where(*some)).rowcount

    def _until_few(self, work: Callable[[sa.Connection], int],
                   most: int = _AT_A_TIME) -> int:
        """Repeat *work* until it deletes fewer than *most* rows.

        :param most: Maximum number of rows that *work* deletes in one call.
        :returns: Number of deleted rows.
        """
        total = 0
        while True:
            number = self._database.write(work)
            total += number
            if number < most:
                return total


def prune_steps(database: Database, namespace: str, *, history: float,
                tasks: float) -> Iterator[Step]:
    """Delete the old rows of a group, one small transaction for each step.

    After the last step, all rows that were old at the first step are deleted.
    Unlike :class:`Pruner`, the steps keep the record of a failure as long as
    the failed claim is dead.

    :param history: Maximum age in days of the history of ticks, of failures,
        of records of actions, of the last report of a member, and of the last
        heartbeat of a worker. 0 keeps all of these rows.
    :param tasks: Maximum number of days since the end of tasks that have
        ended. The rows of unused queues are deleted as well. 0 keeps all of
        these rows.
    """
    group = GroupReader(database, namespace)
    kinds: list[tuple[str, int, Callable[[sa.Connection], int]]] = []
    if history:
        before = _before(group, history)
        kinds += [('history', _AT_A_TIME, functools.partial(
            _prune_some_history, number=number, before=before))
            for number in _with_commands(group)]
        kinds += [
            ('failures', _AT_A_TIME, functools.partial(
                _prune_some_failures, group=group, before=before,
                kept=_LISTED_AS_DEAD)),
            ('actions', _AT_A_TIME, functools.partial(
                _prune_some_actions, group=group, before=before)),
            ('members', _AT_A_TIME, functools.partial(
                _prune_some_silent, table=_member, silent=(
                    _member.c.space == namespace, _member.c.seen < before,
                    # Settings of an operator outlive the process.
                    _member.c.drained.is_(None),
                    _member.c.pool_size.is_(None)))),
            ('standby workers', _AT_A_TIME, functools.partial(
                _prune_some_silent, table=_partition_worker, silent=(
                    _partition_worker.c.space == namespace,
                    _partition_worker.c.seen < (
                        group.dialect.lease_now - round(history * _DAY))))),
        ]
    if tasks:
        before = _before(group, tasks)
        kinds += [('tasks', _TASKS_AT_A_TIME, functools.partial(
            _prune_some_tasks, group=group, status=status, before=before))
            for status in _ENDED]
        # Delete queues after the tasks, because a queue is unused when its
        # tasks are gone.
        kinds.append(('queues', _AT_A_TIME, functools.partial(
            _prune_some_queues, group=group)))
    for kind, most, work in kinds:
        rows = most
        while rows >= most:
            rows = database.write(work)
            yield Step(kind, rows)


def _prune_some_actions(connection: sa.Connection, *, group: GroupReader,
                        before: int) -> int:
    # The record of a drain stays while the member is drained.
    held = sa.select(_member.c.drained).where(
        _member.c.space == group.namespace, _member.c.drained.is_not(None))
    ids = connection.execute(
        sa.select(_action.c.id).where(
            _action.c.space == group.namespace, _action.c.at < before,
            _action.c.id.not_in(held))
        .order_by(_action.c.at, _action.c.id).limit(_AT_A_TIME)
    ).scalars().all()
    for table, column in ((_answer, _answer.c.action),
                          (_action, _action.c.id)):
        connection.execute(sa.delete(table).where(column.in_(ids)))
    return len(ids)


#: SQL condition: the claim of a failure is still dead, so that "dead list"
#: shows the failure.
_LISTED_AS_DEAD = sa.exists().where(
    *(_claim.c[name] == _failure.c[name]
      for name in ('object', 'job', 'tick', 'fence')),
    _claim.c.state.in_(_DEAD))


def _prune_some_failures(
        connection: sa.Connection, *, group: GroupReader, before: int,
        kept: sa.ColumnElement[bool] | None = None) -> int:
    jobs = sa.select(_job.c.id).where(_job.c.space == group.namespace)
    old = [_failure.c.job.in_(jobs), _failure.c.at < before]
    if kept is not None:
        old.append(~kept)
    ids = connection.execute(
        sa.select(_failure.c.id).where(*old)
        .order_by(_failure.c.at, _failure.c.id).limit(_AT_A_TIME)
    ).scalars().all()
    connection.execute(sa.delete(_failure).where(_failure.c.id.in_(ids)))
    return len(ids)


def _prune_some_silent(connection: sa.Connection, *, table: sa.Table,
                       silent: Sequence[sa.ColumnElement[bool]]) -> int:
    """Delete the rows of processes that have not reported for a long time.

    A process that reports again inserts a new row.
    """
    last = connection.scalar(
        sa.select(table.c.seen).where(*silent)
        .order_by(table.c.seen).limit(1).offset(_AT_A_TIME - 1))
    some = silent if last is None else (*silent, table.c.seen <= last)
    return connection.execute(sa.delete(table).where(*some)).rowcount


def _with_commands(group: GroupReader) -> Sequence[int]:
    """Return the numbers of the group's jobs and of its commands."""
    return [row.id for row in group.rows(sa.select(_job.c.id).where(
        _job.c.space == group.namespace).order_by(_job.c.name))]


def _prune_some_tasks(connection: sa.Connection, *, group: GroupReader,
                      status: Status, before: int) -> int:
    # For one status, the index returns the oldest tasks first. The condition
    # on the time of creation only helps the index: no task ends before its
    # creation.
    old = (_task.c.space == group.namespace, _task.c.status == status,
           _task.c.created < before, _task.c.ended < before)
    # Keep a failed task that has halted a queue: operators need it to find the
    # cause.
    blamed = sa.select(_queue.c.halted_by).where(
        _queue.c.space == group.namespace, _queue.c.halted_by.is_not(None))
    # Lock the tasks, so that none of them is retried before its deletion.
    ids = connection.execute(
        sa.select(_task.c.id).where(*old, _task.c.id.not_in(blamed))
        .order_by(_task.c.created, _task.c.id).limit(_TASKS_AT_A_TIME)
        .with_for_update(skip_locked=True)).scalars().all()
    if not ids:
        return 0
    among, keys = group.dialect.among, {'keys': group.dialect.keys(ids)}
    commands = sa.select(_job.c.id).where(
        _job.c.space == group.namespace, _job.c.kind == tables.COMMAND)
    connection.execute(sa.delete(_claim).where(
        among(_claim.c.object), _claim.c.job.in_(commands)), keys)
    connection.execute(sa.delete(_ready).where(among(_ready.c.task)), keys)
    connection.execute(sa.delete(_task).where(among(_task.c.id)), keys)
    return len(ids)


def _prune_some_queues(connection: sa.Connection, *, group: GroupReader
                       ) -> int:
    """Delete the rows of unused queues.

    An unused queue has no tasks, is not halted, and has no setting of an
    operator. Tasks stay for a while after their end, so a queue without tasks
    has not been used for some time.
    """
    among, keys = group.dialect.among(_queue.c.name), group.dialect.keys
    unused = (_queue.c.space == group.namespace, _queue.c.head.is_(None),
              _queue.c.halted.is_(None), _queue.c.goes_on == 0,
              ~sa.exists().where(_task.c.space == _queue.c.space,
                                 _task.c.queue == _queue.c.name))
    found = connection.execute(sa.select(_queue.c.name).where(*unused).limit(
        _AT_A_TIME)).scalars().all()
    # Each submission locks the row of its queue before it inserts a task. So
    # no task can be inserted while this transaction holds the lock. A task may
    # have been inserted before the lock was acquired; only a later statement
    # sees this task.
    locked = connection.execute(
        sa.select(_queue.c.name).where(
            _queue.c.space == group.namespace, among)
        .with_for_update(skip_locked=True), {'keys': keys(found)}
    ).scalars().all()
    still = connection.execute(
        sa.select(_queue.c.name).where(*unused, among),
        {'keys': keys(locked)}).scalars().all()
    connection.execute(
        sa.delete(_queue).where(_queue.c.space == group.namespace, among),
        {'keys': keys(still)})
    return len(still)


def _before(group: GroupReader, days: float) -> int:
    return group.now() - round(days * _DAY)


def _prune_some_history(connection: sa.Connection, *, number: int,
                        before: int) -> int:
    # Keep ticks that have a lease: the end of an open claim must still be
    # counted in the history of its tick.
    open_ticks = sa.select(_lease.c.tick).where(
        _lease.c.job == number, _lease.c.tick < before)
    old = (_history.c.job == number, _history.c.tick < before,
           _history.c.tick.not_in(open_ticks))
    ticks = connection.execute(
        sa.select(_history.c.tick).where(*old)
        .order_by(_history.c.tick).limit(_AT_A_TIME)).scalars().all()
    if not ticks:
        return 0
    # Record the tick up to which the history is incomplete, so that no audit
    # starts before this tick.
    connection.execute(sa.update(_job).where(
        _job.c.id == number, sa.or_(
            _job.c.pruned_before.is_(None),
            _job.c.pruned_before <= ticks[-1])
    ).values(pruned_before=ticks[-1] + 1))
    return connection.execute(sa.delete(_history).where(
        *old, _history.c.tick <= ticks[-1])).rowcount
