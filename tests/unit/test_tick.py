# SPDX-License-Identifier: Apache-2.0
"""The life of a tick, in a world whose time the test controls."""

import collections
import dataclasses
import logging
import random

import pytest

from distperiodic import exceptions
from distperiodic.adapters.local import memory
from distperiodic.core import ring
from distperiodic.core import schedule
from tests.kept import kept
from tests.logged import lines
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import thing
from tests.unit.world import worker

FLOW = 'distperiodic.flow'


@pytest.fixture
def world():
    return World()


def ids(number):
    return [f'object-{n}' for n in range(number)]


# -- the grid

@pytest.mark.full
def test_ten_thousand_ticks_stay_on_the_grid(world):
    me = world.scheduler(job(every=0.1))

    world.advance(1000, sweep=None)

    assert [round(s.tick * 10, 3) for s in me.starts] == [
        *range(1, 10_001)]
    assert all(s.at == s.tick for s in me.starts)


def test_a_process_that_is_always_late_does_not_drift(world):
    chance = random.Random(7)
    me = world.scheduler(job(every=1.0))

    for _ in range(500):
        world.stand_still(chance.random() * 0.9)
        world.advance(0.1)

    last = int(me.starts[-1].tick)
    assert last > 200
    assert me.ticks() == [*range(1, last + 1)]
    assert max(s.at - s.tick for s in me.starts) < 1.0


def test_a_cron_job_runs_at_the_times_of_its_line(world):
    me = world.scheduler(job(cron='30 2 * * *'))

    world.advance(3 * 86_400, sweep=None)

    half_past_two = 2.5 * 3600
    assert me.ticks() == [half_past_two + day * 86_400 for day in range(3)]


def test_a_run_that_does_not_end_delays_no_other_job(world):
    me = world.scheduler(job('hangs', every=1.0), job('goes', every=1.0),
                         finishes=False)

    for _ in range(20):
        world.advance(1)
        for batch in list(me.bus.open.values()):
            if batch.job == 'goes':
                me.finish(batch)

    assert me.ticks('hangs') == [1]
    assert me.ticks('goes') == [*range(1, 21)]
    assert all(s.at == s.tick for s in me.starts)


def test_a_disabled_job_never_runs(world):
    me = world.scheduler(job('off', every=1.0, enabled=False),
                         job('on', every=1.0))

    world.advance(5)

    assert me.ticks('off') == []
    assert me.ticks('on') == [1, 2, 3, 4, 5]


def test_a_clockwork_without_jobs_has_nothing_to_come_back_for(world):
    me = world.scheduler()

    assert me.ticker.run_due() > 60


@pytest.mark.parametrize('options', [
    {}, {'misfire': 'skip', 'grace': 0.0}, {'misfire': 'all'},
    {'scope': 'group'}, {'objects': True}])
def test_run_immediately_runs_at_the_start_and_then_on_the_grid(
        world, options):
    world.clock.advance(20)
    me = world.scheduler(job(every=60.0, run_immediately=True, **options),
                         catalogues={'poll': ['a']})

    world.advance(100)

    assert [(s.at, s.tick) for s in me.starts] == [
        (20, 20), (60, 60), (120, 120)]


# -- ticks that did not run in time

def test_latest_runs_the_newest_of_the_missed_ticks_once(world, caplog):
    me = world.scheduler(job(every=1.0))
    world.advance(2)

    world.stand_still(5.5)
    world.advance(1)

    assert me.ticks() == [1, 2, 7, 8]
    assert me.count('missed') == 4
    [line] = lines(caplog, 'ticks dropped')
    assert line.has(jobs=1, ticks=4, first='poll')
    assert line['reason'].startswith('misfire=latest')


def test_skip_runs_the_newest_tick_only_within_its_grace(world):
    me = world.scheduler(
        job('patient', every=1.0, misfire='skip'),
        job('strict', every=1.0, misfire='skip', grace=0.2))
    world.advance(2)

    world.stand_still(5.5)
    world.advance(1)

    assert me.ticks('patient') == [1, 2, 7, 8]
    assert me.ticks('strict') == [1, 2, 8]
    assert me.count('missed', 'strict') == 5


def test_a_single_tick_beyond_its_grace_is_dropped_too(world):
    me = world.scheduler(job(every=10.0, misfire='skip', grace=0.2))
    world.advance(19)

    world.stand_still(1.5)
    world.advance(10)

    assert me.ticks() == [10, 30]
    assert me.count('missed') == 1


@pytest.mark.parametrize('overlap', ['skip', 'wait'])
def test_all_runs_each_missed_tick_one_after_the_other(world, overlap):
    me = world.scheduler(
        job(every=1.0, misfire='all', overlap=overlap, objects=True),
        catalogues={'poll': ['a', 'b']})
    world.advance(2)

    me.finishes = False
    world.stand_still(5.2)
    world.advance(0.5)
    while me.bus.open:
        held = collections.Counter(
            key for b in me.bus.open.values() for key in b.objects)
        assert set(held.values()) == {1}
        me.finish(next(iter(me.bus.open.values())))

    for key in ('a', 'b'):
        assert me.ticks(key=key) == [1, 2, 3, 4, 5, 6, 7]
    assert me.count('missed') == me.count('skipped') == 0
    me.assert_accounted_for()


def test_all_catches_up_on_a_hundred_ticks_at_most(world):
    me = world.scheduler(job(every=1.0, misfire='all'))

    world.stand_still(500.5)
    world.advance(0)

    assert me.ticks() == [*range(401, 501)]
    assert me.count('missed') == 400


def test_a_thousand_jobs_that_missed_ticks_are_one_line(world, caplog):
    world.scheduler(*(job(f'job-{n}', every=1.0) for n in range(1000)))
    world.advance(1)

    world.stand_still(3.5)
    world.advance(0)

    [line] = lines(caplog, 'ticks dropped')
    assert line.has(jobs=1000, ticks=2000)


# -- ticks that come during an earlier run

