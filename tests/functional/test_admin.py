# SPDX-License-Identifier: Apache-2.0
"""Commands with which an operator reads and changes the store."""

import contextlib
import json
import os
import pwd
import re

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import opts
from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.cmd import shell
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.control import Me
from distperiodic.core.histogram import Histogram
from distperiodic.operator import activity
from distperiodic.operator import admin
from distperiodic.operator.admin import Triggered
from distperiodic.operator.group_reader import GroupStore
from distperiodic.ports import RunTimes
from tests import claiming
from tests import waiting
from tests.functional import commands
from tests.functional.commands import numbers
from tests.functional.places import DAY
from tests.functional.places import HOUR
from tests.functional.places import SECOND
from tests.functional.places import Place
from tests.logged import Line

POLL = """
    def hosts(self, context):
        return ['a', 'b']

    @periodic_task(spacing=60, objects='hosts', name='poll')
    def poll(self, context, host):
        pass
"""


def pruned(place, *argv):
    """Return the number of pruned rows by kind, as text."""
    return Line(place.ask('db', 'prune', *argv))


def test_only_old_rows_are_pruned(place):
    objects = [f'object-{n:04}' for n in range(2300)]
    place.run('gone', place.now - 40 * DAY, *objects, dead=objects[:1100])
    for days in 9, 5, 1:
        place.run('poll', place.now - days * DAY, 'a', 'b', dead=['b'])
    other = Place(place.url, place.config.parent)
    other.run('gone', place.now - 40 * DAY, 'a')

    assert pruned(place, '--history', 4) == {
        'history': '6', 'dead': '0', 'claims': '0', 'tasks': '0'}
    assert place.rows(tables.history) == 2
    assert place.rows(tables.failure) == 1103
    assert pruned(place, '--claims', 30, '--dead', 1) == {
        'history': '0', 'dead': '0', 'claims': '2300', 'tasks': '0'}
    assert place.rows(tables.claim) == 2
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.failure).where(
            tables.failure.c.object != 'b').values(at=place.now - 2 * DAY))
    engine.dispose()
    assert pruned(place, '--dead', 1) == {
        'history': '0', 'dead': '1100', 'claims': '0', 'tasks': '0'}
    assert place.rows(tables.failure) == 3
    assert other.rows(tables.claim) == 1
    assert other.rows(tables.history) == 2
    other.store.forget()
    other.store.close()


def test_claims_of_objects_that_are_gone_are_pruned_and_no_others(place):
    old = place.now - 9 * DAY
    place.run('poll', old, 'gone', 'ill', 'skipped', 'here', dead=['ill'])
    claiming.claim(place.store, 'poll', old, ['runs'], lease='one',
                   holder='api-1', seconds=60.0, supersede=False)
    place.store.skip(SkipRequest(
        'poll', place.now - DAY, ['skipped'], holder='api-1',
        by=SkippedBy.PAUSE, reason='paused'))
    place.run('poll', place.now, 'here')
    # The other objects are still listed, even if their last run is long ago.
    place.store.sync('poll', [], ['gone', 'ill', 'runs'], readings=[place.now])

    assert pruned(place, '--claims', 7) == {
        'history': '0', 'dead': '0', 'claims': '2', 'tasks': '0'}
    objects = json.loads(place.ask(
        'objects', '--job', 'poll', '-f', 'json', '-c', 'Object'))
    assert sorted(one['object'] for one in objects) == [
        'here', 'runs', 'skipped']


def test_a_claim_that_is_pruned_before_its_end_is_cancelled(place):
    claiming.claim(place.store, 'gone', place.now - 9 * DAY, ['a', 'b'],
                   lease='one', holder='api-1', seconds=60.0, supersede=False)

    assert pruned(place, '--claims', 7) == {
        'history': '0', 'dead': '0', 'claims': '2', 'tasks': '0'}

    [told] = json.loads(place.ask('history', '--since', '10d', '-f', 'json'))
    assert (told['due'], told['cancelled'], told['open']) == (2, 2, 0)
    assert place.rows(tables.lease) == 0


