# SPDX-License-Identifier: Apache-2.0
"""One suite for every ClaimStore; an adapter is one more line in STORES."""

import pytest

from distperiodic.adapters import memory
from distperiodic.core import claim as claim_
from distperiodic.core.claim import State

STORES = {'memory': memory.MemoryClaimStore}
SECOND = 1_000_000
FIRST, SECOND_TICK, THIRD = (1_800_000_000 * SECOND + n * 60 * SECOND
                             for n in range(3))


@pytest.fixture(params=sorted(STORES))
def store(request):
    return STORES[request.param]()


def take(store, tick, *objects, supersede=True, job='poll', owner='api-1'):
    return store.claim(job, tick, objects, owner=owner, supersede=supersede)


def run(store, claims, job='poll', worker='w-1'):
    return store.start(job, claims, worker=worker)


def test_every_object_is_won_once_a_tick(store):
    first = take(store, FIRST, 'a', 'b')
    second = take(store, FIRST, 'a', 'b', owner='api-2')

    assert [c.object for c in first.won] == ['a', 'b']
    assert second == claim_.Claimed([], [], 0)


def test_a_tick_is_not_run_again_after_it_was_done(store):
    won = take(store, FIRST, 'a').won
    run(store, won)
    assert store.finish('poll', won) == 1
    assert take(store, FIRST, 'a').won == []


def test_two_jobs_claim_one_object_apart(store):
    assert take(store, FIRST, 'a', job='poll').won
    assert take(store, FIRST, 'a', job='sync').won


def test_a_claim_is_granted_once(store):
    won = take(store, FIRST, 'a').won
    assert run(store, won) == won
    assert run(store, won, worker='w-2') == []


def test_a_later_tick_voids_a_claim_that_was_not_started(store):
    old = take(store, FIRST, 'a').won
    new = take(store, SECOND_TICK, 'a')

    assert new.superseded == 1
    assert new.won[0].fence > old[0].fence
    assert run(store, old) == []
    assert run(store, new.won) == new.won


def test_without_supersede_the_earlier_claim_stands(store):
    old = take(store, FIRST, 'a').won
    assert take(store, SECOND_TICK, 'a', supersede=False).busy == ['a']
    assert run(store, old) == old


@pytest.mark.parametrize('supersede', [True, False])
def test_a_run_that_goes_on_is_busy_and_not_taken(store, supersede):
    run(store, take(store, FIRST, 'a').won)
    later = take(store, SECOND_TICK, 'a', 'b', supersede=supersede)

    assert later.busy == ['a']
    assert [c.object for c in later.won] == ['b']


def test_a_result_counts_once(store):
    won = run(store, take(store, FIRST, 'a', 'b').won)
    assert store.finish('poll', won) == 2
    assert store.finish('poll', won) == 0


def test_a_result_of_what_was_taken_back_is_dropped(store):
    """The fence, not the name of the worker, decides whose result counts."""
    old = run(store, take(store, FIRST, 'a').won)
    new = store.take_back('poll', old)

    assert new[0].fence > old[0].fence
    assert store.finish('poll', old) == 0
    assert run(store, new, worker='w-2') == new
    assert store.finish('poll', old) == 0
    assert store.finish('poll', new) == 1


def test_what_was_not_granted_cannot_be_taken_back(store):
    assert store.take_back('poll', take(store, FIRST, 'a').won) == []


def test_a_retry_comes_back_at_its_time_with_the_next_attempt(store):
    won = run(store, take(store, FIRST, 'a').won)
    assert store.fail('poll', won[0], retry_at=FIRST + 5 * SECOND)

    assert store.due_retries(FIRST + 4 * SECOND, 10) == []
    (job, again), = store.due_retries(FIRST + 5 * SECOND, 10)
    assert (job, again.object, again.attempt) == ('poll', 'a', 2)
    assert again.fence > won[0].fence
    assert store.due_retries(FIRST + 9 * SECOND, 10) == []
    assert run(store, [again]) == [again]


def test_an_object_that_waits_for_a_retry_is_busy(store):
    won = run(store, take(store, FIRST, 'a').won)
    store.fail('poll', won[0], retry_at=FIRST + 5 * SECOND)
    assert take(store, SECOND_TICK, 'a').busy == ['a']


def test_retries_come_oldest_first_and_no_more_than_asked_for(store):
    won = run(store, take(store, FIRST, 'a', 'b', 'c').won)
    for claim, wait in zip(won, (3, 1, 2), strict=True):
        store.fail('poll', claim, retry_at=FIRST + wait * SECOND)

    first = store.due_retries(FIRST + 9 * SECOND, 2)
    assert [claim.object for _, claim in first] == ['b', 'c']
    (_, last), = store.due_retries(FIRST + 9 * SECOND, 2)
    assert last.object == 'a'


def test_a_dead_run_ends_and_the_next_tick_begins(store):
    won = run(store, take(store, FIRST, 'a').won)
    assert store.fail('poll', won[0], retry_at=None)
    assert not store.fail('poll', won[0], retry_at=None)
    assert take(store, FIRST, 'a').won == []
    assert take(store, SECOND_TICK, 'a').won


@pytest.mark.parametrize(
    'ending', [State.SKIPPED, State.SUPERSEDED, State.CANCELLED])
def test_a_claim_can_be_dropped_before_it_runs(store, ending):
    won = take(store, FIRST, 'a').won
    assert store.drop('poll', won, ending) == 1
    assert run(store, won) == []
    assert store.drop('poll', won, ending) == 0


def test_a_run_cannot_be_skipped(store):
    won = run(store, take(store, FIRST, 'a').won)
    assert store.drop('poll', won, State.SKIPPED) == 0
    assert store.finish('poll', won) == 1


def test_the_fence_of_an_object_only_grows(store):
    fences = []
    for tick in (FIRST, SECOND_TICK, THIRD):
        claim, = take(store, tick, 'a').won
        fences.append(claim.fence)
        for _ in range(3):
            run(store, [claim])
            claim, = store.take_back('poll', [claim])
            fences.append(claim.fence)
        run(store, [claim])
        store.finish('poll', [claim])
    assert fences == sorted(set(fences))


def test_unknown_jobs_and_objects_are_no_error(store):
    ghost = claim_.Claim('ghost', 1, 1, FIRST)
    assert run(store, [ghost]) == []
    assert store.finish('poll', [ghost]) == 0
    assert store.take_back('poll', [ghost]) == []
    assert not store.fail('poll', ghost, retry_at=FIRST)
