# SPDX-License-Identifier: Apache-2.0
"""``distperiodic member list|show|drain|undrain|set|unset``: the processes of
a group.
"""

import argparse
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import member_answers
from distperiodic.cmd import selection
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core.control import MAX_POOL_SIZE
from distperiodic.core.control import Verb
from distperiodic.operator import drain_effects
from distperiodic.operator.lists import member_list
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import role

# Parts of a report that are shown in another form, or not at all.
_NOT_SHOWN = ('kind', 'topics', 'more_runs', 'tasks', 'more_tasks')
# Maximum number of a member's runs in the store that are shown.
_RUNS = 1000
_NOTE = (
    'note: without a store ([distperiodic] connection) a member forgets this '
    'command when its process restarts, and the command is not recorded; each '
    'member that answered has logged the operator and the reason')


class MemberList(member_list.Members, display.List):
    pass


class MemberShow(display.Details):
    """Show the current state of a member: its runs, pools and queues."""

    for_people = ('table',)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        selection.add_options(parser)

    def facts(self, session: Session) -> Mapping[str, object]:
        settings = session.settings
        member = selection.select_one(
            session.members.members(), session.parsed)
        seen = member_list.seen(member)
        fields: dict[str, object] = {
            'member': member.name, 'role': role(member),
            'state': member_list.state(member, settings.session_timeout),
            'process': member.process,
            **({'seen': seen.for_people} if self.people
               else {'seen_s': seen.for_programs}),
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
            from distperiodic.operator import activity
            stored = activity.runs(
                session.store, None, _RUNS + 1, process=member.process)
            runs += stored[:_RUNS]
            cut = cut or len(stored) > _RUNS
        fields['runs'] = [
            {'job': run.job, 'object': run.object,
             'age_s': round(max(0, run.age) / 1e6, 3),
             'progress': run.progress} for run in runs]
        fields['runs_cut'] = cut
        if self.people:
            fields['runs_cut'] = (
                f'only the {len(runs):,} longest runs are listed; '
                'distperiodic running --limit N lists the runs of all members'
            ) if cut else ''
            fields = {name: _readable(value) for name, value in fields.items()
                      if value not in ('', None, [], {})}
        return fields


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


class _MemberAction(RecordedCommand):
    """Base class of commands that members carry out and answer."""

    verb: Verb
    #: Stopped members that "--all" also selects, as text for its help.
    also = ''

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        member_answers.add_wait(parser)
        self.add_value(parser)
        selection.add_options(parser)
        parser.add_argument(
            '--all', action='store_true',
            help='select all schedulers and workers of the group that have '
                 'not stopped' + self.also)

    def add_value(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments that precede those that select members."""

    def act(self, session: Session) -> int:
        parsed, settings = session.parsed, session.settings
        if not (parsed.all or parsed.member is not None
                or parsed.partition is not None or parsed.schedulers
                or parsed.host is not None):
            raise exceptions.ConfigError(
                'no member is named; give MEMBER, --host, --partition, '
                '--schedulers or --all; to list the members: '
                'distperiodic member list')
        members = session.members.members()
        member_answers.print_problems(session)
        found = self._chosen(members, parsed)
        self.warn(session, members, found)
        hint = session.prepare_hint() if settings.connection else None
        action = session.members.order(
            self.verb, found, _target(parsed), self.hosts(parsed),
            **self.arguments(parsed))
        if hint is not None:
            hint(self.verb, [(one.part, one.name) for one in found], action)
        code = member_answers.wait(
            session, {action: member_answers.AwaitedAction()},
            'the command takes effect {}')
        member_answers.print_problems(session)
        if not settings.connection:
            session.print(_NOTE)
        return code

    def _chosen(self, members: 'list[MemberRow]',
                parsed: argparse.Namespace) -> 'list[MemberRow]':
        """Return the members that receive the command.

        :raises ConfigError: the command line selects none.
        """
        if parsed.member is not None:
            return [selection.select_one(members, parsed)]
        found = selection.select(members, parsed)
        if parsed.all:
            found = [one for one in found if self.concerns(one)]
            if not found:
                raise exceptions.ConfigError(
                    'all members have stopped; to name one of them '
                    'nevertheless, give MEMBER; to list them: '
                    'distperiodic member list')
        return found

    def arguments(self, parsed: argparse.Namespace) -> dict[str, object]:
        """Return the arguments of the command."""
        return {}

    def hosts(self, parsed: argparse.Namespace) -> 'Collection[str] | None':
        """Return the hosts to which the command applies as a whole.

        None means all hosts.
        """
        only = (parsed.member, parsed.partition) == (None, None) and (
            not parsed.schedulers)
        return [parsed.host] if only and parsed.host is not None else ()

    def concerns(self, member: 'MemberRow') -> bool:
        """Return whether "--all" selects this member."""
        return not member.stopped

    def warn(self, session: Session, members: 'Sequence[MemberRow]',
             chosen: 'Sequence[MemberRow]') -> None:
        """Print a warning if the command has unwanted consequences."""


def _target(parsed: argparse.Namespace) -> str:
    part = (f'partition {parsed.partition}' if parsed.partition is not None
            else 'schedulers' if parsed.schedulers else '')
    host = '' if parsed.host is None else f'host {parsed.host}'
    return ' of '.join(filter(None, [parsed.member, part, host])) or 'all'


class MemberDrain(_MemberAction):
    """Take members out of service, and keep them out after a restart.

    A drained scheduler makes no new claims; the other schedulers own its
    objects. A drained worker receives no new work. Claimed work is finished.
    Jobs that run on every member continue. With --host alone, members that
    start on this host later for the first time are drained, too. Without a
    store, the drain ends when the process of the member ends.
    """

    verb = Verb.DRAIN

    def warn(self, session: Session, members: 'Sequence[MemberRow]',
             chosen: 'Sequence[MemberRow]') -> None:
        for clause in drain_effects.left_without(
                members, chosen, session.settings.session_timeout):
            session.print(f'warning: {clause}')


class MemberUndrain(_MemberAction):
    """Put drained members into service again.

    After "member drain --host", use --host or --all: otherwise members that
    start on the host for the first time are still drained.
    """

    verb = Verb.UNDRAIN
    also = ', and those that have stopped and are drained'

    def hosts(self, parsed: argparse.Namespace) -> 'Collection[str] | None':
        return None if parsed.all else super().hosts(parsed)

    def concerns(self, member: 'MemberRow') -> bool:
        return member.drained or super().concerns(member)


class _OptionAction(_MemberAction):
    """Base class of commands that change one option of members."""

    def add_value(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'option', metavar='OPTION', choices=('pool_size',),
            help='pool_size: number of threads of each pool of the member')


class MemberSet(_OptionAction):
    """Set an option of members; the value stays in force after a restart.

    After "member unset" the configured value applies again. Without a store,
    it also applies again when the process of the member restarts.
    """

    verb = Verb.SET

    def add_value(self, parser: argparse.ArgumentParser) -> None:
        super().add_value(parser)
        parser.add_argument(
            'value', metavar='VALUE', type=_pool_size,
            help=f'a whole number from 1 to {MAX_POOL_SIZE}')

    def arguments(self, parsed: argparse.Namespace) -> dict[str, object]:
        return {parsed.option: parsed.value}


class MemberUnset(_OptionAction):
    """Remove a value of "member set": the configured value applies again."""

    verb = Verb.UNSET
    also = ', and those that have stopped and have the option set'

    def concerns(self, member: 'MemberRow') -> bool:
        return member.pool_size is not None or super().concerns(member)


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
