# SPDX-License-Identifier: Apache-2.0
"""Objects that must be judged again when their runs end.

Only the ids of the objects are remembered: the row of an object in the store
shows which ticks it missed meanwhile.
"""

import itertools
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from typing import NamedTuple


class _Waits(NamedTuple):
    """Objects of one job that must be judged again when their runs end."""

    waiting: dict[str, None]
    #: The waiting objects whose runs have ended.
    released: dict[str, None]


_NOTHING_WAITS = _Waits({}, {})


class WaitingObjects:
    """The objects that wait, by job.

    :param piece: Maximum number of objects that are judged at a time.
    """

    def __init__(self, piece: int):
        self._piece = piece
        #: The waiting objects. An entry may be empty until the next sweep.
        self.by_job: dict[str, _Waits] = {}

    def wait(self, job: str, objects: Iterable[str]) -> None:
        """Let *objects* wait for the ends of their runs."""
        self.by_job.setdefault(job, _Waits({}, {})).waiting.update(
            dict.fromkeys(objects))

    def end_wait(self, job: str, objects: Iterable[str]) -> None:
        """Let *objects* wait no longer."""
        waiting, _ = self.by_job.get(job, _NOTHING_WAITS)
        for key in objects:
            waiting.pop(key, None)

    def forget(self, job: str) -> None:
        """Forget the objects of *job*."""
        self.by_job.pop(job, None)

    def release(self, job: str, objects: Iterable[str]) -> None:
        """Record that runs of *objects*, of which some may wait, ended."""
        waiting, released = self.by_job.get(job, _NOTHING_WAITS)
        if waiting:
            released.update(
                (key, None) for key in objects if key in waiting)

    def release_swept(
            self, own: Callable[[str], Container[str]]) -> None:
        """Release the objects whose runs may have ended without a report.

        :param own: Returns the objects of a job that this scheduler has in
            flight.
        """
        self.by_job = {
            name: waits for name, waits in self.by_job.items() if any(waits)}
        for name, (waiting, released) in self.by_job.items():
            # If many objects wait, most of them wait for runs of this
            # scheduler, whose ends are reported to this process. A report can
            # be lost, so release some of these objects, too.
            known = own(name) if len(waiting) > self._piece else ()
            some = list(itertools.islice(
                (key for key in waiting if key in known), self._piece))
            released.update((key, None) for key in itertools.chain(
                (key for key in waiting if key not in known), some))
            for key in some:
                # Release the other objects at the next sweep.
                waiting[key] = waiting.pop(key)

    def released_jobs(self) -> list[str]:
        """Return the jobs that have released objects."""
        return [name for name, (_, released) in self.by_job.items()
                if released]

    def take_released(self, job: str) -> list[str]:
        """Return the next piece of the released objects of *job*.

        The objects wait until :meth:`end_wait`, but are not released any more.
        """
        _, released = self.by_job[job]
        piece = list(itertools.islice(released, self._piece))
        for key in piece:
            del released[key]
        return piece
