# SPDX-License-Identifier: Apache-2.0
"""Faults of real processes are found by name in time, and forgotten after.

The faults of one test are all injected at once, because each of them must be
found beside the others.
"""

import json
import time
import uuid

import psutil
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import opts
from distperiodic import tasks
from distperiodic.adapters.local import clock as local_clock
from distperiodic.adapters.sql import schema
from distperiodic.operator import health
from distperiodic.operator import health_facts
from tests import programs
from tests import proxy
from tests import waiting
from tests.functional import commands
from tests.services.behind import Behind

TASKS = '''
import pathlib
import time

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from distperiodic import tasks

FAULTS = pathlib.Path(__file__).parent / 'faults'


def injected(name):
    return (FAULTS / name).exists()


def wait_while(name):
    while injected(name):
        time.sleep(0.05)


class Service(PeriodicTasks):
    """Each job has its own fault."""

    def one(self, context):
        return ['h1']

    def two(self, context):
        return ['h1', 'h2']

    def six(self, context):
        return [f'h{number}' for number in range(6)]

    def raising(self, context):
        if injected('raising'):
            raise RuntimeError('no connection to the inventory')
        return ['h1']

    def hanging(self, context):
        wait_while('hanging')
        return ['h1']

    @periodic_task(spacing=1, objects='raising')
    def reads_badly(self, context, key):
        pass

    @periodic_task(spacing=1, objects='hanging')
    def reads_slowly(self, context, key):
        pass

    @periodic_task(spacing=1, objects='two')
    def fails(self, context, key):
        if key == 'h2' and injected('failing'):
            raise RuntimeError('it is ill')

    @periodic_task(spacing=1, objects='two')
    def stays(self, context, key):
        if key == 'h2':
            wait_while('staying')

    @periodic_task(spacing=1, objects='two', timeout=0.5)
    def ignores_its_timeout(self, context, key):
        if key == 'h2':
            wait_while('staying')

    @periodic_task(spacing=1, objects='six', topic='narrow')
    def fills(self, context, key):
        if injected('full'):
            time.sleep(0.7)

    @tasks.command('default', 'step')
    def step(self, context, parameters):
        if injected('failing'):
            raise RuntimeError('no room')
'''
WORKFLOWS = {'undone': [{
    half: {'module': 'default', 'command': 'step', 'timeout': 10, 'retry': 0}
    for half in ('normal', 'rollback')}]}
SESSION = 3.0
#: Seconds of a round trip to a slow store.
ROUND_TRIP = 0.3
#: Time in which a fault must be found (G13).
IN_TIME = SESSION + 10.0


class Group:
    """Two schedulers, two workers, and a worker of the partition narrow."""

    def __init__(self, place, **options):
        self.place = place
        self.faults = place / 'faults'
        self.faults.mkdir()
        (place / 'ill.py').write_text(TASKS)
        (place / 'workflows.json').write_text(json.dumps(WORKFLOWS))
        transport_url = options.pop('transport_url')
        self.config = programs.write_config(
            place / 'service.conf', DEFAULT={'transport_url': transport_url},
            distperiodic={
                'group': f'health-{uuid.uuid4().hex[:8]}',
                'session_timeout': SESSION, 'dispatcher': 'messaging',
                'workflows': place / 'workflows.json',
                'state_path': place / 'state', **options},
            **{'partition:narrow': {'pool_size': 1}})
        self.programs = []

    def start(self, kind, *more):
        program = commands.Running(
            self.place / f'{kind}-{len(self.programs)}.log', kind, '--tasks',
            'ill:Service', *more, '--config-file', self.config,
            cwd=self.place)
        self.programs.append(program)
        return program

    def ask(self, *argv):
        return commands.run(*argv, '--config-file', self.config,
                            cwd=self.place)

    def found(self):
        """Return the findings, by code and what they are about."""
        self.told = self.ask('status', '-f', 'json')
        rows = json.loads(self.told.stdout)
        return {(row['code'], row['about']): row for row in rows
                if row['role'] == 'finding'}

    def members(self):
        """Return the number of members in the last answer."""
        return sum(row['role'] in ('member', 'worker')
                   for row in json.loads(self.told.stdout))

    def wait_well(self, seconds=60):
        try:
            waiting.wait_until(
                lambda: self.found() == {} and self.told.returncode == 0,
                seconds, 'the group was not well')
        finally:
            print(self.told.stdout)

    def wait_ill(self, *expected):
        """Wait until all of these are found.

        Fail if a command that begins after IN_TIME does not find them. A
        command that began earlier may answer later on a busy machine.
        """
        began = time.monotonic()
        ill = {}

        def all_found():
            ill.update(self.found())
            return not set(expected) - ill.keys() and (
                self.told.returncode == 2)
        try:
            waiting.wait_until(all_found, IN_TIME, 'a fault was not found')
        finally:
            print(f'{time.monotonic() - began:.1f} s', self.told.stdout)
        return ill

    def close(self):
        for path in self.faults.iterdir():
            path.unlink()
        for program in self.programs:
            program.kill()


