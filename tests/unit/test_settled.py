# SPDX-License-Identifier: Apache-2.0
"""What is decided without a claim is taken down in a store that is shared:
in history, each tick of each object comes to one end.
"""

import collections

import pytest
import sqlalchemy as sa

from distperiodic.adapters import control as control_
from distperiodic.adapters import schema
from distperiodic.adapters import sql_moves
from distperiodic.adapters import tables
from distperiodic.core import schedule
from tests.unit import world as world_


@pytest.fixture
def world():
    return world_.World()


@pytest.fixture
def store(tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    one = control_.Control(url, space='tests')
    yield one
    one.close()


def history(store):
    """By tick, in seconds of the world."""
    found = collections.defaultdict(collections.Counter)
    for row in store._database.run(lambda connection: connection.execute(
            sa.select(tables.history)).mappings().all()):
        found[world_.seconds_of(row['tick'])].update(
            {name: row[name] for name in sql_moves.COUNTED if row[name]})
    return {tick: dict(counts) for tick, counts in found.items()}


def reasons(store):
    return set(store._database.run(lambda connection: connection.execute(
        sa.select(tables.history.c.reason)).scalars().all())) - {None}


def test_an_object_that_is_busy_is_skipped_once_whoever_looks_at_it(
        world, store):
    poll = world_.job(every=10.0, objects=True)
    both = [world.scheduler(
        poll, name=name, sees=None, store=store, finishes=False,
        catalogues={'poll': ['a', 'b', 'c', 'd']}) for name in ('m', 'n')]
    world.show_all(['m', 'n'])
    # Nothing before the start is due, for objects that nobody ever claimed.
    world.advance(11)
    assert history(store) == {10.0: {'due': 4}}

    world.advance(10)
    for one in both:
        one.finish()
    world.advance(8)

    assert history(store) == {10.0: {'due': 4, 'done': 4},
                              20.0: {'due': 4, 'skipped': 4}}
    assert reasons(store) == {'an earlier run goes on'}
    world.advance(2)
    assert history(store)[30.0] == {'due': 4}


def test_an_object_that_waits_skips_what_a_newer_tick_replaces(world, store):
    poll = world_.job(every=10.0, objects=True,
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


@pytest.mark.parametrize('options', [
    {'objects': True}, {'scope': world_.job_.Scope.GROUP}],
    ids=['objects', 'group'])
def test_ticks_that_the_misfire_policy_drops_are_taken_down(
        world, store, options):
    poll = world_.job(every=10.0, **options)
    world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(11)

    world.stand_still(45)
    world.advance(1)

    assert history(store) == {10.0: {'due': 1, 'done': 1},
                              40.0: {'due': 3, 'skipped': 3},
                              50.0: {'due': 1, 'done': 1}}
    assert reasons(store) == {'misfire=latest runs the newest tick only'}


def test_what_an_object_of_its_own_schedule_missed_is_taken_down(
        world, store):
    poll = world_.job(every=3600.0, objects=True)
    world.scheduler(poll, store=store, catalogues={
        'poll': [world_.thing('a', spacing=10)]})
    world.advance(11)

    world.stand_still(45)
    world.advance(1)

    assert history(store) == {10.0: {'due': 1, 'done': 1},
                              40.0: {'due': 3, 'skipped': 3},
                              50.0: {'due': 1, 'done': 1}}


def test_what_others_ran_meanwhile_was_not_missed(world, store):
    poll = world_.job(every=10.0, objects=True)
    slow, other = (world.scheduler(
        poll, name=name, sees=None, store=store,
        catalogues={'poll': [f'o-{n}' for n in range(20)]})
        for name in ('m', 'n'))
    world.show_all(['m', 'n'])
    world.advance(11)

    world.schedulers.remove(slow)
    world.advance(40)
    world.schedulers.append(slow)
    world.advance(1)

    assert set(other.ticks()) == {10.0, 20.0, 30.0, 40.0, 50.0}
    assert all(counts == {'due': 20, 'done': 20}
               for counts in history(store).values())


def test_ticks_of_a_paused_job_are_skipped_by_all_until_it_is_resumed(
        world, store, caplog):
    caplog.set_level('INFO')
    jobs = [world_.job(name, every=10.0, objects=True,
                       misfire=schedule.Misfire.ALL)
            for name in ('poll', 'sync')]
    both = [world.scheduler(*jobs, name=name, sees=None, store=store,
                            catalogues={'poll': ['a', 'b', 'c'],
                                        'sync': ['a']})
            for name in ('m', 'n')]
    world.show_all(['m', 'n'])
    world.advance(12)

    store.pause('poll', by='me@here', why='disks are full')
    world.advance(26)
    store.resume('poll')
    world.advance(7)

    assert {s.tick for s in world.starts() if s.job == 'poll'} == {10.0, 40.0}
    assert {s.tick for s in world.starts() if s.job == 'sync'} == {
        10.0, 20.0, 30.0, 40.0}
    skipped = {'due': 4, 'done': 1, 'skipped': 3}
    assert history(store) == {
        10.0: {'due': 4, 'done': 4}, 20.0: skipped, 30.0: skipped,
        40.0: {'due': 4, 'done': 4}}
    assert reasons(store) == {'paused: disks are full'}
    assert [r.getMessage().partition(';')[0] for r in caplog.records
            if 'job=poll' in r.getMessage()].count(
        'job paused: job=poll reason=disks are full') == len(both)


def test_a_process_that_begins_knows_first_what_is_paused(world, store):
    poll = world_.job(every=10.0, objects=True)
    world.scheduler(poll, store=store, catalogues={'poll': ['a']})
    world.advance(11)
    world.schedulers.clear()
    store.pause('poll', by='me@here', why='later')
    new = world.scheduler(poll, name='new', store=store,
                          catalogues={'poll': ['a']})

    world.advance(10)

    assert new.starts == []


def test_what_was_triggered_runs_at_the_next_sweep(world, store):
    poll = world_.job(every=3600.0, objects=True)
    me = world.scheduler(poll, store=store, catalogues={'poll': ['a', 'b']})
    world.advance(3601)
    assert me.ticks() == [3600.0, 3600.0]

    assert store.trigger('poll', key='b').objects == 1
    world.advance(1)

    assert [s.object for s in me.starts[2:]] == ['b']
