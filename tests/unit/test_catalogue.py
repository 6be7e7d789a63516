# SPDX-License-Identifier: Apache-2.0
"""The objects of one job: their order, their ids, and repeated listings."""

import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperiodic import exceptions
from distperiodic.core import catalogue
from distperiodic.core import ring
from distperiodic.core import schedule

RING = ring.Ring({f'api-{n}': 40 for n in range(5)})
OTHER = RING.changed_to({**RING.members, 'api-5': 40})
ME = 'api-2'


class Node:
    """An object like those of a service."""

    def __init__(self, id_):
        self.id = id_

    def __repr__(self):
        return f'Node({self.id!r})'


class Boom:
    @property
    def id(self):
        raise RuntimeError('the database is gone')


KEYS = st.one_of(st.text(
    st.characters(exclude_characters='\0', exclude_categories=['Cs']),
    min_size=1, max_size=20), st.integers())
OBJECTS = st.lists(st.one_of(KEYS, KEYS.map(Node), st.uuids().map(Node)),
                   max_size=60)


def of_member(objects, one=RING, name=ME):
    """Compute the owner of each object: slow, but simple."""
    return [o for o in objects if one.owner_of(catalogue.id_of(o)) == name]


def nodes(number):
    return [Node(f'node-{n}') for n in range(number)]


# Ids.

