# SPDX-License-Identifier: Apache-2.0
"""State machine of a task: it decides which command of a task runs next.

A task executes the steps of its workflow in order. Each step has a normal
command and may have a rollback command. When a step has failed and has no
retry left, the task rolls back this step and then all steps before it, in
reverse order::

    waiting ── claimed ──► running ── last step done ─────────► succeeded
       │                    │  ▲
       │ cancel             │  └── retry ──┐
       ▼                    ▼ step failed  │ lost too often
    cancelled            rolling_back ──► stuck
                            │     └─ rollback failed ─┘
                            ▼ first step rolled back
                         failed, or cancelled on request

This module has no notion of time, workers or leases. The claim of a step
decides from which worker a result is accepted.
"""

import contextlib
import enum
import json
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic.core.job import Delivery
from distperiodic.core.schedule import finite_number
from distperiodic.exceptions import InvalidTask
from distperiodic.exceptions import InvalidWorkflow

#: Default timeout of a command, in seconds.
DEFAULT_TIMEOUT = 300.0
#: Maximum number of steps of a workflow. This limits the size of a task.
MAX_STEPS = 1000
#: Maximum number of characters of a module, a command or a type.
MAX_NAME = 90
#: Maximum number of characters of the parameters of a task, as JSON.
MAX_PARAMETERS = 1_000_000


class Status(enum.StrEnum):
    """Status of a task."""

    #: Not started.
    WAITING = 'waiting'
    #: The task executes its steps.
    RUNNING = 'running'
    #: The task rolls its steps back.
    ROLLING_BACK = 'rolling_back'
    #: All steps are done.
    SUCCEEDED = 'succeeded'
    #: A step failed, and all steps were rolled back.
    FAILED = 'failed'
    #: The task needs an operator: its rollback failed, or a command was lost
    #: with its workers too often.
    STUCK = 'stuck'
    #: An operator cancelled the task, and all steps that had run were rolled
    #: back.
    CANCELLED = 'cancelled'


#: Code of each status, for programs.
CODES = {
    Status.SUCCEEDED: 0, Status.WAITING: 1, Status.RUNNING: 2,
    Status.ROLLING_BACK: 3, Status.FAILED: 4, Status.STUCK: 5,
    Status.CANCELLED: 6,
}
#: Statuses of a task that has ended. Only a retry by an operator changes them.
ENDED = frozenset([Status.SUCCEEDED, Status.FAILED, Status.CANCELLED])


class Outcome(enum.Enum):
    """Outcome of the last run of a command."""

    DONE = 'done'
    #: The command failed, and has no retry left.
    FAILED = 'failed'
    #: The runs of the command were lost with their workers. The maximum number
    #: of attempts is reached.
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
    #: Number of retries of the task by an operator, after some of its steps
    #: were rolled back.
    restarts: int = 0


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


def advance(definition: Definition, position: Position, outcome: Outcome,
            cancelling: bool) -> Position:
    """Return the position after the command at *position* has ended.

    :param cancelling: True if an operator has asked to cancel the task.
    """
    step = position.step
    if outcome is Outcome.LOST or (
            position.back and outcome is Outcome.FAILED):
        return position._replace(status=Status.STUCK)
    if position.back:
        return roll_back(definition, position, step - 1, cancelling)
    if outcome is Outcome.FAILED or cancelling:
        return roll_back(definition, position, step, cancelling)
    if step + 1 == len(definition):
        return position._replace(status=Status.SUCCEEDED)
    following = step + 1
    return Position(Status.RUNNING, max(position.cursor, following), following)


def roll_back(definition: Definition, position: Position, last: int,
              cancelling: bool) -> Position:
    """Return the position at which the rollback of the steps up to *last*
    begins.

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
    :returns: The new position. None means that the command must end first; the
        rollback begins after its end.
    """
    if position.status is Status.STUCK:
        # The stuck rollback is given up. The steps before it are still rolled
        # back.
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

    An operator requests the retry. A stuck task continues with the command
    that is stuck. A task that failed or was cancelled starts again at its
    first step, because all its steps were rolled back.

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


# -- definitions

_ACTION_KEYS = ('module', 'command', 'timeout', 'retry', 'delivery')
_STEP_KEYS = ('normal', 'rollback')
_MODULE = re.compile('[A-Za-z0-9_-]+')
#: Path to a value in a definition, as keys of dictionaries and indexes of
#: lists.
Path = tuple[str | int, ...]
#: Function that returns the place in a file of the value at a path, as
#: ``':LINE:COLUMN'``.
Locate = Callable[[Path], str]


