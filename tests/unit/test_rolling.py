# SPDX-License-Identifier: Apache-2.0
"""Old and new members side by side, with different jobs."""

import collections

import pytest

from tests.unit import world as worlds

OBJECTS = [f'o-{n}' for n in range(60)]


@pytest.fixture
def world():
    return worlds.World()


def job(name, every=60.0, **options):
    return worlds.job(name, every=every, objects=True, **options)


class Group:
    """Members that share a store, or have no store."""

    def __init__(self, world, shared=True, **options):
        self.world = world
        self.options = options
        self.store = world.shared_store() if shared else None
        self.members = {}

    def start(self, name, *jobs):
        self.members[name] = one = self.world.scheduler(
            *jobs, name=name, sees=None, store=self.store,
            catalogues={one.name: OBJECTS for one in jobs}, **self.options)
        self.world.show_all(self.members)
        return one

    def stop(self, name):
        self.world.schedulers.remove(self.members.pop(name))
        self.world.show_all(self.members)

    def runs(self, name):
        """Return who ran each (object, tick) of a job."""
        found = collections.defaultdict(list)
        for one in self.world.schedulers:
            for run in one.starts:
                if run.job == name:
                    found[run.object, run.tick].append(one.name)
        return found


@pytest.mark.parametrize('shared', [True, False], ids=['store', 'ring only'])
def test_a_new_job_runs_only_on_the_members_with_that_job(world, shared):
    group = Group(world, shared)
    for name in 'ab':
        group.start(name, job('poll'))
    world.advance(30)
    group.start('c', job('poll'), job('sync'))
    world.advance(100)
    group.start('d', job('poll'), job('sync'))
    world.advance(120)

    for name in 'poll', 'sync':
        runs = group.runs(name)
        assert runs.keys() == {
            (key, tick) for key in OBJECTS for tick in (60, 120, 180, 240)}
        assert {len(who) for who in runs.values()} == {1}
    assert {who for (_, tick), [who] in group.runs('sync').items()
            if tick < 180} == {'c'}
    assert {who for (_, tick), [who] in group.runs('sync').items()
            if tick >= 180} == {'c', 'd'}
    # No run waited for a late scan.
    assert max(run.at - run.tick for one in world.schedulers
               for run in one.starts) < 0.1


@pytest.mark.parametrize('shared', [True, False], ids=['store', 'ring only'])
def test_a_removed_job_runs_until_its_last_member_leaves(world, shared):
    group = Group(world, shared)
    a = group.start('a', job('poll'), job('gone'))
    group.start('b', job('poll'))
    group.start('c', job('poll'))
    world.advance(130)

    assert group.runs('gone').keys() == {
        (key, tick) for key in OBJECTS for tick in (60, 120)}
    group.stop('a')
    world.advance(120)

    assert {(run.object, run.tick) for run in a.starts
            if run.job == 'gone'} == {
        (key, tick) for key in OBJECTS for tick in (60, 120)}
    assert group.runs('poll').keys() >= {
        (key, tick) for key in OBJECTS for tick in (180, 240)}


def test_a_member_that_joins_without_the_job_costs_its_members_nothing(world):
    group = Group(world)
    one = group.start('a', job('poll'), job('sync'))
    group.start('b', job('poll'))
    world.advance(70)
    asked = len([1 for asked in one.reader.asked if asked.job.name == 'sync'])

    group.start('c', job('poll'))
    world.advance(10)

    assert asked == len([
        1 for asked in one.reader.asked if asked.job.name == 'sync'])


def test_the_members_with_the_new_schedule_serve_all_objects_at_once(world):
    group = Group(world)
    for name in 'ab':
        group.start(name, job('poll', every=60.0))
    world.advance(70)
    new = group.start('c', job('poll', every=20.0))
    world.advance(100)

    assert {(run.object, run.tick) for run in new.starts} == {
        (key, tick) for key in OBJECTS for tick in (80, 100, 120, 140, 160)}
    assert max(run.at - run.tick for run in new.starts) < 0.1


