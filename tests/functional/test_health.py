# SPDX-License-Identifier: Apache-2.0
"""Faults of real processes are found by name in time, and forgotten after.

The faults of one test are all injected at once, because each of them must be
found beside the others.
"""

import contextlib
import time
import uuid

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.local import clock as local_clock
from distperiodic.adapters.sql import schema
from distperiodic.operator import health
from distperiodic.operator import health_facts
from distperiodic.operator.group_reader import open_reader
from tests import programs
from tests.functional.faulty import Group
from tests.functional.faulty import member
from tests.services.behind import Behind

#: Seconds of a round trip to a slow store.
ROUND_TRIP = 0.3


@pytest.fixture
def broker(rabbitmq):
    broker = Behind(rabbitmq)
    yield broker
    broker.kill()


@pytest.fixture
def group(tmp_path, zookeeper, broker, postgresql, way):
    schema.sync(postgresql.url)
    made = Group(tmp_path, backend_url=zookeeper.url,
                 transport_url=broker.url,
                 connection=way.url)
    try:
        yield made
    finally:
        made.close()


def test_little_is_read_from_a_slow_store(tmp_path, postgresql, way):
    """The answer of a command must not be late because the store is slow."""
    schema.sync(postgresql.url)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(programs.write_config(
        tmp_path / 'service.conf', distperiodic={
            'group': uuid.uuid4().hex,
            'connection': way.url}))])
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


def test_a_connection_that_is_cut_during_its_first_use_is_an_absent_store(
        tmp_path, postgresql, way):
    """SQLAlchemy examines the server first, which takes several requests."""
    schema.sync(postgresql.url)
    with way.being('delay', ROUND_TRIP), contextlib.closing(open_reader(
            way.url, 'nodes', 2.0)) as store:
        with pytest.raises(exceptions.StoreUnavailable):
            store.now()


@pytest.mark.timeout(600)
def test_each_fault_is_found_by_name_and_forgotten_when_it_ends(
        group, way, broker):
    schedulers = [group.start('scheduler') for _ in range(2)]
    killed, frozen, _ = (group.start('worker'), group.start('worker'),
                         group.start('worker', '--partition', 'narrow'))
    client = group.client()
    group.wait_well(150)

    # No fault: a rolling restart, and a worker that operators have drained.
    for one in schedulers[0], killed:
        one.terminate()
        while one.running:
            assert group.found() == {}
    schedulers[0], killed = group.start('scheduler'), group.start('worker')
    while group.members() < 5:
        assert group.found() == {}
    name = member(frozen)
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
    at = {one: member(one) for one in (*schedulers, killed, frozen)}
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
