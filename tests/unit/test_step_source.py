# SPDX-License-Identifier: Apache-2.0
"""When a scheduler claims steps of tasks, and how many."""

import collections

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.job import command_job
from distperiodic.flow import events
from distperiodic.flow.leases import Book
from distperiodic.flow.scheduler.step_source import StepSource
from distperiodic.testing import FrozenClock
from tests.unit import world as worlds

A, B = (command_job(module, 'run', 'here') for module in 'ab')
SWEEP = 1.0


class Steps:
    """The steps that are ready, for each command."""

    def __init__(self):
        self.ready = {A.name: [], B.name: []}
        self.asked = []
        self.woken = 0

    def wake(self):
        self.woken += 1
        return self.woken % 3 == 1

    def take(self, rooms, tasks, into):
        jobs = {name: steps for room in rooms for name, steps in room.items()}
        assert len(jobs) == sum(map(len, rooms))
        self.asked.append((jobs, tasks))
        leases = []
        for name, limit in jobs.items():
            found = [task for task in self.ready[name]
                     if tasks is None or task in tasks][:limit]
            self.ready[name] = [task for task in self.ready[name]
                                if task not in found]
            if found:
                leases.append(Lease(f'{into.id}.{name}', name, 1, [
                    Claim(task, 1, 1, 1) for task in found], State.CLAIMED))
        return leases


class Store:
    """A queue of calls to a store. The calls are answered when the test
    demands it.
    """

    def __init__(self):
        self.steps = Steps()
        self.away = False
        self.calls = collections.deque()
        self.urgent = self

    def submit(self, call, then, failed=lambda: None):
        self.calls.append((call, then, failed))

    def answer(self):
        while self.calls:
            call, then, _ = self.calls.popleft()
            then(call(self))

    def fail(self):
        while self.calls:
            _, _, failed = self.calls.popleft()
            failed()


class Dispatcher:
    """The number of runs that the workers have room for, for each command."""

    def __init__(self):
        self.room = {A.name: 100, B.name: 100}
        self.offered = []

    def room_for(self, job):
        return self.room[job.name]

    def new_lease(self):
        return NewLease('lease', 'me', 60.0)

    def offer(self, job, lease, claims):
        self.offered += [(job.name, claim.object) for claim in claims]
        self.room[job.name] -= len(claims)


class Scheduler:

    def __init__(self, jobs=(A, B)):
        self.clock = FrozenClock()
        self.store = Store()
        self.dispatcher = Dispatcher()
        self.pumped = 0
        self.source = StepSource(
            Book(Authority.STORE, {job.name: job for job in jobs}, self.store,
                 grants_here=False, sweep_interval=SWEEP),
            worlds.scheduler_wiring(self.clock),
            self.dispatcher, self.pump)

    def pump(self):
        self.pumped += 1

    @property
    def steps(self):
        return self.store.steps

    def sweep(self):
        self.clock.advance(SWEEP)
        self.source.sweep()
        self.store.answer()


@pytest.fixture
def scheduler():
    return Scheduler()


def test_a_sweep_takes_and_sends_the_steps_that_are_ready(scheduler):
    scheduler.steps.ready[A.name] = ['t1', 't2']

    scheduler.sweep()

    assert scheduler.dispatcher.offered == [(A.name, 't1'), (A.name, 't2')]
    assert scheduler.pumped == 1


def test_commands_of_one_partition_are_taken_again_if_they_fill_its_room():
    both = [command_job('a', name, 'here') for name in ('run', 'stop')]
    scheduler = Scheduler(both)
    first, second = (job.name for job in both)
    scheduler.dispatcher.room = {first: 4, second: 4}
    scheduler.steps.ready = {first: ['t1', 't2'], second: ['t3', 't4']}

    scheduler.sweep()

    assert [jobs for jobs, _ in scheduler.steps.asked] == [
        {first: 4, second: 4}, {first: 2, second: 2}]


def test_a_sweep_comes_no_sooner_than_its_interval(scheduler):
    scheduler.sweep()
    asked = len(scheduler.steps.asked)

    scheduler.clock.advance(SWEEP / 2)
    scheduler.source.sweep()
    scheduler.store.answer()

    assert len(scheduler.steps.asked) == asked


def test_a_notice_takes_the_steps_of_its_tasks_only(scheduler):
    scheduler.steps.ready[A.name] = ['t1', 't2']

    scheduler.source.notified(['t2'])
    scheduler.store.answer()

    assert scheduler.dispatcher.offered == [(A.name, 't2')]
    assert scheduler.steps.asked[0][1] == ['t2']


def test_notices_that_arrive_during_a_request_are_asked_for_together(
        scheduler):
    scheduler.source.notified(['t1'])
    scheduler.source.notified(['t2'])
    scheduler.source.notified(['t3', 't2'])

    scheduler.store.answer()

    assert [tasks for _, tasks in scheduler.steps.asked] == [
        ['t1'], ['t2', 't3']]


