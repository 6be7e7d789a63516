# SPDX-License-Identifier: Apache-2.0
"""The consistent-hash ring: who owns what, from names alone.

Point *r* of member *m* is ``md5("m:r")``, an object sits at
``md5(str(id))``, and its owner is the first point to its right, around the
end where need be (Karger et al., "Consistent Hashing and Random Trees",
1997, with many points per member). This is the placement of the program
this project grew from, kept point for point.

Only the first 8 bytes of a digest are compared, read as a *signed* integer,
so that a position fits a BIGINT column. Reading it as signed turns the ring
by half a round and changes no neighbour, so it changes no owner.

The module knows no clock, no network and no configuration. A ring is
immutable; a changed membership gives a new ring that shares nothing
mutable with the old one.
"""

import bisect
import functools
import itertools
import sys
from array import array
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

try:
    # The interpreter's own md5: half the cost of a call through OpenSSL for
    # ids of a few bytes, and present where OpenSSL runs in FIPS mode. The
    # hash only spreads load here, it protects nothing.
    from _md5 import md5
except ImportError:
    import hashlib

    md5 = functools.partial(hashlib.md5, usedforsecurity=False)

MIN_POSITION = -(1 << 63)
MAX_POSITION = (1 << 63) - 1

#: The placement described above. A later one gets the next number, and a
#: group uses the lowest that any of its members offers.
RING_FORMAT = 1

# How many ids are hashed at a time. Digests are 33 bytes of object header
# each; hashing a million at once would hold 50 MB for nothing.
_CHUNK = 65536

_CUT = 2


class Arc(NamedTuple):
    """A closed interval of positions: ``low <= position <= high``."""

    low: int
    high: int


def position_of(object_id: str) -> int:
    """The place of *object_id* on the ring: a signed 64-bit integer."""
    return int.from_bytes(
        md5(object_id.encode()).digest()[:8], 'big', signed=True)


def positions_of(ids: Sequence[str]) -> 'array[int]':
    """The places of many ids, in their order, as ``array('q')``.

    Four times as fast as asking for each: the digests are joined and read
    as numbers in one go.
    """
    positions = array('q')
    for start in range(0, len(ids), _CHUNK):
        positions.extend(_read(
            [md5(i.encode()).digest() for i in ids[start:start + _CHUNK]]))
    return positions


def minus(arcs: Iterable[Arc], others: Sequence[Arc]) -> list[Arc]:
    """The positions on *arcs* that are on none of *others*, in order.

    Both are disjoint and in order.
    """
    found, at = [], 0
    for low, high in arcs:
        while at < len(others) and others[at].high < low:
            at += 1
        # One of them may reach into the next arc.
        each = at
        while each < len(others) and others[each].low <= high:
            if low < others[each].low:
                found.append(Arc(low, others[each].low - 1))
            low = others[each].high + 1
            each += 1
        if low <= high:
            found.append(Arc(low, high))
    return found


def points_of(member: str, count: int) -> 'array[int]':
    """The *count* points of *member*, in the order of their numbers."""
    return _read(_digests(member, count))


def _digests(member: str, count: int) -> list[bytes]:
    name = f'{member}:'.encode()
    return [md5(name + number).digest() for number in _numbers(count)]


@functools.lru_cache(maxsize=64)
def _numbers(count: int) -> tuple[bytes, ...]:
    return tuple(b'%d' % r for r in range(count))


def _read(digests: list[bytes]) -> 'array[int]':
    halves = array('q')
    halves.frombytes(b''.join(digests))
    if sys.byteorder == 'little':
        halves.byteswap()
    return halves[::2]


#: Points in order, and the owner of each.
_Placed = tuple[list[int], list[str]]


