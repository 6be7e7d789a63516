# SPDX-License-Identifier: Apache-2.0
"""The live processes of a group, to find the reasons why its tasks wait.

The rows of the members in the store contain the last reports of the members. A
coordination service, if there is one, shows earlier that a process is gone.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from distperiodic.core.live import Live
from distperiodic.core.live import LiveProcess

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.core.member import Member
    from distperiodic.operator.live_group import Group
    from distperiodic.operator.member_rows import MemberRow
    from distperiodic.operator.task_queries import Look


def queued(members: 'Iterable[MemberRow]', look: 'Look', module: str,
           now: int) -> bool:
    """Return True if the granted run of a task waits for a thread.

    This is the case if the newest report of the process is not older than the
    grant, shows that runs of the module wait for a thread, and lists all tasks
    that run in the process, without this task.

    :param members: Rows of the members of the group.
    :param now: Time of the store's clock, in microseconds.
    """
    for row in members:
        if row.stopped or not look.runner.startswith(f'{row.process}~'):
            continue
        state: Any = row.state
        pool = (state.get('pools') or {}).get(module) or {}
        return bool(
            look.granted is not None and row.age is not None
            and look.granted <= now - row.age and pool.get('queued')
            and 'tasks' in state and not state.get('more_tasks')
            and look.task.id not in state['tasks'])
    return False


def of_rows(members: 'Iterable[MemberRow]', settings: 'opts.Settings',
            group: 'Group | None') -> Live:
    """Return the live processes, given the rows of all members.

    :param group: The group in the coordination service. None means that there
        is no such service, or that it does not answer.
    """
    by_topic: dict[str, dict[str, MemberRow]] = {}
    for row in members:
        if row.live(settings.session_timeout):
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
             live: 'dict[str, MemberRow]') -> list[LiveProcess]:
    """Return the processes that are in the group, given their live rows."""
    return [_process(live[one.identity]) if one.identity in live
            else LiveProcess() for one in members]


def _process(row: 'MemberRow') -> LiveProcess:
    state: Any = row.state
    commands = state.get('commands')
    if commands is not None and not state.get('more_commands'):
        commands = frozenset(commands)
    else:
        commands = None
    standby = state.get('partition_role') == 'standby'
    return LiveProcess(row.drained, commands, {
        topic: standby or pool['busy'] >= pool['size']
        for topic, pool in (state.get('pools') or {}).items()})
