# SPDX-License-Identifier: Apache-2.0
"""Dispatch, from waiting claims to settled batches, in virtual time."""

import collections
import logging
import random

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core.claim import Claim
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.refusal import Refusal
from distperiodic.flow import events
from distperiodic.flow.scheduler.in_flight import SentBatch
from distperiodic.flow.scheduler.in_flight import WorkerState
from tests import claiming
from tests.kept import kept
from tests.logged import lines
from tests.unit.world import StoreQueue
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import seconds_of
from tests.unit.world import worker

DISPATCH = 'distperiodic.flow.scheduler.dispatcher'


@pytest.fixture
def world():
    return World()


class Workers:
    """Workers whose runs take time. Each runs *slots* objects concurrently.

    :param takes: Seconds of one run, by the worker's name.
    """

    def __init__(self, world, scheduler, takes):
        self.world = world
        self.scheduler = scheduler
        self.takes = takes
        self.slots = {}
        self.queues = collections.defaultdict(collections.deque)
        self.done = collections.Counter()
        self.most = collections.Counter()

    def join(self, *names, slots=10):
        for name in names:
            self.slots[name] = slots
        self.scheduler.dispatcher.workers_changed('default', [
            worker(name, number) for name, number in self.slots.items()])
        self.scheduler.flow.pump()

    def turn(self, seconds):
        """Let time pass; each worker does the runs that fit into this time."""
        for batch in list(self.scheduler.bus.open.values()):
            name = batch.worker.partition('~')[0]
            if not any(b is batch for b, _ in self.queues[name]):
                self.queues[name].append((batch, []))
        for name, queue in self.queues.items():
            held = sum(len(b.objects) - len(over) for b, over in queue)
            self.most[name] = max(self.most[name], held)
            left = round(seconds / self.takes[name] * self.slots[name])
            while queue and left:
                batch, over = queue[0]
                fresh = [*range(len(over), len(batch.objects))][:left]
                left -= len(fresh)
                over.extend(fresh)
                self.done[name] += len(fresh)
                self.scheduler.dispatcher.reported(message.Report(
                    batch.id, batch.worker, done=fresh,
                    seconds=len(fresh) * self.takes[name]))
                if len(over) == len(batch.objects):
                    queue.popleft()
                    self.scheduler.bus.open.pop(batch.id)
        self.scheduler.flow.pump()
        self.world.advance(seconds, sweep=0.25)


def at_work(world, objects, *jobs, **options):
    """A scheduler that has just claimed *objects* of each job."""
    if isinstance(objects, int):
        objects = [f'object-{n}' for n in range(objects)]
    jobs = jobs or (job(objects=True),)
    options.setdefault('workers', [])
    me = world.scheduler(
        *jobs, finishes=False,
        catalogues={j.name: objects for j in jobs}, **options)
    world.advance(60, sweep=None)
    # The claims of a large tick are made in several steps.
    while me.step() < 0.001:
        world.clock.advance(0.001)
    return me


def sizes(scheduler):
    """For the name of each worker, the number of objects that it received."""
    given = collections.Counter(s.worker for s in scheduler.starts)
    return dict(given)


# -- distribution

def test_without_a_worker_all_of_it_waits_here(world, caplog):
    me = at_work(world, 1000)

    world.advance(50)

    assert me.bus.batches == []
    assert me.dispatcher.waiting == 1000
    warned = lines(caplog, 'no worker')
    assert len(warned) == 2
    assert warned[0] == {'partition': 'default', 'jobs': '1'}
    me.assert_accounted_for()


def test_an_unmeasured_job_fills_the_slots_of_a_worker_and_no_more(world):
    me = at_work(world, 100, workers=[worker(slots=8)])

    assert sizes(me) == {'w': 8}
    assert me.dispatcher.waiting == 92


def test_a_measured_job_fills_half_a_second_of_a_worker(world):
    me = at_work(world, 20_000, workers=[worker(slots=10)])

    for _ in range(12):
        me.finish(each=0.01)

    # Runs take 10 ms, ten run at a time: 500 objects take 0.5 s.
    assert me.dispatcher.outstanding == pytest.approx(500, abs=1)


def test_the_shortest_handlers_have_a_window_too(world):
    me = at_work(world, 60_000, workers=[worker(slots=10)])

    for _ in range(3):
        me.finish(each=1e-9)

    assert 10_000 <= me.dispatcher.outstanding <= 25_000


def test_two_workers_share_a_small_burst_evenly(world):
    me = at_work(world, 100, workers=[
        worker('w1', slots=100), worker('w2', slots=100)])

    assert sizes(me) == {'w1': 50, 'w2': 50}
    assert len(me.bus.batches) == 2


