# SPDX-License-Identifier: Apache-2.0
"""What the flow may ask of the world.

Each port is a contract: an adapter keeps it, the conformance suite of the
port holds every adapter to it, and the flow knows nothing else.
"""

from collections.abc import Sequence
from typing import Protocol

from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import ring as ring_


class Clock(Protocol):
    """The time; nothing reads it but through this."""

    def now(self) -> int:
        """The wall clock: microseconds since the epoch, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds from an unknown start. Never jumps back, and goes on
        while the process is stopped or the machine sleeps.
        """


class Membership(Protocol):
    """Who is there, as far as this process knows."""

    def view(self, group: str) -> member_.View:
        """The last known view of *group*; costs nothing, asks nobody.

        :raises ViewUnknown: no answer yet; it does not mean 'no members'.
        """


class ClaimStore(Protocol):
    """Who may run what: one row per (job, object).

    Every method decides under one conditional write. Losing a race is an
    answer and not an error: what was lost is left out of the result.

    :raises StoreUnavailable: from any method; nothing was changed, or it is
        unknown whether it was, and asking again is safe.
    """

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              owner: str, supersede: bool) -> claim_.Claimed:
        """Take every object of *objects* that nobody took for *tick*.

        An object whose earlier tick is claimed but was not started is taken
        over if *supersede*, and the old claim is void. One whose earlier
        tick runs, or waits for a retry, is reported as busy and not taken.

        :param tick: microseconds since the epoch.
        """

    def start(self, job: str, claims: Sequence[claim_.Claim], *,
              worker: str) -> list[claim_.Claim]:
        """Grant *worker* the runs whose fence is still the newest."""

    def finish(self, job: str, claims: Sequence[claim_.Claim]) -> int:
        """End runs as done; returns how many of them counted."""

    def fail(self, job: str, claim: claim_.Claim, *,
             retry_at: int | None) -> bool:
        """A run failed: wait for a retry at that instant, or end as dead.

        :returns: whether the fence was still the newest.
        """

    def take_back(self, job: str,
                  claims: Sequence[claim_.Claim]) -> list[claim_.Claim]:
        """Claim anew what was granted and did not run to its end.

        :returns: the claims under new fences; the old ones are void.
        """

    def due_retries(
            self, now: int, limit: int) -> list[tuple[str, claim_.Claim]]:
        """Take up to *limit* retries whose time has come, oldest first."""

    def drop(self, job: str, claims: Sequence[claim_.Claim],
             ending: claim_.State) -> int:
        """End claims that will not run, as skipped, superseded or
        cancelled; returns how many counted.
        """


class CatalogueReader(Protocol):
    """Runs catalogue methods somewhere that may block."""

    def read(self, job: job_.Job, tick: int, ticket: int,
             arcs: Sequence[ring_.Arc]) -> None:
        """Begin to read the objects of *job*; returns at once.

        The answer comes to the flow under the same *ticket*, or never.

        :param arcs: this member's part of the ring, for a method that reads
            no more than that.
        """


class WorkBus(Protocol):
    """The way to the workers. A message is a hint and may be lost."""

    def send(self, batch: message.Batch) -> None:
        """Send *batch* to its worker; never blocks and never raises.

        The flow is told if it could not be sent, and gets the worker's
        reports, through the callbacks the bus was made with.
        """


class ReportBus(Protocol):
    """The way back, from a worker to the schedulers."""

    def report(self, report: message.Report, to_entry: str) -> None:
        """Send *report* to the scheduler under that entry; never blocks."""