def test_skip_leaves_out_the_ticks_that_find_a_run_going_on(world, caplog):
    caplog.set_level(logging.INFO, FLOW)
    me = world.scheduler(job(every=1.0, objects=True), finishes=False,
                         catalogues={'poll': ids(50)})

    world.advance(3.5)
    me.finish()
    world.advance(1)

    assert me.ticks(key='object-0') == [1, 4]
    assert me.count('skipped') == 100
    first = min(ids(50), key=ring.position_of)
    told = lines(caplog, 'skipped')
    assert [line['tick'] for line in told] == [
        f'2023-11-16T00:00:0{n}+00:00' for n in (2, 3)]
    assert all(line.has(job='poll', objects=50, first=repr(first),
                        overlap='skip') for line in told)


def test_wait_runs_the_newest_waiting_tick_after_the_run_that_goes_on(world):
    me = world.scheduler(job(every=1.0, overlap='wait'), finishes=False)

    world.advance(4.5)
    assert me.ticks() == [1]
    me.finish()

    assert me.ticks() == [1, 4]
    assert len(me.bus.open) == 1
    assert me.count('skipped') == 2


def test_wait_with_misfire_all_runs_each_waiting_tick_in_order(world):
    me = world.scheduler(job(every=1.0, overlap='wait', misfire='all'),
                         finishes=False)

    world.advance(4.5)
    for _ in range(4):
        assert len(me.bus.open) == 1
        me.finish()

    assert me.ticks() == [1, 2, 3, 4]
    assert me.count('skipped') == 0


def test_a_waiting_tick_waits_for_the_retries_too(world):
    me = world.scheduler(
        job(every=60.0, overlap='wait', retries=1, retry_backoff=1.0),
        finishes=False)
    world.advance(60)
    batch, = me.bus.open.values()
    world.advance(59.9)

    me.finish(batch, failed=[0])
    world.advance(0.2)
    assert me.ticks() == [60]
    world.advance(2)
    assert me.ticks() == [60, 60]
    me.finish()

    assert me.ticks() == [60, 60, 120]
    assert [s.attempt for s in me.starts] == [1, 2, 1]


def test_a_waiting_tick_is_claimed_when_any_member_sees_the_end_of_the_run(
        world):
    """One scheduler runs the retry. Another scheduler knows the waiting tick.
    """
    poll = job(every=60.0, overlap='wait', retries=1, retry_backoff=30.0,
               objects=True)
    members = world.group('bac', poll, finishes=False,
                          catalogues={'poll': ids(8)})
    world.advance(119)
    other, owner, looks = members
    theirs = {s.object for s in owner.starts}
    for one in members:
        one.finish(failed=range(len(theirs)) if one is owner else ())

    # The first member takes the retries over. Another member does the late
    # scan that finds the waiting ticks.
    for _ in range(45):
        world.advance(1)
        other.finish()

    assert [s.attempt for s in other.starts
            if s.object in theirs and s.tick == 60] == [2] * len(theirs)
    waited = [s for one in members for s in one.starts
              if s.object in theirs and s.tick == 120]
    assert {s.object for s in waited} == theirs
    ended = max(s.at for s in other.starts if s.tick == 60) + 1
    assert all(s.at <= ended + 1 for s in waited)


def test_ticks_that_wait_for_a_run_that_hangs_are_bounded(world):
    me = world.scheduler(job(every=1.0, overlap='wait', misfire='all'),
                         finishes=False, lease=1000.0)

    world.advance(500)
    me.finishes = True
    world.advance(0.5)

    assert me.ticks() == [1, *range(401, 501)]
    assert me.count('missed') == 399


# -- objects of a catalogue

def test_each_object_of_ours_is_run_at_each_tick(world):
    objects = ids(100)
    members = ['a', 'b', 'c']
    for name in members:
        world.scheduler(job(objects=True), name=name, sees=members,
                        catalogues={'poll': objects})

    world.advance(180)

    ran = collections.Counter((s.object, s.tick) for s in world.starts())
    assert ran == {(key, tick): 1 for key in objects
                   for tick in (60, 120, 180)}
    assert {s.member for s in world.starts()} == set(members)


def test_two_objects_with_one_id_run_once(world):
    me = world.scheduler(
        job('plain', objects=True), job('spread', objects=True, spread=True),
        job('own', objects=True), catalogues={
            'plain': ['a', 'b', 'a'], 'spread': ['a', 'b', 'a'],
            'own': [thing('a', spacing=60.0), thing('a', spacing=60.0)]})

    world.advance(119)

    for name in ('plain', 'spread', 'own'):
        ran = collections.Counter(
            (s.tick, s.object) for s in me.starts if s.job == name)
        assert set(ran.values()) == {1}, name
    assert me.count('skipped') == 0


def test_a_big_tick_does_not_delay_the_others(world):
    """The member claims 20,000 objects in several steps."""
    world.clock.advance(59.99)
    me = world.scheduler(
        job('big', every=60.0, objects=True),
        job('quick', every=0.005), catalogues={'big': ids(20_000)})

    for _ in range(40):
        world.turn(takes=0.004)

    order = [s.job for s in me.starts]
    first, last = order.index('big'), len(order) - order[::-1].index('big')
    assert order.count('big') == 20_000
    assert order[first:last].count('quick') > 4
    assert me.count('missed') == 0


def test_a_catalogue_that_raises_is_read_again_for_the_same_tick(
        world, caplog):
    caplog.set_level(logging.INFO, FLOW)
    me = world.scheduler(
        job('poll', objects=True), job('other', objects=True),
        catalogues={'poll': ['a'], 'other': ['a']})
    world.advance(59)
    me.reader.given['poll'] = RuntimeError('no database')
    world.advance(12)
    me.reader.given['poll'] = ['a']
    world.advance(50)

    assert ran_at(me, 'poll') == [(60, 75), (120, 120)]
    assert me.ticks('other') == [60, 120]
    # The retries come 1, 3, 7 and 15 s after the tick.
    assert me.count('catalogue failed') == 4
    # Only the first of equal failures is logged, and with its traceback.
    [line] = lines(caplog, 'catalogue failed')
    assert line.has(job='poll', method='list_poll', failures=1)
    assert 'RuntimeError: no database' in caplog.text
    [again] = lines(caplog, 'catalogue read')
    assert again.has(job='poll', failures=4, seconds=15)


def test_a_catalogue_that_goes_on_failing_is_logged_once_a_minute(
        world, caplog):
    me = world.scheduler(
        job('poll', every=1.0, objects=True),
        catalogues={'poll': RuntimeError('no database')})

    world.advance(295)

    assert me.count('catalogue failed') >= 250
    assert len(lines(caplog, 'catalogue failed')) == 5
    assert len([one for one in caplog.records
                if 'RuntimeError: no database\n' in one.getMessage()]) <= 1


