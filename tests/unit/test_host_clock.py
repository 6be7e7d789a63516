# SPDX-License-Identifier: Apache-2.0
"""The clocks of a host whose wall clock is set forward or back."""

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.adapters.sql import host_clock
from distperiodic.core.schedule import SECOND

HOUR = 3600 * SECOND
DAY = 24 * HOUR
EPOCH = 1_790_000_000 * SECOND


class Host:
    """A host whose wall clock may be set, and the row of the clock in its
    database.
    """

    def __init__(self):
        self.boot = 'first'
        self.up = 500 * SECOND
        self.wall = EPOCH
        self.state = host_clock.NEW

    def read(self):
        return host_clock.ClockReading(self.boot, self.up, self.wall)

    def sleep(self, microseconds):
        self.up += microseconds
        self.wall += microseconds

    def restart(self, off, wall=None):
        self.boot = f'after {self.boot}'
        self.up = 20 * SECOND
        self.wall = self.wall + off if wall is None else wall

    def keep(self):
        self.state = self.state.at(self.read())

    def record(self):
        self.state = self.state.at(self.read())._replace(seen=self.up)

    @property
    def now(self):
        return host_clock.now(self.state, self.read())

    @property
    def lease_now(self):
        return host_clock.lease_now(self.state, self.read())


@pytest.fixture
def host():
    made = Host()
    made.keep()
    return made


def test_both_clocks_begin_with_the_wall_clock(host):
    assert (host.now, host.lease_now) == (EPOCH, EPOCH)


@pytest.mark.parametrize('hours', [1, -1, 24 * 365])
def test_leases_do_not_depend_on_a_wall_clock_that_is_set(host, hours):
    host.wall += hours * HOUR
    host.keep()
    host.sleep(SECOND)

    assert host.lease_now == EPOCH + SECOND


def test_the_clock_follows_the_wall_clock_forward_at_once(host):
    host.wall += HOUR

    assert host.now == EPOCH + HOUR
    host.keep()
    assert host.now == EPOCH + HOUR


def test_set_back_it_goes_on_at_half_speed_until_both_meet(host):
    host.wall -= HOUR
    host.keep()

    host.sleep(HOUR)
    host.keep()
    assert host.now == EPOCH + HOUR // 2
    host.sleep(HOUR)
    host.keep()
    assert host.now == host.wall == EPOCH + HOUR
    host.sleep(HOUR)
    host.keep()
    assert host.now == host.wall == EPOCH + 2 * HOUR


def test_set_back_and_put_right_it_is_right_at_once(host):
    host.wall -= HOUR
    host.keep()
    host.sleep(10 * SECOND)
    host.wall += HOUR
    host.keep()

    assert host.now == host.wall


def test_before_it_is_recorded_a_clock_set_back_goes_on_as_it_was(host):
    """If a process used the change before it is recorded, two processes that
    notice the change at different times would have different clocks.
    """
    host.sleep(7 * SECOND)
    host.wall -= HOUR

    assert host.now == EPOCH + 7 * SECOND


def test_two_processes_that_read_the_clock_at_other_times_agree(host):
    host.wall -= HOUR
    host.keep()
    host.sleep(9 * SECOND)
    once = host.now
    for _ in range(9):
        host.keep()

    assert host.now == once


def test_less_than_a_reading_may_be_wrong_by_turns_nothing(host):
    host.wall -= host_clock._TOLERATED
    before = host.state
    host.keep()

    assert host.state is before
    assert host.now == EPOCH


def test_after_a_boot_both_clocks_are_right(host):
    host.record()
    host.restart(off=DAY)

    assert host.now == host.lease_now == EPOCH + DAY
    host.keep()
    host.sleep(SECOND)
    assert host.now == host.lease_now == EPOCH + DAY + SECOND


def test_a_boot_with_a_dead_wall_clock_takes_neither_back(host):
    host.sleep(HOUR)
    host.record()
    host.restart(off=0, wall=0)
    host.keep()

    host.sleep(10 * SECOND)
    assert host.lease_now == EPOCH + HOUR + 10 * SECOND
    assert host.now == EPOCH + HOUR + 5 * SECOND


def test_a_boot_that_has_no_number_is_known_by_its_time(host):
    host.boot = ''
    host.state = host.state._replace(boot='')
    host.sleep(HOUR)
    host.record()
    host.restart(off=DAY)
    host.boot = ''

    assert host.lease_now == EPOCH + HOUR + DAY


STEPS = st.one_of(
    st.tuples(st.just('sleep'), st.integers(0, DAY)),
    st.tuples(st.just('set'), st.integers(-3 * DAY, 3 * DAY)),
    st.tuples(st.just('boot'), st.integers(-DAY, DAY)),
    st.tuples(st.just('keep'), st.none()),
)


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=12))
def test_neither_clock_ever_goes_back_nor_stops(steps):
    host = Host()
    host.keep()
    now, lease_now = host.now, host.lease_now
    for step, value in steps:
        slept = 0
        if step == 'sleep':
            host.sleep(value)
            slept = value
        elif step == 'set':
            host.wall += value
            # A process that notices a change records it.
            host.keep()
        elif step == 'boot':
            host.record()
            host.restart(value)
            host.keep()
        else:
            host.keep()
        assert host.now >= now + slept // 2 - host_clock._TOLERATED
        assert host.now >= host.wall
        assert host.lease_now >= lease_now + slept
        if step != 'boot':
            assert host.lease_now == lease_now + slept
        now, lease_now = host.now, host.lease_now


class Stuttering:
    """The clock of a process that is suspended during a reading."""

    def __init__(self):
        self._reads = 0

    def now(self):
        return EPOCH + self._reads * SECOND

    def monotonic(self):
        self._reads += 1
        # The first two readings of this clock are a minute apart.
        return 100.0 + (self._reads > 1) * 60


def test_a_reading_that_was_interrupted_is_made_again():
    read = host_clock.HostClock(Stuttering()).read()

    assert (read.up, read.wall) == (160 * SECOND, EPOCH + 3 * SECOND)
