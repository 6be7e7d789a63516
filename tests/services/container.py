# SPDX-License-Identifier: Apache-2.0
"""A server in a container, through testcontainers."""

import functools
from collections.abc import Callable

import docker
from testcontainers.core.container import DockerContainer

from tests.services import ports


@functools.cache
def docker_answers() -> bool:
    """Return True if a Docker daemon answers. This is checked once in a test
    run.
    """
    try:
        client = docker.from_env(timeout=3)
    except docker.errors.DockerException:
        return False
    try:
        return client.ping()
    except docker.errors.DockerException:
        return False
    finally:
        client.close()


class Container:
    """One container. To delete its data, the container is created again."""

    def __init__(self, make: Callable[[], DockerContainer], inside: int,
                 port: int):
        """Store the settings of the container.

        :param inside: Port on which the server listens in the container.
        :param port: Port on the loopback interface that is forwarded to
            *inside*. A port that Docker chooses would change with each start.
        """
        self._make = make
        self._ports = {f'{inside}/tcp': (ports.HOST, port)}
        self._made: DockerContainer | None = None

    @property
    def _docker(self):
        assert self._made is not None, 'the server was never started'
        return self._made.get_wrapped_container()

    def _state(self) -> dict:
        if self._made is None:
            return {}
        self._docker.reload()
        return self._docker.attrs['State']

    @property
    def pid(self) -> int:
        return self._state()['Pid']

    @property
    def running(self) -> bool:
        return bool(self._state().get('Running'))

    def start(self) -> None:
        if self._made is None:
            made = self._make()
            made.ports.update(self._ports)
            self._made = made.start()
        else:
            self._docker.start()

    def stop(self) -> None:
        if self.running:
            self.thaw()
            self._docker.stop(timeout=20)

    def kill(self) -> None:
        if self.running:
            self.thaw()
            self._docker.kill()
            self._docker.wait()

    def freeze(self) -> None:
        self._docker.pause()

    def thaw(self) -> None:
        if self._state()['Paused']:
            self._docker.unpause()

    def wipe(self) -> None:
        if self._made is not None:
            self._made.stop()
            self._made = None

    def log(self) -> str:
        if self._made is None:
            return ''
        return self._docker.logs(tail=60).decode(errors='replace')

    def run(self, *command: str) -> tuple[int, str]:
        """Run *command* in the container; return its exit code and output."""
        code, output = self._docker.exec_run(list(command))
        return code, output.decode(errors='replace')
