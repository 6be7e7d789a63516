# SPDX-License-Identifier: Apache-2.0
"""Reasons why a task that has not ended does not run now.

The list of reasons is closed. The adapter of the store determines which reason
applies to a task. :func:`with_processes` then checks whether a live process
can claim and run its command.
"""

import dataclasses
import enum

from distperiodic.core.live import Lack
from distperiodic.core.live import Live
from distperiodic.core.schedule import Instant
from distperiodic.core.wording import plural
from distperiodic.core.workflow import Status

#: Number of waiting tasks at which counting stops. So a count costs little
#: even if a million tasks wait.
MOST_COUNTED = 10_000


class Wait(enum.StrEnum):
    """Reason why a task waits."""

    #: The queue of the task is halted, by an operator or by a task that
    #: failed.
    QUEUE_HALTED = 'queue halted'
    #: An earlier task of the same queue has not ended.
    BEHIND = 'behind another task'
    #: The task is the next task of its queue, and becomes ready at the next
    #: sweep.
    NEXT_IN_QUEUE = 'next in its queue'
    #: The earliest start of the task is in the future.
    DELAYED = 'delayed'
    #: The step of the task is ready, but no scheduler has claimed it.
    READY = 'not claimed yet'
    #: A scheduler has claimed the step, but no worker has started it.
    CLAIMED = 'waits for a worker'
    #: The run of the step was granted to a process, and waits there for a
    #: thread. The task has the status ``running``.
    GRANTED = 'waits for a thread'
    #: The last run of the step failed, and the next run is due later.
    RETRY = 'waits for a retry'
    #: The lease of the run of the step has expired.
    LEASE_ENDED = 'lease ended'
    #: The task needs an operator.
    STUCK = 'stuck'
    #: The group has no worker for the module of the step.
    NO_WORKER = Lack.NO_WORKER.value
    #: The group has no scheduler.
    NO_SCHEDULER = Lack.NO_SCHEDULER.value
    #: No live scheduler defines the command of the step, or no live worker of
    #: its module does.
    NO_COMMAND = Lack.NO_COMMAND.value
    #: Operators have drained all schedulers, or all workers, that define the
    #: command.
    DRAINED = Lack.DRAINED.value
    #: All processes that may run the command are busy or on standby.
    BUSY = Lack.BUSY.value


@dataclasses.dataclass(frozen=True)
class WaitReason:
    """Reason why a task waits, with details. Times are in microseconds."""

    wait: Wait
    #: Module and name of the next command of the task.
    module: str
    command: str
    #: Time at which the wait ends: the task or its next attempt becomes due,
    #: or the lease of its step expires. None means that the time is unknown.
    until: Instant | None = None
    #: Time at which the step became ready. None means that it is not ready.
    since: Instant | None = None
    #: Scheduler or worker that holds the claim of the step. Empty means that
    #: no process holds it.
    holder: str = ''
    #: Id of the task for which this task waits in its queue. None means that
    #: there is no such task.
    ahead: str | None = None
    ahead_status: Status | None = None
    #: Number of tasks of the queue that come before this task. Counting of the
    #: waiting tasks stops at MOST_COUNTED.
    number_ahead: int = 0
    #: Time at which the queue was halted. None means that it is not halted.
    halted: Instant | None = None
    halted_why: str = ''
    #: Id of the failed task that halted the queue. None means that an operator
    #: halted the queue, or that it is not halted.
    halted_by: str | None = None
    #: True if the reason concerns the processes that run the command, and
    #: False if it concerns those that claim it.
    of_runners: bool = False


def with_processes(waiting: WaitReason, live: Live) -> WaitReason:
    """Replace the reason in *waiting* if no live process can end the wait.

    :returns: A changed copy, or *waiting* itself.
    """
    if waiting.wait in (Wait.QUEUE_HALTED, Wait.BEHIND, Wait.DELAYED,
                        Wait.STUCK):
        return waiting
    for lack, of_runners in live.lacks(waiting.module, waiting.command):
        # A scheduler must claim a ready step, and take over a step whose lease
        # has ended. A claimed step needs only a process that runs it.
        if lack is Lack.NO_SCHEDULER or waiting.wait is Wait.READY or (
                waiting.wait is (Wait.CLAIMED if of_runners
                                 else Wait.LEASE_ENDED)):
            return dataclasses.replace(
                waiting, wait=Wait(lack.value), of_runners=of_runners)
    return waiting


def tasks_text(counted: int) -> str:
    """Return a number of waiting tasks and its noun."""
    return plural(counted, 'task') + (
        ' or more' if counted >= MOST_COUNTED else '')
