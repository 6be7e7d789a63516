# SPDX-License-Identifier: Apache-2.0
"""Exempt long-lived objects from garbage collection.

A full collection visits every object of the process while no other thread
runs. This takes tens of milliseconds, possibly in the middle of a tick. The
objects that exist when a service begins to work live as long as the service,
so a collection visits them for nothing. :func:`gc.freeze` exempts these
objects.

While a service works, young objects are also collected less often. A burst of
a thousand ticks keeps some 15,000 new objects alive until its reports have
arrived. With its default threshold, the collector would visit these objects
twenty times meanwhile and find no garbage.
"""

import gc
import threading

#: Number of new objects after which the collector visits the young objects.
YOUNG = 20_000

_lock = threading.Lock()
_users = 0
# Thresholds of the collector before the first call. None means that they are
# unchanged.
_before: tuple[int, int, int] | None = None


def freeze() -> None:
    """Exempt all objects that exist now from garbage collection.

    This function first runs a full collection, and then calls
    :func:`gc.freeze`. It also raises the threshold for a collection of young
    objects to :data:`YOUNG` new objects. A higher threshold that the program
    has set is kept.

    If the collector is disabled, nothing changes.
    """
    global _before, _users
    with _lock:
        _users += 1
        if gc.isenabled():
            gc.collect()
            gc.freeze()
            thresholds = gc.get_threshold()
            if 0 < thresholds[0] < YOUNG:
                _before = thresholds
                gc.set_threshold(YOUNG, *thresholds[1:])


def unfreeze() -> None:
    """Undo :func:`freeze` when each of its callers has called this function.
    """
    global _before, _users
    with _lock:
        _users -= 1
        if not _users:
            gc.unfreeze()
            if _before is not None:
                gc.set_threshold(*_before)
                _before = None
