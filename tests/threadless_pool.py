# SPDX-License-Identifier: Apache-2.0
"""A pool without threads: a test runs its parts one by one."""

import collections
import threading


class ThreadlessPool:
    """The queue of a pool, without threads and without priorities.

    Sources take turns, as in
    :class:`distperiodic.adapters.local.pool.ThreadPool`.
    """

    def __init__(self):
        self.queue = collections.deque()
        self.written_off = []

    def submit(self, priority, source):
        if source not in self.queue:
            self.queue.append(source)

    def write_off(self, ident):
        self.written_off.append(ident)
        return len(self.written_off)

    def recheck(self):
        """Do nothing: there are no threads to start."""

    def take(self):
        """Return (source, part) of the next part, or None."""
        while self.queue:
            source = self.queue.popleft()
            part, more = source.take()
            if more:
                self.queue.append(source)
            if part is not None:
                return source, part
        return None

    def run_one(self):
        source, part = self.take()
        source.run(part)

    def run_all(self):
        while (taken := self.take()) is not None:
            taken[0].run(taken[1])

    def run_aside(self):
        """Run one part, which may hang, in a thread of its own."""
        source, part = self.take()
        thread = threading.Thread(target=source.run, args=(part,),
                                  daemon=True)
        thread.start()
        return thread
