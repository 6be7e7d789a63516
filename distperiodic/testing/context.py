# SPDX-License-Identifier: Apache-2.0
"""Contexts for tests that call a handler directly."""

import datetime
from typing import Any

from distperiodic import exceptions
from distperiodic.core.claim import first_fence
from distperiodic.core.context import Context
from distperiodic.testing.clock import instant_of

_TICK = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def make_context(job: str, object_id: str | int = '', *,
                 tick: datetime.datetime = _TICK, attempt: int = 1,
                 fence: int | None = None,
                 deadline: datetime.datetime | None = None,
                 current: bool = True, progress: Any = None) -> Context:
    """Return a context as a handler receives it.

    :param job: Name of the job.
    :param object_id: Id of the object. Empty for a job without objects.
    :param tick: Aware datetime of the tick.
    :param attempt: Number of the attempt, from 1.
    :param fence: Fencing token. None means the first fence of *tick*.
    :param deadline: Aware datetime at which the run is cancelled. None means
        that the job has no timeout.
    :param current: Value that ``is_current()`` returns. False simulates a
        process that was frozen and replaced; ``finish()`` then raises
        RunReplaced.
    :param progress: Progress that an earlier attempt saved.
    :raises ValueError: *tick* or *deadline* has no time zone.
    """
    instant = instant_of('tick', tick)

    def finish(key: str, session: Any, result: str | None) -> None:
        if not current:
            raise exceptions.RunReplaced(
                f'job {job!r} object {key!r}: another process has taken over '
                'the run')
    return Context(
        job, str(object_id), instant,
        first_fence(instant) if fence is None else fence, attempt,
        None if deadline is None else instant_of('deadline', deadline),
        held=lambda: current, finish=finish, progress=progress)
