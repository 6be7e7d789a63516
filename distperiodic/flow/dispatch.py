# SPDX-License-Identifier: Apache-2.0
"""A scheduler's side: from claims that wait to workers that have settled.

    offer ─► waiting ─► pump ─► sent ─► reported ─► settled
                ▲                 │
                └── take back ◄───┘  refused, not sent, worker gone, no sign

What waits, waits here as claims (in the store, once there is one) and not in
anybody's queue: a worker is given what its window has room for, and the
window is counted in seconds of its work (:mod:`distperiodic.core.pace`).
Jobs of one priority take turns, batch by batch.

Every claim that was won is counted once more, by where it is or how it
ended: waiting, outstanding, retrying; done, dead, superseded or left to
others.
"""

import collections
import heapq
import itertools
import logging
import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.core import schedule
from distperiodic.flow import quiet
from distperiodic.flow import work

LOG = logging.getLogger(__name__)

# A worker that could not be reached is left alone this long, then twice as
# long, and no longer: a back-off without a cap loses ticks, a fixed one
# floods.
_BACK_OFF = (1.0, 2.0)
_RETRY_CAP = 60.0
# How often, beyond its retries, a run is begun again whose worker was lost.
# A run that takes its worker down with it would else end all of them.
_LOSSES = 5


class _Worker:
    """One worker as this scheduler sees it."""

    __slots__ = ('batches', 'entry', 'failures', 'heard', 'member',
                 'not_before', 'paused', 'unknown', 'window')

    def __init__(self, member: member_.Member, window: pace_.Window,
                 now: float):
        self.member = member
        self.entry = member.entry
        self.window = window
        self.batches: set[str] = set()
        #: Jobs that it does not know, and ones that it refused until then.
        self.unknown: set[str] = set()
        self.paused: dict[str, float] = {}
        self.failures = 0
        self.not_before = 0.0
        self.heard = now


class _Sent:
    """A batch that was given to a worker."""

    __slots__ = ('batch', 'claims', 'cost', 'left', 'queue', 'sign',
                 'worker')

    def __init__(self, batch: message.Batch, worker: _Worker,
                 queue: '_Queue', claims: list[claim_.Claim | None],
                 cost: float, sign: float):
        self.batch = batch
        self.worker = worker
        self.queue = queue
        #: In the order of the batch; None: it was settled.
        self.claims = claims
        self.left = len(claims)
        self.cost = cost
        self.sign = sign

    def take(self, indexes: Iterable[int]) -> list[claim_.Claim]:
        """The claims at *indexes* that were not taken before."""
        taken = []
        claims = self.claims
        for index in indexes:
            if 0 <= index < len(claims):
                claim = claims[index]
                if claim is not None:
                    claims[index] = None
                    taken.append(claim)
        self.left -= len(taken)
        return taken


class _Queue:
    """What waits of one job."""

    __slots__ = ('groups', 'in_flight', 'job', 'listed', 'size', 'void')

    def __init__(self, job: job_.Job):
        self.job = job
        #: Each of one tick.
        self.groups: collections.deque[list[claim_.Claim]] = (
            collections.deque())
        self.size = 0
        #: How many of them were superseded while they waited.
        self.void = 0
        #: Runs that workers hold.
        self.in_flight = 0
        #: Whether it stands in the order of its partition.
        self.listed = False

    def newest(self) -> dict[str, int]:
        """The newest fence of each object here."""
        fences: dict[str, int] = {}
        for group in self.groups:
            for claim in group:
                if claim.fence > fences.get(claim.object, -1):
                    fences[claim.object] = claim.fence
        return fences


