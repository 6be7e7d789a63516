# SPDX-License-Identifier: Apache-2.0
"""The worker's part of dispatch: from an arriving batch to the reports.

    accept ─► queue ─► begin ─► handler ─► settle ─► report
       │                 │         │          ▲
       refuse            refuse    │ timeout  │
                                   └─► write off

If a step of a task times out, the failure is reported when the handler
returns, but at the latest after the duration of a lease. Until then, neither
the retry or rollback of the step nor the next task of its queue begins.

A batch that was delivered before is dropped. A batch is refused if its job is
unknown, or if the worker is draining when the batch arrives. Before each run,
the worker checks whether it may still start the run, because another process
may have taken over the run while the batch waited.

The worker keeps its batches by job. A thread takes a part of a batch, a
chunk, and runs its objects one after the other::

    JobQueue ── BatchRun (a batch) ── chunk ──► a thread, Running

The outcome of each run is added to the BatchRun at once. So if a thread never
returns, the outcomes of its earlier runs are not lost. This module starts no
threads. A lock protects groups of operations on shared data. Threads append to
lists and take indexes from them without a lock.
"""

import collections
import functools
import itertools
import json
import logging
import operator
import threading
import traceback as traceback_module
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.core import member_facts
from distperiodic.core import message
from distperiodic.core import printable
from distperiodic.core import schedule
from distperiodic.core import task_values
from distperiodic.core.claim import Authority
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from distperiodic.core.credit import RunTimeAverage
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job import check_ended
from distperiodic.core.refusal import Refusal
from distperiodic.core.schedule import Instant
from distperiodic.flow import log_throttle
from distperiodic.flow.worker.held_runs import HeldRuns

LOG = logging.getLogger(__name__)

# Minimum seconds between two reports of outcomes of a batch. The end of the
# batch is reported at once.
_REPORT_EVERY = 0.02
# Earlier than any time of the monotonic clock.
_NEVER = float('-inf')
# Maximum expected seconds of a chunk with several runs, and maximum number of
# its runs. A thread takes several runs at a time only if they are short.
_CHUNK_SECONDS = 0.002
_CHUNK_RUNS = 64
# Minimum seconds of a run whose duration is reported alone. Shorter runs of a
# chunk are reported together, because each value costs CPU time.
_ALONE = 0.002
# Age of a run in progress, which sorts lists of runs.
_AGE = operator.attrgetter('age')
# Minimum seconds between two reports of the progress of a run.
_SAVE_EVERY = 1.0
# Number of batch ids that are kept, to detect duplicate messages.
_REMEMBERED = 10000
# Maximum number of characters of an error. Longer errors are cut.
_ERROR_LENGTH = 1000
# Maximum number of characters of a traceback. The beginning of a longer
# traceback is cut.
_TRACEBACK_LENGTH = 20_000


#: Function that runs a handler in another process. Its parameters are the
#: batch, the input of the run, the context, the further arguments of the
#: handler, and the timeout in seconds. The function returns the JSON text of a
#: command's result, and records the progress of the handler in the context.
Isolated = Callable[[message.Batch, RunInput, Context, tuple[Any, ...],
                     float | None], str | None]


#: Function that receives a job, a batch, and times of runs of the batch.
Timed = Callable[[Job, message.Batch, Sequence[message.Timing]], object]


class RunCallbacks(NamedTuple):
    """Functions that an executor calls before and after runs."""

    #: Called with each report, and with the membership entry of the scheduler
    #: that receives the report.
    report: Callable[[message.Report, str], None]
    #: Returns None if this process may start runs of a batch now. Otherwise it
    #: returns the reason to refuse them.
    may_start: Callable[[message.Batch], Refusal | None]
    #: Called with times of runs, one call at a time. None means that the
    #: component that grants the runs receives the times with the reports.
    timed: Timed | None = None


class Handled(NamedTuple):
    """A job, and how its runs call its handler."""

    job: Job
    handler: Callable[..., Any]
    #: Runs the handler in another process. Such a function kills the process
    #: in which a run exceeds its timeout. None means that the handler runs in
    #: a thread of the pool.
    isolated: Isolated | None = None


class Runner(Protocol):
    """Object that runs chunks: the :class:`Executor`."""

    def chunk_size(self, job: str) -> int:
        """Return the number of runs of *job* that a thread takes at a time.
        """

    def run(self, batch_run: 'BatchRun', chunk: list[int]) -> None:
        """Run all objects of a chunk of *batch_run*."""


