# SPDX-License-Identifier: Apache-2.0
"""Messages from a scheduler to its workers and back: guarantees of every bus.

Messages that only a broker can deliver, such as invalid or forged ones, and
faults of a broker are tested in tests/functional/test_messaging.py.
"""

import dataclasses
import statistics
import time
import uuid

import pytest
from oslo_config import cfg

from distperiodic.adapters.local.bus import LocalBus
from distperiodic.adapters.messaging.bus import Endpoint
from distperiodic.adapters.messaging.bus import MessagingReportBus
from distperiodic.adapters.messaging.bus import MessagingWorkBus
from distperiodic.core import message
from distperiodic.core.refusal import Refusal
from tests.waiting import wait_until

TICK = 1_700_000_000_000_000


def entry(identity):
    return f'{identity}~{uuid.uuid4().hex[:16]}~1~f1.t1.r40'


class LocalWay:
    """A scheduler and a worker within one process."""

    def __init__(self):
        self.scheduler = entry('api-1')
        self.worker = self.scheduler
        self.batches, self.reports = [], []
        self.work = LocalBus(self.batches.append, {'poll', 'ü'})

    def report(self, report, to):
        assert to == self.scheduler
        self.reports.append(report)

    def close(self):
        """Do nothing: no resource is open."""


class BrokerWay:
    """A scheduler and a worker with a broker between them."""

    def __init__(self, url):
        self.scheduler, self.worker = entry('api-1'), entry('worker-1')
        self.batches, self.reports = [], []
        conf = cfg.ConfigOpts()
        conf([])
        group = uuid.uuid4().hex[:8]
        self.work = MessagingWorkBus(
            Endpoint(conf, url, group=group, me=self.scheduler),
            on_report=self.reports.extend, on_sent=lambda batch: None,
            on_unsent=lambda batch, reason: pytest.fail(reason),
            patience=10.0)
        self.back = MessagingReportBus(
            Endpoint(conf, url, group=group, me=self.worker),
            partition='default', on_batch=self.batches.append)
        self.report = self.back.report
        self.back.start(20)
        self.work.start(20)

    def close(self):
        self.work.close(3)
        self.back.close(3)


def url_of(kind, request):
    return 'fake://' if kind == 'fake' else request.getfixturevalue(kind).url


@pytest.fixture(params=['local', 'fake', 'rabbitmq', 'redis'])
def way(request):
    way = (LocalWay() if request.param == 'local'
           else BrokerWay(url_of(request.param, request)))
    yield way
    way.close()


def a_batch(way, number=1, **changes):
    return dataclasses.replace(message.Batch(
        str(number), 'poll', TICK, ['a', 'b'], [7, 8], [1, 2],
        way.scheduler, way.worker, 'lease-1', priority=3), **changes)


ODD = ["'; --", 'ü\n', '\U0001f600', ' ', 'x' * 255, '%s{}\\']


@pytest.mark.parametrize('changes', [
    {},
    {'objects': ODD, 'fences': list(range(6)), 'attempts': [1] * 6},
    {'fences': [0, 2 ** 63 - 1]},
    {'priority': -5, 'job': 'ü', 'lease': 'a-Z.1'},
], ids=['usual', 'odd ids', 'large fences', 'odd names'])
def test_a_batch_arrives_as_it_was_sent(way, changes):
    batch = a_batch(way, **changes)
    sent = dataclasses.replace(batch)

    way.work.send(batch)

    wait_until(lambda: way.batches)
    assert way.batches == [sent]


def test_batches_arrive_once_and_in_their_order(way):
    for number in range(300):
        way.work.send(a_batch(way, number))

    wait_until(lambda: len(way.batches) == 300)
    assert [one.id for one in way.batches] == [str(n) for n in range(300)]


def test_a_batch_of_the_largest_size_arrives(way):
    number = message.MAX_OBJECTS
    batch = a_batch(way, objects=[f'object-{n}' for n in range(number)],
                    fences=[1] * number, attempts=[1] * number)

    way.work.send(batch)

    wait_until(lambda: way.batches)
    assert way.batches == [batch]


def test_sending_returns_at_once(way):
    taken = []
    for number in range(300):
        batch = a_batch(way, number)
        began = time.monotonic()
        way.work.send(batch)
        taken.append(time.monotonic() - began)

    # A durable queue takes milliseconds to confirm a message.
    assert statistics.median(taken) < 0.0005
    wait_until(lambda: len(way.batches) == 300)


def test_a_report_reaches_the_sender_of_the_batch(way):
    way.work.send(a_batch(way))
    wait_until(lambda: way.batches)
    [batch] = way.batches
    report = message.Report(
        batch.id, batch.worker, done=[0], failed=[(1, 'ü: it broke\n')],
        retried=[(2, '')], refused=[(3, Refusal.DRAINING)], lost=[5, 4],
        seconds=0.25)

    way.report(report, batch.sender)

    wait_until(lambda: way.reports)
    assert way.reports == [report]


def test_reports_come_once_and_in_their_order(way):
    for number in range(300):
        way.report(message.Report(str(number), way.worker, [0]),
                   way.scheduler)

    wait_until(lambda: len(way.reports) == 300)
    assert [one.batch for one in way.reports] == [
        str(n) for n in range(300)]
