# SPDX-License-Identifier: Apache-2.0
"""Procedures wait for the store, whether it answers at once or later."""

import pytest

from distperiodic import ports
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import call_steps
from distperiodic.flow.procedure import perform
from distperiodic.flow.procedure import start
from tests.unit.world import StoreQueue


class Steps:
    def wake(self):
        return 'woken'


class Store:
    """A store that returns the arguments of each call."""

    steps = Steps()

    def settled(self, job, tick):
        return job, tick


@pytest.fixture
def queue():
    return StoreQueue(Store())


def settled(queue, numbers, found):
    """Ask for each of *numbers*, and add each answer to *found*."""
    for number in numbers:
        found.append((yield from call(
            queue, ports.ClaimStore.settled, 'job', tick=number)))
    found.append('end')


def test_a_store_that_answers_at_once_does_not_nest_the_calls(queue):
    found = []

    start(settled(queue, range(5000), found))

    assert found == [*(('job', number) for number in range(5000)), 'end']


def test_a_procedure_goes_on_with_each_answer_that_comes_later(queue):
    found = []
    queue.slow = True

    start(settled(queue, [1, 2], found))
    assert found == []
    queue.answer()

    assert found == [('job', 1), ('job', 2), 'end']


def test_procedures_go_on_in_the_order_of_the_answers(queue):
    found = []
    queue.slow = True
    start(settled(queue, [1, 2], found))
    start(settled(queue, [3], found))

    queue.answer()

    assert found == [('job', 1), ('job', 3), 'end', ('job', 2), 'end']


def test_a_procedure_may_handle_a_call_that_failed(queue):
    found = []

    def procedure():
        try:
            yield from call(queue, ports.ClaimStore.settled, 'job', 1)
        except CallFailed:
            found.append('failed')
        found.append((yield from call(
            queue, ports.ClaimStore.settled, 'job', 2)))
    queue.slow = True
    start(procedure())
    [(_, _, failed)] = queue.asked
    queue.asked.clear()

    failed()
    queue.answer()

    assert found == ['failed', ('job', 2)]


def test_a_call_that_failed_ends_a_procedure_that_does_not_handle_it(queue):
    found = []

    def procedure():
        try:
            yield from settled(queue, [1, 2], found)
        finally:
            found.append('cleaned up')
    queue.slow = True
    start(procedure())
    [(_, _, failed)] = queue.asked
    queue.asked.clear()

    failed()

    assert found == ['cleaned up']
    assert queue.asked == []


def test_an_error_of_a_procedure_reaches_the_caller(queue):
    def procedure():
        yield from settled(queue, [1], [])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start(procedure())


def test_work_and_calls_of_steps_get_their_part_of_the_store(queue):
    found = []

    def procedure():
        found.append((yield from perform(
            queue, lambda store: store.settled('job', 1))))
        found.append((yield from call_steps(queue, ports.StepStore.wake)))
    start(procedure())

    assert found == [('job', 1), 'woken']


def test_an_urgent_call_passes_calls_that_wait(queue):
    found = []
    queue.slow = True
    start(settled(queue, [1], found))
    start(settled(queue.urgent, [2], found))

    queue.answer()

    assert found == [('job', 2), 'end', ('job', 1), 'end']
