# SPDX-License-Identifier: Apache-2.0
"""The work that a drain would leave without any member to do it.

This module does not need the store, so commands without one start faster.
"""

from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic.core import wording
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import topics

_UNTIL = 'is started, or one is undrained'


def left_without(rows: Iterable[MemberRow], chosen: Sequence[MemberRow],
                 within: float) -> list[str]:
    """Return a clause for each kind of work that stops with a drain.

    If no scheduler is left, nothing is claimed. If none is left that has a job
    or a command of tasks, it is not claimed. If no worker of a partition is
    left, nothing of this partition runs. A member that does not run or is
    already drained does no work that could stop.

    :param chosen: The members to drain.
    :param within: Maximum age of a member's report, in seconds.
    """
    keys = {(one.part, one.name) for one in chosen}
    working = [one for one in rows if one.live(within) and not one.drained]
    left = [one for one in working if (one.part, one.name) not in keys]
    ending = [one for one in working if (one.part, one.name) in keys]
    parts = {one.part for one in ending} - {one.part for one in left}
    found = [] if '' in parts else [
        *_lacking('job', ending, left), *_lacking('command', ending, left)]
    for part in sorted(parts):
        member, effect = (
            (f'worker of partition {part}', 'none of its jobs runs') if part
            else ('scheduler', 'nothing is claimed'))
        found.append(
            f'no {member} is left that is running and not drained; {effect} '
            f'until another {member} {_UNTIL}')
    return found


def _lacking(kind: str, ending: Iterable[MemberRow],
             left: Iterable[MemberRow]) -> list[str]:
    """Return a clause if no scheduler that is left has some job or command.

    :param kind: ``job`` or ``command``.
    """
    schedulers = [one for one in left if not one.part]
    names = {name for one in ending if not one.part
             for name in _reported(kind, one)}
    names.difference_update(*(_reported(kind, one) for one in schedulers))
    if not names:
        return []
    what = f'{kind} {wording.listed(sorted(names))}'
    these = f'this {kind} is' if len(names) == 1 else f'these {kind}s are'
    unknown = wording.listed([
        one.label for one in schedulers if _is_partial(kind, one)])
    return [
        (f'the {kind}s of {unknown} are unknown; if they do not include '
         f'{what}, ' if unknown else '')
        + f'no scheduler with {what} is left that is running and not drained; '
        f'{these} not claimed until another scheduler with {what} {_UNTIL}']


def _reported(kind: str, member: MemberRow) -> set[str]:
    """Return the names of the jobs or commands in the member's report."""
    if kind == 'job':
        return set(topics([member]))
    commands = member.state.get('commands')
    return {name for name in commands if isinstance(name, str)} if (
        isinstance(commands, list)) else set()


def _is_partial(kind: str, member: MemberRow) -> bool:
    """Return True if the report does not have all jobs or all commands."""
    if kind == 'job':
        return not isinstance(member.state.get('topics'), dict)
    return (not isinstance(member.state.get('commands'), list)
            or bool(member.state.get('more_commands')))
