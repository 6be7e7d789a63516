# SPDX-License-Identifier: Apache-2.0
"""Commands of operators on all objects or tasks that meet some conditions."""

import contextlib
import itertools

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.task import TaskFilter
from distperiodic.core.workflow import Status
from distperiodic.operator import bulk_tasks
from distperiodic.operator import dead_objects
from distperiodic.operator.auditing import Actor
from distperiodic.operator.dead_objects import DeadFilter
from distperiodic.operator.group_reader import GroupStore
from tests.functional import commands
from tests.functional.commands import numbers
from tests.functional.places import HOUR
from tests.functional.places import SECOND

ME = Actor('me', 'here', 'fixed')
#: Ids that a shell, a terminal or SQL could misread.
HOSTILE = ["a'; DROP TABLE x", 'b\x1b[31m\nfake: line', 'größe %_\\', '%']


@pytest.fixture
def store(place):
    with contextlib.closing(GroupStore(place.url, place.group)) as found:
        yield found


def dead_of(place, *argv):
    """Return the objects in the list of dead objects that are still dead."""
    return sorted(row['object'] for row in place.tell('dead', 'list', *argv)[1]
                  if row['state'] == 'dead')


def events_of(place):
    """Return the actions, the oldest first: command, target, arguments and
    outcome.
    """
    return [(row['what'], row['target'], row['arguments'] or {},
             row['outcome'])
            for row in reversed(place.tell('events')[1])]


def change(place, table, **values):
    """Change all rows of the group in a table."""
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        of_group = sa.select(tables.job.c.id).where(
            tables.job.c.space == place.group)
        connection.execute(sa.update(table).where(
            table.c.job.in_(of_group)).values(values))
    engine.dispose()


def test_dead_objects_are_selected_by_their_failure(place):
    early, late = place.now - 3 * SECOND, place.now - SECOND
    place.run('poll', early, 'a', 'b', dead=['a', 'b'])
    change(place, tables.failure, at=place.now - 2 * HOUR)
    place.run('poll', late, 'c', 'd', dead=['c', 'd'])
    place.run('sync', late, 'c', dead=['c'])

    for argv in (['--since', '1h'], ['--error', 'c is ill'],
                 ['--error', 'd IS'], ['--object', 'b']):
        listed = dead_of(place, *argv)
        chosen = place.ask('dead', 'requeue', '--dry-run', *argv)
        assert numbers(chosen)[:1] == [len(listed)]
        assert sorted(line.split()[1].rstrip(':')
                      for line in chosen.splitlines()[1:]) == listed
    assert dead_of(place, '--since', '1h') == ['c', 'c', 'd']
    assert dead_of(place, '--error', 'c is ill') == ['c', 'c']
    assert dead_of(place, '--error', 'd IS') == []
    assert events_of(place) == []

    assert numbers(place.ask(
        'dead', 'requeue', 'poll', '--since', '1h', '--error', 'is ill',
        '--object', 'c', '--object', 'd')) == [2, 2]

    assert dead_of(place) == ['a', 'b', 'c']
    [(what, target, arguments, outcome)] = events_of(place)
    assert (what, target, outcome) == (
        'dead requeue', 'poll', '2 of 2 objects')
    assert arguments == {'objects': ['c', 'd'], 'error': 'is ill', 'found': 2,
                         'since': arguments['since']}


def test_only_the_last_failure_of_a_dead_object_counts(place, store):
    tick = place.now - SECOND
    place.run('poll', tick, 'a', dead=['a'])
    dead_objects.requeue(store, DeadFilter(), ME)
    [lease] = place.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease('again', 'api-1', 600.0))
    place.store.start(lease.held, ['a'], NewLease('run', 'w-1', 600.0))
    place.store.fail(HeldLease('run', 'poll', tick),
                     [Failure('a', 'another error')], None)

    for error, number in ('is ill', 0), ('another', 1):
        assert dead_objects.number(store, DeadFilter(error=error)) == number


def test_an_object_that_is_named_and_is_not_dead_is_no_success(
        place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now, 'a', 'b', dead=['a'])
    named = 'dead', 'requeue', '--object', 'b', '--object', 'none'

    for more in [], ['--dry-run']:
        assert "none of the objects 'b', 'none' is dead" in place.refuse(
            *named, *more)
    told = commands.call(*named, '--object', 'a', '--config-file',
                         place.config, cwd=place.config.parent)
    assert (told.returncode, told.stderr) == (1, '')
    assert told.stdout.splitlines() == [
        'requeued 1 of 3 objects', "not requeued: object 'b' is not dead",
        "not requeued: object 'none' is not dead"]


