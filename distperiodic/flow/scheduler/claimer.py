# SPDX-License-Identifier: Apache-2.0
"""Claims of the objects that are due.

    at its tick ─► claim ─► won ─► offer to the dispatcher
    any row ─► judge ─► claim
                 └─► given up: recorded, with the reason
    claim ├─► behind: it missed more than this tick ─► judge
          ├─► busy: an earlier tick of it still runs
          │     ├─ overlap=skip ─► skipped
          │     └─ overlap=wait ─► waits for the end of the run ─► judge
          └─► waiting: an earlier tick of it was not started ─► the same

The row of an object in the store records which ticks the object has missed.
The claimer only remembers the ids of objects that wait, to read their rows
again.

The file is long so that an object on its way crosses it only once, and because
it makes every decision about a claim.
"""

import collections
import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.core import due
from distperiodic.core import schedule
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import SkippedBy
from distperiodic.core.due import Row
from distperiodic.core.due import Verdict
from distperiodic.core.job import Job
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.flow import events
from distperiodic.flow.scheduler import in_flight
from distperiodic.flow.scheduler import part
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.scheduler.dropped import DroppedTicks

LOG = logging.getLogger(__name__)

# Seconds to wait for the answer to a query of the store's clock.
_CLOCK_PAUSE = 1.0
# Seconds until an object is judged again if its row was locked or changed.
_LOCKED_PAUSE = 0.1


class _ClaimRequest(NamedTuple):
    """One claim that is requested from the store."""

    job: Job
    plan: due.Plan
    rule: str
    tick: Instant
    objects: Sequence[str]
    #: An object with an earlier watermark is behind.
    after: Instant
    #: True if the claim is for a missed tick, as found by judging the rows.
    judged: bool
    #: True if an earlier request came before the tick by the store's clock.
    #: Then this process's time is ahead, and does not show whether the tick is
    #: too late.
    early: bool = False
    #: True if the tick is the instant at which the objects were listed, so
    #: that they have no phase.
    listing: bool = False


class _Rest(NamedTuple):
    """The objects of a large tick that are still to be claimed."""

    request: _ClaimRequest
    at: int


class _Waits(NamedTuple):
    """Objects of one job that are judged again when their runs end."""

    waiting: dict[str, None]
    #: The waiting objects whose runs have ended.
    released: dict[str, None]


_NOTHING_WAITS = _Waits({}, {})


