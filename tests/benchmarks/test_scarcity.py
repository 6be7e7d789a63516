# SPDX-License-Identifier: Apache-2.0
"""How well the slots of the workers are used, and in which order, if there is
more work than slots.

First, 80 tasks of 1 s each are submitted to two workers of 10 slots, through
ZooKeeper, RabbitMQ and PostgreSQL. The ideal is 4 s, whatever the number of
schedulers. Then a periodic job has 2.4 times too much work for one worker of
10 slots, for a minute.

Celery gets the same work through the same RabbitMQ, with acks_late and a
prefetch multiplier of 1. Of db-scheduler only its rules are simulated; see
:mod:`tests.benchmarks.polled`.

    pytest -s -o timeout=0 tests/benchmarks/test_scarcity.py
"""

import collections
import os
import time
import uuid

import pytest
from oslo_config import cfg

from distperiodic import tasks
from distperiodic.adapters.sql import schema
from tests import programs
from tests import waiting
from tests.benchmarks import commands as ours
from tests.benchmarks import measuring
from tests.benchmarks import polled
from tests.benchmarks import test_claimed
from tests.functional import commands
from tests.functional.cluster import Cluster

TASKS = 80
SECONDS = 1.0
SLOTS = 10
WORKERS = 2
IDEAL = TASKS * SECONDS / (WORKERS * SLOTS)

#: A run of each object lasts half a period.
OBJECTS, PERIOD, TAKES = 48, 4.0, 2.0
#: Seconds of the overload.
LASTS = 60.0


def entered(record):
    """Return the instants and numbers of the runs in the file, in order."""
    if not record.exists():
        return []
    return sorted((float(at), n) for n, at in (
        line.split() for line in record.read_text().splitlines()))


@pytest.fixture
def measured(tmp_path, zookeeper, rabbitmq, postgresql):
    """Return a function from a number of schedulers to the instants at which
    the tasks began, in order, and their numbers.
    """
    schema.sync(postgresql.url)
    running = []

    def measure(schedulers):
        place = tmp_path / str(schedulers)
        place.mkdir()
        config = programs.write_config(
            place / 'service.conf', DEFAULT={'transport_url': rabbitmq.url},
            distperiodic={
                'group': f'scarcity-{tmp_path.name}-{schedulers}',
                'backend_url': zookeeper.url, 'connection': postgresql.url,
                'dispatcher': 'messaging', 'pool_size': SLOTS,
                'state_path': place / 'state'})
        for kind in schedulers * [('scheduler',)] + WORKERS * [
                ('worker', '--partition', 'bench')]:
            running.append(commands.Running(
                place / f'{len(running)}.log', *kind, '--tasks',
                'tests.benchmarks.commands:Commands', '--config-file',
                config))
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(config)])
        client = tasks.Client(conf)
        record = place / 'record'

        def submit(n):
            return client.submit('bench.tell', {
                'path': str(record), 'n': n, 'takes': SECONDS})
        for id_ in [submit(-n) for n in range(1, 1 + WORKERS * SLOTS)]:
            assert client.wait(id_, 60).status == 'succeeded'
        for n in range(TASKS):
            submit(n)
        waiting.wait_until(
            lambda: len(entered(record)) == TASKS + WORKERS * SLOTS, 120)
        client.close()
        for program in running:
            program.kill()
        running.clear()
        return [(at, int(n)) for at, n in entered(record) if int(n) >= 0]
    yield measure
    for program in running:
        program.kill()


def celery_teller(url, name, number):
    app = test_claimed.celery_app(url, name, prefetch=1)

    @app.task(name='tell')
    def tell(path, n, takes):
        ours.tell(path, os.getpid() if n is None else n)
        time.sleep(takes)

    app.worker_main(['worker', '--pool', 'threads', '-c', str(SLOTS),
                     '--without-gossip', '--without-mingle',
                     '--loglevel', 'ERROR', '-n', f'{number}@%h'])


@pytest.fixture
def celery_tells(tmp_path, rabbitmq):
    """Return a function that starts a number of Celery workers, and returns
    the file of their record and the function that sends them a run.
    """
    name = f'celery-{uuid.uuid4().hex[:8]}'
    record = tmp_path / 'celery'
    app = test_claimed.celery_app(rabbitmq.url, name, prefetch=1)
    workers = []

    def start(number):
        for n in range(number):
            workers.append(measuring.SPAWN.Process(
                target=celery_teller, args=(rabbitmq.url, name, n),
                daemon=True))
            workers[-1].start()
        warm = tmp_path / 'warm'

        def all_run():
            for _ in range(number * SLOTS):
                app.send_task('tell', (str(warm), None, SECONDS))
            time.sleep(3 * SECONDS)
            return len({pid for _, pid in entered(warm)}) == number
        waiting.wait_until(all_run, 60)
        return record, lambda n, takes: app.send_task(
            'tell', (str(record), n, takes))
    yield start
    for worker in workers:
        worker.terminate()
        worker.join()
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(name)


