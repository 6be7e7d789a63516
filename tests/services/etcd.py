# SPDX-License-Identifier: Apache-2.0
"""etcd as a single server."""

import contextlib
import http.client
import pathlib
from collections.abc import Iterator

from testcontainers.core.container import DockerContainer

from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server

IMAGE = 'quay.io/coreos/etcd:v3.5.17'


class Etcd(server.Server):
    """One etcd server, reached through its HTTP gateway."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(f'etcd3+http://{ports.HOST}:{port}', runner)
        self.port = port

    def answers(self) -> bool:
        connection = http.client.HTTPConnection(
            ports.HOST, self.port, timeout=2)
        try:
            connection.request('GET', '/health')
            return b'"true"' in connection.getresponse().read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()


@contextlib.contextmanager
def etcd(*, its_own: bool = False
         ) -> Iterator[Etcd | server.ExternalServer]:
    """Yield one etcd server.

    :param its_own: True if the server in the environment must not be used.
    """
    found = None if its_own else server.external('ETCD')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        one = Etcd(port, container.Container(
            lambda: (DockerContainer(IMAGE)
                     .with_command(
                         'etcd --listen-client-urls http://0.0.0.0:2379 '
                         '--advertise-client-urls '
                         f'http://{ports.HOST}:{port}')),
            2379, port))
        with server.running(one):
            yield one
        return
    with (server.directory('etcd') as place,
          server.running(_started_here(place / 'data', port)) as one):
        yield one


def _started_here(data: pathlib.Path, port: int) -> Etcd:
    client = f'http://{ports.HOST}:{port}'
    peer = f'http://{ports.HOST}:{ports.free_port()}'
    return Etcd(port, process.Process(
        [server.program('etcd', 'etcd-server'), '--data-dir', str(data),
         '--listen-client-urls', client, '--advertise-client-urls', client,
         '--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer,
         '--initial-cluster', f'default={peer}'], data))
