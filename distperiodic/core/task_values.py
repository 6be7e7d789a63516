# SPDX-License-Identifier: Apache-2.0
"""Checks of the values of tasks: names, parameters and results."""

import json
import re
from collections.abc import Mapping
from typing import Any

from distperiodic.core import values
from distperiodic.core.values import shown
from distperiodic.exceptions import InvalidTask

#: Maximum number of characters of the name of a module, a command or a type.
MAX_NAME = 90
#: Maximum number of characters of the parameters of a task, as JSON.
MAX_PARAMETERS = 1_000_000
_MODULE = re.compile('[A-Za-z0-9_-]+')


def name_problem(value: object, module: bool = False) -> str:
    """Return the reason why *value* is not a valid name.

    The name is that of a type, a command or a module.

    :param module: True if *value* names a module. Fewer different characters
        are then allowed, because the name of a module becomes part of queue
        names, and of section names in the configuration.
    :returns: A text with the value and the remedy. Empty means that *value* is
        valid.
    """
    letters = 'from A-Z a-z 0-9 _ -' if module else 'that are printable'
    remedy = f'give 1 to {MAX_NAME} characters {letters}'
    if not isinstance(value, str):
        return f'{shown(value)}, which is not text; {remedy}, in quotes'
    text = str.__str__(value)
    legal = 0 < len(text) <= MAX_NAME and (
        _MODULE.fullmatch(text) is not None if module
        else text.isprintable())
    if not legal:
        return f'{shown(value)}; {remedy}'
    if text != text.strip():
        return (f'{shown(value)}, which begins or ends with a space; remove '
                'the space')
    return ''


def parameters_text(parameters: Mapping[Any, Any]) -> str:
    """Return the JSON text of the parameters of a task, with sorted keys.

    :raises InvalidTask: A task cannot have these parameters.
    """
    try:
        return values.json_text(
            _dict_of(parameters), MAX_PARAMETERS, sort_keys=True)
    except values.InvalidValue as exc:
        raise InvalidTask(f'cannot be written as JSON: {exc}') from None


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
            f'the command returned {shown(result)}; return a dictionary, to '
            'merge into the parameters of later steps, or None')
    try:
        return values.json_text(_dict_of(result), MAX_PARAMETERS)
    except values.InvalidValue as exc:
        raise InvalidTask(
            'the values that the command returned cannot be written as JSON: '
            f'{exc}') from None


def merge_problem(parameters: Mapping[str, Any],
                  result: Mapping[str, Any]) -> str:
    """Return the reason why a result cannot be merged into the parameters.

    :param parameters: Parameters of the task, which were checked.
    :param result: Result of a step, which was checked.
    :returns: The problem and the remedy. Empty means that they can be merged.
    """
    size = len(json.dumps({**parameters, **result}))
    if size <= MAX_PARAMETERS:
        return ''
    return ('the parameters of the task, merged with the result of this step: '
            + values.too_large(str(size), MAX_PARAMETERS))


def _dict_of(given: Mapping[Any, Any]) -> dict[Any, Any]:
    if isinstance(given, dict):
        return given
    try:
        return dict(given)
    except Exception as exc:
        raise values.InvalidValue(
            f'the {values.kind_of(given)} cannot be read '
            f'({values.kind_of(exc)}); use a dictionary') from None
