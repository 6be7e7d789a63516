# SPDX-License-Identifier: Apache-2.0
"""A service without configuration keeps its claims in a file."""

import gc
import json
import pickle
import re
import subprocess
import sys
import threading
import time
import uuid

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.sql import schema
from tests import waiting
from tests.configured import configuration
from tests.functional import commands
from tests.functional import judged
from tests.functional.cluster import Cluster
from tests.logged import lines


@pytest.fixture
def alone(tmp_path):
    """Return one scheduler without a coordination service, a broker or a
    database.
    """
    made = Cluster(tmp_path, '', objects=6, spacing=1, pool_size=8,
                   misfire='all', overlap='wait')
    yield made
    made.close()


def store_of(cluster):
    return cluster.place / 'state' / f'{cluster.group}.sqlite'


def ask(cluster, *argv):
    return commands.call(*argv, '--config-file', cluster.config)


def under_way(cluster):
    ended = {r.key for r in cluster.runs('end')}
    return [r for r in cluster.runs() if r.key not in ended]


def test_runs_of_a_killed_process_are_done_by_the_next_process(alone):
    """Runs of a killed process are repeated for the same tick, long before
    their leases end.

    The next process also runs the ticks that came due between the two
    processes.
    """
    alone.set(takes=1.5, spacing=3)
    first = alone.start('scheduler')
    begin, = {run.tick for run in waiting.wait_until(
        lambda: under_way(alone), 30, 'nothing began')}
    pids = first.children
    first.kill()
    killed = time.time()
    lost = {run.key for run in under_way(alone)}
    done = {run.key for run in alone.runs('end')}
    assert lost

    waiting.wait_until(lambda: time.time() > killed + 4, 5, interval=0.2)
    again = alone.start('scheduler')
    end = alone.wait_complete(1, after=time.time())[-1]
    waiting.wait_until(lambda: not under_way(alone), 20,
                       'the runs in progress did not end')

    assert time.time() - killed < alone.options.get('lease', 60) / 2
    judged.assert_kept(alone, begin, end,
                       stalls=judged.killed(pids, killed))
    repeated = {r.key for r in alone.runs() if r.attempt > 1}
    # The store had granted some runs whose handlers were not called before the
    # kill.
    assert lost <= repeated
    assert not repeated & done
    assert {tick for _, _, tick in repeated} == {begin}
    again.terminate()
    assert again.wait() == 0
    for program in alone.programs:
        [line] = program.logged('scheduler')
        assert str(store_of(alone)) in line.text


def test_a_store_of_an_embedded_service_is_read_like_any_other(alone):
    told = ask(alone, 'history')
    assert told.returncode == 2
    assert str(store_of(alone)) in told.stderr
    assert '--config-file' in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert not store_of(alone).exists()

    alone.start('scheduler')
    alone.wait_complete(3)

    told = json.loads(ask(alone, 'history', '-f', 'json').stdout)
    assert {row['job'] for row in told} == {'ping', 'once'}
    told = json.loads(ask(alone, 'ring', 'explain', 'ping', '192.168.10.1',
                          '-f', 'json').stdout)
    # There is only one process.
    assert 'backend_url' in told['owner']
    assert told['last_served'].endswith('Z')
    assert ask(alone, 'doctor', '--offline').returncode == 0


def test_two_processes_with_one_file_share_the_ticks(alone):
    for _ in range(2):
        alone.start('scheduler')
    begin = alone.wait_complete(1, after=time.time())[0]

    end = alone.wait_complete(3, after=begin)[-1]

    judged.assert_kept(alone, begin, end)


def test_none_is_no_store(alone):
    alone.set(connection='none')
    alone.start('scheduler')
    alone.wait_complete(2)

    assert not store_of(alone).exists()
    told = ask(alone, 'history')
    assert told.returncode == 2
    for remedy in ('[distperiodic] connection', '[database] connection',
                   '--config-file'):
        assert remedy in told.stderr


def test_a_file_of_a_later_release_is_refused(alone):
    store_of(alone).parent.mkdir(0o700)
    url = f'sqlite:///{store_of(alone)}'
    schema.sync(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.update(sa.table(
            schema.VERSION_TABLE, sa.column('version_num'))).values(
                version_num='9999'))
    engine.dispose()

    alone.start('scheduler')

    [line] = waiting.wait_until(
        lambda: alone.logged('the store not started'), 20)
    for version in '9999', schema.VERSION:
        assert re.search(rf'\b{version}\b', line['reason'])


def test_a_directory_that_others_may_write_to_is_refused(alone):
    store_of(alone).parent.mkdir()
    store_of(alone).parent.chmod(0o777)

    alone.start('scheduler')

    refusal = (rf"ConfigError: .*'{store_of(alone).parent}' .*; .*"
               r'\[distperiodic\] state_path\b')
    waiting.wait_until(lambda: re.search(refusal, alone.logs()), 20)
    assert not store_of(alone).exists()


