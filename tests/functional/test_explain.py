# SPDX-License-Identifier: Apache-2.0
"""``distperiodic ring explain`` shows each reason why an object did not run,
from a real store.
"""

import datetime
import json
import re

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import tables
from distperiodic.core import reason
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.ports import Listed
from distperiodic.ports import RunTimes
from tests import claiming
from tests.functional.places import SECOND

TASKS = """
    def hosts(self, context):
        return ['a', 'new']

    @periodic_task(spacing=3600, objects='hosts', name='poll')
    def poll(self, context, host):
        pass

    @periodic_task(spacing=3600, objects='hosts', name='off', enabled=False)
    def off(self, context, host):
        pass

    @periodic_task(spacing=3600, objects='hosts', name='fresh')
    def fresh(self, context, host):
        pass

    @periodic_task(spacing=3600, scope='group', name='whole')
    def whole(self, context):
        pass

    @periodic_task(spacing=3600, name='own')
    def own(self, context):
        pass
"""


class Scene:
    """An object 'a' of the job 'poll', whose last tick is *due*."""

    def __init__(self, place):
        self.place = place
        self.store = place.store
        # Choose a period that does not end during the test.
        now = self.store.now()
        period = next(
            seconds for seconds in range(3600, 7200, 60)
            if seconds * SECOND - now % (seconds * SECOND) > 900 * SECOND)
        self.tasks = TASKS.replace('3600', str(period))
        place.write_tasks(self.tasks)
        self.due = now - now % (period * SECOND)
        self.before = self.due - period * SECOND

    def claim(self, tick, holder='api-1', seconds=600.0):
        assert claiming.claim(self.store, 'poll', tick, ['a'], lease='claimed',
                              holder=holder, seconds=seconds,
                              supersede=True).won

    def start(self, tick, holder='w-1', seconds=600.0):
        self.claim(tick)
        assert self.store.start(
            HeldLease('claimed', 'poll', tick), ['a'],
            NewLease('running', holder, seconds))

    def fail(self, tick, into=None):
        self.start(tick)
        assert self.store.fail(
            HeldLease('running', 'poll', tick), [Failure('a', 'it is ill')],
            into)

    def skip(self, by, reason='so it is', tick=None):
        assert self.store.skip(SkipRequest(
            'poll', tick or self.due, ['a'], holder='api-1', by=by,
            reason=reason))

    def ran(self, tick):
        self.place.run('poll', tick, 'a')

    def explain(self, job='poll', *argv, tasks=True):
        argv = argv or (['a'] if job != 'whole' else [])
        _, told = self.place.tell(
            'ring', 'explain', job, *argv,
            *(['--tasks', 'tasks:Tasks'] if tasks else []))
        return told


@pytest.fixture
def scene(place_of_sqlite):
    return Scene(place_of_sqlite)


@pytest.fixture
def scene_anywhere(place):
    return Scene(place)


def test_an_object_is_due_next_by_its_own_schedule(scene):
    now = scene.store.now()
    scene.store.adopt({'poll': 'every 3600000000000'})
    scene.store.sync('poll', [Listed(
        'a', Attributes('every 60000000'), now - 1)], [], readings=[now])

    following = scene.explain(tasks=False)['next_tick']

    assert now / SECOND < datetime.datetime.fromisoformat(
        following).timestamp() < now / SECOND + 300


def test_it_ran(scene_anywhere):
    scene = scene_anywhere
    scene.ran(scene.before)
    scene.ran(scene.due)

    told = scene.explain()

    assert told['reason'] == 'ran'
    assert told['state'] == 'done'
    assert told['attempt'] == 1
    assert told['worker'] == 'w-1'
    assert told['last_tick'] > told['tick_before']
    assert told['last_served'] > told['last_tick']
    assert told['next_tick'] > told['last_tick']
    # There is only one process.
    assert 'backend_url' in told['owner']
    assert told['last_served'] in told['answer']


@pytest.mark.parametrize(('by', 'why'), [
    (SkippedBy.MISFIRE, 'passed over'),
    (SkippedBy.LOST, 'lost'),
    (SkippedBy.PAUSE, 'skipped: paused'),
    (SkippedBy.OVERLAP, 'skipped: overlap')])
