# SPDX-License-Identifier: Apache-2.0
"""One active worker and two standby workers.

The program kills the active worker, and then freezes its successor. The
handler uses a licence that only one process may use at a time. The output
shows how long the licence was unused, and that no two processes used it at the
same time.

The program needs a broker and a coordination service. One Redis server is
enough for both::

    TRANSPORT_URL=redis://localhost BACKEND_URL=redis://localhost \
        python run.py
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import distperiodic

HERE = pathlib.Path(__file__).parent
SESSION = 3
CONFIG = """\
[DEFAULT]
transport_url = {transport_url}
[distperiodic]
group = standby
backend_url = {backend_url}
connection = sqlite:///{place}/claims.sqlite
state_path = {place}/state
dispatcher = messaging
session_timeout = {session}
[partition:licence]
mode = standby
"""


class Licensed(distperiodic.PeriodicTasks):

    @distperiodic.periodic_task(spacing=0.5, scope='group', topic='licence')
    def use_licence(self, context):
        journal = os.open(os.environ['JOURNAL'],
                          os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # Each begin and each end is one line, and one write.
        for event in ('begin', 'end'):
            if context.is_current():
                os.write(journal, f'{event} {os.getpgrp()} '
                                  f'{time.time()}\n'.encode())
            time.sleep(0.05)
        os.close(journal)


class Cluster:
    """Processes of one group, and the journal of its handler."""

    def __init__(self):
        place = pathlib.Path(tempfile.mkdtemp(prefix='standby-'))
        self.journal = place / 'journal'
        self.journal.touch()
        self.config = place / 'service.conf'
        self.config.write_text(CONFIG.format(
            place=place, session=SESSION,
            transport_url=os.environ['TRANSPORT_URL'],
            backend_url=os.environ['BACKEND_URL']))
        self.run('db', 'sync').wait()
        self.processes = {}

    def run(self, *command):
        return subprocess.Popen(
            [sys.executable, '-m', 'distperiodic.cmd.shell', *command,
             '--config-file', self.config], cwd=HERE,
            env=os.environ | {'JOURNAL': str(self.journal)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)

    def start(self, *command):
        process = self.run(*command, '--tasks', 'run:Licensed')
        self.processes[process.pid] = process

    def signal(self, pid, number):
        """Send a signal to a launcher and to the process it launched."""
        os.killpg(pid, number)

    def events(self):
        """Return (event, pid of the launcher, seconds) for each line."""
        lines = [line.split() for line
                 in self.journal.read_text().splitlines()]
        return [(event, int(pid), float(at)) for event, pid, at in lines]

    def wait_active(self, *but):
        """Wait until a worker other than *but* is active; return its pid."""
        while True:
            for event, pid, _ in self.events()[-1:]:
                if event == 'end' and pid not in but:
                    return pid
            time.sleep(0.02)

    def close(self):
        for pid, process in self.processes.items():
            if process.poll() is None:
                self.signal(pid, signal.SIGKILL)
            process.wait()


def main():
    cluster = Cluster()
    try:
        cluster.start('scheduler')
        for _ in range(3):
            cluster.start('worker', '--partition', 'licence')
        first = cluster.wait_active()
        cluster.signal(first, signal.SIGKILL)
        killed = time.time()
        second = cluster.wait_active(first)
        print(f'the active worker was killed (kill -9), and another was '
              f'active {gap(cluster, second, killed):.1f} s later')
        cluster.signal(second, signal.SIGSTOP)
        frozen = time.time()
        third = cluster.wait_active(first, second)
        print(f'the active worker was frozen, and another was active '
              f'{gap(cluster, third, frozen):.1f} s later')
        cluster.signal(second, signal.SIGCONT)
        time.sleep(2 * SESSION)
        return account(cluster.events(), third)
    finally:
        cluster.close()


def gap(cluster, pid, since):
    """Return the seconds from *since* until this worker's first run."""
    return next(at for event, found, at in cluster.events()
                if found == pid and event == 'begin') - since


def account(events, last):
    """Print the number of uses of the licence.

    Return 0 if no worker used it again after another one had used it.
    """
    users = [pid for event, pid, _ in events if event == 'begin']
    turns = [pid for before, pid in zip([None, *users], users, strict=False)
             if pid != before]
    print(f'the licence was used {len(users)} times, by '
          f'{len(set(users))} workers, one after the other; the frozen worker '
          'was a standby worker after it resumed' if turns[-1] == last
          and len(turns) == len(set(turns)) else
          f'several workers used the licence in turn: {turns}')
    return int(turns[-1] != last or len(turns) != len(set(turns)))


if __name__ == '__main__':
    raise SystemExit(main())
