# SPDX-License-Identifier: Apache-2.0
"""``distperiodic member list|show|drain|undrain|set|unset``: the processes of
a group.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cliff import lister
from cliff import show

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import member_order
from distperiodic.cmd import of_members
from distperiodic.core.control import MAX_POOL_SIZE
from distperiodic.core.control import Verb

if TYPE_CHECKING:
    from distperiodic.operator.member_rows import MemberRow

# Parts of a report that are shown in another form, or not at all.
_NOT_SHOWN = ('kind', 'topics', 'more_runs', 'tasks', 'more_tasks')
# Maximum number of a member's runs in the store that are shown.
_RUNS = 1000


class MemberList(of_members.OfMembers, display.Table, lister.Lister):
    """Show the processes of the group, as the store knows them.

    A silent member has not reported for session_timeout: it was killed, it
    hangs, or it cannot reach the store. Without a store, the command queries
    the members over the broker.
    """

    essential = ('Member', 'Role', 'Partition role', 'State', 'Seen')

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        people = parsed.formatter not in display.FOR_PROGRAMS
        _, settings = self.configured(parsed)
        with self.members_of(parsed) as queries:
            found = queries.members()
            problems = queries.problems()
        if not found:
            problems.append('no member of this group has reported yet')
        self.sentence = ''.join(f'{one[:1].upper()}{one[1:]}.'
                                for one in problems)
        rows: list[Sequence[object]] = []
        for member in found:
            pools = member.state.get('pools') or {}
            rows.append((
                member.name, of_members.role(member),
                member.state.get('partition_role', ''),
                _state(member, settings.session_timeout),
                'yes' if member.drained else 'no',
                member.state.get('in_flight', ''),
                sum(pool['busy'] for pool in pools.values()),
                sum(pool.get('queued', 0) for pool in pools.values()),
                _age(member.age, people), member.state.get('version', ''),
                member.drained_by, member.drained_why, member.process))
        return (('Member', 'Role', 'Partition role', 'State', 'Drained',
                 'In flight', 'Busy', 'Queued',
                 'Seen' if people else 'Seen (s)', 'Version', 'Drained by',
                 'Why', 'Process'), rows)


def _state(member: 'MemberRow', session_timeout: float) -> str:
    if member.stopped:
        return 'stopped'
    if member.age is None:
        return 'no answer'
    if member.silent(session_timeout):
        return 'silent'
    return 'running' if member.state.get('healthy') else 'not healthy'


def _age(micros: int | None, people: bool) -> object:
    if micros is None:
        return '' if people else None
    seconds = micros / 1e6
    return configured.age(seconds) if people else round(seconds, 3)


class MemberShow(of_members.OfMember, display.Display, show.ShowOne):
    """Show the current state of a member: its runs, pools and queues."""

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], Sequence[object]]:
        from distperiodic.operator.activity import Activity
        people = parsed.formatter == 'table'
        _, settings = self.configured(parsed)
        with self.members_of(parsed) as queries:
            member = self.select_one(queries.members(), parsed)
        fields: dict[str, object] = {
            'member': member.name, 'role': of_members.role(member),
            'state': _state(member, settings.session_timeout),
            'process': member.process,
            'seen' if people else 'seen_s': _age(member.age, people),
            'drained': member.drained,
            'drained_at': '' if member.drained_at is None
            else configured.moment(member.drained_at),
            'drained_by': member.drained_by, 'why': member.drained_why,
            'pool_size': '' if member.pool_size is None
            else member.pool_size,
        }
        fields.update({name: value for name, value in member.state.items()
                       if name not in fields and name not in _NOT_SHOWN})
        runs, cut = member.runs, bool(member.state.get('more_runs'))
        if settings.connection and member.process:
            with self.store(parsed, Activity) as activity:
                stored = activity.runs(
                    None, _RUNS + 1, process=member.process)
            runs += stored[:_RUNS]
            cut = cut or len(stored) > _RUNS
        fields['runs'] = [
            {'job': run.job, 'object': run.object,
             'age_s': round(max(0, run.age) / 1e6, 3),
             'progress': run.progress} for run in runs]
        fields['runs_cut'] = cut
        if people:
            fields['runs_cut'] = (
                f'only the {len(runs):,} longest runs are listed; '
                'distperiodic running --limit N lists the runs of all members'
            ) if cut else ''
            fields = {name: _readable(value) for name, value in fields.items()
                      if value not in ('', None, [], {})}
        return tuple(fields), tuple(fields.values())


def _readable(value: object, within: bool = False) -> str:
    """Return a value of a report as text for people.

    :param within: True if the value is part of another value. Its text is then
        one line.
    """
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, dict):
        parts = [f'{name}{":" * isinstance(part, (dict, list))} '
                 f'{_readable(part, True)}'
                 for name, part in value.items() if part not in (None, '')]
        values = list(value.values())
    elif isinstance(value, list):
        parts = [_readable(part, True) for part in value]
        values = value
    else:
        return str(value)
    lines = not within and any(isinstance(part, dict) for part in values)
    return ('\n' if lines else ', ').join(parts)


class MemberDrain(member_order.Order):
    """Take members out of service, and keep them out after a restart.

    A drained scheduler makes no new claims; the other schedulers own its
    objects. A drained worker receives no new work. Claimed work is finished.
    Jobs that run on every member continue. Without a store, the drain ends
    when the process of the member ends.
    """

    verb = Verb.DRAIN

    def warn(self, members: 'list[MemberRow]', chosen: 'list[MemberRow]',
             session_timeout: float) -> None:
        for part in sorted({one.part for one in chosen}):
            left = [one for one in members if one.part == part
                    and one not in chosen and not one.drained
                    and not one.stopped and not one.silent(session_timeout)]
            if not left:
                what = (f'no worker of partition {part} is left'
                        if part else 'no scheduler is left')
                self.print(f'warning: {what} that is running and not '
                           'drained; '
                           + ('none of its jobs runs' if part
                              else 'nothing is claimed')
                           + ' until one is started or undrained')


class MemberUndrain(member_order.Order):
    """Put drained members into service again."""

    verb = Verb.UNDRAIN
    also = ', and those that have stopped and are drained'

    def concerns(self, member: 'MemberRow') -> bool:
        return member.drained or super().concerns(member)


class _OfOption(member_order.Order):
    """Base class of commands that change one option of members."""

    def add_target(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'option', metavar='OPTION', choices=('pool_size',),
            help='pool_size: number of threads of each pool of the member')
        self._add_value(parser)
        super().add_target(parser)

    def _add_value(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument that is the value of the option."""


class MemberSet(_OfOption):
    """Set an option of members; the value stays in force after a restart.

    After "member unset" the configured value applies again. Without a store,
    it also applies again when the process of the member restarts.
    """

    verb = Verb.SET

    def _add_value(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'value', metavar='VALUE', type=_pool_size,
            help=f'a whole number from 1 to {MAX_POOL_SIZE}')

    def arguments(self, parsed: argparse.Namespace) -> dict[str, object]:
        return {parsed.option: parsed.value}


class MemberUnset(_OfOption):
    """Remove a value of "member set": the configured value applies again."""

    verb = Verb.UNSET
    also = ', and those that have stopped and have the option set'

    def concerns(self, member: 'MemberRow') -> bool:
        return member.pool_size is not None or super().concerns(member)

    def arguments(self, parsed: argparse.Namespace) -> dict[str, object]:
        return {}


def _pool_size(text: str) -> int:
    """Parse a number of threads."""
    try:
        size = int(text)
    except ValueError:
        size = 0
    if not 1 <= size <= MAX_POOL_SIZE:
        raise argparse.ArgumentTypeError(
            f'{text!r} cannot be used as pool_size; give a whole number from '
            f'1 to {MAX_POOL_SIZE}; to run nothing, drain the member')
    return size
