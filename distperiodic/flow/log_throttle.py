# SPDX-License-Identifier: Apache-2.0
"""Log rate limiting."""

from distperiodic import ports


class LogThrottle:
    """Limit on the rate of log lines, separately for each key.

    A throttle never forgets a key. So use keys from a limited set, such as the
    names of jobs and partitions, and never the content of a message.

    :param every: Minimum seconds between two log lines with the same key.
    """

    def __init__(self, clock: ports.Clock, every: float):
        self._clock = clock
        self._every = every
        self._last: dict[str, float] = {}

    def allow(self, key: str) -> bool:
        """Return whether a line with *key* may be logged now.

        If the result is true, the caller must log the line, because this call
        records that a line was logged.
        """
        now = self._clock.monotonic()
        last = self._last.get(key)
        if last is not None and now - last < self._every:
            return False
        self._last[key] = now
        return True
