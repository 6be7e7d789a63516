# SPDX-License-Identifier: Apache-2.0
"""The program ``distperiodic`` as others start it."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import psutil

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    'PYTHONPATH': os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])}
#: What starts a program as a terminal does: a script that runs the tests in
#: the background, or under nohup, has SIGINT ignored in all that they start.
HEARS_CTRL_C = ['env', '--default-signal=INT']
PROGRAM = [sys.executable, '-m', 'distperiodic.cmd.shell']


def run(*argv, cwd=ROOT, timeout=150, **environment):
    """Run a command to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, argv)], cwd=cwd,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout)


class Running:
    """A command that goes on; a context manager that ends it.

    It leads a process group of its own, as what is started in a terminal.

    :param before: a program that runs it, such as ``unshare``.
    """

    def __init__(self, log, *argv, cwd=ROOT, before=(), **environment):
        self.log = log
        with open(log, 'wb') as output:
            self.process = subprocess.Popen(
                [*HEARS_CTRL_C, *before, *PROGRAM, *map(str, argv)], cwd=cwd,
                env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, process_group=0)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait(10)

    def family(self):
        """The processes that it started, and theirs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def press_ctrl_c(self):
        """What a terminal does: SIGINT to all of them."""
        os.killpg(self.process.pid, signal.SIGINT)

    def said(self):
        return self.log.read_text()
