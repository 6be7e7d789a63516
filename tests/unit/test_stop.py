# SPDX-License-Identifier: Apache-2.0
"""The claims of a scheduler that stops: the claims that it has not started are
free for the others, at whatever moment the stop comes.
"""

import pytest

from distperiodic.core.claim import Authority
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.refusal import Refusal
from tests import claiming
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import worker

LEASE = 60.0
OBJECTS = [f'object-{n}' for n in range(6)]


@pytest.fixture
def world():
    return World()


def scheduler(world, *jobs, name='me', **options):
    jobs = jobs or (job(objects=True, every=60.0),)
    options.setdefault('store', world.shared_store())
    options.setdefault('finishes', False)
    return world.scheduler(
        *jobs, name=name, catalogues={one.name: OBJECTS for one in jobs},
        **options)


def free(world, one):
    """Let another scheduler take over what is free. Return the objects, each
    with its attempt, and the order of their leases.
    """
    leases = one.store.take_over_expired(
        TakeOverRequest(sorted(one.jobs), [], 100),
        NewLease(f'after-{world.clock.now()}', 'other', LEASE))
    return [(claim.object, claim.attempt) for lease in leases
            for claim in lease.claims]


def all_of(*objects):
    return [(one, 1) for one in objects or OBJECTS]


def claimed(world, **options):
    """Return a scheduler whose claims wait, because there is no worker."""
    me = scheduler(world, workers=[], **options)
    world.advance(60)
    assert me.dispatcher.waiting == len(OBJECTS)
    return me


def test_claims_that_wait_for_a_worker_are_free_at_once(world):
    me = claimed(world)

    me.flow.drain()

    assert me.flow.settled
    assert me.dispatcher.waiting == 0
    assert me.count('left to others') == len(OBJECTS)
    assert sorted(free(world, me)) == all_of()
    me.assert_accounted_for()


def test_claims_that_are_given_back_keep_their_place_in_the_line(world):
    old, new = (job(name, objects=True, every=every)
                for name, every in (('old', 40.0), ('new', 60.0)))
    me = scheduler(world, old, new, workers=[])
    world.advance(60)

    me.flow.drain()

    leases = me.store.take_over_expired(
        TakeOverRequest(['new', 'old'], [], 100),
        NewLease('after', 'other', LEASE))
    assert [lease.job for lease in leases] == ['old', 'new']


def test_another_member_starts_released_claims_at_its_next_sweep(world):
    me = claimed(world)
    me.flow.drain()
    other = scheduler(world, name='other', store=me.store, sweep_interval=1.0)

    world.advance(1.25)

    assert sorted(start.object for start in other.starts) == OBJECTS
    assert {(start.tick, start.attempt) for start in other.starts} == {(60, 1)}


def test_a_tick_that_follows_the_stop_is_not_taken_for_an_overlap(world):
    me = claimed(world)
    me.flow.drain()

    again = scheduler(world, name='again', store=me.store, sweep_interval=60.0)
    world.advance(60, sweep=None)

    assert {start.tick for start in again.starts} == {120}
    assert again.count('skipped') == 0


@pytest.mark.parametrize('calls', range(1, 9))
def test_no_claim_is_left_whenever_the_stop_comes_in_a_tick(world, calls):
    """The stop comes after any number of answers of the store.

    Of a claim whose request is under way the answer comes later than the
    stop, and so does the answer to the request for the grant.
    """
    me = scheduler(world)
    world.advance(59)
    me.queue.slow = True
    world.advance(1.5, sweep=None)
    for _ in range(calls):
        if me.queue.asked:
            call, then, _ = me.queue.asked.pop(0)
            then(call(me.store))
            me.step()

    me.flow.drain()
    refuse_all(me)
    assert me.flow.settled is (not me.queue.asked)
    while me.queue.asked:
        me.queue.answer()
        # The pool of a process that stops refuses what is granted.
        refuse_all(me)

    assert me.flow.settled
    assert me.store.holders(sorted(me.jobs)) == set()
    assert sorted(free(world, me)) in ([], all_of())
    me.assert_accounted_for()


def refuse_all(me):
    for batch in list(me.bus.open.values()):
        me.refuse(batch, Refusal.DRAINING)


def test_a_claim_under_way_is_given_back_when_it_arrives(world):
    me = scheduler(world)
    world.advance(59)
    me.queue.slow = True
    world.advance(1, sweep=None)
    assert me.queue.asked

    me.flow.drain()
    assert not me.flow.settled
    me.queue.answer()

    assert me.flow.settled
    assert me.starts == []
    assert sorted(free(world, me)) == all_of()


def test_a_trigger_under_way_is_given_back_when_it_arrives(world):
    me = scheduler(world, job(objects=True, every=3600.0))
    world.advance(1)
    me.queue.slow = True
    me.ticker.trigger('poll', None)

    me.flow.drain()
    assert not me.flow.settled
    me.queue.answer()

    assert me.flow.settled
    assert sorted(free(world, me)) == all_of()


def test_a_take_over_under_way_is_given_back_when_it_arrives(world):
    first = claimed(world, name='first')
    first.flow.drain()
    me = scheduler(world, name='me', store=first.store, workers=[])
    world.schedulers.remove(first)
    me.queue.slow = True
    world.advance(2)
    assert me.queue.asked

    me.flow.drain()
    assert not me.flow.settled
    me.queue.answer()

    assert me.flow.settled
    assert me.count('taken over') == me.count('left to others')
    assert sorted(free(world, me)) == all_of()


