# SPDX-License-Identifier: Apache-2.0
"""When a job is due: pure arithmetic, time in and time out.

An *instant* is a count of microseconds since 1970-01-01 00:00 UTC, and a
*tick* is an instant that a schedule names. Every member computes the same
ticks from the schedule alone: nothing here depends on when a process started
or on how long a run took, so nothing can drift.

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
_DAY_S = 86_400

# Longer ones are microseconds passed as seconds, or reach past year 9999.
_LONGEST_S = 100 * 366 * _DAY_S

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def seconds_text(seconds: float) -> str:
    """Seconds as people write them: '60', '0.25', never '6e+01'."""
    return f'{seconds:.6f}'.rstrip('0').rstrip('.')


def instant_of(moment: datetime) -> Instant:
    """The instant of an aware *moment*."""
    return (moment - _EPOCH_UTC) // _MICROSECOND


def datetime_of(instant: Instant) -> datetime:
    """The *instant* as people read it: an aware datetime in UTC."""
    return _EPOCH_UTC + timedelta(microseconds=instant)


def finite_number(value: object) -> float | None:
    """*value* as a float; None where it is not a number or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class Every:
    """A tick at each multiple of *spacing*, counted from the epoch.

    :param spacing: seconds, at least 0.001; rounded to whole microseconds
        once, here, so that the grid is exact from then on.
    :param offset: seconds by which the whole grid is shifted.
    :raises InvalidSchedule: if one of them is not a usable number.
    """

    __slots__ = ('offset_us', 'spacing_us')

    def __init__(self, spacing: float, offset: float = 0.0) -> None:
        seconds = finite_number(spacing)
        if seconds is None or not 0.001 <= seconds <= _LONGEST_S:
            raise InvalidSchedule(
                f'spacing is {spacing!r}; give a number of seconds of at '
                'least 0.001 and at most a hundred years'
            )
        shift = finite_number(offset)
        if shift is None:
            raise InvalidSchedule(
                f'offset is {offset!r}; give a finite number of seconds'
            )
        self.spacing_us = round(seconds * SECOND)
        self.offset_us = round(shift * SECOND) % self.spacing_us

    def after(self, t: Instant) -> Instant:
        """The first tick strictly later than *t*."""
        return t - (t - self.offset_us) % self.spacing_us + self.spacing_us

    def at_or_before(self, t: Instant) -> Instant | None:
        """The newest tick that is not later than *t*; there always is one."""
        return t - (t - self.offset_us) % self.spacing_us

    def period_us(self, tick: Instant) -> int:
        """Microseconds from *tick* to the tick that follows it."""
        return self.spacing_us

    def count(self, after: Instant, until: Instant) -> int:
        """How many ticks lie in (*after*, *until*]."""
        first = (after - self.offset_us) // self.spacing_us
        last = (until - self.offset_us) // self.spacing_us
        return max(0, last - first)

    def describe(self) -> str:
        """One phrase for a table or a log line."""
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
    """Anything that names ticks: an :class:`Every`, a cron line."""

    def after(self, t: Instant) -> Instant:
        """The first tick later than *t*."""

    def at_or_before(self, t: Instant) -> Instant | None:
        """The newest tick that is not later than *t*; None: there is none."""

    def period_us(self, tick: Instant) -> int:
        """Microseconds from *tick* to the next one."""

    def count(self, after: Instant, until: Instant) -> int:
        """How many ticks there are in (after, until]."""

    def describe(self) -> str:
        """In words, for people."""


class Remembered:
    """A schedule that computes each of its periods once.

    It keeps all that it was ever asked for, so make one for each piece of
    work.
    """

    __slots__ = ('_begins', '_counts', '_periods', '_schedule')

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        #: Where the periods begin that are known.
        self._begins: list[Instant] = []
        #: The end of each.
        self._periods: dict[Instant, Instant] = {}
        self._counts: dict[tuple[Instant, Instant], int] = {}

    def after(self, t: Instant) -> Instant:
        """The first tick later than *t*."""
        tick = self.at_or_before(t)
        if tick is None:
            return self._schedule.after(t)
        return self._periods[tick]

    def at_or_before(self, t: Instant) -> Instant | None:
        """The newest tick that is not later than *t*; None: there is none."""
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
        """Microseconds from *tick* to the next one."""
        end = self._periods.get(tick)
        return self._schedule.period_us(tick) if end is None else end - tick

    def count(self, after: Instant, until: Instant) -> int:
        """How many ticks there are in (after, until]."""
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
        """In words, for people."""
        return self._schedule.describe()


class Misfire(enum.StrEnum):
    """What becomes of ticks that nobody ran in time."""

    SKIP = 'skip'  # only a tick that is still within its grace runs
    LATEST = 'latest'  # the newest runs, however late
    ALL = 'all'  # each runs, oldest first


class Overlap(enum.StrEnum):
    """What becomes of a tick that finds its predecessor still running."""

    SKIP = 'skip'
    WAIT = 'wait'


def phase_us(position: int, period_us: int) -> int:
    """An object's own delay in [0, *period_us*), from its ring *position*.

    :param position: the signed 64-bit place of the object on the ring.
    """
    return scattered(position) * period_us >> 64


def scattered(position: int) -> int:
    """The ring *position* as a number in [0, 2 ** 64) that has nothing to do
    with those of its neighbours.
    """
    # One member owns arcs, so its objects are neighbours on the ring. The
    # odd constant (2 ** 64 / golden ratio) scatters neighbours over the
    # whole period; the position alone would start them nearly together.
    return position * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF


def last_scattered(delay_us: int, period_us: int) -> int:
    """The greatest :func:`scattered` place of an object whose delay is
    *delay_us* or less; the reverse of :func:`phase_us`.
    """
    return ((delay_us + 1 << 64) - 1) // period_us
