# SPDX-License-Identifier: Apache-2.0
"""Work of a scheduler that has not ended.

The work consists of waiting claims, and of batches that were sent to workers.
"""

import collections
import heapq
import itertools
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from distperiodic.core import message
from distperiodic.core.adaptive_limit import AdaptiveLimit
from distperiodic.core.claim import Claim
from distperiodic.core.credit import CreditWindow
from distperiodic.core.job import Job
from distperiodic.core.member import Member
from distperiodic.core.partition import Partitions
from distperiodic.core.partition import limits_of
from distperiodic.core.refusal import Refusal

# Maximum number of suspects in one batch if each of them has attempt 3.
_SUSPECT_BATCH = 16


def suspect_batch_size(claim: Claim) -> int | None:
    """Return the maximum size of a batch that contains *claim*.

    None means that the claim is not a suspect, so any batch may contain it.
    See :class:`distperiodic.flow.scheduler.batcher.Batcher`. A claim does not
    contain the number of its losses. So the number of the attempt is used
    instead, which is higher if runs have also failed.
    """
    if claim.attempt <= 2:
        return None
    return _SUSPECT_BATCH if claim.attempt == 3 else 1


class BackOff:
    """Pauses after failed attempts to send to a worker."""

    __slots__ = ('_failures', '_until')

    # Seconds of the first pause, and of each later pause. Longer pauses would
    # delay ticks too much, and shorter ones would repeat failures too often.
    _PAUSES = (1.0, 2.0)

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def over(self, now: float) -> bool:
        """Return whether no pause is in progress."""
        return now >= self._until

    def rest(self, until: float) -> None:
        """Make a pause until *until*, in monotonic seconds."""
        self._until = until

    def failed(self, now: float) -> float:
        """Record that a batch could not be sent.

        A failure during a pause is ignored, because it probably has the same
        cause as the failure that began the pause.

        :returns: Seconds of the pause, or of the next pause if a pause was
            already in progress.
        """
        pause = self._PAUSES[min(self._failures, len(self._PAUSES) - 1)]
        if self.over(now):
            self._failures += 1
            self._until = now + pause
        return pause

    def reached(self) -> None:
        """Record that a batch was sent."""
        self._failures = 0


class Worker:
    """State of one worker, as this scheduler knows it."""

    __slots__ = ('back_off', 'batches', 'last_heard', 'member', 'paused',
                 'reserved_until', 'suspect_batch', 'unknown_jobs', 'window')

    def __init__(self, member: Member, window: CreditWindow,
                 now: float):
        self.member = member
        self.window = window
        #: Ids of the batches that the worker holds, in the order in which they
        #: were sent.
        self.batches: dict[str, None] = {}
        #: Jobs that the worker does not know.
        self.unknown_jobs: set[str] = set()
        #: Jobs of which the worker refused a batch. The value is the monotonic
        #: time in seconds until which the worker receives no batch of the job.
        self.paused: dict[str, float] = {}
        self.back_off = BackOff()
        self.last_heard = now
        #: Monotonic time until which the worker is reserved for suspects, in
        #: seconds. None means that it is not reserved.
        self.reserved_until: float | None = None
        #: Id of the last batch of suspects that the worker received.
        self.suspect_batch = ''


class SentBatch:
    """A batch that was sent to a worker."""

    __slots__ = ('batch', 'cost', 'last_seen', 'left', 'open', 'queue',
                 'worker')

    def __init__(self, batch: message.Batch, worker: Worker, queue: 'Queue',
                 cost: float, last_seen: float):
        self.batch = batch
        self.worker = worker
        self.queue = queue
        self.left = len(batch.objects)
        #: For each object of the batch: 1 while its outcome is unknown, 0
        #: afterwards.
        self.open = bytearray(b'\1' * self.left)
        self.cost = cost
        self.last_seen = last_seen

    def take(self, indexes: Iterable[int]) -> list[int]:
        """Mark objects as ended.

        :returns: Those of *indexes* that were not marked before.
        """
        taken = []
        open_ = self.open
        for index in indexes:
            if 0 <= index < len(open_) and open_[index]:
                open_[index] = 0
                taken.append(index)
        self.left -= len(taken)
        return taken

    def claims(self, indexes: Iterable[int]) -> list[Claim]:
        """Return the claims of the objects at *indexes*."""
        batch = self.batch
        return [Claim(batch.objects[i], batch.fences[i],
                      batch.attempts[i], batch.tick)
                for i in indexes]