class Ring:
    """Points in order, and the member each belongs to.

    The points are placed when somebody first asks: of a crowd of changes
    only the rings that are used are built.

    :param members: member identity to its number of points. More points
        are more weight: a member with twice the points owns about twice the
        objects.
    """

    __slots__ = ('members', '_arcs', '_base', '_known', '_tables')

    def __init__(self, members: Mapping[str, int]):
        self.members: dict[str, int] = dict(members)
        self._arcs: dict[str, tuple[Arc, ...]] = {}
        self._tables: dict[str, bytes] = {}
        #: Threads may place the points at the same time, and then do the
        #: same; None: nobody has yet.
        self._known: _Placed | None = None
        #: A ring with its points placed, to begin from; None: from nothing.
        self._base: Ring | None = None

    def changed_to(self, members: Mapping[str, int]) -> 'Ring':
        """The ring of *members*, built from this one.

        Costs one copy of the points and the points of those who came or
        went, where building anew hashes and sorts all of them.
        """
        if self.members == members:
            return self
        ring = Ring(members)
        ring._base = self._base if self._known is None else self
        return ring

    def _placed(self) -> _Placed:
        known = self._known
        if known is None:
            base = self._base
            known = self._known = (
                _place(self.members) if base is None
                else _place_from(base._placed(), base.members, self.members))
            self._base = None
        return known

    def __len__(self) -> int:
        """How many points there are."""
        return sum(self.members.values())

    def owner_at(self, position: int) -> str:
        """The member whose point comes next after *position*.

        :raises LookupError: the ring has no members.
        """
        points, owners = self._known or self._placed()
        if not points:
            raise LookupError('the ring has no members')
        at = bisect.bisect_right(points, position)
        return owners[at if at < len(owners) else 0]

    def owner_of(self, object_id: str) -> str:
        """The member that owns *object_id*."""
        return self.owner_at(position_of(object_id))

    def owned(self, member: str, positions: 'array[int]') -> bytearray:
        """For each position a byte: 1 where it is *member*'s, else 0.

        Nearly every position is settled by its 16 highest bits: a table of
        65,536 entries says whether such a stretch of the ring is wholly
        *member*'s, wholly others', or cut by one of *member*'s own points.
        Only the last kind, about two in a thousand, is looked up.
        """
        table = self._tables.get(member)
        if table is None:
            table = self._tables[member] = self._tabulate(member)
        sixteens = memoryview(positions).cast('B').cast('H')
        top = sixteens[3::4] if sys.byteorder == 'little' else sixteens[::4]
        flags = bytearray(map(table.__getitem__, top))
        at = flags.find(_CUT)
        while at >= 0:
            flags[at] = self.owner_at(positions[at]) == member
            at = flags.find(_CUT, at + 1)
        return flags

    def _tabulate(self, member: str) -> bytes:
        table = bytearray(1 << 16)
        for low, high in self.arcs(member):
            first, last = low >> 48, high >> 48
            for stretch in range(first, last + 1):
                whole = (low <= stretch << 48
                         and high >= (stretch << 48) + (1 << 48) - 1)
                table[stretch & 0xffff] = 1 if whole else _CUT
        return bytes(table)

    def succession(self, position: int) -> Iterator[tuple[int, str]]:
        """The owner of *position*, then who would take over, and so on.

        :returns: (point, member) pairs, each member once.
        """
        points, owners = self._placed()
        start = bisect.bisect_right(points, position)
        seen = set()
        for step in range(len(points)):
            at = (start + step) % len(points)
            owner = owners[at]
            if owner not in seen:
                seen.add(owner)
                yield points[at], owner

    def arcs(self, member: str) -> tuple[Arc, ...]:
        """All positions that *member* owns, as disjoint intervals in order.

        Together the arcs of all members cover every position once.
        """
        arcs = self._arcs.get(member)
        if arcs is None:
            arcs = self._arcs[member] = tuple(self._cut(member))
        return arcs

    def _cut(self, member: str) -> Iterator[Arc]:
        placed = self._placed()
        points, _ = placed
        mine = _places(placed, member, self.members.get(member, 0))
        if not mine:
            return
        stretches = [(points[at - 1] if at else MIN_POSITION, points[at] - 1)
                     for at in mine]
        if mine[0] == 0:
            # Beyond the last point the ring goes on to the first.
            stretches.append((points[-1], MAX_POSITION))
        low, high = stretches[0]
        for next_low, next_high in stretches[1:]:
            if next_low > high + 1:
                if low <= high:
                    yield Arc(low, high)
                low = next_low
            high = next_high
        if low <= high:
            yield Arc(low, high)

    def share(self, member: str) -> float:
        """The part of all positions that is *member*'s, 0 to 1."""
        return sum(
            arc.high - arc.low + 1 for arc in self.arcs(member)) / (1 << 64)


def _place(members: Mapping[str, int]) -> _Placed:
    digests: list[bytes] = []
    owners: list[str] = []
    # Two members on one point: the lesser name comes first.
    for name, count in sorted(members.items()):
        digests += _digests(name, count)
        owners += itertools.repeat(name, count)
    points = list(_read(digests))
    order = sorted(range(len(points)), key=points.__getitem__)
    return (list(map(points.__getitem__, order)),
            list(map(owners.__getitem__, order)))


def _place_from(placed: _Placed, before: Mapping[str, int],
                after: Mapping[str, int]) -> _Placed:
    """What _place(*after*) gives, made of what *before* gave."""
    gone = [(m, n) for m, n in before.items() if after.get(m) != n]
    come = [(m, n) for m, n in after.items() if before.get(m) != n]
    if len(gone) + len(come) > len(after) // 2:
        return _place(after)
    if gone:
        placed = _without(placed, gone)
    if come:
        placed = _with(placed, come)
    return placed


def _without(placed: _Placed, gone: Iterable[tuple[str, int]]) -> _Placed:
    """Points and owners, but for those of the members *gone*."""
    old_points, old_owners = placed
    points: list[int] = []
    owners: list[str] = []
    done = 0
    for at in sorted(itertools.chain.from_iterable(
            _places(placed, name, count) for name, count in gone)):
        points += old_points[done:at]
        owners += old_owners[done:at]
        done = at + 1
    points += old_points[done:]
    owners += old_owners[done:]
    return points, owners


def _with(placed: _Placed, come: Iterable[tuple[str, int]]) -> _Placed:
    """Points and owners, and among them those of the members *come*."""
    old_points, old_owners = placed
    points: list[int] = []
    owners: list[str] = []
    done = 0
    for point, name in sorted(itertools.chain.from_iterable(
            zip(points_of(name, count), itertools.repeat(name))
            for name, count in come)):
        at = bisect.bisect_left(old_points, point, done)
        # The lesser name first, as in a ring that is built anew.
        while (at < len(old_points) and old_points[at] == point
               and old_owners[at] < name):
            at += 1
        points += old_points[done:at]
        owners += old_owners[done:at]
        points.append(point)
        owners.append(name)
        done = at
    points += old_points[done:]
    owners += old_owners[done:]
    return points, owners


def _places(placed: _Placed, member: str, count: int) -> list[int]:
    """The indexes of *member*'s points, in order."""
    points, owners = placed
    places: list[int] = []
    at = 0
    for point in sorted(points_of(member, count)):
        at = bisect.bisect_left(points, point, at)
        while owners[at] != member:
            at += 1
        places.append(at)
        at += 1
    return places
