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

If there are several schedulers, the slots of the window are the slots of the
worker that the other schedulers do not use. The worker reports their number.
Each scheduler is entitled to an equal part of the slots. It may use this part
before it has received a report, and even if other schedulers use all slots. In
that case its runs wait at the worker until the others' runs end, and the other
schedulers do not use these slots again.

If a worker has fewer slots than there are schedulers, the schedulers with more
work take turns. A scheduler whose run has ended sends the next one when the
worker gives it a turn (:mod:`distperiodic.flow.worker.held_runs`). Otherwise a
run would wait at one worker, while its object's owner serves other objects
again and again with other workers.
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


def entitled(slots: int, schedulers: int, rank: int) -> int:
    """Return the number of a worker's slots that one scheduler may always use.

    The numbers of all schedulers add up to *slots*, but each scheduler may use
    at least one slot.

    :param rank: Number from 0 to *schedulers* - 1 that no other scheduler has
        at this worker.
    """
    return max(1, (slots + schedulers - 1 - rank) // schedulers)


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
        return max(min(seconds, HORIZON) / max(1, self.slots), _OVERHEAD)

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
        if not self.slots:
            return 0
        if cost:
            # Runs that were not measured may be long, so each uses one slot.
            horizon = HORIZON * (1 - self.unmeasured / self.slots)
            room = max(self.slots - self.held,
                       int((horizon - self.seconds) / cost))
        else:
            room = self.slots - self.unmeasured
        return room if room > 0 else 0
