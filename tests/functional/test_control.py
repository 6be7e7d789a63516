# SPDX-License-Identifier: Apache-2.0
"""Operators control running members, with real servers, processes and signals.

The handlers record which object ran in which process.
"""

import json
import os
import pwd

import pytest
import sqlalchemy as sa

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.members import SqlMembers
from distperiodic.core.control import Me
from tests import waiting
from tests.functional import commands
from tests.functional import modules
from tests.functional.cluster import Cluster

MESSAGING = [
    ('messaging', 'mariadb'),
    pytest.param(('messaging', 'postgresql'), marks=pytest.mark.full)]
ON_SERVERS = [('local', 'postgresql'), *MESSAGING]
# A process that is frozen during a write keeps a SQLite file locked.
without_sqlite = pytest.mark.parametrize(
    'steered', ON_SERVERS, ids='-'.join, indirect=True)


@pytest.fixture(params=[*ON_SERVERS, ('local', 'sqlite')], ids='-'.join)
def steered(tmp_path, zookeeper, request):
    """Return a cluster of two schedulers, and of two workers if the dispatcher
    is messaging.
    """
    dispatcher, store = request.param
    url = f'sqlite:///{tmp_path}/claims.sqlite' if store == 'sqlite' else (
        request.getfixturevalue(store).url)
    schema.sync(url)
    made = Cluster(
        tmp_path, zookeeper.url,
        request.getfixturevalue('rabbitmq').url
        if dispatcher == 'messaging' else None,
        connection=url, lease=5, send_timeout=2,
        spacing=1, objects=40, misfire='all', overlap='wait')
    try:
        made.schedulers = [made.start('scheduler') for _ in range(2)]
        if dispatcher == 'messaging':
            made.workers = [made.start('worker') for _ in range(2)]
        made.wait_complete(2, timeout=90)
        # A tick can be complete before the last process has joined.
        waiting.wait_until(
            lambda: len(rows(made, 'member', 'list'))
            == (4 if dispatcher == 'messaging' else 2), 60)
        yield made
    finally:
        made.close()


def run(cluster, *argv):
    return commands.call(*argv, '--config-file', cluster.config,
                         cwd=cluster.config.parent)


def ask(cluster, *argv):
    """Return the output of a command that succeeds."""
    told = run(cluster, *argv)
    assert (told.returncode, told.stderr) == (0, ''), told
    return told.stdout


def trigger(cluster):
    """Trigger the job, and return the output.

    If a tick is skipped after the command has read the clock and before it
    claims, the command runs nothing. Then repeat it.
    """
    return waiting.wait_until(
        lambda: (told := run(cluster, 'job', 'trigger', 'ping')
                 ).returncode == 0 and told.stdout, 60)


def rows(cluster, *argv):
    return json.loads(ask(cluster, *argv, '-f', 'json'))


def names(cluster, role='scheduler'):
    return [one['member'] for one in rows(cluster, 'member', 'list')
            if one['role'] == role]


def owners(cluster):
    """Return the owner of each object by the current ring."""
    with cluster.observe() as seen:
        ring = seen.now.ring
        return {f'192.168.10.{n}': ring.owner_of(f'192.168.10.{n}')
                for n in range(40)}


def wait_owners(cluster, *expected):
    """Wait until exactly these members own objects.

    A member answers to a command before it changes its entry in the group.
    """
    waiting.wait_until(
        lambda: set(owners(cluster).values()) == {*expected}, 10,
        f'the owners are not just {expected}')


