# SPDX-License-Identifier: Apache-2.0
"""Subscribers of a program harm nobody, whatever they do."""

import os
import queue
import threading

import pytest

from distperiodic.adapters.local import subscribers
from distperiodic.adapters.local.subscribers import Subscribers
from distperiodic.core import metric_table as table
from distperiodic.core.tally import Key
from distperiodic.core.telemetry import CatalogueFailed
from distperiodic.core.telemetry import TickDue
from tests.logged import lines
from tests.waiting import wait_until

DUE = TickDue('poll', 60)


@pytest.fixture
def hub():
    return Subscribers()


def count(hub, metric, *labels):
    return hub.tally().values.get(Key(metric.name, labels), 0)


def test_a_subscriber_receives_the_events_in_their_order(hub):
    received = []
    hub.subscribe(received.append)

    sent = [TickDue('poll', tick) for tick in range(1000)]
    for event in sent:
        hub.put(event)

    wait_until(lambda: received == sent)


async def never_awaited(event):
    raise AssertionError


@pytest.mark.parametrize('function', [None, never_awaited])
def test_a_subscriber_that_could_not_run_is_refused(hub, function):
    with pytest.raises(TypeError, match='needs a function'):
        hub.subscribe(function)

    assert not hub.open


def test_the_sink_is_open_while_there_is_a_subscriber(hub):
    assert not hub.open
    one, other = hub.subscribe(print), hub.subscribe(print)
    assert hub.open
    one()
    one()
    assert hub.open
    other()
    assert not hub.open
    hub.count()
    assert hub.open


def test_a_subscription_that_has_ended_receives_nothing(hub):
    received, ends = [], threading.Event()
    hub.subscribe(received.append)()
    hub.subscribe(lambda event: ends.set())

    hub.put(DUE)

    assert ends.wait(10)
    assert received == []


def test_an_exception_is_logged_once_and_ends_nothing(hub, caplog):
    received = []

    def fail(event):
        received.append(event)
        raise ValueError('no\nroute')
    hub.subscribe(fail)

    for _ in range(3):
        hub.put(DUE)

    wait_until(lambda: len(received) == 3)
    [line] = lines(caplog, 'subscriber failed')
    assert line.has(event='TickDue', error='ValueError: no route')
    assert 'fail' in line['subscriber']
    [trouble] = hub.troubles()
    assert trouble['name'] == line['subscriber']
    assert trouble['error'] == 'ValueError: no route'


def test_a_subscriber_that_blocks_loses_events_and_no_other_does(
        hub, monkeypatch, caplog):
    monkeypatch.setattr(subscribers, 'CAPACITY', 5)
    go, received, began = threading.Event(), [], threading.Event()

    def block(event):
        began.set()
        assert go.wait(60)
    hub.subscribe(block)
    hub.count()
    hub.put(DUE)
    assert began.wait(10)
    hub.subscribe(received.append)

    for number in range(1, 21):
        hub.put(DUE)
        wait_until(lambda number=number: len(received) == number)

    assert count(hub, table.EVENTS_DROPPED) == 15
    assert count(hub, table.TICKS_DUE, 'poll') == 21
    [line] = lines(caplog, 'events dropped')
    assert line.has(dropped=1)
    assert hub.troubles()[0]['dropped'] == 15
    trouble = wait_until(lambda: 'calling_s' in hub.troubles()[0]
                         and hub.troubles())
    assert [one['name'] for one in trouble] == [line['subscriber']]
    go.set()
    wait_until(lambda: 'calling_s' not in hub.troubles()[0])


def test_dropped_events_still_count_when_the_subscription_has_ended(
        hub, monkeypatch):
    monkeypatch.setattr(subscribers, 'CAPACITY', 1)
    go, began = threading.Event(), threading.Event()

    def block(event):
        began.set()
        assert go.wait(60)
    end = hub.subscribe(block)
    hub.put(DUE)
    assert began.wait(10)
    for _ in range(3):
        hub.put(DUE)

    end()
    go.set()

    assert count(hub, table.EVENTS_DROPPED) == 2


def test_a_child_begins_to_count_at_zero_and_keeps_the_subscriptions(hub):
    received = queue.SimpleQueue()
    hub.subscribe(lambda event: received.put(os.getpid()))
    hub.count()
    hub.put(DUE)
    assert received.get(timeout=10) == os.getpid()
    child = os.fork()
    if not child:
        right = False
        try:
            hub.put(CatalogueFailed('poll', 'c'))
            right = (count(hub, table.CATALOGUE_READS, 'poll', 'failed') == 1
                     and count(hub, table.TICKS_DUE, 'poll') == 0
                     and received.get(timeout=10) == os.getpid())
        finally:
            os._exit(0 if right else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert count(hub, table.CATALOGUE_READS, 'poll', 'failed') == 0
    assert count(hub, table.TICKS_DUE, 'poll') == 1


def test_the_jobs_of_a_service_are_counted_from_zero(hub):
    def jobs():
        return {key.labels for key in hub.tally().values
                if key.metric == table.TICKS_LOST.name}
    hub.expect(['before'])
    assert jobs() == set()

    hub.count()
    assert jobs() == {('before',)}
    hub.expect(['after'])
    assert jobs() == {('before',), ('after',)}


def test_gauges_are_read_when_the_counts_are_read(hub):
    threads = [3]
    end = hub.add_gauges(lambda tally: tally.count(
        table.SLOTS, 'default', 'free', number=threads[0]))
    assert count(hub, table.SLOTS, 'default', 'free') == 3
    threads[0] = 4
    assert count(hub, table.SLOTS, 'default', 'free') == 4
    end()
    assert count(hub, table.SLOTS, 'default', 'free') == 0
