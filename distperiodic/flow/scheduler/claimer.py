# SPDX-License-Identifier: Apache-2.0
"""Claims of the objects that are due.

    at its tick ─► claim ─► won ─► offer to the dispatcher
    any row ─► judge ─► claim
                 └─► given up: recorded, with the reason
    claim ├─► behind: the object also missed earlier ticks ─► judge
          ├─► busy: an earlier tick of the object still runs
          │     ├─ overlap=skip ─► skipped
          │     └─ overlap=wait ─► waits for the end of the run ─► judge
          └─► waiting: an earlier tick was not started ─► waits, then judge

To *judge* a row means to compute its due ticks, to claim the ticks that run,
and to record the ticks that are given up.

The row of an object in the store shows which ticks the object has missed. So
the claimer remembers only the ids of objects that wait, and reads their rows
again later.

An object of another owner waits for a claim from the end of its run on, even
if its tick is older. Otherwise several members would claim the missed ticks of
the objects of one owner, and the owner could not serve its objects in turn.
"""

import collections
import contextlib
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
from distperiodic.core import telemetry
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import KnownSchedule
from distperiodic.core.claim_request import NewLease
from distperiodic.core.due import Row
from distperiodic.core.due import Verdict
from distperiodic.core.job import Job
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.core.telemetry import ClaimPath
from distperiodic.flow import events
from distperiodic.flow.counters import Counted
from distperiodic.flow.leases import Book
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import PendingProcedures
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler import part
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.scheduler.dropped import DroppedTicks
from distperiodic.flow.scheduler.open_requests import DueTick
from distperiodic.flow.scheduler.open_requests import OpenRequests
from distperiodic.flow.scheduler.waiting_objects import WaitingObjects
from distperiodic.flow.wiring import SchedulerWiring

LOG = logging.getLogger(__name__)

# Seconds until objects are judged again if the store rejects their tick as too
# late and this process does not. Meanwhile the store's clock is queried.
_CLOCK_PAUSE = 1.0
# Seconds until a request is repeated if rows were locked or have changed.
_LOCKED_PAUSE = 0.1
# Number of sweeps after the end of a run until this process claims the next
# tick of an object that it ran for another owner. The owner sweeps, too, so it
# has claimed the tick by then if it is able to.
_SWEEPS_OF_OWNER = 2


class _TickRequest(NamedTuple):
    """A request to claim objects for one tick."""

    job: Job
    plan: due.Plan
    rule: str
    tick: Instant
    objects: Sequence[str]
    #: Objects with an earlier watermark are reported as behind.
    min_watermark: Instant
    #: True if the tick was found when the rows of the objects were judged.
    #: False means that the objects are claimed at their tick.
    judged: bool
    #: Instant since which the schedule of the job has been in force, as this
    #: process knew it when it found the tick.
    schedule_since: Instant
    #: True if the tick is the instant at which the objects were listed. Phases
    #: do not apply to such a tick.
    listing: bool = False

    @property
    def due(self) -> DueTick:
        return self.tick, self.rule, self.schedule_since


class TriggerCounts(NamedTuple):
    """Numbers of objects that an operator has triggered."""

    claimed: int
    #: Objects that were left out, because their earlier tick has not ended.
    busy: int


class _Rest(NamedTuple):
    """The objects of a large tick that were not claimed yet.

    These are the objects of *request* from the index *at* on.
    """

    request: _TickRequest
    at: int


