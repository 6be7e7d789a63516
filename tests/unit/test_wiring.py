# SPDX-License-Identifier: Apache-2.0
"""Values that the components of one process share, and no other process."""

import dataclasses

from distperiodic.flow.counters import Counted
from tests.unit import world


def test_the_components_of_a_process_count_in_one_place():
    wiring = world.scheduler_wiring(world.Clock())
    inner = dataclasses.replace(wiring, clock=world.Clock())

    inner.counters['poll', Counted.DONE] += 1

    assert wiring.counters == {('poll', 'done'): 1}


def test_processes_share_neither_numbers_nor_jitter():
    one, other = (world.scheduler_wiring(world.Clock()) for _ in range(2))

    one.counters['poll', Counted.DONE] += 1

    assert not other.counters
    assert one.random.random() != other.random.random()