def test_it_was_skipped(scene_anywhere, by, why):
    scene = scene_anywhere
    if by is SkippedBy.OVERLAP:
        scene.start(scene.before)
    else:
        scene.ran(scene.before)
    scene.skip(by, 'the disks are full')

    told = scene.explain()

    assert told['reason'] == why
    if by is SkippedBy.OVERLAP:
        assert re.search(r'\bw-1\b', told['answer'])
    else:
        assert 'the disks are full' in told['answer']


def test_it_is_dead(scene_anywhere):
    scene = scene_anywhere
    scene.fail(scene.due)

    told = scene.explain()

    assert told['reason'] == 'dead'
    assert re.search(r'\battempt 1\b.* it is ill; .*distperiodic dead requeue',
                     told['answer'])
    assert re.search(r'\battempt 1\b.* w-1\b.* it is ill', told['failed'])
    scene.place.ask('dead', 'requeue', '--object', 'a')
    assert scene.explain()['reason'] == 'waits for a sweep'


def test_an_object_that_fails_at_each_tick_is_not_well(scene):
    """The next tick is claimed, so the object is not dead any more."""
    for back in (3, 2, 1):
        scene.fail(scene.due - back * (scene.due - scene.before))
    scene.start(scene.due)

    code, told = scene.place.tell('why', 'poll', 'a', '--tasks', 'tasks:Tasks')

    assert (code, told['reason']) == (1, 'still running')
    found = {one['code']: one for one in told['findings']}
    assert found['object-failing']['about'] == 'object poll/a'
    assert 'it is ill' in found['object-failing']['finding']
    _, [row] = scene.place.tell('job', 'list')
    assert row['health'] == 'object-failing'


def test_it_was_put_off(scene):
    scene.claim(scene.due)
    told = scene.explain()
    assert told['reason'] == 'waits for a worker'
    assert re.search(r' since 20\d\d-', told['answer'])
    scene.store.discard(
        HeldLease('claimed', 'poll', scene.due), ['a'], State.CANCELLED)
    assert scene.explain()['reason'] == 'cancelled'


def test_it_runs(scene_anywhere):
    scene = scene_anywhere
    scene.start(scene.due)

    told = scene.explain()

    assert told['reason'] == 'still running'
    assert re.match(r'w-1 .*\b20\d\d-', told['lease'])


def test_it_waits_for_a_retry(scene):
    scene.fail(scene.due, NewLease('again', '', 600.0))

    told = scene.explain()

    assert told['reason'] == 'waits for a retry'
    assert re.search(r'\battempt 2\b.* 20\d\d-', told['answer'])


def test_a_lease_has_ended(scene):
    scene.start(scene.due, seconds=0.0)

    assert scene.explain()['reason'] == 'lease ended'


def test_an_unknown_job_or_object_is_explained(scene):
    told = scene.explain(tasks=False)
    assert told['reason'] == 'job unknown'
    assert re.search("'poll'.*; .*distperiodic job list", told['answer'])
    assert '--tasks' not in told['answer'].partition(';')[0]
    told = scene.explain('nothing')
    assert told['reason'] == 'job unknown'
    assert re.search("'nothing'.*; .*distperiodic job list", told['answer'])
    assert '--tasks' in told['answer'].partition(';')[0]
    assert scene.explain('own')['reason'] == 'job of every member'
    assert scene.explain('fresh')['reason'] == 'job never scheduled'
    scene.ran(scene.due)
    assert scene.explain('poll', 'other')['reason'] == 'not in the catalogue'
    assert scene.explain('poll', 'new')['reason'] == 'not due yet'
    assert scene.explain('poll', 'b', tasks=False)['reason'] == (
        'object unknown')
    assert scene.explain('off')['reason'] == 'job disabled'


