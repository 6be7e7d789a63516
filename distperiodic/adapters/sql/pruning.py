# SPDX-License-Identifier: Apache-2.0
"""Deletion of old rows in small transactions, while services run."""

import collections
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import history as sql_history
from distperiodic.adapters.sql import pauses
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.statements import CLOSED
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep
from distperiodic.core.tick_exceptions import KEPT_IN_ALL
from distperiodic.core.tick_exceptions import ROW
from distperiodic.core.workflow import ENDED
from distperiodic.core.workflow import Status

_action = tables.action
_answer = tables.answer
_claim = tables.claim
_exception = tables.exception
_failure = tables.failure
_history = tables.history
_host = tables.drained_host
_job = tables.job
_lease = tables.lease
_member = tables.member
_partition_worker = tables.partition_worker
_paused = tables.paused_object
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


class _Deleted(NamedTuple):
    """Result of one transaction."""

    #: Number of deleted rows, as the driver reports it. It is only shown.
    rows: int
    #: True if more rows may be left.
    more: bool


_Work = Callable[[sa.Connection], _Deleted]


class _Group:
    """The rows of one group."""

    def __init__(self, database: Database, namespace: str):
        self._read = database.read
        self.dialect = database.dialect
        self.namespace = namespace

    def rows(self, query: sa.Executable) -> Sequence[Any]:
        return self._read(lambda connection: connection.execute(query).all())

    def jobs(self, *conditions: sa.ColumnElement[bool]) -> list[int]:
        """Return the numbers of the group's jobs and of its commands."""
        return [row.id for row in self.rows(sa.select(_job.c.id).where(
            _job.c.space == self.namespace, *conditions)
            .order_by(_job.c.name))]


def prune_steps(database: Database, namespace: str,
                ages: Ages) -> Iterator[PruneStep]:
    """Delete the old rows of a group, one small transaction for each step.

    After the last step, all rows that were old at the first step are deleted.
    """
    group = _Group(database, namespace)
    for kind, work in _works(group, ages):
        yield from _steps(database, kind, work)
    if ages.surplus:
        yield from _surplus(database, group)


def _steps(database: Database, kind: str, work: _Work) -> Iterator[PruneStep]:
    """Repeat a transaction until no more rows are left."""
    more = True
    while more:
        rows, more = database.write(work)
        yield PruneStep(kind, rows)


def _works(group: _Group, ages: Ages) -> list[tuple[str, _Work]]:
    """Return the transactions to repeat until no more rows are left.

    Each is paired with the kind of its rows.
    """
    now: int = group.rows(sa.select(group.dialect.now))[0][0]
    space = group.namespace
    found: list[tuple[str, _Work]] = []

    def add(kind: str, work: Callable[..., _Deleted], **options: Any) -> None:
        found.append((kind, functools.partial(work, **options)))

    def before(days: float) -> int:
        return now - round(days * _DAY)
    if ages.history is not None:
        for number in group.jobs():
            for kind, work in (('exceptions', _prune_some_exceptions),
                               ('history', _prune_some_history)):
                add(kind, work, number=number, before=before(ages.history))
    if ages.dead is not None:
        add('failures', _prune_some_failures, group=group,
            before=before(ages.dead))
    if ages.failures is not None:
        add('failures', _prune_some_failures, group=group,
            before=before(ages.failures), kept=_LISTED_AS_DEAD)
    if ages.reports is not None:
        add('actions', _prune_some_actions, group=group,
            before=before(ages.reports))
        add('members', _prune_some_silent, table=_member, silent=(
            _member.c.space == space, _member.c.seen < before(ages.reports),
            # Settings of an operator outlive the process.
            _member.c.drained.is_(None), _member.c.pool_size.is_(None)))
        add('standby workers', _prune_some_silent, table=_partition_worker,
            silent=(_partition_worker.c.space == space,
                    _partition_worker.c.seen < (
                        group.dialect.lease_now - round(
                            ages.reports * _DAY))))
    if ages.claims is not None:
        found += _of_claims(group, before(ages.claims), now)
    if ages.tasks is not None:
        for status in _ENDED:
            add('tasks', _prune_some_tasks, group=group, status=status,
                before=before(ages.tasks))
    if ages.queues:
        # Delete queues after the tasks, because a queue is unused when its
        # tasks are gone.
        add('queues', _prune_some_queues, group=group)
    return found


