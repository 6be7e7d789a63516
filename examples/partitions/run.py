# SPDX-License-Identifier: Apache-2.0
"""Two partitions in one process; the handlers of one partition hang.

Each partition has its own pool of threads, so the other partition continues.
The program prints how late the runs of the other partition began, before and
while the first partition hangs, and checks that they are not later than a
limit while it hangs. No server is needed.
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
THREADS = 3
# Maximum number of seconds from a tick to the start of its last run.
LATE = 1.0
# Seconds after which the program gives up.
LIMIT = 60
CONFIG = """\
[distperiodic]
group = partitions
state_path = {place}/state
[partition:reports]
pool_size = {threads}
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


def until(condition, what):
    """Wait until a condition is true. Give up after LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f'WRONG: {what} within {LIMIT} s')
        time.sleep(0.05)


def watch(journal):
    """Return the lateness of the runs in the next seconds, sorted."""
    since = time.time()
    until(lambda: time.time() >= since + SECONDS and len(
        events(journal, 'bill', since)) >= SECONDS * INVOICES,
        f'the partition billing did not run {SECONDS * INVOICES} invoices')
    return sorted(events(journal, 'bill', since))


def main():
    place = pathlib.Path(tempfile.mkdtemp(prefix='partitions-'))
    journal, hang = place / 'journal', place / 'hang'
    journal.touch()
    config = place / 'service.conf'
    config.write_text(CONFIG.format(place=place, threads=THREADS))
    scheduler = subprocess.Popen(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'scheduler',
         '--tasks', 'run:Office', '--config-file', config], cwd=HERE,
        env=os.environ | {'JOURNAL': str(journal), 'HANG': str(hang)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)
    try:
        until(lambda: events(journal, 'bill'), 'no invoice ran')
        alone = watch(journal)
        hang.touch()
        until(lambda: len(events(journal, 'hang')) >= THREADS,
              f'fewer than {THREADS} reports hung')
        beside = watch(journal)
        return account(alone, beside, len(events(journal, 'hang')))
    finally:
        # Kill the launcher and the process that it launched.
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.wait()


def account(alone, beside, hanging):
    """Print the lateness of the invoices. Return 0 if there is no fault.

    :param alone: Lateness of the invoices before the reports hang, sorted.
    :param beside: Lateness of the invoices while the reports hang, sorted.
    :param hanging: Number of reports that hang.
    """
    wrong = 0
    for when, late in (('alone', alone), ('beside', beside)):
        print(f'{when}: {len(late)} invoices, begun '
              f'{late[len(late) // 2] * 1000:.0f} ms after their tick in the '
              f'median, at most {late[-1] * 1000:.0f} ms')
    if beside[-1] > LATE:
        print(f'WRONG: an invoice began {beside[-1]:.1f} s after its tick '
              f'while the reports hung; the limit is {LATE} s')
        wrong = 1
    if hanging == THREADS:
        print(f'{hanging} reports hang: as many as their partition has '
              'threads')
    else:
        print(f'WRONG: {hanging} reports hang, but their partition has '
              f'{THREADS} threads')
        wrong = 1
    return wrong


if __name__ == '__main__':
    raise SystemExit(main())
