# SPDX-License-Identifier: Apache-2.0
"""The processes of the demo, and what is done to them.

Each has a session of its own, so that Ctrl-C reaches the demo alone, which
then ends them; and none outlives the demo, even if that is killed.
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
        """The last error in its log, or its last line."""
        lines = self.log.read_text(errors='replace').splitlines()
        for line in reversed(lines):
            for level in (' ERROR ', ' CRITICAL '):
                if level in line:
                    return line.partition(level)[2]
        return lines[-1] if lines else 'it said nothing'

    def kill(self) -> None:
        """kill -9"""
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
        """Wait for its end; False: it had to be killed."""
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True


class Company:
    """All processes of one demo; a context manager that leaves none.

    :param config: the options that they read.
    :param records: the directory for their records and logs.
    :param hosts: how many hosts are pinged.
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
        """:raises DistperiodicError: one ended that should not have."""
        for process in self.all:
            if not process.running and not process.killed:
                raise exceptions.DistperiodicError(
                    f'{process.name} ended by itself with code '
                    f'{process.exit_code}: {process.last_words()}; the demo '
                    'cannot go on')

    def end(self, seconds: float = 10.0) -> list[str]:
        """Ask all to end, and wait; returns the names of those that had to
        be killed or that ended in an error.
        """
        # Schedulers first: what they began still finds its workers.
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
    """Hold the lock of tooz's file driver meanwhile.

    A process that is frozen while it has the lock keeps all others waiting:
    a limit of ``file://`` that ZooKeeper does not have, and not what the
    demo is to show.
    """
    if lock is None or not lock.exists():
        yield
        return
    with open(lock, 'ab') as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
