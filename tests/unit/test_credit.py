# SPDX-License-Identifier: Apache-2.0
"""Credit: the number of runs that a worker may hold."""

import hypothesis
import pytest
from hypothesis import strategies

from distperiodic.core import credit


def window(slots=10):
    return credit.CreditWindow(slots, credit.RunTimeAverage())


def test_the_pace_of_a_job_follows_the_measured_runs():
    seen = credit.RunTimeAverage()
    assert seen.of('poll') is None

    seen.note('poll', 10, 1.0)
    assert seen.of('poll') == 0.1
    for _ in range(20):
        seen.note('poll', 5, 5.0)

    assert seen.of('poll') == pytest.approx(1.0)
    assert seen.of('other') is None


def test_a_worker_takes_a_job_of_unknown_length_once_per_slot():
    worker = window(slots=10)

    assert worker.room(worker.cost('poll')) == 10
    worker.give(10, 0.0)

    assert worker.room(worker.cost('poll')) == 0


def test_a_worker_takes_half_a_second_of_a_known_job():
    worker = window(slots=10)
    worker.note('poll', 1, 0.1)

    assert worker.room(worker.cost('poll')) == pytest.approx(50, abs=1)


def test_settled_runs_of_a_worker_make_room_for_as_many():
    worker = window(slots=10)
    worker.note('poll', 1, 0.1)
    cost = worker.cost('poll')
    worker.give(50, cost)

    worker.settle(20, cost)

    assert worker.room(cost) == pytest.approx(20, abs=1)


def test_a_worker_takes_as_many_long_runs_as_it_has_slots():
    worker = window(slots=10)
    worker.note('poll', 1, 3600.0)

    assert worker.room(worker.cost('poll')) == 10
    worker.give(10, worker.cost('poll'))

    assert worker.room(worker.cost('poll')) == 0
    assert worker.room(worker.cost('other')) == 10


def test_a_run_that_takes_hours_leaves_the_other_slots_their_room():
    worker = window(slots=10)
    worker.note('long', 1, 3600.0)
    worker.note('quick', 1, 0.001)
    empty = worker.room(worker.cost('quick'))

    worker.give(1, worker.cost('long'))

    assert worker.room(worker.cost('quick')) == pytest.approx(
        0.9 * empty, abs=1)


def test_a_backlog_of_a_known_job_leaves_room_for_an_unknown_one():
    worker = window(slots=10)
    worker.note('poll', 1, 0.001)
    cost = worker.cost('poll')
    worker.give(worker.room(cost), cost)

    assert worker.room(cost) == 0
    assert not worker.full
    assert worker.room(worker.cost('unknown')) == 10


def test_a_run_that_was_not_measured_uses_a_slot():
    worker = window(slots=10)
    worker.give(10, worker.cost('poll'))

    worker.settle(1, 0.0)
    worker.note('poll', 1, 3600.0)

    assert worker.room(worker.cost('poll')) == 1


def test_a_worker_is_busy_with_a_quarter_of_a_second_on_each_slot():
    worker = window(slots=10)
    worker.note('poll', 1, 0.1)
    cost = worker.cost('poll')

    worker.give(25, cost)
    assert not worker.busy
    worker.give(1, cost)
    assert worker.busy


def test_a_worker_with_long_runs_is_not_busy_for_its_free_slots():
    worker = window(slots=10)
    worker.note('poll', 1, 3600.0)

    worker.give(9, worker.cost('poll'))

    assert not worker.busy


def test_a_worker_is_full_when_no_job_has_room():
    worker = window(slots=2)
    worker.note('poll', 1, 1e-9)
    cost = worker.cost('poll')

    worker.give(2, 0.0)
    worker.give(worker.room(cost), cost)

    assert worker.full
    assert worker.room(cost) == 0
    assert worker.room(0.0) == 0


def test_a_worker_is_judged_by_its_own_pace_once_that_is_known():
    everywhere = credit.RunTimeAverage()
    quick, slow = credit.CreditWindow(
        10, everywhere), credit.CreditWindow(10, everywhere)

    quick.note('poll', 10, 0.01)
    assert slow.cost('poll') == quick.cost('poll')
    slow.note('poll', 10, 1.0)
    for _ in range(10):
        quick.note('poll', 10, 0.01)

    assert slow.cost('poll') == pytest.approx(100 * quick.cost('poll'))
    assert slow.room(slow.cost('poll')) < quick.room(quick.cost('poll')) / 50


def test_a_worker_without_slots_counts_as_one_slot():
    assert window(slots=0).slots == 1


@hypothesis.given(strategies.lists(strategies.tuples(
    strategies.integers(1, 500), strategies.sampled_from(
        [0.0, 2e-5, 0.0123, 3.7]))), strategies.randoms())
def test_credit_that_was_given_and_settled_leaves_nothing(given, chance):
    worker = window()
    for runs, cost in given:
        worker.give(runs, cost)
    chance.shuffle(given)

    for runs, cost in given:
        assert worker.held > 0
        worker.settle(runs, cost)

    assert (worker.held, worker.seconds, worker.unmeasured) == (0, 0.0, 0)


@hypothesis.given(strategies.integers(1, 60), strategies.integers(1, 9))
def test_the_schedulers_are_entitled_to_the_slots_of_a_worker(
        slots, schedulers):
    parts = [credit.entitled(slots, schedulers, rank)
             for rank in range(schedulers)]

    assert sum(parts) == max(slots, schedulers)
    assert max(parts) - min(parts) <= 1