def test_a_report_names_the_catalogue_that_fails_and_since_when(world):
    me = world.scheduler(
        job('poll', every=10.0, objects=True),
        job('other', every=10.0, objects=True),
        catalogues={'poll': ['a'], 'other': ['a']})
    world.advance(25)
    assert me.flow.failing_catalogues() == []
    me.reader.given['poll'] = RuntimeError('no \x1b[31m database\n')
    world.advance(100)

    [failing] = me.flow.failing_catalogues()
    assert failing['job'] == 'poll'
    assert failing['error'] == 'RuntimeError: no [31m database'
    assert failing['reading_s'] is None
    # The last good read was at 20 s, and the first failure at 30 s.
    assert failing['failing_s'] == pytest.approx(95, abs=1)
    assert failing['read_s'] == pytest.approx(105, abs=1)

    me.reader.given['poll'] = RuntimeError('x' * 9999)
    world.advance(100)
    [failing] = me.flow.failing_catalogues()
    assert failing['failing_s'] == pytest.approx(195, abs=1)
    assert len(failing['error']) <= 300

    me.reader.given['poll'] = ['a']
    world.advance(20)
    assert me.flow.failing_catalogues() == []


def test_a_report_names_the_catalogue_that_does_not_return(world):
    me = world.scheduler(
        job('poll', every=10.0, objects=True), job('other', every=10.0),
        catalogues={'poll': ...})

    world.advance(40)

    [hanging] = me.flow.failing_catalogues()
    assert (hanging['job'], hanging['error'], hanging['failing_s'],
            hanging['read_s']) == ('poll', '', None, None)
    # The first read begins at the start.
    assert hanging['reading_s'] == pytest.approx(40, abs=11)


def ran_at(me, name):
    """(tick, second of the start) of each run of a job."""
    return [(s.tick, round(s.at)) for s in me.starts if s.job == name]


def test_rows_that_the_store_did_not_return_are_requested_again(world):
    """A member must read the rows of a job to find the objects that are new.
    """
    me = world.scheduler(
        job(every=3600.0, objects=True, run_immediately=True), sees=None,
        catalogues={'poll': ['a']})
    rows, asked = me.store.rows, []

    def unable(*args, **options):
        asked.append(world.clock.seconds)
        if len(asked) <= 3:
            raise exceptions.StoreUnavailable('it is away')
        return rows(*args, **options)
    me.store.rows = unable

    world.show(me, ['me'])
    world.advance(10)

    assert len(asked) == 4
    assert [s.object for s in me.starts] == ['a']


def test_no_row_is_read_while_the_store_is_unreachable(world):
    """Ticks that come due during the outage run as soon as the store is back.
    """
    me = world.scheduler(
        job('plain', every=600.0, objects=True),
        job('spread', every=600.0, objects=True, spread=True),
        job('group', every=600.0, scope='group'),
        store=world.shared_store(),
        catalogues={'plain': ['a'], 'spread': ids(30)})
    world.advance(1190)
    before = len(me.starts)

    me.queue.away = True
    world.advance(60, sweep=None)
    pause = me.step()
    me.queue.come_back()
    world.advance(0.01, sweep=None)

    # The scheduler sleeps until the next tick.
    assert pause == 550
    late = me.starts[before:]
    assert {(s.job, s.tick) for s in late} == {
        ('plain', 1200), ('spread', 600), ('spread', 1200), ('group', 1200)}
    assert len({s.at for s in late}) == 1


def test_a_catalogue_that_raises_on_and_on_is_asked_once_a_minute(world):
    me = world.scheduler(
        job('poll', every=7200.0, objects=True), catalogues={'poll': ['a']})
    world.advance(7199, sweep=None)
    before = len(me.reader.asked)
    me.reader.given['poll'] = RuntimeError('no database')
    world.advance(3600, sweep=None)
    asked = len(me.reader.asked) - before

    me.reader.given['poll'] = ['a']
    world.advance(61, sweep=None)

    assert 60 <= asked <= 66
    assert me.ticks('poll') == [7200]


def test_the_next_tick_does_not_wait_for_a_catalogue_that_raised(world):
    me = world.scheduler(
        job('latest', every=10.0, objects=True),
        job('skip', every=10.0, objects=True, misfire='skip', grace=2.0),
        job('all', every=10.0, objects=True, misfire='all'),
        catalogues=dict.fromkeys(
            ('latest', 'skip', 'all'), RuntimeError('no database')))
    world.advance(49)

    me.reader.given.update(latest=['a'], skip=['a'], all=['a'])
    world.advance(2)

    assert me.ticks('latest') == [50]
    assert me.ticks('skip') == [50]
    assert me.ticks('all') == [10, 20, 30, 40, 50]
    assert me.count('missed', 'latest') == me.count('missed', 'skip') == 4


def test_a_first_run_waits_for_its_catalogue(world):
    """A first run is not a tick of the grid, so no misfire policy gives it up.
    """
    me = world.scheduler(
        job('poll', every=86400.0, objects=True, run_immediately=True),
        catalogues={'poll': RuntimeError('no database')})
    world.advance(5)
    me.reader.given['poll'] = ['a']
    world.advance(60)

    assert len(me.starts) == 1


def test_a_catalogue_that_raised_is_read_though_the_clock_was_set_back(world):
    me = world.scheduler(job('poll', objects=True),
                         catalogues={'poll': RuntimeError('no database')})
    world.advance(3600)
    world.clock.set_back(1800)
    me.reader.given['poll'] = ['a']
    before = len(me.reader.asked)
    world.advance(120)

    assert len(me.reader.asked) > before
    # The first tick runs late, because a read of the catalogue failed.
    assert me.ticks() == [1800, 1860, 1920]


def test_a_catalogue_that_never_returns_holds_its_own_job_only(
        world, caplog):
    me = world.scheduler(
        job('poll', every=10.0, objects=True), job('other', every=10.0),
        catalogues={'poll': ...})

    world.advance(100)

    assert me.ticks('poll') == []
    assert me.ticks('other') == [*range(10, 101, 10)]
    assert len(me.reader.asked) == 1
    assert me.count('held', 'poll') == 10
    warned = lines(caplog, 'catalogue slow')
    assert len(warned) == 4
    assert warned[0].has(job='poll', method='list_poll')


