# SPDX-License-Identifier: Apache-2.0
"""What is written differently from database to database."""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite

from distperiodic.adapters import host_clock
from distperiodic.adapters import tables


class _Listed(sa.types.UserDefinedType[Sequence[str | None]]):
    """Values of a column's type that PyMySQL writes as one list.

    SQLAlchemy's own, a parameter for each of 1,000, takes longer to write
    than the server takes to read it.
    """

    cache_ok = True

    def __init__(self, of: Any):
        self.of = of

    def bind_processor(self, dialect: Any) -> Any:
        each = self.of.dialect_impl(dialect).bind_processor(dialect)
        return lambda values: tuple(map(each, values) if each else values)


def _of_host(function: str) -> str:
    """A clock of the host, asked once in a statement."""
    columns = ', '.join(f'"{name}"' for name in host_clock.State._fields)
    return (f'SELECT {function}({columns}) '  # noqa: S608
            f'FROM {tables.clock.name}')


class Dialect:
    """One kind of database."""

    #: Microseconds since the epoch, of the database's clock.
    _NOW = {
        'postgresql': 'CAST(extract(epoch FROM clock_timestamp()) * 1000000 '
                      'AS BIGINT)',
        # SYSDATE() is local time, which is ambiguous for an hour a year.
        'mysql': "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "
                 'UTC_TIMESTAMP(6))',
        'sqlite': _of_host(host_clock.NOW),
    }

    def __init__(self, dialect: Any):
        self.name: str = dialect.name
        self.returning: bool = dialect.update_returning
        #: Whether an UPDATE passes over rows that others have locked, if what
        #: is committed of them does not meet its condition.
        self.passes_locked: bool = self.name != 'mysql'
        #: The clock that ticks go by.
        self.now: sa.ColumnElement[int] = sa.literal_column(
            f'({self._NOW[self.name]})', sa.BigInteger)
        #: The clock that leases go by, and nothing else.
        self.lease_now = self.now if self.name != 'sqlite' else (
            sa.literal_column(
                f'({_of_host(host_clock.LEASE_NOW)})', sa.BigInteger))

    def look_at_one_moment(self, connection: sa.Connection) -> None:
        """Have all that this transaction reads be of one moment; call it
        before anything else. On SQLite it always is.
        """
        if self.name != 'sqlite':
            connection.execute(sa.text(
                'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ'))

    def among(self, column: Any) -> sa.ColumnElement[bool]:
        """Whether *column* is one of the bound *keys*."""
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
        """*keys* as they are bound."""
        if self.name == 'sqlite':
            return json.dumps(keys)
        # In one order everywhere, or two statements could each wait for
        # the other.
        ordered = sorted(keys)
        if self.name == 'postgresql':
            # One text: an array of 1,000 is 1,000 expressions to the server,
            # which takes twice as long to read them.
            text = '\0'.join(ordered).replace('\\', r'\\')
            text = text.replace('"', r'\"').replace('\0', '","')
            return f'{{"{text}"}}' if ordered else '{}'
        return ordered or [None]

    def add_up(self, table: sa.Table, values: dict[str, Any],
               greatest: Sequence[str], newest: Sequence[str],
               nothing: Sequence[str] = (), given: Any = None) -> Any:
        """Insert a row, or add its numbers to the one that has its key.

        :param greatest: columns of which the greater value stays instead.
        :param newest: columns of which the new value stays, if there is one.
        :param nothing: columns to which nothing is added.
        :param given: what *values* are read from, one row or none; with
            none there is nothing to insert. None: they are given.
        """
        inserts: dict[str, Any] = {
            'postgresql': postgresql.insert, 'sqlite': sqlite.insert,
            'mysql': mysql.insert}
        insert = inserts[self.name](table)
        insert = (insert.values(values) if given is None
                  else insert.from_select(list(values), sa.select(
                      *values.values()).select_from(given)))
        new = insert.inserted if self.name == 'mysql' else insert.excluded
        greater = sa.func.max if self.name == 'sqlite' else sa.func.greatest
        keys = [column.name for column in table.primary_key.columns]
        found: dict[str, Any] = {}
        for column in table.c:
            if column.name in nothing:
                continue
            if column.name in greatest:
                found[column.name] = greater(column, new[column.name])
            elif column.name in newest:
                found[column.name] = sa.func.coalesce(
                    new[column.name], column)
            elif column.name not in keys:
                found[column.name] = column + new[column.name]
        if self.name == 'mysql':
            return insert.on_duplicate_key_update(found)
        return insert.on_conflict_do_update(index_elements=keys, set_=found)

    def insert_new(self, connection: sa.Connection, table: sa.Table,
                   differ: dict[str, Sequence[Any]], **same: Any) -> None:
        """Insert rows, but none whose key somebody has.

        :param differ: the values of a column, one for each row.
        :param same: the value of a column in all rows.
        """
        if self.name == 'postgresql':
            # One array for each column: twice as fast as a list of rows.
            types = {name: sa.Text() if isinstance(values[0], str)
                     else sa.BigInteger() for name, values in differ.items()}
            found = sa.func.unnest(*(
                sa.bindparam(f'all_{name}', list(values),
                             type_=postgresql.ARRAY(types[name]))
                for name, values in differ.items())).table_valued(*(
                    sa.column(name, types[name]) for name in differ)
            ).render_derived()
            connection.execute(
                postgresql.insert(table).from_select(
                    [*differ, *same],
                    sa.select(*found.c, *(
                        sa.literal(value, table.c[name].type)
                        for name, value in same.items()))
                ).on_conflict_do_nothing())
            return
        insert: Any
        if self.name == 'sqlite':
            insert = sqlite.insert(table).on_conflict_do_nothing()
        else:
            # IGNORE would swallow other errors as well.
            first = next(iter(table.primary_key.columns))
            insert = mysql.insert(table).on_duplicate_key_update(
                {first.name: first})
        connection.execute(insert, [
            {**same, **dict(zip(differ, values, strict=True))}
            for values in zip(*differ.values(), strict=True)])
