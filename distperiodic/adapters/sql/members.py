# SPDX-License-Identifier: Apache-2.0
"""The row of a member in a database, as the member itself reads and writes it.

The row holds the desired state of the member, which operators set, and the
state that the member reports. The row stays when the process ends. So a
process that restarts under the same name finds the desired state.
"""

import json
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.core.control import Desired
from distperiodic.core.control import Me
from distperiodic.core.control import Outcome
from distperiodic.core.control import Request

_action = tables.action
_answer = tables.answer
_member = tables.member


class Found(NamedTuple):
    """Desired state and unanswered actions of a member, from the store."""

    #: None means that the member has no row yet.
    desired: Desired | None
    #: Unanswered actions, the oldest first.
    requests: list[Request]


def look(database: Database, me: Me) -> Found:
    """Return the desired state and the unanswered actions of a member."""
    def work(connection: sa.Connection) -> Found:
        # Read the actions first: an action is committed together with the
        # desired state that it sets. So the state that is read afterwards
        # includes the effects of all these actions.
        requests = [
            Request(row.id, row.verb, json.loads(row.arguments), row.target)
            for row in connection.execute(
                sa.select(_action.c.id, _action.c.verb, _action.c.arguments,
                          _action.c.target)
                .join(_answer, _answer.c.action == _action.c.id)
                .where(_answer.c.space == me.space, _answer.c.part == me.part,
                       _answer.c.name == me.name, _answer.c.at == 0)
                .order_by(_action.c.at, _action.c.id)).all()]
        row = connection.execute(sa.select(
            _member.c.drained, _member.c.pool_size).where(
                *_row(me))).one_or_none()
        return Found(None if row is None else Desired(
            row.drained is not None, row.pool_size), requests)
    return database.read(work)


def report(database: Database, me: Me, process: str,
           state: Mapping[str, Any], *, new: bool) -> None:
    """Record the reported state of a member, and the process that reports it.

    :param process: Empty means that the process has stopped.
    :param new: True if the member has no row yet.
    """
    def work(connection: sa.Connection) -> None:
        if new:
            database.dialect.insert_new(
                connection, _member, {'name': [me.name]}, space=me.space,
                part=me.part, process=process, seen=0, state='{}')
        connection.execute(sa.update(_member).where(*_row(me)).values(
            process=process, seen=database.dialect.now,
            state=json.dumps(state)))
    database.write(work)


def answer(database: Database, me: Me, process: str,
           outcomes: Mapping[str, Outcome]) -> None:
    """Record the answers of a member to actions.

    If an action already has an answer, that answer stays.

    :param outcomes: Outcome of each action, by the id of the action.
    """
    def work(connection: sa.Connection) -> None:
        for action, outcome in sorted(outcomes.items()):
            connection.execute(sa.update(_answer).where(
                _answer.c.action == action, _answer.c.part == me.part,
                _answer.c.name == me.name, _answer.c.at == 0).values(
                    at=database.dialect.now, process=process,
                    done=int(outcome.done), outcome=outcome.text))
    database.write(work)


def _row(me: Me) -> tuple[Any, ...]:
    return (_member.c.space == me.space, _member.c.part == me.part,
            _member.c.name == me.name)
