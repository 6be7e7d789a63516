# SPDX-License-Identifier: Apache-2.0
"""Pauses of the machine, in which no process of a test could run.

A thread wakes up every few milliseconds. If it wakes up much later, the
machine is overloaded or was suspended. A test that measures how long a program
did nothing subtracts these pauses.
"""

import threading
import time

_INTERVAL = 0.05
# Seconds by which the thread usually wakes up late.
_USUAL = 0.1


class Pauses:
    """The pauses while this context manager is open."""

    def __init__(self):
        #: (begin, end) of each pause, in seconds since the epoch.
        self.found = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def seconds(self, begin, end):
        """Return the seconds from *begin* to *end*, without the pauses."""
        return end - begin - sum(
            max(0.0, min(end, until) - max(begin, since))
            for since, until in self.found)

    @property
    def total(self):
        """Seconds of all pauses."""
        return sum(until - since for since, until in self.found)

    def _watch(self):
        last, used = time.time(), time.process_time()
        while not self._over.wait(_INTERVAL):
            now, used_now = time.time(), time.process_time()
            # While this process was busy itself, the machine did not pause.
            pause = now - last - _INTERVAL - (used_now - used)
            if pause > _USUAL:
                self.found.append((now - pause, now))
            last, used = now, used_now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join()
