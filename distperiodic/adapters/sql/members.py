# SPDX-License-Identifier: Apache-2.0
"""The row of a member in a database, as the member itself reads and writes it.

The row holds the desired state of the member, which operators set, and the
state that the member reports. The row stays when the process ends. So a
process that restarts under the same name finds the desired state.
"""

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.local.process_slot import host_name
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.core.control import Desired
from distperiodic.core.control import Found
from distperiodic.core.control import Me
from distperiodic.core.control import MemberCommand
from distperiodic.core.control import MemberOutcome
from distperiodic.core.control import host_of

_action = tables.action
_answer = tables.answer
_host = tables.drained_host
_member = tables.member


class SqlMembers:
    """See :class:`distperiodic.ports.MemberStore`."""

    def __init__(self, database: Database):
        self._database = database

    def read(self, me: Me) -> Found:
        def work(connection: sa.Connection) -> Found:
            # Read the actions first: an action is committed together with the
            # desired state that it sets. So the state that is read afterwards
            # includes the effects of all these actions.
            requests = [
                MemberCommand(one.id, one.verb, json.loads(one.arguments),
                              one.target)
                for one in connection.execute(
                    sa.select(_action.c.id, _action.c.verb,
                              _action.c.arguments, _action.c.target)
                    .join(_answer, _answer.c.action == _action.c.id)
                    .where(*_of(_answer, me), _answer.c.at == 0)
                    .order_by(_action.c.at, _action.c.id)).all()]
            row = connection.execute(sa.select(
                _member.c.drained, _member.c.pool_size).where(
                    *_of(_member, me))).one_or_none()
            if row is None:
                return Found(None, requests, connection.scalar(
                    _host_drain(me)) is not None)
            return Found(Desired(
                row.drained is not None, row.pool_size), requests)
        return self._database.read(work)

    def report(self, me: Me, process: str, state: Mapping[str, Any], *,
               new: bool) -> None:
        dialect = self._database.dialect

        def work(connection: sa.Connection) -> None:
            if new:
                dialect.insert_new(
                    connection, _member, {'name': [me.name]}, space=me.space,
                    part=me.part, process=process, seen=0, state='{}',
                    drained=connection.scalar(_host_drain(me)))
            connection.execute(sa.update(_member).where(
                *_of(_member, me)).values(
                    process=process, seen=dialect.now,
                    state=json.dumps(state)))
        self._database.write(work)

    def answer(self, me: Me, process: str,
               outcomes: Mapping[str, MemberOutcome]) -> None:
        def work(connection: sa.Connection) -> None:
            for action, outcome in sorted(outcomes.items()):
                connection.execute(sa.update(_answer).where(
                    _answer.c.action == action, *_of(_answer, me),
                    _answer.c.at == 0).values(
                        at=self._database.dialect.now, process=process,
                        done=int(outcome.done), outcome=outcome.text))
        self._database.write(work)


def _host_drain(me: Me) -> Any:
    """Return a query for the id of the action that drained a host."""
    return sa.select(_host.c.action).where(
        _host.c.space == me.space,
        _host.c.host.in_([host_of(me.name), host_name()])).limit(1)


def _of(table: sa.Table, me: Me) -> tuple[sa.ColumnElement[bool], ...]:
    return (table.c.space == me.space, table.c.part == me.part,
            table.c.name == me.name)
