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

import collections
import heapq
import itertools
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.flow import in_hand
from distperiodic.flow import quiet
from distperiodic.flow import work

LOG = logging.getLogger(__name__)

# A worker that could not be reached is left alone this long, then twice as
# long, and no longer: a back-off without a cap loses ticks, a fixed one
# floods.
_BACK_OFF = (1.0, 2.0)
# How often, beyond its retries, a run is begun again whose worker was lost.
# A run that takes its worker down with it would else end all of them.
_LOSSES = 5
# Leases that are taken over in one go.
_AT_A_TIME = 100
# Seconds for which the leases of a process that has left its group are taken
# over at once. What it should hold later ends by the clock, for it may be
# alive and merely cut off from the others.
_GONE = 5.0


class Dispatcher:
    """What this scheduler has claimed and not seen the end of.

    :param me: this scheduler's membership entry, asked at each batch.
    :param lease: seconds without a sign of life after which a batch is
        taken back from its worker.
    :param sweep: seconds between two looks for leases that ended.
    :param silent: seconds without a renewal after which the leases of a
        process that is gone are taken over.
    :param shared: whether all members and workers claim in one store. If
        not, nothing but this scheduler knows of the claims.
    :param series: how the ids of the batches begin.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 store: ports.StoreQueue, bus: ports.WorkBus,
                 clock: ports.Clock, me: Callable[[], str],
                 new_lease: Callable[[], str], batch_size: int = 500,
                 lease: float = 60.0, sweep: float = 0.0,
                 silent: float = 0.0, shared: bool = False,
                 series: str = ''):
        self._store = store
        self._new_lease = new_lease
        self._shared = shared
        self._bus = bus
        self._clock = clock
        #: This scheduler's membership entry.
        self.entry = me
        self._batch_size = batch_size
        self._lease = lease
        self._sweep = sweep
        self._silent = silent
        self._renew_every = lease / 3
        if shared and silent:
            self._renew_every = min(lease, silent) / 3
        self._pace = pace_.Pace()
        self._order = itertools.count()
        self._batch_ids = (f'{series}{n}' for n in itertools.count(1))
        self._queues = {name: in_hand.Queue(job) for name, job in jobs.items()}
        #: Partition to (-priority, order, queue), a heap.
        self._waiting: dict[str, list[tuple[int, int, in_hand.Queue]]] = {
            job.topic: [] for job in jobs.values()}
        self._workers: dict[str, dict[str, in_hand.Worker]] = {}
        self._sent: dict[str, in_hand.Sent] = {}
        self._schedulers = 1
        self._peers: set[str] = set()
        self._told = quiet.Quiet(clock, 30.0)
        #: What failed for the last time since the last sweep, by job.
        self._dead: dict[str, list[tuple[claim_.Claim, str]]] = {}
        self._swept = self._renewed = self._looked = clock.monotonic()
        self._asking = False
        #: Processes that were seen to go, and when.
        self._gone: dict[str, float] = {}
        self._closed = False
        #: Objects claimed and not given to a worker yet.
        self.waiting = 0
        #: Objects given to workers and not settled.
        self.outstanding = 0
        #: Told the objects of a job whose runs came to an end.
        self.freed: Callable[
            [job_.Job, list[str]], None] = lambda job, ids: None
        #: Whether this member may start now what the ring divides.
        self.sure: Callable[[], bool] = lambda: True
        #: (job, outcome) to how many objects.
        self.counts: collections.Counter[
            tuple[str, str]] = collections.Counter()

    def holder(self) -> str:
        """Under what name this scheduler holds leases."""
        return member_.process_of(self.entry())

    # -- what comes in

    def offer(self, job: job_.Job, lease: str, claims: list[claim_.Claim],
              superseded: int = 0) -> None:
        """Queue claims of one lease; :meth:`pump` gives them to workers. The
        list is ours from now on.

        :param superseded: how many claims that wait here they made void.
        """
        if not claims:
            return
        queue = self._queues[job.name]
        queue.put(lease, claims)
        self.waiting += len(claims)
        if superseded:
            queue.void += superseded
            if 2 * queue.void >= queue.size:
                self._discarded(queue, queue.discard_void())
        if not queue.listed:
            queue.listed = True
            heapq.heappush(self._waiting[job.topic], (
                -job.priority, next(self._order), queue))

    def _discarded(self, queue: in_hand.Queue, number: int) -> None:
        self.waiting -= number
        self._lost(queue.job, number)

    def workers_changed(self, partition: str,
                        members: Iterable[member_.Member]) -> None:
        """The workers of *partition* are these now.

        What a worker held that is gone, or that was gone in between, is
        taken back: it may have started, and then it runs again. A worker
        without slots drains: it keeps what it has and gets nothing more.
        """
        known = self._workers.setdefault(partition, {})
        present = {m.holder: m for m in members}
        processes = {m.process for m in present.values()}
        for holder in [h for h in known if h not in present]:
            lost = known.pop(holder)
            if lost.member.process not in processes:
                self.process_gone(lost.member.process)
            self._lose(lost)
        for holder, member in present.items():
            worker = known.get(holder)
            if worker is None:
                worker = known[holder] = in_hand.Worker(
                    member, pace_.Window(self._share(member), self._pace),
                    self._clock.monotonic())
            worker.member, worker.entry = member, member.entry
            worker.window.slots = self._share(member)

    def process_gone(self, process: str) -> None:
        """*process* was seen to leave its group: what it holds is free."""
        if self._shared:
            self._gone[process] = self._clock.monotonic()

    def schedulers_changed(self, members: Iterable[member_.Member]) -> None:
        """These members share the workers now: each gets its part."""
        present = [m for m in members if m.points]
        processes = {m.process for m in present}
        for process in self._peers - processes:
            self.process_gone(process)
        self._peers = processes
        self._schedulers = max(1, len(present))
        for workers in self._workers.values():
            for worker in workers.values():
                worker.window.slots = self._share(worker.member)

    def _share(self, member: member_.Member) -> int:
        return max(1, member.slots // self._schedulers)

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
        free = [c.object for c in done]
        dead = self._settled_as('dead', sent, report.failed)
        if dead:
            self._dead.setdefault(job.name, []).extend(dead)
            free += [claim.object for claim, _ in dead]
        retried = self._settled_as('retried', sent, report.retried)
        ran = len(done) + len(dead) + len(retried)
        if ran and report.seconds:
            worker.window.note(job.name, ran, report.seconds)
        lost = len(sent.take(report.lost))
        self._lost(job, lost)
        self._settle(sent, ran + lost)
        if report.refused:
            if report.refused[0][1] == work.UNKNOWN_JOB:
                worker.unknown.add(job.name)
            else:
                # It drains, or is not sure of its membership: its entry goes
                # at any moment, and until then it would refuse again.
                worker.paused[job.name] = worker.heard + _BACK_OFF[0]
            refused = sent.take(index for index, _ in report.refused)
            self._settle(sent, len(refused))
            self._take_back(sent, refused, 'it was refused', ran=False)
        if free:
            self.freed(job, free)

    def _settled_as(self, outcome: str, sent: in_hand.Sent,
                    told: list[tuple[int, str]]) -> list[
                        tuple[claim_.Claim, str]]:
        settled = [(claim, error) for index, error in told
                   for claim in sent.take([index])]
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
        now = self._clock.monotonic()
        pause = _BACK_OFF[min(worker.failures, len(_BACK_OFF) - 1)]
        if now >= worker.not_before:
            # Several at a time fail for one reason, and count once.
            worker.failures += 1
            worker.not_before = now + pause
        if self._told.may('unsent'):
            LOG.warning(
                'not sent: job=%s objects=%d worker=%s reason=%s; they wait '
                'here and are sent again in %.0f s or to another worker',
                batch.job, sent.left, worker.member.identity, reason, pause)
        # In a store that the worker can reach, what it has begun is its own.
        self._take_back(
            sent, self._recall(sent), f'not surely sent: {reason}',
            begun=not self._shared, ran=sent.queue.job.delivery is
            job_.Delivery.AT_MOST_ONCE)

    def sent(self, batch: message.Batch) -> None:
        """The broker has *batch*."""
        found = self._sent.get(batch.id)
        if found is not None:
            found.worker.failures = 0

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
        silent: dict[str, tuple[in_hand.Worker, int]] = {}
        for sent in [s for s in self._sent.values()
                     if now - s.sign > self._lease]:
            worker, number = silent.get(
                sent.batch.worker, (sent.worker, 0))
            silent[sent.batch.worker] = worker, number + sent.left
            self._take_back(sent, self._recall(sent),
                            'no sign from its worker',
                            begun=not self._shared)
        for worker, number in silent.values():
            LOG.warning(
                'no sign of work: worker=%s objects=%d lease=%.0f; they are '
                'taken back, and given to others if there are any',
                worker.member.identity, number, self._lease)
            if now - worker.heard > self._lease:
                # It may be there and hear nothing. The others first.
                worker.not_before = now + self._lease
        self._tell_dead()
        if now - self._renewed >= self._renew_every:
            self._renewed = now
            self._renew()
        if now - self._looked >= self._sweep:
            self._looked = now
            self._take_over(now)
        self.pump_all()

    def _renew(self) -> None:
        """Go on holding what waits here."""
        leases = sorted(set().union(*(
            queue.leases() for queue in self._queues.values())))
        if not leases:
            return
        holder = self.holder()

        def renewed(held: set[str]) -> None:
            lost = set(leases) - held
            if lost:
                for queue in self._queues.values():
                    self._discarded(queue, queue.discard_leases(lost))
        self._store.ask(
            lambda store: store.renew(
                leases, holder=holder, seconds=self._lease), renewed)

    def _take_over(self, now: float) -> None:
        """Ask for leases that ended: retries that are due, and what others
        held that are gone.
        """
        if self._asking or self._closed:
            return
        for process in [p for p, at in self._gone.items()
                        if now - at > _GONE + self._silent]:
            del self._gone[process]
        self._asking = True
        jobs, gone = list(self._queues), list(self._gone)
        holder = self.holder()
        self._store.ask(
            lambda store: store.overdue(
                jobs, holder=holder, seconds=self._lease, gone=gone,
                limit=_AT_A_TIME, silent=self._silent),
            self._taken_over, lambda: self._taken_over([]))

    def _taken_over(self, leases: list[claim_.Lease]) -> None:
        self._asking = False
        for lease in leases:
            job = self._queues[lease.job].job
            self.counts[job.name, 'taken over'] += len(lease.claims)
            self._offer_again(job, lease.id, lease.claims,
                              'its lease has ended', lease.was)
        if len(leases) == _AT_A_TIME:
            self._take_over(self._clock.monotonic())

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

    def pump_all(self) -> None:
        for partition in self._waiting:
            self.pump(partition)

    def pump(self, partition: str) -> None:
        """Give waiting claims to the workers that have room."""
        if not self._waiting.get(partition) or self._closed:
            return
        # Asking may find that others had the objects, and abandon them.
        sure = self.sure()
        waiting = self._waiting[partition]
        workers = [w for w in self._workers.get(partition, {}).values()
                   if w.member.slots]
        if not workers:
            if self._told.may('alone ' + partition):
                LOG.warning(
                    'no worker: partition=%s jobs=%d; their objects wait '
                    'until one joins; start one with distperiodic worker',
                    partition, len(waiting))
            return
        now = self._clock.monotonic()
        free = [w for w in workers
                if w.not_before <= now and not w.window.full]
        me = self.entry()
        passed = []
        shares: dict[str, int] = {}
        while waiting and free:
            priority, _, queue = waiting[0]
            if not queue.size:
                # What waited was lost.
                heapq.heappop(waiting)
                queue.listed = False
                continue
            if not sure and queue.job.scope is not job_.Scope.MEMBER:
                passed.append(heapq.heappop(waiting))
                continue
            worker = self._give(queue, free, shares, me, now)
            if worker is not None and worker.window.full:
                free.remove(worker)
            if not queue.size:
                heapq.heappop(waiting)
                queue.listed = False
            elif worker is not None:
                # The others of its priority have their turn first.
                heapq.heapreplace(
                    waiting, (priority, next(self._order), queue))
            else:
                # At its own limit, or its workers have no room for it.
                passed.append(heapq.heappop(waiting))
                if all(queue.job.name in w.unknown for w in workers):
                    self._tell_unknown(queue)
        for item in passed:
            heapq.heappush(waiting, item)

    def _tell_unknown(self, queue: in_hand.Queue) -> None:
        if self._told.may('unknown ' + queue.job.name):
            LOG.warning(
                'no worker: job=%s partition=%s objects=%d; those that are '
                'there do not know the job; they wait until one that does '
                'joins, run the same --tasks everywhere', queue.job.name,
                queue.job.topic, queue.size)

    def _give(self, queue: in_hand.Queue, free: list[in_hand.Worker],
              shares: dict[str, int], me: str,
              now: float) -> in_hand.Worker | None:
        """Send one batch of *queue* to the worker with the least to do.

        :param shares: how much of its oldest tick one worker gets at a
            time, by job: not the whole of a small burst to the first.
        :returns: that worker; None: nobody may have any of it now.
        """
        job = queue.job
        name = job.name
        best, least, number, cost, able = None, (0.0, 0.0), 0, 0.0, 0
        for worker in free:
            if name in worker.unknown or worker.paused.get(name, 0.0) > now:
                continue
            window = worker.window
            its_cost = window.cost(name)
            room = window.room(its_cost)
            if room:
                able += 1
                load = (window.seconds, window.held / window.slots)
                if best is None or load < least:
                    best, least, number, cost = worker, load, room, its_cost
        number = min(number, self._batch_size)
        if job.max_in_flight is not None:
            most = max(1, job.max_in_flight // self._schedulers)
            number = min(number, most - queue.in_flight)
        if best is None or number <= 0:
            return None
        if able > 1:
            share = shares.get(name, 0)
            if not share:
                share = shares[name] = -(-len(queue.groups[0].claims) // able)
            number = min(number, share)
        groups = len(queue.groups)
        group = queue.take(number)
        if len(queue.groups) < groups:
            shares.pop(name, None)
        claims = group.claims
        self.waiting -= len(claims)
        batch = message.Batch(
            next(self._batch_ids), name, claims[0].tick,
            [c.object for c in claims], [c.fence for c in claims],
            [c.attempt for c in claims], me, best.entry, group.lease,
            job.topic, job.priority)
        self._sent[batch.id] = in_hand.Sent(
            batch, best, queue, [*claims], cost, now)
        best.batches[batch.id] = None
        best.window.give(len(claims), cost)
        queue.in_flight += len(claims)
        self.outstanding += len(claims)
        self._bus.send(batch)
        return best

    # -- what becomes of it

    def _settle(self, sent: in_hand.Sent, number: int) -> None:
        sent.worker.window.settle(number, sent.cost)
        sent.queue.in_flight -= number
        self.outstanding -= number
        if not sent.left:
            del self._sent[sent.batch.id]
            sent.worker.batches.pop(sent.batch.id, None)

    def _recall(self, sent: in_hand.Sent) -> list[claim_.Claim]:
        """What is left of a batch; its worker has no part in it any more."""
        left = sent.take(range(len(sent.claims)))
        self._settle(sent, len(left))
        return left

    def _lose(self, worker: in_hand.Worker) -> None:
        for batch_id in list(worker.batches):
            sent = self._sent[batch_id]
            # In a store that it can reach, what it has begun is its own
            # until it is silent: it may be cut off from the group alone.
            self._take_back(sent, self._recall(sent), 'its worker is gone',
                            begun=not self._shared)

    def _take_back(self, sent: in_hand.Sent, claims: list[claim_.Claim],
                   reason: str, begun: bool = True,
                   ran: bool = True) -> None:
        """Claim anew what a worker was given and will not end.

        :param begun: also what was granted to it.
        :param ran: whether that may have run.
        """
        if not claims:
            return
        job, batch = sent.queue.job, sent.batch
        leases = [batch.lease]
        if begun:
            leases.append(claim_.granted_lease(batch.lease, batch.id))
        keys = [c.object for c in claims]
        into = self._new_lease()
        holder = self.holder()

        def taken(anew: list[claim_.Claim]) -> None:
            self._lost(job, len(claims) - len(anew))
            self._offer_again(job, into, anew, reason, claim_.State.RUNNING)
        self._store.ask(
            lambda store: store.take_back(
                job.name, batch.tick, keys, leases=leases, into=into,
                holder=holder, seconds=self._lease, ran=ran),
            taken)

    def _offer_again(self, job: job_.Job, lease: str,
                     claims: list[claim_.Claim], reason: str,
                     was: claim_.State) -> None:
        """Queue claims that somebody had before; some may have run."""
        most = job.retries + _LOSSES + 1
        if job.delivery is job_.Delivery.AT_MOST_ONCE:
            most = 1
        over = [c for c in claims if c.attempt > most]
        if over:
            self._give_up(job, lease, over, reason)
            claims = [c for c in claims if c.attempt <= most]
        if was is claim_.State.RUNNING:
            self.counts[job.name, 'repeated'] += sum(
                c.attempt > 1 for c in claims)
        self.offer(job, lease, claims)

    def _give_up(self, job: job_.Job, lease: str,
                 claims: list[claim_.Claim], reason: str) -> None:
        """End as dead what may have run and must not run again."""
        def dropped(dead: int) -> None:
            self.counts[job.name, 'dead'] += dead
            self._lost(job, len(claims) - dead)
            LOG.error(
                'not repeated: job=%s delivery=%s objects=%d first=%r '
                'attempts=%d reason=%s; nothing runs them again for this '
                'tick', job.name, job.delivery.value, len(claims),
                claims[0].object, claims[0].attempt - 1, reason)
            self.freed(job, [c.object for c in claims])
        keys = [c.object for c in claims]
        self._store.ask(
            lambda store: store.drop(
                job.name, claims[0].tick, keys, lease=lease,
                ending=claim_.State.DEAD, reason=reason),
            dropped)

    def _lost(self, job: job_.Job, number: int) -> None:
        """A later claim of these objects took the place of ours."""
        if number:
            self.counts[job.name, 'superseded'] += number

    def abandon(self) -> None:
        """Give up what waits for jobs that the ring divides: while this
        member was out of its group the others had their objects.
        """
        for queue in self._queues.values():
            if queue.size and queue.job.scope is not job_.Scope.MEMBER:
                self.waiting -= queue.size
                queue.listed = False
                for group in queue.clear():
                    self._abandon(queue.job, group)
        for partition, waiting in self._waiting.items():
            kept = [item for item in waiting if item[2].listed]
            heapq.heapify(kept)
            self._waiting[partition] = kept

    def _abandon(self, job: job_.Job, group: in_hand.Group) -> None:
        def dropped(number: int) -> None:
            self.counts[job.name, 'left to others'] += number
            self._lost(job, len(group.claims) - number)
        self._store.ask(
            lambda store: store.drop(
                job.name, group.claims[0].tick,
                [c.object for c in group.claims], lease=group.lease,
                ending=claim_.State.CANCELLED),
            dropped)

    def close(self) -> None:
        """Give out nothing more."""
        self._closed = True
