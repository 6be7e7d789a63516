# SPDX-License-Identifier: Apache-2.0
"""A shared store also records decisions that make no claim. So the history has
one outcome for each tick of each object.
"""

import collections
import shutil
import time

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.host_clock import LEASE_NOW
from distperiodic.adapters.sql.host_clock import NOW
from distperiodic.adapters.sql.host_clock import TICK_OFFSET
from distperiodic.adapters.sql.host_clock import ClockState
from distperiodic.adapters.sql.host_clock import HostClock
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core import schedule
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import Authority
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.control import Verb
from distperiodic.core.job import Scope
from distperiodic.operator import admin
from distperiodic.operator.group_reader import GroupStore
from tests.logged import lines
from tests.unit.world import BEGIN
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import seconds_of
from tests.unit.world import thing


@pytest.fixture
def world():
    return World()


@pytest.fixture(scope='module')
def empty(tmp_path_factory):
    """A database file with the tables."""
    path = tmp_path_factory.mktemp('empty') / 'claims.sqlite'
    schema.sync(f'sqlite:///{path}')
    return path


@pytest.fixture
def store(world, empty, tmp_path, monkeypatch):
    """A store whose clock is that of the world."""
    def register(self, connection):
        for name, value in ((NOW, world.clock.now),
                            (LEASE_NOW, world.clock.now),
                            (TICK_OFFSET, lambda: 0)):
            connection.create_function(
                name, len(ClockState._fields), lambda *_, value=value: value())
    monkeypatch.setattr(HostClock, 'register', register)
    shutil.copy(empty, tmp_path / 'claims.sqlite')
    one = SqlClaimStore(f'sqlite:///{tmp_path}/claims.sqlite',
                        namespace='tests')
    monkeypatch.setattr(one, 'now', world.clock.now)
    yield one
    one.close()


@pytest.fixture
def group(store, tmp_path):
    one = GroupStore(f'sqlite:///{tmp_path}/claims.sqlite', 'tests')
    yield one
    one.close()


def instant_at(seconds):
    """Return the instant *seconds* after the world began."""
    return round((BEGIN + seconds) * schedule.SECOND)


_ENDS = {'due', *(state.value for state in ENDINGS)}
_BY = {f'by_{by.value}' for by in SkippedBy}


def history(store, names=_ENDS):
    """The outcomes of each tick; ticks are in seconds of the world."""
    found = collections.defaultdict(collections.Counter)
    for row in store.database.write(lambda connection: connection.execute(
            sa.select(tables.history)).mappings().all()):
        found[seconds_of(row['tick'])].update(
            {name: row[name] for name in names if row[name]})
    return {tick: dict(counts) for tick, counts in found.items()}


def reasons(store):
    return set(store.database.write(lambda connection: connection.execute(
        sa.select(tables.history.c.reason)).scalars().all())) - {None}


def test_a_busy_object_is_skipped_once_by_all_members_together(world, store):
    poll = job(every=10.0, objects=True)
    both = world.group('mn', poll, store=store, finishes=False,
                       catalogues={'poll': ['a', 'b', 'c', 'd']})
    # Ticks before the start are not due for objects that were never claimed.
    world.advance(11)
    assert history(store) == {10.0: {'due': 4}}

    world.advance(10)
    for one in both:
        one.finish()
    world.advance(8)

    assert history(store) == {10.0: {'due': 4, 'done': 4},
                              20.0: {'due': 4, 'skipped': 4}}
    assert reasons(store) == {'an earlier run is still in progress'}
    assert history(store, _BY)[20.0] == {'by_overlap': 4}
    world.advance(2)
    assert history(store)[30.0] == {'due': 4}


