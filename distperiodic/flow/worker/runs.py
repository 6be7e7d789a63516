# SPDX-License-Identifier: Apache-2.0
"""A worker's side: from a batch that arrives to the reports that leave.

    accept ─► queue ─► begin ─► handler ─► settle ─► report
       │                 │                    │
       refuse            refuse               write off (timeout)

Old news is dropped first: a batch that was seen before, of a job that is not
known here, or that came while the worker drains. What was accepted is looked
at once more before it begins, since the worker may have been judged dead and
replaced while the work waited.

What a worker has in hand are batches by job, and the runs of its threads::

    Lane (a job) ── Load (a batch) ── part ──► a thread, Running

What a run came to stands in its load at once, so that nothing is lost with a
thread that never comes back. Nothing here starts a thread: the pool's threads
take parts of a load and run them, any number of them at a time; a lock keeps
them apart where they meet.
"""

import collections
import functools
import itertools
import json
import logging
import threading
import traceback as traceback_
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Protocol

from distperiodic import ports
from distperiodic.core import context as context_
from distperiodic.core import job as job_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.core import schedule
from distperiodic.core.refusal import Refusal
from distperiodic.flow import quiet

LOG = logging.getLogger(__name__)

# Results are reported at the end of a batch, and else this often.
_REPORT_EVERY = 0.02
# Earlier than any instant of the monotonic clock.
_NEVER = float('-inf')
# Short handlers are taken by the part, up to this much time of one thread.
_PART_SECONDS = 0.002
_PART_RUNS = 64
# What runs say of themselves is reported so often, in seconds.
_SAVE_EVERY = 1.0
# Batches remembered, to know a doubled message.
_REMEMBER = 10000
# Characters of an exception that are kept.
_ERROR_LENGTH = 1000
# Characters of a traceback that are kept: the last ones, where it was raised.
_TRACEBACK_LENGTH = 20_000


class Runner(Protocol):
    """Who runs what lanes give out."""

    def part_size(self, job: str) -> int:
        """How many runs of *job* one thread takes at a time."""

    def run(self, load: 'Load', part: list[int]) -> None:
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
        #: Indexes that nobody has taken, the next one last.
        self.queue = list(range(len(batch.objects) - 1, -1, -1))
        #: How many were not reported yet.
        self.left = len(batch.objects)
        #: What they came to and was not reported yet: an index that is
        #: done, or what became of it. Threads append without a lock.
        self.over: list[int | Failed | Refused] = []
        self.seconds = 0.0
        #: When it was reported last, or begun.
        self.reported = _NEVER


#: A batch, and the indexes of it that one thread runs, the next one last.
Part = tuple[Load, list[int]]
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
                    part = list(itertools.islice(drain(part), size))[::-1]
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
        self.shared: list[int] | None = None
        #: The run at the last look at timeouts.
        self.looked: Run | None = None
        #: When its run is given up; None: there is none, or no timeout.
        self.ends: float | None = None
        #: Since when its time was not accounted for.
        self.began = 0.0
        #: When its progress was reported last.
        self.saved = 0.0
        self.written_off = False


def drain(queue: list[int]) -> Iterator[int]:
    """Take indexes until none is left; several threads may at a time."""
    while True:
        try:
            item = queue.pop()
        except IndexError:
            return
        yield item


class Submit(Protocol):
    """The pool, as far as the workshop needs it."""

    def submit(self, priority: int, source: Lane) -> None: ...

    def write_off(self, ident: int) -> int: ...

    def look_again(self) -> None: ...