def passed(begun):
    """Return how many tasks began after a task that was submitted so much
    later that it could not have had a slot at the same time.
    """
    return sum(n + WORKERS * SLOTS < max(earlier for _, earlier in begun[:at])
               for at, (_, n) in enumerate(begun) if at)


def test_a_burst_of_tasks(measured, celery_tells):
    found = []
    for schedulers in 1, 2, 3:
        found.append((f'distperiodic, schedulers: {schedulers}',
                      measured(schedulers)))
    record, send = celery_tells(WORKERS)
    for n in range(TASKS):
        send(n, SECONDS)
    waiting.wait_until(lambda: len(entered(record)) == TASKS, 120)
    found.append(('Celery, acks_late, prefetch 1', [
        (at, int(n)) for at, n in entered(record)]))
    for rule in polled.RULES:
        for apart in 0.0, polled.POLL / WORKERS:
            world = polled.World(
                rule, WORKERS, SLOTS, TASKS, lambda key: SECONDS, apart=apart)
            found.append((
                f'rule of db-scheduler: {rule}, polls {apart:.0f} s apart',
                [(run.start, run.key) for run in world.live(120)]))
    with measuring.table(
            f'{TASKS} tasks of {SECONDS:.0f} s, {WORKERS} workers of {SLOTS} '
            f'slots; the ideal is {IDEAL:.1f} s', 'what', 'seconds',
            'to the ideal', 'passed by a later one', file=__file__,
            versions=('celery',)) as row:
        for name, begun in found:
            assert sorted(n for _, n in begun) == [*range(TASKS)]
            took = begun[-1][0] - begun[0][0] + SECONDS
            row(name, f'{took:.2f}', f'{took / IDEAL:.2f}', passed(begun))


def our_overload(place, zookeeper, rabbitmq, postgresql):
    """Return for each run its start, object and tick, in order."""
    schema.sync(postgresql.url)
    cluster = Cluster(
        place, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        objects=OBJECTS, spacing=PERIOD, takes=TAKES, pool_size=SLOTS)
    try:
        for kind in 'scheduler', 'worker':
            cluster.start(kind)
        waiting.wait_until(cluster.runs, 60)
        waiting.wait_until(
            lambda: time.time() > cluster.runs()[0].at + LASTS, 2 * LASTS)
        return sorted((run.at, run.object, run.tick)
                      for run in cluster.runs())
    finally:
        cluster.close()


def celery_overload(celery_tells):
    """Return the same as our_overload()."""
    record, send = celery_tells(1)
    begin = time.time()
    for tick in range(int(LASTS / PERIOD) + 1):
        due = begin + tick * PERIOD
        waiting.wait_until(lambda due=due: time.time() >= due, 2 * PERIOD,
                           interval=0.01)
        for n in range(OBJECTS):
            send(f'{n}/{due}', TAKES)
    return [(at, *n.split('/')) for at, n in entered(record)]


def test_a_periodic_job_with_too_much_work(
        tmp_path, zookeeper, rabbitmq, postgresql, celery_tells):
    found = {
        'distperiodic': our_overload(
            tmp_path, zookeeper, rabbitmq, postgresql),
        'Celery, acks_late, prefetch 1': celery_overload(celery_tells)}
    for rule in polled.RULES:
        found[f'rule of db-scheduler: {rule}'] = [
            (run.start, run.key, run.due) for run in polled.World(
                rule, 1, SLOTS, OBJECTS, lambda key: TAKES,
                PERIOD).live(LASTS)]
    with measuring.table(
            f'{OBJECTS} objects every {PERIOD:.0f} s, runs of {TAKES:.0f} s, '
            f'{SLOTS} slots, for {LASTS:.0f} s', 'what', 'runs/s',
            'to the ideal', 'runs of an object', 'late at the end',
            file=__file__, versions=('celery',)) as row:
        for name, begun in found.items():
            begun = [run for run in begun if run[0] <= begun[0][0] + LASTS]
            runs = collections.Counter(key for _, key, _ in begun)
            rate = len(begun) / LASTS
            at, _, due = begun[-1]
            assert len(runs) == OBJECTS
            row(name, f'{rate:.2f}', f'{rate / (SLOTS / TAKES):.2f}',
                f'{min(runs.values())}-{max(runs.values())}',
                f'{at - float(due):.1f} s')
