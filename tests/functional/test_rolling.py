# SPDX-License-Identifier: Apache-2.0
"""Two releases of a service side by side, with different jobs and schedules.

ZooKeeper and PostgreSQL are real.
"""

import collections

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional.cluster import Cluster

#: Options of the two releases. The later one adds the job pong, and changes
#: the schedule of ping.
OLD, NEW = dict(spacing=0.5, pong=False), dict(spacing=1.0, pong=True)


@pytest.fixture
def service(tmp_path, zookeeper, postgresql):
    schema.sync(postgresql.url)
    made = Cluster(tmp_path, zookeeper.url, connection=postgresql.url,
                   late_claim_after=1, objects=40, misfire='all',
                   overlap='wait')
    yield made
    made.close()


def wait_ticks(service, number, job, after):
    return waiting.wait_until(
        lambda: (lambda found: len(found) >= number and found)(
            [tick for tick in service.complete_ticks(job) if tick > after]),
        30, f'no {number} complete ticks of {job}; see {service.place}',
        interval=0.1)


def roll(service, kills):
    """Let one old and one new process run side by side; kill and restart the
    old one *kills* times, and then stop it. Return the first tick of pong.
    """
    with service.observe() as group:
        service.set(**OLD)
        old = [service.start('scheduler') for _ in range(2)]
        group.wait_members(2)
        service.wait_complete(2)
        service.set(**NEW)
        service.start('scheduler')
        group.wait_members(3)
        [first, *_] = wait_ticks(service, 2, 'pong', 0)
        service.set(**OLD)
        for _ in range(kills):
            killed = old.pop(0)
            killed.kill()
            old.append(service.start('scheduler'))
            newest = service.complete_ticks('pong')[-1]
            wait_ticks(service, 3, 'pong', newest)
        for one in old:
            one.terminate()
        group.wait_members(1)
        wait_ticks(service, 2, 'pong', service.complete_ticks('pong')[-1])
    return first


@pytest.mark.parametrize('kills', [
    1, pytest.param(30, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def test_each_tick_of_a_new_job_runs_while_old_members_stay(service, kills):
    """A restart of an old process brings its schedule not back into force."""
    first = roll(service, kills)

    # The new schedule of ping is in force a moment after the new process has
    # joined. At that moment, unclaimed ticks of the old one do not run.
    for job, begin in (('pong', first), ('ping', first + 2.0)):
        found = collections.Counter(
            (run.object, run.tick) for run in service.runs(job=job)
            if run.tick >= begin)
        last = service.complete_ticks(job)[-1]
        # Without a gap, each object has run once for each tick.
        ticks = {tick for _, tick in found if tick <= last}
        assert ticks == {begin + 1.0 * n for n in range(len(ticks))}
        expected = collections.Counter(
            (f'192.168.10.{n}', tick) for n in range(40) for tick in ticks)
        assert {job: expected - found} == {job: {}}
        assert [key for key, number in found.items() if number > 1] == []