def _surplus(database: Database, group: _Group) -> Iterator[PruneStep]:
    """Delete the ended pauses of objects, and the oldest ids of exceptions.

    Each step reads the rows of one job. There may be many, and the claims of
    other jobs wait for the end of the step.
    """
    for number in group.jobs(_job.c.paused_objects.is_not(None)):
        yield from _steps(database, 'ended pauses', functools.partial(
            _prune_pauses, group=group, number=number))
    kind = 'ids of exceptions'
    for number in group.jobs(
            sa.exists().where(_exception.c.job == _job.c.id)):
        sizes = sa.select(
            _exception.c.tick, sa.func.sum(_exception.c.number + ROW).over(
                order_by=_exception.c.tick.desc()).label('size')
        ).where(*_with_ids(number)).subquery()
        [(last,)] = group.rows(sa.select(sa.func.max(sizes.c.tick)).where(
            sizes.c.size > KEPT_IN_ALL))
        yield PruneStep(kind, 0)
        if last is not None:
            yield from _steps(database, kind, functools.partial(
                _prune_some_ids, group=group, number=number, last=last))


def _with_ids(number: int) -> tuple[sa.ColumnElement[bool], ...]:
    return _exception.c.job == number, _exception.c.objects.is_not(None)


def _of_claims(group: _Group, before: int,
               now: int) -> list[tuple[str, _Work]]:
    """Return the transactions that delete claims; see :func:`_works`."""
    numbers = group.jobs(_job.c.kind == tables.KIND)
    unused = [row.job for row in group.rows(
        sa.select(_claim.c.job).where(_claim.c.job.in_(numbers))
        .group_by(_claim.c.job)
        .having(sa.func.max(_claim.c.settled) < before))]
    found: list[tuple[str, _Work]] = []
    for number in numbers:
        old = [_claim.c.job == number, _claim.c.settled < before]
        if number not in unused:
            # Keep the row of a listed object, since the row determines which
            # ticks are due.
            old += [_claim.c.state.in_(CLOSED), _claim.c.since.is_(None)]
        found.append(('claims', functools.partial(
            _prune_some_claims, group=group, number=number, old=old,
            # Any tick since the last one of an unused job may be undecided.
            listed_until=now if number in unused else before)))
    return [*found, ('leases', functools.partial(
        _prune_leases, unused=unused, before=before))]


def _prune_some_claims(connection: sa.Connection, *, group: _Group,
                       number: int, old: list[Any],
                       listed_until: int) -> _Deleted:
    """Delete claims.

    :param listed_until: Instant before which their objects may have been
        listed.
    """
    last = connection.scalar(
        sa.select(_claim.c.object).where(*old)
        .order_by(_claim.c.object).limit(1).offset(_AT_A_TIME - 1))
    some = old if last is None else [*old, _claim.c.object <= last]
    tx = Transaction(connection, group.dialect)
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
    found, delisted = connection.execute(sa.select(
        sa.func.count(), sa.func.max(_claim.c.delisted)).where(*some)).one()
    rows = connection.execute(sa.delete(_claim).where(*some)).rowcount
    if found:
        _raise(connection, number, _job.c.claims_pruned,
               max(listed_until, delisted or 0))
    return _Deleted(rows, last is not None)


