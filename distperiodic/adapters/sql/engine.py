# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy engines whose connections wait for a limited time only.

Some settings limit the duration of waits. Others let a transaction see the
changes that other transactions have committed. These settings differ between
databases, and are applied when a connection opens.
"""

import itertools
import random
import threading
from typing import Any

import sqlalchemy as sa
from oslo_db.sqlalchemy import engines
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters.sql.host_clock import HostClock
from distperiodic.core import redaction

# Seconds for which SQLite waits for another process to end its transaction.
_SQLITE_PATIENCE = 10.0
#: Maximum number of retries of a transaction after conflicts with other
#: transactions.
CONFLICTS = 8

#: Key of connection.info: True if the next transaction only reads.
READ_ONLY = 'distperiodic read only'

#: Python module of each driver, and the package to install with pip.
_DRIVERS = {
    'sqlite+pysqlite': ('sqlite3', ''),
    'postgresql+psycopg': ('psycopg', "'psycopg[binary]'"),
    'postgresql+psycopg2': ('psycopg2', 'psycopg2-binary'),
    'mysql+pymysql': ('pymysql', 'PyMySQL'),
}
#: Drivers of each URL scheme. The first one that is installed is used.
_SCHEMES = {
    'sqlite': ('sqlite+pysqlite',),
    # psycopg prepares repeated statements on the server.
    'postgresql': ('postgresql+psycopg', 'postgresql+psycopg2'),
    'mysql': ('mysql+pymysql',),
    # oslo.db recognizes the errors of MariaDB only if the URL names MySQL.
    'mariadb': ('mysql+pymysql',),
    'mariadb+pymysql': ('mysql+pymysql',),
    **{driver: (driver,) for driver in _DRIVERS},
}
_NEAR = {'postgres': 'postgresql', 'pgsql': 'postgresql',
         'sqlite3': 'sqlite', 'psql': 'postgresql'}

#: Seconds for which a transaction may be idle before the server ends it. Only
#: PostgreSQL and MariaDB have this limit. A process that is suspended inside a
#: transaction must not block other processes for longer. Normally only
#: milliseconds pass between two statements. The limit must be shorter than the
#: time after which other processes treat a silent process as gone.
IDLE = 2
#: Seconds to wait for a lock.
_LOCKED = 10
#: Maximum seconds of one statement. Most statements change at most a few
#: hundred rows.
STATEMENT = 30
#: Value of wsrep_sync_wait, a variable of Galera. The bits of all kinds of
#: statements are set, so the first statement of a transaction always waits.
_EVERY_STATEMENT = 15

#: URL options of each database. Most of them limit the duration of waits: by
#: default, drivers wait forever, or nearly so.
_WAITS = {
    'postgresql': {'connect_timeout': '10', 'keepalives_idle': '10',
                   'keepalives_interval': '5', 'keepalives_count': '3',
                   'tcp_user_timeout': '25000'},
    'mysql': {'connect_timeout': '10', 'read_timeout': '30',
              'write_timeout': '30', 'charset': 'utf8mb4'},
    'sqlite': {},
}
#: Options that limit the duration of each statement.
_OF_STATEMENTS = {'read_timeout', 'write_timeout'}


def check(connection_url: str, bounded: bool = True) -> sa.URL:
    """Return *connection_url* in the form that the engine needs.

    :param bounded: True limits the duration of statements, unless the URL
        already has a limit. The duration of a connection attempt is always
        limited.
    :raises ConfigError: the URL is invalid, or its driver is not installed.
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
            f'connection {shown!r}: unknown driver '
            f'{url.drivername!r}; {hint} one of {known}')
    drivers = _SCHEMES[url.drivername]
    driver = next(filter(_is_installed, drivers), None)
    if driver is None:
        module, package = _DRIVERS[drivers[0]]
        raise exceptions.ConfigError(
            f'connection {shown!r} needs the Python module {module}; install '
            f'it with: pip install {package}')
    if not url.database:
        raise exceptions.ConfigError(
            f'connection {shown!r} names no database; processes share the '
            'claims, so name a file, for example '
            'sqlite:////var/lib/my-service/claims.sqlite'
            if driver.startswith('sqlite') else
            f'connection {shown!r} names no database; add it: '
            f'{shown.rstrip("/")}/DATABASE')
    if url.database == ':memory:':
        raise exceptions.ConfigError(
            f'connection {shown!r}: a database in memory is visible to one '
            'connection only, and is lost with it; name a file')
    url = url.set(drivername=driver)
    waits = _WAITS[driver.partition('+')[0]]
    return url.update_query_dict(
        {k: v for k, v in waits.items() if k not in url.query
         and (bounded or k not in _OF_STATEMENTS)})


