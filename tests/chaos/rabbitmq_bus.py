# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ as the bus of a cluster."""

import contextlib
import json

import amqp

from distperiodic.adapters.messaging.connection import EXCHANGE
from tests import proxy
from tests import services
from tests.chaos import bus
from tests.services.rabbitmq import PASSWORD
from tests.services.rabbitmq import USER

# For each resource: the command that takes it from the broker, and the command
# that gives it back.
_LIMITS = {
    'memory': (('set_vm_memory_high_watermark', '0.0000001'),
               ('set_vm_memory_high_watermark', '0.4')),
    'disk': (('set_disk_free_limit', '100000GB'),
             ('set_disk_free_limit', '20MB'))}
_GARBAGE = (
    b'', b'\0\xff\xfe garbage', b'[]', b'{"oslo.version": "9.9"}',
    b'{"oslo.version": "2.0", "oslo.message": "not JSON"}',
    b'{"oslo.version": "2.0", "oslo.message": "{\\"method\\": \\"eval\\", '
    b'\\"args\\": {}}"}',
    b'{"oslo.version": "2.0", "oslo.message": "{\\"method\\": \\"hear\\", '
    b'\\"args\\": {\\"message\\": {\\"v\\": 1, \\"kind\\": \\"run\\"}}}"}',
    b'[' * 100_000)


class RabbitMQ(bus.Bus):
    """See :class:`tests.chaos.bus.Bus`."""

    name = 'rabbitmq'
    unit = 'AMQP frames'
    carrier = 'distperiodic.adapters.messaging.connection:BrokerConnection'
    without = frozenset(['broker wiped', 'broker flushed', 'broker frozen'])

    @staticmethod
    def serve():
        return services.rabbitmq(its_own=True)

    def listened(self):
        listed = self.server.ctl('-q', 'list_queues', 'name', 'consumers')
        lines = [line.split('\t') for line in listed.splitlines()
                 if line.startswith('distperiodic.')]
        return [queue for queue, consumers in lines if consumers != '0']

    def waiting(self, queues):
        found = []
        with _connection(self.server) as connection:
            for name in queues:
                channel = connection.channel()
                with contextlib.suppress(amqp.NotFound):
                    found.append(channel.queue_declare(
                        name, passive=True).message_count)
        return found

    def delete_queue(self, queue):
        # rabbitmqctl would take so long that the queue may be another one by
        # then.
        with contextlib.suppress(amqp.AMQPError, OSError), (
                _connection(self.server)) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, passive=True)
            channel.queue_delete(queue)
            return True
        return False

    def close_connections(self):
        self.server.ctl('close_all_connections', 'by the tests')

    def run_out(self, resource):
        self.server.ctl(*_LIMITS[resource][0])

    def recover(self, resource):
        self.server.ctl(*_LIMITS[resource][1])

    def send_garbage(self, queues):
        with contextlib.closing(self.tap(listens=False)) as tap:
            for queue in queues:
                for body in _GARBAGE:
                    tap.send(body, queue, content_type='application/json',
                             content_encoding='utf-8')

    def tap(self, *, listens=True):
        return _Tap(self.server, listens)


def _connection(server):
    return amqp.Connection(
        f'{proxy.HOST}:{server.port}', userid=USER, password=PASSWORD,
        connect_timeout=5, read_timeout=5)


class _Tap(bus.Tap):
    """A queue of the tests that is bound to all names.

    Keep this queue only for a short time. While it exists, every message has a
    receiver, so the broker does not report that a worker's queue is gone.
    """

    def __init__(self, server, listens):
        self._connection = _connection(server)
        self._connection.connect()
        self._channel = self._connection.channel()
        if listens:
            self._queue = self._channel.queue_declare(
                exclusive=True, auto_delete=True).queue
            self._channel.queue_bind(self._queue, EXCHANGE, '#')

    def messages(self):
        while True:
            found = self._channel.basic_get(self._queue, no_ack=True)
            if found is None:
                return
            if _genuine(found):
                yield found

    def send(self, body, to, **properties):
        self._channel.basic_publish(
            amqp.Message(body, **properties), EXCHANGE, to)

    def again(self, found):
        self._repeat(found, found.body)

    def anew(self, found, random, change=lambda message: None):
        # A receiver accepts each id only once.
        envelope = json.loads(found.body)
        inner = json.loads(envelope['oslo.message'])
        change(inner['args']['message'])
        inner['_unique_id'] = f'{random.getrandbits(128):032x}'
        envelope['oslo.message'] = json.dumps(inner)
        self._repeat(found, json.dumps(envelope))

    def _repeat(self, found, body):
        properties = dict(found.properties)
        headers = dict(properties.get('application_headers') or {})
        properties['application_headers'] = headers | {'ours': 1}
        self.send(body, found.delivery_info['routing_key'], **properties)

    def close(self):
        self._connection.close()


def _genuine(found):
    """Return whether a message is from a member and has a known form."""
    if found.properties.get('application_headers', {}).get('ours'):
        return False
    try:
        inner = json.loads(json.loads(found.body)['oslo.message'])
        return 'kind' in inner['args']['message']
    except (ValueError, KeyError, TypeError):
        return False
