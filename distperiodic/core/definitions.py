# SPDX-License-Identifier: Apache-2.0
"""Definitions of workflows: how they are read, checked and recorded.

Error messages name the place of the invalid value, the value and the remedy.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic.core.job import Delivery
from distperiodic.core.schedule import LONGEST_S
from distperiodic.core.schedule import finite_number
from distperiodic.core.task_values import name_problem
from distperiodic.core.values import shown
from distperiodic.core.workflow import DEFAULT_TIMEOUT
from distperiodic.core.workflow import Action
from distperiodic.core.workflow import Definition
from distperiodic.core.workflow import StepDefinition
from distperiodic.exceptions import InvalidWorkflow

#: Maximum number of steps of a workflow. This limits the size of a task.
MAX_STEPS = 1000
_TIMEOUTS = f'give seconds > 0 and up to {LONGEST_S} (a hundred years)'
_ACTION_KEYS = ('module', 'command', 'timeout', 'retry', 'delivery')
_STEP_KEYS = ('normal', 'rollback')
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
            raise _Invalid((), f'{shown(source)} is not a dictionary; give '
                           'a list of steps for each type of task')
        found = {}
        for name, steps in source.items():
            if problem := name_problem(name):
                raise _Invalid((name,), f'the type of task is {problem}')
            found[name] = _definition((name,), steps)
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
        place = ''.join(f'[{part}]' if isinstance(part, int) else
                        f'.{_key(part)}' if at else _key(part)
                        for at, part in enumerate(exc.path))
        raise InvalidWorkflow(
            f'{where}{locate(exc.path)}: {place}{": " if place else ""}{exc}'
        ) from None
    except Exception as exc:
        # A program may define a workflow by objects with their own methods.
        raise InvalidWorkflow(
            f'{where}: the values cannot be read ({type(exc).__name__}); use '
            'dictionaries, lists, text and numbers') from None


def _key(part: object) -> str:
    """Return a key of a dictionary for an error message."""
    return (str.__str__(part)
            if isinstance(part, str) and not name_problem(part)
            else shown(part))


def single(name: str) -> Definition:
    """Return the workflow of one step that runs the command *name*.

    :param name: A name for which :func:`single_problem` returns no problem.
    """
    module, _, command = name.partition('.')
    return (StepDefinition(Action(module, command)),)


def single_problem(name: str) -> str:
    """Return the reason why *name* is not ``module.command``.

    The module contains no full stop.

    :returns: The invalid part and the remedy. Empty means that *name* is
        valid.
    """
    module, found, command = name.partition('.')
    if not found:
        return 'the type has no full stop'
    for what, value in (('module', module), ('command', command)):
        if problem := name_problem(value, what == 'module'):
            return f'the {what} is {problem}'
    return ''


def types_by_command(workflows: Mapping[str, Definition]
                     ) -> dict[str, list[str]]:
    """Return, for each name of a command, the types of task that use it."""
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
        raise _Invalid(path, f'{shown(steps)} is not a list of steps; give a '
                       'list of dictionaries, each with normal and optionally '
                       'rollback')
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
            raise _Invalid(path, f'{key!r} is missing; give the name of the '
                           + ('module whose workers run the command'
                              if key == 'module' else
                              'command within its module'))
        if problem := name_problem(found[key], key == 'module'):
            raise _Invalid((*path, key), f'the {key} cannot be {problem}')
    timeout = found.get('timeout', DEFAULT_TIMEOUT)
    _refuse_text((*path, 'timeout'), timeout)
    number = finite_number(timeout)
    if number is None or number <= 0:
        raise _Invalid((*path, 'timeout'), f'{shown(timeout)} is not a '
                       f'valid time limit; {_TIMEOUTS}')
    if number > LONGEST_S:
        raise _Invalid((*path, 'timeout'),
                       f'{number:g} is too large; {_TIMEOUTS}')
    retry = found.get('retry', 0)
    _refuse_text((*path, 'retry'), retry)
    if type(retry) is not int or not 0 <= retry <= 1_000_000:
        raise _Invalid((*path, 'retry'), f'{shown(retry)} is not a '
                       'valid number of retries; give a whole number from 0 '
                       'to 1000000')
    delivery = found.get('delivery', Delivery.AT_LEAST_ONCE.value)
    if delivery not in tuple(Delivery):
        raise _Invalid((*path, 'delivery'), f'{shown(delivery)} is unknown; '
                       f'give one of {", ".join(Delivery)}')
    if retry and delivery == Delivery.AT_MOST_ONCE:
        raise _Invalid(
            (*path, 'retry'), f'{retry} retries contradict delivery '
            'at_most_once, which never repeats a command; remove retry or '
            'delivery')
    return Action(found['module'], found['command'], number, retry,
                  Delivery(delivery))


def _refuse_text(path: Path, value: object) -> None:
    """Reject text where a number is required.

    YAML reads some numbers with an exponent as text.
    """
    if isinstance(value, str):
        raise _Invalid(path, f'{shown(value)} is text, not a number; write '
                       'digits without quotes and without an exponent, such '
                       'as 300')


def _mapping(path: Path, source: object,
             keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(source, Mapping):
        raise _Invalid(path, f'{shown(source)} is not a dictionary; give one '
                       f'with the keys {", ".join(keys)}')
    for key in source:
        if key not in keys:
            raise _Invalid((*path, key), f'unknown key {shown(key)}; the '
                           f'keys are {", ".join(keys)}')
    return source
