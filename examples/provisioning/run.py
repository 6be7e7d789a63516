# SPDX-License-Identifier: Apache-2.0
"""Provision 30 instances while processes are killed several times.

At the end the program checks the instances, the quota, the events and the runs
of all commands. No server is needed: the tasks are in an SQLite file. The
README describes how to use servers.
"""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from account import faults
from cloud import Cloud
from oslo_config import cfg

from distperiodic import tasks

HERE = pathlib.Path(__file__).parent
INSTANCES, KILLS = 30, 3
QUOTA = 100_000
# Seconds after which the program gives up.
LIMIT = 120
# By the last digit of a task's number: the parameters of the task, and the
# step that fails.
TOO_MUCH = {3: ({'Cpu': 64}, 0), 6: ({'Memory': 1}, 1),
            9: ({'Storage': 5000}, 2)}
CONFIG = """\
[distperiodic]
group = {group}
state_path = {place}
session_timeout = 2
lease = 3
workflows = {here}/workflows.yaml
"""
SERVERS = """\
dispatcher = messaging
backend_url = {BACKEND_URL}
connection = {CONNECTION}
[DEFAULT]
transport_url = {TRANSPORT_URL}
"""
VARIABLES = ('BACKEND_URL', 'CONNECTION', 'TRANSPORT_URL')


class Group:
    """Processes that run the commands."""

    def __init__(self, place):
        self.place = place
        self.journal = place / 'journal'
        self.journal.touch()
        self.config = place / 'service.conf'
        # Several runs of this program may use the same servers, so each run
        # has a group of its own.
        config = CONFIG.format(group=place.name, place=place, here=HERE)
        self.commands = [['scheduler']]
        if given := [name for name in VARIABLES if os.environ.get(name)]:
            if len(given) < len(VARIABLES):
                print(f'{", ".join(given)} without the others; set all of '
                      f'{", ".join(VARIABLES)}, or none', file=sys.stderr)
                raise SystemExit(2)
            config += SERVERS.format(**os.environ)
            self.commands += [['worker', '--partition', module]
                              for module in ('resource', 'mysql', 'monitor')]
        self.config.write_text(config)
        if given and subprocess.run(
                self.command('db', 'sync'),
                stdout=subprocess.DEVNULL).returncode:
            # The command has printed the reason.
            raise SystemExit(2)
        self.processes = []

    def command(self, *words):
        return [sys.executable, '-m', 'distperiodic.cmd.shell', *words,
                '--config-file', self.config]

    def start(self, words):
        return subprocess.Popen(
            [*self.command(*words), '--tasks', 'modules:Modules'], cwd=HERE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)

    def start_all(self):
        self.processes = [self.start(words) for words in self.commands]

    def replace(self, number):
        """Kill a process, and start another one in its place."""
        number %= len(self.processes)
        pid = self.processes[number].pid
        self.kill(number)
        with self.journal.open('a') as journal:
            journal.write(f'killed {pid}\n')
        name = self.commands[number][0]
        print(f'a {name} is killed (kill -9), and another one starts')
        self.processes[number] = self.start(self.commands[number])

    def kill(self, number):
        """Kill a launcher and the process that it launched."""
        os.killpg(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()

    def close(self):
        for number, process in enumerate(self.processes):
            if process.poll() is None:
                self.kill(number)


def main():
    group = Group(pathlib.Path(tempfile.mkdtemp(prefix='provisioning-')))
    cloud = Cloud(group.place / 'cloud.sqlite')
    cloud.create(QUOTA)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(group.config)])
    client = tasks.Client(conf)
    fails = {}
    for number in range(INSTANCES):
        changes, step = TOO_MUCH.get(number % 10, ({}, None))
        id_ = client.submit('create_instance', {
            'Name': f'db{number}', 'Cpu': 4, 'Memory': 8, 'Storage': 500,
            **changes}, key=f'create db{number}')
        fails[id_] = step
    end = time.monotonic() + LIMIT

    def ended():
        return sum(task.ended for task in client.list(limit=INSTANCES))

    try:
        group.start_all()
        for number in range(KILLS):
            before = ended()
            # On a fast host, all tasks may have ended before the last kill.
            while ended() == before < INSTANCES and time.monotonic() < end:
                time.sleep(0.05)
            group.replace(number)
        found = [client.wait(id_, max(0, end - time.monotonic()))
                 for id_ in fails]
    finally:
        group.close()
        client.close()
    return account(found, faults(found, fails, QUOTA, cloud,
                                 group.journal.read_text().splitlines()))


def account(found, wrong):
    """Print the results of the tasks. Return 0 if nothing is wrong."""
    statuses = collections.Counter(task.status.value for task in found)
    for status, number in sorted(statuses.items()):
        print(f'{number:3} tasks {status}')
    if wrong:
        print('WRONG:', *wrong, sep='\n  ')
        return 1
    print('the instances, the quota and the events are those of these tasks;\n'
          'each failed task was rolled back in reverse order, from the step '
          'that failed;\nno step was skipped, and no two runs of a task '
          'overlapped')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
