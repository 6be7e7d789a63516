# SPDX-License-Identifier: Apache-2.0
"""Claims in this process's memory.

The store records the decisions of one member. It prevents that member from
starting a tick twice, and from starting a run of an object while another run
of the object is in progress. The store knows nothing about other members, so
only the ring decides which member runs an object. The contents are lost when
the process ends.
"""

import collections
import itertools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.memory_rows import ClaimRow
from distperiodic.adapters.local.memory_rows import EndedClaim
from distperiodic.adapters.local.memory_rows import JobRows
from distperiodic.adapters.local.memory_rows import LeaseRow
from distperiodic.adapters.local.memory_rows import listed_row
from distperiodic.adapters.local.memory_rows import new_tuple
from distperiodic.adapters.local.memory_rows import row_with
from distperiodic.core import due
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import FENCES
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import STARTED_EARLIER
from distperiodic.core.claim import UNSTARTED_FIRST
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import Lease
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import Decision
from distperiodic.core.claim_request import KnownSchedule
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.claim_request import decide
from distperiodic.core.job_set import adopted
from distperiodic.core.job_set import mark_of
from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep
from distperiodic.core.ring import Arc
from distperiodic.core.ring import positions_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.standby import Active

_RECLAIMED_FROM = MOVES[Move.RECLAIM][0]


