# SPDX-License-Identifier: Apache-2.0
"""Work of a scheduler that has not ended.

The work consists of waiting claims, and of batches that were sent to workers.
"""

import collections
import heapq
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import message
from distperiodic.core.adaptive_limit import AdaptiveLimit
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim import precedence_of
from distperiodic.core.claim_request import NewLease
from distperiodic.core.credit import CreditWindow
from distperiodic.core.credit import entitled
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import Member
from distperiodic.core.partition import Partitions
from distperiodic.core.partition import limits_of
from distperiodic.core.refusal import Refusal
from distperiodic.core.ring import position_of
from distperiodic.flow.counters import Counted
from distperiodic.flow.counters import Counters

# Maximum number of suspects in one batch if each of them was lost twice.
_SUSPECT_BATCH = 16


def suspect_batch_size(claim: Claim) -> int | None:
    """Return the maximum size of a batch that contains *claim*.

    None means that the claim is not a suspect, so any batch may contain it.
    See :class:`distperiodic.flow.scheduler.batcher.Batcher`.
    """
    if claim.losses < 2:
        return None
    return _SUSPECT_BATCH if claim.losses == 2 else 1


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


class SlotShare:
    """The slots of a worker that this scheduler may use.

    :param window: Window of the worker, whose number of slots this class sets.
    :param own: True means that only this scheduler uses the worker.
    """

    __slots__ = ('_crowded', '_entitled', '_own', '_window', 'turn')

    def __init__(self, window: CreditWindow, *, own: bool):
        self._window = window
        self._own = own
        self._entitled = 1
        #: True if the worker has fewer slots than there are schedulers.
        self._crowded = False
        #: True if the worker has given this scheduler a turn that is not used.
        self.turn = False

    def divide(self, member: Member, schedulers: int, rank: int) -> None:
        """Divide the slots among the schedulers, unless only this scheduler
        uses them.

        :param rank: Number of this scheduler, from 0 to *schedulers* - 1.
        """
        if self._own:
            schedulers = 1
        self._crowded = schedulers > member.slots
        # Do not give the remainders of all workers to the same scheduler.
        self._entitled = entitled(
            member.slots, schedulers,
            (rank + position_of(member.identity)) % schedulers)
        self._window.slots = self._entitled
        self.turn = False

    def heard(self, member: Member, others: int | None) -> None:
        """Use the slots that other schedulers do not use.

        :param others: Number of runs that the worker holds for other
            schedulers. None means unknown.
        """
        if self.turn:
            # The worker may have sent this number before it gave the turn.
            return
        if others is None:
            self._window.slots = self._entitled
            return
        free = member.slots - others
        if not self._window.held:
            # Without a run at the worker, this scheduler would not learn that
            # others use more slots.
            free = min(free, self._entitled)
        # In a crowd, the worker tells this scheduler when to send again.
        self._window.slots = max(0 if self._crowded else self._entitled, free)


class WorkerState:
    """State of one worker, as this scheduler knows it.

    :param own: True means that only this scheduler uses the worker.
    """

    __slots__ = ('back_off', 'batches', 'last_heard', 'member', 'paused',
                 'reserved_until', 'share', 'suspect_batch', 'unknown_jobs',
                 'window')

    def __init__(self, member: Member, window: CreditWindow, now: float, *,
                 own: bool):
        self.member = member
        self.window = window
        self.share = SlotShare(window, own=own)
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

    __slots__ = ('_claims', 'batch', 'cost', 'last_seen', 'left', 'open',
                 'queue', 'span', 'worker')

    def __init__(self, batch: message.Batch, claims: list[Claim],
                 worker: WorkerState, queue: 'ClaimQueue', cost: float,
                 last_seen: float):
        self.batch = batch
        self._claims = claims
        self.worker = worker
        self.queue = queue
        self.left = len(batch.objects)
        #: For each object of the batch: 1 while its outcome is unknown, 0
        #: afterwards.
        self.open = bytearray(b'\1' * self.left)
        self.cost = cost
        self.last_seen = last_seen
        #: None means that the batch has no span.
        self.span: ports.BatchSpan | None = None

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
        return [self._claims[i] for i in indexes]


