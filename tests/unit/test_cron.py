# SPDX-License-Identifier: Apache-2.0
"""Cron lines, compared with an oracle that reads the clock every minute."""

import bisect
import functools
import zoneinfo
from datetime import UTC
from datetime import datetime
from datetime import timedelta

import cronsim
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.core import offset
from distperiodic.core.cron import Cron
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import datetime_of
from distperiodic.core.schedule import instant_of
from distperiodic.exceptions import InvalidSchedule
from tests.unit.test_schedule import DAY
from tests.unit.test_schedule import HOUR
from tests.unit.test_schedule import INSTANTS
from tests.unit.test_schedule import MINUTE
from tests.unit.test_schedule import at
from tests.unit.test_schedule import ticks


def shown(instants, zone):
    """The wall-clock times of *instants* in *zone*, with the UTC offset."""
    return [
        datetime_of(instant)
        .astimezone(zoneinfo.ZoneInfo(zone))
        .strftime('%d %H:%M %z')
        for instant in instants
    ]


# Days on which a zone's wall clock jumps, and other special days.
SPECIAL_DAYS = [
    ('Europe/Berlin', '2026-03-29'),  # 02:00 -> 03:00
    ('Europe/Berlin', '2026-10-25'),  # 03:00 -> 02:00
    ('America/St_Johns', '2026-03-08'),  # UTC-03:30, 02:00 -> 03:00
    ('America/St_Johns', '2026-11-01'),
    ('America/St_Johns', '2010-03-14'),  # 00:01 -> 01:01
    ('America/St_Johns', '2010-11-07'),  # 00:01 -> 23:01 of the day before
    ('Australia/Lord_Howe', '2026-10-04'),  # 02:00 -> 02:30
    ('Australia/Lord_Howe', '2026-04-05'),  # 02:00 -> 01:30
    ('America/Santiago', '2026-09-06'),  # midnight does not exist
    ('America/Santiago', '2026-04-05'),  # 24:00 -> 23:00
    ('Pacific/Apia', '2011-12-30'),  # the whole day does not exist
    ('Asia/Kolkata', '2026-06-01'),  # UTC+05:30, no event
    ('UTC', '2028-02-29'),
    ('Europe/Berlin', '2027-01-01'),
]
LINES = st.tuples(
    st.sampled_from(['*', '*/15', '7', '0,30', '0', '59', '20-40/4']),
    st.sampled_from(['*', '*/2', '2', '1-3', '0', '23', '0-23', '0,12,23']),
    st.sampled_from(['*', '29', '1', 'L', '30', '*/2']),
    st.just('*'),
    st.sampled_from(['*', 'SUN', 'SAT', 'MON-FRI']),
).map(' '.join)


@functools.cache
def readings(zone, day):
    """(wall time, instant) of each minute within two days of *day*."""
    middle = at(day, 'UTC')
    return [
        (
            datetime_of(instant)
            .astimezone(zoneinfo.ZoneInfo(zone))
            .replace(tzinfo=None),
            instant,
        )
        for instant in range(middle - 2 * DAY, middle + 2 * DAY, MINUTE)
    ]


@functools.cache
def expected_ticks(line, zone, day):
    """The expected ticks of *line* in four days.

    If a matching time does not exist, the next time that exists replaces it,
    unless *line* names all hours or begins them with a star. A time that
    exists twice counts twice only if *line* names all hours.
    """
    seen = readings(zone, day)
    hours = line.split()[1]
    all_hours = hours in ('*', '0-23')
    expected = set()
    instants = {}
    for wall, instant in seen:
        instants.setdefault(wall, []).append(instant)
    begin, end = seen[0][0], seen[-1][0]
    for wall in cronsim.CronSim(line, begin - timedelta(minutes=1)):
        if wall > end:
            return sorted(expected)
        exact = instants.get(wall)
        if exact is None and (all_hours or hours == '*/2'):
            continue
        if exact is None:
            exact = [next(instant for shown, instant in seen if shown > wall)]
        expected.update(exact if all_hours else exact[:1])


