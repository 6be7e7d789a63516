# SPDX-License-Identifier: Apache-2.0
"""Concurrent runs of a job with a backlog, compared with its max_in_flight.

Two schedulers and two workers use ZooKeeper, RabbitMQ and PostgreSQL. The
workers have many more slots than the job may use. The measurement lasts from
the first run of a tick to the end of the last one.

    pytest -s -o timeout=0 tests/benchmarks/test_in_flight.py
"""

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional.cluster import Cluster

OBJECTS = 600
SECONDS = 0.05
MOST = 6


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        pool_size=20, objects=OBJECTS, takes=SECONDS, spacing=30,
        misfire='all', overlap='wait')
    yield made
    made.close()


def at_once(starts, ends):
    """Return the maximum and the average number of concurrent runs."""
    marks = sorted([(at, 1) for at in starts] + [(at, -1) for at in ends])
    most = going = 0
    for _, change in marks:
        going += change
        most = max(most, going)
    ran = sum(ends) - sum(starts)
    return most, ran / (max(ends) - min(starts))


def test_runs_of_one_job_stay_within_max_in_flight(cluster):
    cluster.set(max_in_flight=MOST)
    with cluster.observe() as schedulers, cluster.observe('default') as there:
        for _ in range(2):
            cluster.start('scheduler')
            cluster.start('worker')
        schedulers.wait_members(2)
        there.wait_members(2)
    known = {run.tick for run in cluster.runs()}
    tick = waiting.wait_until(
        lambda: {run.tick for run in cluster.runs()} - known, 60).pop()

    waiting.wait_until(lambda: sum(
        run.tick == tick for run in cluster.runs('end')) == OBJECTS, 300)

    starts = [run.at for run in cluster.runs() if run.tick == tick]
    ends = [run.at for run in cluster.runs('end') if run.tick == tick]
    most, mean = at_once(starts, ends)
    print(f'\n{OBJECTS} runs of {SECONDS} s, max_in_flight {MOST}: '
          f'{max(ends) - min(starts):.1f} s; at once at most {most}, '
          f'on average {mean:.2f} ({mean / MOST:.0%})')
    assert most <= MOST
