# SPDX-License-Identifier: Apache-2.0
"""Calls to a store that have no answer yet.

A process that stops waits for the answers that may give claims to it.
"""

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
        #: Number of claims in the pending calls.
        self.claims = 0

    def __bool__(self) -> bool:
        """Return whether a call is pending.

        An answer is pending until its callback has returned, because the
        callback may submit further calls.
        """
        return self._number > 0

    def submit(self, call: Callable[[ports.ClaimStore], Any],
               then: Callable[[Any], None] = lambda answer: None,
               failed: Callable[[], None] = lambda: None, *,
               claims: int = 0) -> None:
        """Submit a call; see :class:`distperiodic.ports.StoreQueue`.

        :param claims: Number of the claims in the call.
        """
        self._number += 1
        self.claims += claims

        def ended(callback: Callable[[], None]) -> None:
            try:
                callback()
            finally:
                self._number -= 1
                self.claims -= claims
        self._store.submit(
            call, lambda answer: ended(lambda: then(answer)),
            lambda: ended(failed))
