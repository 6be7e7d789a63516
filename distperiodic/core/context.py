# SPDX-License-Identifier: Apache-2.0
"""What a handler is told about its run."""

import datetime
import json
from collections.abc import Callable
from typing import Any

from distperiodic import exceptions
from distperiodic.core import schedule

#: Characters of what a run says of itself, as JSON.
MAX_PROGRESS = 64 * 1024


class Context:
    """The first argument of every handler.

    Made once for each run; a handler may keep it for the time of the run.
    """

    __slots__ = ('job', 'object', 'fence', 'attempt', 'cancelled',
                 '_tick', '_deadline', '_held', '_finish', '_progress',
                 '_unsaved')

    def __init__(self, job: str, object_id: str, tick: int, fence: int,
                 attempt: int, deadline: int | None = None,
                 held: Callable[[], bool] = lambda: True,
                 finish: Callable[[str, Any], None] | None = None,
                 progress: Any = None):
        #: Name of the job.
        self.job = job
        #: Id of the object; of a job without objects, its one claim's key.
        self.object = object_id
        #: Grows with every grant of (job, object); a store that compares it
        #: can refuse a run that was replaced.
        self.fence = fence
        #: 1 for the first run of this tick.
        self.attempt = attempt
        #: True once the run's result will not count: it took longer than the
        #: job's timeout, or the process stops. A long handler looks at it.
        self.cancelled = False
        self._progress = progress
        self._unsaved: str | None = None
        self._held = held
        self._finish = finish
        self._tick = tick
        self._deadline = deadline

    @property
    def tick(self) -> datetime.datetime:
        """The point of the job's grid that this run is for, in UTC. Not the
        time at which it runs.
        """
        return schedule.datetime_of(self._tick)

    @property
    def deadline(self) -> datetime.datetime | None:
        """When the run is given up, in UTC; None: the job has no timeout."""
        if self._deadline is None:
            return None
        return schedule.datetime_of(self._deadline)

    @property
    def progress(self) -> Any:
        """How far this tick's work came: what this run assigned last, else
        what an earlier attempt did; None: nothing.

        What is assigned is saved within a second or two while the run goes
        on, and at once where it fails, so that the next attempt can go on
        from there, on whatever worker. It is any value that JSON can say, of
        64 KiB at the most. Without a store nobody saves it.

        :raises InvalidProgress: it cannot be saved.
        """
        return self._progress

    @progress.setter
    def progress(self, value: Any) -> None:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise exceptions.InvalidProgress(
                f'job {self.job!r} object {self.object!r}: progress is '
                f'{type(value).__name__}, and JSON cannot say it ({exc}); '
                'assign numbers, text, lists and dictionaries') from None
        if len(text) > MAX_PROGRESS:
            raise exceptions.InvalidProgress(
                f'job {self.job!r} object {self.object!r}: progress has '
                f'{len(text)} characters as JSON, of at most {MAX_PROGRESS}; '
                'keep the data elsewhere, and where it is in progress')
        self._progress, self._unsaved = value, text

    def take_unsaved(self) -> str | None:
        """What was assigned since the last call, as JSON; None: nothing. For
        whoever saves it.
        """
        text, self._unsaved = self._unsaved, None
        return text

    def still_mine(self) -> bool:
        """Whether nobody else may run this now: the run is not cancelled,
        and this process still trusts its lease, or without a store its place
        in the group. A handler asks before an effect that cannot be undone;
        it costs no request. A process that was stopped for a while finds
        out here.
        """
        return not self.cancelled and self._held()

    def finish(self, session: Any) -> None:
        """End this run in *session*'s transaction, together with its effect:
        both are committed, or none is. Call it last, and commit.

        :param session: an SQLAlchemy session or connection to the database
            that ``connection`` names.
        :raises RunReplaced: the run is somebody else's by now; roll back.
        :raises ConfigError: there is no store, or the session is of another
            database than the store.
        """
        if self._finish is None:
            raise exceptions.ConfigError(
                f'job {self.job!r}: context.finish() ends a claim in the '
                'database that holds it, and there is none; set '
                '[distperiodic] connection')
        self._finish(self.object, session)

    @property
    def key(self) -> str:
        """The same for every attempt of one tick of one object: what a
        service that knows idempotency keys wants to be given.
        """
        return f'{self.job}/{self.object}/{self._tick}'

    def __repr__(self) -> str:
        return (f'<Context job={self.job} object={self.object} '
                f'tick={self.tick.isoformat()} attempt={self.attempt}>')