def test_too_many_notices_are_one_search_for_all_tasks(scheduler):
    scheduler.source.notified(['t0'])
    scheduler.source.notified([f't{n}' for n in range(3000)])

    scheduler.store.answer()

    assert scheduler.steps.asked[-1][1] is None


def test_no_more_steps_are_taken_than_workers_have_room_for(scheduler):
    scheduler.steps.ready[A.name] = [f't{n}' for n in range(5000)]

    scheduler.sweep()

    assert len(scheduler.dispatcher.offered) == 100
    scheduler.sweep()
    assert len(scheduler.dispatcher.offered) == 100
    # One run has ended.
    scheduler.dispatcher.room[A.name] = 1
    scheduler.source.notified(['t0'])
    scheduler.store.answer()
    assert len(scheduler.dispatcher.offered) == 101


def test_after_a_notice_the_store_is_queried_again(scheduler):
    """Another scheduler has claimed the step of the notice, and has no room
    for those that become ready afterwards.
    """
    scheduler.sweep()
    scheduler.source.notified(['t1'])
    scheduler.store.answer()
    scheduler.steps.ready[A.name] = ['t2']

    scheduler.clock.advance(SWEEP / 3)
    scheduler.source.sweep()
    scheduler.store.answer()

    assert scheduler.dispatcher.offered == [(A.name, 't2')]


def test_the_store_is_queried_less_and_less_often(scheduler):
    scheduler.sweep()
    scheduler.source.notified(['t1'])
    scheduler.store.answer()
    asked = len(scheduler.steps.asked)

    for _ in range(19):
        scheduler.clock.advance(SWEEP / 20)
        scheduler.source.sweep()
        scheduler.store.answer()

    assert len(scheduler.steps.asked) - asked <= 2


def test_a_command_without_a_worker_takes_nothing_from_the_others(scheduler):
    scheduler.dispatcher.room[A.name] = 0
    scheduler.steps.ready = {A.name: ['t1'], B.name: ['t2']}

    scheduler.sweep()

    assert scheduler.dispatcher.offered == [(B.name, 't2')]
    assert A.name not in scheduler.steps.asked[-1][0]
    scheduler.dispatcher.room[A.name] = 100
    scheduler.sweep()
    assert (A.name, 't1') in scheduler.dispatcher.offered


class StoreWithSteps(MemoryClaimStore):
    steps = None


def test_the_steps_of_a_module_are_claimed_when_its_worker_joins():
    """They do not wait for the next sweep."""
    world = worlds.World()
    store = StoreWithSteps(world.clock)
    store.steps = steps = Steps()
    scheduler = worlds.Scheduler(
        world, 's', [A, B], store=store, workers=[], grants_here=False,
        sweep_interval=SWEEP)
    steps.ready[A.name] = ['t1']
    scheduler.flow.handle(events.Submitted(['t1']))
    assert steps.asked == []

    scheduler.flow.workers_changed('a', [worlds.worker()])

    assert scheduler.dispatcher.objects(A.name) == {'t1'}


def test_delayed_tasks_are_woken_until_there_are_no_more(scheduler):
    scheduler.sweep()

    assert scheduler.steps.woken == 2


def test_nothing_is_asked_of_a_store_that_is_away(scheduler):
    scheduler.store.away = True
    scheduler.sweep()
    scheduler.source.notified(['t1'])
    assert not scheduler.store.calls

    scheduler.store.away = False
    scheduler.steps.ready[A.name] = ['t1']
    scheduler.sweep()

    assert scheduler.dispatcher.offered == [(A.name, 't1')]


def test_a_request_that_has_failed_is_followed_by_others(scheduler):
    scheduler.steps.ready[A.name] = ['t1']
    scheduler.source.notified(['t1'])
    scheduler.store.fail()
    assert scheduler.source.settled

    scheduler.sweep()

    assert scheduler.dispatcher.offered == [(A.name, 't1')]


def test_a_scheduler_that_stops_takes_nothing_more(scheduler):
    scheduler.steps.ready[A.name] = ['t1']
    scheduler.source.close()

    scheduler.source.notified(['t1'])
    scheduler.sweep()

    assert scheduler.dispatcher.offered == []


def test_steps_that_are_under_way_at_the_stop_are_waited_for(scheduler):
    scheduler.steps.ready[A.name] = ['t1']
    scheduler.source.notified(['t1'])
    scheduler.source.close()
    assert not scheduler.source.settled

    scheduler.store.answer()

    assert scheduler.source.settled
    assert scheduler.dispatcher.offered == [(A.name, 't1')]


def test_a_drained_scheduler_takes_no_steps(scheduler):
    scheduler.steps.ready[A.name] = ['t1']
    scheduler.source.set_drained(True)

    scheduler.source.notified(['t1'])
    scheduler.sweep()
    assert scheduler.dispatcher.offered == []

    scheduler.source.set_drained(False)
    scheduler.sweep()
    assert scheduler.dispatcher.offered == [(A.name, 't1')]
