# SPDX-License-Identifier: Apache-2.0
"""The option max_in_flight with several real schedulers and workers."""

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional.cluster import Cluster

MOST = 5


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, postgresql):
    """Return a cluster with two jobs in one partition. The partition may use 5
    of 40 slots.

    A run takes much longer than its report. So all 5 slots are in use even on
    a slow machine.
    """
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        pool_size=20, objects=20, takes=0.5, spacing=5, twins='pong',
        misfire='all', overlap='wait')
    made.set_section('partition:default', max_in_flight=MOST)
    yield made
    made.close()


def most_at_once(cluster):
    """Return the maximum number of concurrent runs of ping and pong."""
    marks = sorted(
        (run.at, change) for job in ('ping', 'pong')
        for event, change in (('start', 1), ('end', -1))
        for run in cluster.runs(event, job))
    most = going = 0
    for _, change in marks:
        going += change
        most = max(most, going)
    return most


def test_a_partition_s_limit_holds_over_all_its_jobs_and_processes(cluster):
    for _ in range(2):
        cluster.start('scheduler')
        cluster.start('worker')

    waiting.wait_until(lambda: all(
        len(cluster.runs('end', job)) >= 120 for job in ('ping', 'pong')),
        90, 'too few runs')

    assert most_at_once(cluster) == MOST
    assert len({run.pid for run in cluster.runs()}) == 2


def test_a_section_of_no_job_is_logged_once(cluster):
    cluster.set_section('partition:elsewhere', max_in_flight=1)
    cluster.start('scheduler')
    cluster.start('worker')

    cluster.wait_begun()

    for program in cluster.programs:
        [line] = program.logged('partition of no job')
        assert line == {
            'section': 'partition:elsewhere', 'topics': 'default'}
