# SPDX-License-Identifier: Apache-2.0
"""Outgoing queue of replies to operators.

An operator's command waits only a few seconds for replies. So the outbox makes
only one attempt to send a reply. If the broker is unreachable, the command
reports that the member did not answer.
"""

import logging
import queue
import threading
from collections.abc import Callable

from distperiodic.core.control_message import ControlReply
from distperiodic.exceptions import DistperiodicError
from distperiodic.exceptions import NoConsumer

LOG = logging.getLogger(__name__)

# Maximum number of replies that wait to be sent. The limit is needed because
# forged commands could request any number of replies.
_MOST_WAITING = 100


class ReplyOutbox:
    """Sender of replies, in a thread that starts with the first reply.

    :param send: Sends a reply, and may block. Its second argument is the last
        word of the name of the queue to which the reply is sent.
    """

    def __init__(self, send: Callable[[ControlReply, str], None]):
        self._send = send
        self._waiting: queue.Queue[tuple[ControlReply, str] | None] = (
            queue.Queue(_MOST_WAITING))
        self._thread: threading.Thread | None = None

    def put(self, reply: ControlReply, word: str) -> None:
        """Enqueue a reply; never block and never raise.

        Only one thread may call this method.
        """
        try:
            self._waiting.put_nowait((reply, word))
        except queue.Full:
            _drop(reply, 'too many replies wait')
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._send_all, name='distperiodic-replies',
                daemon=True)
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Send the waiting replies for at most *timeout* seconds."""
        if self._thread is not None:
            try:
                self._waiting.put(None, timeout=timeout / 2)
            except queue.Full:
                return
            self._thread.join(timeout / 2)

    def _send_all(self) -> None:
        while (found := self._waiting.get()) is not None:
            reply, word = found
            try:
                self._send(reply, word)
            except NoConsumer:
                _drop(reply, 'the command has ended')
            except DistperiodicError as exc:
                _drop(reply, str(exc))


def _drop(reply: ControlReply, reason: str) -> None:
    LOG.info('reply not sent: member=%s action=%s reason=%s; the operator '
             'sees that this member did not answer', reply.name,
             reply.request, reason)
