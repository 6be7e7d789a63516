# SPDX-License-Identifier: Apache-2.0
"""Steps of tasks: guarantees in every database.

Each test has a group of its own. One test compares the runs of a task with
:class:`Model`. In this test workers are lost, calls are repeated because
answers were lost, and results arrive too late.
"""

import collections
import datetime
import itertools
import json
import threading
import uuid

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from sqlalchemy import orm

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import ports
from distperiodic import tasks
from distperiodic.adapters.local import notices
from distperiodic.adapters.local.tracing import TRACING
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.session import finish_in
from distperiodic.adapters.sql.steps import MOST_LOSSES
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import precedence_of
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from distperiodic.core.schedule import SECOND
from distperiodic.core.standby import Active
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.core.telemetry import QueueHalted
from distperiodic.core.telemetry import TaskMoved
from distperiodic.core.workflow import ENDED
from distperiodic.core.workflow import Status
from tests import spans
from tests.configured import configuration

LONG, OVER = 600.0, -1.0
A, B = 'task:a.run', 'task:b.run'
JOBS = dict.fromkeys([A, B, 'task:a.undo', 'task:b.undo'], 100)


def step(module, undone=True, **options):
    found = {'normal': {'module': module, 'command': 'run', **options}}
    if undone:
        found['rollback'] = {'module': module, 'command': 'undo'}
    return found


WORKFLOWS = {
    'two': [step('a'), step('b')],
    'same': [step('a'), step('a'), step('a', undone=False)],
    'to and fro': [step('a'), step('b'), step('a'), step('b')],
    'stubborn': [step('a', retry=2), step('b', retry=1)],
    'patient': [{**step('a'), 'rollback': {
        'module': 'a', 'command': 'undo', 'retry': 1}}],
    'once': [step('a', delivery='at_most_once')],
    'plain': [step('a', undone=False)],
}


class Board:
    """The tasks of one group, with a client and the calls of its workers."""

    def __init__(self, url):
        self.url = url
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        #: Moves of tasks and halts of queues that the stores report.
        self.events = []
        self.store = self.another_store()
        self.client = tasks.Client(
            configuration(connection=url, group=self.group),
            workflows=WORKFLOWS)

    def another_store(self):
        return SqlClaimStore(self.url, namespace=self.group,
                             report=self.events.append)

    @property
    def outcomes(self):
        """Numbers of the tasks that have ended or become stuck."""
        return collections.Counter(
            event.status for event in self.events
            if isinstance(event, TaskMoved)
            and event.status in (*ENDED, Status.STUCK))

    def take(self, ids=None, store=None, into=None, **jobs):
        return (store or self.store).steps.take(
            [jobs or JOBS], ids,
            NewLease(into or uuid.uuid4().hex, 'api-1', LONG))

    def begin(self, lease, seconds=LONG):
        """Grant the runs of *lease* to a worker; return the worker's lease."""
        granted = uuid.uuid4().hex
        self.store.start(
            lease.held, [one.object for one in lease.claims],
            NewLease(granted, 'worker-1', seconds))
        return granted

    def end(self, lease, granted, *, result=None, error=None, into=None,
            proceed=None, times=ports.NO_TIMES):
        keys = [one.object for one in lease.claims]
        return self.store.steps.advance(ports.EndedSteps(
            HeldLease(granted, lease.job, lease.tick),
            {} if error else dict.fromkeys(
                keys, None if result is None else json.dumps(result)),
            dict.fromkeys(keys, error) if error else {}, times),
            into=into or uuid.uuid4().hex, pause=lambda attempt: 0.0,
            proceed=proceed)

    def retake(self, gone=()):
        return self.store.take_over_expired(
            TakeOverRequest(list(JOBS), gone, 100),
            NewLease(uuid.uuid4().hex, 'api-1', LONG))

    def run(self, **options):
        """Run all steps that are ready, once; return their commands."""
        ran = []
        for lease in self.take():
            granted = self.begin(lease)
            self.end(lease, granted, **options)
            ran += [lease.job] * len(lease.claims)
        return ran

    def close(self):
        self.store.forget()
        self.store.close()
        self.client.close()


@pytest.fixture
def board(database_url):
    made = Board(database_url)
    yield made
    made.close()


def test_a_step_that_is_ready_is_claimed_once(board):
    id_ = board.client.submit('two')

    [lease] = board.take()

    assert lease.job == A
    assert [(one.object, one.attempt) for one in lease.claims] == [(id_, 1)]
    assert board.take() == []


@pytest.mark.parametrize('queue', [None, 'q'])
def test_a_task_waits_until_its_first_command_is_granted(board, queue):
    def shown():
        """Return what each view says about the task."""
        lists = {status: [task.id for task in board.client.list(status)]
                 for status in ('waiting', 'running')}
        assert [status for status in lists if lists[status]] == [
            one.status for one in board.client.list()]
        task = board.client.get(id_)
        assert [task] == board.client.list() or task.status == 'running'
        assert task.status in ('waiting', 'running')
        if queue:
            [row] = board.client.queues()
            assert (row.head, row.head_status) == (id_, task.status)
        return task.status, task.started_at is not None

    id_ = board.client.submit('two', queue=queue)
    assert shown() == ('waiting', False)
    [lease] = board.take()
    assert shown() == ('waiting', False)
    granted = board.begin(lease)
    assert shown() == ('running', True)

    board.end(lease, granted)
    assert shown() == ('running', True)
    board.take()
    assert shown() == ('running', True)


def test_a_step_waits_since_it_became_ready(board):
    before = board.store.now()
    id_ = board.client.submit('two')
    between = board.store.now()

    [lease] = board.take()
    assert before <= lease.claims[0].waiting <= between

    granted = board.begin(lease)
    after = board.store.now()
    board.end(lease, granted)
    [following] = board.take()
    [claim] = following.claims
    assert claim.object == id_
    assert after <= claim.waiting <= board.store.now()


@pytest.mark.parametrize('granted', [False, True])
def test_a_step_that_is_taken_over_keeps_its_priority(board, granted):
    board.client.submit('two', priority=5)
    [lease] = board.store.steps.take(
        [JOBS], None, NewLease('dying', 'api-1', OVER))
    if granted:
        board.begin(lease, seconds=OVER)

    [again] = board.retake()

    assert [precedence_of(one.place) for one in again.claims] == [-5]


def here(*jobs):
    """The request of a worker that runs the next steps itself."""
    return ports.Proceed(
        jobs or JOBS, NewLease(uuid.uuid4().hex, 'worker-1', LONG))


def test_the_next_step_is_granted_to_the_worker_that_ends_one(board):
    id_ = board.client.submit('same', {'n': 1})
    [first] = board.take()

    ended = board.end(first, board.begin(first), result={'m': 2},
                      proceed=here())

    [(lease, inputs)] = ended.granted
    assert inputs[id_].step == 1
    assert inputs[id_].parameters == {'n': 1, 'm': 2}
    assert lease.claims[0].fence > first.claims[0].fence
    assert board.take() == []
    assert board.store.renew(
        [lease.id], holder='worker-1', seconds=LONG) == {lease.id}
    assert board.end(lease, lease.id).done == {id_}


