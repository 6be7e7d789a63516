# SPDX-License-Identifier: Apache-2.0
"""Calls to a store that have no answer yet.

A process that stops waits for the answers that may give claims to it.
"""

import functools
from collections.abc import Callable
from typing import Any

from distperiodic import ports


class PendingCalls:
    """Calls to a store of one kind, with the number of the pending ones.

    :param store: Queue to which the calls are submitted.
    """

    def __init__(self, store: ports.StoreQueue):
        self._store = store
        self._number = 0

    def __bool__(self) -> bool:
        """Return whether a call is pending.

        An answer is pending until its callback has returned, because the
        callback may submit further calls.
        """
        return self._number > 0

    def submit(self, call: Callable[[ports.ClaimStore], Any],
               then: Callable[[Any], None],
               failed: Callable[[], None]) -> None:
        """Submit a call; see :class:`distperiodic.ports.StoreQueue`."""
        self._number += 1
        self._store.submit(
            call, functools.partial(self._ended, then),
            functools.partial(self._ended, failed))

    def _ended(self, callback: Callable[..., None], *answer: Any) -> None:
        try:
            callback(*answer)
        finally:
            self._number -= 1
