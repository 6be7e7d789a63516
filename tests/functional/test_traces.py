# SPDX-License-Identifier: Apache-2.0
"""Spans of real schedulers and workers, over each bus."""

import importlib
import os
import subprocess
import sys

import pytest
from oslo_config import cfg

from distperiodic import periodic
from distperiodic import service
from distperiodic import tasks
from distperiodic.adapters.sql import schema
from tests import programs
from tests import spans
from tests.configured import configuration
from tests.functional import commands
from tests.functional.cluster import Cluster
from tests.waiting import wait_until

ALONE = os.path.join(os.path.dirname(__file__), 'alone')
sys.path.insert(0, ALONE)
misbehaving = importlib.import_module('misbehaving')
OBJECTS = 20


class Jobs(periodic.PeriodicTasks):

    @periodic.periodic_task(spacing=1, scope='group')
    def poll(self, context):
        pass


@pytest.fixture
def cluster(tmp_path, zookeeper, postgresql, request):
    bus = request.getfixturevalue(getattr(request, 'param', 'rabbitmq'))
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, bus.url, connection=postgresql.url,
        session_timeout=6, lease=10, send_timeout=2, spacing=3,
        objects=OBJECTS, traces=True, spans=tmp_path / 'spans',
        signing_key='a-key')
    yield made
    made.close()


def found(cluster, name):
    return [one for one in spans.read(cluster.place / 'spans')
            if one.name == name]


def runs_by_batch(cluster):
    """Return the ended batches with the runs that are linked to each."""
    runs = {}
    for run in found(cluster, 'run ping'):
        if 'batch' in run.links:
            runs.setdefault(run.links['batch'], []).append(run)
    return [(batch, runs.get(batch.id, []))
            for batch in found(cluster, 'dispatch ping')]


def complete(cluster):
    """Return the batches if those of one tick have the runs of all objects."""
    batches = runs_by_batch(cluster)
    for tick in {batch['tick'] for batch, _ in batches}:
        of_tick = [one for one in batches if one[0]['tick'] == tick]
        if sum(len(runs) for _, runs in of_tick) == OBJECTS:
            return of_tick
    return None


@pytest.mark.parametrize('cluster', ['rabbitmq', 'redis'], indirect=True)
def test_the_runs_of_a_worker_are_linked_to_the_batch_of_the_scheduler(
        cluster):
    cluster.start('scheduler')
    cluster.start('worker')

    for batch, runs in wait_until(lambda: complete(cluster), 60):
        assert batch['batch.objects'] == batch['batch.done'] == len(runs)
        assert {run['tick'] for run in runs} == {batch['tick']}
        # Each run is the root of a trace of its own.
        assert not any(run.parent for run in runs)
        assert len({run.id[0] for run in (batch, *runs)}) == 1 + len(runs)


@pytest.mark.parametrize('traced', ['scheduler', 'worker'])
def test_a_group_works_with_processes_that_do_not_know_traces(cluster, traced):
    """A process without the option sends and reads what an earlier release
    does.
    """
    for kind, partition in (('scheduler', None), ('worker', 'default')):
        cluster.set(traces=kind == traced)
        cluster.start(kind)
        # It has then read the file.
        with cluster.observe(partition) as group:
            group.wait_members(1)
    cluster.wait_complete(2)

    if traced == 'scheduler':
        batch, *_ = wait_until(lambda: found(cluster, 'dispatch ping'), 30)
        assert batch['batch.done'] == batch['batch.objects']
        assert not found(cluster, 'run ping')
    else:
        run, *_ = wait_until(lambda: found(cluster, 'run ping'), 30)
        assert run.links == {}
        assert not found(cluster, 'dispatch ping')


