# SPDX-License-Identifier: Apache-2.0
"""A partition with one active worker, and standby workers that can take over.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.schema import connect
from distperiodic.core.standby import Role
from distperiodic.operator import partitions
from distperiodic.operator.group_reader import GroupStore
from tests import forks
from tests import members
from tests import programs
from tests import proxy
from tests import waiting
from tests.functional.cluster import Cluster

SESSION = 4

OWN = '''
import pathlib
import distperiodic

class Own(distperiodic.PeriodicTasks):
    def hosts(self, context):
        raise AssertionError('only schedulers list objects')

    @distperiodic.periodic_task(spacing=0.5, objects='hosts')
    def ping(self, context, host):
        pathlib.Path('{record}').touch()
'''


#: Run a test with each kind of store. Tests without this decorator use only
#: one kind.
STORES = pytest.mark.parametrize(
    'cluster', ['sqlite', 'postgresql', 'mariadb'], indirect=True)


@pytest.fixture
def cluster(request, tmp_path, zookeeper, rabbitmq):
    """Return a cluster with one scheduler. The test starts the workers."""
    kind = getattr(request, 'param', 'postgresql')
    url = f'sqlite:///{tmp_path}/claims.sqlite' if kind == 'sqlite' else (
        request.getfixturevalue(kind).url)
    schema.sync(url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=url,
        session_timeout=SESSION, spacing=1, objects=4, takes=0.02,
        misfire='all', overlap='wait')
    made.set_section('partition:default', mode='standby')
    scheduler = made.start('scheduler')
    # From now on the test may change the file that the workers read.
    waiting.wait_until(lambda: scheduler.logged('scheduler'), 30)
    yield made
    made.close()


def row_of(cluster):
    """Return the partition as the store has it."""
    with contextlib.closing(GroupStore(
            cluster.options['connection'], cluster.group)) as store:
        return partitions.partition(store, 'default')


def active_since(cluster):
    """Return when the active worker became active, in seconds by the clock of
    the store.

    The first run of the worker begins later, because a scheduler must send it.
    """
    return row_of(cluster).since / 1e6


def promote(cluster, member):
    with contextlib.closing(GroupStore(
            cluster.options['connection'], cluster.group)) as store:
        return partitions.promote(
            store, 'default', member, by='op@host', within=SESSION)


def pids(cluster, after=0.0):
    """Return the processes that began runs later than *after*."""
    return {run.pid for run in cluster.runs() if run.at > after}


def wait_pids(cluster, after, timeout=20.0):
    return waiting.wait_until(
        lambda: pids(cluster, after), timeout,
        f'nothing runs; see the logs in {cluster.place}', interval=0.02)


def turns(cluster):
    """Return how many runs began in a different process than the run before.
    """
    begun = sorted(cluster.runs(), key=lambda run: run.at)
    return sum(one.pid != other.pid
               for one, other in itertools.pairwise(begun))


def writes(cluster, pid):
    """Return whether a process is writing to a store in a SQLite file."""
    url = sa.make_url(cluster.options['connection'])
    if url.get_backend_name() != 'sqlite':
        return False
    store = pathlib.Path(url.database)
    files = {str(path.stat().st_ino)
             for path in store.parent.glob(f'{store.name}*')}
    locks = [line.split() for line in pathlib.Path(
        '/proc/locks').read_text().splitlines() if f' WRITE {pid} ' in line]
    return any(part.rpartition(':')[2] in files
               for lock in locks for part in lock)


def freeze(cluster, worker):
    """Suspend a worker while it neither writes to a SQLite store nor is about
    to call a handler.

    A worker that is suspended inside a transaction of SQLite blocks all other
    processes. A thread that is suspended just before it calls a handler begins
    the run when it resumes. Tests of a freeze must avoid these known limits.

    :returns: Seconds since the epoch, just before the worker was suspended.
    """
    return members.freeze(worker.pid, lambda: (
        cluster.is_between_ticks() and not writes(cluster, worker.pid)))


class Worker:
    """One worker process of the partition."""

    def __init__(self, cluster):
        self.program = cluster.start('worker')
        waiting.wait_until(
            lambda: self.program.logged('partition standby')
            or self.program.logged('partition active'),
            30, 'the worker does not take part in the election')
        self.pid, = self.program.children
        self.member = self.program.logged('worker')[0]['member']

    @property
    def active(self):
        """Number of times that the worker became active."""
        return len(self.program.logged('partition active'))

    def kill(self):
        self.program.kill()


def start(cluster, number):
    """Start workers. Return the active one, and a list of the others."""
    made = [Worker(cluster)]
    waiting.wait_until(lambda: made[0].active, 10, 'no worker is active')
    return made[0], [Worker(cluster) for _ in range(number - 1)]


@STORES
def test_one_worker_runs_everything_and_another_takes_over_in_time(cluster):
    first, others = start(cluster, 3)
    cluster.wait_complete(3, after=time.time())
    assert pids(cluster) == {first.pid}

    first.kill()
    killed = time.time()
    second, = wait_pids(cluster, killed + 0.1)

    taken = active_since(cluster)
    print(f'taken over after {taken - killed:.2f} s, session {SESSION} s')
    # The simulation checks the exact limit. A lease lasts a minute.
    assert taken - killed <= 3 * SESSION
    cluster.wait_complete(2, after=time.time())
    assert pids(cluster, killed + 0.1) == {second}
    assert turns(cluster) == 1
    assert row_of(cluster).fence == 2


def test_a_worker_that_stops_hands_over_at_once(cluster):
    first, _ = start(cluster, 2)
    cluster.wait_complete(1, after=time.time())

    first.program.terminate()
    first.program.wait()
    stopped = time.time()
    assert len(wait_pids(cluster, stopped)) == 1

    assert active_since(cluster) - stopped < SESSION / 2
    assert [one.process for one in row_of(cluster).workers] == [
        row_of(cluster).active]


@STORES
def test_a_frozen_worker_that_wakes_starts_nothing_and_stands_by(cluster):
    first, (other,) = start(cluster, 2)
    cluster.wait_complete(1, after=time.time())

    frozen = freeze(cluster, first)
    assert wait_pids(cluster, frozen + 0.1) == {other.pid}
    # Long before the leases of its runs end.
    assert active_since(cluster) - frozen <= 3 * SESSION
    woken = time.time()
    os.kill(first.pid, signal.SIGCONT)

    waiting.wait_until(
        lambda: first.program.logged('partition lost'), 20)
    cluster.wait_complete(2, after=time.time())
    assert pids(cluster, woken) == {other.pid}
    assert turns(cluster) == row_of(cluster).fence - 1 == 1


def test_a_chosen_worker_becomes_active_once_the_runs_have_ended(cluster):
    """The chosen worker may have been active before, and have died."""
    cluster.set(takes=0.4)
    first, (other,) = start(cluster, 2)
    waiting.wait_until(lambda: cluster.runs('end'), 20)

    first.kill()
    wait_pids(cluster, time.time() + 0.1)
    again = Worker(cluster)
    cluster.wait_complete(1, after=time.time())
    assert not again.active, 'it was not asked to'
    promote(cluster, again.member)
    waiting.wait_until(lambda: again.active, 20)

    begun = cluster.wait_begun(after=time.time())
    assert {run.pid for run in begun} == {again.pid}
    last = max(run.at for run in cluster.runs('end') if run.pid == other.pid)
    assert last <= min(run.at for run in cluster.runs()
                       if run.pid == again.pid), 'two ran at a time'
    assert turns(cluster) == row_of(cluster).fence - 1 == 2
    assert row_of(cluster).promoted == ''


def test_a_handler_that_hangs_delays_a_choice_for_a_lease_at_most(cluster):
    lease = 6
    cluster.set(takes=600, timeout=1, lease=lease)
    first, (other,) = start(cluster, 2)
    waiting.wait_until(
        lambda: first.program.logged('run timed out'), 30)
    promote(cluster, other.member)
    asked = time.time()
    waiting.wait_until(lambda: other.active, lease + 10)

    # A worker begins no run after it has begun to release the partition.
    wait_pids(cluster, asked + lease)
    assert pids(cluster, asked + 1) == {other.pid}
    assert turns(cluster) == row_of(cluster).fence - 1 == 1


def test_a_worker_that_hands_over_cannot_be_chosen(cluster):
    cluster.set(takes=4)
    first, (other,) = start(cluster, 2)
    waiting.wait_until(lambda: cluster.runs(), 20)

    promote(cluster, other.member)
    waiting.wait_until(lambda: Role.STOPPING in {
        one.role for one in row_of(cluster).workers
        if one.identity == first.member}, 10)
    with pytest.raises(exceptions.ConfigError, match='is stopping'):
        promote(cluster, first.member)
    waiting.wait_until(lambda: other.active, 20)


def test_only_a_worker_that_stands_by_can_be_chosen(cluster):
    first, (other,) = start(cluster, 2)

    with pytest.raises(exceptions.ConfigError, match=(
            f"no worker 'elsewhere:1' .*'{first.member}', "
            f"'{other.member}'")):
        promote(cluster, 'elsewhere:1')


def test_without_zookeeper_the_active_worker_goes_on_and_no_other_takes_over(
        cluster):
    with proxy.Proxy.before(cluster.backend_url) as way:
        cluster.set(backend_url=way.url)
        cluster.programs.pop().kill()
        cluster.start('scheduler')
        first, _ = start(cluster, 3)
        cluster.wait_complete(1, after=time.time())
        with way.being('drop'):
            away = time.time()
            waiting.wait_until(
                lambda: time.time() > away + 2 * SESSION, 3 * SESSION)
        back = time.time()
        cluster.wait_complete(2, after=back)

    assert row_of(cluster).fence == 1
    assert pids(cluster) == {first.pid}


def test_a_worker_whose_heartbeat_arrives_stays_active_out_of_its_group(
        cluster):
    """While the heartbeats of the active worker reach the store, only an
    operator can move the partition.
    """
    with proxy.Proxy.before(cluster.backend_url) as way:
        cluster.set(backend_url=way.url)
        first = Worker(cluster)
        waiting.wait_until(lambda: first.active, 10)
        cluster.set(backend_url=cluster.backend_url)
        other = Worker(cluster)
        cluster.wait_complete(1, after=time.time())
        with way.being('drop'), cluster.observe('default') as seen:
            seen.wait_members(1)
            gone = time.time()
            waiting.wait_until(
                lambda: time.time() > gone + SESSION, 2 * SESSION)
            assert row_of(cluster).fence == 1

            promote(cluster, other.member)
            assert wait_pids(cluster, time.time() + 1) == {other.pid}
    assert turns(cluster) == row_of(cluster).fence - 1 == 1


def test_a_worker_that_loses_the_store_alone_stays_active(cluster):
    """Without the store the active worker starts no run, and no other worker
    takes over.
    """
    direct = cluster.options['connection']
    with proxy.Proxy.before(direct) as way:
        cluster.set(connection=way.url)
        first = Worker(cluster)
        waiting.wait_until(lambda: first.active, 10)
        cluster.set(connection=direct)
        Worker(cluster)
        cluster.wait_complete(1, after=time.time())
        with way.being('drop'):
            away = time.time()
            waiting.wait_until(
                lambda: time.time() > away + 2 * SESSION, 3 * SESSION)
            assert row_of(cluster).left < 0
        cluster.wait_complete(1, after=time.time(), timeout=60)

    assert row_of(cluster).fence == 1
    assert pids(cluster) == {first.pid}


def test_a_worker_with_another_mode_does_not_run_beside_the_active_one(
        cluster):
    first, _ = start(cluster, 2)
    cluster.set_section('partition:default', mode='shared')
    wrong = cluster.start('worker')

    waiting.wait_until(lambda: wrong.logged('the worker has stopped'), 30)
    line = wrong.logged('the worker has stopped')[0]
    assert 'mode = standby for' in line.text
    assert first.member in line.text
    wrong.kill()
    cluster.wait_complete(1, after=time.time())
    assert pids(cluster) == {first.pid}


def test_a_worker_does_not_become_active_beside_one_with_another_mode(
        cluster):
    cluster.set(takes=3, spacing=4)
    cluster.set_section('partition:default', mode='shared')
    shared = cluster.start('worker')
    waiting.wait_until(lambda: cluster.runs(), 30)
    pid, = shared.children
    cluster.set_section('partition:default', mode='standby')
    first = Worker(cluster)
    line, = waiting.wait_until(
        lambda: first.program.logged('partition shared'), 20)
    assert line['workers'] == shared.logged('worker')[0]['member']
    assert pids(cluster) == {pid}

    # The worker finishes its runs, and schedulers send it no more work.
    shared.terminate()
    shared.wait()

    waiting.wait_until(lambda: first.active, 10)
    wait_pids(cluster, time.time())
    last = max(run.at for run in cluster.runs('end') if run.pid == pid)
    assert last < min(r.at for r in cluster.runs() if r.pid == first.pid)


@contextlib.contextmanager
def both_ways(cluster):
    """Yield proxies to the store and to ZooKeeper. Processes that start later
    use the proxies, unless the test changes the options again.
    """
    with (proxy.Proxy.before(cluster.options['connection']) as to_store,
          proxy.Proxy.before(cluster.backend_url) as to_zookeeper):
        cluster.set(connection=to_store.url, backend_url=to_zookeeper.url)
        yield to_store, to_zookeeper


def recorded(cluster):
    """Return the identities of all workers that have a row."""
    with contextlib.closing(connect(cluster.options['connection'])) as found:
        return {row.worker.rpartition('~')[0] for row in found.read(
            lambda connection: connection.execute(
                sa.select(tables.partition_worker.c.worker).where(
                    tables.partition_worker.c.space == cluster.group)
            ).all())}


def test_a_worker_with_another_mode_that_is_not_in_its_group_yet_counts(
        cluster):
    """The worker has started, and the store has a row of it."""
    direct = cluster.options['connection']
    with both_ways(cluster) as (_, to_zookeeper):
        cluster.set_section('partition:default', mode='shared')
        with to_zookeeper.being('drop'):
            shared = cluster.start('worker')
            waiting.wait_until(lambda: shared.logged('worker'), 30)
            member = shared.logged('worker')[0]['member']
            waiting.wait_until(lambda: member in recorded(cluster), 30)
            cluster.set(connection=direct, backend_url=cluster.backend_url)
            cluster.set_section('partition:default', mode='standby')
            waits = Worker(cluster)
            line = waiting.wait_until(
                lambda: waits.program.logged('partition shared'), 20)[0]
            assert line['workers'] == member
            # Wait until the last heartbeat no longer counts.
            begun = time.time()
            waiting.wait_until(
                lambda: time.time() > begun + 2 * SESSION, 3 * SESSION)
        cluster.wait_complete(2, after=time.time(), timeout=60)

    assert pids(cluster) == set(shared.children)
    assert not waits.active


def test_a_worker_with_another_mode_that_lost_both_signs_of_life_waits(
        cluster):
    """When the worker reconnects, it starts no run until the active worker is
    gone.
    """
    direct = cluster.options['connection']
    with both_ways(cluster) as (to_store, to_zookeeper):
        cluster.set_section('partition:default', mode='shared')
        shared = cluster.start('worker')
        waiting.wait_until(lambda: cluster.runs(), 30)
        own, = shared.children
        cluster.set(connection=direct, backend_url=cluster.backend_url)
        cluster.set_section('partition:default', mode='standby')
        waits = Worker(cluster)
        waiting.wait_until(
            lambda: waits.program.logged('partition shared'), 20)
        with to_store.being('drop'), to_zookeeper.being('drop'):
            waiting.wait_until(lambda: waits.active, 5 * SESSION)
            active = time.time()
        waiting.wait_until(
            lambda: shared.logged('partition not shared'), 60)
        cluster.wait_complete(2, after=time.time(), timeout=60)
        assert pids(cluster, active) == {waits.pid}

        waits.program.terminate()
        waits.program.wait()
        assert wait_pids(cluster, time.time(), 60) == {own}
    assert turns(cluster) == 2


def test_a_handler_that_only_its_worker_can_load_runs_there(
        cluster, tmp_path):
    """The command line of the worker names no class."""
    (tmp_path / 'own_handlers.py').write_text(OWN.format(
        record=tmp_path / 'own.txt'))
    cluster.set_section('partition:default',
                        handler='own_handlers:Own')
    with forks.Program(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', 'worker',
             '--config-file', cluster.config], tmp_path / 'own.log',
            cwd=tmp_path, env=os.environ | {
                'PYTHONPATH': str(programs.ROOT)}):
        waiting.wait_until((tmp_path / 'own.txt').exists, 30)
    assert cluster.runs() == [], 'the class of the scheduler has run it'


@pytest.mark.timeout(300)
@pytest.mark.parametrize('rounds', [
    3, pytest.param(6, marks=pytest.mark.full)])
def test_two_workers_are_never_active_when_processes_are_frozen_or_killed(
        cluster, rounds):
    """If two workers were active, their runs would alternate more often than
    the fence grows.
    """
    draw = random.Random(12)
    first, others = start(cluster, 3)
    workers = [first, *others]
    for _ in range(rounds):
        row = row_of(cluster)
        wait_pids(cluster, time.time())
        active = next((one for one in workers if row.active.startswith(
            f'{one.member}~')), workers[0])
        victim = draw.choice([active, active, draw.choice(workers)])
        if draw.random() < 0.5:
            victim.kill()
            workers.remove(victim)
            workers.append(Worker(cluster))
        else:
            freeze(cluster, victim)
            until = time.time() + draw.uniform(0.5, 2.0) * SESSION
            waiting.wait_until(
                lambda until=until: time.time() > until, 3 * SESSION)
            os.kill(victim.pid, signal.SIGCONT)
    cluster.wait_complete(2, after=time.time())

    # A worker that was suspended sends its next heartbeat soon.
    row = waiting.wait_until(lambda: (
        lambda row: len(row.present(SESSION)) == 3 and row)(row_of(cluster)))
    print(f'{row.fence - 1} take-overs, {turns(cluster)} turns')
    assert 1 < turns(cluster) <= row.fence - 1


def test_a_drained_worker_hands_its_partition_over(cluster):
    first, (other,) = start(cluster, 2)

    def ask(*words):
        return subprocess.run(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', 'member',
             *words, first.member, '--partition', 'default',
             '--config-file', cluster.config], text=True,
            capture_output=True, check=True)

    ask('drain')
    waiting.wait_until(lambda: other.active, 20, 'it kept the partition')
    assert set(wait_pids(cluster, time.time())) == {other.pid}

    ask('undrain')
    other.kill()
    waiting.wait_until(lambda: first.active == 2, 30, 'it did not rejoin')


def test_the_commands_show_the_active_worker_and_move_the_partition(cluster):
    first, (other,) = start(cluster, 2)

    def call(*words):
        return subprocess.run(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', *words,
             '--config-file', cluster.config], text=True,
            capture_output=True, check=False)

    def command(*words):
        return call('partition', *words)

    def examined():
        found = json.loads(call('doctor', '-f', 'json').stdout)
        return {one['check']: one['result'] for one in found
                if one['area'] == 'health'}

    waiting.wait_until(lambda: examined() == {'group_health': 'ok'}, 20)
    status = json.loads(call('status', '-f', 'json').stdout)
    assert {one['member']: one['role'] for one in status
            if one['partition']} == {
                first.member: 'worker, active',
                other.member: 'worker, standby'}
    waiting.wait_until(lambda: {
        one['member']: one['partition_role'] for one in json.loads(
            call('member', 'list', '-f', 'json').stdout)
        if one['partition_role']} == {
            first.member: 'active', other.member: 'standby'}, 20)
    listed = command('list', '-f', 'csv', '--quote', 'minimal').stdout
    name, mode, active, *_, standby, moves = listed.splitlines()[1].split(',')
    assert (name, mode, active, standby, moves) == (
        'default', 'standby', first.member, '1', '1')
    done = command('promote', 'default', other.member)
    assert done.stdout == (
        f'{other.member} is next; {first.member} releases the partition when '
        'its runs have ended\n')
    waiting.wait_until(lambda: other.active, 20)
    waiting.wait_until(lambda: [
        one.role for one in row_of(cluster).workers].count(
            Role.STANDBY) == 1, 10)
    shown = json.loads(command('show', 'default', '-f', 'json').stdout)
    assert {one['worker']: one['state'] for one in shown} == {
        first.member: 'standby', other.member: 'active'}
    wrong = command('promote', 'default', 'nobody', '--reason', 'a try')
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1
    records = json.loads(call('events', '-f', 'json').stdout)
    assert sorted((one['what'], one['target'], one['why'] or '')
                  for one in records) == [
        ('partition promote', 'default', ''),
        ('partition promote', 'default', 'a try')]
    first.program.terminate()
    first.program.wait()
    waiting.wait_until(
        lambda: examined() == {'partition-alone': 'warn'}, 20)
