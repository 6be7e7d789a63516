# SPDX-License-Identifier: Apache-2.0
"""Claims: guarantees that every store of claims gives.

Each kind of store is a :class:`World`, with a name in ``WORLDS``. Several
tests may share the database of a world, and earlier tests may have left rows
in it. So each test uses a job of its own.

This module does not list the allowed moves. It generates the tests of the
moves from the table in ``core/claim.py``.
"""

import collections
import contextlib
import functools
import itertools
import json
import threading
import time
import uuid

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from oslo_db import exception as db_exception

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import takeover
from distperiodic.adapters.sql.session import finish_in
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core import claim as claims
from distperiodic.core import due
from distperiodic.core import outcomes
from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import UNSTARTED_FIRST
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import Move
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.claim_request import KnownSchedule
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.histogram import BOUNDS
from distperiodic.core.histogram import Histogram
from distperiodic.core.job_set import mark_of
from distperiodic.core.ring import Arc
from distperiodic.core.ring import position_of
from distperiodic.core.ring import positions_of
from tests import claiming
from tests import waiting
from tests.conformance.cases import each
from tests.simulation import journal
from tests.simulation import store as simulated

SECOND = 1_000_000
#: Instants of ticks. Each is later than the ticks of all earlier tests.
TICKS = itertools.count(1_700_000_000 * SECOND, 60 * SECOND)
SCHEDULER = 'api-1~9f2c41d07be3a655~1~f1.t1.r40'
OTHER = 'api-2~00c0ffee00c0ffee~1~f1.t1.r40'
WORKER = 'worker-1~00c0ffee00c0ffee~1~f1.t1.s10'
#: Duration in seconds of a lease that outlasts each test, and of a lease that
#: has expired from the start.
LONG, OVER = 600.0, -1.0

#: Final states of claims that did not run.
DROPPED = [state for state in State
           if state in ENDINGS - {State.DONE, State.DEAD}]
#: The states that every store has. COMMITTED is left out: it needs a session
#: of a database; see :func:`end_in_a_session`.
STATES = [state for state in State if state is not State.COMMITTED]
#: The moves that schedulers and workers request. The other moves belong to
#: sessions or operators, or are a part of another call.
MOVES = [move for move in Move
         if move not in (Move.COMMIT, Move.COUNT, Move.REQUEUE)]


class World:
    """A kind of store, and the stores of this kind that a test opens."""

    def __init__(self, make, shared=True):
        self._make = make
        #: Stores that no test uses. Tests use them again: a new connection
        #: takes longer than a short test.
        self._idle = []
        self._uses = 0
        #: True if several stores share the same claims.
        self.shared = shared

    @contextlib.contextmanager
    def store(self):
        """Lend a store for use in one thread. If ``shared``, it has the claims
        of the world's other stores.
        """
        store = self._idle.pop() if self._idle else self._make()
        yield store
        if self.shared:
            self._idle.append(store)

    @contextlib.contextmanager
    def used(self):
        """Lend the world to one test.

        A store reads the rows of all jobs of its namespace, so delete them now
        and then.
        """
        yield self
        self._uses += 1
        if self.shared and self._uses % 10 == 0:
            with self.store() as store:
                store.forget()

    def close(self):
        while self._idle:
            self._idle.pop().close()


@contextlib.contextmanager
def sql(url):
    schema.sync(url)
    world = World(lambda: SqlClaimStore(url, namespace='tests'))
    yield world
    world.close()


@pytest.fixture(scope='session')
def of_memory():
    return World(MemoryClaimStore, shared=False)


@pytest.fixture(scope='session')
def of_simulation():
    """The simulation's store. All members of a simulation share one store
    object.
    """
    shared = simulated.SharedStore(
        SystemClock(), journal.Journal(SystemClock().now))
    return World(lambda: shared, shared=False)


@pytest.fixture(scope='session')
def of_sqlite(tmp_path_factory):
    place = tmp_path_factory.mktemp('claims')
    with sql(f'sqlite:///{place}/claims.sqlite') as world:
        yield world


@pytest.fixture(scope='session')
def of_postgresql(postgresql):
    with sql(postgresql.url) as world:
        yield world


@pytest.fixture(scope='session')
def of_psycopg2(postgresql):
    url = sa.make_url(postgresql.url).set(drivername='postgresql+psycopg2')
    with sql(url.render_as_string(hide_password=False)) as world:
        yield world


@pytest.fixture(scope='session')
def of_mariadb(mariadb):
    with sql(mariadb.url) as world:
        yield world


SHARED = ['sqlite', 'postgresql', 'mariadb']
WORLDS = ['memory', 'simulation', *SHARED]


@pytest.fixture(params=WORLDS)
def world(request):
    with request.getfixturevalue(f'of_{request.param}').used() as world:
        yield world


@pytest.fixture(params=SHARED)
def shared(request):
    """A world with several stores, in which answers may get lost."""
    with request.getfixturevalue(f'of_{request.param}').used() as world:
        yield world


@pytest.fixture
def store(world):
    with world.store() as one:
        yield one


@pytest.fixture
def one(shared):
    with shared.store() as store:
        yield store


@pytest.fixture
def another(shared):
    with shared.store() as store:
        yield store


@pytest.fixture
def job():
    return f'job-{uuid.uuid4().hex[:8]}'


@pytest.fixture
def tick():
    return next(TICKS)


def value(one):
    return getattr(one, 'value', one)


def name():
    """The name of a new lease."""
    return uuid.uuid4().hex


def objects_of(claims):
    return [one.object for one in claims]


def same(claims, others):
    """Return whether these are the same claims, whatever their places."""
    return [one[:4] for one in claims] == [one[:4] for one in others]


def enlist(store, job, tick, *keys, at=None, rule=''):
    """List objects with the watermark *tick*."""
    own = Attributes(rule)
    assert store.sync(
        job, [ports.Listed(key, own, tick) for key in keys], [],
        readings=[tick + 1 if at is None else at]) == []


def delist(store, job, at, *keys):
    assert store.sync(job, [], keys, readings=[at]) == []


def claim(store, job, tick, objects, lease=None, **options):
    return claiming.claim(store, job, tick, objects, lease=lease or name(), **{
        'holder': SCHEDULER, 'seconds': LONG, 'supersede': False, **options})


def take(store, job, tick, *objects, **options):
    """Claim free objects; return the lease and the claims."""
    lease = name()
    claimed = claim(store, job, tick, objects, lease, **options)
    assert objects_of(claimed.won) == list(objects)
    return lease, claimed.won


def begin(store, job, tick, objects, lease, into=None, holder=WORKER,
          seconds=LONG, **options):
    return store.start(
        HeldLease(lease, job, tick), objects,
        NewLease(into or name(), holder, seconds), **options)


def run(store, job, tick, *objects, **options):
    """Claim and start free objects; return the worker's lease and the claims.
    """
    lease, won = take(store, job, tick, *objects)
    into = name()
    granted = begin(store, job, tick, objects, lease, into, **options)
    assert same(granted, won)
    return into, granted


def fail(store, job, tick, objects, lease, into, seconds=0.0, holder=''):
    return store.fail(
        HeldLease(lease, job, tick),
        [Failure(key, 'a reason', 'a place') for key in objects],
        into and NewLease(into, holder, seconds))


def reclaim(store, job, tick, objects, *leases, into=None, holder=SCHEDULER,
            seconds=LONG, **options):
    return store.reclaim(
        [HeldLease(lease, job, tick) for lease in leases], objects,
        NewLease(into or name(), holder, seconds), **options)


def drop(store, job, tick, objects, lease, ending):
    return store.discard(
        HeldLease(lease, job, tick), objects, ending,
        reason='somebody said so')


def overdue(store, job, holder=OTHER, gone=(), limit=100, seconds=LONG,
            into=None, **options):
    return store.take_over_expired(
        TakeOverRequest([job], gone, limit, **options),
        NewLease(into or name(), holder, seconds))


def bring(store, job, tick, key, state):
    """Bring a free object's tick to *state*; return its lease and newest
    claim.

    An object that is only listed has no claim, so the result for LISTED is
    ('', None).
    """
    if state is State.LISTED:
        enlist(store, job, tick - SECOND, key)
        return '', None
    lease, [newest] = take(store, job, tick, key)
    if state is State.CLAIMED:
        return lease, newest
    if state in DROPPED:
        assert drop(store, job, tick, [key], lease, state) == 1
        return lease, newest
    running = name()
    [granted] = begin(store, job, tick, [key], lease, running)
    assert same([granted], [newest])
    if state is State.DONE:
        assert store.finish(HeldLease(running, job, tick), [key]) == {key}
    elif state is State.DEAD:
        assert fail(store, job, tick, [key], running, None) == {key}
    elif state is State.RETRY:
        retry = name()
        assert fail(store, job, tick, [key], running, retry, 0.0) == {key}
        return retry, newest
    return running, newest


def made(store, job, tick, key, lease, move):
    """Try a move with a lease; return True if the store made it."""
    match move:
        case Move.CLAIM:
            return bool(claim(store, job, tick + SECOND, [key]).won)
        case Move.START:
            return bool(begin(store, job, tick, [key], lease))
        case Move.FINISH:
            return bool(store.finish(HeldLease(lease, job, tick), [key]))
        case Move.RETRY:
            return bool(fail(store, job, tick, [key], lease, name(), LONG))
        case Move.BURY:
            return bool(fail(store, job, tick, [key], lease, None))
        case Move.RECLAIM:
            return bool(reclaim(store, job, tick, [key], lease))
        case Move.TAKE_OVER:
            return bool(overdue(store, job))
        case _:
            return bool(drop(store, job, tick, [key], lease,
                             claims.MOVES[move][1]))


#: The moves for which a caller must name the claim's lease.
HELD_MOVES = [m for m in MOVES if m not in (Move.CLAIM, Move.TAKE_OVER)]


def void(store, job, tick, key, lease):
    """Return True if no move can be made with a lease."""
    return not any(made(store, job, tick, key, lease, move)
                   for move in HELD_MOVES)


def together(world, count, work):
    """Call work(store, number) in *count* threads at once; return the results.
    """
    barrier = threading.Barrier(count)
    results = [None] * count
    errors = []

    def body(number):
        try:
            with world.store() as store:
                store.now()
                barrier.wait(20)
                results[number] = work(store, number)
        except Exception as exc:
            errors.append(exc)
    threads = [threading.Thread(target=body, args=(number,))
               for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


# Claims.

def test_free_objects_are_won_in_the_order_of_the_request(store, job, tick):
    claimed = claim(store, job, tick, ['c', 'a', 'b'])

    assert objects_of(claimed.won) == ['c', 'a', 'b']
    assert {one.tick for one in claimed.won} == {tick}
    assert {one.attempt for one in claimed.won} == {1}
    assert claimed.busy == []
    assert claimed.superseded == 0


def test_nothing_is_won_where_nothing_is_asked_for(store, job, tick):
    assert claim(store, job, tick, [])[:3] == ([], [], 0)
    assert overdue(store, job) == []


#: The states of an object that has a claim.
CLAIM_STATES = [state for state in STATES if state is not State.LISTED]


@each('supersede, state', itertools.product([False, True], CLAIM_STATES))
def test_a_tick_of_an_object_is_won_once_in_every_state(
        store, job, tick, supersede, state):
    bring(store, job, tick, 'a', state)

    claimed = claim(store, job, tick, ['a', 'b'], holder=OTHER,
                    supersede=supersede)

    assert objects_of(claimed.won) == ['b']
    assert claimed.busy == []
    assert claimed.superseded == 0


def test_an_object_that_stands_twice_in_a_list_is_won_once(store, job, tick):
    claimed = claim(store, job, tick, ['a', 'b', 'a'])

    assert objects_of(claimed.won) == ['a', 'b']


def test_a_claim_without_new_objects_takes_listed_ones_only(store, job, tick):
    bring(store, job, tick, 'a', State.DONE)

    claimed = claim(store, job, tick + SECOND, ['a', 'b'], listing=False)

    assert objects_of(claimed.won) == ['a']
    assert claimed.busy == []


def test_an_object_behind_the_previous_tick_is_returned_and_not_claimed(
        store, job, tick):
    for key, state in ('a', State.DONE), ('b', State.SKIPPED):
        bring(store, job, tick, key, state)
    bring(store, job, tick, 'c', State.RUNNING)
    bring(store, job, tick + SECOND, 'd', State.DONE)

    claimed = claim(store, job, tick + 2 * SECOND, ['a', 'd', 'c', 'b', 'e'],
                    min_watermark=tick + SECOND)

    assert objects_of(claimed.won) == ['d', 'e']
    assert claimed.busy == []
    assert sorted((row.object, row.settled, row.free)
                  for row in claimed.behind) == [
        ('a', tick, True), ('b', tick, True), ('c', tick, False)]
    caught_up = claim(store, job, tick + SECOND, ['a', 'b'],
                      min_watermark=tick)
    assert objects_of(caught_up.won) == ['a', 'b']
    assert list(caught_up.behind) == []


def test_a_listing_that_is_a_tick_comes_before_later_ticks(
        store, job, tick):
    listed = tick + SECOND // 2
    store.sync(
        job, [ports.Listed(key, PLAIN, listed - 1) for key in 'abc'], [],
        readings=[listed])
    claim(store, job, listed, ['a'], listing=False, listing_is_tick=True)
    later, options = tick + SECOND, {
        'listing': False, 'min_watermark': tick, 'supersede': True}

    claimed = claim(store, job, later, ['a', 'b'], listing_is_tick=True,
                    **options)
    assert objects_of(claimed.won) == ['a']
    assert [(row.object, row.settled) for row in claimed.behind] == [
        ('b', listed - 1)]

    assert objects_of(claim(
        store, job, later, ['c'], **options).won) == ['c']
    assert objects_of(claim(
        store, job, listed, ['b'], listing=False,
        listing_is_tick=True).won) == ['b']


def test_objects_of_two_jobs_have_nothing_to_do_with_each_other(
        store, job, tick):
    lease, _ = run(store, job, tick, 'a')
    other = f'{job}-other'

    waiting, [two] = take(store, other, tick, 'a')

    assert store.finish(HeldLease(waiting, other, tick), ['a']) == set()
    assert same(begin(store, other, tick, ['a'], waiting), [two])
    assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}


IDS = ["'; DROP TABLE claims; --", '%', '%s', ':a', '\\', 'a\nb', '"', '{}',
       '\u00fc', '\U0001f600', ' ', 'A', 'a', 'a ', 'x' * 255, '\u00e9',
       'e\u0301', '\U0001f600' * 255, 'NULL', '[1]', '0']


