# SPDX-License-Identifier: Apache-2.0
"""Spans of batches and of runs, with the API of OpenTelemetry.

::

    dispatch JOB  ├──────────────────────────────┤    the scheduler, a batch
         ▲               links
         ├── run JOB     ├────┤                       a worker, an object
         └── run JOB          ├──────┤

Each span is the root of a trace of its own. A batch may have thousands of
runs, and one trace with all of them would be too large for most tools.

A thread is started only to export the last spans of a service that stops. If
the provider of the host fails, this is logged, and the work continues
without the span. The names and attributes are in
``doc/source/reference/traces.rst``.
"""

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import ParamSpec
from typing import TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import SpanKind
from opentelemetry.trace import Status
from opentelemetry.trace import StatusCode

from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import message
from distperiodic.core import schedule
from distperiodic.core.context import Context
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.trace_context import is_sampled

LOG = logging.getLogger(__name__)

# Number of ticks of which the first batch is remembered.
_TICKS = 1000
# Minimum seconds between two log lines about errors of one kind of call.
_LOG_AGAIN = 60.0
# The parent of a root span.
_ROOT = OtelContext()

_monotonic = SystemClock().monotonic

_Parameters = ParamSpec('_Parameters')
_Result = TypeVar('_Result')


def _guarded(function: Callable[_Parameters, _Result]
             ) -> Callable[_Parameters, _Result | None]:
    """Make *function* log its errors, and return None instead of raising.

    Samplers and processors of the host run in these calls.
    """
    failed_at = float('-inf')

    @functools.wraps(function)
    def guarded(*args: _Parameters.args,
                **options: _Parameters.kwargs) -> _Result | None:
        nonlocal failed_at
        try:
            return function(*args, **options)
        except Exception as exc:
            now = _monotonic()
            if now - failed_at >= _LOG_AGAIN:
                failed_at = now
                LOG.warning(
                    'span failed: error=%s; the work continues without the '
                    'span; further errors are not logged for a while',
                    ' '.join(f'{type(exc).__name__}: {exc}'.split()))
            return None
    return guarded


def _text_of(context: otel.SpanContext) -> str:
    return (f'00-{context.trace_id:032x}-{context.span_id:016x}'
            f'-{context.trace_flags:02x}')


def _context_of(trace: str) -> otel.SpanContext:
    _, trace_id, span_id, flags = trace.split('-')
    return otel.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True,
        trace_flags=otel.TraceFlags(int(flags, 16)))


def _link(trace: str, role: str) -> otel.Link:
    return otel.Link(_context_of(trace), {'distperiodic.link': role})


@contextlib.contextmanager
def remote(trace: str) -> Iterator[None]:
    """Make the span of another process the current one of this thread."""
    token = otel_context.attach(otel.set_span_in_context(
        otel.NonRecordingSpan(_context_of(trace))))
    try:
        yield
    finally:
        otel_context.detach(token)