class Workshop:
    """The work of one worker process.

    :param jobs: name to the job and its handler.
    :param pool: runs the parts of a load.
    :param report: takes each report and the entry it is for.
    :param may_start: None if this worker may start work of that batch now,
        else why not.
    :param finish: ends the run of an object in a session of the handler's;
        None: there is no store that could.
    """

    def __init__(self, jobs: Mapping[
                     str, tuple[job_.Job, Callable[..., Any]]], *,
                 clock: ports.Clock, pool: Submit,
                 report: Callable[[message.Report, str], None],
                 may_start: Callable[[message.Batch], Refusal | None],
                 finish: Callable[
                     [message.Batch, str, Any], None] | None = None):
        self._lanes = {name: Lane(job, handler, self)
                       for name, (job, handler) in jobs.items()}
        self._clock = clock
        self._pool = pool
        self._report = report
        self._may_start = may_start
        self._finish = finish
        self._pace = pace_.Pace()
        self._loads: dict[tuple[str, str], Load] = {}
        self._seen: collections.OrderedDict[
            tuple[str, str], None] = collections.OrderedDict()
        #: By the thread that runs it.
        self._running: dict[int, Running] = {}
        self._lock = threading.Lock()
        self._draining = False
        self._told = quiet.Quiet(clock, 10.0)

    def part_size(self, job: str) -> int:
        """How many runs of *job* a thread takes at once: more than one
        only where taking costs more than running.
        """
        mean = self._pace.of(job)
        if mean is None:
            return 1
        return max(1, min(_PART_RUNS, int(_PART_SECONDS / (mean + 1e-6))))

    def accept(self, batch: message.Batch) -> None:
        """Queue *batch*, or refuse it to its sender."""
        key = (batch.sender, batch.id)
        lane = self._lanes.get(batch.job)
        load = None if lane is None else Load(batch, lane)
        with self._lock:
            doubled = key in self._seen
            if not doubled:
                self._seen[key] = None
                if len(self._seen) > _REMEMBER:
                    self._seen.popitem(last=False)
                if load is not None:
                    if self._draining:
                        load = None
                    else:
                        self._loads[key] = load
        if doubled:
            LOG.info('batch dropped: batch=%s sender=%s reason=it was '
                     'delivered before', batch.id, batch.sender)
            return
        if load is not None:
            self._submit(load)
            return
        if lane is None and self._told.may('unknown'):
            LOG.warning(
                'work refused: job=%s sender=%s reason=this worker does not '
                'know the job; run the same --tasks everywhere, or give the '
                'job a partition of its own', batch.job, batch.sender)
        refusal = (Refusal.UNKNOWN_JOB if lane is None
                   else Refusal.DRAINING)
        self._report(message.Report(
            batch.id, batch.worker,
            refused=[(i, refusal) for i in range(len(batch.objects))]),
            batch.sender)

    def _submit(self, load: Load) -> None:
        load.lane.loads.append(load)
        self._pool.submit(load.job.priority, load.lane)

    def run(self, load: Load, part: list[int]) -> None:
        """Run the objects of *part*, one after the other, in this thread."""
        batch, job, handler = load.batch, load.job, load.lane.handler
        per_object = job.scope is job_.Scope.OBJECTS
        timeout = job.timeout
        deadline = None
        monotonic = self._clock.monotonic
        ident = threading.get_ident()
        running = self._running.get(ident)
        if running is None:
            running = self._running[ident] = Running(ident)
        running.part = load, part
        running.began = monotonic()
        if load.reported == _NEVER:
            load.reported = running.began
        runs = 0

        def held() -> bool:
            return self._may_start(batch) is None
        finish = None
        if self._finish is not None:
            finish = functools.partial(self._finish, batch)
        while True:
            try:
                index = part.pop()
            except IndexError:
                break
            error = traceback = ''
            said: str | None = None
            run: Run | None = None
            try:
                refusal = (Refusal.DRAINING if self._draining
                           else self._may_start(batch))
                if refusal is not None:
                    load.over.append(Refused(index, refusal))
                    continue
                if timeout is not None:
                    deadline = self._clock.now() + int(
                        timeout * schedule.SECOND)
                context = context_.Context(
                    job.name, batch.objects[index], batch.tick,
                    batch.fences[index], batch.attempts[index], deadline,
                    held, finish, json.loads(batch.progress.get(
                        batch.objects[index], 'null'))
                    if batch.progress else None)
                running.run = run = load, index, context
                if timeout is not None:
                    running.ends = monotonic() + timeout
                if per_object:
                    returned = handler(context, context.object)
                else:
                    returned = handler(context)
                if returned is not None:
                    job_.check_ended(job.name, returned)
                    returned = None
            except BaseException as exc:
                # A handler may exit, or be interrupted; not this thread.
                error = text_of(exc)
                self._tell_failure(load, index, error, exc)
                if not job.tries_again(batch.attempts[index]):
                    traceback = _traceback(exc)
                if run is not None:
                    said = run[2].take_unsaved()
            if timeout is not None:
                with self._lock:
                    running.ends = None
                if running.written_off:
                    # It was reported as timed out, and the rest of the part
                    # went to another thread.
                    return
            load.over.append(Failed(index, error, traceback, said)
                             if error else index)
            runs += 1
            if part:
                now = monotonic()
                if now - load.reported >= _REPORT_EVERY:
                    self._settle(load, runs, now - running.began, now)
                    running.began = now
                    runs = 0
        running.part = running.run = None
        now = monotonic()
        self._settle(load, runs, now - running.began, now)

    def _settle(self, load: Load, runs: int, seconds: float,
                now: float) -> None:
        """Report what *load* came to, if it is the end or time to."""
        if runs:
            self._pace.note(load.job.name, runs, seconds)
        with self._lock:
            load.seconds += seconds
            over = len(load.over)
            if not over or (
                    over < load.left and now - load.reported < _REPORT_EVERY):
                return
            report = self._collect(load, now)
        self._report(report, load.batch.sender)

    def _collect(self, load: Load, now: float) -> message.Report:
        """What *load* came to since the last time; under the lock."""
        batch = load.batch
        done: list[int] = []
        failed: list[tuple[int, str]] = []
        refused: list[tuple[int, Refusal]] = []
        report = message.Report(
            batch.id, batch.worker, done, failed, [], refused, [],
            load.seconds, [], {})
        over = load.over[:]
        # Threads may have appended since.
        del load.over[:len(over)]
        load.left -= len(over)
        for item in over:
            if isinstance(item, int):
                done.append(item)
            elif isinstance(item, Failed):
                failed.append((item.at, item.error))
                if item.traceback:
                    report.tracebacks[item.at] = item.traceback
                if item.progress is not None:
                    report.progress.append((item.at, item.progress))
            else:
                refused.append(item)
        load.seconds = 0.0
        load.reported = now
        if not load.left:
            self._loads.pop((batch.sender, batch.id), None)
        return report

    def watch(self) -> None:
        """Give up runs that are past their timeout, and let nothing wait
        behind one that hangs, or for a thread that could not be started;
        call it several times a second.
        """
        now = self._clock.monotonic()
        self._pool.look_again()
        for running in list(self._running.values()):
            run = running.run
            if run is None:
                continue
            if running.ends is not None and now >= running.ends:
                self._time_out(running, now)
            elif run is running.looked:
                # Its handler was short, and is not any more.
                self._share(running)
            running.looked = run
            self._save(running, run, now)
        for load in list(self._loads.values()):
            # A thread reports as it goes on, and this one may not.
            if load.over and now - load.reported >= _REPORT_EVERY:
                self._settle(load, 0, 0.0, now)

    def _save(self, running: Running, run: Run,
              now: float) -> None:
        """Report what a run says of itself while it goes on."""
        load, index, context = run
        if now - running.saved < _SAVE_EVERY:
            return
        text = context.take_unsaved()
        if text is not None:
            running.saved = now
            self._report(message.Report(
                load.batch.id, load.batch.worker,
                progress=[(index, text)]), load.batch.sender)

    def _time_out(self, running: Running, now: float) -> None:
        with self._lock:
            # It may have ended since, and another one have begun.
            if (running.ends is None or now < running.ends
                    or running.run is None):
                return
            load, index, context = running.run
            running.written_off = True
            context.cancelled = True
            self._running.pop(running.ident, None)
        hanging = self._pool.write_off(running.ident)
        LOG.warning(
            'run timed out: job=%s object=%r timeout=%.1f hanging=%d; its '
            'result will not count, and another thread takes the place of '
            'the one that hangs', load.job.name, context.object,
            load.job.timeout, hanging)
        self._share(running)
        timeout = load.job.timeout or 0.0
        load.over.append(Failed(
            index, f'timeout after {timeout:g} s',
            progress=context.take_unsaved()))
        self._settle(load, 1, timeout, now)

    def _share(self, running: Running) -> None:
        """Offer the rest of a thread's part to the other threads."""
        if running.part is None:
            return
        load, part = running.part
        if part is running.shared:
            # It may be all that is left of the batch, and in the line again.
            return
        rest = list(drain(part))
        if rest:
            running.shared = part
            load.queue.extend(reversed(rest))
            self._submit(load)

    def give_signs(self) -> None:
        """Tell the senders which batches are still here; their leases run
        from the last sign.
        """
        for load in list(self._loads.values()):
            self._report(message.Report(load.batch.id, load.batch.worker),
                         load.batch.sender)

    def drain(self) -> None:
        """Accept and start nothing more; hand back what waits."""
        with self._lock:
            self._draining = True
        self.hand_back(Refusal.DRAINING)

    def hand_back(self, refusal: Refusal) -> None:
        """Refuse what waits here, to its senders.

        Where it is for the membership, jobs of member scope stay: they are
        each member's own.
        """
        now = self._clock.monotonic()
        for load in list(self._loads.values()):
            if (refusal is Refusal.NOT_A_MEMBER
                    and load.job.scope is job_.Scope.MEMBER):
                continue
            load.over.extend(
                [Refused(i, refusal) for i in drain(load.queue)])
            self._settle(load, 0, 0.0, now)

    def cancel(self) -> None:
        """Tell the handlers that still run that nobody waits for them."""
        for running in list(self._running.values()):
            run = running.run
            if run is not None:
                run[2].cancelled = True

    @property
    def busy(self) -> int:
        """Objects that are here and were not reported to their end."""
        return sum(load.left for load in list(self._loads.values()))

    def _tell_failure(self, load: Load, index: int, error: str,
                      exc: BaseException) -> None:
        # Of 10,000 objects that fail alike the first tells enough.
        first = self._told.may(f'{load.job.name} {type(exc).__name__}')
        LOG.log(
            logging.WARNING if first else logging.DEBUG,
            'run failed: job=%s object=%r attempt=%d error=%s; others that '
            'fail like it are logged at level debug for a while',
            load.job.name, load.batch.objects[index],
            load.batch.attempts[index], error, exc_info=first)


def text_of(exc: BaseException) -> str:
    """An exception in one short line, whatever its own idea of that is: it
    goes into logs and onto terminals.
    """
    try:
        text = str(exc)
    except BaseException:
        text = 'an exception without a text'
    # More than that is cut off anyway.
    shown = ''.join(letter if letter.isprintable() else ' '
                    for letter in text[:2 * _ERROR_LENGTH])
    return f'{type(exc).__name__}: {" ".join(shown.split())}'[:_ERROR_LENGTH]


def _traceback(exc: BaseException) -> str:
    """Where it was raised, for an operator who reads it later."""
    try:
        lines = traceback_.format_exception(exc)
    except BaseException:
        return ''
    return ''.join(lines)[-_TRACEBACK_LENGTH:]
