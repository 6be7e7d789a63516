# SPDX-License-Identifier: Apache-2.0
"""Programs that a test starts, and then ends together with all their
processes::

    launcher ──┬── child, which does the work
               └── child

Other modules start processes in their own ways. For example, the kernel ends
the servers of :mod:`tests.services` if the test run is killed, and the
processes of :mod:`tests.members` talk over pipes.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import psutil

from tests.logged import written

ROOT = pathlib.Path(__file__).parents[1]
PYTHON = [sys.executable, '-W', 'ignore']
#: Seconds within which the programs of a group start, beside other tests.
STARTING = 150.0


class Program:
    """A launcher and its children. As a context manager, it kills them at the
    end.

    :param log: File for their output.
    :param append: True if the output is appended to the file.
    :param options: Options of :class:`subprocess.Popen`.
    """

    #: Class of the process of the launcher.
    popen = subprocess.Popen

    def __init__(self, argv, log, *, append=False, cwd=ROOT, **options):
        self.log = log
        with open(log, 'ab' if append else 'wb') as output:
            self.process = self.popen(
                [*map(str, argv)], cwd=cwd, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, **options)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()

    @property
    def running(self):
        return self.process.poll() is None

    def said(self):
        return self.log.read_text()

    def logged(self, event=None):
        """Return the logged lines of *event*; None means all events."""
        return written(self.said(), event)

    def family(self, recursive=True):
        """Return the child processes of the launcher and, if *recursive*,
        their children.
        """
        # Another process may have the pid of a process that has ended.
        if self.running:
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(self.process.pid).children(
                    recursive)
        return []

    @property
    def children(self):
        """The pids of the child processes, which do the work."""
        return [one.pid for one in self.family(recursive=False)]

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def hang_up(self):
        self.process.send_signal(signal.SIGHUP)

    def freeze(self):
        """Suspend the child processes, and not the launcher."""
        for pid in self.children:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.children:
            os.kill(pid, signal.SIGCONT)

    def kill(self):
        """Kill the launcher first, so that it starts no new child; then the
        rest.

        :returns: The pids of its child processes and their children.
        """
        family = self.family()
        self.process.kill()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait(10)
        return [one.pid for one in family]

    def wait(self, timeout=30.0):
        return self.process.wait(timeout)


def is_over(pid):
    """Return whether the process has ended. A zombie counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def records(path):
    """Return the lines of JSON that processes have written so far."""
    # The last line may be incomplete. A reader that reads line by line could
    # return a line in two parts, if the line is completed meanwhile.
    complete = path.read_text().rpartition('\n')[0]
    return [json.loads(line) for line in complete.split('\n') if line]


def write_config(path, **sections):
    """Write a file with the options of each section; return *path*."""
    path.write_text(''.join(
        f'[{name}]\n' + ''.join(f'{key} = {value}\n'
                                for key, value in options.items())
        for name, options in sections.items()))
    return path
