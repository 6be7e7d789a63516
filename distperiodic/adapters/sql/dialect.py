# SPDX-License-Identifier: Apache-2.0
"""SQL that differs between databases."""

import functools
import json
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import TypeEngine

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.host_clock import LEASE_NOW
from distperiodic.adapters.sql.host_clock import NOW
from distperiodic.adapters.sql.host_clock import TICK_OFFSET
from distperiodic.adapters.sql.host_clock import State


class _Listed(sa.types.UserDefinedType[Sequence[str | None]]):
    """Type of a list of values that is bound as one parameter, for PyMySQL.

    Without this type, SQLAlchemy would bind one parameter per value. With
    1,000 values, it would take longer to build the parameters than the server
    takes to parse the statement.

    :param of: SQL type of each value.
    """

    cache_ok = True

    def __init__(self, of: Any):
        self.of = of

    def bind_processor(self, dialect: Any) -> Any:
        each = self.of.dialect_impl(dialect).bind_processor(dialect)
        return lambda values: tuple(map(each, values) if each else values)


#: SQL types of the elements of PostgreSQL's arrays, by Python type.
_ELEMENTS: dict[type, Any] = {
    str: sa.Text(), int: sa.BigInteger(), float: sa.Double()}


def _of_host(function: str) -> str:
    """Return SQL that calls a function of host_clock once per statement."""
    columns = ', '.join(f'"{name}"' for name in State._fields)
    return (f'SELECT {function}({columns}) '  # noqa: S608
            f'FROM {tables.clock.name}')


def dialect_of(dialect: Any) -> 'Dialect':
    """Return the SQL of the database of SQLAlchemy's *dialect*.

    All connections of this process to such databases share the result, and the
    statements that it has built.
    """
    return _dialect(dialect.name, dialect.update_returning)


@functools.cache
def _dialect(name: str, returning: bool) -> 'Dialect':
    return Dialect(name, returning)


