# SPDX-License-Identifier: Apache-2.0
"""The objects of one job, kept so that a member finds its own at once.

Ids are hashed once. Sorted by position, the objects of a member are a few
slices, one for each of its arcs, so a changed ring costs what the member
owns and not what exists. Objects keep the order in which they were given.

The objects' ids must not change while a catalogue holds them; a list whose
ids changed is another catalogue.
"""

import bisect
import itertools
import operator
from array import array
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import ring as ring_
from distperiodic.core import schedule

#: What a key of a MySQL table has room for. A longer id is a mistake (a whole
#: record passed for its id), and would cost every message and row.
MAX_ID_LENGTH = 255
# Ids looked through in one go.
_CHUNK = 10_000


def id_of(obj: Any) -> str:
    """The id of an object as text: its ``.id``, or itself if str or int.

    :raises InvalidObject: it has none, or one that cannot be an id.
    """
    key = obj if isinstance(obj, (str, int)) else getattr(obj, 'id', None)
    if isinstance(key, bool) or key is None:
        raise exceptions.InvalidObject(
            f'{obj!r:.200} has no id; give the object an attribute .id, or '
            'yield str or int')
    if isinstance(key, (bytes, bytearray)):
        raise exceptions.InvalidObject(
            f'the id of {obj!r:.200} is bytes; ids are text, decode it')
    text = str(key)
    if not text or len(text) > MAX_ID_LENGTH:
        raise exceptions.InvalidObject(
            f'the id of {obj!r:.200} has {len(text)} characters; an id has '
            f'1 to {MAX_ID_LENGTH}')
    if '\0' in text:
        raise exceptions.InvalidObject(
            f'the id {text!r:.200} has a NUL in it, which PostgreSQL cannot '
            'store; leave it out')
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise exceptions.InvalidObject(
            f'the id {text!r:.200} is not valid Unicode text ({exc.reason}); '
            'it could not be sent or stored') from None
    return text


def ids_of(objects: Sequence[Any]) -> list[str]:
    """The ids of many objects, in their order; see :func:`id_of`."""
    kinds = set(map(type, objects))
    if kinds <= {int}:
        ids = list(map(str, objects))
        if max(map(len, ids), default=0) > MAX_ID_LENGTH:
            return list(map(id_of, objects))
        return ids
    if kinds == {str}:
        ids = list(objects)
    else:
        try:
            # One pass in C for the usual case: all objects with a text id.
            ids = list(map(operator.attrgetter('id'), objects))
        except AttributeError:
            return list(map(id_of, objects))
        if set(map(type, ids)) != {str}:
            return list(map(id_of, objects))
    if '' in ids or max(map(len, ids)) > MAX_ID_LENGTH or any(
            '\0' in ''.join(ids[at:at + _CHUNK])
            for at in range(0, len(ids), _CHUNK)):
        return list(map(id_of, objects))
    return ids


class _Mine:
    """The last answer of a catalogue."""

    __slots__ = ('ring', 'member', 'indexes', 'objects')

    def __init__(self, ring: ring_.Ring, member: str, indexes: list[int]):
        self.ring = ring
        self.member = member
        self.indexes = indexes
        self.objects: list[Any] | None = None


