# SPDX-License-Identifier: Apache-2.0
"""What a service is built of is out of the garbage collector's way."""

import gc
import weakref

import pytest

from distperiodic.service import heap


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def collector():
    """As it was, whatever a test does to it."""
    yield
    gc.enable()
    gc.unfreeze()


def test_garbage_is_collected_before_the_rest_is_frozen():
    left = weakref.ref(Cycle())

    heap.freeze()

    assert left() is None
    assert gc.get_freeze_count() > 0
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

    heap.freeze()

    assert gc.get_freeze_count() == 0
    heap.unfreeze()
