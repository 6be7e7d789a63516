# SPDX-License-Identifier: Apache-2.0
"""Rows that services delete by themselves, in every database.

Each test has a group of its own.
"""

import collections
import concurrent.futures
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from distperiodic import tasks
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.adapters.sql.task_insertion import TaskInsertion
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.control import Me
from distperiodic.core.pruning import ages_of
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.ports import Failure
from tests import claiming
from tests.configured import configuration
from tests.pruned import pruned

DAY = 86400 * 1_000_000
WORKFLOWS = {'one': [{'normal': {'module': 'a', 'command': 'run'}}]}


class World:
    """One group in a database, with rows of different ages."""

    def __init__(self, url):
        self.url = url
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        self.store = SqlClaimStore(url, namespace=self.group)
        self.engine = database.make_engine(url)
        self.client = tasks.Client(
            configuration(connection=url, group=self.group),
            workflows=WORKFLOWS)

    def close(self):
        self.client.close()
        self.engine.dispose()
        self.store.forget()
        self.store.close()

    def execute(self, statement):
        with self.engine.begin() as connection:
            return connection.execute(statement)

    def prune(self, **days):
        return pruned(self.store.database, self.group, **days)

    def run(self, tick, objects, *, dead):
        """Run objects. If *dead*, all of them end as dead; otherwise all of
        them succeed.
        """
        lease, running = uuid.uuid4().hex, uuid.uuid4().hex
        assert len(claiming.claim(self.store, 'poll', tick, objects,
                                  lease=lease, holder='api-1', seconds=60.0,
                                  supersede=False).won) == len(objects)
        self.store.start(
            HeldLease(lease, 'poll', tick), objects,
            NewLease(running, 'w-1', 60.0))
        if dead:
            self.store.fail(
                HeldLease(running, 'poll', tick),
                [Failure(key, 'it is ill') for key in objects], None)
        else:
            self.store.finish(HeldLease(running, 'poll', tick), objects)

    def failed(self):
        """The objects with a recorded failure, and the number of records."""
        with self.engine.connect() as connection:
            return collections.Counter(connection.execute(sa.select(
                tables.failure.c.object).join(
                    tables.job, tables.job.c.id == tables.failure.c.job)
                .where(tables.job.c.space == self.group)).scalars())

    def submit(self, queue=None):
        return self.client.submit('one', {}, queue=queue)

    def forget(self, *ids):
        """Delete tasks, as a service deletes old tasks."""
        self.execute(sa.update(tables.task).where(
            tables.task.c.id.in_(ids)).values(
                created=tables.task.c.created - 2 * DAY,
                ended=tables.task.c.ended - 2 * DAY))
        assert self.prune(tasks=1.0)['tasks'] == len(ids)

    def queues(self):
        with self.engine.connect() as connection:
            return sorted(connection.execute(sa.select(
                tables.queue.c.name).where(
                    tables.queue.c.space == self.group)).scalars())

    def taken(self):
        """Claim the steps that are ready; return their tasks."""
        self.store.steps.wake()
        return sorted(claim.object for lease in self.store.steps.take(
            [{'task:a.run': 100}], None,
            NewLease(uuid.uuid4().hex, 'api-1', 60.0))
                   for claim in lease.claims)

    def unused(self, queue):
        """Create a queue, and delete its only task."""
        done = self.submit(queue)
        self.client.cancel(done)
        self.execute(sa.delete(tables.task).where(tables.task.c.id == done))


@pytest.fixture
def world(database_url):
    made = World(database_url)
    yield made
    made.close()


def test_failures_of_objects_that_are_dead_stay_and_block_no_others(world):
    now = world.store.now()
    ill = [f'ill-{n:04}' for n in range(1100)]
    well = [f'well-{n:04}' for n in range(1050)]
    # This failure is recorded later than the others, as after a step of the
    # clock.
    world.run(now - 9 * DAY, ['later'], dead=True)
    world.run(now - 9 * DAY, ill, dead=True)
    world.run(now - 9 * DAY, well, dead=True)
    world.run(now - 8 * DAY, well, dead=False)
    # For a dead object, only the record of its last tick is kept.
    for days in 9, 8:
        world.run(now - days * DAY, ['again'], dead=True)
    world.execute(sa.update(tables.failure).where(
        tables.failure.c.object.in_([*ill, *well, 'again'])
    ).values(at=now - 8 * DAY))
    world.run(now - 7 * DAY, ['young'], dead=True)
    world.run(now - 6 * DAY, ['young'], dead=False)
    other = World(world.url)
    other.run(now - 9 * DAY, ['a'], dead=True)
    other.run(now - 8 * DAY, ['a'], dead=False)

    assert world.prune(history=3.0)['failures'] == 1051

    assert world.failed() == collections.Counter(
        [*ill, 'again', 'young', 'later'])
    assert other.failed() == {'a': 1}
    other.close()


def test_the_failure_of_a_requeued_object_is_deleted(world):
    now = world.store.now()
    world.run(now - 9 * DAY, ['a', 'b'], dead=True)
    world.execute(sa.update(tables.claim).where(
        tables.claim.c.object == 'a').values(
            fence=tables.claim.c.fence + 1))

    assert world.prune(history=-1.0)['failures'] == 1
    assert set(world.failed()) == {'b'}


