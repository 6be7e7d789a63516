# SPDX-License-Identifier: Apache-2.0
"""Spans that OpenTelemetry exports: of this process, or of many in one file.
"""

import contextlib
import json
import os
import pathlib

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export import in_memory_span_exporter

from distperiodic import traces
from distperiodic.adapters.local.tracing import TRACING


class _File:
    """Exporter of spans. Each line is one write, so processes may share the
    file.
    """

    def __init__(self, path):
        self._path = path

    def export(self, spans):
        lines = ''.join(span.to_json(indent=None) + '\n' for span in spans)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, lines.encode())
        os.close(handle)

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=0):
        return True


def write_to(path):
    """Write the spans of this process to a file, as an SDK of a host does."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_File(path)))
    trace.set_tracer_provider(provider)


def read(path):
    """Return the spans in a file, as :func:`of` returns them."""
    file = pathlib.Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    return [Span(json.loads(line)) for line in lines]


class Span:
    """A span that was exported."""

    def __init__(self, found):
        self.name = found['name']
        self.kind = found['kind']
        self.id = self._id(found['context'])
        self.parent = found['parent_id']
        self.attributes = found['attributes']
        self.status = found['status']['status_code']
        self.events = {one['name']: one['attributes']
                       for one in found['events']}
        #: Ids of the linked spans, by the role of the link.
        self.links = {one['attributes']['distperiodic.link']:
                      self._id(one['context']) for one in found['links']}

    @staticmethod
    def _id(context):
        return context['trace_id'], context['span_id']

    def __getitem__(self, name):
        return self.attributes[f'distperiodic.{name}']


class Kept:
    """The spans that this process has exported."""

    def __init__(self, sampler):
        self._exporter = in_memory_span_exporter.InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __call__(self):
        return [Span(json.loads(span.to_json()))
                for span in self._exporter.get_finished_spans()]

    def span(self, name):
        """Begin a span that is the current one of this thread, as a program
        does.
        """
        return self.provider.get_tracer('tests').start_as_current_span(name)


@contextlib.contextmanager
def kept(sampler=None):
    """Trace this process, and yield the spans that it exports."""
    made = Kept(sampler)
    before, TRACING.tracer = TRACING.tracer, None
    traces.install(made.provider)
    try:
        yield made
    finally:
        TRACING.tracer = before
