# SPDX-License-Identifier: Apache-2.0
"""One active worker and two standby workers.

The program kills the active worker, and then freezes its successor. The
handler uses a licence that only one process may use at a time. The program
checks that no two processes used the licence at the same time, and that the
next worker took over in time.

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
SESSION, SPACING = 3, 0.5
# Maximum number of seconds from the kill or the freeze to the first run of the
# next worker. This worker becomes active within the session timeout + 1 s, and
# its first tick follows.
TAKE_OVER = SESSION + 1 + SPACING
# Seconds after which the program gives up.
LIMIT = 60
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

    @distperiodic.periodic_task(spacing=SPACING, scope='group',
                                topic='licence')
    def use_licence(self, context):
        journal = os.open(os.environ['JOURNAL'],
                          os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # Write one line for each start and each end, in one write.
        for event in ('begin', 'end'):
            # Another worker may have taken over while this worker was frozen.
            if not context.is_current():
                break
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
        """Send a signal to a launcher and to the process that it launched."""
        os.killpg(pid, number)

    def events(self):
        """Return (event, pid of the launcher, time in seconds) for each line.
        """
        lines = [line.split() for line
                 in self.journal.read_text().splitlines()]
        return [(event, int(pid), float(at)) for event, pid, at in lines]

    def wait_active(self, *but):
        """Wait until a worker other than *but* is active; return its pid."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            for event, pid, _ in self.events()[-1:]:
                if event == 'end' and pid not in but:
                    return pid
            time.sleep(0.02)
        raise SystemExit(f'no other worker was active within {LIMIT} s')

    def close(self):
        for pid, process in self.processes.items():
            if process.poll() is None:
                self.signal(pid, signal.SIGKILL)
            process.wait()


def main():
    for name in ('TRANSPORT_URL', 'BACKEND_URL'):
        if not os.environ.get(name):
            print(f'{name} is not set; set it to the URL of a server, such '
                  'as redis://localhost', file=sys.stderr)
            return 2
    cluster = Cluster()
    try:
        cluster.start('scheduler')
        for _ in range(3):
            cluster.start('worker', '--partition', 'licence')
        first = cluster.wait_active()
        cluster.signal(first, signal.SIGKILL)
        killed = time.time()
        second = cluster.wait_active(first)
        gaps = [gap(cluster.events(), second, killed)]
        print(f'the active worker was killed (kill -9), and another was '
              f'active {gaps[0]:.1f} s later')
        cluster.signal(second, signal.SIGSTOP)
        frozen = time.time()
        third = cluster.wait_active(first, second)
        gaps.append(gap(cluster.events(), third, frozen))
        print(f'the active worker was frozen, and another was active '
              f'{gaps[1]:.1f} s later')
        cluster.signal(second, signal.SIGCONT)
        time.sleep(2 * SESSION)
        return account(cluster.events(), [first, second, third], gaps)
    finally:
        cluster.close()


def gap(events, pid, since):
    """Return the seconds from *since* until the first run of this worker."""
    return next(at for event, found, at in events
                if found == pid and event == 'begin') - since


def uses(events):
    """Return [pid, begin, end] of each use of the licence.

    The end is None if a kill or a freeze interrupted the use, or if the use is
    still in progress.
    """
    found = []
    for event, pid, at in events:
        if event == 'begin':
            found.append([pid, at, None])
        else:
            next(use for use in reversed(found) if use[0] == pid)[2] = at
    return found


def faults(events, workers, gaps):
    """Return the faults, as a list of sentences.

    :param workers: Pids of the active workers, in order. All except the last
        one were killed or frozen.
    :param gaps: Seconds from each kill or freeze to the first use by the next
        worker.
    """
    found = uses(events)
    wrong = []
    for number, (pid, _, end) in enumerate(found):
        for other, its_begin, _ in found[number + 1:]:
            if end is not None and its_begin < end:
                wrong.append(f'{other} used the licence before {pid} ended')
    for worker in workers:
        own = [end for pid, _, end in found if pid == worker]
        # Only the last use may have been interrupted.
        if None in own[:-1]:
            wrong.append(f'a use by {worker} has no end')
    turns = [pid for before, (pid, *_) in zip(
        [None, *(use[0] for use in found)], found, strict=False)
             if pid != before]
    if turns != workers:
        wrong.append(f'{turns} used the licence in turn, not {workers}')
    wrong += [f'the next worker was active after {seconds:.1f} s instead of 0 '
              f'to {TAKE_OVER} s' for seconds in gaps
              if not 0 <= seconds <= TAKE_OVER]
    return wrong


def account(events, workers, gaps):
    """Print the number of uses of the licence. Return 0 if all is right."""
    if wrong := faults(events, workers, gaps):
        print('WRONG:', *wrong, sep='\n  ')
        return 1
    print(f'the licence was used {len(uses(events))} times, by {len(workers)} '
          'workers, one after the other; the frozen worker was a standby '
          'worker after it resumed')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