def test_two_workers_share_a_long_burst_evenly(world):
    me = at_work(world, 4000)
    crew = Workers(world, me, {'w1': 0.05, 'w2': 0.05})

    crew.join('w1', 'w2')
    for _ in range(200):
        crew.turn(0.1)

    assert sum(crew.done.values()) == 4000
    assert abs(crew.done['w1'] - crew.done['w2']) < 250


def test_a_worker_that_joins_under_load_has_work_at_once(world):
    me = at_work(world, 4000)
    crew = Workers(world, me, {'w1': 0.05, 'w2': 0.05})
    crew.join('w1')
    for _ in range(20):
        crew.turn(0.1)
    assert me.dispatcher.waiting > 2000

    crew.join('w2')

    assert [b for b in me.bus.open.values() if b.worker.startswith('w2~')]


def test_a_slow_worker_does_not_hoard(world):
    """The last objects of a burst are not left to a worker 20 times as slow.
    """
    me = at_work(world, 6000)
    crew = Workers(world, me, {'quick': 0.01, 'slow': 0.2})
    crew.join('quick', 'slow')
    turns = 0
    while me.count('done') < 6000:
        crew.turn(0.1)
        turns += 1

    # 1050 objects per second is the speed of both workers together.
    assert turns / 10 < 1.35 * 6000 / 1050
    assert crew.most['slow'] <= 150


def test_no_batch_is_cut_small_for_a_worker_that_has_enough_to_do(world):
    """Each batch costs a transaction in the store and a message."""
    me = at_work(world, 20_000)
    crew = Workers(world, me, {'w': 0.001})
    crew.join('w')

    while me.count('done') < 20_000:
        crew.turn(0.005)
        assert (me.dispatcher.outstanding > 2_000
                or not me.dispatcher.waiting or me.count('done') < 500)

    small = [b for b in me.bus.batches if len(b.objects) < 500]
    assert len(small) <= 5
    me.assert_accounted_for()


def test_a_batch_holds_at_most_batch_size_objects(world):
    me = at_work(world, 1234, workers=[worker(slots=5000)], batch_size=500)

    assert [len(b.objects) for b in me.bus.batches] == [500, 500, 234]


def test_a_batch_is_of_one_job_and_one_tick(world):
    me = at_work(world, 10, job('a', objects=True, misfire='all'),
                 job('b', objects=True))
    world.stand_still(60)
    world.advance(0)

    me.dispatcher.workers_changed('default', [worker(slots=1000)])
    me.flow.pump()

    for batch in me.bus.batches:
        assert len({s.tick for s in me.starts
                    if s.job == batch.job and s.object in batch.objects
                    and seconds_of(batch.tick) == s.tick}) == 1
    assert {(b.job, seconds_of(b.tick)) for b in me.bus.batches} == {
        ('a', 60), ('b', 120)}


def test_higher_priorities_go_first(world):
    me = at_work(
        world, 30, job('low', objects=True, priority=-1),
        job('high', objects=True, priority=5), job('usual', objects=True))

    me.dispatcher.workers_changed('default', [worker(slots=45)])
    me.flow.pump()

    assert [b.job for b in me.bus.batches] == ['high', 'usual']
    assert [b.priority for b in me.bus.batches] == [5, 0]
    me.finish()
    assert collections.Counter(s.job for s in me.starts)['low'] > 0


def test_jobs_of_one_priority_take_turns(world):
    """The backlog of a large job does not delay a small job."""
    me = at_work(world, 20_000, job('big', objects=True),
                 job('small', every=90.0, scope='group'),
                 workers=[worker(slots=10)])
    crew = Workers(world, me, {'w': 0.05})
    crew.slots['w'] = 10

    for _ in range(400):
        crew.turn(0.1)

    begun = [s.at for s in me.starts if s.job == 'small']
    assert begun
    assert begun[0] - 90 < 1.0
    assert me.dispatcher.waiting > 10_000


def test_more_jobs_than_anybody_counts_may_be_stuck(world):
    """Fifty jobs that the worker does not know do not block the job that it
    knows.
    """
    jobs = [job(f'strange-{n}', objects=True, priority=1) for n in range(50)]
    me = at_work(world, 3, *jobs, job('known', objects=True),
                 workers=[worker(slots=10)])

    for _ in range(100):
        for batch in list(me.bus.open.values()):
            if batch.job != 'known':
                me.refuse(batch, Refusal.UNKNOWN_JOB)
        me.flow.pump()

    assert [b.job for b in me.bus.open.values()] == ['known']


def test_max_in_flight_bounds_a_job_over_all_workers(world):
    me = at_work(world, 100, job(objects=True, max_in_flight=3),
                 workers=[worker('w1', 50), worker('w2', 50)])
    seen = []

    while me.bus.open:
        seen.append(me.dispatcher.outstanding)
        me.finish(next(iter(me.bus.open.values())))

    assert max(seen) == 3
    assert me.count('done') == 100


