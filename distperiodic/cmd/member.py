# SPDX-License-Identifier: Apache-2.0
"""``distperiodic member list|show|drain|undrain|set|unset``: the processes of
a group.
"""

import argparse
import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from cliff import command
from cliff import lister
from cliff import show

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.core.control import MAX_POOL_SIZE
from distperiodic.core.control import Verb
from distperiodic.core.suggestion import did_you_mean

if TYPE_CHECKING:
    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic.operator.activity import Run
    from distperiodic.operator.members import Answer
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.members import MemberRow
    from distperiodic.operator.ring_members import RingMembers

# Seconds between two checks for answers.
_POLL = 0.1
# Maximum seconds until the members have replied to a query over the bus.
_REPLIES = 5.0
_NOTE = (
    'note: without a store ([distperiodic] connection) a member forgets this '
    'command when its process restarts, and the command is not recorded; each '
    'member that answered has logged the operator and the reason')


def role(member: 'MemberRow | Answer') -> str:
    """Return the kind of a member, in words."""
    return f'worker of {member.part}' if member.part else 'scheduler'


class _OfMembers(configured.Configured):
    """Mixin for commands about members, with or without a store."""

    def members_of(self, parsed: argparse.Namespace, why: str = ''
                   ) -> 'contextlib.closing[MemberAdmin | RingMembers]':
        """Return the members of the configured group.

        :param why: Reason for a command to members.
        :raises ConfigError: There is neither a store nor a broker.
        """
        conf, settings = self.configured(parsed)
        actor = acting.actor(why)
        if settings.connection:
            from distperiodic.operator.members import MemberAdmin
            settings = self.database(parsed)
            return contextlib.closing(MemberAdmin(
                settings.connection, namespace=settings.group, actor=actor))
        if settings.dispatcher != 'messaging':
            raise exceptions.ConfigError(
                'there is neither a store nor a broker, so no member can be '
                'reached; set [distperiodic] connection, or dispatcher = '
                'messaging and transport_url; --config-file names the file')
        from distperiodic.adapters.local.clock import SystemClock
        from distperiodic.operator.ring_members import RingMembers
        return contextlib.closing(RingMembers(
            conf, settings, actor=actor, clock=SystemClock(), wait=_REPLIES))

    def configured(self, parsed: argparse.Namespace
                   ) -> 'tuple[cfg.ConfigOpts, opts.Settings]':
        """Return the options of the configured group."""
        from distperiodic import opts
        conf = self.configuration(parsed)
        return conf, opts.settings(conf)


class MemberList(_OfMembers, display.Table, lister.Lister):
    """Show the processes of the group, as the store knows them.

    A silent member has not reported for session_timeout: it was killed, it
    hangs, or it cannot reach the store. Without a store, the command asks the
    members over the broker.
    """

    essential = ('Member', 'Role', 'Partition role', 'State', 'Seen')

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        people = parsed.formatter not in display.FOR_PROGRAMS
        _, settings = self.configured(parsed)
        with self.members_of(parsed) as queries:
            found = queries.members()
            problems = queries.problems()
        if not found:
            problems.append('no member of this group has reported yet')
        self.sentence = ''.join(f'{one[:1].upper()}{one[1:]}.'
                                for one in problems)
        rows: list[Sequence[Any]] = []
        for member in found:
            pools = member.state.get('pools') or {}
            rows.append((
                member.name, role(member),
                member.state.get('partition_role', ''),
                _state(member, settings.session_timeout),
                'yes' if member.drained else 'no',
                member.state.get('in_flight', ''),
                sum(pool['busy'] for pool in pools.values()),
                sum(pool.get('queued', 0) for pool in pools.values()),
                _age(member.age, people), member.state.get('version', ''),
                member.drained_by, member.drained_why))
        return (('Member', 'Role', 'Partition role', 'State', 'Drained',
                 'In flight', 'Busy', 'Queued',
                 'Seen' if people else 'Seen (s)', 'Version', 'Drained by',
                 'Why'), rows)


def _state(member: 'MemberRow', session_timeout: float) -> str:
    if member.stopped:
        return 'stopped'
    if member.age is None:
        return 'no answer'
    if member.silent(session_timeout):
        return 'silent'
    return 'running' if member.state.get('healthy') else 'not healthy'


def _age(micros: int | None, people: bool) -> Any:
    if micros is None:
        return '' if people else None
    seconds = micros / 1e6
    return configured.age(seconds) if people else round(seconds, 3)


