# SPDX-License-Identifier: Apache-2.0
"""CPU time of traces, compared with the same work without them.

A scheduler and a worker process run 20,000 empty handlers for each tick, with
claims in PostgreSQL and messages over RabbitMQ, as in test_claimed.py. The
cases alternate: the option ``traces`` is off; it is on in a program without an
SDK; it is on with an SDK whose spans are all recorded, queued and then
dropped; and the same with a sampler that takes no batch.

    pytest -s -o timeout=0 tests/benchmarks/test_traces_cost.py
"""

import statistics

from distperiodic.adapters.sql import schema
from tests.benchmarks import measuring
from tests.benchmarks import test_dispatch

OBJECTS = test_dispatch.OBJECTS
#: Ticks of each start of the processes.
TICKS = 4


def _provide(sampler=None):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace import export

    class Null(export.SpanExporter):
        def export(self, spans):
            return export.SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(export.BatchSpanProcessor(Null()))
    trace.set_tracer_provider(provider)


def record_all():
    _provide()


def record_none():
    from opentelemetry.sdk.trace import sampling
    _provide(sampling.ALWAYS_OFF)


def test_cpu_per_object_with_and_without_traces(
        zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    cases = {
        'off': {}, 'no SDK': {'traces': True},
        'SDK, nothing sampled': {'traces': True, 'prepare': record_none},
        'SDK, all recorded': {'traces': True, 'prepare': record_all}}
    used = {name: [] for name in cases}
    speeds = {name: [] for name in cases}
    for _ in range(measuring.rounds()):
        for name, options in cases.items():
            seconds, cpu = test_dispatch.our_rounds(
                zookeeper.url, rabbitmq.url, TICKS, spacing=6,
                connection=postgresql.url, **options)
            used[name].append(sum(cpu) / OBJECTS * 1e6)
            speeds[name] += [OBJECTS / known for _, known in seconds[1:]]
    off = statistics.median(used['off'])
    with measuring.table(
            f'{OBJECTS:,} objects with claims in PostgreSQL',
            'traces', 'CPU us per object', 'least', 'most', 'to off',
            'objects/s', file=__file__) as row:
        for name, values in used.items():
            median = statistics.median(values)
            row(name, f'{median:.1f}', f'{min(values):.1f}',
                f'{max(values):.1f}', measuring.times(median / off),
                f'{statistics.median(speeds[name]):,.0f}')
