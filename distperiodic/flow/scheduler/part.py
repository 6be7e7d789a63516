# SPDX-License-Identifier: Apache-2.0
"""One member's part of a job: the objects that the member owns, and their
rows.

A *walk* reads the rows of the store in pages, one range of the ring after the
other::

    low ── page ──┬── page ──┬── page ── high
                  │          └─ the due ticks of each row are claimed
                  └─ compared with the catalogue: differences are recorded

A member walks its arcs when it starts, and later the arcs that it gains. After
a walk, all due ticks of the objects on these arcs are decided or are being
claimed.
"""

import collections
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import due
from distperiodic.core.attributes import PLAIN
from distperiodic.core.catalogue import Catalogue
from distperiodic.core.catalogue import Reading
from distperiodic.core.due import Row
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job import schedule_named
from distperiodic.core.ring import Arc
from distperiodic.core.ring import Ring
from distperiodic.core.schedule import Instant
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.scheduler import timers

# Maximum number of readings that are kept until the store has recorded them.
_MOST_READINGS = 4
# Maximum number of instants that are kept for equal readings.
_MOST_INSTANTS = 16

#: All positions of the ring.
CIRCLE = Arc(-2 ** 63, 2 ** 63 - 1)


def without_catalogue(job: Job, identity: str) -> Reading | None:
    """Return the reading of a job that has one object and no catalogue.

    None means that the job has a catalogue.
    """
    if job.scope is Scope.OBJECTS:
        return None
    key = identity if job.scope is Scope.MEMBER else job.name
    return Reading(Catalogue([key]), {})


class Readings:
    """The last readings of a catalogue."""

    __slots__ = ('_kept',)

    def __init__(self) -> None:
        #: Readings and the instants for which they were read, oldest first.
        #: Consecutive equal readings are kept as one reading, with its first
        #: instant and its most recent instants.
        self._kept: list[tuple[tuple[Instant, ...], Reading]] = []

    def keep(self, reading: Reading, at: Instant) -> None:
        """Keep *reading*, which was read for the instant *at*."""
        if self._kept:
            instants, last = self._kept[-1]
            if last == reading:
                if at != instants[-1]:
                    rest = instants[1:][2 - _MOST_INSTANTS:]
                    self._kept[-1] = (instants[0], *rest, at), last
                return
        self._kept.append(((at,), reading))
        # Limit the use of memory: each reading may have a million objects.
        del self._kept[:-_MOST_READINGS]

    def forget_recorded(self) -> None:
        """Keep only the last reading, since the store has recorded the others.
        """
        del self._kept[:-1]

    def listed_at(self, key: str) -> tuple[Instant, ...]:
        """Return the instants of the last readings that list an object.

        In each of these consecutive readings, the object has its current
        attributes. The oldest instant comes first. If the object has no row,
        it can be due from this instant, even if another member owned it then:
        that member may have died before the store recorded the object.
        """
        found, newest = self._kept[-1]
        if len(self._kept) == 1:
            return found
        attributes = newest.attributes_of(key)
        for instants, reading in reversed(self._kept[:-1]):
            if (reading.attributes_of(key) != attributes
                    or not reading.catalogue.indexes([key])):
                break
            found = instants + found
        return found


