# SPDX-License-Identifier: Apache-2.0
"""State machine of a claim: the only definition of the allowed transitions.

Each pair of a job and an object has one claim, which is one row of the store.
From tick to tick, the row stays, and its tick, fence and state change. Each
transition (:class:`Move`) has a set of states that it may leave, and one state
that it enters. A store makes a transition only if the claim is in a state that
the transition may leave. For all transitions except CLAIM and REQUEUE, the
claim must also be in the expected lease.

A *lease* holds claims of one job and tick for one holder, until an instant of
the store's clock. A claim is in one lease at a time, and each grant creates a
new lease. So if a claim is still in the lease of a caller, the claim has not
been granted to another holder. Checking the lease is therefore as safe as
comparing fences::

    scheduler's lease          worker's lease        lease of a retry
      waiting                    running               until the retry is due
        claimed ── start ──────►   running ── retry ──►  retry
           ▲                          │ reclaim            │ take over
           ├──────────────────────────┴────────────────────┘
           │ requeue
          dead   a requeued claim waits in a lease that has no holder and
                 expires at once; the first scheduler that sweeps takes it
                 over
"""

import enum
from typing import NamedTuple

from distperiodic.core import due


class State(enum.Enum):
    """State of a claim."""

    # Each member of an enumeration exists only once, so a hash of its identity
    # is correct. enum.Enum.__hash__ is a slow Python function, and would be
    # called twice for each transition of each object.
    __hash__ = object.__hash__

    #: Listed by the catalogue of its job, but never claimed.
    LISTED = 'listed'
    #: Claimed by a scheduler, but not granted to a worker.
    CLAIMED = 'claimed'
    #: Granted to a worker.
    RUNNING = 'running'
    #: Ended in the handler's own transaction, but not yet in the history.
    COMMITTED = 'committed'
    #: Failed; waits for its next attempt.
    RETRY = 'retry'
    #: Ran successfully.
    DONE = 'done'
    #: Failed or was lost in its last attempt; kept for an operator.
    DEAD = 'dead'
    #: Not run, because of the job's misfire or overlap policy.
    SKIPPED = 'skipped'
    #: Not run, because a later tick replaced it.
    SUPERSEDED = 'superseded'
    #: Given up before a run succeeded: its task was cancelled, or other
    #: members may have owned the object meanwhile.
    CANCELLED = 'cancelled'


#: Codes of the states in the tables. Never change a code: existing rows
#: contain it.
STATE_CODES = {
    State.CLAIMED: 1, State.RUNNING: 2, State.RETRY: 3, State.LISTED: 4,
    State.COMMITTED: 5, State.DONE: 10, State.DEAD: 11, State.SKIPPED: 12,
    State.SUPERSEDED: 13, State.CANCELLED: 14}
#: Final states. A claim leaves such a state only when its object is claimed
#: for another tick, or when an operator requeues the claim.
ENDINGS = frozenset([State.DONE, State.DEAD, State.SKIPPED,
                     State.SUPERSEDED, State.CANCELLED])
#: States of a claim whose run succeeded.
SUCCEEDED = frozenset([State.DONE, State.COMMITTED])


class Authority(enum.Enum):
    """The authority that decides which objects of a job may run."""

    __hash__ = object.__hash__

    #: A store that all members share.
    STORE = 'store'
    #: The ring alone: the job is not in a shared store, and each scheduler
    #: keeps the claims of its objects in memory.
    RING = 'ring'


class SkippedBy(enum.Enum):
    """Reason why an object was skipped for a tick, without a claim."""

    #: No process ran the object in time, and the ``misfire`` policy of the job
    #: gave up the tick; or the object left the catalogue before it ran.
    MISFIRE = 'misfire'
    #: The run for an earlier tick had not ended, and the ``overlap`` policy of
    #: the job skipped the tick.
    OVERLAP = 'overlap'
    #: An operator had paused the job.
    PAUSE = 'pause'
    #: No process claimed the object in time, although schedulers served the
    #: job.
    LOST = 'lost'


