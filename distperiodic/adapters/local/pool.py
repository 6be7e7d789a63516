# SPDX-License-Identifier: Apache-2.0
"""Thread pools that run handlers, by priority and then round-robin.

The threads are daemons, because a handler that never returns must not keep the
process from exiting. If a handler hangs, its thread can be written off.
Another thread then replaces the written-off thread, which ends if its handler
returns.

Threads are woken one at a time: a thread that takes a chunk and leaves work in
the queue wakes the next thread. If each batch woke all threads, the threads
would compete for the interpreter lock and delay all handlers of a burst.
"""

import heapq
import itertools
import logging
import threading
from collections.abc import Mapping
from typing import Any
from typing import Protocol

from distperiodic.core.job import Job

LOG = logging.getLogger(__name__)


class Source(Protocol):
    """Work in chunks, which several threads may run.

    The pool takes one chunk at a time from each source of the same priority,
    in turn. So a large source does not delay the others.
    """

    def take(self) -> tuple[Any, bool]:
        """Return a chunk to run, and True if more chunks are left.

        The chunk is None if no chunk is left. The pool holds its lock during
        the call, so this method must return quickly.
        """

    def run(self, chunk: Any) -> object:
        """Run a chunk that :meth:`take` has returned."""


class OfPartition(Source, Protocol):
    """A source whose chunks all belong to one job.

    The job's topic selects the pool.
    """

    job: Job


class ThreadPool:
    """Up to *size* threads that share one priority queue of sources."""

    def __init__(self, size: int, name: str):
        self.size = size
        self._name = name
        self._queue: list[tuple[int, int, Source]] = []
        self._queued: set[Source] = set()
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._threads: set[int] = set()
        #: Threads that were written off but still run.
        self._hanging: set[int] = set()
        #: Number of idle threads that have not been woken.
        self._waiting = 0
        #: Number of threads that were woken or started, but have not reached
        #: the queue yet.
        self._coming = 0
        self._stopping = False
        self._warned = False

    def submit(self, priority: int, source: Source) -> None:
        """Enqueue *source*, unless it is queued already.

        Sources of a higher priority are taken first.
        """
        with self._lock:
            if source not in self._queued:
                self._queued.add(source)
                heapq.heappush(
                    self._queue, (-priority, next(self._order), source))
            if not self._coming:
                self._wake_one()

    def write_off(self, ident: int) -> int:
        """Write off the thread *ident*, which hangs in its handler.

        :returns: Number of written-off threads that still hang. Each of these
            threads keeps its memory until its handler returns.
        """
        with self._lock:
            if ident in self._threads:
                self._threads.discard(ident)
                self._hanging.add(ident)
                if self._queue and not self._coming:
                    self._wake_one()
            return len(self._hanging)

    def resize(self, size: int) -> None:
        """Set the maximum number of threads.

        Surplus threads end when they are idle; no handler is interrupted.
        """
        with self._lock:
            self.size = size
            for _ in range(min(self._waiting, len(self._threads) - size)):
                self._waiting -= 1
                self._coming += 1
                self._ready.notify()
            if self._queue and not self._coming:
                self._wake_one()

    def recheck(self) -> None:
        """Wake or start a thread, if queued work needs a thread.

        Call this several times a second: an earlier attempt to start a thread
        may have failed.
        """
        with self._lock:
            if self._queue and not self._coming:
                self._wake_one()

    def status(self) -> dict[str, int]:
        """Return the numbers of threads.

        ``size`` is the maximum number of threads, ``busy`` the number of
        threads that run a chunk, and ``hanging`` the number of written-off
        threads whose handlers have not returned.
        """
        with self._lock:
            return {
                'size': self.size,
                'busy': len(self._threads) - self._waiting - self._coming,
                'hanging': len(self._hanging)}

    def stop(self) -> None:
        """Stop taking work; returns at once."""
        with self._lock:
            self._stopping = True
            self._ready.notify_all()

    def _wake_one(self) -> None:
        """Wake an idle thread. If none is idle, start one if there is room."""
        if self._waiting:
            self._waiting -= 1
            self._coming += 1
            self._ready.notify()
        elif len(self._threads) < self.size and not self._stopping:
            thread = threading.Thread(
                target=self._work, daemon=True,
                name=f'{self._name}-{next(self._numbers)}')
            self._coming += 1
            try:
                thread.start()
            except RuntimeError as exc:
                self._coming -= 1
                if not self._warned:
                    self._warned = True
                    LOG.error(
                        'no thread: pool=%s threads=%d of %d hanging=%d '
                        'error=%s; the existing threads do the work',
                        self._name, len(self._threads), self.size,
                        len(self._hanging), exc)
                return
            assert thread.ident is not None
            self._threads.add(thread.ident)

    def _work(self) -> None:
        me = threading.get_ident()
        lock = self._lock
        with lock:
            self._coming -= 1
        while True:
            with lock:
                source, chunk = self._next(me)
            if source is None:
                return
            try:
                if chunk is not None:
                    source.run(chunk)
            except BaseException:
                LOG.exception('a part of a batch failed in the library '
                              'itself: thread=%s; the thread continues',
                              threading.current_thread().name)
            # Drop the references. Otherwise this thread keeps the work in
            # memory while it is idle.
            source = chunk = None

    def _next(self, me: int) -> tuple[Source | None, Any]:
        """Return the next source and chunk.

        The source is None if this thread must end.
        """
        while True:
            if len(self._threads) > self.size:
                self._threads.discard(me)
            if me not in self._threads:
                # This thread is surplus, or it was written off and its handler
                # has returned. If this thread was woken for work, another
                # thread must do that work.
                self._hanging.discard(me)
                if self._queue and not self._coming:
                    self._wake_one()
                return None, None
            if self._stopping:
                return None, None
            if self._queue:
                break
            self._waiting += 1
            self._ready.wait()
            self._coming -= 1
        priority, _, source = self._queue[0]
        chunk, more = source.take()
        if more:
            heapq.heapreplace(
                self._queue, (priority, next(self._order), source))
        else:
            heapq.heappop(self._queue)
            self._queued.discard(source)
        if self._queue and not self._coming:
            self._wake_one()
        return source, chunk


class Pools:
    """One pool per partition. The methods are as in :class:`ThreadPool`.

    Handlers that hang in one partition take no threads from the others.

    :param sizes: Maximum number of threads of each pool, by partition.
    """

    def __init__(self, name: str, sizes: Mapping[str, int]):
        self._pools = {partition: ThreadPool(size, name)
                       for partition, size in sorted(sizes.items())}
        #: Maximum number of threads of all pools.
        self.size = sum(sizes.values())

    def submit(self, priority: int, source: OfPartition) -> None:
        self._pools[source.job.topic].submit(priority, source)

    def write_off(self, ident: int) -> int:
        return sum(pool.write_off(ident) for pool in self._pools.values())

    def recheck(self) -> None:
        for pool in self._pools.values():
            pool.recheck()

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Set the maximum number of threads of each pool, by partition."""
        for name, pool in self._pools.items():
            pool.resize(sizes[name])
        self.size = sum(pool.size for pool in self._pools.values())

    def status(self) -> dict[str, dict[str, int]]:
        """Return the status of each pool, by partition."""
        return {name: pool.status() for name, pool in self._pools.items()}

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()
