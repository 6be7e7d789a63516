# SPDX-License-Identifier: Apache-2.0
"""A worker continues with the next steps of its tasks."""

import pytest

from distperiodic import ports
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core import partition
from distperiodic.core import schedule
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.job import command_job
from distperiodic.core.member import holder_of
from distperiodic.core.workflow import StepInput
from tests import claiming
from tests.unit import world as worlds

SENDER = 'api-1~9f2c41d07be3a655~1~f1.t1.r40'
WORKER = 'w~00c0ffee00c0ffee~1~f1.t1.s10'
TICK = worlds.BEGIN * schedule.SECOND
LEASE = 60.0
TRACE = f'00-{"a1" * 16}-{"b2" * 8}-01'
A, B = (command_job(module, 'run', 'here') for module in 'ab')


class Steps:
    """Tasks at their first step; the test sets the leases of their next steps.
    """

    def __init__(self):
        self.asked = []
        self.following = []
        #: Tasks with a ready step that is not granted.
        self.ready = []

    def load(self, objects):
        return {task: inputs(task, 0) for task in objects}

    def advance(self, ended, *, into, pause, proceed=None):
        self.asked.append(proceed)
        granted, self.following = self.following, []
        return ports.Advanced(
            set(ended.done), set(), set(ended.failed),
            granted if proceed else (),
            self.ready)


class Store(MemoryClaimStore):
    """A store of claims that also has tasks."""

    def __init__(self, clock):
        super().__init__(clock)
        self.held = Steps()

    @property
    def steps(self):
        return self.held


def inputs(task, step):
    return StepInput(task, step, False, 300.0, {})


def following(job, task, lease='next.0'):
    """The lease and the input that a store returns for the next step."""
    return (Lease(lease, job.name, TICK + 1000, [
        Claim(task, 7, 1, TICK + 1000)], State.RUNNING),
        {task: inputs(task, 1)})


class Desk:
    """The grants of a worker that continues with the next steps of its tasks.
    """

    def __init__(self, **options):
        self.clock = worlds.Clock()
        self.store = Store(self.clock)
        self.runs, self.reports, self.numbers = [], [], 0
        self.notified = []
        self.line = worlds.StoreQueue(self.store)
        self.grants = worlds.run_leases(
            {job.name: job for job in (A, B)}, store=self.line,
            clock=self.clock, lease=LEASE, run=self.runs.append,
            report=lambda report, to: self.reports.append((report, to)),
            new_lease=self.name, notify=self.notified.append,
            **{'proceeds': True, **options})

    def name(self):
        self.numbers += 1
        return f'lease-{self.numbers}'

    def run(self, *tasks):
        """Grant the first step of tasks; return the batch that runs."""
        lease = self.name()
        won = claiming.claim(self.store, A.name, TICK, tasks, lease=lease,
                             holder='api-1', seconds=600, supersede=False).won
        self.grants.accept(message.Batch(
            self.name(), A.name, TICK, list(tasks),
            [one.fence for one in won], [one.attempt for one in won],
            SENDER, WORKER, lease, trace=TRACE))
        return self.runs.pop()

    def end(self, batch, **fields):
        self.grants.reported(
            message.Report(batch.id, batch.worker, **fields), batch.sender)


@pytest.fixture
def desk():
    return Desk()


def test_a_run_receives_the_input_of_its_step(desk):
    assert desk.run('t').steps == {'t': inputs('t', 0)}


def test_the_next_step_runs_where_the_last_one_ended(desk):
    batch = desk.run('t')
    desk.store.steps.following = [following(B, 't')]

    desk.end(batch, done=[0])

    [proceed] = desk.store.steps.asked
    assert set(proceed.jobs) == {A.name, B.name}
    assert proceed.into[1:] == (holder_of(WORKER), LEASE)
    [after] = desk.runs
    assert (after.job, after.objects, after.fences) == (B.name, ['t'], [7])
    assert after.steps == {'t': inputs('t', 1)}
    assert after.trace == batch.trace == TRACE
    assert desk.grants.may_start(after) is None


@pytest.mark.parametrize('follows', [True, False])
def test_a_request_for_the_next_step_may_begin_a_run(desk, follows):
    """Until the answer comes, the worker counts as busy and does not release
    its partition.
    """
    batch = desk.run('t1')
    assert not desk.grants.busy
    desk.line.slow = True
    if follows:
        desk.store.steps.following = [following(B, 't1')]
    desk.grants.reported(message.Report(
        batch.id, batch.worker, done=[0]), batch.sender)
    assert desk.grants.busy

    desk.line.answer()
    assert not desk.grants.busy
    assert len(desk.runs) == follows


def test_a_scheduler_gets_reports_only_of_the_steps_that_it_sent(desk):
    batch = desk.run('t')
    desk.store.steps.following = [following(B, 't')]
    desk.end(batch, done=[0])

    desk.end(desk.runs.pop(), done=[0])

    [(report, to)] = desk.reports
    assert (report.batch, report.done, to) == (batch.id, [0], SENDER)
    assert len(desk.store.steps.asked) == 2


def test_the_schedulers_are_notified_of_steps_that_no_report_announces(desk):
    """A worker of another module runs the third step."""
    batch = desk.run('t')
    desk.store.steps.following = [following(B, 't')]
    desk.end(batch, done=[0])

    desk.store.steps.ready = ['t']
    desk.end(desk.runs.pop(), done=[0])

    assert desk.notified == [['t']]


def test_the_report_of_a_step_announces_the_next_one(desk):
    desk.store.steps.ready = ['t']

    desk.end(desk.run('t'), done=[0])

    assert len(desk.reports) == 1
    assert desk.notified == []


def test_the_lease_of_a_next_step_is_renewed(desk):
    batch = desk.run('t')
    desk.store.steps.following = [following(B, 't')]
    desk.end(batch, done=[0])
    [after] = desk.runs
    renewed = []
    desk.store.renew = lambda leases, **_: renewed.extend(leases) or set(
        leases)

    desk.clock.advance(LEASE / 4)
    desk.grants.renew()

    assert renewed == [after.lease]


def test_a_next_step_that_was_granted_too_long_ago_does_not_run(desk):
    batch = desk.run('t')
    desk.store.steps.following = [following(B, 't')]
    desk.line.slow = True
    desk.end(batch, done=[0])
    desk.clock.advance(LEASE)

    desk.line.answer()

    [after] = desk.runs
    assert desk.grants.may_start(after) is not None


def test_a_command_with_a_limit_is_left_to_a_scheduler():
    desk = Desk(shared=True, partitions={
        'a': partition.Partition('a', max_in_flight=5)})
    batch = desk.run('t')

    desk.end(batch, done=[0])

    assert [list(one.jobs) for one in desk.store.steps.asked] == [[B.name]]


def test_a_scheduler_that_grants_runs_sends_each_step_itself():
    desk = Desk(proceeds=False)
    batch = desk.run('t')

    desk.end(batch, done=[0])

    assert desk.store.steps.asked == [None]
