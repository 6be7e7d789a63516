# SPDX-License-Identifier: Apache-2.0
"""Base class of commands that members carry out and answer."""

import argparse
from typing import TYPE_CHECKING

from cliff import command

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import awaiting
from distperiodic.cmd import of_members
from distperiodic.core.control import Verb

if TYPE_CHECKING:
    from distperiodic.operator.member_rows import MemberRow

_NOTE = (
    'note: without a store ([distperiodic] connection) a member forgets this '
    'command when its process restarts, and the command is not recorded; each '
    'member that answered has logged the operator and the reason')


class Order(of_members.OfMember, awaiting.Awaiting, acting.Acting,
            command.Command):
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
        return parser

    def take_action(self, parsed: argparse.Namespace) -> int:
        if not (parsed.all or parsed.member is not None
                or parsed.partition is not None or parsed.schedulers
                or parsed.host is not None):
            raise exceptions.ConfigError(
                'no member is named; give MEMBER, --host, --partition, '
                '--schedulers or --all; to list the members: '
                'distperiodic member list')
        _, settings = self.configured(parsed)
        with self.members_of(parsed, parsed.why) as admin:
            members = admin.members()
            self.print_problems(admin)
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
            code = self.wait(
                admin, {action: awaiting.Sent()}, parsed, settings)
            self.print_problems(admin)
            if not settings.connection:
                self.print(_NOTE)
            return code

    def arguments(self, parsed: argparse.Namespace) -> dict[str, object]:
        """Return the arguments of the command."""
        return {}

    def concerns(self, member: 'MemberRow') -> bool:
        """Return whether "--all" selects this member."""
        return not member.stopped

    def warn(self, members: 'list[MemberRow]', chosen: 'list[MemberRow]',
             session_timeout: float) -> None:
        """Print a warning if the command has unwanted consequences."""


def _target(parsed: argparse.Namespace) -> str:
    part = (f'partition {parsed.partition}' if parsed.partition is not None
            else 'schedulers' if parsed.schedulers else '')
    host = '' if parsed.host is None else f'host {parsed.host}'
    return ' of '.join(filter(None, [parsed.member, part, host])) or 'all'
