# SPDX-License-Identifier: Apache-2.0
"""Schedules: arithmetic on instants, without a clock.

An *instant* is a number of microseconds since 1970-01-01 00:00 UTC. A *tick*
is an instant at which a schedule is due. Every member computes the same ticks
from the schedule alone. The ticks depend neither on the start of a process nor
on the duration of a run. So they cannot drift.
"""

import bisect
import enum
import math
from datetime import UTC
from datetime import datetime
from datetime import timedelta
from typing import Protocol

from distperiodic.exceptions import InvalidSchedule

Instant = int

SECOND = 1_000_000
#: First and last instants that a datetime can represent, in the years 1 and
#: 9999.
FIRST_INSTANT = -62_135_596_800_000_000
LAST_INSTANT = 253_402_300_799_999_999
_DAY_S = 86_400

#: Maximum spacing, and maximum timeout of a step, in seconds. The author of a
#: greater number probably confused seconds with microseconds. Besides, the
#: next tick or the deadline could be after the year 9999, and no datetime can
#: represent such a time.
LONGEST_S = 100 * 366 * _DAY_S

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def seconds_text(seconds: float) -> str:
    """Return seconds as readable text: '60', '0.25', never '6e+01'."""
    return f'{seconds:.6f}'.rstrip('0').rstrip('.')


def instant_of(moment: datetime) -> Instant:
    """Return the instant of *moment*, an aware datetime."""
    return (moment - _EPOCH_UTC) // _MICROSECOND


def datetime_of(instant: Instant) -> datetime:
    """Return *instant* as an aware datetime in UTC.

    :raises OverflowError: The instant is outside the years 1 to 9999.
    """
    return _EPOCH_UTC + timedelta(microseconds=instant)


def nearest_datetime(instant: Instant) -> datetime:
    """Return the aware datetime in UTC that is nearest to *instant*.

    An instant outside the years 1 to 9999 becomes the first or the last
    datetime.
    """
    return datetime_of(max(FIRST_INSTANT, min(instant, LAST_INSTANT)))