class OtelTracer:
    """See :class:`distperiodic.ports.Tracer`.

    :param provider: Provider of the spans. None means the global one.
    """

    def __init__(self, provider: otel.TracerProvider | None = None):
        self._provider = provider
        self._tracer = otel.get_tracer(
            'distperiodic', tracer_provider=provider)
        #: Trace contexts of the first batches of the last ticks, by job and
        #: tick.
        self._first: collections.OrderedDict[tuple[str, int], str] = (
            collections.OrderedDict())
        #: True if a log line has reported that there is no SDK.
        self._missed = False

    @property
    def problem(self) -> str:
        if isinstance(self._current_provider(), otel.ProxyTracerProvider):
            return 'no SDK of OpenTelemetry'
        return ''

    def _current_provider(self) -> otel.TracerProvider:
        return self._provider or otel.get_tracer_provider()

    def _is_off(self) -> bool:
        """Return whether the host has configured no SDK, or has disabled it.
        """
        problem = self.problem
        if problem and not self._missed:
            self._missed = True
            LOG.warning(
                'spans missing: reason=%s; no span is created before this '
                'process configures one, or is started with '
                'opentelemetry-instrument', problem)
        return bool(problem) or isinstance(
            self._current_provider(), otel.NoOpTracerProvider)

    @_guarded
    def dispatched(self, batch: message.Batch,
                   worker: str) -> ports.BatchSpan | None:
        if self._is_off():
            return None
        tick = batch.job, batch.tick
        first = self._first.get(tick)
        span = self._tracer.start_span(
            f'dispatch {_name(batch)}', _ROOT, SpanKind.PRODUCER,
            _attributes(batch) | {
                'distperiodic.batch.id': batch.id,
                'distperiodic.batch.objects': len(batch.objects),
                'distperiodic.worker': worker},
            [] if first is None else [_link(first, 'tick')])
        context = span.get_span_context()
        if not context.is_valid:
            return None
        trace = _text_of(context)
        if first is None and context.trace_flags.sampled:
            self._first[tick] = trace
            if len(self._first) > _TICKS:
                self._first.popitem(last=False)
        return _BatchSpan(span, trace)

    @_guarded
    def runs(self, batch: message.Batch) -> ports.BeginRun | None:
        if self._is_off():
            return None
        links: list[otel.Link] = []
        submitters: dict[str, otel.Link] = {}
        if batch.trace is not None and is_sampled(batch.trace):
            links.append(_link(batch.trace, 'batch'))
        for key, step in (batch.steps or {}).items():
            if step.trace is not None and is_sampled(step.trace):
                submitters[key] = _link(step.trace, 'submitter')
        if not (links or submitters) and batch.trace is not None:
            # The scheduler does not record the span of the batch.
            return None
        return functools.partial(self._begin, _Runs(
            f'run {_name(batch)}', _attributes(batch), links, submitters,
            batch.trace is None or bool(links)))

    @_guarded
    def _begin(self, runs: '_Runs',
               context: Context) -> ports.RunSpan | None:
        links = runs.links
        submitter = runs.submitters.get(context.object)
        if submitter is not None:
            links = [*links, submitter]
        elif not runs.every:
            return None
        attributes = runs.attributes | {
            'distperiodic.object': context.object,
            'distperiodic.attempt': context.attempt,
            'distperiodic.fence': context.fence}
        if context.step is not None:
            attributes |= {'distperiodic.step': context.step,
                           'distperiodic.rollback': context.rollback}
        return _RunSpan(self._tracer.start_span(
            runs.name, _ROOT, SpanKind.CONSUMER, attributes, links), context)

    def current(self) -> str | None:
        context = otel.get_current_span().get_span_context()
        return _text_of(context) if context.is_valid else None

    def flush(self, seconds: float) -> None:
        # Only the SDK has this method. Its exporter may take longer than the
        # timeout that it receives.
        export = getattr(self._current_provider(), 'force_flush', None)
        if export is not None:
            thread = threading.Thread(
                target=_guarded(export), args=(int(seconds * 1000),),
                daemon=True, name='distperiodic-spans')
            thread.start()
            thread.join(seconds)


class _Runs(NamedTuple):
    """Values that the spans of all runs of a batch share."""

    name: str
    attributes: dict[str, Any]
    #: Links to the span of the batch, if it is known.
    links: list[otel.Link]
    #: Links to the spans of submitters, by task.
    submitters: dict[str, otel.Link]
    #: False means that only the runs of these tasks have spans.
    every: bool


def _name(batch: message.Batch) -> str:
    return batch.job.removeprefix(COMMAND_PREFIX)


def _attributes(batch: message.Batch) -> dict[str, Any]:
    return {
        'distperiodic.job': batch.job,
        'distperiodic.tick': schedule.datetime_of(batch.tick).isoformat(),
        'distperiodic.partition': batch.partition}


class _BatchSpan:
    """See :class:`distperiodic.ports.BatchSpan`."""

    def __init__(self, span: otel.Span, trace: str):
        self.trace = trace
        self._span = span
        self._counts: collections.Counter[str] = collections.Counter()

    def count(self, outcome: str, objects: int) -> None:
        if objects:
            self._counts[outcome] += objects

    @_guarded
    def reclaim(self, objects: int, reason: str) -> None:
        self.count('reclaimed', objects)
        self._span.add_event('reclaimed', {
            'distperiodic.batch.reclaimed': objects,
            'distperiodic.reason': reason})

    @_guarded
    def end(self) -> None:
        for outcome, objects in self._counts.items():
            self._span.set_attribute(
                f'distperiodic.batch.{outcome}', objects)
        self._span.end()


class _RunSpan:
    """See :class:`distperiodic.ports.RunSpan`. It is current at once."""

    __slots__ = ('_context', '_ended', '_span', '_token')

    def __init__(self, span: otel.Span, context: Context):
        self._span = span
        self._context = context
        self._ended = False
        self._token = otel_context.attach(
            otel.set_span_in_context(span))

    @_guarded
    def fail(self, error: str, text: str, traceback: str) -> None:
        if self._ended:
            return
        self._span.set_attribute('error.type', error)
        self._span.add_event('exception', {
            'exception.type': error, 'exception.message': text,
            'exception.stacktrace': traceback})
        self._span.set_status(Status(StatusCode.ERROR, text))

    def time_out(self, seconds: float) -> None:
        self.fail('TimeoutError', f'timeout after {seconds:g} s', '')
        self._close()

    def end(self) -> None:
        otel_context.detach(self._token)
        self._close(cancelled=self._context.cancelled)

    @_guarded
    def _close(self, cancelled: bool = False) -> None:
        if self._ended:
            return
        self._ended = True
        if cancelled:
            self._span.add_event('cancelled')
        self._span.end()
