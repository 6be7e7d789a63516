# SPDX-License-Identifier: Apache-2.0
"""Log rate limiting."""

from distperiodic import ports


class LogThrottle:
    """Limit on the rate of log messages, by key.

    Keys are never forgotten. Build them from names that are known in this
    process (jobs, partitions), never from the content of a message.

    :param every: Minimum seconds between two log lines with the same key.
    """

    def __init__(self, clock: ports.Clock, every: float):
        self._clock = clock
        self._every = every
        self._last: dict[str, float] = {}

    def allow(self, key: str) -> bool:
        """Return True and record the time if *key* may be logged now."""
        now = self._clock.monotonic()
        last = self._last.get(key)
        if last is not None and now - last < self._every:
            return False
        self._last[key] = now
        return True
