# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL, as one server with one user and one database."""

import contextlib
import pathlib
import signal
from collections.abc import Iterator

import psycopg
from testcontainers.core.container import DockerContainer

from tests.services import container
from tests.services import ports
from tests.services import process
from tests.services import server

IMAGE = 'postgres:16'
USER = 'tests'
PASSWORD = 'loopback-only'  # noqa: S105

# Debian keeps the programs of each version in a separate directory, outside
# PATH.
PLACES = tuple(str(path) for path in sorted(
    pathlib.Path('/usr/lib/postgresql').glob('*/bin'), reverse=True))


class PostgreSQL(server.Server):
    """One PostgreSQL server."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(
            f'postgresql://{USER}:{PASSWORD}@{ports.HOST}:{port}/postgres',
            runner)
        self.port = port

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError as error:
            raise OSError(str(error)) from error
        return True


@contextlib.contextmanager
def postgresql(*, its_own: bool = False, within: pathlib.Path | None = None
               ) -> Iterator[PostgreSQL | server.ExternalServer]:
    """One PostgreSQL server.

    :param its_own: True if the server in the environment must not be used.
    :param within: Directory for its data, such as a small file system. A
        container ignores this parameter.
    """
    found = None if its_own else server.external('POSTGRESQL')
    if found:
        yield found
        return
    port = ports.free_port()
    if container.docker_answers():
        one = PostgreSQL(port, container.Container(
            lambda: (DockerContainer(IMAGE)
                     .with_env('POSTGRES_USER', USER)
                     .with_env('POSTGRES_PASSWORD', PASSWORD)
                     .with_env('POSTGRES_DB', 'postgres')),
            5432, port))
        with server.running(one):
            yield one
        return
    with (server.directory('postgresql', within) as place,
          server.running(_started_here(place, port)) as one):
        yield one
        # A server that is killed leaves shared memory behind.
        one.stop()


def _started_here(place: pathlib.Path, port: int) -> PostgreSQL:
    programs = [server.program(name, 'postgresql', *PLACES)
                for name in ('initdb', 'postgres')]
    secret = place / 'secret'
    secret.write_text(PASSWORD)
    # The server refuses to run as root, and requires a data directory that
    # only its user can access. The default of its method of authentication
    # would cost as much as a short test, on both sides.
    start = (
        'test -e "$0/PG_VERSION" || "$1" --pgdata "$0" --auth md5 '
        f'--username {USER} --pwfile "$3" --encoding UTF8 --locale C.UTF-8 '
        '--no-sync && exec "$2" -D "$0" '
        f'-c listen_addresses={ports.HOST} -c port={port} '
        '-c unix_socket_directories= -c max_connections=200 '
        '-c dynamic_shared_memory_type=mmap '
        # Tests read the time at which a transaction was committed.
        '-c track_commit_timestamp=on '
        # The data need not survive a crash of the machine.
        '-c fsync=off')
    data = place / 'data'
    return PostgreSQL(port, process.Process(
        [*server.unprivileged('postgres', place, data),
         'sh', '-c', start, str(data), *programs, str(secret)], data,
        # With SIGINT it does not wait until its clients disconnect.
        ends_on=signal.SIGINT))
