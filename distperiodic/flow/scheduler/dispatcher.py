# SPDX-License-Identifier: Apache-2.0
"""A scheduler's side: from claims that wait to workers that have settled.

    offer ─► waiting ─► pump ─► sent ─► reported ─► settled
                ▲                 │
                └── take back ◄───┘  refused, not sent, worker gone, no sign

What waits, waits in leases of this scheduler and not in anybody's queue: a
worker is given what its window has room for, and the window is counted in
seconds of its work (:mod:`distperiodic.core.pace`). Jobs of one priority take
turns, batch by batch. What a worker was given is granted to it, and ends, in
the store (:mod:`distperiodic.flow.grants`); here it is only counted.

Leases that ended, or whose holder is gone, are taken over, whoever held them:
so come the retries, too.

Every claim that was won or taken over is counted once more, by where it is or
how it ended: waiting, outstanding; done, dead, retried, superseded or left to
others.
"""

import logging
import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.core import partition as partition_
from distperiodic.core.claim import Authority
from distperiodic.core.refusal import Refusal
from distperiodic.flow import events
from distperiodic.flow import leases
from distperiodic.flow import quiet
from distperiodic.flow.scheduler import batcher
from distperiodic.flow.scheduler import in_flight
from distperiodic.flow.scheduler import recovery

LOG = logging.getLogger(__name__)

# Seconds for which a worker is given nothing of a job that it has refused.
_PAUSE = 1.0


