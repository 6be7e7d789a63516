# SPDX-License-Identifier: Apache-2.0
"""MariaDB as a single server with one user and one database."""

import contextlib
import pathlib
from collections.abc import Iterator

import pymysql
from testcontainers.core.container import DockerContainer

from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server

IMAGE = 'mariadb:10.11'
USER = 'tests'
PASSWORD = 'loopback-only'  # noqa: S105
DATABASE = 'tests'

PLACES = ('/usr/sbin',)
#: SQL statements that a new server runs.
FIRST = (
    f'CREATE DATABASE IF NOT EXISTS {DATABASE};\n'
    f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';\n"
    # Each process of a test run has a database of its own, such as tests_gw0.
    f"GRANT ALL ON `{DATABASE}%`.* TO {USER}@'%';\n")


class MariaDB(server.Server):
    """One MariaDB server."""

    def __init__(self, port: int, runner: server.Runner):
        # The server has no TLS. Otherwise PyMySQL would read all certificates
        # of the system for each connection, which takes most of the time of
        # short tests.
        super().__init__(
            f'mysql://{USER}:{PASSWORD}@{ports.HOST}:{port}/{DATABASE}'
            '?ssl_disabled=true', runner)
        self.port = port

    def answers(self) -> bool:
        try:
            pymysql.connect(
                host=ports.HOST, port=self.port, user=USER,
                password=PASSWORD, database=DATABASE, connect_timeout=2,
                read_timeout=2, ssl_disabled=True).close()
        except pymysql.MySQLError as error:
            raise OSError(str(error)) from error
        return True


@contextlib.contextmanager
def mariadb(*, its_own: bool = False, memory: str = '32M'
            ) -> Iterator[MariaDB | server.ExternalServer]:
    """Yield one MariaDB server.

    :param its_own: True if the server in the environment must not be used.
    :param memory: Size of its buffer pool, such as '32M'.
    """
    found = None if its_own else server.external('MARIADB')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        one = MariaDB(port, container.Container(
            lambda: (DockerContainer(IMAGE)
                     .with_env('MARIADB_USER', USER)
                     .with_env('MARIADB_PASSWORD', PASSWORD)
                     .with_env('MARIADB_DATABASE', DATABASE)
                     .with_env('MARIADB_RANDOM_ROOT_PASSWORD', '1')
                     .with_command(_pool(memory))),
            3306, port))
        with server.running(one):
            yield one
        return
    with (server.directory('mariadb') as place,
          server.running(_started_here(place, port, memory)) as one):
        yield one


def _pool(memory: str) -> str:
    return f'--innodb-buffer-pool-size={memory}'


def _started_here(place: pathlib.Path, port: int, memory: str) -> MariaDB:
    install = server.program('mariadb-install-db', 'mariadb-server')
    program = server.program('mariadbd', 'mariadb-server', *PLACES)
    first = place / 'first.sql'
    first.write_text(FIRST)
    # The path of a socket must be short, so the socket is in the data
    # directory.
    start = (
        # A starting server deletes files in TMPDIR that look like its own.
        'TMPDIR="$0"; export TMPDIR; '
        'test -d "$0/mysql" || "$1" --no-defaults --datadir="$0" '
        '--auth-root-authentication-method=normal --skip-test-db '
        '>/dev/null && exec "$2" --no-defaults --datadir="$0" '
        f'--bind-address={ports.HOST} --port={port} '
        '--socket="$0/socket" --pid-file="$0/pid" --init-file="$3" '
        '--skip-name-resolve '
        # The data need not survive a crash of the machine.
        f'--innodb-flush-log-at-trx-commit=0 {_pool(memory)}')
    data = place / 'data'
    return MariaDB(port, process.Process(
        [*server.unprivileged('mysql', place, data),
         'sh', '-c', start, str(data), install, program, str(first)], data))
