# SPDX-License-Identifier: Apache-2.0
"""The ring: it places objects as the classic code does, all members agree on
it, and a change moves as few objects as possible. The classic code is that of
Sahara's module ``coordinator.py``, which several services have copied.
"""

import bisect
import hashlib
import uuid
from array import array

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.core import member
from distperiodic.core import ring

NAMES = st.text('abcdefgh0123456789.-', min_size=1, max_size=8).map(
    lambda name: 'm' + name)
POINTS = st.integers(1, 20)
MEMBERS = st.dictionaries(NAMES, POINTS, min_size=1, max_size=8)
IDS = st.one_of(st.text(max_size=40), st.integers().map(str),
                st.uuids().map(str))
POSITIONS = st.integers(ring.MIN_POSITION, ring.MAX_POSITION)
SOME_IDS = [str(uuid.UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835
                          & (1 << 128) - 1)) for n in range(4000)]


def digest(text):
    return int(hashlib.md5(text.encode()).hexdigest(), 16)  # noqa: S324


class Classic:
    """A copy of the placement code of the classic hash ring."""

    def __init__(self, members):
        self.owners = {
            digest(f'{name}:{r}'): name
            for name, points in members.items() for r in range(points)}
        self.keys = sorted(self.owners)

    def owner_of(self, id_):
        at = bisect.bisect_right(self.keys, digest(str(id_)))
        return self.owners[self.keys[at if at < len(self.keys) else 0]]


# Placement.

@given(MEMBERS, st.lists(IDS, min_size=1, max_size=50))
def test_an_object_has_the_owner_that_the_classic_code_gives_it(
        members, ids):
    ours, classic = ring.Ring(members), Classic(members)

    assert list(map(ours.owner_of, ids)) == list(map(classic.owner_of, ids))


def test_the_classic_owner_is_kept_at_a_hundred_members_of_40_points():
    members = {f'api-{n}': 40 for n in range(100)}
    ours, classic = ring.Ring(members), Classic(members)

    assert len(ours) == 4000
    assert list(map(ours.owner_of, SOME_IDS)) == list(
        map(classic.owner_of, SOME_IDS))


@pytest.mark.parametrize(('id_', 'position'), [
    # The first 8 bytes of md5(id) as a signed number, from md5sum.
    ('', 0xd41d8cd98f00b204 - 2**64),
    ('1', 0xc4ca4238a0b92382 - 2**64),
    ('192.168.10.1', 0x1bac027cf67efcc4),
    ('ü', 0xc03410a5204b21cd - 2**64),
])
def test_the_place_of_an_object_never_changes_with_a_release(id_, position):
    """The databases of services contain positions."""
    assert ring.position_of(id_) == position


@given(st.lists(IDS, max_size=50))
def test_many_ids_are_placed_as_each_of_them(ids):
    assert list(ring.positions_of(ids)) == list(map(ring.position_of, ids))


def test_more_ids_than_are_hashed_at_a_time_are_placed_in_order():
    ids = [str(n) for n in range(70_000)]

    positions = ring.positions_of(ids)

    assert len(positions) == 70_000
    for n in (0, 65_535, 65_536, 69_999):
        assert positions[n] == ring.position_of(ids[n])


@given(MEMBERS, st.data())
def test_the_owner_is_the_next_point_to_the_right_and_not_one_met(
        members, data):
    one = ring.Ring(members)
    name = data.draw(st.sampled_from(sorted(members)))
    point = data.draw(st.sampled_from(list(
        ring.points_of(name, members[name]))))
    before = point - 1 if point > ring.MIN_POSITION else point

    assert one.owner_at(before) == name
    assert one.owner_at(point) == next(
        owner for place, owner in one.succession(point))
    if len(one) > 1:
        assert next(one.succession(point))[0] != point


def test_beyond_the_last_point_comes_the_first():
    members = {'a': 3, 'b': 2}
    one = ring.Ring(members)
    first = min((p, name) for name, n in members.items()
                for p in ring.points_of(name, n))

    assert one.owner_at(ring.MAX_POSITION) == first[1]
    assert one.owner_at(ring.MIN_POSITION) == first[1]


def test_a_ring_without_members_owns_nothing_and_raises_an_error():
    empty = ring.Ring({})

    with pytest.raises(LookupError, match='no members'):
        empty.owner_of('1')
    assert empty.arcs('a') == ()
    assert empty.share('a') == 0
    assert list(empty.succession(0)) == []


# Agreement.

