# SPDX-License-Identifier: Apache-2.0
"""A scheduler and its workers with a real Redis between them, also during
faults.

No run is lost or doubled.
"""

import collections
import threading
import time

import pytest
import redis as client
from oslo_config import cfg

from distperiodic import opts
from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.sql import schema
from tests import services
from tests import waiting
from tests.functional import judged
from tests.functional.cluster import Cluster
from tests.functional.test_control import ask as command
from tests.functional.test_control_bus import seconds_until_the_answer
from tests.logged import lines
from tests.services import ports

AWAY = 6.0
OBJECTS = [f'object-{n}' for n in range(8)]
SPACING = 2
# Maximum duration of any action on a loaded machine, in seconds.
LONG = 120.0


class Group:
    """A scheduler and two workers of each partition in this process, with a
    record of their runs.

    :param partitions: URL of the broker of each partition.
    """

    def __init__(self, place, url, **partitions):
        self.place = place
        self.url = url
        self.partitions = partitions
        #: Number of runs of each (job, object, tick).
        self.runs = collections.Counter()
        self._lock = threading.Lock()
        self.started = []
        store = f'sqlite:///{place}/claims.sqlite'
        schema.sync(store)
        self._file = place / 'service.conf'
        self._file.write_text(''.join((
            f'[DEFAULT]\ntransport_url = {url}\n[distperiodic]\n'
            f'backend_url = file://{place}/group\nconnection = {store}\n'
            'dispatcher = messaging\nlease = 15\nsend_timeout = 2\n'
            'session_timeout = 5\ncoordinator_heartbeat_interval = 0.2\n'
            'signing_key = a-key\n', *(
                f'[partition:{name}]\ntransport_url = {own}\n'
                for name, own in partitions.items()))))

    def ran(self, context, objects):
        with self._lock:
            for one in objects:
                self.runs[context.job, one, context.tick.timestamp()] += 1

    def start(self, *topics):
        group = self

        class Tasks(periodic.PeriodicTasks):
            """One job for each partition."""

        for topic in topics:
            def run(self, context, one):
                time.sleep(0.02)
                group.ran(context, [one])
            run.__name__ = f'ping_{topic}'
            setattr(Tasks, run.__name__, periodic.periodic_task(
                spacing=SPACING, objects='listed', misfire='all',
                overlap='wait', topic=topic)(run))
        Tasks.listed = lambda self, context: OBJECTS
        for number, (kind, topic) in enumerate(
                [('scheduler', None)] + [('worker', t) for t in topics * 2]):
            conf = cfg.ConfigOpts()
            conf([], default_config_files=[str(self._file)])
            drivers.url_of(conf)
            opts.register_opts(conf)
            conf.set_override('member_id', f'{kind}-{number}', opts.GROUP)
            tasks = Tasks(conf)
            one = (service.SchedulerService(conf, tasks) if topic is None
                   else service.WorkerService(conf, tasks, topic))
            self.started.append(one)
            one.start()

    def complete(self, topic='default'):
        """Return the ticks of a job that ran for all objects, in order."""
        with self._lock:
            ticks = collections.Counter(
                tick for job, _, tick in self.runs
                if job.endswith(f'ping_{topic}'))
        return sorted(tick for tick, number in ticks.items()
                      if number == len(OBJECTS))

    def wait_complete(self, ticks, after=0.0, topic='default'):
        return waiting.wait_until(
            lambda: (lambda found: len(found) >= ticks and found)(
                [tick for tick in self.complete(topic)
                 if tick > after]), LONG,
            f'no {ticks} complete ticks of {topic}', interval=0.1)

    def assert_kept(self, first, last, topic='default'):
        """Check that each object ran once for each tick from *first* to
        *last*.
        """
        found = {(one, tick): number
                 for (job, one, tick), number in self.runs.items()
                 if job.endswith(f'ping_{topic}') and first <= tick <= last}
        ticks = range(round(first), round(last) + 1, SPACING)
        assert [key for key in (
            (one, tick) for tick in ticks for one in OBJECTS)
            if found.get(key) != 1] == []
        assert len(found) == len(ticks) * len(OBJECTS)

    def stop(self):
        for one in reversed(self.started):
            one.stop()
            one.wait()


@pytest.fixture
def group(tmp_path, redis_server):
    made = Group(tmp_path, f'{redis_server.url}/0')
    try:
        yield made
    finally:
        made.stop()


def ask(server, *command):
    with client.Redis.from_url(server.url) as connection:
        return connection.execute_command(*command)


def kill(server):
    server.kill()
    time.sleep(AWAY)
    server.start()


def kill_and_wipe(server):
    server.kill()
    time.sleep(AWAY)
    server.wipe()
    server.start()


def freeze(server):
    server.freeze()
    time.sleep(AWAY)
    server.thaw()


def pause_clients(server):
    ask(server, 'CLIENT', 'PAUSE', int(AWAY * 1000), 'ALL')
    time.sleep(AWAY)


def flush(server):
    for _ in range(3):
        ask(server, 'FLUSHALL')
        time.sleep(1.0)


# The tests of the bus have the other faults in the default run, too.
FAULTS = [kill_and_wipe, freeze, *(
    pytest.param(fault, marks=pytest.mark.full)
    for fault in (kill, pause_clients, flush))]


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault.__name__)
def test_nothing_is_lost_or_doubled(group, redis_server, fault):
    group.start('default')
    first = group.wait_complete(2)[0]

    fault(redis_server)
    last = group.wait_complete(3, after=time.time())[-1]

    group.assert_kept(first, last)


