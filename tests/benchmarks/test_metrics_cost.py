# SPDX-License-Identifier: Apache-2.0
"""CPU time of events and metrics, compared with the same work without them.

A scheduler and a worker process run 20,000 empty handlers for each tick, with
claims in PostgreSQL and messages over RabbitMQ, as in test_claimed.py. The
cases with and without ``metrics_listen`` alternate. Nothing scrapes the
metrics.

    pytest -s -o timeout=0 tests/benchmarks/test_metrics_cost.py
"""

import statistics

from distperiodic.adapters.sql import schema
from tests.benchmarks import measuring
from tests.benchmarks import test_dispatch
from tests.unit.test_metrics_endpoint import free_port

OBJECTS = test_dispatch.OBJECTS
#: Ticks of each start of the processes.
TICKS = 4


def test_cpu_per_object_with_and_without_metrics(
        zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    cases = {'without metrics': {}, 'with metrics': {
        'metrics_listen': f'127.0.0.1:{free_port()}'}}
    used = {name: [] for name in cases}
    speeds = {name: [] for name in cases}
    for _ in range(measuring.rounds()):
        for name, options in cases.items():
            seconds, cpu = test_dispatch.our_rounds(
                zookeeper.url, rabbitmq.url, TICKS, spacing=6,
                connection=postgresql.url, **options)
            used[name].append(sum(cpu) / OBJECTS * 1e6)
            speeds[name] += [OBJECTS / known for _, known in seconds[1:]]
    without = statistics.median(used['without metrics'])
    with measuring.table(
            f'{OBJECTS:,} objects with claims in PostgreSQL',
            'what', 'CPU us per object', 'least', 'most', 'to none',
            'objects/s', file=__file__) as row:
        for name, values in used.items():
            median = statistics.median(values)
            row(name, f'{median:.1f}', f'{min(values):.1f}',
                f'{max(values):.1f}', measuring.times(median / without),
                f'{statistics.median(speeds[name]):,.0f}')