class Catalogue:
    """Objects, their ids and their places on the ring.

    :param objects: anything with ``.id``, or str or int; iterated once.
    :raises InvalidObject: an object without a usable id.
    """

    __slots__ = ('objects', 'ids', 'positions', 'told', '_order', '_sorted',
                 '_mine', '_phases')

    def __init__(self, objects: Iterable[Any]):
        #: A copy: the caller may go on to change his list.
        self.objects: list[Any] = list(objects)
        self.ids = ids_of(self.objects)
        if self.ids == self.objects:
            self.ids = self.objects
        try:
            self.positions = ring_.positions_of(self.ids)
        except UnicodeEncodeError:
            for obj in self.objects:
                id_of(obj)
            raise
        #: Somebody was told of :attr:`duplicate`.
        self.told = False
        self._order: array[int] | None = None
        self._sorted: array[int] | None = None
        self._mine: _Mine | None = None
        self._phases: tuple[int, array[int], array[int]] | None = None

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def duplicate(self) -> str | None:
        """An id that stands here more than once; None: there is none."""
        seen: set[str] = set()
        if self.told or len(set(self.ids)) == len(self.ids):
            return None
        for key in self.ids:
            if key in seen:
                return key
            seen.add(key)
        return None

    def index(self) -> None:
        """Sort by position now rather than at the first need.

        In 256 parts, so that a million objects do not keep other threads
        from the interpreter for a second.
        """
        if self._order is not None:
            return
        parts: list[list[int]] = [[] for _ in range(256)]
        add = [part.append for part in parts]
        for i, position in enumerate(self.positions):
            add[(position >> 56) + 128](i)
        order = array('I' if len(self) < 1 << 32 else 'Q')
        for part in parts:
            part.sort(key=self.positions.__getitem__)
            order.extend(part)
        self._sorted = array('q', map(self.positions.__getitem__, order))
        self._order = order

    def same_objects(self, objects: Sequence[Any]) -> bool:
        """Whether these are the very objects, and not equal ones."""
        return all(map(operator.is_, self.objects, objects))

    def pick(self, objects: Sequence[Any], ring: ring_.Ring,
             member: str) -> list[Any]:
        """Like :meth:`subset`, out of other objects with the same ids."""
        return list(map(
            objects.__getitem__, self._of(ring, member).indexes))

    def subset(self, ring: ring_.Ring, member: str) -> list[Any]:
        """The objects of *member* on *ring*, in the order they were given.

        Asked again for the same ring and member it only copies its answer.
        """
        mine = self._of(ring, member)
        if mine.objects is None:
            mine.objects = list(map(self.objects.__getitem__, mine.indexes))
        return mine.objects.copy()

    def placed_ids(self, ring: ring_.Ring, member: str) -> list[str]:
        """The ids of *member*'s objects on *ring*, by their places on it."""
        self.index()
        return list(map(self.ids.__getitem__, self._cut(ring.arcs(member))))

    def by_phase(self, period_us: int) -> 'tuple[array[int], array[int]]':
        """Each object's own phase in a period, in order of phase.

        :returns: phases in microseconds, and the index of each's object.
        """
        known = self._phases
        if known is None or known[0] != period_us:
            placed = sorted(
                (schedule.phase_us(position, period_us), i)
                for i, position in enumerate(self.positions))
            known = self._phases = (
                period_us, array('q', (phase for phase, _ in placed)),
                array('q', (i for _, i in placed)))
        return known[1], known[2]

    def between(self, low: int, high: int) -> 'array[int]':
        """The indexes of the objects at positions from *low* to *high*."""
        self.index()
        return self._cut([ring_.Arc(low, high)])

    def indexes(self, ids: Iterable[str]) -> list[int]:
        """The indexes of those of these objects that it lists."""
        return [index for key in ids
                for index in self.between(*[ring_.position_of(key)] * 2)
                if self.ids[index] == key]

    def pieces(self, arc: ring_.Arc, most: int) -> Iterator[ring_.Arc]:
        """*arc* in pieces with *most* objects each, or a few more where some
        have one position.
        """
        self.index()
        placed = self._sorted
        assert placed is not None
        low, high = arc
        at = bisect.bisect_left(placed, low) + most
        end = bisect.bisect_right(placed, high)
        while at < end:
            last = placed[at - 1]
            if last >= low:
                yield ring_.Arc(low, last)
                low = last + 1
            at += most
        if low <= high:
            yield ring_.Arc(low, high)

    def _of(self, ring: ring_.Ring, member: str) -> '_Mine':
        mine = self._mine
        if mine is None or mine.ring is not ring or mine.member != member:
            if self._order is None:
                indexes = list(itertools.compress(
                    range(len(self)), ring.owned(member, self.positions)))
                mine = _Mine(ring, member, indexes)
            elif mine is None or mine.member != member:
                mine = self._cut_anew(ring, member)
            else:
                mine = self._moved(mine, ring)
            self._mine = mine
        return mine

    def _cut_anew(self, ring: ring_.Ring, member: str) -> '_Mine':
        return _Mine(ring, member, sorted(self._cut(ring.arcs(member))))

    def _moved(self, old: '_Mine', ring: ring_.Ring) -> '_Mine':
        """The answer for *ring*, from that for another one.

        One join or leave among many moves few objects of a member or none,
        and to sort all of them again would cost more than all the rest.
        """
        before, after = old.ring.arcs(old.member), ring.arcs(old.member)
        lost = set(self._cut(set(before) - set(after)))
        won = set(self._cut(set(after) - set(before)))
        if len(lost ^ won) > len(old.indexes) // 8:
            return self._cut_anew(ring, old.member)
        mine = _Mine(ring, old.member, old.indexes.copy())
        if old.objects is not None:
            mine.objects = old.objects.copy()
        for index in lost - won:
            at = bisect.bisect_left(mine.indexes, index)
            del mine.indexes[at]
            if mine.objects is not None:
                del mine.objects[at]
        for index in won - lost:
            at = bisect.bisect_left(mine.indexes, index)
            mine.indexes.insert(at, index)
            if mine.objects is not None:
                mine.objects.insert(at, self.objects[index])
        return mine

    def _cut(self, arcs: Iterable[ring_.Arc]) -> 'array[int]':
        """The indexes of the objects on these *arcs*."""
        order, placed = self._order, self._sorted
        assert order is not None and placed is not None
        found = array(order.typecode)
        for low, high in arcs:
            found += order[bisect.bisect_left(placed, low):
                           bisect.bisect_right(placed, high)]
        return found


class Reading(NamedTuple):
    """What a catalogue method gave."""

    catalogue: Catalogue
    #: Objects that carry their own schedule, by id.
    schedules: Mapping[str, schedule.Schedule]
    #: Whether it holds the objects of the arcs that were asked for and no
    #: others.
    partial: bool = False


class Catalogues:
    """The last few lists that somebody asked about, to know them again.

    A list is known again by its ids, compared one by one: 10 ms for a
    million, and no way to be wrong about a list that was changed in place.
    """

    def __init__(self, keep: int = 4):
        self._keep = keep
        self._recent: list[Catalogue] = []

    def of(self, objects: Sequence[Any]) -> Catalogue:
        """The catalogue of *objects*: the one known, or a new one."""
        # Equal lists answer by identity of their items in 5 ms a million;
        # for objects the ids decide, since an object may have changed its.
        listed = objects if isinstance(objects, list) else list(objects)
        for catalogue in self._recent:
            if len(catalogue) == len(listed) and (
                    catalogue.ids == listed
                    if catalogue.ids is catalogue.objects
                    else catalogue.ids == ids_of(listed)):
                return catalogue
        catalogue = Catalogue(listed)
        self._recent.insert(0, catalogue)
        del self._recent[self._keep:]
        return catalogue
