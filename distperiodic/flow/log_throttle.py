# SPDX-License-Identifier: Apache-2.0
"""Log rate limiting."""

from distperiodic import ports


class LogThrottle:
    """Limits how often a message is logged, by key.

    Keys are remembered for ever. Build them from names that are known in this
    process (jobs, partitions), never from the content of a message.

    :param every: Seconds between two log lines with one key.
    """

    def __init__(self, clock: ports.Clock, every: float):
        self._clock = clock
        self._every = every
        self._last: dict[str, float] = {}

    def allow(self, key: str) -> bool:
        """Return whether the message *key* may be logged now, and record that.
        """
        now = self._clock.monotonic()
        last = self._last.get(key)
        if last is not None and now - last < self._every:
            return False
        self._last[key] = now
        return True