def test_an_object_that_waits_skips_ticks_that_a_newer_one_replaces(
        world, store):
    poll = job(every=10.0, objects=True,
               overlap=schedule.Overlap.WAIT)
    me = world.scheduler(poll, store=store, finishes=False,
                         catalogues={'poll': ['a']})
    world.advance(31)
    me.finish()
    world.advance(1)
    me.finish()

    assert history(store) == {10.0: {'due': 1, 'done': 1},
                              20.0: {'due': 1, 'skipped': 1},
                              30.0: {'due': 1, 'done': 1}}


def test_ticks_that_a_late_claim_passes_over_are_recorded(world, store):
    """An owner that is late may handle a tick after a later tick of the object
    was claimed.
    """
    poll = job(every=10.0, objects=True)
    both = world.group('mn', poll, store=store, catalogues={
        'poll': [f'o-{n}' for n in range(8)]})
    world.advance(25)

    world.stand_still(50)
    # This member continues later than the other.
    world.schedulers.remove(both[1])
    world.advance(26)
    world.schedulers.append(both[1])
    world.advance(14)

    ended = sum((collections.Counter(one) for one in history(
        store).values()), collections.Counter())
    assert ended == {'due': 8 * 11, 'done': 8 * 7, 'skipped': 8 * 4}
    assert 'misfire=latest runs the newest tick only' in reasons(store)


def test_an_object_that_waits_with_its_own_schedule_has_no_other_ticks(
        world, store):
    poll = job(every=2.0, objects=True,
               misfire=schedule.Misfire.ALL,
               overlap=schedule.Overlap.WAIT)
    me = world.scheduler(
        poll, store=store, finishes=False,
        catalogues={'poll': [thing('a', spacing=10.0)]})
    world.advance(35)
    for _ in range(4):
        me.finish()
        world.advance(1)

    assert me.ticks() == [10.0, 20.0, 30.0]


@pytest.mark.parametrize('options', [
    {'objects': True}, {'scope': Scope.GROUP}],
    ids=['objects', 'group'])
def test_ticks_that_the_misfire_policy_drops_are_recorded(
        world, store, options):
    poll = job(every=10.0, **options)
    world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(11)

    world.stand_still(45)
    world.advance(1)

    assert history(store) == {10.0: {'due': 1, 'done': 1},
                              40.0: {'due': 3, 'skipped': 3},
                              50.0: {'due': 1, 'done': 1}}
    assert reasons(store) == {'misfire=latest runs the newest tick only'}
    assert history(store, {*_BY, 'missed'})[40.0] == {
        'by_misfire': 3, 'missed': 2}


@pytest.mark.parametrize('options', [
    {'objects': True}, {'scope': Scope.GROUP},
    {'objects': True, 'spread': True},
    {'objects': True, 'misfire': schedule.Misfire.SKIP, 'grace': 2.0}],
    ids=['objects', 'group', 'spread', 'skip'])
def test_ticks_that_were_due_while_no_scheduler_ran_are_recorded(
        world, store, options):
    poll = job(every=10.0, **options)
    objects = [f'o-{n}' for n in range(8)]
    world.scheduler(poll, store=store, catalogues={'poll': objects})
    world.advance(21)

    world.schedulers.clear()
    world.stand_still(44)
    world.scheduler(poll, name='new', store=store,
                    catalogues={'poll': objects})
    world.advance(45)

    found = history(store, {*_ENDS, 'missed'})
    ended = sum((collections.Counter(one) for one in found.values()),
                collections.Counter())
    number = 1 if options.get('scope') else 8
    per_tick = {tick: one['due'] - one.get('missed', 0)
                for tick, one in found.items()}
    # Each object is due at each tick from the first claimed tick to the last.
    assert ended['due'] == number * (
        1 + round((max(per_tick) - min(per_tick)) / 10))
    assert ended['due'] == ended['done'] + ended['skipped']
    assert 2 * number < ended['skipped'] < 6 * number
    assert any(reason.startswith('misfire=') for reason in reasons(store))


