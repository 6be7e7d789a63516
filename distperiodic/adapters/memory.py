# SPDX-License-Identifier: Apache-2.0
"""Claims in this process's memory, and membership of a group of one.

The store holds what one member decided. It keeps that member from starting
a tick twice or overlapping with itself; it knows nothing of other members,
so between them only the ring decides, and it is gone with the process.
"""

import logging
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

LOG = logging.getLogger(__name__)


class _Row:
    __slots__ = ('tick', 'state', 'fence', 'attempt', 'worker', 'due')

    def __init__(self, tick: int, fence: int):
        self.tick = tick
        self.state = State.CLAIMED
        self.fence = fence
        self.attempt = 1
        self.worker = ''
        self.due = 0


class MemoryClaimStore:
    """See :class:`distperiodic.ports.ClaimStore`.

    Of an ended claim only its tick is kept: a million objects cost one
    dictionary. Not thread-safe; it belongs to the thread of its flow.
    """

    def __init__(self) -> None:
        # Open claims as rows, ended ones as their tick.
        self._rows: dict[str, dict[str, _Row | int]] = {}
        self._retries: dict[tuple[str, str], _Row] = {}

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              owner: str, supersede: bool) -> Claimed:
        rows = self._rows.setdefault(job, {})
        # Stores of other members know nothing of this one, and still the
        # fences of an object grow from one to the next: by time.
        first = (tick // 1000) << 8
        won: list[Claim] = []
        busy: list[str] = []
        superseded = 0
        for key in objects:
            row = rows.get(key)
            fence = first
            if row is None:
                pass
            elif isinstance(row, int):
                if row >= tick:
                    continue
            elif row.tick >= tick:
                continue
            elif supersede and claim_.allowed(Move.SUPERSEDE, row.state):
                superseded += 1
                fence = max(first, row.fence + 1)
            else:
                busy.append(key)
                continue
            rows[key] = _Row(tick, fence)
            won.append(Claim(key, fence, 1, tick))
        return Claimed(won, busy, superseded)

    def _held(self, job: str, claim: Claim, move: Move) -> _Row | None:
        row = self._rows.get(job, {}).get(claim.object)
        if (isinstance(row, _Row) and row.fence == claim.fence
                and claim_.allowed(move, row.state)):
            return row
        return None

    def start(self, job: str, claims: Sequence[Claim], *,
              worker: str) -> list[Claim]:
        granted = []
        for claim in claims:
            row = self._held(job, claim, Move.START)
            if row is not None:
                row.state = State.RUNNING
                row.worker = worker
                granted.append(claim)
        return granted

    def finish(self, job: str, claims: Sequence[Claim]) -> int:
        return self._end(job, claims, Move.FINISH)

    def drop(self, job: str, claims: Sequence[Claim],
             ending: State) -> int:
        return self._end(job, claims, claim_.ENDING_MOVES[ending])

    def _end(self, job: str, claims: Sequence[Claim], move: Move) -> int:
        counted = 0
        for claim in claims:
            row = self._held(job, claim, move)
            if row is not None:
                self._rows[job][claim.object] = row.tick
                counted += 1
        return counted

    def fail(self, job: str, claim: Claim, *, retry_at: int | None) -> bool:
        if retry_at is None:
            return bool(self._end(job, [claim], Move.BURY))
        row = self._held(job, claim, Move.RETRY)
        if row is None:
            return False
        row.state = State.RETRY
        row.due = retry_at
        self._retries[job, claim.object] = row
        return True

    def take_back(self, job: str, claims: Sequence[Claim]) -> list[Claim]:
        anew = []
        for claim in claims:
            row = self._held(job, claim, Move.TAKE_BACK)
            if row is not None:
                row.fence += 1
                row.attempt = claim.attempt
                row.state = State.CLAIMED
                anew.append(claim._replace(fence=row.fence))
        return anew

    def due_retries(self, now: int, limit: int) -> list[tuple[str, Claim]]:
        due = sorted((row.due, key) for key, row in self._retries.items()
                     if row.due <= now)[:limit]
        taken = []
        for _, (job, key) in due:
            row = self._retries.pop((job, key))
            if not claim_.allowed(Move.AGAIN, row.state):
                continue
            row.state = State.CLAIMED
            row.fence += 1
            row.attempt += 1
            taken.append((job, Claim(key, row.fence, row.attempt, row.tick)))
        return taken


class Alone:
    """The membership of a process that has no others: it owns everything."""

    def __init__(self, identity: str, points: int, *, clock: ports.Clock):
        me = member_.Member(identity, '0' * 16, 1, points)
        self._view = member_.View(
            'alone', (me,), ring_.Ring({identity: points}), version=1,
            since=clock.monotonic(), me=me, trusted_until=float('inf'))

    def view(self, group: str) -> member_.View:
        return self._view