def finite_number(value: object) -> float | None:
    """Return *value* as a float, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class Every:
    """Schedule with a tick at each multiple of *spacing* since the epoch.

    :param spacing: Seconds between ticks, at least 0.001. The constructor
        rounds the value to whole microseconds, so that ticks are exact.
    :param offset: Seconds by which all ticks are shifted.
    :raises InvalidSchedule: *spacing* or *offset* is not a usable number.
    """

    __slots__ = ('offset_us', 'spacing_us')

    def __init__(self, spacing: float, offset: float = 0.0) -> None:
        seconds = finite_number(spacing)
        if seconds is None or not 0.001 <= seconds <= LONGEST_S:
            raise InvalidSchedule(
                f'spacing is {spacing!r}; give a number of seconds from '
                '0.001 to 3162240000 (a hundred years)'
            )
        shift = finite_number(offset)
        if shift is None:
            raise InvalidSchedule(
                f'offset is {offset!r}; give a finite number of seconds'
            )
        self.spacing_us = round(seconds * SECOND)
        self.offset_us = round(shift * SECOND) % self.spacing_us

    def after(self, t: Instant) -> Instant:
        """Return the first tick strictly later than *t*."""
        return t - (t - self.offset_us) % self.spacing_us + self.spacing_us

    def at_or_before(self, t: Instant) -> Instant | None:
        """Return the newest tick that is not later than *t*.

        Such a tick always exists, so the result is never None.
        """
        return t - (t - self.offset_us) % self.spacing_us

    def period_us(self, tick: Instant) -> int:
        """Return the microseconds from *tick* to the next tick."""
        return self.spacing_us

    def count(self, after: Instant, until: Instant) -> int:
        """Return the number of ticks in (*after*, *until*]."""
        first = (after - self.offset_us) // self.spacing_us
        last = (until - self.offset_us) // self.spacing_us
        return max(0, last - first)

    def describe(self) -> str:
        """Return a short description for a table or a log line."""
        text = f'every {seconds_text(self.spacing_us / SECOND)} s'
        if self.offset_us:
            text += f' + {seconds_text(self.offset_us / SECOND)} s'
        return text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Every):
            return NotImplemented
        return (self.spacing_us, self.offset_us) == (
            other.spacing_us,
            other.offset_us,
        )

    def __hash__(self) -> int:
        return hash((self.spacing_us, self.offset_us))

    def __repr__(self) -> str:
        return f'<{self.describe()}>'


class Schedule(Protocol):
    """Interface of all schedules: :class:`Every` and cron lines."""

    def after(self, t: Instant) -> Instant:
        """Return the first tick later than *t*."""

    def at_or_before(self, t: Instant) -> Instant | None:
        """Return the newest tick not later than *t*, or None."""

    def period_us(self, tick: Instant) -> int:
        """Return the microseconds from *tick* to the next one."""

    def count(self, after: Instant, until: Instant) -> int:
        """Return the number of ticks in (*after*, *until*]."""

    def describe(self) -> str:
        """Return a short description for a table or a log line."""


class Remembered:
    """Schedule that caches the results of another schedule.

    The cache never shrinks, so create a new instance for each calculation.
    """

    __slots__ = ('_begins', '_counts', '_periods', '_schedule')

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        #: First instants of the cached periods, in order. A period is the time
        #: from one tick to the next.
        self._begins: list[Instant] = []
        #: End of each cached period, by its first instant.
        self._periods: dict[Instant, Instant] = {}
        self._counts: dict[tuple[Instant, Instant], int] = {}

    def after(self, t: Instant) -> Instant:
        """Return the first tick later than *t*."""
        tick = self.at_or_before(t)
        if tick is None:
            return self._schedule.after(t)
        return self._periods[tick]

    def at_or_before(self, t: Instant) -> Instant | None:
        """Return the newest tick not later than *t*, or None."""
        index = bisect.bisect_right(self._begins, t)
        if index:
            begin = self._begins[index - 1]
            if t < self._periods[begin]:
                return begin
        tick = self._schedule.at_or_before(t)
        if tick is not None:
            self._begins.insert(index, tick)
            self._periods[tick] = self._schedule.after(t)
        return tick

    def period_us(self, tick: Instant) -> int:
        """Return the microseconds from *tick* to the next one."""
        end = self._periods.get(tick)
        return self._schedule.period_us(tick) if end is None else end - tick

    def count(self, after: Instant, until: Instant) -> int:
        """Return the number of ticks in (*after*, *until*]."""
        first, last = self.at_or_before(after), self.at_or_before(until)
        if first is None or last is None:
            return self._schedule.count(after, until)
        if last <= first:
            return 0
        count = self._counts.get((first, last))
        if count is None:
            count = self._counts[first, last] = self._schedule.count(
                first, last)
        return count

    def describe(self) -> str:
        """Return a short description for a table or a log line."""
        return self._schedule.describe()


class Misfire(enum.StrEnum):
    """Policy for ticks that did not run in time."""

    SKIP = 'skip'  # the newest tick runs if it is within its grace
    LATEST = 'latest'  # the newest tick runs, even if it is very late
    ALL = 'all'  # every tick runs, oldest first, up to a limit


class Overlap(enum.StrEnum):
    """Policy for a tick that is due while the previous one still runs."""

    SKIP = 'skip'
    WAIT = 'wait'


def phase_us(position: int, period_us: int) -> int:
    """Return the phase of an object in [0, *period_us*), in microseconds.

    :param position: Signed 64-bit position of the object on the ring.
    """
    return scattered(position) * period_us >> 64


def scattered(position: int) -> int:
    """Return a hash of the ring *position* in [0, 2 ** 64).

    Neighbouring positions have unrelated hashes.
    """
    # The objects of a member are neighbours on the ring. The odd constant
    # (2 ** 64 / golden ratio) spreads neighbours over the whole period. If the
    # phase were proportional to the position, a member would start its objects
    # at nearly the same time.
    return position * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF


def last_scattered(delay_us: int, period_us: int) -> int:
    """Return the greatest hash of an object whose phase is at most *delay_us*.

    The hash is that of :func:`scattered`. Objects with a greater hash have a
    longer phase.
    """
    return ((delay_us + 1 << 64) - 1) // period_us