def in_force(group):
    status = group.store.attend({'poll': 60.0}, {})['poll']
    return status.schedule, status.since


def test_a_restart_of_an_old_member_leaves_the_new_schedule_in_force(world):
    group = Group(world)
    for name in 'ab':
        group.start(name, job('poll', every=60.0))
    new = group.start('c', job('poll', every=20.0))
    world.advance(70)
    before = in_force(group)
    for _ in range(3):
        group.stop('b')
        world.advance(7)
        group.start('b', job('poll', every=60.0))
        world.advance(20)

    assert in_force(group) == before
    assert {(run.object, run.tick) for run in new.starts} >= {
        (key, tick) for key in OBJECTS for tick in range(20, 141, 20)}


def test_the_old_schedule_is_in_force_again_when_the_last_new_member_left(
        world):
    group = Group(world, silence_timeout=5.0)
    for name in 'ab':
        group.start(name, job('poll', every=60.0))
    world.advance(10)
    group.start('c', job('poll', every=20.0))
    world.advance(95)
    group.stop('c')
    world.advance(90)

    assert {(run.object, run.tick) for one in world.schedulers
            for run in one.starts if run.tick > 105} == {
        (key, tick) for key in OBJECTS for tick in (120, 180)}

    group.start('c', job('poll', every=20.0))
    world.advance(30)
    assert {(run.object, run.tick) for one in world.schedulers
            for run in one.starts if run.tick > 195} == {
        (key, tick) for key in OBJECTS for tick in (200, 220)}


def test_no_member_replaces_a_schedule_whose_member_it_may_not_see_yet(world):
    """The views of the old members do not contain the new member."""
    group = Group(world, silence_timeout=5.0)
    for name in 'ab':
        group.start(name, job('poll', every=60.0))
    world.advance(10)
    new = group.start('c', job('poll', every=20.0))
    for name in 'ab':
        world.show(group.members[name], 'ab')
    world.advance(1)
    before = in_force(group)
    world.advance(3)

    assert before[0] == new.jobs['poll'].schedule_text()
    assert in_force(group) == before
    world.distrust(group.members['a'])
    world.distrust(group.members['b'])
    world.advance(40)
    assert in_force(group) == before
    assert {run.tick for run in new.starts} == {20, 40}


def test_without_a_store_each_owner_follows_its_own_schedule(world):
    """Two members that follow different schedules never own the same object.
    """
    group = Group(world, shared=False)
    group.start('a', job('poll', every=60.0))
    world.advance(70)
    group.start('b', job('poll', every=20.0))
    world.advance(170)

    owner = group.members['a'].views['group'].ring.owner_of
    assert {(run.object, run.tick) for one in world.schedulers
            for run in one.starts if run.tick > 70} == {
        (key, tick) for key in OBJECTS for tick in (
            (120, 180, 240) if owner(key) == 'a' else range(80, 241, 20))}


def test_a_restart_with_another_job_moves_its_objects(world):
    group = Group(world)
    for name in 'ab':
        group.start(name, job('poll'), job('sync'))
    world.advance(119)

    # The new process has the same name and the same points.
    world.schedulers.remove(group.members['b'])
    world.advance(2)
    group.start('b', job('poll'))
    world.advance(1)

    assert {run.object for run in group.members['a'].starts
            if (run.job, run.tick) == ('sync', 120)} == {*OBJECTS}


def test_a_member_without_a_job_does_not_count_among_its_late_scanners(world):
    """The only other member with the job is cut off from the store."""
    group = Group(world)
    for name in 'abcdef':
        group.start(name, job('poll', every=20.0))
    able = group.start('g', job('poll', every=20.0), job('sync', every=20.0))
    other = group.start('h', job('poll', every=20.0), job('sync', every=20.0))
    world.advance(30)
    other.queue.away = True
    world.advance(60)

    late = [run.at - run.tick for run in able.starts
            if run.job == 'sync' and run.tick > 30]
    assert len(late) == 3 * len(OBJECTS)
    assert max(late) < 6
