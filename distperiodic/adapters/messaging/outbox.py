# SPDX-License-Identifier: Apache-2.0
"""Outgoing queue of batches, whose put() never blocks.

Publishing a message can block forever: a broker that is out of memory keeps
the connection open and answers heartbeats, but confirms nothing until memory
is freed. So a separate thread publishes. A batch must be reported as sent or
unsent within a limited time. So a second thread enforces this limit::

    put() -> |waiting| -> in hand ---- confirmed ------------> on_sent
                  \\            \\----- refused ---------------> on_unsent
                   \\-----------\\---- patience exceeded -----> on_unsent
                                       (by the watcher thread)

The time limit, *patience*, counts from put() or from the broker's last answer,
whichever is later. As long as each answer of the broker arrives within this
time, no waiting batch is given up.

A batch that was reported as unsent may still arrive when the broker recovers.
This does no harm, because a message is only a hint. The claim decides whether
the work runs.

This file uses no third-party library; the publish function is passed in.
"""

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable

from distperiodic.core.message import Batch
from distperiodic.exceptions import InvalidMessage
from distperiodic.exceptions import NoConsumer

LOG = logging.getLogger(__name__)

# Seconds between two attempts while the broker is unreachable.
FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


@dataclasses.dataclass(slots=True, eq=False)
class _QueuedBatch:
    batch: Batch
    put_at: float  # monotonic seconds
    settled: bool = False  # on_sent or on_unsent was called or will be called


class BatchOutbox:
    """Queue of batches, sent in order.

    Exactly one of *on_sent* and *on_unsent* is called, once, for each batch.

    :param publish: Sends one batch, and returns when the broker has confirmed
        it. Raises NoConsumer or InvalidMessage if a retry would fail, too.
        After any other exception, the batch is sent again.
    :param on_sent: Called with each batch that was confirmed in time.
    :param on_unsent: Called with every other batch, and the reason. Threads of
        the outbox call both callbacks; put() and close() may also call
        on_unsent.
    :param capacity: Maximum number of waiting batches.
    :param patience: Seconds without any answer from the broker after which a
        batch is given up. Only close() gives up a batch earlier than this
        time after its put().
    """

    def __init__(self, publish: Callable[[Batch], None],
                 on_sent: Callable[[Batch], None],
                 on_unsent: Callable[[Batch, str], None], *,
                 capacity: int, patience: float,
                 monotonic: Callable[[], float]):
        self._publish = publish
        self._on_sent = on_sent
        self._on_unsent = on_unsent
        self._capacity = capacity
        self._patience = patience
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._waiting: collections.deque[_QueuedBatch] = collections.deque()
        self._sending: _QueuedBatch | None = None
        self._closing = False
        self._answered_at = 0.0  # monotonic time of the broker's last answer
        self._last_error = ''  # the error that is retried; '' means none
        self._sender = threading.Thread(
            target=self._send_all, name='distperiodic-send', daemon=True)
        self._watcher = threading.Thread(
            target=self._watch, name='distperiodic-send-watch', daemon=True)

    def start(self) -> None:
        self._sender.start()
        self._watcher.start()

    def put(self, batch: Batch) -> None:
        """Enqueue *batch*; never blocks.

        If the queue is full or closed, on_unsent is called at once.
        """
        item = _QueuedBatch(batch, self._monotonic())
        with self._changed:
            if self._closing:
                reason = 'the bus is closed'
            elif len(self._waiting) >= self._capacity:
                reason = f'{self._capacity} batches are already waiting'
                if self._last_error:
                    reason += f' ({self._last_error})'
            else:
                self._waiting.append(item)
                self._changed.notify_all()
                return
        self._call_back(self._on_unsent, batch, reason)

    def close(self, timeout: float) -> None:
        """Send the waiting batches, for at most *timeout* seconds.

        on_unsent is called for each batch that was not sent in time.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._sender.ident is not None:
            self._sender.join(max(0.0, timeout))
        with self._changed:
            left = [] if self._sending is None else [self._sending]
            left += self._waiting
            left = [item for item in left if not item.settled]
            for item in left:
                item.settled = True
            self._waiting.clear()
            self._changed.notify_all()
        for item in left:
            self._call_back(self._on_unsent, item.batch, self._with_last_error(
                'the bus was closed before it could be sent'))

    def _send_all(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                self._sending = None
                # Wake the watcher, because the batch whose time limit it
                # enforces may be settled.
                self._changed.notify_all()
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                item = self._sending = self._waiting.popleft()
            while not item.settled:
                try:
                    self._publish(item.batch)
                except (NoConsumer, InvalidMessage) as exc:
                    self._settle(item, str(exc))
                except Exception as exc:
                    self._last_error = str(exc) or type(exc).__name__
                    self._wait(item, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                else:
                    self._settle(item, None)
                pause = FIRST_PAUSE

    def _wait(self, item: _QueuedBatch, pause: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: item.settled, pause)

    def _settle(self, item: _QueuedBatch, reason: str | None) -> None:
        with self._changed:
            self._last_error = ''
            self._answered_at = self._monotonic()
            if item.settled:
                LOG.debug('batch was sent after it had been given up: '
                          'batch=%s', item.batch.id)
                return
            item.settled = True
        if reason is None:
            self._call_back(self._on_sent, item.batch)
        else:
            self._call_back(self._on_unsent, item.batch, reason)

    def _watch(self) -> None:
        while True:
            with self._changed:
                late = self._late()
                if not late:
                    first = self._first()
                    if first is not None:
                        self._changed.wait(
                            self._ends_at(first) - self._monotonic())
                    elif self._closing:
                        return
                    else:
                        self._changed.wait()
                    continue
            for item in late:
                reason = self._with_last_error(
                    f'the broker confirmed nothing for {self._patience:g} s')
                self._call_back(self._on_unsent, item.batch, reason)

    def _late(self) -> list[_QueuedBatch]:
        """Remove and return the batches whose time limit has passed.

        The oldest batch comes first.
        """
        now = self._monotonic()
        late = []
        while (first := self._first()) and self._ends_at(first) <= now:
            first.settled = True
            late.append(first)
            if first is not self._sending:
                self._waiting.popleft()
        if late:
            self._changed.notify_all()
        return late

    def _ends_at(self, item: _QueuedBatch) -> float:
        return max(item.put_at, self._answered_at) + self._patience

    def _first(self) -> _QueuedBatch | None:
        """Return the batch whose time limit ends first if no answer arrives.
        """
        if self._sending is not None and not self._sending.settled:
            return self._sending
        return self._waiting[0] if self._waiting else None

    def _with_last_error(self, reason: str) -> str:
        error = (self._last_error
                 or 'no answer; it may be out of memory or disk')
        return f'{reason} ({error})'

    def _call_back(self, callback: Callable[..., None], batch: Batch,
                   *reason: str) -> None:
        try:
            callback(batch, *reason)
        except Exception:
            LOG.exception('the answer to a batch was lost in a callback: '
                          'batch=%s', batch.id)