def _prune_leases(connection: sa.Connection, *, unused: Sequence[int],
                  before: int) -> _Deleted:
    return _Deleted(connection.execute(sa.delete(_lease).where(
        _lease.c.job.in_(unused), _lease.c.tick < before)).rowcount, False)


def _prune_some_actions(connection: sa.Connection, *, group: _Group,
                        before: int) -> _Deleted:
    # The record of a drain stays while the member or the host is drained.
    held = sa.select(_member.c.drained).where(
        _member.c.space == group.namespace, _member.c.drained.is_not(None)
    ).union_all(sa.select(_host.c.action).where(
        _host.c.space == group.namespace))
    ids = connection.execute(
        sa.select(_action.c.id).where(
            _action.c.space == group.namespace, _action.c.at < before,
            _action.c.id.not_in(held))
        .order_by(_action.c.at, _action.c.id).limit(_AT_A_TIME)
    ).scalars().all()
    for table, column in ((_answer, _answer.c.action),
                          (_action, _action.c.id)):
        connection.execute(sa.delete(table).where(column.in_(ids)))
    return _Deleted(len(ids), len(ids) == _AT_A_TIME)


#: SQL condition: the claim of a failure is still dead, so that "dead list"
#: shows the failure.
_LISTED_AS_DEAD = sa.exists().where(
    *(_claim.c[name] == _failure.c[name]
      for name in ('object', 'job', 'tick', 'fence')),
    _claim.c.state.in_(_DEAD))


def _prune_some_failures(
        connection: sa.Connection, *, group: _Group, before: int,
        kept: sa.ColumnElement[bool] | None = None) -> _Deleted:
    jobs = sa.select(_job.c.id).where(_job.c.space == group.namespace)
    old = [_failure.c.job.in_(jobs), _failure.c.at < before]
    if kept is not None:
        old.append(~kept)
    ids = connection.execute(
        sa.select(_failure.c.id).where(*old)
        .order_by(_failure.c.at, _failure.c.id).limit(_AT_A_TIME)
    ).scalars().all()
    connection.execute(sa.delete(_failure).where(_failure.c.id.in_(ids)))
    return _Deleted(len(ids), len(ids) == _AT_A_TIME)


def _prune_some_silent(connection: sa.Connection, *, table: sa.Table,
                       silent: Sequence[sa.ColumnElement[bool]]
                       ) -> _Deleted:
    """Delete the rows of processes that have not reported for a long time.

    A process that reports again inserts a new row.
    """
    last = connection.scalar(
        sa.select(table.c.seen).where(*silent)
        .order_by(table.c.seen).limit(1).offset(_AT_A_TIME - 1))
    some = silent if last is None else (*silent, table.c.seen <= last)
    return _Deleted(
        connection.execute(sa.delete(table).where(*some)).rowcount,
        last is not None)


def _prune_some_tasks(connection: sa.Connection, *, group: _Group,
                      status: Status, before: int) -> _Deleted:
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
        return _Deleted(0, False)
    among, keys = group.dialect.among, {'keys': group.dialect.keys(ids)}
    commands = sa.select(_job.c.id).where(
        _job.c.space == group.namespace, _job.c.kind == tables.COMMAND)
    connection.execute(sa.delete(_claim).where(
        among(_claim.c.object), _claim.c.job.in_(commands)), keys)
    connection.execute(sa.delete(_ready).where(among(_ready.c.task)), keys)
    connection.execute(sa.delete(_task).where(among(_task.c.id)), keys)
    return _Deleted(len(ids), len(ids) == _TASKS_AT_A_TIME)


def _prune_some_queues(connection: sa.Connection, *, group: _Group
                       ) -> _Deleted:
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
    return _Deleted(len(still), len(still) == _AT_A_TIME)


