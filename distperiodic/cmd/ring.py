# SPDX-License-Identifier: Apache-2.0
"""``distperiodic ring show`` and ``simulate``.

The members and their points determine the owner of each object, and the
objects that a change would move. ``show`` and ``explain`` read the members
from the coordination service, or use the members that ``--members`` names.
``simulate`` uses hypothetical members.
"""

import argparse
import collections
import math
from collections.abc import Mapping

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.core.member import MAX_POINTS
from distperiodic.core.ring import Ring
from distperiodic.core.ring import positions_of
from distperiodic.operator.lists import ring_list

#: Largest share, in multiples of the mean, that needs no remedy. A member with
#: a larger share may be late while all other members are on time. Smaller
#: differences have no noticeable effect.
_EVEN_ENOUGH = 1.25
# Maximum total number of points of the simulated rings, which show how the
# largest share depends on the names of the members. If three rings have more
# points, three rings are simulated.
_POINTS_TO_SPEND = 40_000


class RingShow(ring_list.RingShares, display.List):
    for_people = ('table',)


class RingSimulate(display.Details):
    """Show how evenly a ring divides objects, and how many a change moves.

    The command only computes: it contacts no server. The members are named
    member-1 and so on. Other names give other figures; the row "other names"
    shows the range of the largest share for a few sets of names.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--members', type=configured.positive, default=10, metavar='N',
            help='members on the ring. Default: 10')
        parser.add_argument(
            '--replicas', type=configured.positive, metavar='R',
            help='points of each member. Default: hash_ring_replicas_count, '
                 'which is 40 if it is not set')
        parser.add_argument(
            '--objects', type=configured.positive, default=100_000,
            metavar='M', help='objects to share. Default: 100000')

    def facts(self, session: Session) -> Mapping[str, object]:
        parsed = session.parsed
        replicas = (parsed.replicas
                    or session.settings.hash_ring_replicas_count)
        if replicas > MAX_POINTS:
            raise exceptions.ConfigError(
                f'--replicas {replicas} cannot be used; a member has 1 to '
                f'{MAX_POINTS} points')
        if parsed.members * replicas > 5_000_000 or (
                parsed.objects > 20_000_000):
            raise exceptions.ConfigError(
                f'--members {parsed.members} x --replicas {replicas} points '
                f'and --objects {parsed.objects} would take minutes; stay '
                'below 5,000,000 points and 20,000,000 objects')
        simulation = Simulation(parsed.members, replicas, parsed.objects)
        if parsed.formatter in ('table', 'value', 'shell'):
            return simulation.words()
        return simulation.figures()


class Simulation:
    """The distribution of objects over members with equal points."""

    def __init__(self, members: int, replicas: int, objects: int):
        self.members, self.replicas = members, replicas
        self.objects = objects
        names = [f'member-{n}' for n in range(1, members + 1)]
        self.positions = positions_of(
            [f'object-{n}' for n in range(objects)])
        now = Ring(dict.fromkeys(names, replicas))
        self.owners = self._owners(now)
        self.loads = collections.Counter(dict.fromkeys(names, 0))
        self.loads.update(self.owners)
        self.mean = objects / members
        ranked = self.loads.most_common()
        (self.most_name, self.most), (_, self.least) = ranked[0], ranked[-1]
        newcomer = f'member-{members + 1}'
        self.join_moves, self.join_needs, self.join_between = self._compare(
            now.changed_to({**now.members, newcomer: replicas}), newcomer)
        self.leave: tuple[int, int, int] | None = None
        if members > 1:
            left = {n: r for n, r in now.members.items()
                    if n != self.most_name}
            self.leave = self._compare(now.changed_to(left), self.most_name)
        self.spread = _spread(members, replicas)
        self.advised = _advised(members)
        self.tuning: int | None = None
        if self.spread[1] > _EVEN_ENOUGH and self.advised > replicas:
            tuned = self._owners(Ring(
                dict.fromkeys(names, self.advised)))
            self.tuning = sum(map(str.__ne__, self.owners, tuned))

    def _owners(self, ring: 'Ring') -> list[str]:
        return list(map(ring.owner_at, self.positions))

    def _compare(self, after: 'Ring',
                 who: str) -> tuple[int, int, int]:
        """Return the numbers of objects that move when *who* joins or leaves.

        :return: Three numbers of objects: all objects that change their owner;
            the objects that must change their owner, because *who* is the old
            or the new owner; and the objects that move between two other
            members.
        """
        moved = needed = 0
        for old, new in zip(self.owners, self._owners(after), strict=True):
            if old != new:
                moved += 1
            needed += who in (old, new)
        return moved, needed, moved - needed

    def advice(self) -> str:
        if self.members == 1:
            return 'nothing: one member owns all objects'
        if self.tuning is None:
            return (f'nothing: the largest share, {self.spread[1]:.2f} times '
                    'the mean, is small enough')
        return (f'hash_ring_replicas_count = {self.advised} brings the '
                f'largest share to about {_EVEN_ENOUGH} times the mean; '
                f'changing it moves '
                f'{configured.percent(self.tuning, self.objects)} of the '
                'objects once, so change it one member at a time (SIGHUP '
                'applies it), while the load is low')

    def words(self) -> Mapping[str, object]:
        """Return the figures for people."""
        n, total = configured.plural, self.objects
        low, usual, high = self.spread

        def change(found: tuple[int, int, int] | None, share: int) -> str:
            if found is None:
                return 'no member is left'
            moved, needed, between = found
            return (f'moves {moved:,} of {total:,} objects '
                    f'({configured.percent(moved, total)}); the least '
                    f'possible is {needed:,}, a fair share is '
                    f'{configured.percent(1, share)}; between members that '
                    f'stay: {between:,}')
        return {
            'ring': f'{n(self.members, "member")} x '
                    f'{n(self.replicas, "point")}, {n(total, "object")}, mean '
                    f'load {self.mean:,.1f}',
            'largest load': f'{self.most:,} = {self.most / self.mean:.2f} x '
                            f'mean ({self.most_name})',
            'smallest load': f'{self.least:,} = '
                             f'{self.least / self.mean:.2f} x mean',
            'other names': f'largest share {low:.2f} to {high:.2f} x mean, '
                           f'median {usual:.2f}',
            'a join': change((self.join_moves, self.join_needs,
                              self.join_between), self.members + 1),
            'a leave': change(self.leave, self.members) + (
                f' ({self.most_name}, which has the largest load)'
                if self.leave else ''),
            'do next': self.advice()}

    def figures(self) -> Mapping[str, object]:
        """Return the figures for programs."""
        leave = self.leave or (None, None, None)
        return {
            'members': self.members, 'replicas': self.replicas,
            'objects': self.objects, 'mean': self.mean, 'max': self.most,
            'max_to_mean': round(self.most / self.mean, 4),
            'min': self.least,
            'min_to_mean': round(self.least / self.mean, 4),
            'max_to_mean_other_names': [round(s, 4) for s in self.spread],
            'join_moves': self.join_moves, 'join_least': self.join_needs,
            'join_between_stayers': self.join_between,
            'leave_moves': leave[0], 'leave_least': leave[1],
            'leave_between_stayers': leave[2],
            'advised_replicas': (
                self.replicas if self.tuning is None else self.advised),
            'advice': self.advice(),
        }


def _spread(members: int, replicas: int) -> tuple[float, float, float]:
    """Return statistics on the largest share, over several sets of names.

    Shares are in multiples of the mean.

    :return: The minimum, the median and the maximum of the largest shares.
    """
    found = []
    tries = max(3, min(21, _POINTS_TO_SPEND // (members * replicas)))
    for names in range(tries):
        ring = Ring({
            f'name-{names}-{n}': replicas for n in range(members)})
        found.append(max(map(ring.share, ring.members)) * members)
    found.sort()
    return found[0], found[len(found) // 2], found[-1]


def _advised(members: int) -> int:
    """Return the number of points per member that makes a ring even enough.

    A share of R points has a relative standard deviation of about 1/sqrt(R).
    The largest of N such shares is about sqrt(2 ln N) standard deviations
    above the mean.

    :param members: Number of members on the ring.
    """
    needed = 2 * math.log(max(2, members)) / (_EVEN_ENOUGH - 1) ** 2
    return max(40, 20 * math.ceil(needed / 20))