class ClaimGroup:
    """Waiting claims of one lease, in the order of their places."""

    __slots__ = ('claims', 'lease')

    def __init__(self, lease: NewLease, claims: list[Claim]):
        self.lease = lease
        self.claims = claims


class Line:
    """The waiting claims of one job, in the order of their places.

    The claim whose object was started first is the first one, so the objects
    are served in turn. Claims whose places are less than STEP apart may change
    their order: a batch has claims of one lease only, and exact order would
    make batches of single claims if the objects of several leases alternate.
    A claim costs the same time however many claims wait.

    While claims always wait, the line has *rounds*. An object that was started
    in a round and waits again belongs to the next round, so that no object has
    two runs more than another one. Places alone do not ensure this: if two
    objects are sent together, either may start first, and the start decides
    about the next place::

        sent     a b c │ a b c │ a b c
        started  a b a │ c b a │ ...    a is started twice before c

    The first round has no record of its objects. In it, those count that were
    started since the line was empty.

    A later claim of an object supersedes its earlier claims. These stay in the
    line until it is their turn, or until about half of the claims are
    superseded.
    """

    #: Microseconds. An object that has run can pass only objects that were
    #: started less than this time before it.
    STEP = 250_000

    __slots__ = ('_began', '_groups', '_newest', '_round', '_steps', '_taken',
                 'rounds', 'size', 'superseded')

    def __init__(self, *, rounds: bool = True) -> None:
        """Create an empty line.

        :param rounds: False means that only the places decide.
        """
        self.rounds = rounds
        #: Number of the current round.
        self._round = 0
        #: Instant at which claims began to wait in the empty line.
        self._began = 0
        #: For each object that was taken in the current round, its place.
        #: None means that the current round is the first one.
        self._taken: dict[str, int] | None = None
        #: Groups of claims by round and by the number of the step of their
        #: places. No group is empty.
        self._groups: dict[_Step, collections.deque[ClaimGroup]] = {}
        #: The rounds and the numbers of the steps, as a heap.
        self._steps: list[_Step] = []
        #: Fences of the newest claims of objects that may also have superseded
        #: claims in the line.
        self._newest: dict[str, int] = {}
        #: Number of claims, superseded ones included.
        self.size = 0
        #: Number of superseded claims. It may be too high, because a claim
        #: that was sent may be superseded, too.
        self.superseded = 0

    @property
    def first(self) -> ClaimGroup | None:
        """The first group. None means that no claim waits."""
        return self._groups[self._steps[0]][0] if self._steps else None

    def __iter__(self) -> Iterator[ClaimGroup]:
        for groups in self._groups.values():
            yield from groups

    def put(self, lease: NewLease, claims: list[Claim],
            superseded: int = 0) -> int:
        """Add claims of one lease.

        :param claims: The caller must not use the list afterwards.
        :param superseded: Number of earlier claims that *claims* supersede.
        :returns: Number of superseded claims that were removed.
        """
        if not self.size:
            self._began = max(claim.waiting for claim in claims)
            self._taken = None
            self._newest, self.superseded = {}, 0
        elif superseded:
            # All claims that supersede none have waited since this request.
            latest = max(claim.waiting for claim in claims)
            every = superseded >= len(claims)
            self._newest.update(
                (claim.object, claim.fence) for claim in claims
                if every or claim.waiting < latest)
            self.superseded += superseded
        claims.sort(key=_place)
        self.size += len(claims)
        if not self.rounds or (
                self._taken is None and claims[-1].place < self._began):
            self._put(lease, claims, self._round)
        else:
            turned = [c for c in claims if self._had_its_turn(c)]
            others = [c for c in claims if not self._had_its_turn(c)]
            self._put(lease, others, self._round)
            self._put(lease, turned, self._round + 1)
        if 2 * self.superseded >= self.size:
            return self._discard_superseded()
        return 0

    def _had_its_turn(self, claim: Claim) -> bool:
        """Return whether the object was started in the current round."""
        if self._taken is None:
            return claim.place >= self._began
        place = self._taken.get(claim.object)
        # A claim that was sent and returned unstarted has not had its turn.
        return place is not None and claim.place > place

    def _put(self, lease: NewLease, claims: list[Claim],
             round_: int) -> None:
        """Add claims, in the order of their places, to a round."""
        if claims and _step(claims[0]) == _step(claims[-1]):
            self._append((round_, _step(claims[0])), ClaimGroup(lease, claims))
        else:
            for step, some in itertools.groupby(claims, _step):
                self._append((round_, step), ClaimGroup(lease, [*some]))

    def _append(self, step: '_Step', group: ClaimGroup) -> None:
        groups = self._groups.get(step)
        if groups is None:
            groups = self._groups[step] = collections.deque()
            heapq.heappush(self._steps, step)
        groups.append(group)

    def take(self, number: int) -> tuple[ClaimGroup | None, int]:
        """Remove up to *number* of the first claims, all of one lease.

        :returns: The claims, or None if only superseded claims were left, and
            the number of superseded claims that were removed.
        """
        removed = 0
        while (first := self.first) is not None:
            if self._steps[0][0] > self._round:
                self._round, self._taken = self._steps[0][0], {}
            claims = first.claims
            if len(claims) <= number:
                self._pop()
            else:
                first.claims = claims[number:]
                del claims[number:]
            self.size -= len(claims)
            if self._newest:
                before = len(claims)
                claims = [c for c in claims if self._is_newest(c)]
                removed += before - len(claims)
            if claims:
                if self._taken is not None:
                    self._taken.update(
                        (claim.object, claim.place) for claim in claims)
                return ClaimGroup(first.lease, claims), removed
        return None, removed

    def _pop(self) -> None:
        """Remove the first group."""
        step = self._steps[0]
        groups = self._groups[step]
        groups.popleft()
        if not groups:
            del self._groups[step]
            heapq.heappop(self._steps)

    def _is_newest(self, claim: Claim) -> bool:
        """Return whether *claim* is not superseded; count it if it is."""
        newest = self._newest.get(claim.object)
        if newest is None or claim.fence >= newest:
            return True
        self.superseded = max(0, self.superseded - 1)
        return False

    def _discard_superseded(self) -> int:
        """Remove superseded claims, and return their number.

        If they were kept, they would use more and more memory while no worker
        has room for them.
        """
        newest: dict[str, int] = {}
        for group in self:
            for claim in group.claims:
                if claim.fence > newest.get(claim.object, -1):
                    newest[claim.object] = claim.fence
        self.superseded = 0
        self._newest = {}
        return self.keep(lambda group: [
            c for c in group.claims if c.fence == newest[c.object]])

    def keep(self, select: Callable[[ClaimGroup], list[Claim]]) -> int:
        """Keep the claims that *select* returns for each group.

        :returns: Number of claims that were removed.
        """
        before = self.size
        for step, groups in list(self._groups.items()):
            for group in groups:
                group.claims = select(group)
            kept = collections.deque(g for g in groups if g.claims)
            if kept:
                self._groups[step] = kept
            else:
                del self._groups[step]
        self._steps = sorted(self._groups)
        self.size = sum(len(group.claims) for group in self)
        return before - self.size


