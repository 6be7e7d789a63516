# SPDX-License-Identifier: Apache-2.0
"""The forked processes of a command, after SIGHUP and after configuration
errors.
"""

import os
import re
import signal
import time

import pytest

from tests import forks
from tests import programs
from tests import waiting
from tests.functional import commands
from tests.pauses import Pauses

#: So many objects that each of two members owns some, whatever their names.
HOSTS = 'abcdefghijklmnopqrstuvwx'

TASKS = f'''
import json, os, threading, time
from distperiodic import PeriodicTasks, periodic_task

class Tasks(PeriodicTasks):

    def hosts(self, context):
        return list({HOSTS!r})

    @periodic_task(spacing=1, objects='hosts')
    def ping(self, context, host):
        with open('record', 'a') as out:
            out.write(json.dumps([os.getpid(), host, time.time()]) + '\\n')

    @periodic_task(spacing=3600, run_immediately=True)
    def hang(self, context):
        open('hangs', 'w').close()
        threading.Event().wait()
'''


@pytest.fixture
def running(tmp_path, zookeeper):
    """Return a program with two scheduler processes. The handler of the job
    ``hang`` hangs in each of them.
    """
    (tmp_path / 'tasks.py').write_text(TASKS)
    (tmp_path / 'record').touch()
    write(tmp_path, zookeeper.url)
    with forks.Program(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', 'scheduler',
             '--config-file', tmp_path / 'service.conf', '--tasks',
             'tasks:Tasks', '--workers', 2], tmp_path / 'log', cwd=tmp_path,
            env=commands.ENVIRONMENT) as one:
        waiting.wait_until(
            lambda: (tmp_path / 'hangs').exists() and len(pids(tmp_path)) == 2,
            30, f'see {one.log}')
        yield one


def write(place, url, more=''):
    (place / 'service.conf').write_text(
        '[DEFAULT]\ngraceful_shutdown_timeout = 5\n'
        f'[distperiodic]\nbackend_url = {url}\nstate_path = {place}\n'
        f'group = g{place.name}\nsession_timeout = 4\n{more}')


def runs(place):
    return programs.records(place / 'record')


def pids(place, since=0.0):
    return {pid for pid, _, at in runs(place) if at > since}


def wait_changed(running, points):
    """Wait until both processes have logged the new number of points."""
    waiting.wait_until(
        lambda: [line['points'] for line in running.logged('points')] == [
            str(points)] * 2, 10, f'see {running.log}')


def test_options_are_read_again_without_a_pause(running, tmp_path, zookeeper):
    """Both processes read the options, although a handler hangs in each."""
    before = pids(tmp_path)
    write(tmp_path, zookeeper.url, 'hash_ring_replicas_count = 77\n')
    with Pauses() as pauses:
        hung_up = time.time()
        running.hang_up()
        wait_changed(running, 77)
        waiting.wait_until(
            lambda: max(at for _, _, at in runs(tmp_path)) > hung_up + 8, 20)

    assert pids(tmp_path, hung_up) == before
    for host in HOSTS:
        times = [at for _, key, at in runs(tmp_path)
                 if key == host and at > hung_up - 2]
        assert max(pauses.seconds(a, b) for a, b in zip(
            times, times[1:], strict=False)) < 3.5, host


@pytest.mark.parametrize(('mistake', 'told'), [
    ('nonsense\n', 'service.conf:8'),
    ('hash_ring_replicas_count = many\n', 'hash_ring_replicas_count'),
])
def test_a_mistake_in_the_file_ends_nothing(
        running, tmp_path, zookeeper, mistake, told):
    before = pids(tmp_path)
    write(tmp_path, zookeeper.url, mistake)
    running.hang_up()
    # The parent process and both child processes log it.
    waiting.wait_until(
        lambda: len(running.logged('options not read again')) == 3, 10,
        f'see {running.log}')
    mistaken = time.time()
    waiting.wait_until(lambda: pids(tmp_path, mistaken) == before, 10)
    assert all(told in line['reason']
               for line in running.logged('options not read again'))
    assert 'Traceback' not in running.said()

    write(tmp_path, zookeeper.url, 'hash_ring_replicas_count = 77\n')
    running.hang_up()
    wait_changed(running, 77)