class TestCronAgainstTheOracle:
    @given(LINES, st.sampled_from(SPECIAL_DAYS))
    def test_a_line_ticks_at_the_times_of_the_wall_clock(self, line, special):
        zone, day = special
        expected = expected_ticks(line, zone, day)
        cron = Cron(line, zone)
        begin = readings(zone, day)[0][1] - 1
        end = readings(zone, day)[-1][1]
        found = []
        tick = cron.after(begin)
        while tick <= end:
            found.append(tick)
            tick = cron.after(tick)
        assert shown(found, zone) == shown(expected, zone)
        assert found == expected
        assert cron.count(begin, end) == len(expected)

    @given(LINES, st.sampled_from(SPECIAL_DAYS), st.data())
    def test_the_backward_search_finds_the_ticks_of_the_forward_search(
            self, line, special, data):
        zone, day = special
        expected = expected_ticks(line, zone, day)
        seen = readings(zone, day)
        t = data.draw(st.integers(seen[0][1], seen[-1][1]), label='t')
        cron = Cron(line, zone)
        earlier = [tick for tick in expected if tick <= t]
        later = [tick for tick in expected if tick > t]
        newest = cron.at_or_before(t)
        assert newest == earlier[-1] if earlier else newest < seen[0][1]
        following = cron.after(t)
        assert following == later[0] if later else following > seen[-1][1]
        assert cron.period_us(newest) == following - newest
        until = data.draw(st.integers(t, seen[-1][1]), label='until')
        assert cron.count(t, until) == len([x for x in later if x <= until])

    @pytest.mark.parametrize(('zone', 'day'), SPECIAL_DAYS)
    @pytest.mark.parametrize(
        'line',
        [
            '30 2 * * *',
            '5-55/25 * * * *',
            '15,45 0-2,23 * * *',
            '*/30 * 4 4 *',
        ],
    )
    def test_both_directions_hold_all_through_a_special_day(
        self, line, zone, day
    ):
        """Random times seldom fall into the one hour that matters."""
        cron = Cron(line, zone)
        expected = expected_ticks(line, zone, day)
        seen = readings(zone, day)
        middle = at(day)
        for t in range(middle - 16 * HOUR, middle + 16 * HOUR, 10 * MINUTE):
            split = bisect.bisect_right(expected, t)
            newest, following = cron.at_or_before(t), cron.after(t)
            if split:
                assert newest == expected[split - 1]
            else:
                assert newest < seen[0][1]
            if split < len(expected):
                assert following == expected[split]
            else:
                assert following > seen[-1][1]

    @given(LINES, INSTANTS, st.sampled_from(sorted(
        {zone for zone, _ in SPECIAL_DAYS}
    )))
    def test_a_tick_is_its_own_newest_at_any_time(self, line, t, zone):
        cron = Cron(line, zone)
        tick = cron.after(t)
        assert tick > t
        assert tick % MINUTE == 0 or zone != 'UTC'
        assert cron.at_or_before(tick) == tick
        newest = cron.at_or_before(tick - 1)
        assert newest <= t
        assert cron.after(newest) == tick


