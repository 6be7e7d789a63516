# SPDX-License-Identifier: Apache-2.0
"""One connection to a database.

The connection is opened on first use, and reopened in a forked child and after
an error. It is kept between transactions, so one thread must own it.
"""

import contextlib
import itertools
import logging
import os
import random
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NoReturn
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import engines
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql.dialect import Dialect
from distperiodic.adapters.sql.host_clock import HostClock
from distperiodic.adapters.sql.watchdog import ConnectionWatchdog
from distperiodic.core import redaction

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds that SQLite waits for another process to end its transaction.
_SQLITE_PATIENCE = 10.0
#: Maximum number of retries of a transaction after conflicts with others.
_CONFLICTS = 8

#: Key of connection.info: True if the next transaction only reads.
_READ_ONLY = 'distperiodic looks'

#: PostgreSQL's error code for a missing privilege.
_NO_RIGHTS = '42501'
# MySQL's error codes for the same, on a database, a table and a column.
_MYSQL_NO_RIGHTS = (1044, 1142, 1143)
#: PostgreSQL's error codes for a stale prepared statement: its tables have
#: changed, or a connection pooler has given us another session.
_UNPREPARED = '0A000', '26000'

#: Driver to its Python module and its name for pip.
_DRIVERS = {
    'sqlite+pysqlite': ('sqlite3', ''),
    'postgresql+psycopg': ('psycopg', "'psycopg[binary]'"),
    'postgresql+psycopg2': ('psycopg2', 'psycopg2-binary'),
    'mysql+pymysql': ('pymysql', 'PyMySQL'),
}
#: URL scheme to its drivers; the first that is installed is used.
_SCHEMES = {
    'sqlite': ('sqlite+pysqlite',),
    # psycopg prepares repeated statements on the server.
    'postgresql': ('postgresql+psycopg', 'postgresql+psycopg2'),
    'mysql': ('mysql+pymysql',),
    # oslo.db recognizes MariaDB's errors only under MySQL's name.
    'mariadb': ('mysql+pymysql',),
    'mariadb+pymysql': ('mysql+pymysql',),
    **{driver: (driver,) for driver in _DRIVERS},
}
_NEAR = {'postgres': 'postgresql', 'pgsql': 'postgresql',
         'sqlite3': 'sqlite', 'psql': 'postgresql'}

#: Seconds that a transaction may stay idle before the server ends it. A
#: process that is stopped inside a transaction must not block the others for
#: longer. Normally only milliseconds pass between our statements. The limit
#: must expire before the others notice that the process is gone.
IDLE = 2
#: Seconds to wait for a lock.
_LOCKED = 10
#: Maximum seconds of one statement, which changes some hundred rows.
_STATEMENT = 30
#: The value of wsrep_sync_wait with the bits of all kinds of statements, so
#: that the first statement of a transaction waits, whatever its kind.
_EVERY_STATEMENT = 15
#: Maximum seconds of a transaction on PostgreSQL. This process enforces the
#: limit, for a server that no longer responds. The drivers of the other
#: databases have such a limit themselves.
SILENT = 45

#: Limits on waiting by driver: the defaults are infinite, or nearly.
_WAITS = {
    'postgresql': {'connect_timeout': '10', 'keepalives_idle': '10',
                   'keepalives_interval': '5', 'keepalives_count': '3',
                   'tcp_user_timeout': '25000'},
    'mysql': {'connect_timeout': '10', 'read_timeout': '30',
              'write_timeout': '30', 'charset': 'utf8mb4'},
    'sqlite': {},
}


