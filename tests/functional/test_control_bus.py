# SPDX-License-Identifier: Apache-2.0
"""Commands of operators over the broker.

With a store, the broker makes members execute a command sooner. Without a
store, the broker delivers the command itself.
"""

import contextlib
import os
import pwd

import pytest

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import schema
from distperiodic.operator import auditing
from distperiodic.operator import members
from distperiodic.operator.group_reader import GroupStore
from tests import waiting
from tests.functional.cluster import Cluster
from tests.functional.test_control import ask
from tests.functional.test_control import names
from tests.functional.test_control import owners
from tests.functional.test_control import rows
from tests.functional.test_control import run
from tests.functional.test_control import trigger
from tests.functional.test_control import wait_owners

SWEEP = 30
SECOND = 1_000_000


class Clusters:
    """Makes clusters, and ends them."""

    def __init__(self, place, zookeeper):
        self._place = place
        self._zookeeper = zookeeper
        self._made = []

    def stored(self, broker, connection, kinds=('scheduler',) * 2, **options):
        """Start a group whose members read the store every 30 s."""
        schema.sync(connection)
        return self._start(
            broker.url, kinds, connection=connection, sweep_interval=SWEEP,
            session_timeout=2 * SWEEP, lease=4 * SWEEP, misfire='all',
            overlap='wait', **options)

    def of_ring(self, broker, kinds=('scheduler', 'scheduler', 'worker'),
                sections=None, **options):
        """Start a group without a store."""
        return self._start(broker.url, kinds, sections, connection='none',
                           **options)

    def _start(self, url, kinds, sections=None, **options):
        cluster = Cluster(self._place, self._zookeeper.url, url,
                          objects=40, spacing=2, **options)
        for name, section in (sections or {}).items():
            cluster.set_section(name, **section)
        self._made.append(cluster)
        for kind in kinds:
            cluster.start(kind)
        for kind, partition in ('scheduler', None), ('worker', 'default'):
            if kind in kinds:
                with cluster.observe(partition) as group:
                    group.wait_members(kinds.count(kind))
        waiting.wait_until(
            lambda: len(rows(cluster, 'member', 'list')) == len(kinds), 30)
        return cluster

    def close(self):
        for cluster in self._made:
            cluster.close()


@pytest.fixture
def clusters(tmp_path, zookeeper):
    made = Clusters(tmp_path, zookeeper)
    yield made
    made.close()


def claimed(told):
    """Return the number of objects that schedulers have claimed, by their
    answers.
    """
    return sum(int(line.split('claimed ')[1].split()[0])
               for line in told.splitlines() if '): claimed ' in line)


def triggered(cluster):
    """Return the runs that an operator triggered."""
    return [one for one in cluster.runs() if one.tick % 1]


@contextlib.contextmanager
def took_at_most(seconds):
    clock = SystemClock()
    began = clock.monotonic()
    yield
    assert clock.monotonic() - began < seconds


def seconds_until_the_answer(cluster):
    """Return the seconds from the newest action to each of its answers, by the
    store's clock.
    """
    with contextlib.closing(GroupStore(
            cluster.options['connection'], cluster.group)) as store:
        [event] = auditing.events(store, since=0, limit=1)
        return [(one.at - event.at) / SECOND
                for one in members.answers(store, event.id)]


# -- with a store

def test_a_command_is_followed_at_once_and_not_only_at_the_next_sweep(
        clusters, rabbitmq, postgresql):
    cluster = clusters.stored(rabbitmq, postgresql.url,
                              ['scheduler', 'scheduler', 'worker', 'worker'])
    first, second = names(cluster)

    told = ask(cluster, 'member', 'drain', first, '--schedulers',
               '--reason', 'new kernel')

    assert told.startswith(f'{first} (scheduler): drained')
    assert max(seconds_until_the_answer(cluster)) < SWEEP / 3
    wait_owners(cluster, second)

    # It is unlikely that the sweeps of four members all come so soon.
    for argv in (['undrain', '--all'], ['set', 'pool_size', '3', '--all']):
        ask(cluster, 'member', *argv)
        answers = seconds_until_the_answer(cluster)
        assert len(answers) == 4
        assert max(answers) < SWEEP / 3
    wait_owners(cluster, first, second)


def test_without_a_broker_a_command_is_followed_at_the_next_sweep(
        clusters, breakable_rabbitmq, postgresql):
    cluster = clusters.stored(breakable_rabbitmq, postgresql.url)
    first, _ = names(cluster)
    breakable_rabbitmq.kill()

    told = run(cluster, 'member', 'drain', first, '--wait', SWEEP + 10)

    assert (told.returncode, told.stderr) == (0, ''), told
    assert f'{first} (scheduler): drained' in told.stdout
    assert told.stdout.count('note: broker rabbit://') == 1
    assert ('the members read the change within 30 s (sweep_interval)'
            in told.stdout)
    assert max(seconds_until_the_answer(cluster)) < SWEEP + 2


