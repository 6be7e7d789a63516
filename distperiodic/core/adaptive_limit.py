# SPDX-License-Identifier: Apache-2.0
"""Adaptive share of ``max_in_flight``, a limit that several schedulers share.

Each scheduler is entitled to an equal share of the concurrent runs that the
limit allows. If a store counts the runs of all schedulers, a scheduler with
more work may exceed its share. It raises its own limit by one run at a time,
until a worker refuses a run because the shared limit is reached. A refusal
lowers the scheduler's limit to the number of its runs that workers hold. After
a pause, the scheduler raises its limit again.

If a store counts the runs, short runs are sent ahead, before the limit allows
their start. The worker queues such a run, and starts it when another run under
the same limit ends at that worker, or when a new count shows that there is
room (:mod:`distperiodic.flow.worker.admission`). Otherwise the place of an
ended run would be empty during the round trip between worker and scheduler.
"""

# Seconds of the pause after a refusal: the first pause, and the longest.
# _BELOW applies while the scheduler's limit is below its share, _ABOVE
# otherwise.
_BELOW = 0.2, 1.0
_ABOVE = 1.0, 4.0
# Maximum duration of a short run in seconds. Longer runs are not sent ahead,
# because a round trip is short in comparison.
_BRIEF = 0.5


class AdaptiveLimit:
    """The share of one scheduler in a shared limit.

    :param most: Shared limit: the maximum number of concurrent runs of all
        schedulers.
    :param shared: True if a store counts the runs of all schedulers.
    """

    __slots__ = ('_ahead', '_grow_at', '_held', '_limit', '_more', '_most',
                 '_pause', '_share', '_shared')

    def __init__(self, most: int, *, shared: bool):
        self._most = most
        self._shared = shared
        #: Number of this scheduler's runs that workers hold.
        self._held = 0
        self._share = 0
        #: Number of runs that workers may hold now for this scheduler, apart
        #: from runs that are sent ahead.
        self._limit = 0
        #: True if a store counts the runs, and the last runs were short
        #: enough to be sent ahead.
        self._ahead = False
        #: True if the last call of :meth:`room` returned 0, and the limit was
        #: not raised since then.
        self._more = False
        self._grow_at = 0.0
        #: Seconds of the pause after the last refusal. 0.0 means no pause.
        self._pause = 0.0

    def room(self, schedulers: int, now: float) -> int:
        """Return the number of runs that may be sent to workers now.

        :param schedulers: Number of schedulers that share the limit.
        :param now: Monotonic seconds.
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
            # More runs may be sent ahead even after a refusal: the worker then
            # queues them, because it knows that the limit is reached.
            room += max(1, self._limit)
        self._more = room <= 0
        return max(0, room)

    def give(self, runs: int) -> None:
        """Record that workers hold *runs* more runs."""
        self._held += runs

    def settle(self, runs: int) -> None:
        """Record that workers hold *runs* fewer runs."""
        self._held -= runs

    def ran(self, seconds: float, now: float) -> None:
        """Record that runs of a batch ended, and that none was refused.

        :param seconds: Average duration of one run.
        :param now: Monotonic seconds.
        """
        self._ahead = self._shared and seconds <= _BRIEF
        if (self._shared and self._more and now >= self._grow_at
                and self._share <= self._limit < self._most):
            self._limit += 1
            self._more = False
            if self._limit == self._most:
                self._pause = 0.0

    def refused(self, now: float, jitter: float) -> None:
        """Record that a worker refused runs, because the limit is reached.

        :param now: Monotonic seconds.
        :param jitter: Random number from 0.0 to 1.0, so that several
            schedulers do not make their next attempts at the same time.
        """
        self._limit = min(self._limit, self._held)
        low, high = _BELOW if self._limit < self._share else _ABOVE
        self._pause = min(high, max(low, 2.0 * self._pause))
        self._grow_at = now + self._pause * (0.5 + jitter)
