# SPDX-License-Identifier: Apache-2.0
"""Checks of a database for ``distperiodic doctor``. No check changes a row."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_TABLES = tables.metadata.sorted_tables
# Tables to whose rows the database gives numbers.
_NUMBERED = tables.job.name, tables.failure.name, tables.exception.name
#: Network file systems. Other hosts see locks on their files late, or not at
#: all.
_NETWORK = ('nfs', 'nfs4', 'cifs', 'smb3', 'smbfs', 'fuse.sshfs', 'glusterfs',
            'fuse.glusterfs', 'ceph', 'lustre', '9p', 'beegfs', 'afs')
_MOUNTS = '/proc/self/mounts'
# Maximum number of rows that are counted per table.
_COUNTED = 1_000_000
# Number of random bytes in the row of write_problem().
_WRITTEN = 32_768


class Skew(NamedTuple):
    """This host's clock minus the store's clock, in seconds."""

    seconds: float
    #: Maximum error of the measurement: half of the round trip, in seconds.
    within: float


def skew(store: GroupReader, clock: ports.Clock) -> Skew:
    """Measure the difference between *clock* and the store's clock."""
    # Connect first, so that only one round trip is measured.
    store.now()
    began = clock.now()
    theirs = store.now()
    ended = clock.now()
    return Skew(((began + ended) / 2 - theirs) / 1e6,
                (ended - began) / 2e6)


def file_of(store: GroupStore) -> str | None:
    """Return the path of the database file. None means a server."""
    return store.database.name if store.dialect.in_file else None


def missing(store: GroupStore) -> list[str]:
    """Return the columns and indexes that the tables lack.

    :raises SchemaError: a table or a key is missing, or the encoding of
        the database is not UTF-8.
    """
    def read(connection: sa.Connection) -> list[str]:
        store.dialect.check_encoding(connection, store.database.shown)
        schema.check_keys(connection, store.database.shown)
        return schema.missing(connection)
    return store.read(read)


def version(store: GroupReader) -> str:
    """Return the version of the database server."""
    def read(connection: sa.Connection) -> str:
        found = connection.dialect.server_version_info or ()
        return '.'.join(map(str, found))
    return store.read(read)


def engines(store: GroupReader) -> dict[str, str]:
    """Return the tables whose engine cannot roll back, with the engines.
    """
    return store.read(store.dialect.other_engines)


def isolation(store: GroupReader) -> str:
    """Return the isolation level of transactions."""
    return store.read(
        lambda connection: connection.get_isolation_level())


def journal_problem(store: GroupReader) -> str:
    """Return why readers block writers; empty if they do not."""
    return store.read(store.dialect.journal_problem)


def sizes(store: GroupReader) -> dict[str, int]:
    """Return the number of rows of each table, at most one million."""
    def read(connection: sa.Connection) -> dict[str, int]:
        return {table.name: connection.scalar(
            sa.select(sa.func.count()).select_from(
                sa.select(sa.literal(1)).select_from(table)
                .limit(_COUNTED).subquery())) or 0
            for table in _TABLES}
    return store.read(read)


def oldest_tick(store: GroupReader) -> int | None:
    """Return the oldest tick of the group's history, in microseconds.

    None means that the history is empty.
    """
    tick: int | None
    [[tick]] = store.rows(
        sa.select(sa.func.min(tables.history.c.tick)).where(
            tables.history.c.job.in_(sa.select(tables.job.c.id).where(
                tables.job.c.space == store.namespace))))
    return tick


def refused(store: GroupStore) -> list[tuple[str, str]]:
    """Return the privileges that the user of a database lacks.

    Each item has a description, such as 'DELETE of distperiodic_claim', and
    the database's reason. The check executes statements that change no rows.
    """
    found = [(f'{name} of {table.name}', reason) for table in _TABLES
             for name, statement in _harmless(table)
             if (reason := _refusal(store, statement))]
    return [*found, *(
        (f'USAGE on the sequence of {name}', 'not granted')
        for name in store.read(
            lambda connection: store.dialect.refused_sequences(
                connection, _NUMBERED)))]


def write_problem(store: GroupStore) -> str:
    """Return the reason why the database cannot store new rows.

    An empty text means that it can. The check inserts a row that needs new
    space on the disk, and rolls the transaction back.
    """
    def work(connection: sa.Connection) -> None:
        # The database must not be able to compress the text.
        connection.execute(sa.insert(tables.member).values(
            space='doctor', part='', name=secrets.token_hex(8), process='',
            seen=0, state=secrets.token_hex(_WRITTEN)))
        raise _RollBack
    try:
        with contextlib.suppress(_RollBack):
            store.write(work)
    except exceptions.StoreUnavailable as exc:
        return str(exc)
    return ''


class _RollBack(Exception):
    """Roll the transaction back."""


def _refusal(store: GroupStore, statement: sa.Executable) -> str:
    """Return the reason why the database refuses a statement.

    An empty text means that the database does not refuse the statement.
    """
    try:
        store.write(
            lambda connection: connection.execute(statement).close())
    except exceptions.StoreUnavailable as exc:
        return str(exc).partition(': ')[2].partition(';')[0]
    return ''


def _harmless(table: sa.Table) -> list[tuple[str, sa.Executable]]:
    """Return statements on *table*, one of each kind, that affect no row."""
    column = next(iter(table.c))
    return [
        ('SELECT', sa.select(column).where(sa.false())),
        ('INSERT', sa.insert(table).from_select(
            [one.name for one in table.c],
            sa.select(*table.c).where(sa.false()))),
        ('UPDATE', sa.update(table).where(sa.false()).values(
            {column.name: column})),
        ('DELETE', sa.delete(table).where(sa.false()))]


def network_disk(path: str, mounts: Sequence[str] | None = None
                 ) -> str | None:
    """Return the type of the network file system that contains *path*.

    None means that the file system is local or unknown.

    :param mounts: Lines as in /proc/self/mounts. None means the mounts of this
        host.
    """
    if mounts is None:
        try:
            with open(_MOUNTS) as lines:
                mounts = lines.read().splitlines()
        except OSError:
            return None
    best, kind = '', ''
    for line in mounts:
        place, filesystem = line.split()[1:3]
        if len(place) >= len(best) and (
                f'{path}/'.startswith(f'{place.rstrip("/")}/')):
            best, kind = place, filesystem
    return kind if kind in _NETWORK else None
