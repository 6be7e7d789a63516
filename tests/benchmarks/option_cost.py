# SPDX-License-Identifier: Apache-2.0
"""CPU time of an option, compared with the same work without it.

A scheduler and a worker process run 20,000 empty handlers for each tick, with
claims in PostgreSQL and messages over RabbitMQ, as in test_claimed.py. The
cases alternate.
"""

import statistics

from distperiodic.adapters.sql import schema
from tests.benchmarks import measuring
from tests.benchmarks import test_dispatch

#: Ticks of each start of the processes.
TICKS = 4


def compare(zookeeper, rabbitmq, postgresql, option, cases, file):
    """Write the table of the cases.

    :param option: Title of the column with the names of the cases.
    :param cases: Options of the processes by the name of the case. The others
        are compared with the first one.
    :param file: The file of the benchmark.
    """
    schema.sync(postgresql.url)
    objects = test_dispatch.OBJECTS
    used = {name: [] for name in cases}
    speeds = {name: [] for name in cases}
    for _ in range(measuring.rounds()):
        for name, options in cases.items():
            seconds, cpu = test_dispatch.our_rounds(
                zookeeper.url, rabbitmq.url, TICKS, spacing=6,
                connection=postgresql.url, **options)
            used[name].append(sum(cpu) / objects * 1e6)
            speeds[name] += [objects / known for _, known in seconds[1:]]
    first, *_ = cases
    without = statistics.median(used[first])
    with measuring.table(
            f'{objects:,} objects with claims in PostgreSQL',
            option, 'CPU us per object', 'least', 'most', f'to {first}',
            'objects/s', file=file) as row:
        for name, values in used.items():
            median = statistics.median(values)
            row(name, f'{median:.1f}', f'{min(values):.1f}',
                f'{max(values):.1f}', measuring.times(median / without),
                f'{statistics.median(speeds[name]):,.0f}')
