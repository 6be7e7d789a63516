# SPDX-License-Identifier: Apache-2.0
"""Recovery of lost runs.

    worker lost, batch refused, not sent ──── reclaim ──┐
    lease ended, its holder gone ────────── take over ──┼─► offered again
    retry due ───────────────────────────── take over ──┘      │
                                          too often ◄──────────┘
                                            dead

A run that was lost may have killed its worker. So the number of attempts after
such losses is limited. If the runs of a claim were lost more than once, the
claim runs separately from other claims; see
:class:`distperiodic.flow.scheduler.batcher.Batcher`. If a claim becomes dead
because its runs were lost too often, each later tick of the object has only
one attempt, which also runs separately. This restriction ends when a run of
the object succeeds. Jobs with ``at_most_once`` always have one attempt per
tick, which does not run separately.
"""

import collections
import functools
import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core import message
from distperiodic.core import telemetry
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim import granted_lease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.job import Delivery
from distperiodic.core.job import Job
from distperiodic.flow import events
from distperiodic.flow.counters import Counted
from distperiodic.flow.leases import Book
from distperiodic.flow.leases import LeaseKeeper
from distperiodic.flow.procedure import PendingProcedures
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import perform
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler import in_flight
from distperiodic.flow.scheduler.callbacks import Callbacks
from distperiodic.flow.scheduler.releases import Releases
from distperiodic.flow.wiring import SchedulerWiring

LOG = logging.getLogger(__name__)

# Number of pairs of job and tick for which taken-over claims are counted.
_COUNTED = 100
# Part of the reason in the log and the history if runs were lost too often.
_ONE_TRY = ('; too many workers were lost with it, so each tick has one '
            'attempt, separately from other objects, until a run of the '
            'object succeeds')
# Maximum number of leases that are taken over in one request.
_AT_A_TIME = 100
# A process that left its group counts as gone for this number of seconds plus
# the silence timeout. During this time, its leases are taken over before they
# expire. Later, they are taken over only when they expire, because the process
# may be alive and only cut off from the other processes.
_GONE = 5.0
# Number of searches for which a retry is left to the scheduler that sent the
# failed run.
_RETRY_SEARCHES = 2


class _TakenClaims:
    """Numbers of claims that this scheduler took over before their runs began.
    """

    def __init__(self) -> None:
        self._numbers: collections.Counter[tuple[str, int]] = (
            collections.Counter())

    def count(self, lease: Lease) -> None:
        """Count the claims of a lease; forget the oldest count if needed.
        """
        self._numbers[lease.job, lease.tick] += len(lease.claims)
        if len(self._numbers) > _COUNTED:
            del self._numbers[next(iter(self._numbers))]

    def number(self, job: str, tick: int) -> int:
        """Return the number for a tick of *job*; 0 if it is not known."""
        return self._numbers[job, tick]


