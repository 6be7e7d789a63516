# SPDX-License-Identifier: Apache-2.0
"""Reasons why a task that has not ended does not run now.

The reasons are a closed list, and the store decides which of them applies. It
knows no processes: :func:`with_processes` adds whether any could help.
"""

import dataclasses
import enum

from distperiodic.core.schedule import Instant
from distperiodic.core.workflow import Status


class Wait(enum.StrEnum):
    """Reason why a task waits."""

    #: An operator, or a task that failed, has halted its queue.
    QUEUE_HALTED = 'queue halted'
    #: Another task of its queue runs or comes first.
    BEHIND = 'behind another task'
    #: It is the next task of its queue; the next sweep lets it start.
    NEXT_IN_QUEUE = 'next in its queue'
    #: Its earliest start is in the future.
    DELAYED = 'delayed'
    #: Its step is ready, and no scheduler has claimed it.
    READY = 'not claimed yet'
    #: A scheduler has claimed its step, and no worker has begun it.
    CLAIMED = 'waits for a worker'
    #: The last run of its step failed, and the next one is due later.
    RETRY = 'waits for a retry'
    #: The lease of the run of its step has expired.
    LEASE_ENDED = 'lease ended'
    #: It needs an operator.
    STUCK = 'stuck'
    #: No worker of the module of its step is in the group.
    NO_WORKER = 'no worker'
    #: No scheduler is in the group.
    NO_SCHEDULER = 'no scheduler'


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Reason why a task waits, with its facts. Times are in microseconds."""

    wait: Wait
    #: Module and name of the command that is next.
    module: str
    command: str
    #: When the task or its next attempt is due, or its lease expires. None
    #: means that none of these times is known in advance.
    until: Instant | None = None
    #: Scheduler or worker that holds its step. Empty means none.
    holder: str = ''
    #: Task before it in its queue. None means that there is none.
    ahead: str | None = None
    ahead_status: Status | None = None
    #: Number of tasks before it in its queue.
    number_ahead: int = 0
    #: When its queue was halted. None means that it is not halted.
    halted: Instant | None = None
    halted_why: str = ''
    #: Task that failed. None means that an operator halted the queue.
    halted_by: str | None = None


def with_processes(waiting: Waiting, schedulers: int,
                   workers: int | None) -> Waiting:
    """Return *waiting* with the process that is missing, if one is.

    :param schedulers: Number of schedulers in the group.
    :param workers: Number of workers of the module of its next command. None
        means that schedulers run the commands.
    """
    if waiting.wait in (Wait.QUEUE_HALTED, Wait.BEHIND, Wait.STUCK):
        return waiting
    if not schedulers:
        return dataclasses.replace(waiting, wait=Wait.NO_SCHEDULER)
    if workers == 0 and waiting.wait in (Wait.READY, Wait.CLAIMED):
        return dataclasses.replace(waiting, wait=Wait.NO_WORKER)
    return waiting
