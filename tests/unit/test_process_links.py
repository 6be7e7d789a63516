# SPDX-License-Identifier: Apache-2.0
"""The link of a handler process, seen from its service."""

import json
import math
import os
import pickle
import socket
import threading

import pytest

from distperiodic.adapters.local import handler_process
from distperiodic.adapters.local import process_links
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from tests import waiting

monotonic = SystemClock().monotonic


RUN = RunInput('task:a.run', 't1', 0, 7, 1)


class Service:
    """A service that reads and writes only what a test demands."""

    def __init__(self):
        self.socket, self.theirs = socket.socketpair()
        self.socket.settimeout(10)
        self.ended = threading.Event()
        self.link = handler_process.Link(self.theirs, self.ended.set)
        self.frames = process_links.Frames()
        self.unread = []
        self.link.start()
        assert self.read() == ['ready']

    def send(self, message):
        self.socket.sendall(process_links.frame(pickle.dumps(message)))

    def state(self, **changed):
        self.send(process_links.RunState(monotonic(), **changed))

    def read(self):
        """Return the next message of the process."""
        while not self.unread:
            self.unread += map(
                json.loads, self.frames.feed(self.socket.recv(1 << 16)))
        return self.unread.pop(0)

    def call(self, until=math.inf):
        self.send(process_links.Call(
            RUN, 'null', '', until, ()))
        return self.link.next_run()

    def begin(self, until=math.inf):
        """Begin a run, and return the context of its handler."""
        run = self.call(until)
        context = Context(RUN, held=self.link.is_current)
        self.link.begin(run, context)
        assert self.read() == ['began']
        return context


@pytest.fixture
def service():
    made = Service()
    yield made
    made.socket.close()


def test_progress_reaches_the_service_while_the_handler_runs(service):
    inner = service.begin()
    for number in (1, 2):
        inner.progress = {'n': number}
        service.state()
        assert service.read() == ['progress', f'{{"n": {number}}}']

    service.link.finish('done', None)
    assert service.read() == ['done', None]


def test_the_end_of_a_run_has_the_last_progress(service):
    inner = service.begin()
    inner.progress = 2

    service.link.finish('failed', 'Error', 'text', 'traceback')

    assert service.read() == ['progress', '2']
    assert service.read() == ['failed', 'Error', 'text', 'traceback']


def test_progress_is_not_sent_after_the_end_of_its_run(service):
    first = service.begin()
    service.link.finish('done', None)
    assert service.read() == ['done', None]
    first.progress = 'late'
    service.state()

    second = service.begin()
    service.state()
    second.progress = 1
    service.link.finish('done', None)

    assert service.read() == ['progress', '1']


@pytest.mark.parametrize('how', ['before', 'while'])
def test_a_handler_learns_that_its_result_will_not_count(service, how):
    if how == 'before':
        run = service.call()
        service.state(cancelled=True)
        context = Context(RUN)
        service.link.begin(run, context)
        service.state(cancelled=True)
        waiting.wait_until(lambda: context.cancelled)
        return
    inner = service.begin()
    assert inner.is_current()
    service.state(cancelled=True)
    waiting.wait_until(lambda: inner.cancelled)
    assert not inner.is_current()
    service.link.finish('done', None)
    assert service.read() == ['done', None]

    inner = service.begin()
    service.state()
    assert inner.is_current()


def test_a_handler_does_not_trust_a_service_that_is_silent(service):
    inner = service.begin()
    assert inner.is_current()

    # The message was sent some time ago, and read only now.
    service.send(process_links.RunState(
        monotonic() - handler_process.SILENT))

    waiting.wait_until(lambda: not inner.is_current(), 1)
    assert not inner.cancelled
    service.state()
    waiting.wait_until(inner.is_current)


def test_a_process_ends_when_the_lease_of_its_run_is_lost(service):
    service.begin()
    service.state(until=-math.inf)

    assert service.ended.wait(5)
    assert service.read() == ['expired']


def test_a_run_goes_on_for_as_long_as_its_lease_is_renewed(service):
    service.begin(monotonic() + 0.5)
    service.state(until=monotonic() + 60)
    assert not service.ended.wait(1)

    until = monotonic() + 0.5
    service.state(until=until)

    assert service.ended.wait(5)
    assert monotonic() >= until


def test_a_process_ends_with_the_lease_that_its_service_does_not_extend(
        service):
    until = monotonic() + 0.5
    inner = service.begin(until)
    inner.progress = 'x' * 60_000

    assert service.ended.wait(5)
    assert monotonic() >= until


def test_a_run_that_has_ended_has_no_time_limit(service):
    service.begin(monotonic() + 0.3)
    service.link.finish('done', None)

    assert not service.ended.wait(0.6)


def test_a_process_ends_with_its_service(service):
    service.begin()
    service.socket.close()

    assert service.ended.wait(5)


def test_a_run_that_begins_late_waits_for_its_service(service, monkeypatch):
    monkeypatch.setattr(handler_process, 'SILENT', 0.5)
    run = service.call(monotonic())
    service.state(until=monotonic() + 60)
    service.link.begin(run, Context(RUN))
    assert service.read() == ['began']
    service.link.finish('done', None)
    assert not service.ended.is_set()

    run = service.call(monotonic())
    service.link.begin(run, Context(RUN))
    assert service.ended.is_set()


def test_nothing_is_written_to_a_socket_with_the_descriptor_of_the_link(
        service):
    """A handler has closed all descriptors, and opened its own."""
    service.begin()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.dup2(ours.fileno(), service.theirs.fileno())

        service.link.finish('done', None)

        assert service.ended.is_set()
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_messages_are_split_where_they_end():
    contents = [b'abc', b'', b'last']
    whole = b''.join(map(process_links.frame, contents))
    frames = process_links.Frames()

    assert [*process_links.Frames().feed(whole)] == contents
    assert [part for at in range(len(whole))
            for part in frames.feed(whole[at:at + 1])] == contents


def test_a_message_that_is_too_long_is_refused():
    with pytest.raises(process_links.Malformed):
        [*process_links.Frames().feed(b'\xff' * 4)]