def test_a_prune_without_a_kind_of_rows_is_refused(place_of_sqlite):
    place = place_of_sqlite
    told = place.refuse('db', 'prune')
    for option in '--history', '--dead', '--claims':
        assert option in told
    for days in '0', 'soon', '-1', 'nan':
        told = place.refuse('db', 'prune', f'--history={days}')
        assert f'--history: {days!r} ' in told


def test_the_history_compares_the_work_with_the_slots(place):
    """30 objects of 2 s every 4 s need 15 slots, and there are 10."""
    took = Histogram()
    took.add(2_000_000, 10)
    keys = [f'o-{n}' for n in range(30)]
    begin = place.now - 30 * SECOND
    for at in range(5):
        tick = begin + at * 4 * SECOND
        place.run('poll', tick, *keys[:10],
                  times=RunTimes(0, took.text(), took.text()))
        claiming.claim(place.store, 'poll', tick, keys[10:],
                       lease=f'open-{at}', holder='api', seconds=60.0,
                       supersede=True)
    for part, state in (('', {'topics': {'disks': ['poll']}}),
                        ('disks', {'pools': {'disks': {
                            'size': 10, 'busy': 10, 'hanging': 0}}})):
        me = Me(place.group, part, 'vm:0')
        place.store.members.report(me, f'vm:0~{part}', state, new=True)

    # The members stay alive, however long the command takes to start.
    with database.make_engine(place.url).begin() as connection:
        connection.execute(sa.update(tables.member).where(
            tables.member.c.space == place.group).values(
                seen=place.now + HOUR))

    shown = place.above('history')

    assert 'Partition disks needs 15.0 of its 10 slots on average' in shown
    busy = float(re.search(r'average, and (\S+) were busy', shown)[1])
    # 50 runs of 2 s since the first tick, about half a minute ago.
    assert 0.5 < busy <= 100 / 30
    with contextlib.closing(GroupStore(place.url, place.group)) as store:
        [load] = activity.loads(store, begin)
        assert activity.loads(store, place.now + 60 * SECOND) == []
    assert (load.job, load.per_second, load.ran.count) == ('poll', 7.5, 50)


def test_the_history_shows_the_outcome_of_each_tick(place):
    first, second = place.now - 5 * SECOND, place.now - 2 * SECOND
    late, took = Histogram(), Histogram()
    late.add(40_000, 2)
    late.add(2_000_000)
    took.add(300_000, 3)
    place.run('poll', first, 'a', 'b', 'c', dead=['c'],
              times=RunTimes(1, late.text(), took.text(), slowest='b'))
    claiming.claim(place.store, 'poll', second, ['a', 'b'], lease='open',
                   holder='api', seconds=60.0, supersede=False)
    place.store.skip(SkipRequest(
        'poll', second, ['c'], holder='api', by=SkippedBy.OVERLAP,
        reason='not now'))
    place.run('sync', place.now - 2 * HOUR, 'a')

    told = json.loads(place.ask('history', '-f', 'json'))
    of_sync = place.ask('history', '--job', 'sync', '--since', '1d',
                        '-f', 'csv', '-c', 'Job', '-c', 'Done')
    [newest] = json.loads(commands.call(
        'history', '--limit', 1, '--since', '9d', '-f', 'json',
        '--config-file', place.config).stdout)

    assert newest == told[0]
    assert of_sync.replace('"', '') == 'job,done\nsync,1\n'
    for row in told:
        assert row.pop('tick').endswith('Z')
    # No object of the newest tick has been started.
    open_, ended = ({name: row.pop(name) for name in (
        'mean_late_ms', 'p95_late_ms', 'most_late_ms', 'mean_run_ms',
        'p95_run_ms', 'longest_run_ms')} for row in told)
    assert set(open_.values()) == {None}
    assert (ended['mean_late_ms'], ended['most_late_ms']) == (693, 2000)
    assert 1400 < ended['p95_late_ms'] <= 2000
    assert (ended['mean_run_ms'], ended['longest_run_ms']) == (300, 300)
    assert told == [
        {'job': 'poll', 'due': 3, 'done': 0, 'dead': 0, 'skipped': 1,
         'misfire': 0, 'overlap': 1, 'paused': 0, 'lost': 0,
         'superseded': 0, 'cancelled': 0, 'open': 2, 'retried': 0,
         'taken_over': 0, 'processes': 1, 'slowest_object': None,
         'reason': 'not now'},
        {'job': 'poll', 'due': 3, 'done': 2, 'dead': 1, 'skipped': 0,
         'misfire': 0, 'overlap': 0, 'paused': 0, 'lost': 0,
         'superseded': 0, 'cancelled': 0, 'open': 0, 'retried': 0,
         'taken_over': 0, 'processes': 2, 'slowest_object': 'b',
         'reason': None}]
    shown = place.ask('history')
    assert all(name in shown for name in ('Done', 'Dead', 'Overlap', 'Open'))
    assert '1 of 3 skipped: not now' in ' '.join(shown.split())
    assert not any(name in shown for name in ('Paused', 'Retried'))


