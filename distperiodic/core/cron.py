# SPDX-License-Identifier: Apache-2.0
"""Schedules from cron lines: arithmetic on local times, without a clock.

A cron line follows the local time of its time zone. This local time is called
wall time here::

    the clock goes forward          02:30 does not exist
    |--01:00--|--01:30--|--03:00--|--03:30--|
                        ^ a line with 02:30 runs at this instant

    the clock goes back             02:30 exists twice
    |--02:00--|--02:30--|--02:00--|--02:30--|--03:00--|
              ^                   ^ a line with 02:30
              runs here             does not run again

There are two exceptions. A line that matches all 24 hours of a day, such as
``*/5 * * * *``, also runs in the repeated hour, because its author does not
expect an hour without runs. Such a line, and a line whose hours begin with a
star, such as ``30 */2 * * *``, has no run in place of a skipped time: the line
runs again soon, whereas a line with 02:30 alone would lose the day.

Limit: a cron line has no field for seconds.
"""

import bisect
import calendar
import difflib
import functools
import re
import zoneinfo
from datetime import UTC
from datetime import date
from datetime import datetime
from datetime import timedelta
from datetime import tzinfo

import cronsim

from distperiodic.core.offset import OffsetChange
from distperiodic.core.offset import change_after
from distperiodic.core.offset import offset_changes
from distperiodic.core.offset import seconds_east
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import datetime_of
from distperiodic.exceptions import InvalidSchedule

_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DATE = _EPOCH.toordinal()
# A line that matches no date in this number of years is treated as a line
# without ticks.
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
    'day-of-week': (4, '0-7 (0 and 7 are Sunday), SUN-SAT, 5L or 5#2'),
}
#: First and last value of each field, and the names of its values.
_VALUES: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, ('JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP',
             'OCT', 'NOV', 'DEC')),
    (0, 6, ('SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT')),
)
#: Range of weekdays that ends on Sunday. For cronsim, SUN is always the first
#: day of the week, and 7 is the last.
_UNTIL_SUNDAY = re.compile(r'\b(MON|TUE|WED|THU|FRI|SAT|[1-6])-SUN\b')
_EXAMPLE = (
    "give minute, hour, day of month, month and weekday, e.g. '0 2 * * *' "
    'for every day at 02:00'
)


