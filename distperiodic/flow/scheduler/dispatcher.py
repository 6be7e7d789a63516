# SPDX-License-Identifier: Apache-2.0
"""The scheduler's part of dispatch: from waiting claims to ended batches.

    offer ─► waiting ─► pump ─► sent ─► reported ─► ended
                ▲                 │
                └─── reclaim ◄────┘  refused, not sent, worker gone or silent

Claims wait in leases of this scheduler until a worker has room for them. The
credit window of a worker limits the seconds of work that the worker holds
(:mod:`distperiodic.core.credit`). The claims that have waited longest are sent
first (:class:`distperiodic.flow.scheduler.in_flight.Line`). The store grants
the runs to the worker and records their outcomes
(:mod:`distperiodic.flow.run_leases`). The dispatcher only counts the outcomes.

A scheduler takes over leases that have expired or whose holder is gone.
Retries also reach a scheduler in this way.

The dispatcher counts each claim that this scheduler has acquired: first as
waiting or outstanding, and then as done, dead, retried, superseded or left to
others.
"""

import enum
import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import message
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim_request import NewLease
from distperiodic.core.credit import CreditWindow
from distperiodic.core.credit import RunTimeAverage
from distperiodic.core.job import Delivery
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import Member
from distperiodic.core.member import holder_of
from distperiodic.core.refusal import Refusal
from distperiodic.flow import events
from distperiodic.flow import leases
from distperiodic.flow import log_throttle
from distperiodic.flow.counters import Counted
from distperiodic.flow.scheduler import batcher
from distperiodic.flow.scheduler import in_flight
from distperiodic.flow.scheduler import recovery
from distperiodic.flow.wiring import SchedulerWiring

LOG = logging.getLogger(__name__)

# Seconds for which a worker receives no batches of a job after it has refused
# runs of this job, unless it does not know the job or a limit was reached.
_PAUSE = 1.0


class _TakeOver(enum.Enum):
    """The expired claims that this process may take over."""

    ALL = enum.auto()
    #: Claims in a store that only this process uses.
    OWN = enum.auto()
    NONE = enum.auto()