class TestCronOnDaysOfChange:
    def test_a_time_that_does_not_exist_runs_at_the_first_valid_one(self):
        cron = Cron('30 2 * * *', 'Europe/Berlin')
        found = ticks(cron, at('2026-03-28', 'Europe/Berlin'), 3)
        assert shown(found, 'Europe/Berlin') == [
            '28 02:30 +0100',
            '29 03:00 +0200',
            '30 02:30 +0200',
        ]

    def test_a_time_that_exists_twice_runs_once(self):
        cron = Cron('30 2 * * *', 'Europe/Berlin')
        found = ticks(cron, at('2026-10-24', 'Europe/Berlin'), 3)
        assert shown(found, 'Europe/Berlin') == [
            '24 02:30 +0200',
            '25 02:30 +0200',
            '26 02:30 +0100',
        ]

    def test_half_an_hour_of_change_is_a_change_too(self):
        zone = 'Australia/Lord_Howe'
        cron = Cron('15 2 * * *', zone)
        assert shown(ticks(cron, at('2026-10-03', zone), 3), zone) == [
            '03 02:15 +1030',
            '04 02:30 +1100',
            '05 02:15 +1100',
        ]
        cron = Cron('45 1 * * *', zone)
        assert shown(ticks(cron, at('2026-04-04', zone), 3), zone) == [
            '04 01:45 +1100',
            '05 01:45 +1100',
            '06 01:45 +1030',
        ]

    def test_several_times_of_a_lost_hour_run_together_once(self):
        cron = Cron('*/10 2 * * *', 'Europe/Berlin')
        found = ticks(cron, at('2026-03-29', 'Europe/Berlin'), 2)
        assert shown(found, 'Europe/Berlin') == [
            '29 03:00 +0200',
            '30 02:00 +0200',
        ]

    def test_a_line_of_all_hours_runs_in_the_repeated_hour_as_well(self):
        """Without runs in the repeated hour, a job with a period of 20 minutes
        would pause for 80 minutes.
        """
        cron = Cron('*/20 * * * *', 'Europe/Berlin')
        start = at('2026-10-25T00:40:00', 'Europe/Berlin')
        found = ticks(cron, start, 10)
        assert {
            later - earlier
            for earlier, later in zip(found, found[1:], strict=False)
        } == {20 * MINUTE}

    @pytest.mark.parametrize(('line', 'expected'), [
        ('7 * * * *', ['01:07', '03:07', '04:07', '05:07']),
        ('7 0-23 * * *', ['01:07', '03:07', '04:07', '05:07']),
        ('15,45 * * * *', ['01:15', '01:45', '03:15', '03:45']),
        ('30 */2 * * *', ['00:30', '04:30', '06:30', '08:30']),
        ('0 * * * *', ['01:00', '03:00', '04:00', '05:00']),
        # These lines would lose a run, or the day.
        ('30 2,14 * * *', ['03:00', '14:30', '02:30', '14:30']),
        ('0,30 2 * * *', ['03:00', '02:00', '02:30', '02:00']),
        ('0 */12 * * *', ['00:00', '12:00', '00:00', '12:00']),
    ])
    def test_only_a_line_that_would_lose_a_day_runs_at_the_change(
            self, line, expected):
        """A job that runs every hour needs no run beside the next one."""
        cron = Cron(line, 'Europe/Berlin')
        start = at('2026-03-29T00:59:00', 'Europe/Berlin')
        if line.split()[1] in ('*/2', '*/12'):
            start = at('2026-03-28T23:59:00', 'Europe/Berlin')
        found = ticks(cron, start, 4)
        assert [one[3:8] for one in shown(found, 'Europe/Berlin')] == expected
        assert cron.count(start, found[-1]) == 4
        assert cron.at_or_before(found[-1] - 1) == found[-2]

    def test_a_star_that_names_one_hour_does_not_lose_its_day(self):
        zone = 'America/Santiago'  # midnight does not exist
        cron = Cron('0 */24 * * *', zone)
        assert shown(ticks(cron, at('2026-09-05', zone), 3), zone) == [
            '06 01:00 -0300', '07 00:00 -0300', '08 00:00 -0300']

    def test_a_frozen_member_that_wakes_in_the_repeated_hour_owes_nothing(
        self,
    ):
        cron = Cron('30 2 * * *', 'Europe/Berlin')
        second_time = at('2026-10-25T02:40:00+01:00')
        assert cron.at_or_before(second_time) == at(
            '2026-10-25T02:30:00+02:00'
        )
        assert cron.after(second_time) == at('2026-10-26T02:30:00+01:00')


