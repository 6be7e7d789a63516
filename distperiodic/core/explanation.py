# SPDX-License-Identifier: Apache-2.0
"""Choice of the reason why an object did not run, from the known facts."""

import dataclasses
from collections.abc import Mapping

from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import SUCCEEDED
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import Row
from distperiodic.core.outcomes import ENDED
from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.core.outcomes import REQUEUED
from distperiodic.core.outcomes import SKIPPED
from distperiodic.core.reason import Reason
from distperiodic.core.schedule import Instant
from distperiodic.core.tick_exceptions import ObjectPast
from distperiodic.core.tick_exceptions import TickException

_REASONS = {name: outcome.reason for name, outcome in OUTCOMES.items()
            if outcome.reason is not None}
# Reasons of objects that were claimed for the tick.
_CLAIMED = frozenset(_REASONS[name] for name in ENDED.values()
                     if name in _REASONS)


@dataclasses.dataclass(frozen=True)
class ClaimStanding:
    """State of the claim of an object."""

    tick: Instant
    #: Watermark of the object. If it is before *tick*, an operator triggered
    #: *tick* outside the schedule.
    settled: Instant
    #: Reason for the last skip. None means that no tick was skipped.
    skipped_by: SkippedBy | None
    state: State
    #: Holder of the lease. Empty means that the lease has no holder, or that
    #: there is no lease.
    holder: str = ''
    #: Time at which the lease expires. None means that there is no lease.
    until: Instant | None = None
    #: Instant from which the schedule of the object applies. None means that
    #: the object is not listed.
    since: Instant | None = None
    attributes: Attributes = PLAIN
    #: Instant of the reading of the catalogue that last delisted the object.
    #: None means that the object was never delisted.
    delisted: Instant | None = None

    def row(self, key: str, position: int) -> Row:
        """Return the row of the object *key* at *position*."""
        return Row(key, position, self.settled,
                   ALWAYS if self.since is None else self.since,
                   self.attributes)

    @property
    def open(self) -> bool:
        return self.state in OPEN

    @property
    def skipped(self) -> bool:
        """True if the last tick of the object was skipped."""
        return self.settled > self.tick


@dataclasses.dataclass(frozen=True)
class ObjectFacts:
    """Known facts about a job and an object.

    None means that a fact is unknown.
    """

    #: Time of the store's clock.
    now: Instant
    #: True if the store has a row for the job.
    stored: bool
    #: True if the code of the service defines the job.
    defined: bool | None = None
    enabled: bool = True
    #: True if the job runs on every scheduler, without claims in the store.
    of_members: bool = False
    paused: bool = False
    #: True if the object itself is paused.
    object_paused: bool = False
    #: True if the catalogue lists the object now.
    listed: bool | None = None
    #: None means that the store has no row of the object.
    claim: ClaimStanding | None = None
    #: The last tick for which the object was due by its schedule.
    due: Instant | None = None
    #: Instant at which the object is due for its first undecided tick.
    undecided: Instant | None = None
    #: The newest tick for which any object of the job was claimed or skipped.
    newest: Instant | None = None
    #: Microseconds after the due time of an object, after which members other
    #: than its owner may claim it.
    late_after: int = 0
    #: Holder names of the live processes.
    alive: frozenset[str] | None = None
    #: Number of live schedulers.
    schedulers: int | None = None


def reason_of(facts: ObjectFacts) -> Reason:
    """Return the reason why the object did not run for its last due tick.

    The result is RAN if the object ran.
    """
    if not facts.stored and not facts.defined:
        return Reason.JOB_UNKNOWN
    if facts.of_members:
        return Reason.MEMBER_JOB
    claim = facts.claim
    if claim is None:
        return _unclaimed(facts)
    due, settled = facts.due, claim.settled
    if due is None:
        # The schedule of the object is unknown. The newest recorded tick of
        # the job takes the place of the last due tick.
        settled = max(settled, claim.tick)
        due = max(settled, facts.newest or settled)
    if claim.skipped and settled >= due and claim.skipped_by:
        return _REASONS[SKIPPED[claim.skipped_by]]
    if claim.open:
        return _open(claim, facts)
    if settled >= due:
        if claim.state in SUCCEEDED:
            return Reason.RAN
        if claim.state is State.LISTED:
            return _kept_from_it(facts) or Reason.NOT_DUE_YET
        return _of_end(claim.state)
    return _undecided(due, facts)


def _of_end(state: State) -> Reason:
    """Return the reason for an object whose claim ended in *state*."""
    return _REASONS.get(ENDED[state], Reason.CANCELLED)


def _kept_from_it(facts: ObjectFacts) -> Reason | None:
    """Return a reason that prevents every claim of the object.

    None means that there is no such reason.
    """
    if facts.listed is False:
        return Reason.NOT_LISTED
    if not facts.enabled:
        return Reason.DISABLED
    if facts.paused:
        return Reason.PAUSED
    if facts.object_paused:
        return Reason.OBJECT_PAUSED
    return None


def _unclaimed(facts: ObjectFacts) -> Reason:
    """Return the reason for an object that has no row in the store."""
    kept = _kept_from_it(facts)
    if kept is not None:
        return kept
    if not facts.stored:
        return Reason.NEVER_SCHEDULED
    # The store has no row of the object. The row is added when a scheduler
    # first reads a catalogue that lists the object.
    return Reason.NOT_DUE_YET if facts.listed else Reason.OBJECT_UNKNOWN


