# SPDX-License-Identifier: Apache-2.0
"""Why an object did not run for the last tick that it was due for.

The reasons are a closed list: whatever the store, the tasks and the members
say, one of them is the answer, and each stands in the reference.
"""

import dataclasses
import enum
from collections.abc import Mapping

from distperiodic.core.claim import OPEN
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import Row
from distperiodic.core.schedule import Instant


class Reason(enum.StrEnum):
    """The answers, the one that is not a reason first."""

    RAN = 'ran'
    #: Nothing of it is claimed.
    JOB_UNKNOWN = 'job unknown'
    MEMBER_JOB = 'job of every member'
    DISABLED = 'job disabled'
    NEVER_SCHEDULED = 'job never scheduled'
    OBJECT_UNKNOWN = 'object unknown'
    NOT_LISTED = 'not in the catalogue'
    NOT_DUE_YET = 'not due yet'
    #: It was decided that it does not run.
    PASSED_OVER = 'passed over'
    LOST = 'lost'
    SKIPPED_BY_OVERLAP = 'skipped: overlap'
    SKIPPED_BY_PAUSE = 'skipped: paused'
    CANCELLED = 'cancelled'
    DEAD = 'dead'
    #: It is claimed.
    WAITS_FOR_WORKER = 'waits for a worker'
    WAITS_FOR_SWEEP = 'waits for a sweep'
    WAITS_FOR_RETRY = 'waits for a retry'
    RUNNING = 'still running'
    HOLDER_GONE = 'holder gone'
    LEASE_ENDED = 'lease ended'
    #: It is due, and nobody has claimed it yet.
    PAUSED = 'job paused'
    NOT_LATE_YET = 'not late yet'
    NO_SCHEDULER = 'no scheduler'
    NOBODY_CLAIMS = 'nobody claims'
    LEFT_BEHIND = 'left behind'
    #: Of an earlier tick.
    SUPERSEDED = 'superseded'
    OTHER_SCHEDULE = 'other schedule'
    ONE_OF_SEVERAL = 'one of several'
    PRUNED = 'history pruned'


#: It ran, or goes on its way: nobody need do anything.
FINE = frozenset({
    Reason.RAN, Reason.MEMBER_JOB, Reason.NOT_DUE_YET, Reason.NOT_LATE_YET,
    Reason.RUNNING, Reason.WAITS_FOR_WORKER, Reason.WAITS_FOR_SWEEP,
    Reason.WAITS_FOR_RETRY})


_SKIPPED = {SkippedBy.MISFIRE: Reason.PASSED_OVER,
            SkippedBy.LOST: Reason.LOST,
            SkippedBy.OVERLAP: Reason.SKIPPED_BY_OVERLAP,
            SkippedBy.PAUSE: Reason.SKIPPED_BY_PAUSE}


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where the claim of an object stands."""

    tick: Instant
    #: The newest tick that nobody may claim any more. Before *tick*: that
    #: one was triggered, and is none of the schedule.
    settled: Instant
    #: Why it was skipped last; None: never.
    skipped_by: SkippedBy | None
    state: State
    #: Who holds its lease, until when; empty and None: nobody does.
    holder: str = ''
    until: Instant | None = None
    #: The instant from which its schedule counts. None: it is not listed.
    since: Instant | None = None

    def row(self, key: str, position: int) -> Row:
        """The object *key* at *position*, to be judged."""
        return Row(key, position, self.settled,
                   ALWAYS if self.since is None else self.since)

    @property
    def open(self) -> bool:
        return self.state in OPEN

    @property
    def skipped(self) -> bool:
        """Whether its last tick was skipped."""
        return self.settled > self.tick


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a job and an object; None: nobody said."""

    #: The store's clock.
    now: Instant
    #: Whether the store knows the job, and whether the tasks do.
    stored: bool
    defined: bool | None = None
    enabled: bool = True
    of_members: bool = False
    paused: bool = False
    #: Whether the catalogue lists the object now.
    listed: bool | None = None
    claim: Standing | None = None
    #: The last tick that it was due for, as its schedule says.
    due: Instant | None = None
    #: The first one that was not decided yet.
    undecided: Instant | None = None
    #: The newest tick that anything of the job was claimed or skipped for.
    newest: Instant | None = None
    #: Microseconds after a tick at which others than the owner claim it.
    late_after: int = 0
    #: The processes that are there, and how many of them schedule.
    alive: frozenset[str] | None = None
    schedulers: int | None = None