def test_a_catalogue_that_returns_at_last_runs_by_the_misfire_policy(world):
    me = world.scheduler(
        job('latest', every=10.0, objects=True),
        job('skip', every=10.0, objects=True, misfire='skip', grace=5.0),
        job('all', every=10.0, objects=True, misfire='all'),
        catalogues={'latest': ['a'], 'skip': ['a'], 'all': ['a']})
    world.advance(9)
    me.reader.given.update(latest=..., skip=..., all=...)
    world.advance(50.5)

    me.reader.given.update(latest=['a'], skip=['a'], all=['a'])
    world.advance(0.1)
    world.advance(10)

    assert me.ticks('latest') == [50, 60]
    assert me.ticks('skip') == [60]
    assert me.ticks('all') == [10, 20, 30, 40, 50, 60]


def test_an_answer_without_a_request_is_dropped(world):
    me = world.scheduler(job(objects=True), catalogues={'poll': ['a']})
    world.advance(60)
    asked = me.reader.asked[-1]
    before = len(me.starts)

    for ticket in (asked.ticket, 0, asked.ticket + 100):
        me.ticker.catalogue_read(
            'poll', ticket, me.reader.reading(asked.job, asked.arcs))
    me.ticker.catalogue_read(
        'gone', 1, me.reader.reading(asked.job, asked.arcs))

    assert len(me.starts) == before


def test_an_answer_that_comes_twice_is_not_that_of_the_next_read(world):
    me = world.scheduler(job(objects=True), catalogues={'poll': ['a']})
    world.advance(60)
    asked = me.reader.asked[-1]
    answer = me.reader.reading(asked.job, asked.arcs)
    me.reader.given['poll'] = ...
    world.advance(60)

    me.ticker.catalogue_read('poll', asked.ticket, answer)
    world.advance(1)
    me.reader.given['poll'] = ['b']
    world.advance(1)

    assert [(s.tick, s.object) for s in me.starts] == [(60, 'a'), (120, 'b')]


def test_a_closed_clockwork_begins_nothing_more(world):
    me = world.scheduler(
        job('poll', objects=True), job('wait', every=1.0, overlap='wait'),
        catalogues={'poll': ...}, finishes=False)
    world.advance(61)
    before = len(me.starts)

    me.ticker.close()
    me.reader.given['poll'] = ['a']
    me.finish()
    world.advance(120)

    assert len(me.starts) == before


# -- objects spread over the period

def test_spread_runs_each_object_once_a_period_at_its_own_phase(world):
    me = world.scheduler(job(every=60.0, objects=True, spread=True),
                         catalogues={'poll': ids(600)})

    world.advance(240)

    by_object = collections.defaultdict(list)
    for start in me.starts:
        assert start.tick <= start.at < start.tick + 60.002
        by_object[start.object].append(start)
    assert len(by_object) == 600
    for starts in by_object.values():
        assert [s.tick for s in starts] == [0, 60, 120, 180]
        phases = [s.at - s.tick for s in starts]
        assert max(phases) - min(phases) < 0.002
    a_second = collections.Counter(
        int(s.at) for s in me.starts if s.tick == 120)
    assert max(a_second.values()) < 30


def test_run_immediately_does_not_wait_for_the_phase_of_an_object(world):
    world.clock.advance(100)
    me = world.scheduler(
        job(every=3600.0, objects=True, spread=True, run_immediately=True),
        store=world.shared_store(), catalogues={'poll': ids(20)})

    world.advance(1)

    assert [(s.at, s.tick) for s in me.starts] == [(100, 100)] * 20


def test_a_listing_of_a_paused_job_is_skipped_at_once(world):
    world.clock.advance(100)
    store = world.shared_store()
    store.pause('poll', 'why')
    world.scheduler(
        job(every=3600.0, objects=True, spread=True, run_immediately=True),
        store=store, catalogues={'poll': ids(20)})

    world.advance(1)

    assert {row.settled == row.since for row in store.rows_of(
        'poll', ids(20))} == {True}


def test_a_phase_that_came_while_no_scheduler_ran_is_due_all_through_a_night(
        world):
    """The next due time of the objects is in the long period that begins with
    the last tick of the night.
    """
    store, catalogues = world.shared_store(), {'poll': ids(20)}
    poll = job(cron='0,30 1-3 * * *', objects=True, spread=True)
    world.scheduler(poll, store=store, catalogues=catalogues)
    world.advance(3000)
    world.schedulers.clear()
    world.stand_still(4 * 3600 - 3000)

    new = world.scheduler(poll, name='new', store=store,
                          catalogues=catalogues)
    world.advance(10)

    assert new.ticks() == [3 * 3600] * 20


@pytest.mark.parametrize(('number', 'shared', 'grain'), [
    (10_000, False, 0.02), (1000, True, 0.05)], ids=['alone', 'in a store'])
def test_many_that_are_spread_begin_together_and_little_later(
        world, number, shared, grain):
    me = world.scheduler(
        job(every=1.0, objects=True, spread=True),
        catalogues={'poll': ids(number)},
        store=memory.MemoryClaimStore(world.clock) if shared else None)

    world.advance(4)

    looks = {s.at for s in me.starts if s.tick == 2}
    assert 0.9 / grain <= len(looks) <= 1.2 / grain
    late = [round(s.at - s.tick - schedule.phase_us(
        ring.position_of(s.object), schedule.SECOND) / schedule.SECOND, 6)
        for s in me.starts if s.tick == 2]
    assert len(late) == number
    assert 0.0 <= min(late)
    assert max(late) < grain + 0.001


@pytest.mark.parametrize('partial', [set(), {'poll'}])
def test_members_that_come_and_go_run_each_object_once_a_period(
        world, partial):
    """The catalogue method may return only the objects of the given arcs."""
    objects = ids(300)
    everyone = [world.scheduler(
        job(every=60.0, objects=True, spread=True), name=name, sees=None,
        catalogues={'poll': objects}, partial=partial) for name in 'abc']
    world.show_all('ab')
    world.schedulers = everyone[:2]
    world.advance(90)
    world.schedulers = everyone
    world.show_all('abc')
    world.advance(65)
    world.schedulers = everyone[:2]
    world.show_all('ab')
    world.advance(85)

    ran = collections.Counter(
        (s.object, s.tick) for one in everyone for s in one.starts
        if s.tick < 240)
    assert everyone[2].starts
    assert ran == {(key, tick): 1 for key in objects
                   for tick in (0, 60, 120, 180)}


