# SPDX-License-Identifier: Apache-2.0
"""How much of a limit one scheduler uses, while others use the rest.

Each has its share, which is certain to fit. Where a store counts what runs
everywhere, one that has more to do takes more, run by run, until one is
refused: then all is in use. Whoever is refused goes on with what it has and
asks for more later, so a refusal costs one place for a moment.

What is brief is sent a little ahead: it waits at the worker, which begins it
when something else of the limit ends there
(:mod:`distperiodic.flow.worker.admission`). Else each place would be idle
while the news goes to the scheduler and back.
"""

# Seconds after which one that was refused asks again, at first and at the
# most: for what is its share, and for more.
_BELOW = 0.2, 1.0
_ABOVE = 1.0, 4.0
# Seconds of one run up to which the way to the worker is worth saving.
_BRIEF = 0.5


class Bound:
    """One limit, as one scheduler keeps it.

    :param most: runs at once, of all schedulers.
    :param shared: whether a store counts what runs of all schedulers.
    """

    __slots__ = ('_ahead', '_grow_at', '_held', '_limit', '_more', '_most',
                 '_pause', '_share', '_shared')

    def __init__(self, most: int, *, shared: bool):
        self._most = most
        self._shared = shared
        #: Runs that workers hold.
        self._held = 0
        self._share = 0
        #: How many this scheduler may have.
        self._limit = 0
        #: Whether runs are so brief that some are sent ahead.
        self._ahead = False
        #: Whether there was more to run than that.
        self._more = False
        self._grow_at = 0.0
        #: How long the last refusal was waited for; 0.0: there was none.
        self._pause = 0.0

    def room(self, schedulers: int, now: float) -> int:
        """How many more may be given to workers now; 0: none.

        :param schedulers: that share the limit.
        :param now: monotonic seconds.
        """
        share = max(1, self._most // schedulers)
        if share != self._share:
            self._share = self._limit = share
        waits = now < self._grow_at
        if self._limit < share and not waits:
            self._limit = min(
                share, max(self._limit + 1, self._limit * 3 // 2))
            self._grow_at = now + _BELOW[0]
        room = self._limit - self._held
        if self._ahead and (self._held or not waits):
            # A worker that has refused one knows that no place is free, and
            # lets the next one wait.
            room += max(1, self._limit)
        self._more = room <= 0
        return max(0, room)

    def give(self, runs: int) -> None:
        """Workers hold *runs* more."""
        self._held += runs

    def settle(self, runs: int) -> None:
        """Workers hold *runs* less."""
        self._held -= runs

    def ran(self, seconds: float, now: float) -> None:
        """Runs came to an end, and none of their batch was refused.

        :param seconds: that one of them took.
        """
        self._ahead = self._shared and seconds <= _BRIEF
        if (self._shared and self._more and now >= self._grow_at
                and self._share <= self._limit < self._most):
            self._limit += 1
            self._more = False
            if self._limit == self._most:
                self._pause = 0.0

    def refused(self, now: float, jitter: float) -> None:
        """Runs were refused: with those of others they are too many.

        :param jitter: 0.0 to 1.0, so that not all ask again at once.
        """
        self._limit = min(self._limit, self._held)
        low, high = _BELOW if self._limit < self._share else _ABOVE
        self._pause = min(high, max(low, 2.0 * self._pause))
        self._grow_at = now + self._pause * (0.5 + jitter)
