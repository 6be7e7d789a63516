# SPDX-License-Identifier: Apache-2.0
"""The server of the bus of oslo.messaging, on a broker within the process."""

import kombu
import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging._drivers import common

from distperiodic.adapters.messaging import consumer
from tests.waiting import wait_until

URL = 'kombu+memory:////'


class Queue:
    """The queue of a server, and the messages that the server received."""

    def __init__(self):
        conf = cfg.ConfigOpts()
        conf([], use_env=False)
        self.received, self.dropped = [], []
        self.server = consumer.Server(
            oslo_messaging.get_rpc_transport(conf, URL),
            oslo_messaging.Target(topic='work', server='w-1'),
            on_message=self.received.append,
            on_garbage=lambda origin, reason: self.dropped.append(reason),
            hears=['work.all', 'notices.all'])
        self._connection = kombu.Connection(URL.removeprefix('kombu+'))
        self.publish = self._connection.Producer(
            exchange=kombu.Exchange('openstack', 'topic', durable=False)
        ).publish

    def send(self, body, to='work.w-1', **options):
        """Send *body* in the envelope of oslo.messaging."""
        self.publish(common.serialize_msg(body), routing_key=to, **options)

    def answers(self, number):
        """Wait for *number* messages; return the received ones."""
        wait_until(lambda: len(self.received) + len(self.dropped) == number,
                   10, 'not all messages arrived')
        return [message['number'] for message in self.received]

    def close(self):
        self.server.stop()
        self.server.close()
        self._connection.close()


@pytest.fixture
def queue():
    made = Queue()
    yield made
    made.close()


def test_a_message_that_is_delivered_twice_is_passed_on_once(queue):
    for unique_id, number in ('a', 1), ('a', 1), ('b', 2):
        queue.send({'_unique_id': unique_id, 'number': number})

    assert queue.answers(3) == [1, 2]
    assert queue.dropped == ['delivered twice']


def test_messages_to_each_name_of_a_server_arrive(queue):
    for number, to in enumerate(['work.all', 'work.w-1', 'notices.all']):
        queue.send({'number': number}, to=to)

    assert queue.answers(3) == [0, 1, 2]


def test_a_compressed_message_is_dropped(queue):
    queue.send({'number': 1}, compression='gzip')
    queue.send({'number': 2})

    assert queue.answers(2) == [2]
    assert 'compressed' in queue.dropped[0]


def test_a_message_over_the_limit_is_dropped(queue, monkeypatch):
    monkeypatch.setattr(consumer, 'LONGEST_MESSAGE', 1000)
    queue.send({'number': 1, 'text': 'x' * 1000})
    queue.send({'number': 2, 'text': 'x' * 500})

    assert queue.answers(2) == [2]
    assert 'limit' in queue.dropped[0]


def test_a_message_that_cannot_be_decoded_is_dropped(queue):
    queue.publish('{', routing_key='work.w-1', content_type='application/json',
                content_encoding='utf-8')
    queue.send({'number': 2})

    assert queue.answers(2) == [2]
    assert 'not a message of oslo.messaging' in queue.dropped[0]
