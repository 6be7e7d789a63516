# SPDX-License-Identifier: Apache-2.0
"""When a service deletes old rows, and how many at once."""

import itertools

import pytest

from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep
from distperiodic.core.pruning import ages_of
from distperiodic.service import pruner
from tests.logged import lines

AGES = Ages(history=30.0, tasks=7.0)


class World:
    """A service with a clock, a store and a queue of calls to it."""

    def __init__(self):
        self.now = 1000.0
        self.calls = []
        self.turns = []
        #: Seconds that each step takes.
        self.seconds = 0.02
        self.rows = []
        self.pruner = pruner.ServicePruner(self, self, AGES)

    def monotonic(self):
        return self.now

    def submit(self, call, then, failed):
        self.calls.append((call, then, failed))

    def prune(self, ages):
        self.turns.append(ages)
        for rows in self.rows:
            self.now += self.seconds
            yield PruneStep('tasks', rows)

    def sweep(self, seconds=0.25):
        """Let time pass, then sweep; return the number of steps."""
        self.now += seconds
        self.pruner.sweep()
        for number in itertools.count():
            assert len(self.calls) <= 1
            if not self.calls:
                return number
            call, then, _ = self.calls.pop()
            then(call(self))


@pytest.fixture
def world():
    return World()


def test_a_turn_begins_once_a_minute(world):
    assert world.sweep(pruner.INTERVAL - 1) == 0
    assert world.sweep(1) == 1
    assert world.turns == [AGES]
    assert world.sweep(pruner.INTERVAL - 1) == 0
    assert world.sweep(1) == 1
    assert len(world.turns) == 2


def test_ended_pauses_and_old_ids_are_deleted_each_tenth_turn(world):
    world.pruner = pruner.ServicePruner(world, world, ages_of(30.0, 7.0))
    for _ in range(21):
        world.sweep(pruner.INTERVAL)

    assert [at for at, ages in enumerate(world.turns) if ages.surplus] == [
        0, 10, 20]


def test_a_turn_with_much_to_do_pauses_until_the_next_sweep(world, caplog):
    caplog.set_level('DEBUG')
    world.rows = [200] * 12

    steps = [world.sweep(pruner.INTERVAL), *(
        world.sweep() for _ in range(3))]

    # Steps of 0.02 s continue for 0.1 s. The last step finds no rows.
    assert [(n > 0) for n in steps] == [True, True, True, False]
    assert max(steps) <= 6 and sum(steps) == 13
    assert len(world.turns) == 1
    assert lines(caplog, 'old rows deleted') == [
        {'kind': "'tasks'", 'rows': '2400'}]


def test_a_slow_step_is_not_asked_for_twice(world):
    world.rows = [1]
    world.now += pruner.INTERVAL
    for _ in range(3):
        world.pruner.sweep()
        world.now += pruner.INTERVAL

    assert len(world.calls) == 1


def test_a_step_that_fails_ends_the_turn(world):
    world.rows = [200] * 9
    world.now += pruner.INTERVAL
    world.pruner.sweep()
    world.calls.pop()[2]()

    assert world.sweep() == 0
    world.rows = []
    assert world.sweep(pruner.INTERVAL) == 1
    assert world.sweep(pruner.INTERVAL) == 1