def test_a_job_is_paused_resumed_and_triggered_at_once(
        clusters, rabbitmq, postgresql):
    cluster = clusters.stored(rabbitmq, postgresql.url,
                              ['scheduler', 'scheduler', 'worker'])
    cluster.wait_complete(1)

    told = ask(cluster, 'job', 'pause', 'ping', '--reason',
               'upgrade of the hosts')
    assert told.count('(scheduler): paused; ') == 2
    assert max(seconds_until_the_answer(cluster)) < SWEEP / 3
    assert len(cluster.logged('job paused')) == 2
    told = trigger(cluster)
    assert claimed(told) == 40
    assert max(seconds_until_the_answer(cluster)) < SWEEP / 3
    waiting.wait_until(lambda: len(triggered(cluster)) == 40, 20)
    told = ask(cluster, 'job', 'resume', 'ping')
    assert told.count('(scheduler): resumed, at ') == 2
    assert len(cluster.logged('job resumed')) == 2


def test_a_forged_command_only_makes_members_read_the_store(
        clusters, rabbitmq, postgresql):
    """The forged message demands a drain, but the store contains no such
    command.
    """
    cluster = clusters.stored(rabbitmq, postgresql.url)
    first, second = names(cluster)
    file = cluster.config

    # Use the configuration of a person who can write to the broker but not to
    # the store.
    forged = file.with_name('forged.conf')
    forged.write_text(file.read_text().replace(
        postgresql.url, 'none'))
    cluster.config = forged
    told = run(cluster, 'member', 'drain', '--schedulers')
    cluster.config = file

    assert told.returncode == 1
    assert told.stdout.count('takes commands from its store') == 2
    assert [one['drained'] for one in rows(cluster, 'member', 'list')] == [
        'no', 'no']
    assert set(owners(cluster).values()) == {first, second}


# -- without a store

def test_members_without_a_store_are_drained_and_put_back(
        clusters, rabbitmq):
    cluster = clusters.of_ring(rabbitmq)
    before = owners(cluster)
    first, second = names(cluster)

    with took_at_most(10):
        told = ask(cluster, 'member', 'drain', first, '--schedulers',
                   '--reason', 'new kernel')

    assert told.startswith(f'{first} (scheduler): drained')
    assert ('a member forgets this command when its process restarts'
            in told)
    assert 'the command is not recorded' in told
    wait_owners(cluster, second)
    row, *others = [one for one in rows(cluster, 'member', 'list')]
    assert (row['member'], row['drained'], row['why']) == (
        first, 'yes', 'new kernel')
    assert row['drained_by'].startswith(
        pwd.getpwuid(os.getuid()).pw_name + '@')
    assert [(one['state'], one['drained']) for one in others] == [
        ('running', 'no')] * 2
    [line] = cluster.logged('command over the bus')
    assert (line['member'], line['reason']) == (first, "'new kernel'")

    ask(cluster, 'member', 'undrain', '--all')
    waiting.wait_until(lambda: owners(cluster) == before, 10)
    told = run(cluster, 'events')
    assert (told.returncode, 'the actions of operators are not recorded'
            in told.stderr) == (2, True)


def test_jobs_are_paused_and_triggered_without_a_store(clusters, rabbitmq):
    cluster = clusters.of_ring(rabbitmq, session_timeout=20)
    first, second = names(cluster)
    cluster.wait_complete(1)

    told = ask(cluster, 'job', 'pause', '--partition', 'default',
               '--reason', 'upgrade of the hosts')
    paused = SystemClock().now() / SECOND
    assert told.count('(scheduler): paused; ') == 2
    assert 'a scheduler that starts later does not know it' in told
    shown = ask(cluster, 'member', 'show', first, '--schedulers')
    assert 'once, ping' in shown
    told = ask(cluster, 'job', 'trigger', 'ping')
    assert claimed(told) == 40
    waiting.wait_until(lambda: len(triggered(cluster)) == 40, 20)
    assert not [one for one in cluster.runs()
                if one.tick > paused and not one.tick % 1]
    [line, *_] = cluster.logged('command over the bus')
    assert (line['command'], line['reason']) == (
        'job pause', "'upgrade of the hosts'")
    told = run(cluster, 'job', 'pause', 'pong', '--reason', 'x')
    assert told.returncode == 1
    assert told.stdout.count("it has no job 'pong'; it has once, ping") == 2
    frozen = next(program for program in cluster.programs if any(
        line['member'] == first and program.kind == 'scheduler'
        for line in program.logged('scheduler')))
    frozen.freeze()
    told = run(cluster, 'job', 'resume', '--all', '--wait', '3')
    frozen.thaw()

    assert told.returncode == 1
    assert f'{first} (scheduler): no answer; it was not reached' in told.stdout
    assert f'{second} (scheduler): resumed, at ' in told.stdout


def test_a_trigger_without_a_store_reads_no_catalogue(tmp_path):
    file = tmp_path / 'service.conf'
    file.write_text('[distperiodic]\nbackend_url = file:///tmp/x\n'
                    'connection = none\ndispatcher = messaging\n')
    cluster = type('Place', (), {'config': file})

    told = run(cluster, 'job', 'trigger', 'ping', '--tasks', 'a:B')

    assert told.returncode == 2
    assert 'omit --tasks' in told.stderr


