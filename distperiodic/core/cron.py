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
import calendar
import difflib
import functools
import zoneinfo
from datetime import UTC
from datetime import date
from datetime import datetime
from datetime import timedelta
from datetime import tzinfo

import cronsim

from distperiodic.core import offset as offset_
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import datetime_of
from distperiodic.exceptions import InvalidSchedule

_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DATE = _EPOCH.toordinal()
# A line that names no date in so many years names none.
_SEARCHED_YEARS = 50

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

        It costs a few look-ups per year, not a step per tick: a line of every
        minute may have been silent for years.
        """
        if until <= after:
            return 0
        begin, end = after // SECOND + 1, until // SECOND + 1
        found = self._changes(begin, end)
        total = 0
        # The walls of times up to this one were shown before.
        shown = begin + self._offset_at(begin - 1)
        wall = shown
        for change in found:
            if change.at < begin:
                shown = max(shown, change.at + change.before)
                continue
            total += self._named(self._first_of(wall, shown),
                                 change.at + change.before)
            shown = max(shown, change.at + change.before)
            wall = change.at + change.after
            # What the wall never showed runs at the change, all at once.
            total += (self._named(shown, wall) > 0
                      and not self._named(wall, wall + 1))
        offset = found[-1].after if found else self._offset_at(begin)
        return total + self._named(self._first_of(wall, shown), end + offset)

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
        return offset_.change_after(self._zone, low, high) * SECOND

    def _offset_at(self, second: int) -> int:
        return offset_.seconds_east(self._zone, second)

    def _changes(self, begin: int, end: int) -> list[offset_.Change]:
        """The changes of the clock in [*begin*, *end*), UTC seconds, and
        before them those whose repeated hour may still go on.
        """
        return offset_.changes(self._zone, begin - 2 * _DAY_S, end)

    def _first_of(self, wall: int, shown: int) -> int:
        """The first wall from *wall* on that can be a tick, where walls up to
        *shown* were shown before.
        """
        return wall if self._all_hours else max(wall, shown)

    def _named(self, low: int, high: int) -> int:
        """How many wall times in [*low*, *high*) the line names."""
        if high <= low:
            return 0
        (first, begin), (last, end) = divmod(low, _DAY_S), divmod(
            high, _DAY_S)
        total = len(self._times) * self._days_in(first, last)
        if self._is_day(last):
            total += bisect.bisect_left(self._times, end)
        if self._is_day(first):
            total -= bisect.bisect_left(self._times, begin)
        return total

    def _is_day(self, day: int) -> bool:
        return self._all_day or bool(self._days_in(day, day + 1))

    def _days_in(self, first: int, end: int) -> int:
        """How many days in [*first*, *end*) the line names."""
        if self._all_day:
            return end - first
        year, day = _year_of(first)
        last_year, last_day = _year_of(end)
        total = bisect.bisect_left(
            _days_of_year(self._days, last_year), last_day)
        total -= bisect.bisect_left(_days_of_year(self._days, year), day)
        return total + sum(len(_days_of_year(self._days, between))
                           for between in range(year, last_year))

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
        year, of_year = _year_of(day)
        days = _days_of_year(self._days, year)
        if backwards:
            found = days[:bisect.bisect_right(days, of_year)][-1:]
            others = range(year - 1, max(year - _SEARCHED_YEARS, 1) - 1, -1)
        else:
            found = days[bisect.bisect_left(days, of_year):][:1]
            others = range(year + 1, min(year + _SEARCHED_YEARS, 9999) + 1)
        if found:
            return day + found[0] - of_year
        for other in others:
            if days := _days_of_year(self._days, other):
                return (date(other, 1, 1).toordinal() - _EPOCH_DATE
                        + days[-1 if backwards else 0])
        return None

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


def _year_of(day: int) -> tuple[int, int]:
    """The year of a day counted from the epoch, and its place in it from 0
    on.
    """
    found = date.fromordinal(day + _EPOCH_DATE)
    return found.year, found.timetuple().tm_yday - 1


@functools.lru_cache(maxsize=16384)
def _days_of_year(line: str, year: int) -> tuple[int, ...]:
    """The days of a year that a line of midnights names, from 0 on."""
    first = date(year, 1, 1)
    return _days_of_layout(line, first.weekday(), calendar.isleap(year))


@functools.lru_cache(maxsize=4096)
def _days_of_layout(line: str, weekday: int, leap: bool) -> tuple[int, ...]:
    """The same for each year that begins with this weekday."""
    # Whether a line names a day follows from its month, its day, its weekday
    # and the length of its month: two years of one layout are alike.
    first = next(date(year, 1, 1) for year in range(2000, 2028)
                 if date(year, 1, 1).weekday() == weekday
                 and calendar.isleap(year) == leap)
    # Its iterator takes 40 microseconds for each day that it finds.
    named = cronsim.CronSim(line, _EPOCH)
    days = (first + timedelta(days=day) for day in range(365 + leap))
    return tuple(number for number, day in enumerate(days)
                 if day.month in named.months and named.match_day(day))


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
