# SPDX-License-Identifier: Apache-2.0
"""Queue that calls a store directly in the caller's thread."""

from collections.abc import Callable
from typing import TypeVar

from distperiodic import ports

_Answer = TypeVar('_Answer')


class InlineStoreQueue:
    """A queue that calls the store at once. See
    :class:`distperiodic.ports.StoreQueue`.
    """

    away = False

    def __init__(self, store: ports.ClaimStore):
        self._store = store
        self.urgent: ports.CallQueue = self

    def submit(self, call: Callable[[ports.ClaimStore], _Answer],
               then: Callable[[_Answer], None],
               failed: Callable[[], None] = lambda: None) -> None:
        then(call(self._store))