class Move(enum.Enum):
    """Transition of a claim from one state to another."""

    __hash__ = object.__hash__

    CLAIM = 'claim'
    START = 'start'
    FINISH = 'finish'
    COMMIT = 'commit'
    COUNT = 'count'
    RETRY = 'retry'
    BURY = 'bury'
    RECLAIM = 'reclaim'
    TAKE_OVER = 'take over'
    SKIP = 'skip'
    SUPERSEDE = 'supersede'
    CANCEL = 'cancel'
    REQUEUE = 'requeue'


#: States of a claim that has not ended.
OPEN = frozenset([State.CLAIMED, State.RUNNING, State.RETRY])

#: For each transition, the states that it may leave and the state that it
#: enters.
MOVES: dict[Move, tuple[frozenset[State], State]] = {
    Move.CLAIM: (ENDINGS | {State.LISTED}, State.CLAIMED),
    Move.START: (frozenset([State.CLAIMED]), State.RUNNING),
    Move.FINISH: (frozenset([State.RUNNING]), State.DONE),
    # The handler makes this transition in its own transaction.
    Move.COMMIT: (frozenset([State.RUNNING]), State.COMMITTED),
    # When the store next reads the claim, it makes this transition, and counts
    # the end of the run in the history.
    Move.COUNT: (frozenset([State.COMMITTED]), State.DONE),
    Move.RETRY: (frozenset([State.RUNNING]), State.RETRY),
    Move.BURY: (frozenset([State.CLAIMED, State.RUNNING]), State.DEAD),
    Move.RECLAIM: (frozenset([State.CLAIMED, State.RUNNING]),
                     State.CLAIMED),
    Move.TAKE_OVER: (frozenset([State.RETRY]), State.CLAIMED),
    Move.SKIP: (frozenset([State.CLAIMED]), State.SKIPPED),
    Move.SUPERSEDE: (frozenset([State.CLAIMED]), State.SUPERSEDED),
    Move.CANCEL: (OPEN, State.CANCELLED),
    Move.REQUEUE: (frozenset([State.DEAD]), State.CLAIMED),
}

#: Transitions with which the holder of a claim ends it, by the final state.
ENDING_MOVES = {state: move for move, (_, state) in MOVES.items()
                if state in ENDINGS and move is not Move.COUNT}


def allowed(move: Move, state: State) -> bool:
    """Return whether a claim in *state* may make the transition *move*."""
    return state in MOVES[move][0]


#: Number of microseconds by which an object without a run precedes the objects
#: that were started when it began to wait. With phases, objects of one job
#: begin to wait at different times, and none must run twice before all have
#: run once. The number is limited, because otherwise new objects could keep
#: the others waiting for ever.
UNSTARTED_FIRST = 3_600_000_000

#: Fraction of the time since its last start by which the recorded start of an
#: object is too early, as a divisor. One statement starts many objects. Those
#: that have waited longer keep their places before the others, and so are not
#: passed by them again and again.
STARTED_EARLIER = 65_536


class Claim(NamedTuple):
    """A process's copy of a claim."""

    object: str
    #: Fencing token. Every claim of the object has a greater token than the
    #: previous claim. A new token makes the earlier tokens invalid.
    fence: int
    #: Number of the attempt, from 1. If this tick superseded an earlier tick,
    #: the number continues that of the earlier tick. If an earlier tick used
    #: all its attempts without success, the first number is the maximum.
    attempt: int
    #: Microseconds since the epoch.
    tick: int
    #: Place in the line of the waiting claims of the job: the claim with the
    #: lowest value is the first. The value is the instant at which a run of
    #: the object was last granted. If none was, or if it was returned
    #: unstarted, the value is *waiting* minus :data:`UNSTARTED_FIRST`. So no
    #: object runs twice while another one of the job waits. Steps of tasks
    #: come in the order in which they became ready, by priority.
    place: int = 0
    #: Instant since which the object waits for the start of a run, in
    #: microseconds of the store's clock. A claim that supersedes an unstarted
    #: claim has the instant of that claim.
    waiting: int = 0
    #: Number of the attempts whose run was lost, for example with its worker.
    #: It continues from tick to tick as the number of the attempt does.
    losses: int = 0


