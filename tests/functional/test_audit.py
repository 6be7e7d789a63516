# SPDX-License-Identifier: Apache-2.0
"""``distperiodic audit`` reports, from the rows of real databases, whether all
due ticks ran.
"""

import contextlib
import datetime
import re

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import periodic
from distperiodic import ports
from distperiodic import service
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects import dialect
from distperiodic.adapters.sql.dialects import mysql
from distperiodic.core import ring
from distperiodic.core.attributes import PLAIN
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.operator import queries
from distperiodic.operator.group_reader import GroupStore
from distperiodic.service import pruner
from tests import claiming
from tests import waiting
from tests.functional import places
from tests.functional.commands import numbers
from tests.functional.places import DAY
from tests.functional.places import HOUR
from tests.functional.places import SECOND
from tests.pruned import pruned

MINUTE = 60 * SECOND
#: Expected values for a job whose schedule the store does not have.
UNKNOWN = {'passed_over': None, 'lost': None, 'not_listed': None}
HOSTS = """
    def hosts(self, context):
        return ['a', 'b', 'c']

    @periodic_task(spacing=60, objects='hosts', name='poll')
    def poll(self, context, host):
        pass
"""
CLASSES = ('due', 'on_time', 'late', 'dead', 'superseded', 'cancelled',
           'skipped', 'passed_over', 'lost', 'pending', 'not_listed',
           'unexplained')


@pytest.fixture
def tick(place):
    """Return a tick on a full minute, ten minutes ago, so that the following
    ticks are due, too.
    """
    place.write_tasks(HOSTS)
    return place.now - place.now % MINUTE - 10 * MINUTE


@pytest.fixture
def tick_of_sqlite(place_of_sqlite):
    place_of_sqlite.write_tasks(HOSTS)
    return place_of_sqlite.now - place_of_sqlite.now % MINUTE - 10 * MINUTE


def audit(place, *argv, tasks=True):
    """Return the exit code and the nonzero numbers, by job or by (job, tick).
    """
    code, rows = place.tell(
        'audit', *argv, *(['--tasks', 'tasks:Tasks'] if tasks else []))
    found = {}
    for row in rows:
        numbers = {name: row[name] for name in CLASSES if row[name] != 0}
        key = row['job'] if 'tick' not in row else (row['job'], row['tick'])
        found[key] = numbers
    return code, found


def change(place, table, which, **values):
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        changed = connection.execute(
            sa.update(table).where(*which).values(values)).rowcount
    engine.dispose()
    assert changed


def attended(place, since):
    """Record that schedulers served the jobs without a gap from *since* until
    now.
    """
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.job).where(
            tables.job.c.space == place.group).values(
                attended_since=since, attended_until=place.store.now()))
    engine.dispose()


def run_up_to_now(place, tick, *objects):
    """Run objects for all ticks from *tick* to the newest one.

    Begin in the first half of a minute, so that no newer tick comes due during
    the test.
    """
    waiting.wait_until(lambda: place.store.now() % MINUTE < 30 * SECOND, 40,
                       interval=0.1)
    while tick <= place.store.now():
        place.run('poll', tick, *objects)
        tick += MINUTE


