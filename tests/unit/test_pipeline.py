# SPDX-License-Identifier: Apache-2.0
"""One flow with two books of leases: one in the shared store, and one in the
member's own memory.
"""


import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.claim import Authority
from distperiodic.core.job import Scope
from tests.unit import world as worlds

ENTRY = f'me~{"0" * 16}~1~f1'


@pytest.fixture
def me():
    """A scheduler's flow with jobs in a store and jobs of its own."""
    world = worlds.World()
    return world.scheduler(
        worlds.job('ours', scope=Scope.GROUP), finishes=False,
        store=MemoryClaimStore(world.clock),
        own=[worlds.job('mine', scope=Scope.MEMBER, topic='-')])


def sent(me, seconds):
    """Let time pass; return the jobs whose batches were sent."""
    before = len(me.bus.batches)
    me.world.advance(seconds)
    return [batch.job for batch in me.bus.batches[before:]]


def test_each_batch_has_its_authority_and_an_id_of_its_own(me):
    assert sorted(sent(me, 61)) == ['mine', 'ours']

    assert {batch.job: batch.authority for batch in me.bus.batches} == {
        'ours': Authority.STORE, 'mine': Authority.RING}
    assert len({batch.id for batch in me.bus.batches}) == 2
    for batch in me.bus.batches:
        for authority in Authority:
            grants = me.flow.grants_of(authority)
            assert (grants.lease_of(batch) is not None) is (
                authority is batch.authority)


def test_results_are_recorded_where_the_run_was_granted(me):
    for _ in range(3):
        sent(me, 60)
        me.finish()

    assert me.flow.counters['ours', 'done'] == 3
    assert me.flow.counters['mine', 'done'] == 3
    for job, authority in ('ours', Authority.STORE), ('mine', Authority.RING):
        for other in Authority:
            ended = []
            me.queues[other].submit(
                lambda store, job=job: store.settled(
                    job, me.bus.batches[-1].tick), ended.append)
            assert bool(ended[0]) is (other is authority)


def test_a_result_counts_though_its_batch_was_taken_from_the_worker(me):
    """The store alone decides whether a result counts, not the view of the
    scheduler.
    """
    sent(me, 61)
    me.dispatcher.workers_changed('default', [])

    me.finish()

    [batch] = [b for b in me.bus.batches if b.job == 'ours']
    rows = []
    me.queues[Authority.STORE].submit(
        lambda store: store.rows_of('ours', batch.objects), rows.extend)
    assert [row.free for row in rows] == [True]


def test_jobs_of_a_single_member_run_while_the_store_is_unreachable(me):
    sent(me, 1)
    me.queues[Authority.STORE].away = True

    assert sent(me, 60) == ['mine']


def test_a_member_that_distrusts_its_view_keeps_its_claims_in_the_store(me):
    """The store decides on shared claims, so an outdated view does no harm."""
    for topic in 'default', '-':
        me.dispatcher.workers_changed(topic, [])
    sent(me, 61)
    waiting = me.dispatcher.waiting
    assert waiting == 2

    me.world.distrust(me)
    me.world.trust(me)

    assert me.dispatcher.waiting == waiting
    assert me.dispatcher.waits_for(Authority.RING)