class Cron:
    """Schedule of a five-field cron line in a time zone.

    Day of month and weekday are combined as in Debian's cron: if one of the
    two fields begins with a star, both must match; otherwise at least one must
    match. The names @hourly, @daily (@midnight), @weekly, @monthly and @yearly
    (@annually) have their usual meaning. The docstring of this module
    describes the days on which the clock changes.

    :param line: For example ``'0 2 * * MON-FRI'``.
    :param timezone: Name in the tz database, for example ``'Europe/Berlin'``.
    :raises InvalidSchedule: The line is invalid or has no ticks, or the time
        zone is unknown.
    """

    __slots__ = (
        '_all_day',
        '_all_hours',
        '_days',
        '_makes_up',
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
        # cronsim handles only days and times of day without a time zone. This
        # class converts them to instants, and handles the skipped and repeated
        # hours of the zone.
        self._days = '0 0 ' + ' '.join(fields[2:])
        self._times = _times_of_day(fields[0], fields[1])
        self._all_day = fields[2:] == ['*', '*', '*']
        hours = len({time // 3600 for time in self._times})
        self._all_hours = hours == 24
        #: True if the line runs at the change instead of at a skipped time.
        self._makes_up = hours == 1 or not (
            self._all_hours or fields[1].startswith('*'))
        self._origin = _EPOCH.replace(tzinfo=self._zone)

    def after(self, t: Instant) -> Instant:
        """Return the first tick strictly later than *t*.

        :raises InvalidSchedule: There is no tick in the 50 years after *t*.
        """
        wall, _ = self._wall_at(t)
        following = self._next_run(wall)
        tick = self._instant(following)
        while tick <= t:  # the clock went back, and repeats these wall times
            following = self._next_run(following)
            tick = self._instant(following)
        repeat = self._repeat_after(t, wall)
        return tick if repeat is None else min(tick, repeat)

    def at_or_before(self, t: Instant) -> Instant | None:
        """Return the newest tick that is not later than *t*.

        :returns: The tick. None means that there is no tick in the 50 years
            before *t*.
        """
        wall, repeated = self._wall_at(t)
        latest = wall
        if repeated:
            # All wall times of the repeated hour have already occurred once.
            first, second = self._offsets(wall)
            latest += first - second
        previous = self._previous_run(latest)
        while previous is not None and self._instant(previous) > t:
            previous = self._previous_run(previous - 1)
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
        """Return the microseconds from *tick* to the next tick."""
        return self.after(tick) - tick

    def count(self, after: Instant, until: Instant) -> int:
        """Return the number of ticks in (*after*, *until*].

        The cost grows with the number of years, not with the number of ticks,
        because a job with a tick per minute may have missed ticks for years.
        """
        if until <= after:
            return 0
        begin, end = after // SECOND + 1, until // SECOND + 1
        found = self._changes(begin, end)
        total = 0
        # Wall times before this wall time have already occurred.
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
            # Ticks at skipped wall times count as one tick, at the change.
            total += (self._makes_up and self._named(shown, wall) > 0
                      and not self._named(wall, wall + 1))
        offset = found[-1].after if found else self._offset_at(begin)
        return total + self._named(self._first_of(wall, shown), end + offset)

    def describe(self) -> str:
        """Return a short description for a table or a log line."""
        return f'cron {self.line} ({self.timezone})'

    def _wall_at(self, t: Instant) -> tuple[int, bool]:
        """Return the wall time at *t*, and whether it occurs a second time.

        Wall times are naive seconds since 1970-01-01 00:00 local time.
        """
        local = datetime_of(t).astimezone(self._zone)
        return t // SECOND + _offset(local), local.fold == 1

    def _offsets(self, wall: int) -> tuple[int, int]:
        """Return the offsets at the first and second occurrence of *wall*.

        The offsets are equal except near a change of the clock. The first
        offset is larger if the wall time occurs twice. The first offset is
        smaller if the wall time never occurs.

        :returns: Seconds east of UTC.
        """
        local = self._origin + timedelta(seconds=wall)
        return _offset(local), _offset(local.replace(fold=1))

    def _instant(self, wall: int) -> Instant:
        """Return the first instant whose wall time is *wall* or later."""
        first, second = self._offsets(wall)
        if first >= second:
            return (wall - first) * SECOND
        return self._change(wall - second, wall - first)

    def _change(self, low: int, high: int) -> Instant:
        """Return the instant of the clock change in (*low*, *high*].

        *low* and *high* are UTC seconds.
        """
        return change_after(self._zone, low, high) * SECOND

    def _offset_at(self, second: int) -> int:
        return seconds_east(self._zone, second)

    def _changes(self, begin: int, end: int) -> list[OffsetChange]:
        """Return the clock changes in [*begin*, *end*), in UTC seconds.

        The result also includes the changes in the two days before *begin*,
        because a repeated hour after such a change may last beyond *begin*.
        """
        return offset_changes(self._zone, begin - 2 * _DAY_S, end)

    def _first_of(self, wall: int, shown: int) -> int:
        """Return the first wall time from *wall* on that can be a tick.

        :param shown: Wall times before *shown* have already occurred.
        """
        return wall if self._all_hours else max(wall, shown)

    def _named(self, low: int, high: int) -> int:
        """Return the number of matching wall times in [*low*, *high*)."""
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
        """Return the number of matching days in [*first*, *end*)."""
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
        """Return the next tick in the second occurrence of a repeated hour.

        None means that *t* is in no such hour, or that the hour has no tick
        after *t*. Only lines that match all hours have ticks in the second
        occurrence.
        """
        if not self._all_hours:
            return None
        first, second = self._offsets(wall)
        if first <= second:
            return None
        # t is in the first or the second occurrence of the hour. The second
        # occurrence begins at the change.
        change = self._change(wall - first, wall - second)
        begin = change // SECOND + second
        following = self._next_wall(max(begin - 1, t // SECOND + second))
        first, second = self._offsets(following)
        return (following - second) * SECOND if first > second else None

    def _next_run(self, wall: int) -> int:
        """Return the first wall time later than *wall* at which the line runs.

        The wall time may be one that is skipped, if the line runs instead at
        the change of the clock.

        :raises InvalidSchedule: No wall time matches in the next 50 years.
        """
        following = self._next_wall(wall)
        while skipped := self._skipped_around(following):
            following = self._next_wall(skipped[1] - 1)
        return following

    def _previous_run(self, wall: int) -> int | None:
        """Return the last wall time up to *wall* at which the line runs.

        :returns: The wall time, as in :meth:`_next_run`, or None.
        """
        previous = self._previous_wall(wall)
        while previous is not None and (
                skipped := self._skipped_around(previous)):
            previous = self._previous_wall(skipped[0] - 1)
        return previous

    def _skipped_around(self, wall: int) -> tuple[int, int] | None:
        """Return the skipped wall times around *wall* that have no run.

        :returns: The first of these wall times, and the first one after them.
            None means that *wall* has a run.
        """
        if self._makes_up:
            return None
        first, second = self._offsets(wall)
        if first >= second:
            return None
        change = self._change(wall - second, wall - first) // SECOND
        return change + first, change + second

    def _next_wall(self, wall: int) -> int:
        """Return the first matching wall time later than *wall*.

        :raises InvalidSchedule: No wall time matches in the next 50 years.
        """
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
        """Return the last matching wall time up to *wall*, or None."""
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
        """Return the first matching day from *day* on.

        :param backwards: True searches for the last matching day up to *day*.
        :returns: The day. None means that no day matches in 50 years.
        """
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
    """Return the offset of an aware datetime, in seconds east of UTC."""
    offset = local.utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


def _year_of(day: int) -> tuple[int, int]:
    """Return the year of a day, and the index of the day in its year, from 0.

    :param day: Days since the epoch.
    """
    found = date.fromordinal(day + _EPOCH_DATE)
    return found.year, found.timetuple().tm_yday - 1


@functools.lru_cache(maxsize=16384)
def _days_of_year(line: str, year: int) -> tuple[int, ...]:
    """Return the days of *year* that match *line*, counted from 0.

    :param line: Cron line with a tick at midnight.
    """
    first = date(year, 1, 1)
    return _days_of_layout(line, first.weekday(), calendar.isleap(year))


@functools.lru_cache(maxsize=4096)
def _days_of_layout(line: str, weekday: int, leap: bool) -> tuple[int, ...]:
    """Return the days that match *line*, in every year with this layout.

    :param weekday: Weekday of the first of January; Monday is 0.
    :param leap: True for leap years.
    """
    # A match depends only on the month, the day, the weekday and the length of
    # the month. So years with the same layout have the same matching days.
    first = next(date(year, 1, 1) for year in range(2000, 2028)
                 if date(year, 1, 1).weekday() == weekday
                 and calendar.isleap(year) == leap)
    # Do not use the iterator of cronsim, which takes 40 microseconds per day.
    named = cronsim.CronSim(line, _EPOCH)
    days = (first + timedelta(days=day) for day in range(365 + leap))
    return tuple(number for number, day in enumerate(days)
                 if day.month in named.months and named.match_day(day))


def _fields_of(line: str) -> list[str]:
    """Return the five fields of a cron line.

    :raises InvalidSchedule: The line is invalid. The message names the
        illegal field.
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
        # If a line has six fields, cronsim reads the first field as seconds,
        # but other programs read the last field as the year. Reject the line,
        # because a wrong guess could run a job 60 times too often.
        raise InvalidSchedule(
            f'cron line {line!r} has {len(fields)} fields, not 5; '
            f'{_EXAMPLE}; for intervals below a minute, use spacing='
        )
    fields[4] = _UNTIL_SUNDAY.sub(r'\1-7', fields[4])
    for (name, (index, _)), field in zip(
            _FIELDS.items(), fields, strict=True):
        if problem := _problem(index, field):
            raise InvalidSchedule(
                f'cron line {line!r}: {name} {field!r} {problem}')
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


def _problem(index: int, field: str) -> str | None:
    """Return the problem of a field that cronsim accepts, or cannot describe.

    :param index: Number of the field, from 0.
    :returns: The problem and its remedy. None means that there is none.
    """
    first, last, names = _VALUES[index]
    size = last - first + 1
    for term in field.split(','):
        if '?' in term:
            return "contains '?'; write * for any value"
        span, _, step = term.partition('/')
        if step.isdecimal() and (
                len(step) > 3 or not 1 <= int(step) <= size):
            return (f'has a step that is not within 1-{size}; a step counts '
                    'within its own field only, so for an interval that is '
                    'longer, use a list of values, or spacing=')
        ends = span.split('-')
        begin, end = (_value(text, first, names) for text in (
            ends if len(ends) == 2 else ('', '')))
        if begin is not None and end is not None and (
                end < begin <= last + 1 and first <= end):
            return (f'contains {span}, which runs backwards; write '
                    + _forwards(begin, end, index, ends[0] in names))
    return None


def _value(text: str, first: int, names: tuple[str, ...]) -> int | None:
    """Return the number of a value of a field, or None."""
    if text in names:
        return first + names.index(text)
    return int(text) if text.isdecimal() and len(text) < 4 else None


def _forwards(begin: int, end: int, index: int, named: bool) -> str:
    """Return two ranges for the range from *begin* to a smaller *end*."""
    first, last, names = _VALUES[index]

    def span(low: int, high: int) -> str:
        ends = [names[one - first] if named else str(one)
                for one in (low, high)]
        return ends[0] if low == high else '-'.join(ends)
    if begin > last:  # 7 is a Sunday, too
        return span(first, end)
    return f'{span(begin, last)},{span(first, end)}'


def _reason(error: str, fields: list[str]) -> str:
    """Describe an error of cronsim, with the illegal and the legal values.

    :param error: For example 'Bad hour'.
    """
    name = error.removeprefix('Bad ')
    if name not in _FIELDS:
        return 'it cannot be read'
    if name == 'day-of-month':
        # Find out whether the day is illegal in every month, or does not exist
        # in the months of this line.
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
    """Return the times of day that two cron fields match, in seconds."""
    times = []
    for moment in cronsim.CronSim(
        f'{minute} {hour} * * *', _EPOCH - timedelta(seconds=1)
    ):
        if moment.date() != _EPOCH.date():
            break
        times.append((moment - _EPOCH).seconds)
    return tuple(times)


def _zone_named(name: str) -> tzinfo:
    """Return the time zone *name*.

    :raises InvalidSchedule: The name is unknown. The message suggests the
        nearest known name, if there is one.
    """
    # UTC must work even if no tz database is installed.
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
