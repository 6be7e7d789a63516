# SPDX-License-Identifier: Apache-2.0
"""Update of the store's listing from the catalogues.

    reading ─► walk ─► page ─► compare ─► differences are recorded
       │                          └─► due objects are claimed
       └─► differs from the last reading ─► the difference is recorded

A member walks the rows of its arcs when it starts, and later the rows of arcs
that it gains; see :mod:`distperiodic.flow.scheduler.part`. After that it
compares each reading with the one before, and reads no rows.
"""

import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import due
from distperiodic.core.catalogue import Reading
from distperiodic.core.due import Row
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import View
from distperiodic.core.ring import Arc
from distperiodic.core.ring import Ring
from distperiodic.core.ring import minus
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.part import CIRCLE
from distperiodic.flow.scheduler.part import Differences
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.part import Walk
from distperiodic.flow.scheduler.part import compare_listing
from distperiodic.flow.scheduler.part import rule_of
from distperiodic.flow.scheduler.timers import TimerKind
from distperiodic.flow.scheduler.timers import TimerQueue


class Listing:
    """The listing of one member's parts.

    :param shared: True if members share the store.
    :param page: Number of rows of the store that are read together.
    :param walked: Called when a walk is complete, with the part, the instant
        for which it was walked, and the view.
    """

    def __init__(self, parts: Mapping[str, Part], *,
                 clock: ports.Clock, identity: str, store: ports.StoreQueue,
                 shared: bool, timers: TimerQueue,
                 claimer: Claimer, page: int,
                 walked: Callable[
                     [Part, Instant, View | None], None]):
        self._parts = parts
        self._clock = clock
        self._identity = identity
        self._store = store
        self._shared = shared
        self._timers = timers
        self._claimer = claimer
        self._page = page
        self._walked = walked

    def walk_gained(self, part: Part, at: Instant, view: View,
                    discard_rows: bool = False) -> None:
        """Walk the arcs that this member gained since the last walk.

        :param at: Instant for which the catalogue was read.
        :param discard_rows: True discards the rows of these arcs, and lists
            their objects again.
        """
        before, part.ring = part.ring, view.ring
        if not self._shared:
            # Without a shared store, the walk also delists the objects that
            # this member no longer owns. The new owners list them.
            self.walk(part, [CIRCLE], part.since, view, discard_rows)
            return
        self.walk(part, self._arcs(part, view, before), at, view)

    def _arcs(self, part: Part, view: View,
              before: Ring | None) -> Iterable[Arc]:
        """Return this member's arcs, except those that were walked already.

        :param before: Ring of the last walk. Arcs on which a walk is not
            complete are returned again. None means that no arc was walked.
        """
        reading = part.reading
        if (reading is not None and not reading.partial
                and len(reading.catalogue) <= self._page):
            # One request for all arcs is cheaper than one for each.
            return [CIRCLE]
        arcs = view.ring.arcs(self._identity)
        if before is None:
            return arcs
        rest = [] if part.walk is None else part.walk.rest()
        return minus(
            arcs, minus(before.arcs(self._identity), rest))

    def walk(self, part: Part, arcs: Iterable[Arc],
             at: Instant, view: View | None,
             discard_rows: bool = False) -> None:
        """Compare the rows on these arcs with the catalogue, and judge them.

        :param discard_rows: True discards these rows, and lists their objects
            again.
        """
        job = part.job
        if part.walk is not None:
            part.walk.cancelled = True

        def page(low: int, high: int, rows: list[Row]) -> None:
            reading = part.reading
            assert reading is not None
            if self._shared:
                # Other members compare the rows that they own.
                rows = [row for row in rows if part.owns(
                    view, self._identity, row.position)]
            if discard_rows:
                gone, rows = rows, []
                self._sync(job, [], [row.object for row in gone], at)
            self._compared(part, compare_listing(
                job, reading, self._indexes(part, view, low, high), rows, at,
                functools.partial(self._listed_at, part)
                if self._shared else None), at)

        def end(complete: bool) -> None:
            part.end_walk(complete)
            if not complete:
                part.ring = None
                self._compare_soon(job)
                return
            self._walked(part, at, view)
        reading = part.reading
        assert reading is not None
        if not reading.partial:
            # Rows limit the size of a page, and new objects have no rows. So
            # the arcs are cut by the number of objects, too.
            arcs = [piece for arc in arcs
                    for piece in reading.catalogue.pieces(arc, self._page)]
        walk = Walk(
            self._store, job.name, arcs, before=None, page=self._page,
            on_page=page, on_end=end)
        part.begin_walk(walk, at)
        walk.advance()

    def _listed_at(self, part: Part, key: str) -> tuple[Instant, ...]:
        """Return the instants from which an object without a row may be due.

        For the one object of a GROUP job, the first instant is not later than
        the beginning of the job's attendance.
        """
        instants = part.listed_at(key)
        if part.job.scope is Scope.GROUP:
            attended = self._claimer.attendance.attended(part.job.name)
            if attended is not None:
                since = counts_from(part, attended)
                if since < instants[0]:
                    return since, *instants
        return instants

    def _indexes(self, part: Part, view: View | None,
                 low: int, high: int) -> Iterable[int]:
        """Return the indexes of own objects at positions *low* to *high*."""
        assert part.reading is not None
        catalogue = part.reading.catalogue
        return [index for index in catalogue.between(low, high)
                if part.owns(view, self._identity,
                             catalogue.positions[index])]

    def _compared(self, part: Part, found: Differences,
                  at: Instant) -> None:
        """Record the differences, then claim the due objects."""
        if self._shared:
            self._claimer.give_up_delisted(part.job, found.delisted, at)
        self._record(part.job, found)
        self._sync(part.job, [], [row.object for row in found.delisted], at)
        self._claimer.judge(part.job, [*found.same, *found.new])
        self._claimer.judge_objects(part.job, found.unsure)

    def record_differences(self, part: Part, before: Reading,
                           reading: Reading, at: Instant,
                           view: View) -> None:
        """Record what changed between the reading *before* and *reading*."""
        old, new = set(before.catalogue.ids), set(reading.catalogue.ids)
        if part.removed is not None:
            part.removed += len(old - new)
        changed = {key for key in old & new
                   if before.schedules.get(key) != reading.schedules.get(key)
                   } if before.schedules or reading.schedules else set()
        ids, positions = reading.catalogue.ids, reading.catalogue.positions
        arrived = (new - old) | changed
        indexes = [index for index, key in enumerate(ids)
                   if key in arrived and part.owns(
                       view, self._identity, positions[index])]
        gone = [key for key in before.catalogue.ids
                if key not in new and part.owns(
                    view, self._identity, position_of(key))]
        # The store has the watermarks of these objects, and keeps them if they
        # are later.
        rows = [Row(ids[index], positions[index], due.ALWAYS, due.ALWAYS,
                    rule_of(before, ids[index]))
                for index in indexes if ids[index] in changed]
        found = compare_listing(part.job, reading, indexes, rows, at)
        self._delist(part, gone, at)
        self._record(part.job, found)
        if part.job.run_immediately:
            self._claimer.judge(part.job, found.new)

    def _delist(self, part: Part, objects: list[str],
                at: Instant) -> None:
        """Record that the catalogue does not list *objects* any more."""
        job = part.job
        if not self._shared:
            self._sync(job, [], objects, at)
            return

        def read(store: ports.ClaimStore, chunk: list[str]) -> list[Row]:
            return store.rows_of(job.name, chunk)

        def received(rows: list[Row]) -> None:
            # The new owners of the other objects compare them with their own
            # catalogues.
            own_rows = [row for row in rows if part.ring is not None
                        and part.ring.owner_at(row.position) == self._identity]
            self._claimer.give_up_delisted(job, own_rows, at)
            self._sync(job, [], [row.object for row in own_rows], at)
            self._list_again(part, [row.object for row in own_rows], at)
        for start in range(0, len(objects), self._page):
            chunk = objects[start:start + self._page]
            self._store.submit(functools.partial(read, chunk=chunk), received)

    def _list_again(self, part: Part, objects: list[str],
                    at: Instant) -> None:
        """List again those of *objects* that the catalogue lists now."""
        reading = part.reading
        assert reading is not None
        back = reading.catalogue.indexes(objects)
        if back:
            self._record(part.job, compare_listing(
                part.job, reading, back, [], at,
                functools.partial(self._listed_at, part)))

    def _record(self, job: Job, found: Differences) -> None:
        """Record the objects to list."""
        for (at, *later), listed in found.listed.items():
            self._sync(job, listed, [], at, later)

    def _sync(self, job: Job, listed: list[ports.Listed],
              delisted: list[str], at: Instant,
              later: Sequence[Instant] = ()) -> None:
        def recorded(unrecorded: list[str]) -> None:
            if unrecorded:
                # The store could not record these objects, so compare again.
                self._parts[job.name].ring = None
                self._compare_soon(job)

        def sync(store: ports.ClaimStore, new: list[ports.Listed],
                 gone: list[str]) -> list[str]:
            return store.sync(job.name, new, gone, at=at, later=later)
        page = self._page
        for start in range(0, max(len(listed), len(delisted)), page):
            self._store.submit(functools.partial(
                sync, new=listed[start:start + page],
                gone=delisted[start:start + page]), recorded)

    def _compare_soon(self, job: Job) -> None:
        self._timers.push(self._clock.now() + SECOND, job.name,
                          TimerKind.LOOK)

    def judge_gained(self, part: Part, view: View,
                     before: Ring | None) -> None:
        """Claim the due objects on gained arcs, from the rows alone."""
        def page(low: int, high: int, rows: list[Row]) -> None:
            self._claimer.judge(part.job, [
                row for row in rows
                if part.owns(view, self._identity, row.position)])
        Walk(
            self._store, part.job.name, self._arcs(part, view, before),
            before=None, page=self._page, on_page=page,
            # Rows that could not be read are read later, with the catalogue.
            on_end=lambda complete: None).advance()


def counts_from(part: Part, now: Instant) -> Instant:
    """Return the instant from which objects listed at *now* can be due.

    Without ``run_immediately`` a tick at *now* is not due.
    """
    return now if part.job.run_immediately else now + 1
