# SPDX-License-Identifier: Apache-2.0
"""A worker's side: from a batch that arrives to the reports that leave.

    accept ─► queue ─► begin ─► handler ─► settle ─► report
       │                 │                    │
       refuse            refuse               write off (timeout)

Old news is dropped first: a batch that was seen before, of a job that is not
known here, or that came while the worker drains. What was accepted is looked
at once more before it begins, since the worker may have been judged dead and
replaced while the work waited.

There are no threads here: the pool's threads call :meth:`Workshop.run`
through the parts they take, and any number of them may at a time.
"""

import collections
import logging
import threading
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any, Protocol

from distperiodic import ports
from distperiodic.core import context as context_
from distperiodic.core import job as job_
from distperiodic.core import message
from distperiodic.core import pace as pace_
from distperiodic.core import schedule

LOG = logging.getLogger(__name__)

#: Reasons for which a worker refuses work; the scheduler knows them.
UNKNOWN_JOB = 'unknown job'
DRAINING = 'draining'
NOT_A_MEMBER = 'not sure of its membership'

# Results are reported at the end of a batch, and else this often.
_REPORT_EVERY = 0.02
# Short handlers are taken by the part, up to this much time of one thread.
_PART_SECONDS = 0.002
_PART_RUNS = 64
# Batches remembered, to know a doubled message.
_REMEMBER = 10000


class Submit(Protocol):
    """The pool, as far as the workshop needs it."""

    def submit(self, priority: int, source: 'Load', parts: int) -> None: ...

    def write_off(self, ident: int) -> None: ...


class Load:
    """One batch at this worker, with what is left of it."""

    __slots__ = ('batch', 'job', 'handler', 'workshop', 'queue', 'left',
                 'done', 'failed', 'refused', 'seconds', 'lock', 'reported')

    def __init__(self, batch: message.Batch, job: job_.Job,
                 handler: Callable[..., Any], workshop: 'Workshop'):
        self.batch = batch
        self.job = job
        self.handler = handler
        self.workshop = workshop
        self.queue = collections.deque(range(len(batch.objects)))
        self.left = len(batch.objects)
        self.done: list[int] = []
        self.failed: list[tuple[int, str]] = []
        self.refused: list[tuple[int, str]] = []
        self.seconds = 0.0
        self.lock = threading.Lock()
        self.reported = 0.0

    def take(self) -> tuple[Callable[[], object] | None, bool]:
        queue = self.queue
        runs = min(self.workshop.part_size(self.batch.job), len(queue))
        if not runs:
            return None, False
        part = collections.deque(queue.popleft() for _ in range(runs))
        return (lambda: self.workshop.run(self, part)), bool(queue)


class _Running:
    """What one thread does at this moment."""

    __slots__ = ('load', 'part', 'index', 'context', 'ends', 'ident')

    def __init__(self, load: Load, part: 'collections.deque[int]',
                 ident: int):
        self.load = load
        self.part = part
        self.ident = ident
        self.index = -1
        self.context: context_.Context | None = None
        self.ends: float | None = None