def test_max_in_flight_is_divided_by_the_schedulers(world):
    me = at_work(world, 100, job(objects=True, max_in_flight=9))
    me.dispatcher.schedulers_changed(
        [worker(f"s{n}", slots=0, points=40) for n in range(3)])

    me.dispatcher.workers_changed('default', [worker(slots=300)])
    me.flow.pump()

    assert me.dispatcher.outstanding == 3


def test_schedulers_share_the_slots_of_the_workers(world):
    me = at_work(world, 100)
    me.dispatcher.workers_changed('default', [worker(slots=40)])
    me.dispatcher.schedulers_changed(
        [worker(f"s{n}", slots=0, points=40) for n in range(4)])

    me.flow.pump()

    assert me.dispatcher.outstanding == 10


def test_the_slots_of_its_own_pool_are_not_shared(world):
    me = at_work(world, 100)
    me.flow.workers_changed('default', [worker(slots=40)], own=True)
    me.dispatcher.schedulers_changed(
        [worker(f"s{n}", slots=0, points=40) for n in range(4)])

    me.flow.pump()

    assert me.dispatcher.outstanding == 40


def sharing(world):
    """Start 200 objects of one of four schedulers that share 40 slots."""
    me = at_work(world, 200)
    me.dispatcher.workers_changed('default', [worker(slots=40)])
    me.dispatcher.schedulers_changed([
        worker(name, slots=0, points=40) for name in ('me', 's1', 's2', 's3')])
    me.flow.pump()
    return me


def hear(me, others):
    """Let the worker report its number of runs for other schedulers."""
    batch = next(iter(me.bus.open.values()))
    me.flow.reported(message.Report(batch.id, batch.worker, others=others))
    me.flow.pump()


def test_a_scheduler_uses_the_slots_that_the_others_leave_free(world):
    me = sharing(world)
    assert me.dispatcher.outstanding == 10

    found = []
    for others in 30, 25, 0:
        hear(me, others)
        found.append(me.dispatcher.outstanding)

    assert found == [10, 15, 40]


def test_a_scheduler_returns_the_slots_that_others_need(world):
    me = sharing(world)
    hear(me, 0)
    assert me.dispatcher.outstanding == 40
    batch = max(me.bus.open.values(), key=lambda one: len(one.objects))

    found = []
    for index in range(25):
        me.flow.reported(message.Report(
            batch.id, batch.worker, done=[index], seconds=1.0, others=20))
        me.flow.pump()
        found.append(me.dispatcher.outstanding)

    assert found == [*range(39, 20, -1)] + 6 * [20]


def test_a_scheduler_without_runs_at_a_worker_keeps_to_its_part(world):
    """It does not learn that the others use more slots now."""
    me = at_work(world, 10)
    me.dispatcher.workers_changed('default', [worker(slots=40)])
    me.dispatcher.schedulers_changed([
        worker(name, slots=0, points=40) for name in ('me', 's')])
    me.flow.pump()
    hear(me, 0)
    for batch in list(me.bus.open.values()):
        me.flow.reported(message.Report(
            batch.id, batch.worker, done=[*range(len(batch.objects))],
            seconds=5.0, others=0))
    assert me.dispatcher.outstanding == 0

    assert me.dispatcher.room_for(job(objects=True)) == 20


@pytest.fixture
def crowded(world):
    """Four schedulers that share one slot. The worker has a run of another
    one when the run of this scheduler ends.
    """
    me = at_work(world, 10)
    me.dispatcher.workers_changed('default', [worker(slots=1)])
    me.dispatcher.schedulers_changed([
        worker(name, slots=0, points=40) for name in ('me', 's1', 's2', 's3')])
    me.flow.pump()
    [batch] = me.bus.open.values()
    assert (len(batch.objects), batch.waiting) == (1, 9)
    me.flow.reported(message.Report(
        batch.id, batch.worker, done=[0], seconds=2.0, others=1))
    me.flow.pump()
    assert me.dispatcher.outstanding == 0
    return me


def give_turn(me, others=0):
    me.flow.reported(message.Report(
        message.NO_BATCH, worker(slots=1).entry, others=others))
    me.flow.pump()


def test_a_scheduler_sends_the_next_run_when_the_worker_gives_it_a_turn(
        crowded):
    give_turn(crowded, others=1)
    assert crowded.dispatcher.outstanding == 0
    assert crowded.dispatcher.room_for(job(objects=True)) == 0

    give_turn(crowded)

    assert crowded.dispatcher.outstanding == 1


def test_a_report_that_a_turn_has_overtaken_does_not_revoke_it(
        crowded):
    give_turn(crowded)
    *_, batch = crowded.bus.open.values()
    give_turn(crowded)
    crowded.flow.reported(message.Report(
        batch.id, batch.worker, done=[0], seconds=2.0, others=1))

    crowded.flow.pump()

    assert crowded.dispatcher.outstanding == 1


