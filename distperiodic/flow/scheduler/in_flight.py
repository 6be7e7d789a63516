# SPDX-License-Identifier: Apache-2.0
"""What a scheduler has in its hands: claims that wait, batches that were
sent, and the workers that have them.
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

from distperiodic.core import bound as bound_
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.core import partition as partition_
from distperiodic.core.refusal import Refusal

# How many run together that were lost twice.
_TOGETHER = 16


def suspects_together(claim: claim_.Claim) -> int | None:
    """With how many of its kind *claim* may run, whose last run was lost;
    None: with any.
    """
    if claim.attempt <= 2:
        return None
    return _TOGETHER if claim.attempt == 3 else 1


class BackOff:
    """When a worker may be sent something again."""

    __slots__ = ('_failures', '_until')

    # A worker that could not be reached is left alone this long, then twice
    # as long, and no longer: a back-off without a cap loses ticks, a fixed
    # one floods.
    _PAUSES = (1.0, 2.0)

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def over(self, now: float) -> bool:
        """Whether it may be sent something."""
        return now >= self._until

    def rest(self, until: float) -> None:
        """Send it nothing until then."""
        self._until = until

    def failed(self, now: float) -> float:
        """It could not be reached; returns the seconds that it is left
        alone. Several failures at a time have one cause, and count once.
        """
        pause = self._PAUSES[min(self._failures, len(self._PAUSES) - 1)]
        if self.over(now):
            self._failures += 1
            self._until = now + pause
        return pause

    def reached(self) -> None:
        """It was sent something."""
        self._failures = 0


class Worker:
    """One worker as this scheduler sees it."""

    __slots__ = ('alone_until', 'apart', 'back_off', 'batches', 'heard',
                 'member', 'paused', 'unknown', 'window')

    def __init__(self, member: member_.Member, window: pace_.Window,
                 now: float):
        self.member = member
        self.window = window
        #: In the order in which they were sent.
        self.batches: dict[str, None] = {}
        #: Jobs that it does not know, and ones that it refused until then.
        self.unknown: set[str] = set()
        self.paused: dict[str, float] = {}
        self.back_off = BackOff()
        self.heard = now
        #: Until when it is given nothing beside the suspects that it has, or
        #: waits for. None: it has none.
        self.alone_until: float | None = None
        #: The batch of suspects that it was given last.
        self.apart = ''


class Sent:
    """A batch that was given to a worker."""

    __slots__ = ('batch', 'cost', 'left', 'open', 'queue', 'sign', 'worker')

    def __init__(self, batch: message.Batch, worker: Worker, queue: 'Queue',
                 cost: float, sign: float):
        self.batch = batch
        self.worker = worker
        self.queue = queue
        self.left = len(batch.objects)
        #: Of each object of the batch: 0 once it was settled.
        self.open = bytearray(b'\1' * self.left)
        self.cost = cost
        self.sign = sign

    def take(self, indexes: Iterable[int]) -> list[int]:
        """Those of *indexes* that were not taken before."""
        taken = []
        open_ = self.open
        for index in indexes:
            if 0 <= index < len(open_) and open_[index]:
                open_[index] = 0
                taken.append(index)
        self.left -= len(taken)
        return taken

    def claims(self, indexes: Iterable[int]) -> list[claim_.Claim]:
        """The claims that it was sent with, at *indexes*."""
        batch = self.batch
        return [claim_.Claim(batch.objects[i], batch.fences[i],
                             batch.attempts[i], batch.tick)
                for i in indexes]


class Own(NamedTuple):
    """A lease that this scheduler holds."""

    lease: str
    #: Under which of its names: it has one for each tenure.
    holder: str


class Group:
    """Claims of one lease that wait."""

    __slots__ = ('claims', 'own')

    def __init__(self, own: Own, claims: list[claim_.Claim]):
        self.own = own
        self.claims = claims


class Queue:
    """What waits of one job, and what bounds how much of it runs."""

    __slots__ = ('bounds', 'groups', 'job', 'listed', 'size', 'suspects',
                 'void')

    def __init__(self, job: job_.Job,
                 bounds: Mapping[Refusal, bound_.Bound]):
        self.job = job
        #: Its own and its partition's, by how a run is refused for it.
        self.bounds = bounds
        self.groups: collections.deque[Group] = collections.deque()
        #: How many claims wait in the groups.
        self.size = 0
        #: Claims whose runs were lost with their workers more than once, to
        #: run apart from others; see
        #: :class:`distperiodic.flow.scheduler.batcher.Batcher`.
        self.suspects: collections.deque[Group] = collections.deque()
        #: How many of them were superseded while they waited.
        self.void = 0
        #: Whether it stands in the order of its partition.
        self.listed = False

    def put(self, own: Own, claims: list[claim_.Claim]) -> None:
        self.groups.append(Group(own, claims))
        self.size += len(claims)

    def take(self, number: int) -> Group:
        """Up to *number* of the claims that came first, of one lease."""
        first = self.groups[0]
        if len(first.claims) <= number:
            self.groups.popleft()
        else:
            rest = first.claims[number:]
            del first.claims[number:]
            self.groups[0] = Group(first.own, rest)
        self.size -= len(first.claims)
        return first

    @property
    def waiting(self) -> int:
        """How many claims wait, of all kinds."""
        return self.size + sum(len(group.claims) for group in self.suspects)

    def leases(self) -> set[Own]:
        """Of what waits here."""
        return {group.own for group in (*self.groups, *self.suspects)}

    def discard_void(self) -> int:
        """Drop what a later claim of its object made void; how many.

        Where no worker takes them, superseded claims would pile up.
        """
        newest: dict[str, int] = {}
        for group in (*self.groups, *self.suspects):
            for claim in group.claims:
                if claim.fence > newest.get(claim.object, -1):
                    newest[claim.object] = claim.fence
        self.void = 0
        return self._keep(lambda group: [
            c for c in group.claims if c.fence == newest[c.object]])

    def discard_leases(self, lost: AbstractSet[str]) -> int:
        """Drop what stands in leases that are somebody else's; how many."""
        return self._keep(
            lambda group: [] if group.own.lease in lost else group.claims)

    def clear(self) -> list[Group]:
        """Take all that waits."""
        groups = [*self.groups, *self.suspects]
        self.groups.clear()
        self.suspects.clear()
        self.size = self.void = 0
        return groups

    def _keep(self, kept: Callable[
            [Group], list[claim_.Claim]]) -> int:
        before = self.waiting
        for group in (*self.groups, *self.suspects):
            group.claims = kept(group)
        self.groups = collections.deque(g for g in self.groups if g.claims)
        self.suspects = collections.deque(
            g for g in self.suspects if g.claims)
        self.size = sum(len(group.claims) for group in self.groups)
        return before - self.waiting