@pytest.mark.parametrize('overlap', list(schedule.Overlap))
def test_ticks_of_an_object_whose_run_was_cut_off_are_recorded(
        world, store, overlap):
    poll = job(every=10.0, objects=True, overlap=overlap)
    world.scheduler(poll, store=store, finishes=False, lease=3600.0,
                    catalogues={'poll': ['a']})
    world.advance(21)
    world.schedulers.clear()
    world.stand_still(44)
    world.scheduler(poll, name='new', store=store, catalogues={'poll': ['a']})
    world.advance(10)

    found = history(store, {*_ENDS, 'missed'})
    ended = sum((collections.Counter(one) for one in found.values()),
                collections.Counter())
    # All ticks are skipped, except the running one and, with overlap='wait',
    # the waiting one.
    waits = overlap is schedule.Overlap.WAIT
    assert ended['due'] - ended['skipped'] == 1
    assert ended['due'] == (max(found) - min(found)) / 10 + 1
    assert max(found) == (60.0 if waits else 70.0)


@pytest.mark.parametrize('misfire', list(schedule.Misfire))
def test_an_object_that_waits_is_not_skipped_by_a_late_scan(
        world, store, misfire):
    poll = job(every=10.0, objects=True, misfire=misfire,
               overlap=schedule.Overlap.WAIT)
    me = world.scheduler(poll, store=store, finishes=False,
                         catalogues={'poll': ['a']})
    world.advance(28)
    me.finish()
    world.advance(1)
    me.finish()

    assert me.ticks() == [10.0, 20.0]
    assert history(store) == {10.0: {'due': 1, 'done': 1},
                              20.0: {'due': 1, 'done': 1}}


def test_ticks_that_others_ran_before_a_process_started_were_not_missed(
        world, store):
    poll = job(every=10.0, objects=True)
    world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']})
    world.advance(31)

    world.scheduler(poll, name='new', store=store,
                    catalogues={'poll': ['a', 'b']})
    world.advance(20)

    assert reasons(store) == set()


def test_missed_ticks_of_an_object_with_its_own_schedule_are_recorded(
        world, store):
    poll = job(every=3600.0, objects=True)
    world.scheduler(poll, store=store, catalogues={
        'poll': [thing('a', spacing=10)]})
    world.advance(11)

    world.stand_still(45)
    world.advance(1)

    assert history(store) == {10.0: {'due': 1, 'done': 1},
                              40.0: {'due': 3, 'skipped': 3},
                              50.0: {'due': 1, 'done': 1}}


@pytest.mark.parametrize('misfire', list(schedule.Misfire))
def test_an_object_of_its_own_schedule_has_no_ticks_of_its_job(
        world, store, misfire):
    poll = job(every=10.0, objects=True, misfire=misfire)
    me = world.scheduler(poll, store=store, catalogues={
        'poll': [thing('a', spacing=30), 'b']})
    world.advance(125)

    assert me.ticks(key='a') == [30.0, 60.0, 90.0, 120.0]
    assert me.ticks(key='b') == [10.0 * n for n in range(1, 13)]
    assert reasons(store) == set()


def test_ticks_that_others_ran_meanwhile_were_not_missed(world, store):
    poll = job(every=10.0, objects=True)
    slow, other = world.group('mn', poll, store=store, catalogues={
        'poll': [f'o-{n}' for n in range(20)]})
    world.advance(11)

    world.schedulers.remove(slow)
    world.advance(40)
    world.schedulers.append(slow)
    world.advance(1)

    assert set(other.ticks()) == {10.0, 20.0, 30.0, 40.0, 50.0}
    assert all(counts == {'due': 20, 'done': 20}
               for counts in history(store).values())


