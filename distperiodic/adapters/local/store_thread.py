# SPDX-License-Identifier: Apache-2.0
"""Threads that call a store, so that the flow never waits for the store.

Calls run in order. While the store is unreachable, a call is retried until the
store answers, and later calls wait in a queue. To keep the queue short, the
flow requests no further ticks of a job while the queue contains a call for
this job. The queue may nevertheless become long while a big job catches up on
many ticks, or while a call waits for locked rows. Renewals of leases do not
wait in this queue. They have a thread and a connection of their own::

                    +-- urgent ---> thread --> connection --+
    flow -- submit -+                                       +--> database
                    +-- in order -> thread --> connection --+
"""

import functools
import logging
import math
import queue
import statistics
import threading
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from distperiodic import exceptions
from distperiodic import ports

LOG = logging.getLogger(__name__)

_Answer = TypeVar('_Answer')

# Seconds between two attempts while the store is unreachable: the first pause,
# and the longest.
_PAUSES = 0.1, 2.0
# Number of the newest calls of each queue whose durations are kept, and the
# seconds for which a duration is kept.
_KEPT, _KEPT_FOR = 128, 60.0
# Seconds, and number of calls. The store is slow while the median of the
# newest calls of a queue is longer, or a call has lasted longer.
_SLOW, _JUDGED = 1.0, 5
# Seconds without an error after which a store that failed again soon counts as
# back.
_STABLE = 10.0


class _Call(NamedTuple):
    function: Callable[[Any], Any]
    then: Callable[[Any], None]
    failed: Callable[[], None]


class _Outage:
    """The log lines about outages of the store, for both queues.

    A store may answer some calls and fail others, for example while its disk
    is full. So a store that fails again soon is logged as back only when it
    has not failed for a while.
    """

    def __init__(self, monotonic: Callable[[], float]):
        self._monotonic = monotonic
        self._logged = False
        #: True if this outage began soon after the last one.
        self._again = False
        self._failed_at = 0.0
        self._back_at = -math.inf

    def failed(self, exc: Exception, consequence: str) -> None:
        """Log the outage, unless it is logged already."""
        self._failed_at = self._monotonic()
        if not self._logged:
            self._logged = True
            self._again = self._failed_at - self._back_at < _STABLE
            LOG.error('store away: reason=%s; %s', exc, consequence)

    def answered(self, calls: int) -> None:
        """Log that the store is back, if an outage was logged.

        :param calls: Number of calls without an answer.
        """
        if not self._logged:
            return
        now = self._monotonic()
        if not self._again or now - self._failed_at >= _STABLE:
            self._logged, self._back_at = False, now
            LOG.info('store back: asked=%d', calls)


class StoreThread:
    """Queues of calls to a store; see :class:`distperiodic.ports.StoreQueue`.

    The attribute :attr:`urgent` is the queue of the calls that do not wait.

    :param connect: Creates a store. Each thread calls this function until it
        succeeds.
    :param deliver: Runs a function in the thread of the flow.
    :param monotonic: Returns seconds since an arbitrary start.
    """

    def __init__(self, connect: Callable[[], ports.ClaimStore],
                 deliver: Callable[[Callable[[], None]], None],
                 monotonic: Callable[[], float]):
        self._monotonic = monotonic
        self._answered = threading.Condition()
        self._stopping = threading.Event()
        outage = _Outage(monotonic)
        self._ordered, self.urgent = self._queues = [
            _CallQueue(name, connect, deliver, self._answered, self._stopping,
                       monotonic, outage, consequence)
            for name, consequence in (
                ('distperiodic-store', 'nothing is claimed until it answers '
                 'again; the misfire policies then decide what runs'),
                ('distperiodic-renewal', 'no lease is renewed until it '
                 'answers again; work whose lease expires runs again'))]
        self._ordered.other, self.urgent.other = self.urgent, self._ordered
        self.submit = self._ordered.submit

    @property
    def away(self) -> bool:
        """True while ordered calls wait because the store is unreachable."""
        return self._ordered.problem is not None

    @property
    def problem(self) -> Exception | None:
        """The error of an unreachable store, or None if it is reachable."""
        return self._ordered.problem or self.urgent.problem

    def facts(self) -> dict[str, Any]:
        """Return how fast the store answers, for a report.

        The result is in the form in which a report contains a
        :class:`~distperiodic.core.member_facts.StoreFact`. A call lasts until
        its answer, including its repetitions.
        """
        now = self._monotonic()
        took = [seconds for calls in self._queues
                for seconds in calls.recent(now)]
        slow = [since for calls in self._queues
                if (since := calls.slow_since(now)) is not None]
        return {
            'calls': len(took),
            'p50_s': round(statistics.median(took), 6) if took else 0.0,
            'max_s': round(max(took), 6) if took else 0.0,
            'queued': sum(calls.open for calls in self._queues),
            'waits_s': round(max(calls.waits(now)
                                 for calls in self._queues), 3),
            'slow_s': round(now - min(slow), 3) if slow else None,
            'away': self.problem is not None}

    def start(self) -> None:
        for calls in self._queues:
            calls.start()

    def flush(self, timeout: float) -> bool:
        """Wait until all calls are answered.

        :returns: False if that took longer than *timeout* seconds.
        """
        with self._answered:
            return self._answered.wait_for(
                lambda: not any(calls.open for calls in self._queues), timeout)

    def stop(self, timeout: float) -> None:
        """Run the waiting calls, then stop the threads.

        Calls that are not answered within *timeout* seconds are dropped.
        """
        self.flush(timeout)
        self._stopping.set()
        for calls in self._queues:
            calls.wake()


