# SPDX-License-Identifier: Apache-2.0
"""Transactions over one database connection, with retries and error messages.

The connection is opened on first use, and reopened in a forked child and after
an error. It stays open between transactions, so only one thread may use it.
"""

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NoReturn
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql.dialects.dialect import READ_ONLY
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.dialects.dialect import Remedy
from distperiodic.adapters.sql.dialects.registry import dialect_of
from distperiodic.adapters.sql.engine import make_engine
from distperiodic.adapters.sql.limits import CONFLICTS
from distperiodic.adapters.sql.limits import STATEMENT
from distperiodic.adapters.sql.limits import wait_for_others
from distperiodic.adapters.sql.watchdog import ConnectionWatchdog
from distperiodic.core import redaction

LOG = logging.getLogger(__name__)

T = TypeVar('T')
Begun = TypeVar('Begun')

#: Maximum seconds of a transaction if the driver has no limit of its own. This
#: process itself enforces the limit, in case the server no longer responds.
SILENT = 45


# Key in the info of a connection: the result of is_repeated().
_REPEATED = 'distperiodic_repeated'
# In the attribute "used", whether a Database of this thread has a transaction.
_here = threading.local()


def _of_others(record: logging.LogRecord) -> bool:
    """Return whether oslo.db logs an error outside :class:`Database`.

    oslo.db logs a traceback for each error that it does not know. Database
    converts such errors, and its callers log them in one line.
    """
    return not getattr(_here, 'used', False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep oslo.db from logging errors; see :func:`_of_others`."""
    _here.used = True
    try:
        yield
    finally:
        _here.used = False


def is_repeated(connection: sa.Connection) -> bool:
    """Return whether an earlier try of this transaction may be committed.

    A try that was aborted because of a conflict is not.
    """
    return bool(connection.info[_REPEATED])


def _itself(connection: sa.Connection) -> sa.Connection:
    return connection


class Database:
    """One database connection, and its transactions.

    A transaction is retried where this is safe. Error messages are one line
    long. Not thread-safe. The function that runs in a transaction must be
    idempotent: it runs again if the connection is lost after the commit but
    before the server has confirmed the commit.
    """

    def __init__(self, connection_url: str,
                 check_schema: Callable[[sa.Connection, str], None],
                 **options: Any):
        self.shown = redaction.redact(connection_url)
        logging.getLogger(
            'oslo_db.sqlalchemy.exc_filters').addFilter(_of_others)
        self._engine = make_engine(connection_url, **options)
        self.dialect = dialect_of(self._engine.dialect)
        bounded = options.get('bounded', True)
        self._watchdog: ConnectionWatchdog | None = None
        if self.dialect.waits_forever and bounded:
            statement = options.get('statement')
            self._watchdog = ConnectionWatchdog(
                SILENT if statement is None else statement + 1)
            sa.event.listen(self._engine, 'connect', self._watchdog.connected,
                            insert=True)
        self._host_clock = self.dialect.host_clock() if bounded else None
        self._check_schema = check_schema
        #: The name of the database; with SQLite, its file.
        self.name = self._engine.url.database or ''
        self._connection: sa.Connection | None = None
        # Cursor of the driver on this connection, for execute_alone().
        self._cursor: Any = None
        # Text and constants of the statements that execute_alone() has run.
        self._texts: dict[sa.Executable, tuple[str, dict[str, Any]]] = {}
        #: Number of connections that have been opened so far.
        self.opened = 0
        self._pid = os.getpid()
        self._monotonic = SystemClock().monotonic

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work* in a transaction, commit it and return the result.

        :raises StoreUnavailable: the transaction was not committed, or it is
            unknown whether it was committed.
        :raises DBDuplicateEntry: *work* inserted a key that already exists.
        :raises SchemaError: the schema version does not match this release.
        """
        return self.run(work, _itself)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work*, which only reads, and return its result.

        On SQLite this does not block writers, and *work* reads one snapshot.
        """
        return self.run(work, _itself, read_only=True)

    def execute_alone(self, statement: sa.Executable,
                      parameters: dict[str, Any]) -> Sequence[Any] | None:
        """Execute one statement as a transaction of its own; return its rows.

        Use this method only with a database that has an
        :attr:`~.Dialect.autocommit` mode, and only for short statements:
        SQLAlchemy takes longer to process such a statement than the server
        takes to execute it. The driver executes the statement in autocommit
        mode, which takes one round trip instead of three. SQLAlchemy converts
        neither *parameters* nor the values in the rows.

        :returns: None means that there is no connection yet, or that the
            driver raised an error, after which the statement may or may not
            have been committed. In both cases call :meth:`write`, which
            connects, retries, and converts errors.
        """
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            return None
        try:
            with self._watchdog or contextlib.nullcontext():
                if self._cursor is None:
                    self._cursor = connection.connection.cursor()
                driver = self._cursor.connection
                text, constants = self._text_of(statement)
                driver.autocommit = True
                self._cursor.execute(text, constants | parameters)
                rows: Sequence[Any] = self._cursor.fetchall()
                driver.autocommit = False
                return rows
        except BaseException as exc:
            # The connection may still be in autocommit mode.
            self.close()
            if not isinstance(exc, self._engine.dialect.loaded_dbapi.Error):
                raise
            LOG.debug('statement failed: reason=%s', reason_of(exc))
            return None

    def _text_of(self, statement: Any) -> tuple[str, dict[str, Any]]:
        """Return the text of a statement, and the constants in it by name."""
        found = self._texts.get(statement)
        if found is None:
            compiled = statement.compile(dialect=self._engine.dialect)
            found = self._texts[statement] = str(compiled), {
                name: value for name, value in compiled.params.items()
                if value is not None}
        return found

    def run(self, work: Callable[[Begun], T],
            begin: Callable[[sa.Connection], Begun], *,
            read_only: bool = False) -> T:
        """Run *work* in a transaction, as :meth:`write` or :meth:`read` does.

        :param begin: Returns the argument of *work*, given the connection.
        """
        begun, repeated = self._monotonic(), False
        for attempt in itertools.count(1):
            committing = False
            try:
                with _quiet(), self._watchdog or contextlib.nullcontext():
                    connection = self._connected()
                    connection.info[READ_ONLY] = read_only
                    connection.info[_REPEATED] = repeated
                    with connection.begin():
                        if self._host_clock is not None and not read_only:
                            self._host_clock.keep(connection)
                        result = work(begin(connection))
                        committing = True
                    return result
            except db_exception.DBDeadlock as exc:
                if attempt > CONFLICTS:
                    self._give_up(exc, 'other transactions changed the same '
                                  f'rows {attempt} times')
                # Limit the total time: each attempt may have waited for a
                # lock, or for a node of Galera to catch up.
                if self._monotonic() - begun >= STATEMENT:
                    self._give_up(exc)
                wait_for_others(attempt)
            except db_exception.DBDuplicateEntry:
                raise
            except db_exception.DBNonExistentTable as exc:
                self.close()
                raise exceptions.SchemaError(
                    f'database {self.shown} lacks the table {exc.table}; run: '
                    'distperiodic db sync') from exc
            except (db_exception.DBError, sa_exception.DBAPIError,
                    sa_exception.TimeoutError) as exc:
                opened = self._connection is not None
                self.close()
                if opened and attempt == 1 and (
                        _disconnected(exc)
                        or _code(exc) in self.dialect.stale):
                    # Retry once. The connection may have been closed while it
                    # was idle, or the server may have closed it because this
                    # process was suspended within the transaction.
                    repeated = repeated or committing
                    continue
                if _fault_of_database(exc, self.dialect):
                    self._give_up(exc)
                raise
        raise AssertionError('unreachable: the loop never ends by itself')

    def _connected(self) -> sa.Connection:
        if self._pid != os.getpid():
            # The inherited connection belongs to the parent.
            self._engine.dispose(close=False)
            self._connection = self._cursor = None
            self._pid = os.getpid()
        if self._connection is None:
            try:
                connection = self._engine.connect()
            except NotImplementedError as exc:
                # The connection was lost while SQLAlchemy examined the server
                # for the first time. SQLAlchemy has no proper connection yet,
                # so the filter of oslo.db raises this error for it.
                raise db_exception.DBConnectionError(exc.__cause__) from exc
            try:
                connection.info[READ_ONLY] = True
                with self._committing_each(connection), connection.begin():
                    self._check_schema(connection, self.shown)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self.opened += 1
        return self._connection

    @contextlib.contextmanager
    def _committing_each(self, connection: sa.Connection) -> Iterator[None]:
        """Save the round trips of a transaction.

        After an error the connection must not be used before its next check.
        """
        driver: Any = connection.connection.dbapi_connection
        alone = self.dialect.autocommit
        if alone:
            driver.autocommit = True
        yield
        if alone:
            driver.autocommit = False

    def _give_up(self, exc: Exception, reason: str = '') -> NoReturn:
        raise exceptions.StoreUnavailable(
            f'database {self.shown}: {reason or reason_of(exc)}; '
            f'{_remedy_of(exc, self.dialect)}') from exc

    def close(self) -> None:
        """Close the connection; the next transaction opens a new one."""
        connection, self._connection = self._connection, None
        self._cursor = None
        if connection is not None and self._pid == os.getpid():
            try:
                connection.close()
            except Exception as exc:
                LOG.debug('closing the connection failed: reason=%s', exc)
        if self._pid == os.getpid():
            self._engine.dispose()
            if self._watchdog is not None:
                self._watchdog.close()


def _from_driver(exc: Exception) -> Exception:
    """Return SQLAlchemy's error if oslo.db has wrapped it, else *exc*."""
    return getattr(exc, 'inner_exception', None) or exc


def _code(exc: Exception) -> str | None:
    """Return the error code of the SQL standard, or None."""
    orig = getattr(_from_driver(exc), 'orig', None)
    return getattr(orig, 'sqlstate', getattr(orig, 'pgcode', None))


def _disconnected(exc: Exception) -> bool:
    return isinstance(exc, db_exception.DBConnectionError) or bool(
        getattr(_from_driver(exc), 'connection_invalidated', False))


def _fault_of_database(exc: Exception, dialect: Dialect) -> bool:
    """Return whether the call was valid and may succeed later."""
    inner = _from_driver(exc)
    return isinstance(exc, (
        db_exception.DBConnectionError, sa_exception.TimeoutError)
    ) or isinstance(inner, (
        sa_exception.OperationalError, sa_exception.InternalError,
        sa_exception.InterfaceError)
    # Drivers have no narrower class for some errors. For example, a file is
    # not a database, or a connection was lost during an answer.
    ) or type(inner) is sa_exception.DatabaseError or (
        _remedy(exc, dialect) is Remedy.RIGHTS)


def _remedy(exc: Exception, dialect: Dialect) -> Remedy | None:
    """Return the remedy if the database refuses a call for a known reason."""
    orig: Any = getattr(_from_driver(exc), 'orig', None)
    for code in _code(exc), *getattr(orig, 'args', ())[:1]:
        if code in dialect.remedies:
            return dialect.remedies[code]
    text = reason_of(exc)
    return next((remedy for part, remedy in dialect.remedies_by_text.items()
                 if part in text), None)


def _remedy_of(exc: Exception, dialect: Dialect) -> str:
    """Return what an operator must do, so that the database accepts a call."""
    remedy = _remedy(exc, dialect)
    return ('check that it runs, that it is writable, and that [distperiodic] '
            'connection is right') if remedy is None else remedy.value


def reason_of(exc: Exception) -> str:
    """Return the first line of the driver's error message."""
    inner = _from_driver(exc)
    text = str(getattr(inner, 'orig', None) or inner).strip()
    return text.splitlines()[0].strip() if text else type(inner).__name__
