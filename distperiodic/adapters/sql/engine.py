# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy engines whose connections wait for a limited time only.

Some settings limit the duration of waits. Others let a transaction see the
changes that other transactions have committed. These settings differ between
databases, and are applied when a connection opens.
"""

import math
from typing import Any

import sqlalchemy as sa
from oslo_db.sqlalchemy import engines
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters.sql.dialects import registry
from distperiodic.adapters.sql.dialects.dialect import Driver
from distperiodic.core import redaction


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
    if url.drivername not in registry.SCHEMES:
        known = ', '.join(one.names[0] for one in registry.DIALECTS)
        near = registry.NEAR.get(url.drivername.partition('+')[0])
        hint = f'did you mean {near!r}? use' if near else 'use'
        raise exceptions.ConfigError(
            f'connection {shown!r}: unknown driver '
            f'{url.drivername!r}; {hint} one of {known}')
    kind, drivers = registry.SCHEMES[url.drivername]
    driver = next(filter(_is_installed, drivers), None)
    if driver is None:
        raise exceptions.ConfigError(
            f'connection {shown!r} needs the Python module '
            f'{drivers[0].module}; install it with: pip install '
            f'{drivers[0].package}')
    if not url.database:
        raise exceptions.ConfigError(
            f'connection {shown!r} names no database; processes share the '
            'claims, so name a file, for example '
            'sqlite:////var/lib/my-service/claims.sqlite'
            if kind.in_file else
            f'connection {shown!r} names no database; add it: '
            f'{shown.rstrip("/")}/DATABASE')
    if url.database == ':memory:':
        raise exceptions.ConfigError(
            f'connection {shown!r}: a database in memory is visible to one '
            'connection only, and is lost with it; name a file')
    waits = {**kind.options, **(kind.statement_options if bounded else {})}
    return url.set(drivername=driver.name).update_query_dict(
        {k: v for k, v in waits.items() if k not in url.query})


def _is_installed(driver: Driver) -> bool:
    try:
        __import__(driver.module)
    except ImportError:
        return False
    return True


def make_engine(connection_url: str, bounded: bool = True,
                statement: float | None = None, **options: Any) -> sa.Engine:
    """Return a new engine. It connects on first use.

    :param bounded: True limits the duration of waits and statements. The
        limits in the options of the URL always apply, and SQLite's waits are
        always limited.
    :param statement: Maximum seconds of one statement. None means the limit of
        this library.
    :param options: Options of oslo.db's engine.
    :raises ConfigError: the URL is invalid.
    """
    url = check(connection_url, bounded)
    kind, _ = registry.SCHEMES[url.drivername]
    if statement is not None:
        # A server that does not answer must not last longer than a statement.
        given = sa.make_url(connection_url).query
        url = url.update_query_dict({
            name: str(math.ceil(statement) + 1)
            for name in ('connect_timeout', 'read_timeout')
            if name in url.query and name not in given})
    engine: sa.Engine = engines.create_engine(
        url, **{'max_retries': 0, **kind.engine_options, **options})
    registry.dialect_of(engine.dialect).listen(engine, bounded, statement)
    return engine