def test_a_busy_object_that_is_behind_loses_none_of_its_ticks(world, store):
    """A scheduler may die while it catches up with missed ticks. Its successor
    then finds the object still running.
    """
    poll = job(every=10.0, objects=True,
               misfire=schedule.Misfire.ALL)

    def start(name):
        world.schedulers.clear()
        return world.scheduler(poll, name=name, store=store, finishes=False,
                               catalogues={'poll': ['a']})
    first = start('first')
    world.advance(11)
    first.finish()
    world.schedulers.clear()
    world.clock.advance(30)
    second = start('second')
    world.advance(2)
    assert second.ticks() == [20.0]
    third = start('third')
    world.advance(9)

    [run] = second.bus.open.values()
    store.finish(HeldLease(
        second.flow.grants_of(Authority.STORE).lease_of(run), 'poll',
        run.tick), ['a'])
    for _ in range(24):
        world.advance(1)
        third.finish()

    assert third.ticks()[:4] == [30.0, 40.0, 50.0, 60.0]
    assert {tick: row.get('done') for tick, row in history(store).items()
            if tick < 70} == dict.fromkeys((10, 20, 30, 40, 50, 60), 1)


def test_ticks_that_pass_during_a_long_run_are_skipped_with_that_reason(
        world, store):
    poll = job(every=10.0, objects=True,
               overlap=schedule.Overlap.WAIT)
    me = world.scheduler(poll, store=store, finishes=False,
                         catalogues={'poll': ['a']})
    world.advance(51)
    me.finish()
    world.advance(1)
    me.finish()

    assert me.ticks() == [10.0, 50.0]
    assert reasons(store) == {'an earlier run is still in progress'}
    assert history(store) == {
        10.0: {'due': 1, 'done': 1}, 20.0: {'due': 1, 'skipped': 1},
        30.0: {'due': 1, 'skipped': 1}, 40.0: {'due': 1, 'skipped': 1},
        50.0: {'due': 1, 'done': 1}}


@pytest.mark.parametrize('starts', [False, True])
def test_a_claim_that_a_stop_gave_back_overlaps_no_tick(world, store, starts):
    """The next process finds that the ticks between were missed, before or
    after it starts the claim.
    """
    poll = job(every=10.0, objects=True)
    first = world.scheduler(poll, store=store, workers=[],
                            catalogues={'poll': ['a']})
    world.advance(11)
    assert history(store) == {10.0: {'due': 1}}
    first.flow.drain()
    world.schedulers.remove(first)
    world.clock.advance(35)
    if starts:
        tick = next(iter(history(store))) * schedule.SECOND
        [lease] = store.take_over_expired(
            TakeOverRequest(['poll'], [], 9), NewLease('again', 'next', 60))
        [claim] = lease.claims
        assert store.start(lease.held, ['a'], NewLease('run', 'w', 60))
        assert tick < store.now()
        assert store.finish(
            HeldLease('run', 'poll', claim.tick), ['a']) == {'a'}

    world.scheduler(poll, store=store, name='next', sees=['next'],
                    catalogues={'poll': ['a']})
    world.advance(2)

    assert reasons(store) == {'misfire=latest runs the newest tick only'}
    assert history(store, _BY | {'superseded', 'done'}) == {
        10.0: {'done': 1} if starts else {'superseded': 1},
        30.0: {'by_misfire': 2}, 40.0: {'done': 1}}


def test_an_object_that_is_years_behind_costs_no_time(world, store):
    poll = job(every=1.0, objects=True, misfire=schedule.Misfire.ALL)
    world.clock.set_back(2 * 365 * 86_400)
    me = world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(1.5)
    [first] = me.ticks()
    world.schedulers.clear()
    world.clock.set_back(-2 * 365 * 86_400)
    new = world.scheduler(poll, name='new', store=store,
                          catalogues={'poll': ['a']})

    began = time.process_time()
    world.advance(30)

    assert len(new.starts) >= 100
    assert first < new.ticks()[0] < 0
    assert time.process_time() - began < 20
    counts = history(store)
    assert sum(one['due'] for one in counts.values()) == (
        new.ticks()[-1] - first + 1)