def test_the_last_objects_of_a_period_are_not_lost_to_the_next_tick(world):
    me = world.scheduler(job(every=1.0, objects=True, spread=True),
                         catalogues={'poll': ids(500)})
    chance = random.Random(3)
    world.advance(1)

    for _ in range(100):
        world.stand_still(chance.random() * 0.3)
        world.advance(0.1)

    ran = collections.Counter(s.tick for s in me.starts)
    whole = sorted(ran)[1:-1]
    assert len(whole) > 15
    assert {ran[tick] for tick in whole} == {500}


def test_spread_with_misfire_all_catches_up_on_whole_periods(world):
    me = world.scheduler(
        job(every=10.0, objects=True, spread=True, misfire='all'),
        catalogues={'poll': ids(20)})
    world.advance(20)

    world.stand_still(40)
    world.advance(20)

    ran = collections.Counter((s.object, s.tick) for s in me.starts)
    assert set(ran.values()) == {1}
    for tick in (10, 20, 30, 40, 50, 60):
        assert sum(1 for _, t in ran if t == tick) == 20, tick
    for key in ids(20):
        assert me.ticks(key=key) == sorted(me.ticks(key=key))


def test_a_spread_object_beyond_its_grace_is_dropped(world):
    me = world.scheduler(
        job(every=60.0, objects=True, spread=True, misfire='skip',
            grace=5.0), catalogues={'poll': ids(600)})
    world.advance(70)
    before = me.count('claimed')

    world.stand_still(20)
    world.advance(0.01)

    assert 20 < me.count('claimed') - before < 90
    assert 100 < me.count('missed') < 200
    assert all(s.at - s.tick < 60 for s in me.starts)


# -- objects with a schedule of their own

def test_an_object_with_its_own_spacing_follows_it(world):
    me = world.scheduler(
        job(every=3600.0, objects=True), catalogues={'poll': [
            thing('slow'), thing('quick', spacing=10.0),
            thing('nightly', cron='0 2 * * *')]})

    world.advance(3 * 3600, sweep=None)

    assert me.ticks(key='quick') == [*range(10, 10_801, 10)]
    assert me.ticks(key='slow') == [3600, 7200, 10_800]
    assert me.ticks(key='nightly') == [7200]


def test_an_object_keeps_its_time_when_the_catalogue_is_read_again(world):
    me = world.scheduler(
        job(every=60.0, objects=True),
        catalogues={'poll': [thing('a', spacing=90.0)]})

    for _ in range(9):
        me.reader.given['poll'] = [thing('a', spacing=90.0)]
        world.advance(60)

    assert me.ticks(key='a') == [*range(90, 541, 90)]


def test_an_object_whose_rule_changes_follows_the_new_one(world):
    objects = [thing('a', spacing=3600.0), thing('b', spacing=10.0)]
    me = world.scheduler(job(every=60.0, objects=True),
                         catalogues={'poll': objects})
    world.advance(30)

    me.reader.given['poll'] = [
        thing('a', spacing=5.0), thing('b', spacing=3600.0)]
    world.advance(90)

    assert me.ticks(key='a') == [*range(60, 121, 5)]
    assert me.ticks(key='b') == [10, 20, 30, 40, 50, 60]


def test_an_object_that_loses_its_rule_follows_the_job_again(world):
    me = world.scheduler(
        job(every=60.0, objects=True),
        catalogues={'poll': [thing('a', spacing=7.0)]})
    world.advance(59)

    me.reader.given['poll'] = [thing('a')]
    world.advance(121)

    assert me.ticks(key='a') == [7, 14, 21, 28, 35, 42, 49, 56, 60, 120, 180]


def test_an_object_that_is_gone_from_the_catalogue_runs_no_more(world):
    me = world.scheduler(
        job(every=60.0, objects=True),
        catalogues={'poll': [thing('a', spacing=7.0), thing('b')]})
    world.advance(59)

    me.reader.given['poll'] = []
    world.advance(200)

    assert me.ticks() == [7, 14, 21, 28, 35, 42, 49, 56]


def test_an_object_that_comes_with_a_sooner_time_does_not_wait(world):
    me = world.scheduler(
        job(every=60.0, objects=True),
        catalogues={'poll': [thing('slow', spacing=86_400.0)]})
    world.advance(60)

    me.reader.given['poll'] = [
        thing('slow', spacing=86_400.0), thing('quick', spacing=1.0)]
    world.advance(65)

    assert me.ticks(key='quick') == [120, 121, 122, 123, 124, 125]


@pytest.mark.parametrize('misfire,ran', [
    ('latest', [7, 14, 49]), ('skip', [7, 14, 49]),
    ('all', [7, 14, 21, 28, 35, 42, 49])])
def test_an_objects_own_missed_ticks_follow_the_misfire_policy(
        world, misfire, ran):
    me = world.scheduler(
        job(every=3600.0, objects=True, misfire=misfire),
        catalogues={'poll': [thing('a', spacing=7.0)]})
    world.advance(15)

    world.stand_still(36)
    world.advance(0.1)

    assert me.ticks() == ran
    assert me.count('missed') == 7 - len(ran)


@pytest.mark.parametrize('partial', [set(), {'poll'}])
def test_objects_with_their_own_time_move_with_the_ring(world, partial):
    objects = [thing(key, spacing=10.0) for key in ids(50)]
    everyone = [world.scheduler(
        job(every=3600.0, objects=True), name=name, sees=None,
        catalogues={'poll': objects}, partial=partial) for name in 'ab']
    world.schedulers = everyone[:1]
    world.show_all('a')
    world.advance(35)
    world.schedulers = everyone
    world.show_all('ab')
    world.advance(30)
    world.schedulers = everyone[:1]
    world.show_all('a')
    world.advance(30)

    ran = collections.Counter(
        (s.object, s.tick) for one in everyone for s in one.starts)
    assert ran == {(f'object-{n}', tick): 1 for n in range(50)
                   for tick in range(10, 91, 10)}
    assert everyone[1].starts