def test_a_drained_scheduler_gives_its_objects_away_and_is_on_record(steered):
    cluster = steered
    first, second = names(cluster)
    before = owners(cluster)
    assert set(before.values()) == {first, second}

    said = ask(cluster, 'member', 'drain', first, '--schedulers',
               '--reason', 'new kernel')

    assert said.startswith(f'{first} (scheduler): drained')
    wait_owners(cluster, second)
    # All ticks are claimed, and none is lost.
    tick = cluster.complete_ticks()[-1]
    cluster.wait_complete(3, after=tick)
    [event] = rows(cluster, 'events')
    assert (event['what'], event['why'], event['outcome']) == (
        'member drain', 'new kernel', '1 done, 0 refused, 0 without an answer')
    assert event['who'] and event['from'] and event['at'].endswith('Z')
    [row] = [one for one in rows(cluster, 'member', 'list')
             if one['member'] == first and one['role'] == 'scheduler']
    assert (row['drained'], row['why']) == ('yes', 'new kernel')

    ask(cluster, 'member', 'undrain', first, '--schedulers')
    waiting.wait_until(lambda: owners(cluster) == before, 10,
                       'the objects did not come back')


@without_sqlite
def test_a_drain_outlives_a_scheduler_that_is_killed_amid_it(steered):
    cluster = steered
    first, second = names(cluster)
    killed = next(program for program in cluster.schedulers if any(
        line['member'] == first for line in program.logged('scheduler')))
    killed.freeze()

    said = run(cluster, 'member', 'drain', first, '--schedulers',
               '--wait', '1')
    killed.kill()
    again = cluster.start('scheduler')

    assert said.returncode == 1
    assert f'{first} (scheduler): no answer; ' in said.stdout
    drained = waiting.wait_until(
        lambda: again.logged('member drained'), 60, 'it was not drained')
    assert drained[0]['member'] == first
    tick = cluster.complete_ticks()[-1]
    cluster.wait_complete(2, after=tick, timeout=60)
    assert set(owners(cluster).values()) == {second}
    assert f'joined: group={cluster.group} member={first}' in again.said()


@without_sqlite
def test_a_frozen_member_does_not_answer_and_the_reason_is_named(steered):
    cluster = steered
    first, _ = names(cluster)
    frozen = next(program for program in cluster.schedulers if any(
        line['member'] == first for line in program.logged('scheduler')))
    frozen.freeze()
    waiting.wait_until(
        lambda: [one for one in rows(cluster, 'member', 'list')
                 if one['member'] == first and one['state'] == 'silent'],
        60, 'it was not seen to be silent')

    said = run(cluster, 'member', 'set', 'pool_size', '3', '--schedulers',
               '--wait', '5')
    frozen.thaw()

    assert said.returncode == 1
    assert 'no answer; it has been silent for' in said.stdout
    assert 'pool_size is 3, at' in said.stdout
    [event] = rows(cluster, 'events')
    assert event['outcome'] == '1 done, 0 refused, 1 without an answer'
    assert event['arguments'] == {'pool_size': 3}
    # The member executes the request when it is thawed.
    waiting.wait_until(
        lambda: frozen.logged('pool size set'), 60, 'it was not set')


# There are no workers with dispatcher = local.
@pytest.mark.parametrize(
    'steered', MESSAGING, ids='-'.join, indirect=True)
def test_a_drained_worker_gets_nothing_more_to_run(steered):
    cluster = steered
    first, second = names(cluster, 'worker of default')

    ask(cluster, 'member', 'drain', first, '--partition', 'default')
    with cluster.observe('default') as workers:
        waiting.wait_until(
            lambda: {one.identity: one.slots for one in workers.now.members
                     }.get(first) == 0, message='it still has slots')
    # The schedulers see this at the same time, but one of them may already
    # have chosen the worker for a run.
    drained = SystemClock().now() / 1_000_000 + 1
    cluster.wait_complete(3, after=drained, timeout=60)

    kept = rows(cluster, 'member', 'list')
    [pid] = [json.loads(ask(cluster, 'member', 'show', second, '--partition',
                            'default', '-f', 'json'))['pid']]
    assert {r.pid for r in cluster.runs()
            if r.tick > drained and r.job == 'ping'} == {pid}
    assert [one['drained'] for one in kept
            if one['role'] == 'worker of default'] == ['yes', 'no']