class TestCronOnTheCalendar:
    def test_29_february_comes_every_four_years_and_not_in_2100(self):
        cron = Cron('0 12 29 2 *')
        found = [
            datetime_of(tick).year for tick in ticks(cron, at('2090-01-01'), 3)
        ]
        assert found == [2092, 2096, 2104]
        newest = cron.at_or_before(at('2103-12-31'))
        assert newest == at('2096-02-29T12:00:00')

    def test_the_last_minute_of_a_year_is_followed_by_the_next_year(self):
        cron = Cron('59 23 31 12 *', 'Asia/Kolkata')
        found = ticks(cron, at('2026-12-31T18:28:59+00:00'), 2)
        assert found == [
            at('2026-12-31T18:29:00+00:00'),
            at('2027-12-31T18:29:00+00:00'),
        ]

    def test_day_and_weekday_are_alternatives_unless_one_is_a_star(self):
        either = Cron('0 0 13 * FRI')
        found = ticks(either, at('2026-11-01'), 3)
        assert [datetime_of(tick).day for tick in found] == [6, 13, 20]
        both = Cron('0 0 */13 * FRI')
        assert datetime_of(both.after(at('2026-11-01'))).date() == (
            datetime(2026, 11, 27).date()
        )

    def test_a_rare_day_is_entered_at_its_first_time_and_left_at_its_last(
        self,
    ):
        cron = Cron('0 6,18 1 * *')
        noon = at('2026-11-21T12:00:00')
        assert cron.after(noon) == at('2026-12-01T06:00:00')
        assert cron.at_or_before(noon) == at('2026-11-01T18:00:00')

    def test_a_line_has_ticks_before_the_epoch(self):
        assert Cron('@yearly').at_or_before(-1) == at('1969-01-01')

    @pytest.mark.parametrize(
        ('name', 'line'),
        [
            ('@hourly', '0 * * * *'),
            ('@daily', '0 0 * * *'),
            ('@midnight', '0 0 * * *'),
            ('@weekly', '0 0 * * SUN'),
            ('@monthly', '0 0 1 * *'),
            ('@yearly', '0 0 1 1 *'),
            ('@annually', '0 0 1 1 *'),
            (' @Daily ', '0 0 * * *'),
        ],
    )
    def test_a_name_of_a_schedule_equals_its_line(self, name, line):
        start = at('2026-11-21T10:11:12')
        assert ticks(Cron(name), start, 5) == ticks(Cron(line), start, 5)

    def test_it_describes_its_line_and_zone(self):
        cron = Cron('0  2 * * *', 'Europe/Berlin')
        assert cron.describe() == 'cron 0 2 * * * (Europe/Berlin)'
        assert cron == Cron('0 2 * * *', 'Europe/Berlin')
        assert cron != Cron('0 2 * * *')
        assert hash(cron) == hash(Cron('0 2 * * *', 'Europe/Berlin'))

    def test_utc_needs_no_tz_database(self, monkeypatch):
        def missing(name):
            raise zoneinfo.ZoneInfoNotFoundError(name)

        monkeypatch.setattr(zoneinfo, 'ZoneInfo', missing)
        monkeypatch.setattr(zoneinfo, 'available_timezones', set)
        assert Cron('@daily').after(0) == DAY
        with pytest.raises(InvalidSchedule, match='pip install tzdata'):
            Cron('@daily', 'Europe/Berlin')

    def test_counting_56_years_of_minutes_costs_years_not_days(
        self, monkeypatch
    ):
        calls = []
        for name in ('_next_wall', '_named'):
            original = getattr(Cron, name)
            monkeypatch.setattr(
                Cron,
                name,
                lambda *args, original=original: (
                    calls.append(1) or original(*args)
                ),
            )
        until = at('2026-01-01')
        cron = Cron('* * * * *', 'Europe/Berlin')
        assert cron.count(0, until) == until // MINUTE
        assert len(calls) < 56 * 20


def steps(schedule, after, until):
    """Return the number of ticks in (*after*, *until*]."""
    number = 0
    tick = schedule.after(after)
    while tick <= until:
        number += 1
        tick = schedule.after(tick)
    return number