class Dialect:
    """The SQL of one kind of database."""

    #: SQL that reads the database's clock, in microseconds since the epoch.
    _NOW = {
        'postgresql': 'CAST(extract(epoch FROM clock_timestamp()) * 1000000 '
                      'AS BIGINT)',
        # SYSDATE() returns local time, in which one hour of each year occurs
        # twice if the zone has daylight saving time.
        'mysql': "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "
                 'UTC_TIMESTAMP(6))',
        'sqlite': _of_host(NOW),
    }

    def __init__(self, name: str, returning: bool):
        self._built: dict[Callable[[Dialect], Any], Any] = {}
        self.name = name
        #: True if an UPDATE can return the rows that it has changed.
        self.returning = returning
        #: True if an UPDATE does not wait for a locked row whose committed
        #: version does not match the condition of the UPDATE.
        self.passes_locked: bool = self.name != 'mysql'
        #: SQL expression that reads the clock for ticks.
        self.now: sa.ColumnElement[int] = sa.literal_column(
            f'({self._NOW[self.name]})', sa.BigInteger)
        #: SQL expression that reads the clock for leases, which is also the
        #: clock for buckets and heartbeats.
        self.lease_now = self.now if self.name != 'sqlite' else (
            sa.literal_column(
                f'({_of_host(LEASE_NOW)})', sa.BigInteger))

    def at_tick_clock(self, at: sa.ColumnElement[int]
                      ) -> sa.ColumnElement[int]:
        """Convert an instant of the clock for leases to the clock for ticks.

        The two clocks differ only with SQLite, after the host's clock was set.
        """
        return at if self.name != 'sqlite' else at + sa.literal_column(
            f'({_of_host(TICK_OFFSET)})', sa.BigInteger)

    def once(self, build: 'Callable[[Dialect], Any]') -> Any:
        """Return the statement that *build* returns for this dialect.

        A process builds the statement only once, since building it takes
        longer than executing it. *build* may also return several statements.
        """
        found = self._built.get(build)
        if found is None:
            found = self._built[build] = build(self)
        return found

    def use_snapshot(self, connection: sa.Connection) -> None:
        """Make all reads of this transaction use one snapshot.

        Call this method before any other statement. SQLite always reads a
        snapshot.
        """
        if self.name != 'sqlite':
            connection.execute(sa.text(
                'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ'))

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Return the condition that *column* is one of the bound *keys*."""
        if self.name == 'postgresql':
            return column == sa.any_(sa.cast(
                sa.bindparam('keys', type_=sa.Text),
                postgresql.ARRAY(sa.Text)))
        if self.name == 'sqlite':
            found = sa.func.json_each(
                sa.bindparam('keys', type_=sa.Text)).table_valued('value')
            return column.in_(sa.select(found.c.value))
        return column.bool_op('IN')(sa.bindparam(
            'keys', type_=_Listed(column.type)))

    def keys(self, keys: Sequence[str]) -> Any:
        """Return the value to bind as the parameter ``keys``."""
        if self.name == 'sqlite':
            return json.dumps(keys)
        # Sort the keys: two statements that lock the same rows in different
        # orders could deadlock.
        ordered = sorted(keys)
        if self.name == 'postgresql':
            # Bind one text: PostgreSQL parses an array of 1,000 parameters as
            # 1,000 expressions, which takes twice as long.
            return _array(ordered)
        return ordered or [None]

    def add_up(self, table: sa.Table, values: dict[str, Any],
               newest: Sequence[str], nothing: Sequence[str] = (),
               given: Any = None) -> Any:
        """Return a statement that inserts a row, or adds to an existing row.

        If a row with the same key exists, the new numbers are added to the
        numbers in that row.

        :param newest: Columns that take the new value, if it is not NULL.
        :param nothing: Columns of an existing row that do not change.
        :param given: Subquery from which *values* are selected. It returns at
            most one row; if it returns no row, nothing is inserted. None means
            that *values* are inserted as they are.
        """
        inserts: dict[str, Any] = {
            'postgresql': postgresql.insert, 'sqlite': sqlite.insert,
            'mysql': mysql.insert}
        insert = inserts[self.name](table)
        insert = (insert.values(values) if given is None
                  else insert.from_select(list(values), sa.select(
                      *values.values()).select_from(given)))
        new = insert.inserted if self.name == 'mysql' else insert.excluded
        keys = [column.name for column in table.primary_key.columns]
        found: dict[str, Any] = {}
        for column in table.c:
            if column.name in nothing:
                continue
            if column.name in newest:
                found[column.name] = sa.func.coalesce(
                    new[column.name], column)
            elif column.name not in keys:
                found[column.name] = column + new[column.name]
        if self.name == 'mysql':
            return insert.on_duplicate_key_update(found)
        return insert.on_conflict_do_update(index_elements=keys, set_=found)

    def insert_new(self, connection: sa.Connection, table: sa.Table,
                   differ: dict[str, Sequence[Any]], **same: Any) -> None:
        """Insert rows, except those whose key already exists.

        :param differ: Columns whose values differ from row to row, each with
            one value per row.
        :param same: Columns that have the same value in all rows.
        """
        if self.name == 'postgresql':
            # One array per column is twice as fast as a list of rows.
            types = tuple(type(next(
                (value for value in values if value is not None), 0))
                for values in differ.values())
            connection.execute(
                _insert_arrays(table, tuple(differ), types, tuple(same)),
                self.rows(differ, **same))
            return
        connection.execute(
            _insert_rows(table, self.name), self.rows(differ, **same))

    def merge(self, table: sa.Table, differ: Sequence[str],
              same: Sequence[str],
              change: Callable[[Any], Sequence[tuple[str, Any]]],
              only_if: Any, returning: Sequence[Any]) -> Any:
        """Return a statement that inserts rows, or changes existing rows.

        :meth:`rows` returns the parameters of the statement.

        :param differ: Columns whose values differ from row to row.
        :param same: Columns that have the same value in all rows.
        :param change: Function that returns the columns to set in an existing
            row, with their new values, in the order of assignment. The columns
            of its argument have the values of the row to insert.
        :param only_if: Condition on an existing row. A row that does not meet
            the condition is not changed. MySQL evaluates the condition before
            each assignment, so only the last assignment may set a column that
            the condition reads.
        :param returning: Columns that the statement returns, on PostgreSQL
            only.
        """
        if self.name == 'mysql':
            new = mysql.insert(table)
            return new.on_duplicate_key_update([
                (name, sa.case((only_if, value), else_=table.c[name]))
                for name, value in change(new.inserted)])
        if self.name == 'sqlite':
            insert: Any = sqlite.insert(table)
        else:
            insert = _from_arrays(table, differ, tuple(
                _ELEMENTS[_python_type(table.c[name])] for name in differ),
                same)
        insert = insert.on_conflict_do_update(
            index_elements=[one.name for one in table.primary_key.columns],
            set_=dict(change(insert.excluded)), where=only_if)
        return insert.returning(*returning) if self.name == 'postgresql' else (
            insert)

    def rows(self, differ: dict[str, Sequence[Any]], **same: Any) -> Any:
        """Return the parameters of a statement that inserts rows.

        For *differ* and *same*, see :meth:`insert_new`.
        """
        if self.name == 'postgresql':
            return {**{f'all_{name}': _array(values)
                       for name, values in differ.items()},
                    **{f'all_{name}': value for name, value in same.items()}}
        return [{**same, **dict(zip(differ, values, strict=True))}
                for values in zip(*differ.values(), strict=True)]

    def update_rows(self, connection: sa.Connection, table: sa.Table,
                    differ: dict[str, Sequence[Any]], keeps: Sequence[str]
                    ) -> None:
        """Update rows of a table whose primary key is one column.

        :param differ: The key and the columns that change, each with one value
            per row.
        :param keeps: Columns in which None means that the row keeps its old
            value.
        """
        if self.name == 'postgresql':
            connection.execute(
                _update_arrays(table, tuple(differ), tuple(keeps)),
                {f'all_{name}': _array(_bound(
                    table.c[name].type, values, connection.dialect))
                 for name, values in differ.items()})
            return
        connection.execute(
            _update_rows(table, tuple(differ), tuple(keeps)),
            [{f'new_{name}': value for name, value in zip(
                differ, values, strict=True)}
             for values in zip(*differ.values(), strict=True)])


# The statements below are cached: building one takes longer than executing it
# for one row.

@functools.cache
def _insert_arrays(table: sa.Table, differ: tuple[str, ...],
                   types: tuple[type, ...], same: tuple[str, ...]) -> Any:
    """Return the statement of :meth:`Dialect.insert_new` for PostgreSQL.

    :param types: Python types of the values in the columns *differ*.
    """
    return _from_arrays(
        table, differ, tuple(_ELEMENTS[kind] for kind in types), same
    ).on_conflict_do_nothing()


def _from_arrays(table: sa.Table, differ: Sequence[str],
                 kinds: Sequence[Any], same: Sequence[str]) -> Any:
    """Return an INSERT for PostgreSQL that binds one array per column.

    :param kinds: SQL types of the values in the columns *differ*.
    """
    found = _unnested(list(zip(differ, kinds, strict=True)))
    return postgresql.insert(table).from_select(
        [*differ, *same], sa.select(*found.c, *(
            sa.bindparam(f'all_{name}', type_=table.c[name].type)
            for name in same)))


def _unnested(columns: Sequence[tuple[str, Any]]) -> Any:
    """Return a table whose columns are the bound arrays ``all_NAME``.

    :param columns: Names of the columns, and the SQL types of their values.
    """
    return sa.func.unnest(*(
        sa.cast(sa.bindparam(f'all_{name}', type_=sa.Text),
                postgresql.ARRAY(kind)) for name, kind in columns)
    ).table_valued(*(
        sa.column(name, kind) for name, kind in columns)).render_derived()


def _array(values: Sequence[str | int | float | None]) -> str:
    """Return an array for PostgreSQL as text.

    The driver's own conversion of a list of JSON texts takes several times as
    long.
    """
    return '{' + ','.join([
        'NULL' if value is None else repr(value) if type(value) is not str
        else '"' + value.replace('\\', r'\\').replace('"', r'\"') + '"'
        for value in values]) + '}'


def _python_type(column: sa.Column[Any]) -> type:
    """Return the Python type of the values that *column* stores."""
    stored: TypeEngine[Any] = getattr(column.type, 'impl', column.type)
    return stored.python_type


@functools.cache
def _insert_rows(table: sa.Table, dialect: str) -> Any:
    """Build the INSERT of :meth:`Dialect.insert_new` for SQLite and MySQL."""
    if dialect == 'sqlite':
        return sqlite.insert(table).on_conflict_do_nothing()
    # INSERT IGNORE would hide other errors as well.
    first = next(iter(table.primary_key.columns))
    return mysql.insert(table).on_duplicate_key_update({first.name: first})


def _bound(kind: Any, values: Sequence[Any], dialect: Any) -> list[Any]:
    """Convert values of a column to the elements of an array."""
    if not isinstance(kind, sa.TypeDecorator):
        return list(values)
    return [kind.process_bind_param(value, dialect) for value in values]


@functools.cache
def _update_arrays(table: sa.Table, differ: tuple[str, ...],
                   keeps: tuple[str, ...]) -> Any:
    """Return the statement of :meth:`Dialect.update_rows` for PostgreSQL."""
    columns = [(name, _ELEMENTS[_python_type(table.c[name])])
               for name in differ]
    found = _unnested(columns)
    [key] = table.primary_key.columns
    return sa.update(table).where(key == found.c[key.name]).values({
        name: sa.func.coalesce(found.c[name], table.c[name])
        if name in keeps else found.c[name]
        for name in differ if name != key.name})


@functools.cache
def _update_rows(table: sa.Table, differ: tuple[str, ...],
                 keeps: tuple[str, ...]) -> Any:
    """Build the UPDATE of :meth:`Dialect.update_rows` for SQLite and MySQL."""
    [key] = table.primary_key.columns
    new = {name: sa.bindparam(f'new_{name}', type_=table.c[name].type)
           for name in differ}
    return sa.update(table).where(key == new[key.name]).values({
        name: sa.func.coalesce(value, table.c[name])
        if name in keeps else value
        for name, value in new.items() if name != key.name})
