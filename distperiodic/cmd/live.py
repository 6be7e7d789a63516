# SPDX-License-Identifier: Apache-2.0
"""The live processes of a group, for the reasons why its tasks wait.

The rows of the members in the store have their last reports. With a
coordination service, the group tells earlier which processes are gone.
"""

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from distperiodic.core.live import Live
from distperiodic.core.live import Process

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.cmd.status import Group
    from distperiodic.core.member import Member
    from distperiodic.operator.members import MemberRow


def read(settings: 'opts.Settings', group: 'Group | None') -> Live:
    """Return the live processes of the configured group.

    :param group: The group in the coordination service. None means that there
        is no such service, or that it does not answer.
    :raises StoreUnavailable: The store does not answer.
    """
    from distperiodic.operator.members import MemberQueries
    with contextlib.closing(MemberQueries(
            settings.connection, namespace=settings.group)) as queries:
        return of_rows(queries.members(), settings, group)


def of_rows(rows: 'Iterable[MemberRow]', settings: 'opts.Settings',
            group: 'Group | None') -> Live:
    """Return the live processes, given the rows of all members."""
    by_topic: dict[str, dict[str, MemberRow]] = {}
    for row in rows:
        if not (row.stopped or row.silent(settings.session_timeout)):
            topic = settings.topic_of(row.part) if row.part else ''
            by_topic.setdefault(topic, {})[row.name] = row
    schedulers = by_topic.pop('', {})
    if group is None:
        found = list(map(_process, schedulers.values()))
        workers = {topic: list(map(_process, some.values()))
                   for topic, some in by_topic.items()}
    else:
        found = _members(group.members, schedulers)
        workers = {topic: _members(some, by_topic.get(topic, {}))
                   for topic, some in group.workers.items()}
    return Live(found, workers if settings.dispatcher == 'messaging'
                else None)


def _members(members: 'Iterable[Member]',
             rows: 'dict[str, MemberRow]') -> list[Process]:
    """Return the processes that are in the group, given their live rows."""
    return [_process(rows[one.identity]) if one.identity in rows
            else Process() for one in members]


def _process(row: 'MemberRow') -> Process:
    state: Any = row.state
    commands = state.get('commands')
    if commands is not None and not state.get('more_commands'):
        commands = frozenset(commands)
    else:
        commands = None
    standby = state.get('partition_role') == 'standby'
    return Process(row.drained, commands, {
        topic: standby or pool['busy'] >= pool['size']
        for topic, pool in (state.get('pools') or {}).items()})
