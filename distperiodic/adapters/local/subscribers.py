# SPDX-License-Identifier: Apache-2.0
"""Subscribers to the events of this process, each with a thread of its own.

::

    flow, bus, ... ── put ──► queue ──► thread ──► the subscriber of a program
                      │
                      └─► the tally of the metrics, without a queue

A subscriber may be slow, block or raise an error: its queue is bounded, events
that do not fit are dropped and counted, and nothing else waits for it. The
threads start at the first event. So a program may subscribe before it forks.
The thread then starts in each child, and the counts of a child begin at zero.
"""

import contextlib
import inspect
import logging
import os
import queue
import threading
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import metric_table
from distperiodic.core.tally import Tally
from distperiodic.core.telemetry import Event
from distperiodic.core.wording import one_line

LOG = logging.getLogger(__name__)

#: Maximum number of events that wait for one subscriber.
CAPACITY = 10_000
# Minimum seconds between two log lines about one subscriber.
_LOG_AGAIN = 60.0
# Seconds for which an error, or a dropped event, is reported; and minimum
# seconds of a call that is reported.
_LATELY, _LONG = 60.0, 1.0
# Maximum number of characters of an error in a report.
_REPORTED = 300


class Subscription:
    """A function that receives events, and the events that wait for it."""

    def __init__(self, function: Callable[[Event], object]):
        self._function = function
        self._name = str(getattr(function, '__qualname__', None)
                         or type(function).__qualname__)
        self._monotonic = SystemClock().monotonic
        self.forked()

    def forked(self) -> None:
        """Forget the events, and the thread, of another process."""
        self._queue: queue.Queue[Event | None] = queue.Queue(CAPACITY)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        #: Monotonic times of the last log lines, in seconds.
        self._logged_failed = self._logged_full = float('-inf')
        #: Monotonic times of the last error and of the last dropped event, and
        #: of the begin of the current call, in seconds. None means no call.
        self._failed_at = self._dropped_at = float('-inf')
        self._calling_since: float | None = None
        self._error = ''
        #: Number of events that were dropped.
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Queue *event*, or drop it if the queue is full."""
        if self._thread is None:
            self._start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            now = self._dropped_at = self._monotonic()
            with self._lock:
                self.dropped += 1
            if now - self._logged_full >= _LOG_AGAIN:
                self._logged_full = now
                LOG.warning(
                    'events dropped: subscriber=%s dropped=%d; the function '
                    'is too slow, or does not return; the work of this '
                    'process is not affected', self._name, self.dropped)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, daemon=True,
                    name='distperiodic-events')
                self._thread.start()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None and not self._closed:
            self._calling_since = self._monotonic()
            try:
                self._function(event)
            except Exception as exc:
                self._error = one_line(f'{type(exc).__name__}: {exc}')
                now = self._failed_at = self._monotonic()
                if now - self._logged_failed >= _LOG_AGAIN:
                    self._logged_failed = now
                    LOG.warning(
                        'subscriber failed: subscriber=%s event=%s error=%s; '
                        'it receives the following events; further errors '
                        'are not logged for a while', self._name,
                        type(event).__name__, self._error)
            self._calling_since = None

    def trouble(self) -> dict[str, Any] | None:
        """Return why the function does not receive all events, for a report.

        None means that it receives them. The fields are those of
        :class:`distperiodic.core.member_facts.SubscriberFact`.
        """
        now, since = self._monotonic(), self._calling_since
        found: dict[str, Any] = {}
        if since is not None and now - since >= _LONG:
            found['calling_s'] = round(now - since, 3)
        if now - self._dropped_at < _LATELY:
            found['dropped'] = self.dropped
        if now - self._failed_at < _LATELY:
            found['error'] = self._error[:_REPORTED]
        return {'name': self._name, **found} if found else None

    def close(self) -> None:
        """Pass no more events to the function, except for one that has begun.
        """
        self._closed = True
        # If the queue is full, the thread ends after the next event.
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)


class Subscribers:
    """All subscribers of this process; see
    :class:`distperiodic.ports.EventSink`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: To change the subscriptions, replace the whole tuple, because other
        #: threads may be iterating over the current one.
        self._subscriptions: tuple[Subscription, ...] = ()
        self._tally: Tally | None = None
        #: Names of the jobs of the services of this process.
        self._jobs: frozenset[str] = frozenset()
        self._gauges: tuple[Callable[[Tally], None], ...] = ()
        #: Events dropped by subscriptions that have ended.
        self._dropped_before = 0
        self.open = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._dropped_before = 0
        self._gauges = ()
        if self._tally is not None:
            self._tally = self._begun()
        for subscription in self._subscriptions:
            subscription.forked()

    def subscribe(self, function: Callable[[Event], object]
                  ) -> Callable[[], None]:
        """Pass each event from now on to *function*.

        :returns: Function that ends the subscription.
        :raises TypeError: *function* cannot be called, or is a coroutine
            function, whose body would never run.
        """
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f'distperiodic.events.subscribe() needs a function that takes '
                f'an event, not {function!r}; pass the function itself, '
                'without calling it, and define it without async')
        subscription = Subscription(function)
        with self._lock:
            self._subscriptions += subscription,
            self.open = True

        def unsubscribe() -> None:
            with self._lock:
                if subscription not in self._subscriptions:
                    return
                self._subscriptions = tuple(
                    one for one in self._subscriptions
                    if one is not subscription)
                self._dropped_before += subscription.dropped
                self.open = bool(
                    self._subscriptions or self._tally is not None)
            subscription.close()
        return unsubscribe

    def count(self) -> None:
        """Count the events for the metrics from now on."""
        with self._lock:
            if self._tally is None:
                self._tally = self._begun()
            self.open = True

    def _begun(self) -> Tally:
        tally = Tally()
        tally.begin(self._jobs)
        return tally

    def expect(self, jobs: Iterable[str]) -> None:
        """Begin the counters of *jobs* at 0, if the events are counted."""
        with self._lock:
            self._jobs = self._jobs.union(jobs)
            if self._tally is not None:
                self._tally.begin(self._jobs)

    def troubles(self) -> list[dict[str, Any]]:
        """Return the troubles of the subscribers that have some."""
        return [trouble for one in self._subscriptions
                for trouble in [one.trouble()] if trouble is not None]

    def add_gauges(self, gauges: Callable[[Tally], None]
                   ) -> Callable[[], None]:
        """Call *gauges* at each read of the counts, to add gauges to them.

        :returns: Function that ends this.
        """
        with self._lock:
            self._gauges += gauges,

        def remove() -> None:
            with self._lock:
                self._gauges = tuple(
                    one for one in self._gauges if one is not gauges)
        return remove

    def put(self, event: Event) -> None:
        """Pass *event* to all subscribers."""
        tally = self._tally
        if tally is not None:
            with self._lock:
                tally.add(event)
        for subscription in self._subscriptions:
            subscription.put(event)

    def tally(self) -> Tally:
        """Return a copy of the counts, with the gauges of this process."""
        copy = Tally()
        with self._lock:
            if self._tally is not None:
                copy.merge(self._tally)
            copy.count(metric_table.EVENTS_DROPPED,
                       number=self._dropped_before + sum(
                           one.dropped for one in self._subscriptions))
        for gauges in self._gauges:
            gauges(copy)
        return copy


#: The subscribers of this process.
SUBSCRIBERS = Subscribers()
