# SPDX-License-Identifier: Apache-2.0
"""Objects that operators pause, and pauses that end by themselves."""

import contextlib
import datetime
import json
import re

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import pauses
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.core import pause
from distperiodic.core.pause import Pause
from distperiodic.operator import admin
from distperiodic.operator import health_queries
from distperiodic.operator.group_reader import GroupStore
from tests import waiting
from tests import wall_clock
from tests.functional import commands
from tests.functional import places
from tests.functional.cluster import Cluster
from tests.functional.places import HOUR
from tests.functional.places import SECOND
from tests.pruned import pruned

#: Ids that a shell, a terminal or SQL could misread.
HOSTILE = ["a'; DROP TABLE x", 'b\x1b[31m', 'gr\u00f6\u00dfe %', '%', 'A', 'a']


@pytest.fixture
def store(place):
    with contextlib.closing(GroupStore(place.url, place.group)) as found:
        yield found


def status(place, job='poll'):
    """Return the status of a job, as a scheduler reads it."""
    return place.store.attend({job: 60.0}, {})[job]


def test_a_paused_object_is_known_to_schedulers_and_operators(place):
    place.run('poll', place.now, *HOSTILE)

    for key in HOSTILE[:5]:
        place.ask('job', 'pause', 'poll', '--object', key,
                  '--why', 'in repair')

    assert status(place).paused_objects == dict.fromkeys(
        HOSTILE[:5], Pause('in repair'))
    assert status(place).paused is None
    rows = json.loads(place.ask('objects', 'poll', '--paused', '-f', 'json'))
    assert {row['object'] for row in rows} == set(HOSTILE[:5])
    assert {(row['why'], row['until']) for row in rows} == {
        ('in repair', None)}
    assert all(re.fullmatch(r'.+@.+', row['by']) for row in rows)
    [job] = json.loads(place.ask('job', 'list', '-f', 'json'))
    assert (job['paused_since'], job['paused_objects']) == (None, 5)
    _, told = place.tell('why', 'poll', HOSTILE[0])
    assert told['reason'] in ('ran', 'skipped: paused', 'object paused')
    [(_, notes)] = [(row, row['finding']) for row in place.tell('status')[1]
                    if row['role'] == 'group']
    assert '5 objects of poll' in notes

    assert '1 object' in place.ask(
        'job', 'resume', 'poll', '--object', HOSTILE[0])
    assert set(status(place).paused_objects) == set(HOSTILE[1:5])
    assert '4 objects' in place.ask('job', 'resume', 'poll', '--all-objects')
    assert status(place).paused_objects == {}
    assert 'nothing was changed' in place.ask(
        'job', 'resume', 'poll', '--object', 'a')
    found = [(row['what'], row['arguments'].get('objects'), row['why'])
             for row in reversed(place.tell('events')[1])]
    assert found[:2] == [('job pause', [key], 'in repair')
                         for key in HOSTILE[:2]]


def test_an_object_that_is_not_listed_is_not_paused(place):
    place.run('poll', place.now, 'a', 'gone')
    place.store.sync('poll', [], ['gone'], readings=[place.now])

    for key in 'gone', 'nix':
        told = place.refuse('job', 'pause', 'poll', '--object', 'a',
                            '--object', key, '--why', 'x')
        assert repr(key) in told
    assert status(place).paused_objects == {}
    for argv in (['--all', '--object', 'a'],
                 ['poll', '--until', '2001-01-01'],
                 ['poll', '--until', 'soon'], ['poll', '--until', '-5m']):
        assert place.refuse('job', 'pause', *argv, '--why', 'x')


def test_the_end_of_a_pause_is_checked_before_its_job(place_of_sqlite):
    told = place_of_sqlite.refuse(
        'job', 'pause', 'none', '--until', '2001-01-01', '--why', 'x')

    assert '2001-01-01' in told and 'is not in the future' in told


def test_a_pause_ends_by_the_clock_of_the_store(place, store):
    place.store.adopt({'poll': 'every 60000000'})
    place.run('poll', place.now, 'a', 'b')
    until = store.now() + HOUR
    admin.pause(store, 'poll', by='me@here', why='x', until=until)
    admin.pause_objects(store, 'poll', ['a'], by='me@here', why='y',
                        until=until)

    assert status(place).paused == Pause('x', until)
    assert status(place).paused_objects == {'a': Pause('y', until)}
    shown = json.loads(place.ask('next', '-f', 'json'))
    for row in shown:
        assert 'until' in row['remark']
    [job] = json.loads(place.ask('job', 'list', '-f', 'json'))
    assert job['until'].endswith('Z')

    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        [number] = store.names()
        for column in tables.job.c.id, tables.paused_object.c.job:
            connection.execute(sa.update(column.table).where(
                column == number).values(paused_until=store.now() - SECOND))
    engine.dispose()
    assert (status(place).paused, status(place).paused_objects) == (None, {})
    [job] = json.loads(place.ask('job', 'list', '-f', 'json'))
    assert (job['paused_since'], job['until'], job['paused_objects']) == (
        None, None, None)
    assert place.tell('objects', 'poll', '--paused') == (0, [])
    assert 'not paused' in place.ask('job', 'resume', 'poll')