def test_a_drain_without_a_store_ends_with_the_process(clusters, rabbitmq):
    cluster = clusters.of_ring(rabbitmq)
    worker = cluster.programs[-1]

    ask(cluster, 'member', 'drain', '--partition', 'default')
    waiting.wait_until(lambda: worker.logged('member drained'), 10)
    worker.kill()
    again = cluster.start('worker')
    waiting.wait_until(lambda: again.logged('joined'), 30)

    waiting.wait_until(lambda: [
        (one['state'], one['drained']) for one in rows(
            cluster, 'member', 'list') if one['role'] != 'scheduler'] == [
                ('running', 'no')], 30)
    cluster.wait_complete(1, after=SystemClock().now() / SECOND)


def test_a_pool_is_resized_and_shown_without_a_store(clusters, rabbitmq):
    cluster = clusters.of_ring(rabbitmq)

    told = ask(cluster, 'member', 'set', 'pool_size', '3', '--partition',
               'default')
    shown = ask(cluster, 'member', 'show', '--partition', 'default')

    assert 'pool_size is 3, at' in told
    assert 'default: size 3, busy' in shown


def test_a_member_that_does_not_answer_is_named(clusters, rabbitmq):
    cluster = clusters.of_ring(rabbitmq, session_timeout=20)
    first, second = names(cluster)
    frozen = next(program for program in cluster.programs if any(
        line['member'] == first and program.kind == 'scheduler'
        for line in program.logged('scheduler')))
    frozen.freeze()

    told = run(cluster, 'member', 'set', 'pool_size', '3', '--schedulers',
               '--wait', '3')
    listed = rows(cluster, 'member', 'list')
    frozen.thaw()

    assert told.returncode == 1
    assert f'{first} (scheduler): no answer; it was not reached' in told.stdout
    assert f'{second} (scheduler): pool_size is 3, at' in told.stdout
    assert [one['state'] for one in listed] == [
        'no answer', 'running', 'running']


def test_a_command_without_the_key_is_refused_counted_and_logged(
        clusters, rabbitmq):
    cluster = clusters.of_ring(rabbitmq, signing_key='the-key')
    file = cluster.config
    forged = file.with_name('forged.conf')
    forged.write_text(file.read_text().replace('the-key', 'a-guess'))
    before = owners(cluster)

    cluster.config = forged
    told = run(cluster, 'member', 'drain', '--all', '--wait', '2')
    cluster.config = file

    assert told.returncode == 1
    assert told.stdout.count('no answer') == 3
    for program in cluster.programs:
        # A program may read the message after the command has ended.
        [line] = waiting.wait_until(
            lambda program=program: program.logged('message dropped'))
        assert 'wrong signature' in line['reason']
        assert not program.logged('member drained')
    assert owners(cluster) == before
    # With the right key the command succeeds.
    assert ask(cluster, 'member', 'drain', '--all').count('): drained; ') == 3


def test_a_partition_on_another_broker_is_reached_as_well(
        clusters, rabbitmq, redis):
    cluster = clusters.of_ring(rabbitmq, sections={
        'partition:default': {'transport_url': redis.url}})

    told = ask(cluster, 'member', 'drain', '--all')

    assert told.count('(scheduler): drained') == 2
    assert told.count('(worker of default): drained') == 1


@pytest.mark.parametrize('broker', ['redis', 'rabbitmq'])
def test_each_kind_of_broker_carries_commands(clusters, broker, request):
    cluster = clusters.of_ring(request.getfixturevalue(broker))

    told = ask(cluster, 'member', 'drain', '--all')

    assert told.count('): drained; ') == 3


def test_without_a_store_and_a_broker_one_line_names_the_options_to_set(
        tmp_path):
    file = tmp_path / 'service.conf'
    file.write_text('[distperiodic]\nbackend_url = file:///tmp/x\n'
                    'connection = none\n')
    cluster = type('Place', (), {'config': file})

    for argv in (['member', 'list'], ['member', 'show', 'api-1'],
                 ['member', 'drain', '--all'],
                 ['member', 'set', 'pool_size', '3', '--all'],
                 ['job', 'pause', '--all', '--reason', 'x'],
                 ['job', 'resume', 'ping'], ['job', 'trigger', 'ping']):
        told = run(cluster, *argv)
        assert told.returncode == 2
        assert told.stderr.count('\n') == 1
        assert 'set [distperiodic] connection, or dispatcher = messaging' in (
            told.stderr)


def test_a_broker_that_is_away_fails_a_command_without_a_store(
        tmp_path, zookeeper):
    file = tmp_path / 'service.conf'
    file.write_text(
        '[DEFAULT]\ntransport_url = rabbit://ops:secret@127.0.0.1:9/\n'
        f'[distperiodic]\nbackend_url = {zookeeper.url}\n'
        'connection = none\ndispatcher = messaging\n')
    cluster = type('Place', (), {'config': file})

    with took_at_most(10):
        told = run(cluster, 'member', 'drain', '--all')

    assert told.returncode == 1
    assert told.stderr.count('\n') == 1
    assert '127.0.0.1:9' in told.stderr and 'secret' not in told.stderr
