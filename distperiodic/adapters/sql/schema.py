# SPDX-License-Identifier: Apache-2.0
"""Version of the tables, and migrations to the newest version.

The tables may share a database with the tables of a service, so they have a
version table of their own. Only ``distperiodic db sync`` alters the tables of
a database that an operator has configured. So only the database user of this
command needs the right to alter tables.
"""

import contextlib
import itertools
import os
import pathlib
import sqlite3
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception

from distperiodic import exceptions
from distperiodic.adapters.local import private
from distperiodic.adapters.sql import engine
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.core import redaction

if TYPE_CHECKING:
    from alembic import config as alembic_config

_Result = TypeVar('_Result')

#: Version of the tables that this release needs: the version of the newest
#: migration.
VERSION = '0001'
VERSION_TABLE = 'distperiodic_alembic_version'

_MIGRATIONS = pathlib.Path(__file__).parents[2] / 'migrations'
# Number of the advisory lock. Other programs are unlikely to use the same
# number in the same database.
_LOCK = 0x64697374
# Maximum seconds to wait, on MySQL, for another process that upgrades the
# tables.
_LOCK_WAIT = 600

# MySQL's error codes for a step that another process has completed, or is just
# taking: the table, the column or the index already exists, or the column or
# the index to drop does not exist, or the table is being altered, or a
# statement that reads the catalogue was aborted. (oslo.db does not convert the
# errors of SQLAlchemy's own statements, so it does not repeat them.)
_STEP_DONE = frozenset({1050, 1060, 1061, 1091, 1213, 1684})
# Number of attempts while another process upgrades the tables, and seconds
# between two attempts.
_ATTEMPTS, _PAUSE = 20, 0.5

_version = sa.table(VERSION_TABLE, sa.column('version_num', sa.String))


def create_file(connection_url: str, path: str) -> None:
    """Create the SQLite file of a store, if it is missing, and its tables.

    Existing tables are upgraded.

    :param path: Path of the file, as in *connection_url*.
    :raises ConfigError: The file or its directory cannot be used.
    """
    private.make_directory(os.path.dirname(path))
    private.make_file(path)
    sync(connection_url)


def check(connection_url: str) -> None:
    """Check that the tables and their keys match this release.

    :raises SchemaError: the tables are missing, lack a key, or are older or
        newer than this release.
    :raises StoreUnavailable: the database is unavailable.
    """
    shown = redaction.redact(connection_url)
    _check_file(connection_url, shown)

    def work(connection: sa.Connection) -> None:
        check_encoding(connection, shown)
        check_keys(connection, shown)
    _transaction(connection_url, work, check_connection)


def _check_file(connection_url: str, shown: str) -> None:
    """Check that the file of a SQLite database exists and is a database.

    A connection would create a missing file. For a file of another format,
    oslo.db logs a traceback at each attempt to connect.

    :raises SchemaError: the file does not exist, or is not a database.
    """
    url = engine.check(connection_url)
    if url.get_backend_name() != 'sqlite' or 'uri' in url.query:
        return
    path = pathlib.Path(url.database or '')
    if not path.parent.is_dir():
        raise exceptions.SchemaError(
            f'there is no directory {path.parent} for database {shown}; '
            'create it, then create the tables with: distperiodic db sync')
    if not path.exists():
        raise _no_tables(shown)
    if _is_foreign(path):
        raise exceptions.SchemaError(
            f'database {shown}: file is not a database; give the path of '
            'a SQLite database or of a new file')


def _is_foreign(path: pathlib.Path) -> bool:
    """Return whether the file *path* is not a SQLite database.

    SQLite itself reads the file. If this function opened and closed the file
    directly, the system would release all locks that this process holds on the
    file.
    """
    try:
        with contextlib.closing(sqlite3.connect(
                f'{path.resolve().as_uri()}?mode=rw', uri=True)) as connection:
            connection.execute('PRAGMA schema_version')
    except sqlite3.DatabaseError as exc:
        return exc.sqlite_errorcode == sqlite3.SQLITE_NOTADB
    return False


def _no_tables(shown: str) -> exceptions.SchemaError:
    return exceptions.SchemaError(
        f'database {shown} has no distperiodic tables; create them with: '
        'distperiodic db sync')


def version(connection_url: str) -> str | None:
    """Return the version of the tables; None means that they are missing."""
    return _transaction(connection_url, _version_of)


