# SPDX-License-Identifier: Apache-2.0
"""A task to submit, and the comparison of tasks with the same key."""

import hashlib
import json
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import definitions
from distperiodic.core import workflow


class NewTask(NamedTuple):
    """A task to submit."""

    id: str
    type: str
    definition: workflow.Definition
    #: JSON text of a dictionary, with sorted keys.
    parameters: str
    key: str | None
    queue: str | None
    #: Earliest instant at which the first step may start. None means at once.
    due: int | None
    priority: int
    #: Trace context of the submitter's span. None means that it had none.
    trace: str | None = None


def digest(task: NewTask) -> str | None:
    """Return the SHA-256 digest of the task's type, queue and parameters.

    The digest is hexadecimal. Return None if the task has no key.
    """
    if task.key is None:
        return None
    return hashlib.sha256(
        f'{task.type}\0{task.queue}\0{task.parameters}'.encode()).hexdigest()


def check_same(task: NewTask, row: Any) -> None:
    """Check that *task* and the stored task with the same key are alike.

    :param row: Id, type and digest of the stored task.
    :raises InvalidTask: The tasks differ in type, queue or parameters.
    """
    if row.id != task.id and row.digest != digest(task):
        raise exceptions.InvalidTask(
            f'key {task.key!r} belongs to task {row.id!r}, of type '
            f'{row.type!r}, which was submitted with another type, queue or '
            'parameters; choose another key')


def check_alike(first: NewTask, task: NewTask) -> None:
    """Check that two tasks of one call with the same key are alike.

    :raises InvalidTask: The tasks differ in type, queue or parameters.
    """
    if digest(first) != digest(task):
        raise exceptions.InvalidTask(
            f'two tasks of one call have the key {task.key!r}, but differ in '
            'type, queue or parameters; give each its own key')


_texts: dict[workflow.Definition, str] = {}


def definition_text(definition: workflow.Definition) -> str:
    """Return the JSON text of a workflow."""
    text = _texts.get(definition)
    if text is None:
        if len(_texts) > 1000:
            _texts.clear()
        text = _texts[definition] = json.dumps(definitions.as_data(definition))
    return text
