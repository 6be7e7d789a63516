# SPDX-License-Identifier: Apache-2.0
"""MariaDB Galera: several servers that all take writes and keep one database.

Only by the programs of the Debian packages: what a test wants of a cluster is
to break its nodes, and no image does that in the same way.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from tests import waiting
from tests.services import mariadb
from tests.services import ports
from tests.services import process
from tests.services import server

PROVIDER = pathlib.Path('/usr/lib/galera/libgalera_smm.so')

# As they are by default, but a node that is gone is given up sooner.
PROVIDER_OPTIONS = {
    'evs.keepalive_period': 'PT0.5S',
    'evs.suspect_timeout': 'PT2S',
    'evs.inactive_timeout': 'PT5S',
    'evs.install_timeout': 'PT5S',
    # Else each node fills 128 MB of disk at its start.
    'gcache.size': '16M',
}

# The first node begins the cluster, once. One that comes back asks InnoDB how
# far it was, as the service of the package does, and gets what it missed; one
# without data gets all of it.
START = '''
if test -e "$0.new"; then
    "$1" --no-defaults --datadir="$0" --skip-test-db \\
        --auth-root-authentication-method=normal >/dev/null || exit
    set -- "$@" --wsrep-new-cluster --init-file="$0.new"
elif test -e "$0/ibdata1"; then
    position=$("$2" --no-defaults --datadir="$0" --wsrep-recover \\
        --wsrep-provider="$3" --wsrep-on=ON --binlog-format=ROW \\
        --port=0 --skip-networking --socket="$0/recover" \\
        --pid-file="$0/recover.pid" 2>&1 \\
        | sed -n 's/.*WSREP: Recovered position: *//p' | tail -n 1)
    set -- "$@" ${position:+--wsrep-start-position="$position"}
fi
program=$2
shift 3
exec "$program" --no-defaults --datadir="$0" "$@"
'''


class GaleraNode(mariadb.MariaDB):
    """One node of a cluster."""

    def __init__(self, port: int, runner: server.Runner, socket: str):
        super().__init__(port, runner)
        self._socket = socket

    def answers(self) -> bool:
        # One that has lost the others lets everybody in, and refuses what
        # they ask.
        return super().answers() and self.status('wsrep_ready') == 'ON'

    def root(self, statement: str) -> list[Any]:
        """Run *statement* as one who may do anything on this node.

        :raises OSError: it did not answer.
        """
        try:
            with contextlib.closing(pymysql.connect(
                    unix_socket=self._socket, user='root', connect_timeout=2,
                    autocommit=True)) as connection:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
                    return list(cursor.fetchall())
        except pymysql.MySQLError as error:
            raise OSError(str(error)) from error

    def status(self, name: str) -> str:
        """What the node says of itself, as in SHOW STATUS.

        :raises OSError: it did not answer.
        """
        (_, value), = self.root(f"SHOW STATUS LIKE '{name}'")
        return value

    def cut_off(self) -> None:
        """Part it from the others; it serves nobody from then on."""
        self.root("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")
        waiting.wait_until(
            lambda: self.status('wsrep_ready') == 'OFF', 30,
            'the node did not notice that it is alone')

    def join_again(self) -> None:
        """Let it back to the others."""
        self.root("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")
        self.wait()


class Galera:
    """Several nodes that keep one database."""

    def __init__(self, nodes: list[GaleraNode]):
        self.nodes = nodes

    def wait_whole(self) -> None:
        """Return when each node serves and sees all others."""
        for node in self.nodes:
            node.wait()
        waiting.wait_until(
            lambda: all(int(node.status('wsrep_cluster_size'))
                        == len(self.nodes) for node in self.nodes), 30,
            'the nodes did not find each other')


@contextlib.contextmanager
def galera(nodes: int = 3) -> Iterator[Galera]:
    """A cluster of so many nodes, complete and serving."""
    if not PROVIDER.exists():
        pytest.fail(f'this test needs {PROVIDER}; install it with: '
                    'apt-get install galera-4', pytrace=False)
    with (server.directory('galera') as place,
          contextlib.ExitStack() as stack):
        cluster = Galera(_nodes(place, nodes))
        for node in cluster.nodes:
            # One at a time: whoever gives its data to one cannot do it for
            # another.
            stack.enter_context(server.running(node))
        _new(place / 'node-1').unlink()
        cluster.wait_whole()
        yield cluster


def _new(data: pathlib.Path) -> pathlib.Path:
    """While this is there, the node begins a cluster when it starts."""
    return data.with_suffix('.new')


def _nodes(place: pathlib.Path, number: int) -> list[GaleraNode]:
    places = [ports.free_port() for _ in range(number)]
    members = 'gcomm://' + ','.join(
        f'{ports.HOST}:{port}' for port in places)
    return [_node(place, f'node-{n}', port, members, first=n == 1)
            for n, port in enumerate(places, 1)]


def _node(place: pathlib.Path, name: str, port: int, members: str,
          first: bool) -> GaleraNode:
    """A node that the programs of the Debian packages will run.

    :param port: where the other nodes reach it.
    :param members: where all of them are reached.
    :param first: whether it begins the cluster.
    """
    install = server.program('mariadb-install-db', 'mariadb-server')
    program = server.program(
        'mariadbd', 'mariadb-server', *mariadb.PLACES)
    data = place / name
    if first:
        _new(data).write_text(mariadb.FIRST)
    clients, ist, sst = (ports.free_port() for _ in range(3))
    options = {
        'gmcast.listen_addr': f'tcp://{ports.HOST}:{port}',
        'ist.recv_addr': f'{ports.HOST}:{ist}',
        **PROVIDER_OPTIONS,
    }
    # The socket lies beside the data: its path must be short.
    socket = f'{data}/socket'
    return GaleraNode(clients, process.Process(
        [*server.unprivileged('mysql', place, data),
         'sh', '-c', START, str(data), install, program, str(PROVIDER),
         f'--bind-address={ports.HOST}', f'--port={clients}',
         f'--socket={socket}', f'--pid-file={data}/pid',
         '--skip-name-resolve',
         # Nothing here must outlive the machine.
         '--innodb-flush-log-at-trx-commit=0',
         '--innodb-buffer-pool-size=32M',
         '--binlog-format=ROW', '--innodb-autoinc-lock-mode=2',
         '--wsrep-on=ON', f'--wsrep-provider={PROVIDER}',
         f'--wsrep-node-name={name}',
         f'--wsrep-node-address={ports.HOST}:{port}',
         f'--wsrep-cluster-address={members}',
         '--wsrep-sst-method=rsync',
         f'--wsrep-sst-receive-address={ports.HOST}:{sst}',
         '--wsrep-provider-options=' + ';'.join(
             f'{key}={value}' for key, value in options.items())],
        data), socket)