def test_an_invalid_request_for_the_history_is_one_line(place_of_sqlite):
    place = place_of_sqlite
    assert place.tell('history', '--since', '5m') == (0, [])
    assert re.search(r'\b5m\b.*; .*--since',
                     place.above('history', '--since', '5m'))
    assert re.search(r"'poll' .*; .*\[distperiodic\] group",
                     place.refuse('history', '--job', 'poll'))
    place.run('poll', place.now, 'a')
    assert re.search("'pol' .*; .*'poll'",
                     place.refuse('history', '--job', 'pol'))
    for since in '1', 'h', '1w', '-1h', '', '2026-13-01':
        assert f'--since: {since!r} ' in place.refuse(
            'history', f'--since={since}')
    for command in 'history', 'audit':
        # The error contains the time of the database's clock.
        assert re.search(r'2999-01-01 .*\b20\d\d-\d\d-\d\dT.*; ',
                         place.refuse(command, '--since', '2999-01-01'))
        assert 'poll' in place.ask(command, '--since', '1815-12-10')
    assert re.search(r"'9{20}' .*; .*\b1 .*\b1000000000\b", place.refuse(
        'history', '--limit', '99999999999999999999'))


def test_dead_objects_are_listed_and_run_again_when_they_are_put_back(place):
    first, second = place.now - 5 * SECOND, place.now - 2 * SECOND
    place.run('poll', first, 'a', 'b', 'c', dead=['a', 'b'])
    place.run('poll', second, 'a')
    place.run('sync', second, 'd', 'e', dead=['d', 'e'])

    told = json.loads(place.ask('dead', 'list', '-f', 'json'))
    assert [(row['job'], row['object'], row['attempt'], row['worker'],
             row['error']) for row in told] == [
        ('sync', 'd', 1, 'w-1', 'd is ill'),
        ('sync', 'e', 1, 'w-1', 'e is ill'),
        ('poll', 'b', 1, 'w-1', 'b is ill')]
    for which in ['--job', 'poll', '--all'], ['--object', 'd']:
        assert numbers(place.ask('dead', 'requeue', *which)) == [1]
    # They stay in the list until they succeed.
    left = json.loads(place.ask('dead', 'list', '-f', 'json'))
    assert {row['object']: row['state'] for row in left} == {
        'b': 'claimed', 'd': 'claimed', 'e': 'dead'}
    assert place.rows(tables.failure) == 4

    leases = place.store.take_over_expired(
        TakeOverRequest(['poll', 'sync'], [], 9),
        NewLease('again', 'api-2', 60.0))
    assert sorted((lease.job, lease.tick, claim.object, claim.attempt)
                  for lease in leases for claim in lease.claims) == [
        ('poll', first, 'b', 1), ('sync', second, 'd', 1)]
    for lease in leases:
        keys = [claim.object for claim in lease.claims]
        place.store.start(
            lease.held, keys, NewLease(f'{lease.id}.1', 'w-2', 60.0))
        assert place.store.finish(
            HeldLease(f'{lease.id}.1', lease.job, lease.tick), keys) == {*keys}
    [left] = json.loads(place.ask('dead', 'list', '-f', 'json'))
    assert left['object'] == 'e'
    told = json.loads(place.ask('history', '-f', 'json'))
    assert {(row['job'], row['due'], row['done'], row['dead'], row['open'])
            for row in told} == {('poll', 3, 2, 1, 0), ('poll', 1, 1, 0, 0),
                                 ('sync', 2, 1, 1, 0)}