def test_ids_are_compared_exactly(store, job, tick):
    """The store compares ids exactly: it folds no case, strips no blanks and
    normalizes no Unicode.
    """
    lease, won = take(store, job, tick, *IDS)
    running = name()

    granted = begin(store, job, tick, IDS, lease, running)
    assert same(granted, won)
    assert claim(store, job, tick, IDS, supersede=True).won == []
    for key in IDS[:-1]:
        assert store.finish(HeldLease(running, job, tick), [key]) == {key}
    claimed = claim(store, job, tick + SECOND, IDS)
    assert objects_of(claimed.won) == IDS[:-1]
    assert claimed.busy == IDS[-1:]


def test_names_of_holders_and_jobs_are_compared_exactly(store, job, tick):
    lease, _ = take(store, job, tick, 'a', holder='api ')

    assert store.renew([lease], holder='api', seconds=LONG) == set()
    assert store.renew([lease], holder='API ', seconds=LONG) == set()
    assert overdue(store, job, gone=['api', 'API ']) == []
    assert store.renew([lease], holder='api ', seconds=LONG) == {lease}
    take(store, job.upper(), tick, 'a')
    take(store, f'{job} ', tick, 'a')


def test_holders_are_the_owners_of_leases_of_these_jobs(store, job, tick):
    assert store.holders([]) == store.holders([job]) == set()
    lease, _ = take(store, job, tick, 'a', 'b', holder='api ')
    take(store, f'{job}-2', tick, 'a', holder='other')
    assert store.holders([job]) == {'api '}

    running = name()
    begin(store, job, tick, ['a'], lease, running, holder=WORKER)
    assert store.holders([job, f'{job}-2']) == {'api ', WORKER, 'other'}

    # A claim that waits for its retry has no holder.
    assert fail(store, job, tick, ['a'], running, name(),
                LONG) == {'a'}
    drop(store, job, tick, ['b'], lease, State.CANCELLED)
    assert store.holders([job]) == set()


def test_thousands_are_claimed_started_and_finished_at_a_time(
        store, job, tick):
    objects = [f'object-{n}' for n in range(3000)]
    lease, won = take(store, job, tick, *objects)

    claimed = claim(store, job, tick, [*objects, 'one more'])

    assert objects_of(claimed.won) == ['one more']
    running = name()
    granted = begin(store, job, tick, objects, lease, running)
    assert same(granted, won)
    assert store.finish(HeldLease(running, job, tick), objects) == {*objects}
    assert len(claim(store, job, tick + 1, objects).won) == 3000


# The next tick.

@each('state, supersede', itertools.product(
    sorted(ENDINGS, key=value), [False, True]))
def test_after_an_ending_the_next_tick_is_won_with_a_higher_fence(
        store, job, tick, state, supersede):
    lease, old = bring(store, job, tick, 'a', state)

    waiting = name()
    claimed = claim(store, job, tick + SECOND, ['a'], waiting,
                    supersede=supersede)

    [new] = claimed.won
    assert new.fence > old.fence
    assert new.attempt == 1
    assert claimed.superseded == 0
    assert begin(store, job, tick + SECOND, ['a'], lease) == []
    assert reclaim(store, job, tick + SECOND, ['a'], lease) == []
    assert same(begin(store, job, tick + SECOND, ['a'], waiting), [new])


def test_a_tick_that_was_not_started_is_superseded_by_the_next(
        store, job, tick):
    lease, [old, kept] = take(store, job, tick, 'a', 'c')

    claimed = claim(store, job, tick + SECOND, ['a', 'b'], supersede=True)

    assert objects_of(claimed.won) == ['a', 'b']
    assert claimed.superseded == 1
    assert claimed.busy == []
    assert claimed.won[0].fence > old.fence
    assert void(store, job, tick, 'a', lease)
    assert same(begin(store, job, tick, ['a', 'c'], lease), [kept])


def line(claims):
    """Return the objects in the order in which they are to be sent."""
    return objects_of(sorted(claims, key=lambda one: one.place))


def test_an_object_that_never_started_waits_since_its_claim(store, job, tick):
    enlist(store, job, tick, 'a')
    before = store.now()

    [first] = claim(store, job, tick + SECOND, ['a'], listing=False).won

    assert before <= first.waiting <= store.now()
    assert first.place == first.waiting - UNSTARTED_FIRST


def test_a_claim_that_supersedes_another_has_its_place(store, job, tick):
    bring(store, job, tick, 'a', State.DONE)
    _, [first] = take(store, job, tick + SECOND, 'a')

    [second] = claim(store, job, tick + 2 * SECOND, ['a'], supersede=True).won
    [third] = claim(store, job, tick + 3 * SECOND, ['a'], supersede=True).won

    assert first[4:] == second[4:] == third[4:]
    assert third.place < third.waiting


def test_an_object_that_ran_joins_the_line_behind_all_others(store, job, tick):
    for key in 'abc':
        into, _ = run(store, job, tick, key)
        store.finish(HeldLease(into, job, tick), [key])
    lease, _ = take(store, job, tick + SECOND, 'a', 'b', 'c')
    into = name()
    begin(store, job, tick + SECOND, ['b'], lease, into)
    store.finish(HeldLease(into, job, tick + SECOND), ['b'])

    claimed = claim(store, job, tick + 2 * SECOND, ['c', 'b', 'a'],
                    supersede=True)

    assert line(claimed.won) == ['a', 'c', 'b']
    waiting = {one.object: one.waiting for one in claimed.won}
    assert waiting['a'] == waiting['c'] < waiting['b']


def test_a_run_that_was_returned_unstarted_goes_on_waiting(store, job, tick):
    bring(store, job, tick, 'a', State.DONE)
    lease, [claimed] = take(store, job, tick + SECOND, 'a')
    into = name()
    begin(store, job, tick + SECOND, ['a'], lease, into)

    [returned] = reclaim(store, job, tick + SECOND, ['a'], into,
                         count_attempt=False)

    assert returned.waiting == claimed.waiting
    assert returned.place == claimed.waiting - UNSTARTED_FIRST


def test_a_run_that_was_lost_joins_the_line_again(store, job, tick):
    into, [granted] = run(store, job, tick, 'a')

    [again] = reclaim(store, job, tick, ['a'], into)

    assert granted.waiting <= granted.place == again.place <= again.waiting


def test_a_claim_that_is_taken_over_keeps_its_place(store, job, tick):
    bring(store, job, tick, 'a', State.DONE)
    [claimed] = claim(store, job, tick + SECOND, ['a'], seconds=-1).won

    [lease] = overdue(store, job)

    assert [one[4:] for one in lease.claims] == [claimed[4:]]


@each('state, supersede', [
    (State.CLAIMED, False), (State.RUNNING, False), (State.RUNNING, True),
    (State.RETRY, False), (State.RETRY, True)])
def test_an_object_that_is_not_through_with_its_tick_is_busy_or_waits(
        store, job, tick, state, supersede):
    lease, held = bring(store, job, tick, 'a', state)

    claimed = claim(store, job, tick + SECOND, ['a', 'b'],
                    supersede=supersede)

    waits = state is State.CLAIMED
    assert (claimed.waiting if waits else claimed.busy) == ['a']
    assert (claimed.busy if waits else claimed.waiting) == []
    assert objects_of(claimed.won) == ['b']
    assert claimed.superseded == 0
    if state is State.CLAIMED:
        assert same(begin(store, job, tick, ['a'], lease), [held])
    elif state is State.RUNNING:
        assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}
    else:
        [again] = overdue(store, job)
        assert objects_of(again.claims) == ['a']


def test_the_tick_of_a_claim_never_goes_back(one, job, tick):
    for state in CLAIM_STATES:
        bring(one, job, tick, state.value, state)

    claimed = claim(one, job, tick - SECOND,
                    [state.value for state in CLAIM_STATES], supersede=True)

    assert claimed[:3] == ([], [], 0)


# Moves, according to the table.

@each('state, move', [
    (state, move) for state in STATES for move in MOVES
    # The move that leads to an ended state is left out. In this state it is a
    # repeated call, which succeeds.
    if (state, move) not in (
        (State.DONE, Move.FINISH), (State.DEAD, Move.BURY),
        *((s, claims.ENDING_MOVES[s]) for s in DROPPED))])
def test_a_move_is_made_from_the_states_that_the_table_names(
        store, job, tick, state, move):
    lease, _ = bring(store, job, tick, 'a', state)

    assert made(store, job, tick, 'a', lease, move) is (
        claims.allowed(move, state))


@each('state, move', itertools.product(STATES, HELD_MOVES))
def test_no_move_is_made_with_another_lease(store, job, tick, state, move):
    lease, _ = bring(store, job, tick, 'a', state)
    other, _ = take(store, job, tick, 'b')

    for wrong in other, name(), '', lease.upper() + 'x':
        assert not made(store, job, tick, 'a', wrong, move)
    if state not in ENDINGS and state is not State.LISTED:
        right = next(m for m in MOVES if claims.allowed(m, state))
        assert made(store, job, tick, 'a', lease, right), 'it was disturbed'


@each('move', HELD_MOVES)
def test_no_move_is_made_with_an_unknown_object(store, job, tick, move):
    assert not made(store, job, tick, 'unheard of', name(), move)
    lease, _ = take(store, job, tick, 'a')
    assert not made(store, job, tick, 'unheard of', lease, move)


@each('move', [Move.START, Move.FINISH, Move.RETRY, Move.BURY, Move.RECLAIM,
               Move.SKIP])
def test_in_one_call_each_claim_is_judged_by_itself(store, job, tick, move):
    """If some claims in a call are void or repeated, the other claims of the
    call are not affected.
    """
    begun = move in (Move.FINISH, Move.RETRY, Move.BURY)
    lease, won = (run if begun else take)(store, job, tick, 'a', 'b', 'c')
    if begun:
        assert reclaim(store, job, tick, ['b'], lease) != []
    else:
        assert same(begin(store, job, tick, ['b'], lease), [won[1]])
    mixed = ['a', 'b', 'x', 'c', 'a']

    match move:
        case Move.START:
            assert same(begin(store, job, tick, mixed, lease),
                        [won[0], won[2]])
        case Move.FINISH:
            assert store.finish(
                HeldLease(lease, job, tick), mixed) == {'a', 'c'}
        case Move.RETRY:
            assert fail(store, job, tick, mixed, lease, name(), 1.0) == {
                'a', 'c'}
        case Move.BURY:
            assert fail(store, job, tick, mixed, lease, None) == {'a', 'c'}
        case Move.RECLAIM:
            assert objects_of(reclaim(store, job, tick, mixed, lease)) == [
                'a', 'c']
        case Move.SKIP:
            assert drop(store, job, tick, mixed, lease, State.SKIPPED) == 2


def test_a_lease_of_another_holder_takes_nothing_in(store, job, tick):
    lease, won = take(store, job, tick, 'a', 'b')
    into = name()
    assert same(begin(store, job, tick, ['a'], lease, into), [won[0]])

    assert begin(store, job, tick, ['a', 'b'], lease, into,
                 holder='worker-2') == []

    assert same(begin(store, job, tick, ['b'], lease, holder='worker-2'),
                [won[1]])


# Expired leases.

def test_a_lease_that_ended_is_taken_over_once(store, job, tick):
    lease, [old] = take(store, job, tick, 'a', seconds=OVER)
    kept, _ = take(store, job, tick, 'b')

    [over] = overdue(store, job)

    assert overdue(store, job) == []
    assert (over.job, over.tick) == (job, tick)
    assert over.id not in (lease, kept)
    [new] = over.claims
    assert new.object == 'a'
    assert new.fence > old.fence
    assert new.attempt == 1, 'it was not run'
    assert void(store, job, tick, 'a', lease)
    assert same(begin(store, job, tick, ['a'], over.id), [new])


def test_a_run_in_a_lease_that_ended_has_its_next_attempt(store, job, tick):
    lease, [old, done] = run(store, job, tick, 'a', 'b', seconds=OVER)
    assert store.finish(HeldLease(lease, job, tick), ['b']) == {'b'}

    [over] = overdue(store, job)

    [new] = over.claims
    assert (new.object, new.attempt) == ('a', 2)
    assert new.fence > old.fence
    assert void(store, job, tick, 'a', lease)
    assert same(begin(store, job, tick, ['a', 'b'], over.id), [new])


def test_a_lease_lasts_as_long_as_requested(store, job, tick):
    before = store.now()
    take(store, job, tick, 'a', seconds=0.3)
    early = overdue(store, job)
    asked = store.now()
    while not (over := overdue(store, job)):
        assert store.now() < before + 5 * SECOND, 'it never ends'
        time.sleep(0.02)

    assert early == [] or asked >= before + 0.3 * SECOND
    assert store.now() >= before + 0.3 * SECOND
    assert objects_of(over[0].claims) == ['a']


def test_a_lease_that_was_taken_over_ends_as_well(store, job, tick):
    take(store, job, tick, 'a', seconds=OVER)
    [first] = overdue(store, job, seconds=OVER)

    [second] = overdue(store, job, holder=SCHEDULER)

    assert second.id != first.id
    assert second.claims[0].fence > first.claims[0].fence
    assert store.renew([first.id, second.id], holder=OTHER,
                       seconds=LONG) == set()
    assert store.renew([second.id], holder=SCHEDULER, seconds=LONG) == {
        second.id}


def test_a_lease_of_a_holder_that_is_gone_is_taken_over_at_once(
        store, job, tick):
    lease, _ = run(store, job, tick, 'a')
    take(store, job, tick, 'b')

    [over] = overdue(store, job, gone=['nobody', WORKER, ''])

    assert objects_of(over.claims) == ['a']
    assert store.renew([lease], holder=WORKER, seconds=LONG) == set()


def test_a_lease_of_a_holder_that_is_gone_is_not_taken_over_while_it_renews(
        store, job, tick):
    """The holders may be alive, but cut off from the other members."""
    lease, _ = run(store, job, tick, 'a')
    over = functools.partial(
        overdue, store, job, gone=[WORKER], silence_timeout=60.0)

    assert over() == []
    store.renew([lease], holder=WORKER, seconds=LONG - 59)
    assert over() == []
    store.renew([lease], holder=WORKER, seconds=LONG - 61)
    assert [objects_of(one.claims) for one in over()] == [['a']]


def test_a_lease_that_is_renewed_after_it_was_found_is_not_taken_over(
        one, another, job, tick, monkeypatch):
    """A take-over checks again that the lease has expired."""
    lease, _ = run(one, job, tick, 'a', seconds=OVER)
    take_over = takeover.take_over

    judged = []

    def taken(tx, old, *others):
        judged.append(old.id)
        tx.connection.execute(sa.update(tables.lease).values(
            until=one.database.dialect.now + 60 * SECOND).where(
                tables.lease.c.id == lease))
        return take_over(tx, old, *others)
    monkeypatch.setattr(takeover, 'take_over', taken)

    assert overdue(another, job) == []
    assert judged == [lease]
    assert one.renew([lease], holder=WORKER, seconds=LONG) == {lease}