def test_a_waiting_tick_is_claimed_by_the_member_that_sees_the_run_end(
        world, store):
    poll = job(every=20.0, objects=True,
               overlap=schedule.Overlap.WAIT)
    one, other = world.group('mn', poll, store=store, finishes=False,
                             catalogues={'poll': ['a']})
    world.advance(41)
    owner = one if one.starts else other
    stands = other if owner is one else one
    assert owner.ticks() == [20.0]

    # The run ends while the owner is stopped, so the owner does not start the
    # next run.
    world.schedulers.remove(owner)
    world.advance(7)
    [run, *_] = owner.bus.batches
    store.finish(HeldLease(
        owner.flow.grants_of(Authority.STORE).lease_of(run), 'poll',
        run.tick), ['a'])
    # It may still claim the next tick for some seconds after the end.
    world.advance(11)
    stands.finish()
    world.advance(8)
    stands.finish()

    assert stands.ticks() == [40.0, 60.0]
    assert history(store) == {20.0: {'due': 1, 'done': 1},
                              40.0: {'due': 1, 'done': 1},
                              60.0: {'due': 1, 'done': 1}}


def test_ticks_of_a_paused_job_are_skipped_by_all_until_it_is_resumed(
        world, store, group, caplog):
    caplog.set_level('INFO')
    jobs = [job(name, every=10.0, objects=True,
                misfire=schedule.Misfire.ALL)
            for name in ('poll', 'sync')]
    both = world.group('mn', *jobs, store=store, catalogues={
        'poll': ['a', 'b', 'c'], 'sync': ['a']})
    world.advance(12)

    admin.pause(group, 'poll', by='me@here', why='disks are full')
    world.advance(26)
    admin.resume(group, 'poll')
    world.advance(7)

    assert {s.tick for s in world.starts() if s.job == 'poll'} == {10.0, 40.0}
    assert {s.tick for s in world.starts() if s.job == 'sync'} == {
        10.0, 20.0, 30.0, 40.0}
    skipped = {'due': 4, 'done': 1, 'skipped': 3}
    assert history(store) == {
        10.0: {'due': 4, 'done': 4}, 20.0: skipped, 30.0: skipped,
        40.0: {'due': 4, 'done': 4}}
    assert reasons(store) == {'paused: disks are full'}
    assert history(store, _BY)[30.0] == {'by_pause': 3}
    assert lines(caplog, 'job paused') == len(both) * [
        {'job': 'poll', 'reason': 'disks are full', 'until': 'resumed'}]


def ran(world, key):
    """Return the ticks for which an object has run."""
    return sorted({s.tick for s in world.starts() if s.object == key})


def test_ticks_of_a_paused_object_are_skipped_and_those_of_others_run(
        world, store, group, caplog):
    caplog.set_level('INFO')
    poll = job(every=10.0, objects=True, misfire=schedule.Misfire.ALL)
    both = world.group('mn', poll, store=store, catalogues={
        'poll': ['a', 'b', 'c', 'd']})
    world.advance(12)

    admin.pause_objects(group, 'poll', ['b', 'c'], by='me@here',
                        why='in repair')
    admin.pause_objects(group, 'poll', ['c'], by='me@here', why='moved')
    world.advance(26)
    assert admin.resume_objects(group, 'poll', ['b', 'd']) == ['b']
    world.advance(10)
    assert admin.resume_objects(group, 'poll') == ['c']
    world.advance(10)

    assert ran(world, 'a') == ran(world, 'd') == [
        10.0, 20.0, 30.0, 40.0, 50.0]
    assert ran(world, 'b') == [10.0, 40.0, 50.0]
    assert ran(world, 'c') == [10.0, 50.0]
    assert {tick: by['by_pause'] for tick, by in history(
        store, _BY).items() if by} == {20.0: 2, 30.0: 2, 40.0: 1}
    assert reasons(store) == {'paused: in repair', 'paused: moved'}
    assert len(lines(caplog, 'objects paused')) == 3 * len(both)