def test_a_killed_process_is_replaced_with_the_options_read_last(
        running, tmp_path, zookeeper):
    write(tmp_path, zookeeper.url, 'hash_ring_replicas_count = 77\n')
    running.hang_up()
    wait_changed(running, 77)
    write(tmp_path, zookeeper.url, 'nonsense\n')
    running.hang_up()
    gone = sorted(pids(tmp_path))[0]
    os.kill(gone, signal.SIGKILL)
    killed = time.time()

    waiting.wait_until(
        lambda: len(pids(tmp_path, killed) - {gone}) == 2, 30,
        f'see {running.log}')


HOST = '''
import os, sys, threading
from oslo_service import backend
backend.init_backend(backend.BackendType.THREADING)
from oslo_config import cfg
from oslo_service import service
from distperiodic.service import SchedulerService, launch
from tasks import Tasks

def note(text):
    with open('notes', 'a') as out:
        out.write(f'{text} {os.getpid()}\\n')

class Own(service.Service):

    def start(self):
        super().start()
        self.over = threading.Event()
        note('start')

    def stop(self, graceful=False):
        note('stop')
        self.over.set()
        super().stop(graceful)

    def wait(self):
        while not self.over.wait(0.1):
            if os.path.exists('fail'):
                os.unlink('fail')
                raise RuntimeError('the disk is full')

    def reset(self):
        note('reset')
        super().reset()

conf = cfg.ConfigOpts()
conf(sys.argv[1:])
launch(conf, Own(), SchedulerService(conf, Tasks(conf)),
       workers=int(os.environ.get('WORKERS', '1')))
'''


@pytest.fixture
def host(tmp_path):
    """Return a function that starts a program with a service of its own and a
    scheduler.
    """
    (tmp_path / 'tasks.py').write_text(TASKS.replace(
        'threading.Event().wait()', 'pass'))
    (tmp_path / 'host.py').write_text(HOST)
    for name in 'record', 'notes':
        (tmp_path / name).touch()

    def start(config, workers=1):
        (tmp_path / 'service.conf').write_text(config)
        return programs.Program(
            [*programs.PYTHON, 'host.py', '--config-file', 'service.conf'],
            tmp_path / 'log', cwd=tmp_path, env={
                **commands.ENVIRONMENT, 'WORKERS': str(workers)})
    return start


def notes(place, text):
    return [line.split()[1] for line in
            (place / 'notes').read_text().splitlines() if text in line]


def test_a_service_of_ones_own_runs_beside_a_scheduler(host, tmp_path):
    """An error of one service ends the process of both, and a new process
    starts.
    """
    with host(f'[distperiodic]\nstate_path = {tmp_path}\n') as program:
        waiting.wait_until(lambda: pids(tmp_path), 30, 'nothing ran')
        [first] = notes(tmp_path, 'start')
        (tmp_path / 'fail').touch()
        waiting.wait_until(
            lambda: len(notes(tmp_path, 'start')) == 2, 30,
            'no other process')
        waiting.wait_until(
            lambda: len(pids(tmp_path)) == 2, 30, 'nothing ran again')
        second = notes(tmp_path, 'start')[-1]
        program.hang_up()
        waiting.wait_until(
            lambda: notes(tmp_path, 'reset') == [second], 10, 'no reset')
        program.terminate()
        assert program.wait() == 0

    assert first != second
    assert notes(tmp_path, 'stop') == [second]


@pytest.mark.parametrize(('config', 'workers', 'line'), [
    ('dispatcher = messaging', 1,
     r'\[distperiodic\] backend_url .*; .*dispatcher = local'),
    ('connection = sqlite:////nowhere/claims.sqlite', 1,
     r'/nowhere\b.* sqlite:////nowhere/claims.sqlite; .*db sync'),
    pytest.param(
        'connection = sqlite:///claims.sqlite', 1,
        r'sqlite:///claims.sqlite .*; .*db sync', marks=pytest.mark.full),
    ('', 2, r'\b2\b.* \[distperiodic\] backend_url .*; .*file:///')])
def test_a_mistake_ends_the_program_before_the_fork(
        host, tmp_path, config, workers, line):
    with host(f'[distperiodic]\nstate_path = {tmp_path}\n{config}\n',
              workers) as program:
        assert program.wait() == 1

    [told] = program.said().splitlines()
    assert re.match(f'scheduler: .*{line}', told)
    assert not notes(tmp_path, 'start')
    assert not (tmp_path / 'claims.sqlite').exists()