def test_a_step_granted_with_a_lost_answer_is_granted_again(board):
    board.client.submit_many([{'type': 'to and fro'}, {'type': 'same'}])
    [first] = board.take()
    granted, proceed = board.begin(first), here()

    answers = [board.end(first, granted, proceed=proceed) for _ in range(2)]

    assert answers[0] == answers[1]
    assert {lease.job for lease, _ in answers[0].granted} == {A, B}


def test_only_steps_of_the_commands_of_a_worker_are_granted_to_it(board):
    board.client.submit('two')
    [first] = board.take()

    ended = board.end(first, board.begin(first), proceed=here(A))

    assert list(ended.granted) == []
    [lease] = board.take()
    assert lease.job == B


@pytest.mark.parametrize('repeats', [False, True])
def test_a_step_that_becomes_ready_and_is_not_granted_is_named(board, repeats):
    id_ = board.client.submit('two')
    [first] = board.take()
    granted, proceed = board.begin(first), here(A)

    for _ in range(1 + repeats):
        ended = board.end(first, granted, proceed=proceed)

    assert set(ended.ready) == {id_}


def test_the_task_at_the_head_of_a_queue_is_named_if_it_is_not_granted(board):
    first, second = board.client.submit_many(
        [{'type': 'patient', 'queue': 'q'}, {'type': 'to and fro',
                                             'queue': 'q'}])
    [lease] = board.take()

    ended = board.end(lease, board.begin(lease), proceed=here(B))

    assert set(ended.ready) == {second}
    assert board.client.get(first).status == 'succeeded'


def test_a_step_that_is_granted_or_delayed_is_not_named(board):
    board.client.submit('same')
    [first] = board.take()

    ended = board.end(first, board.begin(first), proceed=here())

    assert len(ended.granted) == 1
    assert set(ended.ready) == set()


def test_a_step_whose_worker_comes_too_late_grants_nothing(board):
    board.client.submit('same')
    [first] = board.take()
    granted = board.begin(first, OVER)
    [again] = board.retake()

    ended = board.end(first, granted, proceed=here())

    assert list(ended.granted) == []
    assert board.end(again, board.begin(again)).done


@pytest.mark.parametrize('error', ['ill', None])
def test_the_end_of_a_run_whose_task_has_ended_holds_up_no_other(board, error):
    """The first end was recorded, but its answer was lost."""
    ids = board.client.submit_many([{'type': 'plain'}] * 2)
    [lease] = board.take()
    granted = board.begin(lease)
    board.end(lease._replace(claims=lease.claims[:1]), granted, error=error)

    ended = board.end(lease, granted, error=error)

    assert (ended.failed if error else ended.done) == set(ids)
    assert {board.client.get(id_).status for id_ in ids} == {
        'failed' if error else 'succeeded'}


def test_the_next_task_of_a_queue_is_granted_with_the_end_of_its_head(board):
    ids = [board.client.submit('patient', queue='q') for _ in range(3)]
    [lease] = board.take()
    granted, ran = board.begin(lease), []

    while True:
        ran += [one.object for one in lease.claims]
        ended = board.end(lease, granted, proceed=here())
        if not ended.granted:
            break
        assert board.take() == []
        [(lease, _)] = ended.granted
        granted = lease.id

    assert ran == ids
    found = [board.client.get(id_) for id_ in ids]
    assert {task.status for task in found} == {'succeeded'}
    assert all(before.ended_at <= task.started_at
               for before, task in itertools.pairwise(found))


def test_the_history_counts_each_task_of_a_queue_that_its_worker_goes_on_with(
        board):
    for _ in range(3):
        board.client.submit('patient', queue='q')
    [lease] = board.take()
    granted, ended = board.begin(lease), None
    while ended is None or ended.granted:
        ended = board.end(lease, granted, proceed=here(),
                          times=ports.RunTimes(1, 'started', 'ran'))
        for lease, _ in ended.granted:
            granted = lease.id

    engine = database.make_engine(board.url)
    with engine.connect() as connection:
        counted = connection.execute(
            sa.select(*(sa.func.sum(tables.history.c[name])
                        for name in ('due', 'done', 'dead', 'late')))
            .join(tables.job, tables.job.c.id == tables.history.c.job)
            .where(tables.job.c.space == board.group)).one()
    engine.dispose()
    assert [int(number) for number in counted] == [3, 3, 0, 3]


def test_a_step_that_its_worker_goes_on_with_has_started(board):
    board.client.submit('two')
    [lease] = board.take()
    ended = board.end(lease, board.begin(lease), proceed=here())

    [(lease, _)] = ended.granted
    started = board.store.database.read(lambda connection: connection.execute(
        sa.select(tables.claim.c.started, tables.lease.c.made)
        .join(tables.lease, tables.lease.c.id == tables.claim.c.lease)
        .where(tables.lease.c.id == lease.id)).one())
    assert None not in started


def leases(board):
    """Return the name of each lease, with the number of runs in it."""
    engine = database.make_engine(board.url)
    with engine.connect() as connection:
        found = connection.execute(
            sa.select(tables.lease.c.id, tables.lease.c.remaining)
            .join(tables.job, tables.job.c.id == tables.lease.c.job)
            .where(tables.job.c.space == board.group)).all()
    engine.dispose()
    return {row.id: row.remaining for row in found}


def test_a_lease_ends_with_the_last_of_its_runs(board):
    board.client.submit_many([{'type': 'two'}] * 3)
    [lease] = board.take()
    granted = board.begin(lease)

    def end(claims):
        ended = board.end(lease._replace(claims=claims), granted,
                          proceed=here())
        [(following, _)] = ended.granted
        return following.id

    first = end(lease.claims[:1])
    assert leases(board) == {granted: 2, first: 1}
    others = end(lease.claims[1:])
    assert leases(board) == {first: 1, others: 2}


def test_a_step_that_cannot_be_claimed_is_not_granted_with_others(board):
    """The claim of the step's command is still open, so the step stays ready.
    """
    ids = board.client.submit_many([{'type': 'two'}] * 2)
    [lease] = board.take()
    granted = board.begin(lease)
    engine, claim = database.make_engine(board.url), tables.claim
    with engine.begin() as connection:
        number = connection.scalar(sa.select(tables.job.c.id).where(
            tables.job.c.space == board.group, tables.job.c.name == 'b.run'))
        others = [column for column in claim.c if column is not claim.c.job]
        connection.execute(sa.insert(claim).from_select(
            [claim.c.job, *others],
            sa.select(sa.literal(number), *others).where(
                claim.c.object == ids[0])))
    engine.dispose()

    ended = board.end(lease, granted, proceed=here())

    [(following, inputs)] = ended.granted
    assert set(inputs) == {ids[1]}
    assert [one.object for one in following.claims] == [ids[1]]
    assert leases(board) == {following.id: 1}
    assert board.end(following, following.id).done == {ids[1]}
    assert board.client.get(ids[0]).status == 'running'


