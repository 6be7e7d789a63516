# SPDX-License-Identifier: Apache-2.0
"""How well schedulers use the slots of their workers, and in which order.

80 tasks of 1 s each are submitted to two workers of 10 slots, through
ZooKeeper, RabbitMQ and PostgreSQL. The ideal is 4 s, whatever the number of
schedulers. The print shows the time until the last end, as a ratio to the
ideal.

    pytest -s -o timeout=0 tests/benchmarks/test_scarcity.py
"""

import pytest
from oslo_config import cfg

from distperiodic import tasks
from distperiodic.adapters.sql import schema
from tests import programs
from tests import waiting
from tests.functional import commands

TASKS = 80
SECONDS = 1.0
SLOTS = 10
WORKERS = 2


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

        def begun():
            if not record.exists():
                return []
            return [(float(at), int(n)) for n, at in (
                line.split() for line in record.read_text().splitlines())]

        def submit(n):
            return client.submit('bench.tell', {
                'path': str(record), 'n': n, 'takes': SECONDS})
        for id_ in [submit(-n) for n in range(1, 1 + WORKERS * SLOTS)]:
            assert client.wait(id_, 60).status == 'succeeded'
        for n in range(TASKS):
            submit(n)
        waiting.wait_until(
            lambda: len(begun()) == TASKS + WORKERS * SLOTS, 120)
        client.close()
        for program in running:
            program.kill()
        running.clear()
        return sorted(one for one in begun() if one[1] >= 0)
    yield measure
    for program in running:
        program.kill()


def test_one_scheduler_more_costs_no_throughput(measured):
    ideal = TASKS * SECONDS / (WORKERS * SLOTS)
    for schedulers in 1, 2, 3:
        begun = measured(schedulers)
        took = begun[-1][0] - begun[0][0] + SECONDS
        # Tasks that end together are replaced in any order.
        passed = sum(
            n + WORKERS * SLOTS < max(earlier for _, earlier in begun[:at])
            for at, (_, n) in enumerate(begun) if at)
        print(f'\n{schedulers} schedulers: {took:.2f} s, '
              f'{took / ideal:.2f} of the ideal; {passed} of {TASKS} began '
              f'after a task that is {WORKERS * SLOTS} places behind')
        assert sorted(n for _, n in begun) == [*range(TASKS)]