def _open(claim: ClaimStanding, facts: ObjectFacts) -> Reason:
    """Return the reason for an object with an open claim."""
    if claim.until is None:
        # The lease of the claim is unknown.
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


def _undecided(due: Instant, facts: ObjectFacts) -> Reason:
    """Return the reason for an object that is due but undecided."""
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
    """Known facts about an earlier tick of an object.

    The store keeps the last two claimed ticks of each object, the failures of
    each object, and for each tick its exceptions and the number of objects by
    outcome.
    """

    tick: Instant
    claim: ClaimStanding
    #: The tick of the claim before the current claim. None means that there
    #: was only one claim.
    previous: Instant | None
    #: Time at which a run of the object last succeeded. None means never.
    served: Instant | None
    #: Number of recorded runs of the object for this tick that failed for
    #: good.
    failed: int
    #: Number of objects of this tick, by outcome.
    counts: Mapping[Reason, int]
    #: First instant that the history covers.
    begins: Instant = ALWAYS
    #: First instant from which on no row of an object that was listed was
    #: deleted.
    rows_begin: Instant = ALWAYS
    #: Instant since which the current schedule has been in force.
    schedule_since: Instant = ALWAYS
    exceptions: ObjectPast = ObjectPast()

    @property
    def unknown(self) -> int:
        """Number of exceptions of the tick whose objects are unknown."""
        return sum(number for name, number in self.exceptions.unknown.items()
                   if name != LATE)

    @property
    def outcome(self) -> TickException | None:
        """The exception that tells why the object did not run.

        A dead object that an operator has requeued may have run afterwards.
        None means that there is no such exception.
        """
        requeued = self.exceptions.number(REQUEUED)
        return next((
            one for one in reversed(self.exceptions.own)
            if one.outcome in _REASONS and (
                _REASONS[one.outcome] is not Reason.DEAD
                or self.exceptions.number(one.outcome) > requeued)), None)


def reasons_of(past: Past) -> tuple[Reason, ...]:
    """Return the possible outcomes of an object for an earlier tick.

    If the result has only one outcome, this outcome is certain. The result has
    several outcomes only if the ids of some exceptions are not kept. The
    outcome that is most frequent among the objects of the tick comes first.
    """
    tick, recorded = past.tick, past.exceptions
    reason, found = None, past.outcome
    if past.failed > recorded.number(REQUEUED):
        reason = Reason.DEAD
    elif found is not None and (
            found.tick == tick or tick >= past.schedule_since):
        reason = _REASONS[found.outcome]
    if reason is Reason.DEAD and recorded.unknown[REQUEUED]:
        return Reason.DEAD, Reason.RAN
    if reason is not None:
        return (reason,)
    if tick < past.begins:
        return (Reason.PRUNED,)
    unlisted = _unlisted(past)
    if unlisted is not None:
        return (unlisted,)
    if tick < past.schedule_since:
        return (Reason.OTHER_SCHEDULE,)
    possible = {_REASONS[name] for name, number in recorded.unknown.items()
                if number and name in _REASONS}
    if past.counts.get(Reason.RAN):
        possible.add(Reason.RAN)
    if tick in (past.claim.tick, past.previous):
        possible &= _CLAIMED
    elif past.previous is None or tick > past.previous:
        # The tick is between the last two claimed ticks of the object or after
        # them, so the object was not claimed for it.
        possible -= _CLAIMED
    if past.served is None or past.served < tick - EARLIEST:
        possible.discard(Reason.RAN)
    late = recorded.last(LATE) is not None
    if late:
        # A run of the object was started.
        possible &= _CLAIMED
    if not possible:
        return (Reason.NOBODY_CLAIMS,)
    if late and possible == {Reason.RAN}:
        return (Reason.RAN_LATE,)
    return tuple(sorted(
        possible, key=lambda reason: (-past.counts.get(reason, 0), reason)))


def reason_in_row(claim: ClaimStanding, tick: Instant) -> Reason | None:
    """Return the outcome of *tick* that the row of an object has.

    None means that the tick has no outcome yet, or that the row does not have
    it; see :func:`reasons_of`.
    """
    if tick == claim.tick and claim.state is not State.LISTED:
        if claim.open:
            return (Reason.RUNNING if claim.state is State.RUNNING
                    else Reason.WAITS_FOR_RETRY if claim.state is State.RETRY
                    else Reason.WAITS_FOR_WORKER)
        if claim.state in SUCCEEDED:
            return Reason.RAN
        return _of_end(claim.state)
    if (claim.skipped and tick == claim.settled and claim.skipped_by
            and claim.since is not None and tick >= claim.since):
        return _REASONS[SKIPPED[claim.skipped_by]]
    return None


def _unlisted(past: Past) -> Reason | None:
    """Return a reason for a tick before the object's current listing.

    The row of an object has only its last listing. None means that the tick is
    not before it.
    """
    tick, claim = past.tick, past.claim
    claimed = [past.previous, None if claim.state is State.LISTED
               else claim.tick]
    if tick in claimed:
        return None
    if claim.since is not None:
        if tick >= claim.since:
            return None
        earlier = claim.delisted is not None or any(
            one is not None and one < claim.since for one in claimed)
    else:
        earlier = claim.delisted is None or tick <= claim.delisted
    return (Reason.NOT_RECORDED if earlier or tick < past.rows_begin
            else Reason.NOT_LISTED)