#: A round, and the number of a step of the places.
_Step = tuple[int, int]


def _place(claim: Claim) -> int:
    return claim.place


def _step(claim: Claim) -> int:
    return claim.place // Line.STEP


class Turn(NamedTuple):
    """The turn of a job among the jobs of its partition.

    The job with the lowest turn sends the next batch: the highest priority
    first, then the claim that has waited longest.
    """

    precedence: int
    #: Step of the line at which the first claim began to wait. Jobs with the
    #: same step alternate, batch by batch.
    waiting: int
    order: int


class ClaimQueue:
    """The waiting claims of one job, and the limits on its concurrent runs."""

    __slots__ = ('authority', 'bounds', 'job', 'line', 'suspects', 'turn')

    def __init__(self, job: Job, authority: Authority,
                 bounds: Mapping[Refusal, AdaptiveLimit]):
        self.job = job
        self.authority = authority
        #: The limits of the job and of its partition. The key is the refusal
        #: of a run that would exceed the limit.
        self.bounds = bounds
        # Steps of tasks are not served in turn.
        self.line = Line(rounds=job.scope is not Scope.TASK)
        #: Claims whose runs were lost with their workers more than once. These
        #: claims run separately from other claims; see
        #: :class:`distperiodic.flow.scheduler.batcher.Batcher`.
        self.suspects: collections.deque[ClaimGroup] = collections.deque()
        #: The entry of the queue in the heap of its partition. None means that
        #: the queue has no entry. Any other entry is outdated.
        self.turn: Turn | None = None

    @property
    def waiting(self) -> int:
        """Number of waiting claims, suspects included."""
        return self.line.size + sum(
            len(group.claims) for group in self.suspects)

    @property
    def suspects_are_next(self) -> bool:
        """True if the first suspects precede the claims in the line."""
        first = self.line.first
        return bool(self.suspects) and (
            first is None or self.suspects[0].claims[0].place
            < first.claims[0].place + Line.STEP)

    def groups(self) -> Iterator[ClaimGroup]:
        """Yield the groups of all waiting claims."""
        return itertools.chain(self.line, self.suspects)

    def leases(self) -> set[NewLease]:
        """Return the leases of the waiting claims."""
        return {group.lease for group in self.groups()}

    def discard_leases(self, lost: AbstractSet[str]) -> int:
        """Remove the claims in *lost* leases, and return their number."""
        before = self.waiting
        self.line.keep(
            lambda group: [] if group.lease.id in lost else group.claims)
        self.suspects = collections.deque(
            group for group in self.suspects if group.lease.id not in lost)
        return before - self.waiting

    def discard_suspects(self, objects: AbstractSet[str]) -> int:
        """Remove the suspects among *objects*, and return their number."""
        before = self.waiting
        for group in self.suspects:
            group.claims = [claim for claim in group.claims
                            if claim.object not in objects]
        self.suspects = collections.deque(
            group for group in self.suspects if group.claims)
        return before - self.waiting

    def clear(self) -> list[ClaimGroup]:
        """Remove and return all waiting claims."""
        groups = [*self.groups()]
        self.line = Line(rounds=self.line.rounds)
        self.suspects.clear()
        return groups


