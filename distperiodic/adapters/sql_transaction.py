# SPDX-License-Identifier: Apache-2.0
"""One transaction of the store: the steps that its moves are made of.

Who won is read back by the mark that a move leaves, the name of the lease it
moves into, which nobody else uses; never taken from a count of rows.
"""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters import dialect as dialect_
from distperiodic.adapters import sql_moves
from distperiodic.core import claim as claim_
from distperiodic.core.claim import Claim
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State

_WIDTH = len(sql_moves.GRANTED)


class Transaction:
    """What is done within one transaction; whoever made it commits it.

    A claim is named by the number of its job and its object, its key.
    """

    def __init__(self, connection: sa.Connection, dialect: dialect_.Dialect,
                 sql: sql_moves.Statements):
        self.connection = connection
        self.dialect = dialect
        self.sql = sql

    # Claims.

    def move(self, step: sql_moves.Step, number: int, keys: Sequence[str],
             moved: dict[str, Claim], parameters: dict[str, Any]) -> int:
        """Move what may be moved of *keys* into a lease; how many did.

        :param moved: they are added to it.
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
                      name: str, due_at: int, until: int, least: int,
                      most: int, rule: str, schedule: str, holder: str,
                      seconds: float) -> dict[str, Claim]:
        """Claim what has ended its last tick; if that is all, the history
        has it and the lease is made.

        :param name: of the lease.
        :param due_at: as in the port; so is *until*.
        :param least: what had its last tick before this one stays.
        :param most: attempts, as in the port; so are the rule and the
            schedule.
        :raises DBDuplicateEntry: it is there: all of this was done before.
        """
        every = len(keys)
        rows = self.connection.execute(self.sql.claim_at_once, {
            **self._lease(name, State.CLAIMED, number, tick, keys, holder,
                          seconds),
            'of_job': number, 'of_tick': tick, 'of_due': due_at,
            'of_end': until,
            'least': least, 'most': most,
            'of_rule': rule, 'of_schedule': schedule,
            'first': claim_.first_fence(tick),
            'keys': self.dialect.keys(keys), 'into': name,
            'at_tick': tick, 'runner': holder, 'because': None,
            'more_due': every, 'more_late': every}).all()
        # With our own texts and numbers: a scheduler may keep a million.
        ours = {key: key for key in keys}
        return {row[0]: tuple.__new__(Claim, (
            ours[row[0]], row[1], row[2], tick)) for row in rows}

    def changed(self, change: sql_moves.Change,
                parameters: dict[str, Any]) -> Sequence[Any]:
        """Make a change; the rows that were changed."""
        if self.dialect.returning:
            return self.connection.execute(
                change.move_returning, parameters).all()
        rows = self.connection.execute(change.before, parameters).all()
        self.connection.execute(change.move, parameters)
        return rows

    def skip(self, number: int, keys: Sequence[str], tick: int,
             by: SkippedBy, schedule: str) -> list[int]:
        """Settle what may be settled of *keys*; of each, the tick that was
        settled last before.
        """
        parameters = {'of_job': number, 'keys': self.dialect.keys(keys),
                      'of_tick': tick, 'of_due': tick, 'by': by,
                      'of_schedule': schedule}
        # No database but the newest tells what a row had before its change.
        # What somebody else has locked is not waited for.
        rows = self.connection.execute(
            self.sql.skip.before, parameters).all()
        if rows:
            self.connection.execute(self.sql.skip.move, parameters | {
                'keys': self.dialect.keys([row.object for row in rows])})
        return [row.settled for row in rows]

    def unlocked(self, number: int, keys: Sequence[str]) -> list[str]:
        """Lock those rows of *keys* that nobody else has locked; which they
        are. It waits for nobody: a handler that ends its run in a session
        keeps its row for as long as that session is open.
        """
        if self.dialect.name == 'sqlite' or not keys:
            # Whoever writes there is alone.
            return list(keys)
        return list(self.connection.execute(self.sql.unlocked, {
            'of_job': number, 'keys': self.dialect.keys(keys)}).scalars())

    def standing(self, number: int, keys: Sequence[str],
                 lease: str) -> list[Claim]:
        """The open claims in a lease."""
        rows = self.connection.execute(self.sql.standing, {
            'of_job': number, 'keys': self.dialect.keys(keys),
            'into': lease})
        return in_order(keys, {row.object: claim_of(row) for row in rows})

    def look(self, number: int, keys: Sequence[str]) -> dict[str, Any]:
        """The claims as they are, by key."""
        return {row.object: row for row in self.connection.execute(
            self.sql.look, {'of_job': number,
                            'keys': self.dialect.keys(keys)})}

    # Leases.

    def make(self, name: str, state: State, number: int, tick: int,
             objects: list[str], holder: str, seconds: float, *,
             superseded: int = 0,
             counted: dict[str, Any] | None = None) -> None:
        """Make a lease of what was moved into it, the last step of a move.

        :param counted: what is added to the history.
        :raises DBDuplicateEntry: it is there: all of this was done before.
        """
        if counted is not None:
            self.connection.execute(self.sql.count_of, counted)
        self.connection.execute(self.sql.make, self._lease(
            name, state, number, tick, objects, holder, seconds, superseded))

    def _lease(self, name: str, state: State, number: int, tick: int,
               objects: list[str], holder: str, seconds: float,
               superseded: int = 0) -> dict[str, Any]:
        return {
            'its_id': name, 'its_job': number, 'its_tick': tick,
            'its_state': state, 'its_holder': holder,
            'its_remaining': len(objects), 'its_superseded': superseded,
            'its_objects': json.dumps(objects),
            'microseconds': round(seconds * 1e6)}

    def leave(self, name: str, count: int) -> None:
        """So many claims stand in that lease no more."""
        if not count:
            return
        parameters = {'stands_in': name, 'so_many': count}
        # The only count of a driver's that is trusted, and no claim hangs on
        # it. One that says too little makes us count down what is gone, of
        # which there is nothing; one that says too much leaves an empty lease
        # behind, which ends, is found to hold nothing and is taken away.
        if self.connection.execute(
                self.sql.last_leave, parameters).rowcount == 1:
            return
        self.connection.execute(self.sql.leave, parameters)
        # Others may have left it since the first look.
        self.connection.execute(
            self.sql.last_leave, parameters | {'so_many': 0})


def in_order(keys: Sequence[str], found: dict[str, Claim]) -> list[Claim]:
    """What was found, in the order of *keys*."""
    return [found[key] for key in keys if key in found]


def claim_of(row: Any) -> Claim:
    """The claim of a row of :data:`sql_moves.GRANTED`, and more perhaps."""
    # As Claim() does it, without the call: there are hundreds in a batch.
    return tuple.__new__(Claim, row[:_WIDTH])
