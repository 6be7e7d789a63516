# SPDX-License-Identifier: Apache-2.0
"""The ticks that each object was due for, computed from the record of the
world.

Each change of the object's catalogue or of its job divides the life of the
object into pieces. In each piece one schedule holds, and the oracle enumerates
the ticks of this schedule. A change of a catalogue takes effect at the next
read of this catalogue, whose exact time is unknown. So a tick near a change
*may* run, and every other tick *must* be decided::

    catalogue     absent | there                              | absent
    may run              |--------------------------------------------|
    must be decided               |-------------------------|
                         ^ tick of its job: the catalogue is read
"""

import bisect
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

from distperiodic.core import due
from distperiodic.core import ring
from distperiodic.core.claim import EARLIEST
from distperiodic.core.job import Job
from tests.oracle.facts import FOREVER
from tests.oracle.facts import Entry
from tests.oracle.facts import Facts
from tests.oracle.facts import Listed
from tests.oracle.facts import Pair
from tests.oracle.facts import Reading
from tests.oracle.facts import Scheduler
from tests.oracle.facts import Span

_What = TypeVar('_What')
_AT = operator.attrgetter('at')


class Due(NamedTuple):
    """A tick that an object is due for."""

    tick: int
    #: Time at which the tick is due, by the true clock.
    at: int
    #: Time at which the tick is due, by the store's clock.
    instant: int
    #: End of the interval in which the tick is due: the next change of the
    #: object's schedule or listing.
    until: int
    #: Time until which the schedule of the tick may still hold, because no
    #: member has recorded the change yet.
    may_until: int
    #: True if the tick must be decided. False if it may run, but need not be
    #: decided.
    must: bool
    plan: due.Plan
    job: Job
    #: Time from which the store knows the object: the time at which a reading
    #: recorded it, or else the latest time at which a reading had to record
    #: it.
    known: int
    #: First instant for which the tick may be claimed. After a change of the
    #: schedule the same tick may be due once more, but it runs only once.
    first: int
    #: Time from which the schedule of the tick holds.
    since: int
    #: The second due time, if the tick had to be decided before a change of
    #: the schedule and is due once more after it.
    again: 'Due | None' = None


@dataclasses.dataclass
class Piece:
    """An interval in which one schedule of an object holds."""

    job: Job
    plan: due.Plan
    #: Ticks that come due in this interval may run.
    may: Span
    #: Ticks that come due in this interval must be decided.
    must: Span
    #: Ticks before this time are not due, because the object was not listed.
    listed: int
    #: Time from which the store knows the object.
    known: int
    #: Time from which the schedule of the job holds.
    since: int


def pieces(facts: Facts, owners: 'Owners', pair: Pair) -> Iterator[Piece]:
    """Yield the pieces of the life of an object in the order of time."""
    slack = facts.bounds.slack
    for since, until, job in _until_next(facts.in_force[pair[0]]):
        changes = facts.listings[pair]
        for index, (came, gone, change) in enumerate(_until_next(
                [(one.at, one) for one in changes])):
            turned = _turned(owners, pair, changes[:index + 1])
            if job is None or not change.there:
                continue
            stays = gone
            if gone < FOREVER:
                # The old listing holds until the catalogue is read again.
                reading = owners.reading(
                    pair, gone, there=changes[index + 1].there)
                stays = FOREVER if reading is None else reading.at
            begin, end = max(since, came), min(until, gone)
            if begin >= min(until, stays):
                continue
            # The store rejects a claim by a schedule that is not in force. So
            # a claim may differ from the change of a job only by EARLIEST, not
            # by the slack.
            may_begin = max(begin - slack, since - EARLIEST)
            may_end = min(stays + slack, until + EARLIEST)
            listed = known = max(came, facts.started(pair[0]))
            if (change.rule is not None or came > facts.begin
                    or pair[0] in facts.readings):
                listed, known = _listed(facts, owners, pair, listed, turned)
            if came > facts.begin:
                # The object counts from the instant for which it was read,
                # even if it was added or changed during the catalogue call.
                may_begin = min([may_begin, *map(
                    facts.comes, owners.instants(pair, came))])
            must = max(begin, listed)
            if since > facts.begin:
                must = max(must, since + slack)
            if change.rule is not None:
                must += slack
            yield Piece(
                job, job.plan(own=change.rule), Span(may_begin, may_end),
                Span(must, end), listed, known, since)


def _turned(owners: 'Owners', pair: Pair,
            changes: Sequence[Listed]) -> bool:
    """Return whether the last of *changes* gave a new schedule to an object
    that the store still lists.

    The object may have been absent for a time in which no reading recorded
    its absence.
    """
    *before, last = changes
    there = next((one for one in reversed(before) if one.there), None)
    if there is None or there.rule == last.rule:
        return False
    if before[-1].there:
        return True
    reading = owners.reading(pair, before[-1].at, there=False)
    return reading is None or reading.at >= last.at