def test_a_dry_run_refuses_a_task_or_a_queue_that_does_not_exist(
        desk_of_sqlite):
    for argv in ('cancel', 'none'), ('cancel', '--queue', 'none'):
        assert "'none'" in desk_of_sqlite.place.refuse(
            'task', *argv, '--dry-run')


def test_a_hostile_id_or_error_selects_only_itself(place):
    place.run('poll', place.now, *HOSTILE, dead=HOSTILE)

    for key in HOSTILE:
        shown = place.ask('dead', 'requeue', '--dry-run', '--object', key)
        assert len(shown.splitlines()) == 2
        assert '\x1b' not in shown
        assert dead_of(place, '--error', f'{key} is') == [key]
    assert numbers(place.ask('dead', 'requeue', '--error', '% is')) == [1]
    assert dead_of(place) == sorted(HOSTILE[:3])


def test_objects_that_change_during_the_action_are_counted_as_they_are(
        place, store, monkeypatch):
    place.run('poll', place.now - SECOND, 'a', 'b', 'c', dead=['a', 'b', 'c'])
    assert dead_objects.number(store, DeadFilter()) == 3
    place.run('poll', place.now, 'a')
    # The object changes after the action has read it.
    read = dead_objects.claims_in_chunks

    def reading(*arguments):
        for found in read(*arguments):
            place.run('poll', place.now, 'b')
            yield found
    monkeypatch.setattr(dead_objects, 'claims_in_chunks', reading)

    found = dead_objects.requeue(store, DeadFilter(), ME)

    assert (found.matched, found.done) == (2, 1)
    assert [problem for problem in found.problems if "'b'" in problem]
    assert events_of(place)[0][3] == '1 of 2 objects'
    assert dead_of(place) == []


def test_an_error_in_the_middle_reports_what_was_done(
        place, store, monkeypatch):
    place.run('poll', place.now, 'a', dead=['a'])
    place.run('sync', place.now, 'b', dead=['b'])
    run, calls = database.Database.run, itertools.count(1)

    def write(self, work, begin, *, read_only=False):
        # The first transaction writes the record of the action.
        if not read_only and next(calls) == 3:
            raise exceptions.StoreUnavailable('the disk is full')
        return run(self, work, begin, read_only=read_only)
    monkeypatch.setattr(database.Database, 'run', write)

    with pytest.raises(exceptions.StoreUnavailable) as caught:
        dead_objects.requeue(store, DeadFilter(), ME)

    assert numbers(str(caught.value)) == [1]
    assert 'the disk is full' in str(caught.value)
    outcome = events_of(place)[0][3]
    assert numbers(outcome) == [1, 1]
    assert 'the disk is full' in outcome
    assert dead_of(place) == ['b']


def status_of(desk):
    """Return the number of tasks by status."""
    found = {}
    for task in desk.client.list():
        found[task.status.value] = found.get(task.status.value, 0) + 1
    return found


def test_tasks_of_a_filter_are_cancelled_and_retried(desk):
    ids = [desk.submit('single') for _ in range(3)]
    queued = [desk.submit('single', '--queue', 'q') for _ in range(3)]
    ended = desk.submit('short')
    desk.client.cancel(ended)

    shown = desk.place.ask('task', 'cancel', '--queue', 'q', '--dry-run')
    assert numbers(shown)[0] == 3
    assert [line.split()[0] for line in shown.splitlines()[1:]] == queued
    assert status_of(desk) == {'waiting': 6, 'cancelled': 1}

    assert numbers(desk.place.ask(
        'task', 'cancel', '--type', 'single', '--why', 'x')) == [6, 6]
    assert status_of(desk) == {'cancelled': 7}
    assert [queue.head for queue in desk.client.queues()] == [None]
    assert desk.take() == []

    assert numbers(desk.place.ask(
        'task', 'retry', '--status', 'cancelled', '--queue', 'q')) == [3, 3]
    assert status_of(desk) == {'waiting': 3, 'cancelled': 4}
    assert desk.client.queues('q')[0].head == queued[0]
    assert numbers(desk.place.ask(
        'task', 'retry', *ids, '--dry-run'))[0] == 3
    assert numbers(desk.place.ask('task', 'retry', *ids)) == [3, 3]
    assert status_of(desk) == {'waiting': 6, 'cancelled': 1}
    found = [one for one in events_of(desk.place) if one[2].get('found')]
    assert [(what, arguments.get('type'), arguments.get('queue'),
             arguments['found'], outcome)
            for what, _, arguments, outcome in found] == [
        ('task cancel', 'single', None, 6, '6 of 6 tasks'),
        ('task retry', None, 'q', 3, '3 of 3 tasks')]


