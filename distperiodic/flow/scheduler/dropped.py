# SPDX-License-Identifier: Apache-2.0
"""Records of ticks that do not run, in the store and in the log.

A record consists of the objects, their newest tick that does not run, and the
reason why it does not run.
"""

import collections
import functools
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import due
from distperiodic.core import schedule
from distperiodic.core import telemetry
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import KnownSchedule
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.due import Row
from distperiodic.core.due import Verdict
from distperiodic.core.job import Job
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.flow.counters import Counted
from distperiodic.flow.counters import Counters
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler import claim_log
from distperiodic.flow.scheduler.attendance import Attendance

LOG = logging.getLogger(__name__)

# Reason for a skip by the overlap policy.
_BUSY = claim_log.BUSY
# Reason for giving up ticks of an object that was delisted later.
_GONE = 'the catalogue no longer lists it'
# Reason for lost ticks; see the glossary.
_LOST = 'not claimed in time, although schedulers served the job'


class _Span(NamedTuple):
    """The interval in which some objects can have missed ticks."""

    plan: due.Plan
    #: Instant after which ticks of the objects could be due. If an object has
    #: a later watermark, the watermark applies instead.
    low: Instant
    #: Instant at which the objects were listed, if they have a tick at this
    #: instant. :data:`~distperiodic.core.due.ALWAYS` means that they do not.
    first: Instant = due.ALWAYS

    def due_at(self, tick: Instant, objects: Iterable[str]) -> Instant:
        """Return the instant at which the last of *objects* is due."""
        if not self.plan.spread or tick == self.first:
            return tick
        return tick + max(self.plan.phase(tick, position_of(key))
                          for key in objects)

    def ticks(self, last: Instant, until: Instant) -> int:
        """Return the number of missed ticks up to *until*, but at least 1.

        :param last: Watermark of an object.
        """
        number = self.plan.schedule.count(max(self.low, last), until)
        # Count the tick at which the object was listed, too, because the
        # schedule does not contain it.
        return max(1, number + (last < self.first <= until))

    def missed(self, last: Instant, until: Instant) -> int:
        """Return the number of missed ticks before *until*.

        :param last: Watermark of an object.
        """
        return self.ticks(last, until) - 1


def _first(plan: due.Plan, row: Row) -> Instant:
    """Return the instant at which *row* was listed, if that instant is an
    undecided tick.

    Otherwise return :data:`~distperiodic.core.due.ALWAYS`.
    """
    return (row.since if plan.immediate and row.settled < row.since
            else due.ALWAYS)


class _Lost(NamedTuple):
    """The lost ticks of an object."""

    #: The newest tick before the lost ticks.
    #: :data:`~distperiodic.core.due.ALWAYS` means that there is no such tick.
    after: Instant
    #: The newest lost tick.
    last: Instant
    #: Result of :func:`_busy_after` for *after*.
    busy: Instant | None = None


def _due_at(plan: due.Plan, tick: Instant, first: Instant,
            position: int) -> Instant:
    """Return the instant at which the object at *position* is due for *tick*.

    :param first: Tick at which the object was listed. The phase of the object
        does not apply to this tick.
    """
    return tick if tick == first else tick + plan.phase(tick, position)


def _busy_after(job: Job, plan: due.Plan, row: Row, until: Instant
                ) -> Instant | None:
    """Return the newest tick for which the object of *row* was due before its
    run began, if the run was in progress when the object was due for *until*.

    The run is that of the last claim. While a claim waits for its start, no
    run is in progress. With misfire=all and overlap=wait, each tick waits for
    the run, so the run does not cause ticks to be given up.

    :returns: None if the run did not cause ticks to be given up, or if it is
        unknown whether the run was in progress.
        :data:`~distperiodic.core.due.ALWAYS` means that there is no such tick.
    """
    if job.misfire is Misfire.ALL and job.overlap is Overlap.WAIT:
        return None
    due_at = _due_at(plan, until, _first(plan, row), row.position)
    if row.free and row.ended is not None and row.ended >= due_at:
        began = due.ALWAYS if row.began is None else row.began
    elif not row.free and row.began is not None and (
            row.requested is not None and row.requested >= due_at):
        # The store may answer late, and the run may have ended meanwhile.
        began = row.began
    else:
        return None
    if began > due_at:
        return None
    if began == due.ALWAYS:
        return began
    before = plan.newest(began - 1, row.position)
    return due.ALWAYS if before is None else before


