# SPDX-License-Identifier: Apache-2.0
"""Release of the claims that a stopping scheduler has not started.

    waiting claims ───────────────┐
    claims of a pending request ──┼─► release ─► any scheduler takes them over
    refused batches ──────────────┘

If only this scheduler uses the store of a claim, the claim is not released:
see :meth:`.Recovery.close`.
"""

from collections.abc import Collection

from distperiodic import ports
from distperiodic.core.job import Job
from distperiodic.flow.counters import Counted
from distperiodic.flow.counters import Counters
from distperiodic.flow.leases import Book
from distperiodic.flow.procedure import PendingProcedures
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler import in_flight


class Releases:
    """Releases of the claims of one book.

    :param book: The jobs, and the store of their claims.
    :param pending: Counts the releases that have not ended.
    """

    def __init__(self, inflight: in_flight.InFlight, book: Book,
                 pending: PendingProcedures, counters: Counters):
        self._in_flight = inflight
        self._book = book
        self._pending = pending
        self._counters = counters
        #: True if all claims that were not started are released.
        self.closed = False
        #: Number of claims whose release the store has not confirmed.
        self.claims = 0

    def close(self) -> None:
        """Release the claims that were not started, now and from now on."""
        self.closed = True
        inflight = self._in_flight
        for queue in [inflight.queues[name] for name in self._book.jobs]:
            if queue.waiting:
                waiting = inflight.clear(queue)
                self.release(queue.job, {group.lease.id for group in waiting},
                             sum(len(group.claims) for group in waiting))
        # Some runs of the batches that were sent may not be granted yet. They
        # can still be granted until another scheduler takes their claims over.
        sent = {one.batch.lease: one.queue.job
                for one in inflight.sent.values()
                if one.batch.authority is self._book.authority}
        for lease, job in sent.items():
            self.release(job, [lease], 0)

    def release(self, job: Job, leases: Collection[str],
                claims: int) -> None:
        """Release *leases*, which contain claims that were not started.

        :param claims: Number of these claims that this scheduler gives up.
        """
        self._counters[job.name, Counted.LEFT_TO_OTHERS] += claims
        start(self._pending.counted(self._release(sorted(leases), claims)))

    def _release(self, leases: list[str], claims: int) -> Procedure[None]:
        self.claims += claims
        try:
            yield from call(
                self._book.store, ports.ClaimStore.release, leases)
        finally:
            self.claims -= claims
