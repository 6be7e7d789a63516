# SPDX-License-Identifier: Apache-2.0
"""Tasks through RabbitMQ and PostgreSQL, compared with Celery and TaskFlow.

distperiodic writes each task, each claim of a step and each end to PostgreSQL,
with one scheduler and one worker process. A Celery chain with acks_late keeps
no record of a task. TaskFlow's worker-based engine runs fewer flows than the
others run tasks, because it is slow, and its flows are not persisted here. The
measurement lasts from the first submission until the last end is known.

    pytest -s -o timeout=0 tests/benchmarks/test_tasks.py
"""

import asyncio
import contextlib
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
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim_request import NewLease
from distperiodic.operator import task_queries
from distperiodic.operator.group_reader import GroupStore
from tests import programs
from tests import waiting
from tests.benchmarks import commands as ours
from tests.benchmarks import flows
from tests.benchmarks import measuring
from tests.benchmarks import test_claimed
from tests.functional import commands

TASKS = 5_000
STEPS = 3
IN_A_BATCH = 500
ALONE = 1_000
LATENCIES = 200
QUEUED = 1_000
MILLION = 1_000_000


class Service:
    """Scheduler processes, worker processes, and a client in this process.

    :param number: number of schedulers, and of workers.
    :param options: further options of the section [distperiodic].
    """

    def __init__(self, place, zookeeper, rabbitmq, postgresql, number=1,
                 **options):
        schema.sync(postgresql.url)
        self.url = postgresql.url
        self.place = place
        self.group = f'bench-{uuid.uuid4().hex[:8]}'
        config = programs.write_config(
            place / 'service.conf', DEFAULT={'transport_url': rabbitmq.url},
            distperiodic={
                'group': self.group, 'backend_url': zookeeper.url,
                'connection': postgresql.url, 'dispatcher': 'messaging',
                'pool_size': 10, 'state_path': place / 'state', **options})
        self.programs = [commands.Running(
            place / f'{uuid.uuid4().hex}.log', *kind, '--tasks',
            'tests.benchmarks.commands:Commands', '--config-file', config)
            for kind in number * [
                ('scheduler',), ('worker', '--partition', 'bench')]]
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(config)])
        self.client = tasks.Client(conf, workflows=ours.WORKFLOWS)
        assert self.client.wait(
            self.client.submit('one'), 60).status == 'succeeded'

    def wait_until_done(self):
        """Wait until no task of the group is waiting or running."""
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


@pytest.fixture
def two_of_each(tmp_path, zookeeper, rabbitmq, postgresql):
    # The sweep interval is long, so the figures show if a submission fails to
    # wake a scheduler.
    made = Service(tmp_path, zookeeper, rabbitmq, postgresql, 2,
                   session_timeout=40, lease=80, sweep_interval=20)
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
        'TaskFlow, worker-based engine': flows.speeds(
            rabbitmq.url, min(number, 3)),
    }
    with measuring.table(
            f'{TASKS:,} tasks of {STEPS} steps that do nothing, tasks/s; '
            f'TaskFlow: {flows.FLOWS} flows, not persisted',
            'what', 'median', 'least', 'most', 'ours to it', file=__file__,
            versions=('celery', 'taskflow')) as row:
        for name, values in speeds.items():
            median = statistics.median(values)
            row(name, f'{median:,.0f}', f'{min(values):,.0f}',
                f'{max(values):,.0f}', measuring.times(
                    statistics.median(speeds['distperiodic']) / median))


def bare_inserts(url, number, batch):
    """Return the tasks per second of bare INSERTs of the same two rows."""
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


def entered(path, began):
    """Return the milliseconds from each submission to its handler, sorted."""
    return sorted(
        1000 * (float(at) - began[int(n)]) for n, at in (
            line.split() for line in path.read_text().splitlines()))


def one_at_a_time(path, submit):
    """Return the milliseconds from each submission to its handler. Each task
    is submitted after the previous one has run.
    """
    path.touch()
    began = {}
    for n in range(LATENCIES):
        began[n] = time.time()
        submit(n)
        waiting.wait_until(
            lambda n=n: len(path.read_text().splitlines()) > n, 30,
            interval=0.002)
    return entered(path, began)


def celery_teller(url, name):
    app = test_claimed.celery_app(url, name)

    @app.task(name='tell')
    def tell(path, n):
        ours.tell(path, n)

    app.worker_main(['worker', '--pool', 'threads', '-c', '10',
                     '--without-gossip', '--without-mingle',
                     '--loglevel', 'ERROR'])


