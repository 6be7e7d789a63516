# SPDX-License-Identifier: Apache-2.0
"""The commands, with real servers and real processes."""

import json
import re
import uuid

import pytest

from distperiodic.demo.servers import unlocked
from tests import programs
from tests import waiting
from tests.functional import commands

TASKS = '''
import os
import time

from distperiodic import PeriodicTasks
from distperiodic import periodic_task


class Nodes(PeriodicTasks):

    def nodes(self, context):
        return [f'node-{n}' for n in range(12)]

    @periodic_task(spacing=1, objects='nodes')
    def poll(self, context, node):
        with open('began', 'a') as file:
            file.write(f'{node}\\n')
        time.sleep(0.3)
        with open('ended', 'a') as file:
            file.write(f'{node}\\n')
'''


#: Regular expression for the row of a missing process in the output of
#: ``status``, as a table or as a block.
GONE = re.compile(r'^failure member-dead: scheduler ', re.MULTILINE)


class Service:
    """A service in its own directory."""

    def __init__(self, place, backend_url, transport_url=None, **options):
        self.place = place
        self.group = f'cmd-{uuid.uuid4().hex[:8]}'
        (place / 'nodes.py').write_text(TASKS)
        self.config = place / 'service.conf'
        options = {
            'backend_url': backend_url, 'group': self.group,
            'session_timeout': 2, 'coordinator_heartbeat_interval': 0.2,
            'state_path': place / 'state',
            'dispatcher': 'messaging' if transport_url else 'local',
            **options}
        default = {'transport_url': transport_url} if transport_url else {}
        programs.write_config(self.config, DEFAULT=default,
                              distperiodic=options)
        self.config.chmod(0o600)

    def start(self, kind, *argv, before=()):
        return commands.Running(
            self.place / f'{kind}.log', *before, kind, *argv, '--tasks',
            'nodes:Nodes', '--config-file', self.config, cwd=self.place)

    def ask(self, *argv):
        return commands.run(*argv, '--config-file', self.config,
                            cwd=self.place)

    def table(self, *argv):
        return json.loads(self.ask(*argv, '-f', 'json').stdout)

    def wait_members(self, number, role='member'):
        waiting.wait_until(
            lambda: sum(row['role'] == role
                        for row in self.table('status')) == number,
            30, f'the group did not reach {number} rows of {role}')

    def lines(self, name):
        path = self.place / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def embedded(tmp_path):
    return Service(tmp_path, f'file://{tmp_path}/coordination')


def test_status_and_ring_see_the_schedulers_and_their_work_is_done(embedded):
    assert embedded.ask('status').returncode == 2
    with embedded.start('scheduler', '--workers', '2') as scheduler:
        embedded.wait_members(2)
        told = embedded.ask('status')
        shown = embedded.table('ring', 'show')
        owner = embedded.table('ring', 'explain', 'poll', 'node-3')['owner']
        waiting.wait_until(lambda: len(embedded.lines('ended')) >= 24, 20,
                           'the nodes were not polled')
        scheduler.terminate()
        assert scheduler.wait(20) == 0

    assert told.returncode in (0, 1)  # 1: the shares may be uneven
    assert '2 members' in told.stdout
    assert sum(row['share'] for row in shown) == pytest.approx(1, abs=1e-6)
    assert owner in [row['member'] for row in shown]
    assert embedded.ask('status').returncode == 2
    assert sorted(embedded.lines('began')) == sorted(embedded.lines('ended'))


def test_ctrl_c_ends_schedulers_cleanly(embedded):
    """Every run ends normally, and the launcher starts no new process."""
    with embedded.start('scheduler', '--workers', '2') as scheduler:
        embedded.wait_members(2)
        count = len(embedded.lines('began'))
        waiting.wait_until(lambda: len(embedded.lines('began')) > count, 20,
                           'the nodes were not polled')
        scheduler.press_ctrl_c()
        assert scheduler.wait(20) == 0
        assert not scheduler.family()

        assert len(scheduler.logged('scheduler stopped')) == 2
        assert 'Traceback' not in scheduler.said()
        assert sorted(embedded.lines('began')) == (
            sorted(embedded.lines('ended')))


def test_ps_names_the_role_of_a_process(embedded):
    with embedded.start('scheduler') as scheduler:
        embedded.wait_members(1)
        [member] = [row['member'] for row in embedded.table('status')
                    if row['role'] == 'member']
        titles = [' '.join(process.cmdline()).strip()
                  for process in scheduler.family()]

    assert titles == [f'distperiodic: scheduler {member}']


