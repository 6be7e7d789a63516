# SPDX-License-Identifier: Apache-2.0
"""Tasks through RabbitMQ and PostgreSQL, against chains of Celery.

Ours writes each task, claims each of its steps and records each end in
PostgreSQL; one scheduler and one worker process. A chain of Celery with
acks_late keeps no record of a task at all. From the first submission to the
last end that is known.

    pytest -s -o timeout=0 tests/benchmarks/test_tasks.py
"""

import statistics
import time
import uuid

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import tasks
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from tests import programs
from tests import waiting
from tests.benchmarks import commands as ours
from tests.benchmarks import measuring
from tests.benchmarks import test_claimed
from tests.functional import commands

TASKS = 5_000
STEPS = 3
IN_A_BATCH = 500
ALONE = 1_000
LATENCIES = 200
QUEUED = 1_000


class Service:
    """One scheduler and one worker process, and a client."""

    def __init__(self, place, zookeeper, rabbitmq, postgresql):
        schema.sync(postgresql.url)
        self.url = postgresql.url
        self.place = place
        self.group = f'bench-{uuid.uuid4().hex[:8]}'
        config = programs.write_config(
            place / 'service.conf', DEFAULT={'transport_url': rabbitmq.url},
            distperiodic={
                'group': self.group, 'backend_url': zookeeper.url,
                'connection': postgresql.url, 'dispatcher': 'messaging',
                'pool_size': 10, 'state_path': place / 'state'})
        self.programs = [commands.Running(
            place / f'{kind[0]}.log', *kind, '--tasks',
            'tests.benchmarks.commands:Commands', '--config-file', config)
            for kind in (('scheduler',), ('worker', '--partition', 'bench'))]
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(config)])
        self.client = tasks.Client(conf, workflows=ours.WORKFLOWS)
        assert self.client.wait(
            self.client.submit('one'), 60).status == 'succeeded'

    def wait_until_done(self):
        """Wait until no task of the group is under way."""
        engine = database.make_engine(self.url)
        with engine.connect() as connection:
            def left():
                found = connection.scalar(sa.select(sa.exists().where(
                    tables.task.c.space == self.group,
                    tables.task.c.status.in_([
                        tasks.Status.WAITING, tasks.Status.RUNNING]))))
                connection.rollback()
                return found
            waiting.wait_until(lambda: not left(), 600, interval=0.01)
        engine.dispose()

    def close(self):
        self.client.close()
        for program in self.programs:
            program.kill()


@pytest.fixture
def service(tmp_path, zookeeper, rabbitmq, postgresql):
    made = Service(tmp_path, zookeeper, rabbitmq, postgresql)
    yield made
    made.close()


def our_speeds(service, number):
    speeds = []
    for _ in range(number):
        began = time.time()
        for _ in range(0, TASKS, IN_A_BATCH):
            service.client.submit_many([{'type': 'three'}] * IN_A_BATCH)
        service.wait_until_done()
        speeds.append(TASKS / (time.time() - began))
    return speeds


def celery_worker(url, name, answers):
    app = test_claimed.celery_app(url, name)
    count = 0

    @app.task(name='step')
    def step(last):
        nonlocal count
        count += last
        if last and not count % TASKS:
            answers.put(time.time())

    app.worker_main(['worker', '--pool', 'threads', '-c', '10',
                     '--without-gossip', '--without-mingle',
                     '--loglevel', 'ERROR'])


def celery_speeds(url, number):
    import celery

    name = f'celery-{uuid.uuid4().hex[:8]}'
    answers = measuring.SPAWN.SimpleQueue()
    worker = measuring.SPAWN.Process(
        target=celery_worker, args=(url, name, answers), daemon=True)
    worker.start()
    app = test_claimed.celery_app(url, name)
    chain = celery.chain(*(app.signature(
        'step', (step == STEPS - 1,), immutable=True)
        for step in range(STEPS)))
    speeds = []
    with app.connection_for_write() as connection:
        for _ in range(number):
            began = time.time()
            with app.amqp.producer_pool.acquire(block=True) as producer:
                for _ in range(TASKS):
                    chain.apply_async(producer=producer)
            speeds.append(TASKS / (answers.get() - began))
        connection.default_channel.queue_delete(name)
    worker.terminate()
    worker.join()
    return speeds


