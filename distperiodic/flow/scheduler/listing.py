# SPDX-License-Identifier: Apache-2.0
"""Update of the store's listing from the catalogues.

    reading ─► walk ─► page ─► compare ─► differences are recorded
       │                          └─► due objects are claimed
       └─► differs from the last reading ─► the difference is recorded

A member walks the rows of its arcs when it starts, and later the rows of arcs
that it gains; see :mod:`distperiodic.flow.scheduler.part`. After that, the
member compares each reading with the previous reading. For this, it reads at
most the rows of the objects that left the catalogue.
"""

import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core.catalogue import Reading
from distperiodic.core.due import Row
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.ring import Arc
from distperiodic.core.ring import Ring
from distperiodic.core.ring import minus
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.part import CIRCLE
from distperiodic.flow.scheduler.part import Differences
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.part import Walk
from distperiodic.flow.scheduler.part import compare_listing
from distperiodic.flow.scheduler.part import row_of
from distperiodic.flow.scheduler.timers import TimerKind
from distperiodic.flow.scheduler.timers import TimerQueue


class Listing:
    """Component that updates the listing for one member's parts.

    This class is for a store that only this member uses.

    :param page: Maximum number of rows in one request to the store.
    :param walked: Called when a walk is complete, with the part, the instant
        of the walk, and the ring of the job.
    """

    def __init__(self, parts: Mapping[str, Part], *,
                 clock: ports.Clock, identity: str, store: ports.StoreQueue,
                 timers: TimerQueue,
                 claimer: Claimer, page: int,
                 walked: Callable[
                     [Part, Instant, Ring | None], None]):
        self._parts = parts
        self._clock = clock
        self._identity = identity
        self._store = store
        self._timers = timers
        self._claimer = claimer
        self._page = page
        self._walked = walked

    def walk_gained(self, part: Part, at: Instant, ring: Ring,
                    discard_rows: bool = False) -> None:
        """Walk the arcs that this member gained since the last walk.

        :param at: Instant from which new objects can be due. This class uses
            ``part.since`` instead.
        :param discard_rows: True delists the objects with rows on these arcs,
            and then lists all objects on the arcs again.
        """
        part.ring = ring
        # Walk the whole ring. This also delists the objects that this member
        # no longer owns. Their new owners list these objects in their own
        # stores.
        self.walk(part, [CIRCLE], part.since, ring, discard_rows)

    def _arcs(self, part: Part, ring: Ring,
              before: Ring | None) -> Iterable[Arc]:
        """Return the arcs of this member that must be walked.

        :param before: Ring of the last walk. Its arcs need not be walked
            again, except for ranges that the last walk has not read yet. None
            means that all arcs must be walked.
        """
        reading = part.reading
        if (reading is not None and not reading.partial
                and len(reading.catalogue) <= self._page):
            # One request for the whole ring is cheaper than one request for
            # each arc.
            return [CIRCLE]
        arcs = ring.arcs(self._identity)
        if before is None:
            return arcs
        rest = [] if part.walk is None else part.walk.rest()
        return minus(
            arcs, minus(before.arcs(self._identity), rest))

    def walk(self, part: Part, arcs: Iterable[Arc],
             at: Instant, ring: Ring | None,
             discard_rows: bool = False) -> None:
        """Compare the rows on these arcs with the catalogue, and claim the due
        ticks of the rows.

        :param at: Instant of the walk, from which new objects can be due.
        :param discard_rows: As in :meth:`walk_gained`.
        """
        if part.walk is not None:
            part.walk.cancelled = True
        reading = part.reading
        assert reading is not None
        if not reading.partial:
            # The limit on the rows of a page does not limit the number of new
            # objects, which have no rows. So divide the arcs, too, into pieces
            # with a limited number of listed objects.
            arcs = [piece for arc in arcs
                    for piece in reading.catalogue.pieces(arc, self._page)]
        walk = Walk(self._store, self._clock, part.job.name, arcs,
                    before=None, limit=self._page)
        part.begin_walk(walk, at)
        start(self._compare(part, walk, at, ring, discard_rows))

    def _compare(self, part: Part, walk: Walk, at: Instant,
                 ring: Ring | None, discard_rows: bool) -> Procedure[None]:
        """Compare the rows that *walk* reads; see :meth:`walk`."""
        job = part.job
        try:
            while page := (yield from walk.read()):
                reading = part.reading
                assert reading is not None
                rows = self._comparable(part, ring, page.rows)
                if discard_rows:
                    gone, rows = rows, []
                    self._sync(
                        job, [], [row.object for row in gone], [at])
                self._compared(part, compare_listing(
                    job, reading,
                    self._indexes(part, ring, page.low, page.high), rows, at,
                    self._listed_at(part)), at)
        except CallFailed:
            if not walk.cancelled:
                part.end_walk(complete=False)
                part.ring = None
                self._compare_soon(job)
            return
        if not walk.cancelled:
            part.end_walk(complete=True)
            self._walked(part, at, ring)

    def _comparable(self, part: Part, ring: Ring | None,
                    rows: list[Row]) -> list[Row]:
        """Return the rows that this member compares with the catalogue."""
        return rows

    def _listed_at(self, part: Part) -> Callable[
            [str], tuple[Instant, ...]] | None:
        """Return a function that returns, for an object without a row, the
        instants from which the object can be due.

        None means that such objects can be due from the instant of the walk.
        """
        return None

    def _indexes(self, part: Part, ring: Ring | None,
                 low: int, high: int) -> Iterable[int]:
        """Return the indexes of this member's objects at the positions *low*
        to *high*.
        """
        assert part.reading is not None
        catalogue = part.reading.catalogue
        return [index for index in catalogue.between(low, high)
                if part.owns(ring, self._identity,
                             catalogue.positions[index])]

    def _compared(self, part: Part, found: Differences,
                  at: Instant) -> None:
        """Record the differences, and then claim the due objects."""
        self._give_up(part.job, found.delisted, at)
        self._record(part.job, found)
        self._sync(
            part.job, [], [row.object for row in found.delisted], [at])
        self._claimer.judge(part.job, [*found.same, *found.new])
        self._claimer.judge_objects(part.job, found.unsure)

    def record_differences(self, part: Part, before: Reading,
                           reading: Reading, at: Instant,
                           ring: Ring) -> None:
        """Record the differences between the readings *before* and *reading*.
        """
        old, new = set(before.catalogue.ids), set(reading.catalogue.ids)
        if part.removed is not None:
            part.removed += len(old - new)
        changed = reading.changed(before, old & new)
        ids, positions = reading.catalogue.ids, reading.catalogue.positions
        arrived = (new - old) | changed
        indexes = [index for index, key in enumerate(ids)
                   if key in arrived and part.owns(
                       ring, self._identity, positions[index])]
        gone = [key for key in before.catalogue.ids
                if key not in new and part.owns(
                    ring, self._identity, position_of(key))]
        # The store has watermarks of these objects. It keeps each watermark
        # that is later than the given one.
        rows = [row_of(before, ids[index], positions[index])
                for index in indexes if ids[index] in changed]
        found = compare_listing(part.job, reading, indexes, rows, at)
        self._delist(part, gone, at)
        self._record(part.job, found)
        if part.job.run_immediately:
            self._claimer.judge(part.job, found.new)

    def _give_up(self, job: Job, delisted: list[Row], at: Instant) -> None:
        """Record the due ticks of delisted objects as given up.

        Without a shared store there is no record of ticks that did not run.
        """

    def _delist(self, part: Part, objects: list[str],
                at: Instant) -> None:
        """Record that the catalogue no longer lists *objects*."""
        self._sync(part.job, [], objects, [at])

    def _record(self, job: Job, found: Differences) -> None:
        """Record the objects that the store must list."""
        for readings, listed in found.listed.items():
            self._sync(job, listed, [], readings)

    def _sync(self, job: Job, listed: list[ports.Listed],
              delisted: list[str], readings: Sequence[Instant]) -> None:
        page = self._page
        for begin in range(0, max(len(listed), len(delisted)), page):
            start(self._sync_page(
                job, listed[begin:begin + page], delisted[begin:begin + page],
                readings))

    def _sync_page(self, job: Job, listed: list[ports.Listed],
                   delisted: list[str], readings: Sequence[Instant]
                   ) -> Procedure[None]:
        unrecorded = yield from call(
            self._store, ports.ClaimStore.sync, job.name, listed, delisted,
            readings=readings)
        if unrecorded:
            # The store could not record all objects, so walk the part again
            # soon.
            self._parts[job.name].ring = None
            self._compare_soon(job)

    def _compare_soon(self, job: Job) -> None:
        self._timers.push(self._clock.now() + SECOND, job.name,
                          TimerKind.LOOK)

    def judge_gained(self, part: Part, ring: Ring,
                     before: Ring | None) -> None:
        """Claim the due ticks of the rows on gained arcs.

        The claims do not wait for a read of the catalogue.
        """
        start(self._judge_gained(part, ring, Walk(
            self._store, self._clock, part.job.name,
            self._arcs(part, ring, before), before=None, limit=self._page)))

    def _judge_gained(self, part: Part, ring: Ring,
                      walk: Walk) -> Procedure[None]:
        # If rows cannot be read, the walk after the next read of the catalogue
        # reads them.
        while page := (yield from walk.read()):
            self._claimer.judge(part.job, [
                row for row in page.rows
                if part.owns(ring, self._identity, row.position)])