def test_an_object_that_waits_for_a_retry_is_taken_over_from_no_holder(
        store, job, tick):
    retry, _ = bring(store, job, tick, 'a', State.RUNNING)
    assert fail(store, job, tick, ['a'], retry, name(), LONG) == {'a'}

    assert overdue(store, job, gone=['', WORKER]) == []


def test_those_that_ended_first_are_taken_over_first(store, job, tick):
    for key, seconds in ('a', -2.0), ('b', -4.0), ('c', -1.0), ('d', -3.0):
        take(store, job, tick, key, seconds=seconds)

    first = overdue(store, job, limit=2)
    rest = overdue(store, job, limit=2)

    assert [one.claims[0].object for one in first] == ['b', 'd']
    assert [one.claims[0].object for one in rest] == ['a', 'c']
    assert overdue(store, job) == []


def test_only_leases_of_the_jobs_asked_for_are_taken_over(store, job, tick):
    other = f'{job}-other'
    take(store, job, tick, 'a', seconds=OVER)
    take(store, other, tick, 'a', seconds=OVER)

    [one] = overdue(store, job)
    both = store.take_over_expired(
        TakeOverRequest([job, other, 'unheard of'], [], 9),
        NewLease(name(), OTHER, LONG))

    assert one.job == job
    assert [lease.job for lease in both] == [other]


def test_a_lease_of_which_all_is_done_is_gone(store, job, tick):
    lease, _ = take(store, job, tick, 'a', 'b')
    running = name()
    begin(store, job, tick, ['a'], lease, running)
    begin(store, job, tick, ['b'], lease)
    store.finish(HeldLease(running, job, tick), ['a'])

    assert store.renew([lease, running], holder=SCHEDULER,
                       seconds=LONG) == set()
    assert store.renew([lease, running], holder=WORKER,
                       seconds=LONG) == set()


def test_a_lease_is_renewed_by_its_holder(store, job, tick):
    lease, [held] = run(store, job, tick, 'a', seconds=OVER)
    other, _ = run(store, job, tick, 'b')

    assert store.renew([lease, other, 'x'], holder=OTHER,
                       seconds=LONG) == set()
    assert store.renew([lease, 'x'], holder=WORKER, seconds=LONG) == {lease}
    assert store.renew([], holder=WORKER, seconds=LONG) == set()

    assert overdue(store, job) == []
    assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}


def test_a_lease_is_not_renewed_by_another_holder(store, job, tick):
    lease, _ = run(store, job, tick, 'a', seconds=OVER)

    assert store.renew([lease], holder=OTHER, seconds=LONG) == set()

    assert [objects_of(one.claims) for one in overdue(store, job)] == [['a']]


def test_a_skip_of_an_earlier_tick_changes_nothing(store, job, tick):
    lease, _ = run(store, job, tick, 'a')
    assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}

    assert skip(store, job, tick - SECOND, 'a', by=SkippedBy.MISFIRE) == 0

    assert claim(store, job, tick, ['a']).won == []


def test_a_renewal_can_make_a_lease_shorter(store, job, tick):
    lease, _ = run(store, job, tick, 'a')

    store.renew([lease], holder=WORKER, seconds=OVER)

    assert [over.claims[0].object for over in overdue(store, job)] == ['a']


def test_a_lease_that_is_released_is_free_at_once_and_not_a_loss(
        store, job, tick):
    """The claims keep their number of attempts, and older leases come first.
    """
    first, _ = take(store, job, tick, 'a', 'b', holder=WORKER)
    second, _ = take(store, job, tick, 'c')
    kept, _ = take(store, job, tick, 'd')

    for _ in range(2):
        # The answer to the first call may have been lost.
        store.release([second, first, 'x'])
    store.release([])

    assert store.holders([job]) == {SCHEDULER}
    taken = overdue(store, job)
    assert [objects_of(one.claims) for one in taken] == [['a', 'b'], ['c']]
    assert {(one.was, claim.attempt) for one in taken
            for claim in one.claims} == {(State.CLAIMED, 1)}
    assert store.holders([job]) == {OTHER, SCHEDULER}
    assert len(begin(store, job, tick, ['d'], kept)) == 1


def test_released_leases_keep_their_order(store, job, tick):
    objects = [f'object-{n}' for n in range(6)]
    leases = [take(store, job, tick, key)[0] for key in objects]

    store.release(leases[::-1])

    assert [objects_of(one.claims) for one in overdue(store, job)] == [
        [key] for key in objects]


def test_a_lease_that_is_released_grants_runs_until_it_is_taken_over(
        store, job, tick):
    lease, [one] = take(store, job, tick, 'a')
    store.release([lease])

    assert same(begin(store, job, tick, ['a'], lease), [one])

    assert overdue(store, job) == []


def test_a_lease_of_runs_is_not_released(store, job, tick):
    lease, _ = run(store, job, tick, 'a')

    store.release([lease])

    assert overdue(store, job) == []
    assert store.renew([lease], holder=WORKER, seconds=LONG) == {lease}


def test_a_lease_that_was_taken_over_is_not_released_by_its_old_name(
        store, job, tick):
    lease, _ = take(store, job, tick, 'a', seconds=OVER)
    assert overdue(store, job)

    store.release([lease])

    assert overdue(store, job) == []


# Retries.

def test_a_retry_comes_when_its_time_has_come_and_once(store, job, tick):
    lease, [first] = run(store, job, tick, 'a')
    retry = name()
    assert fail(store, job, tick, ['a'], lease, retry, 0.2) == {'a'}
    assert begin(store, job, tick, ['a'], retry) == []
    while not (over := overdue(store, job)):
        time.sleep(0.02)

    assert overdue(store, job) == []
    [again] = over[0].claims
    assert (again.object, again.tick, again.attempt) == ('a', tick, 2)
    assert again.fence > first.fence
    assert void(store, job, tick, 'a', lease)
    running = name()
    assert same(begin(store, job, tick, ['a'], over[0].id, running), [again])
    assert store.finish(HeldLease(running, job, tick), ['a']) == {'a'}


@each('gone, retry_after, due, taken', [
    # The scheduler for which the retry is kept is present, or gone.
    ([], LONG, True, False), ([SCHEDULER], LONG, True, True),
    ([SCHEDULER], LONG, False, False), ([], 0.0, True, True),
    ([], 0.0, False, False)])
def test_a_retry_is_left_for_a_while_to_the_scheduler_it_is_kept_for(
        store, job, tick, gone, retry_after, due, taken):
    lease, _ = run(store, job, tick, 'a')
    fail(store, job, tick, ['a'], lease, name(), 0.0 if due else LONG,
         SCHEDULER)

    others = overdue(store, job, OTHER, gone, retry_after=retry_after)
    own = overdue(store, job, SCHEDULER, gone, retry_after=retry_after)

    assert [objects_of(one.claims) for one in others] == [['a']] * taken
    assert [objects_of(one.claims) for one in own] == [['a']] * (
        due and not taken)
    assert store.holders([job]) == {OTHER if taken else SCHEDULER}


def test_a_retry_may_be_kept_for_a_name_of_any_length(store, job, tick):
    """A forged message may contain the name."""
    lease, _ = run(store, job, tick, 'a')

    assert fail(store, job, tick, ['a'], lease, name(), 0.0, 'x' * 512) == {
        'a'}

    assert len(overdue(store, job)) == 1


def test_losses_are_counted_apart_from_failures(store, job, tick):
    """They continue with the next tick if it supersedes the lost run."""
    lease, _ = run(store, job, tick, 'a', seconds=OVER)
    [lost] = overdue(store, job)
    running = name()
    begin(store, job, tick, ['a'], lost.id, running)
    fail(store, job, tick, ['a'], running, name())
    [failed] = overdue(store, job)

    [newer] = claim(store, job, tick + SECOND, ['a'], supersede=True).won

    found = [one.claims[0] for one in (lost, failed)] + [newer]
    assert [one.losses for one in found] == [1, 1, 1]
    assert [one.attempt for one in found] == [2, 3, 3]


@each('ends, losses', [('finish', 0), ('discard', 1)])
def test_losses_are_forgotten_unless_they_used_up_all_attempts(
        store, job, tick, ends, losses):
    run(store, job, tick, 'a', seconds=OVER)
    [lost] = overdue(store, job)
    if ends == 'finish':
        running = name()
        begin(store, job, tick, ['a'], lost.id, running)
        store.finish(HeldLease(running, job, tick), ['a'])
    else:
        drop(store, job, tick, ['a'], lost.id, State.DEAD)

    _, [newer] = take(store, job, tick + SECOND, 'a', max_attempts=2)

    assert (newer.losses, newer.attempt) == (losses, 1 + losses)


def test_attempts_are_counted(store, job, tick):
    lease, [held] = take(store, job, tick, 'a')
    fences = [held.fence]
    for attempt in range(1, 6):
        assert held.attempt == attempt
        running = name()
        assert same(begin(store, job, tick, ['a'], lease, running), [held])
        assert fail(store, job, tick, ['a'], running, name(), 0.0) == {'a'}
        [over] = overdue(store, job)
        lease, [held] = over.id, over.claims
        fences.append(held.fence)

    assert fences == sorted(set(fences))


def test_a_retry_that_was_cancelled_does_not_come(store, job, tick):
    lease, _ = run(store, job, tick, 'a')
    retry = name()
    assert fail(store, job, tick, ['a'], lease, retry, 0.0) == {'a'}

    assert drop(store, job, tick, ['a'], retry, State.CANCELLED) == 1

    assert overdue(store, job) == []
    take(store, job, tick + SECOND, 'a')
    assert overdue(store, job) == []



# The history.

def history(store, job, tick=None):
    """The counts of a job or of one tick in the history, without zeros.

    The counts of all members are added up.
    """
    rows = store.database.write(lambda connection: connection.execute(
        sa.select(tables.history).join(
            tables.job, tables.job.c.id == tables.history.c.job).where(
                tables.job.c.name == job)).mappings().all())
    found = collections.Counter()
    for row in rows:
        if tick in (None, row['tick']):
            found.update({counted: row[counted]
                          for counted in outcomes.COLUMNS})
    return {counted: number for counted, number in found.items() if number}


def assert_adds_up(store, job, tick, still_open=0):
    found = history(store, job, tick)
    assert found['due'] == still_open + sum(
        found.get(state.value, 0) for state in ENDINGS)


@each('state', CLAIM_STATES)
def test_the_history_has_the_outcome_of_a_claim(one, job, tick, state):
    bring(one, job, tick, 'a', state)

    expected = {'due': 1}
    if state in ENDINGS:
        expected[state.value] = 1
    if state is State.RETRY:
        expected['retried'] = 1
    assert history(one, job) == expected


def test_the_history_has_a_row_for_each_member_and_adds_up_late_starts(
        one, job):
    """The times of a member replace its earlier times, and late starts add up.
    """
    tick = one.now() - 2 * SECOND
    lease, _ = run(one, job, tick, 'a', 'b', 'c', 'd')
    one.finish(
        HeldLease(lease, job, tick), ['a', 'b'],
        times=ports.RunTimes(1, 'started 1', 'ran 1'))
    # The lease holds no such run, so nothing is recorded.
    one.finish(
        HeldLease(name(), job, tick), ['a'],
        times=ports.RunTimes(1, 'started 2', 'ran 2'))
    one.fail(
        HeldLease(lease, job, tick), [Failure('c', 'no')],
        NewLease(name(), '', 0.0),
        times=ports.RunTimes(2, 'started 3', 'ran 3'))
    one.finish(HeldLease(lease, job, tick), ['d'])

    rows = one.database.write(lambda connection: connection.execute(
        sa.select(tables.history).join(
            tables.job, tables.job.c.id == tables.history.c.job).where(
                tables.job.c.name == job).order_by(
                    tables.history.c.tick, tables.history.c.member)).all())

    assert [(r.tick, r.member, r.due, r.done) for r in rows] == [
        (tick, SCHEDULER, 4, 0), (tick, WORKER, 0, 3)]
    assert [(r.late, r.started, r.ran) for r in rows] == [
        (0, None, None), (3, 'started 3', 'ran 3')]


def test_a_call_that_is_made_again_is_counted_once(one, job, tick):
    lease, running, retry = name(), name(), name()
    for _ in range(2):
        claim(one, job, tick, ['a', 'b', 'c'], lease)
    for _ in range(2):
        begin(one, job, tick, ['a', 'b'], lease, running)
    for _ in range(2):
        assert one.finish(HeldLease(running, job, tick), ['a']) == {'a'}
        assert fail(one, job, tick, ['b'], running, retry, LONG) == {'b'}
        assert drop(one, job, tick, ['c'], lease, State.DEAD) == 1

    assert history(one, job) == {'due': 3, 'done': 1, 'dead': 1,
                                 'retried': 1}
    assert_adds_up(one, job, tick, still_open=1)


def test_a_superseded_claim_is_counted_for_its_own_tick(one, job, tick):
    take(one, job, tick, 'a', 'b')
    take(one, job, tick + SECOND, 'c')
    later = tick + 2 * SECOND

    claimed = claim(one, job, later, ['a', 'c'], supersede=True)

    assert claimed.superseded == 2
    assert history(one, job, tick) == {'due': 2, 'superseded': 1}
    assert history(one, job, tick + SECOND) == {'due': 1, 'superseded': 1}
    assert history(one, job, later) == {'due': 2}


@pytest.mark.parametrize('others', [[], ['b'], ['b', 'c']])
def test_a_claim_is_one_lease_and_counted_once_for_objects_in_every_state(
        one, job, tick, others):
    running, _ = run(one, job, tick, 'a', *others)
    one.finish(HeldLease(running, job, tick), ['a', *others])
    lease, later = name(), tick + SECOND

    for _ in ['told', 'told again, its answer was lost']:
        claimed = claim(one, job, later, ['new', 'a', 'b'], lease,
                        seconds=OVER)
        assert objects_of(claimed.won) == ['new', 'a', 'b']

    assert history(one, job, later) == {'due': 3}
    [over] = overdue(one, job)
    assert objects_of(over.claims) == ['new', 'a', 'b']


def test_a_claim_of_ended_objects_is_one_lease_and_counted_once(
        one, job, tick):
    running, _ = run(one, job, tick, 'b', 'a')
    one.finish(HeldLease(running, job, tick), ['a', 'b'])
    lease, later = name(), tick + SECOND

    for _ in ['told', 'told again, its answer was lost']:
        claimed = claim(one, job, later, ['b', 'a'], lease, seconds=OVER)
        assert objects_of(claimed.won) == ['b', 'a']

    assert history(one, job, later) == {'due': 2}
    [over] = overdue(one, job)
    assert objects_of(over.claims) == ['b', 'a']


