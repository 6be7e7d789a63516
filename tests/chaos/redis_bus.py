# SPDX-License-Identifier: Apache-2.0
"""Redis as the bus of a cluster: one server, which writes its data to disk.

Limit: there is no replica, so no fault is a failover. With a failover, a
sentinel would return the addresses of the servers, and the members would
bypass their proxies. ``tests/functional/test_redis_bus.py`` tests failovers.
"""

import ast
import contextlib
import json
import re

import redis

from tests import services
from tests.chaos import bus
from tests.chaos.pace import PACE

# Milliseconds. If a process has not read its stream for this time, it counts
# as gone. A process reads twice a second.
_SILENT = 3000 * PACE
# Quoted arguments of a command, as MONITOR prints them.
_ARGUMENT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_FIELD = b'message'
_GARBAGE = (
    {'x': 'y'}, {_FIELD: b''}, {_FIELD: b'\0\xff\xfe garbage'},
    {_FIELD: b'[]'}, {_FIELD: b'null'}, {_FIELD: b'{"v": 9, "kind": "run"}'},
    {_FIELD: b'{"v": 1, "kind": "run"}'}, {_FIELD: b'[' * 100_000})


class Redis(bus.Bus):
    """See :class:`tests.chaos.bus.Bus`."""

    name = 'redis'
    unit = 'commands to Redis'
    carrier = 'distperiodic.adapters.redis.carrier:RedisCarrier'
    without = frozenset(['broker out of disk'])

    @staticmethod
    def serve():
        return services.redis(its_own=True)

    def listened(self):
        idle = {}
        with _client(self.server) as client:
            for key in client.scan_iter('distperiodic.*', _type='stream'):
                # The stream may have been deleted in the meantime.
                with contextlib.suppress(redis.ResponseError):
                    for group in client.xinfo_groups(key):
                        for one in client.xinfo_consumers(key, group['name']):
                            idle[key.decode()] = one['idle']
        return sorted((key for key, ms in idle.items() if ms <= _SILENT),
                      key=idle.get, reverse=True)

    def waiting(self, queues):
        with _client(self.server) as client:
            return [client.xlen(queue) for queue in queues
                    if client.exists(queue)]

    def delete_queue(self, queue):
        with (contextlib.suppress(redis.RedisError),
              _client(self.server) as client):
            return client.delete(queue) > 0
        return False

    def close_connections(self):
        with _client(self.server) as client:
            client.client_kill_filter(_type='normal', skipme=True)

    def run_out(self, resource):
        with _client(self.server) as client:
            client.config_set('maxmemory', 1)

    def recover(self, resource):
        with _client(self.server) as client:
            client.config_set('maxmemory', 0)

    def flush(self):
        """Delete all data of the server."""
        with _client(self.server) as client:
            client.flushall()

    def send_garbage(self, queues):
        with _client(self.server) as client:
            for queue in queues:
                for entry in _GARBAGE:
                    client.xadd(queue, entry, nomkstream=True)

    def tap(self, *, listens=True):
        return _Tap(self.server, listens)


def _client(server):
    return redis.Redis.from_url(server.url, socket_timeout=5)


class _Tap(bus.Tap):
    """A connection on which Redis reports all commands (MONITOR).

    A message is a pair: the name of the stream, and the content.
    """

    def __init__(self, server, listens):
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(_client(server))
        if listens:
            self._monitor = self._stack.enter_context(self._client.monitor())

    def messages(self):
        connection = self._monitor.connection
        while connection.can_read(0):
            found = _message(connection.read_response())
            if found is not None:
                yield found

    def again(self, found):
        self._send(*found)

    def anew(self, found, random, change=lambda message: None):
        queue, body = found
        message = json.loads(body)
        change(message)
        self._send(queue, json.dumps(message))

    def _send(self, queue, body):
        # The members read only the field that contains the message.
        self._client.xadd(queue, {_FIELD: body, 'ours': 1}, nomkstream=True)

    def close(self):
        self._stack.close()


def _message(line):
    """Return the stream and the content of the message that a member sent with
    a command. None means that the command sends no message of the product.

    :param line: a command that Redis reports.
    """
    words = [ast.literal_eval(f'b{word.decode()}')
             for word in _ARGUMENT.findall(line)]
    if not words or words[0].upper() != b'XADD' or words[-2] != _FIELD:
        return None
    with contextlib.suppress(ValueError, TypeError):
        if 'kind' in json.loads(words[-1]):
            return words[1], words[-1]
    return None
