# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL.

Many rows are bound as one array per column: one statement with arrays is twice
as fast as a list of rows.
"""

import contextlib
import functools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from distperiodic import exceptions
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.dialects.dialect import Driver
from distperiodic.adapters.sql.dialects.dialect import Group
from distperiodic.adapters.sql.dialects.dialect import Remedy
from distperiodic.adapters.sql.dialects.dialect import Room
from distperiodic.adapters.sql.dialects.dialect import Selection
from distperiodic.adapters.sql.dialects.dialect import stored_type
from distperiodic.adapters.sql.limits import IDLE
from distperiodic.adapters.sql.limits import LOCKED
from distperiodic.adapters.sql.limits import STATEMENT

#: SQL types of the elements of arrays, by Python type.
_ELEMENTS: dict[type, Any] = {
    str: sa.Text(), int: sa.BigInteger(), float: sa.Double()}
# Number of the advisory lock. Other programs are unlikely to use the same
# number in the same database.
_LOCK = 0x64697374
# Percentage of a page that new rows may fill. The old versions of rows stay in
# the page until the commit. So rows that one transaction changes need room for
# two versions of each row.
_FILL_FACTORS = {Room.CHANGING: 70, Room.TOGETHER: 45}
_LIMIT_IDLE = sa.text(
    "SELECT set_config(name, :value, true) FROM (SELECT "
    "'idle_in_transaction_session_timeout' AS name) AS bound "
    "WHERE current_setting(name) = '0'")
# Number of slices per fetch. A server ends a transaction that stays idle for
# 2 s, so each fetch must be small.
_SLICES = 8


class PostgreSQL(Dialect):
    """The SQL of PostgreSQL."""

    names = ('postgresql',)
    drivers = (
        # psycopg prepares repeated statements on the server.
        Driver('postgresql+psycopg', 'psycopg', "'psycopg[binary]'"),
        Driver('postgresql+psycopg2', 'psycopg2', 'psycopg2-binary'))
    schemes = ('postgresql',)
    misspellings = ('postgres', 'pgsql', 'psql')
    options = {
        'connect_timeout': '10', 'keepalives_idle': '10',
        'keepalives_interval': '5', 'keepalives_count': '3',
        'tcp_user_timeout': '25000'}
    # Keep limits that are set for this user or in the URL. Every statement of
    # the store can use an index, so sequential scans are disabled. Otherwise a
    # plan that was cached for a table of a few rows could later read a million
    # rows.
    limits = (
        'SELECT set_config(name, value, false) '  # noqa: S608
        'FROM (VALUES '
        f"('lock_timeout', '{LOCKED}s'), "
        f"('idle_in_transaction_session_timeout', '{IDLE}s'), "
        f"('statement_timeout', '{STATEMENT}s'), "
        # A statement in autocommit mode has the default isolation level.
        "('default_transaction_isolation', 'read committed'), "
        "('enable_seqscan', 'off'), "
        # The estimated cost of a plan with a disabled scan is so high that
        # PostgreSQL would compile the plan (JIT).
        "('jit', 'off')) AS bound(name, value) "
        "WHERE current_setting(name) IN "
        "('0', 'on', 'repeatable read', 'serializable')")
    autocommit = True
    # libpq has no timeout for an answer.
    waits_forever = True
    remedies = {
        '42501': Remedy.RIGHTS, '53100': Remedy.DISK,
        '53300': Remedy.CONNECTIONS}
    # The tables in the statement have changed, or a connection pooler has
    # switched to another session.
    stale = frozenset(['0A000', '26000'])
    writes_in_with = True
    merge_returns = True
    _NOW = ('CAST(extract(epoch FROM clock_timestamp()) * 1000000 '
            'AS BIGINT)')

    def listen(self, engine: sa.Engine, bounded: bool,
               statement: float | None) -> None:
        # A new connection needs several queries before its first use. Save the
        # round trips of transactions around them, and those of the query for
        # the type hstore.
        dialect: Any = engine.dialect
        dialect.use_native_hstore = False
        sa.event.listen(engine, 'connect', _commit_each, insert=True)
        super().listen(engine, bounded, statement)

    @staticmethod
    def limit(milliseconds: int) -> str:
        return f'SET statement_timeout = {milliseconds}'

    def limit_idle(self, session: Any, seconds: int) -> None:
        session.execute(_LIMIT_IDLE, {'value': f'{seconds}s'})

    def check_encoding(self, connection: sa.Connection, shown: str) -> None:
        found = connection.scalar(sa.text('SHOW server_encoding'))
        if found != 'UTF8':
            raise exceptions.SchemaError(
                f'database {shown} has the encoding {found}, in which not '
                'every text can be stored; create a database with: CREATE '
                "DATABASE NAME ENCODING 'UTF8' TEMPLATE template0")

    def check_search_path(self, connection: sa.Connection,
                          shown: str) -> None:
        if connection.scalar(sa.select(sa.func.current_schema())) is None:
            found = connection.scalar(sa.text('SHOW search_path'))
            raise exceptions.SchemaError(
                f'database {shown} has no schema that its search_path names '
                f'({found}); create the schema, grant this user USAGE on it, '
                'or correct search_path in [distperiodic] connection or of '
                'the user')

    def upgrading(self, connection: sa.Connection, version_table: str
                  ) -> contextlib.AbstractContextManager[None]:
        # This lock is released at the end of the transaction.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        return contextlib.nullcontext()

    @staticmethod
    def contains(column: sa.ColumnElement[str], text: str
                 ) -> sa.ColumnElement[bool]:
        return sa.func.strpos(column, text) > 0

    def leave_room(self, table: str, room: Room) -> str:
        # SQLAlchemy 2.0 has no option of CREATE TABLE for the fill factor.
        return (f'ALTER TABLE {table} '
                f'SET (fillfactor = {_FILL_FACTORS[room]})')

    def store_uncompressed(self, table: str, column: str) -> str:
        return (f'ALTER TABLE {table} '
                f'ALTER COLUMN {column} SET STORAGE EXTERNAL')

    @staticmethod
    def exact(length: int) -> TypeEngine[Any]:
        return sa.VARCHAR(length, collation='C')

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        return column == sa.any_(sa.cast(
            sa.bindparam('keys', type_=sa.Text), sa.ARRAY(sa.Text)))

    def keys(self, keys: Sequence[str]) -> Any:
        # Sort the keys: two statements that lock the same rows in different
        # orders could deadlock. Bind one text: PostgreSQL parses an array of
        # 1,000 parameters as 1,000 expressions, which takes twice as long.
        return _array(sorted(keys))

    @staticmethod
    def insert(table: sa.Table) -> Any:
        from sqlalchemy.dialects import postgresql
        return postgresql.insert(table)

    def insert_new(self, connection: sa.Connection, table: sa.Table,
                   differ: dict[str, Sequence[Any]], **same: Any) -> None:
        types = tuple(type(next(
            (value for value in values if value is not None), 0))
            for values in differ.values())
        connection.execute(
            _insert_arrays(table, tuple(differ), types, tuple(same)),
            self.rows(differ, **same))

    def _insert_rows(self, table: sa.Table, differ: Sequence[str],
                     same: Sequence[str]) -> Any:
        return _from_arrays(table, differ, tuple(
            _ELEMENTS[stored_type(table.c[name])] for name in differ), same)

    def rows(self, differ: dict[str, Sequence[Any]], **same: Any) -> Any:
        return {**{f'all_{name}': _array(values)
                   for name, values in differ.items()},
                **{f'all_{name}': value for name, value in same.items()}}

    def update_rows(self, connection: sa.Connection, table: sa.Table,
                    differ: dict[str, Sequence[Any]], keeps: Sequence[str]
                    ) -> None:
        connection.execute(
            _update_arrays(table, tuple(differ), tuple(keeps)),
            {f'all_{name}': _array(_bound(
                table.c[name].type, values, connection.dialect))
             for name, values in differ.items()})

    def gather(self, connection: sa.Connection,
               selection: Selection) -> Iterator[Group]:
        groups = selection.groups
        query = sa.select(*groups, sa.func.array_agg(selection.column)).where(
            *selection.which)
        query = query.group_by(*groups) if groups else query.group_by(
            selection.slices).execution_options(yield_per=_SLICES)
        for *group, values in connection.execute(query):
            yield tuple(group), values

    def refused_sequences(self, connection: sa.Connection,
                          tables: Sequence[str]) -> list[str]:
        return [name for name in tables if not connection.scalar(sa.select(
            sa.func.has_sequence_privilege(
                sa.func.pg_get_serial_sequence(name, 'id'), 'USAGE')))]


def _commit_each(connection: Any, record: Any) -> None:
    connection.autocommit = True


@functools.cache
def _insert_arrays(table: sa.Table, differ: tuple[str, ...],
                   types: tuple[type, ...], same: tuple[str, ...]) -> Any:
    """Build the INSERT of :meth:`PostgreSQL.insert_new`.

    :param types: Python types of the values in the columns *differ*.
    """
    return PostgreSQL.or_nothing(_from_arrays(
        table, differ, tuple(_ELEMENTS[kind] for kind in types), same))


def _from_arrays(table: sa.Table, differ: Sequence[str],
                 kinds: Sequence[Any], same: Sequence[str]) -> Any:
    """Return an INSERT that binds one array per column.

    :param kinds: SQL types of the values in the columns *differ*.
    """
    found = _unnested(list(zip(differ, kinds, strict=True)))
    return PostgreSQL.insert(table).from_select(
        [*differ, *same], sa.select(*found.c, *(
            sa.bindparam(f'all_{name}', type_=table.c[name].type)
            for name in same)))


def _unnested(columns: Sequence[tuple[str, Any]]) -> Any:
    """Return a table whose columns are the bound arrays ``all_NAME``.

    :param columns: Names of the columns, and the SQL types of their values.
    """
    return sa.func.unnest(*(
        sa.cast(sa.bindparam(f'all_{name}', type_=sa.Text),
                sa.ARRAY(kind)) for name, kind in columns)
    ).table_valued(*(
        sa.column(name, kind) for name, kind in columns)).render_derived()


def _array(values: Sequence[str | int | float | None]) -> str:
    """Return an array as text.

    The driver's own conversion of a list of JSON texts takes several times as
    long.
    """
    return '{' + ','.join([
        'NULL' if value is None else repr(value) if type(value) is not str
        else '"' + value.replace('\\', r'\\').replace('"', r'\"') + '"'
        for value in values]) + '}'


def _bound(kind: Any, values: Sequence[Any], dialect: Any) -> list[Any]:
    """Convert values of a column to the elements of an array."""
    convert = kind.dialect_impl(dialect).bind_processor(dialect)
    return list(map(convert, values) if convert else values)


@functools.cache
def _update_arrays(table: sa.Table, differ: tuple[str, ...],
                   keeps: tuple[str, ...]) -> Any:
    """Build the UPDATE of :meth:`PostgreSQL.update_rows`."""
    columns = [(name, _ELEMENTS[stored_type(table.c[name])])
               for name in differ]
    found = _unnested(columns)
    [key] = table.primary_key.columns
    return sa.update(table).where(key == found.c[key.name]).values({
        name: sa.func.coalesce(found.c[name], table.c[name])
        if name in keeps else found.c[name]
        for name in differ if name != key.name})