@pytest.mark.parametrize('argv, said', [
    (['drain', 'api-9'], "there is no member 'api-9'"),
    (['drain'], 'no member is named'),
    (['drain', '--partition', 'disks'],
     "no worker serves partition 'disks'; there are workers of default"),
    (['set', 'pool_size', '0', '--all'], "'0' cannot be used as pool_size"),
    (['set', 'pool_size', 'many', '--all'],
     "'many' cannot be used as pool_size"),
    (['undrain', '--partition', 'default', '--schedulers'],
     'exclude each other'),
])
def test_a_command_that_cannot_be_followed_is_one_line(
        place_of_sqlite, argv, said):
    place = place_of_sqlite
    report(place, '', 'api-1')
    report(place, 'default', 'api-1')

    told = place.refuse('member', *argv)

    assert said in told
    assert place.tell('events')[1] == []


def test_schedulers_are_named_as_missing_where_there_are_only_workers(
        place_of_sqlite):
    report(place_of_sqlite, 'default', 'api-1')

    told = place_of_sqlite.refuse('member', 'drain', '--schedulers')

    assert 'no scheduler of this group has reported' in told
    assert 'workers of default' in told


def test_without_a_store_the_configured_partitions_are_listed(tmp_path):
    config = tmp_path / 'service.conf'
    config.write_text('[distperiodic]\nconnection = none\n'
                      '[partition:disks]\npool_size = 3\n')

    told = commands.call('partition', 'list', '-f', 'json', '--config-file',
                         config)

    assert told.returncode == 0
    [row] = json.loads(told.stdout)
    assert (row['partition'], row['mode']) == ('disks', 'shared')
    assert 'Without a store no partition has one active worker' in told.stderr


def test_a_name_of_two_members_is_refused_as_ambiguous(place_of_sqlite):
    report(place_of_sqlite, '', 'api-1')
    report(place_of_sqlite, 'default', 'api-1')

    assert 'api-1 (scheduler), api-1 (worker of default)' in (
        place_of_sqlite.refuse('member', 'drain', 'api-1'))


def test_all_are_the_members_that_have_not_stopped(place_of_sqlite):
    place = place_of_sqlite
    report(place, '', 'api-1')
    for name in 'gone', 'drained', 'set':
        report(place, '', name)
    run(place, 'member', 'drain', 'drained', '--wait', '0.1')
    run(place, 'member', 'set', 'pool_size', '3', 'set', '--wait', '0.1')
    for name in 'gone', 'drained', 'set':
        report(place, '', name, stopped=True)

    def named(*argv):
        told = run(place, 'member', *argv, '--all', '--wait', '0.1').stdout
        return [line.split()[0] for line in told.splitlines()
                if 'no answer' in line]

    assert named('drain') == ['api-1']
    assert named('set', 'pool_size', '4') == ['api-1']
    assert named('undrain') == ['api-1', 'drained']
    assert named('unset', 'pool_size') == ['api-1', 'set']
    report(place, '', 'api-1', stopped=True)
    assert 'all members have stopped' in place.refuse(
        'member', 'drain', '--all')


def test_a_member_is_listed_with_the_host_that_its_name_lacks(
        place_of_sqlite):
    report(place_of_sqlite, '', 'api-1', host='node-7')

    [row] = rows(place_of_sqlite, 'member', 'list')

    assert (row['member'], row['host']) == ('api-1', 'node-7')


def test_to_drain_the_last_member_is_done_with_a_warning(place_of_sqlite):
    report(place_of_sqlite, '', 'api-1')

    told = run(place_of_sqlite, 'member', 'drain', 'api-1', '--wait', '0.1')

    assert told.returncode == 1
    assert 'warning: no scheduler is left' in told.stdout
    assert 'api-1 (scheduler): no answer; it reported' in told.stdout