def celery_latencies(url, path):
    name = f'celery-{uuid.uuid4().hex[:8]}'
    worker = measuring.SPAWN.Process(
        target=celery_teller, args=(url, name), daemon=True)
    worker.start()
    app = test_claimed.celery_app(url, name)
    warm = path.with_suffix('.warm')
    warm.touch()
    app.send_task('tell', (str(warm), 0))
    waiting.wait_until(lambda: warm.read_text(), 60)
    found = one_at_a_time(
        path, lambda n: app.send_task('tell', (str(path), n)))
    worker.terminate()
    worker.join()
    return found


def procrastinate_app(url, connector):
    import procrastinate

    app = procrastinate.App(connector=connector(conninfo=url))

    @app.task(name='tell')
    def tell(path, n):
        ours.tell(path, n)
    return app


async def _procrastinate(url, answers):
    import procrastinate

    app = procrastinate_app(url, procrastinate.PsycopgConnector)
    async with app.open_async():
        with contextlib.suppress(Exception):
            # The schema may exist already, because another benchmark has
            # created it.
            await app.schema_manager.apply_schema_async()
        answers.put(None)
        await app.run_worker_async(
            concurrency=10, wait=True, install_signal_handlers=False)


def procrastinate_teller(url, answers):
    asyncio.run(_procrastinate(url, answers))


def procrastinate_latencies(url, path):
    import procrastinate

    answers = measuring.SPAWN.SimpleQueue()
    worker = measuring.SPAWN.Process(
        target=procrastinate_teller, args=(url, answers), daemon=True)
    worker.start()
    answers.get()
    app = procrastinate_app(url, procrastinate.SyncPsycopgConnector)
    with app.open():
        warm = path.with_suffix('.warm')
        warm.touch()
        app.tasks['tell'].defer(path=str(warm), n=0)
        waiting.wait_until(lambda: warm.read_text(), 60)
        found = one_at_a_time(
            path, lambda n: app.tasks['tell'].defer(path=str(path), n=n))
    worker.terminate()
    worker.join()
    return found


def test_seconds_from_submission_to_handler(
        service, rabbitmq, postgresql, tmp_path):
    paths = iter(tmp_path / f'entered-{n}' for n in range(3))
    path = next(paths)
    found = {
        'distperiodic': one_at_a_time(path, lambda n: service.client.submit(
            'bench.tell', {'path': str(path), 'n': n})),
        'Celery, acks_late': celery_latencies(rabbitmq.url, next(paths)),
        'procrastinate': procrastinate_latencies(
            postgresql.url, next(paths)),
    }
    with measuring.table(
            'from submission to handler, one task at a time, ms', 'what',
            'p50', 'p99', file=__file__,
            versions=('celery', 'procrastinate')) as row:
        for name, taken in found.items():
            row(name, f'{statistics.median(taken):.1f}',
                f'{taken[len(taken) * 99 // 100]:.1f}')


def test_seconds_from_submission_into_a_queue_to_handler(
        two_of_each, tmp_path):
    """The two schedulers, the two workers and the submitter are separate
    processes. For each queue, one of the schedulers serves it. The queue is
    empty at each submission.
    """
    client = two_of_each.client
    waiting.wait_until(lambda: sum(
        'view: ' in program.said() and 'members=2 ' in program.said()
        for program in two_of_each.programs) >= 2, 60)
    found = {}
    for name, queue in (('no queue', lambda n: None),
                        ('one of 20 queues', lambda n: f'q-{n % 20}')):
        path = tmp_path / f'entered, {name}'
        found[name] = one_at_a_time(
            path, lambda n, path=path, queue=queue: client.submit(
                'bench.tell', {'path': str(path), 'n': n}, queue=queue(n)))
    with measuring.table(
            'two schedulers, two workers: from submission to handler, one '
            'task at a time, ms', 'into', 'p50', 'p99', 'most',
            file=__file__) as row:
        for name, taken in found.items():
            row(name, f'{statistics.median(taken):.1f}',
                f'{taken[len(taken) * 99 // 100]:.1f}', f'{taken[-1]:.1f}')


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


