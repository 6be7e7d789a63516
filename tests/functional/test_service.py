# SPDX-License-Identifier: Apache-2.0
"""Both services as operators use them: started, killed, frozen and stopped.

ZooKeeper and RabbitMQ are real.
"""

import collections
import datetime
import re
import time

import pytest

from tests import members
from tests import waiting
from tests.functional.cluster import Cluster
from tests.pauses import Pauses

SESSION = 2.0


@pytest.fixture
def local(tmp_path, zookeeper):
    """Return a cluster whose schedulers run the work themselves."""
    made = Cluster(tmp_path, zookeeper.url)
    yield made
    made.close()


@pytest.fixture
def remote(tmp_path, zookeeper, rabbitmq):
    """Return a cluster of schedulers and workers, with a broker between them.
    """
    made = Cluster(tmp_path, zookeeper.url, rabbitmq.url)
    yield made
    made.close()


def ids_by_pid(runs):
    found = collections.defaultdict(set)
    for run in runs:
        found[run.pid].add(run.object)
    return found


def doubled(runs):
    return [key for key, number in collections.Counter(
        run.key for run in runs).items() if number > 1]


def joined_after(program, moment):
    """Return when a program first joined its group later than *moment*, by its
    log.
    """
    written = re.findall(
        r'^(\S+ \S+) \d+ INFO distperiodic\S* joined: ', program.said(),
        re.MULTILINE)
    times = [datetime.datetime.strptime(
        at, '%Y-%m-%d %H:%M:%S,%f').timestamp() for at in written]
    return next(at for at in times if at > moment)


def test_three_forked_members_share_every_tick(local):
    """With launch(workers=3) each object runs once per tick, on one of three
    members.
    """
    with local.observe() as group:
        local.start('scheduler', workers=3)
        group.wait_members(3)
        calm = time.time()
        ticks = local.wait_complete(4, after=calm)

    def runs_of(job):
        return [r for r in local.runs(job=job) if r.tick in ticks]
    runs = runs_of('ping')
    assert not doubled(runs)
    assert len(ids_by_pid(runs)) == 3
    # The runs of the other jobs may begin after those of ping.
    waiting.wait_until(
        lambda: {r.tick for r in runs_of('once')} == set(ticks)
        and collections.Counter(r.tick for r in runs_of('each'))
        == dict.fromkeys(ticks, 3))
    assert not doubled(runs_of('once'))


def test_two_services_in_one_group_are_named(local):
    """Each of the two services would own objects of a job that only the other
    service has.
    """
    with local.observe() as group:
        first = [local.start('scheduler') for _ in range(2)]
        group.wait_members(2)
        local.wait_complete(2)
        assert local.logged('other jobs') == []
        before = {m.identity for m in group.now.members}

        local.set(twins='pong')
        other = local.start('scheduler')
        joined, = {m.identity for m in group.wait_members(3).members} - before
        for program in [*first, other]:
            waiting.wait_until(
                lambda program=program: program.logged('other jobs'), 10,
                f'see {program.log}')

    [line] = first[0].logged('other jobs')
    assert line.has(group=local.group, members=joined)


def test_the_objects_of_a_killed_member_run_again(local):
    with local.observe() as group:
        programs = [local.start('scheduler') for _ in range(3)]
        group.wait_members(3)
        local.wait_complete(2, after=time.time())
        programs[0].kill()
        with Pauses() as pauses:
            killed = time.time()
            group.wait_members(2)
            noticed = pauses.seconds(killed, time.time())
        local.wait_complete(2, after=time.time())
    print(f'a kill was noticed after {noticed:.2f} s')
    assert noticed < SESSION + 1


def test_a_frozen_member_starts_nothing_until_it_is_back(local):
    with local.observe() as group:
        programs = [local.start('scheduler') for _ in range(2)]
        group.wait_members(2)
        local.wait_complete(2, after=time.time())
        victim, = programs[0].children
        before = {m.identity: m.tenure for m in group.now.members}
        with Pauses() as pauses:
            frozen = members.freeze(victim, local.is_between_ticks)
            group.wait_members(1)
            gone = time.time()
            local.wait_complete(2, after=gone)
            thawed = time.time()
            programs[0].thaw()
            view = group.wait_members(2)
        back = time.time()
        local.wait_complete(3, after=back)

    assert any(m.tenure == before[m.identity] + 1 for m in view.members)
    assert pauses.seconds(frozen, gone) < SESSION + 2
    # The observer may see the member later.
    joined = joined_after(programs[0], thawed)
    assert pauses.seconds(thawed, joined) < 1.5
    early = [r for r in local.runs()
             if r.pid == victim and thawed <= r.at < joined]
    assert not early
    assert not doubled(r for r in local.runs() if r.tick > back)