def test_a_task_of_a_queue_that_is_delayed_is_not_granted(board):
    board.client.submit('patient', queue='q')
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    board.client.submit('patient', queue='q', at=later)
    [lease] = board.take()

    ended = board.end(lease, board.begin(lease), proceed=here())

    assert list(ended.granted) == []
    assert board.take() == []


def test_the_next_step_is_granted_to_the_active_worker_only(board):
    board.store.partitions.beat(
        PartitionWorker('a', 'w~1'), Role.STANDBY, seconds=LONG)
    board.store.partitions.acquire(
        PartitionWorker('a', 'w~1'), fence=0, seconds=LONG, members=())

    def granted_to(*active):
        board.client.submit('same')
        [lease] = board.take()
        ended = board.end(lease, board.begin(lease), proceed=here()._replace(
            active=Active('a', *active)))
        assert len(ended.done) == 1
        board.take()
        return [one.job for one, _ in ended.granted]
    assert granted_to('w~2', 1) == granted_to('w~1', 2) == []
    assert granted_to('w~1', 1) == [A]


def test_a_claim_whose_answer_was_lost_is_answered_again(board):
    board.client.submit_many([{'type': 'two', 'priority': priority}
                              for priority in range(5)])

    [lease] = board.take(into='first')

    assert board.take(into='first') == [lease]
    assert board.take(into='second') == []