def sync(connection_url: str) -> tuple[str | None, str]:
    """Upgrade the tables to the version of this release.

    A second call changes nothing. If two calls run at the same time, one waits
    for the other.

    :returns: the versions before and after.
    :raises SchemaError: the tables are newer than this release, or their
        version is missing or unknown.
    """
    def work(connection: sa.Connection) -> tuple[str | None, str]:
        check_encoding(connection, redaction.redact(connection_url))
        with _exclusively(connection):
            before = _version_of(connection)
            if before is None:
                _check_search_path(
                    connection, redaction.redact(connection_url))
                _check_empty(connection, redaction.redact(connection_url))
            elif before > VERSION:
                raise _newer(redaction.redact(connection_url), before)
            if before != VERSION:
                from alembic import command
                from alembic import util
                try:
                    command.upgrade(configuration(connection), 'head')
                except util.CommandError as exc:
                    shown = redaction.redact(connection_url)
                    if _version_of(connection) != before:
                        # A process that uses another node of the cluster has
                        # changed the version since it was read.
                        raise _HalfMade(
                            'another process is upgrading the tables in '
                            f'database {shown}; when it has ended, run again: '
                            'distperiodic db sync') from exc
                    raise exceptions.SchemaError(
                        f'the tables in database {shown} have version '
                        f'{before}, which this release cannot upgrade to '
                        f'{VERSION}; check that it is a database of '
                        'distperiodic, or first upgrade to an intermediate '
                        'release') from exc
            return before, VERSION
    for attempt in itertools.count(1):
        try:
            return _transaction(connection_url, work)
        except (_HalfMade, exceptions.StoreUnavailable) as exc:
            # GET_LOCK acquires a lock of one node only, so a process that uses
            # another node of a Galera cluster may be taking the same steps.
            if attempt == _ATTEMPTS or not (
                    isinstance(exc, _HalfMade) or _step_done(exc.__cause__)):
                raise
            threading.Event().wait(_PAUSE)
    raise AssertionError('unreachable: the loop never ends by itself')


def _step_done(exc: BaseException | None) -> bool:
    """Return whether MySQL reported a step of another process."""
    orig = getattr(exc, 'orig', None)
    return orig is not None and not _STEP_DONE.isdisjoint(orig.args[:1])


def configuration(connection: sa.Connection) -> 'alembic_config.Config':
    """Return Alembic's configuration for migrations on *connection*."""
    from alembic import config as alembic_config
    found = alembic_config.Config()
    found.set_main_option('script_location', str(_MIGRATIONS))
    found.attributes['connection'] = connection
    return found


def check_connection(connection: sa.Connection, shown: str) -> None:
    """Check the version of the tables.

    :param shown: URL without its password.
    :raises SchemaError: the tables are missing, or are older or newer than
        this release.
    """
    found = _version_of(connection)
    if found is None:
        _check_search_path(connection, shown)
        raise _no_tables(shown)
    if found < VERSION:
        raise exceptions.SchemaError(
            f'the tables in database {shown} have version {found}, and this '
            f'release needs {VERSION}; upgrade them with: '
            'distperiodic db sync')
    if found > VERSION:
        raise _newer(shown, found)


def check_encoding(connection: sa.Connection, shown: str) -> None:
    """Check that the database can store every text.

    Ids and errors are Unicode. In another encoding, one text that cannot be
    stored would roll back the whole transaction, with the outcomes of other
    runs.

    :param shown: URL without its password.
    :raises SchemaError: The encoding of the database is not UTF-8.
    """
    if connection.dialect.name != 'postgresql':
        return  # SQLite stores Unicode; on MySQL the tables are utf8mb4.
    found = connection.scalar(sa.text('SHOW server_encoding'))
    if found != 'UTF8':
        raise exceptions.SchemaError(
            f'database {shown} has the encoding {found}, in which not every '
            "text can be stored; create a database with: CREATE DATABASE NAME "
            "ENCODING 'UTF8' TEMPLATE template0")


def _check_search_path(connection: sa.Connection, shown: str) -> None:
    """Check that PostgreSQL has a schema for the tables.

    :param shown: URL without its password.
    :raises SchemaError: search_path names no schema that exists.
    """
    if connection.dialect.name == 'postgresql' and connection.scalar(
            sa.select(sa.func.current_schema())) is None:
        found = connection.scalar(sa.text('SHOW search_path'))
        raise exceptions.SchemaError(
            f'database {shown} has no schema that its search_path names '
            f'({found}); create the schema, grant this user USAGE on it, or '
            'correct search_path in [distperiodic] connection or of the user')


