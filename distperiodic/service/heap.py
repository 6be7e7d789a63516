# SPDX-License-Identifier: Apache-2.0
"""Exempt long-lived objects from garbage collection.

A full collection visits every object of the process while no other thread
runs. That takes tens of milliseconds, in the middle of a tick. The objects
that exist when a service begins to work live as long as the service, so the
collector need not visit them. :func:`gc.freeze` exempts them.

While a service works, the collector also looks for young garbage less often.
A burst of a thousand ticks keeps some 15,000 new objects until its reports
have come. Python would visit them twenty times meanwhile and find nothing.
"""

import gc
import threading

#: Number of new objects after which the collector looks for young garbage.
YOUNG = 20_000

_lock = threading.Lock()
_users = 0
# Thresholds of the collector before the first call. None means that they are
# unchanged.
_before: tuple[int, int, int] | None = None


def freeze() -> None:
    """Run a full collection, then exempt every surviving object from later
    ones (:func:`gc.freeze`), and look for young garbage after :data:`YOUNG`
    new objects.

    If the collector is disabled, nothing changes. A higher threshold of the
    program stays as it is.
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
    """Undo :func:`freeze` after the last caller of it has called this."""
    global _before, _users
    with _lock:
        _users -= 1
        if not _users:
            gc.unfreeze()
            if _before is not None:
                gc.set_threshold(*_before)
                _before = None
