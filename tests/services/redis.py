# SPDX-License-Identifier: Apache-2.0
"""Redis, as one server."""

import contextlib
import pathlib
import socket
from collections.abc import Iterator

from testcontainers.core.container import DockerContainer

from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server

IMAGE = 'redis:7'


class Redis(server.Server):
    """One Redis server that keeps its data over a restart."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(f'redis://{ports.HOST}:{port}', runner)
        self.port = port

    def answers(self) -> bool:
        with socket.create_connection((ports.HOST, self.port), 2) as channel:
            channel.sendall(b'PING\r\n')
            return channel.recv(64).startswith(b'+PONG')


@contextlib.contextmanager
def redis(*, its_own: bool = False
          ) -> Iterator[Redis | server.ExternalServer]:
    """One Redis server.

    :param its_own: never the server that the environment names.
    """
    found = None if its_own else server.external('REDIS')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        one = Redis(port, container.Container(
            lambda: (DockerContainer(IMAGE)
                     .with_command('redis-server --appendonly yes '
                                   '--protected-mode no')),
            6379, port))
        with server.running(one):
            yield one
        return
    with (server.directory('redis') as place,
          server.running(_started_here(place / 'data', port)) as one):
        yield one


def _started_here(data: pathlib.Path, port: int) -> Redis:
    return Redis(port, process.Process(
        [server.program('redis-server', 'redis-server'),
         '--bind', ports.HOST, '--port', str(port), '--dir', str(data),
         '--appendonly', 'yes', '--save', ''], data))
