# SPDX-License-Identifier: Apache-2.0
"""Credit window of a worker: how much work a scheduler may send to it.

If a worker holds too much work, other workers stay idle, and more work is
delayed when the worker dies. If it holds too little, it waits for messages. So
the window is measured in seconds of work, from the average duration of the
runs of each job at that worker.

If a job was not measured at that worker, the average of all workers applies.
Runs of jobs that were not measured at any worker may fill the slots of the
worker once, in addition to the runs of other jobs. So a long backlog of other
jobs cannot block a new job.
"""

#: Maximum seconds of work that a worker may hold. It may fill its slots in any
#: case.
HORIZON = 0.5

# Minimum seconds that a run costs a worker, even if its handler does nothing:
# the worker decodes a message, creates a context and sends a result. This
# minimum limits the number of very short runs in the window.
_OVERHEAD = 2e-5


class RunTimeAverage:
    """Moving average of the duration of the runs of each job, in seconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, job: str, runs: int, seconds: float) -> None:
        """Record that *runs* runs of *job* took *seconds* in total."""
        mean = seconds / runs
        known = self._seconds.get(job)
        self._seconds[job] = mean if known is None else (known + mean) / 2

    def of(self, job: str) -> float | None:
        """Return the average seconds of a run; None means not measured."""
        return self._seconds.get(job)


class CreditWindow:
    """Credit window of one scheduler for one worker.

    It counts the runs that were sent but not yet reported.

    :param slots: Number of runs that the worker accepts at a time from this
        scheduler.
    :param elsewhere: Average durations across all workers.
    """

    __slots__ = ('_elsewhere', '_here', 'held', 'seconds', 'slots',
                 'unmeasured')

    def __init__(self, slots: int, elsewhere: RunTimeAverage):
        self.slots = max(1, slots)
        #: Number of runs that the worker holds.
        self.held = 0
        #: Number of held runs whose job was not measured when they were sent.
        self.unmeasured = 0
        #: Seconds of work in the other held runs.
        self.seconds = 0.0
        self._here = RunTimeAverage()
        self._elsewhere = elsewhere

    def note(self, job: str, runs: int, seconds: float) -> None:
        """Record that *runs* runs took *seconds* in total at this worker."""
        self._here.note(job, runs, seconds)
        self._elsewhere.note(job, runs, seconds)

    def cost(self, job: str) -> float:
        """Return the seconds that one run of *job* adds to the window.

        0.0 means not measured yet.
        """
        seconds = self._here.of(job)
        if seconds is None:
            seconds = self._elsewhere.of(job)
            if seconds is None:
                return 0.0
        # A run longer than the horizon occupies its slot for the whole
        # horizon, and leaves the other slots free.
        return max(min(seconds, HORIZON) / self.slots, _OVERHEAD)

    def give(self, runs: int, cost: float) -> None:
        """Record *runs* more runs at the worker, of *cost* seconds each."""
        self.held += runs
        self.seconds += runs * cost
        if not cost:
            self.unmeasured += runs

    def settle(self, runs: int, cost: float) -> None:
        """Record *runs* fewer runs at the worker, sent at *cost* each."""
        self.held -= runs
        if not cost:
            self.unmeasured -= runs
        # Without held runs, set exactly 0.0: float sums have rounding errors.
        self.seconds = self.seconds - runs * cost if self.held else 0.0

    @property
    def full(self) -> bool:
        """True if there is no room for a run of any job."""
        return not self.room(0.0) and not self.room(_OVERHEAD)

    @property
    def busy(self) -> bool:
        """True if the worker has runs for all slots, and a reserve.

        The worker then holds two runs per slot, and work for more than half of
        :data:`HORIZON`.
        """
        return (self.held >= 2 * self.slots
                and self.seconds > HORIZON / 2)

    def room(self, cost: float) -> int:
        """Return how many more runs of *cost* seconds may be sent now."""
        if cost:
            room = max(self.slots - self.held,
                       int((HORIZON - self.seconds) / cost))
        else:
            room = self.slots - self.unmeasured
        return room if room > 0 else 0