class FailedRun(NamedTuple):
    """A run whose handler raised an exception or timed out."""

    #: Index of the run in the batch.
    at: int
    error: str
    traceback: str = ''
    #: Progress of the run that was not saved yet, as JSON.
    progress: str | None = None


class Done(NamedTuple):
    """A run of a command that returned values."""

    #: Index of the run in the batch.
    at: int
    #: The returned values, as JSON text.
    result: str


class Lost(NamedTuple):
    """A run whose handler process ended itself, because its lease expired."""

    #: Index of the run in the batch.
    at: int


class InProgress(NamedTuple):
    """A run that has not ended, as it is shown to operators."""

    job: str
    object: str
    tick: Instant
    attempt: int
    #: Seconds since the run began.
    age: float
    #: Last progress that the run reported, as JSON. None means that the run
    #: has reported no progress.
    progress: str | None
    #: Authority that granted the run.
    authority: Authority
    #: Topic of the job.
    topic: str
    #: Timeout of the run, in seconds. None means no timeout.
    timeout: float | None


class Refused(NamedTuple):
    """A run that was not started."""

    #: Index of the run in the batch.
    at: int
    refusal: Refusal


#: Outcome of a run. An integer is the index of a run that succeeded without a
#: result.
Outcome = int | Done | FailedRun | Lost | Refused


class TimedOut(NamedTuple):
    """A run that has exceeded its timeout. Its handler may still be running.
    """

    batch_run: 'BatchRun'
    #: Index of the run in the batch.
    at: int
    context: Context
    #: Timeout of the run, in seconds.
    timeout: float
    #: Monotonic time at which the handler was called, in seconds.
    began: float
    #: Monotonic time in seconds at which the failure is reported, unless the
    #: handler returns earlier.
    until: float
    #: Monotonic time in seconds until which the handler counts as hanging, if
    #: it does not return earlier.
    hangs_until: float


class BatchRun:
    """One batch of this worker, with the outcomes of its runs."""

    __slots__ = ('batch', 'begin', 'job', 'job_queue', 'left', 'outcomes',
                 'queue', 'reported', 'seconds', 'timings')

    def __init__(self, batch: message.Batch, job_queue: 'JobQueue',
                 tracer: ports.Tracer | None = None):
        self.batch = batch
        #: Begins the span of a run. None means that the runs have no spans.
        self.begin = None if tracer is None else tracer.runs(batch)
        self.job_queue = job_queue
        self.job = job_queue.job
        #: Indexes of the objects that no thread has taken, in reverse order.
        self.queue = list(range(len(batch.objects) - 1, -1, -1))
        #: Number of objects whose outcome has not been reported yet.
        self.left = len(batch.objects)
        #: Outcomes that have not been reported yet. An integer is the index of
        #: a run that succeeded. Threads append outcomes without a lock.
        self.outcomes: list[Outcome] = []
        self.seconds = 0.0
        #: Times of runs that have not been reported yet. Threads append to the
        #: list without a lock.
        self.timings: list[message.Timing] = []
        #: Monotonic time of the last report, in seconds. Before the first
        #: report, the time at which the first run began, or _NEVER.
        self.reported = _NEVER

    def timeout(self, index: int) -> float | None:
        """Return the timeout of a run, in seconds. None means no limit."""
        if self.batch.steps is None:
            return self.job.timeout
        return self.batch.steps[self.batch.objects[index]].timeout


#: A batch, and the indexes of the objects that one thread runs, in reverse
#: order.
Chunk = tuple[BatchRun, list[int]]
#: A run in progress: its batch, its index, and the context of its handler.
Run = tuple[BatchRun, int, Context]


class Saved(NamedTuple):
    """A report of the progress of a run."""

    run: Run
    #: The progress as JSON.
    text: str
    #: Monotonic time of the report, in seconds.
    at: float


class JobQueue:
    """The batches of one job, oldest first.

    The pool alternates between the queues of the jobs. If it alternated
    between batches, the job with the most batches would get the most threads.
    """

    __slots__ = ('handler', 'isolated', 'job', 'batch_runs', 'runner')

    def __init__(self, handled: Handled, runner: Runner):
        self.job, self.handler, self.isolated = handled
        self.runner = runner
        self.batch_runs: collections.deque[BatchRun] = collections.deque()

    def take(self) -> 'tuple[Chunk | None, bool]':
        """Return the next chunk for a thread.

        :returns: The chunk, and True if the queue has another chunk.
        """
        batch_runs = self.batch_runs
        while batch_runs:
            batch_run = batch_runs[0]
            # The chunk is usually the list of all indexes that are left. Other
            # code, such as return_unstarted(), may still take indexes from
            # this list.
            chunk = batch_run.queue
            if len(chunk) > 1:
                size = self.runner.chunk_size(self.job.name)
                if size < len(chunk):
                    chunk = list(itertools.islice(drain(chunk), size))[::-1]
            if chunk is batch_run.queue or not batch_run.queue:
                batch_runs.popleft()
            if chunk:
                return (batch_run, chunk), bool(batch_runs)
        return None, False

    def run(self, chunk: 'Chunk') -> None:
        self.runner.run(*chunk)