class InFlight:
    """All of it, and the counts of what it comes to.

    :param jobs: by name.
    :param partitions: by name; what is configured of them.
    :param shared: jobs of which a store counts what runs everywhere.
    """

    def __init__(self, jobs: Mapping[str, job_.Job],
                 partitions: partition_.Partitions, *,
                 shared: Container[str]):
        self._order = itertools.count()
        limits = partition_.limits_of(jobs, partitions)
        # The jobs of a partition have one limit, and one bound.
        bounds = {limit: bound_.Bound(
            limit.most, shared=limit.jobs[0] in shared)
                  for some in limits.values() for limit in some}
        self.queues = {
            name: Queue(job, {limit.refusal: bounds[limit]
                              for limit in limits[name]})
            for name, job in jobs.items()}
        #: Partition to (-priority, order, queue), a heap.
        self.turns: dict[str, list[tuple[int, int, Queue]]] = {
            job.topic: [] for job in jobs.values()}
        #: Queues that have suspects, or had some, by job.
        self._apart: dict[str, Queue] = {}
        #: Partition to its workers, by their holders.
        self.workers: dict[str, dict[str, Worker]] = {}
        #: By the ids of the batches.
        self.sent: dict[str, Sent] = {}
        #: Schedulers that share the workers.
        self.schedulers = 1
        #: Objects claimed and not given to a worker yet.
        self.waiting = 0
        #: Objects given to workers and not settled.
        self.outstanding = 0
        #: (job, outcome) to how many objects.
        self.counts: collections.Counter[
            tuple[str, str]] = collections.Counter()

    def put(self, job: job_.Job, own: Own, claims: list[claim_.Claim],
            superseded: int = 0) -> None:
        """Claims of one lease wait. The list is ours from now on.

        :param claims: none, where all that was won runs apart.
        :param superseded: how many claims that wait here they made void.
        """
        queue = self.queues[job.name]
        if claims:
            queue.put(own, claims)
            self.waiting += len(claims)
        if superseded:
            queue.void += superseded
            if 2 * queue.void >= queue.size:
                self.discarded(queue, queue.discard_void())
        if not queue.listed:
            queue.listed = True
            self.next_turn(queue)

    def put_apart(self, job: job_.Job, own: Own,
                  claims: list[claim_.Claim], size: int) -> None:
        """Claims of one lease wait to run apart, so many at a time."""
        self.waiting += len(claims)
        queue = self._apart[job.name] = self.queues[job.name]
        queue.suspects.extend(
            Group(own, claims[at:at + size])
            for at in range(0, len(claims), size))

    def apart(self, partition: str) -> list[Queue]:
        """Queues of *partition* that have suspects."""
        if not self._apart:
            return []
        self._apart = {name: queue for name, queue in self._apart.items()
                       if queue.suspects}
        return [queue for queue in self._apart.values()
                if queue.job.topic == partition]

    def next_turn(self, queue: Queue) -> None:
        """Give *queue* a turn, after all others of its priority."""
        heapq.heappush(self.turns[queue.job.topic], (
            -queue.job.priority, next(self._order), queue))

    def discarded(self, queue: Queue, number: int) -> None:
        self.waiting -= number
        self.lost(queue.job, number)

    def lost(self, job: job_.Job, number: int) -> None:
        """A later claim of these objects took the place of ours."""
        if number:
            self.counts[job.name, 'superseded'] += number

    def settle(self, sent: Sent, number: int) -> None:
        """So many of what *sent* has left are settled."""
        sent.worker.window.settle(number, sent.cost)
        for bound in sent.queue.bounds.values():
            bound.settle(number)
        self.outstanding -= number
        if not sent.left:
            del self.sent[sent.batch.id]
            sent.worker.batches.pop(sent.batch.id, None)

    def recall(self, sent: Sent) -> list[claim_.Claim]:
        """What is left of a batch; its worker has no part in it any more."""
        left = sent.take(range(len(sent.open)))
        self.settle(sent, len(left))
        return sent.claims(left)

    def clear(self, queue: Queue) -> list[Group]:
        """Take all that waits of *queue*."""
        self.waiting -= queue.waiting
        queue.listed = False
        partition = queue.job.topic
        kept = [one for one in self.turns[partition] if one[2] is not queue]
        heapq.heapify(kept)
        self.turns[partition] = kept
        return queue.clear()
