# SPDX-License-Identifier: Apache-2.0
"""Classes of the tasks and queues that the library returns to programs."""

import dataclasses
import datetime
import hashlib
import itertools
import uuid
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic.core import schedule
from distperiodic.core import workflow
from distperiodic.core.workflow import Status

# Number of hexadecimal digits at the end of a task's id. These digits
# determine the position of the task on the ring.
_RING_DIGITS = 8

_numbers = itertools.count()


def new_id(now: int, queue: str | None) -> str:
    """Return a new id of a task: 32 hexadecimal digits.

    Ids grow with time, and within one process with each call, so that tasks
    that were submitted together start in their order, and that the indexes of
    the database stay compact. In an ordered queue, the last digits depend only
    on the name of the queue, so that one member owns all tasks of the queue.

    :param now: Microseconds since the epoch.
    :param queue: Name of the ordered queue. None means that the task is in no
        queue.
    """
    number = next(_numbers) % 16 ** 5
    found = f'{now // 1000:012x}{number:05x}{uuid.uuid4().hex[:15]}'
    if queue is None:
        return found
    return found[:-_RING_DIGITS] + queue_ring_key(queue)


def ring_key(task: str) -> str:
    """Return the key that determines a task's position on the ring."""
    return task[-_RING_DIGITS:]


def queue_ring_key(queue: str) -> str:
    """Return the :func:`ring_key` of all tasks of an ordered queue."""
    return hashlib.sha256(queue.encode()).hexdigest()[:_RING_DIGITS]


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command of a step, and its progress.

    ``code`` is 0 for done, 2 for running or waiting for a retry, and 4 for
    failed. Before its first run, a normal command has code 1, and a rollback
    has None; if its first runs are lost, it has this code again between them.
    """

    #: Name of the module.
    module: str
    #: Name of the command within its module.
    command: str
    #: Seconds after which a run times out and counts as failed.
    timeout: float
    #: Number of additional runs after a failure.
    retry: int
    #: Code of the command.
    code: int | None = None
    #: Error of the last run that failed. None means that no run has failed.
    message: str | None = None
    #: Number of runs that were granted so far, including the run in progress
    #: and the runs that were lost with their worker.
    attempts: int = 0
    #: When the first run was granted. Its handler may have begun later, when a
    #: thread of the process was free.
    started_at: datetime.datetime | None = None
    #: End of the last run. None means that the command has not ended.
    ended_at: datetime.datetime | None = None
    #: Name of the member that executed the last run. None means unknown.
    worker: str | None = None
    #: Number of runs that were lost with their worker. ``attempts`` includes
    #: these runs, but they do not count against ``retry``.
    losses: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A step of a task."""

    #: Command of the step.
    normal: Command
    #: Command that undoes the step. None means that nothing undoes it.
    rollback: Command | None


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task at one moment. All times are in UTC.

    ``code`` is 0 for succeeded, 1 for waiting, 2 for running and 3 for rolling
    back. Any other code means that the task has failed, was cancelled or is
    stuck.
    """

    #: Id of the task.
    id: str
    #: Type of its workflow, or ``module.command``.
    type: str
    #: Name that the submitter gave to the task. None means no name.
    key: str | None
    #: Status of the task.
    status: Status
    #: Error of the step that failed. None means that no step has failed.
    message: str | None
    #: Index of the furthest step that was started or is due to start next.
    cursor: int
    #: Ordered queue of the task. None means that the task is in no queue.
    queue: str | None
    #: Priority of the task; higher first.
    priority: int
    #: Values that the steps share, with the results of the steps.
    parameters: Mapping[str, Any]
    #: Time of the submission.
    created_at: datetime.datetime
    #: Earliest start. None means at once.
    due_at: datetime.datetime | None
    #: Time of the claim with which the task started. None means that no run
    #: of its first command has been granted to a process.
    started_at: datetime.datetime | None
    #: End of the task. None means that it has not ended.
    ended_at: datetime.datetime | None
    #: Steps of the task, in their order.
    steps: Sequence[Step]

    @property
    def code(self) -> int:
        """Status as a number."""
        return workflow.CODES[self.status]

    @property
    def ended(self) -> bool:
        """True if the task has ended, so that only a retry can change it."""
        return self.status in workflow.ENDED


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """An ordered queue at one moment."""

    #: Name of the queue.
    name: str
    #: Id of the task that is running or is next. None means that the queue is
    #: empty or has not chosen its next task.
    head: str | None
    #: Status of the task *head*.
    head_status: Status | None
    #: Number of tasks that have not started. Counting stops at 10,000, so
    #: 10,000 means this number or more.
    waiting: int
    #: True if the queue continues after a failed task. False means that a
    #: failed task halts the queue.
    goes_on: bool
    #: Time at which the queue was halted. None means that it is not halted.
    halted_at: datetime.datetime | None
    #: Reason for the halt. None means that the queue is not halted.
    halted_why: str | None
    #: Id of the task whose failure halted the queue. None means that an
    #: operator halted it, or that it is not halted.
    halted_by: str | None


class TaskFilter(NamedTuple):
    """The tasks that a command selects. They meet all conditions."""

    statuses: Sequence[Status] = tuple(Status)
    #: None selects all types.
    type: str | None = None
    #: None selects the tasks of all queues, and those without a queue.
    queue: str | None = None
    #: Ids of the tasks. None selects all tasks.
    ids: Sequence[str] | None = None


class TaskPage(NamedTuple):
    """The tasks of one page of a list. None selects all tasks."""

    status: Status | None
    type: str | None
    queue: str | None
    limit: int
    #: Id of a task. Only tasks that were submitted later are selected.
    after: str | None


def command_of(action: workflow.Action, record: Mapping[str, Any] | None,
               waits: bool) -> Command:
    """Return a command from its definition and its record in the store.

    :param record: Mapping with the keys ``code``, ``message``, ``attempts``,
        ``losses``, ``started``, ``ended`` and ``worker``, all optional. None
        means that there is no record.
    :param waits: True if the command has code 1 before its first run.
    """
    found = record or {}
    return Command(
        action.module, action.command, action.timeout, action.retry,
        found.get('code', 1 if waits else None), found.get('message'),
        found.get('attempts', 0), moment(found.get('started')),
        moment(found.get('ended')),
        found.get('worker', '').partition('~')[0] or None,
        found.get('losses', 0))


def moment(instant: int | None) -> datetime.datetime | None:
    """Return *instant* as an aware datetime, or None."""
    return None if instant is None else schedule.datetime_of(instant)