class _OfMember(_OfMembers):
    """Mixin for commands about one or several members."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self._add_target(parser)
        return parser

    def _add_target(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'member', metavar='MEMBER', nargs='?',
            help='name of the member, as "member list" shows it')
        parser.add_argument(
            '--partition', metavar='PARTITION',
            help='select the workers of this partition')
        parser.add_argument(
            '--schedulers', action='store_true',
            help='select the schedulers')

    def select(self, members: 'list[MemberRow]',
               parsed: argparse.Namespace) -> 'list[MemberRow]':
        """Return the members that the command line selects.

        :raises ConfigError: No member matches, or the options exclude each
            other.
        """
        if parsed.partition is not None and parsed.schedulers:
            raise exceptions.ConfigError(
                '--partition and --schedulers exclude each other: a '
                'scheduler serves no partition; omit one')
        found = members
        if parsed.partition is not None:
            found = [one for one in members if one.part == parsed.partition]
            if not found:
                parts = sorted({one.part for one in members if one.part})
                raise exceptions.ConfigError(
                    f'no worker serves partition {parsed.partition!r}; '
                    + (f'there are workers of {", ".join(parts)}' if parts
                       else 'no worker of any partition has reported'))
        elif parsed.schedulers:
            found = [one for one in members if not one.part]
            if members and not found:
                raise exceptions.ConfigError(
                    'no scheduler of this group has reported; there are '
                    'workers of '
                    + ', '.join(sorted({one.part for one in members})))
        if parsed.member is not None:
            found = [one for one in found if one.name == parsed.member]
        if not found:
            names = sorted({one.name for one in members})
            raise exceptions.ConfigError(
                f'there is no member {parsed.member!r}'
                + (did_you_mean(parsed.member, names) or
                   f'; there are {configured.listed(names, 9)}')
                if names and parsed.member is not None else
                'no member of this group has reported yet; check '
                '[distperiodic] group')
        return found

    def select_one(self, members: 'list[MemberRow]',
                   parsed: argparse.Namespace) -> 'MemberRow':
        """Return the one member that the command line selects.

        :raises ConfigError: No member matches, or several members match.
        """
        found = self.select(members, parsed)
        if len(found) > 1:
            raise exceptions.ConfigError(
                f'{parsed.member or "this"} names '
                f'{len(found)} members: '
                + ', '.join(f'{one.name} ({role(one)})' for one in found)
                + '; give MEMBER, and --schedulers or --partition')
        return found[0]


class MemberShow(_OfMember, display.Display, show.ShowOne):
    """Show the current state of a member: its runs, pools and queues."""

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], Sequence[Any]]:
        people = parsed.formatter == 'table'
        _, settings = self.configured(parsed)
        with self.members_of(parsed) as queries:
            member = self.select_one(queries.members(), parsed)
        fields: dict[str, Any] = {
            'member': member.name, 'role': role(member),
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
                       if name not in fields and name != 'kind'})
        runs = member.runs
        if settings.connection:
            runs += self._stored_runs(parsed, member)
        fields['runs'] = [
            {'job': run.job, 'object': run.object,
             'age_s': None if run.age is None
             else round(max(0, run.age) / 1e6, 3),
             'progress': run.progress} for run in runs]
        if people:
            fields = {name: value for name, value in fields.items()
                      if value not in ('', None, [])}
        return tuple(fields), tuple(fields.values())

    def _stored_runs(self, parsed: argparse.Namespace,
                     member: 'MemberRow') -> 'list[Run]':
        """Return the runs of a member that are recorded in the store."""
        from distperiodic.operator.activity import Activity
        with self.store(parsed, Activity) as activity:
            return [run for run in activity.runs(None, 1000)
                    if member.process
                    and run.worker.startswith(f'{member.process}~')]


class _Order(_OfMember, acting.Acting, command.Command):
    """Base class of commands that members carry out and answer."""

    verb: Verb
    #: Stopped members that "--all" also selects, as text for its help.
    also = ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--all', action='store_true',
            help='select all schedulers and workers of the group that have '
                 'not stopped' + self.also)
        parser.add_argument(
            '--wait', type=configured.seconds, default=10.0,
            metavar='SECONDS',
            help='maximum time to wait for answers; default: 10')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> int:
        if not (parsed.all or parsed.member is not None
                or parsed.partition is not None or parsed.schedulers):
            raise exceptions.ConfigError(
                'no member is named; give MEMBER, --partition, --schedulers '
                'or --all; to list the members: distperiodic member list')
        _, settings = self.configured(parsed)
        with self.members_of(parsed, parsed.why) as admin:
            members = admin.members()
            self._note(admin)
            found = self.select(members, parsed)
            if parsed.member is not None:
                found = [self.select_one(members, parsed)]
            elif parsed.all:
                found = [one for one in found if self.concerns(one)]
                if not found:
                    raise exceptions.ConfigError(
                        'all members have stopped; to name one of them '
                        'nevertheless, give MEMBER; to list them: '
                        'distperiodic member list')
            self.warn(members, found, settings.session_timeout)
            hint = (self.prepare_hint(parsed) if settings.connection
                    else None)
            action = admin.order(self.verb, found, _target(parsed),
                                 **self.arguments(parsed))
            if hint is not None:
                hint(self.verb, [(one.part, one.name) for one in found],
                     action)
            code = self._wait(admin, action, parsed, settings)
            self._note(admin)
            if not settings.connection:
                self.print(_NOTE)
            return code

    def _note(self, admin: 'MemberAdmin | RingMembers') -> None:
        for problem in admin.problems():
            self.print(f'warning: {problem}')

    def arguments(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """Return the arguments of the command."""
        return {}

    def concerns(self, member: 'MemberRow') -> bool:
        """Return whether "--all" selects this member."""
        return not member.stopped

    def warn(self, members: 'list[MemberRow]', chosen: 'list[MemberRow]',
             session_timeout: float) -> None:
        """Print a warning if the command has unwanted consequences."""

    def _wait(self, admin: 'MemberAdmin | RingMembers', action: str,
              parsed: argparse.Namespace, settings: 'opts.Settings') -> int:
        """Print each answer when it arrives, and then the missing answers."""
        from distperiodic.adapters.local.clock import SystemClock
        clock = SystemClock()
        end = clock.monotonic() + parsed.wait
        printed: set[tuple[str, str]] = set()
        refused = 0
        while True:
            answers = admin.answers(action)
            for one in answers:
                if one.at is None or (one.part, one.name) in printed:
                    continue
                printed.add((one.part, one.name))
                refused += not one.done
                self.print(f'{one.name} ({role(one)}): {one.outcome}, at '
                           f'{configured.second(one.at)}')
            silent = [one for one in answers if one.at is None]
            if not silent or clock.monotonic() >= end:
                break
            threading.Event().wait(_POLL)
        states = {(one.part, one.name): one for one in admin.members()
                  } if silent and settings.connection else {}
        for one in silent:
            self.print(
                f'{one.name} ({role(one)}): no answer; ' + (
                    _excuse(states.get((one.part, one.name)),
                            settings.session_timeout, parsed.wait)
                    if settings.connection else
                    f'it was not reached within {parsed.wait:g} s, and the '
                    'command is not sent again; repeat the command'))
        admin.conclude(action, (
            f'{len(answers) - len(silent) - refused} done, {refused} '
            f'refused, {len(silent)} without an answer'))
        return configured.FINDING if silent or refused else configured.FINE


def _excuse(member: 'MemberRow | None', session_timeout: float,
            waited: float) -> str:
    """Return the reason why a member has not answered, and the consequence."""
    if member is None or member.age is None:
        return 'its row was deleted while this command waited'
    age = configured.age(member.age / 1e6)
    if member.stopped:
        return (f'its process stopped {age} ago; the command takes effect '
                'when it starts again')
    if member.silent(session_timeout):
        return (f'it has been silent for {age}: it was killed, it hangs, or '
                'it cannot reach the store; the command takes effect when it '
                'reaches the store')
    return (f'it reported {age} ago, but did not answer within {waited:g} s; '
            'the command takes effect at its next sweep')


def _target(parsed: argparse.Namespace) -> str:
    part = (f'partition {parsed.partition}' if parsed.partition is not None
            else 'schedulers' if parsed.schedulers else '')
    return ' of '.join(filter(None, [parsed.member, part])) or 'all'


class MemberDrain(_Order):
    """Take members out of service, and keep them out after a restart.

    A drained scheduler makes no new claims; the other schedulers own its
    objects. A drained worker receives no new work. Claimed work is finished.
    Jobs that run on every member continue.
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


