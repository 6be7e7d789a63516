# SPDX-License-Identifier: Apache-2.0
"""Faults of connections and messages; see :mod:`tests.chaos.faults`."""

import json
import time

import amqp

from distperiodic.adapters.messaging.connection import EXCHANGE
from tests import proxy

# Seconds by which a slow connection delays each byte.
_LATE = 0.3
# Seconds to wait for a message if no process sends any.
_SILENCE = 15.0


def worsen(fault, server, mode):
    """Disturb the connections of all hosts to a server."""
    yield from fault.take(server)
    for way in fault.cluster.ways(server):
        way.set(mode, _LATE)
    yield fault.seconds
    for way in fault.cluster.ways(server):
        way.set('pass')


def cut_off(fault, server):
    """Cut one running host off from a server."""
    host = yield from fault.take_host()
    yield from fault.take(server)
    # No other fault affects the server meanwhile, but the others reach it.
    fault.befell.discard(server)
    host.ways[server].set(fault.random.choice(['drop', 'reset', 'drop_s2c']))
    yield fault.seconds
    host.ways[server].set('pass')


def lose_commits(fault):
    """Lose the answers to commits, although the transactions are committed."""
    yield from fault.take('postgresql')
    ways = fault.cluster.ways('postgresql')
    lost = 0
    end = time.monotonic() + fault.seconds
    while time.monotonic() < end:
        way = fault.random.choice(ways)
        happened = way.lose_answer(b'COMMIT')
        lost += yield from fault.until(happened.is_set, 1.0)
        # By then the database has executed the commit.
        yield 0.1
        way.set('pass')
    fault.happened = lost > 0


class _Tap:
    """A queue of the tests that receives a copy of all messages, for a while.

    Keep it only for a short time. While it exists, every message has a
    receiver. So the broker does not report that a worker's queue is gone.
    """

    def __init__(self, broker):
        self._connection = amqp.Connection(
            f'{proxy.HOST}:{broker.port}', userid='tests',
            password='loopback-only',  # noqa: S106
            connect_timeout=5, read_timeout=5)
        self._connection.connect()
        self.channel = self._connection.channel()
        self._queue = self.channel.queue_declare(
            exclusive=True, auto_delete=True).queue
        self.channel.queue_bind(self._queue, EXCHANGE, '#')

    def messages(self):
        """Yield all messages since the last call."""
        while True:
            found = self.channel.basic_get(self._queue, no_ack=True)
            if found is None:
                return
            yield found

    def send(self, body, to, **properties):
        self.channel.basic_publish(
            amqp.Message(body, **properties), EXCHANGE, to)

    def again(self, found, body=None):
        """Send a message once more, to its original receiver."""
        self.send(found.body if body is None else body,
                  found.delivery_info['routing_key'], **found.properties)

    def deaf(self):
        self.channel.queue_unbind(self._queue, EXCHANGE, '#')

    def close(self):
        self._connection.close()


def _tapped(fault, each):
    """Call *each* with every message for a while.

    If another fault prevents all sending, wait longer for the first message.
    """
    yield from fault.take('rabbitmq')
    tap = _Tap(fault.cluster.rabbitmq)
    seen = 0
    end = time.monotonic() + fault.seconds
    while time.monotonic() < end + (0 if seen else _SILENCE):
        for found in tap.messages():
            if _genuine(found):
                seen += 1
                each(tap, found)
        yield 0.05
    fault.happened = seen > 0
    tap.close()


def _genuine(found):
    """Return whether a message is from a member, and is of a known form."""
    if found.properties.get('application_headers', {}).get('ours'):
        return False
    try:
        inner = json.loads(json.loads(found.body)['oslo.message'])
        return 'kind' in inner['args']['message']
    except (ValueError, KeyError, TypeError):
        return False


def _marked(found):
    properties = dict(found.properties)
    headers = dict(properties.get('application_headers') or {})
    properties['application_headers'] = headers | {'ours': 1}
    found.properties.update(properties)
    return found


def _anew(random, body, change=lambda message: None):
    """Return a message with a new id, because a receiver accepts each id only
    once.

    :param change: called with the message of the product, without the envelope
        of oslo.messaging.
    """
    envelope = json.loads(body)
    inner = json.loads(envelope['oslo.message'])
    change(inner['args']['message'])
    inner['_unique_id'] = f'{random.getrandbits(128):032x}'
    envelope['oslo.message'] = json.dumps(inner)
    return json.dumps(envelope)


def double(fault):
    """Deliver every message twice, and once more under another id."""
    def again(tap, found):
        found = _marked(found)
        tap.again(found)
        tap.again(found, _anew(fault.random, found.body))
    yield from _tapped(fault, again)


def replay(fault):
    """Deliver genuine messages again after they have become obsolete."""
    kept = []
    yield from _tapped(fault, lambda tap, found: kept.append(found))
    yield 3.0
    yield from fault.until(fault.cluster.rabbitmq.answers)
    tap = _Tap(fault.cluster.rabbitmq)
    tap.deaf()
    for found in kept:
        tap.again(found, _anew(fault.random, found.body))
    tap.close()


def forge(fault):
    """Send forged messages with other ids, fences and leases."""
    random = fault.random

    def change(message):
        if message['kind'] == 'report':
            for report in message['reports']:
                told = {i for kind in ('failed', 'retried', 'refused')
                        for i, _ in report[kind]} | {*report['lost']}
                report['done'] = sorted({*report['done'], 0, 1, 2} - told)
            return
        if message['kind'] == 'notice':
            message['tasks'] = [f'{random.getrandbits(128):032x}'
                                for _ in message['tasks']]
            return
        what = random.choice(['id', 'lease', 'fences', 'job'])
        if what != 'fences':
            message['id'] = f's{random.randrange(10 ** 9)}'
        if what == 'lease':
            message['lease'] = f'{random.getrandbits(80):020x}'
        elif what == 'fences':
            message['fences'] = [one + 10 for one in message['fences']]
        elif what == 'job':
            message['job'] = random.choice(['poll', 'each', 'unheard of'])
    yield from _tapped(fault, lambda tap, found: tap.again(
        _marked(found), _anew(random, found.body, change)))


_GARBAGE = (
    b'', b'\0\xff\xfe garbage', b'[]', b'{"oslo.version": "9.9"}',
    b'{"oslo.version": "2.0", "oslo.message": "not JSON"}',
    b'{"oslo.version": "2.0", "oslo.message": "{\\"method\\": \\"eval\\", '
    b'\\"args\\": {}}"}',
    b'{"oslo.version": "2.0", "oslo.message": "{\\"method\\": \\"hear\\", '
    b'\\"args\\": {\\"message\\": {\\"v\\": 1, \\"kind\\": \\"run\\"}}}"}',
    b'[' * 100_000)


def send_garbage(fault):
    """Send bytes that are no message of the product."""
    yield from fault.take('rabbitmq')
    tap = _Tap(fault.cluster.rabbitmq)
    tap.deaf()
    found = {}
    yield from fault.apart(lambda: found.update(fault.cluster.queues()))
    for queue in found.values():
        for body in _GARBAGE:
            tap.send(body, queue,
                     content_type='application/json',
                     content_encoding='utf-8')
    tap.close()
