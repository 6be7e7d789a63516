# SPDX-License-Identifier: Apache-2.0
"""An operator drains a member, pauses a job and promotes a worker.

The group has two schedulers, and two workers of a partition of which one is
active. The program prints each ``distperiodic`` command with its answer, and
then waits until the members have obeyed. At the end it prints the record of
all actions.

The program needs a broker and a coordination service. One Redis server is
enough for both::

    TRANSPORT_URL=redis://localhost BACKEND_URL=redis://localhost \
        python run.py
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import distperiodic

HERE = pathlib.Path(__file__).parent
SECONDS = 3
CONFIG = """\
[DEFAULT]
transport_url = {transport_url}
[distperiodic]
group = control
backend_url = {backend_url}
connection = sqlite:///{place}/claims.sqlite
state_path = {place}/state
dispatcher = messaging
session_timeout = 6
[partition:licence]
mode = standby
"""


class Licensed(distperiodic.PeriodicTasks):

    @distperiodic.periodic_task(spacing=0.5, scope='group', topic='licence')
    def use_licence(self, context):
        journal = os.open(os.environ['JOURNAL'],
                          os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, f'{os.getpgrp()} {time.time()}\n'.encode())
        os.close(journal)


class Cluster:
    """Processes of one group, and the journal of its handler."""

    def __init__(self):
        place = pathlib.Path(tempfile.mkdtemp(prefix='control-'))
        self.journal = place / 'journal'
        self.journal.touch()
        self.config = place / 'service.conf'
        self.config.write_text(CONFIG.format(
            place=place, transport_url=os.environ['TRANSPORT_URL'],
            backend_url=os.environ['BACKEND_URL']))
        self.processes = []

    def command(self, *words):
        return [sys.executable, '-m', 'distperiodic.cmd.shell', *words,
                '--config-file', self.config]

    def start(self, *words):
        self.processes.append(subprocess.Popen(
            [*self.command(*words), '--tasks', 'run:Licensed'], cwd=HERE,
            env=os.environ | {'JOURNAL': str(self.journal)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True))

    def ask(self, *words):
        """Run a distperiodic command, and return its output."""
        return subprocess.run(
            self.command(*words), cwd=HERE, check=True, text=True,
            stdout=subprocess.PIPE).stdout

    def order(self, *words):
        """Run a distperiodic command, and print it with its output."""
        print('$ distperiodic', *words)
        print(self.ask(*words), end='')

    def rows(self, *words):
        return json.loads(self.ask(*words, '-f', 'json'))

    def runs(self, since=0.0):
        """Return (pid of the launcher, seconds) of each run after *since*."""
        lines = [line.split() for line
                 in self.journal.read_text().splitlines()]
        return [(int(pid), float(at)) for pid, at in lines
                if float(at) > since]

    def close(self):
        for process in self.processes:
            # Kill the launcher and the process that it launched.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(condition):
    """Wait until a condition is true, and return its value."""
    while not (found := condition()):
        time.sleep(0.1)
    return found


def roles(cluster):
    """Return the active and the standby worker, by role."""
    return {one['partition_role']: one['member']
            for one in cluster.rows('member', 'list')
            if one['partition_role']}


def pause(cluster):
    """Pause and resume the job. Return True if it did not run in between."""
    cluster.order('job', 'pause', 'use_licence', '--reason', 'licence ends')
    # A run that was claimed before the pause may still begin.
    time.sleep(1.0)
    paused = time.time()
    time.sleep(SECONDS)
    stopped = not cluster.runs(paused)
    cluster.order('job', 'resume', 'use_licence')
    until(lambda: cluster.runs(paused))
    return stopped


def drain(cluster):
    """Drain a scheduler, and wait until the other scheduler claims."""
    first = next(one['member'] for one in cluster.rows('member', 'list')
                 if one['role'] == 'scheduler')
    cluster.order('member', 'drain', first, '--schedulers', '--reason',
                  'new kernel')
    drained = time.time()
    until(lambda: cluster.runs(drained))
    cluster.order('member', 'undrain', first, '--schedulers')
    return True


def promote(cluster):
    """Make the standby worker active, and wait until it runs the job."""
    (before, _), = cluster.runs()[-1:]
    other = until(lambda: roles(cluster).get('standby'))
    cluster.order('partition', 'promote', 'licence', other)
    until(lambda: cluster.runs()[-1][0] != before)
    until(lambda: roles(cluster).get('active') == other)
    return True


def main():
    cluster = Cluster()
    try:
        cluster.ask('db', 'sync')
        cluster.start('scheduler')
        cluster.start('scheduler')
        cluster.start('worker', '--partition', 'licence')
        cluster.start('worker', '--partition', 'licence')
        until(cluster.runs)
        until(lambda: len(cluster.rows('member', 'list')) == 4)
        done = pause(cluster) and drain(cluster) and promote(cluster)
        events = cluster.rows('events')
        print(f'{len(events)} actions are on record:')
        for event in reversed(events):
            print(f'  {event["what"]} {event["target"]}: '
                  f'{event["outcome"]}')
        return int(not done)
    finally:
        cluster.close()


if __name__ == '__main__':
    raise SystemExit(main())