def test_a_traceback_is_shown_for_one_object(place):
    place.run('poll', place.now - SECOND, 'a', 'b', dead=['a'])
    claiming.claim(place.store, 'poll', place.now, ['b'], lease='one',
                   holder='api-1', seconds=60.0, supersede=False)
    place.store.start(
        HeldLease('one', 'poll', place.now), ['b'],
        NewLease('two', 'w-1', 60.0))
    place.store.fail(
        HeldLease('two', 'poll', place.now),
        [Failure('b', 'b is ill', 'Traceback:\n  line 7')], None)

    told = place.ask('dead', 'list', '--object', 'b', '--traceback',
                     '-f', 'value', '-c', 'Traceback')

    assert told == 'Traceback:\n  line 7\n'
    assert 'Traceback' not in place.ask('dead', 'list')
    assert place.tell('dead', 'list', '--object', 'c') == (0, [])
    assert "'c'" in place.above('dead', 'list', '--object', 'c')


def test_only_dead_objects_are_put_back(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now - SECOND, 'a', 'b', dead=['b'])
    place.run('poll', place.now, 'b')
    place.run('poll', place.now, 'gone', dead=['gone'])
    place.store.sync('poll', [], ['gone'], readings=[place.now])

    for key in 'a', 'b', 'c', 'gone':
        assert re.search(f'{key!r} .*; .*distperiodic dead list', place.refuse(
            'dead', 'requeue', '--job', 'poll', '--object', key))
    assert numbers(place.ask('dead', 'requeue', '--all')) == [0]
    assert numbers(place.ask('dead', 'requeue', '--error', 'ill')) == [0]
    assert place.tell('dead', 'list') == (0, [])
    assert place.above('dead', 'list')
    assert place.rows(tables.lease) == 0
    for argv in [], ['--all', '--object', 'b'], ['--all', '--since', '1h']:
        assert '--all' in place.refuse('dead', 'requeue', *argv)
    assert re.search("'x' .*; .*'poll'", place.refuse(
        'dead', 'requeue', '--job', 'x', '--all'))


def test_thousands_are_put_back_in_small_steps(place_of_sqlite):
    place = place_of_sqlite
    objects = [f'object-{n:04}' for n in range(2500)]
    place.run('poll', place.now, *objects, dead=objects)

    assert numbers(place.ask('dead', 'requeue', '--all')) == [2500, 2500]
    assert place.rows(tables.lease) == 3


def paused(place):
    """Return the reason of the pause of each job, as a scheduler reads it."""
    found = place.store.attend({'poll': 60.0, 'sync': 60.0}, {})
    return {name: status.paused and status.paused.why
            for name, status in found.items()}


def test_a_job_is_paused_with_a_name_and_a_reason(place):
    for name in 'poll', 'sync':
        place.run(name, place.now, 'a')

    assert 'poll' in place.ask('job', 'pause', 'poll', '--why',
                               'disks are full')

    assert paused(place) == {'poll': 'disks are full', 'sync': None}
    poll, sync = json.loads(place.ask('job', 'list', '-f', 'json'))
    assert poll['why'] == 'disks are full'
    assert re.fullmatch(r'.+@.+', poll['by'])
    assert poll['paused_since'].endswith('Z')
    assert poll['last_tick'].endswith('Z')
    assert sync == {**poll, 'job': 'sync', 'paused_since': None, 'by': None,
                    'why': None}
    resumed = place.ask('job', 'resume', 'poll')
    assert paused(place) == {'poll': None, 'sync': None}
    again = place.ask('job', 'resume', 'poll')
    assert 'poll' in resumed
    assert 'poll' in again
    # The answer for a paused job differs from the answer for a job that runs.
    assert resumed != again