def reason_of(facts: Facts) -> Reason:
    """Why the object did not run for its last tick, or that it ran."""
    if not facts.stored and not facts.defined:
        return Reason.JOB_UNKNOWN
    if facts.of_members:
        return Reason.MEMBER_JOB
    claim = facts.claim
    if claim is None:
        return _unclaimed(facts)
    due, settled = facts.due, claim.settled
    if due is None:
        # Nobody said what should have been: what was, then.
        settled = max(settled, claim.tick)
        due = max(settled, facts.newest or settled)
    if claim.skipped and settled >= due and claim.skipped_by:
        return _SKIPPED[claim.skipped_by]
    if claim.open:
        return _open(claim, facts)
    if settled >= due:
        if claim.state in (State.DONE, State.COMMITTED):
            return Reason.RAN
        if claim.state is State.DEAD:
            return Reason.DEAD
        if claim.state is State.LISTED:
            return _kept_from_it(facts) or Reason.NOT_DUE_YET
        return Reason.CANCELLED
    return _undecided(due, facts)


def _kept_from_it(facts: Facts) -> Reason | None:
    """Why nobody would claim it, whenever it is due; None: nothing does."""
    if facts.listed is False:
        return Reason.NOT_LISTED
    if not facts.enabled:
        return Reason.DISABLED
    if facts.paused:
        return Reason.PAUSED
    return None


def _unclaimed(facts: Facts) -> Reason:
    """Nobody ever claimed it."""
    kept = _kept_from_it(facts)
    if kept is not None:
        return kept
    if not facts.stored:
        return Reason.NEVER_SCHEDULED
    # It is known from the first tick after it came into the catalogue.
    return Reason.NOT_DUE_YET if facts.listed else Reason.OBJECT_UNKNOWN


def _open(claim: Standing, facts: Facts) -> Reason:
    """Its claim has not come to its end."""
    if claim.until is None:
        # No lease of it is known.
        return Reason.WAITS_FOR_SWEEP
    over = claim.until <= facts.now
    if claim.state is State.RETRY:
        return Reason.WAITS_FOR_SWEEP if over else Reason.WAITS_FOR_RETRY
    if not claim.holder:
        return Reason.WAITS_FOR_SWEEP
    if over:
        return Reason.LEASE_ENDED
    if facts.alive is not None and claim.holder not in facts.alive:
        return Reason.HOLDER_GONE
    return (Reason.RUNNING if claim.state is State.RUNNING
            else Reason.WAITS_FOR_WORKER)


def _undecided(due: Instant, facts: Facts) -> Reason:
    """It is due, and was neither claimed nor skipped."""
    kept = _kept_from_it(facts)
    if kept is not None:
        return kept
    if facts.schedulers == 0:
        return Reason.NO_SCHEDULER
    since = due if facts.undecided is None else min(due, facts.undecided)
    if facts.now <= since + facts.late_after:
        return Reason.NOT_LATE_YET
    if facts.newest is not None and facts.newest >= due:
        return Reason.LEFT_BEHIND
    return Reason.NOBODY_CLAIMS


@dataclasses.dataclass(frozen=True)
class Past:
    """What is known of an earlier tick of an object.

    The store keeps the last two ticks of each object, its failures, and of
    each tick the number of objects by what became of them.
    """

    tick: Instant
    claim: Standing
    #: The tick that it was claimed for before. None: there is none.
    previous: Instant | None
    #: When a run of it was last done. None: never.
    served: Instant | None
    #: Whether a run of it failed for good for this tick.
    failed: bool
    #: Number of objects of this tick, by what became of them.
    counts: Mapping[Reason, int]
    #: The first instant that the history can tell of.
    begins: Instant = ALWAYS
    #: Since when the schedule holds that says it was due.
    schedule_since: Instant = ALWAYS


_CLAIMED = frozenset({Reason.RAN, Reason.SUPERSEDED, Reason.CANCELLED,
                      Reason.DEAD})


def reasons_of(past: Past) -> tuple[Reason, ...]:
    """What may have become of an object for an earlier tick, the most frequent
    first. One reason is certain, but for RAN: of a tick before its last two
    the numbers do not tell an object that nobody claimed then.
    """
    tick, claim = past.tick, past.claim
    if past.failed:
        return (Reason.DEAD,)
    if tick < past.begins:
        return (Reason.PRUNED,)
    if claim.since is None or tick < claim.since:
        return (Reason.NOT_LISTED,)
    if tick < past.schedule_since:
        return (Reason.OTHER_SCHEDULE,)
    possible = {reason for reason, number in past.counts.items() if number}
    if tick in (claim.tick, past.previous):
        possible &= _CLAIMED
    elif past.previous is None or tick > past.previous:
        # It was claimed for no tick in between.
        possible -= _CLAIMED
    if past.served is None or past.served < tick:
        possible.discard(Reason.RAN)
    if not possible:
        return (Reason.NOBODY_CLAIMS,)
    return tuple(sorted(
        possible, key=lambda reason: (-past.counts[reason], reason)))
