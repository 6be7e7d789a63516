# SPDX-License-Identifier: Apache-2.0
"""Recovery of lost runs.

    worker lost, batch refused, not sent ── take back ──┐
    lease ended, its holder gone ────────── take over ──┼─► offered again
    retry due ───────────────────────────── take over ──┘      │
                                          too often ◄──────────┘
                                            dead

A run may have killed its worker. So the number of attempts after a loss is
limited, and claims that were lost more than once run apart from others; see
:class:`distperiodic.flow.scheduler.batcher.Batcher`. An object that is dead
because it was lost too often is restricted in its next ticks, too: each tick
has one run, apart from others, until a run is done.
"""

import functools
import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim import granted_lease
from distperiodic.core.job import Delivery
from distperiodic.core.job import Job
from distperiodic.flow import events
from distperiodic.flow.leases import Book
from distperiodic.flow.leases import LeaseKeeper
from distperiodic.flow.scheduler import in_flight

LOG = logging.getLogger(__name__)

# Explanation in the log and the history for a run that was lost too often.
_ONE_TRY = ('; workers were lost with it too often, so until a run of it is '
            'done each tick has one try, apart from others')
# Number of leases that are taken over in one request.
_AT_A_TIME = 100
# Seconds for which a process that left its group counts as gone, so that its
# leases are taken over before they expire. Leases that it acquires later
# expire by the clock: the process may be alive and merely cut off from the
# others.
_GONE = 5.0


