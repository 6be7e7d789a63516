# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper as a single server and as an ensemble."""

import contextlib
import pathlib
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests import proxy
from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server

JARS = pathlib.Path('/usr/share/java')
IMAGE = 'zookeeper:3.9'

# Milliseconds of a tick. A short tick allows short sessions. The maximum
# length of a session is that of ZooKeeper's default configuration.
TICK = 500
SETTINGS = {
    'tickTime': str(TICK),
    'minSessionTimeout': '1000',
    'maxSessionTimeout': '40000',
    'initLimit': '20',
    'syncLimit': '10',
    'maxClientCnxns': '0',
    '4lw.commands.whitelist': '*',
    'admin.enableServer': 'false',
}


class ZooKeeper(server.Server):
    """One ZooKeeper server."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(f'zookeeper://{ports.HOST}:{port}', runner)
        self.port = port

    def ask(self, word: str) -> str:
        """Send one of ZooKeeper's four-letter words; return the answer.

        :raises OSError: The server did not answer within 2 s.
        """
        with socket.create_connection((ports.HOST, self.port), 2) as channel:
            channel.sendall(word.encode())
            answer = b''
            while piece := channel.recv(65536):
                answer += piece
        return answer.decode(errors='replace')

    def mode(self) -> str | None:
        """Return 'standalone', 'leader' or 'follower'.

        None means that the server serves no client, for example without a
        quorum.
        """
        for line in self.ask('srvr').splitlines():
            key, _, value = line.partition(': ')
            if key == 'Mode':
                return value
        return None

    def connections(self) -> int:
        """Return the number of clients, without the connection of this call.
        """
        for line in self.ask('srvr').splitlines():
            key, _, value = line.partition(': ')
            if key == 'Connections':
                return int(value) - 1
        return 0

    def answers(self) -> bool:
        return self.mode() is not None


class Ensemble:
    """Several ZooKeeper servers with one set of data."""

    def __init__(self, servers: list[ZooKeeper]):
        self.servers = servers
        self.url = 'zookeeper://' + ','.join(
            f'{ports.HOST}:{one.port}' for one in servers)

    def leader(self) -> ZooKeeper:
        """Return the leader; call this only while there is a quorum."""
        return next(one for one in self.servers
                    if one.running and one.mode() == 'leader')

    def followers(self) -> list[ZooKeeper]:
        """Return the followers."""
        return [one for one in self.servers
                if one.running and one.mode() == 'follower']


@contextlib.contextmanager
def zookeeper(*, its_own: bool = False, connections: int = 0
              ) -> Iterator[ZooKeeper | server.ExternalServer]:
    """Yield one ZooKeeper server.

    :param its_own: True if the server in the environment must not be used.
    :param connections: Maximum number of connections from one address, for a
        server that is started here. 0 means no limit.
    """
    found = None if its_own else server.external('ZOOKEEPER')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        one = ZooKeeper(port, container.Container(
            lambda: _image().with_env(
                'ZOO_MAX_CLIENT_CNXNS', str(connections)), 2181, port))
        with server.running(one):
            yield one
        return
    with (server.directory('zookeeper') as place,
          server.running(_started_here(
              place, port, further=(f'maxClientCnxns={connections}',)
          )) as one):
        yield one


@contextlib.contextmanager
def zookeeper_ensemble(size: int = 3) -> Iterator[Ensemble]:
    """Yield an ensemble of *size* servers that is complete and serves clients.
    """
    with contextlib.ExitStack() as stack:
        if container.docker_answers():
            servers = _contained_ensemble(stack, size)
        else:
            servers = _ensemble_started_here(stack, size)
        for one in servers:
            # A single server does not serve clients before there is a quorum.
            stack.enter_context(server.running(one, wait=False))
        for one in servers:
            one.wait()
        yield Ensemble(servers)


class Divided(NamedTuple):
    """Three servers; the third can be cut off from the other two."""

    servers: list[ZooKeeper]
    #: The proxies between the third server and the others.
    ways: list[proxy.Proxy]

    def set(self, mode: proxy.Mode) -> None:
        """Set the mode of the connections between the third server and the
        others.
        """
        for way in self.ways:
            way.set(mode)


@contextlib.contextmanager
def zookeeper_divided(leads: bool, notices_after: int = 10
                      ) -> Iterator[Divided]:
    """Yield an ensemble with a server that can be cut off from the others.

    Clients can still reach this server. The servers always run the program of
    the Debian package, because no client could reach an isolated container.

    :param leads: True if this server is the leader, False if it is a follower.
    :param notices_after: Seconds until the server notices that it is cut off.
        It answers its clients until then.
    """
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(server.directory('ensemble'))
        near = [(ports.free_port(), ports.free_port()) for _ in range(3)]
        ways = [[stack.enter_context(proxy.Proxy((ports.HOST, port)))
                 for port in pair] for pair in near]
        far = [tuple(way.port for way in pair) for pair in ways]

        def lines(*places: tuple[int, ...]) -> tuple[str, ...]:
            return (f'syncLimit={notices_after * 1000 // TICK}', *(
                f'server.{number}={ports.HOST}:{one}:{other}'
                for number, (one, other) in enumerate(places, 1)))
        servers = [_started_here(
            place, ports.free_port(), number,
            lines(*far[:2], near[2]) if number == 3
            else lines(*near[:2], far[2])) for number in (1, 2, 3)]
        # Two servers can elect a leader. They elect the server with the higher
        # number.
        first = servers[1:] if leads else servers[:2]
        for some in first, [one for one in servers if one not in first]:
            for one in some:
                stack.enter_context(server.running(one, wait=False))
            for one in some:
                one.wait()
        yield Divided(servers, [way for pair in ways for way in pair])


def _started_here(place: pathlib.Path, port: int,
                  number: int = 1, further: tuple[str, ...] = ()
                  ) -> ZooKeeper:
    """Return a server that will run the program of the Debian package.

    :param further: Further lines of its configuration, such as
        'server.N=host:port:port' for an ensemble. The last line with a key is
        in force.
    """
    java = server.program('java', 'zookeeper')
    jar = JARS / 'zookeeper.jar'
    if not jar.exists():
        pytest.fail(f'this test needs {jar}; install it with: '
                    'apt-get install zookeeper', pytrace=False)
    data = place / f'data-{number}'
    settings = SETTINGS | {
        'dataDir': str(data),
        'clientPort': str(port),
        'clientPortAddress': ports.HOST,
    }
    lines = [f'{key}={value}' for key, value in settings.items()]
    config = place / f'zoo-{number}.cfg'
    config.write_text('\n'.join([*lines, *further, '']))
    # wipe() deletes the file 'myid' together with the data. So each start
    # writes the file again.
    start = ('mkdir -p "$0" && echo "$1" > "$0"/myid && shift && exec "$@"')
    return ZooKeeper(port, process.Process(
        ['sh', '-c', start, str(data), str(number), java,
         '-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1',
         # slf4j-simple writes the server's log to stderr.
         '-cp', f'{jar}:{JARS}/slf4j-simple.jar',
         'org.apache.zookeeper.server.quorum.QuorumPeerMain', str(config)],
        data))


def _ensemble_started_here(stack: contextlib.ExitStack, size: int
                           ) -> list[ZooKeeper]:
    place = stack.enter_context(server.directory('ensemble'))
    members = tuple(
        f'server.{number}={ports.HOST}:{ports.free_port()}:'
        f'{ports.free_port()}' for number in range(1, size + 1))
    return [_started_here(place, ports.free_port(), number, members)
            for number in range(1, size + 1)]


def _contained_ensemble(stack: contextlib.ExitStack, size: int
                        ) -> list[ZooKeeper]:
    network = stack.enter_context(Network())
    members = ' '.join(
        f'server.{number}=zk{number}:2888:3888;2181'
        for number in range(1, size + 1))

    def make(number: int) -> DockerContainer:
        return (_image()
                .with_env('ZOO_MY_ID', str(number))
                .with_env('ZOO_SERVERS', members)
                .with_network(network)
                .with_network_aliases(f'zk{number}'))

    def one(number: int) -> ZooKeeper:
        port = ports.free_port()
        return ZooKeeper(port, container.Container(
            lambda: make(number), 2181, port))

    return [one(number) for number in range(1, size + 1)]


def _image() -> DockerContainer:
    image = DockerContainer(IMAGE)
    for name, key in (('ZOO_TICK_TIME', 'tickTime'),
                      ('ZOO_INIT_LIMIT', 'initLimit'),
                      ('ZOO_SYNC_LIMIT', 'syncLimit'),
                      ('ZOO_MAX_CLIENT_CNXNS', 'maxClientCnxns'),
                      ('ZOO_4LW_COMMANDS_WHITELIST', '4lw.commands.whitelist'),
                      ('ZOO_ADMINSERVER_ENABLED', 'admin.enableServer')):
        image.with_env(name, SETTINGS[key])
    return image.with_env('ZOO_CFG_EXTRA', ' '.join(
        f'{key}={SETTINGS[key]}'
        for key in ('minSessionTimeout', 'maxSessionTimeout')))