def test_a_member_that_is_asked_to_stop_finishes_its_runs(local):
    def pairs(event):
        return sorted(r.key for r in local.runs(event) if r.pid == pid)
    # So many objects that each member owns some, whatever its name. The long
    # session does not expire while a member that is asked to stop leaves.
    local.set(takes=0.7, spacing=3, objects=24, pool_size=24,
              session_timeout=20)
    with local.observe() as group:
        stays, goes = [local.start('scheduler') for _ in range(2)]
        group.wait_members(2)
        local.wait_complete(1, after=time.time())
        pid, = goes.children
        waiting.wait_until(
            lambda: [r for r in local.runs() if r.pid == pid
                     and time.time() - r.at < 0.3],
            10, 'the member began nothing')
        goes.terminate()
        group.wait_members(1, timeout=2)
        # If a member left the group during its runs, other members could run
        # the same objects again.
        assert pairs('start') == pairs('end')
        assert goes.wait() == 0
        local.wait_complete(2, after=time.time())
    assert pairs('start') == pairs('end')
    assert 'Traceback' not in local.logs()


def test_changed_points_move_few_objects(local):
    """Change hash_ring_replicas_count in the file, and send SIGHUP."""
    with local.observe() as group:
        programs = [local.start('scheduler') for _ in range(3)]
        before = group.wait_members(3)
        local.set(hash_ring_replicas_count=80)
        programs[0].hang_up()
        waiting.wait_until(
            lambda: sorted(m.points for m in group.now.members) == [
                40, 40, 80], 20, 'the new points were not published')
        after = group.now
        local.wait_complete(2, after=time.time())

    assert ([m.identity for m in before.members]
            == [m.identity for m in after.members])
    grown, = [m.identity for m in after.members if m.points == 80]
    for number in range(2000):
        then = before.ring.owner_of(f'object-{number}')
        now = after.ring.owner_of(f'object-{number}')
        assert now in (then, grown)


def test_two_workers_share_a_burst_evenly(remote):
    remote.set(takes=0.05, objects=200, spacing=4)
    with remote.observe('default') as workers:
        for _ in range(2):
            remote.start('worker')
        workers.wait_members(2)
        remote.start('scheduler')
        ticks = remote.wait_complete(2, timeout=40)

    runs = [r for r in remote.runs() if r.tick in ticks[-1:]]
    assert not doubled(runs)
    shares = sorted(len(o) for o in ids_by_pid(runs).values())
    assert len(shares) == 2
    assert shares[0] >= 70


def test_a_worker_that_joins_under_load_gets_work_at_once(remote):
    remote.set(takes=0.2, objects=300, spacing=30, pool_size=4)
    with remote.observe('default') as workers:
        remote.start('worker')
        workers.wait_members(1)
        # With this spacing the first tick comes at once. One worker needs 15 s
        # for the objects of a tick.
        remote.set(spacing=1)
        remote.start('scheduler')
        waiting.wait_until(lambda: len(remote.runs()) > 20, 30,
                           'the first worker began nothing')
        first = {r.pid for r in remote.runs()}
        remote.start('worker')
        with Pauses() as pauses:
            workers.wait_members(2)
            joined = time.time()
            got = waiting.wait_until(
                lambda: [r.at for r in remote.runs() if r.pid not in first],
                10, 'the new worker got nothing')
    waited = pauses.seconds(joined, min(got))
    print(f'the new worker began after {waited:.2f} s')
    assert waited < 2.0


def test_unfinished_runs_of_a_killed_worker_run_again(remote):
    remote.set(takes=1.5, objects=8, spacing=5)
    with remote.observe('default') as workers:
        programs = [remote.start('worker') for _ in range(2)]
        workers.wait_members(2)
        remote.start('scheduler')
        begun = waiting.wait_until(
            lambda: (lambda pids: len(pids) == 2 and pids)(
                {r.pid for r in remote.runs()}), 30,
            'the workers began nothing')
        victim = programs[0].children[0]
        assert victim in begun
        lost = [r for r in remote.runs() if r.pid == victim]
        programs[0].kill()
        killed = time.time()
        again = waiting.wait_until(
            lambda: {r.key for r in lost if r.key in {
                e.key for e in remote.runs('end') if e.pid != victim}}
            == {r.key for r in lost} - {
                e.key for e in remote.runs('end') if e.pid == victim}
            and [r for r in remote.runs() if r.key in {
                x.key for x in lost} and r.pid != victim],
            SESSION + 12, 'the lost runs were not repeated')
    print('repeated after', [f'{r.at - killed:.2f}' for r in again])
    for run in again:
        first = next(r for r in lost if r.key == run.key)
        assert run.attempt == 2
        assert run.fence > first.fence