def test_a_run_that_was_taken_over_is_counted_and_due_once(one, job, tick):
    run(one, job, tick, 'a', 'b', seconds=OVER)

    [over] = overdue(one, job)
    running = name()
    begin(one, job, tick, ['a', 'b'], over.id, running)
    one.finish(HeldLease(running, job, tick), ['a', 'b'])

    assert history(one, job) == {'due': 2, 'done': 2, 'taken_over': 2}


def end_in_a_session(store, job, key, lease):
    return store.database.write(lambda connection: finish_in(
        connection, namespace='tests', job=job, key=key, lease=lease))


def test_a_run_is_ended_in_a_session_only_under_its_own_lease(
        one, job, tick):
    old, _ = run(one, job, tick, 'a')
    into, lease = name(), name()
    reclaim(one, job, tick, ['a'], old, into=into)
    assert not end_in_a_session(one, job, 'a', into), 'it does not run'
    begin(one, job, tick, ['a'], into, lease)

    assert not end_in_a_session(one, job, 'a', old)
    assert not end_in_a_session(one, f'{job}-2', 'a', lease)
    assert [row.free for row in one.rows_of(job, ['a'])] == [False]
    assert end_in_a_session(one, job, 'a', lease)


@each('move', HELD_MOVES)
def test_a_run_that_a_session_has_ended_is_counted_and_nothing_else(
        one, job, tick, move):
    """Once a session has ended a run, finish() succeeds as a repeated call."""
    lease, _ = run(one, job, tick, 'a', 'b')
    assert end_in_a_session(one, job, 'a', lease)

    assert made(one, job, tick, 'a', lease, move) is (move is Move.FINISH)

    assert [row.free for row in one.rows_of(job, ['a'])] == [True]
    assert one.finish(HeldLease(lease, job, tick), ['a', 'b']) == {'a', 'b'}
    assert history(one, job) == {'due': 2, 'done': 2}
    assert one.renew([lease], holder=WORKER, seconds=LONG) == set()


@each('then', ['told', 'taken over', 'failed', 'dead', 'claimed'])
def test_a_run_that_was_ended_in_a_session_is_counted_once(
        one, job, tick, then):
    lease, _ = run(one, job, tick, 'a', 'b', seconds=OVER)
    for _ in range(2):
        assert end_in_a_session(one, job, 'a', lease)
    assert not end_in_a_session(one, job, 'a', f'{lease}x')
    assert history(one, job) == {'due': 2}

    if then == 'told':
        for _ in range(2):
            assert one.finish(
                HeldLease(lease, job, tick), ['a', 'b']) == {'a', 'b'}
        assert history(one, job) == {'due': 2, 'done': 2}
        assert overdue(one, job) == []
    elif then == 'taken over':
        [over] = overdue(one, job)
        assert objects_of(over.claims) == ['b']
        assert history(one, job) == {'due': 2, 'done': 1, 'taken_over': 1}
    elif then == 'failed':
        retry = name()
        for _ in range(2):
            assert fail(one, job, tick, ['a', 'b'], lease, retry,
                        LONG) == {'b'}
        assert history(one, job) == {'due': 2, 'done': 1, 'retried': 1}
    elif then == 'dead':
        for _ in range(2):
            assert fail(one, job, tick, ['a', 'b'], lease, None) == {'b'}
        assert history(one, job) == {'due': 2, 'done': 1, 'dead': 1}
    else:
        take(one, job, tick + SECOND, 'a')
        assert one.finish(HeldLease(lease, job, tick), ['a']) == set()
        assert history(one, job, tick) == {'due': 2, 'done': 1}


def test_a_run_that_ended_under_another_lease_ended_in_no_session(
        one, job, tick):
    lease, _ = run(one, job, tick, 'a', seconds=OVER)
    [over] = overdue(one, job)
    running = name()
    assert begin(one, job, tick, ['a'], over.id, running)
    assert one.finish(HeldLease(running, job, tick), ['a']) == {'a'}

    assert not end_in_a_session(one, job, 'a', lease)


def test_a_session_ends_no_run_of_another_service(one, job, tick):
    lease, _ = run(one, job, tick, 'a')

    assert not one.database.write(lambda connection: finish_in(
        connection, namespace='others', job=job, key='a', lease=lease))

    assert one.finish(HeldLease(lease, job, tick), ['a']) == {'a'}


# Skips without a claim.

def skip(store, job, tick, *objects, schedule='', schedule_since=None,
         **options):
    """Return the number of objects whose skip was recorded."""
    return len(store.skip(SkipRequest(job, tick, objects, **{
        'holder': SCHEDULER, 'by': SkippedBy.PAUSE, 'reason': 'paused',
        'schedule': KnownSchedule(schedule, schedule_since), **options})))


def test_a_skipped_object_is_not_claimed_for_that_tick(one, job, tick):
    bring(one, job, tick, 'a', State.DONE)
    lease, _ = run(one, job, tick, 'b')
    skipped, later = tick + SECOND, tick + 2 * SECOND

    assert skip(one, job, skipped, 'a', 'b', 'a', 'never claimed') == 2
    assert skip(one, job, skipped, 'a', 'b', holder=OTHER) == 0

    assert claim(one, job, skipped, ['a', 'b'], supersede=True)[:3] == (
        [], [], 0)
    assert one.finish(HeldLease(lease, job, tick), ['b']) == {'b'}
    assert history(one, job, skipped) == {
        'due': 2, 'skipped': 2, 'by_pause': 2}
    claimed = claim(one, job, later, ['a', 'b'], min_watermark=skipped)
    assert objects_of(claimed.won) == ['a', 'b']
    assert list(claimed.behind) == []


def columns(store, table, job, *names):
    """The given columns of the only row of a job."""
    return store.database.write(lambda connection: connection.execute(
        sa.select(*(table.c[name] for name in names)).join(
            tables.job, tables.job.c.id == table.c.job).where(
                tables.job.c.name == job)).one())


@each('by', SkippedBy)
def test_a_row_records_the_reason_of_its_skip(one, job, tick, by):
    bring(one, job, tick, 'a', State.DONE)
    assert columns(one, tables.claim, job, 'skipped_by') == (None,)

    skip(one, job, tick + SECOND, 'a', by=by)

    assert columns(one, tables.claim, job, 'skipped_by') == (by,)
    assert history(one, job, tick + SECOND) == {
        'due': 1, 'skipped': 1, f'by_{by.value}': 1}


@pytest.mark.parametrize('in_session', [False, True])
def test_an_object_was_served_when_its_run_was_done(
        one, job, tick, in_session):
    lease, _ = run(one, job, tick, 'a')
    assert columns(one, tables.claim, job, 'served') == (None,)
    before = one.now()
    if in_session:
        assert end_in_a_session(one, job, 'a', lease)
    one.finish(HeldLease(lease, job, tick), ['a'])
    after = one.now()

    [served] = columns(one, tables.claim, job, 'served')
    assert before <= served <= after
    bring(one, job, tick + SECOND, 'a', State.DEAD)
    assert columns(one, tables.claim, job, 'served') == (served,)


@each('ending', [*DROPPED, State.DEAD])
def test_the_reason_of_an_end_is_kept(one, job, tick, ending):
    lease, _ = take(one, job, tick, 'a')

    one.discard(HeldLease(lease, job, tick), ['a'], ending, reason='so it is')

    assert columns(one, tables.history, job, 'reason') == ('so it is',)


def times_of(store, job):
    """The recorded times of the only worker of a job."""
    return store.database.write(lambda connection: connection.execute(
        sa.select(tables.history.c.late, tables.history.c.started,
                  tables.history.c.ran, tables.history.c.slowest).join(
            tables.job, tables.job.c.id == tables.history.c.job).where(
                tables.job.c.name == job,
                tables.history.c.member == WORKER)).one())


@pytest.mark.parametrize('retried', [False, True])
def test_the_times_of_runs_are_recorded_with_their_failures(
        one, job, tick, retried):
    lease, _ = run(one, job, tick, 'a', 'b')

    one.fail(
        HeldLease(lease, job, tick), [Failure(key, 'no') for key in 'ab'],
        NewLease(name(), '', 0.0) if retried else None,
        times=ports.RunTimes(2, 'started', 'ran', slowest='b'))

    assert times_of(one, job) == (2, 'started', 'ran', 'b')


@pytest.mark.parametrize('end', ['finish', 'fail'])
def test_the_times_of_a_run_that_ended_in_a_session_are_recorded(
        one, job, tick, end):
    lease, _ = run(one, job, tick, 'a')
    end_in_a_session(one, job, 'a', lease)
    times = ports.RunTimes(1, 'started', 'ran', slowest='a')

    if end == 'finish':
        one.finish(HeldLease(lease, job, tick), ['a'], times=times)
    else:
        one.fail(
            HeldLease(lease, job, tick), [Failure('a', 'no')],
            NewLease(name(), '', 0.0), times=times)

    assert times_of(one, job) == (1, 'started', 'ran', 'a')


def test_the_longest_histograms_are_recorded(one, job, tick):
    lease, _ = run(one, job, tick, 'a')
    longest = Histogram()
    for bound in (*BOUNDS, 2 * BOUNDS[-1]):
        longest.add(bound, 10_000_000)

    one.finish(
        HeldLease(lease, job, tick), ['a'],
        times=ports.RunTimes(0, longest.text(), longest.text()))

    _, started, ran, _ = times_of(one, job)
    assert Histogram.parse(started) == Histogram.parse(ran) == longest


def test_a_claimed_object_is_not_skipped_any_more(one, job, tick):
    for state in CLAIM_STATES:
        bring(one, job, tick, state.value, state)

    assert skip(one, job, tick, *(
        state.value for state in CLAIM_STATES)) == 0
    assert skip(one, job, tick - SECOND, 'done') == 0
    assert skip(one, job, tick) == 0
    assert 'skipped' not in history(one, job, tick - SECOND)


def test_ticks_that_were_missed_are_counted_in_the_newest(one, job, tick):
    bring(one, job, tick, 'a', State.DONE)

    assert skip(one, job, tick + 9 * SECOND, 'a',
                missed=each_second_until(tick + 9 * SECOND)) == 1

    assert history(one, job, tick + 9 * SECOND) == {
        'due': 9, 'skipped': 9, 'by_pause': 9, 'missed': 8}
    claimed = claim(one, job, tick + 11 * SECOND, ['a'],
                    min_watermark=tick + 10 * SECOND)
    assert [(row.object, row.settled) for row in claimed.behind] == [
        ('a', tick + 9 * SECOND)]


def each_second_until(tick):
    """Return a function that counts missed ticks, for a job due each second.

    The function counts the ticks between a watermark and *tick*.
    """
    return lambda last: (tick - last) // SECOND - 1


def test_a_skip_counts_for_each_object_the_ticks_that_it_has_missed(
        one, another, job, tick):
    """Other calls may have moved the watermarks since the caller read them."""
    bring(one, job, tick, 'a', State.DONE)
    bring(one, job, tick, 'b', State.DONE)
    bring(one, job, tick + 3 * SECOND, 'c', State.DONE)
    bring(one, job, tick + 6 * SECOND, 'd', State.DEAD)
    middle, newest = tick + 4 * SECOND, tick + 5 * SECOND
    assert skip(another, job, middle, 'b',
                missed=each_second_until(middle)) == 1

    def all_of_them():
        return skip(one, job, newest, 'a', 'b', 'c', 'd', 'never claimed',
                    missed=each_second_until(newest))
    assert all_of_them() == 3
    assert all_of_them() == 0, 'its answer was lost'

    assert history(one, job, middle) == {
        'due': 4, 'skipped': 4, 'by_pause': 4, 'missed': 3}
    # Including the newest tick, 5 ticks of a are skipped, 1 of b and 2 of c.
    assert history(one, job, newest) == {
        'due': 8, 'skipped': 8, 'by_pause': 8, 'missed': 5}


def test_missed_ticks_that_two_members_skip_are_counted_once(
        one, another, job, tick):
    keys = [f'o-{n}' for n in range(40)]
    bring(one, job, tick, keys[0], State.DONE)
    lease, _ = take(one, job, tick, *keys[1:])
    one.discard(HeldLease(lease, job, tick), keys[1:], State.CANCELLED)
    ready = threading.Barrier(2)

    def skips(store, ticks):
        ready.wait(30)
        for at in ticks:
            skip(store, job, tick + at * SECOND, *keys,
                 missed=each_second_until(tick + at * SECOND))
    other = threading.Thread(target=skips, args=(another, range(1, 21, 2)))
    other.start()
    skips(one, range(2, 21, 2))
    other.join(30)
    # Each thread left out the rows that the other thread had locked.
    skip(one, job, tick + 20 * SECOND, *keys,
         missed=each_second_until(tick + 20 * SECOND))

    assert not other.is_alive()
    assert history(one, job)['due'] == 21 * len(keys)
    assert history(one, job)['skipped'] == 20 * len(keys)


# Listings.

#: The first and the last position of the ring.
RING = Arc(-2 ** 63, 2 ** 63 - 1)


def listed(store, job, *, before=None, limit=10_000):
    """For each listed object, its watermark, its since and its schedule."""
    return {row.object: (row.settled, row.since, row.attributes.rule)
            for row in store.rows(job, RING, before=before, limit=limit)}


def test_a_new_object_is_listed_from_then_on_and_settled_as_given(
        store, job, tick):
    enlist(store, job, tick, 'a', 'b', at=tick + 7)
    enlist(store, job, tick - 5, 'c', at=tick + 8, rule='every 5')

    assert listed(store, job) == {
        'a': (tick, tick + 7, ''), 'b': (tick, tick + 7, ''),
        'c': (tick - 5, tick + 8, 'every 5')}


def test_an_object_that_is_listed_already_is_unchanged(store, job, tick):
    enlist(store, job, tick, 'a', at=tick)
    take(store, job, tick + SECOND, 'a')

    for _ in range(2):
        enlist(store, job, tick + 9 * SECOND, 'a', at=tick + 10 * SECOND)

    assert listed(store, job) == {'a': (tick + SECOND, tick, '')}


def test_an_object_that_is_delisted_is_not_there_until_it_is_listed_again(
        store, job, tick):
    enlist(store, job, tick, 'a', 'b', at=tick)
    for _ in range(2):
        delist(store, job, tick + SECOND, 'a', 'unheard of')

    assert set(listed(store, job)) == {'b'}
    assert [row.object for row in store.rows_of(job, ['a', 'b'])] == ['b']
    assert claim(store, job, tick + SECOND, ['a', 'unheard of'],
                 listing=False) == claims.Claimed(
                     [], [], 0, [], [], unlisted=('a', 'unheard of'))
    assert skip(store, job, tick + SECOND, 'a') == 0

    later = tick + 5 * SECOND
    enlist(store, job, later, 'a', at=later + 1, rule='every 5')
    assert listed(store, job)['a'] == (later, later + 1, 'every 5')


