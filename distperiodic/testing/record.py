# SPDX-License-Identifier: Apache-2.0
"""Record of all runs, and assertions about these runs."""

import dataclasses
import datetime
from collections.abc import Callable
from collections.abc import Iterable

#: Maximum number of runs that a failed assertion prints.
_SHOWN = 20


@dataclasses.dataclass
class Run:
    """One run of a handler."""

    #: Wall-clock time at which the handler was called, in UTC.
    at: datetime.datetime
    job: str
    object: str
    #: The tick of the run, in UTC.
    tick: datetime.datetime
    attempt: int
    fence: int
    #: Name of the member that called the handler.
    member: str
    #: 'running' until the handler ends, and then 'done' or 'failed'.
    outcome: str = 'running'
    #: The exception that the handler raised. None means that the handler has
    #: not raised an exception.
    error: BaseException | None = None

    def __str__(self) -> str:
        error = '' if self.error is None else f' error={self.error!r}'
        return (f'{self.at:%H:%M:%S.%f} {self.job} {self.object} '
                f'tick={self.tick:%H:%M:%S} attempt={self.attempt} '
                f'member={self.member} {self.outcome}{error}')


class Record:
    """All runs, oldest first."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def find(self, job: str, object_id: str | int | None,
             tick: datetime.datetime | None) -> list[Run]:
        """Return the runs of *job* for an object and a tick.

        :param object_id: Id of the object. None means all objects.
        :param tick: The tick. None means all ticks.
        """
        return [run for run in self.runs if run.job == job
                and (object_id is None or run.object == str(object_id))
                and tick in (None, run.tick)]

    def check(self, holds: bool, expected: Callable[[], str],
              job: str) -> None:
        """Check that *holds* is true.

        :param expected: Function that returns the beginning of the error
            message. The rest of the message lists the runs of *job*.
        :raises AssertionError: *holds* is false.
        """
        if holds:
            return
        raise AssertionError('\n'.join([
            expected(), *_lines([r for r in self.runs if r.job == job])]))


def _lines(runs: Iterable[Run]) -> list[str]:
    lines = [f'  {run}' for run in runs]
    if not lines:
        return ['  no run of this job']
    left = len(lines) - _SHOWN
    return lines[-_SHOWN:] if left <= 0 else [
        f'  {left} earlier runs', *lines[-_SHOWN:]]
