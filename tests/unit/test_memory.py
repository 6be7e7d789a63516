# SPDX-License-Identifier: Apache-2.0
"""What the store in memory does beside the port's suite, which is
tests/conformance/test_claim_store.py.
"""

import pytest

from distperiodic.adapters import memory

SECOND = 1_000_000
NOON = 1_800_000_000 * SECOND


@pytest.fixture
def store():
    return memory.MemoryClaimStore()


def win(store, tick, key='a'):
    [claim] = store.claim('job', tick, [key], owner='o', supersede=True).won
    return claim


@pytest.mark.parametrize('ended', [False, True])
def test_after_the_clock_was_set_back_an_object_goes_on_and_its_fence_grows(
        store, ended):
    """Refused, it would be silent until the clock is where it was."""
    before = win(store, NOON)
    if ended:
        store.start('job', [before], worker='w')
        store.finish('job', [before])

    after = win(store, NOON - 3600 * SECOND)
    again = win(store, NOON - 3599 * SECOND)

    assert before.fence < after.fence < again.fence


def test_objects_that_are_gone_are_forgotten_and_fences_still_grow(store):
    fences = {}
    for round_ in range(30):
        tick = NOON + round_ * SECOND
        objects = ['stays', *(f'{round_}-{n}' for n in range(2000))]
        won = store.claim('job', tick, objects, owner='o',
                          supersede=True).won
        store.start('job', won, worker='w')
        store.finish('job', won)
        for claim in won:
            assert claim.fence > fences.get(claim.object, 0)
            fences[claim.object] = claim.fence

    assert len(store._rows['job']) < 25_000
    back = win(store, NOON - SECOND, '0-0')
    assert back.fence > fences['0-0']
