# SPDX-License-Identifier: Apache-2.0
"""Programs that a test starts, and ends with all that they started::

    launcher ──┬── child, which does the work
               └── child

Three others start processes in their own way: the kernel ends the servers of
:mod:`tests.services` with the test run, :mod:`tests.members` talks with its
processes over pipes, and the demo belongs to the product.
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


class Program:
    """A launcher and its children; a context manager that kills them.

    :param log: the file for what they print.
    :param append: whether the file keeps what is in it.
    :param options: of :class:`subprocess.Popen`.
    """

    def __init__(self, argv, log, *, append=False, cwd=ROOT, **options):
        self.log = log
        with open(log, 'ab' if append else 'wb') as output:
            self.process = subprocess.Popen(
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
        """The lines of *event* that it has logged; None: all."""
        return written(self.said(), event)

    def family(self, recursive=True):
        """The processes that it started, and theirs."""
        # The number of a process that has ended may be another's by now.
        if self.running:
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(self.process.pid).children(
                    recursive)
        return []

    @property
    def children(self):
        """The pids of the processes that do the work."""
        return [one.pid for one in self.family(recursive=False)]

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def hang_up(self):
        self.process.send_signal(signal.SIGHUP)

    def freeze(self):
        """Stop the processes that do the work, and not their launcher."""
        for pid in self.children:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.children:
            os.kill(pid, signal.SIGCONT)

    def kill(self):
        """Kill the launcher, and then its family: it starts no other child.

        :returns: the pids of the family.
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


def records(path):
    """The lines of JSON that processes have written so far."""
    # The last line may be half written. To read line by line would be wrong: a
    # line that is completed meanwhile would be returned in two parts.
    complete = path.read_text().rpartition('\n')[0]
    return [json.loads(line) for line in complete.split('\n') if line]


def write_config(path, **sections):
    """Write the options of each section, by name, and return *path*."""
    path.write_text(''.join(
        f'[{name}]\n' + ''.join(f'{key} = {value}\n'
                                for key, value in options.items())
        for name, options in sections.items()))
    return path
