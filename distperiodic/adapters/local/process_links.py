# SPDX-License-Identifier: Apache-2.0
"""Links between a service and its processes, which run the handlers.

::

    service                                   process
      Hub ◄── begin, progress ─────────────── Link
      Hub ─── state and time limit of a run ► Link

Each process connects once, to a socket that only processes of this service can
use. Both ends are idle while the process runs no handler.

Each run has a time limit. The service sends the limit with each message, and
extends it when the lease of the run is renewed. At the limit, the process ends
itself. So even if the service is suspended or the link breaks, a handler does
not continue while the next attempt runs. A broken link affects only the runs
of its own process. The results of these runs still arrive, because results are
not sent over the link.

Each end starts a thread for each connection.
"""

import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from collections.abc import Iterator
from multiprocessing import connection as connections
from typing import Any

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.context import Context

LOG = logging.getLogger(__name__)

# Seconds between two messages from the service during a run.
_EVERY = 0.5
# Seconds without a message from the service after which a handler must assume
# that the lease of its run has expired. A suspended service renews no lease.
_SILENT = 3.0

#: Exit code of a process that ended because the lease of its run had ended.
LEASE_ENDED = 111


class Hub:
    """The service's end of all links of one pool of processes.

    :raises ConfigError: The socket of the hub cannot be created.
    """

    def __init__(self) -> None:
        #: Secret that a process needs to connect.
        self.key = os.urandom(32)
        try:
            # No other user can enter this directory.
            self._directory = tempfile.TemporaryDirectory(
                prefix='distperiodic-', ignore_cleanup_errors=True)
            #: Address to which the processes connect.
            self.address = os.path.join(self._directory.name, 'links')
            self._listener = connections.Listener(
                self.address, 'AF_UNIX', backlog=16, authkey=self.key)
        except OSError as exc:
            raise exceptions.ConfigError(
                'executor = process cannot create a socket in '
                f'{tempfile.gettempdir()}: {exc}; set the environment '
                'variable TMPDIR to another directory') from None
        self._contexts: dict[int, tuple[Context, Callable[[], float]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        threading.Thread(target=self._accept, daemon=True,
                         name='distperiodic-links').start()

    @contextlib.contextmanager
    def run(self, context: Context, until: Callable[[], float]
            ) -> Iterator[int]:
        """Link *context* to the run of its handler in a process.

        *context* then receives the progress of the handler. If the run loses
        its lease or is cancelled, the context of the handler in the process is
        cancelled.

        :param until: Returns the deadline of the run on the monotonic clock,
            in seconds.
        :returns: The number that identifies the run at both ends.
        """
        number = next(self._numbers)
        with self._lock:
            self._contexts[number] = context, until
        try:
            yield number
        finally:
            # The result of a failed run contains the latest progress. Ignore
            # progress that arrives after the result, because it is older.
            with self._lock:
                del self._contexts[number]

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, multiprocessing.AuthenticationError):
                # A process was killed while it was connecting, the service has
                # no file descriptor left, or the listener is closed.
                self._closing.wait(_EVERY)
                continue
            threading.Thread(
                target=self._serve, args=(connection,), daemon=True,
                name='distperiodic-link').start()

    def _serve(self, connection: 'connections.Connection[Any, Any]') -> None:
        number = 0
        with contextlib.suppress(EOFError, OSError), connection:
            while True:
                with self._lock:
                    found = self._contexts.get(number)
                if connection.poll(None if found is None else _EVERY):
                    number, text = connection.recv()
                    with self._lock:
                        found = self._contexts.get(number)
                        if found is not None and text is not None:
                            found[0].receive_progress(text)
                if found is not None:
                    context, until = found
                    connection.send((number, context.is_current(), until()))

    def close(self) -> None:
        """Accept no further connections."""
        self._closing.set()
        with contextlib.suppress(OSError), socket.socket(
                socket.AF_UNIX) as wake:
            # Closing the listener alone does not wake the thread that waits
            # for a connection.
            wake.setblocking(False)
            wake.connect(self.address)
        with contextlib.suppress(OSError):
            self._listener.close()
        self._directory.cleanup()


class _Run:
    """The run of a handler in this process."""

    __slots__ = ('confirmed', 'context', 'heard', 'number', 'text', 'until')

    def __init__(self, number: int, context: Context, heard: float,
                 until: float):
        self.number = number
        self.context = context
        #: Monotonic time of the last message from the service, in seconds.
        self.heard = heard
        #: Deadline of the run on the monotonic clock, in seconds.
        self.until = until
        #: Set once the service has confirmed the run.
        self.confirmed = threading.Event()
        #: JSON text of the last progress that was sent.
        self.text: str | None = None


class Link:
    """The end of a link in a process that runs handlers.

    :param expired: Called when the time limit of the run has passed.
    :raises OSError: The service cannot be reached.
    :raises EOFError: The service has ended.
    """

    def __init__(self, address: str, key: bytes,
                 expired: Callable[[], None]):
        self._connection = connections.Client(address, authkey=key)
        self._expired = expired
        # Wakes the thread when a run begins.
        self._wake, self._waker = multiprocessing.Pipe(duplex=False)
        self._monotonic = SystemClock().monotonic
        self._lock = threading.Lock()
        self._run: _Run | None = None
        threading.Thread(target=self._listen, daemon=True,
                         name='distperiodic-link').start()

    def begin(self, number: int, context: Context, until: float) -> None:
        """Send the progress of *context* until :meth:`end` is called.

        :param number: Number that identifies the run in the service.
        :param until: Deadline of the run on the monotonic clock, in seconds.
            The service may extend it. If it has already passed, because the
            process took long to start, this method waits until the service
            confirms the run.
        """
        now = self._monotonic()
        run = self._run = _Run(
            number, context, now, until if until > now else now + _SILENT)
        self._waker.send(None)
        with self._lock, contextlib.suppress(OSError):
            self._connection.send((number, None))
        if until <= now and not run.confirmed.wait(_SILENT):
            self._expired()

    def is_current(self) -> bool:
        """Return whether the service has recently sent a message for the run.

        If a message reports that the run has lost its lease or is cancelled,
        the link cancels the context of the run.
        """
        run = self._run
        return run is not None and self._monotonic() - run.heard < _SILENT

    def end(self) -> str | None:
        """End the run.

        :returns: JSON text of the last progress that its handler has assigned.
            None means that the handler has assigned no progress.
        """
        run, self._run = self._run, None
        assert run is not None
        with self._lock:
            return run.context.take_unsaved() or run.text

    def _listen(self) -> None:
        sources: list[Any] = [self._wake, self._connection]
        while True:
            run = self._run
            timeout = None
            if run is not None and run.until != math.inf:
                timeout = max(0.0, run.until - self._monotonic())
            ready = connections.wait(sources, timeout)
            if self._wake in ready:
                self._wake.recv()
            if self._connection in ready:
                try:
                    self._receive()
                except (EOFError, OSError):
                    # The time limit of the run can no longer be extended.
                    sources.remove(self._connection)
            elif not ready and run is not None and run is self._run:
                self._expired()
                run.until = math.inf

    def _receive(self) -> None:
        """Handle a message from the service.

        Progress is sent only in response to a message, so this thread never
        waits for a service that does not read.
        """
        number, current, until = self._connection.recv()
        run = self._run
        if run is None or run.number != number:
            return
        run.heard = self._monotonic()
        run.until = until
        if until > run.heard:
            run.confirmed.set()
        if not current:
            run.context.cancelled = True
        self._send_progress(run)

    def _send_progress(self, run: _Run) -> None:
        with self._lock:
            if self._run is not run:
                return
            text = run.context.take_unsaved()
            if text is not None:
                run.text = text
                self._connection.send((run.number, text))
