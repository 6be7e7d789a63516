# SPDX-License-Identifier: Apache-2.0
"""One transaction of the store, and the operations within it.

Each call that moves claims into a lease gives the lease a name that no other
call uses. The rows with this name are the claims that the call has acquired.
No result depends on a driver's row count: :meth:`Transaction.leave` uses one
only to save a statement.
"""

import functools
import json
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception

from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import step_statements
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.statements import GRANTED
from distperiodic.adapters.sql.statements import ClaimChange
from distperiodic.adapters.sql.statements import LeaseMove
from distperiodic.adapters.sql.statements import Statements
from distperiodic.adapters.sql.statements import of_schedule
from distperiodic.core.attributes import PLAIN
from distperiodic.core.claim import Claim
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.ring import positions_of

T = TypeVar('T')

_WIDTH = len(GRANTED)


class Transaction:
    """Operations within one transaction, which the caller commits.

    A claim is identified by the number of its job and by its object, the key.
    """

    def __init__(self, connection: sa.Connection, dialect: Dialect):
        self.connection = connection
        self.dialect = dialect
        self.sql: Statements = dialect.once(Statements)

    # Claims.

    def move(self, step: LeaseMove, number: int, keys: Sequence[str],
             moved: dict[str, Claim], parameters: dict[str, Any]) -> int:
        """Move claims of *keys* into a lease.

        The conditions of *step* decide which claims can be moved.

        :param moved: Dictionary to which the moved claims are added, by key.
        :returns: Number of claims that were moved.
        """
        parameters = {**parameters, 'of_job': number,
                      'keys': self.dialect.keys(keys)}
        before = len(moved)
        if self.dialect.returning:
            rows = self.connection.execute(
                step.move_returning, parameters).all()
        else:
            self.connection.execute(step.move, parameters)
            rows = []
        if len(rows) < len(keys) and step.reads_back:
            rows = self.connection.execute(self.sql.standing, {
                name: parameters[name]
                for name in ('of_job', 'keys', 'into')}).all()
        moved.update((row[0], claim_of(row)) for row in rows)
        return len(moved) - before

    def claim_at_once(self, number: int, tick: int, keys: list[str],
                      lease: NewLease, parameters: dict[str, Any]
                      ) -> dict[str, Claim]:
        """Execute the statement ``claim_at_once``.

        :param parameters: The request.
        :returns: the acquired claims, by object.
        :raises DBDuplicateEntry: as in :meth:`make`.
        """
        size = len(keys)
        rows = self.connection.execute(self.sql.claim_at_once, parameters | {
            **_row_of(lease, State.CLAIMED, number, tick, keys),
            'of_job': number, 'keys': self.dialect.keys(keys),
            'into': lease.id, 'at_tick': tick, 'runner': lease.holder,
            'more_due': size}).all()
        # Reuse the caller's strings and tick, and equal instants: a scheduler
        # may keep a million claims, and copies take memory.
        ours = {key: key for key in keys}
        same: dict[int, int] = {}
        once = same.setdefault
        return {row[0]: tuple.__new__(Claim, (
            ours[row[0]], row[1], row[2], tick, once(row[4], row[4]),
            once(row[5], row[5]), row[6])) for row in rows}

    def claim_steps(self, number: int, tick: int, due: Mapping[str, int],
                    lease: NewLease, state: State, now: int
                    ) -> dict[str, Claim]:
        """Claim the next steps of tasks, and return the claims by task.

        :param due: Instants at which the steps became ready, by task.
        :param state: CLAIMED, or RUNNING to grant the runs to the holder of
            *lease* as well.
        :param now: Time of the store's clock, in microseconds.
        """
        rows = self.connection.execute(
            self.dialect.once(step_statements.claim), self._steps(
                number, tick, due, lease, state, now))
        if not self.dialect.merge_returns:
            return {one.object: one
                    for one in self.standing(number, list(due), lease.id)}
        return {row.object: claim_of(row) for row in rows}

    def grant_steps(self, statement: Any, number: int, tick: int,
                    due: Mapping[str, int], lease: NewLease,
                    counted: dict[str, Any], ended: str,
                    left: int, now: int) -> tuple[dict[str, Claim], bool]:
        """Claim the next steps of tasks and grant their runs.

        If all steps are claimed, *counted* is added to the history, and the
        lease is created.

        :param statement: Result of :func:`.step_statements.grant`.
        :param due: As in :meth:`claim_steps`.
        :param ended: Lease of the runs that have ended.
        :param left: Number of these runs.
        :param now: As in :meth:`claim_steps`.
        :returns: the claims by task, and True if the lease *ended* was
            deleted. If the lease was not deleted, call :meth:`leave`.
        :raises DBDuplicateEntry: as in :meth:`make`.
        """
        rows = self.connection.execute(statement, {
            **self._steps(number, tick, due, lease, State.RUNNING, now),
            **_row_of(lease, State.RUNNING, number, tick, list(due)),
            **counted, 'stands_in': ended, 'number': left}).all()
        return ({row.object: claim_of(row) for row in rows},
                any(row.left for row in rows))

    def _steps(self, number: int, tick: int, due: Mapping[str, int],
               lease: NewLease, state: State, now: int) -> Any:
        """Return the parameters of :func:`.step_statements.claim`."""
        ordered = sorted(due)
        runs = state is State.RUNNING
        return self.dialect.rows(
            {'object': ordered, 'position': positions_of(ordered),
             'waiting': [due[key] for key in ordered]},
            job=number, tick=tick, settled=tick, state=state,
            fence=first_fence(tick), attempt=1, lease=lease.id,
            worker=lease.holder if runs else None, since=tick,
            **PLAIN._asdict(),
            started=now if runs else None)

    def changed(self, change: ClaimChange,
                parameters: dict[str, Any]) -> Sequence[Any]:
        """Execute *change* and return the changed rows."""
        if self.dialect.returning:
            return self.connection.execute(
                change.move_returning, parameters).all()
        rows = self.connection.execute(change.before, parameters).all()
        self.connection.execute(change.move, parameters)
        return rows

    def skip(self, number: int, request: SkipRequest,
             keys: Sequence[str]) -> dict[str, int]:
        """Skip the objects *keys* of *request* that may be skipped.

        The watermark of each skipped object is set to the tick.

        :returns: the previous watermarks of the skipped objects, by object.
        """
        parameters = {'of_job': number, 'keys': self.dialect.keys(keys),
                      'of_tick': request.tick, 'by': request.by,
                      'of_due': request.claimable_from,
                      **of_schedule(request.schedule)}
        # Read the previous watermarks first: only the newest databases can
        # return old values from an UPDATE. Locked rows are left out.
        rows = self.connection.execute(
            self.sql.skip.before, parameters).all()
        if rows:
            self.connection.execute(self.sql.skip.move, parameters | {
                'keys': self.dialect.keys([row.object for row in rows])})
        return {row.object: row.settled for row in rows}

    def unlocked(self, number: int, keys: Sequence[str]) -> list[str]:
        """Lock the rows of *keys* that no other transaction has locked.

        This method does not wait for locks: a handler that ends its run in its
        own transaction locks the row until the end of that transaction.

        :returns: the keys of the rows that are now locked.
        """
        if not self.dialect.locks_rows or not keys:
            return list(keys)
        return list(self.connection.execute(self.sql.unlocked, {
            'of_job': number, 'keys': self.dialect.keys(keys)}).scalars())

    def standing(self, number: int, keys: Sequence[str],
                 lease: str) -> list[Claim]:
        """Return the open claims of *keys* in a lease."""
        rows = self.connection.execute(self.sql.standing, {
            'of_job': number, 'keys': self.dialect.keys(keys),
            'into': lease})
        return in_order(keys, {row.object: claim_of(row) for row in rows})

    def rows_of(self, number: int, keys: Sequence[str]) -> dict[str, Any]:
        """Return the rows of the claims, by key."""
        return {row.object: row for row in self.connection.execute(
            self.sql.look, {'of_job': number,
                            'keys': self.dialect.keys(keys)})}

    # Leases.

    def make(self, lease: NewLease, state: State, number: int, tick: int,
             objects: list[str], *, superseded: int = 0,
             counted: dict[str, Any] | None = None) -> None:
        """Create the lease of moved claims, as the last step of a move.

        :param counted: Parameters of a count to add to the history, if any.
        :raises DBDuplicateEntry: the lease exists: an earlier call has already
            moved these claims.
        """
        made = _row_of(lease, state, number, tick, objects, superseded)
        if counted is None:
            self.connection.execute(self.sql.make, made)
        elif self.sql.count_and_make is not None:
            self.connection.execute(
                self.sql.count_and_make, counted | made)
        else:
            self.connection.execute(self.sql.count_of, counted)
            self.connection.execute(self.sql.make, made)

    def leave(self, name: str, count: int) -> None:
        """Subtract *count* from the number of claims in the lease *name*.

        The lease is deleted if no claims are left in it.
        """
        if not count:
            return
        parameters = {'stands_in': name, 'number': count}
        # No claim depends on the driver's row count. If the row count is too
        # low, the second statement finds that the lease is already deleted,
        # and changes nothing. If the row count is too high, an empty lease
        # stays behind, and is deleted after it has expired.
        if self.connection.execute(
                self.sql.last_leave, parameters).rowcount == 1:
            return
        left = self.connection.execute(self.sql.leave, parameters)
        # Other claims may have left the lease since the first statement.
        if not self.dialect.returning or any(
                row.remaining <= 0 for row in left):
            self.connection.execute(
                self.sql.last_leave, parameters | {'number': 0})


