# SPDX-License-Identifier: Apache-2.0
"""Notices of tasks to the schedulers of this host.

A notice reaches the schedulers of this process, and the schedulers of other
processes that use the same SQLite file.
"""

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence

from distperiodic.adapters.local import notice_sockets

LOG = logging.getLogger(__name__)

Listener = Callable[[Sequence[str]], None]
#: Connection URL and group of the tasks.
Key = tuple[str, str]

_lock = threading.Lock()
#: Listeners, each with its socket. None means that the listener has no socket.
_listeners: dict[Key, list[tuple[
    Listener, notice_sockets.Listener | None]]] = {}


def listen(key: Key, listener: Listener) -> None:
    """Call *listener* with the ids of submitted or changed tasks.

    The tasks may be submitted or changed by this process, or by another
    process that uses the same SQLite file. *listener* must not block.
    """
    socket = None
    place = notice_sockets.place_of(*key)
    if place is not None:
        try:
            socket = notice_sockets.Listener(place, listener)
        except OSError as exc:
            LOG.warning(
                'no notices from other processes: directory=%s reason=%s; the '
                'tasks that they submit start at the next sweep',
                place.directory, exc.strerror)
    with _lock:
        _listeners.setdefault(key, []).append((listener, socket))


def unlisten(key: Key, listener: Listener) -> None:
    """Stop calling *listener*; do nothing if it is not registered."""
    with _lock:
        found = [pair for pair in _listeners.get(key, ())
                 if pair[0] == listener][:1]
        for pair in found:
            _listeners[key].remove(pair)
    for _, socket in found:
        if socket is not None:
            socket.close()


def notify(key: Key, tasks: Sequence[str]) -> bool:
    """Notify the listeners of *tasks*; return True if any was notified."""
    with _lock:
        found = list(_listeners.get(key, ()))
    for listener, _ in found:
        listener(tasks)
    place = notice_sockets.place_of(*key)
    elsewhere = 0 if place is None else notice_sockets.send(
        place, tasks, [socket.name for _, socket in found if socket])
    return bool(found or elsewhere)