def test_a_job_is_paused_until_a_time(place):
    place.run('poll', place.now, 'a')

    told = place.ask('job', 'pause', 'poll', '--until', '2h', '--why', 'x')
    assert re.search(r'paused poll until \S+Z', told)
    told = place.ask('job', 'pause', 'poll', '--why', 'y')
    assert 'until' in told
    assert 'x' in told
    assert status(place).paused == Pause('y')
    [first, second] = reversed(place.tell('events')[1])
    assert first['arguments']['until'] > place.now + HOUR
    assert not second['arguments']


def test_the_number_of_paused_objects_is_limited(place, store, monkeypatch):
    monkeypatch.setattr(admin, 'MOST_OBJECTS', 3)
    place.run('poll', place.now, *'abcde')
    admin.pause_objects(store, 'poll', 'abc', by='me@here', why='x')

    # Objects that are paused already count once.
    assert admin.pause_objects(
        store, 'poll', 'ab', by='me@here', why='y') == ['a', 'b']
    told = ''
    with pytest.raises(Exception, match='at most 3') as caught:
        admin.pause_objects(store, 'poll', 'd', by='me@here', why='x')
    told = str(caught.value)
    assert '\n' not in told
    assert set(status(place).paused_objects) == set('abc')

    # An object whose pause has ended does not count.
    admin.pause_objects(store, 'poll', 'a', by='me@here', why='x',
                        until=store.now() - SECOND)
    admin.pause_objects(store, 'poll', 'd', by='me@here', why='x')
    assert set(status(place).paused_objects) == set('bcd')
    assert pause.MOST_OBJECTS == 10_000


def test_two_commands_at_once_count_each_object(place, store):
    place.run('poll', place.now, *'abcdef')
    with contextlib.closing(GroupStore(place.url, place.group)) as other:
        for key, one in zip('abcdef', [store, other] * 3, strict=True):
            admin.pause_objects(one, 'poll', key, by='me@here', why='x')

    assert len(status(place).paused_objects) == 6
    [job] = store.jobs()
    assert job.paused_objects == 6


@pytest.mark.parametrize('server', ['postgresql', 'mariadb'])
def test_a_pause_waits_for_no_transaction_of_a_handler(
        request, tmp_path, server):
    place = places.Place(request.getfixturevalue(server).url, tmp_path)
    place.run('poll', place.now, 'a', 'b')
    engine = database.make_engine(place.url)
    with contextlib.closing(GroupStore(place.url, place.group)) as store:
        [number] = store.names()
        admin.pause_objects(store, 'poll', 'a', by='me@here', why='x')
        with engine.begin() as handler:
            handler.execute(sa.select(tables.claim.c.object).where(
                tables.claim.c.job == number).with_for_update()).all()
            admin.pause_objects(store, 'poll', 'b', by='me@here', why='x')

    assert set(status(place).paused_objects) == {'a', 'b'}
    engine.dispose()
    place.store.forget()
    place.store.close()


@pytest.mark.parametrize('ended, unattended', [(1, False), (60, True)])
def test_a_job_is_attended_until_its_pause_ends(place, store, ended,
                                                unattended):
    place.run('poll', place.now, 'a')
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        [number] = store.names()
        connection.execute(sa.update(tables.job).where(
            tables.job.c.id == number).values(
                attended_since=1, attended_until=place.now - HOUR,
                paused_since=place.now - HOUR,
                paused_until=place.now - ended * SECOND))
    engine.dispose()

    [job] = health_queries.jobs(store, place.now, 30.0)

    assert (job.paused, job.unattended) == (False, unattended)


@pytest.mark.parametrize('paused, ended, unattended', [
    # An operator ends the pause now, or it has ended by itself.
    (True, None, False), (True, HOUR, False), (True, -HOUR, True),
    (False, None, True)])