def test_a_scheduler_whose_turn_was_lost_sends_a_run(world, crowded):
    def pass_time(seconds):
        world.advance(seconds)
        crowded.dispatcher.sweep()
        crowded.flow.pump()
    give_turn(crowded, others=1)
    for _ in range(3):
        pass_time(20.0)
        assert crowded.dispatcher.outstanding == 0
        give_turn(crowded, others=1)

    pass_time(31.0)

    assert crowded.dispatcher.outstanding == 1


def test_the_schedulers_divide_the_slots_of_several_workers():
    """Together they send exactly as many runs as there are slots."""
    schedulers = [worker(f's{n}', slots=0, points=40) for n in range(3)]
    sent = collections.Counter()
    for scheduler in schedulers:
        world = World()
        me = world.scheduler(
            job(objects=True), name=scheduler.identity, finishes=False,
            catalogues={'poll': [f'object-{n}' for n in range(100)]},
            workers=[worker(f'w{n}', slots=10) for n in range(4)])
        me.dispatcher.schedulers_changed(schedulers)
        world.advance(60.1)
        for batch in me.bus.open.values():
            sent[batch.worker] += len(batch.objects)

    assert set(sent.values()) == {10}


def test_partitions_have_workers_of_their_own(world):
    me = at_work(world, 10, job('cpu', objects=True, topic='cpu'),
                 job('net', objects=True, topic='net'))

    me.dispatcher.workers_changed('net', [worker('n', slots=50)])
    me.flow.pump()

    assert {(b.job, b.partition) for b in me.bus.batches} == {('net', 'net')}
    assert me.dispatcher.waiting == 10


# -- refusals by workers

def test_a_job_unknown_to_one_worker_goes_to_another(world):
    me = at_work(world, 10, workers=[
        worker('old', slots=5), worker('new', slots=5)])

    for batch in list(me.bus.open.values()):
        if batch.worker.startswith('old'):
            me.refuse(batch, Refusal.UNKNOWN_JOB)
    for _ in range(5):
        me.flow.pump()
        for batch in list(me.bus.open.values()):
            assert batch.worker.startswith('new')
        me.finish()

    assert me.count('done') == 10
    assert sum(1 for b in me.bus.batches
               if b.worker.startswith('old')) == 1
    assert {s.attempt for s in me.starts} == {1}
    me.assert_accounted_for()


def test_an_unknown_job_waits_without_a_loop(world, caplog):
    me = at_work(world, 10, workers=[worker(slots=50)])
    me.refuse(me.bus.batches[0], Refusal.UNKNOWN_JOB)

    world.advance(50)

    assert len(me.bus.batches) == 1
    assert me.dispatcher.waiting == 10
    told = lines(caplog, 'no worker')
    assert len(told) == 2
    # The only worker does not know the job.
    assert told[0].has(job='poll', objects=10)

    me.dispatcher.workers_changed('default', [worker(nonce='1' * 16)])
    me.flow.pump()
    assert me.dispatcher.outstanding == 10


def test_a_worker_that_refuses_is_left_alone_for_a_second(world):
    me = at_work(world, 10, workers=[worker(slots=50)])
    me.refuse(me.bus.batches[0], Refusal.DRAINING)
    me.flow.pump()
    assert len(me.bus.batches) == 1

    world.advance(1)

    assert len(me.bus.batches) == 2


def test_a_refusal_of_one_job_does_not_keep_back_another(world):
    """A refusal because of an unknown view concerns only the jobs that the
    ring divides.
    """
    me = at_work(world, 10, job('ours', objects=True),
                 job('mine', every=3600.0, offset=60.5),
                 workers=[worker(slots=50)])
    me.refuse(me.bus.batches[0], Refusal.NOT_A_MEMBER)

    world.advance(0.5)

    assert [s.at for s in me.starts if s.job == 'mine'] == [60.5]


def test_a_worker_that_drains_keeps_its_batches_and_gets_no_more(world):
    me = at_work(world, 30, workers=[worker(slots=10)])

    me.dispatcher.workers_changed('default', [worker(slots=0, generation=2)])
    world.advance(1)
    assert me.dispatcher.outstanding == 10
    me.finish()

    assert me.count('done') == 10
    assert me.dispatcher.outstanding == 0
    assert me.dispatcher.waiting == 20


# -- lost runs

def test_runs_of_a_worker_that_is_gone_are_reclaimed_under_a_new_fence(world):
    me = at_work(world, 10, workers=[
        worker('w1', slots=5), worker('w2', slots=5)])
    first = {s.object: s for s in me.starts if s.worker == 'w1'}

    me.dispatcher.workers_changed('default', [worker('w2', slots=50)])
    me.flow.pump()

    again = {s.object: s for s in me.starts[10:]}
    assert again.keys() == first.keys()
    for key, start in again.items():
        assert start.worker == 'w2'
        assert start.attempt == first[key].attempt + 1 == 2
        assert start.fence > first[key].fence
        assert start.tick == first[key].tick
    assert me.count('repeated') == 5