class _Stopwatch:
    """Times of the runs of one chunk.

    :param began: Monotonic time at which the chunk began, in seconds.
    """

    __slots__ = ('_alone', '_at', '_attempts', '_began', '_first', '_runs',
                 '_timings', 'last')

    def __init__(self, batch_run: BatchRun, began: float):
        self._timings = batch_run.timings
        self._attempts = batch_run.batch.attempts
        # With spread, and as steps of tasks, objects are due at different
        # instants.
        job = batch_run.job
        self._alone = (0.0 if job.spread or job.scope is Scope.TASK
                       else _ALONE)
        self._at = self._first = self._runs = 0
        self._began = self.last = began

    def ended(self, index: int, now: float) -> None:
        """Record that the run at *index* has ended."""
        took = now - self.last
        first = self._attempts[index] == 1
        if took >= self._alone:
            self.flush()
            self._timings.append(
                message.Timing(index, first, 1, self.last, took))
            self._began = now
        else:
            if index != self._at + self._runs:
                self.flush()
            if not self._runs:
                self._at = index
            self._first += first
            self._runs += 1
        self.last = now

    def flush(self) -> None:
        """Report the short runs that have ended."""
        if self._runs:
            self._timings.append(message.Timing(
                self._at, self._first, self._runs, self._began,
                self.last - self._began))
            self._first = self._runs = 0
            self._began = self.last


class ThreadActivity:
    """The current activity of one thread."""

    __slots__ = ('began', 'ends', 'ident', 'last_watched', 'chunk', 'run',
                 'saved', 'shared', 'stopwatch')

    def __init__(self, ident: int):
        self.ident = ident
        # Other threads read the next two attributes, so each of them is only
        # replaced as a whole.
        self.chunk: Chunk | None = None
        self.run: Run | None = None
        #: Times of the runs of the chunk. None means that there was no chunk.
        self.stopwatch: _Stopwatch | None = None
        #: The chunk whose remaining runs were offered to the other threads.
        self.shared: list[int] | None = None
        #: The run at the last call of watch().
        self.last_watched: Run | None = None
        #: Monotonic time at which the current run times out, in seconds. None
        #: means that there is no run, or no timeout.
        self.ends: float | None = None
        #: Monotonic time of the last report, in seconds, or else the time at
        #: which the chunk began.
        self.began = 0.0
        #: The last report of progress. None means that there was no report.
        self.saved: Saved | None = None


def drain(queue: list[int]) -> Iterator[int]:
    """Remove and yield the last index, until *queue* is empty.

    Several threads may do this with one list at the same time.
    """
    while True:
        try:
            item = queue.pop()
        except IndexError:
            return
        yield item


class Submit(Protocol):
    """The methods of the pool that the executor needs."""

    def submit(self, priority: int, source: JobQueue) -> None: ...

    def write_off(self, ident: int) -> int: ...

    def recheck(self) -> None: ...


