# SPDX-License-Identifier: Apache-2.0
"""Notices of tasks between processes that share a SQLite file.

Each scheduler listens on a datagram socket beside the file. A process that
submits a task sends the id of the task to all of these sockets, so that the
schedulers need not wait for their next sweep. A notice is a hint: if it is
lost, the next sweep finds the task.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import pathlib
import socket
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

LOG = logging.getLogger(__name__)

# Maximum number of ids in one datagram. An id has at most 64 characters.
_IN_A_DATAGRAM = 500
# Maximum number of bytes that the listener reads from a datagram.
_LONGEST = 100_000
# Maximum length of a socket's path, in bytes. Every system accepts a path of
# this length.
_LONGEST_PATH = 100


class SocketDirectory(NamedTuple):
    """The location of the sockets of one group, beside the SQLite file."""

    directory: pathlib.Path
    #: First part of the names of the sockets.
    prefix: str


def place_of(connection: str, group: str) -> SocketDirectory | None:
    """Return the place of the group's sockets.

    None means that the store is not a SQLite file, and has no sockets.

    :param connection: URL of the store. Empty means that there is none.
    """
    if not connection:
        return None
    # Load SQLAlchemy only if there is a database.
    from distperiodic.adapters.sql.dialects import registry
    file = registry.file_at(connection)
    if file is None:
        return None
    file = file.absolute()
    digest = hashlib.sha256(group.encode()).hexdigest()[:8]
    return SocketDirectory(file.parent, f'{file.name}-notices-{digest}-')


class Listener:
    """A socket at *place* on which the ids of tasks arrive.

    :param notified: Receives the ids of tasks, in a thread of this object. It
        must not block.
    :raises OSError: The socket cannot be created.
    """

    def __init__(self, place: SocketDirectory,
                 notified: Callable[[Sequence[str]], None]):
        #: Name of the socket, unique to this object.
        self.name = place.prefix + os.urandom(6).hex()
        self._path = place.directory / self.name
        self._notified = notified
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with address_of(self._path) as address:
                self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._receive, daemon=True,
                         name='distperiodic-notices').start()

    def _receive(self) -> None:
        while True:
            data = self._socket.recv(_LONGEST)
            if self._closed.is_set():
                break
            if tasks := _decoded(data):
                self._notified(tasks)
        self._socket.close()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._path.unlink()
        # Wake the thread, which blocks in recv().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)


def send(place: SocketDirectory, tasks: Sequence[str],
         without: Collection[str] = ()) -> int:
    """Send the ids of *tasks* to all sockets at *place*; never block.

    :param without: Names of sockets to leave out.
    :returns: Number of sockets that have received all ids.
    """
    try:
        names = [name for name in os.listdir(place.directory)
                 if name.startswith(place.prefix) and name not in without]
    except OSError:
        return 0
    if not names:
        return 0
    datagrams = [
        json.dumps(tasks[at:at + _IN_A_DATAGRAM]).encode()
        for at in range(0, len(tasks), _IN_A_DATAGRAM)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        return sum(_sent(sender, place.directory / name, datagrams)
                   for name in names)


def _sent(sender: socket.socket, path: pathlib.Path,
          datagrams: Sequence[bytes]) -> bool:
    try:
        with address_of(path) as address:
            for data in datagrams:
                sender.sendto(data, address)
    except OSError as exc:
        if exc.errno == errno.ECONNREFUSED:
            # The process that created this socket was killed.
            with contextlib.suppress(OSError):
                path.unlink()
        LOG.debug('notice of tasks not received: socket=%s reason=%s; the '
                  'next sweep finds the tasks', path, exc.strerror)
        return False
    return True


@contextlib.contextmanager
def address_of(path: pathlib.Path) -> Iterator[str]:
    """Yield an address of *path* that is short enough for a socket.

    :raises OSError: The directory of a long path cannot be opened.
    """
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        yield f'/proc/self/fd/{directory}/{path.name}'
    finally:
        os.close(directory)


def _decoded(data: bytes) -> list[str]:
    """Return the ids in a datagram; an empty list if it is invalid."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return []
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return found
    return []
