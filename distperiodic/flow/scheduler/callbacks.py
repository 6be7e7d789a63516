# SPDX-License-Identifier: Apache-2.0
"""Callbacks that wait for the answer to a request to the store."""

from collections.abc import Callable


class Callbacks:
    """Callbacks for requests that are sent one at a time."""

    def __init__(self) -> None:
        self._current: list[Callable[[], None]] = []
        self._next: list[Callable[[], None]] = []

    @property
    def need_another(self) -> bool:
        """True if callbacks wait for a request that has not begun."""
        return bool(self._next)

    def register(self, callback: Callable[[], None], *,
                 current: bool = False) -> None:
        """Register a callback.

        :param current: True if the answer to the pending request suffices.
            False means that the callback waits for a request that begins
            later.
        """
        (self._current if current else self._next).append(callback)

    def begin(self) -> None:
        """Record that a request begins, for whose answer all callbacks wait.
        """
        self._current += self._next
        self._next.clear()

    def call(self) -> None:
        """Call the callbacks that waited for the answer that has arrived."""
        answered = list(self._current)
        self._current.clear()
        for callback in answered:
            callback()
