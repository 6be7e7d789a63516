# SPDX-License-Identifier: Apache-2.0
"""A store in its own thread: calls keep their order, and are repeated until
the store answers.
"""

import logging
import threading
import time

import pytest

from distperiodic import exceptions
from distperiodic.adapters.local import store_thread
from tests.logged import events
from tests.logged import lines
from tests.waiting import wait_until

#: Time limit in seconds for each operation that must not block.
SOON = 10.0


class Store:
    """A store that records its calls. The test can make it unavailable."""

    def __init__(self):
        self.calls = []
        #: Number of calls that have reached the store.
        self.asked = 0
        #: Set while the store is reachable.
        self.there = threading.Event()
        self.there.set()
        #: Set while the store answers the calls that have reached it.
        self.answers = threading.Event()
        self.answers.set()
        self.closed = False

    def close(self):
        self.closed = True

    def call(self, number):
        self.asked += 1
        self.answers.wait(SOON)
        if not self.there.is_set():
            raise exceptions.StoreUnavailable('it is away')
        self.calls.append((number, threading.current_thread().name))
        return 10 * number


class Flow:
    """A caller that handles its answers in its own thread."""

    def __init__(self, store, connect=None):
        self.store = store
        #: Time of the monotonic clock, in seconds.
        self.time = 0.0
        self.inbox = []
        self.told = []
        self._before = threading.enumerate()
        self.line = store_thread.StoreThread(
            connect or (lambda: store), self.inbox.append, lambda: self.time)

    def ask(self, *numbers):
        for number in numbers:
            self.line.submit(lambda store, number=number: store.call(number),
                             self.told.append)

    def read(self):
        """Handle the answers in this thread; return the results so far."""
        while self.inbox:
            self.inbox.pop(0)()
        return self.told

    def join(self):
        """Wait for the threads; return True if all of them have ended."""
        threads = [one for one in threading.enumerate()
                   if one not in self._before
                   and one.name.startswith('distperiodic-')]
        for thread in threads:
            thread.join(SOON)
        return not any(thread.is_alive() for thread in threads)

    def stop(self, timeout=SOON):
        began = time.monotonic()
        self.line.stop(timeout)
        return time.monotonic() - began


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(store_thread, '_PAUSES', (0.005, 0.02))


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def flow(store):
    flow = Flow(store)
    flow.line.start()
    yield flow
    store.there.set()
    store.answers.set()
    flow.stop(0)
    flow.join()


def numbers(store):
    return [number for number, _ in store.calls]


def test_calls_are_made_in_order_in_one_thread(flow, store):
    flow.ask(*range(1000))

    assert flow.line.flush(SOON)
    assert numbers(store) == list(range(1000))
    assert {name for _, name in store.calls} == {'distperiodic-store'}
    assert flow.read() == [10 * number for number in range(1000)]


def test_an_urgent_call_waits_for_no_call_of_the_ordinary_queue(store):
    """Renewals continue while a call waits for rows that others have locked.
    """
    renewals = Store()
    stores = {'distperiodic-store': store, 'distperiodic-renewal': renewals}
    flow = Flow(store, lambda: stores[threading.current_thread().name])
    store.answers.clear()
    flow.ask(*range(10))
    flow.line.start()
    wait_until(lambda: store.asked)

    for number in 11, 12:
        flow.line.urgent.submit(
            lambda store, number=number: store.call(number), flow.told.append)

    wait_until(lambda: flow.read() == [110, 120])
    assert numbers(renewals) == [11, 12]
    assert numbers(store) == []
    store.answers.set()
    assert flow.line.flush(SOON)
    assert numbers(store) == [*range(10)]
    flow.stop()


def test_renewals_go_on_while_another_call_waits_for_a_lock(store):
    """The database finally rejects the blocked call; the thread repeats it."""
    store.there.clear()
    renewals = Store()
    stores = {'distperiodic-store': store, 'distperiodic-renewal': renewals}
    flow = Flow(store, lambda: stores[threading.current_thread().name])
    flow.line.start()
    flow.ask(1)
    wait_until(lambda: flow.line.away)

    for number in range(3):
        flow.line.urgent.submit(
            lambda store, number=number: store.call(number), flow.told.append)
    wait_until(lambda: len(flow.read()) == 3)

    assert flow.line.away
    store.there.set()
    assert flow.line.flush(SOON)
    assert numbers(store) == [1]
    flow.stop()


def queue_of(flow, urgent):
    return flow.line.urgent if urgent else flow.line


@pytest.mark.parametrize('urgent', [False, True])
def test_an_outage_of_the_store_for_both_threads_is_logged_once(
        flow, store, caplog, urgent):
    caplog.set_level(logging.INFO)
    store.there.clear()
    for first in urgent, not urgent:
        queue_of(flow, first).submit(
            lambda store: store.call(1), flow.told.append)
        wait_until(lambda first=first: (
            flow.line.problem if first else flow.line.away))
    assert flow.line.away

    store.there.set()

    assert flow.line.flush(SOON)
    assert not flow.line.away
    assert flow.line.problem is None
    assert events(caplog) == ['store away', 'store back']


