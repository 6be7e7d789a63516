# SPDX-License-Identifier: Apache-2.0
"""Links between a service and its handler processes."""

import math
import multiprocessing
import threading
from multiprocessing import connection as connections

import pytest

from distperiodic.adapters.local import process_links
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.context import Context
from tests import waiting


class Pair:
    """A service, and one of its handler processes."""

    def __init__(self):
        self.held = True
        #: Deadline of the run on the monotonic clock, in seconds.
        self.until = math.inf
        self.ended = threading.Event()
        self.hub = process_links.Hub()
        self.link = process_links.Link(
            self.hub.address, self.hub.key, self.ended.set)

    def run(self, context):
        return self.hub.run(context, lambda: self.until)

    def context(self):
        """Return the context of a run in the service."""
        return Context('task:a.run', 't1', 0, 7, 1, held=lambda: self.held)

    def handler(self):
        """Return the context that the handler receives."""
        return Context('task:a.run', 't1', 0, 7, 1, held=self.link.is_current)


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.hub.close()


def test_progress_reaches_the_service_while_the_handler_runs(pair):
    outer, inner = pair.context(), pair.handler()

    with pair.run(outer) as number:
        pair.link.begin(number, inner, math.inf)
        inner.progress = {'n': 1}
        waiting.wait_until(lambda: outer.progress == {'n': 1})
        inner.progress = {'n': 2}
        waiting.wait_until(lambda: outer.progress == {'n': 2})
        assert outer.take_unsaved() == '{"n": 2}'
        last = pair.link.end()

    assert last == '{"n": 2}'


def test_the_end_of_a_run_has_the_last_progress(pair):
    outer, inner = pair.context(), pair.handler()
    with pair.run(outer) as number:
        pair.link.begin(number, inner, math.inf)
        inner.progress = 1
        waiting.wait_until(lambda: outer.progress == 1)
        inner.progress = 2

        assert pair.link.end() == '2'

    with pair.run(outer) as number:
        pair.link.begin(number, pair.handler(), math.inf)
        assert pair.link.end() is None


def test_progress_that_arrives_after_the_end_of_its_run_is_dropped(pair):
    first, second, third = (pair.context() for _ in range(3))
    with pair.run(first) as over:
        pass
    with (pair.run(second), pair.run(third) as number,
          connections.Client(pair.hub.address, authkey=pair.hub.key) as link):
        link.send((over, '"late"'))
        link.send((number, '"in time"'))
        waiting.wait_until(lambda: third.progress == 'in time')

    assert first.progress is second.progress is None


@pytest.mark.parametrize('how', ['lease', 'cancel'])
def test_a_handler_learns_that_its_result_will_not_count(pair, how):
    outer, inner = pair.context(), pair.handler()
    with pair.run(outer) as number:
        pair.link.begin(number, inner, math.inf)
        assert inner.is_current()

        if how == 'lease':
            pair.held = False
        else:
            outer.cancelled = True

        waiting.wait_until(lambda: inner.cancelled)
        assert not inner.is_current()
        pair.link.end()

    pair.held = True
    with pair.run(pair.context()) as number:
        inner = pair.handler()
        pair.link.begin(number, inner, math.inf)
        assert inner.is_current()
        pair.link.end()


def test_a_handler_does_not_trust_a_service_that_is_silent(tmp_path):
    with connections.Listener(str(tmp_path / 's'), backlog=4) as service:
        link = process_links.Link(service.address, None, pytest.fail)
        inner = Context('task:a.run', 't1', 0, 7, 1, held=link.is_current)

        link.begin(1, inner, math.inf)

        assert inner.is_current()
        waiting.wait_until(lambda: not inner.is_current())
        assert not inner.cancelled


def test_a_run_stays_current_for_longer_than_a_service_may_be_silent(pair):
    outer, inner = pair.context(), pair.handler()
    monotonic = SystemClock().monotonic
    began = monotonic()
    with pair.run(outer) as number:
        pair.link.begin(number, inner, math.inf)
        waiting.wait_until(lambda: monotonic() - began > 4)

        assert inner.is_current()
        pair.link.end()


def test_only_who_knows_the_key_is_linked(pair):
    with pytest.raises(multiprocessing.AuthenticationError):
        process_links.Link(
            pair.hub.address, b'guessed', pytest.fail)

    outer, inner = pair.context(), pair.handler()
    with pair.run(outer) as number:
        other = process_links.Link(
            pair.hub.address, pair.hub.key, pytest.fail)
        other.begin(number, inner, math.inf)
        inner.progress = 1
        waiting.wait_until(lambda: outer.progress == 1)
        other.end()


def test_a_handler_goes_on_without_its_service(pair, tmp_path):
    outer, inner = pair.context(), pair.handler()
    with connections.Listener(str(tmp_path / 's')) as service:
        link = process_links.Link(service.address, None, pytest.fail)
    link.begin(1, inner, math.inf)
    inner.progress = {'n': 1}

    assert link.end() == '{"n": 1}'
    assert outer.progress is None


def test_a_process_ends_when_the_lease_of_its_run_is_lost(pair):
    with pair.run(pair.context()) as number:
        pair.link.begin(number, pair.handler(), math.inf)
        assert not pair.ended.wait(1)

        pair.until = -math.inf

        assert pair.ended.wait(5)


def test_a_run_goes_on_for_as_long_as_its_lease_is_renewed(pair):
    monotonic = SystemClock().monotonic
    began = monotonic()
    with pair.run(pair.context()) as number:
        pair.until = began + 1.5
        pair.link.begin(number, pair.handler(), pair.until)
        while monotonic() < began + 3:
            pair.until = monotonic() + 1.5
            assert not pair.ended.wait(0.1)
        pair.link.end()

    assert not pair.ended.wait(2)


@pytest.mark.parametrize('closed', [False, True])
def test_a_process_ends_with_the_lease_that_its_service_does_not_extend(
        tmp_path, closed):
    ended = threading.Event()
    with connections.Listener(str(tmp_path / 's'), backlog=4) as service:
        accepted = []
        accepting = threading.Thread(
            target=lambda: accepted.append(service.accept()))
        accepting.start()
        link = process_links.Link(service.address, None, ended.set)
        accepting.join()
        inner = Context('task:a.run', 't1', 0, 7, 1, held=link.is_current)
        until = SystemClock().monotonic() + 1

        link.begin(1, inner, until)
        inner.progress = 'x' * 60_000
        if closed:
            accepted[0].close()

        assert ended.wait(5)
        assert SystemClock().monotonic() >= until


def test_a_run_that_begins_late_waits_for_its_service(pair):
    now = SystemClock().monotonic()
    with pair.run(pair.context()) as number:
        pair.until = now + 60
        pair.link.begin(number, pair.handler(), now)
        assert not pair.ended.wait(1)
        pair.link.end()

        pair.until = -math.inf
        pair.link.begin(number, pair.handler(), now)
        assert pair.ended.is_set()


def test_a_closed_hub_leaves_no_thread_behind():
    before = {*threading.enumerate()}
    hub = process_links.Hub()

    def new():
        return {*threading.enumerate()} - before

    # Then the remaining thread waits for the next connection.
    connections.Client(hub.address, authkey=hub.key).close()
    waiting.wait_until(lambda: len(new()) == 1)

    hub.close()
    waiting.wait_until(lambda: not new())
