# SPDX-License-Identifier: Apache-2.0
"""Credit window: limit on the work that a scheduler sends to one worker.

If a worker holds too much work, other workers stay idle, and more work is
delayed when the worker dies. If the worker holds too little work, it is idle
until the next message arrives. So the window limits the seconds of work that
the worker holds. These seconds are computed from the average duration of the
runs of each job at that worker, divided by the number of slots, because the
slots work in parallel.

If no run of a job was measured at that worker, the average of all workers
applies. Jobs of which no run was measured at any worker have no cost. The
worker may hold as many runs of such jobs as it has slots, in addition to the
runs of other jobs. So the backlog of other jobs cannot block a new job.
"""

#: Maximum seconds of work that a worker may hold. A worker may always hold as
#: many runs as it has slots.
HORIZON = 0.5

# Minimum cost of a run in seconds, even if its handler does nothing: the
# worker decodes a message, creates a context and sends a result. This minimum
# limits the number of very short runs in the window.
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
        """Return the average seconds of a run of *job*.

        None means that the job was not measured yet.
        """
        return self._seconds.get(job)


# Seconds that a run may take in addition to its duration if the worker has a
# free slot. The round trip of the messages takes this time.
_PROMPT = 0.1
# Seconds between two increases of the number of slots, and after a decrease.
_GROW_EVERY = 0.1
_REST = 2.0


class SlotShare:
    """Number of a worker's slots that one of several schedulers uses.

    Each scheduler is entitled to an equal share of the slots. If other
    schedulers have less work, their slots are free, so runs begin as soon as
    they arrive at the worker. A scheduler that needs more slots then uses more
    and more of them. If a run has waited for a slot, the scheduler returns to
    its share for a while.
    """

    __slots__ = ('_grow_at', '_most', '_prompt', '_share', 'slots')

    def __init__(self, most: int, schedulers: int):
        self._most = self._share = 0
        self._grow_at = 0.0
        self._prompt = False
        #: Number of slots that this scheduler uses now.
        self.slots = 0
        self.divide(most, schedulers)

    def divide(self, most: int, schedulers: int) -> None:
        """Set the slots of the worker, and the number of schedulers."""
        # Round up: the shares together must use all slots.
        share = max(1, -(-most // schedulers))
        if (most, share) != (self._most, self._share):
            self._most, self._share = most, share
            self.slots = share
            self._prompt = False

    def ran(self, waited: float, seconds: float, now: float) -> None:
        """Record that runs ended.

        :param waited: Seconds from sending the runs to the report of their
            ends, minus the average duration of a run.
        :param seconds: Average duration of a run.
        :param now: Monotonic seconds.
        """
        self._prompt = waited <= _PROMPT + seconds / 10
        if not self._prompt and self.slots > self._share:
            self.slots = self._share
            self._grow_at = now + _REST

    def grow(self, now: float) -> bool:
        """Use more slots if the worker seems to have free ones.

        Call this if the slots are in use, and more runs are waiting.

        :returns: True if the number of slots has changed.
        """
        if (self.slots >= self._most or not self._prompt
                or now < self._grow_at):
            return False
        self.slots = min(self._most, max(self.slots + 1, self.slots * 3 // 2))
        self._grow_at = now + _GROW_EVERY
        return True


class CreditWindow:
    """Credit window of one scheduler for one worker.

    The window contains the runs that were sent but not yet reported.

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
        #: Number of these runs that were sent before any run of their job had
        #: been measured.
        self.unmeasured = 0
        #: Seconds of work in the other runs that the worker holds.
        self.seconds = 0.0
        self._here = RunTimeAverage()
        self._elsewhere = elsewhere

    def note(self, job: str, runs: int, seconds: float) -> None:
        """Record that *runs* runs took *seconds* in total at this worker."""
        self._here.note(job, runs, seconds)
        self._elsewhere.note(job, runs, seconds)

    def cost(self, job: str) -> float:
        """Return the seconds that one run of *job* adds to the window.

        0.0 means that the job was not measured yet.
        """
        seconds = self._here.of(job)
        if seconds is None:
            seconds = self._elsewhere.of(job)
            if seconds is None:
                return 0.0
        # The slots work in parallel, so divide by their number. A long run
        # occupies only one slot. So limit its cost to an equal share of the
        # horizon, which leaves room for runs in the other slots.
        return max(min(seconds, HORIZON) / self.slots, _OVERHEAD)

    def give(self, runs: int, cost: float) -> None:
        """Record that *runs* runs of *cost* seconds each were sent."""
        self.held += runs
        self.seconds += runs * cost
        if not cost:
            self.unmeasured += runs

    def settle(self, runs: int, cost: float) -> None:
        """Record that *runs* runs were reported.

        :param cost: Cost of each run in seconds at the time when it was sent.
        """
        self.held -= runs
        if not cost:
            self.unmeasured -= runs
        # If the worker holds no runs, set exactly 0.0, because the sum has
        # rounding errors.
        self.seconds = self.seconds - runs * cost if self.held else 0.0

    @property
    def full(self) -> bool:
        """True if there is no room for a run of any job."""
        return not self.room(0.0) and not self.room(_OVERHEAD)

    @property
    def busy(self) -> bool:
        """True if the worker has runs for all slots, and a reserve.

        The worker then holds at least two runs per slot, and work for more
        than half of :data:`HORIZON`.
        """
        return (self.held >= 2 * self.slots
                and self.seconds > HORIZON / 2)

    def room(self, cost: float) -> int:
        """Return the number of runs of *cost* seconds that may be sent now."""
        if cost:
            room = max(self.slots - self.held,
                       int((HORIZON - self.seconds) / cost))
        else:
            room = self.slots - self.unmeasured
        return room if room > 0 else 0
