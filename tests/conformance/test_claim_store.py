# SPDX-License-Identifier: Apache-2.0
"""Claims, the same in every store.

A store is a fixture and its name in ``STORES``. It may be used by many tests
and hold what earlier ones left in it, so each test has a job of its own.

What is allowed is not written down here: the tests of the moves are made
from the table in ``core/claim.py``.
"""

import collections
import contextlib
import itertools
import threading
import uuid

import hypothesis
import pytest
from hypothesis import strategies as st

from distperiodic.adapters import memory
from distperiodic.core import claim as claim_
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

STORES = ['memory_store']
#: They belong to one thread; whoever uses them in several takes turns.
ONE_THREAD = (memory.MemoryClaimStore,)

SECOND = 1_000_000
#: Instants of ticks, each later than those of any test before.
TICKS = itertools.count(1_700_000_000 * SECOND, 60 * SECOND)
LONG_AFTER = 4_000_000_000 * SECOND
OWNER = 'api-1~9f2c41d07be3a655~1~f1.t1.r40'
OTHER = 'api-2~00c0ffee00c0ffee~1~f1.t1.r40'
WORKER = 'worker-1~00c0ffee00c0ffee~1~f1.t1.s10'

DROPPED = [State.SKIPPED, State.SUPERSEDED, State.CANCELLED]


@pytest.fixture
def memory_store():
    return memory.MemoryClaimStore()