def check_keys(connection: sa.Connection, shown: str) -> None:
    """Check the primary keys and unique constraints.

    Only these keys prevent two members from acquiring the same claim.

    :param shown: URL without its password.
    :raises SchemaError: a table or a key is missing.
    """
    inspector = sa.inspect(connection)
    # PostgreSQL answers each of these calls for all tables at once.
    all_tables: Any = {'filter_names': list(tables.metadata.tables)}
    primary = inspector.get_multi_pk_constraint(**all_tables)
    unique = inspector.get_multi_unique_constraints(**all_tables)
    indexes = inspector.get_multi_indexes(**all_tables)
    for table in tables.metadata.sorted_tables:
        its = None, table.name
        if its not in primary:
            raise exceptions.SchemaError(
                f'database {shown} has lost the table {table.name}; restore '
                'it, or drop all tables that begin with distperiodic_ and '
                'recreate them with: distperiodic db sync')
        found: list[Any] = [
            primary[its]['constrained_columns'],
            *(one['column_names'] for one in unique[its]),
            *(one['column_names'] for one in indexes[its] if one['unique'])]
        for key in table.constraints:
            if not isinstance(key, (sa.PrimaryKeyConstraint,
                                    sa.UniqueConstraint)):
                continue
            expected = [column.name for column in key.columns]
            if set(expected) not in [set(columns) for columns in found]:
                columns = ', '.join(expected)
                kind = ('PRIMARY KEY' if isinstance(
                    key, sa.PrimaryKeyConstraint) else
                    f'CONSTRAINT {key.name} UNIQUE')
                raise exceptions.SchemaError(
                    f'table {table.name} in database {shown} has lost its '
                    f'key ({columns}), so two members could claim the same '
                    'object; restore it while no service runs: ALTER TABLE '
                    f'{table.name} ADD {kind} ({columns})')


def missing(connection: sa.Connection) -> list[str]:
    """Return the columns and indexes that the tables lack."""
    found = sa.inspect(connection)
    missing = []
    for table in tables.metadata.sorted_tables:
        columns = {one['name'] for one in found.get_columns(table.name)}
        missing += [f'column {table.name}.{column.name}'
                    for column in table.c if column.name not in columns]
        indexed = {tuple(one['column_names'])
                   for one in found.get_indexes(table.name)}
        missing += [f'index ({", ".join(index.columns.keys())}) of '
                    f'{table.name}' for index in table.indexes
                    if tuple(index.columns.keys()) not in indexed]
    return missing


def _newer(shown: str, found: str) -> exceptions.SchemaError:
    return exceptions.SchemaError(
        f'the tables in database {shown} have version {found}, and this '
        f'release supports versions up to {VERSION}; install the release '
        'whose "distperiodic db sync" was run last')


class _HalfMade(exceptions.SchemaError):
    """Another process may be creating or upgrading the tables."""


def _check_empty(connection: sa.Connection, shown: str) -> None:
    # MySQL commits each CREATE TABLE separately, so an interrupted sync
    # leaves only some of the tables behind.
    existing = sorted(set(sa.inspect(connection).get_table_names())
                      & set(tables.metadata.tables))
    if existing:
        error = (_HalfMade if connection.dialect.name == 'mysql'
                 else exceptions.SchemaError)
        raise error(
            f'database {shown} has distperiodic tables '
            f'({", ".join(existing)}) but no record of their version, so they '
            f'may be incomplete; restore the table {VERSION_TABLE}, or '
            'drop all tables that begin with distperiodic_ and recreate them '
            'with: distperiodic db sync')


def _version_of(connection: sa.Connection) -> str | None:
    # A query of a missing table would abort the transaction.
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.select(
        _version.c.version_num)).scalar_one_or_none()


def _transaction(
        connection_url: str, work: Callable[[sa.Connection], _Result],
        check_schema: Callable[[sa.Connection, str], None] =
        lambda connection, shown: None) -> _Result:
    # Set no time limits on statements: a migration may take a long time.
    target = Database(connection_url, check_schema, bounded=False)
    try:
        return target.write(work)
    except db_exception.DBNonExistentDatabase as exc:
        raise exceptions.ConfigError(
            f'{redaction.redact(connection_url)}: there is no such database; '
            'create it') from exc
    finally:
        target.close()


def name_of_lock() -> sa.ColumnElement[str]:
    """Return the name of MySQL's lock for the upgrade of a database.

    MySQL's locks belong to the server. Without the name of the database,
    upgrades of different databases would wait for each other. The name of a
    lock has at most 64 characters.
    """
    return sa.func.concat(
        VERSION_TABLE, '.', sa.func.md5(sa.func.database()))


@contextlib.contextmanager
def _exclusively(connection: sa.Connection) -> Iterator[None]:
    """Hold a lock, since Alembic does not serialize concurrent upgrades."""
    if connection.dialect.name == 'postgresql':
        # This lock is released at the end of the transaction.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        yield
    elif connection.dialect.name == 'mysql':
        name = name_of_lock()
        if connection.scalar(
                sa.select(sa.func.get_lock(name, _LOCK_WAIT))) != 1:
            raise exceptions.StoreUnavailable(
                'another process has been upgrading the tables for '
                f'{_LOCK_WAIT} s; when it has ended, run again: '
                'distperiodic db sync')
        try:
            yield
            # Commit before the lock is released: otherwise the next holder
            # would not see the new version, and would repeat the last
            # migration. MySQL has already committed all earlier steps.
            connection.execute(sa.text('COMMIT'))
        finally:
            connection.execute(sa.select(sa.func.release_lock(name)))
    else:
        yield  # SQLite allows only one writer at a time.
