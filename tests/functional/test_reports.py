# SPDX-License-Identifier: Apache-2.0
"""Reports of members about their runs and queues, as the commands show them.
"""

import json
import os
import textwrap
import uuid

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import opts
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.operator import activity
from distperiodic.operator import members as operator_members
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests import forks
from tests import programs
from tests import waiting
from tests.functional import commands

JOBS = """
    import threading
    import distperiodic

    class Tasks(distperiodic.PeriodicTasks):
        def many(self, context):
            return [f'disk-{n}' for n in range(20)]

        @distperiodic.periodic_task(spacing=1, scope='member')
        def beat(self, context):
            context.progress = {'page': 7}
            threading.Event().wait()

        @distperiodic.periodic_task(spacing=1, objects='many', topic='disks')
        def check(self, context, disk):
            threading.Event().wait()
"""


SICK = """
    import threading
    import time
    import distperiodic

    class Tasks(distperiodic.PeriodicTasks):
        def raises(self, context):
            raise RuntimeError('no database')

        def hangs(self, context):
            threading.Event().wait()

        def two(self, context):
            return ['quick', 'hung']

        @distperiodic.periodic_task(spacing=1, objects='raises')
        def broken(self, context, key):
            pass

        @distperiodic.periodic_task(spacing=1, objects='hangs')
        def unread(self, context, key):
            pass

        @distperiodic.periodic_task(spacing=1, objects='two', topic='disks',
                                    timeout=0.5)
        def check(self, context, key):
            if key == 'hung':
                threading.Event().wait()
            time.sleep(0.02)
"""


class Service:
    """One scheduler, and a worker of ``disks`` if there is a broker."""

    def __init__(self, place, jobs=JOBS, **options):
        (place / 'jobs_here.py').write_text(textwrap.dedent(jobs))
        self.place = place
        transport = options.pop('transport_url', None)
        self.sends = transport is not None
        self.store = options.get('connection') != 'none'
        self.config = programs.write_config(
            place / 'service.conf',
            DEFAULT={'transport_url': transport} if transport else {},
            distperiodic={'group': f'tests-{uuid.uuid4().hex[:8]}',
                          'state_path': place / 'state',
                          'session_timeout': 3, **options},
            **{'partition:disks': {'pool_size': 3}})
        self.programs = []
        self.start('scheduler')
        if self.sends:
            self.start('worker', '--partition', 'disks')

    def start(self, *words):
        self.programs.append(forks.Program(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', *words,
             '--tasks', 'jobs_here:Tasks', '--config-file', self.config],
            self.place / f'{words[0]}.log', cwd=self.place,
            env=os.environ | {'PYTHONPATH': str(programs.ROOT)}))

    def rows(self, *argv):
        told = commands.call(*argv, '-f', 'json', '--config-file', self.config)
        return json.loads(told.stdout) if told.returncode == 0 else []

    def close(self):
        for program in self.programs:
            program.kill()


def embedded(request):
    return {}


def ring_only(request):
    return {
        'connection': 'none', 'dispatcher': 'messaging',
        'backend_url': request.getfixturevalue('zookeeper').url,
        'transport_url': request.getfixturevalue('rabbitmq').url}


def on_servers(request):
    url = request.getfixturevalue('postgresql').url
    schema.sync(url)
    return ring_only(request) | {'connection': url}


@pytest.fixture(params=[embedded, on_servers, ring_only],
                ids=lambda made: made.__name__)
def service(tmp_path, request):
    made = Service(tmp_path, **request.param(request))
    yield made
    made.close()


@pytest.mark.parametrize('made', [embedded, on_servers])
def test_processes_report_their_problems(tmp_path, request, made):
    service = Service(tmp_path, SICK, **made(request))
    request.addfinalizer(service.close)
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf(['--config-file', str(service.config)])
    settings = opts.settings(conf)
    store = GroupStore(settings.connection, settings.group)
    request.addfinalizer(store.close)

    # The first report follows the creation of the tables.
    waiting.wait_until(lambda: service.rows('member', 'list'), 90)

    def members():
        found = {one.role: one for one in operator_members.members(store)}
        if not found.keys() >= {
                'scheduler', *(['worker'] if service.sends else [])}:
            return None
        scheduler = found['scheduler'].facts
        pools = {one.partition: one for one in found[
            'worker' if service.sends else 'scheduler'].facts.pools}
        if len(scheduler.catalogues) < 2 or not pools['disks'].hanging:
            return None
        return found['scheduler'], scheduler, pools['disks']
    row, scheduler, disks = waiting.wait_until(members, 90)

    broken, unread = sorted(scheduler.catalogues)
    assert (broken.job, broken.error) == (
        'broken', 'RuntimeError: no database')
    assert row.facts.started <= broken.failing_since <= row.seen
    assert (unread.job, unread.error, unread.read_at) == ('unread', '', None)
    assert row.facts.started <= unread.reading_since <= row.seen
    assert (disks.size, disks.hanging_runs[0].object,
            disks.hanging_runs[0].timeout) == (3, 'hung', 0.5)
    assert scheduler.store.calls > 0

    def quick_run():
        return [one for one in activity.history(
            store,
            job='check', since=row.facts.started, limit=99)
            if one.counts.done == 1 and one.ran.count]
    quick = waiting.wait_until(quick_run, 30)[0]
    assert quick.late.count >= 1
    assert 20_000 <= quick.ran.max <= 10_000_000


