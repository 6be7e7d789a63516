# SPDX-License-Identifier: Apache-2.0
"""Deletion of old rows, in small transactions while services are running."""

import functools
from collections.abc import Callable
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
from distperiodic.core.claim import State
from distperiodic.core.workflow import ENDED
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
_queue = tables.queue
_ready = tables.ready
_task = tables.task

# Maximum number of rows per transaction, so that none takes long.
_AT_A_TIME = 1000
# The same for tasks: each has a row for each of its commands as well.
_TASKS_AT_A_TIME = 200
_DAY = 86400 * 1_000_000


class Pruned(NamedTuple):
    """Numbers of deleted rows."""

    history: int
    failures: int
    claims: int
    tasks: int


class Pruner:
    """Deletion of old rows of one group."""

    def __init__(self, connection_url: str, *, namespace: str):
        self._database = connect(connection_url)
        self._sql = Statements(self._database.dialect)
        self.group = GroupReader(self._database, namespace)
        self.close = self.group.close

    def prune(self, *, history: float | None = None,
              dead: float | None = None,
              claims: float | None = None,
              tasks: float | None = None) -> Pruned:
        """Delete rows that are older than the given numbers of days.

        For each kind of row, None keeps all rows.

        :param history: Maximum age of the history, by tick.
        :param dead: Maximum age of the records of runs that failed for good.
        :param claims: Maximum age of claims, by watermark. If all claims of a
            job are older, the job is unused: all of its claims and its older
            leases are deleted. For any other job, only closed claims of
            objects that are not listed are deleted.
        :param tasks: Maximum age of tasks that have ended, by their end. Their
            claims are deleted as well.
        """
        numbers = list(self.group.names())
        return Pruned(
            0 if history is None else sum(
                self._until_few(functools.partial(
                    _prune_some_history, number=number,
                    before=_before(self.group, history)))
                for number in _with_commands(self.group)),
            0 if dead is None else self._prune_failures(
                numbers, _before(self.group, dead)),
            0 if claims is None else self._prune_claims(
                numbers, _before(self.group, claims)),
            0 if tasks is None else self._until_few(functools.partial(
                _prune_some_tasks, group=self.group,
                before=_before(self.group, tasks)), _TASKS_AT_A_TIME))

    def _prune_failures(self, numbers: Sequence[int], before: int) -> int:
        def work(connection: sa.Connection) -> int:
            # Ids grow with time, so the lowest ids are the oldest rows.
            oldest = connection.execute(
                sa.select(_failure.c.id, _failure.c.at)
                .where(_failure.c.job.in_(numbers))
                .order_by(_failure.c.id).limit(_AT_A_TIME)).all()
            old = [row.id for row in oldest if row.at < before]
            connection.execute(
                sa.delete(_failure).where(_failure.c.id.in_(old)))
            return len(old)
        return self._until_few(work)

    def _prune_claims(self, numbers: Sequence[int], before: int) -> int:
        unused = [row.job for row in self.group.rows(
            sa.select(_claim.c.job).where(_claim.c.job.in_(numbers))
            .group_by(_claim.c.job)
            .having(sa.func.max(_claim.c.settled) < before))]
        pruned = 0
        for number in numbers:
            old = [_claim.c.job == number, _claim.c.settled < before]
            if number not in unused:
                # The row of a listed object determines its due ticks.
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
        # Count open claims as ended; otherwise the history would show them as
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
        """Repeat *work* until it deletes fewer rows than its maximum.

        :param most: That maximum.
        :returns: Number of deleted rows.
        """
        total = 0
        while True:
            number = self._database.write(work)
            total += number
            if number < most:
                return total


def prune_some(database: Database, namespace: str, history: float) -> int:
    """Delete some history of ticks that are older than *history* days.

    At most about 1000 rows of each job are deleted, the oldest first.

    :returns: Number of deleted rows.
    """
    group = GroupReader(database, namespace)
    before = _before(group, history)
    return sum(database.write(functools.partial(
        _prune_some_history, number=number, before=before))
        for number in _with_commands(group))


def prune_some_actions(database: Database, namespace: str,
                       days: float) -> int:
    """Delete some records of actions that are older than *days* days, with
    their answers. The record of a drain stays while the member is drained.

    :returns: Number of deleted records, at most about 1000.
    """
    group = GroupReader(database, namespace)
    before = _before(group, days)

    def work(connection: sa.Connection) -> int:
        held = sa.select(_member.c.drained).where(
            _member.c.space == namespace, _member.c.drained.is_not(None))
        ids = connection.execute(
            sa.select(_action.c.id).where(
                _action.c.space == namespace, _action.c.at < before,
                _action.c.id.not_in(held))
            .order_by(_action.c.at, _action.c.id).limit(_AT_A_TIME)
        ).scalars().all()
        for table, column in ((_answer, _answer.c.action),
                              (_action, _action.c.id)):
            connection.execute(sa.delete(table).where(column.in_(ids)))
        return len(ids)
    return database.write(work)


def prune_some_tasks(database: Database, namespace: str,
                     days: float) -> int:
    """Delete some tasks that ended more than *days* days ago.

    :returns: Number of deleted tasks, at most a few hundred.
    """
    group = GroupReader(database, namespace)
    return database.write(functools.partial(
        _prune_some_tasks, group=group, before=_before(group, days)))


def _with_commands(group: GroupReader) -> Sequence[int]:
    """Return the numbers of the group's jobs and of its commands."""
    return [row.id for row in group.rows(sa.select(_job.c.id).where(
        _job.c.space == group.namespace).order_by(_job.c.name))]


def _prune_some_tasks(connection: sa.Connection, *, group: GroupReader,
                      before: int) -> int:
    # A task ended after it was created; the index has this column.
    old = (_task.c.space == group.namespace,
           _task.c.status.in_(ENDED), _task.c.created < before,
           _task.c.ended < before)
    # A halted queue names the task that failed, for its operator.
    blamed = sa.select(_queue.c.halted_by).where(
        _queue.c.space == group.namespace, _queue.c.halted_by.is_not(None))
    # Lock them, so that none is retried meanwhile.
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


def _before(group: GroupReader, days: float) -> int:
    return group.now() - round(days * _DAY)


def _prune_some_history(connection: sa.Connection, *, number: int,
                        before: int) -> int:
    # Keep ticks that have a lease: the end of an open claim must still be
    # counted in the same tick as its beginning.
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
    # starts before it.
    connection.execute(sa.update(_job).where(
        _job.c.id == number, sa.or_(
            _job.c.pruned_before.is_(None),
            _job.c.pruned_before <= ticks[-1])
    ).values(pruned_before=ticks[-1] + 1))
    return connection.execute(sa.delete(_history).where(
        *old, _history.c.tick <= ticks[-1])).rowcount
