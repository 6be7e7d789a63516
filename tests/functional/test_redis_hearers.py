# SPDX-License-Identifier: Apache-2.0
"""Messages to all processes that listen to a name, over a real Redis."""

import contextlib
import socket
import threading
import time

import pytest
import redis as client
from oslo_config import cfg

from distperiodic.adapters.messaging import drivers
from distperiodic.exceptions import NoConsumer
from distperiodic.ports import Inbox
from tests import waiting
from tests.services import ports

TOPIC = 'distperiodic.g.notices'
HEARERS = f'{TOPIC}.all.hearers'
QUEUE = 'distperiodic.g.reports.s~1'


@contextlib.contextmanager
def way(port, before, word):
    """Forward connections to *port*, and call *before* when a request contains
    *word*. Yield the port of the proxy.
    """
    def forward(source, target, look):
        with contextlib.suppress(OSError), source, target:
            while piece := source.recv(65536):
                if look and word in piece:
                    before()
                target.sendall(piece)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                ends = [listener.accept()[0],
                        socket.create_connection((ports.HOST, port))]
                for pair in (*ends, True), (*ends[::-1], False):
                    threading.Thread(
                        target=forward, args=pair, daemon=True).start()

    with socket.create_server((ports.HOST, 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_queue_that_returns_meanwhile_stays_in_the_set_of_its_name(
        redis_server):
    with client.Redis.from_url(redis_server.url) as connection:
        connection.sadd(HEARERS, QUEUE)

        def declare():
            connection.xgroup_create(QUEUE, 'distperiodic', '0',
                                     mkstream=True)
            connection.sadd(HEARERS, QUEUE)

        with way(redis_server.port, declare, b'SREM') as port:
            url = f'redis://{ports.HOST}:{port}/0'
            carrier = drivers.driver_of(url).carrier(
                cfg.ConfigOpts(), url, inbox=None,
                monotonic=time.monotonic)
            with pytest.raises(NoConsumer):
                carrier.cast(TOPIC, 'all', {})
            carrier.cast(TOPIC, 'all', {})
            carrier.close(1)

        assert connection.xlen(QUEUE) == 1


def test_the_sets_of_all_names_of_a_queue_expire_unless_they_are_renewed(
        redis_server):
    names = [f'{TOPIC}.{name}' for name in ('one', 'two')]
    carrier = drivers.driver_of(redis_server.url).carrier(
        cfg.ConfigOpts(), redis_server.url,
        inbox=Inbox(QUEUE.rpartition('.')[0], 's~2', print, print, names),
        monotonic=time.monotonic)
    carrier.open(10)
    try:
        with client.Redis.from_url(redis_server.url) as connection:
            waiting.wait_until(lambda: all(
                connection.pttl(f'{name}.hearers') > 0 for name in names), 10)
    finally:
        carrier.close(1)