class _Invalid(Exception):
    """An invalid definition, and the path to its invalid part."""

    def __init__(self, path: Path, text: str):
        super().__init__(text)
        self.path = path


def parse_workflows(source: object, where: str = 'workflows',
                    locate: Locate = lambda path: '',
                    ) -> dict[str, Definition]:
    """Return the workflows by type.

    :param source: Dictionary with a list of steps for each type. A step is a
        dictionary with the keys ``normal`` and optionally ``rollback``. Both
        values are dictionaries with the keys ``module`` and ``command``, and
        optionally ``timeout`` (seconds), ``retry`` (number of additional runs
        after a failure) and ``delivery`` (``'at_least_once'`` or
        ``'at_most_once'``).
    :param where: Name of the source, for error messages.
    :param locate: Returns the place of a value in the source, for error
        messages.
    :raises InvalidWorkflow: A definition is invalid. The message names the
        place, the value and the remedy.
    """
    with _refused(where, locate):
        if not isinstance(source, Mapping):
            raise _Invalid((), f'{_shown(source)} is not a dictionary; give '
                           'a list of steps for each type of task')
        found = {}
        for name, steps in source.items():
            if problem := name_problem(name):
                raise _Invalid((), f'the type of task is {problem}')
            found[name] = _definition((name,), steps)
            _check_retries((name,), found[name])
        return found


def parse_definition(steps: object) -> Definition:
    """Return the workflow of a task from its record in the store.

    :raises InvalidWorkflow: This release cannot read the record, which another
        release has written.
    """
    with _refused('workflow of a task', lambda path: ''):
        return _definition(('recorded',), steps)


@contextlib.contextmanager
def _refused(where: str, locate: Locate) -> Iterator[None]:
    """Convert :class:`_Invalid` to :class:`InvalidWorkflow`.

    The message of the new error names the place of the invalid value.
    """
    try:
        yield
    except _Invalid as exc:
        shown = ''.join(f'[{part}]' if isinstance(part, int) else
                        f'.{part}' if at else str(part)
                        for at, part in enumerate(exc.path))
        raise InvalidWorkflow(
            f'{where}{locate(exc.path)}: {shown}{": " if shown else ""}{exc}'
        ) from None


def single(name: str) -> Definition | None:
    """Return the workflow of one step that runs the command *name*.

    :param name: ``module.command``. The module contains no full stop.
    :returns: The workflow. None means that *name* does not have this format.
    """
    module, found, command = name.partition('.')
    if not (found and module and command):
        return None
    try:
        return _definition((name,), [
            {'normal': {'module': module, 'command': command}}])
    except _Invalid:
        return None


def types_by_command(workflows: Mapping[str, Definition]
                     ) -> dict[str, list[str]]:
    """Return the types of task that use each command, by the name of the
    command.
    """
    found: dict[str, list[str]] = {}
    for type_, definition in workflows.items():
        for name in sorted({action.name for step in definition
                            for action in step if action is not None}):
            found.setdefault(name, []).append(type_)
    return found


def as_data(definition: Definition) -> list[dict[str, Any]]:
    """Return *definition* in the form that :func:`parse_workflows` reads."""
    return [{key: {**action._asdict(), 'delivery': action.delivery.value}
             for key, action in zip(_STEP_KEYS, step, strict=True)
             if action is not None} for step in definition]


def _definition(path: Path, steps: object) -> Definition:
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise _Invalid(path, f'{_shown(steps)} is not a list of steps')
    if not steps:
        raise _Invalid(path, 'the list of steps is empty; give at least one')
    if len(steps) > MAX_STEPS:
        raise _Invalid(path, f'{len(steps)} steps, but the limit is '
                       f'{MAX_STEPS}; split the workflow')
    return tuple(_step((*path, at), step) for at, step in enumerate(steps))


def _step(path: Path, step: object) -> StepDefinition:
    found = _mapping(path, step, _STEP_KEYS)
    if 'normal' not in found:
        raise _Invalid(path, "the step has no 'normal' command; give one "
                       'with module and command')
    rollback = found.get('rollback')
    return StepDefinition(
        _action((*path, 'normal'), found['normal']),
        None if rollback is None else _action(
            (*path, 'rollback'), rollback))