class HeldLease(NamedTuple):
    """A lease that this scheduler holds."""

    id: str
    #: Name of the holder. A scheduler has one name per tenure.
    holder: str


class Group:
    """Waiting claims of one lease."""

    __slots__ = ('claims', 'lease')

    def __init__(self, lease: HeldLease, claims: list[Claim]):
        self.lease = lease
        self.claims = claims


class Queue:
    """The waiting claims of one job, and the limits on its concurrent runs."""

    __slots__ = ('bounds', 'groups', 'job', 'listed', 'size', 'superseded',
                 'suspects')

    def __init__(self, job: Job,
                 bounds: Mapping[Refusal, AdaptiveLimit]):
        self.job = job
        #: The limits of the job and of its partition. The key is the refusal
        #: of a run that would exceed the limit.
        self.bounds = bounds
        self.groups: collections.deque[Group] = collections.deque()
        #: Number of claims in *groups*.
        self.size = 0
        #: Claims whose runs were lost with their workers more than once. These
        #: claims run separately from other claims; see
        #: :class:`distperiodic.flow.scheduler.batcher.Batcher`.
        self.suspects: collections.deque[Group] = collections.deque()
        #: Number of claims that were superseded while they waited.
        self.superseded = 0
        #: True if the queue is in the heap of its partition.
        self.listed = False

    def put(self, lease: HeldLease, claims: list[Claim]) -> None:
        self.groups.append(Group(lease, claims))
        self.size += len(claims)

    def take(self, number: int) -> Group:
        """Remove and return up to *number* of the oldest claims.

        The result contains claims of only one lease.
        """
        first = self.groups[0]
        if len(first.claims) <= number:
            self.groups.popleft()
        else:
            rest = first.claims[number:]
            del first.claims[number:]
            self.groups[0] = Group(first.lease, rest)
        self.size -= len(first.claims)
        return first

    @property
    def waiting(self) -> int:
        """Number of waiting claims, suspects included."""
        return self.size + sum(len(group.claims) for group in self.suspects)

    def leases(self) -> set[HeldLease]:
        """Return the leases of the waiting claims."""
        return {group.lease for group in (*self.groups, *self.suspects)}

    def discard_superseded(self) -> int:
        """Remove superseded claims, and return their number.

        A later claim of an object supersedes its earlier claims. If these were
        kept, they would use more and more memory while no worker has room for
        them.
        """
        newest: dict[str, int] = {}
        for group in (*self.groups, *self.suspects):
            for claim in group.claims:
                if claim.fence > newest.get(claim.object, -1):
                    newest[claim.object] = claim.fence
        self.superseded = 0
        return self._keep(lambda group: [
            c for c in group.claims if c.fence == newest[c.object]])

    def discard_leases(self, lost: AbstractSet[str]) -> int:
        """Remove the claims in *lost* leases, and return their number."""
        return self._keep(
            lambda group: [] if group.lease.id in lost else group.claims)

    def clear(self) -> list[Group]:
        """Remove and return all waiting claims."""
        groups = [*self.groups, *self.suspects]
        self.groups.clear()
        self.suspects.clear()
        self.size = self.superseded = 0
        return groups

    def _keep(self, select: Callable[
            [Group], list[Claim]]) -> int:
        before = self.waiting
        for group in (*self.groups, *self.suspects):
            group.claims = select(group)
        self.groups = collections.deque(g for g in self.groups if g.claims)
        self.suspects = collections.deque(
            g for g in self.suspects if g.claims)
        self.size = sum(len(group.claims) for group in self.groups)
        return before - self.waiting


