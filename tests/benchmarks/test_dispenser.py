# SPDX-License-Identifier: Apache-2.0
"""Assignments of the task dispenser, in batches of ten.

Four processes repeatedly pull ten tasks and complete them. Then each process
assigns ten tasks to each of many workers, and completes none. Three programs
alternate in each round: the dispenser, the bare SQL statements of the
dispenser on PostgreSQL, and the classic dispenser on Redis. A second table
compares a pool of a thousand tasks with a pool of a million tasks. There, only
one process makes calls.
"""

import time
import uuid

import psycopg
import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.engine import make_engine
from tests import dispensed
from tests.benchmarks import measuring
from tests.benchmarks.classic import ClassicDispenser

BATCH = 10
PROCESSES = 4
SECONDS = 3.0
#: Number of workers to which each process assigns tasks.
WORKERS = 500
FEW, MANY = 1_000, 1_000_000

_ASSIGN = (
    'UPDATE distperiodic_pool_task SET bucket = %(me)s '
    'WHERE pool = %(pool)s AND task = ANY(ARRAY('
    'SELECT task FROM distperiodic_pool_task WHERE bucket = %(free)s '
    'ORDER BY place, task LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) '
    'AND bucket + 0 = %(free)s RETURNING task, place')
_DONE = (
    'UPDATE distperiodic_pool_task SET bucket = %(done)s, place = 1e15 '
    'WHERE pool = %(pool)s AND task = ANY(%(tasks)s) '
    'AND bucket + 0 = %(me)s')


class Bare:
    """The two SQL statements. Each statement is a transaction of its own, so
    it takes one round trip.

    No bucket expires.
    """

    def __init__(self, url, pool):
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute('SET enable_seqscan = off')
        [number] = self._connection.execute(
            'SELECT id FROM distperiodic_pool WHERE name = %s', [pool]
        ).fetchone()
        self._of = {'pool': number, 'free': tables.free_of(number),
                    'done': tables.done_of(number)}

    def assign_tasks(self, limit, worker):
        rows = self._connection.execute(_ASSIGN, self._of | {
            'me': hash(worker) % 2**60 + 1, 'limit': limit}).fetchall()
        return [row[0] for row in rows]

    def tasks_done(self, worker, tasks):
        self._connection.execute(_DONE, self._of | {
            'me': hash(worker) % 2**60 + 1, 'tasks': tasks})
        return True

    def close(self):
        self._connection.close()


KINDS = {'distperiodic': dispensed.dispenser, 'bare statements': Bare,
         'classic on Redis': ClassicDispenser}


def pull(kind, url, pool, worker, together, rates):
    """Report two rates of one process, in tasks per second: of tasks that it
    assigns and completes, and of tasks that it only assigns.
    """
    one = KINDS[kind](url, pool)
    others = [f'{worker}-{number}' for number in range(WORKERS)]
    for each in [worker, *others]:
        one.tasks_done(each, one.assign_tasks(1, each))
    together.wait()
    number, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        tasks = one.assign_tasks(BATCH, worker)
        assert one.tasks_done(worker, tasks)
        number += len(tasks)
    both = number / (time.perf_counter() - began)
    together.wait()
    began = time.perf_counter()
    number = sum(len(one.assign_tasks(BATCH, other)) for other in others)
    rates.put((both, number / (time.perf_counter() - began)))
    one.close()


def rates(kind, url, pool):
    """Return the rates of :func:`pull`, each summed over all processes."""
    together = measuring.SPAWN.Barrier(PROCESSES)
    found = measuring.SPAWN.Queue()
    processes = [measuring.SPAWN.Process(target=pull, args=(
        kind, url, pool, f'worker-{number}', together, found))
        for number in range(PROCESSES)]
    for process in processes:
        process.start()
    each = [found.get() for _ in processes]
    for process in processes:
        process.join()
    return tuple(map(sum, zip(*each, strict=True)))


def settle(url):
    """Let PostgreSQL do its background work before the measurement."""
    engine = make_engine(url, bounded=False)
    with engine.connect() as connection:
        connection.execution_options(
            isolation_level='AUTOCOMMIT').execute(
                sa.text('VACUUM ANALYZE distperiodic_pool_task'))
    engine.dispose()


def test_four_processes_pull_ten_tasks_at_a_time(postgresql, redis):
    schema.sync(postgresql.url)
    found = {kind: [] for kind in KINDS}
    for _ in range(measuring.rounds()):
        for kind in KINDS:
            pool = f'pool-{uuid.uuid4().hex[:12]}'
            url = redis.url if 'Redis' in kind else postgresql.url
            filler = (ClassicDispenser if 'Redis' in kind
                      else dispensed.dispenser)(url, pool)
            filler.recreate_task_pool(
                {number: number % 997 for number in range(150_000)})
            filler.close()
            if url == postgresql.url:
                settle(url)
            found[kind].append(rates(kind, url, pool))
    figures = {kind: [measuring.Figure.of(values) for values in zip(
        *several, strict=True)] for kind, several in found.items()}
    with measuring.table(
            f'tasks per second, {PROCESSES} processes, batches of {BATCH}',
            'program', 'assigned and ended', 'least-most', 'of bare',
            'only assigned', 'least-most', 'of bare',
            file=__file__, versions=('SQLAlchemy', 'psycopg', 'redis')
    ) as row:
        for kind, both in figures.items():
            cells = []
            for figure, bare in zip(
                    both, figures['bare statements'], strict=True):
                cells += [f'{figure.median:,.0f}',
                          f'{figure.least:,.0f}-{figure.most:,.0f}',
                          f'{figure.median / bare.median:.0%}']
            row(kind, *cells)


def test_a_large_pool_costs_as_much_as_a_small_one(database):
    kind, url = database
    schema.sync(url)
    pools = {}
    for size in FEW, MANY:
        one = dispensed.dispenser(url, f'pool-{size}')
        took = measuring.seconds_of(lambda one=one, size=size: (
            one.recreate_task_pool(
                {number: number % 997 for number in range(size)})))
        pools[size] = one, took
    if kind == 'postgresql':
        settle(url)

    def ready(one):
        def act():
            for _ in range(20):
                one.give_back('ann', one.assign_tasks(BATCH, 'ann'))
        return act
    figures = measuring.in_turns(
        {str(size): lambda one=one: ready(one)
         for size, (one, _) in pools.items()}, measuring.rounds(7))
    with measuring.table(
            f'{kind}: an assignment of {BATCH} tasks and its return',
            'tasks in the pool', 'ms', 'least-most', 'to the small one',
            'recreation s', file=__file__, versions=('SQLAlchemy',)) as row:
        for size, (_, took) in pools.items():
            figure = figures[str(size)]
            each = measuring.Figure(*(value / 20 for value in (
                figure.median, figure.least, figure.most)))
            row(f'{size:,}', measuring.ms(each.median),
                measuring.spread(each), measuring.times(
                    figure.median / figures[str(FEW)].median), f'{took:.1f}')
    for one, _ in pools.values():
        one.close()
