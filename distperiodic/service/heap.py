# SPDX-License-Identifier: Apache-2.0
"""Keeps what a service is built of out of the garbage collector's way.

A full collection looks at every object of the process while no other thread
runs: tens of milliseconds, in the middle of a tick. What is there when the
service begins to work stays for as long as it works, so it need not be looked
at; :func:`gc.freeze` is made for that.
"""

import gc
import threading

_lock = threading.Lock()
_users = 0


def freeze() -> None:
    """Collect what is garbage now, and look no more at what is left.

    A process whose collector is switched off is left as it is.
    """
    global _users
    with _lock:
        _users += 1
        if gc.isenabled():
            gc.collect()
            gc.freeze()


def unfreeze() -> None:
    """Undo :func:`freeze`, once everybody who called it has called this."""
    global _users
    with _lock:
        _users -= 1
        if not _users:
            gc.unfreeze()
