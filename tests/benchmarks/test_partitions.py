# SPDX-License-Identifier: Apache-2.0
"""Delay of the runs of a partition while another partition misbehaves.

In the measured partition 100 objects come due per second, each at its own due
time. The partition runs alone, and beside another partition with 5 threads.
The other partition has 15 objects that are slow (1 s each, every 3 s), 15
objects that hang (their handlers do not return), or one object that crashes
(its handler ends the process, every 3 s). All cases alternate within the same
processes. A figure is the median over the rounds of the p99 of a window. A
ratio is the ratio of two medians.

``local``: one scheduler with its embedded store. The partition whose handler
crashes has one process (``executor = process``) in place of the 5 threads.
``messaging``: ZooKeeper, RabbitMQ and PostgreSQL, one scheduler, and one
worker for each partition. A worker that has ended is started again.

    pytest -s -o timeout=0 tests/benchmarks/test_partitions.py
"""

import contextlib
import math
import os
import statistics
import time
import uuid

import pytest

from distperiodic.adapters.sql import schema
from tests import programs
from tests import waiting
from tests.benchmarks import measuring

#: Length of a window in seconds, and the seconds at its beginning that do not
#: count.
WINDOW, SETTLING = 11.0, 3.0

class Service:
    def __init__(self, place, executor='thread', **options):
        self.place = place
        self.flag, self.record = place / 'flag', place / 'record'
        self.flag.write_text('')
        self.record.touch()
        transport = options.pop('transport_url', None)
        bad = {'pool_size': 5} if executor == 'thread' else {
            'executor': executor, 'pool_size': 1}
        self.config = programs.write_config(
            place / 'service.conf',
            DEFAULT={'transport_url': transport} if transport else {},
            distperiodic={
                'group': f'bench-{uuid.uuid4().hex[:8]}', 'pool_size': 10,
                'state_path': place / 'state', **options},
            **{'partition:bad': bad})
        self.programs = []

    def start(self, *words):
        self.programs.append(programs.Program(
            [*programs.PYTHON, '-m', 'tests.benchmarks.partitioned',
             words[0], self.config, *words[1:]],
            self.place / f'{"-".join(words)}.log', append=True,
            env=os.environ | {'PARTITIONED_FLAG': str(self.flag),
                              'PARTITIONED_RECORD': str(self.record)}))
        return self.programs[-1]

    def late(self, begin, end):
        """Return the delays of the runs due in a window, in seconds, sorted.
        """
        lines = self.record.read_text().splitlines()
        return sorted(float(late) for due, late in map(str.split, lines)
                      if begin <= float(due) < end)

    def window(self, case, keep):
        """Return the p50, the p99 and the runs per second of one window.

        :param keep: function that restarts processes that have ended.
        """
        self.flag.write_text('' if case == 'alone' else case)
        begin = math.ceil(time.time() + SETTLING)
        end = begin + WINDOW - SETTLING
        while time.time() < end + 1.0:
            keep()
            time.sleep(0.1)
        late = self.late(begin, end)
        return (late[len(late) // 2], late[int(len(late) * 0.99)],
                len(late) / (end - begin))

    def close(self):
        for program in self.programs:
            program.kill()


@contextlib.contextmanager
def running(place, dispatcher, request, executor):
    """Yield a service, and a function that restarts its processes that have
    ended.
    """
    if dispatcher == 'local':
        service = Service(place, executor)
        service.start('scheduler')
        keep = lambda: None  # noqa: E731
    else:
        url = request.getfixturevalue('postgresql').url
        schema.sync(url)
        service = Service(
            place, dispatcher='messaging', connection=url,
            backend_url=request.getfixturevalue('zookeeper').url,
            transport_url=request.getfixturevalue('rabbitmq').url)
        service.start('scheduler')
        service.start('worker', 'quick')
        bad = [service.start('worker', 'bad')]

        def keep():
            if not bad[-1].running:
                bad.append(service.start('worker', 'bad'))
    try:
        waiting.wait_until(service.record.read_text, 60)
        yield service, keep
    finally:
        service.close()


@pytest.mark.parametrize('dispatcher', ['local', 'messaging'])
def test_neighbour(tmp_path, request, dispatcher):
    # With a thread executor, a crash of the handler would end the scheduler
    # itself.
    cases = {('thread', 'slow', 'hang'), ('process', 'crash')} if (
        dispatcher == 'local') else {('thread', 'slow', 'hang', 'crash')}
    for executor, *bad in sorted(cases, reverse=True):
        place = tmp_path / executor
        place.mkdir()
        found = {case: [] for case in ['alone', *bad]}
        with running(place, dispatcher, request, executor) as (service, keep):
            for _ in range(measuring.rounds()):
                for case in found:
                    found[case].append(service.window(case, keep))
        show(found, f'{dispatcher}, {executor}')


def show(found, title):
    alone = statistics.median(p99 for _, p99, _ in found['alone'])
    with measuring.table(
            f'lateness of a partition beside another one, {title}',
            'the other one', 'p50 ms', 'p99 ms', 'least-most', 'of alone',
            'runs/s', file=__file__) as row:
        for case in found:
            p99 = measuring.Figure.of([p for _, p, _ in found[case]])
            row(case, measuring.ms(statistics.median(
                p for p, _, _ in found[case])), measuring.ms(p99.median),
                measuring.spread(p99), f'{p99.median / alone:.2f}x',
                f'{statistics.median(n for _, _, n in found[case]):.0f}')
