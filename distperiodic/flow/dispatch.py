# SPDX-License-Identifier: Apache-2.0
"""A scheduler's side: from claims that wait to workers that have settled.

    offer ─► waiting ─► pump ─► sent ─► reported ─► settled
                ▲                 │
                └── take back ◄───┘  refused, not sent, worker gone, no sign

What waits, waits here as claims (in the store, once there is one) and not in
anybody's queue: a worker is given what its window has room for, and the
window is counted in seconds of its work (:mod:`distperiodic.core.pace`).
"""

import collections
import heapq
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.core import schedule
from distperiodic.flow import work

LOG = logging.getLogger(__name__)

# A worker that could not be reached is left alone this long, then twice as
# long, and no longer: a back-off without a cap loses ticks, a fixed one
# floods.
_BACK_OFF = (1.0, 2.0)
_RETRY_CAP = 60.0


class _Worker:
    """One worker as this scheduler sees it."""

    def __init__(self, member: member_.Member, window: pace_.Window):
        self.member = member
        self.entry = member.entry
        self.window = window
        self.batches: set[str] = set()
        self.unknown: set[str] = set()
        self.failures = 0
        self.not_before = 0.0


class _Sent:
    """A batch that was given to a worker."""

    __slots__ = ('batch', 'worker', 'claims', 'left', 'cost', 'sign')

    def __init__(self, batch: message.Batch, worker: _Worker,
                 claims: Sequence[claim_.Claim], cost: float, sign: float):
        self.batch = batch
        self.worker = worker
        self.cost = cost
        self.claims: list[claim_.Claim | None] = list(claims)
        self.left = len(self.claims)
        self.sign = sign

    def take(self, indexes: Iterable[int]) -> list[claim_.Claim]:
        """The claims at *indexes* that were not taken before."""
        taken = []
        for index in indexes:
            if 0 <= index < len(self.claims):
                claim = self.claims[index]
                if claim is not None:
                    self.claims[index] = None
                    taken.append(claim)
        self.left -= len(taken)
        return taken


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
        self._jobs = jobs
        self._claims = claims
        self._bus = bus
        self._clock = clock
        self._me = me
        self._batch_size = batch_size
        self._lease = lease
        self._random = random_ or random.Random()
        self._pace = pace_.Pace()
        self._count = itertools.count(1)
        #: Partition to (-priority, sequence, job, claims).
        self._waiting: dict[str, list[tuple[
            int, int, str, collections.deque[claim_.Claim]]]] = {}
        self._workers: dict[str, dict[
            tuple[str, str, int], _Worker]] = {}
        self._sent: dict[str, _Sent] = {}
        self._in_flight: collections.Counter[str] = collections.Counter()
        self._schedulers = 1
        self._told: dict[str, float] = {}
        self._closed = False
        #: Told the objects of a job whose runs came to an end.
        self.freed: Callable[[str, list[str]], None] = lambda job, ids: None
        #: (job, outcome) to how many objects.
        self.counts: collections.Counter[
            tuple[str, str]] = collections.Counter()

    # -- what comes in

    def offer(self, job: job_.Job, claims: Iterable[claim_.Claim]) -> None:
        """Queue claims of one job; :meth:`pump` gives them to workers."""
        queue = collections.deque(claims)
        if queue:
            heapq.heappush(
                self._waiting.setdefault(job.topic, []),
                (-job.priority, next(self._count), job.name, queue))

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
            self._lose(known.pop(holder), 'its worker is gone')
        for holder, member in present.items():
            worker = known.get(holder)
            if worker is None:
                worker = known[holder] = _Worker(member, pace_.Window(
                    self._share(member), self._pace))
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
            if report.size:
                LOG.info('report dropped: batch=%s worker=%s reason=the '
                         'batch is settled or was taken back',
                         report.batch, report.worker)
            return
        sent.sign = self._clock.monotonic()
        job = self._jobs[sent.batch.job]
        runs = len(report.done) + len(report.failed)
        if runs:
            self._pace.note(job.name, runs, report.seconds)
        free: list[str] = []
        done = sent.take(report.done)
        if done:
            counted = self._claims.finish(job.name, done)
            self.counts[job.name, 'done'] += counted
            free += [c.object for c in done]
        for index, error in report.failed:
            for claim in sent.take([index]):
                self._failed(job, claim, error)
                free.append(claim.object)
        refused = sent.take(index for index, _ in report.refused)
        if refused:
            reason = report.refused[0][1]
            if reason == work.UNKNOWN_JOB:
                sent.worker.unknown.add(job.name)
            else:
                # It drains, or is not sure of its membership: its entry goes
                # at any moment, and until then it would refuse again.
                sent.worker.not_before = (
                    self._clock.monotonic() + _BACK_OFF[0])
            self._again(job, refused)
        self._settle(sent, len(done) + len(report.failed) + len(refused))
        if free:
            self.freed(job.name, free)

    def unsent(self, batch: message.Batch, reason: str) -> None:
        """The bus could not hand *batch* to the broker."""
        sent = self._sent.get(batch.id)
        if sent is None:
            return
        worker = sent.worker
        pause = _BACK_OFF[min(worker.failures, len(_BACK_OFF) - 1)]
        worker.failures += 1
        worker.not_before = self._clock.monotonic() + pause
        if self._tell_now('unsent ' + worker.entry):
            LOG.warning(
                'not sent: job=%s objects=%d worker=%s reason=%s; they wait '
                'here and are sent again in %.0f s or to another worker',
                batch.job, sent.left, worker.member.identity, reason, pause)
        job = self._jobs[batch.job]
        self._again(job, self._recall(sent))

    def sent(self, batch: message.Batch) -> None:
        """The broker has *batch*."""
        found = self._sent.get(batch.id)
        if found is not None:
            found.worker.failures = 0

    def sweep(self) -> None:
        """Take back what gave no sign within the lease; fetch retries."""
        now = self._clock.monotonic()
        for sent in [s for s in self._sent.values()
                     if now - s.sign > self._lease]:
            job = self._jobs[sent.batch.job]
            left = self._recall(sent)
            LOG.warning(
                'no sign of work: job=%s objects=%d worker=%s lease=%.0f; '
                'they are taken back', job.name, len(left),
                sent.worker.member.identity, self._lease)
            self._repeat(job, left, 'no sign from its worker')
        while True:
            due = self._claims.due_retries(self._clock.now(), 500)
            for name, claim in due:
                self.offer(self._jobs[name], [claim])
            if len(due) < 500:
                break
        for partition in self._waiting:
            self.pump(partition)

    # -- what goes out

    def pump_all(self) -> None:
        for partition in list(self._waiting):
            self.pump(partition)

    def pump(self, partition: str) -> None:
        """Give waiting claims to the workers that have room."""
        waiting = self._waiting.get(partition)
        if not waiting or self._closed:
            return
        workers = list(self._workers.get(partition, {}).values())
        now = self._clock.monotonic()
        held_back = []
        while waiting:
            item = waiting[0]
            _, _, name, queue = item
            able = [w for w in workers
                    if w.member.slots and w.not_before <= now
                    and name not in w.unknown]
            if self._give(self._jobs[name], queue, able):
                if not queue:
                    heapq.heappop(waiting)
                continue
            # No room for this one. Another job may still have room, where
            # this one is at its own limit or not known to some worker.
            held_back.append(heapq.heappop(waiting))
            if not able and self._tell_now('stuck ' + name):
                LOG.warning(
                    'no worker: job=%s partition=%s objects=%d; they wait '
                    'until a worker that knows the job joins; start one with '
                    'distperiodic worker', name, partition, len(queue))
            if len(held_back) >= 20:
                break
        for item in held_back:
            heapq.heappush(waiting, item)

    def _give(self, job: job_.Job,
              queue: 'collections.deque[claim_.Claim]',
              workers: list[_Worker]) -> bool:
        """Send one batch of *queue* to the worker with the least to do."""
        room = {w.entry: w.window.room(job.name) for w in workers}
        ready = [w for w in workers if room[w.entry]]
        limit = self._batch_size
        if job.max_in_flight is not None:
            share = max(1, job.max_in_flight // self._schedulers)
            limit = min(limit, share - self._in_flight[job.name])
        if not ready or limit <= 0:
            return False
        worker = min(ready, key=lambda w: (
            w.window.seconds, w.window.held / w.window.slots))
        # Not the whole of a small burst to the first worker.
        fair = -(-len(queue) // len(ready))
        number = min(limit, room[worker.entry], fair, len(queue))
        claims = [queue.popleft() for _ in range(number)]
        granted = self._claims.start(job.name, claims, worker=worker.entry)
        if len(granted) < len(claims):
            # Superseded while they waited; the later tick is in the queue.
            self.counts[job.name, 'superseded'] += (
                len(claims) - len(granted))
        if not granted:
            return True
        batch = message.Batch(
            id=str(next(self._count)), job=job.name, tick=granted[0].tick,
            objects=[c.object for c in granted],
            fences=[c.fence for c in granted],
            attempts=[c.attempt for c in granted],
            sender=self._me(), worker=worker.entry, partition=job.topic,
            priority=job.priority)
        cost = worker.window.cost(job.name)
        self._sent[batch.id] = _Sent(
            batch, worker, granted, cost, self._clock.monotonic())
        worker.batches.add(batch.id)
        worker.window.give(len(granted), cost)
        self._in_flight[job.name] += len(granted)
        self._bus.send(batch)
        return True

    # -- what becomes of it

    def _settle(self, sent: _Sent, number: int) -> None:
        if not number:
            return
        name = sent.batch.job
        sent.worker.window.settle(number, sent.cost)
        self._in_flight[name] -= number
        if not sent.left:
            self._sent.pop(sent.batch.id, None)
            sent.worker.batches.discard(sent.batch.id)

    def _recall(self, sent: _Sent) -> list[claim_.Claim]:
        """What is left of a batch; its worker has no part in it any more."""
        left = sent.take(range(len(sent.claims)))
        self._settle(sent, len(left))
        return left

    def _lose(self, worker: _Worker, reason: str) -> None:
        for batch_id in list(worker.batches):
            sent = self._sent[batch_id]
            self._repeat(self._jobs[sent.batch.job], self._recall(sent),
                         reason)

    def _repeat(self, job: job_.Job, claims: list[claim_.Claim],
                reason: str) -> None:
        """Runs that may have begun, and whose end nobody will tell."""
        if job.delivery is job_.Delivery.AT_MOST_ONCE:
            for claim in claims:
                self._claims.fail(job.name, claim, retry_at=None)
            self.counts[job.name, 'dead'] += len(claims)
            if claims:
                LOG.error(
                    'not repeated: job=%s objects=%d reason=%s; the job is '
                    'at_most_once, so nothing will run them for this tick',
                    job.name, len(claims), reason)
                self.freed(job.name, [c.object for c in claims])
            return
        self.counts[job.name, 'repeated'] += len(claims)
        self._again(job, [c._replace(attempt=c.attempt + 1) for c in claims])

    def abandon(self) -> None:
        """Give up what waits for jobs that the ring divides: while this
        member was out of its group the others had their objects."""
        for waiting in self._waiting.values():
            kept = []
            for item in waiting:
                job = self._jobs[item[2]]
                if job.scope is job_.Scope.MEMBER:
                    kept.append(item)
                else:
                    self.counts[job.name, 'left to others'] += (
                        self._claims.drop(
                            job.name, item[3], claim_.State.CANCELLED))
            waiting[:] = kept
            heapq.heapify(waiting)

    def _again(self, job: job_.Job, claims: list[claim_.Claim]) -> None:
        self.offer(job, self._claims.take_back(job.name, claims))

    def _failed(self, job: job_.Job, claim: claim_.Claim,
                error: str) -> None:
        if (claim.attempt > job.retries
                or job.delivery is job_.Delivery.AT_MOST_ONCE):
            if self._claims.fail(job.name, claim, retry_at=None):
                self.counts[job.name, 'dead'] += 1
                LOG.error(
                    'run failed for good: job=%s object=%r attempt=%d '
                    'error=%s; the object runs again at its next tick',
                    job.name, claim.object, claim.attempt, error)
            return
        # Doubles, capped, with full jitter (AWS Architecture Blog,
        # "Exponential Backoff And Jitter", 2015).
        pause = min(_RETRY_CAP,
                    job.retry_backoff * 2 ** min(claim.attempt - 1, 16))
        pause *= 0.5 + self._random.random() / 2
        if self._claims.fail(
                job.name, claim,
                retry_at=self._clock.now() + int(pause * schedule.SECOND)):
            self.counts[job.name, 'retried'] += 1

    # -- how it stands

    @property
    def outstanding(self) -> int:
        """Objects given to workers and not settled."""
        return sum(s.left for s in self._sent.values())

    @property
    def waiting(self) -> int:
        """Objects claimed and not given to a worker yet."""
        return sum(len(item[3]) for queue in self._waiting.values()
                   for item in queue)

    def close(self) -> None:
        """Give out nothing more."""
        self._closed = True

    def _tell_now(self, what: str) -> bool:
        now = self._clock.monotonic()
        if now - self._told.get(what, -30.0) < 30.0:
            return False
        self._told[what] = now
        return True