def _is_installed(driver: str) -> bool:
    try:
        __import__(_DRIVERS[driver][0])
    except ImportError:
        return False
    return True


def make_engine(connection_url: str, bounded: bool = True,
                **options: Any) -> sa.Engine:
    """Return a new engine. It connects on first use.

    :param bounded: True limits the duration of waits and statements. The
        limits in the options of the URL always apply, and SQLite's waits are
        always limited.
    :param options: Options of oslo.db's engine.
    :raises ConfigError: the URL is invalid.
    """
    engine: sa.Engine = engines.create_engine(
        check(connection_url, bounded), **{
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

    if engine.dialect.name == 'postgresql':
        # A new connection needs several queries before its first use. Save the
        # round trips of transactions around them, and those of the query for
        # the type hstore.
        dialect: Any = engine.dialect
        dialect.use_native_hstore = False
        sa.event.listen(engine, 'connect', _commit_each, insert=True)

    def opened(connection: Any, record: Any) -> None:
        if bounded:
            with connection.cursor() as cursor:
                cursor.execute(_bounds(engine.dialect.name))
            connection.commit()
        if engine.dialect.name == 'mysql':
            _see_other_nodes(connection)
        # Each statement must see the changes that others have committed.
        # Otherwise a process could not detect that another process was first.
        # This also ends the autocommit mode.
        engine.dialect.set_isolation_level(connection, 'READ COMMITTED')
    sa.event.listen(engine, 'connect', opened)
    return engine


def _commit_each(connection: Any, record: Any) -> None:
    connection.autocommit = True


def _bounds(dialect: str) -> str:
    if dialect == 'postgresql':
        # Keep limits that are set for this user or in the URL. Every statement
        # of the store can use an index, so sequential scans are disabled.
        # Otherwise a plan that was cached for a table of a few rows could
        # later read a million rows.
        return (
            'SELECT set_config(name, value, false) '  # noqa: S608
            'FROM (VALUES '
            f"('lock_timeout', '{_LOCKED}s'), "
            f"('idle_in_transaction_session_timeout', '{IDLE}s'), "
            f"('statement_timeout', '{STATEMENT}s'), "
            # A statement in autocommit mode has the default isolation level.
            "('default_transaction_isolation', 'read committed'), "
            "('enable_seqscan', 'off'), "
            # The estimated cost of a plan with a disabled scan is so high
            # that PostgreSQL would compile the plan (JIT).
            "('jit', 'off')) AS bound(name, value) "
            "WHERE current_setting(name) IN "
            "('0', 'on', 'repeatable read', 'serializable')")
    # MySQL ignores the second setting as a comment, and MariaDB executes it:
    # only MariaDB has this variable.
    return (f'SET SESSION innodb_lock_wait_timeout = {_LOCKED} '
            f'/*M!100300 , SESSION idle_transaction_timeout = {IDLE} */')


def _see_other_nodes(connection: Any) -> None:
    """Make each transaction wait until its Galera node has caught up.

    The node has then applied all earlier commits of all nodes.
    Otherwise a worker that is faster than the replication would not find the
    claim of its batch. The worker would treat the claim as lost, and the
    object would wait until the lease expires. Without Galera, this function
    changes nothing.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
        if cursor.fetchone() == ('wsrep_on', 'ON'):
            cursor.execute(f'SET SESSION wsrep_sync_wait = {_EVERY_STATEMENT}')


def _open_sqlite(connection: Any, record: Any) -> None:
    connection.execute(f'PRAGMA busy_timeout = {_SQLITE_PATIENCE * 1e3:.0f}')
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


def wait_for_others(attempt: int) -> None:
    """Sleep for a random time, whose mean doubles with each attempt."""
    threading.Event().wait(random.uniform(0, 0.002 * 2 ** attempt))


def _begin_sqlite(connection: sa.Connection, cursor: Any, statement: str,
                  parameters: Any, context: Any, many: bool
                  ) -> tuple[str, Any]:
    # BEGIN IMMEDIATE makes a writing transaction wait for other writers.
    # Without IMMEDIATE, a transaction that reads first and then writes would
    # fail if another transaction wrote in between. A transaction that only
    # reads must not block writers.
    if statement == 'BEGIN' and not connection.info.get(READ_ONLY):
        statement = 'BEGIN IMMEDIATE'
    return statement, parameters
