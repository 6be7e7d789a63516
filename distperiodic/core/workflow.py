# SPDX-License-Identifier: Apache-2.0
"""State machine of a task: it decides which command of a task runs next.

A task executes the steps of its workflow in order. Each step has a normal
command and may have a rollback command. When a step has failed and has no
retry left, the task rolls back this step, and then the steps before it in
reverse order::

    waiting ── claimed ──► running ── last step done ─────────► succeeded
       │                    │  ▲
       │ cancel             │  └── retry ──┐
       ▼                    ▼ step failed  │ lost too often
    cancelled            rolling_back ──► stuck
                            │     └─ rollback failed ─┘
                            ▼ first step rolled back
                         failed, or cancelled on request

This module does not deal with time, workers or leases. The claim of a step
determines from which worker a result is accepted.
"""

import enum
from typing import Any
from typing import NamedTuple

from distperiodic.core.job import Delivery

#: Default timeout of a command, in seconds.
DEFAULT_TIMEOUT = 300.0


class Status(enum.StrEnum):
    """Status of a task."""

    #: No process has been granted a run of the first command.
    WAITING = 'waiting'
    #: The task executes its steps. A granted run may still wait for a thread
    #: of its process.
    RUNNING = 'running'
    #: The task rolls its steps back.
    ROLLING_BACK = 'rolling_back'
    #: All steps are done.
    SUCCEEDED = 'succeeded'
    #: A step failed, and the rollback of the task has ended.
    FAILED = 'failed'
    #: The task needs an operator: its rollback failed, or a command was lost
    #: with its workers too often.
    STUCK = 'stuck'
    #: The task was cancelled, and any rollback of the task has ended.
    CANCELLED = 'cancelled'


#: Code of each status, for programs.
CODES = {
    Status.SUCCEEDED: 0, Status.WAITING: 1, Status.RUNNING: 2,
    Status.ROLLING_BACK: 3, Status.FAILED: 4, Status.STUCK: 5,
    Status.CANCELLED: 6,
}
#: Statuses of a task that has ended. Only a retry changes such a status.
ENDED = frozenset([Status.SUCCEEDED, Status.FAILED, Status.CANCELLED])


class CommandOutcome(enum.Enum):
    """Outcome of the last run of a command."""

    DONE = 'done'
    #: The command failed, and has no retry left; or its run was lost with its
    #: worker, and the delivery is ``'at_most_once'``.
    FAILED = 'failed'
    #: The runs of the command were lost with too many workers.
    LOST = 'lost'


class Action(NamedTuple):
    """A command, with its timeout, retries and delivery."""

    module: str
    command: str
    #: Seconds after which a run is cancelled and counts as failed.
    timeout: float = DEFAULT_TIMEOUT
    #: Number of additional runs after a failure.
    retry: int = 0
    delivery: Delivery = Delivery.AT_LEAST_ONCE

    @property
    def name(self) -> str:
        """Name of the command with its module, ``module.command``."""
        return f'{self.module}.{self.command}'


class StepDefinition(NamedTuple):
    """One step of a workflow."""

    normal: Action
    #: Command that undoes the step. None means that nothing undoes it.
    rollback: Action | None = None


Definition = tuple[StepDefinition, ...]


class StepInput(NamedTuple):
    """Input of a run of a step."""

    #: Id of the task.
    task: str
    #: Index of the step.
    step: int
    #: True if the run executes the rollback of the step.
    rollback: bool
    #: Seconds after which the run is cancelled and counts as failed.
    timeout: float
    parameters: dict[str, Any]
    #: Number of times that the task was retried after some of its steps had
    #: been rolled back.
    restarts: int = 0
    #: Reason why the task is rolled back. None in a normal command.
    failure: str | None = None
    #: Trace context of the submitter's span. None means that it had none.
    trace: str | None = None


class Position(NamedTuple):
    """Position of a task in its workflow."""

    status: Status
    #: Index of the furthest step that was started or is due to start next.
    cursor: int = 0
    #: Index of the step that is running or is next, in either direction.
    step: int = 0
    #: True if the rollback of *step* is running or is next.
    back: bool = False

    @property
    def active(self) -> bool:
        """True if a command is running or is next."""
        return self.status in (
            Status.WAITING, Status.RUNNING, Status.ROLLING_BACK)


#: Position of a new task.
START = Position(Status.WAITING)


def action_at(definition: Definition, position: Position) -> Action:
    """Return the command that is running or is next at *position*."""
    step = definition[position.step]
    if not position.back:
        return step.normal
    assert step.rollback is not None
    return step.rollback


def advance(definition: Definition, position: Position,
            outcome: CommandOutcome, cancelling: bool) -> Position:
    """Return the position after the command at *position* has ended.

    :param cancelling: True if a cancellation of the task was requested.
    """
    step = position.step
    if outcome is CommandOutcome.LOST or (
            position.back and outcome is CommandOutcome.FAILED):
        return position._replace(status=Status.STUCK)
    if position.back:
        return roll_back(definition, position, step - 1, cancelling)
    if outcome is CommandOutcome.FAILED or cancelling:
        return roll_back(definition, position, step, cancelling)
    if step + 1 == len(definition):
        return position._replace(status=Status.SUCCEEDED)
    following = step + 1
    return Position(Status.RUNNING, max(position.cursor, following), following)


def roll_back(definition: Definition, position: Position, last: int,
              cancelling: bool) -> Position:
    """Return the position at which a rollback from step *last* begins.

    Steps without a rollback are skipped. If no step has one, the task ends.
    """
    for step in range(last, -1, -1):
        if definition[step].rollback is not None:
            return Position(Status.ROLLING_BACK, position.cursor, step, True)
    return Position(Status.CANCELLED if cancelling else Status.FAILED,
                    position.cursor, 0, True)


def cancel(definition: Definition, position: Position,
           started: bool) -> Position | None:
    """Return the position after a request to cancel the task.

    :param started: True if the command at *position* was claimed.
    :returns: The new position. None means that the command at *position* must
        end first.
    """
    if position.status is Status.STUCK:
        # A stuck rollback is given up, and the steps before it are still
        # rolled back. If a normal command is stuck, its step is rolled back,
        # too.
        last = position.step - 1 if position.back else position.step
        return roll_back(definition, position, last, True)
    if position.back or started:
        return None
    if position.status is Status.WAITING:
        return position._replace(status=Status.CANCELLED)
    return roll_back(definition, position, position.step - 1, True)


def retry(definition: Definition, position: Position,
          back: bool | None) -> Position | None:
    """Return the position from which a task continues after a retry.

    An operator or a program requests the retry. A stuck task continues with
    the command that is stuck. A task that failed or was cancelled starts again
    at its first step, because its steps were rolled back.

    :param back: True rolls back the stuck step and the steps before it. False
        runs the normal command of the stuck step, and then the steps after it.
        None keeps the direction in which the task is stuck.
    :returns: The new position. None means that the task cannot be retried.
    """
    if position.status in (Status.FAILED, Status.CANCELLED) and not back:
        return START
    if position.status is not Status.STUCK:
        return None
    if position.back if back is None else back:
        return roll_back(definition, position, position.step, False)
    return Position(Status.RUNNING, position.cursor, position.step)
