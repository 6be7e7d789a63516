# SPDX-License-Identifier: Apache-2.0
"""Late scans: members claim objects that their owners have not claimed.

At a tick, each owner claims its objects. The tick is late when ``late_after``
seconds have passed. Then two members, which the ring selects, read the rows of
the objects of all owners, and claim the objects that are not claimed yet. If
these two members do not record in the store that all objects are claimed, the
next two members scan, and so on::

    tick        + late_after       + 2 late_after
     |-- owners claim --|-- two scan --|-- two others scan, if the first two
                              have not recorded that all objects are claimed

The time of a turn counts from the oldest tick that no scan has found claimed.
If it counted from the newest tick, the next tick would come before the turn of
the members that scan last. A member that found unclaimed objects then scans
together with the first two, because the owners and these two may stay cut off
from the store.

A scan leaves an object of another owner to this owner until ``late_after``
seconds have passed since its last run, too. Under overload, objects have
missed ticks at any time, and each of them is free for a moment between two
runs. If scans claimed these objects, their owner could not serve them in turn.

A member need not read the rows if the store has settled the tick for as many
objects as the catalogue lists. After a scan of many rows that found no late
tick, the pause until the next scan is longer: fifty times the time spent on
reading, but at most a minute. The time of the slowest page does not count. The
store may have been unreachable during that page, or the process may have been
suspended. This must not delay the next scan.

If a catalogue method is slow, the store may list objects only after the scan
of a tick for which they are due. The store then records that the job must be
scanned again from that tick on.
"""

from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core import due
from distperiodic.core.job import Job
from distperiodic.core.ring import Ring
from distperiodic.core.ring import minus
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Schedule
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.part import CIRCLE
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.part import Walk
from distperiodic.flow.scheduler.timers import RETRY_AFTER
from distperiodic.flow.scheduler.timers import TimerKind
from distperiodic.flow.scheduler.timers import TimerQueue

# Number of members that scan at the same time. If one of them hangs, the other
# one still completes its scan.
_SCANNERS = 2
# Pause before the next scan: a multiple of the time that the last scan spent
# on reading rows, and the maximum in seconds.
_PAUSE_FACTOR = 50
_LONGEST_PAUSE = 60.0
# Number of periods for which a member scans first after it has found unclaimed
# objects.
_FIRST_FOR = 2


