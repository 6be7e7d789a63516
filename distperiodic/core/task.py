# SPDX-License-Identifier: Apache-2.0
"""Tasks, as a program sees them."""

import dataclasses
import datetime
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic.core import schedule
from distperiodic.core import workflow
from distperiodic.core.workflow import Status


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command of a step, and how far it is.

    Its ``code`` is 0 done, 1 waiting, 2 running, 4 failed; None means that
    the command has not been needed yet, as with a rollback.
    """

    module: str
    command: str
    timeout: float  # seconds
    retry: int  # additional runs after a failure
    code: int | None = None
    message: str | None = None  # the last error
    attempts: int = 0  # runs that have ended, and the one that runs
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A step of a task."""

    normal: Command
    rollback: Command | None


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task at one moment. All times are in UTC.

    ``code`` is 0 succeeded, 1 waiting, 2 running, 3 rolling back; any other
    code means that the task has ended, or is stuck, without success.
    """

    id: str
    type: str
    key: str | None
    status: Status
    message: str | None  # error of the step that failed
    cursor: int  # index of the furthest step that was reached
    queue: str | None
    priority: int
    parameters: Mapping[str, Any]  # with the results of the steps
    created_at: datetime.datetime
    due_at: datetime.datetime | None  # earliest start
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    steps: Sequence[Step]

    @property
    def code(self) -> int:
        """Status as a number."""
        return workflow.CODES[self.status]

    @property
    def ended(self) -> bool:
        """True if the task will not change any more, unless an operator
        retries it.
        """
        return self.status in workflow.ENDED


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """An ordered queue at one moment."""

    name: str
    head: str | None  # id of the task that runs, or is next
    waiting: int  # tasks that have not started
    goes_on: bool  # after a task that failed; False: it halts
    halted_at: datetime.datetime | None
    halted_why: str | None
    halted_by: str | None  # id of the task that failed


def command_of(action: workflow.Action, record: Mapping[str, Any] | None,
               waits: bool) -> Command:
    """Return a command from its definition and what is recorded of it.

    :param record: Keys ``code``, ``message``, ``attempts``, ``started`` and
        ``ended``, all optional. None means that nothing is recorded.
    :param waits: Whether the command is still to run.
    """
    found = record or {}
    return Command(
        action.module, action.command, action.timeout, action.retry,
        found.get('code', 1 if waits else None), found.get('message'),
        found.get('attempts', 0), moment(found.get('started')),
        moment(found.get('ended')))


def moment(instant: int | None) -> datetime.datetime | None:
    """Return *instant* as an aware datetime, or None."""
    return None if instant is None else schedule.datetime_of(instant)
