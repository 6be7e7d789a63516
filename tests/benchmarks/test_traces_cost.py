# SPDX-License-Identifier: Apache-2.0
"""CPU time of traces, compared with the same work without them.

The option ``traces`` is off; it is on in a program without an SDK; it is on
with an SDK whose spans are all recorded, queued and then dropped; and the same
with a sampler that takes no batch.

    pytest -s -o timeout=0 tests/benchmarks/test_traces_cost.py
"""

from tests.benchmarks import option_cost


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
    option_cost.compare(zookeeper, rabbitmq, postgresql, 'traces', {
        'off': {}, 'no SDK': {'traces': True},
        'SDK, nothing sampled': {'traces': True, 'prepare': record_none},
        'SDK, all recorded': {'traces': True, 'prepare': record_all}},
        __file__)