def test_an_object_is_named_where_the_job_has_objects_and_nowhere_else(
        scene):
    def refused(*argv):
        return scene.place.refuse(
            'ring', 'explain', *argv, '--tasks', 'tasks:Tasks')

    assert 'distperiodic ring explain poll OBJECT' in refused('poll')
    assert re.search("'whole' .*'a' .*; .*distperiodic ring explain whole$",
                     refused('whole', 'a'))
    # Parentheses show that this is not the id of an object.
    assert re.fullmatch(r'\(.+\)', scene.explain('whole')['object'])


def test_a_last_tick_that_is_not_claimed_is_explained(scene):
    scene.ran(scene.before)

    assert scene.explain()['reason'] == 'nobody claims'
    scene.place.run('poll', scene.due, 'b')
    assert scene.explain()['reason'] == 'left behind'
    scene.place.ask('job', 'pause', 'poll', '--object', 'a', '--until', '2h',
                    '--why', 'in repair')
    told = scene.explain()
    assert told['reason'] == 'object paused'
    assert re.search('until .*Z at .* in repair; .*distperiodic job resume '
                     'poll --object a', told['answer'])
    scene.place.ask('job', 'pause', 'poll', '--why', 'not today')
    told = scene.explain()
    assert told['reason'] == 'job paused'
    assert re.search('not today; .*distperiodic job resume poll',
                     told['answer'])
    scene.place.ask('job', 'resume', 'poll')
    scene.place.ask('job', 'pause', 'poll', '--object', 'a', '--why', 'repair')
    assert scene.explain()['reason'] == 'object paused'


def test_its_tick_is_not_late_yet(scene):
    scene.place.config.write_text(
        scene.place.config.read_text() + 'late_claim_after = 7200\n'
        'session_timeout = 7200\nlease = 7200\n')
    scene.ran(scene.before)

    assert scene.explain()['reason'] == 'not late yet'


def test_a_missing_holder_and_a_missing_scheduler_are_explained(
        scene, tmp_path):
    scene.place.config.write_text(
        scene.place.config.read_text()
        + f'backend_url = file://{tmp_path}/members\n')
    scene.claim(scene.due)

    told = scene.explain()

    assert told['reason'] == 'holder gone'
    assert 'owner' not in told
    scene.store.discard(
        HeldLease('claimed', 'poll', scene.due), ['a'], State.CANCELLED)
    engine = database.make_engine(scene.place.url)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.claim).values(
            tick=scene.before, settled=scene.before))
    engine.dispose()
    assert scene.explain()['reason'] == 'no scheduler'


def test_the_store_answers_while_the_members_are_unknown(scene):
    scene.place.config.write_text(
        scene.place.config.read_text()
        + 'backend_url = zookeeper://127.0.0.1:1\n')
    scene.ran(scene.due)

    told = scene.explain()

    assert told['reason'] == 'ran'
    assert 'zookeeper://127.0.0.1:1 ' in told['owner']


def test_a_catalogue_that_cannot_be_read_is_named(scene):
    scene.ran(scene.due)
    scene.place.write_tasks(scene.tasks.replace("return ['a', 'new']",
                                          'raise OSError("no disk")'))

    told = scene.explain()

    assert told['reason'] == 'ran'
    assert re.search(r'\bhosts\b.* OSError: no disk', told['answer'])


def test_objects_are_listed_by_when_they_were_served(scene_anywhere):
    place = scene_anywhere.place
    place.run('poll', scene_anywhere.before, 'a', 'b', 'c', dead=['b'])
    place.run('poll', scene_anywhere.due, 'c')

    rows = json.loads(place.ask('objects', '--job', 'poll', '-f', 'json'))

    assert [row['object'] for row in rows] == ['b', 'a', 'c']
    assert rows[0]['last_served'] is None
    assert rows[0]['state'] == 'dead'
    assert rows[1]['last_served'] < rows[2]['last_served']
    assert json.loads(place.ask(
        'objects', '--job', 'poll', '--older-than', '10m', '-f', 'json',
        '-c', 'Object')) == [{'object': 'b'}]
    assert re.search("'pol' .*; .*'poll'",
                     place.refuse('objects', '--job', 'pol'))


