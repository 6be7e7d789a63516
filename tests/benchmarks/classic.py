# SPDX-License-Identifier: Apache-2.0
"""The classic task dispenser on Redis, as articles describe it.

The pool is a sorted set, the bucket of each worker is another sorted set, and
a hash contains the names of the buckets. Each call acquires a lock in Redis.
The original code releases a key other than the one that it has locked. This
bug is fixed here, because otherwise no measurement is possible. Here a caller
that does not get the lock tries again; the original code raises an error.
``tasks_done`` clears the whole bucket, as in the original code.
"""

import contextlib

import redis

_LOCK = 'FunctionLock:_dispenser_'


class ClassicDispenser:
    """One pool."""

    def __init__(self, url, pool):
        self._redis = redis.Redis.from_url(url, decode_responses=True)
        self._pool = pool
        #: Number of attempts that found the lock taken.
        self.blocked = 0

    @contextlib.contextmanager
    def _locked(self):
        while not self._redis.set(_LOCK, '1', ex=60, nx=True):
            self.blocked += 1
        try:
            yield
        finally:
            self._redis.delete(_LOCK)

    def recreate_task_pool(self, mapping):
        with self._locked():
            left = {str(task): score for task, score in mapping.items()}
            for bucket in self._redis.hvals(f'{self._pool}:router'):
                for task in self._redis.zrange(bucket, 0, -1):
                    left.pop(task, None)
            self._redis.delete(self._pool)
            tasks = list(left.items())
            for begin in range(0, len(tasks), 10_000):
                self._redis.zadd(
                    self._pool, dict(tasks[begin:begin + 10_000]))

    def assign_tasks(self, limit, worker):
        with self._locked():
            bucket = self._redis.hget(f'{self._pool}:router', worker)
            if bucket is None:
                bucket = f'{self._pool}:bucket:{worker}'
                self._redis.hset(f'{self._pool}:router', worker, bucket)
            tasks = self._redis.zrange(bucket, 0, -1, desc=True)
            if len(tasks) < limit:
                new = self._redis.zpopmax(self._pool, limit - len(tasks))
                if new:
                    self._redis.zadd(bucket, dict(new))
                    tasks += [task for task, _ in new]
            elif len(tasks) > limit:
                self._redis.zpopmin(bucket, len(tasks) - limit)
                tasks = self._redis.zrange(bucket, 0, -1, desc=True)
            return tasks

    def tasks_done(self, worker, tasks):
        with self._locked():
            bucket = self._redis.hget(f'{self._pool}:router', worker)
            if bucket is None:
                return False
            self._redis.delete(bucket)
            return True

    def close(self):
        self._redis.close()
