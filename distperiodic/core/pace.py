# SPDX-License-Identifier: Apache-2.0
"""How much work one worker may hold: what it can take soon, and no more.

A worker that holds more hoards what others could do, and what it holds is
delayed when it dies; one that holds less waits for messages. So its window
is counted in seconds of work, from how long the runs of a job take there.
Where a job has not been measured yet, it counts as it does elsewhere; what
was measured nowhere may fill the worker's slots once, beside the work of
jobs that are known: a long backlog of these must not keep it out.
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
    :param elsewhere: the pace of all workers together.
    """

    __slots__ = ('_elsewhere', '_here', 'held', 'seconds', 'slots',
                 'unmeasured')

    def __init__(self, slots: int, elsewhere: Pace):
        self.slots = max(1, slots)
        #: Runs that it holds.
        self.held = 0
        #: Those of them whose job was not measured when they were given.
        self.unmeasured = 0
        #: The work in all others.
        self.seconds = 0.0
        self._here = Pace()
        self._elsewhere = elsewhere

    def note(self, job: str, runs: int, seconds: float) -> None:
        """*runs* runs of *job* took this worker *seconds* together."""
        self._here.note(job, runs, seconds)
        self._elsewhere.note(job, runs, seconds)

    def cost(self, job: str) -> float:
        """Seconds that one run of *job* adds; 0.0: not measured yet."""
        seconds = self._here.of(job)
        if seconds is None:
            seconds = self._elsewhere.of(job)
            if seconds is None:
                return 0.0
        # A run that takes longer has its slot for the whole horizon, and the
        # other slots are as free as ever.
        return max(min(seconds, HORIZON) / self.slots, _OVERHEAD)

    def give(self, runs: int, cost: float) -> None:
        """It holds *runs* more, each of *cost* seconds."""
        self.held += runs
        self.seconds += runs * cost
        if not cost:
            self.unmeasured += runs

    def settle(self, runs: int, cost: float) -> None:
        """It holds *runs* less, each given at *cost* seconds."""
        self.held -= runs
        if not cost:
            self.unmeasured -= runs
        # Sums of floats leave crumbs; nothing held is exactly nothing.
        self.seconds = self.seconds - runs * cost if self.held else 0.0

    @property
    def full(self) -> bool:
        """Whether there is no room for a run of any job."""
        return not self.room(0.0) and not self.room(_OVERHEAD)

    @property
    def busy(self) -> bool:
        """Whether all slots have something to do for a good while."""
        return (self.held >= 2 * self.slots
                and self.seconds > HORIZON / 2)

    def room(self, cost: float) -> int:
        """How many more runs of *cost* seconds it may be given now."""
        if cost:
            room = max(self.slots - self.held,
                       int((HORIZON - self.seconds) / cost))
        else:
            room = self.slots - self.unmeasured
        return room if room > 0 else 0