class Claimer:
    """Component that claims objects for one member.

    :param book: The jobs that are claimed here, and the store of their claims.
    :param owns: Returns whether this member owns the object of a row. The
        arguments are the name of the job and the row.
    :param piece: Maximum number of objects in one request to claim, and so in
        one lease. The objects of a large tick are claimed in several pieces.
        Objects of other jobs can be claimed between two pieces.
    :param promise: Seconds within which schedulers that serve a job claim each
        tick, even if one of them dies.
    """

    def __init__(self, book: Book, wiring: SchedulerWiring, *,
                 owns: Callable[[str, Row], bool],
                 piece: int, promise: float, attendance: Attendance,
                 dispatcher: Dispatcher):
        clock, store = wiring.clock, book.store
        self._jobs = jobs = book.jobs
        self._clock = clock
        self._store = store
        self._put = wiring.put
        self._owns = owns
        self._new_lease = dispatcher.new_lease
        self._piece = piece
        #: Seconds between two checks of the objects that wait for runs of
        #: other schedulers.
        self._sweep_interval = book.sweep_interval
        self._swept = clock.monotonic()
        self.attendance = attendance
        self._dispatcher = dispatcher
        self._counters = wiring.counters
        self._sink = wiring.sink
        self._dropped = DroppedTicks(
            clock, store, holder=dispatcher.holder, piece=piece,
            promise=promise, attendance=attendance, counters=self._counters,
            sink=wiring.sink)
        #: Number of store requests without an answer, by job.
        self._pending: collections.Counter[str] = collections.Counter()
        self._open = OpenRequests(jobs)
        #: Jobs for which :meth:`ready` returned False.
        self._refused: set[str] = set()
        self._rest: dict[str, collections.deque[_Rest]] = {
            name: collections.deque() for name in jobs}
        #: The newest row of each object that is judged when the status of its
        #: job is known, by job.
        self._unjudged: dict[str, dict[str, Row]] = {
            name: {} for name in jobs}
        self._waiting = WaitingObjects(piece)
        #: Calls to make later, each with its monotonic time in seconds.
        self._delayed: list[tuple[float, Callable[[], None]]] = []
        self._claims = PendingProcedures()
        self._closed = False

    # -- requests

    @property
    def settled(self) -> bool:
        """True if no request to claim objects is pending."""
        return not self._claims

    @property
    def away(self) -> bool:
        """True while the store is unreachable; requests queue up meanwhile.
        """
        return self._store.away

    def ready(self, job: str) -> bool:
        """Return whether more claims of *job* may be requested.

        The status of the job must be known, and the store must have answered
        all earlier requests.
        """
        if (self.attendance.known and not self._pending[job]
                and not self._store.away):
            self._refused.discard(job)
            return True
        self._refused.add(job)
        return False

    def ready_again(self) -> list[str]:
        """Return the jobs that are ready now, and for which :meth:`ready` has
        returned False before.

        Call this after each event. Calls at fixed intervals might find a
        pending request each time.
        """
        if not self._refused:
            return []
        return [job for job in sorted(self._refused) if self.ready(job)]

    def plan(self, job: Job, rule: str = '') -> due.Plan:
        """Return the plan of the objects of *job* that follow *rule*."""
        return part.plan_of(job, rule, self.attendance.since(job.name))

    def start_tick(self, job: Job, tick: Instant,
                   objects: Sequence[str], rule: str = '') -> None:
        """Claim this member's objects for a tick that is due.

        The first piece is claimed now, unless pieces of an earlier tick of the
        job remain. :meth:`claim_rest` claims the pieces that remain, in order.

        :param rule: Text of the objects' own schedule. Empty means the
            schedule of the job.
        """
        if not objects or self.attendance.outdated(job.name):
            return
        plan = self.plan(job, rule)
        if tick < plan.since and not plan.spread:
            return
        previous = plan.schedule.at_or_before(tick - 1)
        request = _TickRequest(
            job, plan, rule, tick, objects,
            due.ALWAYS if previous is None else previous, False,
            self.attendance.since(job.name))
        rest = self._rest[job.name]
        if not rest and len(objects) <= self._piece:
            self._request(request)
        else:
            rest.append(_Rest(request, 0))
            if len(rest) == 1:
                self.claim_rest(job.name)

    def has_rest(self, job: str) -> bool:
        """Return whether pieces of a tick of *job* remain to be claimed."""
        return bool(self._rest[job])

    def claim_rest(self, job: str) -> None:
        """Claim the next piece of a large tick, if a piece remains."""
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
        """Claim the due ticks of these rows, and record the ticks that are
        given up.

        :param until: Leave out objects that had no due tick at this instant,
            and objects of other owners that ran after it. None leaves out no
            object.
        :returns: Number of objects that have a due tick. Objects of other
            owners that ran after *until* count, too.
        """
        candidates = list(rows)
        if not candidates or self.attendance.outdated(job.name):
            return 0
        now = self._clock.now()
        left: list[Row] = []
        if until is not None:
            candidates = [row for late in self._verdicts(
                job, candidates, until).values() for row in late]
            left, candidates = _divide(
                candidates, lambda row: self._is_left(job, row, until, now))
            if here := self._open_here(job.name, left):
                self.wait_for(job.name, here)
        found = self._verdicts(job, candidates, now)
        if found and not self.attendance.fresh():
            # This process may have been suspended. First read from the store
            # whether schedulers served the job meanwhile. Until the answer,
            # the pending request prevents further calls for the job. Such
            # calls would send the same claims repeatedly to a slow store.
            unjudged = self._unjudged[job.name]
            waits = bool(unjudged)
            unjudged.update((row.object, row) for row in candidates)
            if not waits:
                self._pending[job.name] += 1
                self.attendance.refresh(
                    functools.partial(self._judge_unjudged, job))
        else:
            self._judged(job, found)
        return len(left) + sum(map(len, found.values()))

    def _is_left(self, job: Job, row: Row, until: Instant,
                 now: Instant) -> bool:
        """Return whether this member leaves an object to its owner, because
        the object has run after *until*.
        """
        if self._owns(job.name, row):
            return False
        if not row.free:
            # The tick waits for the end of the run.
            return job.misfire is Misfire.ALL or (
                job.overlap is Overlap.WAIT and row.began is not None)
        # The estimate of the store's clock has an error. If the run ended even
        # later, the store's clock was set back.
        return (row.ended is not None
                and until < row.ended <= now + EARLIEST)

    def _open_here(self, job: str, rows: Iterable[Row]) -> list[str]:
        """Return the objects of *rows* with an open claim of this process."""
        keys = [row.object for row in rows if not row.free]
        if not keys:
            return []
        here = self._dispatcher.objects(job)
        return [key for key in keys if key in here]

    def _judge_unjudged(self, job: Job) -> None:
        """Judge the rows that waited until the status of *job* is known."""
        self._pending[job.name] -= 1
        rows = [*self._unjudged[job.name].values()]
        self._unjudged[job.name].clear()
        # The answer may have taken long, so compute by the current time which
        # ticks are due. A claim of an earlier tick would come too late.
        self._judged(job, self._verdicts(job, rows, self._clock.now()))

    def _verdicts(self, job: Job, rows: Sequence[Row],
                  now: Instant) -> dict[tuple[str, Verdict], list[Row]]:
        plans = {}
        for rule in {row.attributes.rule for row in rows}:
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
            min_watermark = verdict.until
            if min_watermark is None:
                min_watermark = min(row.settled for row in rows)
            request = _TickRequest(
                job, plan, rule, tick, (), min_watermark, True,
                self.attendance.since(job.name))
            requested = request.due
            parts: dict[bool, list[str]] = {False: [], True: []}
            for row in rows:
                # Two walks at the same time may read the same rows.
                if not self._open.is_claiming(
                        job.name, row.object, requested):
                    parts[plan.spread and plan.is_listing(row, tick)].append(
                        row.object)
            for listing, objects in parts.items():
                for at in range(0, len(objects), self._piece):
                    self._request(request._replace(
                        objects=objects[at:at + self._piece],
                        listing=listing))

    # -- answers of the store

    def _request(self, request: _TickRequest) -> None:
        if self._closed:
            return
        paused = self._paused(request)
        if not paused:
            start(self._claims.counted(self._claim(request)))
            return
        for reason, objects in paused.items():
            some = request._replace(objects=objects)
            if not request.judged:
                # The rows show which ticks the objects missed before the
                # pause.
                self.judge_objects(request.job, objects)
                continue
            self._dropped.settle(
                request.job, request.plan, request.tick, objects,
                SkippedBy.PAUSE, f'paused: {reason}',
                functools.partial(self._repeat, some), request.listing)
        skipped = {key for objects in paused.values() for key in objects}
        rest = [key for key in request.objects if key not in skipped]
        if rest:
            start(self._claims.counted(
                self._claim(request._replace(objects=rest))))

    def _paused(self, request: _TickRequest) -> dict[str, Sequence[str]]:
        """Return the objects of *request* that are paused, by the reason."""
        of_job = self.attendance.paused(request.job.name)
        of_objects = self.attendance.paused_objects(request.job.name)
        if of_job is not None and of_job.until is None:
            return {of_job.why: request.objects}
        found: dict[str, list[str]] = {}
        if of_job is not None or of_objects:
            due_of = _due_of(request)
            for key in request.objects:
                for pause in (of_job, of_objects.get(key)):
                    if pause is not None and pause.covers(due_of(key)):
                        found.setdefault(pause.why, []).append(key)
                        break
        return dict(found)

    def _claim(self, request: _TickRequest) -> Procedure[None]:
        job, lease = request.job, self._new_lease()
        due_at, until = _window(request)
        at = self._clock.now()
        self._pending[job.name] += 1
        if request.judged:
            self._open.begin_claim(job.name, request.objects, request.due)
        wanted = ClaimRequest(
            job.name, request.tick, request.objects,
            supersede=job.misfire is not Misfire.ALL,
            min_watermark=request.min_watermark,
            listing_is_tick=job.run_immediately,
            max_attempts=job.most_attempts, rule=request.rule,
            schedule=KnownSchedule(
                job.schedule_text(), request.schedule_since),
            due_at=due_at, until=until)
        try:
            answer = yield from call(
                self._store, ports.ClaimStore.claim, wanted, lease)
        except CallFailed:
            self._counters[job.name, Counted.CLAIMS_FAILED] += len(
                request.objects)
            return
        finally:
            self._pending[job.name] -= 1
            if request.judged:
                self._open.end_claim(job.name, request.objects, request.due)
        if answer.over:
            self._too_late(request, until)
        elif answer.early:
            # The store's clock was set back, or this process's estimate of it
            # is wrong.
            self._counters[job.name, Counted.TOO_EARLY] += len(request.objects)
            self._later(answer.early / schedule.SECOND,
                        functools.partial(self._request, request))
            self._put(events.ClockDiffers(job.name))
        else:
            self._claimed(request, lease, due_at, answer._replace(
                behind=due.requested(answer.behind, at)))

    def trigger(self, job: Job, tick: Instant, objects: Sequence[str],
                rule: str, then: Callable[[TriggerCounts], None]) -> None:
        """Claim *objects* for a tick that an operator has requested.

        The claim is made even if the job is paused. Objects whose earlier tick
        has not ended are left out.

        :param rule: As for :meth:`start_tick`.
        :param then: Called for each answer of the store.
        """
        for at in range(0, len(objects), self._piece):
            start(self._claims.counted(self._trigger(
                job, tick, objects[at:at + self._piece], rule, then)))

    def _trigger(self, job: Job, tick: Instant, objects: Sequence[str],
                 rule: str, then: Callable[[TriggerCounts], None]
                 ) -> Procedure[None]:
        lease = self._new_lease()
        wanted = ClaimRequest(
            job.name, tick, objects, supersede=False, rule=rule,
            schedule=KnownSchedule(job.schedule_text(), None))
        answer = yield from call(
            self._store, ports.ClaimStore.claim, wanted, lease)
        # The dispatcher changes the list of the claims.
        then(TriggerCounts(
            len(answer.won), len(answer.busy) + len(answer.waiting)))
        if answer.won:
            self._won(job, tick, len(answer.won), tick, ClaimPath.TRIGGER)
            self._dispatcher.offer(job, lease, answer.won)

    def _too_late(self, request: _TickRequest, until: Instant | None) -> None:
        """Handle the answer that it is too late for the tick of *request*.

        The store was unreachable or busy, or this process was suspended. The
        rows of the objects show which ticks are due now.
        """
        if until is None or self._clock.now() > until:
            self.judge_objects(request.job, request.objects)
        else:
            # By this process's estimate of the store's clock, the tick is not
            # too late. So correct the estimate before the rows are judged.
            self._later(_CLOCK_PAUSE, functools.partial(
                self.judge_objects, request.job, request.objects))
            self._put(events.ClockDiffers(request.job.name))

    def _repeat(self, request: _TickRequest) -> None:
        """Repeat a request, because rows were locked or have changed."""
        self._later(_LOCKED_PAUSE, functools.partial(
            self.judge_objects, request.job, request.objects)
            if request.judged else functools.partial(self._request, request))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._delayed.append((self._clock.monotonic() + seconds, what))

    def _claimed(self, request: _TickRequest, lease: NewLease,
                 due_at: Instant, answer: Claimed) -> None:
        job = request.job
        if answer.outdated:
            # Another schedule is in force. Read the status of the job now, so
            # that this process claims no more objects of the job.
            self.attendance.refresh()
        if answer.behind:
            if request.judged:
                self._repeat(request._replace(
                    objects=[row.object for row in answer.behind]))
            else:
                self.judge(job, answer.behind)
        if answer.waiting:
            self.wait_for(job.name, answer.waiting)
        if answer.busy:
            # With misfire=all, an object runs its missed ticks one after the
            # other, so the overlap policy must not skip these ticks.
            if job.overlap is Overlap.SKIP and not (
                    request.judged and job.misfire is Misfire.ALL):
                self._dropped.busy(
                    job, request.plan, request.tick, answer.busy,
                    functools.partial(
                        self._repeat, request._replace(objects=answer.busy)),
                    request.listing)
            else:
                self.wait_for(job.name, answer.busy)
        if answer.unlisted:
            self._put(events.Unlisted(job.name, answer.unlisted))
        if answer.won:
            unjudged = self._unjudged[job.name]
            if unjudged:
                # These rows were read before the claim.
                unjudged.update(
                    (one.object, row._replace(settled=one.tick))
                    for one in answer.won
                    if (row := unjudged.get(one.object)) is not None
                    and row.settled < one.tick)
            self._won(job, request.tick, len(answer.won), due_at,
                      ClaimPath.LATE if request.judged else ClaimPath.RING)
            self._dispatcher.offer(job, lease, answer.won, answer.superseded)

    def _won(self, job: Job, tick: Instant, objects: int, due_at: Instant,
             path: ClaimPath) -> None:
        """Count and report claims.

        :param due_at: Instant at which the last of the objects was due.
        """
        self._counters[job.name, Counted.CLAIMED] += objects
        if self._sink.open:
            self._sink.put(telemetry.ObjectsClaimed(
                job.name, tick, objects, path,
                (self._clock.now() - due_at) / schedule.SECOND))

    def give_up_delisted(self, job: Job, rows: Iterable[Row],
                         at: Instant) -> None:
        """Record that delisted objects do not run for their due ticks.

        :param at: Instant since which the objects are not listed. Ticks after
            this instant are not recorded, because the objects may be listed
            again.
        """
        if self.attendance.outdated(job.name):
            return
        found = self._verdicts(job, list(rows), at)
        for (rule, verdict), late in found.items():
            self._dropped.delisted(job, self.plan(job, rule), verdict, late)

    # -- objects that wait

    def released(self, job: Job, objects: Iterable[str]) -> None:
        """Record that runs of *objects* ended.

        :meth:`judge_released` judges those of *objects* that wait.
        """
        if self._waiting.by_job:
            self._waiting.release(job.name, objects)

    def judge_released(self) -> bool:
        """Judge waiting objects whose runs have ended.

        Jobs with a pending request to the store are left out. So the objects
        whose runs end during a request are later judged together, with few
        requests. Each call judges at most one piece of each job, so that it
        does not delay the claims for new ticks.

        :returns: True if at least one object was judged.
        """
        judged = False
        if not self._waiting.by_job:
            # This method is called after each event, and usually no object
            # waits.
            return False
        for name in self._waiting.released_jobs():
            if not self._pending[name] and not self._closed:
                self.judge_objects(
                    self._jobs[name], self._waiting.take_released(name))
                judged = True
        return judged

    def judge_objects(self, job: Job, objects: Sequence[str]) -> None:
        """Read the rows of *objects*, and judge the rows without an open
        claim.

        Objects with an open claim are judged when their runs end. Objects of
        other owners whose runs have just ended are judged later. While the
        row of an object is being read, further requests for it are combined
        into one.
        """
        unread = self._open.begin_read(job.name, objects)
        for at in range(0, len(unread), self._piece):
            start(self._judge_rows(job, unread[at:at + self._piece]))

    def _judge_rows(self, job: Job, objects: Sequence[str]
                    ) -> Procedure[None]:
        self._pending[job.name] += 1
        rows = None
        with contextlib.suppress(CallFailed):
            rows = yield from call(
                self._store, ports.ClaimStore.rows_of, job.name, objects)
        self._pending[job.name] -= 1
        self.judge_objects(job, self._open.end_read(job.name, objects))
        if rows is None:
            return
        now = self._clock.now()
        until = now - int(
            _SWEEPS_OF_OWNER * self._sweep_interval * schedule.SECOND)
        own, others = _divide(rows, lambda row: self._owns(job.name, row))
        # A claim that waits for its start is superseded. For example, a tick
        # came while the object waited for a retry.
        busy, own = _divide(own, lambda row: not row.free and (
            row.began is not None or job.misfire is Misfire.ALL))
        left, late = _divide([row for row in others if row.free],
                             lambda row: self._is_left(job, row, until, now))
        waiting = dict.fromkeys(itertools.chain(
            (row.object for row in (*busy, *left)),
            self._open_here(job.name, others)))
        if waiting:
            self.wait_for(job.name, waiting)
        self._waiting.end_wait(
            job.name, (key for key in objects if key not in waiting))
        self.judge(job, own)
        self.judge(job, late, until)

    def wait_for(self, job: str, objects: Iterable[str]) -> None:
        """Judge *objects* again when their runs end."""
        self._waiting.wait(job, objects)

    def retry_delayed(self) -> float:
        """Make the delayed calls that are due.

        :returns: Seconds until the next delayed call is due.
        """
        if not self._delayed:
            return math.inf
        now = self._clock.monotonic()
        calls = [what for at, what in self._delayed if at <= now]
        self._delayed = [item for item in self._delayed if item[0] > now]
        for what in calls:
            what()
        return min((at - now for at, _ in self._delayed), default=math.inf)

    def sweep(self) -> None:
        """Log dropped ticks, and check objects that wait for runs.

        The check is needed because this process receives no report when a run
        of another scheduler ends.
        """
        self._dropped.report()
        now = self._clock.monotonic()
        if now - self._swept < self._sweep_interval:
            return
        self._swept = now
        self._waiting.release_swept(self._dispatcher.objects)
        self.judge_released()

    def forget(self, job: str) -> None:
        """Forget the unclaimed pieces of a tick, and the objects that wait.

        Call this when other members may own the objects of *job*.
        """
        self._rest[job].clear()
        self._waiting.forget(job)

    def close(self) -> None:
        """Claim no more objects."""
        self._closed = True
        self._dropped.report()