def test_the_runs_that_repeat_those_of_a_killed_worker_are_linked(cluster):
    cluster.set(spacing=20, takes=1.0)
    cluster.start('scheduler')
    killed = cluster.start('worker')
    wait_until(cluster.runs, 60)
    killed.kill()
    cluster.start('worker')

    def repeated():
        return [(batch, run) for batch, runs in runs_by_batch(cluster)
                for run in runs if run['attempt'] == 2]

    batches = {batch.id: batch for batch in found(cluster, 'dispatch ping')}
    for batch, run in wait_until(repeated, 60):
        batches |= {one.id: one for one in found(cluster, 'dispatch ping')}
        first = batches[batch.links['tick']]
        assert run['tick'] == batch['tick'] == first['tick']
        assert first.events['reclaimed']['distperiodic.reason'] == (
            'its worker is gone')


def test_a_process_that_runs_the_work_itself_links_it_too(tmp_path):
    alone = Cluster(tmp_path, '', objects=OBJECTS, spacing=1, traces=True,
                    spans=tmp_path / 'spans')
    try:
        alone.start('scheduler')
        assert wait_until(lambda: complete(alone), 60)
    finally:
        alone.close()


def test_a_process_without_an_sdk_has_a_finding(tmp_path):
    url = f'sqlite:///{tmp_path}/store'
    schema.sync(url)
    alone = Cluster(tmp_path, '', connection=url, objects=OBJECTS, spacing=1,
                    traces=True)
    try:
        alone.start('scheduler')
        alone.wait_begun()
        assert wait_until(lambda: 'creates no spans: no SDK' in commands.call(
            'status', '--config-file', alone.config).stdout, 60)
    finally:
        alone.close()


WITHOUT = """
import sys
from oslo_config import cfg
import misbehaving
from distperiodic import service, tasks
conf = cfg.ConfigOpts()
conf(['--config-file', sys.argv[1]])
one = service.SchedulerService(conf, misbehaving.Modules(conf))
one.start()
client = tasks.Client(conf)
print(client.wait(client.submit('m.run', {}), 60).status)
client.close()
one.stop()
print([name for name in sys.modules if name.startswith('opentelemetry')])
"""


def test_a_process_without_the_option_does_not_import_opentelemetry(tmp_path):
    (tmp_path / 'conf').write_text(
        f'[distperiodic]\nstate_path = {tmp_path}\n')
    done = subprocess.run(
        [*programs.PYTHON, '-c', WITHOUT, tmp_path / 'conf'], check=True,
        env=os.environ | {'PYTHONPATH': ALONE}, capture_output=True)
    assert done.stdout.decode().split('\n')[:2] == ['succeeded', '[]']


@pytest.mark.parametrize('kind', ['SchedulerService', 'WorkerService'])
def test_a_service_that_stops_exports_its_last_spans(
        tmp_path, monkeypatch, kind):
    conf = configuration(
        state_path=str(tmp_path), backend_url=f'file://{tmp_path}/group',
        connection='none')
    asked = []
    with spans.kept() as exported:
        monkeypatch.setattr(exported.provider, 'force_flush', asked.append)
        one = getattr(service, kind)(conf, Jobs(conf))
        one.start()
        assert asked == []
        one.stop()
    assert len(asked) == 1


def test_a_step_in_a_process_of_its_own_continues_the_trace_of_its_run(
        tmp_path):
    (tmp_path / 'conf').write_text(
        f'[distperiodic]\nstate_path = {tmp_path}\n'
        '[partition:m]\nexecutor = process\npool_size = 1\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(tmp_path / 'conf')])
    with spans.kept() as exported:
        one = service.SchedulerService(conf, misbehaving.Modules(conf))
        one.start()
        client = tasks.Client(conf)
        with exported.span('request'):
            id_ = client.submit('m.run', {
                'how': 'trace', 'trace': str(tmp_path / 'trace')})
        assert client.wait(id_, 60).status == 'succeeded'
        client.close()
        one.stop()

    request, run = [span for name in ('request', 'run m.run')
                    for span in exported() if span.name == name]
    assert run.links['submitter'] == request.id
    assert (tmp_path / 'trace').read_text() == ' '.join(run.id)