def test_both_threads_close_their_connections():
    made = []

    def connect():
        made.append(Store())
        return made[-1]
    flow = Flow(None, connect)
    flow.line.start()
    flow.ask(1)
    flow.line.urgent.submit(
        lambda store: store.call(2), flow.told.append)

    flow.stop()

    assert flow.join()
    assert [one.closed for one in made] == [True, True]


def test_an_answer_is_delivered_in_the_thread_of_the_flow(flow):
    """The flow has no locks: all its code runs in one thread."""
    told_in = []
    flow.line.submit(
        lambda store: store.call(1),
        lambda answer: told_in.append((answer, threading.current_thread())))

    assert flow.line.flush(SOON)
    assert told_in == []
    flow.read()
    assert told_in == [(10, threading.current_thread())]


def test_asking_does_not_wait_for_the_store(flow, store):
    store.answers.clear()
    began = time.monotonic()
    flow.ask(*range(1000))

    assert time.monotonic() - began < 1
    assert flow.read() == []


def test_a_call_submitted_before_the_thread_began_is_made(store):
    flow = Flow(store)
    flow.ask(1, 2)
    assert not flow.line.flush(0)

    flow.line.start()

    assert flow.line.flush(SOON)
    assert flow.read() == [10, 20]
    flow.stop()


def test_an_answer_may_ask_again(flow, store):
    """Most answers lead to another call."""
    flow.line.submit(lambda store: store.call(1), lambda _: flow.ask(2))
    assert flow.line.flush(SOON)
    flow.read()

    assert flow.line.flush(SOON)
    assert flow.read() == [20]


def test_a_store_that_is_away_is_asked_again_and_nothing_overtakes(
        flow, store, caplog):
    caplog.set_level(logging.INFO)
    store.there.clear()
    flow.ask(1, 2, 3)
    wait_until(lambda: flow.line.away)
    assert 'it is away' in str(flow.line.problem)
    assert flow.line.facts()['away']
    assert not flow.line.flush(0.1)
    assert flow.read() == []

    store.there.set()

    assert flow.line.flush(SOON)
    assert numbers(store) == [1, 2, 3]
    assert flow.read() == [10, 20, 30]
    assert not flow.line.away
    assert flow.line.problem is None
    assert not flow.line.facts()['away']
    assert events(caplog) == ['store away', 'store back']


def test_each_outage_is_logged_once(flow, store, caplog):
    caplog.set_level(logging.INFO)
    for number in range(3):
        flow.time += 60.0
        store.there.clear()
        flow.ask(number)
        wait_until(lambda: flow.line.away)
        # The thread makes many attempts during this time.
        assert not flow.line.flush(0.1)
        store.there.set()
        assert flow.line.flush(SOON)

    assert [(line.event, line.level) for line in lines(caplog)] == 3 * [
        ('store away', 'ERROR'), ('store back', 'INFO')]


@pytest.mark.parametrize('urgent', [False, True])
def test_a_store_that_fails_some_calls_is_not_back_until_it_is_stable(
        flow, store, caplog, urgent):
    """A database whose disk is full stores some rows and rejects others."""
    caplog.set_level(logging.INFO)

    def fail_once():
        store.there.clear()
        queue_of(flow, urgent).submit(
            lambda store: store.call(1), flow.told.append)
        wait_until(lambda: flow.line.problem)
        store.there.set()
        assert flow.line.flush(SOON)
        assert not flow.line.away

    for _ in range(5):
        fail_once()
        flow.time += 9.0

    assert events(caplog) == ['store away', 'store back', 'store away']
    flow.time += 1.0
    flow.ask(2)
    assert flow.line.flush(SOON)
    assert events(caplog)[3:] == ['store back']


def test_an_outage_of_the_renewals_alone_is_not_one_of_the_claims(
        store, caplog):
    renewals = Store()
    renewals.there.clear()
    stores = {'distperiodic-store': store, 'distperiodic-renewal': renewals}
    flow = Flow(store, lambda: stores[threading.current_thread().name])
    flow.line.start()

    flow.line.urgent.submit(
        lambda store: store.call(1), flow.told.append)
    wait_until(lambda: flow.line.problem)

    [line] = lines(caplog, 'store away')
    assert 'claimed' not in line.text
    assert 'lease' in line.text
    renewals.there.set()
    flow.stop()


def test_pauses_grow_while_the_store_is_away(store, monkeypatch):
    store.there.clear()
    pauses = []

    class Noted(threading.Event):
        def wait(self, seconds=None):
            if seconds is None:
                # This is the wait in Thread.start(), not a pause.
                return super().wait()
            pauses.append(seconds)
            if len(pauses) == 5:
                store.there.set()
            return False
    with monkeypatch.context() as patch:
        patch.setattr(threading, 'Event', Noted)
        flow = Flow(store)
    flow.ask(1)
    flow.line.start()

    assert flow.line.flush(SOON)
    assert pauses == [0.005, 0.01, 0.02, 0.02, 0.02]
    flow.stop()


