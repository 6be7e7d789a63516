# SPDX-License-Identifier: Apache-2.0
"""One member's objects out of a million, compared with the classic code.

The classic code is what many services contain today. At every call it builds
the ring in a dict. Then, for each object, it computes an md5 hexdigest and
does one bisection. The code is copied here unchanged, except that it does not
read the members from the coordination service: both programs receive the
members as an argument.

    pytest -s -o timeout=0 tests/benchmarks/test_subset.py
"""

import bisect
import hashlib
import resource
import sys
import uuid

from distperiodic import coordinator
from distperiodic.core import catalogue
from distperiodic.core import member
from distperiodic.core import ring
from tests.benchmarks import measuring

OBJECTS = 1_000_000
MEMBERS = [f'api-{n}' for n in range(100)]
POINTS = 40
ME = 'api-17'


class Node:
    """An object as a service represents it."""

    __slots__ = ('id',)

    def __init__(self, id_):
        self.id = id_


class Classic:
    """The ring of the classic code."""

    def __init__(self, members):
        self.members = members

    @staticmethod
    def _hash(key):
        return int(
            hashlib.md5(str(key).encode()).hexdigest(), 16)  # noqa: S324

    def _build_ring(self):
        placed = {}
        for name in self.members:
            for r in range(POINTS):
                placed[self._hash(f'{name}:{r}')] = name
        return placed, sorted(placed)

    def _check_object(self, id_, placed, keys):
        position = bisect.bisect(keys, self._hash(id_))
        position = position if position < len(keys) else 0
        return placed[keys[position]] == ME

    def get_subset(self, objects):
        placed, keys = self._build_ring()
        return [o for o in objects
                if self._check_object(o.id, placed, keys)]

    def get_subset_of_ids(self, ids):
        placed, keys = self._build_ring()
        return [i for i in ids if self._check_object(i, placed, keys)]


class Known(coordinator.HashRing):
    """A HashRing with given members."""

    def __init__(self, members):
        super().__init__('file:///not-used', 'benchmark', member_id=ME)
        self.tell(members)

    def tell(self, members):
        me = member.Member(ME, '0' * 16, 1, POINTS)
        self._told = member.View(
            'benchmark', (me,), ring.Ring(dict.fromkeys(members, POINTS)),
            version=1, since=0.0, me=me, trusted_until=float('inf'))

    def ring_view(self):
        return self._told


def ids():
    return [str(uuid.UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835
                          & (1 << 128) - 1)) for n in range(OBJECTS)]


def test_subset_of_a_million():
    names = ids()
    with measuring.table(
            f'{OBJECTS:,} objects, {len(MEMBERS)} members x {POINTS} points: '
            'one member\'s part', 'case', 'str ids ms', 'least-most',
            'to classic', 'with .id ms', 'least-most', 'to classic',
            file=__file__) as row:
        by_kind = [cases_of(names, Classic(MEMBERS).get_subset_of_ids)]
        nodes = list(map(Node, names))
        by_kind.append(cases_of(nodes, Classic(MEMBERS).get_subset))
        for case in by_kind[0]:
            cells = []
            for figures in by_kind:
                figure = figures[case]
                cells += [measuring.ms(figure.median),
                          measuring.spread(figure),
                          measuring.times(figures['classic, each call'].median
                                          / figure.median)]
            row(case, *cells)


def cases_of(objects, classic):
    """Check that the results of all cases agree. Return the seconds of each
    case.
    """
    grown = [*MEMBERS, 'api-100']
    first, others = Known(MEMBERS), Known(MEMBERS)
    right = classic(objects)
    assert first.get_subset(objects) == right
    assert others.get_subset(objects) == right
    held = catalogue.Catalogue(objects)
    held.index()
    known = Known(MEMBERS)
    assert known.get_subset(held) == right
    turn = 0

    def ours_first():
        hash_ring = Known(MEMBERS)
        return lambda: hash_ring.get_subset(objects)

    def ours_again():
        return lambda: others.get_subset(objects)

    def ours_copied():
        # A service reads a new copy of its list from its database each time.
        anew = [type(o)(o.id) for o in objects] if isinstance(
            objects[0], Node) else [''.join([o]) for o in objects]
        return lambda: others.get_subset(anew)

    def ours_after_a_join():
        nonlocal turn
        turn += 1
        others.tell(grown if turn % 2 else MEMBERS)
        return lambda: others.get_subset(objects)

    def held_after_a_join():
        nonlocal turn
        turn += 1
        known.tell(grown if turn % 2 else MEMBERS)
        return lambda: known.get_subset(held)

    def held_again():
        known.get_subset(held)
        return lambda: known.get_subset(held)

    def make_catalogue():
        return lambda: catalogue.Catalogue(objects).index()

    figures = measuring.in_turns({
        'classic, each call': lambda: lambda: classic(objects),
        'get_subset(list), first call': ours_first,
        'get_subset(list), same list again': ours_again,
        'get_subset(list), equal list read anew': ours_copied,
        'get_subset(list), same list, ring changed': ours_after_a_join,
        'Catalogue(list).index(), once': make_catalogue,
        'get_subset(catalogue), ring changed': held_after_a_join,
        'get_subset(catalogue), again': held_again,
    })
    others.tell(MEMBERS)
    known.tell(MEMBERS)
    assert others.get_subset(objects) == known.get_subset(held) == right
    return figures


def resident():
    """Return the resident memory of this process in bytes."""
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def measure_memory(kind, answers):
    names = ids()
    objects = names if kind == 'str ids' else list(map(Node, names))
    del names
    before = resident()
    held = catalogue.Catalogue(objects)
    made = resident()
    held.index()
    indexed = resident()
    held.subset(ring.Ring(dict.fromkeys(MEMBERS, POINTS)), ME)
    answers.put((before, made, indexed, resident(),
                 resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def test_memory_of_a_million():
    if not sys.platform.startswith('linux'):
        return
    with measuring.table(
            f'Memory of a catalogue of {OBJECTS:,} objects, MB resident',
            'objects', 'they alone', '+ catalogue', '+ index', '+ one part',
            'the catalogue in all', 'peak of the process',
            file=__file__) as row:
        for kind in ('str ids', 'objects with .id'):
            answers = measuring.SPAWN.SimpleQueue()
            process = measuring.SPAWN.Process(
                target=measure_memory, args=(kind, answers))
            process.start()
            before, made, indexed, asked, peak = answers.get()
            process.join()
            row(kind, *(f'{n / 1e6:.0f}' for n in (
                before, made - before, indexed - made, asked - indexed,
                asked - before, peak)))