@pytest.mark.parametrize(('obj', 'id_'), [
    ('a', 'a'), (7, '7'), (-7, '-7'), (0, '0'), (Node('n'), 'n'),
    (Node(7), '7'), (Node(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    ('ü\n%;--', 'ü\n%;--'), ('x' * 255, 'x' * 255)], ids=repr)
def test_an_object_is_known_by_its_id_as_text(obj, id_):
    assert catalogue.id_of(obj) == id_
    assert catalogue.ids_of([obj]) == [id_]


@pytest.mark.parametrize(('obj', 'why'), [
    (object(), 'has no id'), (None, 'has no id'), (Node(None), 'has no id'),
    ({'id': 'a'}, 'has no id'), (1.5, 'has no id'), (True, 'has no id'),
    (Node(False), 'has no id'), (b'a', 'has no id'),
    (Node(b'a'), 'is bytes'), ('', 'has 0 characters'),
    (Node(''), 'has 0 characters'), ('x' * 1025, 'has 1025 characters'),
    (10 ** 300, 'has 301 characters'),
    ('\ud800', 'not valid Unicode'), (Node('a\udfff'), 'not valid Unicode'),
], ids=lambda one: one if type(one) is str else type(one).__name__)
@pytest.mark.parametrize('among', [[], ['a', 'b'], [1, 2], [Node('a')]],
                         ids=['alone', 'texts', 'ints', 'objects'])
def test_an_object_without_a_usable_id_is_named_with_the_reason(
        obj, why, among):
    with pytest.raises(exceptions.InvalidObject, match=why) as told:
        catalogue.Catalogue([*among, obj, *among])

    assert len(str(told.value)) < 400


def test_an_id_that_fails_to_be_read_is_not_taken_for_a_missing_one():
    with pytest.raises(RuntimeError, match='the database is gone'):
        catalogue.Catalogue([Node('a'), Boom()])


@given(OBJECTS)
def test_many_ids_are_read_as_each_of_them(objects):
    assert catalogue.ids_of(objects) == list(map(catalogue.id_of, objects))


# Subsets.

@given(OBJECTS, st.booleans())
def test_a_members_objects_are_those_the_ring_gives_it_in_their_order(
        objects, indexed):
    held = catalogue.Catalogue(objects)
    if indexed:
        held.index()

    found = held.subset(RING, ME)

    assert list(map(id, found)) == list(map(id, of_member(objects)))


@given(OBJECTS, st.booleans())
def test_the_ids_of_a_member_come_by_their_places_on_the_ring(
        objects, indexed):
    held = catalogue.Catalogue(objects)
    if indexed:
        held.index()

    found = held.placed_ids(RING, ME)

    assert sorted(found) == sorted(
        map(catalogue.id_of, of_member(objects)))
    places = [ring.position_of(key) for key in found]
    assert places == sorted(places)


@pytest.mark.parametrize('indexed', [False, True])
def test_every_object_is_exactly_one_members(indexed):
    objects = nodes(500)
    held = catalogue.Catalogue(objects)
    if indexed:
        held.index()

    parts = [held.subset(RING, name) for name in RING.members]

    assert sorted(o.id for part in parts for o in part) == sorted(
        o.id for o in objects)


@pytest.mark.parametrize('indexed', [False, True])
def test_a_changed_ring_gives_another_answer(indexed):
    objects = nodes(500)
    held = catalogue.Catalogue(objects)
    if indexed:
        held.index()

    before = held.subset(RING, ME)
    after = held.subset(OTHER, ME)

    assert before == of_member(objects)
    assert after == of_member(objects, OTHER) != before
    assert held.subset(RING, ME) == before


def many(*names):
    """A ring so large that one more member moves only few objects."""
    return ring.Ring(dict.fromkeys(
        [*(f'api-{n}' for n in range(20)), *names], 40))


@pytest.mark.parametrize(('before', 'after'), [
    (many(), many('more')), (many('more'), many()),
    (many('more'), many('other'))],
    ids=['one comes', 'one leaves', 'one takes the place of another'])
def test_where_few_objects_move_the_rest_keep_their_order(before, after):
    objects = nodes(5000)
    held = catalogue.Catalogue(objects)
    held.index()
    first = held.subset(before, 'api-5')

    second = held.subset(after, 'api-5')

    assert second == of_member(objects, after, 'api-5')
    assert first != second
    assert set(held.placed_ids(after, 'api-5')) == {one.id for one in second}


def test_an_answer_is_a_copy_for_its_caller():
    held = catalogue.Catalogue(nodes(100))

    held.subset(RING, ME).clear()

    assert held.subset(RING, ME)


def test_a_catalogue_keeps_its_objects_when_the_list_is_changed():
    objects = nodes(100)
    held = catalogue.Catalogue(objects)
    right = of_member(objects)

    objects.clear()

    assert held.subset(RING, ME) == right


def test_objects_may_be_yielded():
    held = catalogue.Catalogue(Node(n) for n in range(100))

    assert len(held) == 100
    assert [str(one.id) for one in held.subset(RING, ME)] == of_member(
        map(str, range(100)))


def test_a_duplicate_id_is_found_and_named():
    assert catalogue.Catalogue(['a', 'b', 'c']).duplicate is None
    assert catalogue.Catalogue(['a', 'b', 'a', 'b']).duplicate == 'a'
    assert catalogue.Catalogue([1, Node('1')]).duplicate == '1'


@given(OBJECTS)
def test_an_id_that_is_listed_twice_counts_once(objects):
    one = catalogue.Catalogue([*objects, *objects[:3]])
    assert one.distinct == len({catalogue.id_of(obj) for obj in objects})


def test_the_ids_are_hashed_once_and_not_at_each_access(monkeypatch):
    hashed = []

    def counting(ids=()):
        hashed.append(len(ids))
        return set(ids)
    one = catalogue.Catalogue(['a', 'b', 'a'])
    monkeypatch.setattr(catalogue, 'set', counting, raising=False)

    assert [one.distinct for _ in range(3)] == [2, 2, 2]
    assert one.duplicate == 'a'

    assert hashed.count(3) == 1


def test_objects_are_given_their_phases_in_order():
    held = catalogue.Catalogue(nodes(200))

    phases, indexes = held.by_phase(60_000_000)

    assert list(phases) == sorted(phases)
    assert sorted(indexes) == list(range(200))
    for phase, index in zip(phases, indexes, strict=True):
        assert phase == schedule.phase_us(held.positions[index], 60_000_000)


def test_another_period_gives_other_phases():
    held = catalogue.Catalogue(nodes(200))
    of_a_minute, _ = held.by_phase(60_000_000)

    of_a_second, _ = held.by_phase(1_000_000)

    assert max(of_a_second) < 1_000_000 < max(of_a_minute)


# Lists that equal an earlier list.

def by_id(number):
    return [f'node-{n}' for n in range(number)]


@pytest.mark.parametrize('make', [by_id, nodes, lambda n: list(range(n))],
                         ids=['texts', 'objects', 'ints'])
@pytest.mark.parametrize('kind', [list, tuple])
def test_an_unchanged_list_is_known_again(make, kind):
    known = catalogue.Catalogues()
    objects = kind(make(50))

    first = known.of(objects)

    assert known.of(objects) is first
    assert known.of(kind(make(50))) is first, 'read again, with the same ids'


@pytest.mark.parametrize('make', [by_id, nodes], ids=['texts', 'objects'])
@pytest.mark.parametrize('change', [
    lambda held: held.append(type(held[0])('new')),
    lambda held: held.pop(),
    lambda held: held.pop(0),
    lambda held: held.reverse(),
    lambda held: held.__setitem__(25, type(held[0])('new')),
    lambda held: held.insert(25, held.pop()),
], ids=['longer', 'shorter', 'begins later', 'reversed', 'one replaced',
        'one moved'])
def test_a_list_that_was_changed_in_place_is_another_one(make, change):
    known = catalogue.Catalogues()
    objects = make(50)
    first = known.of(objects)

    change(objects)
    second = known.of(objects)

    assert second is not first
    assert second.ids == list(map(catalogue.id_of, objects))


def test_an_object_that_got_another_id_makes_it_another_list():
    known = catalogue.Catalogues()
    objects = nodes(50)
    first = known.of(objects)

    objects[17].id = 'renamed'

    assert known.of(objects) is not first
    assert known.of(objects).ids[17] == 'renamed'


def test_a_few_lists_are_known_at_a_time_and_not_any_number():
    known = catalogue.Catalogues(keep=2)
    lists = [[f'{letter}{n}' for n in range(5)] for letter in 'abc']
    found = [known.of(one) for one in lists]

    assert known.of(lists[2]) is found[2]
    assert known.of(lists[1]) is found[1]
    assert known.of(lists[0]) is not found[0]


def test_other_objects_with_known_ids_are_given_back_themselves():
    held = catalogue.Catalogue(nodes(100))
    anew = nodes(100)

    assert not held.same_objects(anew)
    assert held.same_objects(held.objects)
    assert held.pick(anew, RING, ME) == of_member(anew)


# Large catalogues.

MILLION = '''
import resource, sys
from distperiodic.core import catalogue, ring

def resident():
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

ids = [f'{n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}'
       for n in range(1_000_000)]
one = ring.Ring({f'api-{n}': 40 for n in range(100)})
before = resident()
held = catalogue.Catalogue(ids)
held.index()
mine = held.subset(one, 'api-17')
after = resident()
assert mine == [i for i in mine if one.owner_of(i) == 'api-17']
assert 5_000 < len(mine) < 16_000
print(after - before)
'''


@pytest.mark.full
def test_a_million_objects_are_held_in_250_megabytes(record_property):
    """The limit excludes the objects themselves, which the caller keeps."""
    taken = int(subprocess.run(
        [sys.executable, '-c', MILLION], capture_output=True, text=True,
        check=True).stdout)
    record_property('megabytes', round(taken / 1e6))

    assert taken < 250e6


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 9))
def test_the_pieces_of_an_arc_hold_all_of_it_and_few_objects_each(
        numbers, most):
    made = catalogue.Catalogue([str(n) for n in numbers])
    whole = ring.Arc(-2 ** 63, 2 ** 63 - 1)

    pieces = list(made.pieces(whole, most))

    assert [piece.low for piece in pieces] == [
        whole.low, *(piece.high + 1 for piece in pieces[:-1])]
    assert pieces[-1].high == whole.high
    for piece in pieces:
        found = [made.positions[index]
                 for index in made.between(*piece)]
        assert len(set(found)) <= most