def test_a_user_without_a_name_can_pause_a_job(place_of_sqlite, monkeypatch):
    """A container may run as a user without an entry in its user database."""
    place = place_of_sqlite
    place.run('poll', place.now, 'a')

    def nobody(uid):
        raise KeyError('getpwuid(): uid not found: 12345')
    monkeypatch.setattr(pwd, 'getpwuid', nobody)
    assert shell.main(['job', 'pause', 'poll', '--why', 'x', '--config-file',
                       str(place.config)]) == 0

    [poll] = json.loads(place.ask('job', 'list', '-f', 'json'))
    assert poll['by'].startswith(f'uid-{os.getuid()}@')


def test_jobs_are_listed_with_their_schedules(place_of_sqlite):
    place = place_of_sqlite
    place.write_tasks(POLL + """
    @periodic_task(cron='0 3 * * *', objects='hosts', name='report')
    def report(self, context, host):
        pass

    @periodic_task(spacing=9, objects='hosts', name='off', enabled=False)
    def off(self, context, host):
        pass
""")
    for name in 'poll', 'gone':
        place.run(name, place.now, 'a')

    told = {row.pop('job'): row for row in json.loads(place.ask(
        'job', 'list', '--tasks', 'tasks:Tasks', '-f', 'json'))}

    assert [(name, row['schedule']) for name, row in told.items()] == [
        ('gone', told['gone']['schedule']), ('off', 'every 9 s, disabled'),
        ('poll', 'every 60 s'), ('report', "cron 0 3 * * * (UTC)")]
    assert '--tasks' in told['gone']['schedule']
    # The test's store records no schedules.
    assert {row['schedule'] for row in json.loads(
        place.ask('job', 'list', '-f', 'json'))} == {None}
    assert told['report']['next_tick'].endswith('T03:00:00Z')
    assert told['report']['last_tick'] is told['off']['next_tick'] is None
    assert told['poll']['next_tick'] > told['poll']['last_tick']


def test_a_job_that_is_triggered_runs_once_at_the_next_sweep(place):
    objects = [f'object-{n:03}' for n in range(700)]
    place.run('poll', place.now - SECOND, *objects)
    running = claiming.claim(place.store, 'poll', place.now, ['object-000'],
                             lease='one', holder='api-1', seconds=60.0,
                             supersede=False)
    started = place.store.start(
        HeldLease('one', 'poll', place.now), ['object-000'],
        NewLease('two', 'w-1', 60.0))
    assert [claim.fence for claim in started] == [
        claim.fence for claim in running.won]

    one = place.ask('job', 'trigger', 'poll', '--object', 'object-001')
    told = place.ask('job', 'trigger', 'poll')

    assert numbers(one) == [1]
    # Two objects were left out.
    assert numbers(told) == [698, 2]
    refused = place.refuse('job', 'trigger', 'poll', '--object', 'object-000')
    assert "'object-000'" in refused
    # The object is listed, so reading the catalogue would not help.
    assert '--tasks' not in refused
    leases = place.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease('again', 'api-2', 60.0))
    assert sorted(claim.object for lease in leases
                  for claim in lease.claims) == objects[1:]
    assert {claim.attempt for lease in leases
            for claim in lease.claims} == {1}
    for lease in leases:
        keys = [claim.object for claim in lease.claims]
        place.store.start(
            lease.held, keys, NewLease(f'{lease.id}.1', 'w', 60.0))
        place.store.finish(
            HeldLease(f'{lease.id}.1', 'poll', lease.tick), keys)
    told = json.loads(place.ask('history', '-f', 'json'))
    assert [(row['due'], row['done'], row['superseded'], row['open'])
            for row in told] == [
        (698, 698, 0, 0), (1, 1, 0, 0), (1, 0, 0, 1), (700, 700, 0, 0)]


