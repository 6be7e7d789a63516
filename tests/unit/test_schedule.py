# SPDX-License-Identifier: Apache-2.0
"""Schedules with a fixed spacing, remembered schedules and phases."""

import zoneinfo
from datetime import UTC
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.core.cron import Cron
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Remembered
from distperiodic.core.schedule import datetime_of
from distperiodic.core.schedule import instant_of
from distperiodic.core.schedule import phase_us
from distperiodic.exceptions import InvalidSchedule

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

INSTANTS = st.integers(-(10**15), 4 * 10**15)
SPACINGS = st.one_of(
    st.floats(0.001, 10**6, allow_nan=False),
    st.sampled_from([0.001, 0.1, 1, 1 / 3, 60, 86400]),
)


def at(text, zone='UTC'):
    """The instant of an ISO time. An offset in *text* overrides *zone*."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return instant_of(moment)


def ticks(schedule, start, number):
    found = []
    tick = start
    for _ in range(number):
        tick = schedule.after(tick)
        found.append(tick)
    return found


class TestEvery:
    @given(SPACINGS, st.floats(-1e6, 1e6), INSTANTS)
    def test_ticks_are_whole_spacings_from_the_offset(
        self, spacing, offset, t
    ):
        every = Every(spacing, offset)
        tick = every.after(t)
        assert t < tick <= t + every.spacing_us
        assert (tick - every.offset_us) % every.spacing_us == 0

    @given(SPACINGS, st.floats(-1e6, 1e6), INSTANTS)
    def test_the_tick_before_the_next_is_the_newest(self, spacing, offset, t):
        every = Every(spacing, offset)
        newest = every.at_or_before(t)
        assert newest <= t < every.after(newest)
        assert every.after(newest) == every.after(t)
        assert every.at_or_before(newest) == newest
        assert every.period_us(newest) == every.after(newest) - newest

    def test_ten_thousand_ticks_of_a_millisecond_do_not_drift(self):
        start = at('2026-11-21T00:00:00')
        last = ticks(Every(0.001), start, 10_000)[-1]
        assert last == start + 10_000 * 1000

    def test_every_member_has_the_same_ticks_whenever_it_started(self):
        early = Every(7).after(at('2026-01-01T00:00:00'))
        late = Every(7).after(at('2026-11-21T13:14:15.161718'))
        assert (late - early) % (7 * SECOND) == 0
        assert early % (7 * SECOND) == 0

    def test_an_offset_shifts_the_grid_and_wraps_at_the_spacing(self):
        assert Every(60, 5).after(0) == 5 * SECOND
        assert Every(60, 65) == Every(60, 5) == Every(60, -55)
        assert Every(60, 5) != Every(60)
        assert len({Every(60, 5), Every(60, 65)}) == 1

    @given(SPACINGS, st.floats(-1e6, 1e6), INSTANTS, st.integers(0, 200))
    def test_count_is_the_number_of_ticks_passed(
        self, spacing, offset, t, number
    ):
        every = Every(spacing, offset)
        until = every.after(t) + (number - 1) * every.spacing_us
        assert every.count(t, until) == number

    def test_count_is_zero_for_a_span_that_ends_before_it_begins(self):
        assert Every(1).count(10 * SECOND, 5 * SECOND) == 0

    @pytest.mark.parametrize(
        'spacing',
        [
            0,
            -1,
            -0.001,
            0.0001,
            1e-300,
            float('nan'),
            float('inf'),
            1e300,
            pytest.param(10**400, id='huge'),
            True,
            '60',
            None,
            [60],
        ],
    )
    def test_a_spacing_without_ticks_is_refused_with_its_value(self, spacing):
        with pytest.raises(InvalidSchedule) as refused:
            Every(spacing)
        text = str(refused.value)
        assert text.startswith(f'spacing is {spacing!r}; give')
        assert '\n' not in text

    @pytest.mark.parametrize('offset', [float('nan'), float('inf'), '5'])
    def test_an_offset_that_is_no_number_is_refused(self, offset):
        with pytest.raises(InvalidSchedule, match=f'offset is {offset!r}'):
            Every(60, offset)

    @pytest.mark.parametrize(
        ('every', 'text'),
        [
            (Every(60), 'every 60 s'),
            (Every(0.001), 'every 0.001 s'),
            (Every(3_600_000), 'every 3600000 s'),
            (Every(60, 2.5), 'every 60 s + 2.5 s'),
        ],
    )
    def test_it_describes_itself_in_seconds(self, every, text):
        assert every.describe() == text
        assert repr(every) == f'<{text}>'


class TestRemembered:
    @settings(max_examples=50)
    @given(
        st.sampled_from(
            [
                Every(60),
                Every(7, 3),
                Cron('*/20 1-3 * * *', 'Europe/Berlin'),
                Cron('0 2 29 2 *'),
            ]
        ),
        st.lists(
            st.tuples(
                st.integers(at('2026-10-20'), at('2026-11-01')),
                st.integers(-DAY, DAY),
            ),
            max_size=8,
        ),
    )
    def test_it_answers_as_the_schedule_does(self, schedule, asked):
        found = Remembered(schedule)
        for t, more in asked:
            assert found.at_or_before(t) == schedule.at_or_before(t)
            assert found.after(t) == schedule.after(t)
            assert found.period_us(t) == schedule.period_us(t)
            assert found.count(t, t + more) == schedule.count(t, t + more)

    def test_it_asks_once_for_each_period(self):
        calls = []

        class Asked(Every):
            def at_or_before(self, t):
                calls.append(t)
                return super().at_or_before(t)

        found = Remembered(Asked(60))
        for t in range(0, 10 * MINUTE, SECOND):
            found.at_or_before(t)
        assert len(calls) == 10


class TestPhase:
    @given(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(1000, 400 * DAY),
    )
    def test_it_lies_within_the_period(self, position, period):
        phase = phase_us(position, period)
        assert 0 <= phase < period
        assert phase == phase_us(position, period)

    def test_it_reaches_from_nought_to_the_end_of_the_period(self):
        last = -pow(0x9E3779B97F4A7C15, -1, 1 << 64) % (1 << 64) - (1 << 64)

        assert phase_us(0, MINUTE) == 0
        assert phase_us(last, MINUTE) == MINUTE - 1

    def test_neighbours_on_the_ring_start_far_apart(self):
        """The objects of one arc must be spread over the whole period evenly.
        """
        arc = range(2**62, 2**62 + 10_000 * 2**40, 2**40)
        phases = [phase_us(position, MINUTE) for position in arc]
        tenths = [phase * 10 // MINUTE for phase in phases]
        for tenth in range(10):
            assert 900 < tenths.count(tenth) < 1100


def test_instants_and_datetimes_are_two_names_of_one_moment():
    moment = datetime(2026, 11, 21, 13, 14, 15, 161718, tzinfo=UTC)
    assert datetime_of(instant_of(moment)) == moment
    assert datetime_of(instant_of(moment)).tzinfo is UTC
    assert instant_of(datetime(1970, 1, 1, 1, tzinfo=UTC)) == HOUR
