# SPDX-License-Identifier: Apache-2.0
"""The record of a world; times are microseconds of true time."""

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

    #: Time of the commit.
    at: int
    job: str
    object: str
    #: The watermark before the skip. The skip gives up the ticks after this
    #: watermark.
    before: int
    #: The last tick that the skip gives up.
    until: int
    #: misfire, overlap, pause or lost
    by: str
    #: Number of ticks that the product counted for the skip. None means that
    #: the number for a single object is unknown.
    counted: int | None = None


class Listed(NamedTuple):
    """A change to an object's entry in the catalogue of its job."""

    at: int
    #: True if the catalogue lists the object after the change.
    there: bool
    #: The object's own schedule after the change. None means the job's
    #: schedule.
    rule: schedule.Schedule | None = None


class Reading(NamedTuple):
    """The result of one catalogue call."""

    #: Time at which the call returned.
    at: int
    #: The member that read the catalogue, by its name on the ring.
    identity: str
    #: The instant from which new objects in the result count as listed, by the
    #: clock of the store.
    instant: int
    objects: frozenset[str]


@dataclasses.dataclass
class Scheduler:
    """One scheduler process."""

    name: str
    identity: str
    #: The jobs that the process was started with.
    jobs: Mapping[str, Job]
    #: Time at which the process first knew that it is a member. None means
    #: never.
    entered: int | None = None
    #: Time at which the process was killed or began to stop.
    left: int = FOREVER
    #: Intervals in which the process could not claim: it was stalled, it was
    #: not a member, or the store did not answer it.
    unable: list[Span] = dataclasses.field(default_factory=list)
    #: Intervals in which its catalogue methods did not return.
    unread: list[Span] = dataclasses.field(default_factory=list)
    #: Intervals in which the process could not detect that members joined or
    #: left.
    unaware: list[Span] = dataclasses.field(default_factory=list)
    #: Times of changes of the ring, each with the time at which the process
    #: saw the change, less the delay that the bound of the owner contains.
    #: None means that it was able to see each change at once.
    seen: list[tuple[int, int]] | None = None

    def saw_ring(self, at: int) -> bool:
        """Return whether the process may act at *at* by a ring that it saw."""
        first = self.entered if self.seen is None else min(
            (seen for _, seen in self.seen), default=None)
        return first is not None and first <= at < self.left

    def aware(self, change: int) -> int:
        """Return when the process was able to know a change of the ring."""
        # Who has seen a later change knows the earlier ones, too.
        seen = change if self.seen is None else max(change, min(
            (seen for at, seen in self.seen if at >= change), default=FOREVER))
        return max((span.end for span in self.unaware
                    if span.begin <= change < span.end), default=seen)


class Entry(NamedTuple):
    """A member of the ring."""

    process: str
    identity: str
    points: int


class Bounds(NamedTuple):
    """Limits on delays, in microseconds."""

    #: Maximum time from the moment when a member owns an object to its claim
    #: of a due tick of this object.
    prompt: int
    #: Maximum time from the moment when some member is able to claim, to its
    #: claim of a tick that the owner leaves unclaimed.
    late: int
    #: Maximum time between two checks of a paused job, and between two checks
    #: of a tick that waits for a run.
    sweep: int
    #: Maximum time between the instant at which a tick is given up by its
    #: misfire policy, and its claim or its skip. Also the maximum time for
    #: which a change may be unknown.
    slack: int


@dataclasses.dataclass
class Facts:
    """The complete input of the oracle."""

    begin: int
    end: int
    bounds: Bounds
    schedulers: list[Scheduler] = dataclasses.field(default_factory=list)
    #: Each change of the ring, with the entries of the ring after the change.
    rings: list[tuple[int, tuple[Entry, ...]]] = dataclasses.field(
        default_factory=list)
    #: Each change of a job, with the job that is in force after the change.
    in_force: dict[str, list[tuple[int, Job | None]]] = (
        dataclasses.field(default_factory=dict))
    listings: dict[Pair, list[Listed]] = dataclasses.field(
        default_factory=dict)
    readings: dict[str, list[Reading]] = dataclasses.field(
        default_factory=dict)
    #: Intervals in which each job was paused.
    pauses: dict[str, list[Span]] = dataclasses.field(default_factory=dict)
    #: (job, tick) pairs that an operator triggered.
    triggered: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    #: Each change of the store's clock, with its lead over true time after the
    #: change.
    ahead: list[tuple[int, int]] = dataclasses.field(
        default_factory=lambda: [(-FOREVER, 0)])

    def started(self, job: str) -> int:
        """Return when the first scheduler with a job knew that it is a
        member.
        """
        return min((one.entered for one in self.schedulers
                    if one.entered is not None and job in one.jobs),
                   default=FOREVER)

    def by_store(self, at: int) -> int:
        """Return the time that the store's clock shows at *at*."""
        index = bisect.bisect_right(self.ahead, (at, FOREVER)) - 1
        return at + self.ahead[index][1]

    def comes(self, instant: int) -> int:
        """Return when the store's clock first shows *instant*."""
        for (begin, ahead), (end, _) in zip(
                self.ahead, [*self.ahead[1:], (FOREVER, 0)], strict=True):
            if instant - ahead < end:
                return max(begin, instant - ahead)
        raise AssertionError('a clock shows every instant in time')

def within(spans: list[Span], begin: int, end: int) -> bool:
    """Return whether one of *spans* overlaps the time from *begin* to
    *end*.
    """
    return any(span.begin <= end and begin < span.end for span in spans)


def without(begin: int, end: int, spans: list[Span]) -> list[Span]:
    """Return the parts of a time that no span of *spans* covers."""
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
