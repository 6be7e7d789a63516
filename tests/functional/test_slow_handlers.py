# SPDX-License-Identifier: Apache-2.0
"""One slow handler delays only its own object.

The handler ends its run in its own database session. So the rows of the run
stay locked until the commit. The handlers record their runs.
"""

import time

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional.cluster import Cluster

KEPT = '192.168.10.0'
SPACING = 1
LEASE = 5


@pytest.fixture
def clusters(tmp_path, postgresql):
    """Return a cluster for the test, and one in which all handlers are fast.
    """
    schema.sync(postgresql.url)
    made = []
    for name in 'slow', 'fast':
        (tmp_path / name).mkdir()
        made.append(Cluster(
            tmp_path / name, '', connection=postgresql.url,
            keeps=postgresql.url, spacing=SPACING, objects=6, twins='pong',
            lease=LEASE, send_timeout=2, pool_size=8))
    yield made
    for cluster in made:
        cluster.close()


def longest_gap(cluster, job, begin, end):
    """Return the longest interval within [*begin*, *end*] in which no run of
    another object than KEPT began, in seconds.
    """
    times = [begin, *sorted(
        run.at for run in cluster.runs(job=job)
        if run.object != KEPT and begin < run.at < end), end]
    return max(later - earlier
               for earlier, later in zip(times, times[1:], strict=False))


@pytest.mark.parametrize('kind', [
    pytest.param('keep', marks=pytest.mark.full), 'keep-idle'])
def test_a_handler_that_keeps_its_session_open_delays_no_other(clusters, kind):
    cluster, control = clusters
    cluster.set(behaves=f'{KEPT}:{kind}')
    control.start('scheduler')
    control.wait_begun()
    cluster.start('scheduler')
    kept = waiting.wait_until(
        lambda: [run for run in cluster.runs() if run.object == KEPT], 30,
        'nothing began')[0]
    waiting.wait_until(lambda: time.time() > kept.at + 24, 30, interval=0.5)

    seen = kept.at + 1, kept.at + 24
    for job in 'ping', 'pong':
        assert longest_gap(cluster, job, *seen) < 3 * max(
            SPACING, longest_gap(control, job, *seen))
    # The lease of the run in the open session was renewed. Otherwise it would
    # have expired four times over.
    assert [run.fence for run in cluster.runs() if run.object == KEPT
            and run.at < seen[1]] == [kept.fence]
    assert cluster.logged('store away') == []
    ended = waiting.wait_until(
        lambda: [run for run in cluster.runs() if run.object == KEPT
                 and run.tick > kept.tick], 20, 'it never ran again')
    assert ended[0].at > kept.at + 24
    # If the session is idle, the server ends it long before the handler ends.
    assert [run.key for run in cluster.runs('end')].count(kept.key) == (
        kind == 'keep')
