# SPDX-License-Identifier: Apache-2.0
"""A member's part of a job: its rows, read page by page, and the differences
between the rows and a catalogue.
"""

import pytest

from distperiodic import exceptions
from distperiodic.core import catalogue
from distperiodic.core import ring
from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.due import Row
from distperiodic.core.schedule import SECOND
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.part import Readings
from distperiodic.flow.scheduler.part import Walk
from distperiodic.flow.scheduler.part import compare_listing
from tests.unit.world import Clock
from tests.unit.world import StoreQueue
from tests.unit.world import job

#: A tick of the job, and of objects with half the period.
TICK = 60 * SECOND


class Store:
    """A store that has one row for each position."""

    def __init__(self, positions):
        self._rows = [Row(f'{at}-{n}', at, 0, 0)
                      for n, at in enumerate(sorted(positions))]
        self.fails = False

    def rows(self, job, arc, *, before, limit):
        if self.fails:
            raise exceptions.StoreUnavailable('it is away')
        return [row for row in self._rows
                if arc.low <= row.position <= arc.high][:limit]


def walked(store, *ranges, page):
    """Walk over *ranges*; return the pages, and True if all were read."""
    pages, ends = [], []

    def read():
        walk = Walk(StoreQueue(store), Clock(), 'poll', ranges, before=None,
                    limit=page)
        try:
            while found := (yield from walk.read()):
                pages.append((found.low, found.high,
                              [row.position for row in found.rows]))
        except CallFailed:
            ends.append(False)
        else:
            ends.append(True)
    start(read())
    [end] = ends
    return pages, end


def test_the_row_of_an_open_claim_has_the_time_of_its_request():
    """The answer of the store may be late, and the run may have ended."""
    clock, queue, found = Clock(), StoreQueue(Store([1])), []
    queue.store._rows.append(Row('b', 2, 0, 0, free=False))
    queue.slow = True

    def read():
        walk = Walk(queue, clock, 'poll', [(0, 9)], before=None, limit=5)
        found.append((yield from walk.read()))
    start(read())
    requested = clock.now()
    clock.advance(7)

    queue.answer()

    assert [row.requested for row in found[0].rows] == [None, requested]


@pytest.mark.parametrize('page', [3, 4, 7, 100])
def test_a_walk_reads_each_row_once_in_pages_that_leave_no_gap(page):
    positions = [-9, -5, 0, 1, 1, 4, 7, 8, 20]

    pages, complete = walked(
        Store(positions), ring.Arc(-10, 5), ring.Arc(7, 8), page=page)

    assert complete
    assert [at for _, _, some in pages for at in some] == [
        at for at in positions if at != 20]
    lows = [low for low, _, _ in pages]
    highs = [high for _, high, _ in pages]
    assert lows == [-10, *(7 if high == 5 else high + 1
                           for high in highs[:-1])]
    assert highs[-1] == 8


def test_a_walk_that_the_store_cannot_answer_is_not_complete():
    store = Store([1, 2])
    store.fails = True

    assert walked(store, ring.Arc(0, 9), page=5) == ([], False)


def reading(*ids, **rules):
    return catalogue.Reading(catalogue.Catalogue(ids), {
        key: Attributes(rule) for key, rule in rules.items()})


def compared(read, *rows, at=TICK + 1, of=None):
    return compare_listing(of or job(objects=True), read,
                           range(len(read.catalogue)), rows, at)


def row(key, rule='', settled=TICK):
    return Row(key, ring.position_of(key), settled, 0, Attributes(rule))


def test_rows_that_the_catalogue_lists_agree():
    found = compared(reading('a', 'b'), row('a'), row('b'))

    assert found.same == [row('a'), row('b')]
    assert not (found.listed or found.delisted or found.new)


def test_a_row_that_the_catalogue_does_not_list_is_delisted():
    found = compared(reading('a'), row('a'), row('gone'))

    assert found.delisted == [row('gone')]
    assert found.same == [row('a')]


def test_a_new_object_is_due_for_nothing_that_came_before_it():
    found = compared(reading('new'))

    [listed] = found.listed[TICK + 1,]
    assert (listed.object, listed.attributes) == ('new', PLAIN)
    assert TICK <= listed.settled <= TICK + 1
    assert [one.object for one in found.new] == ['new']


def test_an_object_that_is_listed_at_a_tick_is_due_for_it():
    [listed] = compared(reading('new'), at=TICK).listed[TICK,]

    assert listed.settled < TICK


