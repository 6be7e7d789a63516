# SPDX-License-Identifier: Apache-2.0
"""Requests to claim or to skip objects for a tick and to take over leases, and
the decision about each object of a claim.

All stores decide with :func:`decide`. A store in a database also has
statements that claim many objects at once, without reading their rows. These
statements claim only objects for which the decision is CLAIM or SUPERSEDE.
"""

import enum
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core.claim import MOVES
from distperiodic.core.claim import UNBOUNDED
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import Move
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.due import ALWAYS
from distperiodic.core.schedule import Instant

_SUPERSEDED_FROM = MOVES[Move.SUPERSEDE][0]
_CLAIMED_FROM = MOVES[Move.CLAIM][0]
_COUNTED_FROM = MOVES[Move.COUNT][0]


class KnownSchedule(NamedTuple):
    """The schedule of a job, as a member knows it.

    It is in force if the store has recorded the same text, and no other
    schedule has been in force after the given instant.
    """

    #: Text of the schedule. Empty means that any schedule may be in force.
    text: str
    #: Instant since which the schedule has been in force. None means any
    #: instant.
    since: Instant | None


ANY_SCHEDULE = KnownSchedule('', None)


class NewLease(NamedTuple):
    """A lease that a call creates."""

    #: Name of the lease. No other lease ever has this name.
    id: str
    holder: str
    #: Seconds until the lease expires.
    seconds: float

    def of(self, job: str, tick: Instant) -> HeldLease:
        """Return the lease, once it holds claims of *job* for *tick*."""
        return HeldLease(self.id, job, tick)

    def parts(self) -> 'Iterator[NewLease]':
        """Yield the leases of a call that may create several.

        Their names are ``<id>.0``, ``<id>.1``...
        """
        return (self._replace(id=f'{self.id}.{n}') for n in itertools.count())


class ClaimRequest(NamedTuple):
    """Request to claim all *objects* whose watermark is before *tick*.

    The store compares *until* and *due_at* with its own clock. It claims no
    object after *until*. A store that members share claims no object earlier
    than :data:`~distperiodic.core.claim.EARLIEST` microseconds before
    *due_at*.
    """

    job: str
    tick: Instant
    objects: Sequence[str]
    #: Applies to an object with a claim for an earlier tick whose run was not
    #: started. True voids this claim, and claims the object for *tick*. False
    #: reports the object as waiting, and does not claim it.
    supersede: bool
    #: An object whose watermark is earlier is reported as behind and not
    #: claimed.
    min_watermark: Instant = ALWAYS
    #: True means that an object has a tick at the instant at which it was
    #: listed. If that tick is earlier than *tick* and is not settled, the
    #: object is reported as behind and not claimed.
    listing_is_tick: bool = False
    #: Maximum number of attempts per tick. A claim whose last attempt is lost
    #: becomes dead. If an object has used all attempts of a tick without
    #: success, each later tick has only one attempt, until a run of the object
    #: succeeds. If *tick* supersedes an earlier claim, the attempts of that
    #: claim also count for *tick*.
    max_attempts: int = UNBOUNDED
    #: Text of the schedule to which *tick* belongs. Empty means the schedule
    #: of the job. Objects with another recorded schedule are left out.
    rule: str = ''
    #: If this is not the schedule of the job in force, no object is claimed.
    schedule: KnownSchedule = ANY_SCHEDULE
    #: Instant at which the last of *objects* is due for the tick. None means
    #: *tick*.
    due_at: Instant | None = None
    #: Last instant at which the tick may be claimed. None means no limit.
    until: Instant | None = None

    @property
    def claimable_from(self) -> Instant:
        """Instant from which all *objects* may be claimed."""
        return self.tick if self.due_at is None else self.due_at

    @property
    def min_listing(self) -> Instant:
        """An object that was listed before this instant is behind, unless its
        watermark is at this instant or later.
        """
        return self.tick if self.listing_is_tick else ALWAYS


class SkipRequest(NamedTuple):
    """Request to record that *objects* do not run for *tick*.

    A store that members share compares *due_at* with its own clock, as for a
    :class:`ClaimRequest`.
    """

    job: str
    tick: Instant
    objects: Sequence[str]
    #: Member that requests the skip.
    holder: str
    #: Kind of reason.
    by: SkippedBy
    #: Reason in words, for the history.
    reason: str
    #: Function that receives the watermark of an object, and returns the
    #: number of ticks between it and *tick*. The history counts these ticks as
    #: skipped together with *tick*. None means that there are no such ticks.
    missed: Callable[[Instant], int] | None = None
    #: If this is not the schedule of the job in force, no object is skipped.
    schedule: KnownSchedule = ANY_SCHEDULE
    #: Instant at which the last of *objects* is due for the tick. None means
    #: *tick*.
    due_at: Instant | None = None

    @property
    def claimable_from(self) -> Instant:
        """Instant from which all *objects* may be skipped."""
        return self.tick if self.due_at is None else self.due_at


class TakeOverRequest(NamedTuple):
    """Request to take over expired leases, and leases whose holder is gone."""

    #: Jobs whose leases may be taken over.
    jobs: Sequence[str]
    #: Holders that are known to have left the group.
    gone: Sequence[str]
    #: Maximum number of leases.
    limit: int
    #: Seconds from the last renewal of a lease until the lease is taken over
    #: from a holder that is gone. The delay is needed because the holder may
    #: be alive, and only cut off from the other members. To compute the time
    #: of the last renewal, the store assumes that the renewal extended the
    #: lease by the seconds of the new lease.
    silence_timeout: float = 0.0
    #: Seconds for which a retry that is due is left to another process.
    retry_after: float = 0.0


class Decision(enum.Enum):
    """Effect of a claim request on one object."""

    __hash__ = object.__hash__

    #: Nothing: an earlier call with this lease has claimed the object.
    HELD = 'held'
    #: Nothing: the store does not list the object.
    UNLISTED = 'unlisted'
    #: Nothing: the tick of the object is settled, or the object has another
    #: schedule.
    SETTLED = 'settled'
    #: Nothing: the object has an earlier tick that is not settled.
    BEHIND = 'behind'
    #: Claim the object.
    CLAIM = 'claim'
    #: Count the end of the last run in the history, and claim the object.
    COUNT = 'count'
    #: Void the claim for an earlier tick, and claim the object.
    SUPERSEDE = 'supersede'
    #: Nothing: the claim for an earlier tick waits for its start.
    WAIT = 'wait'
    #: Nothing: the run for an earlier tick has not ended.
    BUSY = 'busy'


def decide(request: ClaimRequest, since: Instant | None, settled: Instant,
           state: State, *, held: bool, passed: bool) -> Decision:
    """Return what *request* does to an object.

    :param since: Instant since which the object is listed. None means that the
        store does not list the object.
    :param settled: Watermark of the object.
    :param state: State of the object's last claim.
    :param held: True if this claim is in the lease of *request*.
    :param passed: True if the store does not claim the tick for the object any
        more, or if the tick belongs to another schedule than the object.
    """
    if held:
        return Decision.HELD
    if since is None:
        return Decision.UNLISTED
    if passed:
        return Decision.SETTLED
    if settled < request.min_watermark or (
            settled < since < request.min_listing):
        return Decision.BEHIND
    if state in _CLAIMED_FROM:
        return Decision.CLAIM
    if state in _COUNTED_FROM:
        return Decision.COUNT
    if state not in _SUPERSEDED_FROM:
        return Decision.BUSY
    return Decision.SUPERSEDE if request.supersede else Decision.WAIT