class _CallQueue:
    """One thread with one store, which makes the calls one after the other."""

    def __init__(self, name: str, connect: Callable[[], ports.ClaimStore],
                 deliver: Callable[[Callable[[], None]], None],
                 answered: threading.Condition, stopping: threading.Event,
                 monotonic: Callable[[], float], outage: _Outage,
                 consequence: str):
        self._monotonic = monotonic
        self._outage = outage
        #: Consequence of an outage, for the log.
        self._consequence = consequence
        #: When each of the newest calls ended, and its duration, in seconds of
        #: the monotonic clock. The thread of the calls replaces this value as
        #: a whole.
        self._took: tuple[tuple[float, float], ...] = ()
        #: Monotonic time at which the call in progress began, in seconds.
        self._began: float | None = None
        #: Monotonic time since which the median of the newest calls has been
        #: long.
        self._slow_since: float | None = None
        self._connect = connect
        self._deliver = deliver
        self._answered = answered
        self._stopping = stopping
        self._waiting: queue.SimpleQueue[_Call | None] = (
            queue.SimpleQueue())
        #: Number of calls without an answer.
        self.open = 0
        #: Error of the last attempt; None means that it succeeded.
        self.problem: Exception | None = None
        #: The other queue to the same database.
        self.other: _CallQueue | None = None
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, call: Callable[[ports.ClaimStore], _Answer],
               then: Callable[[_Answer], None],
               failed: Callable[[], None] = lambda: None) -> None:
        with self._answered:
            self.open += 1
        self._waiting.put(_Call(call, then, failed))

    def recent(self, now: float) -> list[float]:
        """Return the durations of the newest calls, in seconds."""
        return [took for ended, took in self._took
                if now - ended <= _KEPT_FOR]

    def waits(self, now: float) -> float:
        """Return the seconds since the call in progress began."""
        began = self._began
        return 0.0 if began is None else max(0.0, now - began)

    def slow_since(self, now: float) -> float | None:
        """Return the monotonic time since which the store has been slow."""
        since, began = self._slow_since, self._began
        if since is None and began is not None and now - began > _SLOW:
            return began
        return since

    def _measured(self, began: float) -> None:
        now = self._monotonic()
        self._began = None
        self._took = (*self._took[1 - _KEPT:], (now, now - began))
        median = statistics.median(
            took for _, took in self._took[-_JUDGED:])
        if median <= _SLOW:
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = began

    def wake(self) -> None:
        """Wake the thread so that it notices that it has to stop."""
        self._waiting.put(None)

    def _run(self) -> None:
        store: ports.ClaimStore | None = None
        while (call := self._waiting.get()) is not None:
            began = self._began = self._monotonic()
            if store is None:
                store = self._until_it_works(
                    lambda _: self._connect(), None, (Exception,))
            if self._stopping.is_set():
                break
            try:
                answer = self._until_it_works(
                    call.function, store, (exceptions.StoreUnavailable,))
            except Exception as exc:
                LOG.exception(
                    'store call failed: error=%s; if the call has created '
                    'leases, they expire and are taken over',
                    type(exc).__name__)
                self._deliver(call.failed)
            else:
                if not self._stopping.is_set():
                    self._deliver(functools.partial(call.then, answer))
            self._measured(began)
            with self._answered:
                self.open -= 1
                self._answered.notify_all()
        if store is not None:
            store.close()

    def _until_it_works(self, call: Callable[[Any], Any], store: Any,
                        awaited: tuple[type[Exception], ...]) -> Any:
        pause = _PAUSES[0]
        while not self._stopping.is_set():
            try:
                answer = call(store)
            except awaited as exc:
                with self._answered:
                    self.problem = exc
                    self._outage.failed(exc, self._consequence)
                self._stopping.wait(pause)
                pause = min(2 * pause, _PAUSES[1])
            else:
                with self._answered:
                    self.problem = None
                    if self.other is None or self.other.problem is None:
                        self._outage.answered(self.open)
                return answer
        return None
