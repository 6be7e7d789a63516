# SPDX-License-Identifier: Apache-2.0
"""Processes that share a member id, by mistake or during a replacement.

The group accepts one of them at a time. The process that is not accepted must
not take or lose messages of the other process.
"""

import collections
import time

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional.cluster import Cluster

OBJECTS = 20


@pytest.fixture
def cluster(request, tmp_path, zookeeper, rabbitmq):
    """Return a cluster, either ring only or with a store. The test starts the
    processes that share an id.
    """
    options = {}
    if getattr(request, 'param', 'ring only') == 'store':
        url = request.getfixturevalue('postgresql').url
        schema.sync(url)
        options = {'connection': url}
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, objects=OBJECTS, lease=10,
        session_timeout=5, **options)
    yield made
    made.close()


either = pytest.mark.parametrize(
    'cluster', ['ring only', 'store'], indirect=True)


def refused(program):
    """Return the log lines of *program* about another process with the same
    member_id.
    """
    return [line for line in program.logged('not in the group')
            if 'member_id' in line.text]


def runs_since(cluster, moment):
    return [run for run in cluster.runs() if run.tick > moment]


def doubled(runs):
    return [key for key, number in collections.Counter(
        run.key for run in runs).items() if number > 1]


def start_worker(cluster):
    """Start a worker with the same id as all other workers."""
    cluster.set(member_id='worker-1')
    return cluster.start('worker')


def test_a_second_worker_takes_nothing_from_the_first(cluster):
    cluster.start('scheduler')
    with cluster.observe('default') as workers:
        waiting.wait_until(lambda: cluster.logged('scheduler'), 20)
        first = start_worker(cluster)
        workers.wait_members(1)
        cluster.wait_complete(2)
        second = start_worker(cluster)
        waiting.wait_until(
            lambda: refused(second), 20,
            'the second was not refused')
        since = time.time()
        cluster.wait_complete(3, after=since)

    runs = runs_since(cluster, since)
    assert {run.pid for run in runs} == set(first.children)
    assert not doubled(runs)


def test_a_second_scheduler_takes_no_report_of_the_first(cluster):
    cluster.set(member_id='scheduler-1')
    cluster.start('scheduler')
    waiting.wait_until(lambda: cluster.logged('scheduler'), 20)
    cluster.set(member_id='')
    cluster.start('worker')
    cluster.wait_complete(2)
    cluster.set(member_id='scheduler-1')
    second = cluster.start('scheduler')
    waiting.wait_until(lambda: refused(second), 20,
                       'the second was not refused')
    since = time.time()
    # A run without a report would be reclaimed after its lease.
    cluster.wait_complete(12, after=since)

    assert not doubled(runs_since(cluster, since))


@either
def test_one_that_wakes_after_its_replacement_takes_nothing(cluster):
    cluster.start('scheduler')
    with cluster.observe('default') as workers:
        waiting.wait_until(lambda: cluster.logged('scheduler'), 20)
        first = start_worker(cluster)
        workers.wait_members(1)
        cluster.wait_complete(2)
        first.freeze()
        try:
            workers.wait_members(0)
            second = start_worker(cluster)
            workers.wait_members(1)
            cluster.wait_complete(2, after=time.time())
        finally:
            first.thaw()
        woken = time.time()
        cluster.wait_complete(5, after=woken)

    runs = runs_since(cluster, woken)
    assert {run.pid for run in runs} == set(second.children)
    assert not doubled(runs)
    assert len({run.tick for run in runs}) >= 5


@either
def test_nothing_is_lost_while_one_replaces_another(cluster):
    """The new process starts before the old one has left."""
    cluster.set(misfire='all', overlap='wait', takes=0.1)
    cluster.start('scheduler')
    waiting.wait_until(lambda: cluster.logged('scheduler'), 20)
    with cluster.observe('default') as workers:
        first = start_worker(cluster)
        workers.wait_members(1)
        ticks = cluster.wait_complete(2)
        second = start_worker(cluster)
        waiting.wait_until(
            lambda: refused(second), 20,
            'the second was not refused')
        first.terminate()
        assert first.wait() == 0
        left = time.time()
        after = cluster.wait_complete(4, after=left)

    seconds = range(int(ticks[0]), int(after[3]) + 1)
    assert set(seconds) <= set(cluster.complete_ticks())
