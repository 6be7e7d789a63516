# SPDX-License-Identifier: Apache-2.0
"""Alerts of a real Prometheus during faults of a real group.

Prometheus has the rules of ``etc/prometheus`` and the configuration that the
documentation shows. Only times are different: it scrapes and evaluates each
second, and each duration in the rules is a sixtieth.
"""

import contextlib
import os
import re
import signal
import socket
import textwrap

import amqp
import pytest
import sqlalchemy as sa
import yaml

from distperiodic.adapters.messaging import queue_names
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import SkipRequest
from tests import programs
from tests import services
from tests import waiting
from tests import wall_clock
from tests.functional.faulty import TASKS
from tests.functional.faulty import Group
from tests.functional.test_messaging import by_hand
from tests.functional.test_messaging import cast_of
from tests.services.behind import Behind
from tests.services.ports import free_port

RULES = programs.ROOT / 'etc' / 'prometheus' / 'distperiodic.rules.yml'
HOWTO = programs.ROOT / 'doc' / 'source' / 'howto'
UNITS = {'s': 1, 'm': 60, 'h': 3600}
#: Seconds in which an alert must fire or clear, on a busy machine.
IN_TIME = 60.0
MORE_TASKS = '''
    @periodic_task(spacing=1, objects='one', topic='lonely')
    def waits(self, context, key):
        pass


if 'AHEAD' in os.environ:
    wall_clock.follow(pathlib.Path(os.environ['AHEAD']))
events.subscribe(lambda event: wait_while('blocking'))
'''


def shortened(found):
    seconds = int(found[1]) * UNITS[found[2]]
    return f'{max(1, seconds // 60)}s'


def rules():
    """Return the rules of the project with a sixtieth of each duration."""
    made = yaml.safe_load(RULES.read_text())
    for group in made['groups']:
        for rule in group['rules']:
            if 'for' in rule:
                rule['for'] = re.sub(r'^(\d+)([smh])$', shortened,
                                     rule['for'])
            rule['expr'] = re.sub(
                r'(?<=\[)(\d+)([smh])(?=\])', shortened, rule['expr'])
    return yaml.safe_dump(made)


def configuration(processes, store):
    """Return the configuration of Prometheus that the documentation shows.

    :param processes: Address of ``metrics_listen``.
    :param store: Address of ``distperiodic metrics``.
    """
    [scrapes] = re.findall(
        r'^( +)(scrape_configs:\n(?:\1.*\n)+)',
        (HOWTO / 'monitor.rst').read_text(), re.MULTILINE)
    [files] = re.findall(r'^ +(rule_files: .*\n)',
                         (HOWTO / 'alerts.rst').read_text(), re.MULTILINE)
    text = files + textwrap.dedent(''.join(scrapes))
    for documented, address in (
            ('127.0.0.1:9464', processes), ('127.0.0.1:9465', store)):
        assert text.count(documented) == 1
        text = text.replace(documented, address)
    return text


class Watched:
    """A group with faults, and the alerts about it."""

    def __init__(self, group, prometheus):
        self.group = group
        self.prometheus = prometheus
        self.alerts = set()

    def read(self):
        """Return the alerts that fire, by name and the value of a label."""
        self.alerts = {
            (labels['alertname'].removeprefix('Distperiodic'),
             labels.get('code') or labels.get('job'))
            for labels in self.prometheus.alerts()}
        return self.alerts

    def wait_firing(self, *expected):
        """Wait until each of these alerts has fired."""
        missing = set(expected)

        def all_fired():
            missing.difference_update(self.read())
            return not missing
        try:
            waiting.wait_until(all_fired, IN_TIME)
        finally:
            print(sorted(self.alerts), missing)

    def wait_silent(self):
        """Wait until no alert fires."""
        try:
            waiting.wait_until(lambda: not self.read(), IN_TIME)
        finally:
            print(self.alerts)


def refuse_messages(rabbitmq, name):
    """Send a forged message to the schedulers of a group."""
    with by_hand(rabbitmq) as connection, connection.channel() as channel:
        channel.basic_publish_confirm(
            amqp.Message(cast_of({'mac': 'guess'}),
                         content_type='application/json',
                         content_encoding='utf-8'),
            exchange='distperiodic', mandatory=True,
            routing_key=f'{queue_names.notices_topic(name)}.all')


@contextlib.contextmanager
def lost_tick(url, name):
    """Record a lost tick, as a scheduler does, and later forget it."""
    store = SqlClaimStore(url, namespace=name)

    def lose():
        tick = store.now()
        return store.skip(SkipRequest(
            'fails', tick, ['h1'], holder='test', by=SkippedBy.LOST,
            reason='late')) and tick
    # No tick is lost while the object runs.
    tick = waiting.wait_until(lose)
    store.close()
    yield
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.delete(tables.history).where(
            tables.history.c.tick == tick))
    engine.dispose()


@pytest.fixture
def ring(zookeeper):
    """The coordination service, as one scheduler reaches it."""
    ring = Behind(zookeeper)
    yield ring
    ring.kill()


