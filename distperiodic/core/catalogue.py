# SPDX-License-Identifier: Apache-2.0
"""Index of the objects of one job, by their positions on the ring.

Each id is hashed once. After :meth:`Catalogue.index` has sorted the objects by
their positions, the objects on one arc are one slice of the sorted list. From
then on, the cost of a change of the ring depends on the number of objects that
the member owns, not on the number of all objects. Results have the order in
which the objects were given, unless a method states another order.

The ids of objects must not change while the objects are in a catalogue. If ids
change, create a new catalogue.
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
from distperiodic.core import schedule
from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.ring import Arc
from distperiodic.core.ring import Ring
from distperiodic.core.ring import position_of
from distperiodic.core.ring import positions_of

#: Maximum length of an id in characters. MySQL limits the length of a key. A
#: longer id is probably a mistake, such as a whole record instead of its id.
MAX_ID_LENGTH = 255
# Number of ids that are joined for one check.
_CHUNK = 10_000


def id_of(obj: Any) -> str:
    """Return the id of an object as text.

    The id is the attribute ``id``, or the object itself if it is a str or int.

    :raises InvalidObject: The object has no id, or an unusable one.
    """
    try:
        key = read_id(obj)
    except AttributeError as exc:
        raise _without_id(obj) from exc
    return usable_id(key, obj)


def read_id(obj: Any) -> Any:
    """Return the value of an object's id, which may be unusable.

    None means that *obj* is a value such as None or a dict, and no object that
    may have had an id before.

    :raises Exception: The attribute ``id`` raised this error.
    :raises AttributeError: The object has no attribute ``id`` now.
    """
    if isinstance(obj, (str, int)):
        return obj
    try:
        return obj.id
    except AttributeError:
        if type(obj).__module__ == 'builtins':
            return None
        raise


def usable_id(key: Any, obj: Any) -> str:
    """Return the id *key* of *obj* as text.

    :raises InvalidObject: The id cannot be used.
    """
    if isinstance(key, bool) or key is None:
        raise _without_id(obj)
    if isinstance(key, (bytes, bytearray)):
        raise exceptions.InvalidObject(
            f'the id of {_shown(obj)} is bytes, but an id must be text; '
            'decode it')
    text = str(key)
    if not text or len(text) > MAX_ID_LENGTH:
        raise exceptions.InvalidObject(
            f'the id of {_shown(obj)} has {len(text)} characters; an id has '
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


def _without_id(obj: Any) -> exceptions.InvalidObject:
    return exceptions.InvalidObject(
        f'{_shown(obj)} has no id; give the object an attribute .id, or '
        'yield str or int')


def _shown(obj: Any) -> str:
    """Return at most 200 characters that show *obj* in an error message."""
    try:
        return f'{obj!r:.200}'
    except Exception:
        # For example an object whose attributes need a closed session.
        return object.__repr__(obj)[:200]


def ids_of(objects: Sequence[Any]) -> list[str]:
    """Return the ids of many objects, in their order; see :func:`id_of`."""
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
            # The usual case: all objects have an id that is a str. Read the
            # ids in one pass in C.
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
    """Cached result: the objects of one member on one ring."""

    __slots__ = ('ring', 'member', 'indexes', 'objects')

    def __init__(self, ring: Ring, member: str, indexes: list[int]):
        self.ring = ring
        self.member = member
        self.indexes = indexes
        self.objects: list[Any] | None = None


class Catalogue:
    """Objects with their ids and their positions on the ring.

    :param objects: Objects with an ``.id``, or str or int. Iterated once.
    :raises InvalidObject: An object has no usable id.
    """

    __slots__ = ('objects', 'ids', 'positions', '_distinct',
                 '_order', '_sorted', '_mine', '_phases')

    def __init__(self, objects: Iterable[Any]):
        #: Copy of the given list, because the caller may change that list.
        self.objects: list[Any] = list(objects)
        self.ids = ids_of(self.objects)
        if self.ids == self.objects:
            self.ids = self.objects
        try:
            self.positions = positions_of(self.ids)
        except UnicodeEncodeError:
            for obj in self.objects:
                id_of(obj)
            raise
        self._distinct: int | None = None
        self._order: array[int] | None = None
        self._sorted: array[int] | None = None
        self._mine: _Mine | None = None
        self._phases: tuple[int, array[int], array[int]] | None = None

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def distinct(self) -> int:
        """Number of different ids.

        The first access counts the ids. For many ids, this takes long.
        """
        if self._distinct is None:
            self._distinct = len(set(self.ids))
        return self._distinct

    @property
    def duplicate(self) -> str | None:
        """An id that occurs more than once.

        None means that all ids are different.
        """
        seen: set[str] = set()
        if self.distinct == len(self.ids):
            return None
        for key in self.ids:
            if key in seen:
                return key
            seen.add(key)
        return None

    def index(self) -> None:
        """Sort the objects by position now.

        Otherwise the first method that needs this order sorts them. The
        objects are sorted in 256 parts. A single sort of a million objects
        would block the other threads of the interpreter for a second.
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
        """Return whether *objects* are the same instances, in this order."""
        return all(map(operator.is_, self.objects, objects))

    def pick(self, objects: Sequence[Any], ring: Ring,
             member: str) -> list[Any]:
        """Return those of *objects* that *member* owns on *ring*.

        :param objects: Objects with the same ids as this catalogue, in the
            same order.
        """
        return list(map(
            objects.__getitem__, self._of(ring, member).indexes))

    def subset(self, ring: Ring, member: str) -> list[Any]:
        """Return the objects of *member* on *ring*, in their given order.

        A repeated call with the same ring and member copies a cached list.
        """
        mine = self._of(ring, member)
        if mine.objects is None:
            mine.objects = list(map(self.objects.__getitem__, mine.indexes))
        return mine.objects.copy()

    def placed_ids(self, ring: Ring, member: str) -> list[str]:
        """Return the ids of the objects that *member* owns on *ring*.

        The ids are in the order of their positions.
        """
        self.index()
        return list(map(self.ids.__getitem__, self._cut(ring.arcs(member))))

    def by_phase(self, period_us: int) -> 'tuple[array[int], array[int]]':
        """Return the phases of all objects in a period, in ascending order.

        :returns: The phases in microseconds, and the index of the object for
            each phase.
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
        """Return the indexes of the objects from position *low* to *high*.

        The indexes are in the order of the positions.
        """
        self.index()
        return self._cut([Arc(low, high)])

    def indexes(self, ids: Iterable[str]) -> list[int]:
        """Return the indexes of the objects with these *ids*.

        Ids that the catalogue does not list are ignored.
        """
        return [index for key in ids
                for index in self.between(*[position_of(key)] * 2)
                if self.ids[index] == key]

    def pieces(self, arc: Arc, most: int) -> Iterator[Arc]:
        """Split *arc* into pieces with at most *most* objects each.

        A piece has more objects if several objects share its last position.
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
                yield Arc(low, last)
                low = last + 1
            at += most
        if low <= high:
            yield Arc(low, high)

    def _of(self, ring: Ring, member: str) -> '_Mine':
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

    def _cut_anew(self, ring: Ring, member: str) -> '_Mine':
        return _Mine(ring, member, sorted(self._cut(ring.arcs(member))))

    def _moved(self, old: '_Mine', ring: Ring) -> '_Mine':
        """Derive the result for *ring* from the result for the old ring.

        If one of many members joins or leaves, each of the other members gains
        or loses few objects. It is faster to insert and delete these objects
        than to sort all objects of the member again.
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

    def _cut(self, arcs: Iterable[Arc]) -> 'array[int]':
        """Return the indexes of the objects on these *arcs*."""
        order, placed = self._order, self._sorted
        assert order is not None and placed is not None
        found = array(order.typecode)
        for low, high in arcs:
            found += order[bisect.bisect_left(placed, low):
                           bisect.bisect_right(placed, high)]
        return found


class Reading(NamedTuple):
    """Result of a catalogue method."""

    catalogue: Catalogue
    #: Attributes of the objects that have attributes of their own, by id.
    attributes: Mapping[str, Attributes]
    #: True if the result contains only the objects on the requested arcs.
    partial: bool = False

    def attributes_of(self, key: str) -> Attributes:
        return self.attributes.get(key, PLAIN)

    def changed(self, before: 'Reading', ids: Iterable[str]) -> set[str]:
        """Return those of *ids* whose attributes differ in two readings."""
        if not (before.attributes or self.attributes):
            return set()
        return {key for key in ids
                if before.attributes.get(key) != self.attributes.get(key)}


class Catalogues:
    """Cache of the catalogues of the last few lists.

    A look-up compares all ids, which takes 10 ms for a million ids. The result
    is correct even if the caller has changed the list in place.
    """

    def __init__(self, keep: int = 4):
        self._keep = keep
        self._recent: list[Catalogue] = []

    def of(self, objects: Sequence[Any]) -> Catalogue:
        """Return the catalogue of *objects*, from the cache or a new one."""
        # If the items are their own ids, compare the lists directly, which
        # takes 5 ms for a million items. For other objects compare the ids,
        # because the id of an object may have changed.
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