def test_tasks_of_three_steps(service, rabbitmq):
    number = measuring.rounds()
    speeds = {
        'distperiodic': our_speeds(service, number),
        'Celery chain, acks_late': celery_speeds(
            rabbitmq.url, min(number, 3)),
    }
    with measuring.table(
            f'{TASKS:,} tasks of {STEPS} steps that do nothing, tasks/s',
            'what', 'median', 'least', 'most', 'ours to it', file=__file__,
            versions=('celery',)) as row:
        for name, values in speeds.items():
            median = statistics.median(values)
            row(name, f'{median:,.0f}', f'{min(values):,.0f}',
                f'{max(values):,.0f}', measuring.times(
                    statistics.median(speeds['distperiodic']) / median))


def bare_inserts(url, number, batch):
    """Tasks/s of nothing but INSERTs of the same two rows."""
    engine = database.make_engine(url)
    speeds = []
    with engine.connect() as connection:
        for _ in range(number):
            began = time.time()
            for _ in range(0, ALONE if batch == 1 else TASKS, batch):
                ids = [uuid.uuid4().hex for _ in range(batch)]
                connection.execute(tables.task.insert(), [{
                    'id': id_, 'space': 'bare', 'type': 'three',
                    'status': tasks.Status.WAITING, 'cursor': 0, 'step': 0,
                    'back': 0, 'move': 0, 'priority': 0, 'created': 0,
                    'definition': '[]', 'parameters': '{}', 'records': '{}'}
                    for id_ in ids])
                connection.execute(tables.ready.insert(), [{
                    'task': id_, 'job': 1, 'delayed': 0, 'precedence': 0,
                    'due': 0, 'after': 0, 'move': 0, 'starts': 1}
                    for id_ in ids])
                connection.commit()
            speeds.append((ALONE if batch == 1 else TASKS)
                          / (time.time() - began))
    engine.dispose()
    return speeds


def test_submissions(tmp_path, postgresql):
    number = measuring.rounds()
    schema.sync(postgresql.url)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(programs.write_config(
        tmp_path / 'service.conf', distperiodic={
            'group': f'bench-{uuid.uuid4().hex[:8]}',
            'connection': postgresql.url}))])
    client = tasks.Client(conf, workflows=ours.WORKFLOWS)
    client.submit('three')

    def batches():
        for _ in range(0, TASKS, IN_A_BATCH):
            client.submit_many([{'type': 'three'}] * IN_A_BATCH)

    def one_by_one():
        for _ in range(ALONE):
            client.submit('three')
    speeds = {}
    for name, act, size, batch in (
            (f'batches of {IN_A_BATCH}', batches, TASKS, IN_A_BATCH),
            ('one by one', one_by_one, ALONE, 1)):
        speeds[name] = ([size / measuring.seconds_of(act)
                         for _ in range(number)],
                        bare_inserts(postgresql.url, number, batch))
    client.close()
    with measuring.table(
            'submissions from one process, tasks/s', 'how', 'submit',
            'bare INSERTs', 'ours to it', file=__file__) as row:
        for name, (mine, bare) in speeds.items():
            mine, bare = map(statistics.median, (mine, bare))
            row(name, f'{mine:,.0f}', f'{bare:,.0f}',
                measuring.times(mine / bare))


def test_seconds_from_submission_to_handler(service):
    path = service.place / 'entered'
    path.touch()
    began = {}
    for n in range(LATENCIES):
        began[n] = time.time()
        service.client.submit('bench.tell', {'path': str(path), 'n': n})
        waiting.wait_until(
            lambda n=n: len(path.read_text().splitlines()) > n, 30,
            interval=0.002)
    taken = sorted(
        1000 * (float(at) - began[int(n)]) for n, at in (
            line.split() for line in path.read_text().splitlines()))
    with measuring.table(
            'from submit() to the handler, ms', 'p50', 'p99',
            file=__file__) as row:
        row(f'{statistics.median(taken):.1f}',
            f'{taken[len(taken) * 99 // 100]:.1f}')


def test_an_ordered_queue(service):
    speeds = []
    for _ in range(measuring.rounds(3)):
        service.client.submit_many(
            [{'type': 'one', 'queue': 'q'}] * QUEUED)
        began = time.time()
        service.wait_until_done()
        speeds.append(QUEUED / (time.time() - began))
    with measuring.table(
            f'{QUEUED:,} tasks of one ordered queue, tasks/s', 'median',
            'least', 'most', file=__file__) as row:
        row(f'{statistics.median(speeds):,.0f}', f'{min(speeds):,.0f}',
            f'{max(speeds):,.0f}')
