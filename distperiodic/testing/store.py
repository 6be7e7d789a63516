# SPDX-License-Identifier: Apache-2.0
"""A store in memory that several members share."""

from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Move
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.pause import Pause
from distperiodic.core.schedule import SECOND


class SharedMemoryStore(MemoryClaimStore):
    """Store in memory that has the guarantees of a shared store.

    Unlike the store of a single member, this store rejects claims for ticks in
    the future, and for ticks that are settled for an object. If a caller
    repeats a call that ended runs, the store returns the same objects again.
    The store also records the instant since which schedulers have served each
    job, and can pause jobs. See :class:`distperiodic.ports.ClaimStore`.

    :param clock: Clock of the store.
    """

    def __init__(self, clock: ports.Clock):
        super().__init__(clock)
        self._store_clock = clock
        self._all_ended: set[tuple[str, str, Move]] = set()
        #: Reason of the pause, by job.
        self._paused: dict[str, str] = {}
        #: For each job, the first and the last instant of the interval in
        #: which schedulers have served the job without a gap.
        self._attended: dict[str, tuple[int, int]] = {}

    def now(self) -> int:
        return self._store_clock.now()

    def attend(self, jobs: Mapping[str, float],
               checked: Mapping[str, ports.Checked]
               ) -> dict[str, ports.JobStatus]:
        now = self.now()
        found = super().attend(jobs, checked)
        for job, gap in jobs.items():
            since, until = self._attended.get(job, (now, None))
            if until is None or abs(now - until) > gap * SECOND:
                since = now
            paused = self._paused.get(job)
            if paused is None:
                self._attended[job] = since, now
            found[job] = found[job]._replace(
                paused=None if paused is None else Pause(paused),
                attended=since)
        return found

    def claim(self, request: ClaimRequest, lease: NewLease) -> Claimed:
        tick = request.tick
        early = request.claimable_from - EARLIEST - self.now()
        if early > 0:
            return Claimed([], [], 0, [], [], early)
        rows = self._rows_of(request.job)
        # A settled tick can no longer be claimed, not even if the clock was
        # set back.
        return super().claim(request._replace(objects=[
            key for key in request.objects
            if (row := rows.get(key)) is None or row.settled < tick
            or row.settled == tick == row.tick]), lease)

    def skip(self, request: SkipRequest) -> list[int]:
        return super().skip(request) if self._may_skip(request) else []

    def _may_skip(self, request: SkipRequest) -> bool:
        return (request.claimable_from - EARLIEST <= self.now()
                and self._in_force(request.job, request.schedule))

    def _end(self, lease: str, objects: Sequence[str],
             move: Move) -> set[str]:
        self._all_ended.update((lease, key, move) for key, _ in list(
            self._standing(lease, objects, move)))
        super()._end(lease, objects, move)
        return {key for key in objects
                if (lease, key, move) in self._all_ended}

    def pause(self, job: str, why: str) -> None:
        """Pause *job*. The members notice the pause at their next sweep."""
        self._paused[job] = why

    def resume(self, job: str) -> None:
        """Resume *job*."""
        self._paused.pop(job, None)