def check(connection_url: str) -> sa.URL:
    """Return the URL as the engine takes it.

    :raises ConfigError: the URL cannot work with any state of the database.
    """
    shown = redaction.redact(connection_url)
    try:
        url = sa.make_url(connection_url)
    except (sa_exception.ArgumentError, ValueError):
        raise exceptions.ConfigError(
            f'connection {shown!r} is not a URL; write for example '
            'postgresql://USER:PASSWORD@HOST/DATABASE or '
            'sqlite:////var/lib/my-service/claims.sqlite') from None
    known = ', '.join(['mysql', 'postgresql', 'sqlite'])
    if url.drivername not in _SCHEMES:
        near = _NEAR.get(url.drivername.partition('+')[0])
        hint = f'did you mean {near!r}? use' if near else 'use'
        raise exceptions.ConfigError(
            f'connection {shown!r}: there is no driver '
            f'{url.drivername!r} here; {hint} one of {known}')
    drivers = _SCHEMES[url.drivername]
    driver = next(filter(_is_installed, drivers), None)
    if driver is None:
        module, package = _DRIVERS[drivers[0]]
        raise exceptions.ConfigError(
            f'connection {shown!r} needs the Python module {module}; install '
            f'it with: pip install {package}')
    if not url.database:
        raise exceptions.ConfigError(
            f'connection {shown!r} names no database; claims are shared by '
            'processes, so give it a file, as in '
            'sqlite:////var/lib/my-service/claims.sqlite'
            if driver.startswith('sqlite') else
            f'connection {shown!r} names no database; add it: '
            f'{shown.rstrip("/")}/DATABASE')
    if url.database == ':memory:':
        raise exceptions.ConfigError(
            f'connection {shown!r}: a database in memory is seen by nobody '
            'else, and it is lost with its connection; give it a file')
    url = url.set(drivername=driver)
    waits = _WAITS[driver.partition('+')[0]]
    return url.update_query_dict(
        {k: v for k, v in waits.items() if k not in url.query})


def _is_installed(driver: str) -> bool:
    try:
        __import__(_DRIVERS[driver][0])
    except ImportError:
        return False
    return True


def make_engine(connection_url: str, bounded: bool = True,
                **options: Any) -> sa.Engine:
    """Return an engine of our own. It connects on first use.

    :param bounded: True if the server must end what takes too long.
    :param options: Options of oslo.db's engine.
    :raises ConfigError: the URL cannot work.
    """
    engine = engines.create_engine(
        check(connection_url), **{
            'max_retries': 0,
            # Reject values that do not fit, instead of truncating them.
            'mysql_sql_mode': 'TRADITIONAL', **options})
    if engine.dialect.name == 'sqlite':
        clock = HostClock()
        sa.event.listen(engine, 'connect', _open_sqlite)
        sa.event.listen(engine, 'connect', lambda connection, record:
                        clock.register(connection))
        sa.event.listen(engine, 'before_cursor_execute', _begin_sqlite,
                        retval=True)
        return engine

    def opened(connection: Any, record: Any) -> None:
        if bounded:
            with connection.cursor() as cursor:
                cursor.execute(_bounds(engine.dialect.name))
            connection.commit()
        if engine.dialect.name == 'mysql':
            _see_other_nodes(connection)
        # Each statement must see what others have committed. Otherwise a lost
        # race would look as if no race had happened.
        engine.dialect.set_isolation_level(connection, 'READ COMMITTED')
    sa.event.listen(engine, 'connect', opened)
    return engine


def _bounds(dialect: str) -> str:
    if dialect == 'postgresql':
        # Keep values that are set for this user or in the URL. Every statement
        # of ours can use an index. Without sequential scans, a plan that was
        # cached for a table of a few rows cannot read a million rows later.
        return (
            'SELECT set_config(name, value, false) '  # noqa: S608
            'FROM (VALUES '
            f"('lock_timeout', '{_LOCKED}s'), "
            f"('idle_in_transaction_session_timeout', '{IDLE}s'), "
            f"('statement_timeout', '{_STATEMENT}s'), "
            "('enable_seqscan', 'off'), "
            # The estimated cost of a plan with a disabled scan is so high
            # that JIT compilation would seem worthwhile.
            "('jit', 'off')) AS bound(name, value) "
            "WHERE current_setting(name) IN ('0', 'on')")
    # The rest is a comment to MySQL, which lacks this variable of MariaDB.
    return (f'SET SESSION innodb_lock_wait_timeout = {_LOCKED} '
            f'/*M!100300 , SESSION idle_transaction_timeout = {IDLE} */')


