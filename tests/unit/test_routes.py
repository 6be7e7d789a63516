# SPDX-License-Identifier: Apache-2.0
"""One broker for each partition: a slow broker delays only its partition."""

import threading
import time

import pytest

from distperiodic import exceptions
from distperiodic.adapters.messaging.routes import PartitionBuses
from distperiodic.core import message
from tests.logged import lines
from tests.waiting import wait_until

NOT_STARTED = 'bus of a partition not started'


class Bus:
    """A bus whose start raises the given errors, and then succeeds."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.sent = []
        self.started = threading.Event()
        self.closed = 0

    def start(self, timeout):
        if self.failures:
            raise self.failures.pop(0)
        assert not self.started.is_set(), 'started twice'
        self.started.set()

    def send(self, batch):
        self.sent.append(batch.partition)

    def close(self, timeout):
        self.closed += 1


def away(times=1):
    return [exceptions.BusUnavailable('no answer')] * times


def a_batch(partition):
    return message.Batch('1', 'poll', 0, ['a'], [1], [1], 's', 'w', 'lease-1',
                         partition)


def buses(main, **own):
    return PartitionBuses(main, own, time.monotonic)


def test_a_batch_goes_through_the_bus_of_its_partition():
    main, shared, other = Bus(), Bus(), Bus()
    both = buses(main, a=shared, b=shared, c=other)
    both.start(1)

    for partition in 'abcd':
        both.send(a_batch(partition))

    assert (main.sent, shared.sent, other.sent) == (['d'], ['a', 'b'], ['c'])


def test_a_broker_that_is_away_holds_up_no_start_and_is_retried(caplog):
    caplog.set_level('INFO')
    own = Bus(*away(2))
    both = buses(Bus(), a=own, b=own)

    both.start(1)

    wait_until(own.started.is_set)
    [line] = lines(caplog, NOT_STARTED)
    assert (line.level, line['partition']) == ('ERROR', 'a,b')
    wait_until(lambda: lines(caplog, 'bus of a partition started'))
    both.close(1)


def test_the_main_broker_is_needed_and_the_others_start_once():
    main, own = Bus(*away()), Bus()
    both = buses(main, a=own)
    with pytest.raises(exceptions.BusUnavailable):
        both.start(1)
    wait_until(own.started.is_set)

    both.start(1)

    assert main.started.is_set()


def test_a_url_that_can_never_work_ends_the_start():
    both = buses(Bus(), a=Bus(exceptions.ConfigError('no such driver')))

    with pytest.raises(exceptions.ConfigError, match='no such driver'):
        both.start(1)


def test_closing_closes_each_bus_once():
    main, own = Bus(), Bus()
    both = buses(main, a=own, b=own)
    both.start(1)

    both.close(1)

    assert (main.closed, own.closed) == (1, 1)


def test_closing_ends_the_retries():
    own = Bus(*away(1000))
    both = buses(Bus(), a=own)
    both.start(1)
    before = len(own.failures)

    both.close(1)

    wait_until(lambda: not [t for t in threading.enumerate()
                            if t.name == 'distperiodic-start'])
    assert len(own.failures) >= before - 1
    assert not own.started.is_set()