def test_a_watermark_that_is_later_than_the_one_given_stays(
        store, job, tick):
    bring(store, job, tick + SECOND, 'a', State.DONE)
    bring(store, job, tick + SECOND, 'b', State.DONE)
    delist(store, job, tick + SECOND, 'a')

    enlist(store, job, tick, 'a', at=tick + 2 * SECOND)
    enlist(store, job, tick, 'b', at=tick + 2 * SECOND, rule='every 5')

    assert listed(store, job) == {
        'a': (tick + SECOND, tick + 2 * SECOND, ''),
        'b': (tick + SECOND, tick + 2 * SECOND, 'every 5')}


@each('later, since', [
    ([], 0), ([3], 3), ([5], 5), ([3, 5, 7, 9], 5), ([3, 6, 7], 6)])
def test_an_object_counts_from_the_first_reading_after_it_was_delisted(
        store, job, tick, later, since):
    """The process that lists the object may have been suspended after its read
    of the catalogue.
    """
    enlist(store, job, tick, 'a', at=tick)
    delist(store, job, tick + 5 * SECOND, 'a')

    assert store.sync(
        job,
        [ports.Listed('a', PLAIN, tick), ports.Listed('new', PLAIN, tick)], [],
        readings=[tick, *[tick + at * SECOND for at in later]]) == []

    assert listed(store, job) == {
        'a': (tick, tick + since * SECOND, ''), 'new': (tick, tick, '')}


def test_an_object_listed_after_a_catalogue_was_read_is_not_delisted_by_it(
        store, job, tick):
    enlist(store, job, tick, 'a', at=tick + 1)
    enlist(store, job, tick, 'b', at=tick + 2)

    left = store.sync(job, [], ['a', 'b'], readings=[tick + 1])

    assert left == ['b']
    assert set(listed(store, job)) == {'b'}


def test_an_object_both_listed_and_delisted_is_listed(store, job, tick):
    enlist(store, job, tick, 'a', at=tick)

    left = store.sync(
        job, [ports.Listed('a', PLAIN, tick), ports.Listed('b', PLAIN, tick)],
        ['a', 'b'], readings=[tick + 1])

    assert left == []
    assert listed(store, job) == {
        'a': (tick, tick, ''), 'b': (tick, tick + 1, '')}


def test_a_schedule_that_changed_holds_from_then_on(store, job, tick):
    enlist(store, job, tick, 'a', 'b', at=tick)
    enlist(store, job, tick, 'b', at=tick, rule='every 5')

    for _ in range(2):
        enlist(store, job, tick + 4, 'a', 'b', at=tick + 5, rule='every 9')
    assert listed(store, job) == dict.fromkeys(
        'ab', (tick + 4, tick + 5, 'every 9'))

    enlist(store, job, tick + 8, 'a', at=tick + 9)
    assert listed(store, job)['a'] == (tick + 8, tick + 9, '')


def test_a_schedule_is_not_changed_by_a_catalogue_that_was_read_before(
        store, job, tick):
    enlist(store, job, tick, 'a', at=tick + 9, rule='every 9')

    left = store.sync(
        job, [ports.Listed('a', PLAIN, tick)], [], readings=[tick + 8])

    assert left == ['a']
    assert listed(store, job)['a'] == (tick, tick + 9, 'every 9')


def test_an_open_claim_goes_on_though_its_object_is_delisted(
        store, job, tick):
    lease, _ = run(store, job, tick, 'a', 'b')
    delist(store, job, tick + SECOND, 'a', 'b')

    assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}
    assert listed(store, job) == {}
    enlist(store, job, tick, 'a', 'b', at=tick + 2 * SECOND)
    assert [row.free for row in sorted(store.rows_of(job, ['b', 'a']))] == [
        True, False]


def test_thousands_are_listed_at_a_time(store, job, tick):
    keys = [f'object-{n}' for n in range(2000)]
    for _ in range(2):
        enlist(store, job, tick, *keys, at=tick)
    delist(store, job, tick + 1, *keys[::2])

    assert set(listed(store, job)) == set(keys[1::2])
    take(store, job, tick + SECOND, *keys[1::2])


def test_ids_that_are_listed_are_compared_exactly(store, job, tick):
    enlist(store, job, tick, *IDS, rule='cron Europe/Berlin \u00fc\\"\' ')

    assert set(listed(store, job)) == set(IDS)
    assert {row.attributes.rule for row in store.rows_of(job, IDS)} == {
        'cron Europe/Berlin \u00fc\\"\' '}
    assert objects_of(claim(store, job, tick + SECOND, IDS,
                            rule='cron Europe/Berlin \u00fc\\"\'').won) == []


def test_a_schedule_without_a_place_is_refused_by_name(one, job, tick):
    with pytest.raises(exceptions.InvalidObject, match='301 characters'):
        enlist(one, job, tick, 'a', rule='x' * 301)

    enlist(one, job, tick, 'a', rule='\U0001f600' * 300)


def test_many_that_list_the_same_at_once_list_it_once(
        one, shared, job, tick):
    """Each call leaves out the rows that another call has locked."""
    keys = [f'object-{n}' for n in range(200)]

    def enlist_from(store, number, at):
        return store.sync(
            job, [ports.Listed(key, Attributes(f'every {at}'), tick)
                  for key in keys[number * 10:]], [], readings=[tick + at])

    def ask(store, number):
        for at in range(10):
            enlist_from(store, number, at)
            store.sync(job, [], keys[:number * 10], readings=[tick - 1])
        waiting.wait_until(lambda: not enlist_from(store, number, 9))
    together(shared, 4, ask)

    assert listed(one, job) == dict.fromkeys(
        keys, (tick, tick + 9, 'every 9'))


def test_the_tables_take_one_row_for_each_object(one, job, tick):
    """The primary key of the table rejects a second row for an object."""
    take(one, job, tick, 'a')
    found = columns(one, tables.claim, job, *tables.claim.c.keys())

    with pytest.raises(db_exception.DBDuplicateEntry):
        one.database.write(lambda connection: connection.execute(
            sa.insert(tables.claim).values(**found._mapping)))


# Reads of listed objects.

def test_rows_come_by_their_places_on_the_ring(store, job, tick):
    keys = [f'object-{n}' for n in range(50)]
    enlist(store, job, tick, *keys)
    enlist(store, f'{job}-2', tick, *keys, 'another')
    places = dict(zip(keys, positions_of(keys), strict=True))
    order = sorted(keys, key=places.__getitem__)

    rows = store.rows(job, RING, limit=100)
    assert [row.object for row in rows] == order
    assert [row.position for row in rows] == sorted(places.values())
    arc = Arc(places[order[10]], places[order[20]])
    some = store.rows(job, arc, limit=100)
    assert [row.object for row in some] == order[10:21]
    first = store.rows(job, arc, limit=3)
    assert [row.object for row in first] == order[10:13]
    between = Arc(places[order[10]] + 1, places[order[11]] - 1)
    assert store.rows(job, between, limit=3) == []


def test_rows_that_were_listed_since_are_among_them(store, job, tick):
    enlist(store, job, tick, 'a', 'c')
    assert set(listed(store, job)) == set('ac')

    enlist(store, job, tick, 'b')
    take(store, job, tick + SECOND, 'd', 'a')

    assert set(listed(store, job)) == set('abcd')


def test_a_bounded_read_returns_only_the_rows_before_the_bound(
        store, job, tick):
    enlist(store, job, tick, 'old')
    enlist(store, job, tick + SECOND, 'new')
    enlist(store, job, tick + SECOND, 'own', rule='every 5')

    assert set(listed(store, job, before=tick + SECOND)) == {'old', 'own'}
    assert set(listed(store, job, before=tick)) == {'own'}
    assert len(listed(store, job, before=tick + SECOND, limit=1)) == 1


@each('state', STATES)
def test_a_row_has_the_state_of_its_claim_and_the_end_of_its_run(
        store, job, tick, state):
    before = store.now()
    bring(store, job, tick, 'a', state)
    after = store.now()

    [row] = store.rows_of(job, ['a', 'unheard of'])
    assert store.rows(job, RING, limit=9) == [row]
    assert type(row.free) is bool
    assert row.free is (state in ENDINGS or state is State.LISTED)
    if state in {State.DONE, State.DEAD}:
        assert before <= row.ended <= after
    else:
        assert row.ended is None
    if state in {State.RUNNING, State.DONE}:
        assert tick < row.began <= after
    elif state in {State.CLAIMED, State.LISTED}:
        assert row.began is None


@pytest.mark.parametrize('retried', [False, True])
def test_a_row_has_the_start_of_a_run_that_was_granted_again(
        store, job, tick, retried):
    """The store does not record when the first of several attempts began."""
    old, _ = run(store, job, tick, 'a')
    lease = name()
    reclaim(store, job, tick, ['a'], old, into=lease, count_attempt=retried)
    [row] = store.rows_of(job, ['a'])
    assert row.began is None
    grant = name()
    begin(store, job, tick, ['a'], lease, grant)

    [row] = store.rows_of(job, ['a'])
    assert (row.began == tick) if retried else (row.began > tick)
    assert store.finish(HeldLease(grant, job, tick), ['a'])
    assert store.rows_of(job, ['a'])[0].began == row.began


@each('first, state', itertools.product(
    [State.DONE, State.DEAD], CLAIM_STATES))
def test_the_end_of_a_run_is_not_the_end_of_a_later_claim(
        store, job, tick, first, state):
    bring(store, job, tick, 'a', first)
    [old] = store.rows_of(job, ['a'])
    bring(store, job, tick + SECOND, 'a', state)

    [row] = store.rows_of(job, ['a'])
    assert store.rows(job, RING, limit=9) == [row]
    assert row.settled == tick + SECOND
    if row.free:
        assert (row.ended is not None) is (state in {
            State.DONE, State.DEAD})
        assert row.ended is None or row.ended >= old.ended


def test_nothing_is_read_of_unknown_objects(store, job):
    assert store.rows_of(job, []) == store.rows_of(job, ['a']) == []
    assert store.rows(job, RING, limit=9) == []
    assert store.settled(job, 60 * SECOND) == 0


def test_objects_that_were_settled_for_a_tick_are_counted(store, job, tick):
    lease, _ = run(store, job, tick, 'a', 'b', 'c')
    store.finish(HeldLease(lease, job, tick), ['a', 'b'])
    enlist(store, job, tick, 'd', 'e')
    later = tick + 3 * SECOND
    assert store.settled(job, tick) == 3

    take(store, job, later, 'a', 'd')
    skip(store, job, later, 'b', 'c', 'e', missed=each_second_until(later))

    assert store.settled(job, later) == 5
    assert store.settled(job, tick) == 3
    assert store.settled(job, later - SECOND) == 0


# Claims of listed objects.

def test_a_listed_object_that_was_never_claimed_is_free(store, job, tick):
    enlist(store, job, tick, 'a', 'b')

    claimed = claim(store, job, tick + SECOND, ['a', 'b', 'c'],
                    listing=False, min_watermark=tick)

    assert objects_of(claimed.won) == ['a', 'b']
    assert {one.attempt for one in claimed.won} == {1}
    assert {one.fence for one in claimed.won} >= {
        claims.first_fence(tick + SECOND)}


def test_the_first_claim_of_a_listed_object_has_no_tick_before_it(
        one, job, tick):
    enlist(one, job, tick, 'a')

    take(one, job, tick + SECOND, 'a')
    assert columns(one, tables.claim, job, 'previous', 'tick') == (
        None, tick + SECOND)


@pytest.mark.parametrize('state', [State.DONE, State.CLAIMED], ids=value)
def test_a_claim_records_the_tick_before_it(one, job, tick, state):
    """The earlier claim has ended, or the new claim supersedes it."""
    bring(one, job, tick, 'a', state)

    claim(one, job, tick + SECOND, ['a'], supersede=True)

    assert columns(one, tables.claim, job, 'previous', 'tick') == (
        tick, tick + SECOND)


def test_a_claim_lists_objects_that_are_not_listed(store, job, tick):
    take(store, job, tick, 'a', rule='every 5')
    lease, _ = take(store, job, tick, 'b')
    drop(store, job, tick, ['b'], lease, State.CANCELLED)
    take(store, job, tick, 'c')
    delist(store, job, tick, 'b', 'c')

    claimed = claim(store, job, tick + 9 * SECOND, ['b', 'c'],
                    min_watermark=tick + 8 * SECOND, rule='every 9')

    assert objects_of(claimed.won) == ['b']
    assert claimed.behind == []
    assert claimed.waiting == ['c']
    later = tick + 9 * SECOND
    found = listed(store, job)
    assert found['a'] == (tick, tick, 'every 5')
    assert found['b'] == (later, later, 'every 9')
    assert found['c'][1:] == (later, 'every 9')
    assert later - 1 <= found['c'][0] < later


def test_a_claim_of_a_delisted_object_lists_the_object_without_a_win(
        store, job, tick):
    bring(store, job, tick, 'a', State.DONE)
    delist(store, job, tick, 'a')

    assert claim(store, job, tick, ['a']).won == []
    assert set(listed(store, job)) == {'a'}


@each('state, after', itertools.product(STATES, [False, True]))
def test_objects_that_follow_another_schedule_are_left_out(
        store, job, tick, state, after):
    bring(store, job, tick, 'a', state)
    enlist(store, job, tick, 'b', rule='every 5')

    claimed = claim(
        store, job, tick + 9 * SECOND, ['a', 'b', 'c'], supersede=True,
        min_watermark=tick + 8 * SECOND if after else due.ALWAYS,
        rule='every 9')

    assert objects_of(claimed.won) == ['c']
    assert claimed[1:5] == ([], 0, [], [])


def test_objects_that_follow_this_schedule_are_claimed_by_it(
        store, job, tick):
    take(store, job, tick, 'a', 'b', rule='every 5')
    lease, _ = run(store, job, tick, 'c', 'd')
    store.finish(HeldLease(lease, job, tick), ['c', 'd'])
    enlist(store, job, tick, 'c', at=tick + SECOND, rule='every 5')

    claimed = claim(store, job, tick + SECOND, ['a', 'b', 'c', 'd'],
                    supersede=True, rule='every 5')

    assert objects_of(claimed.won) == ['a', 'b', 'c']
    assert claimed.superseded == 2


