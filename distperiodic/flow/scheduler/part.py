# SPDX-License-Identifier: Apache-2.0
"""One member's part of a job: which objects are listed and ours, and what the
store knows of them.

A *walk* goes through the rows of the store, range by range of the ring::

    low ── page ──┬── page ──┬── page ── high
                  │          └─ each row is judged: what is due is claimed
                  └─ compared with the catalogue: differences are recorded

A member walks its arcs when it starts, and the arcs that it gains. From then
on it knows its part: all is settled up to the newest tick, or being claimed.
"""

import collections
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import catalogue as catalogue_
from distperiodic.core import due
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from distperiodic.core.catalogue import Reading
from distperiodic.core.due import Row
from distperiodic.core.schedule import Instant
from distperiodic.flow.scheduler import timers

# As many are kept of what was read while the store is slow to record it; the
# last two otherwise.
_MOST_READINGS = 4

#: All positions.
CIRCLE = ring_.Arc(-2 ** 63, 2 ** 63 - 1)


def without_catalogue(job: job_.Job, identity: str) -> Reading | None:
    """What a job without a catalogue lists: its one object. None: it has a
    catalogue.
    """
    if job.scope is job_.Scope.OBJECTS:
        return None
    key = identity if job.scope is job_.Scope.MEMBER else job.name
    return Reading(catalogue_.Catalogue([key]), {})


class Part:
    """What one member knows of its part of a job.

    :param reading: what a job without a catalogue lists. None: it has one.
    """

    __slots__ = ('begun', 'cursor', 'job', 'left', 'own', 'reading', 'ring',
                 'since', 'walk', '_readings')

    def __init__(self, job: job_.Job, begun: Instant,
                 reading: Reading | None):
        self.job = job
        #: The newest tick of the job that was started here, or that came
        #: before this member.
        self.begun = begun
        #: What was read last. None: nothing.
        self.reading = reading
        #: How many objects left the catalogue since the newest tick; they may
        #: have been settled for it. None: not known.
        self.left: int | None = 0
        #: For which ring its rows were walked. None: for none yet.
        self.ring: ring_.Ring | None = None
        #: The instant from which what we gained counts.
        self.since = due.ALWAYS
        self.walk: Walk | None = None
        #: What was read, and for when, oldest first: since before the walk
        #: under way, or last.
        self._readings: list[tuple[Instant, Reading]] = []
        #: Its objects with a phase. None: it has none, or was not walked.
        self.cursor: timers.SpreadCursor | None = None
        self.own = timers.ObjectTimers()

    @property
    def of_member(self) -> bool:
        """Whether it is this member's alone, whatever the ring says."""
        return self.job.scope is job_.Scope.MEMBER

    def owns(self, view: member_.View | None, identity: str,
             position: int) -> bool:
        return self.of_member or (
            view is not None and view.ring.owner_at(position) == identity)

    def ids(self, view: member_.View | None, identity: str) -> list[str]:
        """Our objects that follow the job's schedule.

        They are claimed in the order in which a walk lists them: a store
        keeps them side by side then, and writes a page of it once for all.
        """
        reading = self.reading
        if reading is None:
            return []
        if self.of_member:
            return list(reading.catalogue.ids)
        assert view is not None
        ids = reading.catalogue.placed_ids(view.ring, identity)
        if reading.schedules:
            return [key for key in ids if key not in reading.schedules]
        return ids

    def begin_walk(self, walk: 'Walk', at: Instant) -> None:
        """Compare with the store what was read, which counts from *at*."""
        self.walk = walk
        self._keep(at)

    def end_walk(self, complete: bool) -> None:
        """The walk is over; if *complete*, all that is ours is recorded."""
        self.walk = None
        if complete:
            del self._readings[:-1]

    def read(self, reading: Reading, at: Instant) -> None:
        """This was read; what is new counts from *at*."""
        self.reading = reading
        if self.walk is None and self.ring is not None:
            # What was read before the last reading is in the store.
            del self._readings[:-1]
        self._keep(at)

    def _keep(self, at: Instant) -> None:
        reading = self.reading
        assert reading is not None
        if self._readings:
            _, last = self._readings[-1]
            if (last.catalogue is reading.catalogue
                    and last.schedules == reading.schedules):
                return
        self._readings.append((at, reading))
        # Each may be of a million objects.
        del self._readings[:-_MOST_READINGS]

    def listed_since(self, key: str) -> Instant:
        """From when an object counts that the store does not have: since
        then all that was read here lists it with the schedule that it has.

        Whoever had it before may have read it, too, and died before it was
        recorded.
        """
        since, newest = self._readings[-1]
        if len(self._readings) == 1:
            return since
        rule = rule_of(newest, key)
        for at, reading in reversed(self._readings):
            if (rule_of(reading, key) != rule
                    or not reading.catalogue.indexes([key])):
                break
            since = min(since, at)
        return since

    def restart(self, now: Instant) -> None:
        """Go on from *now*: the clock was set back."""
        newest = self.job.schedule.at_or_before(now)
        self.begun = now if newest is None else newest
        self.own.restart(now)
        if self.cursor is not None and self.reading is not None:
            self.spread(self.begun, now)

    def spread(self, tick: Instant, since: Instant) -> None:
        """Start *tick* of objects with a phase.

        :param since: objects that were due up to this instant are left out.
        """
        assert self.reading is not None
        self.cursor = timers.SpreadCursor(
            tick, self.reading.catalogue,
            self.job.schedule.period_us(tick), since)


