# SPDX-License-Identifier: Apache-2.0
"""Distribution of objects to workers when one object crashes its worker."""

import collections
import inspect
import sys

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core import partition
from distperiodic.core import ring
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.refusal import Refusal
from tests import claiming
from tests.unit.test_dispatcher import at_work
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import worker


@pytest.fixture
def world():
    return World()


class Workers:
    """Workers that crash when they receive *poison*, and are restarted.

    :param number: Number of workers that run at any time.
    :param poison: Object that crashes its worker. None means that there is no
        such object.
    """

    def __init__(self, scheduler, number, poison):
        self.scheduler = scheduler
        self.poison = poison
        self.names = [f'w{n}' for n in range(number)]
        self.started = number
        self.deaths = 0
        self.show()

    def show(self):
        self.scheduler.dispatcher.workers_changed('default', [
            worker(name, slots=1000) for name in self.names])
        self.scheduler.flow.pump()

    def turn(self):
        """Run all batches. A worker that has the poisonous object dies before
        it runs anything.
        """
        me = self.scheduler
        for name in list(self.names):
            mine = [b for b in me.bus.open.values()
                    if b.worker.startswith(f'{name}~')]
            if any(self.poison in b.objects for b in mine):
                self.deaths += 1
                for batch in mine:
                    me.bus.open.pop(batch.id)
                self.started += 1
                self.names[self.names.index(name)] = f'w{self.started}'
                self.show()
            else:
                for batch in mine:
                    me.finish(batch)


@pytest.mark.parametrize('number', [1, 2, 3])
def test_an_object_that_kills_its_workers_takes_no_other_object_with_it(
        world, number):
    me = at_work(world, 300)
    workers = Workers(me, number, 'object-150')

    for _ in range(400):
        workers.turn()

    assert workers.deaths == 6
    assert me.count('dead') == 1
    assert me.count('done') == 299
    most = max(s.attempt for s in me.starts if s.object != 'object-150')
    assert most <= 4
    me.assert_accounted_for()


def test_an_object_that_kills_its_workers_costs_one_in_each_later_tick(world):
    """Each tick costs one worker until the object is fixed and one of its runs
    succeeds.
    """
    me = at_work(world, 40)
    workers = Workers(me, 2, 'object-7')

    def end():
        for _ in range(100):
            workers.turn()
        return workers.deaths

    def tick():
        """Return the number of deaths, and of the other objects' runs."""
        deaths, starts = workers.deaths, len(me.starts)
        world.advance(60, sweep=None)
        return end() - deaths, sum(
            s.object != 'object-7' for s in me.starts[starts:])
    assert end() == 6

    assert [tick() for _ in range(3)] == [(1, 39)] * 3
    workers.poison = None
    assert tick() == (0, 39)
    workers.poison = 'object-7'
    assert tick()[0] == 6
    assert me.count('dead') == 5


@pytest.mark.parametrize('most', [2, 4])
def test_an_object_that_kills_its_workers_is_dead_in_spite_of_short_ticks(
        world, most):
    """Again and again, a newer tick supersedes the claim after some losses."""
    me = at_work(world, 4)
    deaths = []
    for _ in range(12):
        workers = Workers(me, 1, 'object-1')
        for _ in range(20):
            if workers.deaths < most:
                workers.turn()
        deaths.append(workers.deaths)
        # For some time no worker runs, and the lost runs wait.
        workers.names = []
        workers.show()
        me.bus.open.clear()
        world.advance(60, sweep=None)

    assert sum(deaths[:4]) <= 9
    assert deaths[4:] == [1] * 8


def test_objects_lost_once_run_with_all_others(world):
    me = at_work(world, 300, workers=[worker('w1', slots=1000)])

    me.dispatcher.workers_changed('default', [
        worker('w2', slots=1000), worker('w3', slots=1000)])
    me.flow.pump()

    assert me.dispatcher.waiting == 0
    assert {len(b.objects) for b in me.bus.batches[-2:]} == {150}


def test_suspects_have_a_worker_to_themselves_for_a_while_only(world):
    me = at_work(world, 10, job('one', objects=True),
                 job('other', objects=True),
                 workers=[worker('w1', slots=10)])
    lost = {b.id for b in me.bus.open.values() if b.job == 'one'}
    assert lost
    for name in 'w2', 'w3':
        me.dispatcher.workers_changed('default', [worker(name, slots=10)])
        me.bus.open.clear()
        me.flow.pump()
    me.dispatcher.workers_changed('default', [
        worker('w4', slots=10), worker('w5', slots=10)])
    me.bus.open.clear()
    me.flow.pump()

    held = {}
    for batch in me.bus.open.values():
        held.setdefault(batch.worker.partition('~')[0], []).append(
            (batch.job, len(batch.objects)))
    assert sorted(held) == ['w4', 'w5']
    assert all(len(batches) == 1 for batches in held.values())

    world.stand_still(11)
    me.flow.pump()
    world.advance(0.3)
    assert me.dispatcher.outstanding == 20


