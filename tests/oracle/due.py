# SPDX-License-Identifier: Apache-2.0
"""Which ticks an object was due for, as the world knows it.

The life of an object is cut where its catalogue or its job changes. In each
piece one schedule holds, and its ticks are counted out one by one. When
exactly a change takes hold depends on when the catalogue was read; so a tick
near a change *may* be run, and all others *must* be decided::

    catalogue     absent | there                              | absent
    may be run           |--------------------------------------------|
    must be decided               |-------------------------|
                         ^ tick of its job: it is read
"""

import bisect
import dataclasses
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
from tests.oracle.facts import Span

_What = TypeVar('_What')
_AT = operator.attrgetter('at')


class Due(NamedTuple):
    """An object is due for a tick."""

    tick: int
    #: When, by true time.
    at: int
    #: The same by the store's clock.
    instant: int
    #: Until when it stays due; its schedule or listing changes then.
    until: int
    #: Whether it has to be decided, and not only may be.
    must: bool
    plan: due.Plan
    job: Job
    #: From when on the store knows it: it was read, or had to be.
    known: int
    #: The first instant for which it may be claimed: where its schedule was
    #: replaced the same tick may come twice, and runs once.
    first: int
    #: From when on its schedule holds.
    since: int
    #: The second time that it must be decided, if it was not the first time.
    again: 'Due | None' = None


@dataclasses.dataclass
class Piece:
    """A time in which one schedule of an object holds."""

    job: Job
    plan: due.Plan
    #: What comes due in this time may run.
    may: Span
    #: What comes due in this time must be decided.
    must: Span
    #: Ticks from before are not due: the object was not listed for them.
    listed: int
    #: From when on the store knows the object.
    known: int
    #: From when on the schedule of its job holds.
    since: int


def pieces(facts: Facts, owners: 'Owners', pair: Pair) -> Iterator[Piece]:
    """The life of an object in pieces, in the order of time."""
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
                # It stays as it is until the catalogue is read again.
                reading = owners.reading(
                    pair, gone, there=changes[index + 1].there)
                stays = FOREVER if reading is None else reading.at
            begin, end = max(since, came), min(until, gone)
            if begin >= min(until, stays):
                continue
            # The store compares the schedule of who claims.
            may_begin = max(begin - slack, since - EARLIEST)
            may_end = min(stays + slack, until + EARLIEST)
            listed = known = max(came, facts.started)
            if change.rule is not None or came > facts.begin:
                listed, known = _listed(
                    facts, owners, pair, job, listed, turned)
            if came > facts.begin:
                # It counts from the instant for which it was read, though it
                # came, or changed, while its catalogue was asked.
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
    """Whether an object that the store has listed got another schedule with
    the last of *changes*: perhaps it was gone, and nobody has read that.
    """
    *before, last = changes
    there = next((one for one in reversed(before) if one.there), None)
    if there is None or there.rule == last.rule:
        return False
    if before[-1].there:
        return True
    reading = owners.reading(pair, before[-1].at, there=False)
    return reading is None or reading.at >= last.at


def _listed(facts: Facts, owners: 'Owners', pair: Pair, job: Job,
            since: int, turned: bool) -> tuple[int, int]:
    """From when on an object that came surely counts: from the latest instant
    for which it was read, or from the tick for which it had to be. And when
    that was.

    :param turned: whether it had another schedule. Until its catalogue has
        answered that one holds, and settles what is due by it.
    """
    reading = owners.reading(pair, since, there=True)
    read = FOREVER if reading is None else reading.at
    begin = since
    if len(facts.ahead) > 1:
        # Who reads it may not know yet that the clock was set.
        begin += facts.bounds.slack
    tick = job.schedule.after(facts.by_store(begin) - 1)
    while (at := facts.comes(tick)) < min(read, facts.end):
        # Who owns it only later does not read it for this tick.
        if owners.deadline(*pair, at) == at + facts.bounds.prompt <= read:
            return at, at
        tick = job.schedule.after(tick)
    if reading is None:
        return FOREVER, FOREVER
    # Which of those who read it recorded it first is not known here.
    instant = max(map(facts.comes, owners.instants(pair, since)))
    return (instant if instant >= since and not turned else read), read