def spacing_without_tick(now, *spacings):
    """Return the first of these spacings, in seconds, without a tick in the
    next five minutes.
    """
    return next(n for n in spacings if now % (n * SECOND) < (n - 300) * SECOND)


def test_a_trigger_leaves_the_missed_ticks_to_be_decided(place):
    """An operator triggers a job, and then its scheduler starts again."""
    seconds = spacing_without_tick(place.now, 3600, 4300, 5000, 5700)
    place.write_tasks(POLL.replace('spacing=60', f'spacing={seconds}'))
    period = seconds * SECOND
    last = place.now - place.now % period - 5 * period
    newest, store = last + 4 * period, place.store
    place.run('poll', last, 'a', 'b')

    place.ask('job', 'trigger', 'poll', '--object', 'a')
    [lease] = store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease('again', 'api-1', 60.0))
    store.start(lease.held, ['a'], NewLease('two', 'w', 60.0))
    store.finish(HeldLease('two', 'poll', lease.tick), ['a'])

    code, [told] = place.tell('audit', '--tasks', 'tasks:Tasks')
    assert (code, told['lost'], told['unexplained']) == (0, 0, 0)
    answer = claiming.claim(store, 'poll', newest, ['a', 'b'], lease='three',
                            holder='api-1', seconds=60.0, supersede=True,
                            min_watermark=newest - period)
    assert answer.won == []
    assert [(row.object, row.settled) for row in answer.behind] == [
        ('a', last), ('b', last)]
    assert len(store.skip(SkipRequest(
        'poll', newest - period, ['a', 'b'], holder='api-1',
        by=SkippedBy.MISFIRE, reason='late', missed=lambda last: 2))) == 2
    place.run('poll', newest, 'a', 'b')

    code, [told] = place.tell('audit', '--tasks', 'tasks:Tasks')
    assert code == 0
    assert (told['passed_over'], told['lost'], told['unexplained']) == (
        6, 0, 0)


def test_an_object_is_triggered_once_however_often_it_is_asked(
        place, monkeypatch):
    """The answer to the first call may have been lost, so a repeated call
    triggers no object again. A trigger settles no tick of the schedule.
    """
    place.run('poll', place.now - SECOND, 'a')
    store = GroupStore(place.url, place.group)
    tick = store.now()
    monkeypatch.setattr(store, 'now', lambda: tick)

    def trigger():
        return [admin.trigger(store, 'poll', key=key)
                for key in ('a', 'b', None)]
    claimed = Triggered(tick, 0, 0, 1)
    nothing = [claimed, Triggered(tick, 0, 0), claimed]

    assert trigger() == [Triggered(tick, 1, 0), *nothing[1:]]
    [lease] = place.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease('again', 'api-1', 60.0))
    assert trigger() == nothing
    place.store.start(lease.held, ['a'], NewLease('two', 'w', 60.0))
    place.store.finish(HeldLease('two', 'poll', tick), ['a'])

    assert trigger() == nothing
    store.close()


def test_a_tick_that_comes_during_a_trigger_is_no_obstacle(
        place, monkeypatch):
    """The trigger has read its time. Then a tick of the schedule is skipped
    for one object, and claimed for another.
    """
    place.run('poll', place.now - SECOND, 'skipped', 'claimed')
    with contextlib.closing(GroupStore(place.url, place.group)) as store:
        tick = store.now()
        monkeypatch.setattr(store, 'now', lambda: tick)
        assert place.store.skip(SkipRequest(
            'poll', tick + 1, ['skipped'], holder='api-1',
            by=SkippedBy.PAUSE, reason='paused', missed=lambda last: 1))
        place.run('poll', tick + 1, 'claimed')

        assert admin.trigger(
            store, 'poll', key=None) == Triggered(tick, 1, 0, 1)

    told = place.refuse('job', 'trigger', 'poll', '--object', 'skipped')
    assert 'earlier tick has not ended' in told


