# SPDX-License-Identifier: Apache-2.0
"""Watchdog for connections to a server that does not answer.

If a server is suspended, or is behind a proxy that still acknowledges packets,
a connection may stay open although the server never answers. Timeouts that the
server enforces do not help in this case. TCP's timeouts do not expire, because
packets are acknowledged. libpq has no timeout for an answer. So a thread
checks once a second how long the current wait for the server has lasted. If
the wait takes too long, the thread shuts down the connection. The driver then
finds the connection closed, as if the server had died.
"""

import logging
import os
import socket
import threading
from typing import Any

LOG = logging.getLogger(__name__)


class ConnectionWatchdog:
    """Watchdog that shuts down one thread's connection after a timeout.

    The body of ``with watchdog:`` counts as one wait. If a connection is
    opened in the body, :meth:`connected` passes it to the watchdog.

    :param seconds: Maximum seconds of one wait, accurate to about a second.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        #: Number of the current wait; 0 means that no wait is in progress.
        self._waiting = 0
        self._waits = 0
        #: Socket on a duplicate of the driver's file descriptor. If the driver
        #: closes its descriptor, the system may reuse that number for another
        #: connection, but not the number of the duplicate.
        self._socket: socket.socket | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def connected(self, connection: Any, record: Any = None) -> None:
        """Watch this connection of the driver from now on."""
        self._forget()
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def __enter__(self) -> None:
        self._waits += 1
        self._waiting = self._waits
        if self._thread is None or not self._thread.is_alive():
            # First use, or a forked child, in which the thread does not run.
            self._closed = threading.Event()
            self._thread = threading.Thread(
                target=self._watch, args=(self._closed,),
                name='distperiodic-silence', daemon=True)
            self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._waiting = 0

    def _watch(self, closed: threading.Event) -> None:
        wait, seconds = 0, 0
        while not closed.wait(1.0):
            if self._waiting != wait:
                wait, seconds = self._waiting, 0
            seconds += bool(wait)
            if seconds > self._seconds:
                seconds = 0
                self._end()

    def _end(self) -> None:
        sock = self._socket
        if sock is None:
            return
        LOG.warning('database silent: seconds=%g; this process closes the '
                    'connection and repeats the call', self._seconds)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError as exc:
            LOG.debug('connection had ended: reason=%s', exc)

    def _forget(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """Stop the thread, and stop watching the connection.

        Call this when the connection is closed. The next wait starts a new
        thread.
        """
        self._closed.set()
        self._thread = None
        self._forget()