class Tasks(periodic.PeriodicTasks):
    """A job that runs once a second. ``ran`` contains its ticks."""

    def __init__(self, conf):
        super().__init__(conf)
        self.ran = []

    @periodic.periodic_task(spacing=1, name='poll')
    def work(self, context):
        self.ran.append(context.tick)


@pytest.fixture
def tasks(tmp_path):
    """Return the tasks of one service in this process."""
    return Tasks(configuration(state_path=str(tmp_path)))


@pytest.fixture
def scheduler(tasks):
    """Return a scheduler in this process, which the test starts."""
    made = service.SchedulerService(tasks.conf, tasks)
    yield made
    made.stop()


def test_the_collector_skips_the_objects_of_a_started_service(scheduler):
    """The objects of a started service are excluded from garbage collection,
    because a full collection would stop all threads in the middle of a tick.
    """
    gc.unfreeze()  # what tests/conftest.py has frozen
    scheduler.start()
    waiting.wait_until(gc.get_freeze_count, 20)

    scheduler.stop()

    waiting.wait_until(lambda: not gc.get_freeze_count(), 20)


def test_a_service_that_was_stopped_can_be_started_again(scheduler, tasks):
    ran = tasks.ran
    for _ in range(3):
        number = len(ran)
        scheduler.start()
        waiting.wait_until(lambda number=number: len(ran) > number + 1, 20)
        told = json.loads(json.dumps(scheduler.status()))
        assert told['healthy']
        assert told['problem'] is None
        assert told['pools']['-']['size'] == 10
        assert told['counts']['poll']['done'] > 0
        scheduler.stop()
        scheduler.wait()
        assert not scheduler.status()['healthy']

    assert len(ran) == len(set(ran))


@pytest.mark.parametrize('executor', ['thread', 'process'])
def test_a_stopped_service_leaves_no_thread_behind(host, tmp_path, executor):
    store = f'sqlite:///{tmp_path / "host.sqlite"}'
    schema.sync(store)
    conf = host(
        f'backend_url = file://{tmp_path / "groups"}\nconnection = {store}\n'
        'dispatcher = messaging\n[DEFAULT]\ntransport_url = fake:///\n'
        f'[partition:default]\nexecutor = {executor}\n')
    before = {*threading.enumerate()}
    tasks = Tasks(conf)
    scheduler = service.SchedulerService(conf, tasks)
    worker = service.WorkerService(conf, tasks)
    try:
        for one in scheduler, worker:
            one.start()
        waiting.wait_until(
            lambda: scheduler.status()['counts'].get('poll', {}).get('done'),
            30)
    finally:
        for one in scheduler, worker:
            one.stop()
            one.wait()

    waiting.wait_until(lambda: not [
        one.name for one in {*threading.enumerate()} - before
        if one.name.startswith('distperiodic')], 20)


@pytest.mark.parametrize('kind', [
    service.SchedulerService, service.WorkerService])
def test_a_service_that_was_not_started_has_a_status(host, kind):
    told = kind(conf := host(), Tasks(conf)).status()

    assert not told['healthy']
    assert told['problem']


def test_a_worker_reports_its_status(host, zookeeper, rabbitmq):
    conf = host(
        f'backend_url = {zookeeper.url}\ngroup = {uuid.uuid4().hex[:8]}\n'
        'connection = none\ndispatcher = messaging\n'
        f'[DEFAULT]\ntransport_url = {rabbitmq.url}\n')
    worker = service.WorkerService(conf, Tasks(conf))
    worker.start()
    try:
        waiting.wait_until(lambda: worker.status()['healthy'], 30)
        assert json.loads(json.dumps(worker.status())) == {
            'member': worker.member_id, 'healthy': True, 'problem': None,
            'pools': {'default': {
                'size': 10, 'busy': 0, 'hanging': 0, 'queued': 0}},
            'partition': 'default', 'runs': 0, 'role': None}
    finally:
        worker.stop()
    worker.wait()

    told = worker.status()
    assert not told['healthy']
    # The reported problem differs from that of a service that was never
    # started.
    assert told['problem'] not in (
        None, service.WorkerService(conf, Tasks(conf)).status()['problem'])


def test_a_service_can_be_sent_to_a_process_that_is_spawned(host, tmp_path):
    schema.sync(f'sqlite:///{tmp_path}/host.sqlite')
    conf = host()
    made = [service.SchedulerService(conf, Tasks(conf)),
            service.WorkerService(conf, Tasks(conf), 'disks')]

    scheduler, worker = pickle.loads(pickle.dumps(made))  # noqa: S301

    assert worker.status()['partition'] == 'disks'
    scheduler.start()
    try:
        waiting.wait_until(
            lambda: scheduler.status()['counts'].get('poll', {}).get('done'),
            30)
    finally:
        scheduler.stop()
        scheduler.wait()


