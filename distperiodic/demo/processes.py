# SPDX-License-Identifier: Apache-2.0
"""Start, freeze, kill and stop the processes of the demo.

Each process has its own session. So Ctrl-C reaches only the demo, which then
ends the processes. On Linux, no process outlives the demo, even if the demo is
killed.
"""

import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

from distperiodic import exceptions

_ROOT = pathlib.Path(__file__).parents[2]


class Process:
    """One member or worker."""

    def __init__(self, kind: str, name: str, popen: 'subprocess.Popen[bytes]',
                 log: pathlib.Path):
        self.kind = kind
        self.name = name
        self.pid = popen.pid
        self.log = log
        self.killed = False
        self.frozen = False
        self._popen = popen

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def last_words(self) -> str:
        """Return the last error in the log of the process, or the last line.
        """
        lines = self.log.read_text(errors='replace').splitlines()
        for line in reversed(lines):
            for level in (' ERROR ', ' CRITICAL '):
                if level in line:
                    return line.partition(level)[2]
        return lines[-1] if lines else 'its log is empty'

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.killed = True
        self._popen.kill()
        self._popen.wait()

    def freeze(self) -> None:
        self.frozen = True
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        os.kill(self.pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        if self.running:
            self._popen.terminate()
            if self.frozen:
                self.thaw()

    def wait(self, seconds: float) -> bool:
        """Wait until the process ends; kill it after *seconds*.

        :return: False if the process had to be killed.
        """
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True


class Company:
    """All processes of one demo.

    As a context manager, it kills all processes on exit.

    :param config: Configuration file that the processes read.
    :param records: Directory for the records and logs of the processes.
    :param hosts: Number of hosts to ping.
    """

    def __init__(self, config: pathlib.Path, records: pathlib.Path,
                 hosts: int):
        self._config = config
        self._records = records
        self._hosts = hosts
        self.all: list[Process] = []

    def __enter__(self) -> 'Company':
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.all:
            if process.running:
                process.kill()

    def __iter__(self) -> Iterator[Process]:
        return iter(self.all)

    def start(self, kind: str, name: str) -> Process:
        log = self._records / f'{name}.log'
        place = os.pathsep.join(
            [str(_ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])
        with open(log, 'wb') as output:
            popen = subprocess.Popen(  # noqa: S603
                [sys.executable, '-m', 'distperiodic.demo.member', kind, name,
                 str(self._config), str(self._records / f'{name}.runs'),
                 str(self._hosts), str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
                env={**os.environ, 'PYTHONPATH': place})
        process = Process(kind, name, popen, log)
        self.all.append(process)
        return process

    def check(self) -> None:
        """Check that no process has ended by itself.

        :raises DistperiodicError: a process has ended but was not killed.
        """
        for process in self.all:
            if not process.running and not process.killed:
                raise exceptions.DistperiodicError(
                    f'{process.name} ended by itself with code '
                    f'{process.exit_code}: {process.last_words()}; the demo '
                    'cannot continue')

    def end(self, seconds: float = 10.0) -> list[str]:
        """Ask all processes to end, and wait at most *seconds* for each.

        :return: Names of the processes that had to be killed or that ended
            with an error.
        """
        # End the schedulers first, because they need the workers to finish
        # their runs.
        bad = []
        for kind in ('scheduler', 'worker'):
            ours = [p for p in self.all if p.kind == kind and not p.killed]
            for process in ours:
                process.ask_to_end()
            bad += [p.name for p in ours
                    if not p.wait(seconds) or p.exit_code]
        return bad


@contextlib.contextmanager
def nobody_holds(lock: pathlib.Path | None) -> Iterator[None]:
    """Hold the lock of tooz's file driver while the block runs.

    A process that is frozen while it holds this lock blocks all other
    processes. Only ``file://`` has this limitation, and the demo is not meant
    to show it.
    """
    if lock is None or not lock.exists():
        yield
        return
    with open(lock, 'ab') as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
