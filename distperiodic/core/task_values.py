# SPDX-License-Identifier: Apache-2.0
"""Checks of the values of tasks: names, parameters and results."""

import json
import re
from collections.abc import Mapping
from typing import Any

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
    if problem := recorded_name_problem(value, module):
        return problem
    if value != str(value).strip():
        return (f'{shown(value)}, which begins or ends with a space; remove '
                'the space')
    return ''


def recorded_name_problem(value: object, module: bool = False) -> str:
    """Return the result of :func:`name_problem` for a name from the store.

    An earlier release accepted names that begin or end with a space. Tasks
    with such names must remain readable.
    """
    letters = 'from A-Z a-z 0-9 _ -' if module else 'that are printable'
    remedy = f'give 1 to {MAX_NAME} characters {letters}'
    if not isinstance(value, str):
        return f'{shown(value)}, which is not text; {remedy}, in quotes'
    legal = 0 < len(value) <= MAX_NAME and (
        _MODULE.fullmatch(value) is not None if module
        else value.isprintable())
    return '' if legal else f'{shown(value)}; {remedy}'


def parameters_problem(parameters: Mapping[Any, Any]) -> str:
    """Return the reason why a task cannot have these *parameters*.

    :returns: The problem and the remedy. Empty means that the parameters are
        valid.
    """
    for key in parameters:
        if not isinstance(key, str):
            return (f'have the key {shown(key)}, which JSON would turn into '
                    'text; use strings as keys')
    try:
        text = json.dumps(dict(parameters), allow_nan=False)
        # A lone surrogate is valid in JSON, but no database stores it.
        if r'\ud' in text:
            json.dumps(dict(parameters), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        return (f'cannot be written as JSON ({shown(str(exc))}); use '
                'strings, numbers, lists and dictionaries')
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
            f'the command returned {shown(result)}; return a dictionary, to '
            'merge into the parameters of later steps, or None')
    if problem := parameters_problem(result):
        raise InvalidTask(f'the values that the command returned {problem}')
    return json.dumps(dict(result))


def shown(value: object) -> str:
    """Return *value* for an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f'{text[:57]}...'