def test_a_worker_that_was_gone_in_between_is_another_one(world):
    """The process has a new tenure, and has given up its earlier runs."""
    me = at_work(world, 10, workers=[worker(slots=10)])

    me.dispatcher.workers_changed('default', [worker(slots=10, tenure=2)])
    me.flow.pump()

    assert me.count('repeated') == 10
    assert me.dispatcher.outstanding == 10


def test_a_worker_under_a_new_term_keeps_its_batches(world):
    me = at_work(world, 10, workers=[worker(slots=10)])

    me.dispatcher.workers_changed('default', [
        worker(slots=20, generation=2)])
    me.finish()

    assert me.count('repeated') == 0
    assert me.count('done') == 10


def test_a_report_for_a_batch_that_was_taken_back_is_dropped(world, caplog):
    caplog.set_level(logging.INFO, DISPATCH)
    me = at_work(world, 10, workers=[worker('w1', slots=10)])
    old = me.bus.batches[0]
    me.dispatcher.workers_changed('default', [worker('w2', slots=10)])
    me.flow.pump()

    for _ in range(3):
        me.flow.reported(message.Report(
            old.id, old.worker, done=[*range(10)], seconds=1.0))

    assert me.count('done') == 0
    assert len(lines(caplog, 'report dropped')) == 1
    me.bus.open.pop(old.id)
    me.finish()
    assert me.count('done') == 10
    me.assert_accounted_for()


def test_a_report_in_the_name_of_another_worker_is_dropped(world):
    me = at_work(world, 10, workers=[worker('w1', slots=10)])
    batch = me.bus.batches[0]

    me.flow.reported(message.Report(
        batch.id, worker('w2').entry, done=[*range(10)], seconds=1.0))

    assert me.count('done') == 0
    assert me.dispatcher.outstanding == 10


def test_a_refusal_of_an_object_outside_the_batch_changes_nothing(world):
    me = at_work(world, 10, workers=[worker('w1', slots=10)])
    batch = me.bus.batches[0]

    me.dispatcher.reported(message.Report(
        batch.id, batch.worker, done=[*range(10)],
        refused=[(9999, Refusal.DRAINING)], seconds=1.0))

    assert me.count('done') == 10
    assert me.dispatcher.outstanding == 0


@pytest.mark.parametrize('seed', [
    *range(8), *(pytest.param(seed, marks=pytest.mark.full)
                 for seed in range(8, 20))])
def test_a_report_that_comes_twice_counts_once(world, seed):
    chance = random.Random(seed)
    me = at_work(world, 20, job(objects=True, retries=chance.randint(0, 1)),
                 workers=[worker(slots=20)])
    batch = me.bus.batches[0]
    left = [*range(20)]
    chance.shuffle(left)
    reports = []
    while left:
        part = [left.pop() for _ in range(min(len(left), 3))]
        reports.append(message.Report(
            batch.id, batch.worker, done=part[:1],
            failed=[(i, 'Boom: no') for i in part[1:2]],
            refused=[(i, Refusal.DRAINING) for i in part[2:]], seconds=0.5))
    reports *= 2
    chance.shuffle(reports)

    for report in reports:
        me.flow.reported(report)
        # The dispatcher ignores indexes outside the batch.
        me.flow.reported(message.Report(
            batch.id, batch.worker, done=[99, 9999], failed=[(77, 'x')]))
        assert me.dispatcher.outstanding >= 0
    me.bus.open.clear()

    assert me.dispatcher.outstanding == 0
    assert me.count('done') == 7
    me.assert_accounted_for()
    for _ in range(10):
        world.advance(1)
        me.finish()
    # The window of 'w' is empty again, so both workers receive the same number
    # of objects.
    me.dispatcher.workers_changed('default', [
        worker(slots=20), worker('new', slots=20)])
    me.reader.given['poll'] = [f'n-{n}' for n in range(5_000)]
    world.advance(50)
    given = collections.Counter()
    for batch in me.bus.open.values():
        given[batch.worker.partition('~')[0]] += len(batch.objects)
    assert given['w'] == given['new'] > 0


def test_a_batch_without_a_sign_of_life_within_the_lease_is_reclaimed(
        world, caplog):
    me = at_work(world, 10, workers=[
        worker('w1', slots=5), worker('w2', slots=5)], lease=60.0)
    silent = next(b for b in me.bus.batches if b.worker.startswith('w1'))
    other = next(b for b in me.bus.batches if b.worker.startswith('w2'))

    for _ in range(7):
        world.advance(10)
        me.flow.reported(message.Report(other.id, other.worker))

    assert me.count('repeated') == 5
    assert {s.object for s in me.starts[10:]} == set()
    assert me.dispatcher.authority_of(other.id)
    assert not me.dispatcher.authority_of(silent.id)
    assert len(lines(caplog, 'no sign of work')) == 1
    del me.bus.open[silent.id]
    me.finish(other)
    # The silent worker gets no runs while another worker can take them.
    assert {s.worker for s in me.starts[10:]} == {'w2'}
    assert {s.attempt for s in me.starts[10:]} == {2}


