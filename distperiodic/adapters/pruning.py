# SPDX-License-Identifier: Apache-2.0
"""Deleting what is old from the tables, in small steps beside services that
work.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters import control
from distperiodic.adapters import sql_history
from distperiodic.adapters import tables
from distperiodic.adapters.sql_moves import CLOSED
from distperiodic.adapters.sql_transaction import Transaction
from distperiodic.core.claim import State

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease

# Rows that are deleted in one transaction, so that none lasts long.
_AT_A_TIME = 1000
_DAY = 86400 * 1_000_000


class Pruned(NamedTuple):
    """How many rows were deleted."""

    history: int
    failures: int
    claims: int


class Pruner(control.Control):
    """The store of one group, for who deletes what is old."""

    def prune(self, *, history: float | None = None,
              dead: float | None = None,
              claims: float | None = None) -> Pruned:
        """Delete what is older than so many days; None: keep it all.

        :param history: of ticks.
        :param dead: what is told of runs that failed for good.
        :param claims: of objects that nobody has claimed or skipped since.
            Those that have not come to an end, and leases, only of jobs of
            which that is true of all objects.
        """
        numbers = list(self._named())
        return Pruned(
            0 if history is None else sum(
                self._until_few(functools.partial(
                    self._prune_some_history, number=number,
                    before=self._before(history)))
                for number in numbers),
            0 if dead is None else self._prune_failures(
                numbers, self._before(dead)),
            0 if claims is None else self._prune_claims(
                numbers, self._before(claims)))

    def prune_some(self, history: float) -> int:
        """Delete a thousand rows of each job's history at most, of ticks that
        are older than *history* days; returns how many there were.
        """
        before = self._before(history)
        return sum(self._database.run(functools.partial(
            self._prune_some_history, number=number, before=before))
            for number in self._named())

    def _before(self, days: float) -> int:
        return self._database.look(lambda connection: connection.execute(
            sa.select(self._dialect.now)).scalar_one()) - round(days * _DAY)

    def _prune_some_history(self, connection: sa.Connection, *, number: int,
                            before: int) -> int:
        # A claim that is not over stands in a lease. Its end is still to be
        # counted, beside its beginning.
        open_ticks = sa.select(_lease.c.tick).where(
            _lease.c.job == number, _lease.c.tick < before)
        old = (_history.c.job == number, _history.c.tick < before,
               _history.c.tick.not_in(open_ticks))
        ticks = connection.execute(
            sa.select(_history.c.tick).where(*old)
            .order_by(_history.c.tick).limit(_AT_A_TIME)).scalars().all()
        if not ticks:
            return 0
        # An account that goes back further would miss what is deleted.
        connection.execute(sa.update(_job).where(
            _job.c.id == number, sa.or_(
                _job.c.pruned_before.is_(None),
                _job.c.pruned_before <= ticks[-1])
        ).values(pruned_before=ticks[-1] + 1))
        return connection.execute(sa.delete(_history).where(
            *old, _history.c.tick <= ticks[-1])).rowcount

    def _prune_failures(self, numbers: Sequence[int], before: int) -> int:
        def work(connection: sa.Connection) -> int:
            # As they are numbered, so they came.
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
        unused = self._database.look(lambda connection: connection.execute(
            sa.select(_claim.c.job).where(_claim.c.job.in_(numbers))
            .group_by(_claim.c.job)
            .having(sa.func.max(_claim.c.settled) < before)).scalars().all())
        pruned = 0
        for number in numbers:
            old = [_claim.c.job == number, _claim.c.settled < before]
            if number not in unused:
                # The row of what is listed says what is due of it.
                old += [_claim.c.state.in_(CLOSED),
                        _claim.c.since.is_(None)]
            pruned += self._until_few(functools.partial(
                self._prune_some_claims, number=number, old=old))
        self._database.run(lambda connection: connection.execute(
            sa.delete(_lease).where(
                _lease.c.job.in_(unused), _lease.c.tick < before)))
        return pruned

    def _prune_some_claims(self, connection: sa.Connection, *, number: int,
                           old: list[Any]) -> int:
        last = connection.scalar(
            sa.select(_claim.c.object).where(*old)
            .order_by(_claim.c.object).limit(1).offset(_AT_A_TIME - 1))
        some = old if last is None else [*old, _claim.c.object <= last]
        tx = Transaction(connection, self._dialect, self._sql)
        # What nobody ended is ended here, or it would be open for ever.
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
        """Do *work* until it finds less than it could have done."""
        total = 0
        while True:
            number = self._database.run(work)
            total += number
            if number < _AT_A_TIME:
                return total