class Part:
    """State of one member's part of a job.

    :param last_tick: Instant up to which this member starts no ticks.
    :param reading: Result of :func:`without_catalogue`. None means that the
        job has a catalogue.
    """

    __slots__ = ('_readings', 'cursor', 'job', 'last_tick', 'object_timers',
                 'reading', 'removed', 'ring', 'ring_seen', 'since', 'walk')

    def __init__(self, job: Job, last_tick: Instant,
                 reading: Reading | None):
        self.job = job
        #: The newest tick of the job that this member has started. Until it
        #: has started one, the instant up to which it starts no ticks.
        self.last_tick = last_tick
        #: The last reading. None means that the catalogue has not
        #: been read yet.
        self.reading = reading
        #: Number of objects that left the catalogue since the newest tick.
        #: That tick may already have been decided for these objects. None
        #: means unknown.
        self.removed: int | None = 0
        #: The ring for which the rows of this part were walked. None means
        #: that the part must be walked.
        self.ring: Ring | None = None
        #: The ring of the job in the last view. None means that there was no
        #: view yet.
        self.ring_seen: Ring | None = None
        #: Instant from which ticks of gained objects can be due.
        self.since = due.ALWAYS
        #: The walk in progress. None means that there is none.
        self.walk: Walk | None = None
        #: The last two readings, and more of them while the store may not have
        #: recorded the earlier ones.
        self._readings = Readings()
        #: Cursor over the objects that have a phase. None means that the
        #: objects have no phase, or that the part was not walked.
        self.cursor: timers.SpreadCursor | None = None
        self.object_timers = timers.ObjectTimers()

    @property
    def per_member(self) -> bool:
        """True if each member runs the job for itself, whatever the ring."""
        return self.job.scope is Scope.MEMBER

    def owns(self, ring: Ring | None, identity: str,
             position: int) -> bool:
        return self.per_member or (
            ring is not None and len(ring) > 0
            and ring.owner_at(position) == identity)

    def ids(self, ring: Ring | None, identity: str) -> list[str]:
        """Return this member's objects that follow the job's schedule.

        The objects are in the order of their positions, like their rows in the
        store. So a claim of these objects writes each page of the database
        only once.
        """
        reading = self.reading
        if reading is None:
            return []
        if self.per_member:
            return list(reading.catalogue.ids)
        assert ring is not None
        ids = reading.catalogue.placed_ids(ring, identity)
        if reading.attributes:
            return [key for key in ids if not reading.attributes_of(key).rule]
        return ids

    def begin_walk(self, walk: 'Walk', at: Instant) -> None:
        """Record the start of *walk*.

        :param at: Instant from which objects that the walk adds to the listing
            can be due.
        """
        self.walk = walk
        assert self.reading is not None
        self._readings.keep(self.reading, at)

    def end_walk(self, complete: bool) -> None:
        """Record the end of the walk.

        :param complete: True if all rows were read. The store has then
            recorded the objects of all readings before the last.
        """
        self.walk = None
        if complete:
            self._readings.forget_recorded()

    def read(self, reading: Reading, at: Instant) -> None:
        """Record a new reading.

        :param at: Instant from which new objects can be due.
        """
        self.reading = reading
        if self.walk is None and self.ring is not None:
            # The store has recorded all readings before the last reading.
            self._readings.forget_recorded()
        self._readings.keep(reading, at)

    def listed_at(self, key: str) -> tuple[Instant, ...]:
        """Return the instants from which an object without a row may be due.

        The first instant applies unless another process delisted the object
        after that instant.
        """
        return self._readings.listed_at(key)

    def restart(self, now: Instant) -> None:
        """Start, or continue after the clock was set back, from *now* on."""
        newest = self.job.schedule.at_or_before(now)
        self.last_tick = now if newest is None else newest
        self.object_timers.restart(now)
        if self.cursor is not None and self.reading is not None:
            self.spread(self.last_tick, now)

    def spread(self, tick: Instant, since: Instant) -> None:
        """Start *tick* for objects with a phase.

        :param since: Objects that were due at or before this instant are left
            out.
        """
        assert self.reading is not None
        self.cursor = timers.SpreadCursor(
            tick, self.reading.catalogue,
            self.job.schedule.period_us(tick), since)


def plan_of(job: Job, rule: str, since: Instant) -> due.Plan:
    """Return the plan of the objects whose rows have the schedule *rule*.

    :param rule: Text of an object's own schedule. Empty means the schedule of
        the job.
    :param since: Instant since which the job has had its schedule.
    :raises InvalidSchedule: *rule* is in a format that this release does not
        know.
    """
    return job.plan(since) if not rule else job.plan(
        own=schedule_named(rule))


class Differences(NamedTuple):
    """The differences between the catalogue and the store."""

    #: Objects that the store must list, by the instants of the readings that
    #: list them.
    listed: dict[tuple[Instant, ...], list[ports.Listed]]
    #: Rows of objects that the catalogue no longer lists.
    delisted: list[Row]
    #: Rows that agree with the catalogue.
    same: list[Row]
    #: Rows that the store will have for the new objects.
    new: list[Row]
    #: New objects whose future rows are not known here. If another process has
    #: delisted such an object meanwhile, the store makes the object due only
    #: from a later reading on.
    unsure: list[str]


