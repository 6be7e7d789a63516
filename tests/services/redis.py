# SPDX-License-Identifier: Apache-2.0
"""Redis as a single server, or as a master with a replica."""

import contextlib
import pathlib
import socket
from collections.abc import Iterator

from testcontainers.core.container import DockerContainer

from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server
from tests.waiting import wait_until

IMAGE = 'redis:7'


class Redis(server.Server):
    """One Redis server that keeps its data when it restarts."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(f'redis://{ports.HOST}:{port}', runner)
        self.port = port

    def answers(self) -> bool:
        # A server that requires a password is ready as well.
        return self.ask('PING').startswith((b'+PONG', b'-NOAUTH'))

    def ask(self, command: str) -> bytes:
        """Return the beginning of the answer to *command*."""
        with socket.create_connection((ports.HOST, self.port), 2) as channel:
            channel.sendall(f'{command}\r\n'.encode())
            return channel.recv(64)


@contextlib.contextmanager
def redis(*options: str, its_own: bool = False
          ) -> Iterator[Redis | server.ExternalServer]:
    """Yield one Redis server.

    :param options: Further arguments of its command line.
    :param its_own: True if the server in the environment must not be used.
    """
    found = None if its_own else server.external('REDIS')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        one = Redis(port, container.Container(
            lambda: (DockerContainer(IMAGE)
                     .with_command(['redis-server', '--appendonly', 'yes',
                                    '--protected-mode', 'no', *options])),
            6379, port))
        with server.running(one):
            yield one
        return
    with (server.directory('redis') as place,
          server.running(_started_here(
              place / 'data', port, *options)) as one):
        yield one


@contextlib.contextmanager
def redis_failover() -> Iterator[tuple[Redis, Redis, Redis]]:
    """Yield a master, its replica, and a sentinel that promotes the replica.

    The sentinel's name for the master is "tests".
    """
    with server.directory('redis') as place:
        master, replica, watch = (ports.free_port() for _ in range(3))
        config = place / 'sentinel.conf'
        config.write_text(
            f'port {watch}\nbind {ports.HOST}\n'
            f'sentinel monitor tests {ports.HOST} {master} 1\n'
            'sentinel down-after-milliseconds tests 1000\n'
            'sentinel failover-timeout tests 3000\n')
        with (server.running(_started_here(place / 'a', master)) as one,
              server.running(_started_here(
                  place / 'b', replica, '--replicaof', ports.HOST,
                  str(master))) as other,
              server.running(Redis(watch, process.Process(
                  [server.program('redis-server', 'redis-server'),
                   str(config), '--sentinel'], place / 'c'))) as sentinel):
            wait_until(lambda: sentinel.ask('SENTINEL replicas tests') not in (
                b'*0\r\n', b''), 30, 'the sentinel finds no replica')
            yield one, other, sentinel


def _started_here(data: pathlib.Path, port: int, *options: str) -> Redis:
    return Redis(port, process.Process(
        [server.program('redis-server', 'redis-server'),
         '--bind', ports.HOST, '--port', str(port), '--dir', str(data),
         '--appendonly', 'yes', '--save', '', *options], data))
