# SPDX-License-Identifier: Apache-2.0
"""Commands that members carry out: send one, and print the answers."""

import argparse
import threading
from typing import TYPE_CHECKING
from typing import Any

from cliff import command

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import of_members
from distperiodic.core.control import Verb

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.members import MemberRow
    from distperiodic.operator.ring_members import RingMembers

# Seconds between two checks for answers.
_POLL = 0.1
_NOTE = (
    'note: without a store ([distperiodic] connection) a member forgets this '
    'command when its process restarts, and the command is not recorded; each '
    'member that answered has logged the operator and the reason')


class Order(of_members.OfMember, acting.Acting, command.Command):
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
                self.print(f'{one.name} ({of_members.role(one)}): '
                           f'{one.outcome}, at {configured.second(one.at)}')
            silent = [one for one in answers if one.at is None]
            if not silent or clock.monotonic() >= end:
                break
            threading.Event().wait(_POLL)
        states = {(one.part, one.name): one for one in admin.members()
                  } if silent and settings.connection else {}
        for one in silent:
            self.print(
                f'{one.name} ({of_members.role(one)}): no answer; ' + (
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