def test_this_file_brings_about_every_reason():
    with open(__file__) as source:
        text = source.read()
    assert [one for one in reason.Reason
            if f"'{one.value}'" not in text] == [], (
        'add a test to this file in which why gives each of these reasons')


def why(scene, *argv):
    return scene.place.tell('why', 'poll', *argv)


def test_why_explains_the_outcome_of_any_tick(scene_anywhere):
    scene = scene_anywhere
    place = scene.place
    period = scene.due - scene.before
    place.store.adopt({'poll': f'every {period}'})

    def tick(number):
        return scene.due - number * period

    def at(number):
        # Round the age down, so that the instant is not before the tick.
        return ['a', '--at', f'{(place.now - tick(number)) // SECOND}s']
    place.run('poll', tick(9), 'a', 'b')
    place.run('poll', tick(8), 'a', 'b', dead=['a'])
    place.run('poll', tick(7), 'a', 'b')
    place.store.skip(SkipRequest(
        'poll', tick(6), ['a', 'b'], holder='api-1', by=SkippedBy.PAUSE,
        reason='paused: the disks are full'))
    # No scheduler claimed tick 5.
    place.run('poll', tick(4), 'a')
    place.store.skip(SkipRequest(
        'poll', tick(4), ['b'], holder='api-1', by=SkippedBy.OVERLAP,
        reason='its run goes on'))
    place.run('poll', tick(3), 'a', 'b')
    place.run('poll', tick(2), 'a', 'b')
    place.run('poll', tick(0), 'a', 'b')

    told = {number: why(scene, *at(number)) for number in range(10)}

    assert {number: (code, row['reason'])
            for number, (code, row) in told.items()} == {
        9: (0, 'ran'), 8: (1, 'dead'), 7: (0, 'ran'),
        6: (1, 'skipped: paused'), 5: (1, 'nobody claims'),
        4: (0, 'ran'), 3: (0, 'ran'), 2: (0, 'ran'),
        1: (1, 'nobody claims'), 0: (0, 'ran')}
    assert re.search(r'\battempt 1\b.* w-1\b.* a is ill',
                     told[8][1]['answer'])
    assert 'the disks are full' in told[6][1]['answer']
    other = ['b', *at(4)[1:]]
    assert why(scene, *other)[1]['reason'] == 'skipped: overlap'
    assert 'its run goes on' in why(scene, *other)[1]['answer']
    assert why(scene, 'a', '--at', f'{10 * period // SECOND + 2}s')[1][
        'reason'] == 'not in the catalogue'


@pytest.fixture
def earlier(scene):
    """Record the schedule in the store. Return a function that returns the
    tick which is *number* periods before the last one.
    """
    period = scene.due - scene.before
    scene.store.adopt({'poll': f'every {period}'})
    return lambda number: scene.due - number * period


def why_at(scene, tick):
    seconds = (scene.store.now() - tick) // SECOND
    return why(scene, 'a', '--at', f'{seconds}s')[1]['reason']


def test_why_of_a_tick_that_a_newer_one_replaced(scene, earlier):
    for number in 5, 4:
        assert claiming.claim(scene.store, 'poll', earlier(number), ['a'],
                              lease=f'of-{number}', holder='api-1',
                              seconds=600.0, supersede=True).won
    scene.store.start(
        HeldLease('of-4', 'poll', earlier(4)), ['a'],
        NewLease('running', 'w-1', 600.0))
    scene.store.finish(HeldLease('running', 'poll', earlier(4)), ['a'])
    for number in 3, 2, 1:
        scene.ran(earlier(number))

    assert why_at(scene, earlier(5)) == 'superseded'


def why_answers(scene, tick, key='a'):
    seconds = (scene.store.now() - tick) // SECOND
    return why(scene, key, '--at', f'{seconds}s')[1]


