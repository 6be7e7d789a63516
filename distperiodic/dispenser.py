# SPDX-License-Identifier: Apache-2.0
"""Task dispenser: workers pull tasks from a pool, the highest scores first.

Each worker, a person or a program, has a bucket. The tasks in it are its own
until it finishes them, gives them back, or makes no call for
``bucket_timeout`` seconds. A task is in one bucket at most.

Each call is one transaction in the store, and no lock is held between calls.
If a caller dies during a call, the call has either changed nothing or is
complete.
"""

import logging
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.core import schedule
from distperiodic.core import task_pool
from distperiodic.core.task_pool import Recreated
from distperiodic.core.task_pool import Scores
from distperiodic.core.task_pool import Stats
from distperiodic.core.task_pool import Task
from distperiodic.store import Connections
from distperiodic.store import check_store

if TYPE_CHECKING:
    from distperiodic.adapters.sql.task_pools import SqlTaskPool

__all__ = ['Recreated', 'Stats', 'TaskDispenser']

LOG = logging.getLogger(__name__)

#: Maximum number of tasks that a log line lists.
_SHOWN = 5
_DAY = 86400.0


class TaskDispenser:
    """A pool of tasks in the store, and the buckets of its workers.

    Any number of processes may use one pool at the same time. Threads may
    share an instance, and an instance may be created before a fork. Its first
    call connects to the store, and creates an embedded store.

    A task is a str or an int, and keeps its type: 1 and '1' are different
    tasks. Of two tasks with the same score the lower one comes first, and ints
    come before strs.

    :param conf: Configuration of the service. It is read at the first call.
    :param pool: Name of the pool. Each group has its own pools.
    :raises InvalidPoolRequest: *pool* is empty, not a str, or too long.
    """

    def __init__(self, conf: cfg.ConfigOpts, pool: str):
        self.pool = task_pool.check_pool(pool)
        self._conf = conf
        self._settings: opts.Settings | None = None
        self._connections: Connections[SqlTaskPool] = Connections(
            self._connect)

    def recreate_task_pool(self, tasks: Scores, *,
                           as_of: datetime | None = None) -> Recreated:
        """Make the pool hold *tasks*. The first call creates the pool.

        A task in a bucket stays in its bucket. If *tasks* contains it, its
        score changes. A task in the pool that *tasks* does not contain is
        removed. A done task stays done, even if *tasks* contains it: the
        caller may have read its list before the task was done.

        To offer done tasks again as new work, pass *as_of*. A task that was
        done before that instant, and that *tasks* contains, is put into the
        pool. To get the instant, call :meth:`now` before you read the list.

        A done task that *tasks* no longer contains is forgotten after
        ``done_retention`` days.

        :param tasks: Score of each task, a finite number. Tasks with a higher
            score are assigned first.
        :param as_of: When the caller began to read *tasks*, by the store's
            clock. None means that all done tasks stay done.
        :raises InvalidPoolRequest: a task or a score cannot be used.
        :raises StoreUnavailable: it is unknown whether the pool was recreated;
            a repeated call is safe.
        """
        places = task_pool.places_of(tasks)
        with self._connections.lend() as store:
            found = store.recreate(
                places, as_of=_instant_of(as_of),
                done_retention=self._read().done_retention * _DAY)
        LOG.info('pool recreated: pool=%s added=%d kept=%d removed=%d '
                 'assigned=%d done=%d', self.pool, *found)
        return found

    def assign_tasks(self, limit: int, worker: str) -> list[Task]:
        """Make the worker's bucket hold *limit* tasks, and return them.

        If the bucket has fewer tasks, the tasks of the pool with the highest
        scores are added. If the bucket has more, the tasks with the lowest
        scores go back to the pool. The result is shorter than *limit* if the
        pool has no more tasks, or if other calls are just changing the
        remaining ones.

        :param limit: Number of tasks, at least 1.
        :param worker: Name of the worker.
        :returns: the tasks in the bucket, the highest score first.
        :raises InvalidPoolRequest: an argument cannot be used.
        :raises PoolNotFound: the pool does not exist.
        :raises StoreUnavailable: it is unknown whether tasks were assigned; a
            repeated call is safe and returns them.
        """
        limit = task_pool.check_limit(limit)
        worker = task_pool.check_worker(worker)
        with self._connections.lend() as store:
            return task_pool.tasks_of(store.assign(limit, worker))

    def check_tasks(self, worker: str, tasks: Collection[Task]) -> bool:
        """Return whether exactly these tasks are in the worker's bucket.

        :param worker: Name of the worker.
        :param tasks: Tasks in any order.
        :raises InvalidPoolRequest: an argument cannot be used.
        :raises PoolNotFound: the pool does not exist.
        :raises StoreUnavailable: the answer is unknown.
        """
        worker = task_pool.check_worker(worker)
        keys = task_pool.keys_of(tasks)
        with self._connections.lend() as store:
            return store.held(worker) == set(keys)

    def tasks_done(self, worker: str, tasks: Collection[Task]) -> bool:
        """Mark tasks in the worker's bucket as done.

        The other tasks in the bucket stay there.

        :param worker: Name of the worker.
        :param tasks: Tasks that the worker has finished.
        :returns: True if all *tasks* were in the bucket. False means that some
            were not, and were not marked: another worker may have them.
        :raises InvalidPoolRequest: an argument cannot be used.
        :raises PoolNotFound: the pool does not exist.
        :raises StoreUnavailable: it is unknown whether the tasks were marked;
            if a repeated call returns False, use check_tasks() to find out
            which tasks are left in the bucket.
        """
        worker = task_pool.check_worker(worker)
        keys = task_pool.keys_of(tasks)
        with self._connections.lend() as store:
            found = store.finish(worker, keys)
        return self._answer(found, 'done', worker, keys)

    def give_back(self, worker: str, tasks: Collection[Task]) -> bool:
        """Return tasks from the worker's bucket to the pool.

        The tasks keep their scores.

        :param worker: Name of the worker.
        :param tasks: Tasks that the worker does not want.
        :returns: True if all *tasks* were in the bucket. False means that some
            were not; these are not changed.
        :raises InvalidPoolRequest: an argument cannot be used.
        :raises PoolNotFound: the pool does not exist.
        :raises StoreUnavailable: it is unknown whether the tasks were given
            back; a repeated call is safe.
        """
        worker = task_pool.check_worker(worker)
        keys = task_pool.keys_of(tasks)
        with self._connections.lend() as store:
            found = store.give_back(worker, keys)
        return self._answer(found, 'given back', worker, keys)

    def stats(self) -> Stats:
        """Return the number of tasks that are free, in buckets, and done.

        :raises PoolNotFound: the pool does not exist.
        :raises StoreUnavailable: the store did not answer.
        """
        with self._connections.lend() as store:
            return store.stats()

    def now(self) -> datetime:
        """Return the time by the store's clock, for *as_of*.

        :raises StoreUnavailable: the store did not answer.
        """
        with self._connections.lend() as store:
            return schedule.datetime_of(store.now())

    def close(self) -> None:
        """Close the connections. The next call opens a new one."""
        self._connections.close()

    def _answer(self, complete: bool, what: str, worker: str,
                keys: list[str]) -> bool:
        if not complete:
            shown = ', '.join(repr(task_pool.task_of(key))
                              for key in keys[:_SHOWN])
            LOG.warning(
                'tasks not in the bucket: pool=%s worker=%s call=%s tasks=%s; '
                'those in the bucket are %s; the others were not changed, and '
                'may belong to another worker', self.pool, worker,
                what, shown + ', ...' * (len(keys) > _SHOWN), what)
        return complete

    def _connect(self) -> 'SqlTaskPool':
        from distperiodic.adapters.sql.task_pools import SqlTaskPool
        settings = self._read()
        check_store(settings, self._conf)
        return SqlTaskPool(
            settings.connection, namespace=settings.group, pool=self.pool,
            bucket_timeout=settings.bucket_timeout)

    def _read(self) -> opts.Settings:
        """Return the options, which are read once.

        :raises ConfigError: an option cannot be used, or there is no store.
        """
        if self._settings is None:
            settings = opts.settings(self._conf)
            if not settings.connection:
                raise exceptions.ConfigError(
                    f'pool {self.pool!r} needs a store, and there is none: '
                    'set [distperiodic] connection to a database')
            self._settings = settings
        return self._settings


def _instant_of(as_of: datetime | None) -> int | None:
    """Return the instant in microseconds.

    :raises InvalidPoolRequest: *as_of* is not a datetime with a time zone.
    """
    if as_of is None:
        return None
    if not isinstance(as_of, datetime) or as_of.tzinfo is None:
        raise exceptions.InvalidPoolRequest(
            f'as_of is {as_of!r:.100}; give the result of now(), or another '
            'datetime with a time zone')
    return schedule.instant_of(as_of)