@pytest.mark.parametrize('service', [embedded], indirect=True)
def test_the_only_member_of_an_embedded_store_is_steered(service):
    waiting.wait_until(lambda: service.rows('member', 'list'), 60)

    def ask(*argv):
        told = commands.call(
            'member', *argv, '--all', '--wait', '90', '--reason', 'a try',
            '--config-file', service.config)
        assert (told.returncode, told.stderr) == (0, ''), told
        return told.stdout

    assert 'pool_size is 5' in ask('set', 'pool_size', '5')
    assert 'drained; ' in ask('drain')
    assert [one['drained'] for one in service.rows('member', 'list')] == [
        'yes']
    assert 'undrained' in ask('undrain')
    # Each partition has its configured size again.
    assert 'pool_size is 3, 10' in ask('unset', 'pool_size')
    assert [(one['what'], one['outcome'])
            for one in reversed(service.rows('events'))] == [
        (f'member {what}', '1 done, 0 refused, 0 without an answer')
        for what in ('set', 'drain', 'undrain', 'unset')]


def by_role(rows):
    return {one['role']: one for one in rows}


def test_a_member_reports_its_queue_and_runs_outside_the_store(service):
    runs_disks = 'worker of disks' if service.sends else 'scheduler'

    def members():
        found = by_role(service.rows('member', 'list'))
        return (found.get(runs_disks, {}).get('busy', 0)
                == (3 if service.sends else 4)
                and found['scheduler']['busy'] and found)
    found = waiting.wait_until(members, 90)

    if not service.sends:
        # If there were a worker, its queue would be shorter: the scheduler
        # keeps the objects that a busy worker cannot accept.
        assert found[runs_disks]['queued'] == 17
    assert found['scheduler']['partition_role'] is None
    if service.sends:
        assert found[runs_disks]['partition_role'] == 'shared'

    def beat():
        shown = service.rows(
            'member', 'show', found['scheduler']['member'], '--schedulers')
        [run] = [one for one in shown['runs'] if one['job'] == 'beat']
        # A report that was made as the run began has no progress.
        return run['progress'] and (shown, run)
    shown, run = waiting.wait_until(beat, 30)
    assert (run['object'], run['progress']) == (
        found['scheduler']['member'], '{"page": 7}')
    assert run['age_s'] > 0
    # The store, if there is one, runs on this host.
    assert abs(shown['clock_ahead_s']) < 1 if service.store else (
        'clock_ahead_s' not in shown)
    disks = service.rows('member', 'show', found[runs_disks]['member'],
                         *(['--partition', 'disks'] if service.sends else []))
    assert disks['pools']['disks'] == {
        'size': 3, 'busy': 3, 'hanging': 0,
        'queued': found[runs_disks]['queued']}
    assert len([one for one in disks['runs'] if one['job'] == 'check']) >= 3


@pytest.mark.parametrize('service', [embedded, on_servers], indirect=True)
def test_runs_of_jobs_of_every_member_are_listed_with_the_others(service):
    def runs():
        found = service.rows('running')
        # The first report may precede the progress of the run.
        return {one['job'] for one in found if one['progress']
                or one['job'] == 'check'} == {'beat', 'check'} and found
    found = waiting.wait_until(runs, 90)

    [beat] = [one for one in found if one['job'] == 'beat']
    assert beat['progress'] == {'page': 7}
    assert beat['lease_ends'] is None
    assert beat['age_s'] > 0
    # No run is listed twice, by its member and by the store.
    assert len({one['object'] for one in found}) == len(found)
    assert len(service.rows('running', 'beat')) == 1
    assert len(service.rows('running', 'check')) == len(found) - 1
    assert len(service.rows('running', '--limit', '2')) == 2
    assert service.rows('running', '--older-than', '1h') == []
    # A member that no longer reports has no runs.
    service.close()
    waiting.wait_until(lambda: 'beat' not in {
        one['job'] for one in service.rows('running')}, 30)
    told = commands.call('running', 'beat', '--config-file', service.config)
    assert told.returncode == 2
    assert 'only while it runs' in told.stderr


def test_all_runs_of_a_member_are_found_among_many_runs_of_others(place):
    """If a member has more runs than are shown, the command says so."""
    def begin(holder, number):
        keys = [f'{holder}-{n}' for n in range(number)]
        lease, running = uuid.uuid4().hex, uuid.uuid4().hex
        claiming.claim(place.store, 'poll', place.now, keys, lease=lease,
                       holder='api-1', seconds=60.0, supersede=False)
        place.store.start(
            HeldLease(lease, 'poll', place.now), keys,
            NewLease(running, holder, 60.0))
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        for name in ('w_1', 'w-1', 'w'):
            connection.execute(sa.insert(tables.member).values(
                space=place.group, part='a', name=name, process=f'{name}~7',
                seen=place.now, state='{}'))
    engine.dispose()
    begin('w-1~7~1', 1001)
    begin('w_1~7~1', 2)
    begin('w~7~2', 1000)

    for name, number, cut in (('w_1', 2, False), ('w', 1000, False),
                              ('w-1', 1000, True)):
        _, found = place.tell('member', 'show', name)
        assert (len(found['runs']), found['runs_cut']) == (number, cut)
        assert all(run['object'].startswith(f'{name}~7~')
                   for run in found['runs'])
    shown = place.show('member', 'show', 'w-1').replace('|', ' ')
    assert 'only the 1,000 longest runs are' in ' '.join(shown.split())
    assert "{'" not in shown
