# SPDX-License-Identifier: Apache-2.0
"""Outgoing message queues whose put() never blocks.

Publishing a message can block forever: a broker that is out of memory keeps
the connection open and answers heartbeats, but confirms nothing until memory
is freed. So one thread publishes. A batch must be reported as sent or unsent
within a limited time, so for batches a second thread watches the clock::

    put() -> |waiting| -> in hand ---- confirmed ------------> on_sent
                  \\            \\----- refused ---------------> on_unsent
                   \\-----------\\---- patience exceeded -----> on_unsent
                                       (by the watcher thread)

Patience counts from the broker's last answer, not from put(). While the broker
keeps confirming messages, however slowly, no waiting batch is given up.

A batch that was reported as unsent may still arrive once the broker recovers.
That does no harm: a message is only a hint, and the claim decides.

This file uses no foreign library; the publish function is passed in.
"""

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable

from distperiodic.core.message import Batch
from distperiodic.core.message import Report
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import InvalidMessage

LOG = logging.getLogger(__name__)

# Seconds between two attempts while the broker is unreachable.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class NoConsumer(BusUnavailable):
    """The broker has no queue of that name, so a retry is of no use now."""


@dataclasses.dataclass(slots=True, eq=False)
class _Letter:
    batch: Batch
    put_at: float  # monotonic seconds
    settled: bool = False  # on_sent or on_unsent was called, or is about to be