def test_a_service_is_not_started_twice(scheduler):
    scheduler.start()

    with pytest.raises(exceptions.ConfigError, match=r'\bstop\(\)'):
        scheduler.start()


UNPATCHED = '''
from oslo_config import cfg
from oslo_service import service
from distperiodic import PeriodicTasks, exceptions
from distperiodic.service import SchedulerService

conf = cfg.ConfigOpts()
conf([])
try:
    SchedulerService(conf, PeriodicTasks(conf))
except exceptions.ConfigError as exc:
    print(exc)
'''


def test_eventlet_without_its_patches_is_refused_at_once():
    """If eventlet has not patched the threads, the service's threads would
    never run, and no message would report this.
    """
    told = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', UNPATCHED], cwd=commands.ROOT,
        capture_output=True, text=True, timeout=60)

    assert 'eventlet' in told.stdout, told.stderr
    assert 'init_backend(BackendType.THREADING)' in told.stdout


@pytest.fixture
def host(tmp_path):
    """Return a function that makes the options of a service with its own
    database.
    """
    path = tmp_path / 'host.conf'

    def host(more=''):
        path.write_text(
            f'[database]\nconnection = sqlite:///{tmp_path}/host.sqlite\n'
            f'[distperiodic]\nstate_path = {tmp_path}\n{more}')
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(path)])
        return conf
    return host


def test_tables_that_are_missing_are_waited_for_with_the_command_to_type(
        host, tmp_path, caplog):
    """If the scheduler ended because tables are missing, the service that
    embeds it would end, too.
    """
    tasks = Tasks(conf := host())
    scheduler = service.SchedulerService(conf, tasks)
    scheduler.start()
    try:
        [line, *_] = waiting.wait_until(
            lambda: lines(caplog, 'the store not started'), 20)
        assert '[database] connection' in line.text
        command = re.search(
            r'distperiodic (db sync --config-file \S+host.conf)',
            line.text)[1]
        assert commands.call(*command.split()).returncode == 0
        waiting.wait_until(lambda: tasks.ran, 30)
    finally:
        scheduler.stop()


@pytest.mark.parametrize(('more', 'told'), [
    ('', 'db sync --config-file .*host.conf; .*\\[database\\] connection'),
    ('dispatcher = messaging', 'backend_url .*; .*dispatcher = local'),
    ('dispatcher = messaging\nbackend_url = file:///tmp/x\nconnection = none',
     'transport_url .*; .*transport_url = '),
    ('backend_url = zookeper://h', "'zookeper'.*; .*zookeeper"),
    ('session_timeout = soon', 'session_timeout'),
])
def test_a_mistake_is_reported_before_the_fork(host, more, told):
    with pytest.raises(exceptions.ConfigError, match=told) as raised:
        service.check(conf := host(more), Tasks(conf))

    assert len(str(raised.value).splitlines()) == 1


def test_tasks_without_a_job_are_reported_before_the_fork(host):
    with pytest.raises(exceptions.ConfigError,
                       match='PeriodicTasks .*; .*periodic_task'):
        service.check(conf := host('connection = none'),
                      periodic.PeriodicTasks(conf))


def test_an_unreachable_server_is_no_mistake(host):
    service.check(conf := host('connection = none'), Tasks(conf))
    service.check(conf := host(
        'connection = postgresql://me:secret@127.0.0.1:1/db'), Tasks(conf))


class Hanging(Tasks):
    """Tasks with an additional job in another partition, which hangs."""

    def __init__(self, conf):
        super().__init__(conf)
        self.let_go = threading.Event()
        self.hang = 0

    def disks(self, context):
        return ['a', 'b', 'c', 'd', 'e']

    @periodic.periodic_task(spacing=1, objects='disks', topic='disks')
    def check(self, context, disk):
        self.hang += 1
        self.let_go.wait(60)


def test_handlers_that_hang_hold_up_no_other_partition(host):
    tasks = Hanging(conf := host('connection = none\npool_size = 2'))
    scheduler = service.SchedulerService(conf, tasks)
    scheduler.start()
    try:
        waiting.wait_until(lambda: tasks.hang == 2, 20)
        number = len(tasks.ran)
        waiting.wait_until(lambda: len(tasks.ran) > number + 2, 20)
        assert tasks.hang == 2
        assert scheduler.status()['pools']['disks'] == {
            'size': 2, 'busy': 2, 'hanging': 0, 'queued': 3}
    finally:
        tasks.let_go.set()
        scheduler.stop()