class InFlight:
    """All work that has not ended, and the numbers of outcomes.

    :param jobs: Jobs by name.
    :param partitions: Configuration of the partitions, by topic.
    :param authorities: Authority over the claims of each job.
    """

    def __init__(self, jobs: Mapping[str, Job],
                 partitions: Partitions, *,
                 authorities: Mapping[str, Authority], counters: Counters):
        self._order = itertools.count()
        limits = limits_of(jobs, partitions)
        # The jobs of a partition share one limit, so they also share one
        # AdaptiveLimit. A shared store counts the runs of all schedulers.
        bounds = {limit: AdaptiveLimit(
            limit.most,
            shared=authorities[limit.jobs[0]] is Authority.STORE)
                  for job_limits in limits.values() for limit in job_limits}
        self.queues = {
            name: ClaimQueue(job, authorities[name], {
                limit.refusal: bounds[limit] for limit in limits[name]})
            for name, job in jobs.items()}
        #: For each partition, a heap of the turns of its queues. An entry that
        #: is not the turn of its queue is outdated.
        self.turns: dict[str, list[tuple[Turn, ClaimQueue]]] = {
            job.topic: [] for job in jobs.values()}
        #: Queues that received suspects, by job. Some may have none left.
        self._with_suspects: dict[str, ClaimQueue] = {}
        #: Workers by holder, for each partition.
        self.workers: dict[str, dict[str, WorkerState]] = {}
        #: Sent batches by batch id.
        self.sent: dict[str, SentBatch] = {}
        #: Number of schedulers that share the workers, and the number of this
        #: one among them, counted from 0.
        self.schedulers, self.rank = 1, 0
        #: For each partition, the number of objects that are claimed and were
        #: not sent to a worker. Any thread may read it, so its keys never
        #: change.
        self.waiting_in = dict.fromkeys(self.turns, 0)
        #: Number of objects that were sent to workers and have not ended.
        self.outstanding = 0
        self._counters = counters

    def put(self, job: Job, lease: NewLease, claims: list[Claim],
            superseded: int = 0) -> None:
        """Queue claims of one lease.

        :param claims: The claims. The list is empty if all acquired claims are
            suspects. The caller must not use the list afterwards.
        :param superseded: Number of waiting claims that these claims
            supersede.
        """
        if claims:
            queue = self.queues[job.name]
            self.waiting_in[job.topic] += len(claims)
            self.discarded(queue, queue.line.put(lease, claims, superseded))
            if queue.turn is None or self._turn_of(queue) < queue.turn:
                self.next_turn(queue)

    def objects(self, job: str) -> set[str]:
        """Return the objects of *job* that have an open claim here."""
        queue = self.queues[job]
        found = {claim.object for group in queue.groups()
                 for claim in group.claims}
        for sent in self.sent.values():
            if sent.queue is queue:
                found.update(itertools.compress(sent.batch.objects, sent.open))
        return found

    def put_quarantined(self, job: Job, lease: NewLease,
                        claims: list[Claim], size: int) -> None:
        """Queue claims of one lease as suspects, in groups of up to *size*.

        Earlier claims of these objects are removed, because the new claims
        supersede them.
        """
        queue = self._with_suspects[job.name] = self.queues[job.name]
        self.discarded(queue, queue.discard_suspects(
            {claim.object for claim in claims}))
        self.waiting_in[job.topic] += len(claims)
        queue.suspects.extend(
            ClaimGroup(lease, claims[at:at + size])
            for at in range(0, len(claims), size))

    @property
    def waiting(self) -> int:
        """Number of objects that are claimed and were not sent to a worker."""
        return sum(self.waiting_in.values())

    def objects_waiting(self, partition: str) -> int:
        """Return the number of objects of *partition* with waiting claims.

        An object whose claim was superseded counts once. Any thread may call
        this.
        """
        superseded = sum(queue.line.superseded
                         for queue in self.queues.values()
                         if queue.job.topic == partition)
        return max(0, self.waiting_in[partition] - superseded)

    def jobs_waiting(self, partition: str) -> int:
        """Return the number of jobs of *partition* with waiting claims."""
        return sum(1 for queue in self.queues.values()
                   if queue.job.topic == partition and queue.waiting)

    def quarantined(self, partition: str) -> list[ClaimQueue]:
        """Return the queues of *partition* that have suspects."""
        if not self._with_suspects:
            return []
        self._with_suspects = {
            name: queue for name, queue in self._with_suspects.items()
            if queue.suspects}
        return [queue for queue in self._with_suspects.values()
                if queue.job.topic == partition]

    def next_turn(self, queue: ClaimQueue) -> None:
        """Put *queue* into the heap of its partition, after all queues whose
        turns are equal.

        A queue without claims is removed from the heap.
        """
        queue.turn = None
        if queue.line.size:
            queue.turn = self._turn_of(queue)
            heapq.heappush(
                self.turns[queue.job.topic], (queue.turn, queue))

    def _turn_of(self, queue: ClaimQueue) -> Turn:
        first = queue.line.first
        assert first is not None
        claim = first.claims[0]
        return Turn(precedence_of(claim.place) - queue.job.priority,
                    claim.waiting // Line.STEP, next(self._order))

    def first(self, partition: str) -> ClaimQueue | None:
        """Return the queue of *partition* that sends the next batch.

        None means that no claim waits, apart from suspects.
        """
        turns = self.turns[partition]
        while turns and turns[0][0] is not turns[0][1].turn:
            heapq.heappop(turns)
        return turns[0][1] if turns else None

    def take(self, queue: ClaimQueue, number: int) -> ClaimGroup | None:
        """Remove up to *number* of the first claims of *queue*.

        :returns: Claims of one lease. None means that all claims of the queue
            were superseded.
        """
        group, superseded = queue.line.take(number)
        self.discarded(queue, superseded)
        return group

    def discard_leases(self, queue: ClaimQueue,
                       lost: AbstractSet[str]) -> None:
        """Remove the waiting claims of *queue* in *lost* leases."""
        self.discarded(queue, queue.discard_leases(lost))
        # The first claim may be another one now, or none may be left.
        self.next_turn(queue)

    def discarded(self, queue: ClaimQueue, number: int) -> None:
        self.waiting_in[queue.job.topic] -= number
        self.lost(queue.job, number)

    def lost(self, job: Job, number: int) -> None:
        """Count *number* claims that this scheduler has lost.

        For example, later ticks superseded the claims, or other members may
        have taken them over.
        """
        if number:
            self._counters[job.name, Counted.SUPERSEDED] += number

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

    def clear(self, queue: ClaimQueue) -> list[ClaimGroup]:
        """Remove and return all waiting claims of *queue*."""
        self.waiting_in[queue.job.topic] -= queue.waiting
        queue.turn = None
        return queue.clear()
