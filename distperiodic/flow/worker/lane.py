# SPDX-License-Identifier: Apache-2.0
"""What a worker has in hand: batches by job, and the runs of its threads.

    Lane (a job) ── Load (a batch) ── part ──► a thread, Running

What a run came to stands in its load at once, so that nothing is lost with a
thread that never comes back.
"""

import collections
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from distperiodic.core import context as context_
from distperiodic.core import job as job_
from distperiodic.core import message
from distperiodic.core.refusal import Refusal

_Item = TypeVar('_Item')


class Runner(Protocol):
    """Who runs what lanes give out."""

    def part_size(self, job: str) -> int:
        """How many runs of *job* one thread takes at a time."""

    def run(self, load: 'Load', part: 'collections.deque[int]') -> None:
        """Run a part of *load* to its end."""


class Failed(NamedTuple):
    """A run that raised, or whose time was over."""

    #: Its index in the batch.
    at: int
    error: str
    traceback: str = ''
    #: What the run said of itself and was not saved yet.
    progress: str | None = None


class Refused(NamedTuple):
    """A run that did not begin."""

    #: Its index in the batch.
    at: int
    refusal: Refusal


class Load:
    """One batch at this worker, with what is left of it."""

    __slots__ = ('batch', 'job', 'lane', 'left', 'over', 'queue',
                 'reported', 'seconds')

    def __init__(self, batch: message.Batch, lane: 'Lane'):
        self.batch = batch
        self.lane = lane
        self.job = lane.job
        #: Indexes that nobody has taken.
        self.queue: collections.deque[int] = collections.deque(
            range(len(batch.objects)))
        #: How many were not reported yet.
        self.left = len(batch.objects)
        #: What they came to and was not reported yet: an index that is
        #: done, or what became of it. Threads append without a lock.
        self.over: collections.deque[int | Failed | Refused] = (
            collections.deque())
        self.seconds = 0.0
        self.reported = 0.0


#: A batch, and the indexes of it that one thread runs.
Part = tuple[Load, collections.deque[int]]
#: A batch, the index of it that is run, and what its handler was given.
Run = tuple[Load, int, context_.Context]


class Lane:
    """The batches of one job, oldest first. Jobs take turns in the pool, and
    not batches: the job with the most would have the most turns.
    """

    __slots__ = ('handler', 'job', 'loads', 'runner')

    def __init__(self, job: job_.Job, handler: Callable[..., Any],
                 runner: Runner):
        self.job = job
        self.handler = handler
        self.runner = runner
        self.loads: collections.deque[Load] = collections.deque()

    def take(self) -> 'tuple[Part | None, bool]':
        """The next part for a thread, and whether there is another."""
        loads = self.loads
        while loads:
            load = loads[0]
            # All that is left of it, mostly. Whoever else takes from it, to
            # hand it back, shares it with the thread.
            part = load.queue
            if len(part) > 1:
                size = self.runner.part_size(self.job.name)
                if size < len(part):
                    part = collections.deque(
                        itertools.islice(drain(part), size))
            if part is load.queue or not load.queue:
                loads.popleft()
            if part:
                return (load, part), bool(loads)
        return None, False

    def run(self, part: 'Part') -> None:
        self.runner.run(*part)


class Running:
    """What one thread does at this moment."""

    __slots__ = ('began', 'ends', 'ident', 'looked', 'part', 'run',
                 'saved', 'shared', 'written_off')

    def __init__(self, ident: int):
        self.ident = ident
        # Both are read by another thread, so each is replaced whole.
        self.part: Part | None = None
        self.run: Run | None = None
        #: What was offered to the other threads of its part.
        self.shared: collections.deque[int] | None = None
        #: The run at the last look at timeouts.
        self.looked: Run | None = None
        #: When its run is given up; None: there is none, or no timeout.
        self.ends: float | None = None
        #: Since when its time was not accounted for.
        self.began = 0.0
        #: When its progress was reported last.
        self.saved = 0.0
        self.written_off = False


def drain(queue: 'collections.deque[_Item]') -> Iterator[_Item]:
    """Take items until none is left; several threads may at a time."""
    while True:
        try:
            item = queue.popleft()
        except IndexError:
            return
        yield item
