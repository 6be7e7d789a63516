# SPDX-License-Identifier: Apache-2.0
"""Two releases of a service side by side, with different jobs and schedules.

ZooKeeper and PostgreSQL are real.
"""

import collections

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional.cluster import Cluster

#: Options of the two releases. The later one adds the job pong, removes the
#: job gone, and changes the schedule of ping.
OLD, NEW = dict(spacing=0.5, twins='gone'), dict(spacing=1.0, twins='pong')


@pytest.fixture(params=[
    'local', pytest.param('messaging', marks=pytest.mark.full)])
def service(request, tmp_path, zookeeper, postgresql):
    schema.sync(postgresql.url)
    broker = None
    if request.param == 'messaging':
        broker = request.getfixturevalue('rabbitmq').url
    made = Cluster(tmp_path, zookeeper.url, broker,
                   connection=postgresql.url, late_claim_after=1, objects=40,
                   misfire='all', overlap='wait')
    yield made
    made.close()


def wait_ticks(service, number, job, after):
    return waiting.wait_until(
        lambda: (lambda found: len(found) >= number and found)(
            [tick for tick in service.complete_ticks(job) if tick > after]),
        30, f'no {number} complete ticks of {job}; see {service.place}',
        interval=0.1)


def roll(service, kills):
    """Let two old schedulers and a new one run side by side; kill and restart
    an old one *kills* times, and then stop both.

    With messaging, the workers of both releases are not restarted.

    :returns: The first tick of pong, the last complete tick of gone while both
        old schedulers ran, and the pids of the killed processes.
    """
    dead = set()
    with service.observe() as group:
        service.set(**OLD)
        old = [service.start('scheduler') for _ in range(2)]
        if service.default.get('transport_url'):
            service.start('worker')
        group.wait_members(2)
        service.wait_complete(2)
        service.set(**NEW)
        service.start('scheduler')
        if service.default.get('transport_url'):
            service.start('worker')
        group.wait_members(3)
        [first, *_] = wait_ticks(service, 2, 'pong', 0)
        service.set(**OLD)
        for _ in range(kills):
            killed = old.pop(0)
            dead.update(killed.children)
            killed.kill()
            old.append(service.start('scheduler'))
            newest = service.complete_ticks('pong')[-1]
            wait_ticks(service, 3, 'pong', newest)
        [*_, gone] = wait_ticks(service, 2, 'gone', first)
        for one in old:
            one.terminate()
        group.wait_members(1)
        wait_ticks(service, 2, 'pong', service.complete_ticks('pong')[-1])
    return first, gone, dead


@pytest.mark.parametrize('kills', [
    1, pytest.param(30, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def test_each_tick_of_a_new_job_runs_while_old_members_stay(service, kills):
    """The same holds for a job that the new release has removed. A restart of
    an old process brings its schedule not back into force.
    """
    first, gone, dead = roll(service, kills)

    # The new schedule of ping is in force a moment after the new process has
    # joined. At that moment, unclaimed ticks of the old one do not run.
    for job, begin, last, spacing in (
            ('pong', first, service.complete_ticks('pong')[-1], 1.0),
            ('ping', first + 2.0, service.complete_ticks('ping')[-1], 1.0),
            ('gone', first, gone, 0.5)):
        runs = [run for run in service.runs(job=job) if run.tick >= begin]
        found = collections.Counter((run.object, run.tick) for run in runs)
        # Without a gap, each object has run once for each tick.
        ticks = {tick for _, tick in found if tick <= last}
        assert ticks == {begin + spacing * n for n in range(len(ticks))}
        expected = collections.Counter(
            (f'192.168.10.{n}', tick) for n in range(40) for tick in ticks)
        assert {job: expected - found} == {job: {}}
        # Only what ran in a killed process is repeated.
        ended = collections.Counter(
            (run.object, run.tick) for run in runs if run.pid not in dead)
        assert [key for key, number in ended.items() if number > 1] == []
