# SPDX-License-Identifier: Apache-2.0
"""Two processes serve two ordered queues, and one process is killed.

Each queue runs one task at a time, in the order of submission. No server is
needed: the processes find each other through a directory, and the tasks are in
an SQLite file.
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
CONFIG = """\
[distperiodic]
group = ordered-queue
backend_url = file://{place}/members
connection = sqlite:///{place}/tasks.sqlite
state_path = {place}/state
session_timeout = 2
lease = 3
"""


class ControlPlane(PeriodicTasks):

    @tasks.command('database', 'change')
    def change(self, context, parameters):
        # Each begin and each end is one line, and one write.
        journal = os.open(parameters['journal'],
                          os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for event in ('begin', 'end'):
            os.write(journal, f'{event} {parameters["queue"]} '
                              f'{parameters["number"]}\n'.encode())
            time.sleep(0.05)
        os.close(journal)


def scheduler(config):
    """Start a process that serves the queues."""
    return subprocess.Popen(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'scheduler',
         '--tasks', 'run:ControlPlane', '--config-file', config],
        cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)


def kill(process):
    """Kill a scheduler: the launcher and the process that it launched."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main():
    place = pathlib.Path(tempfile.mkdtemp(prefix='ordered-queue-'))
    config = place / 'service.conf'
    config.write_text(CONFIG.format(place=place))
    subprocess.run(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'db', 'sync',
         '--config-file', config], check=True, stdout=subprocess.DEVNULL)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(config)])
    client = tasks.Client(conf)
    journal = place / 'journal'
    ids = [client.submit(
        'database.change',
        {'queue': queue, 'number': number, 'journal': str(journal)},
        queue=queue) for number in range(TASKS) for queue in QUEUES]
    first, second = (scheduler(config) for _ in range(2))
    while not journal.exists() or journal.read_text().count('end') < 8:
        time.sleep(0.02)
    kill(first)
    print('one of two schedulers is killed (kill -9)')
    found = [client.wait(id_, 120) for id_ in ids]
    second.terminate()
    second.wait()
    assert all(task.status == 'succeeded' for task in found)
    return account(journal.read_text().splitlines())


def account(lines):
    """Print the runs of each queue. Return 0 if they were in order."""
    wrong = 0
    for queue in QUEUES:
        events = [line.split() for line in lines if line.split()[1] == queue]
        begun = [int(number) for event, _, number in events
                 if event == 'begin']
        # A task whose process was killed runs again, before the next one.
        in_order = (begun == sorted(begun)
                    and sorted(set(begun)) == list(range(TASKS)))
        overlaps = sum(
            one[0] == other[0] == 'begin' and one[2] != other[2]
            for one, other in zip(events, events[1:], strict=False))
        print(f'queue {queue}: {len(set(begun))} tasks, '
              f'{len(begun) - len(set(begun))} run again, '
              f'{"in order" if in_order else "out of order"}, '
              f'{overlaps} overlaps')
        wrong += not in_order or overlaps
    return int(wrong > 0)


if __name__ == '__main__':
    raise SystemExit(main())