@given(MEMBERS, st.randoms())
def test_the_order_in_which_members_are_listed_does_not_matter(
        members, random):
    listed = list(members.items())
    random.shuffle(listed)

    assert owners(ring.Ring(dict(listed))) == owners(ring.Ring(members))


@given(st.lists(MEMBERS, min_size=2, max_size=6))
def test_a_changed_ring_is_equal_to_a_newly_built_one(history):
    """Members agree on the ring, even if they have seen different changes of
    the group.
    """
    changed = ring.Ring(history[0])
    for members in history[1:]:
        changed = changed.changed_to(members)

    assert points(changed) == points(ring.Ring(history[-1]))
    assert changed.members == history[-1]


def test_one_of_many_members_may_be_replaced_by_another():
    many = {f'api-{n}': 5 for n in range(20)}
    others = {**many, 'new': 7}
    del others['api-7']

    changed = ring.Ring(many)
    changed.owner_at(0)

    assert points(changed.changed_to(others)) == points(ring.Ring(others))


def test_a_changed_ring_leaves_the_old_one_as_it_was():
    old = ring.Ring({'a': 5, 'b': 5})
    before = points(old), old.arcs('a')

    old.changed_to({'a': 5, 'c': 7})

    assert (points(old), old.arcs('a')) == before


def test_members_on_the_same_point_are_in_the_same_order_for_all(
        monkeypatch):
    """Members must agree even if the digests of two names collide."""
    monkeypatch.setattr(
        ring, 'md5', lambda point: hashlib.md5(  # noqa: S324
            point.rpartition(b':')[2]))
    built = ring.Ring({'a': 3, 'b': 3, 'c': 3})
    grown = ring.Ring({'b': 3}).changed_to({'b': 3, 'c': 3}).changed_to(
        {'b': 3, 'c': 3, 'a': 3})
    shrunk = ring.Ring({'d': 3, 'a': 3, 'b': 3, 'c': 3}).changed_to(
        {'a': 3, 'b': 3, 'c': 3})

    assert points(built) == points(grown) == points(shrunk)
    covered(built)


@given(st.dictionaries(NAMES, st.sampled_from([40, 80]), min_size=2,
                       max_size=8), st.lists(IDS, min_size=1, max_size=50))
def test_members_configured_differently_agree_on_every_owner(
        configured, ids):
    """Each member publishes its points, and all read the same entries."""
    entries = {member.Member(name, '00c0ffee00c0ffee', 1, n).entry
               for name, n in configured.items()}
    rings = {}
    for name in configured:
        settled, _ = member.resolve_entries(entries)
        rings[name] = ring.Ring(member.ring_members(settled))

    for id_ in ids:
        assert len({one.owner_of(id_) for one in rings.values()}) == 1
        claims = [name for name, one in rings.items()
                  if one.owner_of(id_) == name]
        assert len(claims) == 1


# Movement.

@given(MEMBERS, NAMES, POINTS)
def test_a_member_that_joins_takes_objects_and_none_move_between_the_others(
        members, name, number):
    members = {n: p for n, p in members.items() if n != name}
    if not members:
        members = {'other': 7}
    before = ring.Ring(members)
    after = before.changed_to(members | {name: number})

    for id_ in SOME_IDS[:80]:
        was, now = before.owner_of(id_), after.owner_of(id_)
        assert now in (was, name)


@given(MEMBERS, POINTS, st.data())
def test_a_member_that_changes_its_points_exchanges_objects_with_others_only(
        members, number, data):
    name = data.draw(st.sampled_from(sorted(members)))
    grows = number >= members[name]
    before = ring.Ring(members)
    after = before.changed_to(members | {name: number})

    for id_ in SOME_IDS[:80]:
        was, now = before.owner_of(id_), after.owner_of(id_)
        assert was == now or (now if grows else was) == name


@pytest.mark.parametrize('number', [2, 10, 50])
def test_a_join_moves_about_the_part_of_one_member(number):
    members = {f'api-{n}': 40 for n in range(number)}
    before = ring.Ring(members)
    after = before.changed_to(members | {'one-more': 40})

    moved = sum(before.owner_of(i) != after.owner_of(i) for i in SOME_IDS)
    back = sum(after.owner_of(i) != before.owner_of(i) for i in SOME_IDS)

    assert moved == back
    assert 0.5 < moved / len(SOME_IDS) * (number + 1) < 1.7


def test_twice_the_points_own_about_twice_the_objects():
    one = ring.Ring({'light': 200, 'heavy': 400})

    assert one.share('heavy') == pytest.approx(2 / 3, abs=0.07)
    assert one.share('light') + one.share('heavy') == pytest.approx(1)


