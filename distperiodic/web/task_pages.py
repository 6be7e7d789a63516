# SPDX-License-Identifier: Apache-2.0
"""The page of a task: its position, its steps, and why it waits."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.operator import bulk_tasks
from distperiodic.operator import task_answers
from distperiodic.web.page import NotFound
from distperiodic.web.page import Page
from distperiodic.web.page import PageRequest
from distperiodic.web.page import record


class StepMark(NamedTuple):
    """A command of a step, as the page draws it."""

    here: bool
    back: bool
    command: str
    state: str


def task(request: PageRequest, task: str) -> Page:
    """Return the page of a task.

    :raises NotFound: there is no such task.
    """
    try:
        look = task_answers.answer(request.sources, task)
    except exceptions.UnknownTask as exc:
        raise NotFound(str(exc)) from exc
    settings = request.sources.settings
    drawn = list(task_answers.drawn(look))
    facts = {name.replace('_', ' '): value
             for name, value in task_answers.facts(
                 look, settings, True).items() if value != ''}
    fields = task_answers.facts(look, settings, False) | {
        'steps': task_answers.steps(look.task)}
    return Page(task, 'task.html', {
        'facts': facts, 'why': facts.pop('why', ''),
        'titles': task_answers.STEPS, 'rows': drawn,
        'marks': [_mark(row) for row in drawn]},
        record(fields), 'tasks', [
            *(request.button('task retry', task=task)
              if look.task.status in bulk_tasks.RETRIABLE else []),
            *(request.button('task cancel', task=task)
              if look.task.status in bulk_tasks.CANCELLABLE else [])])


def _mark(row: Sequence[Any]) -> StepMark:
    here, _, command, state, *_ = row
    name = str(command)
    return StepMark(bool(here), name.startswith('undo: '),
                    name.removeprefix('undo: ').removesuffix(
                        ' (no rollback)'), str(state))
