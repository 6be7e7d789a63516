# SPDX-License-Identifier: Apache-2.0
"""The life of a claim: the only place that knows which moves are allowed.

A claim is of a job and an object; its tick, fence and state change, the row
stays. Each move below names the states it may leave and the one it enters;
a store applies it under the condition that the state is one of these and
that the claim stands in the lease that the mover holds, and nothing else
decides.

A *lease* is what somebody holds: claims of one job and tick, until an
instant of the store's clock. A claim stands in one lease at a time, and each
grant has a lease of its own, so to be in a lease proves what the newest
fence proves::

    scheduler's lease          worker's lease        nobody's, until then
      waiting                    running               retry
        claimed ── start ──────►   running ── retry ──►  retry
           ▲                          │ take back          │ again
           ├──────────────────────────┴────────────────────┘
           │ requeue
          dead   what an operator puts back waits in a lease of nobody's
                 that is due at once, so whoever sweeps first takes it over
"""

import enum
from typing import NamedTuple

from distperiodic.core import due


class State(enum.Enum):
    # Members are singletons; enum's own hash is a call into Python, twice
    # for each move of each object.
    __hash__ = object.__hash__

    #: Listed by its job's catalogue, and never claimed.
    LISTED = 'listed'
    #: Taken by a scheduler; not granted to a worker.
    CLAIMED = 'claimed'
    #: Granted to a worker.
    RUNNING = 'running'
    #: Ran to its end, as its handler's session says; not counted yet.
    COMMITTED = 'committed'
    #: Failed; waits for its next attempt.
    RETRY = 'retry'
    #: Ran to its end.
    DONE = 'done'
    #: Failed for the last time; kept for an operator.
    DEAD = 'dead'
    #: Not run, by the job's own misfire or overlap policy.
    SKIPPED = 'skipped'
    #: Not run, since a later tick took its place.
    SUPERSEDED = 'superseded'
    #: Not run, since somebody said so.
    CANCELLED = 'cancelled'


#: Nothing leaves these but a claim for a later tick, and an operator's word.
ENDINGS = frozenset([State.DONE, State.DEAD, State.SKIPPED,
                     State.SUPERSEDED, State.CANCELLED])


class Authority(enum.Enum):
    """Who decides what of a job may run."""

    __hash__ = object.__hash__

    #: A store that all members share.
    STORE = 'store'
    #: The ring alone: claims stand in the memory of one scheduler.
    RING = 'ring'


class SkippedBy(enum.Enum):
    """What had an object skipped for a tick, without a claim."""

    #: Nobody ran it in time, and the job's ``misfire`` gave it up.
    MISFIRE = 'misfire'
    #: An earlier run of it went on, and the job's ``overlap`` gave it up.
    OVERLAP = 'overlap'
    #: An operator had paused the job.
    PAUSE = 'pause'
    #: Nobody claimed it in time, though schedulers attended the job.
    LOST = 'lost'


class Move(enum.Enum):
    __hash__ = object.__hash__

    CLAIM = 'claim'
    START = 'start'
    FINISH = 'finish'
    COMMIT = 'commit'
    COUNT = 'count'
    RETRY = 'retry'
    BURY = 'bury'
    TAKE_BACK = 'take back'
    AGAIN = 'again'
    SKIP = 'skip'
    SUPERSEDE = 'supersede'
    CANCEL = 'cancel'
    REQUEUE = 'requeue'


#: Waits for a run, or runs.
OPEN = frozenset([State.CLAIMED, State.RUNNING, State.RETRY])