def _see_other_nodes(connection: Any) -> None:
    """On a Galera cluster, make each transaction wait until its node has
    everything that was committed on any node.

    Otherwise a worker that is faster than the replication would not find the
    claim of its batch. It would treat the claim as lost, and the object would
    wait until the lease expires.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
        if cursor.fetchone() == ('wsrep_on', 'ON'):
            cursor.execute(f'SET SESSION wsrep_sync_wait = {_EVERY_STATEMENT}')


def _open_sqlite(connection: Any, record: Any) -> None:
    connection.execute(f'PRAGMA busy_timeout = {_SQLITE_PATIENCE * 1e3:.0f}')
    # If two processes switch a new file to WAL at once, SQLite rejects one of
    # them in spite of the busy timeout.
    for attempt in itertools.count(1):
        try:
            connection.execute('PRAGMA journal_mode = WAL')
        except connection.OperationalError as exc:
            if 'locked' not in str(exc) or attempt > _CONFLICTS:
                raise
            _wait_for_others(attempt)
        else:
            return


def _wait_for_others(attempt: int) -> None:
    """Sleep for a random moment, longer on average with each attempt."""
    threading.Event().wait(random.uniform(0, 0.002 * 2 ** attempt))


def _begin_sqlite(connection: sa.Connection, cursor: Any, statement: str,
                  parameters: Any, context: Any, many: bool
                  ) -> tuple[str, Any]:
    # BEGIN IMMEDIATE makes a writing transaction wait for others. Without it,
    # a transaction that reads first and then writes would fail if another one
    # wrote in between. A transaction that only reads must not block writers.
    if statement == 'BEGIN' and not connection.info.get(_READ_ONLY):
        statement = 'BEGIN IMMEDIATE'
    return statement, parameters


class Database:
    """A connection that retries transactions where that is safe.

    Error messages are one line long. Not thread-safe. The work of a
    transaction must be idempotent: it is repeated if the connection is lost
    after the commit and before the answer.
    """

    def __init__(self, connection_url: str,
                 check_schema: Callable[[sa.Connection, str], None],
                 **options: Any):
        self.shown = redaction.redact(connection_url)
        self._engine = make_engine(connection_url, **options)
        self._watchdog: ConnectionWatchdog | None = None
        if (self._engine.dialect.name == 'postgresql'
                and options.get('bounded', True)):
            self._watchdog = ConnectionWatchdog(SILENT)
            sa.event.listen(self._engine, 'connect', self._watchdog.connected,
                            insert=True)
        self._host_clock: HostClock | None = None
        if (self._engine.dialect.name == 'sqlite'
                and options.get('bounded', True)):
            self._host_clock = HostClock()
        self._check_schema = check_schema
        #: The name of the database; with SQLite, its file.
        self.name = self._engine.url.database or ''
        self._connection: sa.Connection | None = None
        #: Number of connections that were opened so far.
        self.opened = 0
        self._pid = os.getpid()
        self._monotonic = SystemClock().monotonic
        self.dialect = Dialect(self._engine.dialect)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work* in a transaction, commit it and return the result.

        :raises StoreUnavailable: the transaction was not committed, or it is
            unknown whether it was.
        :raises SchemaError: the tables are not those of this release.
        """
        return self._run(work, read_only=False)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work*, which only reads, and return its result.

        On SQLite this does not block writers, and *work* reads one snapshot.
        """
        return self._run(work, read_only=True)

    def _run(self, work: Callable[[sa.Connection], T], read_only: bool) -> T:
        begun = self._monotonic()
        for attempt in itertools.count(1):
            try:
                with self._watchdog or contextlib.nullcontext():
                    connection = self._connected()
                    connection.info[_READ_ONLY] = read_only
                    with connection.begin():
                        if self._host_clock is not None and not read_only:
                            self._host_clock.keep(connection)
                        return work(connection)
            except db_exception.DBDeadlock as exc:
                if attempt > _CONFLICTS:
                    self._give_up(exc, f'{attempt} times others changed the '
                                  'same rows first')
                # Each attempt may have waited for a lock, or for a node of
                # Galera to catch up.
                if self._monotonic() - begun >= _STATEMENT:
                    self._give_up(exc)
                _wait_for_others(attempt)
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
                        _disconnected(exc) or _code(exc) in _UNPREPARED):
                    # The connection may have ended while it was unused, or
                    # the server may have ended it because this process was
                    # suspended within the transaction.
                    continue
                if _fault_of_database(exc):
                    self._give_up(exc)
                raise
        raise AssertionError('there is no end to counting')

    def _connected(self) -> sa.Connection:
        if self._pid != os.getpid():
            # The inherited connection belongs to the parent.
            self._engine.dispose(close=False)
            self._connection = None
            self._pid = os.getpid()
        if self._connection is None:
            connection = self._engine.connect()
            try:
                connection.info[_READ_ONLY] = True
                with connection.begin():
                    self._check_schema(connection, self.shown)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self.opened += 1
        return self._connection

    def _give_up(self, exc: Exception, reason: str = '') -> NoReturn:
        if _refuses_user(exc):
            raise exceptions.StoreUnavailable(
                f'database {self.shown}: {reason_of(exc)}; it answers but '
                'refuses this user, so nothing is claimed until the user has '
                'the right; distperiodic doctor names each right that is '
                'missing') from exc
        raise exceptions.StoreUnavailable(
            f'database {self.shown}: {reason or reason_of(exc)}; nothing is '
            'claimed until it answers again; check that it runs, that it may '
            'be written to, and that [distperiodic] connection is right'
        ) from exc

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            try:
                connection.close()
            except Exception as exc:
                LOG.debug('connection ended badly: reason=%s', exc)
        if self._pid == os.getpid():
            self._engine.dispose()
            if self._watchdog is not None:
                self._watchdog.close()


def _from_driver(exc: Exception) -> Exception:
    """Return SQLAlchemy's error if oslo.db has wrapped it, else *exc*."""
    return getattr(exc, 'inner_exception', None) or exc


