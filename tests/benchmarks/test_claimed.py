# SPDX-License-Identifier: Apache-2.0
"""Runs per second of empty handlers, with claims in a database and messages
over a broker, compared with a queue in a database and with a queue over a
broker.

distperiodic claims each object in PostgreSQL, sends it through RabbitMQ, and
records its start and its end, with one scheduler and one worker process.
procrastinate keeps its jobs in the same PostgreSQL. Celery with acks_late
sends through the same RabbitMQ and keeps no claims. The measurement of
distperiodic lasts from the tick until the scheduler knows that the last object
is done. The measurements of the others begin just before the first job is
sent, and end when the last job has run.

    pytest -s -o timeout=0 tests/benchmarks/test_claimed.py
"""

import asyncio
import pathlib
import statistics
import time
import uuid

from distperiodic.adapters.sql import schema
from tests.benchmarks import measuring
from tests.benchmarks import test_dispatch

OBJECTS = test_dispatch.OBJECTS
#: Number of jobs that procrastinate runs in a few seconds.
FEWER = 3_000
MILLION = 1_000_000
#: Seconds between the ticks of a million objects. The objects are listed
#: before the first tick.
LONG = 120
THREADS = test_dispatch.THREADS


def procrastinate_app(url):
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(
        conninfo=url))
    ran = []

    @app.task(name='poll')
    async def poll(name):
        ran.append(name)
    return app, ran


async def _procrastinate(url, answers):
    app, ran = procrastinate_app(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        answers.put(None)
        worker = asyncio.create_task(app.run_worker_async(
            concurrency=THREADS, wait=True, fetch_job_polling_interval=0.1,
            install_signal_handlers=False, delete_jobs='always'))
        done = 0
        while not worker.done():
            await asyncio.sleep(0.005)
            if len(ran) >= done + FEWER:
                done += FEWER
                answers.put(time.time())


def procrastinate_worker(url, answers):
    asyncio.run(_procrastinate(url, answers))


async def _defer(url, rounds, answers):
    app, _ = procrastinate_app(url)
    speeds = []
    async with app.open_async():
        for _ in range(rounds):
            began = time.time()
            for start in range(0, FEWER, 500):
                await app.tasks['poll'].batch_defer_async(*(
                    {'name': str(uuid.UUID(int=n))}
                    for n in range(start, start + 500)))
            speeds.append(FEWER / (await asyncio.to_thread(answers.get)
                                   - began))
    return speeds


def procrastinate_speeds(url, rounds):
    answers = measuring.SPAWN.SimpleQueue()
    worker = measuring.SPAWN.Process(
        target=procrastinate_worker, args=(url, answers), daemon=True)
    worker.start()
    answers.get()
    speeds = asyncio.run(_defer(url, rounds, answers))
    worker.terminate()
    worker.join()
    return speeds


def celery_app(url, name, prefetch=100):
    import celery

    app = celery.Celery(broker=url.replace('rabbit://', 'amqp://'))
    app.conf.update(
        task_default_queue=name, task_acks_late=True,
        task_ignore_result=True, worker_prefetch_multiplier=prefetch,
        broker_connection_retry_on_startup=True)
    return app


def celery_worker(url, name, answers):
    app = celery_app(url, name)
    count = 0

    @app.task(name='poll')
    def poll(key):
        nonlocal count
        count += 1
        if not count % OBJECTS:
            answers.put(time.time())

    app.worker_main(['worker', '--pool', 'threads', '-c', str(THREADS),
                     '--without-gossip', '--without-mingle',
                     '--loglevel', 'ERROR'])


def celery_speeds(url, rounds):
    name = f'celery-{uuid.uuid4().hex[:8]}'
    answers = measuring.SPAWN.SimpleQueue()
    worker = measuring.SPAWN.Process(
        target=celery_worker, args=(url, name, answers), daemon=True)
    worker.start()
    app = celery_app(url, name)
    speeds = []
    with app.connection_for_write() as connection:
        for _ in range(rounds):
            began = time.time()
            with app.amqp.producer_pool.acquire(block=True) as producer:
                for n in range(OBJECTS):
                    app.send_task('poll', (str(uuid.UUID(int=n)),),
                                  producer=producer)
            speeds.append(OBJECTS / (answers.get() - began))
        connection.default_channel.queue_delete(name)
    worker.terminate()
    worker.join()
    return speeds


def test_claimed_objects_per_second(zookeeper, rabbitmq, postgresql):
    number = measuring.rounds()
    schema.sync(postgresql.url)
    seconds, (scheduler, worker) = test_dispatch.our_rounds(
        zookeeper.url, rabbitmq.url, number, connection=postgresql.url)
    speeds = {
        'distperiodic, tick to known done': [
            OBJECTS / known for _, known in seconds[1:]],
        'distperiodic, its first tick': [OBJECTS / seconds[0][1]],
        'procrastinate, batches of 500': procrastinate_speeds(
            postgresql.url, min(number, 3)),
        'Celery, acks_late, threads': celery_speeds(
            rabbitmq.url, min(number, 3)),
    }
    ours = statistics.median(speeds['distperiodic, tick to known done'])
    with measuring.table(
            f'{OBJECTS:,} objects with durable claims, start and end, '
            'objects/s', 'what', 'median', 'least', 'most', 'ours to it',
            file=__file__, versions=('procrastinate', 'celery')) as row:
        for name, values in speeds.items():
            median = statistics.median(values)
            row(name, f'{median:,.0f}', f'{min(values):,.0f}',
                f'{max(values):,.0f}', measuring.times(ours / median))
    print('CPU of ours per object: scheduler '
          f'{scheduler / OBJECTS * 1e6:.1f} us, worker '
          f'{worker / OBJECTS * 1e6:.1f} us', flush=True)


def test_a_million_objects_at_one_tick(zookeeper, rabbitmq, postgresql):
    """Measure the first tick, and separately the ticks after it: at the first
    tick the rows are still in the order of their insertion.

    For results that apply to a disk, use a server with fsync.
    DISTPERIODIC_TEST_POSTGRESQL_URL may name such a server.
    """
    schema.sync(postgresql.url)
    memory = []

    def look(pids):
        for pid in pids:
            [peak] = [line.split()[1] for line in pathlib.Path(
                f'/proc/{pid}/status').read_text().splitlines()
                if line.startswith('VmHWM')]
            memory.append(int(peak) / 1024)
    with measuring.table(
            'objects due at one tick, with durable claims', 'objects',
            'objects/s', 'first tick', 'MiB scheduler', 'MiB worker',
            file=__file__) as row:
        for objects, spacing in (OBJECTS, test_dispatch.SPACING), (
                MILLION, LONG):
            memory.clear()
            # Wait for the first quarter of a period, so that no tick comes due
            # while the objects are being listed.
            while spacing == LONG and time.time() % LONG > LONG / 4:
                time.sleep(1.0)
            seconds, _ = test_dispatch.our_rounds(
                zookeeper.url, rabbitmq.url, 3 if objects == MILLION else 5,
                objects=objects, spacing=spacing, told=look,
                connection=postgresql.url)
            first, *others = (objects / known for _, known in seconds)
            row(f'{objects:,}', f'{statistics.median(others):,.0f}',
                f'{first:,.0f}', *(f'{one:,.0f}' for one in memory))