class Claimed(NamedTuple):
    """Result of an attempt to claim many objects for one tick."""

    won: list[Claim]
    #: Objects whose earlier tick still runs or waits for a retry. These
    #: objects were not claimed.
    busy: list[str]
    #: Number of claims of earlier ticks that were not started, and that this
    #: call made void.
    superseded: int
    #: Rows of objects that have also missed earlier ticks, or whose rows could
    #: not be changed during the call, for example because it became too late
    #: for the tick. These objects were not claimed.
    behind: list[due.Row]
    #: Objects whose earlier tick is claimed but not started. These objects
    #: were not claimed for this tick.
    waiting: list[str]
    #: Microseconds, by the store's clock, until the tick may be claimed. If
    #: this is not 0, no object was claimed.
    early: int = 0
    #: True if the caller's schedule of the job is not the schedule in force.
    #: In this case, *won* has only claims that were acquired before the
    #: schedule changed.
    outdated: bool = False
    #: True if it is too late to claim the tick, by the store's clock. In this
    #: case, the call has claimed no object.
    over: bool = False
    #: Objects that the store does not list.
    unlisted: tuple[str, ...] = ()


class HeldLease(NamedTuple):
    """A lease in which claims of one job and tick are held."""

    id: str
    job: str
    tick: int


class Lease(NamedTuple):
    """A lease that the caller has acquired, with its claims."""

    id: str
    job: str
    tick: int
    claims: list[Claim]
    #: State of the claims before the caller acquired them.
    was: State

    @property
    def held(self) -> HeldLease:
        """The lease without its claims, as the argument of a call."""
        return HeldLease(self.id, self.job, self.tick)


class Failure(NamedTuple):
    """A run that failed."""

    object: str
    error: str
    #: Traceback, for an operator. Empty means that there is none.
    traceback: str = ''


# Number of bits of a place below the precedence. An instant in microseconds
# needs 51 of them.
_OF_INSTANT = 56


def place_of(precedence: int, since: int) -> int:
    """Return the place of a step in the line; see :attr:`Claim.place`.

    :param precedence: Steps with a lower precedence come first.
    :param since: Instant since which the step has been ready.
    """
    return (precedence << _OF_INSTANT) + since


def precedence_of(place: int) -> int:
    """Return the precedence of a step; 0 for an object of a periodic job."""
    return place >> _OF_INSTANT


#: Maximum number of microseconds by which a claim may precede the instant at
#: which its object is due, by the store's clock. A member may claim early,
#: because its estimate of the store's clock has an error of up to this number.
EARLIEST = 1_000_000

#: A number of attempts that no tick reaches. As a limit, it has no effect.
UNBOUNDED = 2 ** 31 - 1

#: Number of fences that are reserved for each millisecond.
FENCES = 1 << 8


def first_fence(tick: int) -> int:
    """Return the fence of the first claim of an object, if it is for *tick*.

    In the memory of a scheduler, no claim for *tick* has a lower fence. The
    fence is derived from the time of the tick. So the fences of an object grow
    even if the object moves between members that share no store, or if a new
    database replaces the old one.
    """
    return (tick // 1000) * FENCES


def granted_lease(lease: str, batch: str) -> str:
    """Return the name of the lease for the runs that one batch is granted.

    The scheduler and the worker can both compute this name in advance.

    :param lease: Lease in which the claims wait.
    :param batch: Id of the batch.
    """
    return f'{lease}.{batch}'