def test_a_turn_deletes_all_old_tasks_in_small_steps(world):
    ids = world.client.submit_many([{'type': 'one'}] * 410)
    for task in ids:
        world.client.cancel(task)
    stays = world.submit()

    steps = [step.rows for step in world.store.prune(ages_of(0.0, -1.0))
             if step.kind == 'tasks' and step.rows]

    assert steps == [200, 200, 10]
    assert [task.id for task in world.client.list()] == [stays]


def test_nothing_is_deleted_without_a_retention(world):
    world.client.cancel(world.submit())
    world.run(world.store.now() - 9 * DAY, ['a'], dead=False)

    assert not world.prune()


def test_only_unused_queues_are_deleted(world):
    for name in 'unused', 'halted', 'goes on':
        world.unused(name)
    world.client.halt_queue('halted', 'a reason')
    world.client.set_queue('goes on', on_failure='go_on')
    waits, ended = world.submit('waits'), world.submit('ended')
    world.client.cancel(ended)

    assert world.prune(tasks=1.0) == {'queues': 1}

    assert world.queues() == ['ended', 'goes on', 'halted', 'waits']
    assert world.taken() == [waits]
    world.forget(ended)
    assert world.queues() == ['goes on', 'halted', 'waits']


@pytest.mark.parametrize('own_transaction', [True, False])
def test_a_task_runs_although_its_queue_is_deleted_meanwhile(
        world, monkeypatch, own_transaction):
    """The row is deleted after the submission has found it."""
    world.unused('q')
    create, calls = TaskInsertion.create_queues, []

    def create_and_lose(self, tx, names):
        create(self, tx, names)
        calls.append(names)
        if len(calls) == 1:
            tx.connection.execute(sa.delete(tables.queue).where(
                tables.queue.c.space == world.group))
    monkeypatch.setattr(TaskInsertion, 'create_queues', create_and_lose)
    if own_transaction:
        task = world.submit('q')
    else:
        with orm.Session(world.engine) as session, session.begin():
            task = world.client.submit(
                'one', {}, queue='q', session=session)

    assert len(calls) == 2
    assert world.queues() == ['q']
    assert world.taken() == [task]


def test_a_queue_stays_for_a_task_that_is_not_committed_yet(world):
    world.unused('q')
    with concurrent.futures.ThreadPoolExecutor() as threads:
        with orm.Session(world.engine) as session, session.begin():
            task = world.client.submit(
                'one', {}, queue='q', session=session)
            found = threads.submit(world.prune, tasks=1.0)
            # On SQLite the deletion waits for the commit; elsewhere it does
            # not.
            concurrent.futures.wait([found], 0.5)
        assert not found.result(20)

    assert world.queues() == ['q']
    assert world.taken() == [task]


@pytest.mark.parametrize('database_url', ['postgresql'], indirect=True)
def test_no_submission_waits_for_one_in_another_transaction(world):
    first = world.submit('q')
    with concurrent.futures.ThreadPoolExecutor() as threads:
        with orm.Session(world.engine) as session, session.begin():
            world.client.submit('one', {}, queue='q', session=session)
            second = threads.submit(world.submit, 'q').result(20)
            threads.submit(world.client.cancel, first).result(20)
            assert world.taken() == [second]


def test_members_that_are_gone_are_deleted(world):
    def report(part, name):
        world.store.members.report(
            Me(world.group, part, name), 'p~1', {}, new=True)

    for part in '', 'default':
        for name in 'gone', 'drained', 'set':
            report(part, name)
    world.execute(sa.update(tables.member).where(
        tables.member.c.name == 'drained').values(drained='some action'))
    world.execute(sa.update(tables.member).where(
        tables.member.c.name == 'set').values(pool_size=3))
    world.execute(sa.update(tables.member).values(
        seen=tables.member.c.seen - 2 * DAY).where(
            tables.member.c.space == world.group))
    report('', 'here')

    assert world.prune(history=3.0) == {}
    assert world.prune(history=1.0) == {'members': 2}

    with world.engine.connect() as connection:
        assert sorted(connection.execute(sa.select(
            tables.member.c.part, tables.member.c.name).where(
                tables.member.c.space == world.group)).all()) == [
            ('', 'drained'), ('', 'here'), ('', 'set'),
            ('default', 'drained'), ('default', 'set')]
    report('', 'gone')
    assert world.store.members.read(Me(world.group, '', 'gone')).desired


def test_workers_that_stood_by_and_are_gone_are_deleted(world):
    for worker in 'gone', 'here':
        world.store.partitions.beat(
            PartitionWorker('p', worker), Role.STANDBY, seconds=60.0)
    world.execute(sa.update(tables.partition_worker).where(
        tables.partition_worker.c.space == world.group,
        tables.partition_worker.c.worker == 'gone').values(
            seen=tables.partition_worker.c.seen - 2 * DAY))

    assert world.prune(history=1.0) == {'standby workers': 1}
    assert not world.prune(history=1.0)