def test_status_names_missing_and_expected_members(embedded):
    with embedded.start('scheduler', '--workers', '2') as scheduler:
        embedded.wait_members(2)
        [enough, *_] = embedded.table('status', '--expect', '2')
        few = embedded.ask('status', '--expect', '3', '-f', 'json')
        with commands.Running(
                embedded.place / 'watch.log', 'status', '--watch', '0.2',
                '--config-file', embedded.config) as watch:
            waiting.wait_until(lambda: '2 members' in watch.said(), 20,
                               'the group was empty')
            # Freeze the first process. The launcher does not react to this. If
            # the process held the lock of the file driver, the command would
            # wait for it.
            with unlocked(embedded.place / 'coordination'):
                for process in scheduler.family()[:1]:
                    process.suspend()
            waiting.wait_until(
                lambda: re.search(GONE, watch.said()), 30,
                'no member was missing')
            watch.press_ctrl_c()

    assert commands.numbers(enough['finding']) == [2]
    assert few.returncode == 1
    [verdict, *_] = json.loads(few.stdout)
    assert (verdict['role'], verdict['result']) == ('group', 'warn')
    # Two of three members are present, so one is missing.
    assert commands.numbers(verdict['finding']) == [2, 1]
    [text] = [row['finding'] for row in json.loads(few.stdout)
              if row['code'] == 'too-few']
    assert commands.numbers(text) == [3, 1]


def test_status_shows_the_history_that_the_store_keeps(tmp_path):
    """Status names members that are gone, and objects that have failed since
    their last success.
    """
    service = Service(tmp_path, f'file://{tmp_path}/coordination',
                      connection=f'sqlite:///{tmp_path}/claims.sqlite',
                      late_claim_after=1)
    assert service.ask('db', 'sync').returncode == 0
    tasks = tmp_path / 'nodes.py'
    tasks.write_text(tasks.read_text().replace(
        '        time.sleep(0.3)',
        "        assert node != 'node-3', 'it is ill'\n"))

    def names():
        return {row['member'] for row in service.table('status')
                if row['role'] == 'member'}
    with service.start('scheduler') as one:
        service.wait_members(1)
        [stays] = names()
        with commands.Running(
                tmp_path / 'other.log', 'scheduler', '--tasks', 'nodes:Nodes',
                '--config-file', service.config, cwd=tmp_path) as other:
            service.wait_members(2)
            [dies] = names() - {stays}
            other.kill()
        expected = {('member-dead', f'scheduler {dies}'),
                    ('object-failing', 'object poll/node-3')}
        waiting.wait_until(
            lambda: {(row['code'], row['about'])
                     for row in service.table('status')
                     if row['role'] == 'finding'} == expected, 30)
        told = service.ask('status')
        verdict, *rows = service.table('status')
        one.terminate()
        assert one.wait(20) == 0

    assert told.returncode == 2
    text = ' '.join(told.stdout.split())
    assert f'failure member-dead: scheduler {dies}: ' in text
    assert 'distperiodic dead list poll' in text
    assert 'it is ill' in text
    assert verdict['result'] == 'fail'
    assert [(row['role'], row['member']) for row in rows
            if row['role'] != 'finding'] == [('member', stays)]


def test_status_is_printed_again_until_it_is_interrupted(embedded):
    with commands.Running(
            embedded.place / 'watch.log', 'status', '--watch', '0.2',
            '--config-file', embedded.config) as watch:
        waiting.wait_until(
            lambda: watch.said().count(repr(embedded.group)) >= 3, 20,
            'status was not printed again')
        watch.press_ctrl_c()
        assert watch.wait(10) == 130
        assert 'Traceback' not in watch.said()


def test_a_read_of_a_group_does_not_create_the_group(embedded):
    embedded.ask('status')
    embedded.ask('ring', 'show')

    assert not (embedded.place / 'coordination').exists()


def test_all_of_it_over_zookeeper_and_rabbitmq(
        tmp_path, zookeeper, rabbitmq):
    service = Service(tmp_path, zookeeper.url, rabbitmq.url)
    with (service.start('scheduler', '--workers', '2') as scheduler,
          service.start('worker', '--workers', '2') as worker):
        service.wait_members(2)
        # One worker may complete a tick before the other one has joined.
        service.wait_members(2, 'worker')
        waiting.wait_until(lambda: len(service.lines('ended')) >= 12, 30,
                           'the nodes were not polled')
        told = service.table('status')
        doctor = service.ask('doctor', '-f', 'json')
        found = {row['check']: row for row in json.loads(doctor.stdout)}
        for program in (scheduler, worker):
            program.press_ctrl_c()
        assert scheduler.wait(30) == 0
        assert worker.wait(30) == 0

    workers = [row for row in told if row['role'] == 'worker']
    assert [(w['partition'], w['slots']) for w in workers] == [
        ('default', 10), ('default', 10)]
    assert all(re.match('2[0-9]{3}-', row['joined'])
               for row in told if row['role'] != 'group')
    bad = {n: r for n, r in found.items() if r['result'] != (
        'skip' if r['area'] in ('store', 'tasks') else 'ok')}
    # The shares of two members may be uneven by chance.
    bad.pop('ring_shares', None)
    assert not bad
    assert commands.numbers(found['broker_queues']['finding'])[0] == 4
    assert sorted(service.lines('began')) == sorted(service.lines('ended'))


