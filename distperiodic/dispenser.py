# SPDX-License-Identifier: Apache-2.0
"""Task dispenser: workers pull tasks from a pool, by descending score.

A worker is a person or a program. Each worker has a bucket with the tasks that
are assigned to it. A task leaves the bucket when the worker finishes the task
or gives it back. All tasks leave the bucket if the worker makes no call for
``bucket_timeout`` seconds. A task is in at most one bucket.

Each call is one transaction in the store, and no lock is held between calls.
If a caller dies during a call, the store executes either the whole call or
none of it.
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
    share an instance, and an instance may be created before a fork. The first
    call connects to the store. If the store is embedded, the first call also
    creates its file, if it does not exist.

    A task is a str or an int, and keeps its type: 1 and '1' are different
    tasks. Among tasks with the same score, ints come before strs, and lower
    values come first.

    :param conf: Configuration of the service. The first call reads the
        options.
    :param pool: Name of the pool. Each group has its own pools.
    :raises InvalidPoolRequest: *pool* is not a str of 1 to 200 characters, or
        contains characters that a database cannot store.
    """

    def __init__(self, conf: cfg.ConfigOpts, pool: str):
        self.pool = task_pool.check_pool(pool)
        self._conf = conf
        self._settings: opts.Settings | None = None
        self._connections: Connections[SqlTaskPool] = Connections(
            self._connect, lambda: check_store(self._read(), self._conf))

    def recreate_task_pool(self, tasks: Scores, *,
                           as_of: datetime | None = None) -> Recreated:
        """Replace the tasks of the pool by *tasks*.

        The first call creates the pool. A free task that is not in *tasks* is
        removed. A task in a bucket stays there, and gets its new score if it
        is in *tasks*. A done task stays done, even if it is in *tasks*: the
        caller may have read the list of tasks before the task was done.

        To offer done tasks again as new work, pass *as_of*. A task in *tasks*
        that was done before that instant is put into the pool. To get the
        instant, call :meth:`now` before you read the list.

        The call deletes the record of a done task that is not in *tasks* if
        the task was done more than ``done_retention`` days ago.

        :param tasks: Score of each task, a finite number. Tasks with a higher
            score are assigned first.
        :param as_of: Time at which the caller began to read *tasks*, by the
            store's clock. None means that all done tasks stay done.
        :raises InvalidPoolRequest: A task or a score cannot be used.
        :raises StoreUnavailable: The pool may or may not have been recreated.
            The caller can safely repeat the call.
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
        """Adjust the worker's bucket to *limit* tasks, and return the tasks.

        If the bucket has fewer tasks, the call adds the free tasks with the
        highest scores from the pool. If the bucket has more, the tasks with
        the lowest scores return to the pool. The result is shorter than
        *limit* if the pool has too few tasks, or if concurrent calls have
        locked the remaining tasks.

        :param limit: Number of tasks, at least 1.
        :param worker: Name of the worker.
        :returns: The tasks in the bucket, the highest score first.
        :raises InvalidPoolRequest: An argument cannot be used.
        :raises PoolNotFound: The pool does not exist.
        :raises StoreUnavailable: Tasks may or may not have been assigned. The
            caller can safely repeat the call, which then returns these tasks.
        """
        limit = task_pool.check_limit(limit)
        worker = task_pool.check_worker(worker)
        with self._connections.lend() as store:
            return task_pool.tasks_of(store.assign(limit, worker))

    def check_tasks(self, worker: str, tasks: Collection[Task]) -> bool:
        """Return whether exactly these tasks are in the worker's bucket.

        :param worker: Name of the worker.
        :param tasks: Tasks in any order.
        :raises InvalidPoolRequest: An argument cannot be used.
        :raises PoolNotFound: The pool does not exist.
        :raises StoreUnavailable: The store did not answer.
        """
        worker = task_pool.check_worker(worker)
        keys = task_pool.keys_of(tasks)
        with self._connections.lend() as store:
            return store.held(worker) == set(keys)

    def tasks_done(self, worker: str, tasks: Collection[Task]) -> bool:
        """Mark tasks in the worker's bucket as done.

        The other tasks in the bucket stay there. A repeated call returns True
        again: for as long as a task is recorded as done, the store records
        which worker has finished it.

        :param worker: Name of the worker.
        :param tasks: Tasks that the worker has finished.
        :returns: True if all *tasks* were in the bucket, or this worker has
            marked them before. False means that some of them were not, and
            were not marked. Another worker may have these tasks.
        :raises InvalidPoolRequest: An argument cannot be used.
        :raises PoolNotFound: The pool does not exist.
        :raises StoreUnavailable: The tasks may or may not have been marked.
            The caller can safely repeat the call.
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
            of them were not in the bucket, and were not changed.
        :raises InvalidPoolRequest: An argument cannot be used.
        :raises PoolNotFound: The pool does not exist.
        :raises StoreUnavailable: The tasks may or may not have been given
            back. The caller can safely repeat the call.
        """
        worker = task_pool.check_worker(worker)
        keys = task_pool.keys_of(tasks)
        with self._connections.lend() as store:
            found = store.give_back(worker, keys)
        return self._answer(found, 'given back', worker, keys)

    def stats(self) -> Stats:
        """Return the numbers of tasks that are free, in buckets, and done.

        :raises PoolNotFound: The pool does not exist.
        :raises StoreUnavailable: The store did not answer.
        """
        with self._connections.lend() as store:
            return store.stats()

    def now(self) -> datetime:
        """Return the time of the store's clock.

        The result can be passed as *as_of* to :meth:`recreate_task_pool`.

        :raises StoreUnavailable: The store did not answer.
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
                'some of these were not in the bucket, were not changed, and '
                'may belong to another worker; the others are now %s',
                self.pool, worker,
                what, shown + ', ...' * (len(keys) > _SHOWN), what)
        return complete

    def _connect(self) -> 'SqlTaskPool':
        from distperiodic.adapters.sql.task_pools import SqlTaskPool
        settings = self._read()
        return SqlTaskPool(
            settings.connection, namespace=settings.group, pool=self.pool,
            bucket_timeout=settings.bucket_timeout)

    def _read(self) -> opts.Settings:
        """Return the options; the first call reads them.

        :raises ConfigError: An option cannot be used, or there is no store.
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
