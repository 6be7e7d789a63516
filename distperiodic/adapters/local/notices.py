# SPDX-License-Identifier: Apache-2.0
"""Notices of tasks to the schedulers of this process."""

import threading
from collections.abc import Callable
from collections.abc import Sequence

Listener = Callable[[Sequence[str]], None]
#: Connection URL and group of the tasks.
Key = tuple[str, str]

_lock = threading.Lock()
_listeners: dict[Key, list[Listener]] = {}


def listen(key: Key, listener: Listener) -> None:
    """Call *listener* with the ids of tasks that this process submits or
    changes. It must not block.
    """
    with _lock:
        _listeners.setdefault(key, []).append(listener)


def unlisten(key: Key, listener: Listener) -> None:
    """Undo :func:`listen`, if it was called."""
    with _lock:
        if listener in _listeners.get(key, ()):
            _listeners[key].remove(listener)


def tell(key: Key, tasks: Sequence[str]) -> bool:
    """Tell the listeners of *tasks*. Return whether there are any."""
    with _lock:
        found = list(_listeners.get(key, ()))
    for listener in found:
        listener(tasks)
    return bool(found)
