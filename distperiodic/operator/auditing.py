# SPDX-License-Identifier: Apache-2.0
"""Records of operators' actions, each with the user, host, time and reason.

The record of an action is written before the action, and the outcome is added
after the action. The record of an interrupted action therefore has no outcome.
"""

import contextlib
import json
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa
from oslo_db import exception as db_exception

from distperiodic import exceptions
from distperiodic.adapters.sql import tables
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_action = tables.action
_answer = tables.answer

# Beginnings of the outcomes of an action that changed nothing, and of one for
# which the answer to a commit may have been lost.
_NOT_DONE = 'not done'
_UNKNOWN = 'outcome unknown'


class Actor(NamedTuple):
    """An operator, and the reason for an action."""

    who: str
    host: str
    why: str = ''
    #: Id of the action that the operator requests, if it must not be carried
    #: out twice. Empty means that each request is an action of its own.
    action: str = ''

    @property
    def name(self) -> str:
        """The operator and the host, as a reason or a message names them."""
        return f'{self.who}@{self.host}'


class AlreadyRecorded(exceptions.DistperiodicError):
    """An action with this id is recorded, so nothing was done."""


class ActionRecord:
    """The record of one action.

    :param arguments: Arguments that a member needs, or that explain the
        action. JSON must be able to represent them.
    """

    def __init__(self, namespace: str, actor: Actor, verb: str, target: str,
                 arguments: Mapping[str, Any] | None = None):
        self.id = actor.action or uuid.uuid4().hex
        self._once = bool(actor.action)
        #: Text about the changes that the action made.
        self.outcome = 'done'
        #: Text about the changes that an action made before its error. Empty
        #: means that it made none.
        self.before_error = ''
        self.arguments = dict(arguments or {})
        self._values = {
            'id': self.id, 'space': namespace,
            'who': actor.who[:tables.LONGEST_REASON],
            'host': actor.host[:tables.LONGEST_REASON],
            'verb': verb[:tables.LONGEST_NAME],
            'target': target[:tables.LONGEST_ID],
            'arguments': json.dumps(self.arguments),
            'why': actor.why[:tables.LONGEST_REASON]}

    def insert(self, connection: sa.Connection, now: Any,
               outcome: str | None = None) -> None:
        """Write the record, in a transaction of the caller.

        The caller's transaction may be repeated, so a repeated call changes
        nothing. If the action can be recorded only once, a repeated call
        fails: it cannot know which call has written the record.

        :param now: SQL expression that reads the store's clock.
        :raises DBDuplicateEntry: see :meth:`write`.
        """
        if self._once or connection.scalar(sa.select(_action.c.id).where(
                _action.c.id == self.id)) is None:
            connection.execute(sa.insert(_action).values(
                **self._values, at=now, outcome=outcome))

    def write(self, store: GroupStore,
              work: Callable[[sa.Connection], None]) -> None:
        """Run *work*, which inserts the record, in a transaction.

        :raises AlreadyRecorded: the action can be recorded only once, and it
            was recorded before. Nothing was changed.
        """
        try:
            store.write(work)
        except db_exception.DBDuplicateEntry as exc:
            raise AlreadyRecorded(
                f'action {self.id} was already recorded, so it was not '
                'repeated; see: distperiodic events') from exc

    def close(self, connection: sa.Connection) -> None:
        """Write the outcome, in a transaction of the caller."""
        connection.execute(sa.update(_action).where(
            _action.c.id == self.id).values(outcome=self.outcome))


@contextlib.contextmanager
def recorded(store: GroupStore, actor: Actor, verb: str, target: str,
             **arguments: Any) -> Iterator[ActionRecord]:
    """Record the action in the body: the record before the body, and the
    outcome after the body.

    If the body raises a :class:`.DistperiodicError`, the error is recorded as
    the outcome and raised. After any other error, the record has no outcome.

    :raises AlreadyRecorded: the action must not be carried out twice, and is
        already recorded. The body does not run.
    """
    record = ActionRecord(store.namespace, actor, verb, target, arguments)
    record.write(store, lambda connection: record.insert(
        connection, store.dialect.now))
    try:
        yield record
    except exceptions.DistperiodicError as exc:
        effect = record.before_error or (
            _UNKNOWN if isinstance(exc, exceptions.StoreUnavailable)
            else _NOT_DONE)
        record.outcome = f'{effect}: {" ".join(str(exc).split())}'
        with contextlib.suppress(exceptions.StoreUnavailable):
            # If the outcome cannot be written, the record has no outcome, and
            # the error of the body is raised.
            store.write(record.close)
        raise
    store.write(record.close)


class Event(NamedTuple):
    """An action of an operator; times in microseconds."""

    id: str
    at: int
    who: str
    host: str
    verb: str
    target: str
    arguments: Mapping[str, Any]
    why: str
    #: None means that no outcome is recorded: the action was interrupted, or
    #: the members have not answered.
    outcome: str | None

    @property
    def not_done(self) -> bool:
        """True if the action was refused or failed, and changed nothing."""
        return (self.outcome or '').startswith(f'{_NOT_DONE}:')

    @property
    def unknown(self) -> bool:
        """True if the store failed during the action."""
        return (self.outcome or '').startswith(f'{_UNKNOWN}:')


def events(store: GroupReader, *, since: int, limit: int) -> list[Event]:
    """Return actions, the newest first.

    :param since: First instant, in microseconds of the store's clock.
    """
    return [_event(row) for row in store.rows(
        sa.select(_action).where(
            _action.c.space == store.namespace, _action.c.at >= since)
        .order_by(_action.c.at.desc(), _action.c.id).limit(limit))]


def event(store: GroupReader, id_: str) -> Event | None:
    """Return the action with this id. None means that it is not recorded."""
    return next((_event(row) for row in store.rows(
        sa.select(_action).where(
            _action.c.space == store.namespace, _action.c.id == id_))), None)


def _event(row: Any) -> Event:
    return Event(row.id, row.at, row.who, row.host, row.verb, row.target,
                 json.loads(row.arguments), row.why, row.outcome)
