# SPDX-License-Identifier: Apache-2.0
"""Changes of the clock in a time zone.

zoneinfo returns the offset of one instant, but does not list the changes. So
this module scans each year once, day by day, and caches the changes. Times are
seconds since 1970-01-01 00:00 UTC.
"""

import bisect
import functools
from datetime import UTC
from datetime import datetime
from datetime import timedelta
from datetime import tzinfo
from typing import NamedTuple

_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last day that a datetime can represent in every time zone.
_LAST_S = (datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


class OffsetChange(NamedTuple):
    """Change of the offset of a zone. Offsets are in seconds east of UTC."""

    at: int
    before: int
    after: int


def seconds_east(zone: tzinfo, second: int) -> int:
    """Return the offset of *zone* at *second*, in seconds east of UTC."""
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(
        zone).utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


def change_after(zone: tzinfo, low: int, high: int) -> int:
    """Return the first second in (*low*, *high*] with a changed offset.

    The offset is changed if it differs from the offset at *low*. The offset at
    *high* must be changed.
    """
    before = seconds_east(zone, low)
    return low + bisect.bisect_left(
        range(low, high), True,
        key=lambda second: seconds_east(zone, second) != before)


def offset_changes(zone: tzinfo, begin: int, end: int) -> list[OffsetChange]:
    """Return the changes in [*begin*, *end*), in order."""
    if zone is UTC:
        return []
    years = range(_year_of(begin), _year_of(end) + 1)
    return [change for year in years for change in _of_year(zone, year)
            if begin <= change.at < end]


def _year_of(second: int) -> int:
    return (_EPOCH + timedelta(seconds=second)).year


def _start_of(year: int) -> int:
    if year > 9999:
        return _LAST_S
    return (datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


@functools.lru_cache(maxsize=4096)
def _of_year(zone: tzinfo, year: int) -> tuple[OffsetChange, ...]:
    """Return the changes in a year, in UTC."""
    low, last = _start_of(year) - 1, _start_of(year + 1) - 1
    before = seconds_east(zone, low)
    found = []
    while low < last:
        high = min(low + _DAY_S, last)
        while seconds_east(zone, high) != before:
            low = change_after(zone, low, high)
            offset = seconds_east(zone, low)
            found.append(OffsetChange(low, before, offset))
            before = offset
        low = high
    return tuple(found)
