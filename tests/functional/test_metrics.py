# SPDX-License-Identifier: Apache-2.0
"""Metrics of real schedulers and workers, as Prometheus reads them."""

import json
import socket
import subprocess

import pytest

from distperiodic.adapters.sql import schema
from distperiodic.core import metric_table
from tests import programs
from tests.functional.cluster import Cluster
from tests.unit.test_metrics_endpoint import free_port
from tests.unit.test_metrics_endpoint import sample
from tests.unit.test_metrics_endpoint import scraped
from tests.waiting import wait_until

# Metrics that count each run once.
COUNTED = (
    'claims_total', 'dispatched_total', 'runs_started_total',
    'run_lateness_seconds_count', 'run_duration_seconds_count',
    'claim_delay_seconds_count', 'run_waiting_seconds_count')


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, postgresql, request):
    stored = getattr(request, 'param', True)
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url,
        connection=postgresql.url if stored else 'none',
        session_timeout=6, lease=10, send_timeout=2, spacing=5, objects=20,
        takes=0.02, misfire='all', overlap='wait',
        metrics_listen=f'127.0.0.1:{free_port()}')
    yield made
    made.close()


def metrics(cluster):
    """Return the metrics, or nothing while no process serves them."""
    return scraped(cluster.options['metrics_listen']) or {}


def done(found):
    return sample(found, 'distperiodic_runs_total', job='ping', outcome='done')


def test_processes_serve_their_sum_also_when_the_server_is_killed(cluster):
    """Two programs with two processes each run each object once, so the sum
    equals the record of the handlers.
    """
    first = cluster.start('scheduler')
    wait_until(lambda: metrics(cluster), 60)
    cluster.start('scheduler', 2)
    cluster.start('worker', 2)
    cluster.wait_complete(2)

    def agree():
        found, ended = metrics(cluster), len(cluster.runs('end'))
        sums = {done(found), *(
            sample(found, f'distperiodic_{name}', job='ping')
            for name in COUNTED)}
        # On a busy machine, a process may be unhealthy for a moment.
        return sums == {ended} == {len(cluster.runs())} and (
            sample(found, 'distperiodic_services_healthy') == 5) and found

    found = wait_until(agree, 60)
    number = done(found)
    assert sample(found, 'distperiodic_run_duration_seconds_sum',
                  job='ping') >= 0.02 * number
    assert sample(found, 'distperiodic_services') == 5
    assert sample(found, 'distperiodic_members_seen', role='worker') == 2
    assert sample(found, 'distperiodic_members_seen', role='scheduler') == 3
    slots = {state: sample(found, 'distperiodic_slots', partition='default',
                           state=state) for state in ('free', 'busy')}
    assert sum(slots.values()) == 8
    assert sample(found, 'distperiodic_ticks_lost_total') == 0
    # Only the names of jobs, partitions and states are labels.
    labels = {value for _, pairs in found for _, value in pairs}
    assert not [label for label in labels if label.startswith('192.168.')]
    assert {name.removesuffix(end) for name, _ in found for end in (
        '_bucket', '_count', '_sum')} >= {
            metric_table.RUN_LATENESS.name, metric_table.RUN_DURATION.name}

    first.kill()

    later = wait_until(lambda: (lambda now: sample(
        now, 'distperiodic_services') == 4 and now)(metrics(cluster)), 60)
    assert done(later) >= number
    wait_until(lambda: done(metrics(cluster)) == len(cluster.runs('end')), 60)


@pytest.mark.parametrize('cluster', [False], indirect=True)
def test_workers_without_a_store_report_the_times_of_their_runs(cluster):
    cluster.start('scheduler')
    cluster.start('worker', 2)
    cluster.wait_complete(2)

    def agree():
        found, ended = metrics(cluster), len(cluster.runs('end'))
        sums = {done(found), *(
            sample(found, f'distperiodic_{name}_count', job='ping')
            for name in ('run_lateness_seconds', 'run_duration_seconds'))}
        return sums == {ended} == {len(cluster.runs())}

    wait_until(agree, 60)


def test_oslo_metrics_counts_messages_and_refuses_the_metrics_of_others(
        cluster, tmp_path):
    """``doc/source/howto/monitor.rst`` states both."""
    path, port = tmp_path / 'collector.sock', free_port()
    cluster.set_section('oslo_metrics', metrics_socket_file=path,
                        prometheus_host='127.0.0.1', prometheus_port=port)
    cluster.set_section('oslo_messaging_metrics', metrics_enabled=True,
                        metrics_socket_file=path)
    with open(tmp_path / 'collector.log', 'w') as log, subprocess.Popen(
            [*programs.PYTHON, '-m', 'oslo_metrics', '--config-file',
             cluster.config], stdout=log, stderr=log) as collector:
        try:
            wait_until(lambda: scraped(f'127.0.0.1:{port}'), 60)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(json.dumps({
                    'module': 'distperiodic', 'labels': {'job': 'ping'},
                    'name': 'distperiodic_ticks_lost_total',
                    'action': {'action': 'inc', 'value': None},
                }).encode(), str(path))
            cluster.start('scheduler')
            cluster.start('worker')
            found = wait_until(lambda: sample(
                scraped(f'127.0.0.1:{port}'),
                'oslo_messaging_rpc_client_invocation_end_total',
                call_type='cast') and scraped(f'127.0.0.1:{port}'), 60)
            assert not [name for name, _ in found
                        if name.startswith('distperiodic')]
            assert 'Failed to lookup modules' in (
                tmp_path / 'collector.log').read_text()
        finally:
            collector.terminate()