def test_an_object_skipped_during_its_run_goes_on_running(store, job, tick):
    lease, _ = run(store, job, tick, 'a')

    assert skip(store, job, tick + SECOND, 'a') == 1

    [row] = store.rows_of(job, ['a'])
    assert (row.settled, row.free) == (tick + SECOND, False)
    assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}


def test_an_object_that_was_never_claimed_can_be_skipped(store, job, tick):
    enlist(store, job, tick, 'a')

    assert skip(store, job, tick + SECOND, 'a', 'not listed') == 1

    assert listed(store, job)['a'][0] == tick + SECOND


# Jobs.

def status(store, job, seconds=60.0, scan=None):
    [(name, found)] = store.attend(
        {job: seconds}, {} if scan is None else {job: scan}).items()
    assert name == job
    return found


def test_an_unknown_job_has_no_schedule_in_force(store, job):
    found = status(store, job)

    assert found._replace(attended=None) == ports.JobStatus(
        None, '', due.ALWAYS, None, due.ALWAYS)
    assert store.attend({}, {}) == {}
    store.adopt({})


def test_the_first_schedule_of_a_job_is_in_force_from_the_beginning(
        store, job):
    enlist(store, job, 60 * SECOND, 'a')
    for _ in range(2):
        store.adopt({job: 'every 5', f'{job}-2': 'every 9 spread'})

    found = store.attend({job: 60.0, f'{job}-2': 60.0}, {})
    assert {name: one[1:3] for name, one in found.items()} == {
        job: ('every 5', due.ALWAYS),
        f'{job}-2': ('every 9 spread', due.ALWAYS)}


def test_a_schedule_of_a_job_that_differs_holds_from_now_on(store, job):
    store.adopt({job: 'every 5', f'{job}-2': 'every 5'})
    before = store.now()
    store.adopt({job: 'every 9', f'{job}-2': 'every 5'})
    after = store.now()
    store.adopt({job: 'every 9'})

    found = store.attend({job: 60.0, f'{job}-2': 60.0}, {})
    assert found[job].schedule == 'every 9'
    assert before <= found[job].since <= after
    assert found[f'{job}-2'].since == due.ALWAYS


def test_the_newest_definition_that_a_member_has_is_in_force(store, job):
    old, new, other = (f'every {n}' for n in (5, 9, 7))

    def in_force():
        return store.attend({job: 60.0}, {})[job].schedule

    def adopt(text, *others):
        store.adopt({job: text}, {job: set(map(mark_of, others))})
        return in_force()
    store.adopt({job: old}, {job: None})
    assert in_force() == old
    store.adopt({job: new}, {job: None})
    assert in_force() == old
    assert adopt(new, old, new) == new
    since = store.attend({job: 60.0}, {})[job].since
    # A process of the earlier release is restarted.
    assert adopt(old, old, new) == new
    assert store.attend({job: 60.0}, {})[job].since == since
    # The later release has gone, and comes back.
    assert adopt(old, old) == old
    assert adopt(new, old, new) == new
    assert adopt(other, old, new, other) == other
    assert adopt(new, new, old, other) == other
    assert adopt(old, new, old) == other
    assert adopt(new, new, old) == new


@pytest.mark.parametrize('known', ['every 9', None],
                         ids=['another', 'none yet'])
def test_only_by_the_schedule_in_force_anything_is_decided(
        store, job, tick, known):
    take(store, job, tick, 'waits')
    enlist(store, job, tick, 'a', 'b')
    later = tick + SECOND
    if known:
        store.adopt({job: known})

    old = claim(store, job, later, ['a', 'waits'], supersede=True,
                listing=False, schedule='every 5')
    skipped = skip(store, job, later, 'b', schedule='every 5')

    if known:
        assert old == claims.Claimed([], [], 0, [], [], outdated=True)
        assert skipped == 0
        old = claim(store, job, later, ['a', 'waits'], supersede=True,
                    listing=False, schedule=known)
        assert skip(store, job, later, 'b', schedule=known) == 1
    assert objects_of(old.won) == ['a', 'waits']
    assert not old.outdated


def test_a_caller_that_missed_a_change_and_its_reversal_decides_nothing(
        store, job, tick):
    """A process that was suspended in the meantime knows the right text. But
    the ticks that it has found were not due while the other schedule was in
    force.
    """
    enlist(store, job, tick, 'a', 'b')
    later = tick + SECOND
    for schedule in ('every 5', 'every 9', 'every 5'):
        store.adopt({job: schedule})
    since = store.attend({job: 60.0}, {})[job].since

    for known in (due.ALWAYS, since - 1):
        options = {'schedule': 'every 5', 'schedule_since': known}
        assert claim(store, job, later, ['a'], listing=False,
                     **options) == claims.Claimed(
                         [], [], 0, [], [], outdated=True)
        assert skip(store, job, later, 'b', **options) == 0

    options = {'schedule': 'every 5', 'schedule_since': since}
    found = claim(store, job, later, ['a'], listing=False, **options)
    assert objects_of(found.won) == ['a']
    assert skip(store, job, later, 'b', **options) == 1


def test_a_claim_won_before_its_schedule_was_replaced_is_answered_again(
        store, job, tick):
    enlist(store, job, tick - SECOND, 'a', 'b')
    store.adopt({job: 'every 5'})
    take(store, job, tick, 'b')
    lease = name()
    first, again = (claim(store, job, tick, ['a', 'b'], lease,
                          listing=False, schedule='every 5')
                    for _ in map(store.adopt, [{}, {job: 'every 9'}]))

    assert first.won == again.won
    assert objects_of(again.won) == ['a']


def test_many_members_that_adopt_a_schedule_at_once_agree_since_when(
        one, shared, job):
    one.adopt({job: 'every 5'})

    def ask(store, number):
        store.adopt({job: 'every 9'})
        return status(store, job).since
    assert len(set(together(shared, 4, ask))) == 1


def test_the_record_of_a_check_only_moves_forward(store, job, tick):
    def scan(until):
        return ports.Checked(status(store, job).checked, until)
    assert status(store, job, scan=scan(tick)).checked == tick
    assert status(store, job, scan=scan(tick - 1)).checked == tick
    assert status(store, job).checked == tick
    assert status(store, job, scan=scan(tick + 1)).checked == tick + 1
    assert status(store, job).checked == tick + 1


def test_a_scan_counts_only_if_no_other_was_recorded_meanwhile(
        store, job, tick):
    begun = ports.Checked(status(store, job).checked, tick)
    status(store, job, scan=begun)

    assert status(store, job, scan=begun._replace(
        until=tick + 9)).checked == tick
    assert status(store, job).checked == tick


def test_a_listing_for_a_checked_tick_has_the_job_scanned_again(
        store, job, tick):
    status(store, job, scan=ports.Checked(
        status(store, job).checked, tick + SECOND))

    enlist(store, job, tick - 1, 'a')

    assert status(store, job).checked == tick - 1
    # A repeated listing changes nothing, so no new scan is needed.
    enlist(store, job, tick - 1, 'a')
    assert status(store, job).checked == tick - 1


@pytest.mark.parametrize('before', [None, 'an earlier scan'])
@pytest.mark.parametrize('change', ['new', 'back', 'schedule'])
def test_a_scan_during_a_listing_does_not_count(
        store, job, tick, before, change):
    """The scan may have read the rows before the objects were listed."""
    if change != 'new':
        enlist(store, job, tick - 9, 'a')
    if change == 'back':
        store.sync(job, [], ['a'], readings=[tick - 8])
    if before:
        status(store, job, scan=ports.Checked(
            status(store, job).checked, tick - SECOND))
    begun = ports.Checked(status(store, job).checked, tick + SECOND)

    store.sync(
        job, [ports.Listed(
            'a', Attributes('every 5' if change == 'schedule' else ''),
            tick - 1)], [], readings=[tick])

    assert status(store, job, scan=begun).checked < tick
    assert status(store, job).checked < tick


def test_a_job_is_attended_for_as_long_as_there_is_no_gap(one, another, job):
    before = one.now()
    began = status(one, job).attended
    assert before <= began <= one.now()

    for store in another, one:
        assert status(store, job).attended == began
    after_a_gap = status(another, job, 0.0).attended
    assert after_a_gap > began
    assert status(one, job).attended == after_a_gap


def until(store, job):
    return store.database.write(lambda connection: connection.scalar(
        sa.select(tables.job.c.attended_until).where(
            tables.job.c.name == job)))


def attended_until(store, job, instant):
    store.database.write(lambda connection: connection.execute(
        sa.update(tables.job).where(tables.job.c.name == job)
        .values(attended_until=instant)))


def test_attendance_is_written_once_in_a_third_of_the_gap(one, job):
    began = status(one, job).attended
    recent = one.now() - 19 * SECOND
    attended_until(one, job, recent)
    assert status(one, job).attended == began
    assert until(one, job) == recent

    attended_until(one, job, one.now() - 21 * SECOND)
    before = one.now()
    assert status(one, job).attended == began
    assert until(one, job) >= before


def test_a_call_that_finds_nothing_to_do_waits_for_no_writer(shared, one, job):
    """Each scheduler makes these calls again and again, and most of the calls
    find nothing.
    """
    began = status(one, job).attended
    asked = overdue(one, job), one.holders([job])
    began_to_wait = time.monotonic()
    with shared.store() as other:
        found = other.database.write(lambda connection: (
            connection.execute(sa.update(tables.job).where(
                tables.job.c.name == job).values(paused_by='somebody')),
            overdue(one, job), one.holders([job]),
            status(one, job).attended)[1:])

    assert found == (*asked, began) == ([], set(), began)
    assert time.monotonic() - began_to_wait < 2.0


@pytest.mark.parametrize('seconds', [-61, 61])
def test_attendance_begins_again_after_a_gap_or_a_step_of_the_clock(
        one, job, seconds):
    began = status(one, job).attended
    attended_until(one, job, one.now() + seconds * SECOND)

    anew = status(one, job).attended

    assert anew > began
    assert status(one, job).attended == anew
    assert began <= until(one, job) <= one.now()


def test_a_paused_job_has_a_reason(one, job):
    status(one, job)
    one.database.write(lambda connection: connection.execute(
        sa.update(tables.job).where(tables.job.c.name == job)
        .values(paused_since=1, paused_why='so it is')))

    assert status(one, job).paused == ('so it is', None)
    assert status(one, f'{job}-2').paused is None


# Rows that a handler's open session has locked.

@pytest.fixture(params=['postgresql', 'mariadb'])
def many_sessions(request):
    """A world whose database locks single rows, not whole tables."""
    with request.getfixturevalue(f'of_{request.param}').used() as world:
        yield world


@pytest.fixture
def kept(many_sessions, job, tick):
    """A store, and the lease of an object whose row is locked.

    A handler has ended the object's run in a session that is still open.
    """
    with many_sessions.store() as store, many_sessions.store() as handler:
        lease, _ = run(store, job, tick, 'kept', 'free', seconds=OVER)
        # Do not use a connection of the store: it has a time limit and would
        # be closed.
        engine = handler.database.read(lambda connection: connection.engine)
        with engine.connect() as session, session.begin() as transaction:
            assert finish_in(
                session, namespace='tests', job=job, key='kept', lease=lease)
            began = time.monotonic()
            yield store, lease
            assert time.monotonic() - began < 2, 'it was waited for'
            transaction.rollback()


def test_a_row_that_is_kept_is_not_skipped_and_not_waited_for(
        kept, job, tick):
    store, _ = kept

    assert skip(store, job, tick + SECOND, 'kept', 'free') == 1
    assert {row.object: row.settled for row in store.rows_of(
        job, ['kept', 'free'])} == {'kept': tick, 'free': tick + SECOND}


@pytest.mark.parametrize('supersede', [False, True])
def test_a_row_that_is_kept_is_busy_and_not_waited_for(
        kept, job, tick, supersede):
    store, _ = kept

    claimed = claim(store, job, tick + SECOND, ['kept', 'new'],
                    supersede=supersede)

    assert objects_of(claimed.won) == ['new']
    assert claimed.busy == ['kept']


def test_an_object_whose_tick_is_over_during_the_call_is_not_busy(
        one, another, job, tick):
    """No run is in progress, so the overlap policy must not skip the tick."""
    lease, _ = run(one, job, tick, 'a')
    assert end_in_a_session(one, job, 'a', lease)
    until, waits = one.now() + SECOND // 2, []

    def wait(connection, cursor, statement, *_):
        """Wait after the row was read, and before it is changed."""
        if (statement.startswith('SELECT') and not waits
                and tables.claim.c.settled.name in statement):
            waits.append(statement)
            waiting.wait_until(lambda: another.now() > until)
    used = one.database.read(lambda connection: connection)
    sa.event.listen(used, 'after_cursor_execute', wait)
    claimed = claim(
        one, job, tick + SECOND, ['a'], until=until, listing=False)
    sa.event.remove(used, 'after_cursor_execute', wait)

    assert waits
    assert (claimed.won, claimed.busy, claimed.waiting) == ([], [], [])
    assert [(row.object, row.settled, row.free)
            for row in claimed.behind] == [('a', tick, True)]


def test_a_row_that_is_kept_is_not_listed_again_and_not_waited_for(
        kept, job, tick):
    store, _ = kept

    changed = [ports.Listed(key, Attributes('every 9'), tick)
               for key in ('kept', 'free')]
    assert store.sync(job, changed, [], readings=[tick + 1]) == ['kept']
    assert store.sync(
        job, [], ['kept', 'free'], readings=[tick + 2]) == ['kept']

    assert listed(store, job) == {'kept': (tick, tick, '')}


def test_a_lease_with_a_row_that_is_kept_is_taken_over_later(
        kept, job, tick):
    store, lease = kept

    assert overdue(store, job) == []
    assert objects_of(reclaim(store, job, tick, ['kept', 'free'], lease)
                      ) == ['free']


@pytest.mark.parametrize('started', [True, False])
def test_a_claim_that_is_given_up_waits_for_a_short_lock(
        many_sessions, job, tick, started):
    """If the call left the locked claim out, the object would stay busy,
    because no handler ends this claim.
    """
    with many_sessions.store() as store, many_sessions.store() as other:
        lease = (run(store, job, tick, 'a', 'b')[0] if started
                 else take(store, job, tick, 'a', 'b')[0])
        engine = other.database.read(lambda connection: connection.engine)
        with engine.connect() as session:
            transaction = session.begin()
            session.execute(sa.select(tables.claim.c.object).where(
                tables.claim.c.lease == lease,
                tables.claim.c.object == 'b').with_for_update()).all()
            release = threading.Timer(0.5, transaction.rollback)
            release.start()
            reclaimed = reclaim(store, job, tick, ['a', 'b'], lease,
                                count_attempt=not started)
            release.join()

        assert objects_of(reclaimed) == ['a', 'b']


