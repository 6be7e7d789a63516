# SPDX-License-Identifier: Apache-2.0
"""An end to waiting for a server that has gone silent.

A server that is stopped, or behind something that still acknowledges what is
sent, keeps a connection open and never answers. The bounds that the server
keeps are of no use then, TCP's own are met by whoever acknowledges, and
libpq has none for an answer. So a thread looks once a second whether the
same wait is still on, and ends the connection of one that has lasted too
long: the driver finds it closed, as if the server had died.
"""

import logging
import os
import socket
import threading
from typing import Any

LOG = logging.getLogger(__name__)


class Watch:
    """Ends the connection of one thread when an answer takes too long.

    A wait is what happens within ``with watch:``; it may open the connection
    that is given to :meth:`connected`.

    :param seconds: of one wait, at the most; a second more or less.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        #: The number of the wait that is on; 0: none is.
        self._waiting = 0
        self._waits = 0
        #: Ours as well as the driver's: its number is nobody else's while we
        #: have it.
        self._socket: socket.socket | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def connected(self, connection: Any, record: Any = None) -> None:
        """Watch over this connection of the driver's from now on."""
        self._forget()
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def __enter__(self) -> None:
        self._waits += 1
        self._waiting = self._waits
        if self._thread is None or not self._thread.is_alive():
            # Or it is a forked child's, which has no threads.
            self._closed = threading.Event()
            self._thread = threading.Thread(
                target=self._look, args=(self._closed,),
                name='distperiodic-silence', daemon=True)
            self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._waiting = 0

    def _look(self, closed: threading.Event) -> None:
        wait, looks = 0, 0
        while not closed.wait(1.0):
            if self._waiting != wait:
                wait, looks = self._waiting, 0
            looks += bool(wait)
            if looks > self._seconds:
                looks = 0
                self._end()

    def _end(self) -> None:
        ours = self._socket
        if ours is None:
            return
        LOG.warning('database silent: seconds=%g; its connection is ended, '
                    'and the call is made again', self._seconds)
        try:
            ours.shutdown(socket.SHUT_RDWR)
        except OSError as exc:
            LOG.debug('connection had ended: reason=%s', exc)

    def _forget(self) -> None:
        ours, self._socket = self._socket, None
        if ours is not None:
            ours.close()

    def close(self) -> None:
        """The connection is closed; the next wait begins anew."""
        self._closed.set()
        self._thread = None
        self._forget()