@pytest.mark.parametrize('before', ['', 'every 45000000'])
@pytest.mark.parametrize('after', ['', 'every 30000000'])
def test_an_object_whose_own_schedule_changed_is_listed_with_the_new_one(
        before, after):
    read = reading('a', **({'a': after} if after else {}))

    found = compared(read, row('a', before))

    assert [(one.object, one.attributes.rule) for some in found.listed.values()
            for one in some] == (
        [('a', after)] if before != after else [])


def test_a_member_owns_the_objects_of_a_job_that_the_ring_gives_it():
    names = [f'object-{n}' for n in range(100)]
    divided = ring.Ring({'me': 40, 'other': 40})
    part = Part(job(objects=True), 0, reading(*names))

    mine, others = part.ids(divided, 'me'), part.ids(divided, 'other')

    # The ids are in the order of their positions on the ring.
    assert mine == sorted(
        (key for key in names if divided.owner_of(key) == 'me'),
        key=ring.position_of)
    assert sorted(mine + others) == sorted(names)


def part_that_read(*readings):
    """A part during its first walk.

    :param readings: Results of the catalogue method, one for each second.
    """
    part = Part(job(objects=True), 0, None)
    for at, read in enumerate(readings):
        part.read(read, at * SECOND)
        part.begin_walk(None, at * SECOND)
    return part


def test_an_object_counts_from_the_first_reading_that_lists_it():
    part = part_that_read(reading('a'), reading('a', 'b'), reading('b', 'a'))

    assert part.listed_at('a')[0] == 0
    assert part.listed_at('b')[0] == SECOND


def test_readings_that_agree_count_each_by_its_instant():
    """If another process has delisted the object, the store uses a reading
    later than the delisting.
    """
    part = part_that_read(reading('a'), *[reading('a', 'b')] * 3)

    assert part.listed_at('a') == (0, SECOND, 2 * SECOND, 3 * SECOND)
    assert part.listed_at('b') == (SECOND, 2 * SECOND, 3 * SECOND)


def test_many_readings_that_agree_leave_the_first_and_the_last():
    same = reading('a')
    part = part_that_read(*[same] * 100)

    instants = part.listed_at('a')

    assert len(instants) == 16
    assert instants[0] == 0
    assert instants[1:] == tuple(n * SECOND for n in range(85, 100))


def test_the_row_of_an_object_that_was_read_more_than_once_is_not_guessed():
    part = part_that_read(reading('a'), reading('a', 'b'))

    found = compare_listing(part.job, part.reading, range(2), [], TICK,
                            part.listed_at)

    assert found.unsure == ['a']
    assert [(row.object, row.since) for row in found.new] == [('b', SECOND)]


def test_an_object_counts_from_where_it_came_back():
    part = part_that_read(reading('a'), reading('b'), reading('a', 'b'))

    assert part.listed_at('a')[0] == 2 * SECOND


def test_an_object_counts_from_the_first_reading_with_the_schedule_it_has():
    part = part_that_read(
        reading('a'), reading('a', a='every 30'), reading('a', a='every 30'))

    assert part.listed_at('a')[0] == SECOND


def test_a_walk_that_reads_all_leaves_the_last_reading_to_count_from():
    part = part_that_read(reading('a'), reading('a', 'b'))

    part.end_walk(True)
    part.read(reading('b', 'a'), 2 * SECOND)

    assert part.listed_at('a') == part.listed_at('b') == (SECOND, 2 * SECOND)


def test_a_walk_that_fails_leaves_all_to_be_recorded():
    part = part_that_read(reading('a'), reading('a', 'b'))

    part.end_walk(False)
    part.read(reading('b', 'a'), 2 * SECOND)

    assert part.listed_at('a')[0] == 0


def test_the_last_two_readings_count_while_nothing_is_walked():
    """Earlier readings would only use memory."""
    part = part_that_read(reading('a'))
    part.end_walk(True)
    part.ring = ring.Ring({'me': 1})

    for at in 1, 2, 3:
        part.read(reading('a', f'b-{at}'), at * SECOND)

    assert part.listed_at('a')[0] == 2 * SECOND


def test_nothing_is_owned_while_all_members_are_drained_or_stopping():
    part = Part(job(objects=True), 0, None)

    assert not part.owns(ring.Ring({'a': 0, 'b': 0}), 'a', 0)


def test_an_object_is_listed_from_its_last_change_of_schedule():
    kept, one = Readings(), catalogue.Catalogue(['a'])
    daily = Attributes('every 86400000000')
    for at, own in (0, {}), (1, {}), (2, {'a': daily}), (3, {'a': daily}):
        kept.keep(catalogue.Reading(one, own), at)

    assert kept.listed_at('a') == (2, 3)