def _divide(rows: Iterable[Row], condition: Callable[[Row], bool]
            ) -> tuple[list[Row], list[Row]]:
    """Return the rows that fulfil *condition*, and the other rows."""
    parts: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        parts[not condition(row)].append(row)
    return parts


def _due_of(request: _TickRequest) -> Callable[[str], Instant]:
    """Return a function that returns when an object is due for the tick."""
    plan, tick = request.plan, request.tick
    if not plan.spread:
        due_at, _ = plan.window(tick, 0, request.listing)
        return lambda key: due_at
    return lambda key: plan.window(
        tick, position_of(key), request.listing)[0]


def _window(request: _TickRequest) -> tuple[Instant, Instant | None]:
    """Return the interval in which all objects of *request* may be claimed.

    The interval begins when the last of the objects is due. The interval ends
    when the first of the objects is due for the next tick, or when the grace
    of the first object is over. If its end is None, the interval has no end.
    """
    plan = request.plan
    if not plan.spread:
        return plan.window(request.tick, 0, request.listing)
    plan = dataclasses.replace(
        plan, schedule=schedule.Remembered(plan.schedule))
    positions = [position_of(key) for key in request.objects]
    if not request.listing:
        # The phases determine the order. Hashing the positions is cheaper than
        # computing the window of each object.
        hashed = schedule.scattered
        positions = [min(positions, key=hashed), max(positions, key=hashed)]
    windows = [plan.window(request.tick, position, request.listing)
               for position in positions]
    ends = [end for _, end in windows if end is not None]
    return (max(begin for begin, _ in windows),
            min(ends) if ends else None)