@pytest.mark.parametrize('objects', [None, ['a']])
def test_a_pause_ends_by_itself_at_its_instant(world, store, group, objects):
    poll = job(every=10.0, objects=True, misfire=schedule.Misfire.ALL)
    world.group('mn', poll, store=store, catalogues={'poll': ['a']},
                sweep_interval=9.0)
    world.advance(12)

    options = {'by': 'me@here', 'why': 'new disks',
               'until': instant_at(30)}
    if objects is None:
        admin.pause(group, 'poll', **options)
    else:
        admin.pause_objects(group, 'poll', objects, **options)
    world.advance(26)

    # A tick at the end of the pause runs, even if no sweep has seen the end.
    assert ran(world, 'a') == [10.0, 30.0]
    assert history(store, _BY)[20.0] == {'by_pause': 1}
    [stored] = group.jobs()
    assert (stored.paused_since, stored.paused_objects) == (None, 0)
    assert not admin.resume(group, 'poll')
    assert admin.resume_objects(group, 'poll') == []


def test_the_phase_of_an_object_decides_when_its_pause_ends(
        world, store, group):
    keys = [f'object-{n}' for n in range(20)]
    poll = job(every=10.0, objects=True, spread=True,
               misfire=schedule.Misfire.ALL)
    # No sweep sees the end of the pause before the next tick.
    world.scheduler(poll, store=store, catalogues={'poll': keys},
                    sweep_interval=14.0)
    world.advance(25)

    admin.pause(group, 'poll', by='me@here', why='x',
                until=instant_at(35))
    world.advance(30)

    late = {key for key in keys if 30.0 in ran(world, key)}
    phases = {s.object: s.at - s.tick for s in world.starts()
              if s.tick == 40.0}
    assert 0 < len(late) < len(keys)
    assert min(phases[key] for key in late) >= 5.0 - 1.0
    assert max(phases[key] for key in set(keys) - late) <= 5.0 + 1.0


def test_a_pause_of_a_job_outlives_that_of_its_objects(world, store, group):
    poll = job(every=10.0, objects=True)
    world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']})
    world.advance(12)
    admin.pause(group, 'poll', by='me@here', why='x',
                until=instant_at(30))
    admin.pause_objects(group, 'poll', ['a'], by='me@here', why='y')

    world.advance(26)

    assert ran(world, 'a') == [10.0]
    assert ran(world, 'b') == [10.0, 30.0]


def test_a_process_that_begins_reads_the_paused_objects_first(
        world, store, group):
    poll = job(every=10.0, objects=True)
    world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']})
    world.advance(11)
    world.schedulers.clear()
    admin.pause_objects(group, 'poll', ['a'], by='me@here', why='later')
    new = world.scheduler(poll, name='new', store=store,
                          catalogues={'poll': ['a', 'b']})

    world.advance(10)

    assert {s.object for s in new.starts} == {'b'}


def test_a_scheduler_answers_a_pause_of_objects_once_it_applies(
        world, store, group):
    poll = job(every=10.0, objects=True)
    me = world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']},
                         sweep_interval=30.0)
    world.advance(10.5)
    answers = []

    def confirm(verb, **arguments):
        me.flow.confirm_job(verb, 'poll', arguments, answers.append)
        return answers[-1]
    admin.pause_objects(group, 'poll', ['a'], by='me@here', why='x')

    assert confirm(Verb.PAUSE, objects=['a']) == (True, 'paused; 0 in flight')
    assert not confirm(Verb.PAUSE, objects=['a', 'b']).done
    assert not confirm(Verb.RESUME, objects=['a']).done
    assert confirm(Verb.RESUME, objects=['b']) == (True, 'resumed')
    assert not confirm(Verb.PAUSE).done
    admin.pause_objects(group, 'poll', ['a'], by='me@here', why='x',
                        until=instant_at(10))
    assert confirm(Verb.PAUSE, objects=['a'], until=instant_at(10)) == (
        True, 'the pause has ended already')