def _listed(facts: Facts, owners: 'Owners', pair: Pair, since: int,
            turned: bool) -> tuple[int, int]:
    """Return two times for a new object: when it certainly counts as listed,
    and when the store knows it.

    The first time is the instant of the latest reading that may have recorded
    the object, or the tick for which the owner had to read the catalogue.

    :param turned: whether the object had another schedule before. The old
        schedule holds until the catalogue call has returned, and its due ticks
        are settled then.
    """
    reading = owners.reading(pair, since, there=True)
    read = FOREVER if reading is None else reading.at
    begin = since
    if len(facts.ahead) > 1:
        # The reader may not know yet that the clock was set.
        begin += facts.bounds.slack
    for at in _job_ticks(facts, pair[0], begin, min(read, facts.end)):
        # A member that becomes the owner later does not read the catalogue for
        # this tick.
        if owners.deadline(*pair, at) == at + facts.bounds.prompt <= read:
            return at, at
    if reading is None:
        return FOREVER, FOREVER
    # The oracle does not know which of these readings recorded the object
    # first.
    instant = max(map(facts.comes, owners.instants(pair, since)))
    return (instant if instant >= since and not turned else read), read


def _job_ticks(facts: Facts, job: str, begin: int, end: int
               ) -> Iterator[int]:
    """Yield the times in [*begin*, *end*) at which ticks of a job come due.
    Each tick belongs to the schedule that is in force at its time.
    """
    for since, until, one in _until_next(facts.in_force[job]):
        if one is None or until <= begin:
            continue
        tick = one.schedule.after(facts.by_store(max(begin, since)) - 1)
        while (at := facts.comes(tick)) < min(until, end):
            yield at
            tick = one.schedule.after(tick)


def _until_next(changes: Sequence[tuple[int, _What]]) -> Iterator[
        tuple[int, int, _What]]:
    """Yield each of *changes* with its own time and the time of the next
    change.
    """
    for index, (at, what) in enumerate(changes):
        yield at, (changes[index + 1][0] if index + 1 < len(changes)
                   else FOREVER), what


def dues(facts: Facts, pieces_: Iterable[Piece], pair: Pair) -> list[Due]:
    """Return all ticks that an object was due for, oldest first."""
    position = ring.position_of(pair[1])
    found: dict[int, Due] = {}
    for piece in pieces_:
        for tick, instant in _ticks(facts, piece, position):
            at = facts.comes(instant)
            if not piece.may.begin <= at < piece.may.end:
                continue
            must = (piece.must.begin <= at < piece.must.end
                    # With a spread, the object must be listed already at the
                    # tick itself.
                    and (not piece.plan.spread
                         or facts.comes(tick) >= piece.listed))
            one = Due(tick, at, instant, piece.must.end, piece.may.end, must,
                      piece.plan, piece.job, piece.known, instant, piece.since)
            known = found.get(tick)
            if known is None:
                found[tick] = one
            elif known.must and (must or known.again is None):
                found[tick] = known._replace(again=one)
            elif must:
                found[tick] = one._replace(
                    first=min(instant, known.first))
    return [found[tick] for tick in sorted(found)]


def _ticks(facts: Facts, piece: Piece,
           position: int) -> Iterator[tuple[int, int]]:
    """Yield the ticks of a piece, each with its due time by the store's
    clock.
    """
    plan = piece.plan
    begin = facts.by_store(max(piece.may.begin, facts.begin))
    end = facts.by_store(min(piece.may.end, facts.end))
    tick = plan.schedule.at_or_before(begin)
    if tick is not None and plan.spread:
        tick = plan.schedule.at_or_before(tick - 1)
    if tick is None:
        tick = plan.schedule.after(begin)
    while tick < end:
        yield tick, tick + plan.phase(tick, position)
        tick = plan.schedule.after(tick)


