# SPDX-License-Identifier: Apache-2.0
"""Threads that run handlers, the most urgent first, the others in turn.

The threads are daemons: a handler that never returns must not keep the
process from ending. Such a thread can be written off; another takes its
place, and it ends by itself should the handler return after all.

Threads are woken one by one: each that takes a part and leaves work behind
calls the next. To wake all of them for each batch would have them fight for
the interpreter, and delay every handler of a burst.
"""

import heapq
import itertools
import logging
import threading
from collections.abc import Iterable
from typing import Any
from typing import Protocol

from distperiodic.core import job as job_

LOG = logging.getLogger(__name__)


class Source(Protocol):
    """Work that several threads may share, each taking a part.

    Sources of one priority take turns, part by part, so that one of them is
    not kept waiting by all that another has.
    """

    def take(self) -> tuple[Any, bool]:
        """A part to run (None: nothing is left), and whether more is left.

        Called under the pool's lock: it must be quick.
        """

    def run(self, part: Any) -> object:
        """Run a part that was taken."""


class OfPartition(Source, Protocol):
    """Work of one job."""

    job: job_.Job


class Pool:
    """*size* threads over one queue of sources, ordered by priority."""

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
        #: Threads that were written off and still run.
        self._hanging: set[int] = set()
        #: Threads that wait and that nobody has called.
        self._waiting = 0
        #: Threads that were called or started and are not at the queue yet.
        self._coming = 0
        self._stopping = False
        self._told = False

    def submit(self, priority: int, source: Source) -> None:
        """Queue *source*, unless it is; higher priorities are taken first."""
        with self._lock:
            if source not in self._queued:
                self._queued.add(source)
                heapq.heappush(
                    self._queue, (-priority, next(self._order), source))
            if not self._coming:
                self._call_one()

    def write_off(self, ident: int) -> int:
        """Go on without the thread *ident*, which hangs in its handler.

        :returns: how many threads hang like that by now; each keeps its
            memory until its handler returns.
        """
        with self._lock:
            if ident in self._threads:
                self._threads.discard(ident)
                self._hanging.add(ident)
                if self._queue and not self._coming:
                    self._call_one()
            return len(self._hanging)

    def look_again(self) -> None:
        """Have what waits taken, if a thread for it could not be started;
        call it several times a second.
        """
        with self._lock:
            if self._queue and not self._coming:
                self._call_one()

    def status(self) -> dict[str, int]:
        """Return the number of threads that there may be (``size``), that run
        something (``busy``), and that were written off (``hanging``).
        """
        with self._lock:
            return {
                'size': self.size,
                'busy': len(self._threads) - self._waiting - self._coming,
                'hanging': len(self._hanging)}

    def stop(self) -> None:
        """Take nothing more; returns at once."""
        with self._lock:
            self._stopping = True
            self._ready.notify_all()

    def _call_one(self) -> None:
        """Have one more thread come to the queue, if there may be one."""
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
                if not self._told:
                    self._told = True
                    LOG.error(
                        'no thread: pool=%s threads=%d of %d hanging=%d '
                        'error=%s; the work is done by those that are '
                        'there', self._name, len(self._threads), self.size,
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
                source, part = self._next(me)
            if source is None:
                return
            try:
                if part is not None:
                    source.run(part)
            except BaseException:
                LOG.exception('a part of a batch failed in the library '
                              'itself: thread=%s; the thread goes on',
                              threading.current_thread().name)
            # Else it would be kept while this thread waits.
            source = part = None

    def _next(self, me: int) -> tuple[Source | None, Any]:
        """The next part; None: this thread ends."""
        while True:
            if me not in self._threads:
                # Written off, and yet the handler returned. If it was called
                # meanwhile, somebody else has to come.
                self._hanging.discard(me)
                if self._queue and not self._coming:
                    self._call_one()
                return None, None
            if self._stopping:
                return None, None
            if self._queue:
                break
            self._waiting += 1
            self._ready.wait()
            self._coming -= 1
        priority, _, source = self._queue[0]
        part, more = source.take()
        if more:
            heapq.heapreplace(
                self._queue, (priority, next(self._order), source))
        else:
            heapq.heappop(self._queue)
            self._queued.discard(source)
        if self._queue and not self._coming:
            self._call_one()
        return source, part


class Pools:
    """A pool for each partition, so that handlers of one that hang take no
    thread from the others. It stands in for :class:`Pool`.

    :param size: threads of each.
    """

    def __init__(self, size: int, name: str, partitions: Iterable[str]):
        self._of = {partition: Pool(size, name)
                    for partition in sorted(partitions)}

    def submit(self, priority: int, source: OfPartition) -> None:
        self._of[source.job.topic].submit(priority, source)

    def write_off(self, ident: int) -> int:
        return sum(pool.write_off(ident) for pool in self._of.values())

    def look_again(self) -> None:
        for pool in self._of.values():
            pool.look_again()

    def status(self) -> dict[str, dict[str, int]]:
        """Return the status of each pool, by partition."""
        return {name: pool.status() for name, pool in self._of.items()}

    def stop(self) -> None:
        for pool in self._of.values():
            pool.stop()