# Zones with two changes a year, a change of half an hour, changes for
# Ramadan, a missing midnight, a missing day, and changed laws.
ODD_ZONES = [
    'Europe/Berlin',
    'Australia/Lord_Howe',
    'Africa/Casablanca',
    'America/Asuncion',
    'Pacific/Apia',
    'Asia/Pyongyang',
    'Antarctica/Troll',
    'America/Caracas',
]
ODD_LINES = [
    '17 * * * *',
    '*/20 1-3 * * *',
    '0 0 * * *',
    '30 23 * * MON-FRI',
    '5,35 0,2,23 1,L * *',
    '0 2 13 * FRI',
    '45 1 * * SUN#1',
    '59 23 LW 3-11 *',
]


class TestCronOverYears:
    @settings(max_examples=60)
    @given(
        st.sampled_from(ODD_LINES),
        st.sampled_from(ODD_ZONES),
        st.integers(at('1995-01-01'), at('2036-01-01')),
        st.integers(0, 400 * DAY),
    )
    def test_counting_is_stepping_from_tick_to_tick(
        self, line, zone, after, span
    ):
        cron = Cron(line, zone)
        assert cron.count(after, after + span) == steps(
            cron, after, after + span
        )

    @pytest.mark.parametrize('zone', ODD_ZONES)
    @pytest.mark.parametrize('line', ['17 * * * *', '*/20 1-3,23 * * *'])
    def test_counting_may_begin_and_end_anywhere_about_a_change(
        self, line, zone
    ):
        cron = Cron(line, zone)
        changes = offset.offset_changes(
            zoneinfo.ZoneInfo(zone),
            at('2007-01-01') // SECOND,
            at('2019-01-01') // SECOND,
        )
        assert changes
        for change in changes[-4:]:
            begin = change.at * SECOND - 3 * HOUR
            edges = [begin + 19 * MINUTE * step for step in range(21)]
            edges.append(change.at * SECOND)
            for after in edges:
                for until in edges[::5]:
                    assert cron.count(after, until) == steps(
                        cron, after, until
                    ), (after, until)

    @settings(max_examples=60)
    @given(
        st.sampled_from(
            [
                '0 0 29 2 *',
                '0 0 29 2 MON',
                '0 0 1 1 SUN',
                '0 0 L */5 *',
                '0 0 LW 2 *',
                '0 0 13 * FRI',
                '0 0 */13 * FRI#2',
                '0 0 * 3 7L',
                '0 0 31 1-7 1-5',
            ]
        ),
        st.integers(at('1950-01-01'), at('2090-01-01')),
    )
    def test_rare_days_are_those_that_cronsim_finds(self, line, t):
        cron = Cron(line)
        naive = datetime_of(t).replace(tzinfo=None)
        following = next(cronsim.CronSim(line, naive), None)
        assert cron.after(t) == instant_of(following.replace(tzinfo=UTC))
        previous = next(
            cronsim.CronSim(
                line, naive + timedelta(microseconds=1), reverse=True
            ),
            None,
        )
        assert cron.at_or_before(t) == instant_of(
            previous.replace(tzinfo=UTC)
        )