def test_an_end_whose_answer_was_lost_is_answered_again(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    granted = board.begin(lease)

    answers = [board.end(lease, granted, result={'n': 1}) for _ in range(2)]

    assert answers[0] == answers[1]
    assert answers[0].done == {id_}
    [following] = board.take()
    assert following.job == B


def test_a_failure_whose_answer_was_lost_counts_once(board):
    id_ = board.client.submit('stubborn')
    [lease] = board.take()
    granted = board.begin(lease)

    answers = [board.end(lease, granted, error='ill', into='again')
               for _ in range(2)]

    assert answers[0] == answers[1]
    assert answers[0].retried == {id_}
    assert board.client.get(id_).steps[0].normal.attempts == 1


def test_a_lost_run_is_recorded_with_its_start_and_its_worker(board):
    """The step runs again after each loss, until its task becomes stuck."""
    id_ = board.client.submit('two')
    [lease] = board.take()
    board.begin(lease, OVER)
    began = board.client.get(id_).steps[0].normal.started_at

    for number in range(1, MOST_LOSSES + 2):
        again = board.retake()

        found = board.client.get(id_).steps[0].normal
        assert (found.attempts, found.losses) == (number, number)
        assert found.worker == 'worker-1'
        # SQLite converts the start from the clock of the leases.
        assert abs(found.started_at - began) < datetime.timedelta(seconds=1)
        if not again:
            break
        board.begin(again[0], OVER)
        assert board.client.get(id_).steps[0].normal.attempts == number + 1
    assert number == MOST_LOSSES + 1
    assert board.client.get(id_).status == 'stuck'
    assert found.started_at < found.ended_at


def test_a_run_that_fails_because_it_was_lost_is_recorded(board):
    id_ = board.client.submit('once')
    [lease] = board.take()
    board.begin(lease, OVER)
    began = board.client.get(id_).steps[0].normal.started_at

    assert board.retake() == []

    task = board.client.get(id_)
    found = task.steps[0].normal
    assert (task.status, found.attempts, found.losses, found.worker) == (
        'rolling_back', 1, 1, 'worker-1')
    # SQLite converts the start from the clock of the leases.
    assert abs(found.started_at - began) < datetime.timedelta(seconds=1)
    assert found.started_at < found.ended_at


def test_a_claim_that_no_worker_has_started_is_no_run_when_it_is_lost(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    board.store.renew([lease.id], holder='api-1', seconds=OVER)

    assert board.retake()

    found = board.client.get(id_).steps[0].normal
    assert (found.attempts, found.losses, found.started_at) == (0, 0, None)


def test_a_result_that_comes_too_late_does_not_count(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    late = board.begin(lease, OVER)
    [again] = board.retake()
    granted = board.begin(again)

    answer = board.end(lease, late, result={'from': 'the dead'})

    assert not any(answer)
    assert board.take() == []
    assert board.client.get(id_).cursor == 0
    board.end(again, granted, result={'from': 'the living'})
    assert board.client.get(id_).parameters == {'from': 'the living'}
    assert again.claims[0].fence > lease.claims[0].fence


def test_the_fences_of_a_task_grow_from_step_to_step(board):
    board.client.submit('to and fro')
    fences = []
    for _ in range(4):
        [lease] = board.take()
        fences.append(lease.claims[0].fence)
        board.end(lease, board.begin(lease))

    assert fences == sorted(set(fences))


def test_a_step_is_tried_as_often_as_its_workflow_allows(board):
    id_ = board.client.submit('stubborn')
    tried = 0
    [lease] = board.take()
    while True:
        granted = board.begin(lease)
        tried += 1
        if not board.end(lease, granted, error=f'ill {tried}').retried:
            break
        [lease] = board.retake()

    assert tried == 3
    task = board.client.get(id_)
    assert (task.status, task.message) == ('rolling_back', 'a.run: ill 3')
    assert board.run() == ['task:a.undo']
    assert board.client.get(id_).status == 'failed'


def test_lost_runs_are_no_failures_until_there_are_too_many(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    for _ in range(MOST_LOSSES):
        board.begin(lease, OVER)
        [lease] = board.retake()
    assert board.client.get(id_).status == 'running'
    board.begin(lease, OVER)

    assert board.retake() == []

    task = board.client.get(id_)
    assert task.status == 'stuck'
    assert board.take() == []
    board.client.retry(id_)
    assert board.run() == [A]
    assert board.run() == [B]
    assert board.client.get(id_).status == 'succeeded'


def test_a_step_that_is_retried_after_too_many_losses_has_none(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    for _ in range(MOST_LOSSES):
        board.begin(lease, OVER)
        [lease] = board.retake()
    lost = lease.claims[0].losses
    board.begin(lease, OVER)
    board.retake()
    board.client.retry(id_)

    [lease] = board.take()

    assert (lost, lease.claims[0].losses) == (MOST_LOSSES, 0)


def test_a_step_that_runs_at_most_once_fails_when_it_is_lost(board):
    id_ = board.client.submit('once')
    [lease] = board.take()
    board.begin(lease, OVER)

    assert board.retake() == []

    assert board.client.get(id_).status == 'rolling_back'
    assert board.run() == ['task:a.undo']


def test_a_step_that_was_not_granted_is_not_lost(board):
    id_ = board.client.submit('once')
    [lease] = board.store.steps.take(
        [JOBS], None, NewLease('dying', 'api-1', OVER))

    [again] = board.retake()

    assert [one.object for one in again.claims] == [id_]
    board.end(again, board.begin(again))
    assert board.client.get(id_).status == 'succeeded'


def in_a_session(board, lease, granted, result):
    engine = database.make_engine(board.url, bounded=False)
    with engine.begin() as connection:
        assert finish_in(
            connection, namespace=board.group, job=lease.job,
            key=lease.claims[0].object, lease=granted,
            result=json.dumps(result))
    engine.dispose()


def test_a_step_that_ended_in_a_session_is_done_in_spite_of_a_later_error(
        board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    granted = board.begin(lease)
    in_a_session(board, lease, granted, {'host': 'h7'})

    answer = board.end(lease, granted, error='after the commit')

    assert answer.done == {id_}
    assert board.client.get(id_).parameters == {'host': 'h7'}
    assert board.run() == [B]


def test_a_step_that_ended_in_a_session_is_done_though_its_worker_dies(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    granted = board.begin(lease, OVER)
    in_a_session(board, lease, granted, {'host': 'h7'})

    assert board.retake() == []

    task = board.client.get(id_)
    assert (task.cursor, task.parameters) == (1, {'host': 'h7'})
    assert board.run() == [B]


def test_parameters_that_grow_too_long_fail_the_step(board):
    id_ = board.client.submit('two', {'x': 'x' * 600_000})

    board.run(result={'y': 'y' * 600_000})

    task = board.client.get(id_)
    assert task.status == 'rolling_back'
    assert 'the limit is 1000000' in task.message


def test_a_result_that_was_committed_and_is_too_long_fails_the_step(board):
    id_ = board.client.submit('stubborn', {'x': 'x' * 600_000})
    [lease] = board.take()
    granted = board.begin(lease)
    in_a_session(board, lease, granted, {'y': 'y' * 600_000})

    board.end(lease, granted)

    assert board.client.get(id_).status == 'rolling_back'
    assert board.run() == ['task:a.undo']


def test_a_rollback_has_its_retries_while_its_task_is_cancelled(board):
    id_ = board.client.submit('patient')
    [lease] = board.take()
    granted = board.begin(lease)
    board.client.cancel(id_)
    board.end(lease, granted)
    [lease] = board.take()

    assert board.end(lease, board.begin(lease), error='ill').retried == {id_}

    [lease] = board.retake()
    board.end(lease, board.begin(lease))
    assert board.client.get(id_).status == 'cancelled'


def test_a_task_that_is_cancelled_has_no_more_retries(board):
    id_ = board.client.submit('stubborn')
    [lease] = board.take()
    assert board.end(lease, board.begin(lease), error='ill').retried

    assert board.client.cancel(id_) == 'rolling_back'

    assert board.retake() == []
    assert board.run() == ['task:a.undo']
    assert board.client.get(id_).status == 'cancelled'


def test_a_run_that_fails_after_its_task_was_cancelled_is_not_retried(board):
    id_ = board.client.submit('stubborn')
    [lease] = board.take()
    granted = board.begin(lease)
    board.client.cancel(id_)

    assert board.end(lease, granted, error='ill').failed == {id_}

    assert board.run() == ['task:a.undo']
    assert board.client.get(id_).status == 'cancelled'


def test_a_queue_that_is_halted_starts_nothing_until_it_is_resumed(board):
    first, second = (board.client.submit('once', queue='q') for _ in 'ab')

    assert board.client.halt_queue('q', 'maintenance')

    board.store.steps.wake()
    assert board.take() == []
    assert 'maintenance' in board.client.queues('q')[0].halted_why
    assert board.client.resume_queue('q')
    assert not board.client.resume_queue('q')
    [lease] = board.take()
    assert [one.object for one in lease.claims] == [first]


def test_a_task_that_is_retried_forward_forgets_how_it_was_rolled_back(board):
    id_ = board.client.submit('two')
    board.run()
    board.run(error='ill')
    board.run(error='very ill')
    assert board.client.get(id_).status == 'stuck'

    board.client.retry(id_, back=False)

    assert board.run() == [B]
    task = board.client.get(id_)
    assert task.status == 'succeeded'
    assert [(s.normal.code, s.rollback.code) for s in task.steps] == [
        (0, None), (0, None)]


def parameters_of(board, id_):
    [found] = board.store.steps.load([id_]).values()
    return found.parameters


def test_a_task_that_runs_again_does_not_see_results_rolled_back(board):
    id_ = board.client.submit('two', {'size': 1, 'name': 'x'})
    board.run(result={'server': 'srv-1', 'size': 2})
    board.run(error='ill')
    assert parameters_of(board, id_) == {
        'size': 2, 'name': 'x', 'server': 'srv-1'}
    board.run(result={'undone': True, 'size': 3})
    board.run()
    assert board.client.get(id_).status == 'failed'

    board.client.retry(id_)

    assert parameters_of(board, id_) == {'size': 1, 'name': 'x'}
    assert board.client.get(id_).parameters == {'size': 1, 'name': 'x'}
    board.run(result={'server': 'srv-2'})
    board.run()
    task = board.client.get(id_)
    assert task.status == 'succeeded'
    assert task.parameters == {'size': 1, 'name': 'x', 'server': 'srv-2'}


def test_a_rollback_sees_the_results_of_all_steps_that_are_done(board):
    id_ = board.client.submit('to and fro')
    for number in range(3):
        board.run(result={'last': number, f'of-{number}': number})
    board.run(error='ill')
    all_three = {'last': 2, 'of-0': 0, 'of-1': 1, 'of-2': 2}
    for _ in range(4):
        assert board.client.get(id_).status == 'rolling_back'
        assert parameters_of(board, id_) == all_three
        board.run()
    assert board.client.get(id_).status == 'failed'


@pytest.mark.parametrize('stuck', [1, 2, 3])
def test_a_task_that_runs_forward_again_sees_the_steps_before_it(board, stuck):
    id_ = board.client.submit('to and fro', {'last': 'nobody'})
    for number in range(3):
        board.run(result={'last': number, f'of-{number}': number})
    board.run(error='ill')
    for number in range(3, stuck, -1):
        board.run(result={'undone': number, 'last': -number})
    board.run(error='very ill')
    assert board.client.get(id_).status == 'stuck'

    board.client.retry(id_, back=False)

    assert parameters_of(board, id_) == {
        'last': stuck - 1, **{f'of-{n}': n for n in range(stuck)}}
    while board.run():
        pass
    assert board.client.get(id_).status == 'succeeded'


def failure_of(board, id_):
    [found] = board.store.steps.load([id_]).values()
    return Context(RunInput('', id_, 0, 1, 1, step=found)).failure


def test_a_rollback_gets_the_failed_command_and_its_error(board):
    id_ = board.client.submit('to and fro')
    board.run()
    board.run()
    assert failure_of(board, id_) is None
    [lease] = board.take()

    ended = board.end(lease, board.begin(lease), error='no room',
                      proceed=here())

    [(lease, inputs)] = ended.granted
    assert inputs[id_].failure == 'a.run: no room'
    board.end(lease, lease.id, error='very ill')
    board.client.retry(id_)
    for _ in range(3):
        assert failure_of(board, id_) == 'a.run: no room'
        board.run()
    assert board.client.get(id_).status == 'failed'


def test_a_rollback_gets_the_cancellation_of_its_task(board):
    id_ = board.client.submit('two')
    board.run()
    board.client.cancel(id_)

    assert failure_of(board, id_).startswith('cancelled: ')
    assert board.run() == ['task:a.undo']


def test_a_rollback_gets_the_losses_of_a_command(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    for _ in range(MOST_LOSSES):
        board.begin(lease, OVER)
        [lease] = board.retake()
    board.begin(lease, OVER)
    board.retake()
    board.client.retry(id_, back=True)

    assert failure_of(board, id_).startswith('a.run: lost with')


def test_a_store_reports_each_move_of_a_task_once(board):
    id_ = board.client.submit('two')
    board.run()
    board.run(error='ill')
    while board.run():
        pass

    moves = [(event.status, event.step) for event in board.events]
    assert moves == [('running', 1), ('rolling_back', 1),
                     ('rolling_back', 0), ('failed', 0)]
    assert {(event.task, event.type) for event in board.events} == {
        (id_, 'two')}


def test_a_store_counts_the_tasks_that_end_or_become_stuck(board):
    for _ in 'abc':
        board.client.submit('once')
    while board.run():
        pass
    board.client.submit('two')
    board.run()
    board.run(error='ill')
    board.run(error='very ill')
    board.client.submit('same')
    [lease] = board.take()
    granted = board.begin(lease)
    answers = [board.end(lease, granted, error='ill', into='x')
               for _ in range(2)]
    assert answers[0] == answers[1]
    while board.run():
        pass

    assert board.outcomes == {'succeeded': 3, 'stuck': 1, 'failed': 1}


def test_a_store_counts_the_tasks_whose_runs_are_lost_too_often(board):
    board.client.submit('once')
    [lease] = board.take()
    board.begin(lease, OVER)
    board.retake()
    while board.run():
        pass
    board.client.submit('same')
    [lease] = board.take()
    for _ in range(MOST_LOSSES + 1):
        board.begin(lease, OVER)
        lease = next(iter(board.retake()), None)

    assert board.outcomes == {'failed': 1, 'stuck': 1}


def key_of(board, id_):
    [found] = board.store.steps.load([id_]).values()
    return Context(RunInput('', id_, 0, 1, 1, step=found)).key


def test_a_step_that_was_rolled_back_runs_again_under_other_keys(board):
    id_ = board.client.submit('two')
    normal = key_of(board, id_)
    board.run(error='ill')
    undone = key_of(board, id_)
    board.run()
    assert board.client.get(id_).status == 'failed'

    board.client.retry(id_)

    again = key_of(board, id_)
    assert again.startswith(normal)
    assert len({normal, undone, again}) == 3
    board.run(error='ill')
    assert key_of(board, id_) not in (normal, undone, again)
    board.run()
    board.client.retry(id_)
    assert key_of(board, id_) not in (normal, again)


def test_a_stuck_task_that_runs_forward_again_has_other_keys(board):
    id_ = board.client.submit('two')
    board.run()
    normal = key_of(board, id_)
    board.run(error='ill')
    undone = key_of(board, id_)
    board.run(error='very ill')

    board.client.retry(id_)
    assert key_of(board, id_) == undone
    board.run(error='very ill')
    board.client.retry(id_, back=False)

    assert key_of(board, id_) not in (normal, undone)
    board.run(error='ill')
    assert key_of(board, id_) != undone


def trace_of(board, id_):
    """Return the trace context that the next run of a task gets."""
    return board.store.steps.load([id_])[id_].trace


@pytest.mark.parametrize('queue', [None, 'q'])
def test_each_run_of_a_task_gets_the_trace_of_its_submitter(board, queue):
    with spans.kept() as exported, exported.span('request'):
        id_ = board.client.submit('two', queue=queue)
        submitted = TRACING.tracer.current()

    found = [trace_of(board, id_)]
    for error in (None, 'ill', None, None):
        board.run(error=error)
        found.append(trace_of(board, id_))
    assert board.client.get(id_).status == Status.FAILED
    board.client.retry(id_)
    found.append(trace_of(board, id_))

    assert set(found) == {submitted}
    assert None is not submitted


def test_a_task_without_a_span_has_no_trace(board):
    with spans.kept():
        id_, other = board.client.submit_many(2 * [{'type': 'two'}])

    assert trace_of(board, id_) is trace_of(board, other) is None


def test_a_traced_task_waits_until_its_first_command_is_granted(board):
    with spans.kept() as exported, exported.span('request'):
        id_ = board.client.submit('two')

    [lease] = board.take()
    assert board.client.get(id_).status == Status.WAITING
    granted = board.begin(lease)
    assert board.client.get(id_).status == Status.RUNNING
    board.end(lease, granted)
    board.take()
    assert board.client.get(id_).status == Status.RUNNING


def test_a_run_that_is_repeated_keeps_its_key(board):
    id_ = board.client.submit('stubborn')
    key = key_of(board, id_)
    [lease] = board.take()
    board.begin(lease, OVER)
    [lease] = board.retake()
    assert key_of(board, id_) == key
    board.end(lease, board.begin(lease), error='ill')
    [lease] = board.retake()

    assert key_of(board, id_) == key


def test_tasks_that_fail_together_wait_for_the_longest_of_their_pauses(board):
    ids = [board.client.submit('stubborn') for _ in 'ab']
    [lease] = board.take()
    board.begin(lease._replace(claims=lease.claims[:1]), OVER)
    [repeated] = board.retake()
    into = uuid.uuid4().hex
    claims = board.store.reclaim(
        [lease.held, repeated.held], ids, NewLease(into, 'api-1', LONG))
    both = lease._replace(id=into, claims=claims)
    assert sorted(one.attempt for one in claims) == [1, 2]

    answer = board.store.steps.advance(ports.EndedSteps(
        HeldLease(board.begin(both), A, lease.tick), {},
        dict.fromkeys(ids, 'ill')),
        into=uuid.uuid4().hex, pause={1: OVER, 2: LONG}.get)

    assert answer.retried == set(ids)
    assert board.retake() == []


@pytest.mark.parametrize('error', [None, 'ill'])
@pytest.mark.parametrize('proceeds', [False, True])
def test_the_times_of_commands_are_recorded_with_their_results(
        board, error, proceeds):
    for _ in 'abc':
        board.client.submit('two')
    [lease] = board.take()
    granted = board.begin(lease)

    board.end(lease, granted, error=error, times=ports.RunTimes(
        3, 'started', 'ran'), proceed=ports.Proceed(
            list(JOBS), NewLease(uuid.uuid4().hex, 'worker-1', LONG))
        if proceeds else None)

    rows = board.store.database.read(lambda connection: connection.execute(
        sa.select(tables.history.c.late, tables.history.c.started,
                  tables.history.c.ran).join(
            tables.job, tables.job.c.id == tables.history.c.job).where(
                tables.job.c.space == board.group,
                tables.history.c.late > 0)).all())
    assert rows == [(3, 'started', 'ran')]


def test_a_key_names_one_task(board):
    first = board.client.submit('two', {'n': 1}, key='键')

    assert board.client.submit('two', {'n': 1}, key='键') == first
    with pytest.raises(exceptions.InvalidTask, match='other key'):
        board.client.submit('two', {'n': 2}, key='键')
    board.run()
    assert board.client.submit('two', {'n': 1}, key='键') == first
    assert len(board.client.list()) == 1


def test_many_submit_one_key_at_once_and_get_one_task(board):
    found, barrier = [], threading.Barrier(4)

    def submit():
        client = Board(board.url)
        client.client._conf.set_override(
            'group', board.group, opts.GROUP)
        barrier.wait(10)
        found.append(client.client.submit('two', key='k'))
        client.client.close()
    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert len(set(found)) == 1
    [lease] = board.take()
    assert len(lease.claims) == 1


def test_threads_may_share_a_client(board):
    ids, barrier = [], threading.Barrier(4)

    def submit():
        barrier.wait(10)
        for _ in range(5):
            ids.append(board.client.submit('two'))
            assert board.client.get(ids[-1]).status == 'waiting'
    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(ids) == sorted(task.id for task in board.client.list())
    assert len(ids) == 20


def test_tasks_are_taken_by_priority_and_then_by_age(board):
    ids = [board.client.submit('two', priority=n) for n in (0, 5, 5, -1)]

    order = [one.object for _ in range(4) for lease in board.take(
        **{A: 1}) for one in lease.claims]

    assert order == [ids[1], ids[2], ids[0], ids[3]]


@pytest.mark.parametrize('notified', [False, True])
def test_the_commands_of_a_partition_share_its_room(board, notified):
    undo = 'task:a.undo'
    ids = [board.client.submit(f'a.{command}', priority=int(number == 5))
           for number, command in enumerate(3 * ['run', 'undo'])]
    named = ids if notified else None

    first = board.take(named, **{A: 2, undo: 4})
    second = board.take(named, **{A: 10, undo: 10})

    # The urgent task is first. It uses a quarter of the room.
    assert sorted(one.object for lease in first for one in lease.claims
                  ) == sorted([ids[5], ids[0], ids[1]])
    assert sum(len(lease.claims) for lease in second) == 3


def test_the_partitions_have_rooms_of_their_own(board):
    ids = [board.client.submit(type_) for type_ in ('a.run', 'b.run')]

    taken = board.store.steps.take(
        [{A: 1}, {B: 1}], None, NewLease('one', 'api-1', LONG))

    assert sorted(one.object for lease in taken for one in lease.claims
                  ) == sorted(ids)


def test_a_delayed_task_is_taken_when_it_is_due(board):
    now = board.client.get(board.client.submit('two')).created_at
    board.run()
    board.run()
    later = board.client.submit('two', at=now.replace(year=now.year + 1))
    board.store.steps.wake()
    assert board.take() == []
    engine = database.make_engine(board.url)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.ready).where(
            tables.ready.c.task == later).values(due=1))
    engine.dispose()

    board.store.steps.wake()

    [lease] = board.take()
    assert [one.object for one in lease.claims] == [later]


def test_all_delayed_tasks_are_woken_when_they_are_due(board):
    """One call wakes a limited number of them."""
    now = board.client.get(board.client.submit('two')).created_at
    board.run()
    ids = board.client.submit_many([
        {'type': 'once', 'at': now.replace(year=now.year + 1)}] * 501)
    engine = database.make_engine(board.url)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.ready).where(
            tables.ready.c.task.in_(ids)).values(due=1))
    engine.dispose()

    while board.store.steps.wake():
        pass

    assert {one.object for lease in board.take(**{A: 1000})
            for one in lease.claims} == set(ids)


def test_each_step_has_a_later_tick_although_the_clock_was_set_back(board):
    board.client.submit('two')
    [lease] = board.take()
    board.end(lease, board.begin(lease))
    hour = 3600 * SECOND
    engine = database.make_engine(board.url)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.ready).where(
            tables.ready.c.task == lease.claims[0].object).values(
                after=lease.tick + hour))
    engine.dispose()

    [following] = board.take()

    assert following.tick > lease.tick + hour


def test_two_schedulers_at_once_never_take_the_same_step(board):
    ids = board.client.submit_many([{'type': 'two'}] * 300)
    taken, barrier = collections.Counter(), threading.Barrier(3)

    def take():
        store = board.another_store()
        barrier.wait(10)
        while leases := board.take(store=store, **{A: 20}):
            taken.update(
                one.object for lease in leases for one in lease.claims)
        store.close()
    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # Each thread leaves out the rows that another thread has locked. Take any
    # rows that are left.
    taken.update(one.object for lease in board.take() for one in lease.claims)
    assert taken == collections.Counter(ids)


def test_a_queue_has_one_task_at_work_and_keeps_the_order(board):
    ids = [board.client.submit('two', queue='q') for _ in range(4)]
    order = []
    for _ in range(8):
        [lease] = board.take()
        [claim] = lease.claims
        order.append((claim.object, lease.job))
        board.end(lease, board.begin(lease))

    assert order == [(id_, job) for id_ in ids for job in (A, B)]
    assert board.take() == []


def test_a_task_that_is_submitted_while_the_head_runs_waits(board):
    first = board.client.submit('two', queue='q')
    [lease] = board.take()
    granted = board.begin(lease)

    second = board.client.submit('two', queue='q')

    assert board.take() == []
    assert board.client.queues('q')[0].head == first
    board.end(lease, granted)
    assert board.run() == [B]
    assert board.client.queues('q')[0].head == second


def test_the_next_head_of_a_queue_is_taken_with_its_predecessor(board):
    first, second = (board.client.submit('once', queue='q') for _ in 'ab')
    [lease] = board.take()
    board.end(lease, board.begin(lease))

    [following] = board.take([first])

    assert [one.object for one in following.claims] == [second]


def test_tasks_of_one_call_keep_their_order_in_their_queue(board):
    ids = board.client.submit_many([{'type': 'once', 'queue': 'q'}] * 20)
    order = []
    for _ in ids:
        [lease] = board.take()
        order += [one.object for one in lease.claims]
        board.end(lease, board.begin(lease))

    assert order == ids


def test_a_notice_of_several_tasks_of_a_queue_takes_its_head_once(board):
    ids = board.client.submit_many([{'type': 'once', 'queue': 'q'}] * 3)

    [lease] = board.take(ids)

    assert [one.object for one in lease.claims] == ids[:1]


def test_one_key_for_different_tasks_of_one_call_is_refused(board):
    with pytest.raises(exceptions.InvalidTask, match='two tasks of one call'):
        board.client.submit_many([
            {'type': 'two', 'key': 'k'}, {'type': 'same', 'key': 'k'}])

    assert board.client.list() == []
    first, second = board.client.submit_many(
        [{'type': 'two', 'key': 'k'}] * 2)
    assert first == second


@pytest.mark.parametrize('steps, status', [
    (0, 'cancelled'), (1, 'rolling_back')])
def test_a_task_whose_step_no_worker_has_started_is_cancelled_at_once(
        board, steps, status):
    id_ = board.client.submit('two')
    for _ in range(steps):
        board.run()
    [lease] = board.take()

    assert board.client.cancel(id_) == status

    assert not board.end(lease, board.begin(lease)).done
    ran = []
    while commands := board.run():
        ran += commands
    assert ran == ['task:a.undo'] * steps
    assert board.client.get(id_).status == 'cancelled'


def test_a_cancelled_task_is_no_exception_of_a_tick(board):
    id_ = board.client.submit('two')
    board.take()

    assert board.client.cancel(id_) == 'cancelled'

    assert board.store.database.read(lambda connection: connection.scalar(
        sa.select(sa.func.count()).select_from(tables.exception).join(
            tables.job, tables.job.c.id == tables.exception.c.job)
        .where(tables.job.c.space == board.group))) == 0


def test_a_step_that_was_lost_is_undone_if_its_task_is_cancelled(board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    board.begin(lease, OVER)
    [again] = board.retake()

    assert board.client.cancel(id_) == 'rolling_back'

    assert not board.end(again, board.begin(again)).done
    assert board.run() == ['task:a.undo']
    assert board.client.get(id_).status == 'cancelled'


def test_a_step_that_runs_keeps_its_task_from_ending_when_it_is_cancelled(
        board):
    id_ = board.client.submit('two')
    [lease] = board.take()
    running = board.begin(lease)

    assert board.client.cancel(id_) == 'running'

    board.end(lease, running)
    assert board.run() == ['task:a.undo']
    assert board.client.get(id_).status == 'cancelled'


def test_a_queue_halts_or_goes_on_after_a_failure(board):
    board.client.set_queue('brave', on_failure='go_on')
    ids = {queue: [board.client.submit('same', queue=queue)
                   for _ in range(2)] for queue in ('brave', 'careful')}
    board.run(error='ill')
    board.run()

    [lease] = board.take()

    assert [one.object for one in lease.claims] == [ids['brave'][1]]
    [careful] = board.client.queues('careful')
    assert careful.halted_by == ids['careful'][0]
    assert [event for event in board.events
            if isinstance(event, QueueHalted)] == [
                QueueHalted('careful', ids['careful'][0])]
    assert board.client.resume_queue('careful')
    [lease] = board.take()
    assert [one.object for one in lease.claims] == [ids['careful'][1]]


def test_a_cancelled_head_makes_room_for_the_next_task(board):
    first, second = (board.client.submit('once', queue='q') for _ in 'ab')
    board.client.cancel(second)
    third = board.client.submit('once', queue='q')

    assert board.client.cancel(first) == 'cancelled'

    [lease] = board.take()
    assert [one.object for one in lease.claims] == [third]


def test_a_task_that_is_retried_takes_its_old_place(board):
    """The task even precedes the head of the queue if the head has not
    started.
    """
    board.client.set_queue('q', on_failure='go_on')
    first = board.client.submit('same', queue='q')
    board.run(error='ill')
    board.run()
    assert board.client.get(first).status == 'failed'
    second = board.client.submit('once', queue='q')

    board.client.retry(first)

    assert board.client.queues('q')[0].head == first
    [lease] = board.take()
    assert [one.object for one in lease.claims] == [first]
    assert board.client.get(second).status == 'waiting'


def test_a_task_that_is_retried_waits_for_one_that_has_started(board):
    board.client.set_queue('q', on_failure='go_on')
    first = board.client.submit('same', queue='q')
    board.run(error='ill')
    board.run()
    second = board.client.submit('once', queue='q')
    [lease] = board.take()

    board.client.retry(first)

    assert board.take() == []
    board.end(lease, board.begin(lease))
    assert board.client.get(second).status == 'succeeded'
    [lease] = board.take()
    assert [one.object for one in lease.claims] == [first]


def test_a_stuck_task_holds_its_queue(board):
    first, second = (board.client.submit('two', queue='q') for _ in 'ab')
    board.run(error='ill')
    board.run(error='very ill')
    assert board.client.get(first).status == 'stuck'
    board.store.steps.wake()
    assert board.take() == []

    board.client.cancel(first)

    [lease] = board.take()
    assert [one.object for one in lease.claims] == [second]


def test_a_task_that_is_submitted_in_a_session_joins_its_queue_later(board):
    engine = database.make_engine(board.url, bounded=False)
    with engine.begin() as connection:
        id_ = board.client.submit('two', queue='q', session=connection)
    engine.dispose()

    board.store.steps.wake()

    [lease] = board.take()
    assert [one.object for one in lease.claims] == [id_]


def test_the_notice_of_a_task_starts_the_idle_queue_that_it_joined(board):
    engine = database.make_engine(board.url, bounded=False)
    with engine.begin() as connection:
        ids = [board.client.submit('two', queue=name, session=connection)
               for name in ('p', 'q', 'q')]
    alone = board.client.submit('two')
    engine.dispose()

    taken = [one.object for lease in board.take([*ids, alone])
             for one in lease.claims]

    assert sorted(taken) == sorted([alone, *ids[:2]])
    assert board.take([*ids, alone]) == []


def test_a_notice_takes_no_more_steps_than_asked_of_queues_it_starts(board):
    engine = database.make_engine(board.url, bounded=False)
    with engine.begin() as connection:
        ids = [board.client.submit('two', queue=name, session=connection)
               for name in 'pqr']
    alone = board.client.submit('two')
    engine.dispose()

    taken = [one.object for lease in board.take([*ids, alone], **{A: 2})
             for one in lease.claims]

    assert len(taken) == 2


def test_the_notice_of_a_task_does_not_start_a_halted_queue(board):
    board.client.set_queue('q', on_failure='halt')
    board.client.halt_queue('q')
    id_ = board.client.submit('two', queue='q')

    assert board.take([id_]) == []
    assert board.client.get(id_).status == 'waiting'


@pytest.mark.parametrize('scoped', [False, True])
def test_a_notice_follows_the_commit_of_a_session(board, scoped):
    engine = database.make_engine(board.url, bounded=False)
    factory = orm.sessionmaker(engine)
    session = orm.scoped_session(factory) if scoped else factory()
    key, notified = (board.url, board.group), []
    notices.listen(key, notified.extend)
    try:
        board.client.submit('two', session=session)
        session.rollback()
        with session.begin_nested():
            first = board.client.submit('two', session=session)
        second = board.client.submit('two', session=session)
        assert notified == []
        session.commit()
        assert notified == [first, second]
        with factory.begin() as other:
            other.execute(sa.select(1))
        session.commit()
        assert notified == [first, second]
    finally:
        notices.unlisten(key, notified.extend)
        session.close()
        engine.dispose()


def test_a_flush_that_fails_in_a_savepoint_costs_no_notice(board):
    class Row:
        def __init__(self, name):
            self.space, self.name, self.changes, self.goes_on = (
                board.group, name, 0, 0)
    orm.registry().map_imperatively(Row, tables.queue)
    engine = database.make_engine(board.url, bounded=False)
    key, notified = (board.url, board.group), []
    notices.listen(key, notified.extend)
    try:
        with orm.Session(engine) as session:
            session.add(Row('q'))
            id_ = board.client.submit('two', session=session)
            session.flush()
            session.expunge_all()
            with pytest.raises(Exception, match='(?i)unique|duplicate'):
                with session.begin_nested():
                    session.add(Row('q'))
                    session.flush()
            session.commit()
        assert notified == [id_]
    finally:
        notices.unlisten(key, notified.extend)
        engine.dispose()


def test_a_page_of_tasks_begins_behind_the_page_before(board):
    ids = board.client.submit_many([{'type': 'two'}] * 7)

    pages = [board.client.list(limit=3)]
    while pages[-1]:
        pages.append(board.client.list(limit=3, after=pages[-1][-1].id))

    assert ids == [task.id for page in pages for task in page]


#: Possible fates of a run of a command.
FATES = st.sampled_from(
    ['done', 'done', 'done', 'failed', 'lost', 'repeated', 'late', 'session'])


@hypothesis.given(fates=st.lists(FATES, max_size=14),
                  type_=st.sampled_from(sorted(WORKFLOWS)),
                  proceeds=st.booleans())
@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2,
                     suppress_health_check=list(hypothesis.HealthCheck))
def test_a_task_ends_as_its_model_for_any_fates_of_its_runs(
        board, fates, type_, proceeds):
    id_ = board.client.submit(type_)
    fates = iter(fates)
    model = Model(WORKFLOWS[type_])
    #: (lease of claims, lease of the runs of these claims) pairs. None means
    #: that no run has started.
    leases = [(lease, None) for lease in board.take([id_])]
    while leases:
        [(lease, granted)] = leases
        fate = next(fates, 'done')
        proceed = here() if proceeds else None
        ended = ports.Advanced(set(), set(), set())
        assert lease.job == model.job
        if fate in ('lost', 'late'):
            if granted is None:
                granted = board.begin(lease, OVER)
            else:
                board.store.renew([granted], holder='worker-1', seconds=OVER)
            model.lost()
        else:
            granted = granted or board.begin(lease)
        if fate == 'failed':
            ended = board.end(lease, granted, error='ill', proceed=proceed)
            model.failed()
        elif fate == 'late':
            again = board.retake()
            assert not any(board.end(lease, granted, proceed=proceed))
            if again:
                leases = [(lease, None) for lease in again]
                continue
        elif fate == 'session':
            in_a_session(board, lease, granted, {})
            ended = board.end(lease, granted, proceed=proceed)
            model.done()
        elif fate in ('done', 'repeated'):
            for _ in range(1 + (fate == 'repeated')):
                ended = board.end(lease, granted, proceed=proceed)
                assert ended.done == {id_}
            model.done()
        leases = [(lease, lease.id) for lease, _ in ended.granted] or [
            (lease, None) for lease in board.retake() or board.take([id_])]
    task = board.client.get(id_)

    assert (task.status, task.cursor) == (model.status, model.cursor)
    commands = {(at, back): command for at, step in enumerate(task.steps)
                for back, command in ((False, step.normal),
                                      (True, step.rollback)) if command}
    assert {at: one.attempts for at, one in commands.items()
            if one.attempts} == model.runs
    assert {at: one.losses for at, one in commands.items()
            if one.losses} == model.lost_runs
    for at in model.runs:
        assert commands[at].worker == 'worker-1'
        assert task.started_at <= commands[at].started_at
        assert commands[at].started_at <= commands[at].ended_at


class Model:
    """The behaviour of a task, as the documentation describes it."""

    def __init__(self, steps):
        self.steps = steps
        self.at, self.back, self.cursor = 0, False, 0
        self.status = 'running'
        #: Number of runs, and of lost runs, of each command.
        self.runs = collections.Counter()
        self.lost_runs = collections.Counter()
        self._anew()

    def _anew(self):
        self.failures = self.losses = 0

    @property
    def half(self):
        return self.steps[self.at]['rollback' if self.back else 'normal']

    @property
    def job(self):
        return f'task:{self.half["module"]}.{self.half["command"]}'

    def _ran(self):
        self.runs[self.at, self.back] += 1

    def done(self):
        self._ran()
        self._anew()
        if self.back:
            self._roll_back(self.at - 1)
        elif self.at + 1 == len(self.steps):
            self.status = 'succeeded'
        else:
            self.at = self.cursor = self.at + 1

    def failed(self):
        self._ran()
        self.failures += 1
        once = self.half.get('delivery') == 'at_most_once'
        if self.failures > self.half.get('retry', 0) or once:
            self._fail()

    def lost(self):
        self._ran()
        self.lost_runs[self.at, self.back] += 1
        self.losses += 1
        if self.half.get('delivery') == 'at_most_once':
            self._fail()
        elif self.losses > MOST_LOSSES:
            self.status = 'stuck'

    def _fail(self):
        self._anew()
        if self.back:
            self.status = 'stuck'
        else:
            self._roll_back(self.at)

    def _roll_back(self, last):
        self.back = True
        for at in range(last, -1, -1):
            if 'rollback' in self.steps[at]:
                self.at, self.status = at, 'rolling_back'
                return
        self.status = 'failed'


def test_a_worker_learns_which_of_its_tasks_were_cancelled(board):
    ids = [board.client.submit('two') for _ in range(3)]
    leases = board.take()
    for lease in leases:
        board.begin(lease)

    assert board.store.steps.cancelled(ids) == set()
    assert board.client.cancel(ids[1]) == 'running'
    assert board.store.steps.cancelled(ids) == {ids[1]}
    assert board.store.steps.cancelled(ids[:1]) == set()
