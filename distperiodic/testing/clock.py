# SPDX-License-Identifier: Apache-2.0
"""A clock that only a test advances or sets."""

import datetime

from distperiodic.core import schedule
from distperiodic.core.schedule import SECOND

_START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def instant_of(name: str, moment: datetime.datetime) -> int:
    """Return *moment* in microseconds since the epoch.

    :raises ValueError: *moment* has no time zone. The message calls it *name*.
    """
    if moment.tzinfo is None:
        raise ValueError(f'{name} is {moment!r}, without a time zone; use an '
                         'aware datetime')
    return schedule.instant_of(moment)


class FrozenClock:
    """Clock that advances only when a test advances it.

    :param start: Aware datetime at which the clock starts. The default is the
        beginning of 2030, UTC. This instant is a tick of every schedule whose
        spacing divides a day.
    :raises ValueError: *start* has no time zone.
    """

    def __init__(self, start: datetime.datetime = _START):
        self._now = instant_of('start', start)
        self._monotonic = 0

    @property
    def time(self) -> datetime.datetime:
        """Wall-clock time, in UTC."""
        return schedule.datetime_of(self._now)

    def now(self) -> int:
        """Return the wall-clock time in microseconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that have passed since the clock was created."""
        return self._monotonic / SECOND

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the monotonic clock by *seconds*.

        :raises ValueError: *seconds* is negative. To set the clock back, call
            :meth:`set`.
        """
        if seconds < 0:
            raise ValueError(f'seconds is {seconds:g}; time does not go back, '
                             'use set() for a clock that is set back')
        micros = round(seconds * SECOND)
        self._now += micros
        self._monotonic += micros

    def set(self, time: datetime.datetime) -> None:
        """Set the wall clock, as an operator or NTP does.

        The monotonic clock does not change.

        :param time: Aware datetime.
        :raises ValueError: *time* has no time zone.
        """
        self._now = instant_of('time', time)
