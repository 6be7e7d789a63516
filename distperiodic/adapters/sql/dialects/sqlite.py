# SPDX-License-Identifier: Apache-2.0
"""SQLite.

Its clocks are those of the host, which SQL functions read.
"""

import contextlib
import itertools
import json
import pathlib
import sqlite3
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import host_clock
from distperiodic.adapters.sql.dialects.dialect import READ_ONLY
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.dialects.dialect import Driver
from distperiodic.adapters.sql.host_clock import HostClock
from distperiodic.adapters.sql.limits import CONFLICTS
from distperiodic.adapters.sql.limits import wait_for_others

# Seconds to wait for another process to end its transaction.
_PATIENCE = 10.0


def _of_host(function: str) -> str:
    """Return SQL that calls a function of host_clock once per statement."""
    columns = ', '.join(f'"{name}"' for name in host_clock.ClockState._fields)
    return (f'SELECT {function}({columns}) '  # noqa: S608
            f'FROM {host_clock.TABLE}')


class SQLite(Dialect):
    """The SQL of SQLite."""

    names = ('sqlite',)
    drivers = (Driver('sqlite+pysqlite', 'sqlite3', ''),)
    schemes = ('sqlite',)
    misspellings = ('sqlite3',)
    in_file = True
    locks_rows = False
    _NOW = _of_host(host_clock.NOW)

    def __init__(self, returning: bool):
        super().__init__(returning)
        self.lease_now = self._clock(_of_host(host_clock.LEASE_NOW))

    @staticmethod
    def file_of(url: sa.URL) -> pathlib.Path | None:
        return (None if 'uri' in url.query
                else pathlib.Path(url.database or ''))

    @staticmethod
    def is_foreign(path: pathlib.Path) -> bool:
        # SQLite itself reads the file. If this function opened and closed the
        # file directly, the system would release all locks that this process
        # holds on the file.
        try:
            with contextlib.closing(sqlite3.connect(
                    f'{path.resolve().as_uri()}?mode=rw', uri=True)
            ) as connection:
                connection.execute('PRAGMA schema_version')
        except sqlite3.DatabaseError as exc:
            return exc.sqlite_errorcode == sqlite3.SQLITE_NOTADB
        return False

    def listen(self, engine: sa.Engine, bounded: bool,
               statement: float | None) -> None:
        clock = HostClock()
        sa.event.listen(engine, 'connect', _open)
        sa.event.listen(engine, 'connect', lambda connection, record:
                        clock.register(connection))
        sa.event.listen(engine, 'before_cursor_execute', _begin, retval=True)
        if statement is not None:
            _StatementLimit(statement).listen(engine)

    def host_clock(self) -> HostClock | None:
        return HostClock()

    def use_snapshot(self, connection: sa.Connection) -> None:
        """Do nothing: a transaction always reads one snapshot."""

    def now_for(self, session: Any) -> Any:
        # A connection that this library has not opened lacks its functions.
        return HostClock().now_in(session)

    def at_tick_clock(self, at: sa.ColumnElement[int]
                      ) -> sa.ColumnElement[int]:
        # The two clocks differ after the host's clock was set.
        return at + self._clock(_of_host(host_clock.TICK_OFFSET))

    @staticmethod
    def serial() -> TypeEngine[int]:
        # Only a column of this type counts up by itself.
        return sa.Integer()

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        found = sa.func.json_each(
            sa.bindparam('keys', type_=sa.Text)).table_valued('value')
        return column.in_(sa.select(found.c.value))

    def keys(self, keys: Sequence[str]) -> Any:
        return json.dumps(keys)

    @staticmethod
    def insert(table: sa.Table) -> Any:
        from sqlalchemy.dialects import sqlite
        return sqlite.insert(table)

    def journal_problem(self, connection: sa.Connection) -> str:
        mode = connection.scalar(sa.text('PRAGMA journal_mode'))
        return '' if mode == 'wal' else (
            f'journal_mode is {mode}, and cannot be set to WAL')


class _StatementLimit:
    """Limit of the duration of each statement, which SQLite lacks.

    SQLite asks every thousand instructions if it shall go on.

    :param seconds: Maximum seconds of one statement.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._monotonic = SystemClock().monotonic
        self._end = 0.0

    def listen(self, engine: sa.Engine) -> None:
        """Limit the statements of all connections of *engine*."""
        sa.event.listen(
            engine, 'connect', lambda connection, record:
            connection.set_progress_handler(self._is_over, 1000))
        sa.event.listen(engine, 'before_cursor_execute', self._begin)

    def _begin(self, *arguments: Any) -> None:
        self._end = self._monotonic() + self._seconds

    def _is_over(self) -> bool:
        return self._monotonic() > self._end > 0


def _open(connection: Any, record: Any) -> None:
    connection.execute(f'PRAGMA busy_timeout = {_PATIENCE * 1e3:.0f}')
    # If two processes switch a new file to WAL at the same time, SQLite
    # rejects one of the two statements despite the busy timeout.
    for attempt in itertools.count(1):
        try:
            connection.execute('PRAGMA journal_mode = WAL')
        except connection.OperationalError as exc:
            if 'locked' not in str(exc) or attempt > CONFLICTS:
                raise
            wait_for_others(attempt)
        else:
            return


def _begin(connection: sa.Connection, cursor: Any, statement: str,
           parameters: Any, context: Any, many: bool) -> tuple[str, Any]:
    # BEGIN IMMEDIATE makes a writing transaction wait for other writers.
    # Without IMMEDIATE, a transaction that reads first and then writes would
    # fail if another transaction wrote in between. A transaction that only
    # reads must not block writers.
    if statement == 'BEGIN' and not connection.info.get(READ_ONLY):
        statement = 'BEGIN IMMEDIATE'
    return statement, parameters
