# SPDX-License-Identifier: Apache-2.0
"""The members on the ring, with their shares and arcs."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.core.member import MAX_POINTS
from distperiodic.core.member import Member
from distperiodic.core.member import check_identity
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Arc
from distperiodic.core.ring import Ring
from distperiodic.operator import cells
from distperiodic.operator import health
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic import opts


def add_members(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the members of a ring."""
    parser.add_argument(
        '--members', metavar='A,B=80,C',
        help='use these members and points instead of those in the '
             'coordination service. Points default to '
             'hash_ring_replicas_count')


def members_of(sources: Sources) -> tuple[Member, ...]:
    """Return the members on the ring, in order of name.

    :raises ConfigError: the ring has no members.
    """
    if sources.parsed.members is not None:
        return named(sources.parsed.members, sources.settings)
    return on_ring(sources)


def on_ring(sources: Sources) -> tuple[Member, ...]:
    """Return the members of the group that are on the ring.

    :raises ConfigError: no member is on the ring.
    """
    group = sources.group
    if not group.on_ring:
        finding = health.no_scheduler(sources.settings.group, group)
        raise exceptions.ConfigError(
            f'{finding.text}; {finding.remedy}; or name the members of a '
            'hypothetical ring: --members a,b,c')
    return group.on_ring


def named(text: str, settings: 'opts.Settings') -> tuple[Member, ...]:
    """Return the members that --members names."""
    found = {}
    for part in text.split(','):
        name, equals, points = part.strip().partition('=')
        if equals and not (points.isdigit() and int(points)
                           and int(points) <= MAX_POINTS):
            raise exceptions.ConfigError(
                f'--members {part!r}: the points must be a number from 1 to '
                f'{MAX_POINTS}, such as {name or "a"}=80')
        check_identity(name)
        if name in found:
            raise exceptions.ConfigError(
                f'--members names {name!r} twice; give each member a '
                'different name')
        found[name] = Member(
            name, '0' * 16, 1,
            int(points) if points else settings.hash_ring_replicas_count)
    return tuple(found[n] for n in sorted(found))


class RingShares(cells.DeclaredList[Any]):
    """Show the members on the ring, with their points, share and arcs."""

    essential: Sequence[str] = ('Member', 'Points', 'Share', 'Of fair')

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_members(parser)
        parser.add_argument(
            '--arcs', action='store_true',
            help='list every arc with its first and last position, for '
                 'WHERE position BETWEEN low AND high')

    def fetch(self, sources: Sources) -> list[Any]:
        members = members_of(sources)
        ring = Ring(ring_members(members))
        if sources.parsed.arcs:
            return self._arcs(ring)
        self.sentence = (
            f'{wording.plural(len(members), "member")}, '
            f'{wording.plural(len(ring), "point")}, ring format '
            f'{min(m.ring_format for m in members)}')

        def of_fair(member: Member) -> cells.Cell:
            ratio = ring.share(member.identity) / (member.points / len(ring))
            return cells.Cell(f'{ratio:.2f}', round(ratio, 4))
        self.columns = {
            'Member': lambda member: member.identity,
            'Points': lambda member: member.points,
            'Share': lambda member: _share(ring.share(member.identity)),
            'Fair': lambda member: _share(member.points / len(ring)),
            'Of fair': of_fair,
            'Arcs': lambda member: len(ring.arcs(member.identity)),
            'Ring format': lambda member: member.ring_format}
        return list(members)

    def _arcs(self, ring: Ring) -> list[tuple[str, Arc]]:
        self.columns = {
            'Member': lambda arc: arc[0],
            'Low': lambda arc: arc[1].low,
            'High': lambda arc: arc[1].high,
            'Share': lambda arc: _share(
                (arc[1].high - arc[1].low + 1) / 2**64)}
        return sorted(((name, arc) for name in ring.members
                       for arc in ring.arcs(name)),
                      key=lambda one: one[1].low)


def _share(share: float) -> cells.Cell:
    return cells.Cell(wording.percent(share), round(share, 9))
