# SPDX-License-Identifier: Apache-2.0
"""Services on MariaDB, with two killed processes within a minute."""

import time

import pytest

from distperiodic.adapters.sql import schema
from tests.functional import judged
from tests.functional.cluster import Cluster


@pytest.mark.parametrize('seconds', [
    30.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_a_minute_on_mariadb_with_a_worker_and_a_scheduler_killed(
        tmp_path, zookeeper, rabbitmq, mariadb, seconds):
    schema.sync(mariadb.url)
    cluster = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=mariadb.url,
        # A pause of the whole machine of a few seconds ends no session.
        session_timeout=6, lease=10, send_timeout=2, spacing=2, objects=40,
        takes=0.05, misfire='all', overlap='wait')
    stalls = []
    try:
        schedulers = [cluster.start('scheduler') for _ in range(2)]
        workers = [cluster.start('worker') for _ in range(2)]
        first = cluster.wait_complete(2)[0]
        begun = time.time()

        for victim in (workers[0], schedulers[0]):
            at = cluster.wait_complete(5, after=time.time())[-1]
            cluster.wait_begun(at)
            stalls += judged.killed(victim.children, time.time())
            victim.kill()
            cluster.start(victim.kind)
        last = cluster.wait_complete(
            1, after=begun + seconds, timeout=2 * seconds)[-1]

        judged.assert_kept(cluster, first, last, stalls=stalls)
    finally:
        cluster.close()
