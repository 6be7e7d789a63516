# SPDX-License-Identifier: Apache-2.0
"""What every server of the tests can do, whatever runs it."""

import abc
import contextlib
import os
import pathlib
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Protocol

import pytest


class Runner(Protocol):
    """What runs a server: a child process, or a container."""

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def wipe(self) -> None: ...

    def log(self) -> str: ...


class Server(abc.ABC):
    """A server of our own, which a test may break as it likes."""

    #: Seconds it may take from its start to its first answer.
    patience = 60.0

    def __init__(self, url: str, runner: Runner):
        self.url = url
        self._runner = runner

    @property
    def pid(self) -> int:
        return self._runner.pid

    @property
    def running(self) -> bool:
        return self._runner.running

    @abc.abstractmethod
    def answers(self) -> bool:
        """Say whether it serves clients.

        :raises OSError: it does not, and this is why.
        """

    def start(self, *, wait: bool = True) -> None:
        """Start it on the same port with the data it had.

        :param wait: return when it serves clients, not at once.
        """
        self._runner.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when it serves clients."""
        deadline = time.monotonic() + self.patience
        reason = 'it gave no answer'
        while self.running and time.monotonic() < deadline:
            try:
                if self.answers():
                    return
            except OSError as error:
                reason = str(error)
            time.sleep(0.02)
        if not self.running:
            reason = 'it ended by itself'
        pytest.fail(f'{self.url} does not serve: {reason}; its last words: '
                    f'{self._runner.log()}')

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait for it."""
        self._runner.stop()

    def kill(self) -> None:
        """End it at once (kill -9)."""
        self._runner.kill()

    def wipe(self) -> None:
        """Delete its data; only while it is stopped."""
        assert not self.running, 'stop the server before you wipe its data'
        self._runner.wipe()

    def freeze(self) -> None:
        """Stop it without ending it (SIGSTOP)."""
        self._runner.freeze()

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._runner.thaw()


class ExternalServer:
    """A server somebody else runs: it has a URL and nothing else."""

    def __init__(self, url: str):
        self.url = url


def external(service: str) -> ExternalServer | None:
    """Return the server of *service* that the environment names, if any."""
    url = os.environ.get(f'DISTPERIODIC_TEST_{service}_URL')
    return ExternalServer(url) if url else None


@contextlib.contextmanager
def running(server: Server, *, wait: bool = True) -> Iterator[Server]:
    """Start *server*; afterwards end it and forget its data."""
    try:
        server.start(wait=wait)
        yield server
    finally:
        server.kill()
        server.wipe()


@contextlib.contextmanager
def directory(service: str, within: pathlib.Path | None = None
              ) -> Iterator[pathlib.Path]:
    """A directory for a server, gone afterwards.

    :param within: where it is made; None: where temporary files are.
    """
    path = pathlib.Path(tempfile.mkdtemp(
        prefix=f'distperiodic-{service}-', dir=within))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def program(name: str, package: str, *places: str) -> str:
    """Return the path of a program, or fail the test and say what to install.

    :param places: directories to look into before those of PATH.
    """
    path = os.pathsep.join([*places, os.environ.get('PATH', os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.fail(
            f'this test needs the program {name}; install it with: '
            f'apt-get install {package} (or start a Docker daemon, or name a '
            'running server in the environment, see '
            'doc/source/contributor/testing.rst)', pytrace=False)
    return found


def unprivileged(user: str, *directories: pathlib.Path) -> list[str]:
    """What goes before a command that refuses to run as root.

    :param user: who runs it then, and owns the *directories*; it came with
        the package.
    """
    if os.geteuid() != 0:
        return []
    found = pwd.getpwnam(user)
    for path in directories:
        path.mkdir(mode=0o700, exist_ok=True)
        os.chown(path, found.pw_uid, found.pw_gid)
    return ['setpriv', f'--reuid={found.pw_uid}', f'--regid={found.pw_gid}',
            '--clear-groups', '--pdeathsig', 'KILL', '--']
