# SPDX-License-Identifier: Apache-2.0
"""Contexts for tests that call a handler directly."""

import datetime
from typing import Any

from distperiodic import exceptions
from distperiodic.core.claim import first_fence
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.workflow import DEFAULT_TIMEOUT
from distperiodic.core.workflow import StepInput
from distperiodic.testing.clock import instant_of

_TICK = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def make_context(job: str, object_id: str | int = '', *,
                 tick: datetime.datetime = _TICK, attempt: int = 1,
                 fence: int | None = None,
                 deadline: datetime.datetime | None = None,
                 current: bool = True, progress: Any = None,
                 task: str | None = None, step: int = 0,
                 rollback: bool = False, failure: str = '') -> Context:
    """Return a context with which a test can call a handler.

    :param job: Name of the job. For a step of a task, this is the command, as
        ``module.command``.
    :param object_id: Id of the object. Omit it for a job without objects, and
        for a step.
    :param tick: Aware datetime of the tick.
    :param attempt: Number of the attempt, from 1.
    :param fence: Fence of the claim. None means the first fence of *tick*.
    :param deadline: Aware datetime at which the run is cancelled. None means
        that the job has no timeout.
    :param current: Value that ``is_current()`` returns. False simulates that
        another process has taken over the run; ``finish()`` then raises
        RunReplaced.
    :param progress: Progress that an earlier attempt saved.
    :param task: Id of the task whose step runs. None means that the job is
        periodic.
    :param step: Index of the step, from 0.
    :param rollback: True if the run is the rollback of the step.
    :param failure: Value of ``context.failure`` in a rollback.
    :raises ValueError: *tick* or *deadline* has no time zone, or both
        *object_id* and *task* are given.
    """
    instant = instant_of('tick', tick)
    name, object_name = job, str(object_id)
    of_step: StepInput | None = None
    if task is not None:
        if object_name:
            raise ValueError(f'object_id is {object_id!r}, but the object of '
                             f'a step is its task, {task!r}; omit object_id')
        name, object_name = f'{COMMAND_PREFIX}{job}', task
        of_step = StepInput(task, step, rollback, DEFAULT_TIMEOUT, {},
                            failure=failure if rollback else None)

    def finish(key: str, session: Any, result: str | None) -> None:
        if not current:
            raise exceptions.RunReplaced(
                f'job {name!r} object {key!r}: another process has taken over '
                'the run')
    return Context(
        RunInput(
            name, object_name, instant,
            first_fence(instant) if fence is None else fence, attempt,
            None if deadline is None else instant_of('deadline', deadline),
            of_step),
        held=lambda: current, finish=finish, progress=progress)
