# SPDX-License-Identifier: Apache-2.0
"""Queries and commands of an operator on the members of one group.

One transaction writes a command: the record of the action, and for each member
the desired state and a row for the answer. The members read the command
at their next sweep, or at once if they receive a hint.
"""

import json
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.control import Verb
from distperiodic.operator.activity import CurrentRun
from distperiodic.operator.auditing import ActionRecord
from distperiodic.operator.auditing import Actor
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore
from distperiodic.operator.member_rows import Answer
from distperiodic.operator.member_rows import MemberRow

_action = tables.action
_answer = tables.answer
_host = tables.drained_host
_member = tables.member

# Number of actions whose answers are read together.
_AT_A_TIME = 500


def members(store: GroupReader) -> list[MemberRow]:
    """Return all members: schedulers first, then workers by partition."""
    now = store.dialect.now
    return [MemberRow(
        row.part, row.name, row.process, max(0, row.now - row.seen),
        json.loads(row.state), row.drained is not None, row.at,
        '' if row.who is None else f'{row.who}@{row.host}',
        row.why or '', row.pool_size, row.seen)
        for row in store.rows(
            sa.select(_member, now.label('now'), _action.c.at,
                      _action.c.who, _action.c.host, _action.c.why)
            .outerjoin(_action, _action.c.id == _member.c.drained)
            .where(_member.c.space == store.namespace)
            .order_by(_member.c.part, _member.c.name))]


def runs(store: GroupReader, job: str | None, within: float, *,
         older_than: float = 0.0) -> list[CurrentRun]:
    """Return the runs in progress that are not in the store.

    These runs are in the reports of the members that run them.

    :param job: Name of the job. None means all jobs.
    :param within: Maximum age of a member's report, in seconds.
    :param older_than: Minimum age of a run, in seconds.
    """
    return [run for member in members(store)
            if member.live(within)
            for run in member.runs
            if job in (None, run.job)
            and run.age >= older_than * 1e6]


def answers(store: GroupReader, *actions: str) -> list[Answer]:
    """Return the answers to actions, by member."""
    return sorted(
        (Answer(row.part, row.name, row.at or None, row.process or '',
                bool(row.done), row.outcome or '', row.action)
         for at in range(0, len(actions), _AT_A_TIME)
         for row in store.rows(sa.select(_answer).where(
             _answer.c.action.in_(actions[at:at + _AT_A_TIME])))),
        key=lambda one: one[:2])


class MemberAdmin:
    """The members of one group that has a store, and commands to them.

    :param actor: The operator, for the records.
    """

    def __init__(self, store: GroupStore, actor: Actor):
        self._store = store
        self._actor = actor

    def close(self) -> None:
        """Do nothing: the store belongs to the caller."""

    def members(self) -> list[MemberRow]:
        """Return all members; see :func:`members`."""
        return members(self._store)

    def answers(self, *actions: str) -> list[Answer]:
        """Return the answers to actions, by member."""
        return answers(self._store, *actions)

    def problems(self) -> list[str]:
        """Return an empty list: a query returns all members or fails."""
        return []

    def order(self, verb: Verb, members: Sequence[MemberRow], target: str,
              hosts: Collection[str] | None = (), **arguments: Any) -> str:
        """Write a command for *members*, and return the id of its action.

        :param target: Target in the words of the operator, for the record.
        :param hosts: Hosts to drain or undrain: the command also applies to
            members of these hosts that join later for the first time. None
            undrains all hosts.
        :param arguments: Arguments of the command.
        """
        store = self._store
        record = ActionRecord(
            store.namespace, self._actor, verb, target, arguments)
        wanted: dict[Verb, dict[str, Any]] = {
            Verb.DRAIN: {'drained': record.id}, Verb.UNDRAIN: {
                'drained': None},
            Verb.SET: arguments, Verb.UNSET: {'pool_size': None}}

        def work(connection: sa.Connection) -> None:
            record.insert(connection, store.dialect.now)
            self._mark_hosts(connection, verb, hosts, record.id)
            for member in members:
                row = (_member.c.space == store.namespace,
                       _member.c.part == member.part,
                       _member.c.name == member.name)
                connection.execute(
                    sa.update(_member).where(*row).values(wanted[verb]))
            _open_answers(store, connection, record.id, members)
        record.write(store, work)
        return record.id

    def _mark_hosts(self, connection: sa.Connection, verb: Verb,
                    hosts: Collection[str] | None, action: str) -> None:
        """Record which hosts are drained."""
        if verb not in (Verb.DRAIN, Verb.UNDRAIN):
            return
        marks = [_host.c.space == self._store.namespace]
        if hosts is not None:
            marks.append(_host.c.host.in_(hosts))
        connection.execute(sa.delete(_host).where(*marks))
        if verb is Verb.DRAIN and hosts:
            # Another operator may drain a host at the same time.
            self._store.dialect.insert_new(
                connection, _host, {'host': sorted(hosts)},
                space=self._store.namespace, action=action)

    def conclude(self, action: str, outcome: str) -> None:
        """Record the outcome of an action."""
        self._store.write(lambda connection: connection.execute(
            sa.update(_action).where(_action.c.id == action).values(
                outcome=outcome)))


def request_answers(store: GroupStore, record: ActionRecord,
                    members: Sequence[MemberRow], **more: Any) -> None:
    """Request answers of *members* to an action that was carried out.

    :param record: Record of the action.
    :param more: Arguments that became known when the action was carried out;
        they are added to the record.
    """
    def work(connection: sa.Connection) -> None:
        if more:
            connection.execute(sa.update(_action).where(
                _action.c.id == record.id).values(
                    arguments=json.dumps(record.arguments | more)))
        _open_answers(store, connection, record.id, members)
    store.write(work)


def _open_answers(store: GroupStore, connection: sa.Connection, action: str,
                  members: Sequence[MemberRow]) -> None:
    for member in members:
        store.dialect.insert_new(
            connection, _answer, {'name': [member.name]}, action=action,
            part=member.part, space=store.namespace, at=0, done=0)
