# SPDX-License-Identifier: Apache-2.0
"""More work than workers: each object is served in turn.

The handlers record their runs.
"""

import collections

from distperiodic.adapters.sql import schema
from tests import waiting
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