def test_suspects_are_given_back_with_their_losses(world):
    me = scheduler(world, job(objects=True, every=3600.0), workers=[])
    tick = me.store.now()
    claiming.claim(me.store, 'poll', tick, OBJECTS, lease='first',
                   holder='gone', seconds=-1, supersede=False)
    for n in range(2):
        me.store.start(
            HeldLease('first' if not n else 'second', 'poll', tick), OBJECTS,
            NewLease(f'run-{n}', 'gone', -1))
        me.store.reclaim(
            [HeldLease(f'run-{n}', 'poll', tick)], OBJECTS,
            NewLease('second' if not n else 'third', 'gone', -1))
    world.advance(2)
    assert me.dispatcher.waiting == len(OBJECTS)

    me.flow.drain()

    assert me.flow.settled
    assert sorted(free(world, me)) == [(one, 3) for one in OBJECTS]


def test_a_batch_that_no_worker_has_started_is_free(world):
    """Its message may wait at the broker, or at a worker that is frozen."""
    me = scheduler(world, grants_here=False)
    world.advance(60)
    [batch] = me.bus.batches

    me.flow.drain()

    assert sorted(free(world, me)) == all_of()
    assert me.store.start(
        HeldLease(batch.lease, 'poll', batch.tick), OBJECTS,
        NewLease('late', 'w', LEASE)) == []
    assert not me.flow.settled


def test_a_batch_that_a_worker_has_started_stays_with_it(world):
    me = scheduler(world, grants_here=False)
    world.advance(60)
    [batch] = me.bus.batches
    assert me.store.start(
        HeldLease(batch.lease, 'poll', batch.tick), OBJECTS,
        NewLease('runs', 'w', LEASE))

    me.flow.drain()

    assert free(world, me) == []
    me.store.finish(HeldLease('runs', 'poll', batch.tick), OBJECTS)
    me.finish(batch)
    assert me.flow.settled
    me.assert_accounted_for()


@pytest.mark.parametrize('how', ['unsent', 'gone', 'refused'])
def test_a_batch_that_comes_back_after_the_stop_is_free(world, how):
    me = scheduler(world, job(objects=True, delivery='at_most_once'),
                   grants_here=False)
    world.advance(60)
    [batch] = me.bus.batches
    me.flow.drain()

    if how == 'unsent':
        me.unsend(batch)
    elif how == 'refused':
        me.refuse(batch)
    else:
        me.bus.open.clear()
        me.dispatcher.workers_changed('default', [worker('other')])

    assert me.flow.settled
    assert me.bus.batches == [batch]
    assert sorted(free(world, me)) == all_of()
    me.assert_accounted_for()


def test_a_reclaim_under_way_is_given_back_when_it_arrives(world):
    me = scheduler(world, grants_here=False)
    world.advance(60)
    [batch] = me.bus.batches
    me.queue.slow = True
    me.refuse(batch)

    me.flow.drain()
    assert not me.flow.settled
    me.queue.answer()

    assert me.flow.settled
    assert sorted(free(world, me)) == all_of()


def test_without_a_store_the_claimed_objects_run(world):
    """No other process knows these claims."""
    me = world.scheduler(job(objects=True), catalogues={'poll': OBJECTS},
                         workers=[], finishes=False)
    world.advance(60)

    me.flow.drain()
    assert not me.flow.settled
    me.dispatcher.workers_changed('default', [worker(slots=100)])
    me.flow.pump()
    assert sorted(start.object for start in me.starts) == OBJECTS
    me.finish()

    assert me.flow.settled


def test_jobs_of_each_member_are_run_though_the_others_are_given_back(world):
    mine = job('mine', every=60.0, topic='-')
    me = scheduler(world, workers=[], own=[mine])
    me.dispatcher.workers_changed('-', [])
    world.advance(60)

    me.flow.drain()

    assert sorted(free(world, me)) == all_of()
    assert me.dispatcher.waits_for(Authority.RING)
    me.dispatcher.workers_changed('-', [worker()])
    me.flow.pump()
    assert [batch.job for batch in me.bus.batches] == ['mine']


def test_while_the_store_is_away_the_claims_to_give_back_are_counted(world):
    me = claimed(world)
    me.queue.away = True

    me.flow.drain()
    assert not me.flow.settled
    assert me.dispatcher.releasing == len(OBJECTS)
    me.queue.come_back()

    assert me.flow.settled
    assert me.dispatcher.releasing == 0
    assert sorted(free(world, me)) == all_of()


def test_rows_read_for_a_stop_claim_nothing_more(world):
    """An answer to an earlier read shows ticks that are due."""
    me = scheduler(world, workers=[])
    world.advance(59)
    me.queue.slow = True
    world.stand_still(150)
    world.advance(1, sweep=None)
    me.flow.drain()

    while me.queue.asked:
        me.queue.answer()
        me.step()

    assert me.flow.settled
    assert me.store.holders(['poll']) == set()
    assert all(row.free for row in me.store.rows_of('poll', OBJECTS))
