# SPDX-License-Identifier: Apache-2.0
"""Two processes serve two ordered queues, and one process is killed.

Each queue runs one task at a time, in the order of submission. No server is
needed: the processes find each other through a directory, and the tasks are in
an SQLite file. The README describes how to use servers.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from oslo_config import cfg

from distperiodic import PeriodicTasks
from distperiodic import tasks

HERE = pathlib.Path(__file__).parent
QUEUES = ('oracle', 'mysql')
TASKS = 15
# Seconds after which the program gives up.
LIMIT = 120
CONFIG = """\
[distperiodic]
group = {group}
state_path = {place}/state
session_timeout = 2
lease = 3
"""
FILES = """\
backend_url = file://{place}/members
connection = sqlite:///{place}/tasks.sqlite
"""
SERVERS = """\
dispatcher = messaging
backend_url = {BACKEND_URL}
connection = {CONNECTION}
[DEFAULT]
transport_url = {TRANSPORT_URL}
"""
VARIABLES = ('BACKEND_URL', 'CONNECTION', 'TRANSPORT_URL')


class ControlPlane(PeriodicTasks):

    @tasks.command('database', 'change')
    def change(self, context, parameters):
        # Write one line for each start and each end, in one write.
        journal = os.open(parameters['journal'],
                          os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for event in ('begin', 'end'):
            os.write(journal, f'{event} {os.getpgrp()} {parameters["queue"]} '
                              f'{parameters["number"]}\n'.encode())
            time.sleep(0.05)
        os.close(journal)


class Group:
    """Processes that serve the queues."""

    def __init__(self, place):
        self.journal = place / 'journal'
        self.journal.touch()
        self.config = place / 'service.conf'
        # Several runs of this program may use the same servers, so each run
        # has a group of its own.
        config = CONFIG.format(group=place.name, place=place)
        self.commands = [['scheduler']] * 2
        if given := [name for name in VARIABLES if os.environ.get(name)]:
            if len(given) < len(VARIABLES):
                print(f'{", ".join(given)} without the others; set all of '
                      f'{", ".join(VARIABLES)}, or none', file=sys.stderr)
                raise SystemExit(2)
            config += SERVERS.format(**os.environ)
            self.commands += [['worker', '--partition', 'database']] * 2
        else:
            config += FILES.format(place=place)
        self.config.write_text(config)
        if subprocess.run(self.command('db', 'sync'),
                          stdout=subprocess.DEVNULL).returncode:
            # The command has printed the reason.
            raise SystemExit(2)
        self.processes = []

    def command(self, *words):
        return [sys.executable, '-m', 'distperiodic.cmd.shell', *words,
                '--config-file', self.config]

    def start(self):
        self.processes = [subprocess.Popen(
            [*self.command(*words), '--tasks', 'run:ControlPlane'], cwd=HERE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True) for words in self.commands]

    def lines(self):
        return self.journal.read_text().splitlines()

    def kill(self, number):
        """Kill a launcher and the process that it launched."""
        process = self.processes[number]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with self.journal.open('a') as journal:
            journal.write(f'killed {process.pid}\n')

    def close(self):
        for number, process in enumerate(self.processes):
            if process.poll() is None:
                self.kill(number)


def main():
    group = Group(pathlib.Path(tempfile.mkdtemp(prefix='ordered-queue-')))
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(group.config)])
    client = tasks.Client(conf)
    ids = [client.submit(
        'database.change', {'queue': queue, 'number': number,
                            'journal': str(group.journal)},
        queue=queue) for number in range(TASKS) for queue in QUEUES]
    end = time.monotonic() + LIMIT
    try:
        group.start()
        while len(group.lines()) < 16 and time.monotonic() < end:
            time.sleep(0.02)
        # If servers are used, kill a worker, too.
        for number in range(0, len(group.processes), 2):
            group.kill(number)
            print(f'one of two {group.commands[number][0]}s is killed '
                  '(kill -9)')
        found = [client.wait(id_, max(0, end - time.monotonic()))
                 for id_ in ids]
        lines = group.lines()
    finally:
        group.close()
        client.close()
    open_tasks = [task for task in found if task.status != 'succeeded']
    for task in open_tasks:
        print(f'WRONG: task {task.parameters["number"]} of queue {task.queue} '
              f'is {task.status} after {LIMIT} s')
    return int(account(lines) or bool(open_tasks))


def account(lines):
    """Print the runs of each queue. Return 0 if they were in order."""
    killed = {line.split()[1] for line in lines if line.startswith('killed')}
    wrong = []
    for queue in QUEUES:
        # (pid, number) of all runs, and of the runs that have not ended.
        begun, open_runs, found = [], [], []
        for event, pid, *rest in map(str.split, lines):
            if event == 'killed':
                open_runs = [run for run in open_runs if run[0] != pid]
            elif rest[0] == queue:
                run = (pid, int(rest[1]))
                if event == 'begin':
                    found += [f'{queue}: task {run[1]} began before task '
                              f'{number} had ended' for _, number in open_runs]
                    begun.append(run)
                    open_runs.append(run)
                else:
                    open_runs = [one for one in open_runs if one != run]
        found += [f'{queue}: a run of task {number} has no end'
                  for _, number in open_runs]
        numbers = [number for _, number in begun]
        if (numbers != sorted(numbers)
                or sorted(set(numbers)) != list(range(TASKS))):
            found.append(f'{queue}: the tasks ran in the order {numbers}')
        # A task whose process was killed runs again, before the next task.
        found += [f'{queue}: task {number} ran again, but its process was not '
                  'killed' for (pid, number), (_, following) in zip(
                      begun, begun[1:], strict=False)
                  if number == following and pid not in killed]
        print(f'queue {queue}: {len(set(numbers))} tasks, '
              f'{len(numbers) - len(set(numbers))} run again')
        wrong += found
    if wrong:
        print('WRONG:', *wrong, sep='\n  ')
        return 1
    print('all tasks ran in order, one at a time; only tasks of the killed '
          'process ran again')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