def test_a_change_of_the_ring_during_a_read_repeats_the_read(world):
    """The member requested only the objects of the arcs that it had then."""
    me = world.scheduler(job(every=60.0, objects=True, spread=True), name='a',
                         sees='ab', catalogues={'poll': ids(300)})
    me.reader.partial = {'poll'}
    world.advance(59)
    me.reader.given['poll'] = ...
    world.advance(2)

    world.show(me, 'a')
    me.reader.given['poll'] = ids(300)
    world.advance(58.9)

    # The objects that came due while b still owned them are missing.
    ran = collections.Counter(s.object for s in me.starts if s.tick == 60)
    assert set(ran.values()) == {1}
    assert 290 <= len(ran) <= 300


@pytest.mark.parametrize('partial', [set(), {'poll'}])
def test_an_object_counts_from_a_read_during_which_the_ring_changes(
        world, partial):
    """If the object counted only from a later read, the ticks before that read
    would be given up without a record.
    """
    me = world.scheduler(
        job(every=60.0, objects=True, misfire='all'), name='a', sees='ab',
        store=world.shared_store(), catalogues={'poll': ids(9)},
        partial=partial)
    world.advance(119)
    me.reader.given['poll'] = ...
    world.advance(2)

    world.show(me, 'a')
    world.advance(120)
    me.reader.given['poll'] = [*ids(9), 'new']
    world.advance(1)

    assert me.ticks(key='new') == [120, 180, 240]


# -- scopes

def test_a_job_of_the_group_runs_once_in_it(world):
    names = ['a', 'b', 'c']
    jobs = [job(f'job-{n}', scope='group') for n in range(20)]
    for name in names:
        world.scheduler(*jobs, name=name, sees=names)

    world.advance(120)

    ran = collections.Counter((s.job, s.tick) for s in world.starts())
    assert ran == {(j.name, tick): 1 for j in jobs for tick in (60, 120)}
    assert len({s.member for s in world.starts()}) == 3


def test_a_job_of_every_member_needs_no_view(world):
    me = world.scheduler(job('mine'), job('ours', scope='group'),
                         job('theirs', objects=True), sees=None,
                         catalogues={'theirs': ['a']})

    world.advance(120)

    assert me.ticks('mine') == [60, 120]
    assert me.ticks('ours') == me.ticks('theirs') == []
    assert [s.object for s in me.starts] == ['me', 'me']


# -- an unknown view

def test_ticks_before_the_first_view_are_held_and_then_run_if_alone(world):
    me = world.scheduler(job(objects=True), job('once', scope='group'),
                         sees=None, catalogues={'poll': ['a']})
    world.advance(130)
    assert me.starts == []
    assert me.count('held') == 4

    world.show(me, ['me'])
    world.advance(0)

    assert me.ticks('poll') == me.ticks('once') == [120]


def test_objects_due_before_a_member_joined_were_of_the_others(world):
    a = world.scheduler(job(objects=True), name='a',
                        catalogues={'poll': ids(20)})
    b = world.scheduler(job(objects=True), name='b', sees=None,
                        catalogues={'poll': ids(20)})
    world.advance(60.5)

    world.show_all('ab')
    world.advance(60)

    assert len(a.ticks()) == 20 + len([t for t in a.ticks() if t == 120])
    assert set(b.ticks()) == {120}
    assert len(a.ticks()) + len(b.ticks()) == 40


def test_back_in_the_same_tenure_the_misfire_policy_decides(world):
    names = {'latest': ['latest'], 'skip': ['skip'], 'all': ['all']}
    me = world.scheduler(
        job('latest', objects=True), job('all', objects=True, misfire='all'),
        job('skip', objects=True, misfire='skip', grace=5.0),
        job('once', scope='group'), catalogues=names)
    world.advance(60)

    world.distrust(me)
    world.advance(130)
    assert set(me.ticks()) == {60}
    world.trust(me)
    world.advance(0.1)

    assert me.ticks('latest') == me.ticks('once') == [60, 180]
    assert me.ticks('all') == [60, 120, 180]
    assert me.ticks('skip') == [60]


def test_a_tick_at_the_very_moment_of_return_hides_none_before_it(world):
    me = world.scheduler(job(scope='group', misfire='all'))
    world.advance(60)
    world.distrust(me)
    world.advance(70)
    world.stand_still(50)

    world.trust(me)
    world.advance(0)

    assert me.ticks() == [60, 120, 180]


def test_a_tick_at_the_very_moment_of_an_answer_hides_none_before_it(world):
    me = world.scheduler(job(every=10.0, objects=True, misfire='all'),
                         catalogues={'poll': ['a']})
    world.advance(9)
    me.reader.given['poll'] = ...
    world.advance(16)
    world.stand_still(5)

    me.reader.given['poll'] = ['a']
    me.answer()
    me.finish()
    world.advance(1)

    assert me.ticks() == [10, 20, 30]


def test_a_view_that_is_trusted_again_is_used_without_a_notification(world):
    me = world.scheduler(job(every=3600.0, objects=True),
                         catalogues={'poll': ['a']})
    world.distrust(me)
    world.advance(3601)

    me.ticker.view_changed = lambda: None
    world.trust(me)
    world.advance(1)

    assert me.ticks() == [3600]


def test_ticks_before_a_new_tenure_belong_to_others(world):
    me = world.scheduler(
        job(objects=True), job('once', scope='group'),
        job('all', objects=True, misfire='all'),
        catalogues={'poll': ['a'], 'all': ['a']})
    world.advance(60)
    world.distrust(me)
    world.advance(130)

    world.show(me, ['me'], tenure=2)
    world.advance(55)

    assert me.ticks('poll') == me.ticks('once') == [60, 240]
    assert me.ticks('all') == [60, 240]


@pytest.mark.parametrize('stall,newest', [(15, 20), (35, 40)])
def test_a_stall_that_cost_the_tenure_leaves_its_ticks_to_others(
        world, stall, newest):
    """The membership recovered before the flow noticed the stall."""
    me = world.scheduler(
        job(every=10.0, objects=True), job('mine', every=10.0),
        catalogues={'poll': ['a']})
    world.advance(10)

    world.stand_still(stall)
    world.show(me, ['me', 'you'], tenure=2)
    world.advance(1)
    assert me.ticks('poll') == [10]
    assert me.ticks('mine') == [10, newest]

    world.show(me, ['me'], tenure=2)
    world.advance(10)
    assert me.ticks('poll') == [10, newest + 10]


