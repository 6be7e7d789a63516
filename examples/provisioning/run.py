# SPDX-License-Identifier: Apache-2.0
"""Provision 30 instances while the scheduler is killed several times.

No server is needed: the tasks are in an SQLite file. At the end the program
compares the results of the tasks with the instances that exist.
"""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from oslo_config import cfg

from distperiodic import tasks

HERE = pathlib.Path(__file__).parent
INSTANCES = 30
KILLS = 3
CONFIG = """\
[distperiodic]
group = provisioning
state_path = {place}
session_timeout = 2
lease = 3
workflows = {here}/workflows.yaml
"""


def scheduler(config):
    """Start a process that runs the commands."""
    return subprocess.Popen(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'scheduler',
         '--tasks', 'modules:Modules', '--config-file', config],
        cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)


def kill(process):
    """Kill a scheduler: the launcher and the process that it launched."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main():
    place = pathlib.Path(tempfile.mkdtemp(prefix='provisioning-'))
    config = place / 'service.conf'
    config.write_text(CONFIG.format(place=place, here=HERE))
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(config)])
    client = tasks.Client(conf)
    # Every tenth instance is too large, so its task fails and is rolled back.
    ids = [client.submit('create_instance', {
        'Name': f'db{n}', 'Cpu': 4, 'Memory': 8,
        'Storage': 5000 if n % 10 == 9 else 500}, key=f'create db{n}')
        for n in range(INSTANCES)]
    process = scheduler(config)

    def ended():
        return sum(client.get(id_).ended for id_ in ids)

    for _ in range(KILLS):
        before = ended()
        # A fast host may have ended all tasks before the last kill.
        while ended() == before < INSTANCES:
            time.sleep(0.05)
        kill(process)
        print('the scheduler is killed (kill -9), and another one starts')
        process = scheduler(config)
    found = [client.wait(id_, 120) for id_ in ids]
    process.terminate()
    process.wait()
    return account(found, place / 'hosts')


def account(found, hosts):
    """Print the results of the tasks. Return 0 if they match the hosts."""
    statuses = collections.Counter(task.status.value for task in found)
    for status, number in sorted(statuses.items()):
        print(f'{number:3} tasks {status}')
    expected = {task.parameters['Name'] for task in found
                if task.status == 'succeeded'}
    exists = {path.name for path in hosts.iterdir()}
    print(f'{len(exists):3} instances exist; '
          + ('exactly those of the tasks that succeeded'
             if exists == expected else
             f'wrong ones: {sorted(exists ^ expected)}'))
    failed = next(task for task in found if task.status == 'failed')
    print(f'a task that failed: {failed.message}')
    return int(exists != expected or len(statuses) != 2)


if __name__ == '__main__':
    raise SystemExit(main())