def test_a_job_or_an_object_that_is_not_there_is_refused(place_of_sqlite):
    place = place_of_sqlite
    assert place.tell('job', 'list') == (0, [])
    assert place.above('job', 'list')
    place.run('poll', place.now - SECOND, 'a')
    for argv in (['pause', 'pol', '--why', 'x'], ['resume', 'pol'],
                 ['trigger', 'pol']):
        assert re.search("'pol' .*; .*'poll'", place.refuse('job', *argv))
    assert '--why' in place.refuse('job', 'pause', 'poll')
    assert re.search("'b' .*'poll' .*; .*--tasks", place.refuse(
        'job', 'trigger', 'poll', '--object', 'b'))
    place.ask('job', 'trigger', 'poll')
    place.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease('again', 'w', 60.0))


NEVER_CLAIMED = POLL + """
    @periodic_task(spacing=60, name='own')
    def own(self, context):
        pass

    @periodic_task(spacing=60, scope='group', name='whole')
    def whole(self, context):
        pass
"""


def test_a_job_is_triggered_before_its_first_tick(place):
    seconds = spacing_without_tick(place.now, 86400, 90000, 93600, 97200)
    place.write_tasks(NEVER_CLAIMED.replace(
        'spacing=60', f'spacing={seconds}'))
    trigger = ['job', 'trigger', '--tasks', 'tasks:Tasks']

    assert re.search("'poll' .*--tasks", place.refuse(
        'job', 'trigger', 'poll'))
    # The error names the catalogue method.
    assert re.search(r"'c' .*'poll' .*\bhosts\b", place.refuse(
        *trigger, 'poll', '--object', 'c'))
    assert re.search("'own' .*; .*scope='group'",
                     place.refuse(*trigger, 'own'))
    one = place.ask(*trigger, 'poll', '--object', 'b')
    rest = place.ask(*trigger, 'poll')
    whole = place.ask(*trigger, 'whole')

    assert numbers(one) == numbers(whole) == [1]
    # One object is triggered, and one that was triggered before is left out.
    assert numbers(rest) == [1, 1]
    leases = place.store.take_over_expired(
        TakeOverRequest(['poll', 'whole'], [], 9),
        NewLease('again', 'api-2', 60.0))
    assert sorted(claim.object for lease in leases
                  for claim in lease.claims) == ['a', 'b', 'whole']
    # The trigger made no other tick due: the first tick is still in the
    # future.
    code, [poll, _] = place.tell('audit', '--tasks', 'tasks:Tasks')
    assert (code, poll['lost'], poll['not_listed']) == (0, 0, 0)


def test_all_jobs_are_paused_and_resumed(place_of_sqlite):
    place = place_of_sqlite
    assert '[distperiodic] group' in place.refuse(
        'job', 'pause', '--all', '--why', 'x')
    for job in 'poll', 'sync':
        place.run(job, place.now, 'a')
    place.ask('job', 'pause', 'sync', '--why', 'a first reason')

    told = place.ask('job', 'pause', '--all', '--why', 'a second one')

    poll, sync, note = told.splitlines()
    assert 'no scheduler of this group is running' in note
    assert 'poll' in poll
    # The output shows the time, the user and the reason of the replaced pause.
    assert re.search(
        r'sync\b.* 20\S+Z\b.* \S+@\S+: a first reason\b', sync)
    assert 'a first reason' not in poll
    assert {row['why'] for row in place.tell('job', 'list')[1]} == {
        'a second one'}
    place.ask('job', 'resume', '--all')
    assert {row['why'] for row in place.tell('job', 'list')[1]} == {None}


