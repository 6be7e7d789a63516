# SPDX-License-Identifier: Apache-2.0
"""The moves of a claim: the table, and a store that keeps to it."""

import itertools
import random

import pytest

from distperiodic.adapters import memory
from distperiodic.core import claim
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

MINUTE = 60_000_000
TICK = 28_333_333 * MINUTE

#: What may be done with a claim, by its state; all else is refused. Written
#: out here on purpose: it is the promise, the table is how it is kept.
ALLOWED = {
    State.CLAIMED: {Move.START, Move.SKIP, Move.SUPERSEDE, Move.CANCEL},
    State.RUNNING: {Move.FINISH, Move.RETRY, Move.BURY, Move.TAKE_BACK,
                    Move.CANCEL},
    State.RETRY: {Move.AGAIN, Move.CANCEL},
    State.DONE: {Move.CLAIM},
    State.DEAD: {Move.CLAIM},
    State.SKIPPED: {Move.CLAIM},
    State.SUPERSEDED: {Move.CLAIM},
    State.CANCELLED: {Move.CLAIM},
}


@pytest.fixture
def store():
    return memory.MemoryClaimStore()


def claim_one(store, tick=TICK, key='a', *, supersede=True):
    claimed = store.claim('poll', tick, [key], owner='me',
                          supersede=supersede)
    return claimed.won[0] if claimed.won else None


def bring_to(store, state):
    """A claim that stands in *state*."""
    one = claim_one(store)
    if state in (State.RUNNING, State.RETRY, State.DONE, State.DEAD):
        assert store.start('poll', [one], worker='w') == [one]
    match state:
        case State.RETRY:
            assert store.fail('poll', one, retry_at=TICK)
        case State.DONE:
            assert store.finish('poll', [one]) == 1
        case State.DEAD:
            assert store.fail('poll', one, retry_at=None)
        case State.SKIPPED | State.SUPERSEDED | State.CANCELLED:
            assert store.drop('poll', [one], state) == 1
    return one


def make(store, move, one):
    """Try *move* on claim *one*; whether the store let it happen."""
    match move:
        case Move.CLAIM:
            return claim_one(
                store, one.tick + MINUTE, supersede=False) is not None
        case Move.START:
            return bool(store.start('poll', [one], worker='w'))
        case Move.FINISH:
            return bool(store.finish('poll', [one]))
        case Move.RETRY:
            return store.fail('poll', one, retry_at=TICK)
        case Move.BURY:
            return store.fail('poll', one, retry_at=None)
        case Move.TAKE_BACK:
            return bool(store.take_back('poll', [one]))
        case Move.AGAIN:
            return bool(store.due_retries(TICK, 10))
        case Move.SKIP:
            return bool(store.drop('poll', [one], State.SKIPPED))
        case Move.SUPERSEDE:
            return bool(store.drop('poll', [one], State.SUPERSEDED))
        case Move.CANCEL:
            return bool(store.drop('poll', [one], State.CANCELLED))


@pytest.mark.parametrize('state,move', [*itertools.product(State, Move)],
                         ids=lambda value: value.value)
def test_a_move_is_made_where_it_is_allowed_and_refused_elsewhere(
        store, state, move):
    one = bring_to(store, state)

    assert claim.allowed(move, state) is (move in ALLOWED[state])
    assert make(store, move, one) is (move in ALLOWED[state])


@pytest.mark.parametrize('state,move', [*itertools.product(State, Move)],
                         ids=lambda value: value.value)
def test_a_refused_move_changes_nothing(store, state, move):
    one = bring_to(store, state)
    if move in ALLOWED[state]:
        return

    make(store, move, one)

    for other in Move:
        if other in ALLOWED[state]:
            assert make(store, other, one), other
            break


def test_every_state_is_entered_by_a_move_and_no_ending_is_a_dead_end():
    entered = {into for _, into in claim.MOVES.values()}

    assert entered == set(State)
    for state in State:
        assert any(claim.allowed(move, state) for move in Move), state
    assert claim.ENDINGS == {
        State.DONE, State.DEAD, State.SKIPPED, State.SUPERSEDED,
        State.CANCELLED}
    assert set(claim.ENDING_MOVES) == claim.ENDINGS