class Claimer:
    """Claims for one member, under the policies of each job.

    :param put: Puts events into the inbox.
    :param holder: Returns the name under which leases are held; called for
        each claim.
    :param lease: Seconds until a lease expires.
    :param piece: Number of objects of a large tick that are claimed together,
        under one lease. Other jobs are claimed between two pieces.
    :param promise: Seconds within which a tick is claimed while schedulers
        attend its job, even if one of them dies.
    :param sweep: Seconds between two checks of objects that wait for runs of
        other schedulers.
    """

    def __init__(self, jobs: Mapping[str, Job], *,
                 clock: ports.Clock, store: ports.StoreQueue, put: events.Put,
                 holder: Callable[[], str], new_lease: Callable[[], str],
                 lease: float, piece: int, promise: float,
                 sweep: float, attendance: Attendance,
                 dispatcher: Dispatcher):
        self._jobs = jobs
        self._clock = clock
        self._store = store
        self._put = put
        self._holder = holder
        self._new_lease = new_lease
        self._lease = lease
        self._piece = piece
        self._sweep_interval = sweep
        self._swept = clock.monotonic()
        self.attendance = attendance
        self._dispatcher = dispatcher
        #: Number of ticks or objects, by (job, outcome).
        self.counts = dispatcher.counts
        self._dropped = DroppedTicks(
            clock, store, holder=holder, piece=piece, promise=promise,
            attendance=attendance, counts=self.counts)
        #: Number of store requests without an answer, by job.
        self._pending: collections.Counter[str] = collections.Counter()
        #: Jobs for which :meth:`ready` returned False.
        self._refused: set[str] = set()
        self._rest: dict[str, collections.deque[_Rest]] = {
            name: collections.deque() for name in jobs}
        #: Jobs with waiting objects, or that had some at the last sweep.
        self._waits: dict[str, _Waits] = {}
        #: Claims to request again, each with the monotonic seconds of the next
        #: request.
        self._delayed: list[tuple[float, _ClaimRequest]] = []
        self._closed = False

    # -- requests

    @property
    def away(self) -> bool:
        """True while the store is unreachable; requests queue up meanwhile.
        """
        return self._store.away

    def ready(self, job: str) -> bool:
        """Return whether more claims of *job* may be requested.

        The status of the job must be known, and all earlier requests must be
        answered.
        """
        if (self.attendance.known and not self._pending[job]
                and not self._store.away):
            self._refused.discard(job)
            return True
        self._refused.add(job)
        return False

    def ready_again(self) -> list[str]:
        """Return the jobs that were not ready earlier and are ready now.

        It is not enough to call :meth:`ready` at fixed intervals, because the
        store may be busy with another request each time.
        """
        if not self._refused:
            return []
        return [job for job in sorted(self._refused) if self.ready(job)]

    def plan(self, job: Job, rule: str = '') -> due.Plan:
        """Return the plan of the objects of *job* that follow *rule*."""
        return part.plan_of(job, rule, self.attendance.since(job.name))

    def start_tick(self, job: Job, tick: Instant,
                   objects: Sequence[str], rule: str = '') -> None:
        """Claim objects of this member for a tick that is due.

        The first piece is claimed now, the others by :meth:`claim_rest`.

        :param rule: Text of the objects' own schedule. Empty means the
            schedule of the job.
        """
        if not objects or self.attendance.outdated(job.name):
            return
        plan = self.plan(job, rule)
        if tick < plan.since and not plan.spread:
            return
        previous = plan.schedule.at_or_before(tick - 1)
        request = _ClaimRequest(
            job, plan, rule, tick, objects,
            due.ALWAYS if previous is None else previous, False)
        rest = self._rest[job.name]
        if not rest and len(objects) <= self._piece:
            self._request(request)
        else:
            rest.append(_Rest(request, 0))
            if len(rest) == 1:
                self.claim_rest(job.name)

    def has_rest(self, job: str) -> bool:
        """Return whether a tick of *job* was started but is not fully claimed.
        """
        return bool(self._rest[job])

    def claim_rest(self, job: str) -> None:
        """Claim the next piece of a large tick, if there is one."""
        rest = self._rest[job]
        if not rest:
            return
        request, at = rest[0]
        end = at + self._piece
        self._request(request._replace(objects=request.objects[at:end]))
        if end >= len(request.objects):
            rest.popleft()
        else:
            rest[0] = _Rest(request, end)

    def judge(self, job: Job, rows: Iterable[Row],
              until: Instant | None = None) -> int:
        """Claim the due ticks of these rows, and record those given up.

        :param until: Leave out objects that had no due tick at this instant.
            None leaves out no object.
        :returns: Number of objects that have a due tick.
        """
        candidates = list(rows)
        if not candidates or self.attendance.outdated(job.name):
            return 0
        now = self._clock.now()
        if until is not None:
            candidates = [row for late in self._verdicts(
                job, candidates, until).values() for row in late]
        found = self._verdicts(job, candidates, now)
        if found and not self.attendance.fresh():
            # This process may have been suspended. First read whether
            # schedulers attended the job meanwhile. Until the answer, nothing
            # else of the job is judged: otherwise a slow store would receive
            # the same claims repeatedly.
            self._pending[job.name] += 1

            def known() -> None:
                self._pending[job.name] -= 1
                self._judged(job, self._verdicts(job, candidates, now))
            self.attendance.refresh(known)
        else:
            self._judged(job, found)
        return sum(map(len, found.values()))

    def _verdicts(self, job: Job, rows: Sequence[Row],
                  now: Instant) -> dict[tuple[str, Verdict], list[Row]]:
        plans = {}
        for rule in {row.rule for row in rows} - {due.UNRECORDED}:
            try:
                plans[rule] = self.plan(job, rule)
            except exceptions.InvalidSchedule as exc:
                LOG.error('schedule unknown: job=%s reason=%s', job.name, exc)
        return due.verdicts(rows, plans, now)

    def _judged(self, job: Job, found: Mapping[
            tuple[str, Verdict], list[Row]]) -> None:
        for (rule, verdict), rows in sorted(
                found.items(), key=lambda one: one[0][1].run[:1]):
            plan = self.plan(job, rule)
            if verdict.given_up:
                self._dropped.give_up(job, plan, verdict, rows)
            if not verdict.run:
                continue
            if len(verdict.run) > 1:
                self.wait_for(job.name, [row.object for row in rows])
            tick = verdict.run[0]
            after = verdict.until
            if after is None:
                after = min(row.settled for row in rows)
            parts = {False: [row.object for row in rows], True: []}
            if plan.spread and plan.immediate:
                parts = {False: [], True: []}
                for row in rows:
                    parts[plan.is_listing(row, tick)].append(row.object)
            for listing, objects in parts.items():
                for at in range(0, len(objects), self._piece):
                    self._request(_ClaimRequest(
                        job, plan, rule, tick, objects[at:at + self._piece],
                        after, True, listing=listing))

    # -- answers of the store

    def _request(self, request: _ClaimRequest) -> None:
        job, tick = request.job, request.tick
        reason = self.attendance.paused(job.name)
        if reason is not None and not request.judged:
            # The rows show which ticks were missed before the pause.
            self.judge_objects(job, request.objects)
            return
        if reason is not None:
            self.counts[job.name, 'paused'] += len(request.objects)
            self._dropped.settle(
                job, request.plan, tick, request.objects, SkippedBy.PAUSE,
                f'paused: {reason}',
                functools.partial(
                    self._request_later, request, _LOCKED_PAUSE),
                request.listing)
            return
        lease, holder = self._new_lease(), self._holder()
        self._pending[job.name] += 1
        due_at, until = _window(request)

        def call(store: ports.ClaimStore) -> Claimed:
            return store.claim(
                job.name, tick, request.objects, lease=lease,
                holder=holder, seconds=self._lease,
                supersede=job.misfire is not Misfire.ALL,
                include_new=False, previous_tick=request.after,
                max_attempts=job.most_attempts, rule=request.rule,
                schedule=job.schedule_text(), due_at=due_at, until=until)

        def claimed(answer: Claimed) -> None:
            self._pending[job.name] -= 1
            if answer.over:
                self._too_late(request, until)
            elif answer.early:
                # The store's clock was set back, or this process's time was
                # wrong.
                self.counts[job.name, 'too early'] += len(request.objects)
                self._request_later(request._replace(early=True),
                                    answer.early / schedule.SECOND)
                self._put(events.ClockDiffers(job.name))
            else:
                self._claimed(request, in_flight.HeldLease(lease, holder),
                              answer)

        def failed() -> None:
            self._pending[job.name] -= 1
            self.counts[job.name, 'claims failed'] += len(request.objects)
        self._store.submit(call, claimed, failed)

    def _too_late(self, request: _ClaimRequest, until: Instant | None) -> None:
        """Handle the answer that it is too late for the tick of *request*.

        The store was unreachable or busy, or this process was suspended. The
        rows show which ticks are due now.
        """
        if until is None or self._clock.now() > until:
            self.judge_objects(request.job, request.objects)
        else:
            # It is too late only by the store's clock. This process must
            # correct its time before it judges the rows.
            self._request_later(request._replace(judged=True), _CLOCK_PAUSE)
            self._put(events.ClockDiffers(request.job.name))

    def _request_later(self, request: _ClaimRequest, seconds: float) -> None:
        self._delayed.append((self._clock.monotonic() + seconds, request))

    def _claimed(self, request: _ClaimRequest, lease: in_flight.HeldLease,
                 answer: Claimed) -> None:
        job = request.job
        if answer.outdated:
            # Read which schedule is in force, and claim nothing more.
            self.attendance.refresh()
        if answer.behind:
            if request.judged:
                # The row is locked, or was changed meanwhile.
                self._request_later(request._replace(
                    objects=[row.object for row in answer.behind]),
                    _LOCKED_PAUSE)
            else:
                self.judge(job, answer.behind)
        if answer.waiting:
            self.wait_for(job.name, answer.waiting)
        if answer.busy:
            # An object that catches up runs its ticks one after the other. The
            # overlap policy is meant for runs that take too long.
            if job.overlap is Overlap.SKIP and not (
                    request.judged and job.misfire is Misfire.ALL):
                self._dropped.busy(
                    job, request.plan, request.tick, answer.busy,
                    functools.partial(
                        self._request_later,
                        request._replace(objects=answer.busy), _LOCKED_PAUSE),
                    request.listing)
            else:
                self.wait_for(job.name, answer.busy)
        if answer.unlisted:
            self._put(events.Unlisted(job.name, answer.unlisted))
        if answer.won:
            self.counts[job.name, 'claimed'] += len(answer.won)
            self._dispatcher.offer(job, lease, answer.won, answer.superseded)

    def give_up_delisted(self, job: Job, rows: Iterable[Row],
                         at: Instant) -> None:
        """Record that delisted objects do not run for their due ticks.

        :param at: Instant since which the objects are not listed. Later ticks
            are not recorded, because the objects may be listed again.
        """
        if self.attendance.outdated(job.name):
            return
        found = self._verdicts(job, list(rows), at)
        for (rule, verdict), late in found.items():
            self._dropped.delisted(job, self.plan(job, rule), verdict, late)

    # -- objects that wait

    def released(self, job: Job, objects: Iterable[str]) -> None:
        """Record that runs of *objects* ended.

        :meth:`judge_released` judges the waiting objects among them.
        """
        waiting, released = self._waits.get(job.name, _NOTHING_WAITS)
        if waiting:
            released.update(
                (key, None) for key in objects if key in waiting)

    def judge_released(self) -> bool:
        """Judge waiting objects whose runs have ended.

        Jobs with a pending store request are left out. So runs that end during
        a request are judged together, and many objects that catch up cost few
        claims. Each call judges at most one piece of each job, so that claims
        for a tick do not wait for all of them.

        :returns: True if anything was judged.
        """
        judged = False
        if not self._waits:
            return False
        for name, (_, released) in list(self._waits.items()):
            if released and not self._pending[name] and not self._closed:
                piece = list(itertools.islice(released, self._piece))
                for key in piece:
                    del released[key]
                self.judge_objects(self._jobs[name], piece)
                judged = True
        return judged

    def judge_objects(self, job: Job, objects: Sequence[str]) -> None:
        """Read the rows of *objects*, and judge those without an open claim.
        """
        def received(keys: Sequence[str], rows: list[Row]) -> None:
            self._pending[job.name] -= 1
            waiting, _ = self._waits.get(job.name, _NOTHING_WAITS)
            free = {row.object for row in rows if row.free}
            open_keys = {row.object for row in rows} - free
            for key in keys:
                if key not in open_keys:
                    waiting.pop(key, None)
            self.judge(job, [row for row in rows if row.free])

        def failed() -> None:
            self._pending[job.name] -= 1
        for at in range(0, len(objects), self._piece):
            chunk = objects[at:at + self._piece]
            self._pending[job.name] += 1
            self._store.submit(
                functools.partial(
                    lambda store, chunk: store.rows_of(job.name, chunk),
                    chunk=chunk),
                functools.partial(received, chunk), failed)

    def wait_for(self, job: str, objects: Iterable[str]) -> None:
        """Judge *objects* again when their runs end."""
        self._waits.setdefault(job, _Waits({}, {})).waiting.update(
            dict.fromkeys(objects))

    def retry_delayed(self) -> float:
        """Repeat delayed requests that are due.

        :returns: Seconds until the next delayed request.
        """
        if not self._delayed:
            return math.inf
        now = self._clock.monotonic()
        requests = [request for at, request in self._delayed if at <= now]
        self._delayed = [item for item in self._delayed if item[0] > now]
        for request in requests:
            if request.judged and not request.early:
                self.judge_objects(request.job, request.objects)
            else:
                self._request(request)
        return min((at - now for at, _ in self._delayed), default=math.inf)

    def sweep(self) -> None:
        """Log dropped ticks, and check objects that wait for runs.

        The check is needed because the ends of other schedulers' runs are not
        reported here.
        """
        self._dropped.report()
        now = self._clock.monotonic()
        if now - self._swept < self._sweep_interval:
            return
        self._swept = now
        self._waits = {
            name: waits for name, waits in self._waits.items() if any(waits)}
        for name, (waiting, released) in self._waits.items():
            # In a long backlog, most objects wait for runs of this scheduler,
            # whose ends are reported here. Reading the rows of these objects,
            # too, would be slow.
            known = (self._dispatcher.objects(name)
                     if len(waiting) > self._piece else ())
            released.update(
                (key, None) for key in waiting if key not in known)
        self.judge_released()

    def forget(self, job: str) -> None:
        """Forget the rest of a tick, and the objects that wait.

        Other members may own these objects now.
        """
        self._rest[job].clear()
        self._waits.pop(job, None)

    def close(self) -> None:
        """Make no more claims when runs end."""
        self._closed = True
        self._dropped.report()


def _window(request: _ClaimRequest) -> tuple[Instant, Instant | None]:
    """Return the interval in which all objects of *request* may be claimed.

    The interval begins when the last object is due. It ends when a newer tick
    replaces the tick of the first object, or when its grace is over. An end of
    None means that there is no end.
    """
    plan, positions = request.plan, [0]
    if plan.spread:
        plan = dataclasses.replace(
            plan, schedule=schedule.Remembered(plan.schedule))
        positions = [position_of(key) for key in request.objects]
        if not request.listing:
            # The phases determine the order, and to hash is cheaper than to
            # compute the window of each object.
            hashed = schedule.scattered
            positions = [min(positions, key=hashed),
                         max(positions, key=hashed)]
    windows = [plan.window(request.tick, position, request.listing)
               for position in positions]
    ends = [end for _, end in windows if end is not None]
    return (max(begin for begin, _ in windows),
            min(ends) if ends else None)