#: Move to the states that it may leave, and the state that it enters.
MOVES: dict[Move, tuple[frozenset[State], State]] = {
    Move.CLAIM: (ENDINGS | {State.LISTED}, State.CLAIMED),
    Move.START: (frozenset([State.CLAIMED]), State.RUNNING),
    Move.FINISH: (frozenset([State.RUNNING]), State.DONE),
    # In the session of the handler, which may roll it back.
    Move.COMMIT: (frozenset([State.RUNNING]), State.COMMITTED),
    # By the store, when it next sees it.
    Move.COUNT: (frozenset([State.COMMITTED]), State.DONE),
    Move.RETRY: (frozenset([State.RUNNING]), State.RETRY),
    Move.BURY: (frozenset([State.CLAIMED, State.RUNNING]), State.DEAD),
    Move.TAKE_BACK: (frozenset([State.CLAIMED, State.RUNNING]),
                     State.CLAIMED),
    Move.AGAIN: (frozenset([State.RETRY]), State.CLAIMED),
    Move.SKIP: (frozenset([State.CLAIMED]), State.SKIPPED),
    Move.SUPERSEDE: (frozenset([State.CLAIMED]), State.SUPERSEDED),
    Move.CANCEL: (OPEN, State.CANCELLED),
    Move.REQUEUE: (frozenset([State.DEAD]), State.CLAIMED),
}

#: Which move of its holder's ends a claim so; the rest do not end it.
ENDING_MOVES = {state: move for move, (_, state) in MOVES.items()
                if state in ENDINGS and move is not Move.COUNT}


def allowed(move: Move, state: State) -> bool:
    """Whether *move* may be made from *state*."""
    return state in MOVES[move][0]


class Claim(NamedTuple):
    """What a member holds of a claim: enough to make the next move."""

    object: str
    #: Grows with every grant of the object; an old one proves nothing.
    fence: int
    #: 1 for the first run of a tick; more where those of an earlier one were
    #: lost until it was given up, or until this one took its place.
    attempt: int
    #: Microseconds since the epoch.
    tick: int


class Claimed(NamedTuple):
    """What became of an attempt to claim many objects for one tick."""

    won: list[Claim]
    #: Objects whose earlier tick still runs or waits for a retry.
    busy: list[str]
    #: Claims of earlier ticks that were not started and are void now.
    superseded: int
    #: Objects that have missed more than this tick.
    behind: list[due.Row]
    #: Objects whose earlier tick is claimed and was not started.
    waiting: list[str]
    #: Microseconds until the tick may be claimed by the store's clock; then
    #: nothing was taken. 0: it may be now.
    early: int = 0
    #: Whether another schedule of the job is in force than who asked has;
    #: nothing was taken since.
    outdated: bool = False
    #: Whether it is too late for the tick by the store's clock; then nothing
    #: was taken.
    over: bool = False
    #: Objects that the store does not list.
    unlisted: tuple[str, ...] = ()


class Lease(NamedTuple):
    """Claims of one job and tick under one name, as somebody holds them."""

    id: str
    job: str
    tick: int
    claims: list[Claim]
    #: What they did before they were taken over.
    was: State


class Failure(NamedTuple):
    """A run that failed."""

    object: str
    error: str
    #: Where it was raised, for an operator; empty: nowhere.
    traceback: str = ''


#: Microseconds that a tick may lie before the store's clock and be claimed:
#: so much the clock of a member may be wrong from one look at the store's to
#: the next.
EARLIEST = 1_000_000

#: More attempts than any tick has.
UNBOUNDED = 2 ** 31 - 1

#: Fences of one tick before they could reach those of a tick 1 ms later.
FENCES = 1 << 8


def first_fence(tick: int) -> int:
    """The first fence of an object that was never claimed, for *tick*.

    Members without a common store know nothing of each other's claims, nor
    does a new store of those before it, and still the fences of an object
    grow from one to the next: by time.
    """
    return (tick // 1000) * FENCES


def granted_lease(lease: str, batch: str) -> str:
    """The lease of what a worker is granted of *lease* by one batch: both
    sides know its name before it is made.
    """
    return f'{lease}.{batch}'


def names_of_leases(into: str, number: int) -> list[str]:
    """What leases are named that are taken over in one call."""
    return [f'{into}.{n}' for n in range(number)]