class Dispatcher:
    """The claims of this scheduler that have not ended.

    :param bus: Receives the batches.
    """

    def __init__(self, books: Sequence[leases.Book], wiring: SchedulerWiring,
                 bus: ports.WorkBus):
        self._clock = clock = wiring.clock
        self._put = wiring.put
        #: Function that returns this scheduler's membership entry.
        self.entry = wiring.me
        #: Seconds without a heartbeat after which a batch is reclaimed from
        #: its worker.
        self._lease = wiring.lease
        self._new_name = wiring.new_lease
        self._random = wiring.random
        self._pace = RunTimeAverage()
        self._throttle = log_throttle.LogThrottle(clock, 30.0)
        jobs = {name: job for book in books
                for name, job in book.jobs.items()}
        self._in_flight = in_flight.InFlight(
            jobs, wiring.partitions, counters=wiring.counters,
            authorities={name: book.authority for book in books
                         for name in book.jobs})
        self._queues = self._in_flight.queues
        self._workers = self._in_flight.workers
        self._sent = self._in_flight.sent
        self._counters = wiring.counters
        self._batcher = batcher.Batcher(
            self._in_flight, bus, clock, batch_size=wiring.batch_size,
            throttle=self._throttle, sink=wiring.sink,
            tracer=wiring.tracer)
        self._all_recoveries = [recovery.RECOVERIES[book.authority](
            self._in_flight, book, wiring, holder=self.holder,
            new_lease=self.new_lease) for book in books]
        self._recoveries = {
            name: one for book, one in zip(books, self._all_recoveries,
                                           strict=True)
            for name in book.jobs}
        self._peers: set[str] | None = None
        #: Claims that became dead since the last sweep, each with the error of
        #: its last run, by job.
        self._dead: dict[str, list[tuple[Claim, str]]] = {}
        self._swept = clock.monotonic()
        self._closed = False
        self._take_over = _TakeOver.ALL

    @property
    def waiting(self) -> int:
        """Number of objects that are claimed and were not sent to a worker."""
        return self._in_flight.waiting

    def objects_waiting(self, partition: str) -> int:
        """Return how many objects of *partition* are claimed and were not sent
        to a worker.

        An object whose claim was superseded counts once. Any thread may call
        this.
        """
        return self._in_flight.objects_waiting(partition)

    @property
    def outstanding(self) -> int:
        """Number of objects that were sent to workers and have not ended."""
        return self._in_flight.outstanding

    def room_for(self, job: Job) -> int:
        """Return the number of further runs of *job* that this scheduler could
        send to workers now.
        """
        return self._batcher.room_for(job)

    def objects(self, job: str) -> set[str]:
        """Return the objects of *job* that have an open claim here."""
        return self._in_flight.objects(job)

    @property
    def stranded(self) -> bool:
        """True if no claim of this scheduler can make progress.

        No object is outstanding, and the partitions of the waiting claims have
        no workers.
        """
        return not self._in_flight.outstanding and not any(
            self._workers.get(queue.job.topic)
            for queue in self._queues.values() if queue.waiting)

    def waits_for(self, authority: Authority) -> bool:
        """Return whether claims under *authority* wait here."""
        return any(queue.waiting and queue.authority is authority
                   for queue in self._queues.values())

    def authority_of(self, batch: str) -> Authority | None:
        """Return the authority over the claims of a batch.

        None means that the batch has ended or was reclaimed.
        """
        sent = self._sent.get(batch)
        return None if sent is None else sent.batch.authority

    def holder(self) -> str:
        """Return the name under which this scheduler acquires leases now."""
        return holder_of(self.entry())

    def new_lease(self) -> NewLease:
        """Return a new lease of this scheduler."""
        return NewLease(self._new_name(), self.holder(), self._lease)

    # -- input: claims, members, reports

    def offer(self, job: Job, lease: NewLease, claims: list[Claim],
              superseded: int = 0) -> None:
        """Queue claims of one lease; :meth:`pump_all` sends them to workers.

        The caller must not use the list *claims* afterwards.

        :param superseded: Number of waiting claims that these claims
            supersede.
        """
        releases = self._recoveries[job.name].releases
        if releases.closed:
            releases.release(job, [lease.id], len(claims))
            return
        if any([claim.losses for claim in claims]):
            # Runs of some of these objects were lost for an earlier tick.
            claims = self._recoveries[job.name].quarantine(job, lease, claims)
        if claims:
            self._in_flight.put(job, lease, claims, superseded)

    def workers_changed(self, partition: str, members: Iterable[Member], *,
                        own: bool = False) -> None:
        """Set the workers of *partition*.

        The batches of a worker that left are reclaimed, even if the worker
        returned at once. Without a shared store, runs that the worker had
        started are then repeated. With one, these runs are repeated only when
        their lease is taken over. A worker without slots is stopping, drained
        or standing by: it keeps its batches and receives no more batches.

        :param own: True means that only this scheduler uses these workers. So
            it uses all of their slots.
        """
        known = self._workers.setdefault(partition, {})
        present = {m.holder: m for m in members}
        for holder in [h for h in known if h not in present]:
            lost = known.pop(holder)
            self._holder_gone(holder)
            self._worker_gone(lost)
        self._holders_present(present.keys())
        for holder, member in present.items():
            worker = known.get(holder)
            if worker is None:
                worker = known[holder] = in_flight.WorkerState(
                    member, CreditWindow(0, self._pace),
                    self._clock.monotonic(), own=own)
                self._divide(worker)
            changed = worker.member.slots != member.slots
            worker.member = member
            if changed:
                self._divide(worker)

    def schedulers_changed(self, members: Iterable[Member]) -> None:
        """Set the schedulers that share the workers.

        Each scheduler is entitled to an equal part of a worker's slots; see
        :mod:`distperiodic.core.credit`.
        """
        members = list(members)
        present = sorted(m.holder for m in members if m.points)
        # A drained member has no points, but it may still hold claims.
        holders = {m.holder for m in members}
        # Leave out this scheduler, which renews its own leases.
        for holder in sorted(
                (self._peers or set()) - holders - {self.holder()}):
            self._holder_gone(holder)
        self._holders_present(holders)
        self._peers = holders
        inflight, me = self._in_flight, self.holder()
        share = (max(1, len(present)),
                 present.index(me) if me in present else 0)
        if share == (inflight.schedulers, inflight.rank):
            return
        inflight.schedulers, inflight.rank = share
        for workers in self._workers.values():
            for worker in workers.values():
                self._divide(worker)

    def _divide(self, worker: in_flight.WorkerState) -> None:
        worker.share.divide(worker.member, self._in_flight.schedulers,
                            self._in_flight.rank)

    def _holder_gone(self, holder: str) -> None:
        for one in self._all_recoveries:
            one.holder_gone(holder)

    def _holders_present(self, holders: Collection[str]) -> None:
        for one in self._all_recoveries:
            one.holders_present(holders)

    def reported(self, report: message.Report) -> None:
        """Handle a report of a worker on a batch.

        A report without outcomes is a heartbeat.
        """
        sent = self._sent.get(report.batch)
        if report.batch == message.NO_BATCH:
            for workers in self._workers.values():
                for worker in workers.values():
                    if worker.member.entry == report.worker:
                        worker.last_heard = self._clock.monotonic()
                        worker.share.turn = False
                        worker.share.heard(worker.member, report.others)
                        worker.share.turn = worker.window.slots > 0
        elif sent is None or sent.batch.worker != report.worker:
            if report.size and self._throttle.allow('dropped'):
                LOG.info('report dropped: batch=%s worker=%s reason=the '
                         'batch has ended or was reclaimed; further drops '
                         'are not logged for a while',
                         report.batch, report.worker)
        else:
            self._reported(sent, report)

    def _reported(self, sent: in_flight.SentBatch,
                  report: message.Report) -> None:
        worker = sent.worker
        sent.last_seen = worker.last_heard = self._clock.monotonic()
        job = sent.queue.job
        done = sent.take(report.done)
        self._counters[job.name, Counted.DONE] += len(done)
        released = [sent.batch.objects[index] for index in done]
        dead = self._settled_as(Counted.DEAD, sent, report.failed)
        if dead:
            self._dead.setdefault(job.name, []).extend(dead)
            released += [claim.object for claim, _ in dead]
        retried = self._settled_as(Counted.RETRIED, sent, report.retried)
        ran = len(done) + len(dead) + len(retried)
        if ran and report.seconds:
            worker.window.note(job.name, ran, report.seconds)
        lost = len(sent.take(report.lost))
        if sent.span is not None:
            for outcome, number in (
                    ('done', len(done)), ('dead', len(dead)),
                    ('retried', len(retried)), ('lost', lost)):
                sent.span.count(outcome, number)
        self._in_flight.lost(job, lost)
        self._in_flight.settle(sent, ran + lost)
        if report.refused:
            self._refused(sent, report.refused)
        elif ran:
            for bound in sent.queue.bounds.values():
                bound.ran(report.seconds / ran, sent.last_seen)
        worker.share.heard(worker.member, report.others)
        self._end_span(sent)
        if released:
            self._put(events.Released(job, released))

    def _refused(self, sent: in_flight.SentBatch,
                 refusals: list[tuple[int, Refusal]]) -> None:
        worker, queue = sent.worker, sent.queue
        refusal = refusals[0][1]
        refused = sent.claims(sent.take(index for index, _ in refusals))
        if not refused:
            # The outcome of each refused object is already known.
            return
        self._in_flight.settle(sent, len(refused))
        if refusal is Refusal.UNKNOWN_JOB:
            worker.unknown_jobs.add(queue.job.name)
        elif refusal in queue.bounds:
            # Other schedulers use part of the limit.
            queue.bounds[refusal].refused(
                worker.last_heard, self._random.random())
        else:
            # The worker is draining, not certain of its membership or not the
            # active worker, or its lease has ended. It would probably refuse
            # more batches for a while.
            worker.paused[queue.job.name] = worker.last_heard + _PAUSE
        # If the worker shares the store, it has already returned the granted
        # runs to the store. This call then reclaims only claims that were not
        # granted.
        self._reclaim(
            sent, refused, f'it was refused: {refusal.sentence}',
            count_attempt=False)

    @staticmethod
    def _end_span(sent: in_flight.SentBatch) -> None:
        """End the span of a batch if the outcomes of all objects are known."""
        if sent.span is not None and not sent.left:
            sent.span.end()
            sent.span = None

    def _reclaim(self, sent: in_flight.SentBatch, claims: list[Claim],
                 reason: str, count_attempt: bool = True) -> None:
        if sent.span is not None:
            sent.span.reclaim(len(claims), reason)
            self._end_span(sent)
        self._recoveries[sent.queue.job.name].reclaim(
            sent, claims, reason, count_attempt)

    def _settled_as(self, counted: Counted, sent: in_flight.SentBatch,
                    results: list[tuple[int, str]]) -> list[
                        tuple[Claim, str]]:
        if not results:
            return []
        settled = [(claim, error) for index, error in results
                   for claim in sent.claims(sent.take([index]))]
        self._counters[sent.queue.job.name, counted] += len(settled)
        return settled

    def unsent(self, batch: message.Batch, reason: str) -> None:
        """Reclaim *batch*, which could not be sent to the broker.

        The batch may nevertheless arrive at its worker later.
        """
        sent = self._sent.get(batch.id)
        if sent is None:
            return
        worker = sent.worker
        pause = worker.back_off.failed(self._clock.monotonic())
        if self._throttle.allow('unsent'):
            LOG.warning(
                'not sent: job=%s objects=%d worker=%s reason=%s; they are '
                'sent again in %.0f s, or sooner to another worker',
                batch.job, sent.left, worker.member.identity, reason, pause)
        self._reclaim(
            sent, self._in_flight.recall(sent), f'send unconfirmed: {reason}',
            count_attempt=sent.queue.job.delivery is Delivery.AT_MOST_ONCE)

    def sent(self, batch: message.Batch) -> None:
        """Record that the broker has accepted *batch*."""
        found = self._sent.get(batch.id)
        if found is not None:
            found.worker.back_off.reached()

    def hurry(self) -> None:
        """Make a search for expired leases due at the next sweep."""
        for one in self._all_recoveries:
            one.hurry()

    def sweep(self) -> None:
        """Reclaim batches without heartbeats, renew leases, and take over
        expired leases.

        Call this several times per lease. A long delay between two calls does
        not count as silence of the workers, because unread heartbeats may wait
        in the inbox of this process.
        """
        now = self._clock.monotonic()
        gap = now - self._swept
        self._swept = now
        if gap > self._lease / 3:
            for sent in self._sent.values():
                sent.last_seen = min(now, sent.last_seen + gap)
        silent: dict[str, tuple[in_flight.WorkerState, int]] = {}
        for sent in [s for s in self._sent.values()
                     if now - s.last_seen > self._lease]:
            worker, number = silent.get(
                sent.batch.worker, (sent.worker, 0))
            silent[sent.batch.worker] = worker, number + sent.left
            self._reclaim(sent, self._in_flight.recall(sent),
                          'no heartbeat from its worker')
        for worker, number in silent.values():
            LOG.warning(
                'no sign of work: worker=%s objects=%d lease=%.0f; this '
                'scheduler reclaims them and sends them to another worker if '
                'there is one; with a store, runs that have started are '
                'repeated only when their lease has ended',
                worker.member.identity, number, self._lease)
            if now - worker.last_heard > self._lease:
                # The worker may still be in its group although it receives no
                # messages. So send the next batches to other workers.
                worker.back_off.rest(now + self._lease)
        for workers in self._workers.values():
            for worker in workers.values():
                if (not worker.window.slots
                        and now - worker.last_heard > self._lease / 2):
                    # The message that gave this scheduler a turn was lost.
                    self._divide(worker)
        self._log_dead()
        all_seen = (self._peers is not None
                    and len(self._workers) >= len(self._in_flight.turns))
        for one in self._all_recoveries:
            one.renew(now)
            if self._may_take_over(one):
                one.sweep(now, self._present if all_seen else None)

    def _may_take_over(self, one: recovery.Recovery) -> bool:
        return not self._closed and (
            self._take_over is _TakeOver.ALL
            or self._take_over is _TakeOver.OWN and one.takes_over_drained)

    def search(self, job: str, tick: int,
               then: Callable[[int | None], None]) -> None:
        """Take over expired leases now, after an operator has triggered runs.

        :param then: Called with the number of claims of *job* for *tick* that
            this process has taken over. None means that this process takes
            over no claims.
        """
        one = self._recoveries[job]
        if self._may_take_over(one):
            one.search(lambda: then(one.taken(job, tick)))
        else:
            then(None)

    def _present(self) -> set[str]:
        """Return the holders of all members of the groups."""
        return (self._peers or set()).union(*self._workers.values())

    def _log_dead(self) -> None:
        # Log one error for all objects of a job. Otherwise, for example, a
        # failed database could cause 10,000 errors.
        for name, dead in self._dead.items():
            claim, error = dead[0]
            if self._queues[name].job.scope is Scope.TASK:
                LOG.warning(
                    'steps failed: job=%s tasks=%d first=%s attempt=%d '
                    'error=%s; their tasks are rolled back, or stuck if this '
                    'was a rollback', name, len(dead), claim.object,
                    claim.attempt, error)
                continue
            LOG.error(
                'runs failed for good: job=%s objects=%d first=%r attempt=%d '
                'error=%s; the objects run again at their next tick', name,
                len(dead), claim.object, claim.attempt, error)
            for claim, error in dead[1:]:
                LOG.debug('run failed for good: job=%s object=%r attempt=%d '
                          'error=%s', name, claim.object, claim.attempt,
                          error)
        self._dead.clear()

    # -- output: batches

    def pump_all(self, sure: Callable[[], bool]) -> None:
        """Send waiting claims to the workers that have room.

        :param sure: Returns whether this member may now start jobs that the
            ring divides among members.
        """
        if self._in_flight.waiting and not self._closed:
            # If sure() finds that other members may have owned the objects
            # meanwhile, it abandons the waiting claims.
            is_sure = sure()
            me = self.entry()
            for partition in self._in_flight.turns:
                self._batcher.pump(partition, me, is_sure)

    def _worker_gone(self, worker: in_flight.WorkerState) -> None:
        for batch_id in list(worker.batches):
            sent = self._sent[batch_id]
            self._reclaim(
                sent, self._in_flight.recall(sent), 'its worker is gone')

    def abandon(self, jobs: Iterable[str]) -> None:
        """Give up the waiting claims of those *jobs* that the ring divides.

        Call this when this member was not in its group, so that other members
        may have owned the objects of these jobs.
        """
        for queue in [self._queues[name] for name in jobs]:
            if queue.waiting and queue.job.scope is not Scope.MEMBER:
                for group in self._in_flight.clear(queue):
                    self._recoveries[queue.job.name].abandon(queue.job, group)

    def set_drained(self, drained: bool) -> None:
        """Stop or resume the take-over of claims in a store that members
        share.

        :param drained: True leaves these claims to the other members. This
            process still takes over the claims in a store that only this
            process uses.
        """
        if self._take_over is not _TakeOver.NONE:
            self._take_over = _TakeOver.OWN if drained else _TakeOver.ALL

    @property
    def settled(self) -> bool:
        """True if this scheduler holds no claims, and acquires none.

        No claim waits here or was sent, and no request is pending that
        acquires or releases claims.
        """
        return not (self.waiting or self.outstanding) and all(
            one.settled for one in self._all_recoveries)

    @property
    def releasing(self) -> int:
        """Number of claims whose release the store has not confirmed."""
        return sum(one.releases.claims for one in self._all_recoveries)

    def drain(self) -> None:
        """Take over no more claims, and release those that were not started.

        If only this scheduler uses the store of a claim, the claim is still
        dispatched.
        """
        self._take_over = _TakeOver.NONE
        for one in self._all_recoveries:
            one.close()

    def close(self) -> None:
        """Dispatch no more claims."""
        self._closed = True
