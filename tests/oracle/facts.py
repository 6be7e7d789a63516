# SPDX-License-Identifier: Apache-2.0
"""What a world knows of itself; times are microseconds of true time."""

import bisect
import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core import schedule
from distperiodic.core.job import Job

SECOND = schedule.SECOND
FOREVER = 1 << 62

#: (job, object)
Pair = tuple[str, str]


class Span(NamedTuple):
    """From *begin* until just before *end*."""

    begin: int
    end: int
    why: str = ''


class Skip(NamedTuple):
    """A decision that an object does not run for some ticks."""

    #: When it was committed.
    at: int
    job: str
    object: str
    #: The watermark before; the ticks after that one are given up.
    before: int
    #: The last tick that is given up.
    until: int
    #: misfire, overlap, pause or lost
    by: str
    #: As how many ticks it was counted. None: not known of one object.
    counted: int | None = None


class Listed(NamedTuple):
    """A change of what a catalogue gives for one object."""

    at: int
    #: Whether the catalogue gives it from then on.
    there: bool
    #: Its own schedule from then on. None: it follows its job's.
    rule: schedule.Schedule | None = None


class Reading(NamedTuple):
    """An answer of a catalogue."""

    at: int
    #: The member that read it, by its name on the ring.
    identity: str
    #: The instant for which it was read, by the clock of the store.
    instant: int
    objects: frozenset[str]


@dataclasses.dataclass
class Scheduler:
    """One scheduler process."""

    name: str
    identity: str
    #: What it was started with.
    jobs: Mapping[str, Job]
    #: When it first knew that it is a member. None: it never did.
    entered: int | None = None
    #: When it was killed or began to stop.
    left: int = FOREVER
    #: Times in which it could not claim: it stood still, or the store did not
    #: answer it.
    unable: list[Span] = dataclasses.field(default_factory=list)
    #: Times in which its catalogues did not answer.
    unread: list[Span] = dataclasses.field(default_factory=list)
    #: Times in which it did not see who came and went.
    unaware: list[Span] = dataclasses.field(default_factory=list)

    def aware(self, change: int) -> int:
        """When it could see a change of the ring."""
        return max((span.end for span in self.unaware
                    if span.begin <= change < span.end), default=change)


class Entry(NamedTuple):
    """A member of the ring."""

    process: str
    identity: str
    points: int


class Bounds(NamedTuple):
    """How long things may take, in microseconds."""

    #: From the moment when a member's part is its own to the claim of what is
    #: due of it.
    prompt: int
    #: From the moment when any member may claim to the claim of what the
    #: owner leaves undone.
    late: int
    #: From one look at what is paused, and at what waits for a run that
    #: somebody else has, to the next.
    sweep: int
    #: By how much a decision may lie past the end of a grace, and a change
    #: may still be unknown.
    slack: int


@dataclasses.dataclass
class Facts:
    """All that the oracle needs to know."""

    begin: int
    end: int
    bounds: Bounds
    schedulers: list[Scheduler] = dataclasses.field(default_factory=list)
    #: Each change of the ring: who stands in it from then on.
    rings: list[tuple[int, tuple[Entry, ...]]] = dataclasses.field(
        default_factory=list)
    #: Each change of a job: what is in force from then on.
    in_force: dict[str, list[tuple[int, Job | None]]] = (
        dataclasses.field(default_factory=dict))
    listings: dict[Pair, list[Listed]] = dataclasses.field(
        default_factory=dict)
    readings: dict[str, list[Reading]] = dataclasses.field(
        default_factory=dict)
    #: Job to the times in which it was paused.
    pauses: dict[str, list[Span]] = dataclasses.field(default_factory=dict)
    #: (job, tick) that an operator triggered.
    triggered: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    #: Each change of the store's clock: how far it is ahead from then on.
    ahead: list[tuple[int, int]] = dataclasses.field(
        default_factory=lambda: [(-FOREVER, 0)])

    @property
    def started(self) -> int:
        """When the first scheduler knew that it is a member."""
        return min((one.entered for one in self.schedulers
                    if one.entered is not None), default=FOREVER)

    def by_store(self, at: int) -> int:
        """What the store's clock shows at *at*."""
        index = bisect.bisect_right(self.ahead, (at, FOREVER)) - 1
        return at + self.ahead[index][1]

    def comes(self, instant: int) -> int:
        """When the store's clock first shows *instant*."""
        for (begin, ahead), (end, _) in zip(
                self.ahead, [*self.ahead[1:], (FOREVER, 0)], strict=True):
            if instant - ahead < end:
                return max(begin, instant - ahead)
        raise AssertionError('a clock shows every instant in time')

def within(spans: list[Span], begin: int, end: int) -> bool:
    """Whether one of *spans* touches the time from *begin* to *end*."""
    return any(span.begin <= end and begin < span.end for span in spans)


def without(begin: int, end: int, spans: list[Span]) -> list[Span]:
    """What is left of a time without *spans*."""
    left = []
    for span in sorted(spans):
        if span.end <= begin:
            continue
        if span.begin >= end:
            break
        if span.begin > begin:
            left.append(Span(begin, span.begin))
        begin = max(begin, span.end)
    if begin < end:
        left.append(Span(begin, end))
    return left
