# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ as a broker or a cluster, with an Erlang port mapper of its own."""

import abc
import contextlib
import os
import pathlib
import socket
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import amqp
import pytest
from testcontainers.core.container import DockerContainer

from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server

IMAGE = 'rabbitmq:3.13'
USER = 'tests'
PASSWORD = 'loopback-only'  # noqa: S105

# Debian's programs in PATH change to the system's own user and directories.
# They call the programs in these directories.
PLACES = ('/usr/lib/rabbitmq/bin', '/usr/libexec/rabbitmq')

# By default Erlang's nodes and their tools listen on every address.
LOOPBACK_ONLY = '-kernel inet_dist_use_interface {127,0,0,1}'


class RabbitMQ(server.Server):
    """One RabbitMQ broker."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(
            f'rabbit://{USER}:{PASSWORD}@{ports.HOST}:{port}/', runner)
        self.port = port

    def answers(self) -> bool:
        with amqp.Connection(f'{ports.HOST}:{self.port}', userid=USER,
                             password=PASSWORD, connect_timeout=2,
                             read_timeout=5) as connection:
            return connection.connected

    @abc.abstractmethod
    def ctl(self, *command: str, timeout: float = 60.0) -> str:
        """Run rabbitmqctl, as in ``ctl('stop_app')``; return its output.

        The test fails if rabbitmqctl fails.

        :param timeout: Seconds.
        """


class _PortMapper(server.Server):
    """epmd, the program through which Erlang's nodes find each other.

    A node that finds no epmd starts one that never ends. So the epmd of this
    class starts before the broker, and ends with the broker.
    """

    def __init__(self, place: pathlib.Path, port: int):
        super().__init__(f'epmd://{ports.HOST}:{port}', process.Process(
            [server.program('epmd', 'rabbitmq-server'), '-address',
             ports.HOST, '-port', str(port)], place / 'epmd'))
        self.port = port

    def answers(self) -> bool:
        with socket.create_connection((ports.HOST, self.port), 2):
            return True


class _StartedHere(RabbitMQ):
    """The broker of the Debian package, separate from the system's broker."""

    def __init__(self, home: pathlib.Path, port: int, mapper: _PortMapper):
        """Prepare a broker.

        :param home: Directory of the cookie that all nodes of a cluster share.
        """
        self._ctl = server.program(
            'rabbitmqctl', 'rabbitmq-server', *PLACES)
        self.node = node = f'tests-{port}@localhost'
        place = home / str(port)
        place.mkdir()
        data = place / 'data'
        plugins = place / 'enabled_plugins'
        plugins.write_text('[].\n')
        config = place / 'rabbitmq.conf'
        config.write_text(
            f'listeners.tcp.1 = {ports.HOST}:{port}\n'
            f'default_user = {USER}\n'
            f'default_pass = {PASSWORD}\n'
            # The default limits block publishers on a small or full disk.
            'disk_free_limit.absolute = 20MB\n'
            'log.console = true\n'
            'log.console.level = warning\n'
            'log.file = false\n')
        self._env = {
            'ERL_AFLAGS': LOOPBACK_ONLY,
            'ERL_EPMD_ADDRESS': ports.HOST,
            'ERL_EPMD_PORT': str(mapper.port),
            # rabbitmqctl reads the node's cookie from this directory.
            'HOME': str(home),
            'RABBITMQ_ADVANCED_CONFIG_FILE': str(place / 'advanced.config'),
            # A missing file, so that the system's own file is not read.
            'RABBITMQ_CONF_ENV_FILE': str(place / 'rabbitmq-env.conf'),
            'RABBITMQ_CONFIG_FILE': str(config),
            'RABBITMQ_DIST_PORT': str(ports.free_port()),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(plugins),
            'RABBITMQ_LOG_BASE': str(place),
            'RABBITMQ_MNESIA_BASE': str(data),
            'RABBITMQ_NODENAME': node,
            'RABBITMQ_PID_FILE': str(place / 'pid'),
            # This makes the start script replace itself with the broker.
            # Otherwise the script would receive the signals.
            'RUNNING_UNDER_SYSTEMD': 'true',
        }
        super().__init__(port, process.Process(
            [server.program('rabbitmq-server', 'rabbitmq-server', *PLACES)],
            data, self._env))

    def ctl(self, *command: str, timeout: float = 60.0) -> str:
        done = subprocess.run(
            [self._ctl, '-n', self._env['RABBITMQ_NODENAME'], *command],
            env=os.environ | self._env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout, check=False)
        return _output(command, done.returncode, done.stdout)


class _Contained(RabbitMQ):
    """The broker in a container."""

    def __init__(self, port: int):
        self._container = container.Container(
            lambda: (DockerContainer(IMAGE)
                     .with_env('RABBITMQ_DEFAULT_USER', USER)
                     .with_env('RABBITMQ_DEFAULT_PASS', PASSWORD)),
            5672, port)
        super().__init__(port, self._container)

    def ctl(self, *command: str, timeout: float = 60.0) -> str:
        return _output(command, *self._container.run(
            'timeout', f'{timeout:g}', 'rabbitmqctl', *command))


@contextlib.contextmanager
def rabbitmq(*, its_own: bool = False
             ) -> Iterator[RabbitMQ | server.ExternalServer]:
    """Yield one RabbitMQ broker with one user.

    :param its_own: True if the broker in the environment must not be used.
    """
    found = None if its_own else server.external('RABBITMQ')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        with server.running(_Contained(port)) as broker:
            yield broker
        return
    with server.directory('rabbitmq') as home:
        mapper = _PortMapper(home, ports.free_port())
        broker = _StartedHere(home, port, mapper)
        with server.running(mapper), server.running(broker):
            yield broker


class Cluster(NamedTuple):
    """RabbitMQ nodes that form one cluster."""

    nodes: list[RabbitMQ]

    @property
    def url(self) -> str:
        """The transport_url that names all nodes."""
        hosts = ','.join(one.url.removeprefix('rabbit://').rstrip('/')
                         for one in self.nodes)
        return f'rabbit://{hosts}/'


@contextlib.contextmanager
def rabbitmq_cluster(size: int = 3) -> Iterator[Cluster]:
    """Yield a cluster of *size* nodes that is complete and serves clients.

    The nodes always run the programs of the Debian package.
    """
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(server.directory('rabbitmq'))
        mapper = _PortMapper(home, ports.free_port())
        stack.enter_context(server.running(mapper))
        nodes = [_StartedHere(home, ports.free_port(), mapper)
                 for _ in range(size)]
        for one in nodes:
            # The first node creates the cookie.
            stack.enter_context(server.running(one))
        for one in nodes[1:]:
            one.ctl('stop_app')
            one.ctl('join_cluster', nodes[0].node)
            one.ctl('start_app')
        yield Cluster(list(nodes))


def _output(command: tuple[str, ...], code: int, output: str) -> str:
    if code != 0:
        pytest.fail(f'rabbitmqctl {" ".join(command)} ended with {code}: '
                    f'{output}')
    return output
