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
from tests.pauses import Pauses

KEPT = '192.168.10.0'
SPACING = 1
LEASE = 5


@pytest.fixture
def cluster(tmp_path, postgresql):
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, '', connection=postgresql.url, keeps=postgresql.url,
        spacing=SPACING, objects=6, twins='pong', lease=LEASE, send_timeout=2,
        pool_size=8)
    yield made
    made.close()


def longest_gap(runs, begin, end, pauses):
    """Return the longest interval within [*begin*, *end*] in which none of
    *runs* began, in seconds without the *pauses* of the machine.
    """
    times = [begin, *sorted(
        run.at for run in runs if begin < run.at < end), end]
    return max(pauses.seconds(earlier, later)
               for earlier, later in zip(times, times[1:], strict=False))


@pytest.mark.parametrize('kind', [
    pytest.param('keep', marks=pytest.mark.full), 'keep-idle'])
def test_a_handler_that_keeps_its_session_open_delays_no_other(cluster, kind):
    cluster.set(behaves=f'{KEPT}:{kind}')
    cluster.start('scheduler')
    with Pauses() as pauses:
        kept = waiting.wait_until(
            lambda: [run for run in cluster.runs() if run.object == KEPT], 30,
            'nothing began')[0]
        waiting.wait_until(
            lambda: time.time() > kept.at + 24, 30, interval=0.5)

    seen = kept.at + 1, kept.at + 24
    pings = [run for run in cluster.runs() if run.object != KEPT]
    assert longest_gap(pings, *seen, pauses) < 3 * SPACING
    assert longest_gap(
        cluster.runs(job='pong'), *seen, pauses) < 3 * SPACING
    # The lease of the run in the open session was renewed. Otherwise it would
    # have expired four times over.
    assert [run.fence for run in cluster.runs() if run.object == KEPT] == [
        kept.fence]
    assert cluster.logged('store away') == []
    ended = waiting.wait_until(
        lambda: [run for run in cluster.runs() if run.object == KEPT
                 and run.tick > kept.tick], 20, 'it never ran again')
    assert ended[0].at > kept.at + 24
    # If the session is idle, the server ends it long before the handler ends.
    assert [run.key for run in cluster.runs('end')].count(kept.key) == (
        kind == 'keep')