def counts_from(part: Part, now: Instant) -> Instant:
    """Return the instant from which an object that is listed at *now* can be
    due.

    Without ``run_immediately``, this is just after *now*, so that a tick at
    *now* is not due.
    """
    return now if part.job.run_immediately else now + 1


class SharedListing(Listing):
    """Component that updates the listing in a store that members share.

    Each member compares and delists only the objects that it owns.
    """

    def walk_gained(self, part: Part, at: Instant, ring: Ring,
                    discard_rows: bool = False) -> None:
        before, part.ring = part.ring, ring
        self.walk(part, self._arcs(part, ring, before), at, ring, discard_rows)

    def _comparable(self, part: Part, ring: Ring | None,
                    rows: list[Row]) -> list[Row]:
        # Leave out rows of other members, which walk their own arcs.
        return [row for row in rows if part.owns(
            ring, self._identity, row.position)]

    def _listed_at(self, part: Part) -> Callable[
            [str], tuple[Instant, ...]] | None:
        return functools.partial(self._instants, part)

    def _instants(self, part: Part, key: str) -> tuple[Instant, ...]:
        """Return the instants from which an object without a row may be due.

        A job with scope ``'group'`` has one object. This object can be due
        from the instant since which schedulers have served the job without a
        gap.
        """
        instants = part.listed_at(key)
        if part.job.scope is Scope.GROUP:
            attended = self._claimer.attendance.attended(part.job.name)
            if attended is not None:
                since = counts_from(part, attended)
                if since < instants[0]:
                    return since, *instants
        return instants

    def _give_up(self, job: Job, delisted: list[Row], at: Instant) -> None:
        self._claimer.give_up_delisted(job, delisted, at)

    def _delist(self, part: Part, objects: list[str],
                at: Instant) -> None:
        for begin in range(0, len(objects), self._page):
            start(self._delist_page(
                part, objects[begin:begin + self._page], at))

    def _delist_page(self, part: Part, objects: list[str],
                     at: Instant) -> Procedure[None]:
        rows = yield from call(
            self._store, ports.ClaimStore.rows_of, part.job.name, objects)
        # Leave out objects that have other owners now. These owners compare
        # the objects with their own readings.
        own_rows = [row for row in rows if part.ring
                    and part.ring.owner_at(row.position) == self._identity]
        self._claimer.give_up_delisted(part.job, own_rows, at)
        self._sync(part.job, [], [row.object for row in own_rows], [at])
        self._list_again(part, [row.object for row in own_rows], at)

    def _list_again(self, part: Part, objects: list[str],
                    at: Instant) -> None:
        """List those of *objects* again that the last reading lists.

        A later reading may have listed them while they were being delisted.
        """
        reading = part.reading
        assert reading is not None
        back = reading.catalogue.indexes(objects)
        if back:
            self._record(part.job, compare_listing(
                part.job, reading, back, [], at,
                self._listed_at(part)))