def _action(path: Path, source: object) -> Action:
    found = _mapping(path, source, _ACTION_KEYS)
    for key in ('module', 'command'):
        if key not in found:
            raise _Invalid(path, f'{key!r} is missing')
        if problem := name_problem(found[key], key == 'module'):
            raise _Invalid((*path, key), f'the {key} cannot be {problem}')
    timeout = found.get('timeout', DEFAULT_TIMEOUT)
    number = finite_number(timeout)
    if number is None or number <= 0:
        raise _Invalid((*path, 'timeout'), f'{_shown(timeout)} is not a '
                       'valid time limit; give seconds > 0')
    retry = found.get('retry', 0)
    if type(retry) is not int or not 0 <= retry <= 1_000_000:
        raise _Invalid((*path, 'retry'), f'{_shown(retry)} is not a '
                       'valid number of retries; give a whole number from 0 '
                       'to 1000000')
    delivery = found.get('delivery', Delivery.AT_LEAST_ONCE.value)
    if delivery not in tuple(Delivery):
        raise _Invalid((*path, 'delivery'), f'{_shown(delivery)} is unknown; '
                       f'give one of {", ".join(Delivery)}')
    return Action(found['module'], found['command'], number, retry,
                  Delivery(delivery))


def _check_retries(path: Path, definition: Definition) -> None:
    """Check that no command with delivery ``'at_most_once'`` has retries.

    Such a command never runs a second time. Workflows that are recorded in the
    store are not checked: an earlier release accepted them, and their tasks
    must continue.
    """
    for at, step in enumerate(definition):
        for key, action in zip(_STEP_KEYS, step, strict=True):
            if (action is not None and action.retry
                    and action.delivery is Delivery.AT_MOST_ONCE):
                raise _Invalid(
                    (*path, at, key, 'retry'),
                    f'{action.retry} retries contradict delivery '
                    'at_most_once, which never repeats a command; remove '
                    'retry or delivery')


def _mapping(path: Path, source: object,
             keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(source, Mapping):
        raise _Invalid(path, f'{_shown(source)} is not a dictionary with '
                       f'{", ".join(keys)}')
    for key in source:
        if key not in keys:
            raise _Invalid((*path, key), f'unknown key {_shown(key)}; the '
                           f'keys are {", ".join(keys)}')
    return source


def name_problem(value: object, module: bool = False) -> str:
    """Return the reason why *value* cannot name a type, a command or a module.

    :param module: True if *value* names a module. Fewer characters are then
        allowed, because the name of a module is part of the name of a queue
        and of a section of the configuration.
    :returns: The value and the remedy. Empty means that *value* is valid.
    """
    legal = (isinstance(value, str) and 0 < len(value) <= MAX_NAME
             and value.isprintable())
    if legal and module:
        legal = _MODULE.fullmatch(str(value)) is not None
    if legal:
        return ''
    letters = 'from A-Z a-z 0-9 _ -' if module else 'that are printable'
    return f'{_shown(value)}; give 1 to {MAX_NAME} characters {letters}'


def parameters_problem(parameters: Mapping[Any, Any]) -> str:
    """Return the reason why a task cannot have these *parameters*.

    :returns: The problem and the remedy. Empty means that the parameters are
        valid.
    """
    for key in parameters:
        if not isinstance(key, str):
            return (f'have the key {_shown(key)}, which JSON would turn into '
                    'text; use texts as keys')
    try:
        text = json.dumps(dict(parameters), allow_nan=False)
        # A lone surrogate is valid in JSON, but no database stores it.
        if r'\ud' in text:
            json.dumps(dict(parameters), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        return (f'cannot be written as JSON ({_shown(str(exc))}); use '
                'texts, numbers, lists and dictionaries')
    if len(text) > MAX_PARAMETERS:
        return (f'have {len(text)} characters as JSON, but the limit is '
                f'{MAX_PARAMETERS}; store the data elsewhere, and its '
                'location in the parameters')
    return ''


def result_text(result: object) -> str | None:
    """Return the result of a command as JSON text.

    The result is None if the command returned None.

    :raises InvalidTask: The result cannot be merged into the parameters of a
        task.
    """
    if result is None:
        return None
    if not isinstance(result, Mapping):
        raise InvalidTask(
            f'the command returned {_shown(result)}; return a dictionary, to '
            'merge into the parameters of later steps, or None')
    if problem := parameters_problem(result):
        raise InvalidTask(f'the values that the command returned {problem}')
    return json.dumps(dict(result))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f'{text[:57]}...'
