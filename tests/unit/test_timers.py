# SPDX-License-Identifier: Apache-2.0
"""The timer that is due next, among those of all jobs of one member."""

import pytest

from distperiodic.core import catalogue
from distperiodic.core.attributes import Attributes
from distperiodic.core.schedule import SECOND
from distperiodic.flow.scheduler.authority import StoreAuthority
from distperiodic.flow.scheduler.timers import ObjectTimers
from distperiodic.flow.scheduler.timers import SpreadCursor
from distperiodic.flow.scheduler.timers import TimerKind
from distperiodic.flow.scheduler.timers import TimerQueue
from tests.unit.world import Clock
from tests.unit.world import job


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    return TimerQueue(
        clock, {'poll': job('poll', objects=True)}, StoreAuthority.pauses)


def kinds(queue, now):
    return [(kind, due) for _, kind, due in queue.take(now)]


@pytest.mark.parametrize('dues', [(5, 3), (3, 5)])
def test_the_earliest_of_several_entries_of_one_kind_counts(queue, dues):
    for due in dues:
        queue.push(due, 'poll', TimerKind.LOOK)

    assert kinds(queue, 4) == [(TimerKind.LOOK, 3)]
    assert kinds(queue, 9) == []


def test_after_a_stall_the_newest_tick_of_a_grid_is_due_alone(queue):
    queue.restart(0)

    assert kinds(queue, 250 * SECOND) == [(TimerKind.TICK, 240 * SECOND)]
    assert queue.next == 300 * SECOND


def test_each_object_with_a_phase_is_due_once_between_two_steps_of_a_cursor():
    listed = catalogue.Catalogue([f'object-{n}' for n in range(100)])
    cursor = SpreadCursor(0, listed, 60 * SECOND, -1)

    taken = [index for second in range(61)
             for index in cursor.take(second * SECOND)]

    assert sorted(taken) == list(range(100))
    assert cursor.next is None


def test_an_object_follows_its_new_schedule_from_the_change_on():
    own, each_minute = ObjectTimers(), Attributes('every 60000000')
    own.replace({'a': Attributes('every 3600000000'), 'b': each_minute},
                SECOND)

    own.replace({'a': Attributes('every 30000000'), 'b': each_minute},
                SECOND)

    assert own.take(59 * SECOND) == [('a', 30 * SECOND)]
    assert sorted(own.take(60 * SECOND)) == [
        ('a', 60 * SECOND), ('b', 60 * SECOND)]
