# SPDX-License-Identifier: Apache-2.0
"""Links between a service and its processes, which run the handlers.

A link is a pair of connected sockets that only the service and one process
use. A message is its length, followed by its bytes::

    service                                         process
      ─── the module search path, then a Recipe ────────►
      ◄── ready ─────────────────────────────────────────
      ─── a Call ───────────────────────────────────────►
      ◄── began ─────────────────────────────────────────
      ─── State, every EVERY seconds ───────────────────►
      ◄── progress ──────────────────────────────────────
      ◄── done, failed or expired ───────────────────────

The service writes its messages with pickle. The process writes JSON, because
the service trusts no value that a handler has changed.

Each run has a time limit. The service sends the limit with each State, and
extends it when the lease of the run is renewed. At the limit, the process ends
itself. So even if the service is suspended, a handler does not continue while
the next attempt runs.
"""

import math
import struct
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic.core.context import RunInput

#: Seconds between two states that the service sends during a run.
EVERY = 0.5
#: Maximum number of bytes of a message.
MAX_MESSAGE = 64_000_000

_LENGTH = struct.Struct('!I')


class Recipe(NamedTuple):
    """Data from which a process builds the tasks."""

    module: str
    #: Qualified name of the class.
    name: str
    #: Configuration files.
    files: Sequence[str]
    #: Group of the service.
    namespace: str
    #: Id of the process of the service.
    parent: int


class Call(NamedTuple):
    """One run of a handler."""

    run: RunInput
    #: Progress of an earlier attempt, as JSON.
    progress: str
    #: Lease of the run. Empty means that there is no store.
    lease: str
    #: Deadline of the run on the monotonic clock, in seconds. The service may
    #: extend it.
    until: float
    #: Arguments of the handler, without the context.
    arguments: tuple[Any, ...]
    #: Trace context of the run's span. None means that the run has no span.
    trace: str | None = None


class RunState(NamedTuple):
    """State of the run, as the service knows it."""

    #: Monotonic time of the message, in seconds.
    at: float
    #: Deadline of the run on the monotonic clock, in seconds.
    until: float = math.inf
    #: True if the result of the run will be ignored.
    cancelled: bool = False


class Malformed(Exception):
    """The other side has sent something that is no message."""


def frame(content: bytes) -> bytes:
    """Return a message with this content."""
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Splitter of received bytes into the contents of messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add received bytes, and yield the contents that are complete.

        :raises Malformed: A message is longer than :data:`MAX_MESSAGE`.
        """
        received = self._received
        received += data
        while len(received) >= _LENGTH.size:
            length, = _LENGTH.unpack_from(received)
            if length > MAX_MESSAGE:
                raise Malformed(f'a message of {length} bytes')
            end = _LENGTH.size + length
            if len(received) < end:
                return
            content = bytes(received[_LENGTH.size:end])
            del received[:end]
            yield content