def test_a_sign_of_life_renews_the_lease(world):
    me = at_work(world, 10, workers=[worker(slots=10)], lease=60.0)
    batch = me.bus.batches[0]

    for _ in range(20):
        world.advance(20)
        me.flow.reported(message.Report(batch.id, batch.worker))

    assert me.count('repeated') == 0


@pytest.mark.parametrize('workers', [[], None], ids=['waits', 'runs'])
def test_renewals_wait_for_nothing_that_was_asked_before(
        world, monkeypatch, workers):
    """Claims of a large job may wait in the queue. If renewals waited behind
    these claims, the leases would expire first.
    """
    renewed = []

    def ask(direct, call, then, failed=None, *, urgent):
        asked = []

        class Told:
            def __getattr__(self, name):
                asked.append(name)
                return getattr(direct.store, name)
        answer = call(Told())
        if 'renew' in asked:
            renewed.append(urgent)
        then(answer)
    monkeypatch.setattr(StoreQueue, 'ask', ask)
    at_work(world, 10, workers=workers, lease=6.0)

    world.advance(10)

    assert renewed
    assert all(renewed)


def test_claims_in_a_lease_that_was_lost_wait_no_more(world):
    """Another scheduler took the lease over, and dispatches the claims in it.
    """
    store = MemoryClaimStore(world.clock)
    me = at_work(world, 10, job(
        objects=True, every=600.0, offset=60.0), store=store, lease=60.0)
    world.stand_still(61)
    [taken] = store.take_over_expired(
        TakeOverRequest(['poll'], [], 100), NewLease('theirs', 'other~1', 60))

    world.advance(1)

    assert len(taken.claims) == 10
    assert me.dispatcher.waiting == 0
    me.assert_accounted_for()


def test_a_scheduler_that_stood_still_takes_nothing_back_at_once(world):
    """The scheduler must first read the heartbeats that have arrived."""
    me = at_work(world, 10, workers=[worker(slots=10)], lease=60.0)
    world.advance(10)

    world.stand_still(3600)
    world.advance(1)
    assert me.count('repeated') == 0
    world.advance(60)

    assert me.count('repeated') == 10


def test_a_run_that_takes_its_workers_down_is_given_up(world, caplog):
    me = at_work(world, ['poison'], workers=[worker('w0')])

    for n in range(1, 20):
        me.bus.open.clear()
        me.dispatcher.workers_changed('default', [worker(f'w{n}')])
        me.flow.pump()

    assert [s.attempt for s in me.starts] == [1, 2, 3, 4, 5, 6]
    assert me.count('dead') == 1
    [line] = lines(caplog, 'not repeated')
    assert line.has(objects=1, first="'poison'", attempts=6)
    me.assert_accounted_for()


@pytest.mark.parametrize('how', ['gone', 'silent', 'unsent', 'failed'])
def test_at_most_once_is_not_repeated(world, caplog, how):
    me = at_work(world, 10, job(
        objects=True, delivery='at_most_once', retries=3),
        workers=[worker('w1', slots=10)])
    batch = me.bus.batches[0]

    if how == 'gone':
        me.dispatcher.workers_changed('default', [])
    elif how == 'silent':
        world.advance(59.5)
        assert me.count('dead') == 0
        world.advance(1)
    elif how == 'unsent':
        me.unsend(batch)
    else:
        me.finish(batch, failed=[*range(10)])
    me.bus.open.pop(batch.id, None)
    me.dispatcher.workers_changed('default', [worker('w2', slots=10)])
    world.advance(10)

    assert [s for s in me.starts if s.tick == 60] == me.starts[:10]
    assert me.count('dead') == 10
    assert me.count('repeated') == 0
    if how != 'failed':
        assert len(lines(caplog, 'not repeated')) == 1


def test_a_refused_at_most_once_run_did_not_run_and_is_dispatched_again(world):
    me = at_work(world, 10, job(objects=True, delivery='at_most_once'),
                 workers=[worker('w1', slots=10)])

    me.refuse(me.bus.batches[0])
    world.advance(2)

    assert me.dispatcher.outstanding == 10
    assert me.count('dead') == 0


# -- an unavailable broker