class Dispatcher:
    """What this scheduler has claimed and not seen the end of.

    :param me: this scheduler's membership entry, asked at each batch.
    :param lease: seconds without a sign of life after which a batch is
        taken back from its worker.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 claims: ports.ClaimStore, bus: ports.WorkBus,
                 clock: ports.Clock, me: Callable[[], str],
                 batch_size: int = 500, lease: float = 60.0,
                 random_: random.Random | None = None):
        self._claims = claims
        self._bus = bus
        self._clock = clock
        self._me = me
        self._batch_size = batch_size
        self._lease = lease
        self._random = random_ or random.Random()
        self._pace = pace_.Pace()
        self._order = itertools.count()
        self._batch_ids = itertools.count(1)
        self._queues = {name: _Queue(job) for name, job in jobs.items()}
        #: Partition to (-priority, order, queue), a heap.
        self._waiting: dict[str, list[tuple[int, int, _Queue]]] = {
            job.topic: [] for job in jobs.values()}
        self._workers: dict[str, dict[
            tuple[str, str, int], _Worker]] = {}
        self._sent: dict[str, _Sent] = {}
        self._schedulers = 1
        self._told = quiet.Quiet(clock, 30.0)
        #: What failed for the last time since the last sweep, by job.
        self._dead: dict[str, list[tuple[claim_.Claim, str]]] = {}
        self._swept = clock.monotonic()
        self._seen = clock.now()
        self._closed = False
        #: Objects claimed and not given to a worker yet.
        self.waiting = 0
        #: Objects given to workers and not settled.
        self.outstanding = 0
        #: Objects that wait for their next attempt.
        self.retrying = 0
        #: Told the objects of a job whose runs came to an end.
        self.freed: Callable[
            [job_.Job, list[str]], None] = lambda job, ids: None
        #: Whether this member may start now what the ring divides.
        self.sure: Callable[[], bool] = lambda: True
        #: (job, outcome) to how many objects.
        self.counts: collections.Counter[
            tuple[str, str]] = collections.Counter()

    # -- what comes in

    def offer(self, job: job_.Job, claims: list[claim_.Claim],
              superseded: int = 0) -> None:
        """Queue claims of one job and tick; :meth:`pump` gives them to
        workers. The list is ours from now on.

        :param superseded: how many claims that wait here they made void.
        """
        if not claims:
            return
        queue = self._queues[job.name]
        groups = queue.groups
        if groups and groups[-1][0].tick == claims[0].tick:
            groups[-1].extend(claims)
        else:
            groups.append(claims)
        queue.size += len(claims)
        self.waiting += len(claims)
        if superseded:
            queue.void += superseded
            if 2 * queue.void >= queue.size:
                self._discard_void(queue)
        if not queue.listed:
            queue.listed = True
            heapq.heappush(self._waiting[job.topic], (
                -job.priority, next(self._order), queue))

    def _discard_void(self, queue: _Queue) -> None:
        """Where no worker takes them, superseded claims would pile up."""
        newest = queue.newest()
        before = queue.size
        kept = [[c for c in group if c.fence == newest[c.object]]
                for group in queue.groups]
        queue.groups = collections.deque(group for group in kept if group)
        queue.size = sum(map(len, queue.groups))
        queue.void = 0
        self.waiting -= before - queue.size
        self.counts[queue.job.name, 'superseded'] += before - queue.size

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
            self._lose(known.pop(holder))
        for holder, member in present.items():
            worker = known.get(holder)
            if worker is None:
                worker = known[holder] = _Worker(
                    member, pace_.Window(self._share(member), self._pace),
                    self._clock.monotonic())
            worker.member, worker.entry = member, member.entry
            worker.window.slots = self._share(member)

    def schedulers_changed(self, number: int) -> None:
        """So many members share the workers: each gets its part."""
        self._schedulers = max(1, number)
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
        if done:
            counted = self._claims.finish(job.name, done)
            self.counts[job.name, 'done'] += counted
            self._lost(job, len(done) - counted)
        free = [c.object for c in done]
        settled = len(done)
        for index, error in report.failed:
            for claim in sent.take([index]):
                settled += 1
                if self._failed(job, claim, error):
                    free.append(claim.object)
        if settled and report.seconds:
            worker.window.note(job.name, settled, report.seconds)
        if report.refused:
            refused = sent.take(index for index, _ in report.refused)
            settled += len(refused)
            if report.refused[0][1] == work.UNKNOWN_JOB:
                worker.unknown.add(job.name)
            else:
                # It drains, or is not sure of its membership: its entry goes
                # at any moment, and until then it would refuse again.
                worker.paused[job.name] = worker.heard + _BACK_OFF[0]
            self._again(job, refused)
        self._settle(sent, settled)
        if free:
            self.freed(job, free)

    def unsent(self, batch: message.Batch, reason: str) -> None:
        """The bus could not hand *batch* to the broker.

        It may arrive all the same, later. Of a job that is at_most_once it
        is not sent again.
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
        job = sent.queue.job
        left = self._recall(sent)
        if job.delivery is job_.Delivery.AT_MOST_ONCE:
            self._give_up(job, left, f'not surely sent: {reason}')
        else:
            self._again(job, left)

    def sent(self, batch: message.Batch) -> None:
        """The broker has *batch*."""
        found = self._sent.get(batch.id)
        if found is not None:
            found.worker.failures = 0

    def sweep(self) -> None:
        """Take back what gave no sign within the lease; fetch retries.

        Call it several times a lease. Time in which nobody called it does
        not count: the signs that came meanwhile wait to be read.
        """
        now = self._clock.monotonic()
        away = now - self._swept
        self._swept = now
        if away > self._lease / 3:
            for sent in self._sent.values():
                sent.sign = min(now, sent.sign + away)
        silent: dict[str, tuple[_Worker, int]] = {}
        for sent in [s for s in self._sent.values()
                     if now - s.sign > self._lease]:
            worker, number = silent.get(
                sent.batch.worker, (sent.worker, 0))
            silent[sent.batch.worker] = worker, number + sent.left
            self._repeat(sent.queue.job, self._recall(sent),
                         'no sign from its worker')
        for worker, number in silent.values():
            LOG.warning(
                'no sign of work: worker=%s objects=%d lease=%.0f; they are '
                'taken back, and given to others if there are any',
                worker.member.identity, number, self._lease)
            if now - worker.heard > self._lease:
                # It may be there and hear nothing. The others first.
                worker.not_before = now + self._lease
        self._tell_dead()
        self._fetch_retries()
        self.pump_all()

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

    def _fetch_retries(self) -> None:
        now = until = self._clock.now()
        if now < self._seen - schedule.SECOND:
            # The clock was set back. All retries that wait are due within
            # the longest pause of the old time, and begin now.
            until = self._seen + int(_RETRY_CAP * schedule.SECOND)
        self._seen = now
        while True:
            due = self._claims.due_retries(until, 500)
            self.retrying -= len(due)
            for name, claim in due:
                self.offer(self._queues[name].job, [claim])
            if len(due) < 500:
                break

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
        me = self._me()
        passed = []
        shares: dict[str, int] = {}
        while waiting and free:
            priority, _, queue = waiting[0]
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

    def _tell_unknown(self, queue: _Queue) -> None:
        if self._told.may('unknown ' + queue.job.name):
            LOG.warning(
                'no worker: job=%s partition=%s objects=%d; those that are '
                'there do not know the job; they wait until one that does '
                'joins, run the same --tasks everywhere', queue.job.name,
                queue.job.topic, queue.size)

    def _give(self, queue: _Queue, free: list[_Worker],
              shares: dict[str, int], me: str, now: float) -> _Worker | None:
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
        group = queue.groups[0]
        if able > 1:
            share = shares.get(name, 0)
            if not share:
                share = shares[name] = -(-len(group) // able)
            number = min(number, share)
        if len(group) <= number:
            queue.groups.popleft()
            shares.pop(name, None)
            claims = group
        else:
            claims = group[:number]
            del group[:number]
        queue.size -= len(claims)
        self.waiting -= len(claims)
        entry = best.entry
        granted = self._claims.start(name, claims, worker=entry)
        if len(granted) < len(claims):
            # Superseded while they waited; the later tick is in the queue.
            queue.void = max(0, queue.void - len(claims) + len(granted))
            self._lost(job, len(claims) - len(granted))
            if not granted:
                return best
        batch = message.Batch(
            str(next(self._batch_ids)), name, granted[0].tick,
            [c.object for c in granted], [c.fence for c in granted],
            [c.attempt for c in granted], me, entry, job.topic, job.priority)
        self._sent[batch.id] = _Sent(
            batch, best, queue, [*granted], cost, now)
        best.batches.add(batch.id)
        best.window.give(len(granted), cost)
        queue.in_flight += len(granted)
        self.outstanding += len(granted)
        self._bus.send(batch)
        return best

    # -- what becomes of it

    def _settle(self, sent: _Sent, number: int) -> None:
        sent.worker.window.settle(number, sent.cost)
        sent.queue.in_flight -= number
        self.outstanding -= number
        if not sent.left:
            del self._sent[sent.batch.id]
            sent.worker.batches.discard(sent.batch.id)

    def _recall(self, sent: _Sent) -> list[claim_.Claim]:
        """What is left of a batch; its worker has no part in it any more."""
        left = sent.take(range(len(sent.claims)))
        self._settle(sent, len(left))
        return left

    def _lose(self, worker: _Worker) -> None:
        for batch_id in list(worker.batches):
            sent = self._sent[batch_id]
            self._repeat(sent.queue.job, self._recall(sent),
                         'its worker is gone')

    def _repeat(self, job: job_.Job, claims: list[claim_.Claim],
                reason: str) -> None:
        """Runs that may have begun, and whose end nobody will tell."""
        if job.delivery is job_.Delivery.AT_MOST_ONCE:
            self._give_up(job, claims, reason)
            return
        lost = [c for c in claims if c.attempt > job.retries + _LOSSES]
        if lost:
            self._give_up(job, lost, f'{reason}, attempt {lost[0].attempt}')
            claims = [c for c in claims
                      if c.attempt <= job.retries + _LOSSES]
        self.counts[job.name, 'repeated'] += len(claims)
        self._again(job, [
            claim_.Claim(c.object, c.fence, c.attempt + 1, c.tick)
            for c in claims])

    def _give_up(self, job: job_.Job, claims: list[claim_.Claim],
                 reason: str) -> None:
        """End as dead what may have run and must not run again."""
        if not claims:
            return
        dead = sum(self._claims.fail(job.name, claim, retry_at=None)
                   for claim in claims)
        self.counts[job.name, 'dead'] += dead
        self._lost(job, len(claims) - dead)
        LOG.error(
            'not repeated: job=%s delivery=%s objects=%d first=%r reason=%s; '
            'nothing runs them again for this tick', job.name,
            job.delivery.value, len(claims), claims[0].object, reason)
        self.freed(job, [c.object for c in claims])

    def _again(self, job: job_.Job, claims: list[claim_.Claim]) -> None:
        anew = self._claims.take_back(job.name, claims)
        self._lost(job, len(claims) - len(anew))
        self.offer(job, anew)

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
                name = queue.job.name
                dropped = sum(
                    self._claims.drop(name, group, claim_.State.CANCELLED)
                    for group in queue.groups)
                self.counts[name, 'left to others'] += dropped
                self._lost(queue.job, queue.size - dropped)
                self.waiting -= queue.size
                queue.groups.clear()
                queue.size = queue.void = 0
                queue.listed = False
        for partition, waiting in self._waiting.items():
            kept = [item for item in waiting if item[2].listed]
            heapq.heapify(kept)
            self._waiting[partition] = kept

    def _failed(self, job: job_.Job, claim: claim_.Claim,
                error: str) -> bool:
        """A run failed; returns whether it was the last attempt."""
        if (claim.attempt > job.retries
                or job.delivery is job_.Delivery.AT_MOST_ONCE):
            if self._claims.fail(job.name, claim, retry_at=None):
                self.counts[job.name, 'dead'] += 1
                self._dead.setdefault(job.name, []).append((claim, error))
            else:
                self._lost(job, 1)
            return True
        # Doubles, capped, with equal jitter (AWS Architecture Blog,
        # "Exponential Backoff And Jitter", 2015).
        pause = min(_RETRY_CAP,
                    job.retry_backoff * 2 ** min(claim.attempt - 1, 16))
        pause *= 0.5 + self._random.random() / 2
        if self._claims.fail(
                job.name, claim,
                retry_at=self._clock.now() + int(pause * schedule.SECOND)):
            self.counts[job.name, 'retried'] += 1
            self.retrying += 1
            return False
        self._lost(job, 1)
        return True

    def close(self) -> None:
        """Give out nothing more."""
        self._closed = True
