# SPDX-License-Identifier: Apache-2.0
"""Redis instead of RabbitMQ: a scheduler sends work through streams.

Two workers run the work, and one of them is killed. The claims are in the
store, so no work is lost if a message is lost with the worker.

The program needs a Redis server, for messages and for the membership of the
group::

    REDIS_URL=redis://localhost python run.py
"""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import distperiodic

HERE = pathlib.Path(__file__).parent
HOSTS, TICKS = 20, 6
# Seconds after which the program gives up.
LIMIT = 60
CONFIG = """\
[DEFAULT]
transport_url = {redis}
[distperiodic]
group = redis-bus
backend_url = {redis}
connection = sqlite:///{place}/claims.sqlite
state_path = {place}/state
dispatcher = messaging
session_timeout = 3
lease = 4
"""


class Pings(distperiodic.PeriodicTasks):

    def hosts(self, context):
        return [f'host-{number}' for number in range(HOSTS)]

    @distperiodic.periodic_task(spacing=1, objects='hosts', misfire='all',
                                overlap='wait')
    def ping(self, context, host):
        journal = os.open(os.environ['JOURNAL'],
                          os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # Write one line for each start and each end, in one write.
        for event in ('begin', 'end'):
            os.write(journal, f'{event} {context.tick.timestamp()} {host} '
                              f'{os.getpgrp()}\n'.encode())
            time.sleep(0.05)
        os.close(journal)


class Cluster:
    """Processes of one group, and the journal of its handler."""

    def __init__(self):
        place = pathlib.Path(tempfile.mkdtemp(prefix='redis-bus-'))
        self.journal = place / 'journal'
        self.journal.touch()
        self.config = place / 'service.conf'
        self.config.write_text(CONFIG.format(
            place=place, redis=os.environ['REDIS_URL']))
        self.run('db', 'sync').wait()
        self.processes = []

    def run(self, *command):
        return subprocess.Popen(
            [sys.executable, '-m', 'distperiodic.cmd.shell', *command,
             '--config-file', self.config], cwd=HERE,
            env=os.environ | {'JOURNAL': str(self.journal)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)

    def start(self, *command):
        self.processes.append(self.run(*command, '--tasks', 'run:Pings'))

    def events(self, event):
        """Return (tick, host, pid of the launcher) of each *event*."""
        lines = [line.split() for line
                 in self.journal.read_text().splitlines()]
        return [(tick, host, int(pid)) for found, tick, host, pid in lines
                if found == event]

    def complete(self):
        """Return the ticks that have ended for all hosts, in order."""
        hosts = collections.defaultdict(set)
        for tick, host, _ in self.events('end'):
            hosts[tick].add(host)
        return sorted(tick for tick, found in hosts.items()
                      if len(found) == HOSTS)

    def wait_ticks(self, number):
        until(lambda: len(self.complete()) >= number,
              f'fewer than {number} ticks ended')

    def wait_workers(self, number):
        until(lambda: len({pid for *_, pid
                           in self.events('begin')}) >= number,
              f'fewer than {number} workers ran')

    def kill(self, pid):
        """Kill a launcher and the process that it launched."""
        os.killpg(pid, signal.SIGKILL)

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                self.kill(process.pid)
            process.wait()


def until(condition, what):
    """Wait until a condition is true. Give up after LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f'WRONG: {what} within {LIMIT} s')
        time.sleep(0.05)


def main():
    if not os.environ.get('REDIS_URL'):
        print('REDIS_URL is not set; set it to the URL of a server, such as '
              'redis://localhost', file=sys.stderr)
        return 2
    cluster = Cluster()
    try:
        cluster.start('scheduler')
        cluster.start('worker')
        cluster.start('worker')
        cluster.wait_workers(2)
        cluster.wait_ticks(2)
        victim = cluster.processes[-1].pid
        cluster.kill(victim)
        print('a worker was killed (kill -9)')
        cluster.wait_ticks(TICKS)
        return account(cluster.complete(), cluster.events('begin'), victim)
    finally:
        cluster.close()


def account(ticks, begun, victim):
    """Print the numbers of ticks and runs. Return 0 if there is no fault.

    :param ticks: Ticks that have ended for all hosts, in order.
    :param begun: (tick, host, pid) of each run, in order.
    :param victim: pid of the worker that was killed.
    """
    # The first tick may begin before the workers have started.
    times = [round(float(tick)) for tick in ticks]
    missing = set(range(times[0], times[-1])) - set(times)
    runs = collections.defaultdict(list)
    for tick, host, pid in begun:
        runs[tick, host].append(pid)
    repeated = {key: pids for key, pids in runs.items() if len(pids) > 1}
    # An object may run twice for a tick only if its first run was lost with
    # the killed worker.
    wrong = {key: pids for key, pids in repeated.items()
             if pids[:-1] != [victim]}
    print(f'{len(ticks)} ticks of {HOSTS} hosts ended, {len(missing)} are '
          f'missing; {len(repeated) - len(wrong)} runs of the killed worker '
          'ran again')
    for (tick, host), pids in wrong.items():
        print(f'WRONG: {host} ran {len(pids)} times for tick {tick}, by '
              f'{pids}, but {victim} was the killed worker')
    if missing:
        print(f'WRONG: the ticks {sorted(missing)} are missing')
    return int(bool(missing or wrong))


if __name__ == '__main__':
    raise SystemExit(main())
