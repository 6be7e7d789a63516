# SPDX-License-Identifier: Apache-2.0
"""A view of a thousand members: its construction, and changes by one member.

The ring of tooz, and the ring of the classic code in ``test_subset.py``, are
measured as well. The ring of tooz places objects differently, but it has the
same number of points. It looks up one object at a time.

    pytest -s -o timeout=0 tests/benchmarks/test_ring.py
"""

import functools

from tooz import hashring

from distperiodic.core import catalogue
from distperiodic.core import member
from distperiodic.core import ring
from tests.benchmarks import measuring
from tests.benchmarks.test_subset import Classic

MEMBERS = 1000
POINTS = 40
LOOKUPS = 10_000


def entries(number):
    """Return the result of one read of a group: its entries."""
    return frozenset(
        member.Member(f'api-{n}', f'{n:016x}', 1, POINTS).entry
        for n in range(number))


def used(one):
    """Return a ring that was used once. The first use places the points."""
    one.owner_at(0)
    return one


def all_arcs(one):
    """Return the arcs of all members. Together they are the whole placement.
    """
    return {name: one.arcs(name) for name in one.members}


def built(listed):
    """Compute the ring from the entries of a group, as a member does."""
    members, _ = member.resolve_entries(listed)
    return used(ring.Ring(member.ring_members(members)))


def changed(old, listed):
    members, _ = member.resolve_entries(listed)
    return used(old.changed_to(member.ring_members(members)))


def test_ring_of_a_thousand():
    few, more = entries(MEMBERS), entries(MEMBERS + 1)
    names = [f'api-{n}' for n in range(MEMBERS)]
    points = dict.fromkeys(names, POINTS)
    grown = points | {'api-1000': POINTS}
    old, new = used(ring.Ring(points)), used(ring.Ring(grown))
    theirs = functools.partial(hashring.HashRing, partitions=POINTS)
    keys = [str(n) for n in range(LOOKUPS)]
    encoded = [k.encode() for k in keys]
    # Use new rings: cached arcs would change the figures below.
    assert all_arcs(old.changed_to(grown)) == all_arcs(ring.Ring(grown))
    assert all_arcs(new.changed_to(points)) == all_arcs(ring.Ring(points))

    def one_node_more():
        peer = theirs(names)
        return lambda: peer.add_node('api-1000')

    def lookups():
        return lambda: list(map(old.owner_of, keys))

    def peer_lookups():
        peer = theirs(names)
        return lambda: [peer.get_nodes(k) for k in encoded]

    def many_lookups():
        return lambda: catalogue.Catalogue(keys).subset(old, 'api-17')

    def first_arcs():
        fresh = used(ring.Ring(points))
        return lambda: fresh.arcs('api-17')

    cases = {
        'build': (lambda: lambda: used(ring.Ring(points)),
                  lambda: lambda: theirs(names)),
        'build, from the entries of the group': (
            lambda: lambda: built(few), None),
        'one join': (
            lambda: lambda: used(old.changed_to(grown)), one_node_more),
        'one join, from the entries of the group': (
            lambda: lambda: changed(old, more), None),
        'one leave': (lambda: lambda: used(new.changed_to(points)), None),
        'arcs of one member': (first_arcs, None),
        f'owner of {LOOKUPS:,} objects': (lookups, peer_lookups),
        f'mine of {LOOKUPS:,} objects': (many_lookups, peer_lookups),
    }
    flat = {('ours', k): v[0] for k, v in cases.items()}
    flat |= {('tooz', k): v[1] for k, v in cases.items() if v[1]}
    classic = Classic(names)
    flat['classic', 'build'] = lambda: classic._build_ring
    flat['classic', 'one join'] = flat['classic', 'build']
    figures = measuring.in_turns(flat)
    with measuring.table(
            f'A ring of {MEMBERS:,} members x {POINTS} points', 'case', 'ms',
            'least-most', 'tooz.hashring ms', 'to tooz', 'classic ms',
            'to classic', file=__file__, versions=('tooz',)) as row:
        for case in cases:
            mine = figures['ours', case]
            cells = []
            for peer in ('tooz', 'classic'):
                other = figures.get((peer, case))
                cells += ['-', '-'] if other is None else [
                    measuring.ms(other.median),
                    measuring.times(other.median / mine.median)]
            row(case, measuring.ms(mine.median), measuring.spread(mine),
                *cells)
