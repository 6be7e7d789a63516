# SPDX-License-Identifier: Apache-2.0
"""More work than workers: each object is served in turn.

The handlers record their runs.
"""

import collections
import contextlib
import threading

from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.sql import schema
from distperiodic.operator import activity
from distperiodic.operator.group_reader import GroupStore
from tests import waiting
from tests.configured import configuration
from tests.functional.cluster import Cluster

OBJECTS = 15


def test_each_object_is_served_in_turn_over_a_broker(
        tmp_path, zookeeper, rabbitmq, postgresql):
    """There is three times too much work. The number of runs of the object
    that was served most is never more than one above the fewest.
    """
    schema.sync(postgresql.url)
    cluster = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        objects=OBJECTS, spacing=0.6, takes=0.25, pool_size=2,
        session_timeout=10)
    try:
        for kind in 'scheduler', 'worker':
            cluster.start(kind)
        waiting.wait_until(
            lambda: len(cluster.runs()) >= 4 * OBJECTS, 60, interval=0.1)
        runs = collections.Counter(
            {f'192.168.10.{n}': 0 for n in range(OBJECTS)})
        for run in sorted(cluster.runs(), key=lambda run: run.at):
            runs[run.object] += 1
            assert max(runs.values()) - min(runs.values()) <= 1, runs
    finally:
        cluster.close()


class Tasks(periodic.PeriodicTasks):
    """A job whose handlers return only when *end* is set."""

    def __init__(self, conf):
        super().__init__(conf)
        self.end = threading.Event()

    def hosts(self, context):
        return [f'h{n}' for n in range(7)]

    @periodic.periodic_task(spacing=0.5, objects='hosts')
    def poll(self, context, host):
        self.end.wait(60)


def test_the_pool_of_a_scheduler_gets_only_the_runs_that_it_can_start(
        tmp_path):
    """All other objects wait in the scheduler, which serves them in turn."""
    store = f'sqlite:///{tmp_path / "claims.sqlite"}'
    schema.sync(store)
    tasks = Tasks(configuration(
        connection=store, state_path=str(tmp_path), pool_size=2))
    scheduler = service.SchedulerService(tasks.conf, tasks)
    try:
        scheduler.start()
        waiting.wait_until(lambda: scheduler.status()['pools']['default'] == {
            'size': 2, 'busy': 2, 'hanging': 0, 'queued': 5}, 30)
        with contextlib.closing(GroupStore(store, 'distperiodic')) as queried:
            assert len(activity.runs(queried, 'poll', 99)) == 2
    finally:
        tasks.end.set()
        scheduler.stop()