class Owners:
    """The owner of each object at each time, by the true ring of its job.

    The ring of a job consists of the members that have its schedule in force,
    or else of all members that have the job.
    """

    def __init__(self, facts: Facts):
        #: Returns the deadline for the claim of a due tick, if the owner reads
        #: the catalogue.
        self.deadline: Callable[[str, str, int], int] = (
            lambda job, name, since: FOREVER)
        self._facts = facts
        self._times = {at for at, _ in facts.rings}
        self._jobs = {one.name: one.jobs for one in facts.schedulers}
        self._readings = facts.readings
        self._schedulers = facts.schedulers
        self._prompt = facts.bounds.prompt
        self._members: dict[str, list[tuple[int, tuple[Entry, ...]]]] = {}
        self._ring = functools.cache(
            lambda points: ring.Ring(dict(points)) if points else None)
        self._known: dict[Pair, list[Entry | None]] = {}

    def _changes(self, job: str) -> list[tuple[int, tuple[Entry, ...]]]:
        """Return each change of the ring of a job, with its members after the
        change.
        """
        found = self._members.get(job)
        if found is None:
            found = self._members[job] = []
            in_force = self._facts.in_force[job]
            rings = self._facts.rings
            first = rings[0][0] if rings else FOREVER
            for at in sorted(self._times | {
                    at for at, _ in in_force if at > first}):
                entries = rings[_last_until(rings, at)][1]
                known = _last_until(in_force, at)
                members = self._having(
                    job, entries, in_force[known][1] if known >= 0 else None)
                if not found or found[-1][1] != members:
                    found.append((at, members))
        return found

    def _having(self, job: str, entries: tuple[Entry, ...],
                in_force: Job | None) -> tuple[Entry, ...]:
        texts = {one: mine.schedule_text() for one in entries
                 if (mine := self._jobs[one.process].get(job)) is not None}
        if in_force is not None:
            text = in_force.schedule_text()
            if text in texts.values():
                return tuple(one for one in texts if texts[one] == text)
        return tuple(texts)

    def _of(self, pair: Pair) -> list[Entry | None]:
        known = self._known.get(pair)
        if known is None:
            known = self._known[pair] = []
            for _, entries in self._changes(pair[0]):
                found = self._ring(tuple(
                    (one.identity, one.points) for one in entries))
                owner = found.owner_of(pair[1]) if found else None
                known.append(next((one for one in entries
                                   if one.identity == owner), None))
        return known

    def reading(self, pair: Pair, since: int, *,
                there: bool) -> Reading | None:
        """Return the first reading of a catalogue after *since* that the owner
        of the object made, and was able to record.

        :param there: whether the reading must contain the object, or must not
            contain it.
        """
        return next((
            reading for reading in self._since(pair[0], since)
            if (pair[1] in reading.objects) is there
            and self.identity_at(pair, reading.at) == reading.identity
            and self.deadline(*pair, reading.at)
            == reading.at + self._prompt), None)

    def instants(self, pair: Pair, since: int) -> list[int]:
        """Return the instants of all readings that may have recorded a new
        object.

        One of them is the first reading that certainly recorded it. Until the
        end of the bound for this record, a member that does not know yet that
        it is no longer the owner may be faster.
        """
        surely = self.reading(pair, since, there=True)
        return [reading.instant for reading in self._since(pair[0], since)
                if pair[1] in reading.objects
                and (surely is None or reading.at <= surely.at
                     or reading.at < surely.at + self._prompt
                     and reading.identity != surely.identity
                     and self._may_act_for(pair, reading))]

    def _may_act_for(self, pair: Pair, reading: Reading) -> bool:
        """Return whether the reader may have taken itself for the owner of an
        object by a ring that was replaced before the reading.
        """
        changes = self._changes(pair[0])
        index = _last_until(changes, reading.at)
        readers = [one for one in self._schedulers
                   if one.identity == reading.identity
                   and one.saw_ring(reading.at)]
        owners = self._of(pair)
        # The bound of the owner contains the usual delay of a view.
        while index > 0 and any(
                reading.at < self.aware(one, changes[index][0]) + self._prompt
                for one in readers):
            index -= 1
            owner = owners[index]
            if owner is not None and owner.identity == reading.identity:
                return True
        return False

    def _since(self, job: str, since: int) -> Iterator[Reading]:
        """Return the readings of a job from *since*, in the order of time."""
        readings = self._readings.get(job, [])
        return itertools.islice(
            readings, bisect.bisect_left(readings, since, key=_AT), None)

    def aware(self, one: Scheduler, change: int) -> int:
        """Return when a process was able to know a change of a job's ring."""
        if change in self._times:
            return one.aware(change)
        # A schedule came into force. Its members read this with the status of
        # the jobs.
        return change + self._facts.bounds.slack

    def identity_at(self, pair: Pair, at: int) -> str | None:
        index = _last_until(self._changes(pair[0]), at)
        owner = self._of(pair)[index] if index >= 0 else None
        return owner.identity if owner else None

    def spans(self, pair: Pair, since: int) -> Iterator[
            tuple[str, int, int]]:
        """Yield each process that owned the object after *since*, with the
        begin and the end of its ownership.
        """
        owners = self._of(pair)
        times = [at for at, _ in self._changes(pair[0])]
        begin: int | None = None
        for index, owner in enumerate(owners):
            until = times[index + 1] if index + 1 < len(owners) else FOREVER
            if begin is None:
                begin = times[index]
            following = (owners[index + 1]
                         if index + 1 < len(owners) else None)
            if (owner is not None and following is not None
                    and following.process == owner.process):
                continue
            if owner is not None and until > since:
                yield owner.process, begin, until
            begin = None


def _last_until(changes: Sequence[tuple[int, object]], at: int) -> int:
    """Return the index of the last of *changes* that is not after *at*."""
    return bisect.bisect_right(
        changes, at, key=operator.itemgetter(0)) - 1
