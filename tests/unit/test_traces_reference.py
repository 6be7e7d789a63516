# SPDX-License-Identifier: Apache-2.0
"""The reference of the spans, compared with the spans that are exported."""

import pathlib
import re

from distperiodic.adapters.local.tracing import TRACING
from distperiodic.core import message
from tests import spans
from tests.unit.test_runs import Bench
from tests.unit.test_runs import objects_job
from tests.unit.test_tracer import SUBMITTED
from tests.unit.test_tracer import TRACE
from tests.unit.test_tracer import Dispatch
from tests.unit.test_tracer import step
from tests.unit.world import worker

REFERENCE = (pathlib.Path(__file__).parents[2] / 'doc' / 'source'
             / 'reference' / 'traces.rst')


def every_kind():
    """Create spans with all attributes, events and links."""
    def handler(context, key):
        bench.shop.cancel()
        raise ValueError

    bench = Bench((objects_job(), handler), tracer=TRACING.tracer)
    bench.accept(['t1'], trace=TRACE, steps={'t1': step('t1', SUBMITTED)})
    bench.pool.run_all()
    made = Dispatch(objects=5)
    batch, = made.batches
    made.me.dispatcher.reported(message.Report(
        batch.id, batch.worker, done=[0], failed=[(1, 'ill')],
        retried=[(2, 'ill')], lost=[3]))
    made.me.dispatcher.workers_changed('default', [])
    made.me.dispatcher.workers_changed('default', [worker('x', slots=100)])
    made.world.advance(1)
    made.me.finish(made.batches[-1])


def test_the_reference_lists_exactly_the_names_of_the_spans():
    with spans.kept() as exported:
        every_kind()
        found = exported()

    page = REFERENCE.read_text()
    links, attributes, events = [
        set(re.findall(r'^   \* - ``(.*)``$', part, re.MULTILINE))
        for part in re.split(r'\n(?:Attributes|Events)\n', page)]
    assert links == {role for span in found for role in span.links}
    assert attributes == {name for span in found for name in span.attributes}
    assert events == {name for span in found for name in span.events}
    inner = {name for span in found for event in span.events.values()
             for name in event}
    assert not [name for name in inner if f'``{name}``' not in page]
    assert {span.name for span in found} == {'dispatch poll', 'run poll'}
