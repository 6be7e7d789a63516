# SPDX-License-Identifier: Apache-2.0
"""Claims in this process's memory, and membership of a group of one.

The store holds what one member decided. It keeps that member from starting
a tick twice or overlapping with itself; it knows nothing of other members,
so between them only the ring decides, and it is gone with the process.
"""

import secrets
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

from distperiodic import ports
from distperiodic.adapters import clock as clock_
from distperiodic.core import claim as claim_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import FENCES
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import Lease
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.schedule import SECOND

_new = tuple.__new__
_SUPERSEDED_FROM = MOVES[Move.SUPERSEDE][0]
_TAKEN_BACK = MOVES[Move.TAKE_BACK][0]

_Answer = TypeVar('_Answer')

# Ended claims of a job that are kept at the least, for what they cost.
_KEPT = 10_000


class _Held:
    """A lease: who holds what, and until when."""

    __slots__ = ('holder', 'id', 'job', 'rows', 'tick', 'until')

    def __init__(self, lease: str, job: str, tick: int, holder: str,
                 until: int):
        self.id = lease
        self.job = job
        self.tick = tick
        self.holder = holder
        self.until = until
        self.rows: dict[str, _Row] = {}


class _Row:
    __slots__ = ('attempt', 'fence', 'lease', 'progress', 'state', 'tick')

    def __init__(self, tick: int, fence: int, lease: _Held, attempt: int):
        self.tick = tick
        self.state = State.CLAIMED
        self.fence = fence
        self.attempt = attempt
        self.lease = lease
        self.progress: str | None = None