def test_every_action_of_an_operator_is_on_record(place):
    place.run('poll', place.now, 'a', 'b', dead=['b'])

    place.ask('job', 'pause', 'poll', '--reason', 'upgrade of the hosts')
    place.ask('job', 'resume', 'poll')
    place.ask('job', 'trigger', 'poll', '--object', 'a')
    place.ask('dead', 'requeue', 'poll', '--all', '--reason', 'fixed')
    place.refuse('pool', 'reset', 'none', '--yes')
    place.ask('db', 'sync', '--reason', 'a new release')
    pruned = place.ask('db', 'prune', '--history', '30', '--reason', 'full')

    found = place.tell('events')[1]
    assert [(one['what'], one['target'], one['why'], one['outcome'])
            for one in reversed(found)] == [
        ('job pause', 'poll', 'upgrade of the hosts', 'done'),
        ('job resume', 'poll', None, 'done'),
        ('job trigger', 'poll', None, '1 object, 0 busy'),
        ('dead requeue', 'poll', 'fixed', '1 object'),
        ('pool reset', 'none', None, found[2]['outcome']),
        ('db sync', 'tables', 'a new release',
         f'the tables already have version {schema.VERSION}'),
        ('db prune', 'old rows', 'full', pruned.strip())]
    assert found[2]['outcome'].startswith('not done: ')
    assert found[0]['arguments'] == {'history': 30}
    assert {one['who'] for one in found} == {pwd.getpwuid(os.getuid()).pw_name}


def test_a_submission_is_on_record_without_its_parameters(place_of_sqlite):
    place = place_of_sqlite
    workflows = place.config.parent / 'workflows.json'
    workflows.write_text(json.dumps(modules.WORKFLOWS))
    with place.config.open('a') as file:
        file.write(f'workflows = {workflows}\n')
    kind = sorted(modules.WORKFLOWS)[0]

    task = place.ask('task', 'submit', kind, '--key', 'host-7', '--param',
                     'password=secret', '--reason', 'ticket 12').strip()
    place.refuse('task', 'submit', 'nothing')

    refused, done = place.tell('events')[1]
    assert (done['what'], done['target'], done['why'], done['outcome'],
            done['arguments']) == (
        'task submit', kind, 'ticket 12', f'task {task}', {'key': 'host-7'})
    assert refused['outcome'].startswith('not done: ')


def test_a_trigger_that_reads_the_catalogue_is_on_record_before_it_writes(
        place_of_sqlite):
    """An action that was interrupted has a record, without a successful
    outcome.
    """
    place = place_of_sqlite
    place.write_tasks('''
        def all_of_them(self, context):
            return ['a', 'b']

        @periodic_task(spacing=60, objects='all_of_them')
        def poll(self, context, one):
            pass
    ''')
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        connection.execute(sa.text(
            'CREATE TRIGGER stop BEFORE INSERT ON distperiodic_claim '
            "BEGIN SELECT RAISE(ABORT, 'stop'); END"))
    engine.dispose()

    told = commands.call(
        'job', 'trigger', 'poll', '--tasks', 'tasks:Tasks', '--config-file',
        place.config, cwd=place.config.parent)

    assert told.returncode != 0
    [event] = place.tell('events')[1]
    assert (event['what'], event['target']) == ('job trigger', 'poll')
    assert event['outcome'] != 'done'


# Jobs.

# Without a broker, members read commands only from the store.
@pytest.mark.parametrize(
    'steered', [('local', 'postgresql')], ids='-'.join, indirect=True)
