# SPDX-License-Identifier: Apache-2.0
"""Pools of tasks in a database, and the buckets of their workers.

Each call is one transaction. The call of a worker first renews the worker's
bucket, and so locks the row of the bucket until the commit. So two calls for
one worker run one after the other, and a bucket cannot expire during a call.
Each task is one row. An UPDATE changes the row only if the task is still in
the bucket in which it was read, or still free. The content of a bucket is read
from the rows of its tasks, so no result depends on a driver's row count.

The calls of different workers normally write different rows, so the workers do
not wait for each other.
"""

import hashlib
import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_pool_recreation
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.tables import done_of
from distperiodic.adapters.sql.tables import free_of
from distperiodic.adapters.sql.task_pool_calls import Calls
from distperiodic.adapters.sql.task_pool_recreation import AT_A_TIME
from distperiodic.adapters.sql.task_pool_recreation import chunks
from distperiodic.adapters.sql.task_pool_recreation import expire
from distperiodic.adapters.sql.task_pool_statements import TaskPoolStatements
from distperiodic.adapters.sql.task_pool_statements import stats_of
from distperiodic.core.task_pool import Recreated
from distperiodic.core.task_pool import Stats

#: Maximum number of attempts to open a bucket. One attempt inserts a missing
#: bucket, and the next attempt renews it. Three attempts are enough, unless
#: other calls for the same worker run at the same time.
_ATTEMPTS = 5
_NUMBERS = 1, 2 ** 31 - 1
_IDS = 1, 2 ** 62
#: Maximum number of buckets whose ids are kept in memory.
_IDS_KEPT = 10_000
# The default generator is not used: processes that seed it with the same value
# would draw the same ids.
_RANDOM = random.SystemRandom()


class Bucket(NamedTuple):
    """A bucket that was renewed."""

    id: int
    #: True if any bucket of the pool has expired.
    expired: bool


