# SPDX-License-Identifier: Apache-2.0
"""More work than workers: each object is served in turn.

The handlers record their runs.
"""

import collections
import threading
import time

from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.sql import schema
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
    """A job without objects until *begun* is set.

    ``runs`` contains the monotonic time and the object of each run.
    """

    TAKES = 0.2

    def __init__(self, conf, begun):
        super().__init__(conf)
        self.begun = begun
        self.runs = []

    def hosts(self, context):
        return [f'h{n}' for n in range(24 if self.begun.is_set() else 0)]

    @periodic.periodic_task(spacing=0.4, objects='hosts')
    def poll(self, context, host):
        self.runs.append((time.monotonic(), host))
        time.sleep(self.TAKES)

    def assert_served_in_turn(self):
        """Assert that the objects of this member were served in turn.

        Two objects that start together may be recorded in either order.
        """
        runs = dict.fromkeys({host for _, host in self.runs}, 0)
        uneven = None
        for at, host in self.runs:
            runs[host] += 1
            if max(runs.values()) - min(runs.values()) <= 1:
                uneven = None
            else:
                uneven = uneven or at
                assert at - uneven < self.TAKES / 2, runs


def test_each_object_is_served_in_turn_by_the_pools_of_the_schedulers(
        tmp_path):
    """Two schedulers with pools of different sizes share a store. They have
    two and three times too much work.
    """
    store = f'sqlite:///{tmp_path / "claims.sqlite"}'
    schema.sync(store)
    begun = threading.Event()
    members = [Tasks(configuration(
        connection=store, backend_url=f'file://{tmp_path / "groups"}',
        state_path=str(tmp_path), pool_size=size), begun) for size in (2, 3)]
    schedulers = [service.SchedulerService(one.conf, one) for one in members]
    try:
        for one in schedulers:
            one.start()
        waiting.wait_until(lambda: all(
            len(one.status()['members']) == 2 for one in schedulers), 30)
        begun.set()
        waiting.wait_until(
            lambda: sum(len(one.runs) for one in members) > 6 * 24, 60)
    finally:
        for one in schedulers:
            one.stop()

    assert len({host for one in members for _, host in one.runs}) == 24
    for one in members:
        one.assert_served_in_turn()