class MemoryClaimStore:
    """A store in memory; see :class:`distperiodic.ports.ClaimStore`.

    Objects whose claims ended in the same way share their data, so a million
    objects need little more memory than one dictionary of their ids. The store
    forgets delisted objects when there are many. The store is not thread-safe:
    only the thread of its flow may use it.

    Only one member uses the store. So a claim for a tick before the last
    claimed tick means that the clock was set back. The claim is granted.
    Otherwise the object would not run until the clock had caught up. The
    expiry of leases depends on a clock that does not jump.
    """

    def __init__(self, clock: ports.Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._epoch = self._clock.now() - int(
            self._clock.monotonic() * SECOND)
        self._rows: dict[str, JobRows] = {}
        #: The schedule in force of each job, as text, and the instant at which
        #: that schedule took effect.
        self._schedules: dict[str, tuple[str, int]] = {}
        #: Definitions of the schedule of each job; see :func:`.adopted`.
        self._definitions: dict[str, list[int]] = {}
        self._checked: dict[str, int] = {}
        self._leases: dict[str, LeaseRow] = {}
        #: The last call that ended claims: lease, new state, ended objects.
        self._ended: tuple[str, State, set[str]] = '', State.DONE, set()

    @property
    def steps(self) -> None:
        return None

    @property
    def partitions(self) -> None:
        return None

    @property
    def members(self) -> None:
        return None

    def close(self) -> None:
        """Do nothing, since there is no connection."""

    def now(self) -> int:
        return self._epoch + int(self._clock.monotonic() * SECOND)

    # Jobs, and the listing of their objects.

    def adopt(self, schedules: Mapping[str, str],
              others: Mapping[str, Collection[int] | None] | None = None
              ) -> None:
        for job, text in schedules.items():
            definitions = self._definitions.setdefault(job, [])
            if definitions:
                if self._schedules[job][0] == text:
                    continue
                found = adopted(definitions, mark_of(text),
                                (others or {}).get(job, ()))
                if found is None:
                    continue
                self._definitions[job] = found
            else:
                definitions.append(mark_of(text))
            known = self._schedules.get(job)
            if known is None:
                self._schedules[job] = text, due.ALWAYS
            else:
                self._schedules[job] = text, self.now()

    def attend(self, jobs: Mapping[str, float],
               checked: Mapping[str, ports.Checked]
               ) -> dict[str, ports.JobStatus]:
        """Record *checked* and return the status of *jobs*.

        Operators pause jobs in a shared store, so no job is paused here. This
        store does not record when schedulers served a job, so
        :attr:`.JobStatus.attended` is None.
        """
        for job, scan in checked.items():
            if scan.expected == self._checked.get(job, due.ALWAYS):
                self._checked[job] = max(scan.until, scan.expected)
        return {job: ports.JobStatus(
            None, *self._schedules.get(job, ('', due.ALWAYS)), None,
            self._checked.get(job, due.ALWAYS)) for job in jobs}

    def sync(self, job: str, listed: Sequence[ports.Listed],
             delisted: Sequence[str], *,
             readings: Sequence[int]) -> list[str]:
        at = readings[0]
        rows = self._rows_of(job)
        left = []
        changed = False
        for key, attributes, settled in listed:
            row = rows.get(key)
            if row is None:
                changed = True
                rows.add(key, EndedClaim(
                    settled, settled, at, attributes, None, None))
            elif row.since is None or (
                    row.attributes != attributes and row.since <= at):
                changed = True
                since = at if row.since is not None else due.listed_again(
                    readings, rows.delisted.pop(key, None))
                rows[key] = row_with(row, since=since, attributes=attributes,
                                     settled=max(row.settled, settled))
            elif row.attributes != attributes:
                left.append(key)
        if changed:
            self._checked[job] = min(self._checked.get(job, 0), at) - 1
        for key in sorted(set(delisted).difference(
                one.object for one in listed)):
            row = rows.get(key)
            if row is None or row.since is None:
                continue
            if row.since > at:
                left.append(key)
            else:
                rows[key] = row_with(row, since=None)
                rows.delist(key, at)
        return left

    def rows(self, job: str, arc: Arc, *, before: int | None = None,
             limit: int) -> list[due.Row]:
        return list(itertools.islice(
            self._rows_of(job).between(*arc, before), limit))

    def rows_of(self, job: str, objects: Sequence[str]) -> list[due.Row]:
        rows = self._rows_of(job)
        known = [key for key in dict.fromkeys(objects) if key in rows]
        return [listed_row(key, position, row, row.since)
                for key, position in zip(
                    known, positions_of(known), strict=True)
                if (row := rows[key]).since is not None]

    def settled(self, job: str, tick: int) -> int:
        return self._rows_of(job).settled[tick]

    def _rows_of(self, job: str) -> JobRows:
        rows = self._rows.get(job)
        if rows is None:
            rows = self._rows[job] = JobRows()
        return rows

    # Claims in new leases.

    def claim(self, request: ClaimRequest, lease: NewLease) -> Claimed:
        job, tick = request.job, request.tick
        rows = self._rows_of(job)
        lease_row = self._leases.get(lease.id)
        if not self._in_force(job, request.schedule):
            # Return the claims that an earlier call acquired, because its
            # answer may have been lost.
            return Claimed([_claim_of(key, row) for key, row in (
                lease_row.rows.items() if lease_row else ())], [], 0, [], [],
                outdated=True)
        if lease_row is None:
            until = request.until
            if until is not None and self._clock.now() > until:
                return Claimed([], [], 0, [], [], over=True)
            lease_row = self._new_row(lease, job, tick)
        first = first_fence(tick)
        newest = max(first, rows.floor)
        now = self.now()
        won: list[Claim] = []
        others: dict[Decision, list[str]] = collections.defaultdict(list)
        superseded = known = 0
        for key in dict.fromkeys(request.objects):
            row = rows.get(key)
            if row is None:
                others[Decision.UNLISTED].append(key)
                continue
            last = None if isinstance(row, EndedClaim) else row
            decision = decide(
                request, row.since, row.settled,
                State.DONE if last is None else last.state,
                held=last is not None and last.lease is lease_row,
                passed=(row.settled == tick
                        or last is not None and last.tick == tick
                        or row.attributes.rule != request.rule))
            attempt, losses, waiting = 1, 0, now
            if decision is Decision.CLAIM and last is None:
                # The row does not contain the fence of its last claim. So use
                # a fence above all possible fences of the tick of that claim.
                fence = max(newest, first_fence(row.tick) + FENCES)
            elif last is not None and decision in (
                    Decision.CLAIM, Decision.SUPERSEDE):
                fence = max(first, last.fence + 1)
                if decision is Decision.SUPERSEDE:
                    superseded += 1
                    self._leave(key, last)
                    attempt = min(last.attempt, request.max_attempts)
                    losses, waiting = last.losses, last.waiting
                elif (last.attempt >= request.max_attempts
                      and last.state is not State.DONE):
                    attempt, losses = request.max_attempts, last.losses
            else:
                if (decision is Decision.HELD and last is not None
                        and last.state is State.CLAIMED):
                    # An earlier call acquired this claim, but its answer was
                    # lost.
                    won.append(_claim_of(key, last))
                    known += 1
                else:
                    others[decision].append(key)
                continue
            started = row.started
            # This is equivalent to Claim(), but faster.
            claim = new_tuple(Claim, (
                key, fence, attempt, tick,
                waiting - UNSTARTED_FIRST if started is None else started,
                waiting, losses))
            won.append(claim)
            rows[key] = lease_row.rows[key] = ClaimRow(claim, lease_row, row)
        if lease_row.rows:
            self._leases[lease.id] = lease_row
        if len(won) > known:
            rows.settle(tick, len(won) - known)
        behind = others[Decision.BEHIND]
        return Claimed(won, others[Decision.BUSY], superseded,
                       self.rows_of(job, behind) if behind else [],
                       others[Decision.WAIT],
                       unlisted=tuple(others[Decision.UNLISTED]))

    def _in_force(self, job: str, known: KnownSchedule) -> bool:
        """Return whether *known* is the job's schedule in force.

        The result is also True if the job has no schedule in force.
        """
        if not known.text or job not in self._schedules:
            return True
        text, since = self._schedules[job]
        return text == known.text and (
            known.since is None or since <= known.since)

    def _new_row(self, lease: NewLease, job: str, tick: int) -> LeaseRow:
        """Return a row of *lease*, which the store does not contain yet."""
        return LeaseRow(lease.id, job, tick, lease.holder,
                        self._until(lease.seconds))

    def _until(self, seconds: float) -> int:
        return self._epoch + int((self._clock.monotonic() + seconds) * SECOND)

    def _leave(self, key: str, row: ClaimRow) -> None:
        """Remove *row* from its lease. Remove the lease if it is empty."""
        lease_row = row.lease
        lease_row.rows.pop(key, None)
        if not lease_row.rows:
            self._leases.pop(lease_row.id, None)

    def _enter(self, lease_row: LeaseRow, key: str, row: ClaimRow) -> None:
        self._leave(key, row)
        row.lease = lease_row
        lease_row.rows[key] = row
        self._leases[lease_row.id] = lease_row

    def _standing(self, lease: str, objects: Iterable[str],
                  move: Move) -> Iterator[tuple[str, ClaimRow]]:
        """Yield those claims of *objects* that are in *lease*.

        Leave out claims that cannot make *move*.
        """
        lease_row = self._leases.get(lease)
        if lease_row is not None:
            before = MOVES[move][0]
            for key in objects:
                row = lease_row.rows.get(key)
                if row is not None and row.state in before:
                    yield key, row

    def start(self, lease: HeldLease, objects: Sequence[str], into: NewLease,
              active: Active | None = None) -> list[Claim]:
        if active is not None:
            # Processes do not share this store, so no partition has an active
            # worker.
            return []
        target = self._leases.get(into.id)
        if target is not None:
            # The lease exists. Either another holder created it, or an earlier
            # call of this holder did, and its answer was lost.
            return [_claim_of(key, target.rows[key]) for key in objects
                    if key in target.rows and target.holder == into.holder]
        lease_row = self._leases.get(lease.id)
        if lease_row is None:
            return []
        target = self._new_row(into, lease.job, lease.tick)
        before, after = MOVES[Move.START]
        waiting, granted = lease_row.rows, []
        now = self.now()
        for key in objects:
            row = waiting.get(key)
            if row is not None and row.state in before:
                row.state, row.lease = after, target
                before_it = (
                    row.waiting if row.started is None else row.started)
                row.started = now - (now - before_it) // STARTED_EARLIER
                target.rows[key] = waiting.pop(key)
                granted.append(new_tuple(Claim, (
                    key, row.fence, row.attempt, row.tick, row.started,
                    row.waiting, row.losses)))
        if granted:
            self._leases[into.id] = target
        if not waiting:
            del self._leases[lease.id]
        return granted

    def finish(self, lease: HeldLease, objects: Sequence[str],
               times: ports.RunTimes = ports.NO_TIMES) -> set[str]:
        """See :meth:`distperiodic.ports.ClaimStore.finish`.

        *times* is not used, since this store has no history.
        """
        return self._end(lease.id, objects, Move.FINISH)

    def discard(self, lease: HeldLease, objects: Sequence[str],
                ending: State, reason: str = '') -> int:
        return len(self._end(lease.id, objects, ENDING_MOVES[ending]))

    def skip(self, request: SkipRequest) -> list[int]:
        """See :meth:`distperiodic.ports.ClaimStore.skip`.

        *missed* is not used, since this store has no history. *due_at* is not
        used, since members do not share this store.
        """
        tick = request.tick
        if not self._in_force(request.job, request.schedule):
            return []
        rows = self._rows_of(request.job)
        skipped = []
        for key in dict.fromkeys(request.objects):
            row = rows.get(key)
            if (row is not None and row.since is not None
                    and row.settled < tick):
                skipped.append(row.settled)
                rows[key] = row_with(row, settled=tick)
        if skipped:
            rows.settle(tick, len(skipped))
        return skipped

    def _end(self, lease: str, objects: Sequence[str],
             move: Move) -> set[str]:
        after = MOVES[move][1]
        # If the answer to a call is lost, the caller repeats the call before
        # it makes another one. So it is enough to remember the last call. A
        # repeated call also returns the claims that the first attempt ended.
        last, ending, ended = self._ended
        if last != lease or ending is not after:
            self._ended = lease, after, (ended := set())
        lease_row = self._leases.get(lease)
        if lease_row is not None:
            rows = self._rows[lease_row.job]
            now = self.now() if after in (State.DONE, State.DEAD) else None
            alike = None
            for key, row in self._standing(lease, objects, move):
                row.state = after
                row.ended = now
                self._leave(key, row)
                if (row.fence < first_fence(row.tick) + FENCES
                        and row.attempt == 1):
                    ended_row = new_tuple(EndedClaim, (
                        row.tick, row.settled, row.since, row.attributes,
                        row.ended, row.started))
                    if ended_row != alike:
                        alike = ended_row
                    rows[key] = alike
                ended.add(key)
        return ended.intersection(objects)

    def fail(self, lease: HeldLease, failures: Sequence[Failure],
             into: NewLease | None,
             times: ports.RunTimes = ports.NO_TIMES) -> set[str]:
        keys = [failure.object for failure in failures]
        if into is None:
            return self._end(lease.id, keys, Move.BURY)
        target = self._leases.get(into.id)
        if target is not None:
            # An earlier call moved these claims, but its answer was lost.
            return {key for key in keys if key in target.rows}
        target = self._new_row(into, lease.job, lease.tick)
        target.retry = True
        for key, row in self._standing(lease.id, keys, Move.RETRY):
            row.state = State.RETRY
            self._enter(target, key, row)
        return set(target.rows)

    def save_progress(self, lease: HeldLease,
                      progress: Mapping[str, str]) -> None:
        for key, row in self._standing(lease.id, progress, Move.FINISH):
            row.progress = progress[key]

    def load_progress(self, lease: HeldLease,
                      objects: Sequence[str]) -> dict[str, str]:
        return {key: row.progress
                for key, row in self._standing(lease.id, objects, Move.FINISH)
                if row.progress is not None}

    def reclaim(self, leases: Sequence[HeldLease], objects: Sequence[str],
                into: NewLease, *, count_attempt: bool = True) -> list[Claim]:
        if not leases:
            return []
        rows = self._rows.get(leases[0].job, JobRows())
        target = self._leases.get(into.id)
        if target is None:
            target = self._new_row(into, leases[0].job, leases[0].tick)
        names = {lease.id for lease in leases}
        reclaimed = []
        for key in dict.fromkeys(objects):
            row = rows.get(key)
            if not isinstance(row, ClaimRow):
                continue
            if row.lease is target:
                # An earlier call reclaimed this object, but its answer was
                # lost.
                reclaimed.append(_claim_of(key, row))
            elif row.lease.id in names and row.state in _RECLAIMED_FROM:
                reclaimed.append(
                    self._reclaim(target, key, row, count_attempt))
        return reclaimed

    def _reclaim(self, target: LeaseRow, key: str, row: ClaimRow,
                 ran: bool = True) -> Claim:
        if row.state is not State.CLAIMED:
            if ran:
                row.attempt += 1
                row.losses += row.state is State.RUNNING
                row.waiting = self.now()
            else:
                # The granted run was not started, and keeps its place.
                row.started = None
        row.fence += 1
        row.state = State.CLAIMED
        self._enter(target, key, row)
        return _claim_of(key, row)

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        until = self._until(seconds)
        known = [self._leases[lease] for lease in leases
                 if lease in self._leases]
        for one in known:
            if one.holder == holder:
                one.until = until
        return {one.id for one in known if one.holder == holder}

    def release(self, leases: Sequence[str]) -> None:
        now = self.now()
        for lease in leases:
            one = self._leases.get(lease)
            if one is not None and all(
                    row.state is State.CLAIMED for row in one.rows.values()):
                one.holder, one.until = '', now

    def prune(self, ages: Ages) -> Iterator[PruneStep]:
        return iter(())

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        counted = dict.fromkeys(jobs, 0)
        for lease_row in self._leases.values():
            if lease_row.job in counted:
                counted[lease_row.job] += sum(
                    row.state is State.RUNNING
                    for row in lease_row.rows.values())
        return counted

    def take_over_expired(self, request: TakeOverRequest,
                          into: NewLease) -> list[Lease]:
        if not self._leases:
            return []
        now, known = self.now(), set(request.jobs)
        unheard = self._until(into.seconds - request.silence_timeout)
        lost = {name for name in request.gone if name}
        ours = {'', into.holder, *lost}
        kept = self._until(-request.retry_after)

        def over(lease_row: LeaseRow) -> bool:
            if lease_row.retry:
                return lease_row.until <= (
                    now if lease_row.holder in ours else kept)
            return lease_row.until <= now or (
                lease_row.holder in lost and lease_row.until <= unheard)
        due = [lease_row for lease_row in self._leases.values()
               if lease_row.job in known and over(lease_row)]
        # True if an earlier call created leases, and its answer was lost.
        repeated = any([name.startswith(into.id) for name in self._leases])
        if not due and not repeated:
            return []
        due.sort(key=lambda lease_row: lease_row.until)
        parts = [*itertools.islice(into.parts(), request.limit)]
        taken = [Lease(part.id, lease_row.job, lease_row.tick, [
            _claim_of(key, row) for key, row in lease_row.rows.items()],
            State.RUNNING)
                 for part in parts if (lease_row := self._leases.get(part.id))]
        # An earlier call may have used any of the names, and some of its
        # leases may have ended since.
        free = [part for part in parts if part.id not in self._leases]
        for part, lease_row in zip(free, due, strict=False):
            target = self._new_row(part, lease_row.job, lease_row.tick)
            was = next(iter(lease_row.rows.values())).state
            taken.append(Lease(target.id, target.job, target.tick, [
                self._reclaim(target, key, row)
                for key, row in list(lease_row.rows.items())], was))
        return taken

    def holders(self, jobs: Sequence[str]) -> set[str]:
        known = set(jobs)
        return {lease_row.holder for lease_row in self._leases.values()
                if lease_row.job in known} - {''}


def _claim_of(key: str, row: ClaimRow) -> Claim:
    return Claim(key, row.fence, row.attempt, row.tick,
                 row.waiting - UNSTARTED_FIRST if row.started is None
                 else row.started,
                 row.waiting, row.losses)
