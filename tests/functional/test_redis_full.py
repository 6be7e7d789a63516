# SPDX-License-Identifier: Apache-2.0
"""Batches and reports over a Redis whose memory is full.

Only the receivers free the memory that waiting messages use.
"""

import logging

import pytest
import redis as client

from tests.ends import connected
from tests.logged import lines
from tests.waiting import wait_until


@pytest.fixture
def ends(redis_server, caplog):
    caplog.set_level(logging.INFO, 'distperiodic')
    with connected(redis_server.url) as ends:
        ends.talk('before')
        yield ends


@pytest.fixture
def connection(redis_server):
    with client.Redis.from_url(redis_server.url) as connection:
        yield connection


def fill(connection, *queues):
    """Add a message to each of *queues*, close all other connections, and make
    the server full.
    """
    with connection.pipeline() as pipeline:
        for queue in queues:
            pipeline.xadd(queue, {'message': 'x'})
        pipeline.execute_command(
            'CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
        pipeline.config_set('maxmemory', 1)
        pipeline.execute()


def test_a_full_server_is_emptied_after_a_reconnect(
        ends, connection, caplog):
    queues = ends.work_queue, ends.reports_queue
    fill(connection, *queues)

    for queue in queues:
        wait_until(lambda queue=queue: connection.xlen(queue) == 0)

    connection.config_set('maxmemory', 0)
    ends.talk('after', 20)
    assert len(lines(caplog, 'the broker answers again')) == 2


def test_a_queue_that_is_gone_is_declared_when_the_server_has_room(
        ends, connection, caplog):
    fill(connection)
    connection.flushall()
    ends.send(1)
    wait_until(lambda: ends.unsent)

    connection.config_set('maxmemory', 0)
    ends.talk('after', 20)

    # The attempts to declare the queue do not fill the log.
    assert len(lines(caplog, 'the broker lost a queue')) <= 2
    assert len(lines(caplog, 'the broker cannot be reached')) <= 2