@pytest.mark.parametrize('move', [
    Move.START, Move.FINISH, Move.RETRY, Move.BURY, Move.TAKE_BACK,
    Move.SKIP, Move.SUPERSEDE, Move.CANCEL])
def test_an_old_fence_moves_nothing(store, move):
    one = bring_to(store, State.RUNNING)
    anew, = store.take_back('poll', [one])
    if move in ALLOWED[State.RUNNING]:
        store.start('poll', [anew], worker='w')

    assert not make(store, move, one)
    assert make(store, move, anew)


def test_of_two_claims_for_one_tick_one_wins(store):
    first = store.claim('poll', TICK, ['a', 'b'], owner='me', supersede=True)
    second = store.claim('poll', TICK, ['b', 'c'], owner='me',
                         supersede=True)

    assert [c.object for c in first.won] == ['a', 'b']
    assert [c.object for c in second.won] == ['c']
    assert second.busy == []


@pytest.mark.parametrize('state', list(State))
def test_a_tick_that_was_claimed_is_never_claimed_again(store, state):
    one = bring_to(store, state)

    again = store.claim('poll', one.tick, ['a'], owner='me', supersede=True)

    assert again == claim.Claimed([], [], 0)


def test_an_object_that_stands_twice_in_a_list_is_claimed_once(store):
    claimed = store.claim('poll', TICK, ['a', 'a', 'a'], owner='me',
                          supersede=True)

    assert [c.object for c in claimed.won] == ['a']


def test_a_later_tick_supersedes_a_claim_that_was_not_started(store):
    old = claim_one(store)

    claimed = store.claim('poll', TICK + MINUTE, ['a'], owner='me',
                          supersede=True)

    assert claimed.superseded == 1
    new, = claimed.won
    assert new.fence > old.fence
    assert store.start('poll', [old, new], worker='w') == [new]


def test_a_later_tick_finds_what_it_may_not_supersede_busy(store):
    claim_one(store)

    claimed = store.claim('poll', TICK + MINUTE, ['a'], owner='me',
                          supersede=False)

    assert claimed == claim.Claimed([], ['a'], 0)


@pytest.mark.parametrize('state', [State.RUNNING, State.RETRY])
def test_a_later_tick_finds_a_run_busy(store, state):
    bring_to(store, state)

    claimed = store.claim('poll', TICK + MINUTE, ['a'], owner='me',
                          supersede=True)

    assert claimed == claim.Claimed([], ['a'], 0)


def test_claims_of_two_jobs_do_not_meet(store):
    store.claim('poll', TICK, ['a'], owner='me', supersede=True)

    other = store.claim('sync', TICK, ['a'], owner='me', supersede=True)

    assert len(other.won) == 1
    assert store.start('strange', other.won, worker='w') == []
    assert store.finish('strange', other.won) == 0


def test_a_retry_is_due_at_its_time_and_taken_once(store):
    one = claim_one(store)
    store.start('poll', [one], worker='w')
    store.fail('poll', one, retry_at=TICK + 5)

    assert store.due_retries(TICK + 4, 10) == []
    (name, again), = store.due_retries(TICK + 5, 10)

    assert name == 'poll'
    assert again == ('a', again.fence, 2, TICK)
    assert again.fence > one.fence
    assert store.due_retries(TICK + 5, 10) == []


def test_retries_are_taken_oldest_first_and_so_many_at_a_time(store):
    for n in (3, 1, 2, 5, 4):
        one = claim_one(store, key=f'object-{n}')
        store.start('poll', [one], worker='w')
        store.fail('poll', one, retry_at=TICK + n)

    first = store.due_retries(TICK + MINUTE, 3)
    rest = store.due_retries(TICK + MINUTE, 3)

    assert [c.object for _, c in first + rest] == [
        f'object-{n}' for n in range(1, 6)]