def test_suspects_of_many_are_taken_by_ever_fewer(world):
    me = at_work(world, 100)
    # The poisonous object is the last one on the ring.
    poison = max((f'object-{n}' for n in range(100)), key=ring.position_of)

    together = []
    for n in range(6):
        me.dispatcher.workers_changed('default', [
            worker(f'w{n}', slots=1000)])
        me.bus.open.clear()
        me.flow.pump()
        together.append(max(len(b.objects) for b in me.bus.open.values()))
        while me.dispatcher.waiting:
            batch = next(iter(me.bus.open.values()))
            if poison in batch.objects:
                break
            me.finish(batch)

    assert together[:2] == [100, 100]
    assert together[2:] == sorted(together[2:], reverse=True)
    assert together[2] <= 16
    assert together[3:] == [1, 1, 1]


# -- max_in_flight when the store counts the runs of all schedulers

def shared(world):
    me = world.scheduler(
        job(objects=True, max_in_flight=9), finishes=False,
        store=MemoryClaimStore(world.clock),
        workers=[worker(slots=300)],
        catalogues={'poll': [f'object-{n}' for n in range(500)]})
    me.dispatcher.schedulers_changed(
        [worker(f's{n}', slots=0, points=40) for n in range(3)])
    world.advance(60.1)
    return me


def one_done(me, seconds=5.0):
    me.finish(next(iter(me.bus.open.values())), each=seconds)


def refuse_one(me, refusal=Refusal.JOB_LIMIT):
    me.refuse(next(iter(me.bus.open.values())), refusal)
    me.flow.pump()


def test_the_part_of_max_in_flight_that_others_leave_is_used_here(world):
    me = shared(world)
    assert me.dispatcher.outstanding == 3

    seen = []
    for _ in range(20):
        one_done(me)
        seen.append(me.dispatcher.outstanding)

    assert max(seen) == 9


def test_a_refusal_for_max_in_flight_costs_its_place_and_no_other(world):
    me = shared(world)
    for _ in range(20):
        one_done(me)

    batch = next(iter(me.bus.open.values()))
    me.flow.reported(message.Report(
        batch.id, batch.worker, refused=[(0, Refusal.JOB_LIMIT)]))
    me.flow.pump()

    assert me.dispatcher.outstanding == 8
    for _ in range(20):
        one_done(me)
        assert me.dispatcher.outstanding == 8
    assert me.count('repeated') == 0


def test_a_share_that_was_refused_is_asked_for_again(world):
    me = shared(world)
    while me.bus.open:
        refuse_one(me)
    assert me.dispatcher.outstanding == 0

    world.advance(5)

    assert me.dispatcher.outstanding == 3


PARTITIONS = {'default': partition.Partition('default', 6)}


def test_the_jobs_of_a_partition_have_its_limit_together(world):
    me = world.scheduler(
        *(job(name, objects=True) for name in ('a', 'b')),
        job('other', objects=True, topic='other'),
        finishes=False, partitions=PARTITIONS, catalogues={
            name: [f'{name}-{n}' for n in range(30)]
            for name in ('a', 'b', 'other')})
    world.advance(60.1)
    seen, ran = [], set()

    while any(b.partition == 'default' for b in me.bus.open.values()):
        here = [b for b in me.bus.open.values() if b.partition == 'default']
        seen.append(sum(len(b.objects) for b in here))
        ran |= {b.job for b in here}
        me.finish(here[0])

    assert max(seen) == 6
    assert ran == {'a', 'b'}
    assert sum(len(b.objects) for b in me.bus.open.values()) == 30


def test_a_job_s_own_limit_holds_beside_its_partition_s(world):
    me = world.scheduler(
        job('a', objects=True, max_in_flight=2, priority=1),
        job('b', objects=True), finishes=False, partitions=PARTITIONS,
        catalogues={name: [f'{name}-{n}' for n in range(30)]
                    for name in ('a', 'b')})

    world.advance(60.1)

    held = collections.Counter()
    for batch in me.bus.open.values():
        held[batch.job] += len(batch.objects)
    assert held == {'a': 2, 'b': 4}