def test_a_scheduler_obeys_the_commands(place_of_sqlite):
    place = place_of_sqlite
    ran, ill = [], ['b']

    class Tasks(periodic.PeriodicTasks):

        def hosts(self, context):
            return ['a', 'b']

        @periodic.periodic_task(spacing=1, objects='hosts', name='poll')
        def work(self, context, host):
            if host in ill:
                raise RuntimeError('not well')
            ran.append((context.tick.timestamp(), host))

    conf = cfg.ConfigOpts()
    conf(['--config-file', str(place.config)])
    opts.register_opts(conf)
    conf.set_override('state_path', str(place.config.parent), 'distperiodic')
    scheduler = service.SchedulerService(conf, Tasks(conf))
    scheduler.start()
    try:
        waiting.wait_until(lambda: len(ran) > 1, 20)
        place.ask('job', 'pause', 'poll', '--why', 'b is ill')
        waiting.wait_until(
            lambda: scheduler.counts.get(('poll', 'paused'), 0) > 1, 20)
        paused = len(ran)
        ill.clear()
        if json.loads(place.ask('dead', 'list', '-f', 'json')):
            place.ask('dead', 'requeue', '--job', 'poll', '--all')
            waiting.wait_until(lambda: ran[-1][1] == 'b', 20)
        place.ask('job', 'trigger', 'poll', '--object', 'a')
        waiting.wait_until(lambda: ran[-1][0] % 1, 20)
        triggered = len(ran)
        assert {tick for tick, _ in ran[paused:]} <= {
            ran[-1][0], *(tick for tick, _ in ran[:paused])}
        place.ask('job', 'resume', 'poll')
        waiting.wait_until(lambda: len(ran) > triggered + 2, 20)
    finally:
        scheduler.stop()

    assert len(ran) == len(set(ran))
    told = json.loads(place.ask('history', '-f', 'json'))
    # On a busy machine, a tick may also be skipped because it is late.
    assert [row for row in told if row['paused']
            and 'b is ill' in row['reason']]
    assert all(row['due'] == row['done'] + row['dead'] + row['skipped']
               + row['superseded'] + row['cancelled'] for row in told)


def test_a_retry_is_not_taken_over_from_anybody(place):
    claiming.claim(place.store, 'poll', place.now, ['a', 'b'], lease='claimed',
                   holder='api-1', seconds=60.0, supersede=False)
    place.store.start(
        HeldLease('claimed', 'poll', place.now), ['a', 'b'],
        NewLease('running', 'w-1', 60.0))
    place.store.fail(
        HeldLease('running', 'poll', place.now), [Failure('a', 'it is ill')],
        NewLease('waits', '', 0.0))
    retried = place.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease('again', 'api-2', 60.0))
    [one] = place.tell('history')[1]
    # The worker has died during its runs.
    lost = place.store.take_over_expired(
        TakeOverRequest(['poll'], ['w-1'], 9, silence_timeout=0.0),
        NewLease('once-more', 'api-2', 60.0))
    [two] = place.tell('history')[1]

    assert [claim.object for lease in retried for claim in lease.claims] == [
        'a']
    assert (one['retried'], one['taken_over']) == (1, 0)
    assert [claim.object for lease in lost for claim in lease.claims] == ['b']
    assert (two['retried'], two['taken_over']) == (1, 1)


def test_objects_of_a_job_that_lists_none_were_not_served(place_of_sqlite):
    place_of_sqlite.store.adopt({'poll': 'every 60000000'})

    assert place_of_sqlite.tell('objects', 'poll')[1] == []
    assert re.search("'poll' .*; .*distperiodic status",
                     place_of_sqlite.above('objects', 'poll'))


COMMANDS = [['db', 'prune', '--dead', '1'], ['history'], ['dead', 'list'],
            ['dead', 'requeue', '--all'], ['job', 'list'],
            ['job', 'pause', 'poll', '--why', 'x'],
            ['job', 'resume', 'poll'], ['job', 'trigger', 'poll']]


@pytest.mark.parametrize('command', COMMANDS, ids=' '.join)
def test_a_command_without_its_tables_is_one_line(tmp_path, command):
    place = tmp_path / 'service.conf'
    for url, code, told in (
            ('none', 2, '[distperiodic] connection'),
            (f'sqlite:///{tmp_path}/none', 2, 'db sync'),
            ('postgresql://me:sesame@127.0.0.1:1/db', 1, 'refused')):
        place.write_text(f'[distperiodic]\nconnection = {url}\n')
        said = commands.call(*command, '--config-file', place)
        assert (said.returncode, said.stdout) == (code, '')
        assert said.stderr.count('\n') == 1
        assert told in said.stderr
        assert 'sesame' not in said.stderr
