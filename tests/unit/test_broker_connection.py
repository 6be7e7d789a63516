# SPDX-License-Identifier: Apache-2.0
"""A connection to a broker, with a driver that needs no server."""

import time

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic.adapters.messaging import connection as connections
from distperiodic.ports import Inbox


class Refusing:
    """A client that sends nothing."""

    def cast(self, *_, **__):
        raise RuntimeError('vhost v not found')


def test_a_broker_that_is_not_tried_again_is_not_away_for_ever(monkeypatch):
    ahead = 0.0
    conf = cfg.ConfigOpts()
    conf([])
    made = connections.BrokerConnection(
        conf, 'fake:///', Inbox(
            'tests.work', 'w-1~1', lambda _: None, lambda *_: None, []),
        False, lambda: time.monotonic() + ahead)
    made.open(20)
    assert made.problem is None
    with monkeypatch.context() as patch:
        patch.setattr(connections, 'sender', lambda *_: Refusing())
        with pytest.raises(exceptions.BusUnavailable):
            made.cast('tests.reports', 'a-1~1', {})

    assert 'vhost v not found' in made.problem
    ahead = 29.0
    assert made.problem
    ahead = 31.0
    assert made.problem is None
    made.close(5)
