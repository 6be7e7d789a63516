# SPDX-License-Identifier: Apache-2.0
"""Cron lines as schedules: pure arithmetic on the clock on the wall.

Cron lines follow the clock on the wall of their time zone::

    the clock goes forward          02:30 does not exist
    |--01:00--|--01:30--|--03:00--|--03:30--|
                        ^ a line that names 02:30 runs at this instant

    the clock goes back             02:30 exists twice
    |--02:00--|--02:30--|--02:00--|--02:30--|--03:00--|
                        ^         ^ and not again
                        runs here

One kind of line is different: where the hour field names all 24 hours, as in
``*/5 * * * *``, the repeated hour is an hour like any other and the line runs
in it, because an hour of silence is not what its author asked for.

Limit: minutes are the finest unit.
"""

import bisect
import difflib
import functools
import zoneinfo
from datetime import UTC
from datetime import datetime
from datetime import timedelta
from datetime import tzinfo

import cronsim

from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import datetime_of
from distperiodic.exceptions import InvalidSchedule

_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)

_ALIASES = {
    '@hourly': '0 * * * *',
    '@daily': '0 0 * * *',
    '@midnight': '0 0 * * *',
    '@weekly': '0 0 * * 0',
    '@monthly': '0 0 1 * *',
    '@yearly': '0 0 1 1 *',
    '@annually': '0 0 1 1 *',
}
_FIELDS = {
    'minute': (0, '0-59'),
    'hour': (1, '0-23'),
    'day-of-month': (2, '1-31, L or LW'),
    'month': (3, '1-12 or JAN-DEC'),
    'day-of-week': (4, '0-7 (0 and 7 are Sunday) or SUN-SAT'),
}
_EXAMPLE = (
    "give minute, hour, day of month, month and weekday, e.g. '0 2 * * *' "
    'for every day at 02:00'
)