class Executor:
    """The work of one worker process.

    :param jobs: Jobs and their handlers, by the name of the job.
    :param pool: Pool that runs the chunks of batches.
    :param finish: Ends the run of an object in the handler's own transaction.
        None means that handlers cannot do this.
    :param lease: Duration of a lease, in seconds. If a step times out, its
        failure is reported when its handler returns, but at the latest after
        this time.
    :param slots: Returns the number of slots that schedulers share. With the
        default, the schedulers do not take turns.
    :param tracer: Creates the spans of the runs. None means no spans.
    """

    def __init__(self, jobs: Mapping[str, Handled], *,
                 clock: ports.Clock, pool: Submit, callbacks: RunCallbacks,
                 finish: Callable[[message.Batch, str, Any, str | None],
                                  None] | None = None,
                 lease: float = 0.0,
                 slots: Callable[[], int] = lambda: message.MAX_OBJECTS,
                 tracer: ports.Tracer | None = None):
        self._job_queues = {name: JobQueue(handled, self)
                            for name, handled in jobs.items()}
        self._clock = clock
        self._pool = pool
        self._report = callbacks.report
        self._may_start = callbacks.may_start
        self._timed = callbacks.timed
        self._finish = finish
        self._tracer = tracer
        #: Spans of the current runs.
        self._spans: dict[ThreadActivity, ports.RunSpan] = {}
        self._lease = lease
        #: Runs that have timed out, and whose failure is not reported yet.
        self._timed_out: dict[ThreadActivity, TimedOut] = {}
        #: Runs that have timed out, and whose handlers have not returned.
        self._hanging: dict[ThreadActivity, TimedOut] = {}
        self._pace = RunTimeAverage()
        self._batch_runs: dict[tuple[str, str], BatchRun] = {}
        self._held = HeldRuns(slots)
        self._seen: collections.OrderedDict[
            tuple[str, str], None] = collections.OrderedDict()
        #: By thread identifier.
        self._running: dict[int, ThreadActivity] = {}
        self._lock = threading.Lock()
        #: Authorities whose runs start no more.
        self._draining: frozenset[Authority] = frozenset()
        self._throttle = log_throttle.LogThrottle(clock, 10.0)

    def chunk_size(self, job: str) -> int:
        """Return the number of runs of *job* that a thread takes at a time.

        The number is above 1 only if several runs together take at most
        _CHUNK_SECONDS on average.
        """
        mean = self._pace.of(job)
        if mean is None:
            return 1
        return max(1, min(_CHUNK_RUNS, int(_CHUNK_SECONDS / (mean + 1e-6))))

    def accept(self, batch: message.Batch) -> None:
        """Queue *batch*, or refuse it and report this to its sender."""
        key = (batch.sender, batch.id)
        job_queue = self._job_queues.get(batch.job)
        batch_run = None if job_queue is None else BatchRun(
            batch, job_queue, self._tracer)
        with self._lock:
            duplicate = key in self._seen
            if not duplicate:
                self._seen[key] = None
                if len(self._seen) > _REMEMBERED:
                    self._seen.popitem(last=False)
                if batch_run is not None:
                    if batch.authority in self._draining:
                        batch_run = None
                    else:
                        self._batch_runs[key] = batch_run
                        self._held.accept(batch, self._clock.monotonic())
        if duplicate:
            LOG.info('batch dropped: batch=%s sender=%s reason=it was '
                     'delivered before', batch.id, batch.sender)
            return
        if batch_run is not None:
            self._submit(batch_run)
            return
        if job_queue is None and self._throttle.allow('unknown'):
            LOG.warning(
                'work refused: job=%s sender=%s reason=this worker does not '
                'know the job; start all processes with the same --tasks, or '
                'give the job its own partition', batch.job, batch.sender)
        refusal = (Refusal.UNKNOWN_JOB if job_queue is None
                   else Refusal.DRAINING)
        self._report(message.Report(
            batch.id, batch.worker,
            refused=[(i, refusal) for i in range(len(batch.objects))]),
            batch.sender)

    def _submit(self, batch_run: BatchRun) -> None:
        batch_run.job_queue.batch_runs.append(batch_run)
        self._pool.submit(batch_run.batch.priority, batch_run.job_queue)

    def run(self, batch_run: BatchRun, chunk: list[int]) -> None:
        """Run the objects of *chunk* one after the other in this thread."""
        monotonic = self._clock.monotonic
        ident = threading.get_ident()
        running = self._running.get(ident)
        if running is None:
            running = self._running[ident] = ThreadActivity(ident)
        running.chunk = batch_run, chunk
        running.began = monotonic()
        if batch_run.reported == _NEVER:
            batch_run.reported = running.began
        runs = 0
        stopwatch = running.stopwatch = _Stopwatch(batch_run, running.began)
        for index in drain(chunk):
            timeout = batch_run.timeout(index)
            outcome = self._run_one(running, batch_run, index, timeout)
            if isinstance(outcome, Refused):
                batch_run.outcomes.append(outcome)
                continue
            if timeout is not None:
                with self._lock:
                    running.ends = None
                if self._hanging.pop(running, None) is not None:
                    # The run has timed out, so its result is ignored. Other
                    # threads were offered the other runs of the chunk.
                    self._settle_timed_out(running)
                    return
            now = monotonic()
            stopwatch.ended(index, now)
            if not chunk:
                stopwatch.flush()
            batch_run.outcomes.append(outcome)
            runs += 1
            if chunk and now - batch_run.reported >= _REPORT_EVERY:
                self._settle(batch_run, runs, now - running.began, now)
                running.began = now
                runs = 0
        running.chunk = running.run = None
        stopwatch.flush()
        now = monotonic()
        self._settle(batch_run, runs, now - running.began, now)

    def _is_current(self, batch: message.Batch) -> bool:
        """Return whether the results of the runs of *batch* still count."""
        return self._may_start(batch) is None

    def _run_one(self, running: ThreadActivity, batch_run: BatchRun,
                 index: int, timeout: float | None) -> Outcome:
        """Run one object, and return its outcome."""
        batch, job = batch_run.batch, batch_run.job
        context: Context | None = None
        span: ports.RunSpan | None = None
        try:
            refusal = (Refusal.DRAINING if batch.authority in self._draining
                       else self._may_start(batch))
            if refusal is not None:
                return Refused(index, refusal)
            key = batch.objects[index]
            deadline = (None if timeout is None else self._clock.now()
                        + int(timeout * schedule.SECOND))
            run = RunInput(
                job.name, key, batch.tick, batch.fences[index],
                batch.attempts[index], deadline,
                None if batch.steps is None else batch.steps[key])
            context = Context(
                run, held=functools.partial(self._is_current, batch),
                finish=functools.partial(self._finish_run, running, batch)
                if self._finish else None,
                progress=json.loads(batch.progress.get(key, 'null'))
                if batch.progress else None)
            running.run = batch_run, index, context
            if batch_run.begin is not None:
                span = batch_run.begin(context)
                if span is not None:
                    self._spans[running] = span
            result = self._handle(running, batch_run, run, context, timeout)
        except ports.LeaseEnded:
            LOG.warning(
                'run ended with its lease: job=%s object=%r attempt=%d; its '
                'process was ended, since another worker may run the object',
                job.name, batch.objects[index], batch.attempts[index])
            if span is not None:
                span.fail('LeaseEnded', 'the lease of the run has ended', '')
            return Lost(index)
        except BaseException as exc:
            # A handler may also raise SystemExit or KeyboardInterrupt. The
            # thread must continue.
            error = text_of(exc)
            if span is not None:
                span.fail(type(exc).__name__, error, traceback_of(exc))
            self._log_failure(batch_run, index, error, exc)
            return FailedRun(
                index, error, '' if job.tries_again(batch.attempts[index])
                else traceback_of(exc),
                None if context is None else context.take_unsaved())
        finally:
            if span is not None:
                del self._spans[running]
                span.end()
        return index if result is None else Done(index, result)

    def _handle(self, running: ThreadActivity, batch_run: BatchRun,
                run: RunInput, context: Context,
                timeout: float | None) -> str | None:
        """Call the handler, and return the result of a command as JSON."""
        job, queue, step = batch_run.job, batch_run.job_queue, run.step
        arguments: tuple[Any, ...] = ()
        if step is not None:
            arguments = step.parameters,
        elif job.scope is Scope.OBJECTS:
            arguments = run.object,
        if queue.isolated is not None:
            return queue.isolated(
                batch_run.batch, run, context, arguments, timeout)
        if timeout is not None:
            running.ends = self._clock.monotonic() + timeout
        returned = queue.handler(context, *arguments)
        if returned is None:
            return None
        check_ended(job.name, returned)
        return None if step is None else task_values.result_text(returned)

    def _settle(self, batch_run: BatchRun, runs: int, seconds: float,
                now: float) -> None:
        """Report the outcomes of *batch_run* if a report is due.

        A complete batch is always reported.
        """
        if runs:
            self._pace.note(batch_run.job.name, runs, seconds)
        with self._lock:
            batch_run.seconds += seconds
            ended = len(batch_run.outcomes)
            if not ended or (
                    ended < batch_run.left
                    and now - batch_run.reported < _REPORT_EVERY):
                return
            report = self._collect(batch_run, now)
            turns = self._held.turns(now)
        self._report(report, batch_run.batch.sender)
        self._inform(turns)

    def _inform(self, senders: Iterable[tuple[str, str]]) -> None:
        """Send a report that concerns no batch to each of *senders*.

        :param senders: Entries of the schedulers, each with the entry of this
            worker.
        """
        for sender, worker in senders:
            self._report(message.Report(message.NO_BATCH, worker), sender)

    def _collect(self, batch_run: BatchRun, now: float) -> message.Report:
        """Return a report of the outcomes that were not reported yet.

        The caller must hold the lock.
        """
        batch = batch_run.batch
        done: list[int] = []
        failed: list[tuple[int, str]] = []
        refused: list[tuple[int, Refusal]] = []
        report = message.Report(
            batch.id, batch.worker, done, failed, [], refused, [],
            batch_run.seconds, [], {})
        report.timings = timings = batch_run.timings[:]
        del batch_run.timings[:len(timings)]
        if self._timed is not None:
            self._timed(batch_run.job, batch, timings)
        outcomes = batch_run.outcomes[:]
        # Keep the outcomes that threads have appended since the list was
        # copied.
        del batch_run.outcomes[:len(outcomes)]
        batch_run.left -= len(outcomes)
        self._held.end(batch.sender, len(outcomes), now)
        for item in outcomes:
            if isinstance(item, int):
                done.append(item)
            elif isinstance(item, Done):
                done.append(item.at)
                report.results[item.at] = item.result
            elif isinstance(item, Lost):
                report.lost.append(item.at)
            elif isinstance(item, FailedRun):
                failed.append((item.at, item.error))
                if item.traceback:
                    report.tracebacks[item.at] = item.traceback
                if item.progress is not None:
                    report.progress.append((item.at, item.progress))
            else:
                refused.append(item)
        batch_run.seconds = 0.0
        batch_run.reported = now
        if not batch_run.left:
            self._batch_runs.pop((batch.sender, batch.id), None)
        return report

    def watch(self) -> None:
        """Cancel runs that exceed their timeouts, and send the due reports.

        If a run takes long, the remaining runs of its chunk are offered to
        other threads. Call this several times per second.
        """
        now = self._clock.monotonic()
        self._pool.recheck()
        for running in list(self._running.values()):
            run = running.run
            if run is None:
                continue
            if running.ends is not None and now >= running.ends:
                self._time_out(running, now)
            elif run is running.last_watched:
                # The size of the chunk assumes short runs, but this run is
                # long.
                self._share(running)
            running.last_watched = run
            self._save(running, run, now)
        for running, timed_out in list(self._timed_out.items()):
            if now >= timed_out.until:
                self._settle_timed_out(running)
        for batch_run in list(self._batch_runs.values()):
            # A thread reports outcomes between its runs. If a run is long,
            # report the outcomes of earlier runs here.
            if (batch_run.outcomes
                    and now - batch_run.reported >= _REPORT_EVERY):
                self._settle(batch_run, 0, 0.0, now)

    def _save(self, running: ThreadActivity, run: Run,
              now: float) -> None:
        """Report the progress of a run that has not ended."""
        batch_run, index, context = run
        if running.saved and now - running.saved.at < _SAVE_EVERY:
            return
        text = context.take_unsaved()
        if text is not None:
            running.saved = Saved(run, text, now)
            self._report(message.Report(
                batch_run.batch.id, batch_run.batch.worker,
                progress=[(index, text)]), batch_run.batch.sender)

    def _time_out(self, running: ThreadActivity, now: float) -> None:
        with self._lock:
            # The run may have ended meanwhile, and another run may have begun.
            if (running.ends is None or now < running.ends
                    or running.run is None):
                return
            batch_run, index, context = running.run
            timeout = batch_run.timeout(index) or 0.0
            # Only the failure of a step waits for its handler to return. The
            # failure of a periodic run is reported at once, so that the object
            # misses no tick if its handler hangs.
            waits = self._lease if batch_run.batch.steps is not None else 0.0
            self._timed_out[running] = self._hanging[running] = TimedOut(
                batch_run, index, context, timeout, running.ends - timeout,
                now + waits, now + self._lease)
            if running.stopwatch is not None:
                running.stopwatch.flush()
            context.cancelled = True
            span = self._spans.get(running)
            self._running.pop(running.ident, None)
        hanging = self._pool.write_off(running.ident)
        LOG.warning(
            'run timed out: job=%s object=%r timeout=%.1f hanging=%d '
            'waits=%.1f; its result will not count, and another thread '
            'replaces the hanging one; the retry or rollback of a step '
            'begins when the handler returns, or after the time in waits',
            batch_run.job.name, context.object, timeout, hanging, waits)
        if span is not None:
            span.time_out(timeout)
        self._share(running)
        if not waits:
            self._settle_timed_out(running)

    def _settle_timed_out(self, running: ThreadActivity) -> None:
        """Report that a run has timed out.

        The call does nothing if the failure was already reported.
        """
        with self._lock:
            found = self._timed_out.pop(running, None)
        if found is None:
            return
        found.batch_run.timings.append(message.Timing(
            found.at, found.batch_run.batch.attempts[found.at] == 1, 1,
            found.began, found.timeout))
        found.batch_run.outcomes.append(FailedRun(
            found.at, f'timeout after {found.timeout:g} s',
            progress=found.context.take_unsaved()))
        self._settle(found.batch_run, 1, found.timeout,
                     self._clock.monotonic())

    def _finish_run(self, running: ThreadActivity, batch: message.Batch,
                    key: str, session: Any, result: str | None) -> None:
        """End the run of a handler in the transaction of *session*.

        :raises RunReplaced: The run has timed out, or was taken over.
        """
        if running in self._hanging:
            raise exceptions.RunReplaced(
                f'the run of job {batch.job!r} object {key!r} exceeded its '
                'timeout; roll back its changes')
        assert self._finish is not None
        self._finish(batch, key, session, result)

    def _share(self, running: ThreadActivity) -> None:
        """Offer the remaining runs of a thread's chunk to other threads."""
        if running.chunk is None:
            return
        batch_run, chunk = running.chunk
        if chunk is running.shared:
            # The runs were offered before. The list of the chunk may be the
            # queue of the batch run, from which other threads now take runs.
            return
        rest = list(drain(chunk))
        if rest:
            running.shared = chunk
            batch_run.queue.extend(reversed(rest))
            self._submit(batch_run)

    def address(self, report: message.Report, to_entry: str) -> None:
        """Complete a report before it is sent to a scheduler.

        Any thread may call this.
        """
        with self._lock:
            report.others = self._held.announce(
                to_entry, self._clock.monotonic())

    def send_changes(self) -> None:
        """Send an empty report to each scheduler that does not know how many
        slots the others use now.

        The scheduler then uses the slots that are free, even if its own runs
        here last long. Call this several times per second.
        """
        now = self._clock.monotonic()
        with self._lock:
            changed = self._held.outdated(now)
            turns = self._held.turns(now)
        self._inform(turns)
        for batch_run in list(self._batch_runs.values()) if changed else ():
            batch = batch_run.batch
            # The worker itself has sent the next steps of tasks.
            if batch.sender in changed and batch.sender != batch.worker:
                changed.remove(batch.sender)
                self._report(
                    message.Report(batch.id, batch.worker), batch.sender)

    def send_heartbeats(self) -> None:
        """Send an empty report on each batch to its scheduler.

        A scheduler reclaims a batch if it receives no report on the batch for
        the duration of a lease.
        """
        for batch_run in list(self._batch_runs.values()):
            batch = batch_run.batch
            self._report(message.Report(batch.id, batch.worker), batch.sender)
        with self._lock:
            asking = self._held.asking()
        self._inform(asking)

    def drain(self, *authorities: Authority) -> None:
        """Accept no more batches, start no more runs, and refuse the runs that
        have not started.

        :param authorities: Authorities of these batches. None means all.
        """
        with self._lock:
            self._draining |= frozenset(authorities or Authority)
        self.return_unstarted(Refusal.DRAINING)

    def return_unstarted(self, refusal: Refusal) -> None:
        """Refuse the runs that have not started, and report this.

        With NOT_A_MEMBER, batches of jobs with scope ``'member'`` stay in the
        queue, because each process runs these jobs for itself. With DRAINING,
        batches stay in the queue if their authority is not being drained.
        """
        now = self._clock.monotonic()
        #: The rest of the chunks that threads have taken, by batch.
        rest: dict[int, list[list[int]]] = {}
        for running in list(self._running.values()):
            if (taken := running.chunk) is not None:
                rest.setdefault(id(taken[0]), []).append(taken[1])
        for batch_run in list(self._batch_runs.values()):
            if (refusal is Refusal.NOT_A_MEMBER
                    and batch_run.job.scope is Scope.MEMBER):
                continue
            if (refusal is Refusal.DRAINING
                    and batch_run.batch.authority not in self._draining):
                continue
            for chunk in (batch_run.queue, *rest.get(id(batch_run), ())):
                batch_run.outcomes.extend(
                    [Refused(i, refusal) for i in drain(chunk)])
            self._settle(batch_run, 0, 0.0, now)

    def cancel(self) -> None:
        """Signal to the running handlers that their results will be ignored.
        """
        for running in list(self._running.values()):
            run = running.run
            if run is not None:
                run[2].cancelled = True

    def running_tasks(self) -> list[str]:
        """Return the tasks whose steps run here and may be cancelled.

        A rollback is not cancelled.
        """
        return [run[2].object for run in self._step_runs()]

    def cancel_tasks(self, tasks: Collection[str]) -> None:
        """Signal to the handlers of steps of *tasks* to return early."""
        for _, _, context in self._step_runs():
            if context.object in tasks:
                context.cancelled = True

    def _step_runs(self) -> list[Run]:
        runs = [running.run for running in list(self._running.values())]
        return [run for run in runs if run is not None
                and run[2].task is not None
                and not (run[2].rollback or run[2].cancelled)]

    @property
    def busy(self) -> int:
        """Number of objects whose outcome has not been reported."""
        return sum(batch_run.left
                   for batch_run in list(self._batch_runs.values()))

    def queued(self) -> Mapping[str, int]:
        """Return the number of objects that no thread runs yet, by topic."""
        found: collections.Counter[str] = collections.Counter()
        for batch_run in list(self._batch_runs.values()):
            found[batch_run.job.topic] += len(batch_run.queue)
        return found

    def in_progress(self) -> list[InProgress]:
        """Return the runs that have not ended, the longest first.

        Runs that have timed out are left out.
        """
        now, found = self._clock.monotonic(), []
        for running in list(self._running.values()):
            run, saved = running.run, running.saved
            if run is not None:
                # The time since the last report of the thread is a good
                # estimate of the age, because earlier runs of the chunk took
                # only milliseconds.
                found.append(_shown(
                    run, max(0.0, now - running.began),
                    saved.text if saved and saved.run is run else None))
        return sorted(found, key=_AGE, reverse=True)

    def hanging_runs(self) -> list[InProgress]:
        """Return the runs that hang, the longest first.

        These are the runs that have timed out and whose handlers have not
        returned, and the runs without a timeout that last unusually long; see
        :func:`.member_facts.hangs`.
        """
        now = self._clock.monotonic()
        return sorted([
            *(_shown((one.batch_run, one.at, one.context), now - one.began)
              for one in list(self._hanging.values())),
            *(one for one in self.in_progress() if self._hangs(one))],
            key=_AGE, reverse=True)

    def _hangs(self, run: InProgress) -> bool:
        if run.timeout is not None:
            return False
        job = self._job_queues[run.job].job
        return member_facts.hangs(
            run.age, None if job.scope is Scope.TASK
            else job.schedule.period_us(run.tick) / schedule.SECOND,
            self._pace.of(run.job))

    @property
    def hanging(self) -> int:
        """Number of handlers that hang.

        A handler counts from its timeout until it returns, but for at most the
        duration of a lease.
        """
        now = self._clock.monotonic()
        return sum(now < one.hangs_until
                   for one in list(self._hanging.values()))

    def _log_failure(self, batch_run: BatchRun, index: int, error: str,
                     exc: BaseException) -> None:
        # One warning is enough if thousands of objects fail in the same way.
        first = self._throttle.allow(
            f'{batch_run.job.name} {type(exc).__name__}')
        # Put the traceback into the message, because a formatter would write
        # exc_info without escaping the control characters of the exception.
        LOG.log(
            logging.WARNING if first else logging.DEBUG,
            'run failed: job=%s object=%r attempt=%d error=%s; similar '
            'failures are logged at level debug for a while%s',
            batch_run.job.name, batch_run.batch.objects[index],
            batch_run.batch.attempts[index], error,
            f'\n{traceback_of(exc)}'.rstrip() if first else '')


