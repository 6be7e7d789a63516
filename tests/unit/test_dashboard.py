# SPDX-License-Identifier: Apache-2.0
"""The dashboard for Grafana and the sample for KEDA use metrics that exist."""

import json
import re
import runpy

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from distperiodic.core import metric_table
from distperiodic.core.metric_table import MetricKind
from tests.programs import ROOT

DASHBOARD = json.loads(
    (ROOT / 'etc' / 'grafana' / 'distperiodic.json').read_text())
PANELS = [one for one in DASHBOARD['panels'] if one['type'] != 'row']
QUERIES = [target['expr'] for panel in PANELS for target in panel['targets']]
KEDA = yaml.safe_load(
    (ROOT / 'etc' / 'keda' / 'scaledobject.yml').read_text())
#: Labels that the metrics of a group have besides their own.
MORE = {'group', 'le'}


def used(query):
    """Return the metrics in an expression."""
    found = [metric_table.BY_NAME.get(name) or metric_table.BY_NAME.get(
        re.sub(r'_(bucket|sum|count)$', '', name))
        for name in re.findall(r'distperiodic_\w+', query)]
    assert found
    return found


def test_the_file_is_the_output_of_its_script():
    script = runpy.run_path(str(ROOT / 'tools' / 'dashboard.py'))

    assert script['dashboard']() == DASHBOARD, (
        'run: python tools/dashboard.py > etc/grafana/distperiodic.json')


def unknown(given, read, path=''):
    """Yield the paths of the values of *given* that *read* lacks."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            yield from unknown(value, read.get(name), f'{path}.{name}')
    elif isinstance(given, list) and isinstance(read, list):
        for number, value in enumerate(given):
            yield from unknown(value, read[number], f'{path}[{number}]')
    elif given != read:
        yield path


def test_grafana_knows_each_field_of_the_dashboard():
    """Its models ignore a field that they do not know."""
    plugins.register_default_plugins()
    read = json.loads(json.dumps(
        Dashboard.from_json(DASHBOARD), cls=JSONEncoder))

    assert list(unknown(DASHBOARD, read)) == []


@pytest.mark.parametrize('query', [
    *QUERIES, *(one['metadata']['query'] for one in KEDA['spec']['triggers'])])
def test_a_query_uses_metrics_and_labels_that_exist(query):
    metrics = used(query)

    assert None not in metrics, query
    labels = {label for found in re.findall(r'\bby \(([^)]*)\)', query)
              for label in found.split(', ') if label} | set(
                  re.findall(r'(\w+)=~?"', query))
    assert labels <= MORE.union(*(one.labels for one in metrics)), query


@pytest.mark.parametrize('query', QUERIES)
def test_a_query_computes_a_rate_of_each_counter_and_of_no_gauge(query):
    gauges = [one.kind is MetricKind.GAUGE for one in used(query)]

    assert gauges == ['rate(' not in query] * len(gauges)


def test_each_metric_without_a_reason_is_on_the_dashboard():
    shown = {one.name for query in QUERIES for one in used(query)}

    assert {name.removeprefix('distperiodic_')
            for name in metric_table.BY_NAME.keys() - shown} == {
        # Each has nearly the value of another one.
        'ticks_due_total', 'claims_total', 'dispatched_total',
        'runs_started_total', 'queues_halted_total', 'slots',
        'objects_queued', 'members_seen',
        # They are labels of time ranges, or queries of alerts.
        'job_period_seconds', 'job_paused'}


def test_the_panels_have_their_own_ids_and_places():
    cells = [(x, y) for panel in DASHBOARD['panels']
             for place in [panel['gridPos']]
             for x in range(place['x'], place['x'] + place['w'])
             for y in range(place['y'], place['y'] + place['h'])]
    ids = [panel['id'] for panel in DASHBOARD['panels']]

    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(24))
    assert len(ids) == len(set(ids))
    assert [panel['title'] for panel in PANELS
            if len({one['refId'] for one in panel['targets']}) != len(
                panel['targets'])] == []


def test_each_variable_is_defined_and_used():
    variables = [one['name'] for one in DASHBOARD['templating']['list']]
    used_in = {name for name in re.findall(
        r'\$\{?(\w+)', json.dumps(PANELS)) if not name.startswith('__')}

    assert variables == ['datasource', 'group', 'job']
    assert used_in == set(variables)


def test_the_workers_are_scaled_before_their_slots_are_full():
    [trigger] = KEDA['spec']['triggers']

    assert trigger['type'] == 'prometheus'
    assert all(isinstance(one, str) for one in trigger['metadata'].values())
    assert 0 < float(trigger['metadata']['threshold']) < 10