def test_the_next_member_in_the_succession_takes_over_when_the_owner_leaves():
    members = {f'api-{n}': 40 for n in range(6)}
    one = ring.Ring(members)
    for id_ in SOME_IDS[:200]:
        order = [name for _, name in one.succession(ring.position_of(id_))]
        assert sorted(order) == sorted(members)
        assert order[0] == one.owner_of(id_)
        rest = {n: p for n, p in members.items() if n != order[0]}
        assert one.changed_to(rest).owner_of(id_) == order[1]


# Arcs.

@given(MEMBERS)
def test_the_arcs_of_all_members_cover_every_position_once(members):
    covered(ring.Ring(members))


ARCS = st.lists(st.integers(0, 60), max_size=20, unique=True).map(
    lambda ends: [ring.Arc(*pair) for pair in zip(
        sorted(ends)[::2], sorted(ends)[1::2], strict=False)])


@given(ARCS, ARCS)
def test_the_difference_of_arcs_has_the_positions_of_the_first_only(
        arcs, others):
    def positions(some):
        return {at for low, high in some for at in range(low, high + 1)}

    left = ring.minus(arcs, others)

    assert positions(left) == positions(arcs) - positions(others)
    assert all(low <= high for low, high in left)
    assert all(one.high < other.low for one, other in zip(
        left, left[1:], strict=False))


@given(MEMBERS, st.lists(POSITIONS, min_size=1, max_size=30))
def test_a_position_is_only_in_an_arc_of_its_owner(members, positions):
    one = ring.Ring(members)
    for name in members:
        for position in positions:
            inside = any(low <= position <= high
                         for low, high in one.arcs(name))
            assert inside is (one.owner_at(position) == name)


@given(MEMBERS)
def test_an_arc_ends_at_the_edge_of_its_owner(members):
    one = ring.Ring(members)
    for name in members:
        arcs = one.arcs(name)
        assert arcs == tuple(sorted(arcs))
        for low, high in arcs:
            assert one.owner_at(low) == one.owner_at(high) == name
            if len(members) > 1:
                assert (low == ring.MIN_POSITION
                        or one.owner_at(low - 1) != name)
                assert (high == ring.MAX_POSITION
                        or one.owner_at(high + 1) != name)


def test_a_member_alone_has_one_arc_and_all_of_it():
    one = ring.Ring({'a': 40})

    assert one.arcs('a') == (
        ring.Arc(ring.MIN_POSITION, ring.MAX_POSITION),)
    assert one.share('a') == 1


def test_points_on_the_last_and_the_first_position_leave_no_gap(
        monkeypatch):
    places = {b'a:0': ring.MIN_POSITION, b'a:1': 0,
              b'b:0': ring.MAX_POSITION, b'b:1': 17}
    monkeypatch.setattr(ring, 'md5', lambda point: Digest(places[point]))

    one = ring.Ring({'a': 2, 'b': 2})

    covered(one)
    assert one.owner_at(ring.MAX_POSITION) == 'a'
    assert one.owner_at(ring.MIN_POSITION) == 'a'
    assert one.owner_at(0) == 'b'
    assert one.owner_at(17) == 'b'


@settings(max_examples=25)
@given(MEMBERS, st.lists(POSITIONS, max_size=60))
def test_many_positions_are_judged_as_each_of_them(members, positions):
    one = ring.Ring(members)
    edges = [edge for name in members for arc in one.arcs(name)[:4]
             for edge in arc]
    asked = array('q', positions + edges)
    name = min(members)
    assert list(one.owned(name, asked)) == [
        one.owner_at(p) == name for p in asked]


def test_a_member_that_is_not_on_the_ring_owns_nothing():
    one = ring.Ring({'a': 40})

    assert one.arcs('stranger') == ()
    assert list(one.owned('stranger', array('q', [0, 1]))) == [0, 0]


class Digest:
    """A replacement for md5 objects that returns a given position."""

    def __init__(self, position):
        self.position = position

    def digest(self):
        return self.position.to_bytes(8, 'big', signed=True) + bytes(8)


def points(one):
    return one.members, {name: one.arcs(name) for name in one.members}


def owners(one):
    return list(map(one.owner_of, SOME_IDS[:200]))


def covered(one):
    """Assert that the arcs of all members cover the ring without a gap."""
    arcs = sorted(arc for name in one.members for arc in one.arcs(name))
    assert arcs[0].low == ring.MIN_POSITION
    assert arcs[-1].high == ring.MAX_POSITION
    for left, right in zip(arcs, arcs[1:], strict=False):
        assert left.high + 1 == right.low
