# SPDX-License-Identifier: Apache-2.0
"""Two partitions in one process; the handlers of one hang.

Each partition has its own pool of threads, so the other partition continues.
The program prints how late the runs of the other partition began, before and
after the first partition hangs. No server is needed.
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
SECONDS = 5
INVOICES = 10
CONFIG = """\
[distperiodic]
group = partitions
state_path = {place}/state
[partition:reports]
pool_size = 3
[partition:billing]
pool_size = 2
"""


class Office(distperiodic.PeriodicTasks):

    def reports(self, context):
        return [f'report-{number}' for number in range(20)]

    def invoices(self, context):
        return [f'invoice-{number}' for number in range(INVOICES)]

    @distperiodic.periodic_task(spacing=1, objects='reports', topic='reports')
    def report(self, context, report):
        if os.path.exists(os.environ['HANG']):
            write('hang')
            time.sleep(3600)

    @distperiodic.periodic_task(spacing=1, objects='invoices',
                                topic='billing')
    def bill(self, context, invoice):
        write('bill', time.time() - context.tick.timestamp())


def write(event, late=0.0):
    """Write one line into the journal."""
    journal = os.open(os.environ['JOURNAL'],
                      os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, f'{event} {time.time()} {late}\n'.encode())
    os.close(journal)


def events(journal, event, since=0.0):
    """Return the lateness of each *event* after *since*, in seconds."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    return [float(late) for found, at, late in lines
            if found == event and float(at) >= since]


def watch(journal):
    """Return the lateness of the runs in the next seconds, sorted."""
    since = time.time()
    while (time.time() < since + SECONDS
           or len(events(journal, 'bill', since)) < SECONDS * INVOICES):
        time.sleep(0.05)
    return sorted(events(journal, 'bill', since))


def main():
    place = pathlib.Path(tempfile.mkdtemp(prefix='partitions-'))
    journal, hang = place / 'journal', place / 'hang'
    journal.touch()
    config = place / 'service.conf'
    config.write_text(CONFIG.format(place=place))
    scheduler = subprocess.Popen(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'scheduler',
         '--tasks', 'run:Office', '--config-file', config], cwd=HERE,
        env=os.environ | {'JOURNAL': str(journal), 'HANG': str(hang)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)
    try:
        while not events(journal, 'bill'):
            time.sleep(0.05)
        tell('alone', watch(journal))
        hang.touch()
        while len(events(journal, 'hang')) < 3:
            time.sleep(0.05)
        tell('beside', watch(journal))
        hanging = len(events(journal, 'hang'))
        print(f'{hanging} reports hang: as many as their partition has '
              'threads')
        return int(hanging != 3)
    finally:
        # Kill the launcher and the process that it launched.
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.wait()


def tell(when, late):
    print(f'{when}: {len(late)} invoices, begun '
          f'{late[len(late) // 2] * 1000:.0f} ms after their tick in the '
          f'median, at most {late[-1] * 1000:.0f} ms')


if __name__ == '__main__':
    raise SystemExit(main())