def test_a_worker_that_is_asked_to_stop_repeats_and_loses_nothing(remote):
    remote.set(takes=0.5, objects=40, spacing=6)
    with remote.observe('default') as workers:
        goes, _ = [remote.start('worker') for _ in range(2)]
        workers.wait_members(2)
        remote.start('scheduler')
        remote.wait_complete(1, timeout=40)
        count = len(remote.runs())
        waiting.wait_until(lambda: len(remote.runs()) > count + 4, 20,
                           'the next tick did not begin')
        goes.terminate()
        assert goes.wait() == 0
        ticks = remote.wait_complete(2, timeout=40)

    runs = [r for r in remote.runs() if r.tick in ticks]
    assert not doubled(runs)
    waiting.wait_until(
        lambda: {r.key for r in runs} <= {r.key for r in remote.runs('end')},
        10, 'runs that began did not end')


def test_a_scheduler_whose_workers_are_gone_does_not_wait_for_them(remote):
    """The scheduler detects the loss of its workers while it stops, and logs
    the work that it leaves.
    """
    remote.set(takes=20, timeout=60, objects=8, spacing=30)
    with remote.observe() as group, remote.observe('default') as workers:
        worker = remote.start('worker')
        workers.wait_members(1)
        scheduler = remote.start('scheduler')
        group.wait_members(1)
        waiting.wait_until(remote.runs, 40, 'nothing began')
        scheduler.terminate()
        # It owns nothing any more, but stays in its group until its work ends.
        waiting.wait_until(
            lambda: not any(one.points for one in group.now.members), 2)
        assert scheduler.process.poll() is None
        worker.kill()

        assert scheduler.wait(3 * SESSION + 5) == 0
    # The scheduler ended by itself, and was not killed after a timeout.
    [line] = scheduler.logged('stopped before the end')
    assert int(line['objects']) > 0


def test_a_worker_that_hangs_leaves_though_the_broker_stands_still(
        tmp_path, zookeeper, breakable_rabbitmq):
    """If a hanging worker did not leave its group, the schedulers would treat
    it as alive until its session expires.
    """
    hang = ','.join(f'192.168.10.{n}:hang' for n in range(1, 5))
    made = Cluster(
        tmp_path, zookeeper.url, breakable_rabbitmq.url, objects=8,
        pool_size=4, session_timeout=40, behaves=hang)
    made.default['graceful_shutdown_timeout'] = 4
    made.set()
    try:
        with made.observe('default') as workers:
            made.start('scheduler')
            worker = made.start('worker')
            workers.wait_members(1)
            waiting.wait_until(
                lambda: len({r.object for r in made.runs()} & {
                    f'192.168.10.{n}' for n in range(1, 5)}) == 4, 40)
            breakable_rabbitmq.freeze()
            worker.terminate()
            # Long before its session expires.
            waiting.within(25, lambda: not workers.now.members,
                           'it has not left')
    finally:
        breakable_rabbitmq.thaw()
        made.close()


def test_while_the_broker_is_away_nothing_hangs(
        tmp_path, zookeeper, breakable_rabbitmq):
    broker = breakable_rabbitmq
    remote = Cluster(tmp_path, zookeeper.url, broker.url,
                     objects=20, session_timeout=10)
    try:
        with remote.observe() as group:
            remote.start('worker')
            scheduler = remote.start('scheduler')
            group.wait_members(1)
            remote.wait_complete(2, timeout=40)
            broker.kill()
            away = time.time()
            waiting.wait_until(
                lambda: remote.logged('not sent'), 20,
                'no process noticed that the broker is down')
            # The scheduler is still a member and still starts ticks, so it
            # does not wait for the broker.
            assert len(group.now.members) == 1
            broker.start()
            back = time.time()
            remote.wait_complete(3, after=back, timeout=60)
            scheduler.terminate()
            assert scheduler.wait() == 0
        print(f'away {back - away:.1f} s; the first complete tick '
              f'{remote.complete_ticks()[-3] - back:.1f} s after')
    finally:
        remote.close()