def _shown(run: Run, age: float, progress: str | None = None) -> InProgress:
    batch_run, index, context = run
    batch = batch_run.batch
    return InProgress(
        batch.job, context.object, batch.tick, batch.attempts[index], age,
        progress, batch.authority, batch_run.job.topic,
        batch_run.timeout(index))


def text_of(exc: BaseException) -> str:
    """Return an exception as one short line of printable text.

    The line is written to logs and terminals.
    """
    try:
        # The result of str() may be of a subclass with methods of its own.
        text = str.__str__(str(exc))
    except BaseException:
        text = 'an exception without a text'
    # Convert only the start of the text, because the result is cut.
    shown = ''.join(letter if letter.isprintable() else ' '
                    for letter in f'{type(exc).__name__}: {text}'[
                        :2 * _ERROR_LENGTH])
    return ' '.join(shown.split())[:_ERROR_LENGTH]


def traceback_of(exc: BaseException) -> str:
    """Return the end of the traceback of *exc*, for an operator.

    Characters that are not printable are escaped, except for the ends of
    lines. The text is written to logs and terminals.
    """
    try:
        lines = traceback_module.format_exception(exc)
    except BaseException:
        return ''
    return printable.escaped_lines(''.join(lines)[-_TRACEBACK_LENGTH:])
