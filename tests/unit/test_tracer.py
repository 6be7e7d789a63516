# SPDX-License-Identifier: Apache-2.0
"""Spans of the flow, as the SDK of OpenTelemetry exports them."""

import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import sampling

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.local import tracing
from distperiodic.adapters.local.tracing import TRACING
from distperiodic.core.refusal import Refusal
from distperiodic.core.trace_context import is_sampled
from distperiodic.core.workflow import StepInput
from tests import spans
from tests.logged import lines
from tests.unit.test_runs import Bench
from tests.unit.test_runs import objects_job
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import worker

TRACE = f'00-{"a1" * 16}-{"b2" * 8}-01'
UNSAMPLED = f'{TRACE[:-1]}0'
SUBMITTED = f'00-{"c3" * 16}-{"d4" * 8}-01'
LIMIT = 20.0


@pytest.fixture
def exported():
    with spans.kept() as kept:
        yield kept


def id_of(text):
    _, trace_id, span_id, _ = text.split('-')
    return f'0x{trace_id}', f'0x{span_id}'


def ran(handler, *, objects=1, **fields):
    """Run a batch with *handler*, and return the bench."""
    bench = Bench((objects_job(), handler), tracer=TRACING.tracer)
    bench.accept(objects, **fields)
    bench.pool.run_all()
    return bench


def step(key, submitted=None):
    return StepInput(key, 1, True, 300.0, {}, trace=submitted)


# -- batches

class Dispatch:
    """A scheduler whose worker w reads the trace contexts of batches."""

    def __init__(self, *, reads=True, objects=3, retries=0):
        self.world = World()
        member = worker('w', slots=100)
        self.me = self.world.scheduler(
            job(objects=True, retries=retries), finishes=False,
            catalogues={'poll': [f'object-{n}' for n in range(objects)]},
            tracer=TRACING.tracer)
        self.me.dispatcher.workers_changed('default', [
            type(member)(**{**vars(member), 'traces': reads})])
        self.world.advance(61)

    @property
    def batches(self):
        return self.me.bus.batches


def test_a_batch_is_one_span_with_the_counts_of_its_outcomes(exported):
    made = Dispatch()
    batch, = made.batches
    assert exported() == []

    made.me.finish(batch)

    span, = exported()
    assert (span.name, span.kind, span.parent) == (
        'dispatch poll', 'SpanKind.PRODUCER', None)
    assert span['batch.objects'] == span['batch.done'] == 3
    assert (span['job'], span['partition'], span['worker']) == (
        'poll', 'default', 'w')
    assert span['tick'] == '2023-11-16T00:01:00+00:00'
    assert id_of(batch.trace) == span.id
    assert 'object-0' not in str(span.attributes)


def test_a_worker_that_does_not_read_traces_receives_none(exported):
    made = Dispatch(reads=False)

    assert [batch.trace for batch in made.batches] == [None]
    made.me.finish(made.batches[0])
    assert len(exported()) == 1


def test_a_batch_of_a_worker_that_is_gone_ends_with_the_reason(exported):
    made = Dispatch()
    made.me.dispatcher.workers_changed('default', [])

    span, = exported()
    assert span['batch.reclaimed'] == 3
    assert span.events['reclaimed']['distperiodic.reason'] == (
        'its worker is gone')


def test_a_batch_that_is_sent_again_is_linked_to_the_first_of_its_tick(
        exported):
    made = Dispatch()
    made.me.dispatcher.workers_changed('default', [])
    made.me.dispatcher.workers_changed('default', [worker('x', slots=100)])
    made.world.advance(1)

    first, second = made.batches
    made.me.finish(second)
    span = exported()[-1]
    assert span['worker'] == 'x'
    assert span.links == {'tick': id_of(first.trace)}


def test_a_worker_learns_that_a_batch_is_not_sampled():
    with spans.kept(sampling.ALWAYS_OFF) as exported:
        made = Dispatch()
        assert not is_sampled(made.batches[0].trace)
        made.me.finish(made.batches[0])
        assert exported() == []


# -- runs

def test_a_run_is_a_root_span_with_a_link_to_its_batch(exported):
    ran(lambda context, key: None, objects=['node/1'], trace=TRACE,
        attempts=[2])

    span, = exported()
    assert (span.name, span.kind, span.parent) == (
        'run poll', 'SpanKind.CONSUMER', None)
    assert span.links == {'batch': id_of(TRACE)}
    assert (span['object'], span['attempt'], span['fence']) == (
        'node/1', 2, 7)
    assert span.status == 'UNSET'


def test_a_span_that_a_handler_begins_is_a_child_of_its_run(exported):
    def handler(context, key):
        with exported.span('inner'):
            pass

    ran(handler, objects=2, trace=TRACE)

    inner, run, *_ = exported()
    assert inner.name == 'inner'
    assert (inner.id[0], inner.parent) == run.id
    # The thread keeps no context.
    assert TRACING.tracer.current() is None


def test_a_failed_run_has_an_error_and_its_exception(exported):
    def handler(context, key):
        raise ValueError('no route\nto host')

    ran(handler, trace=TRACE)

    span, = exported()
    assert span.status == 'ERROR'
    assert span.attributes['error.type'] == 'ValueError'
    exception = span.events['exception']
    assert exception['exception.message'] == 'ValueError: no route to host'
    assert 'handler' in exception['exception.stacktrace']