class Dispatcher:
    """What this scheduler has claimed and not seen the end of.

    :param put: takes what others have to know.
    :param me: this scheduler's membership entry, asked at each batch.
    :param lease: seconds without a sign of life after which a batch is
        taken back from its worker.
    :param partitions: what is configured of partitions, by name.
    """

    def __init__(self, books: Sequence[leases.Book], *, bus: ports.WorkBus,
                 clock: ports.Clock, put: events.Put, me: Callable[[], str],
                 new_lease: Callable[[], str], batch_size: int = 500,
                 lease: float = 60.0,
                 random_: random.Random | None = None,
                 partitions: partition_.Partitions = partition_.NONE):
        self._clock = clock
        self._put = put
        #: This scheduler's membership entry.
        self.entry = me
        self._lease = lease
        self._random = random_ or random.Random()
        self._pace = pace_.Pace()
        self._told = quiet.Quiet(clock, 30.0)
        jobs = {name: job for book in books
                for name, job in book.jobs.items()}
        shared = {name for book in books if book.shared
                  for name in book.jobs}
        self._hand = in_flight.InFlight(jobs, partitions, shared=shared)
        self._queues = self._hand.queues
        self._workers = self._hand.workers
        self._sent = self._hand.sent
        self.counts = self._hand.counts
        self._pump = batcher.Batcher(
            self._hand, bus, clock, batch_size=batch_size, shared=shared,
            told=self._told)
        self._again = [recovery.Recovery(
            self._hand, book, clock, put=put, holder=self.holder,
            new_lease=new_lease, lease=lease) for book in books]
        self._again_of = {
            name: one for book, one in zip(books, self._again, strict=True)
            for name in book.jobs}
        self._peers: set[str] | None = None
        #: What failed for the last time since the last sweep, by job.
        self._dead: dict[str, list[tuple[claim_.Claim, str]]] = {}
        self._swept = clock.monotonic()
        self._closed = False
        self._draining = False

    @property
    def waiting(self) -> int:
        """Objects claimed and not given to a worker yet."""
        return self._hand.waiting

    @property
    def outstanding(self) -> int:
        """Objects given to workers and not settled."""
        return self._hand.outstanding

    @property
    def stranded(self) -> bool:
        """Whether all that it has waits for workers, and there are none."""
        return not self._hand.outstanding and not any(
            self._workers.get(queue.job.topic)
            for queue in self._queues.values() if queue.waiting)

    def waits_for(self, authority: Authority) -> bool:
        """Whether claims of *authority* wait here."""
        return any(queue.waiting and self._again_of[queue.job.name].authority
                   is authority for queue in self._queues.values())

    def authority_of(self, batch: str) -> Authority | None:
        """Who decides about the batch of that id. None: it is over."""
        sent = self._sent.get(batch)
        return None if sent is None else sent.batch.authority

    def holder(self) -> str:
        """Under what name this scheduler takes leases now."""
        return member_.holder_of(self.entry())

    # -- what comes in

    def offer(self, job: job_.Job, own: in_flight.Own,
              claims: list[claim_.Claim],
              superseded: int = 0) -> None:
        """Queue claims of one lease; :meth:`pump` gives them to workers. The
        list is ours from now on.

        :param superseded: how many claims that wait here they made void.
        """
        if any([claim.attempt > 1 for claim in claims]):
            # Workers were lost with them in an earlier tick.
            claims = self._again_of[job.name].set_apart(job, own, claims)
        if claims or superseded:
            self._hand.put(job, own, claims, superseded)

    def workers_changed(self, partition: str,
                        members: Iterable[member_.Member]) -> None:
        """The workers of *partition* are these now.

        What a worker held that is gone, or that was gone in between, is
        taken back: it may have started, and then it runs again. A worker
        without slots drains: it keeps what it has and gets nothing more.
        """
        known = self._workers.setdefault(partition, {})
        present = {m.holder: m for m in members}
        for holder in [h for h in known if h not in present]:
            lost = known.pop(holder)
            self._holder_gone(holder)
            self._lose(lost)
        for holder, member in present.items():
            worker = known.get(holder)
            if worker is None:
                worker = known[holder] = in_flight.Worker(
                    member, pace_.Window(self._share(member), self._pace),
                    self._clock.monotonic())
            worker.member = member
            worker.window.slots = self._share(member)

    def schedulers_changed(self, members: Iterable[member_.Member]) -> None:
        """These members share the workers now: each gets its part."""
        present = [m for m in members if m.points]
        holders = {m.holder for m in present}
        # Without this one: what it holds itself it knows.
        for holder in sorted(
                (self._peers or set()) - holders - {self.holder()}):
            self._holder_gone(holder)
        self._peers = holders
        self._hand.schedulers = max(1, len(present))
        for workers in self._workers.values():
            for worker in workers.values():
                worker.window.slots = self._share(worker.member)

    def _holder_gone(self, holder: str) -> None:
        for one in self._again:
            one.holder_gone(holder)

    def _share(self, member: member_.Member) -> int:
        return max(1, member.slots // self._hand.schedulers)

    def reported(self, report: message.Report) -> None:
        """A worker tells what became of a batch, or that it lives."""
        sent = self._sent.get(report.batch)
        if sent is None or sent.batch.worker != report.worker:
            if report.size and self._told.may('dropped'):
                LOG.info('report dropped: batch=%s worker=%s reason=the '
                         'batch is settled or was taken back; others are '
                         'dropped in silence for a while',
                         report.batch, report.worker)
            return
        worker = sent.worker
        sent.sign = worker.heard = self._clock.monotonic()
        job = sent.queue.job
        done = sent.take(report.done)
        self.counts[job.name, 'done'] += len(done)
        free = [sent.batch.objects[index] for index in done]
        dead = self._settled_as('dead', sent, report.failed)
        if dead:
            self._dead.setdefault(job.name, []).extend(dead)
            free += [claim.object for claim, _ in dead]
        retried = self._settled_as('retried', sent, report.retried)
        ran = len(done) + len(dead) + len(retried)
        if ran and report.seconds:
            worker.window.note(job.name, ran, report.seconds)
        lost = len(sent.take(report.lost))
        self._hand.lost(job, lost)
        self._hand.settle(sent, ran + lost)
        if report.refused:
            self._refused(sent, report.refused)
        elif ran:
            for bound in sent.queue.bounds.values():
                bound.ran(report.seconds / ran, sent.sign)
        if free:
            self._put(events.Released(job, free))

    def _refused(self, sent: in_flight.Sent,
                 told: list[tuple[int, Refusal]]) -> None:
        worker, queue = sent.worker, sent.queue
        refusal = told[0][1]
        refused = sent.claims(sent.take(index for index, _ in told))
        if not refused:
            # Old news, or none: nothing of it is left to be refused.
            return
        self._hand.settle(sent, len(refused))
        if refusal is Refusal.UNKNOWN_JOB:
            worker.unknown.add(queue.job.name)
        elif refusal in queue.bounds:
            # Others have their part of it.
            queue.bounds[refusal].refused(
                worker.heard, self._random.random())
        else:
            # It drains, or is not sure of its membership: its entry goes at
            # any moment, and until then it would refuse again.
            worker.paused[queue.job.name] = worker.heard + _PAUSE
        # What was granted of it its worker has put back into the store: a
        # message alone takes nothing from a run.
        self._take_back(
            sent, refused, f'it was refused: {refusal.sentence}', ran=False)

    def _take_back(self, sent: in_flight.Sent, claims: list[claim_.Claim],
                   reason: str, ran: bool = True) -> None:
        self._again_of[sent.queue.job.name].take_back(
            sent, claims, reason, ran)

    def _settled_as(self, outcome: str, sent: in_flight.Sent,
                    told: list[tuple[int, str]]) -> list[
                        tuple[claim_.Claim, str]]:
        if not told:
            return []
        settled = [(claim, error) for index, error in told
                   for claim in sent.claims(sent.take([index]))]
        self.counts[sent.queue.job.name, outcome] += len(settled)
        return settled

    def unsent(self, batch: message.Batch, reason: str) -> None:
        """The bus could not hand *batch* to the broker.

        It may arrive all the same, later.
        """
        sent = self._sent.get(batch.id)
        if sent is None:
            return
        worker = sent.worker
        pause = worker.back_off.failed(self._clock.monotonic())
        if self._told.may('unsent'):
            LOG.warning(
                'not sent: job=%s objects=%d worker=%s reason=%s; they wait '
                'here and are sent again in %.0f s or to another worker',
                batch.job, sent.left, worker.member.identity, reason, pause)
        self._take_back(
            sent, self._hand.recall(sent), f'not surely sent: {reason}',
            ran=sent.queue.job.delivery is job_.Delivery.AT_MOST_ONCE)

    def sent(self, batch: message.Batch) -> None:
        """The broker has *batch*."""
        found = self._sent.get(batch.id)
        if found is not None:
            found.worker.back_off.reached()

    def sweep(self) -> None:
        """Take back what gave no sign within the lease, renew our leases, and
        take over those of others that ended.

        Call it several times a lease. Time in which nobody called it does
        not count: the signs that came meanwhile wait to be read.
        """
        now = self._clock.monotonic()
        away = now - self._swept
        self._swept = now
        if away > self._lease / 3:
            for sent in self._sent.values():
                sent.sign = min(now, sent.sign + away)
        silent: dict[str, tuple[in_flight.Worker, int]] = {}
        for sent in [s for s in self._sent.values()
                     if now - s.sign > self._lease]:
            worker, number = silent.get(
                sent.batch.worker, (sent.worker, 0))
            silent[sent.batch.worker] = worker, number + sent.left
            self._take_back(sent, self._hand.recall(sent),
                            'no sign from its worker')
        for worker, number in silent.values():
            LOG.warning(
                'no sign of work: worker=%s objects=%d lease=%.0f; they are '
                'taken back, and given to others if there are any',
                worker.member.identity, number, self._lease)
            if now - worker.heard > self._lease:
                # It may be there and hear nothing. The others first.
                worker.back_off.rest(now + self._lease)
        self._tell_dead()
        all_seen = (self._peers is not None
                    and len(self._workers) >= len(self._hand.turns))
        for one in self._again:
            one.renew(now)
            if not self._draining and not self._closed:
                one.sweep(now, self._present if all_seen else None)

    def _present(self) -> set[str]:
        """Who is in the groups."""
        return (self._peers or set()).union(*self._workers.values())

    def _tell_dead(self) -> None:
        # One line for each object would be 10,000 when a database is away.
        for name, dead in self._dead.items():
            claim, error = dead[0]
            LOG.error(
                'runs failed for good: job=%s objects=%d first=%r attempt=%d '
                'error=%s; they run again at their next tick', name,
                len(dead), claim.object, claim.attempt, error)
            for claim, error in dead[1:]:
                LOG.debug('run failed for good: job=%s object=%r attempt=%d '
                          'error=%s', name, claim.object, claim.attempt,
                          error)
        self._dead.clear()

    # -- what goes out

    def pump_all(self, sure: Callable[[], bool]) -> None:
        """Give waiting claims to the workers that have room.

        :param sure: whether this member may start now what the ring divides.
        """
        if self._hand.waiting and not self._closed:
            # Asking may find that others had the objects, and abandon them.
            is_sure = sure()
            me = self.entry()
            for partition in self._hand.turns:
                self._pump.pump(partition, me, is_sure)

    def _lose(self, worker: in_flight.Worker) -> None:
        for batch_id in list(worker.batches):
            sent = self._sent[batch_id]
            self._take_back(
                sent, self._hand.recall(sent), 'its worker is gone')

    def abandon(self, jobs: Iterable[str]) -> None:
        """Give up what waits of those of *jobs* that the ring divides: while
        this member was out of its group the others had their objects.
        """
        for queue in [self._queues[name] for name in jobs]:
            if queue.waiting and queue.job.scope is not job_.Scope.MEMBER:
                for group in self._hand.clear(queue):
                    self._again_of[queue.job.name].abandon(queue.job, group)

    def drain(self) -> None:
        """Take nothing over any more; give out what waits."""
        self._draining = True

    def close(self) -> None:
        """Give out nothing more."""
        self._closed = True