def test_streams_do_not_grow_and_end_with_their_processes(
        group, redis_server):
    group.start('default')
    group.wait_complete(5)
    with client.Redis.from_url(redis_server.url) as connection:
        keys = connection.keys('distperiodic.*')
        streams = [key for key in keys if not key.endswith(b'.hearers')]
        assert len(streams) == 3
        waiting.wait_until(
            lambda: not any(map(connection.xlen, streams)), LONG,
            'messages are left')

        group.stop()
        group.started.clear()

        assert connection.keys('distperiodic.*') == []


def test_a_broker_of_a_partition_holds_up_its_own_partition_only(
        tmp_path, redis, redis_server):
    group = Group(tmp_path, f'{redis.url}/0', other=f'{redis_server.url}/0')
    try:
        group.start('default', 'other')
        first = group.wait_complete(2, topic='other')[0]
        begun = group.wait_complete(2)[0]

        redis_server.kill()
        at = time.time()
        last = group.wait_complete(3, after=at)[-1]
        assert [tick for tick in group.complete('other')
                if tick > at + SPACING] == []
        redis_server.start()
        back = group.wait_complete(3, after=time.time(), topic='other')[-1]

        group.assert_kept(begun, last)
        group.assert_kept(first, back, topic='other')
    finally:
        group.stop()


def test_a_broker_of_a_partition_that_is_away_holds_up_no_start(
        tmp_path, redis, redis_server, caplog):
    redis_server.kill()
    group = Group(tmp_path, f'{redis.url}/0', other=f'{redis_server.url}/0')
    try:
        group.start('default', 'other')
        group.wait_complete(2)
        # The default partition does not wait for the timeout of the other
        # partition's broker.
        waiting.wait_until(
            lambda: lines(caplog, 'bus of a partition not started'), 30)
        line, *_ = lines(caplog, 'bus of a partition not started')
        assert line['partition'] == 'other'

        redis_server.start()
        group.wait_complete(2, topic='other')
    finally:
        group.stop()


@pytest.fixture
def cluster(tmp_path, zookeeper, redis_server, postgresql):
    schema.sync(postgresql.url)
    cluster = Cluster(
        tmp_path, zookeeper.url, f'{redis_server.url}/0',
        connection=postgresql.url, lease=5, send_timeout=2, spacing=2,
        objects=40, takes=0.05, misfire='all', overlap='wait')
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_cluster_keeps_its_work_while_its_members_and_redis_die(
        cluster, redis_server):
    """The two schedulers and two workers are separate processes."""
    programs = [cluster.start(kind) for kind in (
        'scheduler', 'scheduler', 'worker', 'worker')]
    first = cluster.wait_complete(2, timeout=LONG)[0]

    redis_server.kill()
    victims = [program for program in (programs[0], programs[2])]
    pids = [pid for program in victims for pid in program.children]
    at = time.time()
    for program in victims:
        program.kill()
    redis_server.wipe()
    redis_server.start()
    last = cluster.wait_complete(3, after=time.time(), timeout=LONG)[-1]

    judged.assert_kept(cluster, first, last, stalls=judged.killed(pids, at))


# Seconds between two reads of the store by a member.
SWEEP = 10


@pytest.fixture
def behind_a_sentinel(tmp_path, zookeeper, postgresql):
    """Yield a group, and the Redis master and the replica that carry its
    messages.
    """
    schema.sync(postgresql.url)
    with services.redis_failover() as (master, replica, sentinel):
        cluster = Cluster(
            tmp_path, zookeeper.url,
            f'redis://{ports.HOST}:{sentinel.port}/0?sentinel=tests',
            connection=postgresql.url, session_timeout=2 * SWEEP,
            lease=4 * SWEEP, sweep_interval=SWEEP, send_timeout=2, spacing=2,
            objects=40, takes=0.05, misfire='all', overlap='wait')
        try:
            yield cluster, master, replica
        finally:
            cluster.close()


def role_of(server):
    """Return the role of a server. None means that it gave no answer: a
    replica that is promoted closes its connections.
    """
    try:
        with client.Redis.from_url(server.url) as connection:
            return connection.info('replication')['role']
    except client.ConnectionError:
        return None


def test_a_group_keeps_its_work_while_a_replica_is_promoted(
        behind_a_sentinel):
    """The two schedulers and two workers are separate processes. The sentinel
    promotes the replica of a killed master. After that, the commands of an
    operator reach all members over the promoted replica, before the next read
    of the store by a member.
    """
    cluster, master, replica = behind_a_sentinel
    for kind in ('scheduler', 'scheduler', 'worker', 'worker'):
        cluster.start(kind)
    first = cluster.wait_complete(2, timeout=LONG)[0]

    master.kill()
    waiting.wait_until(lambda: role_of(replica) == 'master', LONG,
                       'the replica was not promoted')
    last = cluster.wait_complete(3, after=time.time(), timeout=LONG)[-1]
    told = command(cluster, 'member', 'set', 'pool_size', '3', '--all')
    after = cluster.wait_complete(1, after=time.time(), timeout=LONG)[-1]

    assert told.count('pool_size is 3, at') == 4
    assert max(seconds_until_the_answer(cluster)) < SWEEP / 2
    assert last < after
    judged.assert_kept(cluster, first, after)
