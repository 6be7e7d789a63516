# SPDX-License-Identifier: Apache-2.0
"""Claims in this process's memory, and membership of a group of one.

The store holds what one member decided. It keeps that member from starting
a tick twice or overlapping with itself; it knows nothing of other members,
so between them only the ring decides, and it is gone with the process.
"""

import heapq
import itertools
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_new = tuple.__new__
_SUPERSEDED_FROM = MOVES[Move.SUPERSEDE][0]

# Fences of one tick before they could reach those of a tick 1 ms later.
_FENCES = 1 << 8
# Ended claims of a job that are kept at the least, for what they cost.
_KEPT = 10_000


class _Row:
    __slots__ = ('attempt', 'fence', 'state', 'tick')

    def __init__(self, tick: int, fence: int):
        self.tick = tick
        self.state = State.CLAIMED
        self.fence = fence
        self.attempt = 1


class _Rows(dict[str, '_Row | int']):
    """The claims of one job: open ones as rows, ended ones as their tick;
    as rows too where the fence does not follow from the tick (the clock was
    set back).
    """

    __slots__ = ('floor', 'look_at')

    def __init__(self) -> None:
        super().__init__()
        #: How many claims there may be until the next look.
        self.look_at = _KEPT
        #: Beyond the fences of all that was forgotten.
        self.floor = 0

    def forget(self, tick: int) -> None:
        """Forget the ended claims of ticks before *tick*: nobody asks for
        these again.
        """
        old = [key for key, row in self.items()
               if isinstance(row, int) and row < tick]
        for key in old:
            row = self.pop(key)
            assert isinstance(row, int)
            self.floor = max(self.floor, _first_fence(row) + _FENCES)
        self.look_at = max(_KEPT, 2 * len(self))


def _first_fence(tick: int) -> int:
    """The first fence of *tick*: the stores of other members know nothing
    of this one, and still the fences of an object grow from one to the
    next, by time.
    """
    return (tick // 1000) << 8


class MemoryClaimStore:
    """See :class:`distperiodic.ports.ClaimStore`.

    Of an ended claim only its tick is kept: a million objects cost one
    dictionary. Those of objects that are gone are forgotten in time. Not
    thread-safe; it belongs to the thread of its flow.

    No other member asks here, so an earlier tick than the last one is only
    asked for after the clock was set back, and then it is granted: refusing
    it would silence the object until the clock is where it was.
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}
        #: Due, order, job, object and row of what waits for a retry.
        self._retries: list[tuple[int, int, str, str, _Row]] = []
        self._count = itertools.count()

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              owner: str, supersede: bool) -> Claimed:
        rows = self._rows.get(job)
        if rows is None:
            rows = self._rows[job] = _Rows()
        first = _first_fence(tick)
        fresh = max(first, rows.floor)
        won: list[Claim] = []
        busy: list[str] = []
        superseded = 0
        for key in objects:
            row = rows.get(key)
            if row is None:
                fence = fresh
            elif isinstance(row, int):
                if row == tick:
                    continue
                # As it ended, it left the fences of its own tick behind.
                fence = max(first, _first_fence(row) + _FENCES)
            elif row.tick == tick:
                continue
            elif row.state in ENDINGS:
                fence = max(first, row.fence + 1)
            elif supersede and row.state in _SUPERSEDED_FROM:
                superseded += 1
                fence = max(first, row.fence + 1)
            else:
                busy.append(key)
                continue
            rows[key] = _Row(tick, fence)
            # As Claim() does it, without the call.
            won.append(_new(Claim, (key, fence, 1, tick)))
        if len(rows) > rows.look_at:
            rows.forget(tick)
        return Claimed(won, busy, superseded)

    def _held(self, job: str, claim: Claim, move: Move) -> _Row | None:
        rows = self._rows.get(job)
        row = None if rows is None else rows.get(claim.object)
        if (isinstance(row, _Row) and row.fence == claim.fence
                and row.state in MOVES[move][0]):
            return row
        return None

    def start(self, job: str, claims: Sequence[Claim], *,
              worker: str) -> list[Claim]:
        rows = self._rows.get(job)
        if rows is None:
            return []
        granted = []
        before, after = MOVES[Move.START]
        for claim in claims:
            # What _held() says, without a call for each object.
            row = rows.get(claim[0])
            if (isinstance(row, _Row) and row.fence == claim[1]
                    and row.state in before):
                row.state = after
                granted.append(claim)
        return granted

    def finish(self, job: str, claims: Sequence[Claim]) -> int:
        return self._end(job, claims, Move.FINISH)

    def drop(self, job: str, claims: Sequence[Claim],
             ending: State) -> int:
        return self._end(job, claims, claim_.ENDING_MOVES[ending])

    def _end(self, job: str, claims: Sequence[Claim], move: Move) -> int:
        rows = self._rows.get(job)
        if rows is None:
            return 0
        counted = 0
        before, after = MOVES[move]
        for claim in claims:
            row = rows.get(claim[0])
            if (isinstance(row, _Row) and row.fence == claim[1]
                    and row.state in before):
                row.state = after
                if row.fence < ((row.tick // 1000) << 8) + _FENCES:
                    rows[claim[0]] = row.tick
                counted += 1
        return counted

    def fail(self, job: str, claim: Claim, *, retry_at: int | None) -> bool:
        if retry_at is None:
            return bool(self._end(job, [claim], Move.BURY))
        row = self._held(job, claim, Move.RETRY)
        if row is None:
            return False
        row.state = State.RETRY
        heapq.heappush(self._retries, (
            retry_at, next(self._count), job, claim.object, row))
        return True

    def take_back(self, job: str, claims: Sequence[Claim]) -> list[Claim]:
        anew = []
        for claim in claims:
            row = self._held(job, claim, Move.TAKE_BACK)
            if row is not None:
                row.fence += 1
                row.attempt = claim.attempt
                row.state = State.CLAIMED
                anew.append(Claim(
                    claim.object, row.fence, claim.attempt, claim.tick))
        return anew

    def due_retries(self, now: int, limit: int) -> list[tuple[str, Claim]]:
        taken: list[tuple[str, Claim]] = []
        while (self._retries and self._retries[0][0] <= now
               and len(taken) < limit):
            _, _, job, key, row = heapq.heappop(self._retries)
            if not claim_.allowed(Move.AGAIN, row.state):
                # It was cancelled while it waited.
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
