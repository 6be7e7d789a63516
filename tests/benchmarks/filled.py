# SPDX-License-Identifier: Apache-2.0
"""Databases that are full of claims, for the benchmarks of the store."""

import contextlib
import random
import sqlite3
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import psycopg
import pymysql
import sqlalchemy as sa

from distperiodic.adapters.sql import column_types
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core import ring
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from tests import claiming

SPACE = 'benchmark'
JOB = 'poll'
#: The tick that each object has completed, an instant in 2001.
LAST = 1_000_000_000 * 1_000_000

_COLUMNS = ('object', 'job', 'position', 'tick', 'settled', 'state', 'fence',
            'attempt', 'lease', 'since', 'rule')


def object_ids(number: int) -> list[str]:
    """Return sorted UUIDs, the same ones at each call."""
    chance = random.Random(17)
    return sorted(str(uuid.UUID(int=chance.getrandbits(128)))
                  for _ in range(number))


def sql_store_of(url: str) -> SqlClaimStore:
    return SqlClaimStore(url, namespace=SPACE)


def fill(url: str, objects: Sequence[str], job: str = JOB) -> int:
    """Insert one claim for each of *objects*, of a job that has just completed
    its tick. Return the number of the job.
    """
    schema.sync(url)
    store = sql_store_of(url)
    claiming.claim(store, job, LAST, ['the first'], lease=uuid.uuid4().hex,
                   holder='filler', seconds=60, supersede=False)
    store.close()
    with connected(url) as connection:
        cursor = connection.cursor()
        mark = marks(url, 1)
        cursor.execute(
            'SELECT id FROM distperiodic_job '  # noqa: S608
            f'WHERE space = {mark} AND name = {mark}',
            texts(url, [SPACE, job]))
        [number] = cursor.fetchone()
        fence = first_fence(LAST)
        state = column_types.STATE_CODES[State.DONE]
        [rule] = texts(url, [''])
        insert(connection, url, tables.claim.name, _COLUMNS, (
            (key, number, position, LAST, LAST, state, fence, 1, 'ended',
             LAST, rule)
            for key, position in zip(
                texts(url, objects), ring.positions_of(objects),
                strict=True)))
        connection.commit()
        settle(connection, url, tables.claim.name)
    return number


def insert(connection: Any, url: str, table: str, columns: Sequence[str],
           rows: Iterator[Sequence[Any]]) -> None:
    """Insert many rows with the fastest method of the database."""
    cursor = connection.cursor()
    names = ', '.join(columns)
    if url.startswith('postgresql'):
        with cursor.copy(f'COPY {table} ({names}) FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)
        return
    cursor.executemany(
        f'INSERT INTO {table} ({names}) '  # noqa: S608
        f'VALUES ({marks(url, len(columns))})', rows)


def settle(connection: Any, url: str, table: str) -> None:
    """Let the database do its background work now."""
    cursor = connection.cursor()
    if url.startswith('postgresql'):
        connection.autocommit = True
        cursor.execute(f'VACUUM ANALYZE {table}')
        cursor.execute('CHECKPOINT')
        connection.autocommit = False
    elif url.startswith('sqlite'):
        cursor.execute('PRAGMA wal_checkpoint(TRUNCATE)')
        cursor.execute(f'ANALYZE {table}')
        connection.commit()
    else:
        cursor.execute(f'ANALYZE TABLE {table}')
        cursor.fetchall()


def marks(url: str, number: int) -> str:
    return ', '.join(['?' if url.startswith('sqlite') else '%s'] * number)


def texts(url: str, words: Sequence[str]) -> list[Any]:
    """Return texts in the type of columns that compare byte for byte."""
    if url.startswith('mysql'):
        return [word.encode() for word in words]
    return list(words)


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    """Yield a connection of the plain driver, in transactions."""
    at = sa.make_url(url)
    if url.startswith('postgresql'):
        connection: Any = psycopg.connect(url)
    elif url.startswith('sqlite'):
        connection = sqlite3.connect(at.database)
        connection.execute('PRAGMA journal_mode = WAL')
    else:
        connection = pymysql.connect(
            host=at.host, port=at.port, user=at.username,
            password=at.password, database=at.database)
    try:
        yield connection
    finally:
        connection.close()
