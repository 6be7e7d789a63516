# SPDX-License-Identifier: Apache-2.0
"""Outgoing queue of reports, several of which share a message."""

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable

from distperiodic.adapters.messaging.outbox import FIRST_PAUSE
from distperiodic.core.message import Report
from distperiodic.exceptions import InvalidMessage

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class _Box:
    """Waiting reports for one scheduler."""

    to: str
    next_at: float  # monotonic time of the earliest next message
    waiting: collections.deque[tuple[Report, float]] = dataclasses.field(
        default_factory=collections.deque)  # each with its time of put()
    size: int = 0  # number of objects in the waiting reports
    pause: float = 0.0  # seconds before a retry; 0.0 after a success


class ReportOutbox:
    """Queue of reports, which are grouped into messages by scheduler.

    The first report is sent at once. Reports that follow within *linger*
    seconds are collected into one message. So a worker with many short runs
    sends at most 1 / linger messages per second to a scheduler, apart from
    full messages, which are sent earlier.

    :param publish: Sends reports to one scheduler. Returns when the broker has
        confirmed the reports, and raises an error otherwise.
    :param on_lost: Called with each report that is given up, the scheduler of
        the report, and the reason. The report is not sent again. The scheduler
        recovers the run after the lease of the run has expired.
    :param linger: Seconds between two messages to one scheduler.
    :param most: Maximum number of objects in one message; a single report may
        have more.
    :param capacity: Maximum number of waiting objects. Above this number, the
        oldest reports to the scheduler with the most waiting objects are given
        up.
    :param patience: Seconds from put() after which a report is given up when
        an attempt to send it fails.
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
            self._give_up(old, scheduler, 'too many reports are waiting')

    def forget(self, to: str) -> None:
        """Give up the waiting reports to the scheduler *to*, which is gone."""
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
            # Do not retry, because each attempt would fail, and the reports
            # would block all later reports to this scheduler.
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
            box.pause = min(max(2 * box.pause, FIRST_PAUSE),
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
    # Count an empty report as one object. Otherwise the capacity would not
    # limit the number of empty reports.
    return report.size or 1
