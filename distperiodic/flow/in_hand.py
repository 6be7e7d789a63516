# SPDX-License-Identifier: Apache-2.0
"""What a scheduler has in its hands: claims that wait, batches that were
sent, and the workers that have them.
"""

import collections
from collections.abc import Iterable

from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import pace as pace_


class Worker:
    """One worker as this scheduler sees it."""

    __slots__ = ('batches', 'entry', 'failures', 'heard', 'member',
                 'not_before', 'paused', 'unknown', 'window')

    def __init__(self, member: member_.Member, window: pace_.Window,
                 now: float):
        self.member = member
        self.entry = member.entry
        self.window = window
        #: In the order in which they were sent.
        self.batches: dict[str, None] = {}
        #: Jobs that it does not know, and ones that it refused until then.
        self.unknown: set[str] = set()
        self.paused: dict[str, float] = {}
        self.failures = 0
        self.not_before = 0.0
        self.heard = now


class Sent:
    """A batch that was given to a worker."""

    __slots__ = ('batch', 'claims', 'cost', 'left', 'queue', 'sign',
                 'worker')

    def __init__(self, batch: message.Batch, worker: Worker, queue: 'Queue',
                 claims: list[claim_.Claim | None], cost: float,
                 sign: float):
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


class Group:
    """Claims of one lease that wait."""

    __slots__ = ('claims', 'lease')

    def __init__(self, lease: str, claims: list[claim_.Claim]):
        self.lease = lease
        self.claims = claims


class Queue:
    """What waits of one job, and how much of it workers hold."""

    __slots__ = ('groups', 'in_flight', 'job', 'listed', 'size', 'void')

    def __init__(self, job: job_.Job):
        self.job = job
        self.groups: collections.deque[Group] = collections.deque()
        self.size = 0
        #: How many of them were superseded while they waited.
        self.void = 0
        #: Runs that workers hold.
        self.in_flight = 0
        #: Whether it stands in the order of its partition.
        self.listed = False

    def put(self, lease: str, claims: list[claim_.Claim]) -> None:
        self.groups.append(Group(lease, claims))
        self.size += len(claims)

    def take(self, number: int) -> Group:
        """Up to *number* of the claims that came first, of one lease."""
        first = self.groups[0]
        if len(first.claims) <= number:
            self.groups.popleft()
        else:
            rest = first.claims[number:]
            del first.claims[number:]
            self.groups[0] = Group(first.lease, rest)
        self.size -= len(first.claims)
        return first

    def leases(self) -> set[str]:
        """Of what waits here."""
        return {group.lease for group in self.groups}

    def discard_void(self) -> int:
        """Drop what a later claim of its object made void; how many.

        Where no worker takes them, superseded claims would pile up.
        """
        newest: dict[str, int] = {}
        for group in self.groups:
            for claim in group.claims:
                if claim.fence > newest.get(claim.object, -1):
                    newest[claim.object] = claim.fence
        for group in self.groups:
            group.claims = [c for c in group.claims
                            if c.fence == newest[c.object]]
        self.void = 0
        return self._shrink()

    def discard_leases(self, lost: set[str]) -> int:
        """Drop what stands in leases that are somebody else's; how many."""
        for group in self.groups:
            if group.lease in lost:
                group.claims = []
        return self._shrink()

    def clear(self) -> list[Group]:
        """Take all that waits."""
        groups = list(self.groups)
        self.groups.clear()
        self.size = self.void = 0
        return groups

    def _shrink(self) -> int:
        before = self.size
        self.groups = collections.deque(g for g in self.groups if g.claims)
        self.size = sum(len(group.claims) for group in self.groups)
        return before - self.size
