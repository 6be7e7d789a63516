# SPDX-License-Identifier: Apache-2.0
"""Members that share a store use the store's clock."""

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.core import schedule
from distperiodic.core.claim import EARLIEST
from distperiodic.flow import store_clock
from distperiodic.testing.store import SharedMemoryStore
from tests.logged import lines
from tests.unit.world import World
from tests.unit.world import job

SECOND = schedule.SECOND


class StoreClock:
    """The clock of a database; the test can set it."""

    def __init__(self, clock):
        self._clock = clock
        self.monotonic = clock.monotonic
        self.skew = 0

    def now(self):
        return self._clock.now() + int(self.skew * SECOND)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def store(world):
    """A store that is a day behind the clocks of its members."""
    clock = StoreClock(world.clock)
    made = SharedMemoryStore(clock)
    made.clock, clock.skew = clock, -86_400
    return made


class Slow:
    """A queue to a store; each call takes some time."""

    def __init__(self, world, store, seconds):
        self._world = world
        self._store = store
        self.seconds = seconds
        self.asked = 0

    def now(self):
        self._world.clock.advance(self.seconds / 2)
        now = self._store.now()
        self._world.clock.advance(self.seconds / 2)
        return now

    def submit(self, call, then, failed=None):
        self.asked += 1
        then(call(self))


def test_the_time_is_that_of_the_store_between_two_reads(world, store):
    queue = Slow(world, store, 0.2)
    known = []
    time = store_clock.StoreClock(
        world.clock, queue, lambda: known.append(time.now()))

    time.sweep()
    assert known == [store.now()]
    world.clock.set_back(500)
    store.clock.skew += 500
    world.clock.advance(30)
    time.sweep()

    assert time.now() == store.now()


class Connecting(Slow):
    """A queue that must connect before its first call."""

    def now(self):
        self._world.clock.advance(self.seconds)
        self.seconds = 0.0
        return self._store.now()


def test_the_time_that_a_connection_takes_does_not_count(world, store):
    """To estimate when the store read its clock, a member halves the duration
    of a call. The time for a connection lies entirely before the reading, so
    it must not be a part of this duration.
    """
    time = store_clock.StoreClock(
        world.clock, Connecting(world, store, 0.4), lambda: None)

    time.sweep()

    assert time.now() == store.now()


@pytest.mark.parametrize('seconds', [-3600, 3600])
def test_a_step_of_the_wall_clock_makes_a_scheduler_read_the_clock_again(
        world, store, seconds):
    """The wall clock that was set may also be the clock of the store."""
    queue = Slow(world, store, 0.0)
    time = store_clock.StoreClock(world.clock, queue, lambda: None)
    time.sweep()

    world.clock.set_back(seconds)
    time.sweep()

    assert queue.asked == 2


def test_the_time_goes_on_at_half_speed_while_the_store_is_behind(
        world, store, caplog):
    time = store_clock.StoreClock(
        world.clock, Slow(world, store, 0.0), lambda: None)
    time.sweep()
    begin = time.now()
    store.clock.skew -= 60
    time.sync()

    shown = []
    for _ in range(180):
        world.clock.advance(1)
        time.sweep()
        shown.append((time.now() - begin) / SECOND)

    assert shown[59] == 30
    assert shown[119] == 60
    assert shown[179] == 120
    assert lines(caplog, 'store clock set back') == [{'seconds': '60.0'}]


def test_a_store_that_runs_at_half_speed_is_followed_closely(world, store):
    """The clock of a store in a file runs at half speed while the host's wall
    clock catches up.
    """
    queue = Slow(world, store, 0.0)
    time = store_clock.StoreClock(world.clock, queue, lambda: None)
    time.sweep()
    world.clock.advance(59)

    ahead = []
    for _ in range(600):
        world.clock.advance(0.25)
        store.clock.skew -= 1 / 8
        time.sweep()
        ahead.append((time.now() - store.now()) / SECOND)

    assert min(ahead) >= 0
    assert max(ahead) < EARLIEST / SECOND


def test_a_store_that_slows_down_after_the_clock_was_set_is_followed(
        world, store, caplog):
    """The clock of a store in a file slows down at its next write."""
    queue = Slow(world, store, 0.0)
    time = store_clock.StoreClock(world.clock, queue, lambda: None)
    time.sweep()
    world.clock.set_back(3600)
    store.clock.skew += 3600

    ahead = []
    for step in range(400):
        world.clock.advance(0.25)
        if step > 20:
            store.clock.skew -= 1 / 8
        time.sweep()
        ahead.append((time.now() - store.now()) / SECOND)

    assert max(ahead) < EARLIEST / SECOND
    assert lines(caplog, 'store clock set back') == []


@settings(max_examples=40)
@given(st.lists(st.tuples(
    st.integers(-100, 100), st.integers(0, 90)), max_size=8))
def test_the_time_never_goes_back_nor_stops(steps):
    world = World()
    clock = StoreClock(world.clock)
    time = store_clock.StoreClock(
        world.clock, Slow(world, clock, 0.0), lambda: None)
    time.sync()
    last = time.now()
    for skew, seconds in steps:
        clock.skew += skew
        time.sync()
        assert time.now() >= last
        world.clock.advance(seconds)
        time.sweep()
        assert time.now() >= last + seconds * SECOND // 2
        last = time.now()


def test_the_clock_of_the_store_is_read_once_a_minute(world, store):
    queue = Slow(world, store, 0.0)
    time = store_clock.StoreClock(world.clock, queue, lambda: None)

    for _ in range(600):
        time.sweep()
        world.clock.advance(1)

    assert queue.asked == 10


def test_an_answer_that_took_long_is_asked_for_again_soon(world, store):
    queue = Slow(world, store, 4.0)
    time = store_clock.StoreClock(world.clock, queue, lambda: None)

    time.sweep()
    queue.seconds = 0.0
    world.clock.advance(2)
    time.sweep()

    assert queue.asked == 2


def test_a_wall_clock_that_differs_is_logged_and_does_not_matter(
        world, store, caplog):
    me = world.scheduler(job(every=10.0, objects=True), store=store,
                         catalogues={'poll': ['a']})

    world.advance(25)

    assert {'ahead': '86400.0'} in lines(caplog, 'clock differs')
    assert round(me.flow.clock_ahead) == 86_400
    day = 86_400
    assert [(s.at - day, s.tick) for s in me.starts] == [
        (10.0 - day, 10.0 - day), (20.0 - day, 20.0 - day)]


def test_a_step_of_the_wall_clock_changes_no_tick(world, store):
    me = world.scheduler(job(every=10.0, objects=True), store=store,
                         catalogues={'poll': ['a']})
    world.advance(15)

    for seconds in -4000, 4000, 90:
        world.clock.set_back(seconds)
        store.clock.skew += seconds
        world.advance(10)

    begin = me.ticks()[0]
    assert me.ticks() == [begin, begin + 10, begin + 20, begin + 30]


def test_a_store_set_back_takes_nothing_twice_and_loses_nothing(
        world, store, caplog):
    me = world.scheduler(job(every=10.0, objects=True), store=store,
                         catalogues={'poll': ['a']})
    world.advance(25)

    store.clock.skew -= 30
    world.advance(10)
    assert me.count('too early') == 1
    world.advance(60)

    assert lines(caplog, 'store clock set back')
    first = me.ticks()[0]
    assert me.ticks() == [first + 10 * n for n in range(6)]
