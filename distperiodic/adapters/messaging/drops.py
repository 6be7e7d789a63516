# SPDX-License-Identifier: Apache-2.0
"""Dropped messages, counted by origin and reason."""

import logging
import threading

from distperiodic import ports
from distperiodic.core.telemetry import MessageRefused

LOG = logging.getLogger(__name__)

# Number of distinct (origin, reason) pairs that are counted separately. The
# limit is needed because forged messages may contain any number of origins.
_MOST_ORIGINS = 200


class Drops:
    """Counter of dropped messages, which logs each kind of message once.

    :param sink: Receives an event for each dropped message.
    """

    def __init__(self, sink: ports.EventSink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, origin: str, reason: str,
             level: int = logging.WARNING) -> None:
        key = (f'{origin:.120}', f'{reason:.200}')
        with self._lock:
            if key not in self._counts and len(self._counts) > _MOST_ORIGINS:
                key = ('many others', 'various')
            count = self._counts[key] = self._counts.get(key, 0) + 1
        if self._sink.open:
            self._sink.put(MessageRefused(*key))
        if count == 1:
            LOG.log(level, 'message dropped: origin=%r reason=%r; further '
                    'ones of this kind are counted and not logged', *key)

    def counts(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)