def plan_of(job: job_.Job, rule: str, since: Instant) -> due.Plan:
    """The plan of the objects that follow *rule*, as a row has it.

    :param since: since when the job has its schedule.
    :raises InvalidSchedule: no release that is known wrote *rule*.
    """
    return job.plan(since) if not rule else job.plan(
        own=job_.schedule_named(rule))


class Differences(NamedTuple):
    """What the store does not have as the catalogue does."""

    #: By the instant from which they count.
    listed: dict[Instant, list[ports.Listed]]
    #: Rows that the catalogue does not list any more.
    delisted: list[Row]
    #: The rows that agree.
    same: list[Row]
    #: What is new, as the store will have it.
    new: list[Row]


def compare(job: job_.Job, reading: Reading, expected: Iterable[int],
            rows: Sequence[Row], at: Instant,
            since: Callable[[str], Instant] | None = None) -> Differences:
    """Compare *rows* with what a catalogue lists.

    :param expected: indexes of the catalogue that belong to these rows.
    :param at: the instant for which it was read.
    :param since: from when an object without a row counts. None: from *at*.
    """
    ids, positions = reading.catalogue.ids, reading.catalogue.positions
    places = {ids[index]: positions[index] for index in expected}
    found = Differences(collections.defaultdict(list), [], [], [])

    @functools.cache
    def plan_by(rule: str) -> tuple[due.Plan, Callable[[Instant], due.Around]]:
        plan = plan_of(job, rule, due.ALWAYS)
        return plan, functools.cache(plan.around)

    def floor(rule: str, settled: Instant, begin: Instant,
              position: int) -> Instant:
        plan, around = plan_by(rule)
        return plan.floor(settled, begin, position, around)
    for row in rows:
        position = places.pop(row.object, None)
        if position is None:
            found.delisted.append(row)
        elif row.rule != (rule := rule_of(reading, row.object)):
            found.listed[at].append(ports.Listed(
                row.object, rule, floor(rule, row.settled, at, position)))
        else:
            found.same.append(row)
    for key, position in places.items():
        rule = rule_of(reading, key)
        begin = at if since is None else since(key)
        settled = begin - 1
        if not job.run_immediately:
            settled = floor(rule, due.ALWAYS, begin, position)
        found.listed[begin].append(ports.Listed(key, rule, settled))
        found.new.append(Row(key, position, settled, begin, rule))
    return found


def rule_of(reading: Reading, key: str) -> str:
    """The text of an object's own schedule; empty: it has none."""
    rule = reading.schedules.get(key) if reading.schedules else None
    return '' if rule is None else job_.text_of(rule)


class Walk:
    """Goes through the rows of a job, page by page.

    :param ranges: of positions, in any order.
    :param before: see :meth:`distperiodic.ports.ClaimStore.rows`.
    :param page: rows that are read at once.
    :param on_page: takes a range and its rows.
    :param on_end: called once all was read; with False if the store could
        not answer.
    """

    __slots__ = ('_asking', '_before', '_job', '_limit', '_more', '_on_end',
                 '_on_page', '_ranges', '_store', 'cancelled')

    def __init__(self, store: ports.StoreQueue, job: str,
                 ranges: Iterable[ring_.Arc], *, before: Instant | None,
                 page: int,
                 on_page: Callable[[Instant, Instant, list[Row]], None],
                 on_end: Callable[[bool], None]):
        self._store = store
        self._job = job
        self._ranges = list(ranges)[::-1]
        self._before = before
        self._limit = page
        self._on_page = on_page
        self._on_end = on_end
        self.cancelled = False
        self._asking = self._more = False

    def rest(self) -> list[ring_.Arc]:
        """The ranges that were not read yet, in order."""
        return self._ranges[::-1]

    def go_on(self) -> None:
        """Read the next page, and the others as the answers come."""
        # A store may answer at once: not one call deeper for each page.
        self._more = True
        if self._asking:
            return
        self._asking = True
        while self._more and not self.cancelled:
            self._more = False
            if not self._ranges:
                self._on_end(True)
                break
            self._ask(*self._ranges[-1])
        self._asking = False

    def _ask(self, low: int, high: int) -> None:
        def failed() -> None:
            if not self.cancelled:
                self.cancelled = True
                self._on_end(False)
        self._store.ask(
            lambda store: store.rows(
                self._job, low, high, before=self._before,
                limit=self._limit),
            self._answered, failed)

    def _answered(self, rows: list[Row]) -> None:
        if self.cancelled:
            return
        low, high = self._ranges.pop()
        if len(rows) == self._limit and rows[0].position < (
                last := rows[-1].position):
            # There may be more at the last position.
            while rows[-1].position == last:
                rows.pop()
            self._ranges.append(ring_.Arc(last, high))
            high = last - 1
        self._on_page(low, high, rows)
        self.go_on()