def test_a_batch_that_could_not_be_sent_backs_off_and_doubles_once(
        world, caplog):
    me = at_work(world, 10, workers=[worker(slots=10)])
    sent_at = []

    for _ in range(4):
        batch, = me.bus.open.values()
        sent_at.append(world.clock.seconds)
        me.unsend(batch)
        while not me.bus.open:
            world.advance(0.25)

    gaps = [b - a for a, b in zip(sent_at, sent_at[1:], strict=False)]
    assert gaps == [1.0, 2.0, 2.0]
    assert {s.attempt for s in me.starts} == {1}
    assert [s.fence for s in me.starts if s.object == 'object-0'] == sorted(
        {s.fence for s in me.starts if s.object == 'object-0'})
    assert len(lines(caplog, 'not sent')) == 1
    me.assert_accounted_for()


def test_batches_that_fail_together_count_as_one_failure(world):
    me = at_work(world, 10, workers=[worker(slots=10)], batch_size=2)
    for batch in list(me.bus.open.values()):
        me.unsend(batch)

    world.advance(1)

    assert me.dispatcher.outstanding == 10


def test_the_back_off_restarts_when_the_broker_has_accepted_a_batch(world):
    me = at_work(world, 10, workers=[worker(slots=10)])
    for _ in range(3):
        me.unsend(me.bus.batches[-1])
        world.advance(2)
    me.flow.handle(events.Sent(me.bus.batches[-1]))

    me.unsend(me.bus.batches[-1])
    before = len(me.bus.batches)
    world.advance(1)

    assert len(me.bus.batches) == before + 1


def test_a_batch_that_one_worker_cannot_be_sent_goes_to_another_at_once(world):
    me = at_work(world, 10, workers=[worker('w1', slots=10)])
    me.dispatcher.workers_changed('default', [
        worker('w1', slots=10), worker('w2', slots=10)])

    me.unsend(me.bus.batches[0])
    me.flow.pump()

    assert [b.worker.partition('~')[0] for b in me.bus.batches] == [
        'w1', 'w2']
    assert me.dispatcher.outstanding == 10


def test_news_of_a_batch_that_is_settled_changes_nothing(world):
    me = at_work(world, 10, workers=[worker(slots=10)])
    batch = me.bus.batches[0]
    me.finish()

    me.flow.handle(events.Sent(batch))
    me.flow.handle(events.Unsent(batch, 'too late'))

    assert me.count('done') == 10
    me.assert_accounted_for()


# -- failed runs

def test_a_failed_run_is_tried_again_with_a_back_off_and_then_dead(
        world, caplog):
    me = at_work(world, ['a'], job(
        every=3600.0, objects=True, retries=3, retry_backoff=4.0),
        workers=[worker()])
    world.advance(3540, sweep=None)

    failed_at = []
    while me.bus.open:
        failed_at.append(world.clock.seconds)
        me.finish(failed=[0])
        for _ in range(400):
            if me.bus.open:
                break
            world.advance(0.25)

    assert [s.attempt for s in me.starts] == [1, 2, 3, 4]
    fences = [s.fence for s in me.starts]
    assert fences == sorted(set(fences))
    pauses = [s.at - t for s, t in zip(
        me.starts[1:], failed_at, strict=False)]
    for pause, whole in zip(pauses, (4, 8, 16), strict=True):
        assert whole / 2 <= pause <= whole + 0.25
    assert me.count('retried') == 3
    assert me.count('dead') == 1
    [line] = lines(caplog, 'runs failed for good')
    assert line == {'job': 'poll', 'objects': '1', 'first': "'a'",
                    'attempt': '4', 'error': 'Boom: it failed'}
    me.assert_accounted_for()


def test_the_pause_before_a_retry_is_capped(world):
    me = at_work(world, ['a'], job(
        every=86_400.0, objects=True, retries=50, retry_backoff=1.0),
        workers=[worker()])
    world.advance(86_340, sweep=None)

    for _ in range(12):
        me.finish(failed=[0])
        world.advance(60.3)

    assert [s.attempt for s in me.starts] == [*range(1, 14)]


def test_ten_thousand_runs_that_fail_alike_are_one_line(world, caplog):
    me = at_work(world, 10_000, workers=[worker(slots=10_000)])

    for batch in list(me.bus.open.values()):
        me.finish(batch, failed=[*range(len(batch.objects))])
    world.advance(1)

    assert me.count('dead') == 10_000
    [line] = lines(caplog, 'runs failed for good')
    assert line['objects'] == '10000'


# -- superseded claims

def test_a_later_tick_takes_the_place_of_claims_that_wait(world):
    me = at_work(world, 10)
    world.advance(60)

    me.dispatcher.workers_changed('default', [worker(slots=100)])
    me.flow.pump()

    assert {s.tick for s in me.starts} == {120}
    assert len(me.starts) == 10
    assert me.count('superseded') == 10
    assert me.dispatcher.waiting == 0
    me.assert_accounted_for()


def test_claims_without_a_worker_do_not_pile_up(world):
    me = at_work(world, 1000)

    world.advance(60 * 50, sweep=None)

    assert me.dispatcher.waiting <= 2000
    assert kept(me.dispatcher, Claim) == me.dispatcher.waiting
    me.assert_accounted_for()


