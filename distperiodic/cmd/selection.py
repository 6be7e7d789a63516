# SPDX-License-Identifier: Apache-2.0
"""The members of the group that a command line selects, in words."""

import argparse

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.core.control import host_of
from distperiodic.core.suggestion import did_you_mean
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import role


def add_options(parser: argparse.ArgumentParser) -> None:
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
        help='select the members of this host: those that have reported '
             'this host, and those with the names HOST:NUMBER, or HOST alone')


def select(members: 'list[MemberRow]',
           parsed: argparse.Namespace) -> 'list[MemberRow]':
    """Return the members that the command line selects.

    :raises ConfigError: No member matches, or the options exclude each other.
    """
    if parsed.partition is not None and parsed.schedulers:
        raise exceptions.ConfigError(
            '--partition and --schedulers exclude each other: a '
            'scheduler serves no partition; omit one')
    found = members
    if parsed.partition is not None:
        found = _of_partition(members, parsed.partition)
    elif parsed.schedulers:
        found = _schedulers(members)
    if parsed.host is not None:
        found = _of_host(found, parsed.host)
    names = sorted({one.name for one in found or members})
    if parsed.member is not None:
        found = [one for one in found if one.name == parsed.member]
    if not found:
        raise exceptions.ConfigError(
            f'there is no member {parsed.member!r}'
            + (did_you_mean(parsed.member, names) or
               f'; there are {configured.listed(names, 9)}')
            if names and parsed.member is not None else
            'no member of this group has reported yet; check '
            '[distperiodic] group')
    return found


def _of_partition(members: 'list[MemberRow]',
                  partition: str) -> 'list[MemberRow]':
    found = [one for one in members if one.part == partition]
    if not found:
        parts = sorted({one.part for one in members if one.part})
        raise exceptions.ConfigError(
            f'no worker serves partition {partition!r}; '
            + (f'there are workers of {", ".join(parts)}' if parts
               else 'no worker of any partition has reported'))
    return found


def _schedulers(members: 'list[MemberRow]') -> 'list[MemberRow]':
    found = [one for one in members if not one.part]
    if members and not found:
        raise exceptions.ConfigError(
            'no scheduler of this group has reported; there are workers of '
            + ', '.join(sorted({one.part for one in members})))
    return found


def _of_host(members: 'list[MemberRow]', host: str) -> 'list[MemberRow]':
    found = [one for one in members if one.is_on(host)]
    if members and not found:
        hosts = sorted({one.host or host_of(one.name) for one in members})
        raise exceptions.ConfigError(
            f'no such member is on host {host!r}'
            + (did_you_mean(host, hosts)
               or f'; there are {configured.listed(hosts, 9)}'))
    return found


def select_one(members: 'list[MemberRow]',
               parsed: argparse.Namespace) -> 'MemberRow':
    """Return the one member that the command line selects.

    :raises ConfigError: No member matches, or several members match.
    """
    found = select(members, parsed)
    if len(found) > 1:
        raise exceptions.ConfigError(
            f'{parsed.member or "this"} names '
            f'{len(found)} members: '
            + ', '.join(f'{one.name} ({role(one)})' for one in found)
            + '; give MEMBER, and --schedulers or --partition')
    return found[0]
