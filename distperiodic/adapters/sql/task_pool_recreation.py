# SPDX-License-Identifier: Apache-2.0
"""Recreation of a pool of tasks, in one transaction of the caller.

The tasks of the pool are read and compared with the tasks that the caller
names, and only the differences are written. A write changes a task only if the
task still has the status with which it was read: free, in a bucket, or done.
If another transaction has locked a task, a worker is pulling, returning or
ending this task, and the recreation does not change it. If the recreation
waited for such locks, a recreation of many tasks and the calls of workers
could deadlock, and fail.
"""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.tables import done_of
from distperiodic.adapters.sql.tables import free_of
from distperiodic.adapters.sql.task_pool_statements import TaskPoolStatements
from distperiodic.core.task_pool import Recreated

#: Maximum number of keys in one statement.
AT_A_TIME = 1000
# Maximum number of rows in one INSERT.
_NEW_AT_A_TIME = 10_000


def recreate(connection: sa.Connection, dialect: Dialect,
             sql: TaskPoolStatements, number: int,
             places: Mapping[str, float], as_of: int | None,
             done_retention: int) -> Recreated:
    """Make a pool contain the tasks that are the keys of *places*.

    See :meth:`distperiodic.adapters.sql.task_pools.SqlTaskPool.recreate`.

    :param number: Number of the pool. The caller has locked the row of the
        pool.
    :param done_retention: Microseconds for which done tasks are remembered.
    """
    change = _Change(connection, dialect, sql, number)
    expire(connection, sql, number)
    now = connection.execute(sql.now).scalar_one()
    change.forget_done(now - done_retention, places)
    free, assigned = change.free(), change.assigned()
    new = sorted(key for key in places
                 if key not in free and key not in assigned)
    done = change.done_among(new)
    again = [key for key in new
             if as_of is not None and done.get(key, as_of) < as_of]
    change.forget(again, as_of)
    change.insert([key for key in new if key not in done] + again, places)
    change.insert(change.remove(
        key for key, place in free.items()
        if places.get(key, place) != place), places)
    gone = change.remove(key for key in free if key not in places)
    change.rescore({
        key: places[key] for key, place in assigned.items()
        if places.get(key, place) != place})
    return Recreated(
        added=len(new) - len(done) + len(again),
        kept=sum(key in free for key in places),
        removed=len(gone), assigned=sum(key in assigned for key in places),
        done=len(done) - len(again))


def expire(connection: sa.Connection, sql: TaskPoolStatements,
           number: int) -> None:
    """Delete the buckets of a pool that have expired, and free their tasks."""
    for worker, bucket in connection.execute(
            sql.expired, {'of_pool': number}).all():
        this = {'of_pool': number, 'of_worker': worker, 'of_bucket': bucket}
        connection.execute(sql.expire, this)
        # The bucket still exists if its worker has renewed it in the meantime.
        # If the bucket does not exist, this transaction or another one has
        # deleted it. In the latter case the tasks are already free.
        if connection.execute(sql.stands, this).scalar() is None:
            connection.execute(sql.empty, {
                'of_bucket': bucket, 'into': free_of(number)})


def chunks(keys: Iterable[str], size: int = AT_A_TIME) -> Iterator[list[str]]:
    """Yield *keys* in lists of at most *size*."""
    left = iter(keys)
    while some := list(itertools.islice(left, size)):
        yield some


class _Change:
    """The reads and writes of one recreation."""

    def __init__(self, connection: sa.Connection, dialect: Dialect,
                 sql: TaskPoolStatements, number: int):
        self._connection = connection
        self._dialect = dialect
        self._sql = sql
        self._number = number
        self._free = free_of(number)
        self._done = done_of(number)

    def free(self) -> dict[str, float]:
        """Return the places of the free tasks."""
        return {row.task: row.place for row in self._connection.execute(
            self._sql.content, {'of_bucket': self._free})}

    def assigned(self) -> dict[str, float]:
        """Return the places of the tasks in buckets."""
        return {row.task: row.place for row in self._connection.execute(
            self._sql.assigned, {'of_pool': self._number})}

    def done_among(self, keys: list[str]) -> dict[str, float]:
        """Return the end times of the done tasks among *keys*."""
        return {row.task: row.place for some in chunks(keys)
                for row in self._connection.execute(
                    self._sql.some, self._among(some, self._done))}

    def forget_done(self, before: int, places: Mapping[str, float]) -> None:
        """Remove done tasks that ended before *before*.

        The tasks that are keys of *places* stay.
        """
        old = self._connection.execute(self._sql.before, {
            'of_bucket': self._done, 'done_before': before}).scalars().all()
        self.forget([key for key in old if key not in places], before)

    def forget(self, keys: list[str], before: int | None) -> None:
        """Remove the done tasks among *keys* that ended before *before*."""
        for some in chunks(sorted(keys)):
            self._connection.execute(
                self._sql.remove_before,
                self._among(some, self._done) | {'done_before': before})

    def insert(self, keys: list[str], places: Mapping[str, float]) -> None:
        """Insert *keys* as free tasks, except those that already exist."""
        for some in chunks(keys, _NEW_AT_A_TIME):
            self._dialect.insert_new(
                self._connection, tables.pool_task,
                {'task': some, 'place': [places[key] for key in some]},
                pool=self._number, bucket=self._free)

    def remove(self, keys: Iterable[str]) -> list[str]:
        """Remove free tasks that no other transaction has locked.

        :returns: the removed tasks.
        """
        removed: list[str] = []
        for some in chunks(sorted(keys)):
            found = self._connection.execute(
                self._sql.unlocked, self._among(some, self._free)
            ).scalars().all()
            if found:
                self._connection.execute(
                    self._sql.remove, self._among(found, self._free))
                removed += found
        return removed

    def rescore(self, places: Mapping[str, float]) -> None:
        """Change the places of tasks in buckets."""
        for some in chunks(sorted(places)):
            found = self._connection.execute(
                self._sql.unlocked_assigned, {
                    'of_pool': self._number,
                    'keys': self._dialect.keys(some)}).scalars().all()
            if found:
                self._connection.execute(self._sql.rescore, [
                    {'of_pool': self._number, 'of_task': key,
                     'new_place': places[key]} for key in found])

    def _among(self, keys: Any, bucket: int) -> dict[str, Any]:
        return {'of_pool': self._number, 'of_bucket': bucket,
                'keys': self._dialect.keys(keys)}
