# SPDX-License-Identifier: Apache-2.0
"""A worker that is cut off, frozen or killed at the worst moment."""

import random
import time

import pytest

from distperiodic.adapters.sql import schema
from tests import members
from tests import proxy
from tests import waiting
from tests.functional import effects
from tests.functional import judged
from tests.functional.cluster import Cluster


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, postgresql):
    """Return a cluster. The test sets its options, and then starts its
    programs.
    """
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        lease=5, send_timeout=2, spacing=2, objects=16, takes=0.05,
        misfire='all', overlap='wait')
    yield made
    made.close()


@pytest.fixture
def ledger(cluster):
    made = effects.Ledger(cluster.options['connection'])
    made.make()
    cluster.set(effects=cluster.options['connection'])
    yield made
    made.close()


def start_schedulers(cluster):
    started = [cluster.start('scheduler') for _ in range(2)]
    # From now on the test may change the file that the workers read.
    for one in started:
        waiting.wait_until(lambda one=one: one.logged('scheduler'), 30)


def under_way(cluster, pid):
    """Return the runs that this process has begun but not ended."""
    ended = {(r.object, r.fence) for r in cluster.runs('end')}
    return [r for r in cluster.runs()
            if r.pid == pid and (r.object, r.fence) not in ended]


def test_the_runs_of_a_worker_cut_off_from_zookeeper_alone_are_not_doubled(
        cluster):
    """The worker disappears from the group, but its runs continue and it
    renews their leases.
    """
    cluster.set(objects=8, takes=5, spacing=8)
    start_schedulers(cluster)
    with proxy.Proxy.before(cluster.backend_url) as way:
        cluster.set(backend_url=way.url)
        victim = cluster.start('worker')
        with cluster.observe('default') as workers:
            workers.wait_members(1)
            cluster.set(backend_url=cluster.backend_url)
            other = cluster.start('worker')
            workers.wait_members(2)
            first = cluster.wait_complete(1, after=time.time())[0]
            pid, = victim.children
            waiting.wait_until(lambda: under_way(cluster, pid), 20)

            with way.being('drop'):
                workers.wait_members(1)
                assert under_way(cluster, pid), 'no run was in progress'
                cluster.wait_complete(1, after=time.time())
            workers.wait_members(2)
        last = cluster.wait_complete(1, after=time.time())[-1]
        waiting.wait_until(
            lambda: not under_way(cluster, pid)
            and not under_way(cluster, other.children[0]), 20)

        judged.assert_kept(cluster, first, last)
        assert {run.attempt for run in cluster.runs()} == {1}


def test_after_the_death_of_all_processes_their_runs_are_soon_repeated(
        cluster):
    """All processes die, so none of them can report the others as gone. The
    leases of the processes last long.
    """
    cluster.set(lease=600, objects=12, takes=1, spacing=4)
    start_schedulers(cluster)
    programs = [*cluster.programs, cluster.start('worker')]
    begin = cluster.wait_complete(1, timeout=40)[0]
    pids = [pid for program in programs for pid in program.children]
    # Its runs must not end before it is killed.
    members.freeze(pids[-1], lambda: under_way(cluster, pids[-1]))
    for program in programs:
        program.kill()
    killed = time.time()
    lost = {r.key for pid in pids for r in under_way(cluster, pid)}
    assert lost

    cluster.start('scheduler')
    cluster.start('worker')
    waiting.wait_until(
        lambda: lost <= {r.key for r in cluster.runs('end')}, 30,
        'what they had begun was not repeated')
    print(f'repeated within {time.time() - killed:.1f} s, lease 600 s')
    end = cluster.wait_complete(1, after=time.time())[-1]
    waiting.wait_until(
        lambda: {r.key for r in cluster.runs() if r.tick <= end} <= {
            r.key for r in cluster.runs('end')}, 30)

    judged.assert_kept(cluster, begin, end,
                       stalls=judged.killed(pids, killed))