class Cron:
    """The ticks of a five-field cron line, in a named time zone.

    Day of month and weekday combine as in Debian's cron: both must match if
    one of them begins with a star, else one is enough. The names @hourly,
    @daily (@midnight), @weekly, @monthly and @yearly (@annually) stand for
    the lines they always did. See the top of this module for days on which
    the clock is changed.

    :param line: for example ``'0 2 * * MON-FRI'``.
    :param timezone: a name of the tz database, for example
        ``'Europe/Berlin'``.
    :raises InvalidSchedule: the line has no ticks or the zone is unknown.
    """

    __slots__ = (
        '_all_day',
        '_all_hours',
        '_days',
        '_origin',
        '_times',
        '_zone',
        'line',
        'timezone',
    )

    def __init__(self, line: str, timezone: str = 'UTC') -> None:
        fields = _fields_of(line)
        self.line = ' '.join(line.split())
        self.timezone = timezone
        self._zone = _zone_named(timezone)
        # Walls show local time, and local time has no gaps and no repeats
        # while it stays naive. So cronsim is only asked about naive days and
        # times of day; what they mean in a zone is decided in this class.
        self._days = '0 0 ' + ' '.join(fields[2:])
        self._times = _times_of_day(fields[0], fields[1])
        self._all_day = fields[2:] == ['*', '*', '*']
        self._all_hours = len({time // 3600 for time in self._times}) == 24
        self._origin = _EPOCH.replace(tzinfo=self._zone)

    def after(self, t: Instant) -> Instant:
        """The first tick strictly later than *t*.

        :raises InvalidSchedule: there is none in the 50 years after *t*.
        """
        wall, _ = self._wall_at(t)
        following = self._next_wall(wall)
        tick = self._instant(following)
        while tick <= t:  # the clock went back and shows these times again
            following = self._next_wall(following)
            tick = self._instant(following)
        repeat = self._repeat_after(t, wall)
        return tick if repeat is None else min(tick, repeat)

    def at_or_before(self, t: Instant) -> Instant | None:
        """The newest tick that is not later than *t*.

        :returns: None if there is none in the 50 years before *t*.
        """
        wall, repeated = self._wall_at(t)
        latest = wall
        if repeated:
            # What the clock will show again was already there, up to the
            # moment at which it was turned back.
            first, second = self._offsets(wall)
            latest += first - second
        previous = self._previous_wall(latest)
        while previous is not None and self._instant(previous) > t:
            previous = self._previous_wall(previous - 1)
        if previous is None:
            return None
        tick = self._instant(previous)
        if self._all_hours:
            shown = self._previous_wall(wall)
            if shown is not None:
                first, second = self._offsets(shown)
                again = (shown - second) * SECOND
                if first > second and again <= t:
                    tick = max(tick, again)
        return tick

    def period_us(self, tick: Instant) -> int:
        """Microseconds from *tick* to the tick that follows it."""
        return self.after(tick) - tick

    def count(self, after: Instant, until: Instant) -> int:
        """How many ticks lie in (*after*, *until*].

        It costs one step per day, not per tick: a minute-by-minute line may
        have been silent for years.
        """
        total = 0
        tick = self.after(after)
        while tick <= until:
            wall, _ = self._wall_at(tick)
            midnight = wall - wall % _DAY_S
            end = self._instant(midnight + _DAY_S)
            length = end - self._instant(midnight)
            if (
                self._next_wall(midnight - 1) == wall
                and length == _DAY_S * SECOND
                and end <= until
            ):
                total += len(self._times)
                tick = self.after(end - 1)
            else:
                total += 1
                tick = self.after(tick)
        return total

    def describe(self) -> str:
        """One phrase for a table or a log line."""
        return f'cron {self.line} ({self.timezone})'

    def _wall_at(self, t: Instant) -> tuple[int, bool]:
        """What the wall shows at *t*, and whether for the second time.

        Wall times are seconds since 1970-01-01 00:00 of the wall, naive.
        """
        local = datetime_of(t).astimezone(self._zone)
        return t // SECOND + _offset(local), local.fold == 1

    def _offsets(self, wall: int) -> tuple[int, int]:
        """Seconds east of UTC at *wall*: for its first and second reading.

        They are equal on all but two days of the year. The first is larger
        where the wall shows this time twice, smaller where it never does.
        """
        local = self._origin + timedelta(seconds=wall)
        return _offset(local), _offset(local.replace(fold=1))

    def _instant(self, wall: int) -> Instant:
        """The first instant at which the wall shows *wall* or later."""
        first, second = self._offsets(wall)
        if first >= second:
            return (wall - first) * SECOND
        return self._change(wall - second, wall - first)

    def _change(self, low: int, high: int) -> Instant:
        """The instant in (*low*, *high*], UTC seconds, of a clock change."""
        before = self._offset_at(low)
        seconds = bisect.bisect_left(
            range(low, high),
            True,
            key=lambda second: self._offset_at(second) != before,
        )
        return (low + seconds) * SECOND

    def _offset_at(self, second: int) -> int:
        return _offset(datetime_of(second * SECOND).astimezone(self._zone))

    def _repeat_after(self, t: Instant, wall: int) -> Instant | None:
        """The next tick in a repeated hour around *t*; None: there is none.

        Only lines that run in all hours have such ticks.
        """
        if not self._all_hours:
            return None
        first, second = self._offsets(wall)
        if first <= second:
            return None
        # t is in one of the two passes; the second begins at the change.
        change = self._change(wall - first, wall - second)
        begin = change // SECOND + second
        following = self._next_wall(max(begin - 1, t // SECOND + second))
        first, second = self._offsets(following)
        return (following - second) * SECOND if first > second else None

    def _next_wall(self, wall: int) -> int:
        """The first wall time later than *wall* that the line names."""
        day, time = divmod(wall, _DAY_S)
        index = bisect.bisect_right(self._times, time)
        if index == len(self._times):
            day, index = day + 1, 0
        matching = self._day_from(day)
        if matching is None:
            raise InvalidSchedule(
                f'cron line {self.line!r} has no date in the 50 years after '
                f'{_EPOCH + timedelta(days=day):%Y-%m-%d}; {_EXAMPLE}'
            )
        if matching > day:
            index = 0
        return matching * _DAY_S + self._times[index]

    def _previous_wall(self, wall: int) -> int | None:
        """The last wall time up to *wall* that the line names, or None."""
        day, time = divmod(wall, _DAY_S)
        index = bisect.bisect_right(self._times, time) - 1
        if index < 0:
            day -= 1
        matching = self._day_from(day, backwards=True)
        if matching is None:
            return None
        if matching < day:
            index = -1
        return matching * _DAY_S + self._times[index]

    def _day_from(self, day: int, backwards: bool = False) -> int | None:
        """The first matching day from *day* on; None: none in 50 years."""
        if self._all_day:
            return day
        step = timedelta(seconds=1 if backwards else -1)
        start = _EPOCH + timedelta(days=day) + step
        found = next(cronsim.CronSim(self._days, start, backwards), None)
        return None if found is None else (found - _EPOCH).days

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cron):
            return NotImplemented
        return (self.line, self.timezone) == (other.line, other.timezone)

    def __hash__(self) -> int:
        return hash((self.line, self.timezone))

    def __repr__(self) -> str:
        return f'<{self.describe()}>'


def _offset(local: datetime) -> int:
    """Seconds east of UTC of an aware datetime."""
    offset = local.utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


def _fields_of(line: str) -> list[str]:
    """The five fields of a cron line.

    :raises InvalidSchedule: naming the field that is wrong.
    """
    if not isinstance(line, str):
        raise InvalidSchedule(f'cron line is {line!r}, not text; {_EXAMPLE}')
    given = line.strip()
    if given.startswith('@') and given.lower() not in _ALIASES:
        known = ', '.join(_ALIASES)
        raise InvalidSchedule(
            f'cron line {line!r} is not a known name; use one of {known}'
        )
    fields = _ALIASES.get(given.lower(), given).upper().split()
    if len(fields) != 5:
        # cronsim reads six fields as seconds first, other programs as year
        # last: refusing is better than to run 60 times too often.
        raise InvalidSchedule(
            f'cron line {line!r} has {len(fields)} fields, not 5; '
            f'{_EXAMPLE}; below a minute use spacing='
        )
    try:
        first = next(cronsim.CronSim(' '.join(fields), _EPOCH), None)
    except (cronsim.CronSimError, ValueError, AssertionError) as error:
        reason = _reason(str(error), fields)
        raise InvalidSchedule(
            f'cron line {line!r}: {reason}; {_EXAMPLE}'
        ) from None
    if first is None:
        raise InvalidSchedule(
            f'cron line {line!r}: it names a date that never comes; '
            f'{_EXAMPLE}'
        )
    return fields


def _reason(error: str, fields: list[str]) -> str:
    """cronsim's 'Bad hour' with the text that is bad and what is legal."""
    name = error.removeprefix('Bad ')
    if name not in _FIELDS:
        return 'it cannot be read'
    if name == 'day-of-month':
        # Is it the day itself, or a day that these months do not have?
        minute, hour, day, _, weekday = fields
        try:
            cronsim.CronSim(f'{minute} {hour} {day} * {weekday}', _EPOCH)
        except cronsim.CronSimError:
            pass
        else:
            return 'it names a date that never comes'
    index, legal = _FIELDS[name]
    return f'{name} {fields[index]!r} is not within {legal}'


@functools.lru_cache(maxsize=1024)
def _times_of_day(minute: str, hour: str) -> tuple[int, ...]:
    """The seconds of a day that two cron fields name, in order."""
    times = []
    for moment in cronsim.CronSim(
        f'{minute} {hour} * * *', _EPOCH - timedelta(seconds=1)
    ):
        if moment.date() != _EPOCH.date():
            break
        times.append((moment - _EPOCH).seconds)
    return tuple(times)


def _zone_named(name: str) -> tzinfo:
    """The time zone of that name.

    :raises InvalidSchedule: with the nearest known name, if there is one.
    """
    # UTC must work where no tz database is installed.
    if name == 'UTC':
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        known = zoneinfo.available_timezones()
    if not known:
        remedy = 'no tz database is installed: pip install tzdata'
    else:
        by_lower = {zone.lower(): zone for zone in known}
        near = difflib.get_close_matches(str(name).lower(), by_lower, 1)
        remedy = (
            f'did you mean {by_lower[near[0]]!r}?'
            if near
            else "give a name of the tz database, e.g. 'Europe/Berlin'"
        )
    raise InvalidSchedule(f'time zone {name!r} is unknown; {remedy}')
