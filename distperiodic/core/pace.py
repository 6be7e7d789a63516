# SPDX-License-Identifier: Apache-2.0
"""How much work one worker may hold: what it can take soon, and no more.

A worker that holds more hoards what others could do, and what it holds is
delayed when it dies; one that holds less waits for messages. So its window
is counted in seconds of work, from how long the runs of a job take there.
A job not yet measured may fill the worker's slots and nothing beyond.
"""

#: Seconds of work that may wait at a worker beyond its slots.
HORIZON = 0.5

# What one run costs a worker even if its handler does nothing: decoding,
# a context, a result. Bounds the window of the shortest handlers.
_OVERHEAD = 2e-5


class Pace:
    """How long the runs of each job take: a moving average, in seconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, job: str, runs: int, seconds: float) -> None:
        """*runs* runs took *seconds* together."""
        mean = seconds / runs
        known = self._seconds.get(job)
        self._seconds[job] = mean if known is None else (known + mean) / 2

    def of(self, job: str) -> float | None:
        """Seconds of one run; None: not measured yet."""
        return self._seconds.get(job)


class Window:
    """What one scheduler has given to one worker and not heard of again.

    :param slots: runs that the worker takes at a time from this scheduler.
    """

    __slots__ = ('slots', 'held', 'seconds', '_pace')

    def __init__(self, slots: int, pace: Pace):
        self.slots = max(1, slots)
        #: Runs that it holds.
        self.held = 0
        #: The work in them, as far as it was measured when it was given.
        self.seconds = 0.0
        self._pace = pace

    def cost(self, job: str) -> float:
        """Seconds that one run of *job* adds; 0.0: not measured yet."""
        seconds = self._pace.of(job)
        return 0.0 if seconds is None else max(
            seconds / self.slots, _OVERHEAD)

    def give(self, runs: int, cost: float) -> None:
        """It holds *runs* more, each of *cost* seconds."""
        self.held += runs
        self.seconds += runs * cost

    def settle(self, runs: int, cost: float) -> None:
        """It holds *runs* less, each given at *cost* seconds."""
        self.held -= runs
        # Sums of floats leave crumbs; nothing held is exactly nothing.
        self.seconds = self.seconds - runs * cost if self.held else 0.0

    def room(self, job: str) -> int:
        """How many more runs of *job* it may be given now."""
        room = self.slots - self.held
        cost = self.cost(job)
        if cost:
            room = max(room, int((HORIZON - self.seconds) / cost))
        return max(0, room)