def test_a_frozen_worker_that_wakes_after_its_lease_is_refused_everywhere(
        cluster, ledger):
    """``is_current()`` returns False, the table that compares fences rejects
    the old fence, and ``finish()`` rejects the effect.
    """
    cluster.set(objects=8, takes=1)
    start_schedulers(cluster)
    victim = cluster.start('worker')
    cluster.start('worker')
    first = cluster.wait_complete(1)[0]
    pid, = victim.children

    def just_begun():
        # Freeze the worker only early in its runs, before any handler opens a
        # transaction: the database ends a transaction whose handler is frozen.
        runs = under_way(cluster, pid)
        return len(runs) > 1 and all(time.time() - r.at < 0.5 for r in runs)

    begin = members.freeze(pid, just_begun)
    held = {(r.object, r.tick): r.fence for r in under_way(cluster, pid)}
    waiting.wait_until(
        lambda: held.keys() <= {
            (r.object, r.tick) for r in cluster.runs('end') if r.pid != pid},
        30, 'its runs were not repeated')
    victim.thaw()
    stall = judged.frozen(pid, begin, time.time() + 1)
    last = cluster.wait_complete(2, after=time.time())[-1]

    woken = [r for r in cluster.runs('end')
             if held.get((r.object, r.tick)) == r.fence]
    assert len(woken) == len(held)
    assert {(r.mine, r.accepted, r.finished) for r in woken} == {
        (False, False, False)}
    judged.assert_kept(cluster, first, last, stalls=[stall])
    assert_effects_once(cluster, ledger, first, last)


def test_effects_that_end_their_run_come_once_whenever_the_worker_is_killed(
        cluster, ledger):
    """Kill the worker with SIGKILL at random moments around
    ``context.finish(session)``, each time with a run that has no effect yet.
    """
    chance = random.Random(20261121)
    # A run must last longer than it takes to look for one.
    cluster.set(takes=0.1)
    start_schedulers(cluster)
    programs = [cluster.start('worker') for _ in range(2)]
    first = cluster.wait_complete(1)[0]
    stalls = []
    killed = set()

    def begun(run):
        return run.object, run.tick, run.fence

    for turn in range(8):
        victim = programs[turn % 2]
        pid, = waiting.wait_until(lambda one=victim: one.children, 20)
        since = time.time()

        def interrupted(pid=pid):
            return {begun(r) for r in under_way(cluster, pid)} - set(
                ledger.effects())

        waiting.wait_until(
            lambda pid=pid, since=since: [
                r for r in cluster.runs() if r.pid == pid and r.at > since],
            20, interval=0.001)
        time.sleep(chance.random() * 0.1)
        at = members.freeze(pid, interrupted)
        stalls += judged.killed([pid], at)
        killed |= interrupted()
        victim.kill()
        programs[turn % 2] = cluster.start('worker')
    last = cluster.wait_complete(3, after=time.time(), timeout=60)[-1]

    assert_effects_once(cluster, ledger, first, last)
    judged.assert_kept(cluster, first, last, stalls=stalls,
                       committed=set(ledger.effects()))
    # The database may have committed the effect of a run after the kill.
    lost = {(key, tick) for key, tick, _ in killed - set(ledger.effects())}
    assert lost
    assert lost <= {
        (r.object, r.tick) for r in cluster.runs() if r.attempt > 1}


def assert_effects_once(cluster, ledger, first, last):
    spacing = cluster.default['spacing']
    ticks = [first + n * spacing
             for n in range(round((last - first) / spacing) + 1)]
    expected = sorted((f'192.168.10.{n}', tick) for tick in ticks
                      for n in range(cluster.default['objects']))

    def found():
        return sorted((key, tick) for key, tick, _ in ledger.effects()
                      if first <= tick <= last)

    # All runs of the last tick have begun, but some may not have ended yet.
    waiting.wait_until(lambda: set(expected) <= set(found()), 20,
                       'effects are missing')
    assert found() == expected