def _member(program):
    """Return the name of a member, from the title of its process."""
    [child] = program.children
    return ' '.join(psutil.Process(child).cmdline()).split()[-1]


def _client(group):
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(group.config)])
    return tasks.Client(conf)


@pytest.fixture
def way(postgresql):
    url = sa.make_url(postgresql.url)
    with proxy.Proxy((url.host, url.port)) as way:
        yield way


@pytest.fixture
def broker(rabbitmq):
    broker = Behind(rabbitmq)
    yield broker
    broker.kill()


@pytest.fixture
def group(tmp_path, zookeeper, broker, postgresql, way):
    schema.sync(postgresql.url)
    url = sa.make_url(postgresql.url).set(port=way.port)
    made = Group(tmp_path, backend_url=zookeeper.url,
                 transport_url=broker.url,
                 connection=url.render_as_string(hide_password=False))
    try:
        yield made
    finally:
        made.close()


def test_little_is_read_from_a_slow_store(tmp_path, postgresql, way):
    """The answer of a command must not be late because the store is slow."""
    schema.sync(postgresql.url)
    url = sa.make_url(postgresql.url).set(port=way.port)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(programs.write_config(
        tmp_path / 'service.conf', distperiodic={
            'group': uuid.uuid4().hex,
            'connection': url.render_as_string(hide_password=False)}))])
    settings, clock = opts.settings(conf), local_clock.SystemClock()
    with way.being('delay', ROUND_TRIP / 2):
        began = time.monotonic()
        facts = health_facts.read(settings, clock)
        took = time.monotonic() - began

    assert took < 20 * ROUND_TRIP
    assert ('store-slow', 'store') in {
        (one.code, one.about) for one in health.findings(facts)}
    assert set(facts.unread) == set(health.UNREAD)
    assert 'failing objects' in health.notes(facts)[0]

    facts = health_facts.read(settings, clock)

    assert list(facts.unread) == []


@pytest.mark.timeout(600)
def test_each_fault_is_found_by_name_and_forgotten_when_it_ends(
        group, way, broker):
    schedulers = [group.start('scheduler') for _ in range(2)]
    killed, frozen, _ = (group.start('worker'), group.start('worker'),
                         group.start('worker', '--partition', 'narrow'))
    client = _client(group)
    group.wait_well(150)

    # No fault: a rolling restart, and a worker that operators have drained.
    for one in schedulers[0], killed:
        one.terminate()
        while one.running:
            assert group.found() == {}
    schedulers[0], killed = group.start('scheduler'), group.start('worker')
    while group.members() < 5:
        assert group.found() == {}
    name = _member(frozen)
    group.ask('member', 'drain', name, '--partition', 'default')
    assert group.found() == {}
    assert f'drained: worker default/{name}' in group.told.stdout
    group.ask('member', 'undrain', name, '--partition', 'default')
    group.wait_well()

    # Faults of jobs, catalogues, objects, handlers and tasks.
    for name in 'raising', 'hanging', 'failing', 'staying', 'full':
        (group.faults / name).touch()
    stuck = client.submit('undone', {})
    client.submit('default.step', {}, queue='disks')
    ill = group.wait_ill(
        ('catalogue-failing', 'job reads_badly'),
        ('catalogue-hanging', 'job reads_slowly'),
        ('object-failing', 'object fails/h2'),
        ('workers-full', 'job fills'),
        ('task-stuck', f'task {stuck}'), ('queue-halted', 'queue disks'))
    hanging = {about for code, about in ill if code == 'handlers-hanging'}
    assert hanging
    assert all(about.startswith('worker default/') for about in hanging)
    assert all(row['remedy'] and row['since'] for row in ill.values())
    for path in group.faults.iterdir():
        path.unlink()
    assert group.ask('task', 'retry', '--all-stuck').returncode == 0
    group.ask('queue', 'resume', 'disks')
    group.wait_well()

    # Faults of processes and of the broker. A scheduler and a worker of one
    # host and number are two members.
    at = {one: _member(one) for one in (*schedulers, killed, frozen)}
    [beside] = [one for one in schedulers if at[one] == at[frozen]]
    killed.kill()
    frozen.freeze()
    broker.freeze()
    found = group.wait_ill(('member-dead', f'worker default/{at[killed]}'),
                           ('member-dead', f'worker default/{at[frozen]}'),
                           ('broker-unavailable', 'broker'))
    assert not any(about.startswith('scheduler') for _, about in found)
    broker.thaw()
    frozen.thaw()
    killed = group.start('worker')
    beside.freeze()
    group.wait_ill(('member-dead', f'scheduler {at[beside]}'))
    beside.thaw()
    group.wait_well()

    # A fault of the store.
    with way.being('delay', 0.3):
        group.wait_ill(('store-slow', 'store'))
    group.wait_well()