def test_schedulers_answer_for_a_job_and_a_frozen_one_is_named(steered):
    cluster = steered
    first, second = names(cluster)

    told = ask(cluster, 'job', 'pause', '--partition', 'default',
               '--reason', 'upgrade of the hosts')
    paused = SystemClock().now() / 1_000_000
    for name in first, second:
        assert f'{name} (scheduler): paused; ' in told
    triggered = trigger(cluster)
    assert sum(int(line.split('claimed ')[1].split()[0])
               for line in triggered.splitlines() if 'claimed' in line) == 40
    waiting.wait_until(lambda: len([
        one for one in cluster.runs() if one.tick % 1]) == 40, 20)
    assert not [one for one in cluster.runs()
                if one.tick > paused and not one.tick % 1]
    frozen = next(program for program in cluster.schedulers if any(
        line['member'] == first for line in program.logged('scheduler')))
    frozen.freeze()
    resumed = run(cluster, 'job', 'resume', 'ping', '--wait', '8')
    frozen.thaw()

    assert resumed.returncode == 1
    assert f'{second} (scheduler): resumed, at ' in resumed.stdout
    assert f'{first} (scheduler): no answer; it has been silent for' in (
        resumed.stdout)
    assert [(one['what'], one['target'], one['outcome'])
            for one in rows(cluster, 'events')
            if not one['outcome'].startswith('0 objects')] == [
        ('job resume', 'ping', 'done; 1 done, 0 refused, 1 without an answer'),
        ('job trigger', 'ping',
         '40 objects, 0 busy; 2 done, 0 refused, 0 without an answer'),
        ('job pause', 'ping', 'done; 2 done, 0 refused, 0 without an answer'),
        ('job pause', 'once', 'done; 2 done, 0 refused, 0 without an answer')]
    # The member applies the command when it is thawed.
    waiting.wait_until(lambda: frozen.logged('job resumed'), 60)


def test_schedulers_alone_answer_for_a_job(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now, 'a')
    report(place, '', 'api-1')
    report(place, '', 'gone', stopped=True)
    report(place, 'default', 'api-1')

    for argv, outcome in (
            (['pause', 'poll', '--reason', 'x'], 'done'),
            (['trigger', 'poll'], '1 object, 0 busy'),
            (['resume', 'poll'], 'done')):
        told = run(place, 'job', *argv, '--wait', '0.1')
        assert told.returncode == 1
        [line] = [line for line in told.stdout.splitlines()
                  if 'no answer' in line]
        assert line.startswith('api-1 (scheduler): no answer; it ')
        assert place.tell('events')[1][0]['outcome'] == (
            f'{outcome}; 0 done, 0 refused, 1 without an answer')


def test_the_jobs_of_a_partition_are_those_that_schedulers_report(
        place_of_sqlite):
    place = place_of_sqlite
    for job in 'poll', 'scrub', 'sync':
        place.run(job, place.now, 'a')
    pause = ['job', 'pause', '--reason', 'x', '--partition']
    assert 'none has reported its jobs yet' in place.refuse(*pause, 'disks')
    report(place, '', 'gone', stopped=True, topics={
        'disks': ['scrub', 'sync', 'read'], 'new': ['unclaimed'],
        'default': ['poll']})
    # Reports that no scheduler of this version writes are left out.
    report(place, '', 'odd-1', stopped=True, topics=['disks'])
    report(place, '', 'odd-2', stopped=True, topics={
        'disks': 7, 'default': [['scrub']]})

    place.ask(*pause, 'disks')

    assert {row['job']: row['why'] for row in place.tell('job', 'list')[1]
            } == {'poll': None, 'scrub': 'x', 'sync': 'x'}
    assert [one['target'] for one in place.tell('events')[1]] == [
        'sync', 'scrub']
    place.ask('job', 'resume', '--partition', 'disks')
    assert {row['why'] for row in place.tell('job', 'list')[1]} == {None}
    assert 'there are jobs of default, disks, new' in place.refuse(
        *pause, 'disk')
    assert 'try again when a scheduler has' in place.refuse(*pause, 'new')


def report(place, part, name, *, stopped=False, **state):
    """Report a member as its own process does."""
    connection = schema.connect(place.url)
    SqlMembers(connection).report(
        Me(place.group, part, name),
        '' if stopped else f'{name}~00000000', {'healthy': True, **state},
        new=True)
    connection.close()
