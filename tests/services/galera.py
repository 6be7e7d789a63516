# SPDX-License-Identifier: Apache-2.0
"""MariaDB Galera: several servers that share one database and all accept
writes.

The nodes always run the programs of the Debian packages. Tests of a cluster
break its nodes, and no container image allows this in the same way.
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

# The defaults, but with shorter times until a failed node is given up.
PROVIDER_OPTIONS = {
    'evs.keepalive_period': 'PT0.5S',
    'evs.suspect_timeout': 'PT2S',
    'evs.inactive_timeout': 'PT5S',
    'evs.install_timeout': 'PT5S',
    # By default each node allocates 128 MB of disk when it starts.
    'gcache.size': '16M',
}

# The first node creates the cluster once. A node with data restarts like the
# service of the Debian package: it recovers its position from InnoDB, and
# receives the later writes. A node without data receives all data.
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
        # A node without the others accepts connections, but rejects
        # statements.
        return super().answers() and self.status('wsrep_ready') == 'ON'

    def root(self, statement: str) -> list[Any]:
        """Run *statement* on this node as root; return the rows.

        :raises OSError: The node did not answer.
        """
        try:
            with contextlib.closing(pymysql.connect(
                    unix_socket=self._socket, user='root', connect_timeout=2,
                    autocommit=True, ssl_disabled=True)) as connection:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
                    return list(cursor.fetchall())
        except pymysql.MySQLError as error:
            raise OSError(str(error)) from error

    def status(self, name: str) -> str:
        """Return the value of the status variable *name*, as in SHOW STATUS.

        :raises OSError: The node did not answer.
        """
        (_, value), = self.root(f"SHOW STATUS LIKE '{name}'")
        return value

    def cut_off(self) -> None:
        """Isolate the node from the others; it then serves no client."""
        self.root("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")
        waiting.wait_until(
            lambda: self.status('wsrep_ready') == 'OFF', 30,
            'the node did not notice that it is alone')

    def join_again(self) -> None:
        """End the isolation; return when the node serves clients again."""
        self.root("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")
        self.wait()


class Galera:
    """Several nodes with one database."""

    def __init__(self, nodes: list[GaleraNode]):
        self.nodes = nodes

    def wait_whole(self) -> None:
        """Return when each node serves clients and sees all other nodes."""
        for node in self.nodes:
            node.wait()
        waiting.wait_until(
            lambda: all(int(node.status('wsrep_cluster_size'))
                        == len(self.nodes) for node in self.nodes), 30,
            'the nodes did not find each other')


@contextlib.contextmanager
def galera(nodes: int = 3) -> Iterator[Galera]:
    """Yield a cluster of *nodes* nodes that is complete and serves clients."""
    if not PROVIDER.exists():
        pytest.fail(f'this test needs {PROVIDER}; install it with: '
                    'apt-get install galera-4', pytrace=False)
    with (server.directory('galera') as place,
          contextlib.ExitStack() as stack):
        cluster = Galera(_nodes(place, nodes))
        for node in cluster.nodes:
            # Start one at a time: a node can send its data to only one node.
            stack.enter_context(server.running(node))
        _new(place / 'node-1').unlink()
        cluster.wait_whole()
        yield cluster


def _new(data: pathlib.Path) -> pathlib.Path:
    """Return the path of a file. A node that starts while this file exists
    creates a new cluster.
    """
    return data.with_suffix('.new')


def _nodes(place: pathlib.Path, number: int) -> list[GaleraNode]:
    places = [ports.free_port() for _ in range(number)]
    members = 'gcomm://' + ','.join(
        f'{ports.HOST}:{port}' for port in places)
    return [_node(place, f'node-{n}', port, members, first=n == 1)
            for n, port in enumerate(places, 1)]


def _node(place: pathlib.Path, name: str, port: int, members: str,
          first: bool) -> GaleraNode:
    """Return a node that will run the programs of the Debian packages.

    :param port: Port for the other nodes.
    :param members: Addresses of all nodes.
    :param first: True if this node creates the cluster.
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
    # The path of a socket must be short, so the socket is in the data
    # directory.
    socket = f'{data}/socket'
    return GaleraNode(clients, process.Process(
        [*server.unprivileged('mysql', place, data),
         'sh', '-c', START, str(data), install, program, str(PROVIDER),
         f'--bind-address={ports.HOST}', f'--port={clients}',
         f'--socket={socket}', f'--pid-file={data}/pid',
         '--skip-name-resolve',
         # The data need not survive a crash of the machine.
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