def test_a_reclaim_that_finds_nothing_locks_nothing(
        many_sessions, job, tick):
    """A worker that refuses granted runs gives them up, while its scheduler
    reclaims the same runs.
    """
    with many_sessions.store() as store, many_sessions.store() as other:
        lease, _ = run(store, job, tick, 'a')
        locked = []

        def lock(connection, cursor, statement, parameters, *_):
            locked.append('FOR UPDATE' in statement)
        used = other.database.read(lambda connection: connection)
        sa.event.listen(used, 'before_cursor_execute', lock)

        assert reclaim(other, job, tick, ['a'], name()) == []
        sa.event.remove(used, 'before_cursor_execute', lock)
        assert locked and not any(locked)
        assert objects_of(reclaim(store, job, tick, ['a'], lease)) == ['a']


# Tables that are dropped and created again.

def made_anew(url):
    engine = sa.create_engine(url)
    tables.metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.text(f'DROP TABLE {schema.VERSION_TABLE}'))
    engine.dispose()
    schema.sync(url)


def test_claims_never_go_to_another_job_when_the_tables_are_recreated(
        tmp_path, tick):
    """The old store still uses the number that the job had in the old tables.
    """
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    with sql(url) as world, world.store() as old, world.store() as new:
        take(old, 'first', tick, 'a')
        made_anew(url)
        take(new, 'second', tick, 'b')

        claim(old, 'first', tick + SECOND, ['a', 'b'])

        assert listed(new, 'second') == {'b': (tick, tick, '')}


def test_a_store_finds_its_jobs_when_the_tables_were_recreated(tmp_path, tick):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    with sql(url) as world, world.store() as old, world.store() as new:
        take(old, 'job', tick, 'a')
        made_anew(url)
        lease, won = take(new, 'job', tick, 'a')

        old.attend({'job': 60.0}, {})

        granted = begin(old, 'job', tick, ['a'], lease)
        assert same(granted, won)


# Lost workers.

def lose(store, job, tick, key, times, **options):
    """Claim an object and lose its runs; return the last lease and claim.

    :param times: Number of lost runs.
    """
    lease, [newest] = take(store, job, tick, key, **options)
    for _ in range(times):
        running, anew = name(), name()
        begin(store, job, tick, [key], lease, running)
        [newest] = reclaim(store, job, tick, [key], running, into=anew)
        lease = anew
    return lease, newest


@each('ending', [State.DEAD, *DROPPED])
def test_an_object_that_was_lost_too_often_has_one_attempt_until_it_is_done(
        store, job, tick, ending):
    lease, newest = lose(store, job, tick, 'a', 4)
    assert newest.attempt == 5
    drop(store, job, tick, ['a'], lease, State.DEAD)

    lease, newest = lose(store, job, tick + SECOND, 'a', 1, max_attempts=4)
    assert newest.attempt == 5
    drop(store, job, tick + SECOND, ['a'], lease, ending)
    lease, [again] = take(store, job, tick + 2 * SECOND, 'a', max_attempts=4)
    assert again.attempt == 4
    drop(store, job, tick + 2 * SECOND, ['a'], lease, ending)
    lease, [last] = take(store, job, tick + 3 * SECOND, 'a', max_attempts=4)
    assert last.attempt == 4

    running = name()
    assert same(begin(store, job, tick + 3 * SECOND, ['a'], lease,
                 running), [last])
    assert store.finish(
        HeldLease(running, job, tick + 3 * SECOND), ['a']) == {'a'}
    _, [free] = take(store, job, tick + 4 * SECOND, 'a', max_attempts=4)
    assert free.attempt == 1


def test_an_object_lost_less_often_restarts_with_attempt_one(store, job, tick):
    lease, _ = lose(store, job, tick, 'a', 2)
    drop(store, job, tick, ['a'], lease, State.DEAD)

    assert take(store, job, tick + SECOND, 'a',
                max_attempts=4)[1][0].attempt == 1


def test_a_tick_goes_on_with_the_losses_of_the_one_it_takes_the_place_of(
        store, job, tick):
    """If the earlier losses did not count, an object whose ticks come in quick
    succession would never reach its last attempt.
    """
    lose(store, job, tick, 'a', 2)
    lose(store, job, tick, 'b', 5)

    claimed = claim(store, job, tick + SECOND, ['a', 'b'], supersede=True,
                    max_attempts=4)

    assert {one.object: one.attempt for one in claimed.won} == {
        'a': 3, 'b': 4}
    assert claimed.superseded == 2


# Reclaimed runs.

def test_a_reclaimed_object_can_be_started_again_and_not_by_the_old_worker(
        store, job, tick):
    waiting, [not_run] = take(store, job, tick, 'b')
    lease, [old] = run(store, job, tick, 'a')
    into = name()

    anew = reclaim(store, job, tick, ['a', 'b'], waiting, lease, into=into)

    assert [(one.object, one.attempt) for one in anew] == [
        ('a', 2), ('b', 1)]
    assert anew[0].fence > old.fence
    assert anew[1].fence > not_run.fence
    assert void(store, job, tick, 'a', lease)
    assert void(store, job, tick, 'b', waiting)
    running = name()
    assert same(begin(store, job, tick, ['b', 'a'], into, running), anew[::-1])
    assert store.finish(HeldLease(lease, job, tick), ['a']) == set()
    assert store.finish(
        HeldLease(running, job, tick), ['a', 'b']) == {'a', 'b'}


@pytest.mark.parametrize('ran', [False, True])
def test_only_a_run_that_may_have_begun_counts_as_an_attempt(
        store, job, tick, ran):
    """A run that its worker refused does not count as an attempt."""
    lease, [held] = run(store, job, tick, 'a')
    for _ in range(3):
        into, running = name(), name()
        [held] = reclaim(store, job, tick, ['a'], lease, into=into,
                           count_attempt=ran)
        begin(store, job, tick, ['a'], into, running)
        lease = running

    assert held.attempt == (4 if ran else 1)


def test_an_object_in_no_lease_is_not_reclaimed(store, job, tick):
    lease, _ = run(store, job, tick, 'a')

    assert reclaim(store, job, tick, ['a']) == []
    assert reclaim(store, job, tick, ['a'], name()) == []

    assert store.finish(HeldLease(lease, job, tick), ['a']) == {'a'}


def test_the_fence_of_an_object_only_grows(store, job, tick):
    fences = []
    for _ in range(3):
        lease, [held] = take(store, job, tick, 'a')
        fences.append(held.fence)
        for _ in range(3):
            begin(store, job, tick, ['a'], lease, running := name())
            [held] = reclaim(store, job, tick, ['a'], running,
                               into=(lease := name()))
            fences.append(held.fence)
        begin(store, job, tick, ['a'], lease, running := name())
        store.finish(HeldLease(running, job, tick), ['a'])
        tick += 1000  # the shortest possible spacing

    assert fences == sorted(set(fences))


# Repeated calls after a lost answer.

def test_a_claim_made_again_gives_the_same_answer(one, another, job, tick):
    bring(one, job, tick, 'busy', State.RUNNING)
    bring(one, job, tick, 'late', State.CLAIMED)
    bring(one, job, tick, 'done', State.DONE)
    bring(one, job, tick - SECOND, 'behind', State.DONE)
    bring(one, job, tick + SECOND, 'taken', State.CLAIMED)
    objects = ['new', 'busy', 'late', 'done', 'behind', 'taken']
    lease = name()
    told = claim(one, job, tick + SECOND, objects, lease, supersede=True,
                 min_watermark=tick)
    assert (len(told.won), told.busy, told.superseded, told.behind) == (
        3, ['busy'], 1, [due.Row(
            'behind', position_of('behind'), tick - SECOND,
            tick - SECOND, PLAIN, True, *told.behind[0][-3:])])

    for store in one, another:
        assert claim(store, job, tick + SECOND, objects, lease,
                     supersede=True, min_watermark=tick) == told
    for key in objects:
        begin(one, job, tick + SECOND, [key], lease)
    assert one.renew([lease], holder=SCHEDULER, seconds=LONG) == set()


def test_a_claim_made_again_takes_nothing_more(one, another, job, tick):
    busy, _ = bring(one, job, tick, 'busy', State.RUNNING)
    lease = name()
    told = claim(one, job, tick + SECOND, ['a', 'busy'], lease)
    one.finish(HeldLease(busy, job, tick), ['busy'])

    assert claim(another, job, tick + SECOND, ['a', 'busy'], lease) == told


def test_a_start_made_again_gives_the_same_answer(one, another, job, tick):
    lease, won = take(one, job, tick, 'a', 'b', 'c')
    into = name()
    told = begin(one, job, tick, ['b', 'a'], lease, into)

    for store in one, another:
        assert begin(store, job, tick, ['b', 'a'], lease, into) == told
    assert one.renew([lease], holder=SCHEDULER, seconds=LONG) == {lease}
    assert same(begin(one, job, tick, ['c'], lease), [won[2]])
    assert one.renew([lease], holder=SCHEDULER, seconds=LONG) == set()


def test_a_repeated_end_counts_the_same_and_once(one, another, job, tick):
    lease, _ = run(one, job, tick, *'abcdef')
    retry = name()
    for store in one, another:
        assert store.finish(
            HeldLease(lease, job, tick), ['a', 'b']) == {'a', 'b'}
        assert fail(store, job, tick, ['c'], lease, None) == {'c'}
        assert fail(store, job, tick, ['d'], lease, retry, LONG) == {'d'}
        assert store.renew([lease], holder=WORKER, seconds=LONG) == {lease}

    assert one.finish(HeldLease(lease, job, tick), ['e', 'f']) == {'e', 'f'}
    assert one.renew([lease], holder=WORKER, seconds=LONG) == set()


@pytest.mark.parametrize('end', [
    lambda store, lease, keys: store.finish(lease, keys),
    lambda store, lease, keys: store.fail(
        lease, [Failure(key, 'a reason') for key in keys], None)])
def test_an_end_that_is_repeated_at_once_counts_the_same(
        store, job, tick, end):
    lease, _ = run(store, job, tick, 'a', 'b', 'c')

    assert [end(store, HeldLease(lease, job, tick), objects) for objects in (
        ['a', 'b'], ['a', 'b'], ['b', 'c'], ['b', 'c'])] == [
            {'a', 'b'}, {'a', 'b'}, {'b', 'c'}, {'b', 'c'}]
    assert end(store, HeldLease(name(), job, tick), ['a']) == set()


def test_the_end_of_a_run_counts_for_the_objects_that_were_not_taken_over(
        store, job, tick):
    """The store compares the objects, and not only their number."""
    lease, _ = run(store, job, tick, 'a', 'b', 'c', 'd', 'e')
    reclaim(store, job, tick, ['a', 'c'], lease)

    retry = name()
    for _ in range(2):
        assert store.finish(HeldLease(lease, job, tick), ['a', 'b']) == {'b'}
    for _ in range(2):
        assert fail(store, job, tick, ['c', 'd'], lease, retry,
                    LONG) == {'d'}
    for _ in range(2):
        assert fail(store, job, tick, ['c', 'e'], lease, None) == {'e'}


def test_a_drop_made_again_counts_the_same_and_once(one, another, job, tick):
    lease, _ = take(one, job, tick, 'a', 'b')
    for store in one, another:
        assert drop(store, job, tick, ['a'], lease, State.SKIPPED) == 1

    assert one.renew([lease], holder=SCHEDULER, seconds=LONG) == {lease}


def test_a_take_back_made_again_gives_the_same_answer(
        one, another, job, tick):
    lease, _ = run(one, job, tick, 'a', 'b', 'c')
    into = name()
    told = reclaim(one, job, tick, ['a', 'b'], lease, into=into)

    assert reclaim(another, job, tick, ['a', 'b'], lease, into=into) == told
    assert one.renew([lease], holder=WORKER, seconds=LONG) == {lease}
    assert objects_of(begin(one, job, tick, ['a', 'b'], into)) == ['a', 'b']
    assert one.renew([into], holder=SCHEDULER, seconds=LONG) == set()


# Progress of runs.

def test_saved_progress_is_kept_for_the_next_attempt(store, job, tick):
    lease, _ = run(store, job, tick, 'a', 'b', 'c')
    odd = json.dumps('ä\0\U0001f600')
    runs = HeldLease(lease, job, tick)
    store.save_progress(runs, {'a': '{"page": 1}', 'b': odd})
    store.save_progress(runs, {'a': '{"page": 2}', 'never claimed': '1'})
    assert fail(store, job, tick, ['a', 'b', 'c'], lease, name()) == {
        'a', 'b', 'c'}
    assert store.load_progress(runs, ['a', 'b']) == {}

    [over] = overdue(store, job)
    again = name()
    begin(store, job, tick, ['a', 'b', 'c'], over.id, again)

    assert store.load_progress(
        runs._replace(id=again), ['a', 'b', 'c']) == {
            'a': '{"page": 2}', 'b': odd}


def test_progress_of_a_run_that_was_replaced_is_not_kept(store, job, tick):
    lease, _ = run(store, job, tick, 'a', seconds=OVER)
    [over] = overdue(store, job)
    new = name()
    begin(store, job, tick, ['a'], over.id, new)

    store.save_progress(HeldLease(lease, job, tick), {'a': '"old"'})

    assert store.load_progress(HeldLease(new, job, tick), ['a']) == {}


def test_progress_ends_with_its_tick(store, job, tick):
    lease, _ = run(store, job, tick, 'a')
    store.save_progress(HeldLease(lease, job, tick), {'a': '1'})
    store.finish(HeldLease(lease, job, tick), ['a'])
    later = tick + 60 * SECOND

    lease, _ = run(store, job, later, 'a')

    assert store.load_progress(HeldLease(lease, job, later), ['a']) == {}


# Repeated calls, and counts.

def test_a_repeated_take_over_returns_the_same_leases(store, job, tick):
    """The leases have the names that the caller chose."""
    run(store, job, tick, 'a', 'b', seconds=OVER)
    take(store, job, tick, 'd', 'c', seconds=OVER)
    into = name()
    told = overdue(store, job, into=into)
    run(store, job, tick, 'e', seconds=OVER)

    again = overdue(store, job, into=into)

    assert [lease.id for lease in told] == [f'{into}.0', f'{into}.1']
    assert [(lease.id, lease.claims) for lease in again[:2]] == [
        (lease.id, lease.claims) for lease in told]
    assert [objects_of(lease.claims) for lease in again[2:]] == [['e']]
    assert store.renew([lease.id for lease in again], holder=OTHER,
                       seconds=LONG) == {lease.id for lease in again}


