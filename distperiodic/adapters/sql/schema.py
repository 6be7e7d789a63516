# SPDX-License-Identifier: Apache-2.0
"""Version of the tables, and migrations to the newest version.

The tables may share a database with the tables of a service, so they have a
version table of their own. Only ``distperiodic db sync`` alters the tables of
a database that an operator has configured. So only the database user of this
command needs the right to alter tables.
"""

import itertools
import os
import pathlib
import threading
from collections.abc import Callable
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
from distperiodic.adapters.sql.dialects.registry import dialect_of
from distperiodic.adapters.sql.dialects.registry import kind_of
from distperiodic.core import redaction

if TYPE_CHECKING:
    from alembic import config as alembic_config

_Result = TypeVar('_Result')

_MIGRATIONS = pathlib.Path(__file__).parents[2] / 'migrations'
#: Version of the tables that this release needs: the version of the newest
#: migration, with which the name of its file begins.
VERSION = max(file.name.partition('_')[0] for file in (
    _MIGRATIONS / 'versions').glob('[0-9]*.py'))
VERSION_TABLE = 'distperiodic_alembic_version'

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
        dialect_of(connection.dialect).check_encoding(connection, shown)
        check_keys(connection, shown)
    _transaction(connection_url, work, check_connection)


def _check_file(connection_url: str, shown: str) -> None:
    """Check that the file of a database exists and is a database.

    A connection would create a missing file. For a file of another format,
    oslo.db logs a traceback at each attempt to connect.

    :raises SchemaError: the file does not exist, or is not a database.
    """
    url = engine.check(connection_url)
    kind = kind_of(url)
    path = kind.file_of(url)
    if path is None:
        return
    if not path.parent.is_dir():
        raise exceptions.SchemaError(
            f'there is no directory {path.parent} for database {shown}; '
            'create it, then create the tables with: distperiodic db sync')
    if not path.exists():
        raise _no_tables(shown)
    if kind.is_foreign(path):
        raise exceptions.SchemaError(
            f'database {shown}: file is not a database; give the path of '
            'a SQLite database or of a new file')


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
    shown = redaction.redact(connection_url)
    kind = kind_of(engine.check(connection_url))

    def work(connection: sa.Connection) -> tuple[str | None, str]:
        dialect = dialect_of(connection.dialect)
        dialect.check_encoding(connection, shown)
        with dialect.upgrading(connection, VERSION_TABLE):
            before = _version_of(connection)
            if before is None:
                dialect.check_search_path(connection, shown)
                _check_empty(connection, shown)
            elif before > VERSION:
                raise _newer(shown, before)
            if before != VERSION:
                from alembic import command
                from alembic import util
                try:
                    command.upgrade(configuration(connection), 'head')
                except util.CommandError as exc:
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
                    isinstance(exc, _HalfMade)
                    or _step_done(exc.__cause__, kind.steps_done)):
                raise
            threading.Event().wait(_PAUSE)
    raise AssertionError('unreachable: the loop never ends by itself')


def _step_done(exc: BaseException | None, codes: frozenset[int]) -> bool:
    """Return whether the database reported a step of another process."""
    orig = getattr(exc, 'orig', None)
    return orig is not None and not codes.isdisjoint(orig.args[:1])


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
        dialect_of(connection.dialect).check_search_path(connection, shown)
        raise _no_tables(shown)
    if found < VERSION:
        raise exceptions.SchemaError(
            f'the tables in database {shown} have version {found}, and this '
            f'release needs {VERSION}; upgrade them with: '
            'distperiodic db sync')
    if found > VERSION:
        raise _newer(shown, found)


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
    # If each CREATE TABLE is committed separately, an interrupted sync leaves
    # only some of the tables behind.
    existing = sorted(set(sa.inspect(connection).get_table_names())
                      & set(tables.metadata.tables))
    if existing:
        error = (_HalfMade if dialect_of(connection.dialect).commits_ddl
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


def connect(connection_url: str,
            statement: float | None = None) -> Database:
    """Return a database connection, which is opened at its first use.

    :param statement: Maximum seconds of one statement. None means the limit of
        this library.
    :raises ConfigError: the URL is invalid.
    """
    return Database(connection_url, check_connection, statement=statement)
