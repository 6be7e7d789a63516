# SPDX-License-Identifier: Apache-2.0
"""Base classes of commands about members: the selection of members on the
command line, and the connection through which the commands reach them.
"""

import argparse
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.core.suggestion import did_you_mean

if TYPE_CHECKING:
    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic.operator.member_rows import MemberRow
    from distperiodic.operator.members import Answer
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.ring_members import RingMembers

# Maximum seconds to wait for the members' replies to a query over the bus.
_REPLIES = 5.0


def role(member: 'MemberRow | Answer') -> str:
    """Return the kind of a member, in words."""
    return f'worker of {member.part}' if member.part else 'scheduler'


def role_of(holder: str, processes: 'Mapping[str, MemberRow]') -> str:
    """Return the kind of a process, in words.

    :param holder: Name of the process, or of the process and its tenure.
    :param processes: Members of the group, by the names of their processes.
    :returns: Empty means unknown, because the process has ended.
    """
    found = processes.get(holder) or processes.get(holder.rpartition('~')[0])
    return '' if found is None else role(found)


class OfMembers(configured.Configured):
    """Base class of commands about members, with or without a store."""

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


class OfMember(OfMembers):
    """Base class of commands about one or several members."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_target(parser)
        return parser

    def add_target(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments that select members."""
        parser.add_argument(
            'member', metavar='MEMBER', nargs='?',
            help='name of the member, as "member list" shows it')
        parser.add_argument(
            '--partition', metavar='PARTITION',
            help='select the workers of this partition')
        parser.add_argument(
            '--schedulers', action='store_true',
            help='select the schedulers')
        parser.add_argument(
            '--host', metavar='HOST',
            help='select the members of this host: those with the names '
                 'HOST:NUMBER, or HOST alone')

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
        if parsed.host is not None:
            hosts = {one.name: _host(one.name) for one in found}
            found = [one for one in found if hosts[one.name] == parsed.host]
            if hosts and not found:
                names = sorted(set(hosts.values()))
                raise exceptions.ConfigError(
                    f'no such member is on host {parsed.host!r}'
                    + (did_you_mean(parsed.host, names)
                       or f'; there are {configured.listed(names, 9)}'))
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


def _host(name: str) -> str:
    """Return the host in the name of a member."""
    host, _, number = name.rpartition(':')
    return host if host and number.isdecimal() else name