def test_each_object_and_tick_comes_to_one_class(place, tick):
    store = place.store
    place.run('poll', tick, 'a', 'b', 'c', dead=['c'])
    place.run('poll', tick + MINUTE, 'a', 'b', 'c')
    # Skip three ticks of each object. One skip, of the last tick, counts all
    # three.
    store.skip(SkipRequest(
        'poll', tick + 4 * MINUTE, ['a', 'b', 'c'], holder='api-1',
        by=SkippedBy.MISFIRE, reason='late', missed=lambda last: 2))
    claiming.claim(store, 'poll', tick + 5 * MINUTE, ['a', 'b', 'c'],
                   lease='first', holder='api-1', seconds=60.0, supersede=True)
    assert claiming.claim(store, 'poll', tick + 6 * MINUTE, ['a'],
                          lease='second', holder='api-1', seconds=60.0,
                          supersede=True).superseded == 1
    store.discard(
        HeldLease('first', 'poll', tick + 5 * MINUTE), ['b'], State.CANCELLED,
        reason='not now')
    store.skip(SkipRequest(
        'poll', tick + 6 * MINUTE, ['b', 'c'], holder='api-1',
        by=SkippedBy.OVERLAP, reason='busy'))

    before = store.now()
    code, found = audit(place, '--since', '2h')

    assert code == 0
    # After the last tick there are no claims yet. The claims of 'a' and 'c'
    # are open, so only ticks of 'b' are given up.
    assert found in [{'poll': {
        'due': 21 + 3 * behind, 'on_time': 5, 'dead': 1, 'superseded': 1,
        'cancelled': 1, 'skipped': 2, 'passed_over': 9 + behind - 1,
        'pending': 2 + 2 * behind + 1}}
        for now in (before, store.now())
        for behind in [(now - tick) // MINUTE - 6]]


def test_a_watermark_that_moved_without_a_record_is_lost(place, tick):
    place.run('poll', tick, 'a', 'b', 'c')
    place.run('poll', tick + MINUTE, 'a', 'c')
    run_up_to_now(place, tick + 2 * MINUTE, 'a', 'b', 'c')

    code, found = audit(place, '--ticks')

    at = datetime.datetime.fromtimestamp(
        (tick + MINUTE) / SECOND, datetime.UTC).isoformat()
    assert code == 1
    lost = {key: numbers for key, numbers in found.items()
            if 'lost' in numbers}
    assert lost == {('poll', at.replace('+00:00', 'Z')): {
        'due': 3, 'on_time': 2, 'lost': 1}}
    # One line above the table names the lost tick, its job and the number of
    # objects.
    [line] = [line for line in place.show(
        'audit', '--tasks', 'tasks:Tasks').splitlines()
        if f'{at[:19]}Z' in line and not line.startswith('|')]
    assert {'lost', 'poll'} <= set(re.findall(r'\w+', line.lower()))
    assert numbers(line) == [1]


def test_an_object_that_others_leave_behind_is_lost_while_it_is_attended(
        place, tick):
    run_up_to_now(place, tick, 'a', 'b')
    place.run('poll', tick, 'c')
    code, found = audit(place)
    assert (code, found['poll'].get('lost')) == (0, None)
    assert found['poll']['passed_over'] >= 8

    attended(place, tick - HOUR)
    code, found = audit(place)

    assert code == 1
    # The newest ticks do not count as lost, because a scheduler may still
    # claim them.
    assert found['poll']['lost'] >= 6
    assert set(found['poll']) <= {
        'due', 'on_time', 'lost', 'passed_over', 'pending'}


def test_a_tick_that_was_recorded_as_lost_stays_lost_when_the_job_goes_on(
        place, tick):
    place.run('poll', tick, 'a')
    place.store.skip(SkipRequest(
        'poll', tick + 2 * MINUTE, ['a'], holder='api-1',
        by=SkippedBy.LOST, reason='late', missed=lambda last: 1))
    run_up_to_now(place, tick + 3 * MINUTE, 'a')

    code, found = audit(place, tasks=False)

    assert (code, found['poll']['lost']) == (1, 2)
    assert place.tell('history', '--since', '1h')[1][-2]['lost'] == 2


def test_an_object_that_the_store_does_not_list_is_reported(place, tick):
    run_up_to_now(place, tick, 'a', 'b')

    code, found = audit(place)

    assert (code, found['poll']['not_listed']) == (0, 1)


def test_an_audit_reads_each_object_of_a_large_catalogue_once(
        place, monkeypatch):
    monkeypatch.setattr(mysql, '_JOINED', 4)
    monkeypatch.setattr(dialect, '_ROWS', 4)
    hour = place.now - place.now % HOUR
    ids = [*(f'node-{number}' for number in range(10)),
           'Node-1', '\N{SNOWMAN}']
    with contextlib.closing(GroupStore(place.url, place.group)) as store:
        place.store.adopt({'poll': 'every 3600000000 spread'})
        for some, at in (ids[:7], hour - 9 * HOUR), (ids[7:], hour - HOUR):
            place.store.sync(
                'poll', [ports.Listed(key, PLAIN, at) for key in some], [],
                readings=[at])
        account = queries.account(
            store, 'poll', hour - 20 * HOUR)

        assert sorted((row.since, sorted(positions))
                      for row, positions in account.placed) == [
            (hour - 9 * HOUR, sorted(ring.positions_of(ids[:7]))),
            (hour - HOUR, sorted(ring.positions_of(ids[7:])))]
        assert queries.not_listed(
            store, 'poll', [*ids, 'NODE-1']) == {'NODE-1'}
        assert queries.not_listed(store, 'poll', []) == set()


def test_a_text_that_the_server_cuts_off_is_one_line(mariadb, tmp_path):
    def limit(connection, cursor, statement, parameters, *_):
        return statement.replace('@@max_allowed_packet', '4096'), parameters
    place = places.Place(mariadb.url, tmp_path)
    place.store.sync(
        'poll', [ports.Listed(f'{number:0200}', PLAIN, place.now)
                 for number in range(200)], [], readings=[place.now])
    sa.event.listen(sa.Engine, 'before_cursor_execute', limit, retval=True)
    try:
        with contextlib.closing(GroupStore(
                place.url, place.group)) as store, pytest.raises(
                    exceptions.ConfigError, match=(
                        '^the database server has returned only 4,096 bytes '
                        '.*; set its variable max_allowed_packet to 16M')):
            queries.not_listed(store, 'poll', ['a'])
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', limit)
        place.store.forget()
        place.store.close()


def test_an_end_that_is_missing_is_unexplained(place, tick):
    place.run('poll', tick, 'a', 'b', 'c')
    assert audit(place, tasks=False) == (0, {
        'poll': {'due': 3, 'on_time': 3, **UNKNOWN}})

    change(place, tables.history, [tables.history.c.done == 3], done=2)
    assert audit(place, tasks=False) == (1, {
        'poll': {'due': 2, 'on_time': 2, **UNKNOWN, 'unexplained': 1}})
    change(place, tables.history, [tables.history.c.done == 2], done=5)

    assert audit(place, tasks=False) == (1, {
        'poll': {'due': 5, 'on_time': 5, **UNKNOWN, 'unexplained': 2}})


def test_an_object_superseded_repeatedly_is_reported(
        place_of_sqlite, tick_of_sqlite):
    place, tick = place_of_sqlite, tick_of_sqlite
    place.store.adopt({'poll': 'every 60000000'})
    for at in range(10):
        place.run('poll', tick + at * MINUTE, 'a')
        claiming.claim_at_tick(
            place.store, 'poll', tick + at * MINUTE, ['b'], lease=f'l-{at}',
            holder='api-1', seconds=60.0, supersede=True)

    code, found = audit(place, tasks=False)
    told = place.above('audit')

    assert code == 1
    assert (found['poll']['on_time'], found['poll']['superseded']) == (10, 9)
    assert re.search(r"1 object was superseded for 3 periods or more and not "
                     r"started, such as 'b' of poll since", told), told


def test_a_late_start_is_reported(place_of_sqlite, tick_of_sqlite):
    place, tick = place_of_sqlite, tick_of_sqlite
    place.run('poll', tick, 'a')
    place.run('poll', tick + MINUTE, 'a', 'b', times=ports.RunTimes(2))

    _, found = audit(place, tasks=False)

    assert found['poll'] == {'due': 3, 'on_time': 1, 'late': 2, **UNKNOWN}


def test_a_time_before_the_history_is_not_judged(
        place_of_sqlite, tick_of_sqlite):
    place, tick = place_of_sqlite, tick_of_sqlite
    run_up_to_now(place, tick, 'a', 'b', 'c')
    place.run('old', place.now - 3 * DAY, 'a')

    place.ask('db', 'prune', '--history', (5 * MINUTE) / DAY)
    code, found = audit(place, '--since', '7d', '--job', 'poll')

    assert code == 0
    assert found['poll']['on_time'] in (15, 18)
    assert set(found['poll']) == {'due', 'on_time'}


def test_pruning_leaves_no_unexplained_tick_of_an_open_claim(
        place_of_sqlite, tick_of_sqlite):
    place, tick = place_of_sqlite, tick_of_sqlite
    place.run('poll', tick, 'b')
    claiming.claim(place.store, 'poll', tick, ['a'], lease='first',
                   holder='api-1', seconds=60.0, supersede=True)
    place.run('poll', tick - MINUTE, 'c')

    place.ask('db', 'prune', '--history', MINUTE / DAY)

    code, found = audit(place, tasks=False)
    assert (code, found['poll']['pending']) == (0, 1)
    place.store.start(
        HeldLease('first', 'poll', tick), ['a'],
        NewLease('second', 'w-1', 60.0))
    place.store.finish(HeldLease('second', 'poll', tick), ['a'])
    code, found = audit(place, tasks=False)
    assert (code, found['poll']['on_time']) == (0, 2)


def test_a_small_step_deletes_history_that_is_too_old(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now - 3 * DAY, 'a')
    place.run('poll', place.now, 'a')

    for expected in 2, 0:
        assert pruned(place.store.database, place.group, history=2.0)[
            'history'] == expected

    assert place.rows(tables.history) == 2


def test_since_is_a_length_or_an_instant(place_of_sqlite, tick_of_sqlite):
    place, tick = place_of_sqlite, tick_of_sqlite
    place.run('poll', tick, 'a')
    place.run('poll', tick - HOUR, 'b')
    at = datetime.datetime.fromtimestamp(tick / SECOND, datetime.UTC)

    for since in '30m', at.isoformat(), at.isoformat()[:19]:
        assert audit(place, f'--since={since}', tasks=False)[1] == {
            'poll': {'due': 1, 'on_time': 1, **UNKNOWN}}
    for since in 'soon', '24', '-1h', '2026-13-01':
        assert f'--since: {since!r} ' in place.refuse(
            'audit', f'--since={since}')
    assert re.search("'pol' .*; .*'poll'",
                     place.refuse('audit', '--job', 'pol'))


@pytest.mark.parametrize(('text', 'said'), [
    ('raise OSError("no disk")', 'OSError: no disk'),
    ('return None', 'InvalidObject')])
def test_a_catalogue_that_cannot_be_read_is_reported(
        place_of_sqlite, tick_of_sqlite, text, said):
    place = place_of_sqlite
    place.run('poll', tick_of_sqlite, 'a')
    place.write_tasks(HOSTS.replace("return ['a', 'b', 'c']", text))

    told = place.above('audit', '--tasks', 'tasks:Tasks')

    # The output names the job, its catalogue method and the error.
    assert re.search(rf'\bpoll: .*\bhosts\b.* {said}', told)
    assert place.tell('audit', '--tasks', 'tasks:Tasks')[0] == 1


def test_a_service_that_was_stopped_and_came_back_has_lost_nothing(
        place_of_sqlite):
    place = place_of_sqlite
    ran = dict.fromkeys(['a', 'b', 'c', 'sync'], 0)

    class Tasks(periodic.PeriodicTasks):

        def hosts(self, context):
            return ['a', 'b', 'c']

        # If the machine pauses, a run may last beyond the next tick.
        @periodic.periodic_task(spacing=3, objects='hosts', name='poll',
                                overlap='wait')
        def work(self, context, host):
            ran[host] += 1

        @periodic.periodic_task(spacing=3, scope='group', name='sync',
                                overlap='wait')
        def sync(self, context):
            ran['sync'] += 1

    place.write_tasks(HOSTS.replace('60', '3') + """
    @periodic_task(spacing=3, scope='group', name='sync')
    def sync(self, context):
        pass
    """)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(place.config)])
    opts.register_opts(conf)
    conf.set_override('state_path', str(place.config.parent), 'distperiodic')
    for turn in 1, 2:
        scheduler = service.SchedulerService(conf, Tasks(conf))
        scheduler.start()
        try:
            waiting.wait_until(
                lambda turn=turn: min(ran.values()) >= 2 * turn, 30)
        finally:
            scheduler.stop()
        ended = place.store.now()
        if turn == 1:
            waiting.wait_until(
                lambda ended=ended: place.store.now() > ended + 9 * SECOND,
                30)

    code, found = audit(place)

    assert code == 0
    for job in 'poll', 'sync':
        assert found[job]['passed_over'] > 1
        assert set(found[job]) <= {
            'due', 'on_time', 'late', 'passed_over', 'pending'}


def test_a_scheduler_deletes_old_history_by_itself(
        place_of_sqlite, monkeypatch):
    place = place_of_sqlite
    place.run('poll', place.now - 31 * DAY, 'a')
    place.run('poll', place.now - 29 * DAY, 'a')
    place.store.close()
    monkeypatch.setattr(pruner, 'INTERVAL', 0.1)

    class Tasks(periodic.PeriodicTasks):

        @periodic.periodic_task(spacing=3600, scope='group')
        def sync(self, context):
            pass

    conf = cfg.ConfigOpts()
    conf(['--config-file', str(place.config)])
    opts.register_opts(conf)
    conf.set_override('state_path', str(place.config.parent), 'distperiodic')
    scheduler = service.SchedulerService(conf, Tasks(conf))
    scheduler.start()
    try:
        # The job of the scheduler writes a row if an hour begins meanwhile.
        waiting.wait_until(
            lambda: place.rows(tables.history, 'poll') == 2, 20)
    finally:
        scheduler.stop()
