# SPDX-License-Identifier: Apache-2.0
"""Saying a thing once in a while, however often it happens."""

from distperiodic import ports


class Quiet:
    """When each of a few things was said last.

    Keys are remembered for ever: make them of names that are known here
    (jobs, partitions), never of what came in a message.

    :param every: seconds between two lines of one key.
    """

    def __init__(self, clock: ports.Clock, every: float):
        self._clock = clock
        self._every = every
        self._last: dict[str, float] = {}

    def may(self, key: str) -> bool:
        """Whether to say *key* now."""
        now = self._clock.monotonic()
        last = self._last.get(key)
        if last is not None and now - last < self._every:
            return False
        self._last[key] = now
        return True
