# SPDX-License-Identifier: Apache-2.0
"""The maximum of the numbers that were recorded recently."""

#: Seconds of one period. The maximum covers the current period and the
#: previous one. A process that has more work begins its next run within a
#: period of the end of a run.
PERIOD = 0.2


class RecentMaximum:
    """The maximum of a number in the current period and in the previous one.

    The number may change at any time, for example the number of runs of a
    process. Between the end of a run and the beginning of the next one it is
    too low, but the maximum is not.
    """

    __slots__ = ('_begin', '_next', 'value')

    def __init__(self) -> None:
        #: The maximum at the last call of :meth:`record`.
        self.value = 0
        #: The maximum in the current period.
        self._next = 0
        self._begin = float('-inf')

    def record(self, number: int, now: float) -> None:
        """Record the current number.

        :param now: Monotonic seconds.
        """
        age = now - self._begin
        if age > 2 * PERIOD:
            self.value = self._next = number
            self._begin = now
        elif age > PERIOD:
            self.value = max(self._next, number)
            self._next, self._begin = number, now
        else:
            self.value = max(self.value, number)
            self._next = max(self._next, number)
