# SPDX-License-Identifier: Apache-2.0
"""Notices to all schedulers of a group, over messages.

A notice makes a scheduler check tasks at once. Without the notice, the
scheduler finds these tasks at its next sweep. So a notice that cannot be sent
is dropped, and a process that submits a task never waits for the broker.
"""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.queue_names import ALL
from distperiodic.adapters.messaging.queue_names import notices_topic
from distperiodic.core import message
from distperiodic.core.wire import Key

LOG = logging.getLogger(__name__)

# Maximum number of ids in one message, and number of waiting ids above which
# further notices are dropped.
_IN_A_MESSAGE = 1000
_MOST_WAITING = 20_000
# Maximum seconds to connect, and to disconnect.
_CONNECTING = 5.0


class TaskNotices:
    """Sender of notices of tasks, in a separate thread.

    The thread connects at the first notice. A forked child opens its own
    connection.

    :param conf: Configuration with ``[DEFAULT] transport_url``.
    :param transport_url: URL of another broker. None means that of *conf*.
    :param keys: Secrets of the group, of which the first one signs each
        notice. Empty means that notices are not signed.
    """

    def __init__(self, conf: Any, transport_url: str | None = None, *,
                 group: str, keys: Sequence[Key] = ()):
        self._conf = conf
        self._transport_url = transport_url
        self._topic = notices_topic(group)
        self._keys = tuple(keys)
        self._clear()

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    def notify(self, tasks: Sequence[str]) -> None:
        """Notify the schedulers of *tasks*; never block and never raise."""
        if self._pid != os.getpid():
            self._clear()
        with self._changed:
            if self._closing or len(self._waiting) > _MOST_WAITING:
                return
            self._waiting.extend(tasks)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_all, name='distperiodic-notices',
                    daemon=True)
                self._thread.start()

    def close(self, timeout: float) -> None:
        """Send the waiting notices for up to *timeout* s, and disconnect."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _send_all(self) -> None:
        try:
            url = self._transport_url or drivers.url_of(self._conf)
            carrier = drivers.driver_of(url).carrier(
                self._conf, url, inbox=None,
                monotonic=SystemClock().monotonic)
            carrier.open(_CONNECTING)
        except exceptions.DistperiodicError as exc:
            with self._changed:
                self._drop(exc)
                # The next notice starts a new attempt to connect.
                self._thread = None
            return
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                tasks = self._waiting[:_IN_A_MESSAGE]
                del self._waiting[:_IN_A_MESSAGE]
            try:
                carrier.cast(self._topic, ALL, message.encode_notice(
                    message.Notice(tasks), self._keys))
            except exceptions.DistperiodicError as exc:
                # No scheduler listens (NoConsumer), or the broker is
                # unreachable. The next sweep of a scheduler finds the tasks.
                self._drop(exc)
        carrier.close(_CONNECTING)

    def _drop(self, exc: Exception) -> None:
        with self._changed:
            self._waiting.clear()
        LOG.info('notice of tasks not sent: reason=%s; the schedulers find '
                 'the tasks at their next sweep', exc)
