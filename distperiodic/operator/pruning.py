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
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import connect

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease

# Maximum number of rows per transaction, so that none takes long.
_AT_A_TIME = 1000
_DAY = 86400 * 1_000_000


class Pruned(NamedTuple):
    """Numbers of deleted rows."""

    history: int
    failures: int
    claims: int


class Pruner:
    """Deletion of old rows of one group."""

    def __init__(self, connection_url: str, *, namespace: str):
        self._database = connect(connection_url)
        self._sql = Statements(self._database.dialect)
        self.group = GroupReader(self._database, namespace)
        self.close = self.group.close

    def prune(self, *, history: float | None = None,
              dead: float | None = None,
              claims: float | None = None) -> Pruned:
        """Delete rows that are older than the given numbers of days.

        For each kind of row, None keeps all rows.

        :param history: Maximum age of the history, by tick.
        :param dead: Maximum age of the records of runs that failed for good.
        :param claims: Maximum age of claims, by watermark. If all claims of a
            job are older, the job is unused: all of its claims and its older
            leases are deleted. For any other job, only closed claims of
            objects that are not listed are deleted.
        """
        numbers = list(self.group.names())
        return Pruned(
            0 if history is None else sum(
                self._until_few(functools.partial(
                    _prune_some_history, number=number,
                    before=_before(self.group, history)))
                for number in numbers),
            0 if dead is None else self._prune_failures(
                numbers, _before(self.group, dead)),
            0 if claims is None else self._prune_claims(
                numbers, _before(self.group, claims)))

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

    def _until_few(self, work: Callable[[sa.Connection], int]) -> int:
        """Repeat *work* until it deletes fewer rows than its maximum.

        :returns: Number of deleted rows.
        """
        total = 0
        while True:
            number = self._database.write(work)
            total += number
            if number < _AT_A_TIME:
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
        for number in group.names())


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
