# SPDX-License-Identifier: Apache-2.0
"""A real scheduler with the default store, while its wall clock is set."""

import collections

import pytest

from tests import waiting
from tests import wall_clock
from tests.functional.cluster import Cluster
from tests.logged import written

HOUR = 3600
SPACING = 2
#: Seconds of a run. It takes most of a period, so some run is always in
#: progress.
TAKES = 1.4


class Host:
    """A scheduler, and the wall clock that it reads."""

    def __init__(self, place):
        self.cluster = Cluster(
            place, '', spacing=SPACING, objects=6, takes=TAKES, lease=10,
            pool_size=8)
        self._ahead = place / 'ahead'
        self.set(0)
        self.cluster.start('scheduler', 1, self._ahead)

    def set(self, seconds):
        """Set the wall clock ahead by *seconds*."""
        wall_clock.set_ahead(self._ahead, seconds)

    def more(self, ticks, timeout):
        """Wait for this number of complete ticks, all later than the ticks so
        far.
        """
        newest = max((run.tick for run in self.cluster.runs()), default=0)
        return self.cluster.wait_complete(
            ticks, after=newest, timeout=timeout)


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    yield made
    made.cluster.close()


def test_a_wall_clock_set_by_an_hour_neither_doubles_nor_stops_anything(host):
    host.more(2, timeout=30)

    host.set(HOUR)
    forward = host.more(3, timeout=6 * SPACING)
    host.set(0)
    # The store's clock runs at half speed until the wall clock has caught up
    # with it.
    back = host.more(4, timeout=12 * SPACING)

    assert back == sorted(back)
    assert back[0] > forward[-1] > HOUR
    waiting.wait_until(
        lambda: len(host.cluster.runs('end')) == len(host.cluster.runs()), 10)
    runs = host.cluster.runs()
    assert {count for count in collections.Counter(
        run.key for run in runs).values()} == {1}
    ended = {(run.key, run.fence): run.at for run in host.cluster.runs('end')}
    by_object = collections.defaultdict(list)
    for run in sorted(runs, key=lambda run: run.at):
        by_object[run.object].append(run)
    for of_one in by_object.values():
        for one, other in zip(of_one, of_one[1:], strict=False):
            assert ended[one.key, one.fence] <= other.at, (one, other)
    log = host.cluster.logs()
    for event in 'wall clock set forward', 'wall clock set back':
        assert any(int(float(line['seconds'])) == HOUR
                   for line in written(log, event))
    assert written(log, 'store clock set back') == []
