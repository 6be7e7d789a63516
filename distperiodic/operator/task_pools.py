# SPDX-License-Identifier: Apache-2.0
"""Queries and commands of an operator on the pools of tasks of one group."""

import functools
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.tables import done_of
from distperiodic.adapters.sql.tables import free_of
from distperiodic.adapters.sql.task_pool_statements import TaskPoolStatements
from distperiodic.adapters.sql.task_pool_statements import stats_of
from distperiodic.core.task_pool import Stats
from distperiodic.core.task_pool import Task
from distperiodic.core.task_pool import score_of
from distperiodic.core.task_pool import task_of
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_bucket = tables.bucket
_pool = tables.pool
_task = tables.pool_task

# Maximum number of rows that are deleted in one transaction.
_AT_A_TIME = 1000


class Pool(NamedTuple):
    """A pool and its content."""

    name: str
    #: When the pool was last recreated, in microseconds.
    recreated: int
    stats: Stats


class LiveBucket(NamedTuple):
    """A bucket that has not expired."""

    worker: str
    tasks: int
    #: When the bucket expires, in microseconds of the lease clock.
    until: int


class Held(NamedTuple):
    """A task that is not done."""

    task: Task
    score: float
    #: Worker whose bucket holds the task. None means that the task is free.
    worker: str | None


def pools(store: GroupReader) -> list[Pool]:
    """Return all pools in order of name."""
    def work(connection: sa.Connection) -> list[Pool]:
        rows = connection.execute(sa.select(_pool).where(
            _pool.c.space == store.namespace
        ).order_by(_pool.c.name)).all()
        return [Pool(row.name, row.recreated, stats_of(
            connection, _sql(store), row.id)) for row in rows]
    return store.read_snapshot(work)


def buckets(store: GroupReader, pool: str) -> list[LiveBucket]:
    """Return the buckets of a pool by worker, without empty buckets.

    :raises ConfigError: there is no such pool.
    """
    def work(connection: sa.Connection) -> list[LiveBucket]:
        number = number_of(connection, store, pool)
        found = stats_of(connection, _sql(store), number).buckets
        return sorted(
            LiveBucket(row.worker, found[row.worker], row.until)
            for row in connection.execute(
                _sql(store).buckets, {'of_pool': number})
            if row.worker in found)
    return store.read_snapshot(work)


def tasks(store: GroupReader, pool: str, worker: str | None,
          limit: int) -> list[Held]:
    """Return tasks: first the tasks in buckets, then the free tasks.

    In both parts, tasks with a higher score come first.

    :param worker: Worker whose bucket holds the tasks. None means all
        tasks that are not done.
    :raises ConfigError: there is no such pool.
    """
    columns = _task.c.task, _task.c.place
    order = _task.c.place, _task.c.task

    def work(connection: sa.Connection) -> list[Held]:
        number = number_of(connection, store, pool)
        live = {row.id: row.worker for row in connection.execute(
            _sql(store).buckets, {'of_pool': number}) if row.live}
        held = sa.select(*columns, _bucket.c.id).join_from(
            _bucket, _task, _task.c.bucket == _bucket.c.id).where(
                _bucket.c.pool == number)
        if worker is not None:
            held = held.where(_bucket.c.worker == worker)
        rows: list[Any] = list(connection.execute(
            held.order_by(*order).limit(limit)))
        if worker is None and len(rows) < limit:
            rows += connection.execute(
                sa.select(*columns, sa.literal(0)).where(
                    _task.c.bucket == free_of(number)
                ).order_by(*order).limit(limit - len(rows)))
        return [Held(task_of(key), score_of(place), live.get(bucket))
                for key, place, bucket in rows
                if worker is None or bucket in live]
    return store.read_snapshot(work)


def reset(store: GroupStore, pool: str) -> int:
    """Delete all free, assigned and done tasks of a pool.

    The pool remains, and its workers keep empty buckets. The call uses
    small transactions, so the workers can continue during the call. A task
    that is assigned or added during the call may remain.

    :returns: Number of deleted tasks.
    :raises ConfigError: there is no such pool.
    """
    number = store.read(
        lambda connection: number_of(connection, store, pool))
    buckets = [row.id for row in store.rows(
        sa.select(_bucket.c.id).where(_bucket.c.pool == number))]
    # Delete the free tasks first, so that none of them is assigned to a
    # bucket that this method has already emptied.
    return sum(_empty(store, number, bucket) for bucket in (
        free_of(number), *buckets, done_of(number)))


def _empty(store: GroupStore, number: int, bucket: int) -> int:
    deleted = 0
    while keys := _next(store, bucket):
        store.write(functools.partial(
            sa.Connection.execute, statement=_sql(store).remove,
            parameters={'of_pool': number, 'of_bucket': bucket,
                        'keys': store.dialect.keys(keys)}))
        deleted += len(keys)
    return deleted


def _next(store: GroupStore, bucket: int) -> Sequence[str]:
    return [row.task for row in store.rows(
        sa.select(_task.c.task).where(_task.c.bucket == bucket)
        .order_by(_task.c.place, _task.c.task).limit(_AT_A_TIME))]


def _sql(store: GroupReader) -> TaskPoolStatements:
    statements: TaskPoolStatements = store.dialect.once(TaskPoolStatements)
    return statements


def number_of(connection: sa.Connection, group: GroupReader,
              pool: str) -> int:
    """Return the number of a pool.

    :raises ConfigError: there is no such pool.
    """
    numbers = {row.name: row.id for row in connection.execute(
        sa.select(_pool.c.name, _pool.c.id).where(
            _pool.c.space == group.namespace).order_by(_pool.c.name))}
    if pool not in numbers:
        known = ', '.join(map(repr, numbers))
        raise exceptions.ConfigError(
            f'group {group.namespace!r} has no pool {pool!r} in this '
            'database; '
            + (f'it has {known}' if known else
               'recreate_task_pool() creates one; check [distperiodic] group'))
    return int(numbers[pool])
