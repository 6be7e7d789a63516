# SPDX-License-Identifier: Apache-2.0
"""State machine of a claim: the only definition of the allowed transitions.

Each pair of a job and an object has one claim. The tick, fence and state of a
claim change; its row remains. Each transition (:class:`Move`) has the states
that it may leave and the state that it enters. A store applies a transition
only if the claim is in one of those states and in the lease that the caller
names.

A *lease* holds claims of one job and tick for one holder, until an instant of
the store's clock. A claim is in one lease at a time, and each grant creates a
new lease. So a claim that is still in a lease has not been granted to another
holder since. This proves as much as a comparison of fences::

    scheduler's lease          worker's lease        lease without a holder
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

    # Each member exists only once, so its identity can serve as its hash. The
    # hash of enum.Enum is a Python function, and would be called twice for
    # each transition of each object.
    __hash__ = object.__hash__

    #: Listed by its job's catalogue, but never claimed.
    LISTED = 'listed'
    #: Claimed by a scheduler, but not granted to a worker.
    CLAIMED = 'claimed'
    #: Granted to a worker.
    RUNNING = 'running'
    #: Ended in the handler's own transaction, but not counted yet.
    COMMITTED = 'committed'
    #: Failed; waits for its next attempt.
    RETRY = 'retry'
    #: Ran successfully.
    DONE = 'done'
    #: Failed for the last time; kept for an operator.
    DEAD = 'dead'
    #: Not run, because of the job's misfire or overlap policy.
    SKIPPED = 'skipped'
    #: Not run, because a later tick replaced it.
    SUPERSEDED = 'superseded'
    #: Not run, because it was cancelled.
    CANCELLED = 'cancelled'


#: Final states. Only a claim for a later tick or an operator can leave them.
ENDINGS = frozenset([State.DONE, State.DEAD, State.SKIPPED,
                     State.SUPERSEDED, State.CANCELLED])
#: States of a claim whose run succeeded.
SUCCEEDED = frozenset([State.DONE, State.COMMITTED])


class Authority(enum.Enum):
    """The authority that decides which objects of a job may run."""

    __hash__ = object.__hash__

    #: A store that all members share.
    STORE = 'store'
    #: The ring alone. Claims are in the memory of one scheduler.
    RING = 'ring'


class SkippedBy(enum.Enum):
    """Reason why an object was skipped for a tick, without a claim."""

    #: No process ran it in time; the ``misfire`` policy of the job skips it.
    MISFIRE = 'misfire'
    #: An earlier run continued; the ``overlap`` policy of the job skips it.
    OVERLAP = 'overlap'
    #: An operator had paused the job.
    PAUSE = 'pause'
    #: No process claimed it in time, although schedulers attended the job.
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


#: States of a claim whose run waits or is in progress.
OPEN = frozenset([State.CLAIMED, State.RUNNING, State.RETRY])

#: For each transition, the states that it may leave and the state that it
#: enters.
MOVES: dict[Move, tuple[frozenset[State], State]] = {
    Move.CLAIM: (ENDINGS | {State.LISTED}, State.CLAIMED),
    Move.START: (frozenset([State.CLAIMED]), State.RUNNING),
    Move.FINISH: (frozenset([State.RUNNING]), State.DONE),
    # Made in the transaction of the handler, which may be rolled back.
    Move.COMMIT: (frozenset([State.RUNNING]), State.COMMITTED),
    # Made by the store, when it next reads the claim.
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

#: For each final state, the transition by which the holder of a claim enters
#: it.
ENDING_MOVES = {state: move for move, (_, state) in MOVES.items()
                if state in ENDINGS and move is not Move.COUNT}


def allowed(move: Move, state: State) -> bool:
    """Return whether a claim in *state* may make the transition *move*."""
    return state in MOVES[move][0]


class Claim(NamedTuple):
    """A member's copy of a claim, sufficient for the next transition."""

    object: str
    #: Fencing token. It grows with every claim of the object. A new token
    #: makes the earlier ones invalid.
    fence: int
    #: Number of the attempt, from 1. The first attempt at a tick has a higher
    #: number if the runs of an earlier tick were lost, and that tick was then
    #: given up or was superseded by this one.
    attempt: int
    #: Microseconds since the epoch.
    tick: int


class Claimed(NamedTuple):
    """Result of an attempt to claim many objects for one tick."""

    won: list[Claim]
    #: Objects whose earlier tick still runs or waits for a retry.
    busy: list[str]
    #: Number of claims of earlier ticks that were not started and are now
    #: void.
    superseded: int
    #: Objects that have missed other ticks besides this one.
    behind: list[due.Row]
    #: Objects whose earlier tick is claimed but not started.
    waiting: list[str]
    #: Microseconds, by the store's clock, until the tick may be claimed. If
    #: not 0, nothing was claimed.
    early: int = 0
    #: True if the caller's schedule of the job is not the one in force.
    #: Nothing was claimed by this call.
    outdated: bool = False
    #: True if, by the store's clock, it is too late to claim the tick. Nothing
    #: was claimed.
    over: bool = False
    #: Objects that the store does not list.
    unlisted: tuple[str, ...] = ()


class Lease(NamedTuple):
    """A lease that was taken over, with its claims of one job and tick."""

    id: str
    job: str
    tick: int
    claims: list[Claim]
    #: State of the claims before the take-over.
    was: State


class Failure(NamedTuple):
    """A run that failed."""

    object: str
    error: str
    #: Traceback, for an operator. Empty means that there is none.
    traceback: str = ''


#: Maximum microseconds, by the store's clock, by which a claim may precede its
#: tick. A member's clock may have this error between two readings of the
#: store's clock.
EARLIEST = 1_000_000

#: A number of attempts that no tick reaches, for use as a limit.
UNBOUNDED = 2 ** 31 - 1

#: Number of fences reserved for one tick. The fences of a tick 1 ms later
#: begin after them.
FENCES = 1 << 8


def first_fence(tick: int) -> int:
    """Return the first fence for *tick* of an object without earlier claims.

    The fence is derived from the time of the tick. So the fences of an object
    also grow from one member to another if they share no store, and from an
    old store to a new one.
    """
    return (tick // 1000) * FENCES


def granted_lease(lease: str, batch: str) -> str:
    """Return the name of the lease for the claims granted to one batch.

    Scheduler and worker both compute the name before the lease exists.

    :param lease: Lease in which the claims wait.
    :param batch: Id of the batch.
    """
    return f'{lease}.{batch}'


def names_of_leases(into: str, number: int) -> list[str]:
    """Return the new names of leases that one call takes over."""
    return [f'{into}.{n}' for n in range(number)]
