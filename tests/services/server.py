# SPDX-License-Identifier: Apache-2.0
"""Operations on a server of the tests, in a process or in a container."""

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
    """The way a server runs: as a child process or in a container."""

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
    """A server that the tests have started, and may break."""

    #: Maximum seconds from a start to the first answer.
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
        """Return True if the server serves clients.

        :raises OSError: The server does not; the text is the reason.
        """

    def start(self, *, wait: bool = True) -> None:
        """Start the server on the same port, with the same data.

        :param wait: True to return only when the server serves clients.
        """
        self._runner.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when the server serves clients."""
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
        """Ask the server to end, and wait for its end. Kill it after 20 s."""
        self._runner.stop()

    def kill(self) -> None:
        """Kill the server, with SIGKILL."""
        self._runner.kill()

    def wipe(self) -> None:
        """Delete the data of a stopped server."""
        assert not self.running, 'stop the server before you wipe its data'
        self._runner.wipe()

    def freeze(self) -> None:
        """Suspend the server: its first process with SIGSTOP, or its whole
        container.
        """
        self._runner.freeze()

    def thaw(self) -> None:
        """Resume a suspended server."""
        self._runner.thaw()


class ExternalServer:
    """A server that the tests have not started; only its URL is known."""

    def __init__(self, url: str):
        self.url = url


def external(service: str) -> ExternalServer | None:
    """Return the server of *service* that the environment names, if any."""
    url = os.environ.get(f'DISTPERIODIC_TEST_{service}_URL')
    return ExternalServer(url) if url else None


@contextlib.contextmanager
def running(server: Server, *, wait: bool = True) -> Iterator[Server]:
    """Start *server*; afterwards kill it and delete its data."""
    try:
        server.start(wait=wait)
        yield server
    finally:
        server.kill()
        server.wipe()


@contextlib.contextmanager
def directory(service: str, within: pathlib.Path | None = None
              ) -> Iterator[pathlib.Path]:
    """Create a directory for a server, and delete it afterwards.

    :param within: Parent directory. None means the one for temporary files.
    """
    path = pathlib.Path(tempfile.mkdtemp(
        prefix=f'distperiodic-{service}-', dir=within))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def program(name: str, package: str, *places: str) -> str:
    """Return the path of a program. If the program is missing, fail the test
    and name the package to install.

    :param places: Directories to search before those of PATH.
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
    """Return a prefix for a command that refuses to run as root.

    :param user: User that runs the command and owns the *directories*. The
        program's package has created this user.
    """
    if os.geteuid() != 0:
        return []
    found = pwd.getpwnam(user)
    for path in directories:
        path.mkdir(mode=0o700, exist_ok=True)
        os.chown(path, found.pw_uid, found.pw_gid)
    return ['setpriv', f'--reuid={found.pw_uid}', f'--regid={found.pw_gid}',
            '--clear-groups', '--pdeathsig', 'KILL', '--']