def _row_of(lease: NewLease, state: State, number: int, tick: int,
            objects: list[str], superseded: int = 0) -> dict[str, Any]:
    """Return the parameters of the statements that create a lease."""
    return {
        'new_id': lease.id, 'new_job': number, 'new_tick': tick,
        'new_state': state, 'new_holder': lease.holder,
        'new_remaining': len(objects), 'new_superseded': superseded,
        'new_objects': json.dumps(objects)} | lease_terms.term(lease.seconds)


class Transactions:
    """Transactions over one database connection.

    See :class:`~distperiodic.adapters.sql.database.Database` for the errors.
    """

    def __init__(self, database: Database):
        self._database = database
        self._begin = functools.partial(
            Transaction, dialect=database.dialect)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run *work*, which only reads, and return its result."""
        return self._database.run(work, self._begin, read_only=True)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run *work* in a transaction, commit it and return the result."""
        return self._database.run(work, self._begin)

    def write_once(self, work: Callable[[Transaction], T],
                   again: Callable[[Transaction], T]) -> T:
        """Run *work* in a transaction, and return the result.

        If an earlier call has already done the work, run *again* instead,
        which reads the result of the earlier call.
        """
        try:
            return self._database.run(work, self._begin)
        except db_exception.DBDuplicateEntry:
            return self._database.run(again, self._begin)


def in_order(keys: Sequence[str], found: dict[str, Claim]) -> list[Claim]:
    """Return the claims of *found* in the order of *keys*."""
    return [found[key] for key in keys if key in found]


def claim_of(row: Any) -> Claim:
    """Return the claim of a row that begins with :data:`GRANTED`."""
    # This is faster than Claim(), and a batch has hundreds of rows.
    return tuple.__new__(Claim, row[:_WIDTH])
