# SPDX-License-Identifier: Apache-2.0
"""The program ``distperiodic`` as others start it."""

import os
import re
import signal
import subprocess
import sys

from tests import programs
from tests.programs import ROOT

ENVIRONMENT = {
    **os.environ,
    'PYTHONPATH': os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])}
#: What starts a program as a terminal does: a script that runs the tests in
#: the background, or under nohup, has SIGINT ignored in all that they start.
HEARS_CTRL_C = ['env', '--default-signal=INT']
PROGRAM = [sys.executable, '-m', 'distperiodic.cmd.shell']


def numbers(text):
    """Whole numbers that stand alone in *text*, in order: no part of an
    instant, a name, a fraction, or a length such as 5m.
    """
    return [int(found.replace(',', '')) for found in re.findall(
        r'(?<![\w.:+-])[0-9][0-9,]*(?![\w.:-]|,[0-9])', text)]


def run(*argv, cwd=ROOT, timeout=150, **environment):
    """Run a command to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, argv)], cwd=cwd,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout)


class Running(programs.Program):
    """A command that goes on.

    It leads a process group of its own, as what is started in a terminal.

    :param before: a program that runs it, such as ``unshare``.
    """

    def __init__(self, log, *argv, cwd=ROOT, before=(), **environment):
        super().__init__(
            [*HEARS_CTRL_C, *before, *PROGRAM, *argv], log, cwd=cwd,
            env={**ENVIRONMENT, **environment}, process_group=0)

    def press_ctrl_c(self):
        """What a terminal does: SIGINT to all of them."""
        os.killpg(self.process.pid, signal.SIGINT)