def _reasons(until: Instant, busy: Instant | None, lost: _Lost | None
             ) -> list[tuple[Instant, SkippedBy]]:
    """Return the reasons for giving up ticks up to *until*.

    :param busy: Result of :func:`_busy_after` for *until*.
    :returns: Pairs of an instant and the reason that applies up to this
        instant, in ascending order.
    """
    if busy is not None:
        return [(busy, SkippedBy.MISFIRE), (until, SkippedBy.OVERLAP)]
    if lost is None:
        return [(until, SkippedBy.MISFIRE)]
    return [*_reasons(lost.after, lost.busy, None),
            (lost.last, SkippedBy.LOST), (until, SkippedBy.MISFIRE)]


def _idle_since(row: Row) -> Instant | None:
    """Return the instant since which the object of *row* has not run.

    None means that the instant is unknown.
    """
    if row.ended is not None:
        return row.ended
    # No tick was settled since the object was listed, so it has not run.
    if row.free and row.settled < row.since:
        return due.ALWAYS
    return None


class DroppedTicks:
    """Recorder of ticks that do not run, for the jobs of one member.

    These ticks are skipped, passed over or lost.

    :param holder: Returns the name of the holder of leases; called for each
        record.
    :param piece: Maximum number of objects in one record.
    :param promise: Seconds within which schedulers that serve a job claim each
        tick, even if one of them dies. Only a tick that was not claimed within
        this time can count as lost.
    """

    def __init__(self, clock: ports.Clock, store: ports.StoreQueue, *,
                 holder: Callable[[], str], piece: int, promise: float,
                 attendance: Attendance,
                 counters: Counters, sink: ports.EventSink):
        self._clock = clock
        self._store = store
        self._holder = holder
        self._piece = piece
        self._promise = int(promise * schedule.SECOND)
        self._attendance = attendance
        self._counters = counters
        self._sink = sink
        self._log = claim_log.ClaimLog(clock)

    def report(self) -> None:
        """Log the dropped ticks that were not logged yet."""
        self._log.report()

    def settle(self, job: Job, plan: due.Plan, tick: Instant,
               objects: Sequence[str], by: SkippedBy, reason: str,
               left_out: Callable[[], None], listing: bool) -> None:
        """Record that *objects* do not run for *tick*.

        :param left_out: Called if the store has left out some objects, for
            example because another process has decided their tick or locked
            their rows.
        :param listing: True if *tick* is the instant at which the objects were
            listed.
        """
        span = (_Span(plan, tick, tick) if listing
                else _Span(plan, plan.since - 1))
        self._skip(job, tick, objects, by, reason, span, left_out)

    def busy(self, job: Job, plan: due.Plan, tick: Instant,
             objects: Sequence[str], left_out: Callable[[], None],
             listing: bool) -> None:
        """Record that the overlap policy skips *tick* for *objects*.

        :param left_out: As in :meth:`settle`.
        :param listing: As in :meth:`settle`.
        """
        self.settle(job, plan, tick, objects, SkippedBy.OVERLAP, _BUSY,
                    left_out, listing)

    def give_up(self, job: Job, plan: due.Plan, verdict: Verdict,
                rows: Sequence[Row]) -> None:
        """Record the ticks that *verdict* gives up for the objects of *rows*.
        """
        assert verdict.until is not None
        groups: dict[tuple[Instant | None, Instant, Instant, _Lost | None],
                     list[str]] = {}
        lost_ticks = self._lost_ticks(job, plan, verdict.until)
        for row in rows:
            busy = _busy_after(job, plan, row, verdict.until)
            floor = plan.floor(row.settled, row.since, row.position)
            groups.setdefault((
                busy, floor, _first(plan, row),
                None if busy is not None else lost_ticks(row)), []).append(
                    row.object)
        for (busy, floor, first, lost), objects in groups.items():
            settled = floor if first == due.ALWAYS else first - 1
            for until, by in _reasons(verdict.until, busy, lost):
                if until <= settled:
                    continue
                reason = {SkippedBy.OVERLAP: _BUSY,
                          SkippedBy.LOST: _LOST}.get(by, verdict.reason)
                self._skip(job, until, objects, by, reason,
                           _Span(plan, floor, first))
                settled = until

    def delisted(self, job: Job, plan: due.Plan, verdict: Verdict,
                 rows: Sequence[Row]) -> None:
        """Record that the delisted objects of *rows* do not run for the due
        ticks of *verdict*.
        """
        until = verdict.run[-1] if verdict.run else verdict.until
        assert until is not None
        groups: dict[tuple[Instant, Instant], list[str]] = {}
        for row in rows:
            floor = plan.floor(row.settled, row.since, row.position)
            groups.setdefault((floor, _first(plan, row)), []).append(
                row.object)
        for (floor, first), objects in groups.items():
            self._skip(job, until, objects, SkippedBy.MISFIRE, _GONE,
                       _Span(plan, floor, first), counted=False)

    def _lost_ticks(self, job: Job, plan: due.Plan, until: Instant
                    ) -> 'Callable[[Row], _Lost | None]':
        """Return a function that computes the lost ticks of a row.

        It considers the ticks up to *until*. A tick is lost if schedulers
        served the job when the tick was due, and for long enough afterwards to
        claim the tick. If ticks wait for earlier runs of their object, the
        object must also have been idle when the tick was due.
        """
        attended = self._attendance.attended(job.name)
        if attended is None:
            return lambda row: None
        promised = (self._clock.now() - self._promise
                    - self._attendance.gap_us(job.name))
        newest, unattended = plan.around(promised), plan.around(attended - 1)

        def lost(row: Row) -> _Lost | None:
            # The newest tick may be the instant at which the object was
            # listed, which is not in the schedule.
            first, position = _first(plan, row), row.position
            cut = (until if _due_at(plan, until, first, position) <= promised
                   else newest.newest(position))
            if cut is None or _due_at(plan, cut, first, position) < attended:
                return None
            after = unattended.newest(position)
            return _Lost(due.ALWAYS if after is None else after, cut)

        def lost_while_idle(row: Row) -> _Lost | None:
            idle, found = _idle_since(row), lost(row)
            if found is None or idle is None:
                return None
            after = plan.newest(idle, row.position)
            if after is None or after <= found.after:
                return found
            return (_Lost(after, found.last,
                          _busy_after(job, plan, row, after))
                    if after < found.last else None)
        waits = job.overlap is Overlap.WAIT or job.misfire is Misfire.ALL
        return lost_while_idle if waits else lost

    def _skip(self, job: Job, tick: Instant, objects: Sequence[str],
              by: SkippedBy, reason: str, span: _Span,
              left_out: Callable[[], None] = lambda: None,
              counted: bool = True) -> None:
        """Record that *objects* do not run for *tick*, nor for the earlier
        ticks that they missed.

        :param counted: False leaves these ticks out of the counts and the log.
        """
        for at in range(0, len(objects), self._piece):
            start(self._skip_piece(
                job, tick, objects[at:at + self._piece], by, reason, span,
                left_out, counted))

    def _skip_piece(self, job: Job, tick: Instant, objects: Sequence[str],
                    by: SkippedBy, reason: str, span: _Span,
                    left_out: Callable[[], None], counted: bool
                    ) -> Procedure[None]:
        settled = yield from call(
            self._store, ports.ClaimStore.skip, SkipRequest(
                job.name, tick, objects, self._holder(), by, reason,
                functools.partial(span.missed, until=tick),
                KnownSchedule(job.schedule_text(),
                              self._attendance.since(job.name)),
                span.due_at(tick, objects)))
        # Count what the store has recorded. Another member, or another scan of
        # this member, may have requested the same skips.
        if settled and counted:
            self._count(job, tick, objects, by, reason, len(settled),
                        sum(span.ticks(last, tick) * number
                            for last, number
                            in collections.Counter(settled).items()))
        if len(settled) < len(objects):
            left_out()

    def _count(self, job: Job, tick: Instant, objects: Sequence[str],
               by: SkippedBy, reason: str, recorded: int,
               ticks: int) -> None:
        """Count and log skips that the store has recorded.

        :param objects: The objects of the request.
        :param recorded: Number of these objects whose skip was recorded.
        :param ticks: Number of ticks that these objects have missed.
        """
        if self._sink.open:
            self._sink.put(
                telemetry.TicksLost(job.name, tick, recorded, ticks)
                if by is SkippedBy.LOST else telemetry.TicksSkipped(
                    job.name, tick, by, recorded, ticks))
        if by is SkippedBy.OVERLAP:
            self._counters[job.name, Counted.SKIPPED] += ticks
            self._log.skipped(job, tick, objects, ticks)
        elif by is SkippedBy.PAUSE:
            self._counters[job.name, Counted.PAUSED] += ticks
        else:
            self._counters[job.name, Counted.MISSED] += ticks
            self._log.missed(job.name, ticks, reason)
            if by is SkippedBy.LOST:
                self._log.lost(job.name, tick, objects, recorded, reason)