def fill(connection, client, number, group, count, queue=None):
    """Insert *count* waiting tasks, as if they had been submitted."""
    first = client.submit('one', queue=queue)
    connection.execute(sa.text(
        'INSERT INTO distperiodic_task (id, space, type, status, cursor, '
        'step, back, move, priority, created, definition, parameters, '
        "records, queue) SELECT :prefix || lpad(i::text, 9, '0'), space, "
        "'three', 1, 0, 0, 0, 0, 0, created + i, definition, parameters, "
        'records, queue '
        'FROM distperiodic_task, generate_series(1, :count) i '
        'WHERE id = :first'),
        {'prefix': group, 'count': count, 'first': first})
    # In a queue only the first task is ready.
    if queue is None:
        connection.execute(sa.text(
            'INSERT INTO distperiodic_ready SELECT id, :number, 0, 0, '
            'created, 0, 0, 1 FROM distperiodic_task WHERE id LIKE :like'),
            {'number': number, 'like': f'{group}%'})
    connection.commit()
    # Otherwise the server would do this by itself within a minute.
    connection.execute(sa.text('ANALYZE distperiodic_task'))
    connection.execute(sa.text('ANALYZE distperiodic_ready'))
    connection.commit()


def costs(postgresql, place, count, queue=None):
    """Return the median seconds of each operation with *count* waiting tasks.

    :param queue: Queue of the tasks.
    """
    group = f'w{uuid.uuid4().hex[:8]}'
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(programs.write_config(
        place / f'{group}.conf', distperiodic={
            'group': group, 'connection': postgresql.url}))])
    client = tasks.Client(conf, workflows=ours.WORKFLOWS)
    store = SqlClaimStore(postgresql.url, namespace=group)
    client.submit('one')
    engine = database.make_engine(postgresql.url, bounded=False)
    with engine.connect() as connection:
        number = connection.scalar(sa.select(tables.job.c.id).where(
            tables.job.c.space == group))
        fill(connection, client, number, group, count, queue)
    engine.dispose()
    middle = f'{group}{count // 2:09d}'

    def take(ids):
        return store.steps.take(
            [{'task:bench.nothing': 1}], ids,
            NewLease(uuid.uuid4().hex, 'h', 60.0))
    read = GroupStore(postgresql.url, group)
    cases = {
        'list --queue': lambda: client.list(queue=queue),
        'list --queue, after the middle': lambda: client.list(
            queue=queue, after=middle),
        'submit into the queue': lambda: client.submit('one', queue=queue),
        'submit into another': lambda: client.submit(
            'one', queue=uuid.uuid4().hex),
        'cancel the head: the next one': lambda: client.cancel(
            client.queues(queue)[0].head),
        'queue list': client.queues,
        'task show, the middle': lambda: task_queries.look(read, middle),
        'doctor: needs': lambda: task_queries.needs(read),
        'doctor: stuck': lambda: task_queries.stuck(read, 10),
        'doctor: halted queues': lambda: task_queries.halted(read),
    } if queue else {
        'list': client.list,
        'list --status': lambda: client.list(status='waiting'),
        'list --type': lambda: client.list(type='three'),
        'list --type, two of them': lambda: client.list(type='one'),
        'list after the middle': lambda: client.list(after=middle),
        'submit': lambda: client.submit('one'),
        'submit, key': lambda: client.submit('one', key=uuid.uuid4().hex),
        'submit, queue': lambda: client.submit('one', queue=uuid.uuid4().hex),
        'next step, any': lambda: take(None),
        'submit, and its step': lambda: take([client.submit('one')]),
        'wake': store.steps.wake,
        'doctor: needs': lambda: task_queries.needs(read),
    }
    found = {}
    for name, act in cases.items():
        if name == 'doctor: halted queues':
            client.halt_queue(queue)
        act()
        found[name] = statistics.median(
            measuring.seconds_of(act) for _ in range(15))
    read.close()
    store.forget()
    store.close()
    client.close()
    return found


@pytest.mark.parametrize(('queue', 'where'), [
    (None, 'that wait'), ('q', 'that wait in one ordered queue')])
def test_a_million_tasks_that_wait(tmp_path, postgresql, queue, where):
    schema.sync(postgresql.url)
    few, many = (costs(postgresql, tmp_path, count, queue)
                 for count in (1_000, MILLION))
    with measuring.table(
            f'milliseconds beside 1,000 and 1,000,000 tasks {where}',
            'what', '1,000', '1,000,000', 'to the other',
            file=__file__) as row:
        for name, seconds in few.items():
            row(name, measuring.ms(seconds), measuring.ms(many[name]),
                measuring.times(many[name] / seconds))