def test_a_retry_that_was_cancelled_does_not_come_back(store):
    one = bring_to(store, State.RETRY)
    assert store.drop('poll', [one], State.CANCELLED) == 1

    assert store.due_retries(TICK + MINUTE, 10) == []
    # Nor does it as the claim of a later tick.
    later = claim_one(store, TICK + MINUTE)
    assert store.due_retries(TICK + MINUTE, 10) == []
    assert store.start('poll', [later], worker='w') == [later]


def test_take_back_carries_the_attempt_that_the_owner_says(store):
    one = bring_to(store, State.RUNNING)

    anew, = store.take_back('poll', [one._replace(attempt=2)])
    assert (anew.attempt, anew.tick) == (2, TICK)
    store.start('poll', [anew], worker='w')
    store.fail('poll', anew, retry_at=TICK)
    (_, again), = store.due_retries(TICK, 1)

    assert again.attempt == 3


@pytest.mark.parametrize('seed', range(30))
def test_the_fence_of_an_object_only_grows(seed):
    """Through retries, losses, later ticks and clocks that are set back."""
    chance = random.Random(seed)
    store = memory.MemoryClaimStore()
    tick, newest, one, state = TICK, -1, None, None
    for _ in range(2000):
        if one is None or state in ('ended', 'claimed'):
            tick += chance.choice([1, 999, 1000, 1001, MINUTE, MINUTE])
            if chance.random() < 0.02:
                tick -= chance.randint(2, 500) * MINUTE
            claimed = store.claim('poll', tick, ['a'], owner='me',
                                  supersede=True)
            if not claimed.won:
                continue
            one, state = claimed.won[0], 'claimed'
        elif state == 'running':
            what = chance.random()
            if what < 0.4:
                one, = store.take_back('poll', [one])
                state = 'claimed'
            elif what < 0.7:
                assert store.fail('poll', one, retry_at=0)
                (_, one), = store.due_retries(1, 1)
                state = 'claimed'
            else:
                assert store.finish('poll', [one])
                state = 'ended'
                continue
        if state == 'claimed' and chance.random() < 0.8:
            assert store.start('poll', [one], worker='w')
            state = 'running'
        assert one.fence >= newest
        newest = one.fence
    assert newest > 0


def test_a_fence_grows_where_an_object_was_retried_for_ever(store):
    one = claim_one(store)
    for _ in range(1000):
        store.start('poll', [one], worker='w')
        one, = store.take_back('poll', [one])
    store.start('poll', [one], worker='w')
    store.finish('poll', [one])

    later = claim_one(store, TICK + 1000)

    assert later.fence > one.fence


def test_stores_of_two_members_give_fences_that_grow_by_time():
    """The object moves; the next owner knows nothing of the last one."""
    mine, theirs = memory.MemoryClaimStore(), memory.MemoryClaimStore()

    first = claim_one(mine, TICK)
    second = claim_one(theirs, TICK + 1_000_000)

    assert second.fence > first.fence
    assert second.fence < 1 << 63


def test_after_the_clock_was_set_back_an_earlier_tick_is_granted(store):
    bring_to(store, State.DONE)

    earlier = claim_one(store, TICK - 60 * MINUTE)

    assert earlier is not None
    assert store.start('poll', [earlier], worker='w') == [earlier]
    assert claim_one(store, TICK - 60 * MINUTE) is None


def test_the_store_forgets_objects_that_are_gone(store):
    """100,000 objects that come and go, and what is open stays."""
    kept = claim_one(store, key='kept')
    fence = 0
    for n in range(100):
        tick = TICK + (n + 1) * MINUTE
        won = store.claim('poll', tick, [f'{n}-{i}' for i in range(1000)],
                          owner='me', supersede=True).won
        store.start('poll', won, worker='w')
        store.finish('poll', won)
        assert won[0].fence > fence
        fence = won[0].fence

    assert len(store._rows['poll']) < 15_000
    assert store.start('poll', [kept], worker='w') == [kept]
    # A forgotten object's fence still grows, whatever the clock says.
    again = claim_one(store, TICK + MINUTE, key='0-0')
    assert again.fence > (TICK // 1000 << 8) + (MINUTE // 1000 << 8)
