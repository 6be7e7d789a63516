# SPDX-License-Identifier: Apache-2.0
"""Commands that show current runs and future ticks, from a store."""

import json
import re

import pytest

from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.operator import activity
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests import waiting
from tests.functional.commands import numbers
from tests.functional.places import SECOND


def start(place, job, tick, *objects, worker='host-1:2~00112233aabbccdd~t1'):
    """Claim objects and grant them to a worker."""
    claimed, running = f'claimed-{job}-{tick}', f'running-{job}-{tick}'
    assert len(claiming.claim(place.store, job, tick, objects, lease=claimed,
                              holder='api-1', seconds=60.0,
                              supersede=False).won) == len(objects)
    place.store.start(
        HeldLease(claimed, job, tick), objects,
        NewLease(running, worker, 60.0))
    return running


def test_running_objects_are_listed_with_worker_age_attempt_and_progress(
        place):
    lease = start(place, 'poll', place.now - 65 * SECOND, 'a', 'b')
    waiting.wait_until(
        lambda: place.tell('running')[1][0]['age_s'] >= 0.2)
    start(place, 'sync', place.now - 90 * SECOND, 'c')
    place.store.save_progress(
        HeldLease(lease, 'poll', place.now - 65 * SECOND),
        {'a': '{"page": 7}'})

    _, told = place.tell('running')

    assert [(row['job'], row['object'], row['worker'], row['attempt'],
             row['progress']) for row in told] == [
        ('poll', 'a', 'host-1:2', 1, {'page': 7}),
        ('poll', 'b', 'host-1:2', 1, None),
        ('sync', 'c', 'host-1:2', 1, None)]
    # The age is that of the run, not that of its tick.
    assert told[2]['age_s'] + 0.2 <= told[0]['age_s'] < 60
    assert told[0]['tick'].endswith('Z')
    assert told[0]['lease_ends'] > told[0]['tick']
    assert [row['object'] for row in place.tell('running', 'sync')[1]] == [
        'c']
    assert len(place.tell('running', '--older-than', '0.1s')[1]) >= 2
    assert place.tell('running', '--older-than', '1h')[1] == []
    place.store.finish(
        HeldLease(lease, 'poll', place.now - 65 * SECOND), ['a', 'b'])
    assert 'host-1:2' not in place.show('running', 'poll')
    assert place.tell('running', 'poll')[1] == []
    assert place.above('running', 'poll')


def test_lists_show_the_role_of_each_process_of_the_same_name(place_of_sqlite):
    place = place_of_sqlite
    for number, part in enumerate(['', 'default', 'disks']):
        place.add_member('vm:0', f'vm:0~{number}', {}, part)
    for number, job in enumerate(['each', 'poll', 'sync', 'old']):
        start(place, job, place.now, 'a', worker=f'vm:0~{number}~t1')
    place.store.fail(
        HeldLease(f'running-poll-{place.now}', 'poll', place.now),
        [Failure('a', 'it is ill')], None)

    assert {row['job']: (row['worker'], row['role'])
            for row in place.tell('running')[1]} == {
        'each': ('vm:0', 'scheduler'), 'sync': ('vm:0', 'worker of disks'),
        # Another process has taken the place of this one.
        'old': ('vm:0', None)}
    [dead] = place.tell('dead', 'list')[1]
    assert (dead['worker'], dead['role']) == (
        'vm:0~1~t1', 'worker of default')
    assert [(row['role'], row['process'])
            for row in place.tell('member', 'list')[1]] == [
        ('scheduler', 'vm:0~0'), ('worker of default', 'vm:0~1'),
        ('worker of disks', 'vm:0~2')]


def test_objects_that_are_due_next_are_counted_by_schedule(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now, 'a', 'b', 'c')
    place.run('slow', place.now, 'a')
    place.store.adopt({'poll': 'every 60000000', 'slow': 'cron UTC 0 3 * * *'})

    _, [soon, later] = place.tell('next')
    _, within = place.tell('next', '--within', '5m')

    assert (soon['job'], soon['objects'], later['job']) == ('poll', 3, 'slow')
    assert soon['tick'].endswith(':00Z')
    assert 0 < soon['in_s'] <= 60
    assert soon['schedule'] == 'every 60 s'
    assert [row['job'] for row in within if row['job'] == 'poll'] == (
        ['poll'] * 5)
    # The other commands know the same ticks.
    jobs = {row['job']: row for row in place.tell('job', 'list')[1]}
    assert jobs['poll']['schedule'] == 'every 60 s'
    assert jobs['slow']['next_tick'] == later['tick']
    assert place.tell('why', 'slow', 'a')[1]['next_tick'] == later['tick']
    place.ask('job', 'pause', 'poll', '--why', 'x')
    assert place.tell('next', 'poll')[1][0]['remark'] == 'paused'
    # No run is due within this time.
    told = place.above('next', 'poll', '--within', '5m')
    assert numbers(told) == [0]
    assert '5m' in told


def test_an_object_that_dies_is_seen_until_it_succeeds(place):
    place.run('poll', place.now - 9 * SECOND, 'a', 'b', dead=['b'])
    place.run('poll', place.now - 8 * SECOND, 'a', 'b', dead=['b'])
    store = GroupStore(place.url, place.group)
    died = activity.failing(store, limit=9)
    # The object runs again, and has not succeeded yet.
    lease = start(place, 'poll', place.now - 7 * SECOND, 'b')
    again = activity.failing(store, limit=9)
    listed = json.loads(place.ask('dead', 'list', '-f', 'json'))
    place.store.sync('poll', [], ['b'], readings=[place.now])
    delisted = activity.failing(store, limit=9)
    place.store.finish(HeldLease(lease, 'poll', place.now - 7 * SECOND), ['b'])
    succeeded = activity.failing(store, limit=9)
    store.close()

    assert [(one.job, one.object, one.runs, one.state)
            for one in (*died, *again)] == [
        ('poll', 'b', 2, State.DEAD), ('poll', 'b', 2, State.RUNNING)]
    assert died[0].tick == again[0].tick == place.now - 8 * SECOND
    assert died[0].first < died[0].at
    assert [(row['object'], row['in_a_row'], row['state'])
            for row in listed] == [('b', 2, 'running')]
    assert delisted == succeeded == []


@pytest.mark.parametrize('command', ['running', 'next'])
def test_a_job_that_is_not_there_is_one_line(place_of_sqlite, command):
    place_of_sqlite.run('poll', place_of_sqlite.now, 'a')

    assert re.search("'pol' .*; .*'poll'",
                     place_of_sqlite.refuse(command, 'pol'))
