# SPDX-License-Identifier: Apache-2.0
"""The context that a handler receives for its run."""

import datetime
import json
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import schedule
from distperiodic.core import task_values
from distperiodic.core import values
from distperiodic.core.workflow import StepInput

#: Maximum number of characters of a run's progress, as JSON.
MAX_PROGRESS = 64 * 1024


class RunInput(NamedTuple):
    """Input of one attempt to run an object for a tick."""

    #: Name of the job.
    job: str
    #: Id of the object; see :attr:`Context.object`.
    object: str
    tick: schedule.Instant
    fence: int
    #: Number of the attempt, from 1.
    attempt: int
    #: Instant at which the run is cancelled. None means no limit.
    deadline: schedule.Instant | None = None
    #: Step of a task that runs. None in a periodic job.
    step: StepInput | None = None


class Context:
    """First argument of every handler.

    Each run has its own context. A handler may use the context until the run
    ends.

    :param held: Returns whether no other process can have taken over the run.
    :param finish: Ends the run in the handler's own transaction. The arguments
        are the id of the object, the session and the result of a command as
        JSON. None means that there is no store.
    :param progress: Progress that an earlier attempt saved.
    """

    __slots__ = ('job', 'object', 'fence', 'attempt', 'cancelled', '_step',
                 '_tick', '_deadline', '_held', '_finish', '_progress',
                 '_unsaved')

    def __init__(self, run: RunInput, *,
                 held: Callable[[], bool] = lambda: True,
                 finish: Callable[[str, Any, str | None], None] | None = None,
                 progress: Any = None):
        #: Name of the job.
        self.job = run.job
        #: Id of the object. In a step of a task, this is the id of the task.
        #: In any other job without objects, it is the key of the job's only
        #: claim.
        self.object = run.object
        #: Fencing token. Every claim of the object has a greater token than
        #: the previous claim. So a resource that records the highest token can
        #: reject the writes of a run that another process has taken over.
        self.fence = run.fence
        #: Number of this attempt, from 1. The number also counts attempts at
        #: an earlier tick, if this tick superseded that tick, or if that tick
        #: used all its attempts without success.
        self.attempt = run.attempt
        #: True if the result of the run will be ignored, because the run has
        #: exceeded its timeout, because the process stops, or because another
        #: worker may have become the active worker of the partition. In a
        #: handler process, the attribute is also true if the lease was lost.
        #: In a step of a task, it is also true some seconds after the task was
        #: cancelled; then the result counts, and the rollback begins with this
        #: step. A long-running handler should check this attribute, and return
        #: early if it is true.
        self.cancelled = False
        self._step = run.step
        self._progress = progress
        self._unsaved: str | None = None
        self._held = held
        self._finish = finish
        self._tick = run.tick
        self._deadline = run.deadline

    @property
    def task(self) -> str | None:
        """Id of the task whose step runs. None in a periodic job."""
        return None if self._step is None else self._step.task

    @property
    def step(self) -> int | None:
        """Index of the step that runs, from 0. None in a periodic job."""
        return None if self._step is None else self._step.step

    @property
    def rollback(self) -> bool:
        """True if this run rolls back the step."""
        return self._step is not None and self._step.rollback

    @property
    def failure(self) -> str | None:
        """Reason why the task is rolled back, as text. None in other runs.

        If a step has failed, the text is the name of its command and the error
        of its last run: ``'mysql.init_instance: no host has room'``. If the
        task was cancelled, the text begins with ``'cancelled: '``, followed by
        the user and the reason of the cancellation.
        """
        return None if self._step is None else self._step.failure

    @property
    def tick(self) -> datetime.datetime:
        """Tick of this run, in UTC. The run itself may start later."""
        return schedule.datetime_of(self._tick)

    @property
    def deadline(self) -> datetime.datetime | None:
        """Time at which the run is cancelled, in UTC. None means no limit."""
        if self._deadline is None:
            return None
        return schedule.datetime_of(self._deadline)

    @property
    def progress(self) -> Any:
        """Progress of the work for this tick.

        This is the last value that this run assigned. If this run has assigned
        no value, it is the value that an earlier attempt saved. None means
        that no progress is known.

        A handler may assign any value that JSON can represent, of at most
        64 KiB as JSON, with the limits of parameters. The value is saved
        within a second or two, and at once if the run fails. So the next
        attempt can continue from this value, on any worker. Without a store,
        progress is not saved.

        :raises InvalidProgress: The assigned value cannot be saved.
        """
        return self._progress

    @progress.setter
    def progress(self, value: Any) -> None:
        try:
            text = values.json_text(value, MAX_PROGRESS)
        except values.InvalidValue as exc:
            raise exceptions.InvalidProgress(
                f'job {self.job!r} object {self.object!r}: progress of type '
                f'{values.kind_of(value)} cannot be saved: {exc}') from None
        self._progress, self._unsaved = value, text

    def take_unsaved(self) -> str | None:
        """Return the progress that has not been saved yet, as JSON text.

        The worker calls this method to save the progress. None means that no
        value was assigned since the last call.
        """
        text, self._unsaved = self._unsaved, None
        return text

    def receive_progress(self, text: str) -> None:
        """Record progress that the handler assigned in another process.

        :param text: The progress as JSON.
        """
        self._progress, self._unsaved = json.loads(text), text

    def is_current(self) -> bool:
        """Return whether this process alone may run this object and tick now.

        The result is true while the run is not cancelled and this process can
        trust its lease or, without a store, its membership. Call this method
        before an effect that cannot be undone. The call sends no request. If
        the lease expired while the process was suspended, the result is false.
        """
        return not self.cancelled and self._held()

    def finish(self, session: Any,
               result: Mapping[str, Any] | None = None) -> None:
        """End this run in the transaction of *session*.

        The database then commits the effects of the run and the end of the run
        together, or neither of them. Make this the last call before the
        commit.

        :param session: SQLAlchemy session or connection to the database that
            the option ``connection`` names.
        :param result: Values that a command merges into the parameters of
            later steps. A value that the command returns after this call is
            ignored.
        :raises InvalidTask: *result* cannot be stored.
        :raises RunReplaced: Another process has taken over the run. Roll back
            the transaction.
        :raises ConfigError: There is no store, or the session belongs to a
            database other than the store's.
        """
        if self._finish is None:
            raise exceptions.ConfigError(
                f'job {self.job!r}: context.finish() needs a database that '
                'holds the claims; set [distperiodic] connection')
        self._finish(self.object, session, None if self._step is None
                     else task_values.result_text(result))

    @property
    def key(self) -> str:
        """Idempotency key of the run.

        All attempts to run an object for a tick have the same key.

        In a step of a task, the key is the same for all runs of the command.
        The rollback of the step has another key. If a task is retried after
        some of its steps were rolled back, all of its steps get new keys.
        """
        if self._step is not None:
            direction = 'rollback' if self._step.rollback else 'normal'
            again = (f'/retry-{self._step.restarts}'
                     if self._step.restarts else '')
            return f'{self._step.task}/{self._step.step}/{direction}{again}'
        return f'{self.job}/{self.object}/{self._tick}'

    def __repr__(self) -> str:
        return (f'<Context job={self.job} object={self.object} '
                f'tick={self.tick.isoformat()} attempt={self.attempt}>')
