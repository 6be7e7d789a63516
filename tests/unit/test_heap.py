# SPDX-License-Identifier: Apache-2.0
"""The garbage collector does not scan the objects of a started service."""

import gc
import weakref

import pytest

from distperiodic.service import heap


class Cycle:
    """Garbage that only the collector can find."""

    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def collector():
    """Restore the settings of the garbage collector after a test.

    A collection during the test does not visit the objects that exist before:
    a process that runs many tests has a million of them.
    """
    before = gc.get_threshold()
    gc.freeze()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*before)


def test_garbage_is_collected_before_the_rest_is_frozen():
    before = gc.get_freeze_count()
    left = weakref.ref(Cycle())
    stays = [Cycle() for _ in range(100)]

    heap.freeze()

    assert left() is None
    assert gc.get_freeze_count() >= before + len(stays)
    heap.unfreeze()


def test_two_services_of_a_process_are_frozen_until_both_have_stopped():
    heap.freeze()
    heap.freeze()

    heap.unfreeze()
    assert gc.get_freeze_count() > 0

    heap.unfreeze()
    assert gc.get_freeze_count() == 0


def test_a_collector_that_is_switched_off_is_left_alone():
    gc.disable()
    before = gc.get_freeze_count()
    new = [Cycle() for _ in range(100)]

    heap.freeze()
    after = gc.get_freeze_count()
    heap.unfreeze()

    # Frozen objects of other threads may end meanwhile.
    assert after < before + len(new)


def test_young_garbage_waits_while_a_service_works():
    before = gc.get_threshold()

    heap.freeze()
    heap.freeze()
    heap.unfreeze()
    assert gc.get_threshold() == (heap.YOUNG, *before[1:])

    heap.unfreeze()
    assert gc.get_threshold() == before


@pytest.mark.parametrize('young', [0, heap.YOUNG + 1])
def test_a_higher_threshold_of_the_program_is_left_alone(young):
    gc.set_threshold(young, 10, 10)

    heap.freeze()

    assert gc.get_threshold() == (young, 10, 10)
    heap.unfreeze()
    assert gc.get_threshold() == (young, 10, 10)