class SqlTaskPool:
    """One pool in a database. One thread at a time may use it.

    Tasks are passed as keys; see :mod:`distperiodic.core.task_pool`.
    """

    def __init__(self, connection_url: str, *, namespace: str, pool: str,
                 bucket_timeout: float, **options: Any):
        """Prepare the pool and check the URL, without connecting.

        :param namespace: Namespace of the pools of one service.
        :param pool: Name of the pool.
        :param bucket_timeout: Seconds until the bucket of a silent worker
            expires.
        :param options: Options of oslo.db's engine.
        :raises ConfigError: the URL is invalid.
        """
        self.database = Database(
            connection_url, schema.check_connection, **options)
        self._dialect = self.database.dialect
        self._sql: TaskPoolStatements = self._dialect.once(TaskPoolStatements)
        self._calls: Calls = self._dialect.once(Calls)
        self._name = pool
        self._key = {'of_space': namespace, 'of_name': pool}
        self._term = lease_terms.term(bucket_timeout)
        #: Number of the pool, as it was last read; 0 means not read yet. If
        #: the tables are recreated, the pool gets another number, so each call
        #: that finds no bucket reads the number again.
        self._number = 0
        #: Ids of the workers' buckets, as they were last read.
        self._ids: dict[str, int] = {}
        #: Ids of buckets for which a statement may still arrive late.
        self._doubtful: set[int] = set()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self.database.close()

    def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""
        return self.database.read(lambda connection: connection.execute(
            self._sql.now).scalar_one())

    def assign(self, limit: int, worker: str) -> list[str]:
        """Fill the worker's bucket up to *limit* tasks, and return the tasks.

        Tasks above the limit are freed.

        :returns: the tasks in the bucket, in order of place. There are fewer
            than *limit* if no further free task is left, or if other
            transactions have locked all further free tasks.
        :raises PoolNotFound: the pool does not exist.
        """
        rows = self._alone(self._calls.fill, worker, {
            'of_bucket': free_of(self._number), 'at_most': limit})
        # One row is not a task. The statement frees no tasks above the limit.
        if rows and len(rows) <= limit + 1:
            return [row[1] for row in sorted(rows)[1:]]
        return self.database.write(
            lambda connection: self._assign(connection, limit, worker))

    def _assign(self, connection: sa.Connection, limit: int,
                worker: str) -> list[str]:
        bucket = self._open(connection, worker)
        its, free = {'of_bucket': bucket}, free_of(self._number)
        keys = connection.execute(self._sql.content, its).scalars().all()
        if len(keys) < limit:
            found = connection.execute(self._sql.best, {
                'of_bucket': free, 'at_most': limit - len(keys)})
            self._move(connection, self._sql.move, free, bucket,
                       found.scalars())
            keys = connection.execute(self._sql.content, its).scalars().all()
        if len(keys) > limit:
            self._move(connection, self._sql.move, bucket, free, keys[limit:])
        return list(keys[:limit])

    def held(self, worker: str) -> set[str]:
        """Return the tasks in the worker's bucket.

        :raises PoolNotFound: the pool does not exist.
        """
        rows = self._alone(self._calls.read, worker, {})
        if rows:
            return {row[0] for row in rows}

        def work(connection: sa.Connection) -> set[str]:
            bucket = self._renew(connection, worker)
            return set() if bucket is None else {
                row.task for row in connection.execute(
                    self._sql.content, {'of_bucket': bucket.id})}
        return self.database.write(work)

    def finish(self, worker: str, keys: Sequence[str]) -> bool:
        """End the tasks *keys* that are in the worker's bucket.

        :returns: True if all of *keys* were in it, or were ended by an earlier
            call for this worker.
        :raises PoolNotFound: the pool does not exist.
        """
        # The mark identifies the worker, so that the worker may repeat a call
        # whose answer was lost, even after a restart.
        digest = hashlib.sha256(worker.encode()).digest()
        return self._leave(worker, keys, done_of, self._sql.finish,
                           self._calls.finish,
                           int.from_bytes(digest[:8], 'big') >> 2 or 1)

    def give_back(self, worker: str, keys: Sequence[str]) -> bool:
        """Free the tasks *keys* that are in the worker's bucket.

        :returns: True if all of *keys* were in it.
        :raises PoolNotFound: the pool does not exist.
        """
        return self._leave(worker, keys, free_of, self._sql.give_back,
                           self._calls.give_back,
                           _RANDOM.randrange(*_IDS))

    def _leave(self, worker: str, keys: Sequence[str],
               into: Callable[[int], int], statement: Any, call: Any,
               new_mark: int) -> bool:
        # If the answer to a commit is lost, the transaction is repeated. If
        # the first attempt was successful, the rows then contain the mark. A
        # done task that is offered again gets a new row, without a mark.
        mark = {'new_mark': new_mark}
        if 0 < len(keys) <= AT_A_TIME:
            rows = self._alone(call, worker, mark | {
                'into': into(self._number), 'keys': self._dialect.keys(keys)})
            if rows is not None and len(rows) == len(keys):
                return True

        def work(connection: sa.Connection) -> bool:
            bucket = self._renew(connection, worker)
            if bucket is not None:
                self._move(connection, statement, bucket.id,
                           into(self._number), keys, **mark)
            return len(keys) == sum(connection.execute(
                self._sql.marked, mark | {
                    'of_pool': self._number,
                    'keys': self._dialect.keys(some)}).scalar_one()
                for some in chunks(keys))
        return self.database.write(work)

    def stats(self) -> Stats:
        """Return the content of the pool.

        :raises PoolNotFound: the pool does not exist.
        """
        def work(connection: sa.Connection) -> Stats:
            self._dialect.use_snapshot(connection)
            self._find(connection)
            return stats_of(connection, self._sql, self._number)
        return self.database.read(work)

    def recreate(self, places: Mapping[str, float], *, as_of: int | None,
                 done_retention: float) -> Recreated:
        """Make the pool contain the tasks that are the keys of *places*.

        A missing pool is created. Tasks in buckets stay in them. Done tasks
        stay done, except those that were done before *as_of*.

        :param places: Place of each task.
        :param as_of: When the caller began to read *places*, in microseconds
            of the store's clock. None means that all done tasks stay done.
        :param done_retention: Seconds from the end of a task until the task is
            forgotten, if it is not in *places*.
        """
        return self.database.write(
            lambda connection: task_pool_recreation.recreate(
                connection, self._dialect, self._sql,
                self._occupy(connection), places, as_of,
                round(done_retention * 1e6)))

    def _occupy(self, connection: sa.Connection) -> int:
        """Lock the row of the pool by changing it, so that concurrent calls of
        :meth:`recreate` wait.

        :returns: the number of the pool, which is created if it is missing.
        """
        while True:
            connection.execute(self._sql.occupy, self._key)
            number = connection.execute(self._sql.find, self._key).scalar()
            if number is not None:
                self._number = number
                return self._number
            # The row is not inserted if its number belongs to another pool.
            # The loop then tries another number.
            self._dialect.insert_new(
                connection, tables.pool,
                {'id': [_RANDOM.randrange(*_NUMBERS)]},
                space=self._key['of_space'], name=self._name, recreated=0)

    def _alone(self, call: Any, worker: str,
               parameters: dict[str, Any]) -> Sequence[Any] | None:
        """Execute a call that is one statement, and return its rows.

        If no rows are returned, the call must be repeated as a transaction of
        several statements: the statement has changed no task, or it is unknown
        whether it was executed, or there is no such statement.
        """
        bucket = self._ids.get(worker)
        if call is None or bucket is None:
            return None
        rows = self.database.execute_alone(
            call, self._of(worker) | {'of_id': bucket} | parameters)
        if rows is None:
            self._doubtful.add(bucket)
        return rows

    # Buckets.

    def _of(self, worker: str) -> dict[str, Any]:
        return {'of_pool': self._number, 'of_worker': worker,
                **self._term}

    def _open(self, connection: sa.Connection, worker: str) -> int:
        """Return the id of the worker's bucket; create it if it is missing.

        All buckets of the pool that have expired are emptied first.
        """
        for attempt in range(_ATTEMPTS):
            found = self._renew(connection, worker)
            # If the first attempt could not insert a bucket, the worker's own
            # bucket exists, but has expired.
            if attempt if found is None else found.expired:
                expire(connection, self._sql, self._number)
            if found is not None:
                return found.id
            self._dialect.insert_new(
                connection, tables.bucket, {'worker': [worker]},
                pool=self._number, id=_RANDOM.randrange(*_IDS),
                # The next attempt renews the bucket.
                until=2 ** 62, calls=0)
        raise exceptions.StoreUnavailable(
            f'pool {self._name!r}: the bucket of worker {worker!r} expired '
            f'{_ATTEMPTS} times while it was opened; set [distperiodic] '
            'bucket_timeout to more than the time of one call')

    def _renew(self, connection: sa.Connection,
               worker: str) -> Bucket | None:
        """Renew the worker's bucket, and return it.

        None means that the bucket does not exist, or has expired.
        """
        ours = self._of(worker)
        row = self._renewed(connection, ours) if self._number else None
        if row is None and self._find(connection) != ours['of_pool']:
            row = self._renewed(connection, self._of(worker))
        if row is None:
            return None
        bucket = int(row.id)
        if bucket in self._doubtful:
            bucket = self._replace(connection, worker, bucket)
        if len(self._ids) >= _IDS_KEPT:
            self._ids.clear()
        self._ids[worker] = bucket
        return Bucket(bucket, row.expired)

    def _replace(self, connection: sa.Connection, worker: str,
                 bucket: int) -> int:
        """Give a bucket another id, and return this id."""
        into = _RANDOM.randrange(*_IDS)
        connection.execute(self._sql.replace, {
            'of_pool': self._number, 'of_worker': worker,
            'of_bucket': bucket, 'into': into})
        connection.execute(
            self._sql.empty, {'of_bucket': bucket, 'into': into})
        return into

    def _renewed(self, connection: sa.Connection,
                 ours: dict[str, Any]) -> Any:
        if self._dialect.writes_in_with:
            return connection.execute(
                self._sql.renew_returning, ours).one_or_none()
        connection.execute(self._sql.renew, ours)
        del ours['microseconds']
        return connection.execute(self._sql.opened, ours).one_or_none()

    def _find(self, connection: sa.Connection) -> int:
        """Read the number of the pool.

        :raises PoolNotFound: the pool does not exist.
        """
        number = connection.execute(self._sql.find, self._key).scalar()
        if number is None:
            raise exceptions.PoolNotFound(
                f'there is no pool {self._name!r} in group '
                f'{self._key["of_space"]!r}; create it with '
                'recreate_task_pool(), or list the pools with: distperiodic '
                'pool list')
        self._number = number
        return self._number

    def _move(self, connection: sa.Connection, statement: Any, bucket: int,
              into: int, keys: Iterable[str], **more: Any) -> None:
        for some in chunks(sorted(keys)):
            connection.execute(statement, {
                'of_pool': self._number, 'of_bucket': bucket, 'into': into,
                'keys': self._dialect.keys(some), **more})