class MemberUndrain(_Order):
    """Put drained members into service again."""

    verb = Verb.UNDRAIN
    also = ', and those that have stopped and are drained'

    def concerns(self, member: 'MemberRow') -> bool:
        return member.drained or super().concerns(member)


class _OfOption(_Order):
    """Base class of commands that change one option of members."""

    def _add_target(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'option', metavar='OPTION', choices=('pool_size',),
            help='pool_size: number of threads of each pool of the member')
        self._add_value(parser)
        super()._add_target(parser)

    def _add_value(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument that is the value of the option."""


class MemberSet(_OfOption):
    """Set an option of members; the value stays in force after a restart.

    After "member unset" the configured value applies again.
    """

    verb = Verb.SET

    def _add_value(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'value', metavar='VALUE', type=_pool_size,
            help=f'a whole number from 1 to {MAX_POOL_SIZE}')

    def arguments(self, parsed: argparse.Namespace) -> dict[str, Any]:
        return {parsed.option: parsed.value}


class MemberUnset(_OfOption):
    """Remove a value of "member set": the configured value applies again."""

    verb = Verb.UNSET
    also = ', and those that have stopped and have the option set'

    def concerns(self, member: 'MemberRow') -> bool:
        return member.pool_size is not None or super().concerns(member)

    def arguments(self, parsed: argparse.Namespace) -> dict[str, Any]:
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