def _old_ticks(table: sa.Table, number: int,
               before: int) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions on the rows of a job's old ticks.

    Ticks that have a lease stay: the end of an open claim must still be
    counted in the history of its tick.
    """
    open_ticks = sa.select(_lease.c.tick).where(
        _lease.c.job == number, _lease.c.tick < before)
    return (table.c.job == number, table.c.tick < before,
            table.c.tick.not_in(open_ticks))


def _begin_after(connection: sa.Connection, number: int, tick: int) -> None:
    """Record the tick up to which the history is incomplete.

    No audit starts before the tick, and no object's tick before it is
    explained.
    """
    _raise(connection, number, _job.c.pruned_before, tick + 1)


def _raise(connection: sa.Connection, number: int,
           column: sa.Column[int], instant: int) -> None:
    """Set an instant in the row of a job, unless it has a later one."""
    connection.execute(sa.update(_job).where(
        _job.c.id == number, sa.or_(column.is_(None), column < instant)
    ).values({column: instant}))


def _prune_some_exceptions(connection: sa.Connection, *, number: int,
                           before: int) -> _Deleted:
    # A tick has up to thousands of rows, so they are not deleted together with
    # the history of the tick, but before it.
    found = connection.execute(
        sa.select(_exception.c.id, _exception.c.tick).where(
            *_old_ticks(_exception, number, before))
        .order_by(_exception.c.tick).limit(_AT_A_TIME)).all()
    if not found:
        return _Deleted(0, False)
    _begin_after(connection, number, found[-1].tick)
    connection.execute(sa.delete(_exception).where(
        _exception.c.id.in_([row.id for row in found])))
    return _Deleted(len(found), len(found) == _AT_A_TIME)


def _prune_pauses(connection: sa.Connection, *, group: _Group,
                  number: int) -> _Deleted:
    """Delete the pauses of objects that have ended by themselves.

    As long as a job has paused objects, schedulers read them at each sweep.
    """
    over = sa.select(_paused.c.object).where(
        _paused.c.job == number, pauses.ended(group.dialect.now))
    if connection.execute(over.limit(1)).first() is None:
        return _Deleted(0, False)
    # An operator may have paused them again before the lock was acquired.
    pauses.lock(connection, number)
    found = connection.execute(over).scalars().all()
    pauses.delete(connection, number, found)
    pauses.count(connection, number)
    return _Deleted(len(found), False)


def _prune_some_ids(connection: sa.Connection, *, group: _Group,
                    number: int, last: int) -> _Deleted:
    """Replace the ids of a job's exceptions by their number.

    :param last: The newest tick whose ids are replaced.
    """
    # Several schedulers may do this at the same time. Each row is counted by
    # the one that has locked it.
    found = connection.execute(
        sa.select(_exception.c.id, _exception.c.outcome, _exception.c.after,
                  _exception.c.tick, _exception.c.number)
        .where(*_with_ids(number), _exception.c.tick <= last)
        .order_by(_exception.c.tick).limit(_AT_A_TIME)
        .with_for_update(skip_locked=True)).all()
    if found:
        numbers: collections.Counter[tuple[str, int, int]] = (
            collections.Counter())
        for row in found:
            numbers[row.outcome, row.after, row.tick] += row.number
        sql_history.record_numbers(
            Transaction(connection, group.dialect), number, numbers)
        connection.execute(sa.delete(_exception).where(
            _exception.c.id.in_([row.id for row in found])))
    return _Deleted(len(found), len(found) == _AT_A_TIME)


def _prune_some_history(connection: sa.Connection, *, number: int,
                        before: int) -> _Deleted:
    old = _old_ticks(_history, number, before)
    ticks = connection.execute(
        sa.select(_history.c.tick).where(*old)
        .order_by(_history.c.tick).limit(_AT_A_TIME)).scalars().all()
    if not ticks:
        return _Deleted(0, False)
    _begin_after(connection, number, ticks[-1])
    rows = connection.execute(sa.delete(_history).where(
        *old, _history.c.tick <= ticks[-1])).rowcount
    return _Deleted(rows, len(ticks) == _AT_A_TIME)
