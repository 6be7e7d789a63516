# SPDX-License-Identifier: Apache-2.0
"""Metrics in the text of Prometheus, and in the registry of a program."""

import prometheus_client
import pytest
from prometheus_client import parser

from distperiodic import exceptions
from distperiodic import metrics
from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.adapters.prometheus import exposition
from distperiodic.core import metric_table as table
from distperiodic.core import telemetry
from distperiodic.core.tally import Tally
from tests.unit.test_tally import EVENTS


def samples(registry):
    text = prometheus_client.generate_latest(registry).decode()
    return {(sample.name, *sorted(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples}


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


def test_each_metric_is_exposed_with_its_type_and_its_values(registry):
    tally = Tally()
    for event in EVENTS:
        tally.add(event)
    registry.register(exposition.TallyCollector(lambda: tally))

    families = {family.name: family.type for family in registry.collect()}
    found = samples(registry)

    assert families == {
        metric.name.removesuffix('_total'): metric.kind
        for metric in table.METRICS
        if metric.source is table.MetricSource.PROCESS}
    assert found['distperiodic_runs_total', ('job', 'poll'),
                 ('outcome', 'done')] == 4
    name = 'distperiodic_run_waiting_seconds'
    assert found[f'{name}_bucket', ('job', 'poll'), ('le', '0.5')] == 4
    assert found[f'{name}_bucket', ('job', 'poll'), ('le', '+Inf')] == 5
    assert found[f'{name}_count', ('job', 'poll')] == 5
    assert found[f'{name}_sum', ('job', 'poll')] == pytest.approx(8.2)


def test_no_label_has_an_object_a_task_or_the_text_of_an_error():
    labels = {label for metric in table.METRICS for label in metric.labels}

    assert labels == {'job', 'path', 'outcome', 'cause', 'result', 'type',
                      'status', 'role', 'change', 'partition', 'state',
                      'code', 'severity'}


def test_a_name_of_a_job_cannot_forge_a_line(registry):
    tally = Tally()
    tally.add(telemetry.TickDue('a"} 1\nevil{x="\\', 60))
    registry.register(exposition.TallyCollector(lambda: tally))

    assert samples(registry)[
        'distperiodic_ticks_due_total', ('job', 'a"} 1\nevil{x="\\')] == 1


def test_a_program_adds_the_metrics_to_its_own_registry(registry):
    metrics.install(registry)
    key = 'distperiodic_ticks_due_total', ('job', 'test-of-install')
    assert key not in samples(registry)

    SUBSCRIBERS.put(telemetry.TickDue('test-of-install', 60))

    assert samples(registry)[key] == 1


def test_a_registry_that_has_the_names_is_refused_in_one_line(registry):
    prometheus_client.Counter(
        'distperiodic_claims_total', 'of another library', registry=registry)

    with pytest.raises(exceptions.ConfigError,
                       match='distperiodic_claims') as caught:
        metrics.install(registry)
    assert '\n' not in str(caught.value)