def test_a_repeated_take_over_overwrites_no_lease_of_the_first_one(
        store, job, tick):
    """Some leases of the first call have ended before the second one."""
    take(store, job, tick, 'a', seconds=-2.0)
    take(store, job, tick, 'b', seconds=-1.0)
    into = name()
    first, second = overdue(store, job, into=into)
    store.start(first.held, ['a'], NewLease(name(), OTHER, LONG))
    take(store, job, tick, 'c', seconds=OVER)

    again = overdue(store, job, into=into)

    assert len({lease.id for lease in again}) == 2
    assert sorted(objects_of(claim for lease in again
                             for claim in lease.claims)) == ['b', 'c']


def count(store, *jobs):
    """Return the number of runs of each job. The store omits jobs without
    runs.
    """
    counted = store.running(jobs)
    assert set(counted) <= set(jobs)
    return [counted.get(job, 0) for job in jobs]


def test_the_runs_of_a_job_on_all_workers_are_counted(store, job, tick):
    lease, _ = run(store, job, tick, 'a', 'b', 'c')
    run(store, job, tick, 'd', seconds=OVER)
    take(store, job, tick, 'e')
    assert count(store, job) == [4]

    store.finish(HeldLease(lease, job, tick), ['a'])
    assert count(store, job) == [3]
    fail(store, job, tick, ['b'], lease, name())
    assert count(store, job) == [2]
    overdue(store, job)
    assert count(store, job) == [1]


def test_the_runs_of_several_jobs_are_counted_for_each(store, job, tick):
    other, idle, left_out = f'{job}-2', f'{job}-3', f'{job}-4'
    run(store, job, tick, 'a', 'b')
    run(store, job, tick, 'c')
    run(store, other, tick, 'a')
    run(store, left_out, tick, 'a')

    assert count(store, job, other, idle) == [3, 1, 0]
    assert count(store, idle) == [0]
    assert count(store) == []


# Future ticks.

def test_a_tick_that_is_not_yet_due_is_not_claimed(one, job, tick):
    """The store's clock decides, not the clocks of the members. The rule also
    applies to objects that were claimed before.
    """
    claim(one, job, tick, ['a', 'b'])
    bring(one, job, tick, 'e', State.DONE)
    soon = one.now() + 20 * SECOND
    asked = [claim(one, job, soon, objects, lease=f'{job}-{n}')
             for n, objects in enumerate((
                 ['a'], ['c'], ['e'], ['a', 'c', 'd', 'e']))]

    assert all(18 * SECOND < answer.early <= 20 * SECOND
               for answer in asked)
    assert all(answer.won == answer.busy == [] for answer in asked)
    assert skip(one, job, soon, 'a', 'b') == 0
    assert objects_of(claim(one, job, soon - 20 * SECOND, ['a', 'c'],
                            supersede=True).won) == ['a', 'c']


def test_nothing_is_claimed_before_the_last_of_it_is_due(one, job, tick):
    claim(one, job, tick, ['a'])
    now = one.now()
    asked = [claim(one, job, now, objects, lease=f'{job}-{n}',
                   due_at=now + 20 * SECOND)
             for n, objects in enumerate((['a'], ['a', 'c']))]

    assert all(18 * SECOND < answer.early <= 20 * SECOND
               for answer in asked)
    assert objects_of(claim(one, job, now, ['a'], due_at=now,
                            supersede=True).won) == ['a']


def test_nothing_is_skipped_before_the_last_of_it_is_due(one, job, tick):
    claim(one, job, tick, ['a'])
    now = one.now()

    assert skip(one, job, now, 'a', due_at=now + 20 * SECOND) == 0
    assert skip(one, job, now, 'a', due_at=now) == 1


def test_a_clock_may_be_wrong_by_a_part_of_a_second(one, job):
    answer = claim(one, job, one.now() + SECOND // 2, ['a'])

    assert (objects_of(answer.won), answer.early) == (['a'], 0)


def test_a_tick_after_its_last_time_is_not_claimed(store, job, tick):
    """No object is claimed for such a tick: neither a new object, nor one
    whose claim has ended or waits.
    """
    claim(store, job, tick, ['a'])
    bring(store, job, tick, 'e', State.DONE)
    late = store.now() - 1
    for objects in ['a'], ['c'], ['e'], ['a', 'c', 'e']:
        answer = claim(store, job, tick + SECOND, objects, supersede=True,
                       until=late)
        assert (answer.won, answer.over) == ([], True)

    answer = claim(store, job, tick + SECOND, ['a', 'c', 'e'],
                   supersede=True, until=late + 60 * SECOND)
    assert (objects_of(answer.won), answer.over) == (['a', 'c', 'e'], False)


def test_a_claim_won_in_time_is_won_when_it_is_requested_again(
        store, job, tick):
    """The answer to the first call was lost."""
    bring(store, job, tick, 'e', State.DONE)
    lease, won = take(store, job, tick + SECOND, 'a', 'e',
                      until=store.now() + 60 * SECOND)

    again = claim(store, job, tick + SECOND, ['a', 'e'], lease,
                  until=store.now() - 1)

    assert (again.won, again.over) == (won, False)


# Races.

def test_one_of_many_concurrent_claims_wins_each_object(shared, job, tick):
    objects = [f'object-{n}' for n in range(200)]

    def ask(store, number):
        won = []
        for at in range(0, len(objects), 20):
            for later in 0, 1:
                claimed = claim(
                    store, job, tick + later, objects[at:at + 20],
                    holder=f'api-{number}', supersede=False)
                won += [(one.object, one.tick) for one in claimed.won]
        return won
    won = collections.Counter(itertools.chain(*together(shared, 4, ask)))

    assert won == dict.fromkeys(((key, tick) for key in objects), 1)


def test_one_of_many_concurrent_supersedes_wins_each_object(
        one, shared, job, tick):
    objects = [f'object-{n}' for n in range(60)]
    leases = [take(one, job, tick, *objects[at:at + 20])[0]
              for at in (0, 20, 40)]

    def ask(store, number):
        mixed = objects[number * 10:] + objects[:number * 10]
        return claim(store, job, tick + SECOND, mixed, supersede=True)
    answers = together(shared, 4, ask)

    won = collections.Counter(
        key for answer in answers for key in objects_of(answer.won))
    assert won == dict.fromkeys(objects, 1)
    assert sum(answer.superseded for answer in answers) == 60
    assert one.renew(leases, holder=SCHEDULER, seconds=LONG) == set()


def test_one_of_many_concurrent_starts_is_granted_each_run(
        one, shared, job, tick):
    objects = [f'object-{n}' for n in range(100)]
    lease, _ = take(one, job, tick, *objects)

    def ask(store, number):
        return objects_of(itertools.chain(*(
            begin(store, job, tick, objects[at:at + 10], lease,
                  holder=f'worker-{number}') for at in range(0, 100, 10))))
    granted = collections.Counter(
        itertools.chain(*together(shared, 4, ask)))

    assert granted == dict.fromkeys(objects, 1)
    assert one.renew([lease], holder=SCHEDULER, seconds=LONG) == set()


def test_a_lease_ends_with_the_last_of_many_concurrent_starts(
        one, shared, job, tick):
    leases = [take(one, job, tick, *(f'object-{n}-{thread}'
                                     for thread in range(4)))[0]
              for n in range(10)]

    def ask(store, number):
        for n, lease in enumerate(leases):
            begin(store, job, tick, [f'object-{n}-{number}'], lease,
                  holder=f'worker-{number}')
    together(shared, 4, ask)

    assert one.renew(leases, holder=SCHEDULER, seconds=LONG) == set()


def test_one_of_many_concurrent_searches_takes_each_lease_over(
        one, shared, job, tick):
    for number in range(12):
        take(one, job, tick, f'a{number}', f'b{number}', seconds=OVER)

    def ask(store, number):
        return [key for lease in overdue(store, job, holder=f'api-{number}')
                for key in objects_of(lease.claims)]
    taken = collections.Counter(itertools.chain(*together(shared, 4, ask)))

    assert set(taken.values()) == {1}
    assert len(taken) == 24


def test_a_run_ends_or_is_taken_back_and_never_both(
        one, shared, job, tick):
    objects = [f'object-{n}' for n in range(100)]
    lease, _ = run(one, job, tick, *objects)

    def ask(store, number):
        count = 0
        for at in range(0, 100, 10):
            some = objects[at:at + 10]
            count += len(store.finish(HeldLease(lease, job, tick), some)
                         if number % 2 else
                         reclaim(store, job, tick, some, lease))
        return count
    counts = together(shared, 2, ask)

    assert sum(counts) == 100
    assert one.renew([lease], holder=WORKER, seconds=LONG) == set()


def test_a_run_ends_or_is_taken_over_and_never_both(
        one, shared, job, tick):
    """The two calls change claims and leases in opposite orders: finish()
    changes the claims first, the take-over changes the lease first.
    """
    leases = {run(one, job, tick, f'a{n}', f'b{n}')[0]: n for n in range(20)}

    def ask(store, number):
        if number:
            return sum(len(store.finish(
                HeldLease(lease, job, tick), [f'a{n}', f'b{n}']))
                       for lease, n in leases.items())
        return sum(len(over.claims)
                   for over in overdue(store, job, gone=[WORKER]))
    counts = together(shared, 2, ask)

    assert sum(counts) == 40
    assert one.renew(list(leases), holder=WORKER, seconds=LONG) == set()


def test_a_lease_is_renewed_or_taken_over_and_never_both(
        shared, job, tick):
    with shared.store() as store:
        leases = [run(store, job, tick, f'object-{n}', seconds=OVER)[0]
                  for n in range(30)]

    def ask(store, number):
        if number:
            return [store.renew([lease], holder=WORKER, seconds=LONG)
                    for lease in reversed(leases)]
        return overdue(store, job)
    over, renewed = together(shared, 2, ask)

    assert len(over) + sum(map(len, renewed)) == 30


# Invalid arguments.

@pytest.mark.parametrize('key', ['x' * 256, 'a\0b'], ids=['long', 'nul'])
def test_an_id_without_a_place_is_refused_by_name(one, job, tick, key):
    with pytest.raises(exceptions.InvalidObject, match='characters'):
        claim(one, job, tick, ['a', key])

    take(one, job, tick, 'a')


def test_an_end_that_is_not_one_is_refused(one, job, tick):
    lease, _ = take(one, job, tick, 'a')
    for state in State.RUNNING, State.DONE:
        with pytest.raises(ValueError, match='not an outcome'):
            drop(one, job, tick, ['a'], lease, state)


# Random operations.

OPERATIONS = st.lists(st.tuples(
    st.sampled_from(['claim', 'start', 'finish', 'retry', 'bury', 'reclaim',
                     'overdue', 'gone', *DROPPED]),
    st.sets(st.sampled_from('abc'), min_size=1).map(sorted),
    st.booleans(), st.integers(0, 3)), max_size=30)


class Forgetful:
    """A store that loses the first answer to each call, so each call is made
    twice.
    """

    def __init__(self, store):
        self._store = store

    def __getattr__(self, called):
        asked = getattr(self._store, called)

        def ask(*args, **options):
            lost = asked(*args, **options)
            if called in ('now', 'take_over_expired'):
                # A second call of these methods may have another result.
                return lost
            answer = asked(*args, **options)
            assert answer == lost, called
            return answer
        return ask


@pytest.fixture(params=[
    # No answer gets lost within a process.
    ('memory', 'heard'), ('simulation', 'heard'), ('sqlite', 'heard'),
    *((name, 'lost') for name in (*SHARED, 'psycopg2')),
    *(pytest.param((name, 'heard'), marks=pytest.mark.full)
      for name in ('postgresql', 'mariadb', 'psycopg2'))], ids=' '.join)
def told(request):
    """A store, or a store that loses the first answer to each call."""
    name, heard = request.param
    with (request.getfixturevalue(f'of_{name}').used() as world,
          world.store() as one):
        yield one if heard == 'heard' else Forgetful(one)


@hypothesis.settings(suppress_health_check=[
    hypothesis.HealthCheck.function_scoped_fixture,
    hypothesis.HealthCheck.too_slow])
@hypothesis.given(operations=OPERATIONS)
def test_fences_only_grow_and_each_starts_and_counts_once(told, operations):
    """Calls come in any order, and may name any earlier lease."""
    store = told
    job = f'job-{uuid.uuid4().hex[:8]}'
    tick = next(TICKS)
    #: For each object, the leases that it has had so far.
    leases = {key: [] for key in 'abc'}
    fences = dict.fromkeys('abc', 0)
    open_in = {}
    running = set()
    won_for = set()

    def grant(lease, claims):
        for one in claims:
            assert one.fence > fences[one.object]
            fences[one.object] = one.fence
            leases[one.object].append((lease, one.tick))
            open_in[one.object] = lease
            running.discard(one.object)

    for what, keys, flag, age in operations:
        if what == 'claim':
            tick += SECOND * flag
            claimed = claim(store, job, tick, keys, lease := name(),
                            supersede=bool(age % 2), seconds=age - 2)
            grant(lease, claimed.won)
            names = objects_of(claimed.won)
            assert set(names).isdisjoint(claimed.busy)
            assert won_for.isdisjoint((key, tick) for key in names)
            won_for.update((key, tick) for key in names)
            continue
        if what in ('overdue', 'gone'):
            for over in overdue(store, job, limit=age + 1,
                                gone=[WORKER] if what == 'gone' else ()):
                grant(over.id, over.claims)
            continue
        for key in keys:
            if len(leases[key]) <= age:
                continue
            lease, at = leases[key][-1 - age]
            if what == 'start':
                granted = begin(store, job, at, keys, lease, into := name(),
                                seconds=OVER if flag else LONG)
                for one in granted:
                    assert one.fence == fences[one.object]
                    assert open_in[one.object] == lease
                    assert one.object not in running
                    running.add(one.object)
                    open_in[one.object] = into
                    leases[one.object].append((into, at))
            elif what == 'reclaim':
                anew = reclaim(store, job, at, keys, lease,
                                 into=(into := name()))
                assert all(open_in[one.object] == lease for one in anew)
                grant(into, anew)
            else:
                stood = open_in.get(key) == lease
                match what:
                    case 'finish':
                        counted = len(store.finish(
                            HeldLease(lease, job, at), [key]))
                    case 'retry':
                        counted = len(fail(store, job, at, [key], lease,
                                           into := name(), OVER))
                    case 'bury':
                        counted = len(fail(
                            store, job, at, [key], lease, None))
                    case _:
                        counted = drop(store, job, at, [key], lease, what)
                if not stood:
                    # The call may be a repetition, which changes nothing.
                    continue
                if counted and what == 'retry':
                    running.discard(key)
                    open_in[key] = into
                elif counted:
                    assert key in running or what not in ('finish',)
                    running.discard(key)
                    del open_in[key]
