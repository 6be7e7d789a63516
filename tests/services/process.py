# SPDX-License-Identifier: Apache-2.0
"""A server as a child process of the test run."""

import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence


class Process:
    """One program, its data directory and its log.

    The kernel kills the program when the thread that started it ends, even by
    kill -9. So start servers in the thread that runs the tests, and not in a
    short-lived thread.
    """

    def __init__(self, command: Sequence[str], data: pathlib.Path,
                 env: Mapping[str, str] | None = None,
                 ends_on: signal.Signals = signal.SIGTERM):
        """Store the command to start.

        :param data: Directory that start() creates and wipe() empties.
        :param env: Environment variables, in addition to those of the test
            run.
        :param ends_on: Signal that asks the program to end.
        """
        self._command = command
        self._data = data
        self._env = dict(env or {})
        self._ends_on = ends_on
        self._log = data.parent / f'{data.name}.log'
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, 'the server was never started'
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        with self._log.open('ab') as log:
            self._child = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', '--', *self._command],
                env=os.environ | self._env, cwd=self._data,
                stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must reach only the tests. They end
                # their servers in order.
                start_new_session=True)

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def stop(self) -> None:
        """Ask the program to end; kill it after 20 s."""
        if not self.running:
            return
        self.signal(signal.SIGCONT)
        self.signal(self._ends_on)
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def wipe(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)

    def log(self) -> str:
        """Return the last part of the program's output."""
        if not self._log.exists():
            return ''
        return self._log.read_text(errors='replace')[-4000:]