class LateClaimer:
    """Late scans of one member that shares a store.

    :param after: Seconds after a tick until other members claim objects that
        their owner has not claimed. For each job, this time is at most half a
        period.
    :param page: Maximum number of rows in one request to the store.
    """

    def __init__(self, clock: ports.Clock, store: ports.StoreQueue,
                 claimer: Claimer, timers: TimerQueue,
                 parts: Mapping[str, Part], *, identity: str,
                 after: float, page: int):
        self._clock = clock
        self._store = store
        self._claimer = claimer
        self._timers = timers
        self._parts = parts
        self._identity = identity
        self._after = int(after * SECOND)
        self._page = page
        #: Jobs with a scan in progress.
        self._scanning: set[str] = set()
        #: Instant since which the store has answered this member.
        self._answered_since = clock.now()
        #: Instant of the last scan that found an unclaimed object, by job.
        self._found: dict[str, Instant] = {}

    def grace(self, job: Job, now: Instant) -> Instant:
        """Return the delay between a tick and its first late scan.

        :returns: Microseconds.
        """
        return min(self._after, job.schedule.period_us(now) // 2)

    def start(self, job: Job) -> None:
        """Start the late scans of *job*."""
        self._timers.push(self._clock.now() + self._after, job.name,
                          TimerKind.LATE)

    def store_back(self, now: Instant) -> None:
        """Record that the store answers again after an outage."""
        self._answered_since = now

    def scan(self, name: str, now: Instant, ring: Ring) -> None:
        """Start a late scan of the job *name* if it is this member's turn.

        :param ring: Ring of the job.
        """
        part = self._parts[name]
        job = part.job
        grace = self.grace(job, now)
        plan = self._claimer.plan(job)
        until = now - grace
        newest = plan.schedule.at_or_before(until)
        same_ticks = self._same_ticks(part)
        checked = self._claimer.attendance.checked(name)
        last = newest if same_ticks else until
        if last is None or checked >= last:
            # A member has already recorded a scan up to this instant.
            following = (job.schedule.after(until) + grace if same_ticks
                         else checked + 2 * grace)
            self._set_timer(name, following, now)
            return
        turn = (self._unchecked_since(name, plan.schedule if same_ticks
                                      else None, checked, grace, now)
                + grace * (1 + self._rank(name, ring, now) // _SCANNERS))
        if now < turn:
            self._timers.push(turn, name, TimerKind.LATE)
            return
        if (name in self._scanning or not self._claimer.ready(name)
                or self._claimer.attendance.outdated(name)):
            self._set_timer(name, now + grace, now)
            return
        self._scanning.add(name)
        scan = ports.Checked(
            self._claimer.attendance.expected(name), until)
        if (same_ticks and part.reading is not None
                and len(part.reading.catalogue) > self._page):
            start(self._count(part, last, scan, ring))
        else:
            start(self._walk(part, scan, ring))

    @staticmethod
    def _same_ticks(part: Part) -> bool:
        """Return whether all objects of the job are due at the same instants.

        False means that they are not, or that this is unknown.
        """
        return part.reading is not None and not (
            part.job.spread or part.object_timers.schedules
            or part.reading.partial)

    def _set_timer(self, name: str, at: Instant, now: Instant) -> None:
        self._timers.push(max(at, now + RETRY_AFTER), name,
                          TimerKind.LATE)

    def _unchecked_since(self, name: str, ticks: Schedule | None,
                         checked: Instant, grace: int,
                         now: Instant) -> Instant:
        """Return the instant from which the turns of the members count.

        This is the oldest instant that no scan has checked. It is not before
        the instant since which the store has answered this member: if the
        store answers all members again, they must not all scan at once.

        :param ticks: Ticks of all objects of the job. None means that the
            objects have different ticks.
        :param checked: Instant up to which scans have checked the job.
        """
        # The clock may have been set back.
        answered = min(self._answered_since, now)
        if ticks is None:
            since = max(checked + grace, answered)
        else:
            before = ticks.at_or_before(answered)
            if before is None:
                since = ticks.after(max(checked, answered))
            else:
                since = (answered if before > checked
                         else ticks.after(checked))
        return max(since, self._claimer.attendance.reopened_at(name))

    def _rank(self, name: str, ring: Ring, now: Instant) -> int:
        """Return this member's index in the order of the scanning members."""
        period = self._parts[name].job.schedule.period_us(now)
        if now - self._found.get(name, due.ALWAYS) <= _FIRST_FOR * period:
            return 0
        members = sorted(ring.members)
        if self._identity not in ring.members:
            # All members with the job are stopping, or this process has not
            # joined yet. Then it scans last.
            return len(members)
        first = members.index(ring.owner_of(name)) if len(ring) else 0
        return (members.index(self._identity) - first) % len(members)

    def _count(self, part: Part, tick: Instant, scan: ports.Checked,
               ring: Ring) -> Procedure[None]:
        """Read the rows if *tick* is decided for fewer objects than expected.

        The expected number is the number of objects in the catalogue, plus the
        objects that left the catalogue since the tick, because the tick may
        have been decided for these, too. If the number of these objects is
        unknown, the rows are read as well.
        """
        assert part.reading is not None
        expected = part.reading.catalogue.distinct
        name = part.job.name

        try:
            number = yield from call(
                self._store, ports.ClaimStore.settled, name, tick)
        except CallFailed:
            pass
        else:
            if part.removed is None or number < expected + part.removed:
                yield from self._walk(part, scan, ring)
                return
            self._claimer.attendance.record_checked(name, scan)
        self._scanning.discard(name)
        self._timers.retry(name, TimerKind.LATE)

    def _walk(self, part: Part, scan: ports.Checked,
              ring: Ring) -> Procedure[None]:
        """Read the rows of all members, and claim their due ticks.

        The rows of this member are left out while pieces of a large tick
        remain to be claimed here.
        """
        job = part.job
        name = job.name
        found = 0
        others_only = self._claimer.has_rest(name)
        newest = job.schedule.at_or_before(scan.until)
        walk = Walk(
            self._store, self._clock, name,
            minus([CIRCLE], ring.arcs(self._identity))
            if others_only else [CIRCLE],
            before=due.ALWAYS if newest is None else newest,
            limit=self._page)
        #: Seconds that each page took to read.
        page_seconds: list[float] = []
        complete = True
        try:
            requested = self._clock.monotonic()
            while page := (yield from walk.read()):
                page_seconds.append(self._clock.monotonic() - requested)
                found += self._claimer.judge(job, page.rows, scan.until)
                requested = self._clock.monotonic()
        except CallFailed:
            complete = False
        self._scanning.discard(name)
        now = self._clock.now()
        pause = self.grace(job, now)
        if found:
            self._found[name] = now
        if complete and not found and not others_only:
            self._claimer.attendance.record_checked(name, scan)
            seconds = _PAUSE_FACTOR * (sum(page_seconds) - max(page_seconds))
            pause = max(pause, int(min(seconds, _LONGEST_PAUSE) * SECOND))
        self._set_timer(name, now + pause, now)