@pytest.fixture(params=STORES)
def store(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def job():
    return f'job-{uuid.uuid4().hex[:8]}'


@pytest.fixture
def tick():
    return next(TICKS)


def value(one):
    return getattr(one, 'value', one)


def take(store, job, tick, *objects, owner=OWNER):
    """Claim objects that are known to be free."""
    claimed = store.claim(job, tick, objects, owner=owner, supersede=False)
    assert [one.object for one in claimed.won] == list(objects)
    return claimed.won


def run(store, job, tick, *objects):
    """Claim objects that are free, and start them."""
    won = take(store, job, tick, *objects)
    assert store.start(job, won, worker=WORKER) == won
    return won


def bring(store, job, tick, key, state):
    """Bring a free object's tick to *state*; its newest claim."""
    [claim] = take(store, job, tick, key)
    if state is State.CLAIMED:
        return claim
    if state in DROPPED:
        assert store.drop(job, [claim], state) == 1
        return claim
    assert store.start(job, [claim], worker=WORKER) == [claim]
    if state is State.DONE:
        assert store.finish(job, [claim]) == 1
    elif state is State.DEAD:
        assert store.fail(job, claim, retry_at=None)
    elif state is State.RETRY:
        assert store.fail(job, claim, retry_at=LONG_AFTER)
    return claim


def due(store, job, now):
    """The retries of *job* that are due; those of others are taken as
    well.
    """
    found = []
    while some := store.due_retries(now, 100):
        found += some
    return [claim for name, claim in found if name == job]


def made(store, job, claim, move):
    """Try a move with a claim; whether it was made."""
    match move:
        case Move.CLAIM:
            return bool(store.claim(
                job, claim.tick + SECOND, [claim.object], owner=OTHER,
                supersede=False).won)
        case Move.START:
            return bool(store.start(job, [claim], worker=WORKER))
        case Move.FINISH:
            return bool(store.finish(job, [claim]))
        case Move.RETRY:
            return store.fail(job, claim, retry_at=LONG_AFTER)
        case Move.BURY:
            return store.fail(job, claim, retry_at=None)
        case Move.TAKE_BACK:
            return bool(store.take_back(job, [claim]))
        case Move.AGAIN:
            return bool(due(store, job, LONG_AFTER))
        case _:
            return bool(store.drop(job, [claim], claim_.MOVES[move][1]))


#: The moves that a holder of a claim may try with it.
HELD_MOVES = [m for m in Move if m not in (Move.CLAIM, Move.AGAIN)]


def void(store, job, claim):
    """Whether no move at all may be made with a claim."""
    return not any(made(store, job, claim, move) for move in HELD_MOVES)


# To claim.

def test_what_is_free_is_won_in_the_order_asked_for(store, job, tick):
    claimed = store.claim(job, tick, ['c', 'a', 'b'], owner=OWNER,
                          supersede=False)

    assert [one.object for one in claimed.won] == ['c', 'a', 'b']
    assert {one.tick for one in claimed.won} == {tick}
    assert {one.attempt for one in claimed.won} == {1}
    assert claimed.busy == []
    assert claimed.superseded == 0


def test_nothing_is_won_where_nothing_is_asked_for(store, job, tick):
    assert store.claim(job, tick, [], owner=OWNER, supersede=True) == (
        [], [], 0)


@pytest.mark.parametrize('supersede', [False, True])
@pytest.mark.parametrize('owner', [OWNER, OTHER], ids=['again', 'another'])
@pytest.mark.parametrize('state', list(State), ids=value)
def test_a_tick_of_an_object_is_won_once_whatever_became_of_it(
        store, job, tick, supersede, owner, state):
    bring(store, job, tick, 'a', state)

    claimed = store.claim(job, tick, ['a', 'b'], owner=owner,
                          supersede=supersede)

    assert [one.object for one in claimed.won] == ['b']
    assert claimed.busy == []
    assert claimed.superseded == 0


def test_an_object_that_stands_twice_in_a_list_is_won_once(store, job, tick):
    claimed = store.claim(job, tick, ['a', 'b', 'a'], owner=OWNER,
                          supersede=True)

    assert [one.object for one in claimed.won] == ['a', 'b']


def test_objects_of_two_jobs_have_nothing_to_do_with_each_other(
        store, job, tick):
    [one] = run(store, job, tick, 'a')
    other = f'{job}-other'

    [two] = take(store, other, tick, 'a')

    assert store.finish(other, [one, two]) == 0
    assert store.start(other, [two], worker=WORKER) == [two]
    assert store.finish(job, [one]) == 1


IDS = ["'; DROP TABLE claims; --", '%', '\\', 'a\nb', 'ü', '\U0001f600',
       ' ', 'A', 'a', 'a ', 'x' * 1024, '\u00e9', 'e\u0301']


def test_ids_are_told_apart_to_the_last_sign(store, job, tick):
    """No case folding, no trailing blanks, no normal form."""
    won = take(store, job, tick, *IDS)

    assert store.start(job, won, worker=WORKER) == won
    assert store.claim(job, tick, IDS, owner=OTHER, supersede=True).won == []
    assert store.finish(job, won) == len(IDS)


def test_thousands_are_claimed_started_and_finished_at_a_time(
        store, job, tick):
    objects = [f'object-{n}' for n in range(3000)]
    won = take(store, job, tick, *objects)

    claimed = store.claim(job, tick, [*objects, 'one more'], owner=OTHER,
                          supersede=True)

    assert [one.object for one in claimed.won] == ['one more']
    assert store.start(job, won, worker=WORKER) == won
    assert store.finish(job, won) == 3000


def test_of_many_that_ask_at_once_one_wins_each_object(store, job, tick):
    turns = (threading.Lock() if isinstance(store, ONE_THREAD)
             else contextlib.nullcontext())
    objects = [f'object-{n}' for n in range(200)]
    won = collections.Counter()
    start = threading.Barrier(6)

    def ask(number):
        start.wait(10)
        for at in range(0, len(objects), 20):
            with turns:
                claimed = store.claim(
                    job, tick, objects[at:at + 20], owner=f'api-{number}',
                    supersede=True)
            won.update(one.object for one in claimed.won)
    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert won == dict.fromkeys(objects, 1)


# The next tick.

@pytest.mark.parametrize('state', sorted(ENDINGS, key=value), ids=value)
@pytest.mark.parametrize('supersede', [False, True])
def test_after_an_ending_the_next_tick_is_won_with_a_higher_fence(
        store, job, tick, state, supersede):
    old = bring(store, job, tick, 'a', state)

    claimed = store.claim(job, tick + SECOND, ['a'], owner=OTHER,
                          supersede=supersede)

    [new] = claimed.won
    assert new.fence > old.fence
    assert new.attempt == 1
    assert claimed.superseded == 0
    assert void(store, job, old)
    assert store.start(job, [new], worker=WORKER) == [new]


def test_a_tick_that_was_not_started_is_superseded_by_the_next(
        store, job, tick):
    [old] = take(store, job, tick, 'a')

    claimed = store.claim(job, tick + SECOND, ['a', 'b'], owner=OTHER,
                          supersede=True)

    assert [one.object for one in claimed.won] == ['a', 'b']
    assert claimed.superseded == 1
    assert claimed.busy == []
    assert claimed.won[0].fence > old.fence
    assert void(store, job, old)


@pytest.mark.parametrize(('state', 'supersede'), [
    (State.CLAIMED, False), (State.RUNNING, False), (State.RUNNING, True),
    (State.RETRY, False), (State.RETRY, True)], ids=value)
def test_an_object_that_is_not_through_with_its_tick_is_busy(
        store, job, tick, state, supersede):
    held = bring(store, job, tick, 'a', state)

    claimed = store.claim(job, tick + SECOND, ['a', 'b'], owner=OTHER,
                          supersede=supersede)

    assert claimed.busy == ['a']
    assert [one.object for one in claimed.won] == ['b']
    assert claimed.superseded == 0
    if state is State.CLAIMED:
        assert store.start(job, [held], worker=WORKER) == [held]
    elif state is State.RUNNING:
        assert store.finish(job, [held]) == 1
    else:
        assert [one.object for one in due(store, job, LONG_AFTER)] == ['a']


# Moves, by the table.

@pytest.mark.parametrize('state', list(State), ids=value)
@pytest.mark.parametrize('move', list(Move), ids=value)
def test_a_move_is_made_from_the_states_that_the_table_names(
        store, job, tick, state, move):
    claim = bring(store, job, tick, 'a', state)

    assert made(store, job, claim, move) is claim_.allowed(move, state)


@pytest.mark.parametrize('state', list(State), ids=value)
@pytest.mark.parametrize('move', HELD_MOVES, ids=value)
@pytest.mark.parametrize('off', [-1, 1], ids=['old fence', 'forged fence'])
def test_no_move_is_made_with_a_fence_that_is_not_the_newest(
        store, job, tick, state, move, off):
    claim = bring(store, job, tick, 'a', state)

    wrong = claim._replace(fence=claim.fence + off)

    assert not made(store, job, wrong, move)
    right = next(m for m in Move if claim_.allowed(m, state))
    assert made(store, job, claim, right), 'it was disturbed'


@pytest.mark.parametrize('move', HELD_MOVES, ids=value)
def test_no_move_is_made_with_a_claim_that_nobody_has(
        store, job, tick, move):
    ghost = Claim('unheard of', 1, 1, tick)

    assert not made(store, job, ghost, move)
    take(store, job, tick, 'a')
    assert not made(store, job, ghost, move)


@pytest.mark.parametrize('move', [
    Move.START, Move.FINISH, Move.TAKE_BACK, Move.SKIP], ids=value)
def test_in_one_call_each_claim_is_judged_by_itself(store, job, tick, move):
    """One that is void or doubled neither stops nor doubles the others."""
    won = take(store, job, tick, 'a', 'b', 'c')
    if move in (Move.FINISH, Move.TAKE_BACK):
        store.start(job, won, worker=WORKER)
    stale = won[1]._replace(fence=won[1].fence - 1)
    mixed = [won[0], stale, Claim('x', 1, 1, tick), won[2], won[0]]

    match move:
        case Move.START:
            assert store.start(job, mixed, worker=WORKER) == [won[0], won[2]]
        case Move.FINISH:
            assert store.finish(job, mixed) == 2
        case Move.TAKE_BACK:
            assert [one.object for one in store.take_back(job, mixed)] == [
                'a', 'c']
        case Move.SKIP:
            assert store.drop(job, mixed, State.SKIPPED) == 2


# Retries.

def test_a_retry_comes_when_its_time_has_come_and_once(store, job, tick):
    [claim] = run(store, job, tick, 'a')
    assert store.fail(job, claim, retry_at=tick + 5 * SECOND)

    assert due(store, job, tick + 5 * SECOND - 1) == []
    [again] = due(store, job, tick + 5 * SECOND)
    assert due(store, job, LONG_AFTER) == []

    assert (again.object, again.tick) == ('a', tick)
    assert again.attempt == 2
    assert again.fence > claim.fence
    assert void(store, job, claim)
    assert store.start(job, [again], worker=WORKER) == [again]
    assert store.finish(job, [again]) == 1


def test_attempts_are_counted(store, job, tick):
    [claim] = take(store, job, tick, 'a')
    fences = [claim.fence]
    for attempt in range(1, 6):
        assert claim.attempt == attempt
        assert store.start(job, [claim], worker=WORKER) == [claim]
        assert store.fail(job, claim, retry_at=tick + attempt)
        [claim] = due(store, job, tick + attempt)
        fences.append(claim.fence)

    assert fences == sorted(set(fences))


def test_retries_come_oldest_first_and_no_more_than_asked_for(
        store, job, tick):
    due(store, job, LONG_AFTER)
    won = run(store, job, tick, 'a', 'b', 'c', 'd')
    for claim, late in zip(won, (30, 10, 40, 20), strict=True):
        assert store.fail(job, claim, retry_at=tick + late)

    first = store.due_retries(tick + 30, 2)
    rest = store.due_retries(tick + 30, 100)
    last = store.due_retries(tick + 40, 100)

    assert [claim.object for _, claim in first] == ['b', 'd']
    assert [claim.object for _, claim in rest] == ['a']
    assert [claim.object for _, claim in last] == ['c']


def test_a_retry_that_was_cancelled_does_not_come(store, job, tick):
    [claim] = run(store, job, tick, 'a')
    assert store.fail(job, claim, retry_at=tick)

    assert store.drop(job, [claim], State.CANCELLED) == 1

    assert due(store, job, LONG_AFTER) == []
    take(store, job, tick + SECOND, 'a')
    assert due(store, job, LONG_AFTER) == []


# Take back.

def test_what_is_taken_back_can_be_started_anew_and_not_by_the_old_worker(
        store, job, tick):
    [claim] = run(store, job, tick, 'a')

    [anew] = store.take_back(job, [claim])

    assert (anew.object, anew.tick) == ('a', tick)
    assert anew.attempt == claim.attempt, 'it did not fail'
    assert anew.fence > claim.fence
    assert void(store, job, claim)
    assert store.start(job, [anew], worker=WORKER) == [anew]
    assert store.finish(job, [claim]) == 0
    assert store.finish(job, [anew]) == 1


def test_the_fence_of_an_object_only_grows(store, job, tick):
    fences = []
    for _ in range(3):
        [claim] = take(store, job, tick, 'a')
        fences.append(claim.fence)
        for _ in range(3):
            store.start(job, [claim], worker=WORKER)
            [claim] = store.take_back(job, [claim])
            fences.append(claim.fence)
        store.start(job, [claim], worker=WORKER)
        store.finish(job, [claim])
        tick += 1000  # the shortest spacing there is

    assert fences == sorted(set(fences))


# Whatever happens.

def end(store, job, claim, what):
    """End a run, or a claim; whether it counted."""
    match what:
        case 'finish':
            return store.finish(job, [claim]) == 1
        case 'retry':
            return store.fail(job, claim, retry_at=LONG_AFTER)
        case 'bury':
            return store.fail(job, claim, retry_at=None)
        case ending:
            return store.drop(job, [claim], ending) == 1


OPERATIONS = st.lists(st.tuples(
    st.sampled_from(['claim', 'start', 'finish', 'retry', 'bury', 'take back',
                     'again', *DROPPED]),
    st.sets(st.sampled_from('abc'), min_size=1).map(sorted),
    st.booleans(), st.integers(0, 3)), max_size=40)


@hypothesis.settings(suppress_health_check=[
    hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(operations=OPERATIONS)
def test_fences_only_grow_and_each_starts_and_counts_once(store, operations):
    """Any order of calls, with any of the claims that were ever given."""
    job = f'job-{uuid.uuid4().hex[:8]}'
    tick = next(TICKS)
    given = {key: [] for key in 'abc'}
    started, counted = set(), set()
    won_for = set()

    def grant(claims):
        for one in claims:
            fences = [old.fence for old in given[one.object]]
            assert not fences or one.fence > max(fences)
            given[one.object].append(one)

    for what, keys, flag, age in operations:
        held = [given[key][-1 - age] for key in keys
                if len(given[key]) > age]
        if what == 'claim':
            tick += SECOND * flag
            claimed = store.claim(job, tick, keys, owner=OWNER,
                                  supersede=bool(age % 2))
            grant(claimed.won)
            names = [one.object for one in claimed.won]
            assert set(names).isdisjoint(claimed.busy)
            assert won_for.isdisjoint((name, tick) for name in names)
            won_for.update((name, tick) for name in names)
        elif what == 'start':
            for one in store.start(job, held, worker=WORKER):
                assert (one.object, one.fence) not in started
                assert one == given[one.object][-1]
                started.add((one.object, one.fence))
        elif what == 'take back':
            fences = {(one.object, one.fence) for one in held}
            anew = store.take_back(job, held)
            assert len(anew) <= len(fences & started)
            grant(anew)
        elif what == 'again':
            grant(due(store, job, LONG_AFTER + 1))
        else:
            for one in held:
                if not end(store, job, one, what):
                    continue
                key = one.object, one.fence
                assert one == given[one.object][-1]
                assert (key in started) or what in DROPPED
                # What waits for a retry has ended, and may be cancelled.
                assert key not in counted or what is State.CANCELLED
                counted.add(key)