def test_no_match_is_one_line(desk_of_sqlite):
    desk = desk_of_sqlite
    desk.submit('single', '--queue', 'q')

    for argv in (['cancel', '--status', 'stuck'],
                 ['retry', '--all-stuck', '--queue', 'q'],
                 ['cancel', '--type', 'short', '--queue', 'q']):
        told = desk.place.ask('task', *argv)
        assert 'nothing was changed' in told
        assert len(told.splitlines()) == 1
        assert numbers(desk.place.ask('task', *argv, '--dry-run')) == [0]
    assert status_of(desk) == {'waiting': 1}
    assert "'nix'" in desk.place.refuse('task', 'cancel', '--queue', 'nix')


@pytest.mark.parametrize(('argv', 'told'), [
    (['cancel'], '--status'), (['retry'], '--status'),
    (['retry', '--type', 'single'], '--status'),
    (['cancel', 'x', '--type', 'single'], 'either'),
    (['cancel', '--status', 'failed'], 'waiting, running'),
    (['retry', '--status', 'running'], 'stuck, failed'),
    (['retry', '--status', 'ill'], "'ill'")], ids=' '.join)
def test_a_filter_that_cannot_be_used_is_one_line(
        desk_of_sqlite, argv, told):
    assert told in desk_of_sqlite.place.refuse('task', *argv)


def test_one_of_several_tasks_that_cannot_be_changed_stops_no_other(desk):
    first, second = desk.submit('single'), desk.submit('single')
    desk.client.cancel(first)

    code, lines = desk_told(desk, 'cancel', first, 'nix', second)

    assert (code, numbers(lines[0])) == (1, [1, 3])
    assert {first, 'nix'} == {
        key for key in (first, 'nix', second)
        if any(repr(key) in line for line in lines[1:])}
    assert status_of(desk) == {'cancelled': 2}


def desk_told(desk, *argv):
    """Return the exit code and the lines of a command on tasks."""
    told = commands.call('task', *argv, '--config-file', desk.place.config,
                         cwd=desk.place.config.parent)
    assert told.stderr == ''
    return told.returncode, told.stdout.splitlines()


def test_each_task_is_retried_once_even_if_it_stops_again(
        desk, store, monkeypatch):
    ids = desk.client.submit_many([{'type': 'single'}] * 250)
    desk.client.cancel_many(ids)
    late = []
    retry_many, calls = desk.client.retry_many, []

    def retry(ids, back):
        answers = retry_many(ids, back)
        calls.append(list(ids))
        # These tasks match again before the next chunk is read.
        desk.client.cancel_many(ids)
        if not late:
            late.append(desk.submit('single'))
            desk.client.cancel(late[0])
        return answers
    monkeypatch.setattr(desk.client, 'retry_many', retry)

    found = bulk_tasks.retry(
        store, desk.client, bulk_tasks.to_retry('cancelled'), ME)

    assert (found.matched, found.done) == (250, 250)
    assert sum(calls, []) == ids
    assert max(map(len, calls)) <= 100


def test_a_task_that_has_ended_meanwhile_is_not_counted_as_cancelled(
        desk, store, monkeypatch):
    ids = [desk.submit('single') for _ in range(3)]
    cancel_many = desk.client.cancel_many

    def cancel(some, why, by):
        desk.run()
        return cancel_many(some, why, by)
    monkeypatch.setattr(desk.client, 'cancel_many', cancel)

    found = bulk_tasks.cancel(
        store, desk.client, bulk_tasks.to_cancel('waiting'), ME)

    assert (found.matched, found.done, len(found.problems)) == (3, 0, 3)
    assert all(desk.client.get(id_).status is Status.SUCCEEDED for id_ in ids)
    assert events_of(desk.place)[-1][3] == '0 of 3 tasks'


def test_the_filter_of_tasks_counts_what_the_list_shows(desk, store):
    # One task runs, one is claimed, and one is ready.
    desk.submit('single')
    desk.start(desk.take()[0])
    desk.submit('single')
    desk.take()
    desk.submit('single')
    for statuses in ([Status.WAITING], [Status.RUNNING],
                     [Status.WAITING, Status.RUNNING]):
        which = TaskFilter(statuses)
        listed = [task for status in statuses
                  for task in desk.client.list(status)]
        assert bulk_tasks.number(store, which) == len(listed)
        assert {task.id for task in bulk_tasks.first(store, which, 9)} == {
            task.id for task in listed}