def test_doctor_finds_a_session_timeout_that_was_not_granted(
        tmp_path, zookeeper):
    service = Service(tmp_path, zookeeper.url, session_timeout=100)

    told = service.ask('doctor')

    assert told.returncode == 1
    text = ' '.join(told.stdout.split())
    assert re.search(r'\b100 s\b.*\b40 s\b', text)
    assert 'session_timeout = 40' in text


def test_doctor_leaves_nothing_behind(tmp_path, zookeeper):
    from distperiodic.adapters.local.clock import SystemClock
    from distperiodic.operator.coordination_probe import CoordinationProbe
    service = Service(tmp_path, zookeeper.url)
    service.ask('doctor')

    with CoordinationProbe(zookeeper.url, session_timeout=2,
                           clock=SystemClock()) as looking:
        assert not [g for g in looking.groups()
                    if g.startswith(service.group)]


def test_doctor_finds_a_broker_that_refuses_the_password(
        tmp_path, zookeeper, rabbitmq):
    url = re.sub('//([^:]*):[^@]*@', r'//\1:sesame@', rabbitmq.url)
    service = Service(tmp_path, zookeeper.url, url)

    told = service.ask('doctor')
    rows = service.table('doctor')

    assert told.returncode == 2
    [broken] = [row for row in rows if row['result'] == 'fail']
    assert broken['area'] == 'broker'
    user = re.search('//([^:]*):', url)[1]
    assert repr(user) in broken['finding']
    assert 'transport_url' in broken['remedy']
    # The text for people contains the same information.
    text = ' '.join(told.stdout.split())
    assert broken['finding'] in text
    assert broken['remedy'] in text
    assert 'sesame' not in told.stdout + told.stderr


def test_doctor_finds_a_process_that_left_its_queue(
        tmp_path, zookeeper, rabbitmq):
    """The worker is in the group, but it listens on another broker or on none.
    """
    from distperiodic.adapters.coordination.membership import Announced
    from distperiodic.adapters.coordination.membership import ToozMembership
    from distperiodic.adapters.local.clock import SystemClock
    from distperiodic.service import worker_group
    service = Service(tmp_path, zookeeper.url, rabbitmq.url)
    there = [
        ToozMembership(zookeeper.url, name, session_timeout=2,
                       clock=SystemClock(), announced=announced)
        for name, announced in (('api-1', Announced(points=40)),
                                ('worker-1', Announced(slots=4)))]
    for membership, group in zip(there, (
            service.group, worker_group(service.group, 'default')),
            strict=True):
        membership.join(group)
        membership.start()
        membership.wait_joined(10)
    try:
        told = service.ask('doctor', '-f', 'json')
    finally:
        for membership in there:
            membership.stop()

    found = {row['check']: row for row in json.loads(told.stdout)}
    assert told.returncode == 2
    assert found['broker_queues']['result'] == 'fail'
    assert f'distperiodic.{service.group}.work.default.worker-1' in (
        found['broker_queues']['finding'])


@pytest.mark.parametrize('argv', [
    ('status',), ('ring', 'show'), ('ring', 'explain', 'a', 'b')],
    ids=' '.join)
def test_a_service_that_does_not_answer_is_one_line(argv, tmp_path):
    service = Service(tmp_path, 'zookeeper://me:sesame@127.0.0.1:1')

    told = service.ask(*argv)

    if argv == ('status',):
        # This is a finding, and no error of the command.
        assert (told.returncode, told.stderr) == (2, '')
        [said] = [line for line in told.stdout.splitlines()
                  if 'coordination-unavailable: ' in line]
    else:
        assert (told.returncode, told.stderr.count('\n')) == (1, 1)
        said = told.stderr
    assert '127.0.0.1:1: Connection refused' in said
    assert 'sesame' not in told.stdout + told.stderr


def test_doctor_has_a_finding_for_each_server(tmp_path, zookeeper):
    address = zookeeper.url.partition('://')[2]
    service = Service(tmp_path, f'zookeeper://127.0.0.1:1,{address}')

    told = service.ask('doctor', '-f', 'json')

    found = {row['check']: row for row in json.loads(told.stdout)}
    assert told.returncode == 1
    assert found['coordination_servers']['result'] == 'warn'
    assert '127.0.0.1:1 Connection refused' in (
        found['coordination_servers']['finding'])


def test_status_over_redis(tmp_path, redis):
    service = Service(tmp_path, redis.url)
    with service.start('scheduler'):
        service.wait_members(1)
        assert service.ask('status').returncode == 0
        assert service.ask('doctor').returncode in (0, 1)
