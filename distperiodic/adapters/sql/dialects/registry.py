# SPDX-License-Identifier: Apache-2.0
"""The databases that this library supports."""

import functools
import pathlib
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.dialects.dialect import Driver
from distperiodic.adapters.sql.dialects.mysql import MySQL
from distperiodic.adapters.sql.dialects.postgresql import PostgreSQL
from distperiodic.adapters.sql.dialects.sqlite import SQLite

DIALECTS: tuple[type[Dialect], ...] = (MySQL, PostgreSQL, SQLite)

_NAMES = {name: one for one in DIALECTS for name in one.names}
#: Database of each URL scheme, and its drivers: the first one that is
#: installed is used.
SCHEMES: dict[str, tuple[type[Dialect], tuple[Driver, ...]]] = {
    **{scheme: (one, one.drivers)
       for one in DIALECTS for scheme in one.schemes},
    **{driver.name: (one, (driver,))
       for one in DIALECTS for driver in one.drivers}}
#: Scheme that a user probably means, by the scheme in the user's URL.
NEAR = {wrong: one.schemes[0]
        for one in DIALECTS for wrong in one.misspellings}


def kind_of(url: sa.URL) -> type[Dialect]:
    """Return the kind of the database at *url*."""
    return SCHEMES[url.drivername][0]


@functools.cache
def file_at(connection_url: str) -> pathlib.Path | None:
    """Return the path of a database file; see :meth:`.Dialect.file_of`."""
    url = sa.make_url(connection_url)
    return kind_of(url).file_of(url)


def class_of(dialect: Any) -> type[Dialect]:
    """Return the class for SQLAlchemy's *dialect*.

    SQLAlchemy also has a dialect of its own, to show statements.
    """
    return _NAMES.get(dialect.name, Dialect)


def dialect_of(dialect: Any) -> Dialect:
    """Return the SQL of the database of SQLAlchemy's *dialect*.

    All connections of this process to such databases share the result, and the
    statements that it has built.
    """
    return _dialect(dialect.name, dialect.update_returning)


@functools.cache
def _dialect(name: str, returning: bool) -> Dialect:
    return _NAMES[name](returning)
