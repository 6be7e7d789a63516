# SPDX-License-Identifier: Apache-2.0
"""When a service deletes old rows, and how many at once."""

import itertools

import pytest

from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.operator import pruning
from distperiodic.service import pruner
from tests.logged import lines


class World:
    """A service with a clock and a queue of calls to the store."""

    def __init__(self, store):
        self.now = 1000.0
        self.calls = []
        self.turns = []
        #: Seconds that each step takes.
        self.seconds = 0.02
        self.rows = []
        self._store = store
        self.pruner = pruner.ServicePruner(
            self, self, group='g', history=30.0, tasks=7.0)

    def monotonic(self):
        return self.now

    def submit(self, call, then, failed):
        self.calls.append((call, then, failed))

    def prune_steps(self, database, namespace, ages):
        self.turns.append((namespace, ages.history, ages.tasks))
        for rows in self.rows:
            self.now += self.seconds
            yield pruning.Step('tasks', rows)

    def sweep(self, seconds=0.25):
        """Let time pass, then sweep; return the number of steps."""
        self.now += seconds
        self.pruner.sweep()
        for number in itertools.count():
            assert len(self.calls) <= 1
            if not self.calls:
                return number
            call, then, _ = self.calls.pop()
            then(call(self._store))


@pytest.fixture
def world(tmp_path, monkeypatch):
    store = SqlClaimStore(f'sqlite:///{tmp_path}/x.sqlite', namespace='g')
    made = World(store)
    monkeypatch.setattr(pruning, 'prune_steps', made.prune_steps)
    yield made
    store.close()


def test_a_turn_begins_once_a_minute(world):
    assert world.sweep(pruner.INTERVAL - 1) == 0
    assert world.sweep(1) == 1
    assert world.turns == [('g', 30.0, 7.0)]
    assert world.sweep(pruner.INTERVAL - 1) == 0
    assert world.sweep(1) == 1
    assert len(world.turns) == 2


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