class Workshop:
    """The work of one worker process.

    :param jobs: name to the job and its handler.
    :param pool: runs the parts of a load.
    :param report: takes each report and the entry it is for.
    :param may_start: None if this worker may start work of that batch now,
        else the reason why not.
    """

    def __init__(self, jobs: Mapping[
                     str, tuple[job_.Job, Callable[..., Any]]], *,
                 clock: ports.Clock, pool: Submit,
                 report: Callable[[message.Report, str], None],
                 may_start: Callable[[message.Batch], str | None]):
        self._jobs = jobs
        self._clock = clock
        self._pool = pool
        self._report = report
        self._may_start = may_start
        self._pace = pace_.Pace()
        self._loads: dict[tuple[str, str], Load] = {}
        self._seen: collections.OrderedDict[
            tuple[str, str], None] = collections.OrderedDict()
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()
        self._draining = False
        self._told: dict[tuple[str, str], float] = {}

    def part_size(self, job: str) -> int:
        """How many runs of *job* a thread takes at once: more than one
        only where taking costs more than running."""
        mean = self._pace.of(job)
        if mean is None or mean > _PART_SECONDS / 2:
            return 1
        return min(_PART_RUNS, int(_PART_SECONDS / (mean + 1e-6)) + 1)

    def accept(self, batch: message.Batch) -> None:
        """Queue *batch*, or refuse it to its sender with the reason."""
        key = (batch.sender, batch.id)
        with self._lock:
            if key in self._seen:
                LOG.info('batch dropped: batch=%s sender=%s reason=it was '
                         'delivered before', batch.id, batch.sender)
                return
            self._seen[key] = None
            if len(self._seen) > _REMEMBER:
                self._seen.popitem(last=False)
            known = self._jobs.get(batch.job)
            load = None
            if known is not None and not self._draining:
                load = self._loads[key] = Load(batch, *known, self)
        if known is None and self._tell_now('unknown', batch.job):
            LOG.warning(
                'work refused: job=%s sender=%s reason=this worker does not '
                'know the job; run the same --tasks everywhere, or give the '
                'job a partition of its own', batch.job, batch.sender)
        if load is not None:
            self._pool.submit(batch.priority, load, len(batch.objects))
            return
        reason = UNKNOWN_JOB if known is None else DRAINING
        self._report(message.Report(
            batch.id, batch.worker,
            refused=[(i, reason) for i in range(len(batch.objects))]),
            batch.sender)

    def run(self, load: Load, part: 'collections.deque[int]') -> None:
        """Run the objects of *part*, one after the other, in this thread."""
        batch, job = load.batch, load.job
        per_object = job.scope is job_.Scope.OBJECTS
        timeout = job.timeout
        monotonic = self._clock.monotonic
        running = _Running(load, part, threading.get_ident())
        with self._lock:
            self._running[running.ident] = running
        done: list[int] = []
        failed: list[tuple[int, str]] = []
        refused: list[tuple[int, str]] = []
        began = now = monotonic()
        while True:
            try:
                index = part.popleft()
            except IndexError:
                break
            reason = self._may_start(batch)
            if reason is not None:
                refused.append((index, reason))
                continue
            deadline = None
            if timeout is not None:
                deadline = self._clock.now() + int(
                    timeout * schedule.SECOND)
            context = context_.Context(
                batch.job, batch.objects[index], batch.tick,
                batch.fences[index], batch.attempts[index], deadline)
            if timeout is not None:
                with self._lock:
                    running.index = index
                    running.context = context
                    running.ends = monotonic() + timeout
            try:
                if per_object:
                    load.handler(context, context.object)
                else:
                    load.handler(context)
            except BaseException as exc:
                error = f'{type(exc).__name__}: {exc}'
                self._tell_failure(context, exc)
            else:
                error = ''
            if timeout is not None:
                with self._lock:
                    running.ends = None
                    if context.cancelled:
                        # Written off: it was reported as timed out, and the
                        # rest of the part went to another thread.
                        break
            if error:
                failed.append((index, error))
            else:
                done.append(index)
            now = monotonic()
            if now - load.reported >= _REPORT_EVERY and part:
                self._settle(load, done, failed, refused, now - began)
                done, failed, refused = [], [], []
                began = now
        now = monotonic()
        with self._lock:
            self._running.pop(running.ident, None)
        self._settle(load, done, failed, refused, now - began)

    def _settle(self, load: Load, done: list[int],
                failed: list[tuple[int, str]],
                refused: list[tuple[int, str]], seconds: float) -> None:
        runs = len(done) + len(failed)
        if runs:
            self._pace.note(load.batch.job, runs, seconds)
        with load.lock:
            load.done += done
            load.failed += failed
            load.refused += refused
            load.seconds += seconds
            load.left -= runs + len(refused)
            now = self._clock.monotonic()
            if load.left and now - load.reported < _REPORT_EVERY:
                return
            load.reported = now
            report = message.Report(
                load.batch.id, load.batch.worker, load.done, load.failed,
                load.refused, load.seconds)
            load.done, load.failed, load.refused = [], [], []
            load.seconds = 0.0
            if not load.left:
                with self._lock:
                    self._loads.pop((load.batch.sender, load.batch.id), None)
        if report.size:
            self._report(report, load.batch.sender)

    def watch(self) -> None:
        """Give up runs that are past their timeout; call it often."""
        now = self._clock.monotonic()
        late = []
        with self._lock:
            for running in self._running.values():
                if running.ends is not None and now >= running.ends:
                    running.ends = None
                    assert running.context is not None
                    running.context.cancelled = True
                    late.append(running)
            for running in late:
                self._running.pop(running.ident, None)
        for running in late:
            load = running.load
            assert running.context is not None
            LOG.warning(
                'run timed out: job=%s object=%s timeout=%.1f; its result '
                'will not count, and another thread takes the place of the '
                'one that hangs', load.batch.job, running.context.object,
                load.job.timeout)
            rest = list(running.part)
            running.part.clear()
            self._pool.write_off(running.ident)
            if rest:
                load.queue.extend(rest)
                self._pool.submit(load.batch.priority, load, len(rest))
            self._settle(load, [], [(
                running.index, f'timeout after {load.job.timeout:g} s')],
                [], load.job.timeout or 0.0)

    def give_signs(self) -> None:
        """Tell the senders which batches are still here; their leases run
        from the last sign."""
        with self._lock:
            loads = list(self._loads.values())
        for load in loads:
            self._report(message.Report(load.batch.id, load.batch.worker),
                         load.batch.sender)

    def drain(self) -> None:
        """Accept and start nothing more; hand back what waits."""
        with self._lock:
            self._draining = True
        self.hand_back(DRAINING)

    def hand_back(self, reason: str) -> None:
        """Refuse what waits here, to its senders."""
        with self._lock:
            loads = list(self._loads.values())
        for load in loads:
            handed = []
            while True:
                try:
                    handed.append((load.queue.popleft(), reason))
                except IndexError:
                    break
            if handed:
                self._settle(load, [], [], handed, 0.0)

    def cancel(self) -> None:
        """Tell the handlers that still run that nobody waits for them."""
        with self._lock:
            for running in self._running.values():
                if running.context is not None:
                    running.context.cancelled = True

    @property
    def busy(self) -> int:
        """Objects that are here and have not come to an end."""
        with self._lock:
            return sum(load.left for load in self._loads.values())

    def _tell_now(self, kind: str, name: str) -> bool:
        """Whether to log this now: once in ten seconds for each."""
        now = self._clock.monotonic()
        if now - self._told.get((kind, name), -10.0) < 10.0:
            return False
        self._told[kind, name] = now
        return True

    def _tell_failure(self, context: context_.Context,
                      exc: BaseException) -> None:
        told = self._tell_now(type(exc).__name__, context.job)
        LOG.warning(
            'run failed: job=%s object=%r attempt=%d error=%s: %s',
            context.job, context.object, context.attempt,
            type(exc).__name__, exc, exc_info=told)
