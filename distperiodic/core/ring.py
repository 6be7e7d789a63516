# SPDX-License-Identifier: Apache-2.0
"""Consistent-hash ring: it determines which member owns an object.

Point *r* of member *m* is ``md5("m:r")``. The position of an object is
``md5(str(id))``. The owner of the object is the member with the next point
after that position. After the last point, the ring continues at the first
point. (Karger et al., "Consistent Hashing and Random Trees", 1997; here each
member has many points.) The predecessor of this project placed objects in the
same way.

Only the first 8 bytes of a digest are used, as a *signed* integer, so that a
position fits into a BIGINT column. With unsigned integers, only the place of
the lowest position on the ring would be different. Each position would have
the same neighbours, and so the same owner.

The module uses no clock, no network and no configuration. A ring is
immutable. A membership change creates a new ring, which shares no mutable
data with the old ring.
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
    # For short ids, the interpreter's own md5 is twice as fast as that of
    # OpenSSL. The interpreter's md5 is also available if OpenSSL runs in FIPS
    # mode. The hash only distributes load, and has no security function.
    from _md5 import md5
except ImportError:
    import hashlib

    md5 = functools.partial(hashlib.md5, usedforsecurity=False)

MIN_POSITION = -(1 << 63)
MAX_POSITION = (1 << 63) - 1

#: Version number of the placement of points and objects. A release with
#: another placement has the next number. A group uses the lowest number of all
#: its members.
RING_FORMAT = 1

# Number of ids that are hashed in one step. Each digest has an object header
# of 33 bytes, so hashing a million ids in one step would need 50 MB.
_CHUNK = 65536

# Entry in the table of Ring.owned() for a stretch of the ring that a member
# owns only in part.
_CUT = 2


class Arc(NamedTuple):
    """A closed interval of positions: ``low <= position <= high``."""

    low: int
    high: int


def position_of(object_id: str) -> int:
    """Return the position of *object_id*: a signed 64-bit integer."""
    return int.from_bytes(
        md5(object_id.encode()).digest()[:8], 'big', signed=True)


def positions_of(ids: Sequence[str]) -> 'array[int]':
    """Return the positions of many ids, in their order, as ``array('q')``.

    This is four times as fast as :func:`position_of` for each id, because all
    digests are converted to numbers in one call.
    """
    positions = array('q')
    for start in range(0, len(ids), _CHUNK):
        positions.extend(_read(
            [md5(i.encode()).digest() for i in ids[start:start + _CHUNK]]))
    return positions


def minus(arcs: Iterable[Arc], others: Sequence[Arc]) -> list[Arc]:
    """Return the parts of *arcs* that do not overlap with *others*, in order.

    The arcs of each argument must be disjoint and in order.
    """
    found, at = [], 0
    for low, high in arcs:
        while at < len(others) and others[at].high < low:
            at += 1
        # An arc of *others* may extend into the next arc of *arcs*.
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
    """Return the *count* points of *member*, in order of their numbers."""
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


#: Points in ascending order, and the owner of each point.
_Placed = tuple[list[int], list[str]]


class Ring:
    """Ring of points in ascending order, each with its owner.

    The points are computed when the ring is first used. So a ring that is
    replaced before its first use costs almost nothing.

    :param members: Number of points by member identity. A member with twice
        the points owns about twice the objects.
    """

    __slots__ = ('members', '_arcs', '_base', '_known', '_tables')

    def __init__(self, members: Mapping[str, int]):
        self.members: dict[str, int] = dict(members)
        self._arcs: dict[str, tuple[Arc, ...]] = {}
        self._tables: dict[str, bytes] = {}
        #: The computed points. None means not computed yet. Several threads
        #: may compute them at the same time, with the same result.
        self._known: _Placed | None = None
        #: The ring from which the points of this ring are derived. None means
        #: that the points are computed from the names of the members.
        self._base: Ring | None = None

    def changed_to(self, members: Mapping[str, int]) -> 'Ring':
        """Return the ring of *members*, derived from this ring.

        If few members differ, the new ring copies the points of this ring, and
        hashes only the points of members that joined, left or changed their
        number of points. This is faster than ``Ring(members)``, which hashes
        and sorts all points.
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
        """Return the number of points."""
        return sum(self.members.values())

    def owner_at(self, position: int) -> str:
        """Return the owner of *position*: the member with the next point.

        :raises LookupError: The ring has no members.
        """
        points, owners = self._known or self._placed()
        if not points:
            raise LookupError('the ring has no members')
        at = bisect.bisect_right(points, position)
        return owners[at if at < len(owners) else 0]

    def owner_of(self, object_id: str) -> str:
        """Return the member that owns *object_id*."""
        return self.owner_at(position_of(object_id))

    def owned(self, member: str, positions: 'array[int]') -> bytearray:
        """Return one byte per position: 1 if *member* owns it, otherwise 0.

        The 16 highest bits of a position divide the ring into 65,536
        stretches. A table records for each stretch whether *member* owns all
        of it, none of it or only a part of it. Only a position in a stretch of
        the third kind is looked up on the ring. If each member has 40 points,
        about one in a thousand positions needs such a look-up.
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
        """Yield the owner of *position*, and then the other members.

        The members are in the order of their next points after *position*.

        :returns: Pairs of a point and a member, one pair per member.
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
        """Return the arcs that *member* owns, disjoint and in order.

        The arcs of all members together cover every position exactly once.
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
            # After the last point the ring continues at the first one.
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
        """Return the fraction of positions that *member* owns, 0 to 1."""
        return sum(
            arc.high - arc.low + 1 for arc in self.arcs(member)) / (1 << 64)


def _place(members: Mapping[str, int]) -> _Placed:
    digests: list[bytes] = []
    owners: list[str] = []
    # If two members have an equal point, the lower name comes first.
    for name, count in sorted(members.items()):
        digests += _digests(name, count)
        owners += itertools.repeat(name, count)
    points = list(_read(digests))
    order = sorted(range(len(points)), key=points.__getitem__)
    return (list(map(points.__getitem__, order)),
            list(map(owners.__getitem__, order)))


def _place_from(placed: _Placed, before: Mapping[str, int],
                after: Mapping[str, int]) -> _Placed:
    """Return the result of _place(*after*), derived from *placed*.

    :param placed: Result of _place(*before*).
    """
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
    """Return points and owners without those of the members *gone*."""
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
    """Return points and owners with those of the members *come* added."""
    old_points, old_owners = placed
    points: list[int] = []
    owners: list[str] = []
    done = 0
    for point, name in sorted(itertools.chain.from_iterable(
            zip(points_of(name, count), itertools.repeat(name))
            for name, count in come)):
        at = bisect.bisect_left(old_points, point, done)
        # The lower name comes first, as in _place().
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
    """Return the indexes of *member*'s points, in order."""
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