class InFlight:
    """All work that has not ended, and the numbers of outcomes.

    :param jobs: Jobs by name.
    :param partitions: Configuration of the partitions, by topic.
    :param shared: Jobs for which a store counts the runs of all schedulers.
    """

    def __init__(self, jobs: Mapping[str, Job],
                 partitions: Partitions, *,
                 shared: Container[str]):
        self._order = itertools.count()
        limits = limits_of(jobs, partitions)
        # The jobs of a partition share one limit, so they also share one
        # AdaptiveLimit.
        bounds = {limit: AdaptiveLimit(
            limit.most, shared=limit.jobs[0] in shared)
                  for job_limits in limits.values() for limit in job_limits}
        self.queues = {
            name: Queue(job, {limit.refusal: bounds[limit]
                              for limit in limits[name]})
            for name, job in jobs.items()}
        #: For each partition, a heap of (-priority, order, queue). The next
        #: batch is made from the first queue of the heap.
        self.turns: dict[str, list[tuple[int, int, Queue]]] = {
            job.topic: [] for job in jobs.values()}
        #: Queues that received suspects, by job. Some may have none left.
        self._with_suspects: dict[str, Queue] = {}
        #: Workers by holder, for each partition.
        self.workers: dict[str, dict[str, Worker]] = {}
        #: Sent batches by batch id.
        self.sent: dict[str, SentBatch] = {}
        #: Number of schedulers that share the workers.
        self.schedulers = 1
        #: Number of objects that are claimed and were not sent to a worker.
        self.waiting = 0
        #: Number of objects that were sent to workers and have not ended.
        self.outstanding = 0
        #: Number of objects, by (job, outcome).
        self.counts: collections.Counter[
            tuple[str, str]] = collections.Counter()

    def put(self, job: Job, lease: HeldLease, claims: list[Claim],
            superseded: int = 0) -> None:
        """Queue claims of one lease.

        :param claims: The claims. The list is empty if all acquired claims are
            suspects. The caller must not use the list afterwards.
        :param superseded: Number of waiting claims that these claims
            supersede.
        """
        queue = self.queues[job.name]
        if claims:
            queue.put(lease, claims)
            self.waiting += len(claims)
        if superseded:
            queue.superseded += superseded
            if 2 * queue.superseded >= queue.size:
                self.discarded(queue, queue.discard_superseded())
        if not queue.listed:
            queue.listed = True
            self.next_turn(queue)

    def objects(self, job: str) -> set[str]:
        """Return the objects of *job* that have an open claim here."""
        queue = self.queues[job]
        found = {claim.object for group in (*queue.groups, *queue.suspects)
                 for claim in group.claims}
        for sent in self.sent.values():
            if sent.queue is queue:
                found.update(itertools.compress(sent.batch.objects, sent.open))
        return found

    def put_quarantined(self, job: Job, lease: HeldLease,
                        claims: list[Claim], size: int) -> None:
        """Queue claims of one lease as suspects, in groups of up to *size*."""
        self.waiting += len(claims)
        queue = self._with_suspects[job.name] = self.queues[job.name]
        queue.suspects.extend(
            Group(lease, claims[at:at + size])
            for at in range(0, len(claims), size))

    def quarantined(self, partition: str) -> list[Queue]:
        """Return the queues of *partition* that have suspects."""
        if not self._with_suspects:
            return []
        self._with_suspects = {
            name: queue for name, queue in self._with_suspects.items()
            if queue.suspects}
        return [queue for queue in self._with_suspects.values()
                if queue.job.topic == partition]

    def next_turn(self, queue: Queue) -> None:
        """Put *queue* into the heap, after all queues of its priority."""
        heapq.heappush(self.turns[queue.job.topic], (
            -queue.job.priority, next(self._order), queue))

    def discarded(self, queue: Queue, number: int) -> None:
        self.waiting -= number
        self.lost(queue.job, number)

    def lost(self, job: Job, number: int) -> None:
        """Count *number* claims that this scheduler has lost.

        For example, later ticks superseded the claims, or other members may
        have taken them over.
        """
        if number:
            self.counts[job.name, 'superseded'] += number

    def settle(self, sent: SentBatch, number: int) -> None:
        """Record that *number* objects of *sent* have ended."""
        sent.worker.window.settle(number, sent.cost)
        for bound in sent.queue.bounds.values():
            bound.settle(number)
        self.outstanding -= number
        if not sent.left:
            del self.sent[sent.batch.id]
            sent.worker.batches.pop(sent.batch.id, None)

    def recall(self, sent: SentBatch) -> list[Claim]:
        """Mark all objects of a batch as ended.

        Later reports on the batch have no effect.

        :returns: The claims of the objects whose outcome was unknown.
        """
        left = sent.take(range(len(sent.open)))
        self.settle(sent, len(left))
        return sent.claims(left)

    def clear(self, queue: Queue) -> list[Group]:
        """Remove and return all waiting claims of *queue*."""
        self.waiting -= queue.waiting
        queue.listed = False
        partition = queue.job.topic
        kept = [one for one in self.turns[partition] if one[2] is not queue]
        heapq.heapify(kept)
        self.turns[partition] = kept
        return queue.clear()