class TestBadCronLines:
    @pytest.mark.parametrize(
        ('line', 'says'),
        [
            ('61 * * * *', "minute '61' is not within 0-59"),
            ('* 24 * * *', "hour '24' is not within 0-23"),
            ('* * 32 * *', "day-of-month '32' is not within 1-31"),
            ('* * * 13 *', "month '13' is not within 1-12"),
            ('* * * * 8', "day-of-week '8' is not within 0-7"),
            ('*/0 * * * *', "minute '*/0'"),
            ('5-1 * * * *', "minute '5-1'"),
            ('a * * * *', "minute 'A'"),
            ('* * * * MONDAY', "day-of-week 'MONDAY'"),
            ('0 0 30 2 *', 'names a date that never comes'),
            ('0 0 31 4,6 *', 'names a date that never comes'),
            ('0 0 30-31 FEB *', 'names a date that never comes'),
            ('0 0 */30 2 MON#5', 'names a date that never comes'),
            ('0 0 99 2 *', "day-of-month '99'"),
            ('* * * * * *', 'has 6 fields, not 5'),
            ('* * * *', 'has 4 fields, not 5'),
            ('', 'has 0 fields, not 5'),
            ('@fortnightly', 'use one of @hourly'),
            ('0 0 * * FRI-MON', 'contains FRI-MON, which runs backwards; '
             'write FRI-SAT,SUN-MON'),
            ('0 0 * * sat-tue', 'write SAT,SUN-TUE'),
            ('0 0 * * 5-1', 'write 5-6,0-1'),
            ('0 0 * * 7-2', 'write 0-2'),
            ('0 22-2 * * *', "hour '22-2' contains 22-2, which runs "
             'backwards; write 22-23,0-2'),
            ('0 8,22-0 * * *', 'write 22-23,0'),
            ('0 0 1 nov-feb *', 'write NOV-DEC,JAN-FEB'),
            ('0 0 28-3 * *', 'write 28-31,1-3'),
            ('0 70-2 * * *', "hour '70-2' is not within 0-23"),
            ('*/0 * * * *', 'has a step that is not within 1-60'),
            ('*/90 * * * *', 'has a step that is not within 1-60'),
            ('5,*/90 * * * *', 'has a step that is not within 1-60'),
            ('0 */25 * * *', 'has a step that is not within 1-24'),
            ('0 0 ? * MON', "day-of-month '?' contains '?'; write *"),
            ('0 0 * * FRIL', '5L'),
            (None, 'is None, not text'),
            (5, 'is 5, not text'),
            pytest.param(
                '9' * 5000 + ' * * * *', 'it cannot be read', id='huge'
            ),
        ],
    )
    def test_an_invalid_line_is_refused_in_one_line(self, line, says):
        with pytest.raises(InvalidSchedule) as refused:
            Cron(line)
        text = str(refused.value)
        assert repr(line) in text
        assert says in text
        assert '\n' not in text

    @given(
        st.lists(
            st.text('0123456789*/-,#LWSUNMONFEB', min_size=1, max_size=5),
            min_size=5,
            max_size=5,
        ).map(' '.join)
        | st.text(max_size=20)
    )
    def test_any_text_has_ticks_or_is_refused(self, line):
        try:
            cron = Cron(line)
        except InvalidSchedule as refused:
            assert '\n' not in str(refused)
        else:
            assert cron.after(0) > 0

    @pytest.mark.parametrize(('line', 'same'), [
        ('0 0 * * MON-SUN', '0 0 * * *'),
        ('0 0 * * fri-sun', '0 0 * * 0,5,6'),
        ('0 0 * * 6-SUN', '0 0 * * SAT,SUN'),
        ('0 0 * * TUE-SUN/2', '0 0 * * TUE,THU,SAT'),
        ('0 0 * * SUN-SUN', '0 0 * * SUN'),
        ('0 0 * * SUN-TUE', '0 0 * * 0-2'),
        ('0 0 * * MON,WED-SUN', '0 0 * * 0,1,3-6'),
        ('*/60 * * * *', '0 * * * *'),
        ('0 */24 * * *', '0 0 * * *'),
        ('5/20 * * * *', '5,25,45 * * * *'),
    ])
    def test_a_week_may_end_on_sunday(self, line, same):
        assert ticks(Cron(line), 0, 30) == ticks(Cron(same), 0, 30)
        assert Cron(line).line == line

    @pytest.mark.parametrize(
        ('zone', 'says'),
        [
            ('europe/berlin', "did you mean 'Europe/Berlin'?"),
            ('Europe/Berln', "did you mean 'Europe/Berlin'?"),
            ('Mars/Olympus_Mons', 'e.g.'),
            ('', 'e.g.'),
            ('../../etc/passwd', 'e.g.'),
            ('/etc/passwd', 'e.g.'),
            ('America', 'did you mean'),
            ('x' * 300, 'e.g.'),
            ('\0', 'e.g.'),
            (None, 'e.g.'),
            (1, 'e.g.'),
        ],
    )
    def test_an_unknown_zone_is_refused_with_the_nearest(self, zone, says):
        with pytest.raises(InvalidSchedule) as refused:
            Cron('@daily', zone)
        assert str(refused.value).startswith(
            f'time zone {zone!r} is unknown; '
        )
        assert says in str(refused.value)
