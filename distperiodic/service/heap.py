# SPDX-License-Identifier: Apache-2.0
"""Exempt long-lived objects from garbage collection.

A full collection visits every object of the process while no other thread
runs. That takes tens of milliseconds, in the middle of a tick. The objects
that exist when a service begins to work live as long as the service, so the
collector need not visit them. :func:`gc.freeze` exempts them.
"""

import gc
import threading

_lock = threading.Lock()
_users = 0


def freeze() -> None:
    """Run a full collection, then exempt every surviving object from later
    ones (:func:`gc.freeze`).

    If the collector is disabled, nothing changes.
    """
    global _users
    with _lock:
        _users += 1
        if gc.isenabled():
            gc.collect()
            gc.freeze()


def unfreeze() -> None:
    """Undo :func:`freeze` after the last caller of it has called this."""
    global _users
    with _lock:
        _users -= 1
        if not _users:
            gc.unfreeze()