def test_why_of_a_requeued_object_is_not_dead(scene, earlier):
    scene.place.run('poll', earlier(4), 'a', 'b', dead=['a', 'b'])
    scene.place.ask('dead', 'requeue', '--object', 'a')
    for lease in scene.store.take_over_expired(
            TakeOverRequest(['poll'], [], 9), NewLease('again', 'x', 600.0)):
        scene.store.start(lease.held, ['a'], NewLease('run', 'w-2', 600.0))
    scene.store.finish(HeldLease('run', 'poll', earlier(4)), ['a'])
    for number in 3, 2, 1:
        scene.place.run('poll', earlier(number), 'a', 'b')

    assert why_at(scene, earlier(4)) == 'ran'
    assert 'requeued it at 20' in why_answers(scene, earlier(4))['answer']
    assert why_answers(scene, earlier(4), 'b')['reason'] == 'dead'


def test_why_of_a_tick_at_which_the_whole_job_was_paused(scene, earlier):
    scene.place.run('poll', earlier(5), 'a')
    scene.place.ask('job', 'pause', 'poll', '--reason', 'moved')
    scene.skip(SkippedBy.PAUSE, 'paused: moved', earlier(4))
    scene.place.ask('job', 'resume', 'poll')
    for number in 3, 2, 1:
        scene.place.run('poll', earlier(number), 'a')

    assert why_at(scene, earlier(4)) == 'skipped: paused'
    assert why_answers(scene, earlier(4))['answer'].endswith(
        'was skipped: paused')


def test_why_of_an_object_that_missed_several_ticks_at_once(scene, earlier):
    scene.place.run('poll', earlier(7), 'a', 'b')
    scene.place.run('poll', earlier(5), 'b')
    scene.place.run('poll', earlier(4), 'b')
    scene.skip(SkippedBy.MISFIRE, 'too many', earlier(4))
    for number in 3, 2, 1:
        scene.place.run('poll', earlier(number), 'a', 'b')

    for number in 6, 5, 4:
        found = why_answers(scene, earlier(number))
        assert found['reason'] == 'passed over'
        assert 'too many' in found['answer']
        assert found['recorded'].endswith(' by api-1')
    assert why_at(scene, earlier(7)) == 'ran'
    assert why_answers(scene, earlier(5), 'b')['reason'] == 'ran'


def test_why_of_a_tick_before_a_trigger(scene, earlier):
    for number in 1, 0:
        scene.ran(earlier(number))
    scene.place.ask('job', 'trigger', 'poll', '--object', 'a')

    assert [one['reason'] for one in why_answers(scene, scene.due)[
        'last_ticks']] == ['ran', 'ran']
    assert why_at(scene, scene.due) == 'ran'


def test_why_does_not_guess_if_the_ids_are_not_kept(
        scene, earlier, monkeypatch):
    monkeypatch.setattr(history, 'KEPT', 1)
    scene.place.run('poll', earlier(5), 'a', 'b', 'c')
    scene.place.run('poll', earlier(4), 'c')
    scene.skip(SkippedBy.PAUSE, tick=earlier(4))
    scene.store.skip(SkipRequest(
        'poll', earlier(4), ['b'], 'api-1', SkippedBy.PAUSE, ''))
    for number in 3, 2, 1:
        scene.place.run('poll', earlier(number), 'a', 'b', 'c')

    assert why_at(scene, earlier(4)) == 'skipped: paused'
    found = why_answers(scene, earlier(4), 'b')
    assert found['reason'] == 'one of several'
    assert re.search(r'ids of 1 objects .*skipped: paused \(2 .*ran \(1 ',
                     found['answer'])


def test_why_does_not_guess_whether_an_object_was_listed(scene, earlier):
    scene.place.run('poll', earlier(5), 'a', 'b')
    scene.place.run('poll', earlier(4), 'b')
    scene.store.sync('poll', [], ['a'], readings=[earlier(4) + SECOND])
    assert why_at(scene, earlier(5)) == 'ran'
    scene.store.sync('poll', [Listed('a', Attributes(), earlier(3))], [],
                     readings=[earlier(3) + SECOND])
    for number in 2, 1:
        scene.place.run('poll', earlier(number), 'a', 'b')

    assert why_at(scene, earlier(4)) == 'not recorded'