class _Rows(dict[str, '_Row | int']):
    """The claims of one job: open ones as rows, ended ones as their tick;
    as rows too where the fence does not follow from the tick (the clock was
    set back), or where more than one attempt did not do it.
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
        old = [key for key, row in self.items() if (
            row < tick if isinstance(row, int)
            else row.tick < tick and row.state in ENDINGS)]
        for key in old:
            row = self.pop(key)
            self.floor = max(
                self.floor, claim_.first_fence(row) + FENCES
                if isinstance(row, int) else row.fence + 1)
        self.look_at = max(_KEPT, 2 * len(self))


class MemoryClaimStore:
    """See :class:`distperiodic.ports.ClaimStore`.

    Of an ended claim only its tick is kept: a million objects cost one
    dictionary. Those of objects that are gone are forgotten in time. Not
    thread-safe; it belongs to the thread of its flow.

    No other member asks here, so an earlier tick than the last one is only
    asked for after the clock was set back, and then it is granted: refusing
    it would silence the object until the clock is where it was. Leases end by
    a clock that does not jump.
    """

    def __init__(self, clock: ports.Clock | None = None) -> None:
        self._clock = clock or clock_.SystemClock()
        self._epoch = self._clock.now() - int(
            self._clock.monotonic() * SECOND)
        self._rows: dict[str, _Rows] = {}
        self._leases: dict[str, _Held] = {}
        #: A lease, an ending, and what has come to it there last.
        self._ended: tuple[str, State, set[str]] = '', State.DONE, set()

    def close(self) -> None:
        """There is nothing that connects to it."""

    def now(self) -> int:
        return self._epoch + int(self._clock.monotonic() * SECOND)

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, holder: str, seconds: float, supersede: bool,
              fresh: bool = True, after: int | None = None,
              most: int = claim_.UNBOUNDED) -> Claimed:
        rows = self._rows.get(job)
        if rows is None:
            rows = self._rows[job] = _Rows()
        held = self._leases.get(lease)
        if held is None:
            held = _Held(lease, job, tick, holder, self._until(seconds))
        first = claim_.first_fence(tick)
        newest = max(first, rows.floor)
        won: list[Claim] = []
        busy: list[str] = []
        behind: list[tuple[str, int]] = []
        superseded = 0
        for key in dict.fromkeys(objects):
            row = rows.get(key)
            if (after is not None and row is not None
                    and (row if isinstance(row, int) else row.tick) < after):
                behind.append((key, row if isinstance(row, int)
                               else row.tick))
                continue
            attempt = 1
            if row is None:
                if not fresh:
                    continue
                fence = newest
            elif isinstance(row, int):
                if row == tick:
                    continue
                # As it ended, it left the fences of its own tick behind.
                fence = max(first, claim_.first_fence(row) + FENCES)
            elif row.tick == tick:
                if row.lease is held and row.state is State.CLAIMED:
                    # The answer that told of it was lost.
                    won.append(_claim_of(key, row))
                continue
            elif row.state in ENDINGS:
                fence = max(first, row.fence + 1)
                if row.attempt >= most and row.state is not State.DONE:
                    attempt = most
            elif supersede and row.state in _SUPERSEDED_FROM:
                superseded += 1
                self._leave(key, row)
                fence = max(first, row.fence + 1)
                attempt = min(row.attempt, most)
            else:
                busy.append(key)
                continue
            rows[key] = held.rows[key] = _Row(tick, fence, held, attempt)
            # As Claim() does it, without the call.
            won.append(_new(Claim, (key, fence, attempt, tick)))
        if held.rows:
            self._leases[lease] = held
        if len(rows) > rows.look_at:
            rows.forget(tick)
        return Claimed(won, busy, superseded, behind)

    def _until(self, seconds: float) -> int:
        return self.now() + int(seconds * SECOND)

    def _leave(self, key: str, row: _Row) -> None:
        """*row* leaves its lease, and the last one ends it."""
        held = row.lease
        held.rows.pop(key, None)
        if not held.rows:
            self._leases.pop(held.id, None)

    def _enter(self, held: _Held, key: str, row: _Row) -> None:
        self._leave(key, row)
        row.lease = held
        held.rows[key] = row
        self._leases[held.id] = held

    def _standing(self, lease: str, objects: Iterable[str],
                  move: Move) -> Iterator[tuple[str, _Row]]:
        """Those of *objects* that *move* may move from *lease*."""
        held = self._leases.get(lease)
        if held is not None:
            before = MOVES[move][0]
            for key in objects:
                row = held.rows.get(key)
                if row is not None and row.state in before:
                    yield key, row

    def start(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, into: str, holder: str,
              seconds: float) -> list[Claim]:
        granted = []
        to = self._leases.get(into)
        if to is not None:
            # The answer that told of these was lost, or they are not ours.
            return [_claim_of(key, to.rows[key]) for key in objects
                    if key in to.rows and to.holder == holder]
        to = _Held(into, job, tick, holder, self._until(seconds))
        for key, row in self._standing(lease, objects, Move.START):
            row.state = State.RUNNING
            self._enter(to, key, row)
            granted.append(_new(Claim, (
                key, row.fence, row.attempt, row.tick)))
        return granted

    def finish(self, job: str, tick: int, objects: Sequence[str], *,
               lease: str) -> set[str]:
        return self._end(objects, lease, Move.FINISH)

    def drop(self, job: str, tick: int, objects: Sequence[str], *,
             lease: str, ending: State, reason: str = '') -> int:
        return len(self._end(objects, lease, claim_.ENDING_MOVES[ending]))

    def skip(self, job: str, tick: int, objects: Sequence[str], *,
             holder: str, by: claim_.SkippedBy, reason: str,
             missed: Callable[[int], int] | None = None) -> int:
        """Nothing: nobody else could claim them, and no history is kept."""
        return 0

    def paused(self, jobs: Sequence[str]) -> dict[str, str]:
        """None: no operator has a way into this process."""
        return {}

    def _end(self, objects: Sequence[str], lease: str,
             move: Move) -> set[str]:
        after = MOVES[move][1]
        # A call that is made again is made before any other, so that one is
        # all that is kept: its answer has what it ended before.
        if self._ended[:2] != (lease, after):
            self._ended = lease, after, set()
        ended = self._ended[2]
        held = self._leases.get(lease)
        if held is not None:
            rows = self._rows[held.job]
            for key, row in self._standing(lease, objects, move):
                row.state = after
                self._leave(key, row)
                if (row.fence < claim_.first_fence(row.tick) + FENCES
                        and (row.attempt == 1 or after is State.DONE)):
                    rows[key] = row.tick
                ended.add(key)
        return ended.intersection(objects)

    def fail(self, job: str, tick: int, failures: Sequence[Failure], *,
             lease: str, into: str | None,
             seconds: float = 0.0) -> set[str]:
        keys = [failure.object for failure in failures]
        if into is None:
            return self._end(keys, lease, Move.BURY)
        to = self._leases.get(into)
        if to is not None:
            # The answer that told of these was lost.
            return {key for key in keys if key in to.rows}
        to = _Held(into, job, tick, '', self._until(seconds))
        for key, row in self._standing(lease, keys, Move.RETRY):
            row.state = State.RETRY
            self._enter(to, key, row)
        return set(to.rows)

    def save(self, job: str, progress: Mapping[str, str], *,
             lease: str) -> None:
        for key, row in self._standing(lease, progress, Move.FINISH):
            row.progress = progress[key]

    def progress(self, job: str, objects: Sequence[str], *,
                 lease: str) -> dict[str, str]:
        return {key: row.progress
                for key, row in self._standing(lease, objects, Move.FINISH)
                if row.progress is not None}

    def take_back(self, job: str, tick: int, objects: Sequence[str], *,
                  leases: Sequence[str], into: str, holder: str,
                  seconds: float, ran: bool = True) -> list[Claim]:
        rows = self._rows.get(job, _Rows())
        to = self._leases.get(into)
        if to is None:
            to = _Held(into, job, tick, holder, self._until(seconds))
        anew = []
        for key in dict.fromkeys(objects):
            row = rows.get(key)
            if not isinstance(row, _Row):
                continue
            if row.lease is to:
                # The answer that told of it was lost.
                anew.append(_claim_of(key, row))
            elif row.lease.id in leases and row.state in _TAKEN_BACK:
                anew.append(self._anew(to, key, row, ran))
        return anew

    def _anew(self, to: _Held, key: str, row: _Row,
              ran: bool = True) -> Claim:
        row.attempt += ran and row.state is not State.CLAIMED
        row.fence += 1
        row.state = State.CLAIMED
        self._enter(to, key, row)
        return _claim_of(key, row)

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        until = self._until(seconds)
        held = [self._leases[lease] for lease in leases
                if lease in self._leases]
        for one in held:
            if one.holder == holder:
                one.until = until
        return {one.id for one in held if one.holder == holder}

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        counted = dict.fromkeys(jobs, 0)
        for held in self._leases.values():
            if held.job in counted:
                counted[held.job] += sum(
                    row.state is State.RUNNING for row in held.rows.values())
        return counted

    def overdue(self, jobs: Sequence[str], *, into: str, holder: str,
                seconds: float, gone: Sequence[str], limit: int,
                silent: float = 0.0) -> list[Lease]:
        now, known = self.now(), set(jobs)
        unheard = self._until(seconds - silent)
        lost = {name for name in gone if name}
        due = [held for held in self._leases.values() if held.job in known
               and (held.until <= now or (
                   held.holder in lost and held.until <= unheard))]
        due.sort(key=lambda held: held.until)
        names = claim_.names_of_leases(into, limit)
        # Those whose answer was lost.
        taken = [Lease(name, held.job, held.tick, [
            _claim_of(key, row) for key, row in held.rows.items()],
            State.RUNNING)
            for name in names if (held := self._leases.get(name))]
        for name, held in zip(names[len(taken):], due, strict=False):
            to = _Held(name, held.job, held.tick, holder,
                       self._until(seconds))
            was = next(iter(held.rows.values())).state
            taken.append(Lease(to.id, to.job, to.tick, [
                self._anew(to, key, row)
                for key, row in list(held.rows.items())], was))
        return taken

    def holders(self, jobs: Sequence[str]) -> set[str]:
        known = set(jobs)
        return {held.holder for held in self._leases.values()
                if held.job in known} - {''}


class Direct:
    """A store that answers at once. See
    :class:`distperiodic.ports.StoreQueue`.
    """

    away = False

    def __init__(self, store: ports.ClaimStore):
        self._store = store

    def ask(self, call: Callable[[ports.ClaimStore], _Answer],
            then: Callable[[_Answer], None],
            failed: Callable[[], None] = lambda: None, *,
            first: bool = False) -> None:
        then(call(self._store))


def _claim_of(key: str, row: _Row) -> Claim:
    return Claim(key, row.fence, row.attempt, row.tick)


class Alone:
    """The membership of a process that has no others: it owns everything."""

    def __init__(self, identity: str, points: int, *, clock: ports.Clock):
        #: Not who was here before under this name.
        self.me = member_.Member(identity, secrets.token_hex(8), 1, points)
        self._view = member_.View(
            'alone', (self.me,), ring_.Ring({identity: points}), version=1,
            since=clock.monotonic(), me=self.me, trusted_until=float('inf'))

    def view(self, group: str) -> member_.View:
        return self._view
