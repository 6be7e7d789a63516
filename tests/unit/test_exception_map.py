# SPDX-License-Identifier: Apache-2.0
"""The map of the exceptions of a job: objects by ticks."""

import pytest

from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import REQUEUED
from distperiodic.core.reason import Reason
from distperiodic.core.tick_exceptions import TickException
from distperiodic.core.tick_exceptions import packed
from distperiodic.operator import exception_map

TICKS = [100, 200, 300]


def exception(outcome, keys, tick, after=None):
    return TickException(
        outcome, tick - 1 if after is None else after, tick, 'api-1', 0, '',
        len(keys), packed(keys))


def reasons(*found):
    """Return the reasons of each object in the map, by its id."""
    return {row.object: list(row.reasons)
            for row in exception_map.of(found, TICKS).objects}


def test_each_outcome_is_in_the_column_of_its_tick():
    assert reasons(
        exception('dead', ['a'], 100),
        exception('by_pause', ['a', 'b'], 300)) == {
        'a': [Reason.DEAD, None, Reason.SKIPPED_BY_PAUSE],
        'b': [None, None, Reason.SKIPPED_BY_PAUSE]}


def test_an_object_that_missed_several_ticks_is_in_each_of_them():
    assert reasons(exception('by_misfire', ['a'], 300, 100)) == {
        'a': [None, Reason.PASSED_OVER, Reason.PASSED_OVER]}


def test_a_dead_object_that_was_requeued_is_dead_no_more():
    requeued = exception('dead', ['a', 'b'], 100), exception(
        REQUEUED, ['a'], 100)

    assert reasons(*requeued) == {'b': [Reason.DEAD, None, None]}
    assert reasons(*requeued, exception('dead', ['a'], 100))['a'] == [
        Reason.DEAD, None, None]


@pytest.mark.parametrize('after, expected', [
    ((), Reason.RAN_LATE), (('dead',), Reason.DEAD)])
def test_an_object_that_ran_late_is_marked_unless_its_run_failed(
        after, expected):
    assert reasons(exception(LATE, ['a'], 200), *(
        exception(outcome, ['a'], 200) for outcome in after)) == {
        'a': [None, expected, None]}


def test_the_objects_with_the_most_lost_work_come_first():
    found = [exception('by_pause', ['a', 'b'], tick) for tick in TICKS]
    found += [exception('by_lost', ['z'], 100),
              exception('superseded', ['y'], 100),
              exception('dead', ['y'], 200)]

    assert list(reasons(*found)) == ['y', 'z', 'a', 'b']


def test_outcomes_whose_ids_are_not_kept_are_counted():
    found = exception_map.of([
        exception('dead', ['a'], 100),
        exception('dead', ['b', 'c'], 200)._replace(objects=None),
        # This tick is not in the map.
        exception('dead', ['d'], 250)._replace(objects=None)], TICKS)

    assert (found.unknown, found.number) == (2, 1)


def test_outcomes_that_are_too_many_to_read_are_counted(monkeypatch):
    monkeypatch.setattr(exception_map, '_IDS', 3)

    found = exception_map.of([
        exception('dead', ['a', 'b'], 100), exception('dead', ['c', 'd'], 200),
        ], TICKS)

    # The newest are read.
    assert [row.object for row in found.objects] == ['c', 'd']
    assert found.unknown == 2


def test_more_objects_are_counted_by_parts_of_the_ring(monkeypatch):
    monkeypatch.setattr(exception_map, 'MOST_OBJECTS', 3)
    keys = [f'object-{n}' for n in range(200)]

    found = exception_map.of([
        exception('dead', keys, 100), exception('dead', keys[:7], 300)], TICKS)

    assert (found.number, len(found.objects)) == (200, 3)
    assert [sum(column) for column in zip(*found.parts, strict=True)] == [
        200, 0, 7]
    assert len(found.parts) == exception_map.PARTS
    # All parts of the ring have about as many objects.
    assert min(part[0] for part in found.parts) > 0
    assert exception_map.of([exception('dead', keys[:3], 100)],
                            TICKS).parts == ()