def test_why_does_not_guess_whether_the_row_of_an_object_was_pruned(
        scene, earlier):
    scene.place.run('poll', earlier(5), 'a', 'b')
    scene.place.run('poll', earlier(4), 'b')
    scene.store.sync('poll', [], ['a'], readings=[earlier(4) + SECOND])
    days = (scene.store.now() - earlier(4) + 2 * SECOND) / (86400 * SECOND)
    assert 'claims=1' in scene.place.ask(
        'db', 'prune', '--claims', f'{days:.9f}')
    scene.store.sync('poll', [Listed('a', Attributes(), earlier(3))], [],
                     readings=[earlier(3) + SECOND])
    for number in 2, 1:
        scene.place.run('poll', earlier(number), 'a', 'b')

    assert why_at(scene, earlier(5)) == 'not recorded'
    # The row would not have been deleted if it had been listed at this tick.
    assert why_at(scene, earlier(3)) == 'not in the catalogue'


def test_why_of_a_run_that_was_started_more_than_a_period_late(
        scene, earlier):
    lease = 'of-4', 'poll', earlier(4)
    assert claiming.claim(
        scene.store, 'poll', earlier(4), ['a', 'b'], lease='of-4',
        holder='api-1', seconds=600.0, supersede=False).won
    scene.store.start(HeldLease(*lease), ['a', 'b'],
                      NewLease('run-4', 'w-1', 600.0))
    scene.store.finish(HeldLease('run-4', *lease[1:]), ['a', 'b'],
                       RunTimes(late=2, behind=('a',)))
    for number in 3, 2, 1:
        scene.place.run('poll', earlier(number), 'a', 'b')

    found = why_answers(scene, earlier(4))
    assert found['reason'] == 'ran late'
    assert 'began more than a period' in found['answer']
    assert found['recorded'].endswith(' by w-1')
    assert why_answers(scene, earlier(4), 'b')['reason'] == 'ran'
    assert 'ran late' in [
        one['reason'] for one in why_answers(scene, earlier(1))['last_ticks']]


def test_why_of_a_tick_of_another_schedule(scene, earlier):
    for number in 3, 2, 1:
        scene.ran(earlier(number))
    # The new schedule has these ticks, too.
    half = (scene.due - scene.before) // 2
    scene.store.adopt({'poll': f'every {half}'})

    assert why_at(scene, earlier(3)) == 'other schedule'


def test_why_of_an_object_with_its_own_schedule_if_that_of_the_job_changed(
        scene, earlier):
    rule = f'every {scene.due - scene.before}'
    for number in 3, 2, 1:
        tick = earlier(number)
        assert claiming.claim(
            scene.store, 'poll', tick, ['a'], lease=f'of-{number}',
            holder='api-1', seconds=600.0, supersede=False, rule=rule).won
        scene.store.start(HeldLease(f'of-{number}', 'poll', tick), ['a'],
                          NewLease(f'run-{number}', 'w-1', 600.0))
        scene.store.finish(HeldLease(f'run-{number}', 'poll', tick), ['a'])
    scene.store.adopt({'poll': 'every 1000000'})

    assert why_at(scene, earlier(3)) == 'ran'


def test_why_of_a_tick_whose_history_is_pruned(scene, earlier):
    for number in 1000, 2, 1:
        scene.ran(earlier(number))
    scene.place.ask('db', 'prune', '--history', 30)

    assert why_at(scene, earlier(1000)) == 'history pruned'


def test_why_names_an_unknown_job_object_or_tick(scene):
    scene.ran(scene.due)

    assert why(scene, 'a')[0] == 0
    # The error contains the time of the database's clock.
    assert re.search(r'2100-01-01 .*\b20\d\d-\d\d-\d\dT', scene.place.refuse(
        'why', 'poll', 'a', '--at', '2100-01-01'))
    code, told = scene.place.tell('why', 'pol', 'a')
    assert (code, told['reason']) == (2, 'job unknown')
    code, told = scene.place.tell('ring', 'explain', 'pol', 'a')
    assert (code, told['reason']) == (2, 'job unknown')


def test_a_job_of_every_member_has_no_owner(scene):
    told = scene.explain('own')

    assert told['reason'] == 'job of every member'
    assert 'member' in told['owner']
    assert 'position' not in told
