# SPDX-License-Identifier: Apache-2.0
"""The carrier of the Redis bus, on a server within the process."""

import json
import logging

import fakeredis
import pytest
import redis

from distperiodic import exceptions
from distperiodic.adapters.redis import carrier as carriers
from distperiodic.adapters.redis import client as clients
from distperiodic.adapters.redis import probe
from distperiodic.adapters.redis import url
from distperiodic.ports import Inbox
from tests.logged import lines
from tests.waiting import wait_until

QUEUE = 'distperiodic.tests.work.default.w-1~1'
TOPIC, IDENTITY = 'distperiodic.tests.work.default', 'w-1~1'
ALL = 'distperiodic.tests.notices.all'


class Client(fakeredis.FakeRedis):
    """A client that records its reads, and fails when it is told to."""

    # Class attributes, because the constructor of the client is patched.
    reads: list
    failures: dict

    def info(self, *_):
        return {'redis_version': '7.0.0'}

    def xreadgroup(self, *args, **kwargs):
        self._fail('xreadgroup')
        found = super().xreadgroup(*args, **kwargs)
        self.reads.append(sum(
            len(body) for _, entries in found or ()
            for _, fields in entries for body in fields.values()))
        return found

    def pipeline(self, **kwargs):
        self._fail('pipeline')
        return super().pipeline(**kwargs)

    def _fail(self, command):
        if self.failures.get(command):
            raise self.failures[command].pop()


class Bus:
    """A carrier with an inbox, and the messages that it has received."""

    def __init__(self, client, now):
        self.client = client
        self.heard, self.garbage = [], []
        self.carrier = carriers.RedisCarrier(
            url.parse('redis://h/0'), Inbox(
                TOPIC, IDENTITY, self.heard.append,
                lambda origin, why: self.garbage.append(why), [ALL]),
            lambda: now[0])

    def waiting(self):
        return self.client.xlen(QUEUE)


@pytest.fixture
def bus(monkeypatch):
    server, now = fakeredis.FakeServer(), [1000.0]
    client = Client(server=server)
    client.reads, client.failures = [], {}
    monkeypatch.setattr(clients, 'client_of', lambda *_: client)
    # Milliseconds for which a read waits, and so the end of a reader.
    monkeypatch.setattr(carriers, '_WAIT', 20)
    made = Bus(client, now)
    made.now = now
    made.by_hand = fakeredis.FakeRedis(server=server)
    yield made
    made.carrier.close(5)


def put(bus, *numbers, size=0):
    for number in numbers:
        bus.by_hand.xadd(QUEUE, {'message': json.dumps(
            {'n': number, 'filling': 'x' * size})})


def heard(bus):
    return [message['n'] for message in bus.heard]


def test_a_message_is_delivered_once_though_its_acknowledgement_was_lost(bus):
    bus.carrier.open(5)
    bus.client.failures['pipeline'] = [redis.ConnectionError('reset')]

    put(bus, 1)

    wait_until(lambda: bus.heard and not bus.waiting())
    put(bus, 2)
    wait_until(lambda: 2 in heard(bus))
    assert heard(bus) == [1, 2]


def test_all_pending_messages_of_an_earlier_connection_are_delivered(bus):
    bus.by_hand.xgroup_create(QUEUE, 'distperiodic', '0', mkstream=True)
    put(bus, *range(350))
    bus.by_hand.xreadgroup('distperiodic', IDENTITY, {QUEUE: '>'}, count=350)

    bus.carrier.open(5)

    wait_until(lambda: len(bus.heard) >= 350 and not bus.waiting())
    assert heard(bus) == list(range(350))


def test_the_expiry_of_a_queue_is_renewed_while_its_process_lives(bus):
    bus.carrier.open(5)
    for key in QUEUE, f'{ALL}.hearers':
        bus.by_hand.pexpire(key, 60_000)

    bus.now[0] += 61.0

    for key in QUEUE, f'{ALL}.hearers':
        wait_until(lambda key=key: bus.by_hand.pttl(key) > 1_000_000)


def test_a_queue_that_its_process_does_not_renew_has_no_consumer(bus):
    found = probe.RedisProbe(url.parse('redis://h/0'))
    bus.carrier.open(5)
    assert found.queues(found.hosts[0], [QUEUE])[QUEUE] == (0, 1)

    bus.by_hand.pexpire(QUEUE, 29 * 60_000 - 11_000)

    assert found.queues(found.hosts[0], [QUEUE])[QUEUE] == (0, 0)


def test_a_notice_without_a_receiver_is_not_sent(bus):
    bus.by_hand.sadd(f'{ALL}.hearers', 'gone-1', 'gone-2')
    sender = carriers.RedisCarrier(
        url.parse('redis://h/0'), None, lambda: bus.now[0])

    with pytest.raises(exceptions.NoConsumer):
        sender.cast(*ALL.rsplit('.', 1), {'n': 1})

    assert bus.by_hand.smembers(f'{ALL}.hearers') == set()


def test_long_messages_are_read_one_by_one(bus):
    """Any client may write them; together they could fill the memory."""
    bus.by_hand.xgroup_create(QUEUE, 'distperiodic', '0', mkstream=True)
    put(bus, *range(8), size=5_000_000)

    bus.carrier.open(5)

    wait_until(lambda: not bus.waiting())
    assert heard(bus) == list(range(8))
    assert max(bus.client.reads) < 5_100_000


def test_many_short_messages_are_read_together(bus):
    bus.by_hand.xgroup_create(QUEUE, 'distperiodic', '0', mkstream=True)
    put(bus, *range(1000))

    bus.carrier.open(5)

    wait_until(lambda: not bus.waiting())
    assert heard(bus) == list(range(1000))
    assert len([size for size in bus.client.reads if size]) < 25


def test_a_server_that_becomes_a_replica_has_lost_no_queue(bus, caplog):
    caplog.set_level(logging.INFO)
    bus.carrier.open(5)
    bus.client.failures['xreadgroup'] = [redis.ResponseError(
        'UNBLOCKED force unblock from blocking operation, instance state '
        'changed (master -> replica?)')]
    wait_until(lambda: not bus.client.failures['xreadgroup'])

    put(bus, 1)

    wait_until(lambda: heard(bus) == [1])
    assert lines(caplog, 'the broker lost a queue') == []