def _code(exc: Exception) -> str | None:
    """Return PostgreSQL's error code, or None."""
    orig = getattr(_from_driver(exc), 'orig', None)
    return getattr(orig, 'sqlstate', getattr(orig, 'pgcode', None))


def _disconnected(exc: Exception) -> bool:
    return isinstance(exc, db_exception.DBConnectionError) or bool(
        getattr(_from_driver(exc), 'connection_invalidated', False))


def _fault_of_database(exc: Exception) -> bool:
    """Return whether the call was valid and may succeed later."""
    inner = _from_driver(exc)
    return isinstance(exc, (
        db_exception.DBConnectionError, sa_exception.TimeoutError)
    ) or isinstance(inner, (
        sa_exception.OperationalError, sa_exception.InternalError,
        sa_exception.InterfaceError)
    # Errors that drivers put into no other class: a file that is not a
    # database, a connection that ended within an answer.
    ) or type(inner) is sa_exception.DatabaseError or (
        _code(exc) == _NO_RIGHTS)


def _refuses_user(exc: Exception) -> bool:
    """Return whether the database denied its user a privilege."""
    if _code(exc) == _NO_RIGHTS:
        return True
    orig: Any = getattr(_from_driver(exc), 'orig', None)
    arguments: Sequence[Any] = getattr(orig, 'args', ())
    return bool(arguments) and arguments[0] in _MYSQL_NO_RIGHTS


def reason_of(exc: Exception) -> str:
    """Return the first line of the driver's error message."""
    inner = _from_driver(exc)
    text = str(getattr(inner, 'orig', None) or inner).strip()
    return text.splitlines()[0].strip() if text else type(inner).__name__