def test_a_tick_that_came_just_after_the_tenure_began_is_ours(world):
    me = world.scheduler(job(every=10.0, objects=True),
                         catalogues={'poll': ['a']})
    world.advance(10)
    world.stand_still(31)

    world.show(me, ['me'], tenure=2, since=2.0)
    world.advance(1)

    assert me.ticks() == [10, 40]


def test_claims_that_wait_are_abandoned_in_a_new_tenure(world):
    me = world.scheduler(
        job('poll', objects=True), job('mine'), workers=[],
        catalogues={'poll': ids(10)})
    world.advance(60)
    assert me.dispatcher.waiting == 11

    world.distrust(me)
    world.show(me, ['me'], tenure=2)
    assert me.dispatcher.waiting == 1
    me.dispatcher.workers_changed('default', [worker()])
    world.advance(1)

    assert [s.job for s in me.starts] == ['mine']
    assert me.count('left to others') == 10
    me.assert_accounted_for()


def test_ticks_that_wait_for_a_run_are_abandoned_in_a_new_tenure(world):
    me = world.scheduler(job(objects=True, overlap='wait'), finishes=False,
                         lease=1000.0, catalogues={'poll': ['a']})
    world.advance(130)
    assert len(me.bus.open) == 1

    world.show(me, ['me'], tenure=2)
    me.finish()
    world.advance(1)

    assert me.ticks() == [60]


def test_a_catalogue_read_for_an_earlier_tenure_starts_nothing(world):
    me = world.scheduler(job(objects=True), catalogues={'poll': ['a']})
    world.advance(59)
    me.reader.given['poll'] = ...
    world.advance(2)

    world.show(me, ['me'], tenure=2)
    me.reader.given['poll'] = ['a']
    world.advance(58)
    assert me.ticks() == []

    world.advance(2)
    assert me.ticks() == [120]


def test_objects_whose_time_came_in_the_gap_belonged_to_others(world):
    me = world.scheduler(
        job('spread', every=60.0, objects=True, spread=True),
        job('own', every=3600.0, objects=True),
        catalogues={'spread': ids(600),
                    'own': [thing('a', spacing=1.0)]})
    world.advance(70)
    world.distrust(me)
    world.advance(20)

    world.show(me, ['me'], tenure=2)
    world.advance(0.01)
    assert [s for s in me.starts if s.at > 70.03] == []
    world.advance(100)

    spread = [s for s in me.starts if s.job == 'spread']
    assert all(s.at - s.tick < 60.03 for s in spread)
    in_gap = collections.Counter(
        s.object for s in spread if s.tick == 60)
    assert 350 < len(in_gap) < 450
    assert sum(1 for s in spread if s.tick == 120) == 600
    assert [t for t in me.ticks('own') if 70 < t <= 90] == []
    assert [t for t in me.ticks('own') if 90 < t <= 95] == [
        91, 92, 93, 94, 95]


def test_a_new_tenure_takes_up_the_period_under_way(world):
    """The tick of the job came while this member was not in the group."""
    me = world.scheduler(
        job(every=60.0, objects=True, spread=True),
        catalogues={'poll': ids(600)})
    world.advance(50)
    world.distrust(me)
    world.advance(30)

    world.show(me, ['me'], tenure=2)
    world.advance(40)

    late = [s for s in me.starts if s.tick == 60]
    assert 350 < len(late) < 450
    assert min(s.at for s in late) >= 80


def test_a_catalogue_that_returns_into_doubt_is_read_again(world):
    me = world.scheduler(job(objects=True), catalogues={'poll': ['a']})
    world.advance(59)
    me.reader.given['poll'] = ...
    world.advance(2)
    world.distrust(me)
    me.reader.given['poll'] = ['a']
    world.advance(10)
    assert me.ticks() == []

    world.trust(me)
    world.advance(1)

    assert me.ticks() == [60]


def test_claims_are_not_given_out_in_doubt(world):
    me = world.scheduler(
        job('poll', objects=True), job('mine'), workers=[],
        catalogues={'poll': ids(10)})
    world.advance(60)

    world.distrust(me)
    me.dispatcher.workers_changed('default', [worker()])
    world.advance(1)
    assert [s.job for s in me.starts] == ['mine']
    world.trust(me)
    world.advance(1)

    assert len(me.starts) == 11


def test_a_closed_ticker_still_dispatches_its_claims(world):
    """The member left the ring, but no other member has claimed the objects.
    """
    me = world.scheduler(job(objects=True), workers=[],
                         catalogues={'poll': ids(10)})
    world.advance(60)

    world.distrust(me)
    me.ticker.close()
    me.dispatcher.workers_changed('default', [worker()])
    me.flow.pump()

    assert len(me.starts) == 10


def test_a_member_that_is_not_on_its_own_ring_holds(world):
    me = world.scheduler(job(scope='group'), sees=None)
    world.show(me, ['me', 'you'])
    others = me.views['group']
    world.show(me, ['me'])
    me.views['group'] = dataclasses.replace(
        me.views['group'], ring=others.ring.changed_to({'you': 40}))

    world.advance(60)

    assert me.count('held') == 1


def test_a_thousand_held_jobs_are_one_line(world, caplog):
    me = world.scheduler(*(job(f'job-{n}', scope='group')
                           for n in range(1000)))
    world.advance(60)
    world.distrust(me)

    world.advance(180)
    assert len(lines(caplog, 'ticks held')) == 1
    assert me.count('held') == 3000
    world.trust(me)
    world.distrust(me)
    world.advance(60)
    assert len(lines(caplog, 'ticks held')) == 2


# -- the wall clock jumps

@pytest.mark.parametrize('options', [
    {}, {'scope': 'group'}, {'objects': True}])
