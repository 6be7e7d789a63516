# SPDX-License-Identifier: Apache-2.0
"""Events that a process reports to its subscribers.

    flow, membership, bus, store ── event ──► sink ──► subscribers

The list is closed: :data:`KINDS` contains all events. The product reports each
event in one place. An event describes a batch, a tick or a change, never one
healthy object, so that its cost does not grow with the number of objects.
Ticks are in microseconds since the epoch; all other times are in seconds.
``doc/source/reference/events.rst`` describes the events for users.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core.claim import SkippedBy
from distperiodic.core.schedule import Instant
from distperiodic.core.workflow import Status

#: Pairs of a time in seconds and the number of objects that have it.
Amounts = Sequence[tuple[float, int]]


class ClaimPath(enum.StrEnum):
    """Reason why a process has claimed objects."""

    #: The owner of the objects claimed them at their tick.
    RING = 'ring'
    #: Rows of the store showed that the objects had missed the tick.
    LATE = 'late'
    #: An operator has triggered the run.
    TRIGGER = 'trigger'


class RunOutcome(enum.StrEnum):
    """Recorded outcome of a run.

    Each value is the name of a number in
    :class:`distperiodic.core.outcomes.Counts`.
    """

    DONE = 'done'
    DEAD = 'dead'
    RETRIED = 'retried'


class MemberRole(enum.StrEnum):
    """Role of the members of a group."""

    SCHEDULER = 'scheduler'
    WORKER = 'worker'


class TickDue(NamedTuple):
    """A tick of a job has come due in this scheduler."""

    job: str
    tick: Instant


class ObjectsClaimed(NamedTuple):
    """This scheduler has claimed objects for a tick."""

    job: str
    tick: Instant
    objects: int
    path: ClaimPath
    #: Seconds from the instant at which the last of the objects was due to the
    #: answer of the store.
    delay: float


class BatchDispatched(NamedTuple):
    """This scheduler has sent a batch to a worker, or to its own pool."""

    job: str
    tick: Instant
    batch: str
    objects: int
    #: Name of the worker on the ring.
    worker: str


class RunsStarted(NamedTuple):
    """Runs of a batch were granted to this process."""

    job: str
    tick: Instant
    batch: str
    objects: int
    #: Seconds for which objects have waited for the grant.
    waited: Amounts


class RunsTimed(NamedTuple):
    """Handlers have returned in this process."""

    job: str
    tick: Instant
    #: Seconds from the instant at which objects were due to the start of their
    #: first runs. Retries are left out.
    lateness: Amounts
    #: Seconds that runs have lasted.
    durations: Amounts


class RunsEnded(NamedTuple):
    """The store has recorded outcomes of runs."""

    job: str
    tick: Instant
    #: DONE or DEAD.
    outcome: RunOutcome
    objects: int


class RunsRetried(NamedTuple):
    """The store has recorded failures of runs that are retried."""

    job: str
    tick: Instant
    objects: int


class ResultsRejected(NamedTuple):
    """The store has rejected results, because the lease of the runs had ended.
    """

    job: str
    tick: Instant
    objects: int


class LeaseLost(NamedTuple):
    """This process could not renew the lease of runs, because another process
    has taken the lease over.
    """

    job: str
    tick: Instant
    objects: int


class ClaimsTakenOver(NamedTuple):
    """This scheduler has taken over claims whose lease had expired, or whose
    holder was gone. Retries that are due are included.
    """

    job: str
    tick: Instant
    objects: int


class ClaimsReclaimed(NamedTuple):
    """This scheduler has reclaimed claims from a worker."""

    job: str
    tick: Instant
    objects: int
    #: Sentence for operators.
    reason: str


class TicksSkipped(NamedTuple):
    """The store has recorded that objects do not run for a tick, nor for the
    earlier ticks that they missed.
    """

    job: str
    tick: Instant
    #: Any cause except LOST.
    cause: SkippedBy
    objects: int
    #: Number of ticks, of each object.
    ticks: int


class TicksLost(NamedTuple):
    """The store has recorded that no process claimed a tick in time, although
    schedulers served the job.
    """

    job: str
    tick: Instant
    objects: int
    #: Number of ticks, of each object.
    ticks: int


class CatalogueListed(NamedTuple):
    """The catalogue of a job was read."""

    job: str
    #: Number of objects in the reading, which may contain only the objects
    #: that this member owns.
    objects: int
    #: Seconds that the read has taken.
    seconds: float


class CatalogueFailed(NamedTuple):
    """The catalogue of a job could not be read."""

    job: str
    #: The error as one line.
    error: str


class MemberJoined(NamedTuple):
    """A member has joined a group, as this process sees it."""

    group: str
    role: MemberRole
    member: str


class MemberLeft(NamedTuple):
    """A member has left a group, as this process sees it."""

    group: str
    role: MemberRole
    member: str


class MemberActive(NamedTuple):
    """This worker has become the active worker of a standby partition."""

    partition: str
    member: str
    #: Number that grows with each take-over.
    fence: int


class TaskMoved(NamedTuple):
    """The end of a run has moved a task, in a transaction of this process."""

    task: str
    type: str
    status: Status
    #: Index of the step that is next, or that was the last one.
    step: int


class QueueHalted(NamedTuple):
    """A failed task has halted its ordered queue."""

    queue: str
    #: Id of the failed task.
    task: str


class MessageRefused(NamedTuple):
    """This process has dropped a message."""

    #: Sender, as the message states it. A forged message may name anybody.
    origin: str
    reason: str


Event = (TickDue | ObjectsClaimed | BatchDispatched | RunsStarted | RunsTimed
         | RunsEnded | RunsRetried | ResultsRejected | LeaseLost
         | ClaimsTakenOver | ClaimsReclaimed | TicksSkipped | TicksLost
         | CatalogueListed | CatalogueFailed | MemberJoined | MemberLeft
         | MemberActive | TaskMoved | QueueHalted | MessageRefused)

#: All events, in the order of the documentation.
KINDS: tuple[type[Event], ...] = Event.__args__
