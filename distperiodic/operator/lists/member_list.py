# SPDX-License-Identifier: Apache-2.0
"""The processes of a group."""

from collections.abc import Sequence

from distperiodic.operator import cells
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import role
from distperiodic.operator.sources import Sources


class Members(cells.DeclaredList[MemberRow]):
    """Show the processes of the group, as the store knows them.

    A silent member has not reported for session_timeout: it was killed, it
    hangs, or it cannot reach the store. Without a store, the command queries
    the members over the broker.
    """

    essential: Sequence[str] = (
        'Member', 'Role', 'Partition role', 'State', 'Seen')

    def fetch(self, sources: Sources) -> list[MemberRow]:
        timeout = sources.settings.session_timeout
        found, problems = sources.read_members()
        if not found:
            problems.append('no member of this group has reported yet')
        self.sentence = ''.join(f'{one[:1].upper()}{one[1:]}.'
                                for one in problems)
        self.columns = {
            'Member': lambda member: member.name,
            'Role': role,
            'Partition role': lambda member: member.state.get(
                'partition_role', ''),
            'State': lambda member: state(member, timeout),
            'Drained': lambda member: 'yes' if member.drained else 'no',
            'In flight': lambda member: member.state.get('in_flight', ''),
            'Busy': lambda member: _in_pools(member, 'busy'),
            'Queued': lambda member: _in_pools(member, 'queued'),
            'Seen (s)': lambda member: seen(member),
            'Host': lambda member: member.host,
            'Version': lambda member: member.state.get('version', ''),
            'Drained by': lambda member: member.drained_by,
            'Why': lambda member: member.drained_why,
            'Process': lambda member: member.process}
        return found


def _in_pools(member: MemberRow, name: str) -> int:
    """Return the sum of a number of all pools of a member."""
    return sum(pool.get(name, 0)
               for pool in (member.state.get('pools') or {}).values())


def seen(member: MemberRow) -> cells.Cell:
    """Return the time since the last report of a member."""
    return cells.age(None if member.age is None else member.age / 1e6)


def state(member: MemberRow, session_timeout: float) -> str:
    """Return the state of a member in one or two words."""
    if member.stopped:
        return 'stopped'
    if member.age is None:
        return 'no answer'
    if member.silent(session_timeout):
        return 'silent'
    return 'running' if member.state.get('healthy') else 'not healthy'
