# SPDX-License-Identifier: Apache-2.0
"""Runs of the program ``distperiodic``."""

import contextlib
import io
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing import connection
from unittest import mock

from distperiodic.cmd import shell
from tests import programs
from tests.functional import preloaded
from tests.programs import ROOT

ENVIRONMENT = {
    # tox sets COLUMNS, and narrow tables leave out columns.
    **{name: value for name, value in os.environ.items() if name != 'COLUMNS'},
    'PYTHONPATH': os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])}
#: Command that starts a program with the default action for SIGINT. Otherwise
#: a program would ignore SIGINT if the tests run in the background.
HEARS_CTRL_C = ['env', '--default-signal=INT']
PROGRAM = [sys.executable, '-m', 'distperiodic.cmd.shell']
_FORKS = multiprocessing.get_context('forkserver')
_FORKS.set_forkserver_preload([preloaded.__name__])
_POLLING = threading.Lock()


def numbers(text):
    """Return the separate whole numbers in *text*, in order.

    Parts of instants, names, fractions and durations such as 5m are ignored.
    """
    return [int(found.replace(',', '')) for found in re.findall(
        r'(?<![\w.:+-])[0-9][0-9,]*(?![\w.:-]|,[0-9])', text)]


def call(*argv, cwd=ROOT):
    """Run a command in this process until it ends.

    This takes a quarter of the time of :func:`run`. A command that starts
    processes or ends by a signal needs a process.
    """
    argv = [str(one) for one in argv]
    output, errors = (
        io.TextIOWrapper(io.BytesIO(), 'utf-8') for _ in range(2))
    root, modules = logging.getLogger(), set(sys.modules)
    handlers, level = list(root.handlers), root.level
    with (contextlib.chdir(cwd), contextlib.redirect_stdout(output),
          contextlib.redirect_stderr(errors),
          mock.patch.dict(os.environ, ENVIRONMENT, clear=True),
          mock.patch.object(sys, 'path', [str(cwd), *sys.path]),
          mock.patch.object(sys, 'argv', [shell.__file__, *argv])):
        try:
            code = shell.main(argv)
        except SystemExit as exc:
            code = exc.code
        finally:
            root.handlers[:], root.level = handlers, level
            # Another test has other modules of these names.
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], '__file__', '')).startswith(
                        str(cwd)):
                    del sys.modules[name]
    for file in output, errors:
        file.seek(0)
    return subprocess.CompletedProcess(argv, code, output.read(),
                                       errors.read())


def run(*argv, cwd=ROOT, timeout=150, **environment):
    """Run a command in a process of its own until it ends.

    Without *environment* the process is a fork of a process that has imported
    the product. The imports take longer than most commands.
    """
    argv = [str(one) for one in argv]
    if not environment:
        return _fork(argv, cwd, timeout)
    return subprocess.run(
        [*PROGRAM, *argv], cwd=cwd, env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout)


def _fork(argv, cwd, timeout):
    with contextlib.ExitStack() as stack:
        output, errors = (stack.enter_context(
            tempfile.NamedTemporaryFile('r')) for _ in range(2))
        process = _FORKS.Process(target=preloaded.main, args=(
            argv, str(cwd), ENVIRONMENT, output.name, errors.name))
        # Two threads must not poll processes at once: only one of them would
        # get the exit code.
        with _POLLING:
            process.start()
        in_time = connection.wait([process.sentinel], timeout)
        with _POLLING:
            if not in_time:
                process.kill()
            process.join()
        if not in_time:
            raise subprocess.TimeoutExpired(
                argv, timeout, output.read(), errors.read())
        return subprocess.CompletedProcess(
            argv, process.exitcode, output.read(), errors.read())


class Running(programs.Program):
    """A command that runs until it is stopped.

    It leads its own process group, like a command in a terminal.

    :param before: a program that runs the command, such as ``unshare``.
    """

    def __init__(self, log, *argv, cwd=ROOT, before=(), **environment):
        super().__init__(
            [*HEARS_CTRL_C, *before, *PROGRAM, *argv], log, cwd=cwd,
            env={**ENVIRONMENT, **environment}, process_group=0)

    def press_ctrl_c(self):
        """Send SIGINT to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)