def test_a_job_that_an_operator_has_just_resumed_has_its_scheduler(
        place, store, paused, ended, unattended):
    """Schedulers attend the job again at their next sweep."""
    place.run('poll', place.now, 'a')
    place.store.attend({'poll': 60.0}, {})
    with contextlib.closing(database.make_engine(place.url).connect()) as to:
        to.execute(sa.update(tables.job).values(
            attended_since=1, attended_until=place.now - 2 * HOUR))
        to.commit()
    if paused:
        admin.pause(store, 'poll', by='me@here', why='x', until=None if (
            ended is None) else place.now + ended)

    admin.resume(store, 'poll')

    [job] = health_queries.jobs(store, place.now, 30.0)
    assert (job.paused, job.paused_until) == (False, None)
    assert job.unattended is unattended
    assert status(place).paused is None


def test_pauses_that_have_ended_are_deleted(place, store):
    place.run('poll', place.now, 'a', 'b', 'c')
    place.run('sync', place.now, 'a')
    over = store.now() - SECOND
    admin.pause_objects(store, 'poll', 'abc', by='me@here', why='x')
    for key in 'ab':
        admin.pause_objects(store, 'poll', key, by='me@here', why='x',
                            until=place.now + HOUR)
    admin.pause_objects(store, 'sync', 'a', by='me@here', why='x', until=over)
    end(place, 'poll', 'a', over)

    assert pruned(place.store.database, place.group)['ended pauses'] == 2

    # A scheduler no longer reads the pauses of "sync" at each sweep.
    assert {row.name: row.paused_objects for row in store.rows(sa.select(
        tables.job).where(tables.job.c.space == place.group))} == {
        'poll': 2, 'sync': None}
    assert set(status(place).paused_objects) == {'b', 'c'}
    assert pruned(place.store.database, place.group) == {}
    assert rows(place) == 2
    assert status(place, 'sync').paused_objects == {}


def end(place, job, key, until):
    """Let the pause of an object end."""
    number = place.store._numbers.of(job)
    place.store.database.write(lambda connection: connection.execute(
        sa.update(tables.paused_object).where(
            tables.paused_object.c.job == number,
            tables.paused_object.c.object == key).values(paused_until=until)))


def rows(place):
    """Return the number of rows of paused objects."""
    return place.store.database.read(lambda connection: connection.scalar(
        sa.select(sa.func.count()).select_from(tables.paused_object)))


def test_a_pause_that_begins_again_meanwhile_is_not_deleted(
        place, store, monkeypatch):
    """An operator pauses the object again before the row is locked."""
    place.run('poll', place.now, 'a', 'b')
    admin.pause_objects(store, 'poll', 'ab', by='me@here', why='x')
    end(place, 'poll', 'a', store.now() - SECOND)
    lock = pauses.lock

    def pause_first(connection, number):
        connection.execute(sa.update(tables.paused_object).values(
            paused_until=None))
        lock(connection, number)
    monkeypatch.setattr(pauses, 'lock', pause_first)

    assert pruned(place.store.database, place.group) == {}

    assert set(status(place).paused_objects) == {'a', 'b'}


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, postgresql):
    """Two schedulers, of which one has a wall clock that is 40 s ahead, and a
    worker.
    """
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        spacing=1, objects=12, misfire='all', overlap='wait', lease=5)
    try:
        for name, seconds in ('right', 0), ('ahead', 40):
            wall_clock.set_ahead(tmp_path / name, seconds)
            made.start('scheduler', 1, tmp_path / name)
        made.start('worker')
        made.wait_complete(2, timeout=90)
        yield made
    finally:
        made.close()


def test_a_pause_ends_at_one_tick_for_schedulers_whose_clocks_differ(cluster):
    keys = [f'192.168.10.{n}' for n in range(6)]
    other = '192.168.10.10'
    with contextlib.closing(GroupStore(
            cluster.connection, cluster.group)) as store:
        until = store.now() // SECOND + 20
    at = datetime.datetime.fromtimestamp(until, datetime.UTC)

    told = commands.call(
        'job', 'pause', 'ping', *(f'--object={key}' for key in keys),
        '--until', at.isoformat(), '--why', 'new disks', '--config-file',
        cluster.config, cwd=cluster.config.parent)

    assert (told.returncode, told.stderr) == (0, ''), told
    assert told.stdout.count('paused; ') == 2
    with contextlib.closing(GroupStore(
            cluster.connection, cluster.group)) as store:
        applied = store.now() / SECOND + 1
    assert applied < until
    waiting.wait_until(lambda: {
        run.object for run in cluster.runs() if run.tick >= until + 2
    } >= {*keys, other}, 60)
    runs = cluster.runs()
    ticks = {key: sorted(run.tick for run in runs if run.object == key)
             for key in keys}
    assert not [tick for some in ticks.values() for tick in some
                if applied <= tick < until]
    assert all({until, until + 1, until + 2} <= {*map(round, some)}
               for some in ticks.values())
    others = {run.tick for run in runs if run.object == other}
    assert others >= {*range(int(applied) + 1, until + 2)}
