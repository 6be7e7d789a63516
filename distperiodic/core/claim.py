# SPDX-License-Identifier: Apache-2.0
"""State machine of a claim: the only place that defines the allowed moves.

Each pair of a job and an object has one claim. Its tick, fence and state
change; its row stays. Each move below names the states that it may leave and
the state that it enters. A store applies a move only if the claim is in one of
those states and in the lease that the caller names.

A *lease* holds claims of one job and tick for one holder, until an instant of
the store's clock. A claim is in one lease at a time, and each grant creates a
new lease. So a claim's presence in a lease proves as much as the newest
fence::

    scheduler's lease          worker's lease        lease without a holder
      waiting                    running               until the retry is due
        claimed ── start ──────►   running ── retry ──►  retry
           ▲                          │ reclaim            │ take over
           ├──────────────────────────┴────────────────────┘
           │ requeue
          dead   a requeued claim waits in a lease without a holder that
                 expires at once; the first scheduler to sweep takes it over
"""

import enum
from typing import NamedTuple

from distperiodic.core import due


class State(enum.Enum):
    """State of a claim."""

    # Members are singletons. The hash of enum is a Python function, and would
    # be called twice for each move of each object.
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
    """Move of a claim from one state to another."""

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


#: States of a claim that waits for a run, or runs.
OPEN = frozenset([State.CLAIMED, State.RUNNING, State.RETRY])

#: For each move, the states that it may leave and the state that it enters.
MOVES: dict[Move, tuple[frozenset[State], State]] = {
    Move.CLAIM: (ENDINGS | {State.LISTED}, State.CLAIMED),
    Move.START: (frozenset([State.CLAIMED]), State.RUNNING),
    Move.FINISH: (frozenset([State.RUNNING]), State.DONE),
    # In the transaction of the handler, which may roll it back.
    Move.COMMIT: (frozenset([State.RUNNING]), State.COMMITTED),
    # By the store, when it next reads the claim.
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

#: For each final state, the move by which the holder of a claim enters it.
ENDING_MOVES = {state: move for move, (_, state) in MOVES.items()
                if state in ENDINGS and move is not Move.COUNT}


def allowed(move: Move, state: State) -> bool:
    """Return whether *move* may leave *state*."""
    return state in MOVES[move][0]


class Claim(NamedTuple):
    """A member's copy of a claim, sufficient for the next move."""

    object: str
    #: Fencing token. It grows with every claim of the object, which voids the
    #: earlier tokens.
    fence: int
    #: Number of the attempt, from 1. A tick starts with a higher number if
    #: the runs of an earlier tick were lost until that tick was given up, or
    #: until this tick superseded it.
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
    #: Objects that have missed more than this tick.
    behind: list[due.Row]
    #: Objects whose earlier tick is claimed but not started.
    waiting: list[str]
    #: Microseconds until the tick may be claimed by the store's clock. If not
    #: 0, nothing was claimed.
    early: int = 0
    #: True if the caller's schedule of the job is not the one in force.
    #: Nothing was claimed by this call.
    outdated: bool = False
    #: True if it is too late for the tick by the store's clock. Nothing was
    #: claimed.
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


#: Microseconds by which a claim may precede its tick, by the store's clock:
#: the error that a member's clock may have between two readings of that
#: clock.
EARLIEST = 1_000_000

#: A limit on attempts that no tick reaches.
UNBOUNDED = 2 ** 31 - 1

#: Number of fences that one tick can use before the first fence of a tick 1 ms
#: later.
FENCES = 1 << 8


def first_fence(tick: int) -> int:
    """Return the first fence for *tick* of an object without earlier claims.

    It is derived from the time of the tick. So the fences of an object also
    grow between members that share no store, and between an old store and a
    new one, although neither knows the claims of the other.
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