def test_a_store_that_is_away_at_first_is_connected_later(store, caplog):
    attempts = []

    def connect():
        attempts.append(len(attempts))
        if len(attempts) < 4:
            raise exceptions.StoreUnavailable('not yet')
        return store
    flow = Flow(store, connect)
    flow.ask(1)
    flow.line.start()

    assert flow.line.flush(SOON)
    assert len(attempts) == 4
    assert flow.read() == [10]
    assert len(lines(caplog, 'store away')) == 1
    flow.stop()


def test_a_call_that_fails_in_itself_is_logged_and_the_next_is_made(
        flow, caplog):
    def broken(store):
        raise ZeroDivisionError
    flow.ask(1)
    flow.line.submit(broken, flow.told.append)
    flow.ask(2)

    assert flow.line.flush(SOON)
    assert flow.read() == [10, 20]
    [line] = lines(caplog, 'store call failed')
    assert line == {'error': 'ZeroDivisionError'}
    assert not flow.line.away


def test_a_call_that_can_never_be_answered_is_reported_to_its_caller(flow):
    failed = []

    flow.line.submit(lambda store: 1 / 0, flow.told.append,
                     lambda: failed.append(True))
    assert flow.line.flush(SOON)

    assert flow.read() == []
    assert failed == [True]


def test_a_store_that_cannot_be_made_is_asked_for_again():
    tries = []

    def connect():
        tries.append(1)
        if len(tries) < 3:
            raise ValueError('no such driver')
        return Store()

    flow = Flow(None, connect)
    flow.line.start()
    flow.ask(1)
    assert flow.line.flush(SOON)

    assert flow.read() == [10]
    flow.stop()


def test_flush_waits_no_longer_than_it_may(flow, store):
    store.answers.clear()
    flow.ask(1)
    began = time.monotonic()

    assert not flow.line.flush(0.1)
    assert 0.1 <= time.monotonic() - began < 1


def test_flush_has_nothing_to_wait_for_where_nothing_was_asked(flow):
    assert flow.line.flush(0)


def test_stopping_makes_the_pending_calls(flow, store):
    flow.ask(*range(100))

    flow.stop()

    assert numbers(store) == list(range(100))


def test_stopping_before_a_store_that_is_away_is_bounded(flow, store):
    store.there.clear()
    flow.ask(1, 2)
    wait_until(lambda: flow.line.away)

    assert 0.1 <= flow.stop(0.1) < 1
    assert flow.join()
    store.there.set()
    assert flow.read() == []


def test_stopping_before_a_store_that_does_not_answer_is_bounded(
        flow, store):
    """Answers that arrive later are dropped."""
    store.answers.clear()
    flow.ask(1, 2)

    assert 0.1 <= flow.stop(0.1) < 1
    store.answers.set()
    assert flow.join()
    assert flow.read() == []
    assert numbers(store) == [1]


def test_stopping_ends_the_thread(flow):
    flow.stop()

    assert flow.join()


def test_a_report_contains_how_long_the_store_takes(flow, store):
    def call(seconds):
        def lasts(_):
            flow.time += seconds
        flow.line.submit(lasts, lambda _: None)
    for seconds in (0.1, 0.2, 0.3):
        call(seconds)
    assert flow.line.flush(SOON)

    facts = flow.line.facts()

    assert (facts['calls'], facts['queued'], facts['waits_s']) == (3, 0, 0.0)
    assert facts['p50_s'] == pytest.approx(0.2)
    assert facts['max_s'] == pytest.approx(0.3)
    assert facts['slow_s'] is None
    flow.time += 61.0
    assert flow.line.facts()['calls'] == 0


def test_a_store_is_slow_while_most_of_its_newest_calls_are(flow, store):
    def calls(*seconds):
        for one in seconds:
            def lasts(_, one=one):
                flow.time += one
            flow.line.submit(lasts, lambda _: None)
        assert flow.line.flush(SOON)
        return flow.line.facts()['slow_s']
    assert calls(0.1, 0.1, 3.0, 0.1, 3.0) is None
    # The third of the newest five began 3 s before the first that was fast.
    assert calls(3.0) == pytest.approx(3.0)
    assert calls(3.0, 3.0) == pytest.approx(9.0)
    assert calls(0.1, 0.1) is not None
    assert calls(0.1) is None


def test_a_call_that_does_not_return_shows_in_the_report(flow, store):
    store.answers.clear()
    flow.ask(1)
    wait_until(lambda: store.asked)

    flow.time += 5.0

    facts = flow.line.facts()
    assert (facts['queued'], facts['waits_s'], facts['slow_s']) == (
        1, 5.0, 5.0)
    store.answers.set()
    assert flow.line.flush(SOON)
    assert flow.line.facts()['waits_s'] == 0.0