def test_a_claimed_object_still_runs_after_its_pause(world, store, group):
    poll = job(every=10.0, objects=True)
    me = world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(10.5)
    admin.pause_objects(group, 'poll', ['a'], by='me@here', why='later')
    world.advance(5)

    me.finish()

    assert history(store) == {10.0: {'due': 1, 'done': 1}}


def test_a_job_without_paused_objects_costs_no_statement(
        world, store, group):
    read = []
    sa.event.listen(sa.Engine, 'before_cursor_execute', _keep := (
        lambda *arguments: read.append(arguments[2])))
    try:
        poll = job(every=10.0, objects=True)
        world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']})
        world.advance(35)
        assert read
        assert not [one for one in read if 'paused_object' in one
                    and 'distperiodic_job' not in one]
        admin.pause_objects(group, 'poll', ['a'], by='me@here', why='x')
        read.clear()
        world.advance(10)
        assert [one for one in read
                if 'FROM distperiodic_paused_object' in one]
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', _keep)


def test_ticks_missed_before_a_pause_are_recorded_with_the_pause(
        world, store, group):
    """No scheduler ran at a tick, and then the job was paused."""
    poll = job(every=10.0, objects=True)
    first = world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(12)
    world.schedulers.remove(first)
    # Time passes only while a scheduler runs, so run a scheduler of another
    # job.
    world.scheduler(job('tidy', every=60.0), name='o', store=store)
    world.advance(22)
    admin.pause(group, 'poll', by='me@here', why='disks are full')
    world.scheduler(poll, name='n', store=store, catalogues={'poll': ['a']})
    world.advance(18)

    ended = sum((collections.Counter(one) for one in history(
        store, _ENDS | {'missed'}).values()), collections.Counter())
    assert ended == {'due': 5, 'done': 1, 'skipped': 4}


def test_a_process_that_begins_reads_the_pauses_first(world, store, group):
    poll = job(every=10.0, objects=True)
    world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(11)
    world.schedulers.clear()
    admin.pause(group, 'poll', by='me@here', why='later')
    new = world.scheduler(poll, name='new', store=store,
                          catalogues={'poll': ['a']})

    world.advance(10)

    assert new.starts == []


def test_a_triggered_object_runs_at_the_next_sweep(world, store, group):
    poll = job(every=60.0, objects=True)
    me = world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']})
    world.advance(61)
    assert me.ticks() == [60.0, 60.0]

    assert admin.trigger(group, 'poll', key='b').objects == 1
    world.advance(1)

    assert [s.object for s in me.starts[2:]] == ['b']


@pytest.mark.parametrize(('misfire', 'ran', 'told'), [
    # A newer tick supersedes the claim before a sweep takes it over.
    ('latest', [50.0], {40.0: {'due': 3, 'skipped': 3},
                        45.0: {'due': 1, 'superseded': 1}}),
    ('all', [45.0, 20.0, 30.0, 40.0, 50.0], dict.fromkeys(
        [20.0, 30.0, 40.0, 45.0], {'due': 1, 'done': 1}))])
def test_ticks_missed_before_a_trigger_are_decided_as_without_the_trigger(
        world, store, group, misfire, ran, told):
    poll = job(every=10.0, objects=True, overlap=schedule.Overlap.WAIT,
               misfire=schedule.Misfire(misfire))
    world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(11)
    world.schedulers.clear()
    world.clock.advance(34)

    assert admin.trigger(group, 'poll', key=None)[1:4] == (1, 0, 0)
    world.clock.advance(5.5)
    again = world.scheduler(poll, name='new', store=store,
                            catalogues={'poll': ['a']})
    world.advance(8)

    assert again.ticks() == ran
    assert history(store) == {
        10.0: {'due': 1, 'done': 1}, **told,
        50.0: {'due': 1, 'done': 1}}