class BatchOutbox:
    """Queue of batches, sent in order.

    Exactly one of *on_sent* and *on_unsent* is called, once, for each batch.

    :param publish: Sends one batch and returns once the broker has confirmed
        it. It raises NobodyThere or InvalidMessage if a retry is of no use;
        after any other exception the batch is retried.
    :param on_sent: Called with each batch that was confirmed in time.
    :param on_unsent: Called with every other batch, and the reason. Threads of
        the outbox call both callbacks; put() may also call on_unsent.
    :param capacity: Maximum number of waiting batches.
    :param patience: Seconds without any answer from the broker after which a
        batch is given up. Each batch has at least this much time.
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
        self._waiting: collections.deque[_Letter] = collections.deque()
        self._in_hand: _Letter | None = None
        self._closing = False
        self._answered_at = 0.0  # monotonic time of the broker's last answer
        self._trouble = ''  # last error that is being retried; '' means none
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
        letter = _Letter(batch, self._monotonic())
        with self._changed:
            if self._closing:
                reason = 'the bus is closed'
            elif len(self._waiting) >= self._capacity:
                reason = f'{self._capacity} batches wait already'
                if self._trouble:
                    reason += f' ({self._trouble})'
            else:
                self._waiting.append(letter)
                self._changed.notify_all()
                return
        self._tell(self._on_unsent, batch, reason)

    def close(self, timeout: float) -> None:
        """Send the waiting batches, for at most *timeout* seconds.

        on_unsent is called for those that remain.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._sender.ident is not None:
            self._sender.join(max(0.0, timeout))
        with self._changed:
            left = [] if self._in_hand is None else [self._in_hand]
            left += self._waiting
            left = [letter for letter in left if not letter.settled]
            for letter in left:
                letter.settled = True
            self._waiting.clear()
            self._changed.notify_all()
        for letter in left:
            self._tell(self._on_unsent, letter.batch, self._with_trouble(
                'the bus was closed before it could be sent'))

    def _send_all(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._changed:
                self._in_hand = None
                # Wakes the watcher, which may be waiting for this.
                self._changed.notify_all()
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                letter = self._in_hand = self._waiting.popleft()
            while not letter.settled:
                try:
                    self._publish(letter.batch)
                except (NoConsumer, InvalidMessage) as exc:
                    self._settle(letter, str(exc))
                except Exception as exc:
                    self._trouble = str(exc) or type(exc).__name__
                    self._rest(letter, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                else:
                    self._settle(letter, None)
                pause = _FIRST_PAUSE

    def _rest(self, letter: _Letter, pause: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: letter.settled, pause)

    def _settle(self, letter: _Letter, reason: str | None) -> None:
        with self._changed:
            self._trouble = ''
            self._answered_at = self._monotonic()
            if letter.settled:
                LOG.debug('batch was sent after it had been given up: '
                          'batch=%s', letter.batch.id)
                return
            letter.settled = True
        if reason is None:
            self._tell(self._on_sent, letter.batch)
        else:
            self._tell(self._on_unsent, letter.batch, reason)

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
            for letter in late:
                self._tell(self._on_unsent, letter.batch, self._with_trouble(
                    f'the broker confirmed nothing for {self._patience:g} s'
                ))

    def _late(self) -> list[_Letter]:
        """Remove and return the batches to be given up now, oldest first."""
        now = self._monotonic()
        late = []
        while (first := self._first()) and self._ends_at(first) <= now:
            first.settled = True
            late.append(first)
            if first is not self._in_hand:
                self._waiting.popleft()
        if late:
            self._changed.notify_all()
        return late

    def _ends_at(self, letter: _Letter) -> float:
        return max(letter.put_at, self._answered_at) + self._patience

    def _first(self) -> _Letter | None:
        """Return the batch whose patience ends first."""
        if self._in_hand is not None and not self._in_hand.settled:
            return self._in_hand
        return self._waiting[0] if self._waiting else None

    def _with_trouble(self, reason: str) -> str:
        trouble = self._trouble or 'no answer; it may be out of memory or disk'
        return f'{reason} ({trouble})'

    def _tell(self, callback: Callable[..., None], batch: Batch,
              *reason: str) -> None:
        try:
            callback(batch, *reason)
        except Exception:
            LOG.exception('the answer to a batch was lost in a callback: '
                          'batch=%s', batch.id)


@dataclasses.dataclass(slots=True, eq=False)
class _Box:
    """Waiting reports for one scheduler."""

    to: str
    next_at: float  # monotonic time of the earliest next message
    waiting: collections.deque[tuple[Report, float]] = dataclasses.field(
        default_factory=collections.deque)  # each with its time of put()
    size: int = 0  # number of objects in the waiting reports
    pause: float = 0.0  # seconds before a retry; 0.0: the last send worked


class ReportOutbox:
    """Queue of reports, grouped into messages to one scheduler each.

    The first report is sent at once. Reports that follow within *linger*
    seconds are collected into one message, so a worker with many short runs
    sends at most 1 / linger messages per second to a scheduler. A message is
    sent early if it is full.

    :param publish: Sends reports to one scheduler. It returns once the broker
        has confirmed them, and raises otherwise.
    :param on_lost: Called with each report that is given up, the scheduler and
        the reason. The report is not repeated; the run ends with its lease.
    :param linger: Seconds between two messages to one scheduler.
    :param most: Maximum number of objects in one message; a single report may
        have more.
    :param capacity: Maximum number of waiting objects. Beyond it, the oldest
        reports to the scheduler with the most waiting objects are given up.
    :param patience: Seconds after which an unsent report is given up.
    :param longest_pause: Maximum seconds between two attempts.
    """

    def __init__(self, publish: Callable[[str, list[Report]], None],
                 on_lost: Callable[[Report, str, str], None], *,
                 monotonic: Callable[[], float], linger: float = 0.02,
                 most: int = 500, capacity: int = 200_000,
                 patience: float = 60.0, longest_pause: float = 5.0):
        self._publish = publish
        self._on_lost = on_lost
        self._monotonic = monotonic
        self._linger = linger
        self._most = most
        self._capacity = capacity
        self._patience = patience
        self._longest_pause = longest_pause
        self._changed = threading.Condition()
        self._boxes: dict[str, _Box] = {}
        self._size = 0
        self._closing = False
        self._abandoned = False
        self._sender = threading.Thread(
            target=self._send_all, name='distperiodic-report', daemon=True)

    def start(self) -> None:
        self._sender.start()

    def put(self, report: Report, to: str) -> None:
        """Enqueue *report*; never blocks."""
        now = self._monotonic()
        lost = []
        with self._changed:
            box = self._boxes.get(to)
            if box is None:
                box = self._boxes[to] = _Box(to, next_at=now)
            box.waiting.append((report, now))
            box.size += _size(report)
            self._size += _size(report)
            while self._size > self._capacity:
                fullest = max(self._boxes.values(), key=lambda b: b.size)
                if len(fullest.waiting) < 2:
                    break
                lost.append((fullest.to, self._pop(fullest)[0]))
            self._changed.notify()
        for scheduler, old in lost:
            self._give_up(old, scheduler, 'too many reports wait')

    def forget(self, to: str) -> None:
        """Give up the reports to *to*, a scheduler that is gone."""
        with self._changed:
            box = self._boxes.pop(to, None)
            if box is None:
                return
            self._size -= box.size
        for report, _ in box.waiting:
            self._give_up(report, to, 'the scheduler is gone')

    def close(self, timeout: float) -> None:
        """Send waiting reports for at most *timeout* seconds; drop the rest.

        on_lost is called for each report that is dropped.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._sender.ident is not None:
            self._sender.join(max(0.0, timeout))
        with self._changed:
            self._abandoned = True
            left = list(self._boxes.values())
            self._boxes.clear()
            self._size = 0
            self._changed.notify()
        for box in left:
            for report, _ in box.waiting:
                self._give_up(report, box.to, 'the bus was closed')

    def _send_all(self) -> None:
        while True:
            with self._changed:
                box = self._next_box()
                if box is None:
                    if self._closing and not self._boxes:
                        return
                    self._changed.wait(self._until_next())
                    continue
                parcel = self._take(box)
            self._send(box, parcel)

    def _send(self, box: _Box, parcel: list[tuple[Report, float]]) -> None:
        try:
            self._publish(box.to, [report for report, _ in parcel])
        except InvalidMessage as exc:
            # No retry: the parcel would fail forever and block the whole box.
            for report, _ in parcel:
                self._give_up(report, box.to, str(exc))
            return
        except Exception as exc:
            reason = str(exc) or type(exc).__name__
        else:
            with self._changed:
                box.pause = 0.0
                box.next_at = self._monotonic() + self._linger
            return
        with self._changed:
            now = self._monotonic()
            oldest = now - self._patience
            kept = [(r, at) for r, at in parcel if at > oldest]
            lost = [r for r, at in parcel if at <= oldest]
            if self._abandoned or self._boxes.get(box.to) is not box:
                kept, lost = [], [r for r, _ in parcel]
            box.waiting.extendleft(reversed(kept))
            grown = sum(_size(report) for report, _ in kept)
            box.size += grown
            self._size += grown
            box.pause = min(max(2 * box.pause, _FIRST_PAUSE),
                            self._longest_pause)
            box.next_at = now + box.pause
        for report in lost:
            self._give_up(report, box.to, reason)

    def _next_box(self) -> _Box | None:
        """Return a box that may be sent now; remove empty boxes."""
        now = self._monotonic()
        best = None
        for box in list(self._boxes.values()):
            if not box.waiting:
                if box.next_at <= now or self._closing:
                    del self._boxes[box.to]
                continue
            full = box.size >= self._most or self._closing
            if (box.next_at <= now or (full and not box.pause)) and (
                    best is None or box.next_at < best.next_at):
                best = box
        return best

    def _until_next(self) -> float | None:
        if not self._boxes:
            return None
        first = min(box.next_at for box in self._boxes.values())
        return max(0.0, first - self._monotonic())

    def _take(self, box: _Box) -> list[tuple[Report, float]]:
        parcel = [self._pop(box)]
        size = _size(parcel[0][0])
        while box.waiting:
            size += _size(box.waiting[0][0])
            if size > self._most:
                break
            parcel.append(self._pop(box))
        return parcel

    def _pop(self, box: _Box) -> tuple[Report, float]:
        report, at = box.waiting.popleft()
        box.size -= _size(report)
        self._size -= _size(report)
        return report, at

    def _give_up(self, report: Report, to: str, reason: str) -> None:
        try:
            self._on_lost(report, to, reason)
        except Exception:
            LOG.exception('the loss of a report was lost in a callback: '
                          'batch=%s', report.batch)


def _size(report: Report) -> int:
    # An empty report counts as one, or any number of them could wait.
    return report.size or 1
