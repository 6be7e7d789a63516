# SPDX-License-Identifier: Apache-2.0
"""Threads that run handlers, the most urgent batch first.

The threads are daemons: a handler that never returns must not keep the
process from ending. Such a thread can be written off; another takes its
place, and it ends by itself should the handler return after all.
"""

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Protocol

LOG = logging.getLogger(__name__)


class Source(Protocol):
    """Work that several threads may share, each taking a part."""

    def take(self) -> tuple[Callable[[], object] | None, bool]:
        """A part to run (None: nothing is left), and whether more is left.

        Called under the pool's lock: it must be quick.
        """


class Pool:
    """*size* threads over one queue of sources, ordered by priority."""

    def __init__(self, size: int, name: str):
        self.size = size
        self._name = name
        self._queue: list[tuple[int, int, Source]] = []
        self._count = itertools.count()
        self._ready = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._written_off: set[int] = set()
        self._idle = 0
        self._stopping = False

    def submit(self, priority: int, source: Source, parts: int) -> None:
        """Queue *source*; up to *parts* threads are woken for it."""
        with self._ready:
            heapq.heappush(
                self._queue, (-priority, next(self._count), source))
            while (len(self._threads) < self.size
                   and self._idle < min(parts, self.size)):
                self._add_thread()
            self._ready.notify(parts)

    def _add_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, daemon=True,
            name=f'{self._name}-{next(self._count)}')
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def write_off(self, ident: int) -> None:
        """Go on without the thread *ident*, which hangs in its handler."""
        with self._ready:
            for thread in self._threads:
                if thread.ident == ident:
                    self._threads.discard(thread)
                    self._written_off.add(ident)
                    if self._queue and len(self._threads) < self.size:
                        self._add_thread()
                    return

    def stop(self) -> None:
        """Take nothing more; returns at once."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()

    def _work(self) -> None:
        me = threading.get_ident()
        while True:
            with self._ready:
                while not self._queue and not self._stopping:
                    self._ready.wait()
                if self._stopping:
                    return
                self._idle -= 1
                part, more = self._queue[0][2].take()
                if not more:
                    heapq.heappop(self._queue)
            try:
                if part is not None:
                    part()
            except BaseException:
                LOG.exception('a part of a batch failed in the library '
                              'itself: thread=%s; the thread goes on',
                              threading.current_thread().name)
            with self._ready:
                if me in self._written_off:
                    self._written_off.discard(me)
                    return
                self._idle += 1