class Recovery:
    """Recovery for one scheduler and one book.

    :param put: Puts events into the inbox.
    :param book: The book of the claims.
    :param holder: Returns the name under which leases are held.
    :param lease: Seconds until a lease expires.
    """

    def __init__(self, hand: in_flight.InFlight, book: Book,
                 clock: ports.Clock, *, put: events.Put,
                 holder: Callable[[], str], new_lease: Callable[[], str],
                 lease: float):
        self._hand = hand
        self._store = store = book.store
        self._clock = clock
        self._put = put
        self._holder = holder
        self._new_lease = new_lease
        self._lease = lease
        self.authority = book.authority
        self._silent = book.silence_timeout
        self._shared = book.shared
        self._jobs = list(book.jobs)
        self._sweep = book.sweep_interval
        self._renew_every = lease / 3
        #: Seconds between two searches for holders that are gone.
        self._seek = 0.0
        if book.shared and book.silence_timeout:
            self._renew_every = min(lease, book.silence_timeout) / 3
            self._seek = book.silence_timeout
        self._keeper = LeaseKeeper(store, lease)
        #: Monotonic seconds of the last renewal, and of the last search for
        #: expired leases.
        self._renewed = self._looked = clock.monotonic()
        #: Monotonic seconds of the next search for holders that are gone.
        self._seek_at = self._looked
        self._asking = False
        #: Whether there may be more leases to take over, and whether the loop
        #: in take_over() runs. A store may answer at once, from within the
        #: loop.
        self._more = self._going_on = False
        #: Holders that are gone, with the monotonic seconds of their
        #: discovery. The thread of the store reads it, so it is only ever
        #: replaced as a whole.
        self._gone: Mapping[str, float] = {}

    def holder_gone(self, holder: str) -> None:
        """Record that *holder* left its group. Its leases are free once it
        stops renewing them. If the process comes back, it has another name.
        """
        if self._shared:
            self._gone = {**self._gone, holder: self._clock.monotonic()}

    def holders_present(self, holders: Collection[str]) -> None:
        """Record that *holders* are in their group.

        A search for holders that are gone may have found one that had just
        joined, before this scheduler saw it in the group.
        """
        if not self._gone.keys().isdisjoint(holders):
            self._gone = {holder: at for holder, at in self._gone.items()
                          if holder not in holders}

    def renew(self, now: float) -> None:
        """Renew the leases of waiting claims, if a renewal is due."""
        if now - self._renewed < self._renew_every:
            return
        self._renewed = now
        queues = [self._hand.queues[name] for name in self._jobs]
        by_holder: dict[str, list[str]] = {}
        for lease, holder in sorted(set().union(*(
                queue.leases() for queue in queues))):
            by_holder.setdefault(holder, []).append(lease)
        for holder, leases in by_holder.items():
            self._keeper.renew(
                holder, leases, functools.partial(
                    self._discard_lost, queues, frozenset(leases)))

    def _discard_lost(self, queues: list[in_flight.Queue],
                      asked: frozenset[str], held: set[str]) -> None:
        lost = asked - held
        if lost:
            for queue in queues:
                self._hand.discarded(queue, queue.discard_leases(lost))

    def sweep(self, now: float,
              present: Callable[[], set[str]] | None) -> None:
        """Take over leases that expired or whose holders are gone, if a search
        is due.

        :param present: Returns the holders in the groups. None: some groups
            were not seen yet.
        """
        if now - self._looked < self._sweep:
            return
        self._looked = now
        if self._seek and now >= self._seek_at and present is not None:
            self._seek_at = now + self._seek
            self.find_gone(present)
        self.take_over()

    def find_gone(self, present: Callable[[], set[str]]) -> None:
        """Search for leases of holders that left before this scheduler could
        notice. All processes that noticed may be gone, too.

        :param present: Returns the holders in the groups; called when the
            store has answered.
        """
        def found(holders: set[str]) -> None:
            for holder in sorted(holders - present() - {self._holder()}):
                self.holder_gone(holder)
        self._store.submit(lambda store: store.holders(self._jobs), found)

    def take_over(self) -> None:
        """Take over leases that ended: retries that are due, and claims whose
        holders are gone.
        """
        if self._asking or self._going_on:
            return
        self._going_on = self._more = True
        while self._more and not self._asking:
            self._more = False
            self._ask_for_some()
        self._going_on = False

    def _ask_for_some(self) -> None:
        now = self._clock.monotonic()
        self._gone = {name: at for name, at in self._gone.items()
                      if now - at <= _GONE + self._silent}
        self._asking = True
        holder, into = self._holder(), self._new_lease()
        # The call waits while the store is unreachable. Meanwhile nobody can
        # renew, so a holder that joined since the search would look silent:
        # use the holders that are gone when the call is made.
        self._store.submit(
            lambda store: store.take_over_expired(
                self._jobs, into=into, holder=holder, seconds=self._lease,
                gone=list(self._gone), limit=_AT_A_TIME,
                silence_timeout=self._silent),
            lambda leases: self._taken_over(leases, holder),
            lambda: self._taken_over([], holder))

    def _taken_over(self, leases: list[Lease],
                    holder: str) -> None:
        self._asking = False
        for lease in leases:
            job = self._hand.queues[lease.job].job
            self._hand.counts[job.name, 'taken over'] += len(lease.claims)
            self._offer(job, in_flight.HeldLease(lease.id, holder),
                        lease.claims, 'its lease has ended', lease.was)
        if len(leases) == _AT_A_TIME:
            self._more = True
            self.take_over()

    def reclaim(self, sent: in_flight.SentBatch, claims: list[Claim],
                reason: str, count_attempt: bool = True) -> None:
        """Claim again the objects that a worker received and will not finish.

        :param count_attempt: Whether granted runs may have begun. If True,
            their attempt counts.
        """
        if not claims:
            return
        job, batch = sent.queue.job, sent.batch
        leases = [batch.lease]
        if not self._shared:
            # If the worker shares the store, runs that it began are its own
            # until it is silent.
            leases.append(granted_lease(batch.lease, batch.id))
        keys = [c.object for c in claims]
        into = self._new_lease()
        holder = self._holder()

        def taken(anew: list[Claim]) -> None:
            self._hand.lost(job, len(claims) - len(anew))
            self._offer(job, in_flight.HeldLease(into, holder), anew, reason,
                        State.RUNNING if count_attempt else State.CLAIMED)
        self._store.submit(
            lambda store: store.reclaim(
                job.name, batch.tick, keys, leases=leases, into=into,
                holder=holder, seconds=self._lease,
                count_attempt=count_attempt),
            taken)

    def _offer(self, job: Job, own: in_flight.HeldLease,
               claims: list[Claim],
               reason: str, was: State) -> None:
        """Queue claims that were held before and may have run."""
        most = job.most_attempts
        over = [c for c in claims if c.attempt > most]
        if over:
            self._give_up(job, own.lease, over, reason)
            claims = [c for c in claims if c.attempt <= most]
        if was is State.RUNNING:
            self._hand.counts[job.name, 'repeated'] += sum(
                c.attempt > 1 for c in claims)
        if was is not State.RETRY:
            # Claims that were set apart before and did not run are set apart
            # again.
            claims = self.quarantine(job, own, claims)
        if claims:
            self._hand.put(job, own, claims)

    def quarantine(self, job: Job, own: in_flight.HeldLease,
                   claims: list[Claim]) -> list[Claim]:
        """Queue the suspects among *claims*, and return the others."""
        apart: dict[int, list[Claim]] = {}
        others = []
        for claim in claims:
            together = in_flight.suspects_together(claim)
            if together is None:
                others.append(claim)
            else:
                apart.setdefault(together, []).append(claim)
        for together, some in apart.items():
            self._hand.put_quarantined(job, own, some, together)
        return others

    def _give_up(self, job: Job, lease: str,
                 claims: list[Claim], reason: str) -> None:
        """End as dead the claims that may have run and must not run again."""
        if job.delivery is not Delivery.AT_MOST_ONCE:
            reason += _ONE_TRY
        def dropped(dead: int) -> None:
            self._hand.counts[job.name, 'dead'] += dead
            self._hand.lost(job, len(claims) - dead)
            LOG.error(
                'not repeated: job=%s delivery=%s objects=%d first=%r '
                'attempts=%d reason=%s; nothing runs them again for this '
                'tick', job.name, job.delivery.value, len(claims),
                claims[0].object, claims[0].attempt - 1, reason)
            self._put(events.Released(job, [c.object for c in claims]))
        keys = [c.object for c in claims]
        self._store.submit(
            lambda store: store.discard(
                job.name, claims[0].tick, keys, lease=lease,
                ending=State.DEAD, reason=reason),
            dropped)

    def abandon(self, job: Job, group: in_flight.Group) -> None:
        """Give up waiting claims, since other members owned their objects
        meanwhile.
        """
        claims = group.claims

        def dropped(number: int) -> None:
            self._hand.counts[job.name, 'left to others'] += number
            self._hand.lost(job, len(claims) - number)
        self._store.submit(
            lambda store: store.discard(
                job.name, claims[0].tick, [c.object for c in claims],
                lease=group.own.lease, ending=State.CANCELLED),
            dropped)
