# SPDX-License-Identifier: Apache-2.0
"""MySQL and MariaDB."""

import contextlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from distperiodic import exceptions
from distperiodic.adapters.sql.dialects.dialect import Converter
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.dialects.dialect import Driver
from distperiodic.adapters.sql.dialects.dialect import Group
from distperiodic.adapters.sql.dialects.dialect import Remedy
from distperiodic.adapters.sql.dialects.dialect import Selection
from distperiodic.adapters.sql.dialects.dialect import stored_type
from distperiodic.adapters.sql.limits import IDLE
from distperiodic.adapters.sql.limits import LOCKED

#: Value of wsrep_sync_wait, a variable of Galera. The bits of all kinds of
#: statements are set, so the first statement of a transaction always waits.
_EVERY_STATEMENT = 15
# Maximum seconds to wait for another process that upgrades the tables.
_LOCK_WAIT = 600
# Number of rows that are joined into one text. With the longest object ids,
# the text has 4 MB; the default of MariaDB's max_allowed_packet is 16 MB.
_JOINED = 4_000


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


def _written(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _read(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


class MySQL(Dialect):
    """The SQL of MySQL and MariaDB.

    Text types ignore case or trailing blanks, so ids are stored as bytes.
    """

    names = ('mysql', 'mariadb')
    drivers = (Driver('mysql+pymysql', 'pymysql', 'PyMySQL'),)
    # oslo.db recognizes the errors of MariaDB only if the URL names MySQL.
    schemes = ('mysql', 'mariadb', 'mariadb+pymysql')
    options = {'connect_timeout': '10', 'charset': 'utf8mb4'}
    statement_options = {'read_timeout': '30', 'write_timeout': '30'}
    # Reject values that do not fit, instead of truncating them.
    engine_options = {'mysql_sql_mode': 'TRADITIONAL'}
    # MySQL ignores the second setting as a comment, and MariaDB executes it:
    # only MariaDB has this variable.
    limits = (f'SET SESSION innodb_lock_wait_timeout = {LOCKED} '
              f'/*M!100300 , SESSION idle_transaction_timeout = {IDLE} */')
    remedies = {
        # For databases, tables and columns.
        **dict.fromkeys((1044, 1142, 1143), Remedy.RIGHTS),
        **dict.fromkeys((1021, 1114), Remedy.DISK),
        **dict.fromkeys((1040, 1203, 1226), Remedy.CONNECTIONS)}
    # The table, the column or the index already exists, or the column or the
    # index to drop does not exist, or the table is being altered, or a
    # statement that reads the catalogue was aborted. (oslo.db does not convert
    # the errors of SQLAlchemy's own statements, so it does not repeat them.)
    steps_done = frozenset({1050, 1060, 1061, 1091, 1213, 1684})
    passes_locked = False
    commits_ddl = True
    storage_engine = 'InnoDB'
    table_options = {
        'mysql_engine': storage_engine, 'mysql_charset': 'utf8mb4',
        'mysql_row_format': 'DYNAMIC'}
    # SYSDATE() returns local time, in which one hour of each year occurs twice
    # if the zone has daylight saving time.
    _NOW = ("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "
            'UTC_TIMESTAMP(6))')

    @staticmethod
    def limit(milliseconds: int) -> str:
        # MariaDB executes only the first comment, and MySQL only the second.
        return ('SET @distperiodic = 0 '
                f'/*M!100300 , max_statement_time = {milliseconds / 1e3:g} */ '
                f'/*!50708 , max_execution_time = {milliseconds} */')

    def _join(self, connection: Any) -> None:
        """Make each transaction wait until its Galera node has caught up.

        The node has then applied all earlier commits of all nodes.
        Otherwise a worker that is faster than the replication would not find
        the claim of its batch. The worker would treat the claim as lost, and
        the object would wait until the lease expires. Without Galera, this
        method changes nothing.
        """
        with connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
            if cursor.fetchone() == ('wsrep_on', 'ON'):
                cursor.execute(
                    f'SET SESSION wsrep_sync_wait = {_EVERY_STATEMENT}')

    @contextlib.contextmanager
    def upgrading(self, connection: sa.Connection,
                  version_table: str) -> Iterator[None]:
        name = name_of_lock(version_table)
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

    @staticmethod
    def lease_name() -> TypeEngine[str]:
        from sqlalchemy.dialects import mysql
        return mysql.VARCHAR(100, charset='ascii', collation='ascii_bin')

    @staticmethod
    def long_text() -> TypeEngine[str]:
        # TEXT is limited to 64 KiB.
        from sqlalchemy.dialects import mysql
        return mysql.MEDIUMTEXT()

    @staticmethod
    def long_binary() -> TypeEngine[bytes]:
        from sqlalchemy.dialects import mysql
        return mysql.MEDIUMBLOB()

    @staticmethod
    def exact(length: int) -> TypeEngine[Any]:
        return sa.VARBINARY(4 * length)

    @staticmethod
    def converters() -> tuple[Converter | None, Converter | None]:
        return _written, _read

    @staticmethod
    def contains(column: sa.ColumnElement[str], text: str
                 ) -> sa.ColumnElement[bool]:
        # A comparison of two texts would ignore case and accents.
        return sa.func.instr(sa.cast(column, sa.BINARY), text) > 0

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        return column.bool_op('IN')(sa.bindparam(
            'keys', type_=_Listed(column.type)))

    def keys(self, keys: Sequence[str]) -> Any:
        # Sort the keys: two statements that lock the same rows in different
        # orders could deadlock.
        return sorted(keys) or [None]

    def prefer_index(self, query: Any, table: sa.Table, index: str) -> Any:
        return query.with_hint(table, f'FORCE INDEX ({index})')

    @staticmethod
    def insert(table: sa.Table) -> Any:
        from sqlalchemy.dialects import mysql
        return mysql.insert(table)

    @staticmethod
    def or_nothing(insert: Any) -> Any:
        # INSERT IGNORE would hide other errors as well.
        first = next(iter(insert.table.primary_key.columns))
        return insert.on_duplicate_key_update({first.name: first})

    @staticmethod
    def _new(insert: Any) -> Any:
        return insert.inserted

    @staticmethod
    def _or_update(insert: Any, values: Sequence[tuple[str, Any]],
                   only_if: Any = None) -> Any:
        return insert.on_duplicate_key_update(
            values if only_if is None else [
                (name, sa.case((only_if, value), else_=insert.table.c[name]))
                for name, value in values])

    def gather(self, connection: sa.Connection,
               selection: Selection) -> Iterator[Group]:
        """Yield values; see :meth:`.Dialect.gather`.

        The driver is written in Python: to read a row, it takes several times
        as long as the server takes to add a value to a text.

        :raises ConfigError: the server limits texts to fewer bytes.
        """
        connection.execute(sa.text(
            'SET SESSION group_concat_max_len = @@max_allowed_packet'))
        column, which, groups, unique, _ = selection
        page = (sa.select(unique, column.label('value'), *groups)
                .where(*which, unique > sa.bindparam('after'))
                .order_by(unique).limit(_JOINED).subquery())
        of_page = list(page.c)[2:]
        query = sa.select(
            sa.func.count().label('number'),
            sa.func.max(page.c[unique.name]).label('last'),
            sa.func.sum(sa.func.octet_length(page.c.value)).label('octets'),
            sa.cast(sa.func.aggregate_strings(page.c.value, '\0'),
                    sa.LargeBinary).label('text'),
            *of_page).group_by(*of_page)
        convert = stored_type(column)
        last, number = '', _JOINED
        while number == _JOINED:
            number = 0
            for row in connection.execute(query, {'after': last}):
                if row.text is None:
                    break  # Without groups, an empty page has one result.
                if len(row.text) != row.octets + row.number - 1:
                    raise exceptions.ConfigError(
                        'the database server has returned only '
                        f'{len(row.text):,} bytes of a longer text; set its '
                        'variable max_allowed_packet to 16M or more')
                number += row.number
                last = max(last, row.last)
                yield tuple(row[4:]), map(
                    convert, row.text.decode().split('\0'))

    def other_engines(self, connection: sa.Connection) -> dict[str, str]:
        return {name: engine for name, engine in connection.execute(
            sa.text('SELECT table_name, engine FROM '
                    'information_schema.tables WHERE table_schema = '
                    "DATABASE() AND table_name LIKE 'distperiodic%'"))
            if engine != self.storage_engine}


def name_of_lock(version_table: str) -> sa.ColumnElement[str]:
    """Return the name of the lock for the upgrade of a database.

    The locks belong to the server. Without the name of the database, upgrades
    of different databases would wait for each other. The name of a lock has at
    most 64 characters.
    """
    return sa.func.concat(
        version_table, '.', sa.func.md5(sa.func.database()))