def test_after_the_clock_was_set_back_jobs_go_on_at_once(
        world, caplog, options):
    me = world.scheduler(job(**options), catalogues={'poll': ['me']})
    world.advance(7200, sweep=None)
    before = len(me.starts)

    world.clock.set_back(3600)
    world.advance(300)

    assert me.ticks()[before:] == [3660, 3720, 3780, 3840, 3900]
    assert len(lines(caplog, 'clock set back')) == 1
    fences = [s.fence for s in me.starts]
    if len({s.object for s in me.starts}) == 1:
        assert fences == sorted(set(fences))


def test_ticks_that_are_repeated_after_a_set_back_reach_the_present(world):
    me = world.scheduler(job(every=60.0))
    world.advance(600)

    world.clock.set_back(300)
    world.advance(900)

    assert me.ticks() == [*range(60, 601, 60), *range(360, 1201, 60)]
    fences = [s.fence for s in me.starts]
    assert fences == sorted(set(fences))


def test_a_clock_set_back_by_less_than_a_second_repeats_nothing(world):
    me = world.scheduler(job(every=1.0))
    world.advance(10.2)

    world.clock.set_back(0.7)
    world.advance(3)

    assert me.ticks() == [*range(1, 13)]


def test_objects_with_their_own_time_go_on_after_a_set_back(world):
    me = world.scheduler(
        job('own', every=3600.0, objects=True),
        job('spread', every=3600.0, objects=True, spread=True),
        catalogues={'own': [thing('a', spacing=10.0)],
                    'spread': ids(360)})
    world.advance(1800)
    before = len(me.starts)

    world.clock.set_back(600)
    world.advance(60)
    assert [s.tick for s in me.starts[before:] if s.job == 'own'] == [
        1210, 1220, 1230, 1240, 1250, 1260]
    world.advance(3600)

    first = collections.Counter(
        s.object for s in me.starts if s.job == 'spread' and s.tick == 0)
    assert first == dict.fromkeys(ids(360), 1)


def test_a_clock_set_forward_is_a_stall_for_the_misfire_policy(world):
    me = world.scheduler(job(objects=True), job('mine', misfire='all'),
                         catalogues={'poll': ['a']})
    world.advance(60)

    world.clock.set_back(-36_000)
    world.advance(0.1)

    assert me.ticks('poll') == [60, 36_060]
    assert me.count('missed', 'poll') == 599
    assert len(me.ticks('mine')) == 101


def test_a_retry_does_not_wait_for_a_clock_that_was_set_back(world):
    me = world.scheduler(job(retries=1, retry_backoff=10.0), finishes=False)
    world.advance(60)
    me.finish(failed=[0])

    world.clock.set_back(3600)
    world.advance(20)

    assert [(s.tick, s.attempt) for s in me.starts] == [(60, 1), (60, 2)]


# -- each claim has an outcome, and memory does not grow

@pytest.mark.full
def test_a_long_life_leaves_nothing_behind(world):
    """Objects come and go. The memory that is used depends only on the current
    objects.
    """
    me = world.scheduler(
        job('churn', every=1.0, objects=True),
        job('own', every=1.0, objects=True),
        job('spread', every=1.0, objects=True, spread=True),
        catalogues=dict.fromkeys(('churn', 'own', 'spread'), []))

    for turn in range(40):
        fresh = [f'{turn}-{n}' for n in range(1000)]
        me.reader.given['churn'] = fresh
        me.reader.given['spread'] = fresh[:50]
        me.reader.given['own'] = [thing(k, spacing=0.5) for k in fresh[:50]]
        world.advance(1)
        if turn == 5:
            first = kept(me.ticker, object)

    assert kept(me.store, str) <= 12_000
    # Each of the 40 turns has 1,100 new objects.
    assert kept(me.ticker, object) <= first + 10 < 3_000
    assert len(me.bus.open) == 0
    me.assert_accounted_for()


@pytest.mark.parametrize('seed', [
    *range(2), *(pytest.param(seed, marks=pytest.mark.full)
                 for seed in range(2, 12))])
def test_every_claim_is_in_one_place_or_came_to_one_end(world, seed):
    chance = random.Random(seed)
    me = world.scheduler(
        job('poll', every=1.0, objects=True, retries=2, retry_backoff=0.5),
        job('wait', every=0.7, objects=True, overlap='wait'),
        job('all', every=1.3, objects=True, misfire='all', overlap='wait'),
        job('once', every=2.0, objects=True, delivery='at_most_once'),
        job('spread', every=1.5, objects=True, spread=True),
        job('group', every=0.5, scope='group', max_in_flight=1),
        job('mine', every=0.4), finishes=False, batch_size=7, lease=6.0,
        workers=[worker('w1'), worker('w2')],
        catalogues={name: ids(20) for name in (
            'poll', 'wait', 'all', 'once', 'spread')})
    tenure = 1

    for _ in range(500):
        world.advance(chance.random() * 0.3)
        batches = list(me.bus.open.values())
        chance.shuffle(batches)
        what = chance.random()
        if what < 0.02:
            tenure += 1
            world.show(me, ['me'], tenure=tenure)
        elif what < 0.05:
            world.distrust(me)
        elif what < 0.08:
            world.trust(me)
        elif what < 0.11:
            # The batches of workers that left are reclaimed.
            there = chance.sample(['w1', 'w2', 'w3'], chance.randint(0, 3))
            me.dispatcher.workers_changed(
                'default', [worker(name) for name in there])
            for batch in batches:
                if batch.worker.partition('~')[0] not in there:
                    del me.bus.open[batch.id]
        elif what < 0.13:
            world.clock.set_back(chance.random() * 20)
        elif what < 0.15:
            world.stand_still(chance.random() * 5)
        for batch in [b for b in batches if b.id in me.bus.open][:6]:
            what = chance.random()
            if what < 0.1:
                me.unsend(batch)
            elif what < 0.2:
                me.refuse(batch)
            else:
                me.finish(batch, failed=[
                    i for i in range(len(batch.objects))
                    if chance.random() < 0.2])
        # No worker reports the batches that the sweep has reclaimed.
        for batch_id in list(me.bus.open):
            if me.dispatcher.authority_of(batch_id) is None:
                del me.bus.open[batch_id]
        me.assert_accounted_for()
        open_ = collections.Counter(
            (b.job, key) for b in me.bus.open.values() for key in b.objects)
        assert not open_ or max(open_.values()) == 1

    # Some claims never succeed, because a newer tick comes first.
    assert me.count('claimed') > 300