def test_suspects_keep_to_the_limit_of_their_job(world):
    me = at_work(world, 40, job(objects=True, max_in_flight=3),
                 workers=[worker('w0', slots=1000)])
    for n in range(1, 4):
        me.bus.open.clear()
        me.dispatcher.workers_changed(
            'default', [worker(f'w{n}', slots=1000)])
        me.flow.pump()

        assert me.dispatcher.outstanding <= 3


def test_suspects_beyond_a_limit_wait(world):
    """The limit allowed all suspects to run until other schedulers used their
    shares of the limit.
    """
    me = at_work(world, 10, job(objects=True, max_in_flight=12),
                 workers=[worker('w0', slots=1000)])
    me.bus.open.clear()
    me.dispatcher.workers_changed('default', [worker('w1', slots=1000)])
    me.flow.pump()
    me.bus.open.clear()
    me.dispatcher.schedulers_changed(
        [worker(name, points=40) for name in 'abcd'])
    me.dispatcher.workers_changed('default', [worker('w2', slots=1000)])
    me.flow.pump()

    assert [s.attempt for s in me.starts] == [1] * 10 + [2] * 10 + [3] * 3


def test_a_suspect_waits_for_the_suspects_before_it(world):
    """Its runs were lost at one tick. At the next tick, its last run started
    after that of another object.
    """
    me = at_work(world, ['a', 'b'], workers=[worker('w0', slots=1)])

    def lose(*workers):
        world.stand_still(1)
        me.bus.open.clear()
        me.dispatcher.workers_changed('default', workers)
        me.flow.pump()

    def run():
        [batch] = me.bus.open.values()
        me.finish(batch)
        return batch.objects
    lose(worker('w1', slots=1))
    [other] = run()
    for name in 'w2', 'w3':
        lose(worker(name, slots=1))
    lose()
    world.advance(60, sweep=None)

    lose(worker('w4', slots=1))

    assert run() == [other]
    assert run() == [*{'a', 'b'} - {other}]
    assert me.starts[-1].attempt > 3


def test_a_suspect_that_is_refused_stays_one(world):
    me = at_work(world, 10, workers=[worker('w1', slots=1000)])
    for name in 'w2', 'w3', 'w4':
        me.bus.open.clear()
        me.dispatcher.workers_changed('default', [worker(name, slots=1000)])
        me.flow.pump()
    [batch] = me.bus.open.values()
    assert len(batch.objects) == 1

    me.refuse(batch)
    world.advance(2)

    assert max(len(b.objects) for b in me.bus.open.values()) == 1
    assert len(me.bus.open) == 1


def test_a_message_alone_takes_no_run_from_its_worker(world):
    """A message can be forged, so only the store decides which runs are
    granted.
    """
    me = world.scheduler(
        job(objects=True), finishes=False, store=world.shared_store(),
        catalogues={'poll': ['a']},
        workers=[worker('w1'), worker('w2')])
    world.advance(60.1)
    [batch] = me.bus.open.values()

    me.flow.dispatcher.reported(message.Report(
        batch.id, batch.worker, refused=[(0, Refusal.DRAINING)]))
    world.advance(10)

    assert len(me.starts) == 1
    assert [row.free for row in me.store.rows_of('poll', ['a'])] == [False]
    me.finish(batch)
    assert [row.free for row in me.store.rows_of('poll', ['a'])] == [True]


def test_thousands_of_retries_may_be_due_at_once(world):
    me = at_work(world, 1, job(objects=True, retries=3))
    store = me.store
    for n in range(3000):
        lease, into = f'claimed-{n}', f'ran-{n}'
        claiming.claim(store, 'poll', 0, [f'x-{n}'], lease=lease,
                       holder='other', seconds=60, supersede=False)
        store.start(
            HeldLease(lease, 'poll', 0), [f'x-{n}'], NewLease(into, 'w', 60))
        store.fail(
            HeldLease(into, 'poll', 0), [Failure(f'x-{n}', 'no')],
            NewLease(f'retry-{n}', '', 1.0))
    depth = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack()) + 60)
        world.advance(2)
    finally:
        sys.setrecursionlimit(depth)

    assert me.count('taken over') == 3000


def test_a_member_that_distrusts_its_view_dispatches_only_its_own_jobs(world):
    me = at_work(world, 10, job('ours', objects=True), job('mine'))

    me.dispatcher.workers_changed('default', [worker('w')])
    me.dispatcher.pump_all(lambda: False)

    assert {batch.job for batch in me.bus.open.values()} == {'mine'}