def test_a_superseded_claim_is_refused_at_its_start(world):
    """One of the objects was superseded. The other objects of the batch still
    run.
    """
    me = at_work(world, 10)
    me.reader.given['poll'] = ['object-3']
    world.advance(60)

    me.dispatcher.workers_changed('default', [worker(slots=100)])
    me.flow.pump()

    ran = collections.Counter((s.object, s.tick) for s in me.starts)
    assert ran == {
        **{(f'object-{n}', 60): 1 for n in range(10) if n != 3},
        ('object-3', 120): 1}
    assert me.count('superseded') == 1
    me.assert_accounted_for()


def test_a_closed_dispatcher_gives_out_nothing(world):
    me = at_work(world, 10)

    me.dispatcher.close()
    me.dispatcher.workers_changed('default', [worker(slots=100)])
    me.flow.pump()

    assert me.bus.batches == []


def test_the_state_kept_of_workers_that_come_and_go_does_not_grow(
        world, caplog):
    me = at_work(world, 10)

    for n in range(500):
        me.dispatcher.workers_changed('default', [
            worker('w', nonce=f'{n:016x}')])
        me.flow.pump()
        for batch in list(me.bus.open.values()):
            me.unsend(batch)

    assert kept(me.dispatcher, WorkerState) == 1
    assert kept(me.dispatcher, SentBatch) == 0
    # All workers share one key of the log throttle, which keeps no names.
    assert len(lines(caplog, 'not sent')) == 1
    me.assert_accounted_for()


# Leases of processes whose departure no scheduler saw.

@pytest.mark.parametrize(('renews', 'seen', 'repeated'), [
    (False, False, True), (True, False, False), (False, True, False),
], ids=['gone and silent', 'not seen, and alive', 'silent, but there'])
def test_leases_of_a_silent_holder_in_no_group_are_taken_over(
        world, renews, seen, repeated):
    """All members may die at once. Then none of them sees the others leave."""
    store = MemoryClaimStore(world.clock)
    old = worker('old', nonce='1' * 16)
    claiming.claim(store, 'poll', store.now(), ['a'], lease='L',
                   holder=old.holder, seconds=60, supersede=False)
    me = world.scheduler(job(objects=True, every=3600.0), store=store,
                         silence_timeout=3.0, catalogues={'poll': ['a']})
    me.dispatcher.schedulers_changed([worker('me', 0, points=40)])
    if seen:
        me.dispatcher.workers_changed('default', [worker('w'), old])

    for _ in range(10):
        world.advance(1, sweep=0.25)
        if renews:
            assert store.renew(
                ['L'], holder=old.holder, seconds=60) == {'L'}

    assert (me.count('taken over') == 1) is repeated


def test_the_leases_of_a_scheduler_that_left_are_taken_over(world):
    """Schedulers that saw the member leave do not wait for the leases' expiry.
    """
    store = MemoryClaimStore(world.clock)
    mine, other = (worker(name, 0, points=40)
                   for name in ('me', 'other'))
    claiming.claim(store, 'poll', store.now(), ['a'], lease='L',
                   holder=other.holder, seconds=60, supersede=False)
    me = world.scheduler(job(objects=True, every=3600.0), store=store,
                         catalogues={'poll': ['a']})
    me.dispatcher.schedulers_changed([mine, other])
    world.advance(10, sweep=0.25)
    assert me.count('taken over') == 0

    me.dispatcher.schedulers_changed([mine])
    world.advance(10, sweep=0.25)

    assert me.count('taken over') == 1


def test_no_scheduler_is_presumed_gone_before_all_groups_were_seen(world):
    store = MemoryClaimStore(world.clock)
    claiming.claim(store, 'poll', store.now(), ['a'], lease='L',
                   holder='old~1', seconds=60, supersede=False)
    me = world.scheduler(job(objects=True, every=3600.0), store=store,
                         silence_timeout=3.0, catalogues={'poll': ['a']})
    world.advance(10, sweep=0.25)
    assert me.count('taken over') == 0

    me.dispatcher.schedulers_changed([worker('me', 0, points=40)])
    world.advance(1, sweep=0.25)

    assert me.count('taken over') == 1


@pytest.mark.parametrize('drains', [False, True])
def test_a_scheduler_that_drains_takes_over_no_lease_that_ended(
        world, drains):
    """The scheduler will leave soon. If it took the lease over, other
    schedulers would have to wait until the new lease expires.
    """
    store = MemoryClaimStore(world.clock)
    claiming.claim(store, 'poll', store.now(), ['a'], lease='L',
                   holder='old~1', seconds=1, supersede=False)
    me = world.scheduler(job(objects=True, every=3600.0), store=store,
                         catalogues={'poll': ['a']})
    if drains:
        me.dispatcher.drain()

    world.advance(30, sweep=0.25)

    assert me.count('taken over') == (0 if drains else 1)