def compare_listing(
        job: Job, reading: Reading, expected: Iterable[int],
        rows: Sequence[Row], at: Instant,
        listed_at: Callable[[str], tuple[Instant, ...]] | None = None
        ) -> Differences:
    """Compare *rows* with the objects that a catalogue lists.

    :param expected: Indexes of the objects in the catalogue that should have
        these rows.
    :param at: Instant from which new and changed objects can be due.
    :param listed_at: See :meth:`Part.listed_at`. None means that objects
        without a row can be due from *at*.
    """
    ids, positions = reading.catalogue.ids, reading.catalogue.positions
    places = {ids[index]: positions[index] for index in expected}
    attributes_of = reading.attributes.get
    found = Differences(collections.defaultdict(list), [], [], [], [])

    @functools.cache
    def plan_by(rule: str) -> tuple[due.Plan, Callable[[Instant], due.Around]]:
        plan = plan_of(job, rule, due.ALWAYS)
        return plan, functools.cache(plan.around)

    for row in rows:
        position = places.pop(row.object, None)
        if position is None:
            found.delisted.append(row)
        elif row.attributes != (own := attributes_of(row.object, PLAIN)):
            plan, around = plan_by(own.rule)
            found.listed[at,].append(ports.Listed(
                row.object, own, plan.floor_of_change(
                    row.settled, at, position, around)))
        else:
            found.same.append(row)
    for key, position in places.items():
        own = attributes_of(key, PLAIN)
        instants = (at,) if listed_at is None else listed_at(key)
        begin = instants[0]
        settled = begin - 1
        if not job.run_immediately:
            plan, around = plan_by(own.rule)
            settled = plan.floor(due.ALWAYS, begin, position, around)
        found.listed[instants].append(ports.Listed(key, own, settled))
        if len(instants) > 1:
            found.unsure.append(key)
        else:
            found.new.append(row_of(reading, key, position)._replace(
                settled=settled, since=begin))
    return found


def row_of(reading: Reading, key: str, position: int) -> Row:
    """Return the row of an object as *reading* lists it.

    Its instants are unknown, so they are before all others.
    """
    return Row(key, position, due.ALWAYS, due.ALWAYS,
               reading.attributes_of(key))


class RowPage(NamedTuple):
    """Rows that were read together."""

    #: The first and the last position of the range that was read.
    low: int
    high: int
    rows: list[Row]


class Walk:
    """Reader of the rows of a job, page by page.

    :param clock: The clock of the store.
    :param ranges: Ranges of positions, in the order of reading.
    :param before: See :meth:`distperiodic.ports.ClaimStore.rows`.
    :param limit: Maximum number of rows in one page.
    """

    __slots__ = ('_before', '_clock', '_job', '_limit', '_ranges', '_store',
                 'cancelled')

    def __init__(self, store: ports.StoreQueue, clock: ports.Clock, job: str,
                 ranges: Iterable[Arc], *, before: Instant | None,
                 limit: int):
        self._store = store
        self._clock = clock
        self._job = job
        # The last range in the list is read first.
        self._ranges = list(ranges)[::-1]
        self._before = before
        self._limit = limit
        #: True if no further page is read.
        self.cancelled = False

    def rest(self) -> list[Arc]:
        """Return the ranges that were not read yet, in the order of reading.
        """
        return self._ranges[::-1]

    def read(self) -> Procedure[RowPage | None]:
        """Read the next page.

        :returns: None if all pages were read, or if the walk was cancelled.
        :raises CallFailed: The store could not answer.
        """
        if self.cancelled or not self._ranges:
            return None
        low, high = self._ranges[-1]
        at = self._clock.now()
        rows = due.requested((yield from call(
            self._store, ports.ClaimStore.rows, self._job, Arc(low, high),
            before=self._before, limit=self._limit)), at)
        if self.cancelled:
            return None
        self._ranges.pop()
        if len(rows) == self._limit and rows[0].position < (
                last := rows[-1].position):
            # The page is full, so there may be more rows at its last position.
            # Read all rows of this position with the next page.
            while rows[-1].position == last:
                rows.pop()
            self._ranges.append(Arc(last, high))
            high = last - 1
        return RowPage(low, high, rows)