def _until_next(changes: Sequence[tuple[int, _What]]) -> Iterator[
        tuple[int, int, _What]]:
    """Each of *changes* with when it came and when the next one did."""
    for index, (at, what) in enumerate(changes):
        yield at, (changes[index + 1][0] if index + 1 < len(changes)
                   else FOREVER), what


def dues(facts: Facts, pieces_: Iterable[Piece], pair: Pair) -> list[Due]:
    """All that an object was due for in the pieces of its life, by tick."""
    position = ring.position_of(pair[1])
    found: dict[int, Due] = {}
    for piece in pieces_:
        for tick, instant in _ticks(facts, piece, position):
            at = facts.comes(instant)
            if not piece.may.begin <= at < piece.may.end:
                continue
            must = (piece.must.begin <= at < piece.must.end
                    # An object is listed for a tick of its job.
                    and (not piece.plan.spread
                         or facts.comes(tick) >= piece.listed))
            one = Due(tick, at, instant, piece.must.end, must, piece.plan,
                      piece.job, piece.known, instant, piece.since)
            known = found.get(tick)
            if known is None:
                found[tick] = one
            elif must and known.must:
                found[tick] = known._replace(again=one)
            elif must:
                found[tick] = one._replace(
                    first=min(instant, known.first))
    return [found[tick] for tick in sorted(found)]


def _ticks(facts: Facts, piece: Piece,
           position: int) -> Iterator[tuple[int, int]]:
    """The ticks of a piece, and when each is due by the store's clock."""
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
    """Whose an object was, by the true ring."""

    def __init__(self, facts: Facts):
        #: Until when an owner who can read must have claimed what is due.
        self.deadline: Callable[[str, str, int], int] = (
            lambda job, name, since: FOREVER)
        self._times = [at for at, _ in facts.rings]
        self._entries = [entries for _, entries in facts.rings]
        self._rings = [
            ring.Ring({one.identity: one.points for one in entries})
            if entries else None for entries in self._entries]
        self._readings = facts.readings
        self._prompt = facts.bounds.prompt
        self._known: dict[str, list[Entry | None]] = {}

    def _of(self, name: str) -> list[Entry | None]:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = []
            for found, entries in zip(
                    self._rings, self._entries, strict=True):
                owner = found.owner_of(name) if found else None
                known.append(next((one for one in entries
                                   if one.identity == owner), None))
        return known

    def reading(self, pair: Pair, since: int, *,
                there: bool) -> Reading | None:
        """The first one by the owner of an object after *since*, with the
        object in it or without, that the owner was able to record.
        """
        return next((
            reading for reading in self._since(pair[0], since)
            if (pair[1] in reading.objects) is there
            and self.identity_at(pair[1], reading.at) == reading.identity
            and self.deadline(*pair, reading.at)
            == reading.at + self._prompt), None)

    def instants(self, pair: Pair, since: int) -> list[int]:
        """For which an object that came may have been recorded: those of the
        readings up to the one that surely was.
        """
        surely = self.reading(pair, since, there=True)
        return [reading.instant for reading in self._since(pair[0], since)
                if pair[1] in reading.objects
                and (surely is None or reading.at <= surely.at)]

    def _since(self, job: str, since: int) -> Iterator[Reading]:
        """The readings of a job, which are in the order of time."""
        readings = self._readings.get(job, [])
        return itertools.islice(
            readings, bisect.bisect_left(readings, since, key=_AT), None)

    def identity_at(self, name: str, at: int) -> str | None:
        index = bisect.bisect_right(self._times, at) - 1
        owner = self._of(name)[index] if index >= 0 else None
        return owner.identity if owner else None

    def spans(self, name: str, since: int) -> Iterator[
            tuple[str, int, int]]:
        """Which process owned it from when until when, after *since*."""
        owners = self._of(name)
        begin: int | None = None
        for index, owner in enumerate(owners):
            until = (self._times[index + 1]
                     if index + 1 < len(owners) else FOREVER)
            if begin is None:
                begin = self._times[index]
            following = (owners[index + 1]
                         if index + 1 < len(owners) else None)
            if (owner is not None and following is not None
                    and following.process == owner.process):
                continue
            if owner is not None and until > since:
                yield owner.process, begin, until
            begin = None