@pytest.fixture
def group(tmp_path, zookeeper, rabbitmq, postgresql, way):
    schema.sync(postgresql.url)
    made = Group(
        tmp_path, 'import os\n\nfrom distperiodic import events\n'
        'from tests import wall_clock\n' + TASKS + MORE_TASKS,
        backend_url=zookeeper.url, transport_url=rabbitmq.url,
        connection=way.url,
        metrics_listen=f'127.0.0.1:{free_port()}')
    try:
        yield made
    finally:
        made.close()


def changed(group, name, **options):
    """Return a copy of the configuration with other options."""
    text = group.config.read_text()
    for key, value in options.items():
        text = re.sub(rf'(?m)^{key} = .*$', f'{key} = {value}', text)
    file = group.place / name
    file.write_text(text)
    return file


def taken(program, port):
    """Kill the process that listens at a port, and take the port."""
    [child] = program.children
    os.kill(child, signal.SIGKILL)

    def take():
        with contextlib.suppress(OSError):
            return socket.create_server(('127.0.0.1', port))
    return waiting.wait_until(take)


@pytest.fixture
def exporter(group):
    """The address of ``distperiodic metrics``."""
    address = f'127.0.0.1:{free_port()}'
    group.exporter = group.run('metrics', '--listen', address, '--expect', 3)
    return address


@pytest.fixture
def watched(group, exporter):
    [processes] = re.findall(r'metrics_listen = (.+)',
                             group.config.read_text())
    with services.prometheus(
            configuration(processes, exporter), rules()) as prometheus:
        yield Watched(group, prometheus)


@pytest.mark.timeout(600)
def test_each_fault_of_a_group_fires_its_alert_until_the_fault_ends(
        group, watched, way, ring, zookeeper, rabbitmq, postgresql):
    ahead = group.place / 'ahead'
    wall_clock.set_ahead(ahead, 0)
    odd = changed(group, 'odd.conf', backend_url=ring.url)
    port = free_port()
    other_host = changed(group, 'other.conf', state_path=group.place / 'other',
                         metrics_listen=f'127.0.0.1:{port}')
    killed = group.start('scheduler')
    group.start('scheduler', AHEAD=str(ahead))
    group.start('scheduler', config=odd)
    group.start('worker')
    narrow = group.start('worker', '--partition', 'narrow', config=other_host)
    # A frozen process that serves the metrics of its host would hide them.
    frozen = group.start('worker', '--partition', 'lonely', config=changed(
        group, 'lonely.conf', state_path=group.place / 'lonely',
        metrics_listen=f'127.0.0.1:{free_port()}'))
    client = group.client()
    waiting.wait_until(lambda: [watched.prometheus.sum(metric) for metric in (
        'distperiodic_services_healthy', 'distperiodic_members')] == [4, 6],
        programs.STARTING, 'the group is not complete')
    watched.wait_silent()

    taker = taken(narrow, port)
    for name in ('raising', 'hanging', 'failing', 'staying', 'full',
                 'blocking'):
        (group.faults / name).touch()
    client.submit('undone', {})
    client.submit('default.step', {}, queue='disks')
    wall_clock.set_ahead(ahead, 30)
    killed.kill()
    frozen.freeze()
    ring.freeze()
    refuse_messages(rabbitmq, group.name)
    with lost_tick(postgresql.url, group.name):
        watched.wait_firing(
            ('CatalogueFailing', 'catalogue-failing'),
            ('CatalogueFailing', 'catalogue-hanging'),
            ('ClockDiffers', 'clock-differs'),
            ('HandlersHanging', 'handlers-hanging'),
            ('MemberMissing', 'member-dead'),
            ('MemberUnhealthy', 'member-unhealthy'),
            ('MessagesRejected', 'distperiodic'),
            ('MetricsUnserved', 'metrics-unserved'),
            ('NoWorker', 'partition-unserved'),
            ('ObjectFailing', 'object-failing'),
            ('QueueHalted', 'queue-halted'),
            ('SubscriberFailing', 'subscriber-failing'),
            ('TasksStuck', 'task-stuck'),
            ('TicksLost', 'fails'),
            ('ViewsDiffer', 'view-differs'),
            ('WorkOverdue', 'waits'),
            ('WorkersFull', 'workers-full'))

    for path in group.faults.iterdir():
        path.unlink()
    taker.close()
    wall_clock.set_ahead(ahead, 0)
    group.start('scheduler')
    frozen.thaw()
    ring.thaw()
    assert group.ask('task', 'retry', '--all-stuck').returncode == 0
    group.ask('queue', 'resume', 'disks')
    watched.wait_silent()

    with way.being('delay', 0.13):
        watched.wait_firing(('StoreSlow', 'store-slow'),
                            ('MetricsIncomplete', 'distperiodic'))
    watched.wait_silent()

    group.exporter.terminate()
    watched.wait_firing(('MetricsMissing', None))