def test_a_run_whose_lease_ended_has_an_error(exported):
    def handler(context, key):
        raise ports.LeaseEnded

    ran(handler, trace=TRACE)

    assert exported()[0].attributes['error.type'] == 'LeaseEnded'


def test_a_run_that_is_refused_has_no_span(exported):
    bench = Bench((objects_job(), lambda context, key: None),
                  tracer=TRACING.tracer)
    bench.reason = Refusal.NOT_A_MEMBER
    bench.accept(1, trace=TRACE)
    bench.pool.run_all()

    assert exported() == []


def test_a_run_that_times_out_ends_its_span_while_the_handler_hangs(exported):
    began, until = threading.Event(), threading.Event()

    def handler(context, key):
        began.set()
        until.wait(LIMIT)

    bench = Bench((objects_job(timeout=5.0), handler), tracer=TRACING.tracer)
    bench.accept(1, trace=TRACE)
    thread = bench.pool.run_aside()
    assert began.wait(LIMIT)
    bench.pass_time(5.25)

    span, = exported()
    assert span.attributes['error.type'] == 'TimeoutError'
    until.set()
    thread.join(LIMIT)
    assert len(exported()) == 1


def test_a_cancelled_run_has_an_event(exported):
    def handler(context, key):
        bench.shop.cancel()

    bench = Bench((objects_job(), handler), tracer=TRACING.tracer)
    bench.accept(1, trace=TRACE)
    bench.pool.run_all()

    assert list(exported()[0].events) == ['cancelled']


def test_runs_of_a_batch_that_is_not_sampled_have_no_spans(exported):
    ran(lambda context, key: None, trace=UNSAMPLED)

    assert exported() == []


def test_runs_of_an_earlier_scheduler_have_spans_without_a_link(exported):
    ran(lambda context, key: None, trace=None)

    assert [span.links for span in exported()] == [{}]


def test_a_step_is_linked_to_its_batch_and_to_its_submitter(exported):
    ran(lambda context, parameters: None, objects=['t1', 't2'], trace=TRACE,
        steps={'t1': step('t1', SUBMITTED), 't2': step('t2')})

    first, second = exported()
    assert first.links == {
        'batch': id_of(TRACE), 'submitter': id_of(SUBMITTED)}
    assert second.links == {'batch': id_of(TRACE)}
    assert (first['step'], first['rollback']) == (1, True)


def test_a_step_of_a_sampled_submitter_has_a_span_without_that_of_its_batch(
        exported):
    ran(lambda context, parameters: None, objects=['t1', 't2'],
        trace=UNSAMPLED, steps={
            't1': step('t1', SUBMITTED), 't2': step('t2')})

    assert [span.links for span in exported()] == [
        {'submitter': id_of(SUBMITTED)}]


# -- without an SDK, without the extra, with a broken SDK

def test_without_an_sdk_no_run_is_traced(monkeypatch):
    monkeypatch.setattr(TRACING, 'tracer', None)
    tracing.install('a test', trace.NoOpTracerProvider())
    made = Dispatch()
    assert made.batches[0].trace is None
    ran(lambda context, key: None, trace=TRACE)

    assert TRACING.tracer.runs(made.batches[0]) is None
    assert TRACING.tracer.current() is None


def test_a_missing_sdk_is_one_log_line(monkeypatch, caplog):
    monkeypatch.setattr(TRACING, 'tracer', None)
    tracing.install('a test', trace.ProxyTracerProvider())
    Dispatch()
    ran(lambda context, key: None, trace=TRACE)

    line, = lines(caplog, 'spans missing')
    assert line['reason'].startswith('no SDK of OpenTelemetry')
    assert TRACING.tracer.problem == 'no SDK of OpenTelemetry'
    tracing.install('a test', trace.NoOpTracerProvider())
    assert TRACING.tracer.problem == ''


def test_a_provider_that_fails_stops_no_work(monkeypatch, caplog):
    class Broken(trace.TracerProvider):
        def get_tracer(self, *args, **options):
            return self

        def start_span(self, *args, **options):
            raise RuntimeError('no\nspan')

    monkeypatch.setattr(TRACING, 'tracer', None)
    tracing.install('a test', Broken())
    made = Dispatch()
    assert made.batches[0].trace is None
    done = []
    ran(lambda context, key: done.append(key), objects=50, trace=TRACE)

    assert len(done) == 50
    assert [line['error'] for line in lines(caplog, 'span failed')] == [
        'RuntimeError: no span'] * 2


def test_a_missing_extra_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, 'opentelemetry.trace', None)

    with pytest.raises(exceptions.ConfigError) as refusal:
        tracing.install('[distperiodic] traces')

    assert str(refusal.value) == (
        '[distperiodic] traces needs opentelemetry-api; install it with: pip '
        "install 'distperiodic[otel]'")


def test_the_last_spans_are_exported_when_a_service_stops(monkeypatch):
    asked = []

    class Provider(trace.NoOpTracerProvider):
        def force_flush(self, timeout_millis):
            asked.append(timeout_millis)
            threading.Event().wait(LIMIT)

    monkeypatch.setattr(TRACING, 'tracer', None)
    tracing.install('a test', Provider())
    TRACING.tracer.flush(0.1)
    assert asked == [100]


def test_a_span_of_another_process_is_the_current_one(exported):
    with tracing.continued(TRACE):
        assert TRACING.tracer.current() == TRACE
    with tracing.continued(None):
        assert TRACING.tracer.current() is None
