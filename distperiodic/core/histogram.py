# SPDX-License-Identifier: Apache-2.0
"""Histograms of durations, with buckets that are the same everywhere.

The upper bounds of the buckets are 1 ms times powers of the square root of 2,
up to 12 days. A quantile is therefore exact within 41 %, whatever the order of
magnitude. Because all histograms have the same buckets, histograms of several
processes and ticks are added bucket by bucket::

    add(durations) ──► text ──► row of the history ──► merged by the reader

The text of a histogram has at most :data:`LONGEST_TEXT` characters: the sum
and the maximum in microseconds, and the number of each bucket that is not
empty, such as ``71200 40000 0:3 11:1``.
"""

import bisect
from collections.abc import Iterable
from collections.abc import Mapping

# Number of buckets with an upper bound. One more bucket has no upper bound.
_NUMBER = 61
#: Upper bounds of the buckets, inclusive, in microseconds.
BOUNDS = tuple(round(1000 * 2 ** (at / 2)) for at in range(_NUMBER))
#: Maximum number of characters of a text: two numbers of 20 digits, and for
#: each bucket its index and a number of up to 8 digits.
LONGEST_TEXT = 2 * 21 + (_NUMBER + 1) * 12


class Histogram:
    """Numbers of durations by bucket, with their sum and maximum.

    Durations are in microseconds.
    """

    __slots__ = ('_numbers', 'max', 'sum')

    def __init__(self, numbers: Mapping[int, int] | None = None,
                 sum_: int = 0, max_: int = 0):
        self._numbers: dict[int, int] = dict(numbers or {})
        #: Sum and maximum of all durations, in microseconds.
        self.sum = sum_
        self.max = max_

    def add(self, duration: int, number: int = 1) -> None:
        """Count *number* times *duration*. A negative duration counts as 0."""
        duration = max(0, duration)
        at = bisect.bisect_left(BOUNDS, duration)
        self._numbers[at] = self._numbers.get(at, 0) + number
        self.sum += number * duration
        if duration > self.max:
            self.max = duration

    def __add__(self, other: 'Histogram') -> 'Histogram':
        found = Histogram(self._numbers, self.sum + other.sum,
                          max(self.max, other.max))
        for at, number in other._numbers.items():
            found._numbers[at] = found._numbers.get(at, 0) + number
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return (self._numbers, self.sum, self.max) == (
            other._numbers, other.sum, other.max)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f'Histogram.parse({self.text()!r})'

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self._numbers.values())

    @property
    def mean(self) -> int | None:
        """Mean in microseconds. None means that there is no duration."""
        count = self.count
        return round(self.sum / count) if count else None

    def quantile(self, share: float) -> int | None:
        """Return the duration that *share* of all durations do not exceed.

        Inside a bucket, the durations are assumed to be evenly distributed.

        :param share: From 0.0 to 1.0.
        :returns: Microseconds. None means that there is no duration.
        """
        wanted = share * self.count
        before = 0
        for at, number in sorted(self._numbers.items()):
            if before + number >= wanted:
                low = BOUNDS[at - 1] if at else 0
                high = BOUNDS[at] if at < _NUMBER else self.max
                inside = (wanted - before) / number
                return min(self.max, round(low + (high - low) * inside))
            before += number
        return None

    def above(self, duration: int) -> int:
        """Return the number of durations in the buckets above *duration*."""
        first = bisect.bisect_left(BOUNDS, duration)
        return sum(number for at, number in self._numbers.items()
                   if at > first)

    def buckets(self) -> list[tuple[int | None, int]]:
        """Return the buckets that are not empty, in ascending order.

        :returns: The upper bound of each bucket in microseconds, inclusive,
            and its number. The upper bound of the last bucket is None.
        """
        return [(BOUNDS[at] if at < _NUMBER else None, number)
                for at, number in sorted(self._numbers.items())]

    def text(self) -> str:
        """Return the text of this histogram; see :meth:`parse`."""
        return ' '.join([str(self.sum), str(self.max), *(
            f'{at}:{number}' for at, number in sorted(
                self._numbers.items()))])

    @classmethod
    def parse(cls, text: str | None) -> 'Histogram':
        """Return the histogram with this text.

        None, and a text in another form, means an empty histogram: another
        release may have written it.
        """
        try:
            sum_, max_, *numbers = (text or '').split()
            pairs = [one.split(':') for one in numbers]
            found = {int(at): int(number) for at, number in pairs}
            if all(0 <= at <= _NUMBER and number > 0
                   for at, number in found.items()):
                return cls(found, int(sum_), int(max_))
        except ValueError:
            pass
        return cls()


def total(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of *histograms*."""
    found = Histogram()
    for one in histograms:
        found = found + one
    return found