class Recovery:
    """Recovery of lost runs, by one scheduler and for one book.

    This class is for a store that only this scheduler uses. No other process
    can run the objects of its claims.

    :param book: The jobs, and the store of their claims.
    :param holder: Returns the name under which this scheduler holds leases.
    :param new_lease: Returns a new lease of this scheduler.
    """

    #: True if this scheduler takes over expired claims even while it is
    #: drained.
    takes_over_drained = True

    def __init__(self, inflight: in_flight.InFlight, book: Book,
                 wiring: SchedulerWiring, *, holder: Callable[[], str],
                 new_lease: Callable[[], NewLease]):
        self._in_flight = inflight
        self._store = store = book.store
        self._clock = clock = wiring.clock
        self._put = wiring.put
        self._holder = holder
        self._new_lease = new_lease
        lease = wiring.lease
        self._silence_timeout = book.silence_timeout
        self._jobs = list(book.jobs)
        self._sweep_interval = book.sweep_interval
        self._renew_every = lease / 3
        #: Seconds between two searches for holders that are gone.
        self._search_interval = 0.0
        if book.silence_timeout:
            self._renew_every = min(lease, book.silence_timeout) / 3
            self._search_interval = book.silence_timeout
        self._keeper = LeaseKeeper(store, lease)
        #: Monotonic time of the last renewal, and of the last search for
        #: expired leases, in seconds.
        self._renewed = self._swept = clock.monotonic()
        #: Monotonic time of the next search for holders that are gone, in
        #: seconds.
        self._next_search = self._swept
        self._pending = False
        #: Procedures that reclaim, release or end claims.
        self._changes = PendingProcedures()
        self._counters = wiring.counters
        self._sink = wiring.sink
        self.releases = Releases(
            inflight, book, self._changes, self._counters)
        self._callbacks = Callbacks()
        self._taken = _TakenClaims()
        #: Holders that are gone, each with the monotonic time in seconds at
        #: which this scheduler noticed this. The thread of the store reads the
        #: mapping, so the mapping is only replaced as a whole.
        self._gone: Mapping[str, float] = {}

    @property
    def settled(self) -> bool:
        """True if no request is pending that acquires or releases claims."""
        return not (self._pending or self._changes)

    def holder_gone(self, holder: str) -> None:
        """Record that *holder* left its group.

        Schedulers may take over the leases of the holder when it no longer
        renews them. If the process returns, it is a holder with another name.
        If only this scheduler uses the store, there are no such leases.
        """

    def holders_present(self, holders: Collection[str]) -> None:
        """Record that *holders* are in their group.

        This corrects a mistake of :meth:`find_gone`, which may also find a
        holder that has joined but is not yet in this scheduler's view.
        """
        if not self._gone.keys().isdisjoint(holders):
            self._gone = {holder: at for holder, at in self._gone.items()
                          if holder not in holders}

    def renew(self, now: float) -> None:
        """Renew the leases of waiting claims if a renewal is due."""
        if now - self._renewed < self._renew_every:
            return
        self._renewed = now
        queues = [self._in_flight.queues[name] for name in self._jobs]
        by_holder: dict[str, list[str]] = {}
        for lease in sorted(set().union(*(
                queue.leases() for queue in queues))):
            by_holder.setdefault(lease.holder, []).append(lease.id)
        for holder, leases in by_holder.items():
            start(self._renew(queues, holder, leases))

    def _renew(self, queues: list[in_flight.ClaimQueue], holder: str,
               leases: list[str]) -> Procedure[None]:
        held = yield from self._keeper.renew(holder, leases)
        lost = frozenset() if held is None else frozenset(leases) - held
        if lost:
            for queue in queues:
                self._in_flight.discard_leases(queue, lost)

    def sweep(self, now: float,
              present: Callable[[], set[str]] | None) -> None:
        """Take over leases that have ended, if a search is due.

        A lease has ended if it has expired, or if its holder is gone.

        :param present: Returns the holders in the groups. None means that the
            members of some groups are not known yet.
        """
        if now - self._swept < self._sweep_interval:
            return
        self._swept = now
        if (self._search_interval and now >= self._next_search
                and present is not None):
            self._next_search = now + self._search_interval
            start(self.find_gone(present))
        self.take_over()

    def hurry(self) -> None:
        """Make a search due at the next sweep.

        Call this when an operator may have created leases that have already
        expired, such as those of triggered runs.
        """
        self._swept -= self._sweep_interval

    def find_gone(self, present: Callable[[], set[str]]) -> Procedure[None]:
        """Search the store for holders that are in no group.

        Such holders left before this scheduler read its first view. The
        schedulers that noticed this may be gone, too.

        :param present: Returns the holders in the groups; called when the
            store has answered.
        """
        holders = yield from call(
            self._store, ports.ClaimStore.holders, self._jobs)
        for holder in sorted(holders - present() - {self._holder()}):
            self.holder_gone(holder)

    def search(self, then: Callable[[], None]) -> None:
        """Take over leases that have ended, with a search that begins now.

        :param then: Called at the end of the search. If the search fails, it
            is called at the end of a later one.
        """
        self._callbacks.register(then)
        self.take_over()

    def taken(self, job: str, tick: int) -> int:
        """Return the number of claims of *job* for *tick* that this scheduler
        took over before their runs began.

        Only recent ticks are known. A trigger of an operator makes such
        claims.
        """
        return self._taken.number(job, tick)

    def take_over(self) -> None:
        """Take over leases that have ended.

        These leases contain retries that are due, claims of processes that
        have ended or are cut off, and claims that an operator has triggered or
        requeued.
        """
        if not (self._pending or self.releases.closed):
            start(self._take_over())

    def _take_over(self) -> Procedure[None]:
        self._pending, more = True, True
        try:
            while more and not self.releases.closed:
                self._forget_gone()
                self._callbacks.begin()
                into = self._new_lease()
                leases = yield from perform(
                    self._store, functools.partial(
                        self._take_over_expired, into=into))
                for lease in leases:
                    self._taken_over(lease, into)
                more = len(leases) == _AT_A_TIME
                if not more:
                    self._callbacks.call()
                    more = self._callbacks.need_another
        finally:
            # If the search failed, the next search answers its callbacks.
            self._pending = False

    def _forget_gone(self) -> None:
        """Forget holders whose leases have been taken over by now."""
        now = self._clock.monotonic()
        self._gone = {name: at for name, at in self._gone.items()
                      if now - at <= _GONE + self._silence_timeout}

    def _take_over_expired(self, store: ports.ClaimStore,
                           into: NewLease) -> list[Lease]:
        # The call waits in the queue while the store is unreachable. Meanwhile
        # no process can renew its leases, so all holders seem to be silent. A
        # holder in self._gone may also join meanwhile. So the thread of the
        # store reads self._gone at the time of the call.
        return store.take_over_expired(TakeOverRequest(
            self._jobs, list(self._gone), _AT_A_TIME,
            silence_timeout=self._silence_timeout,
            retry_after=_RETRY_SEARCHES * self._sweep_interval), into)

    def _taken_over(self, lease: Lease, into: NewLease) -> None:
        job = self._in_flight.queues[lease.job].job
        self._counters[job.name, Counted.TAKEN_OVER] += len(lease.claims)
        if self._sink.open:
            self._sink.put(telemetry.ClaimsTakenOver(
                job.name, lease.tick, len(lease.claims)))
        if lease.was is State.CLAIMED:
            self._taken.count(lease)
        self._offer(job, into._replace(id=lease.id), lease.claims,
                    'its lease has ended', lease.was)

    def reclaim(self, sent: in_flight.SentBatch, claims: list[Claim],
                reason: str, count_attempt: bool = True) -> None:
        """Reclaim *claims* from a worker that will not finish them.

        :param count_attempt: True if the worker may have started granted runs.
            The attempts of these runs then count.
        """
        if claims:
            start(self._changes.counted(
                self._reclaim(sent, claims, reason, count_attempt)))

    def _reclaim(self, sent: in_flight.SentBatch, claims: list[Claim],
                 reason: str, count_attempt: bool) -> Procedure[None]:
        job, batch = sent.queue.job, sent.batch
        into = self._new_lease()
        reclaimed = yield from call(
            self._store, ports.ClaimStore.reclaim, self._leases_of(job, batch),
            [c.object for c in claims], into, count_attempt=count_attempt)
        self._in_flight.lost(job, len(claims) - len(reclaimed))
        if reclaimed and self._sink.open:
            self._sink.put(telemetry.ClaimsReclaimed(
                job.name, batch.tick, len(reclaimed), reason))
        self._offer(job, into, reclaimed, reason,
                    State.RUNNING if count_attempt else State.CLAIMED)

    def _leases_of(self, job: Job, batch: message.Batch) -> list[HeldLease]:
        """Return the leases with the claims of *batch* that this scheduler can
        reclaim.
        """
        lease = HeldLease(batch.lease, job.name, batch.tick)
        # Only this scheduler can reclaim the granted runs.
        return [lease, lease._replace(
            id=granted_lease(batch.lease, batch.id))]

    def _offer(self, job: Job, lease: NewLease, claims: list[Claim],
               reason: str, was: State) -> None:
        """Queue reclaimed claims, and end claims that have no attempt left.

        :param was: State of the claims before they were reclaimed.
        """
        if self.releases.closed:
            self.releases.release(job, [lease.id], len(claims))
            return
        most = job.most_attempts
        over = [c for c in claims if c.attempt > most]
        if over:
            start(self._changes.counted(
                self._give_up(job, lease, over, reason)))
            claims = [c for c in claims if c.attempt <= most]
        if was is State.RUNNING:
            self._counters[job.name, Counted.REPEATED] += sum(
                c.attempt > 1 for c in claims)
        if claims := self.quarantine(job, lease, claims):
            self._in_flight.put(job, lease, claims)

    def quarantine(self, job: Job, lease: NewLease,
                   claims: list[Claim]) -> list[Claim]:
        """Queue the suspects among *claims*, and return the others."""
        by_size: dict[int, list[Claim]] = {}
        others = []
        for claim in claims:
            size = in_flight.suspect_batch_size(claim)
            if size is None:
                others.append(claim)
            else:
                by_size.setdefault(size, []).append(claim)
        for size, group in by_size.items():
            self._in_flight.put_quarantined(job, lease, group, size)
        return others

    def _give_up(self, job: Job, lease: NewLease,
                 claims: list[Claim], reason: str) -> Procedure[None]:
        """Make claims dead that must not run again."""
        if job.delivery is not Delivery.AT_MOST_ONCE:
            reason += _ONE_TRY
        keys = [c.object for c in claims]
        dead = yield from call(
            self._store, ports.ClaimStore.discard,
            lease.of(job.name, claims[0].tick), keys, State.DEAD, reason)
        self._counters[job.name, Counted.DEAD] += dead
        if dead and self._sink.open:
            self._sink.put(telemetry.RunsEnded(
                job.name, claims[0].tick, telemetry.RunOutcome.DEAD, dead))
        self._in_flight.lost(job, len(claims) - dead)
        LOG.error(
            'not repeated: job=%s delivery=%s objects=%d first=%r attempts=%d '
            'reason=%s; they do not run again for this tick', job.name,
            job.delivery.value, len(claims), claims[0].object,
            claims[0].attempt - 1, reason)
        self._put(events.Released(job, keys))

    def abandon(self, job: Job, group: in_flight.ClaimGroup) -> None:
        """Give up waiting claims, whose objects other members may have owned
        meanwhile.
        """
        start(self._changes.counted(self._abandon(job, group)))

    def _abandon(self, job: Job,
                 group: in_flight.ClaimGroup) -> Procedure[None]:
        claims = group.claims
        number = yield from call(
            self._store, ports.ClaimStore.discard,
            group.lease.of(job.name, claims[0].tick),
            [c.object for c in claims], State.CANCELLED)
        self._counters[job.name, Counted.LEFT_TO_OTHERS] += number
        self._in_flight.lost(job, len(claims) - number)

    def close(self) -> None:
        """Release the claims that were not started, if another process can run
        their objects.
        """


class SharedRecovery(Recovery):
    """Recovery of lost runs in a store that members share."""

    takes_over_drained = False

    def holder_gone(self, holder: str) -> None:
        self._gone = {**self._gone, holder: self._clock.monotonic()}

    def _leases_of(self, job: Job, batch: message.Batch) -> list[HeldLease]:
        # The worker holds the granted runs in a lease of its own, which is
        # taken over when it ends.
        return [HeldLease(batch.lease, job.name, batch.tick)]

    def close(self) -> None:
        self.releases.close()


#: Class of the recovery, by the authority over the claims of a book.
RECOVERIES = {Authority.STORE: SharedRecovery, Authority.RING: Recovery}
