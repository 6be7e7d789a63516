# SPDX-License-Identifier: Apache-2.0
"""Behaviour of every kind of bus while its broker fails, and afterwards."""

import contextlib
import logging
import socket
from urllib import parse

import pytest

from distperiodic import exceptions
from distperiodic.adapters.messaging import connection
from tests import services
from tests.ends import LATE
from tests.ends import Ends
from tests.ends import connected
from tests.ends import took_at_most
from tests.logged import lines
from tests.services.behind import Behind
from tests.waiting import wait_until

BROKERS = {'rabbitmq': services.rabbitmq, 'redis': services.redis}


@pytest.fixture(scope='module', params=[
    # The start of a broker takes longer than most of these tests.
    pytest.param(name, marks=pytest.mark.xdist_group(f'mortal_{name}'))
    for name in BROKERS])
def mortal(request):
    """A broker that the tests of this file may break and restore."""
    with BROKERS[request.param](its_own=True) as server:
        yield server


@pytest.fixture(params=[
    'hidden', pytest.param('killed', marks=pytest.mark.full)])
def leaving(request, mortal):
    """A broker that may leave and come back with its queues."""
    if request.param == 'killed':
        yield mortal
        return
    hidden = Behind(mortal)
    yield hidden
    hidden.kill()


@contextlib.contextmanager
def talking(url, caplog):
    caplog.set_level(logging.INFO, 'distperiodic')
    with connected(url) as ends:
        ends.talk('before')
        yield ends


@pytest.fixture
def ends(mortal, caplog):
    with talking(mortal.url, caplog) as ends:
        yield ends


@pytest.fixture
def ends_of_leaving(leaving, caplog):
    with talking(leaving.url, caplog) as ends:
        yield ends


@pytest.fixture
def impatient(monkeypatch):
    """Connections that notice a broker that is away ten times as fast."""
    for name in '_UNANSWERED', '_QUIET', '_LOOK':
        monkeypatch.setattr(connection, name, getattr(connection, name) / 10)


def test_a_killed_broker_is_reported_in_time_and_needs_no_repair(
        leaving, ends_of_leaving, caplog):
    ends = ends_of_leaving
    leaving.kill()
    try:
        with took_at_most(1):
            for number in range(100):
                ends.send(number)
        with took_at_most(LATE):
            wait_until(lambda: len(ends.unsent) == 100)
        assert 'refused' in ends.unsent['99']
        assert ends.work.problem
        ends.report('late')
    finally:
        leaving.start()
    ends.talk('after', 20)
    wait_until(lambda: ends.work.problem is None)

    wait_until(lambda: 'late' in ends.reported)
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_broker_killed_and_back_in_time_loses_nothing(mortal):
    """The broker delivers all confirmed messages after its restart."""
    with connected(mortal.url, patience=60.0) as ends:
        ends.talk('before')
        mortal.kill()
        for number in range(50):
            ends.send(number)
            ends.report(number)
        mortal.start()

        numbers = {str(number) for number in range(50)}
        wait_until(lambda: numbers <= set(ends.got), 30)
        wait_until(lambda: numbers <= set(ends.reported), 30)
        assert ends.unsent == {}


def test_a_broker_that_lost_its_data_is_used_again(mortal, ends):
    mortal.kill()
    mortal.wipe()
    mortal.start()

    ends.talk('after', 20)


def test_a_broker_that_stands_still_holds_up_no_sender(mortal, ends, caplog):
    mortal.freeze()
    try:
        with took_at_most(1):
            for number in range(100):
                ends.send(number)
        with took_at_most(LATE):
            wait_until(lambda: len(ends.unsent) == 100)
    finally:
        mortal.thaw()

    ends.talk('after', 20)
    # Each of the two buses has a connection of its own.
    assert len(lines(caplog, 'the broker cannot be reached')) <= 2


def test_a_bus_that_sends_nothing_notices_that_its_broker_stands_still(
        leaving, ends_of_leaving, caplog, impatient):
    buses = ends_of_leaving.work, ends_of_leaving.back
    leaving.freeze()
    try:
        wait_until(lambda: all(bus.problem for bus in buses))
    finally:
        leaving.thaw()

    # A bus forgets the problem before it logs that the broker answers.
    wait_until(lambda: not any(bus.problem for bus in buses) and len(
        lines(caplog, 'the broker answers again')) == 2)
    assert len(lines(caplog, 'the broker cannot be reached')) == 2


def test_closing_while_the_broker_is_away_is_bounded(leaving):
    ends = Ends(leaving.url)
    ends.back.start(20)
    ends.work.start(20)
    leaving.kill()
    try:
        ends.send(1)
        ends.report(1)
        for bus in ends.work, ends.back:
            with took_at_most(1.5):
                bus.close(1)
        assert 'closed' in ends.unsent['1']
        assert sum(ends.back.dropped.values()) == 1
    finally:
        leaving.start()


def test_a_start_that_failed_can_be_tried_again(leaving):
    leaving.kill()
    ends = Ends(leaving.url)
    try:
        with pytest.raises(exceptions.BusUnavailable):
            ends.work.start(0.5)
        ends.send(1)
        assert 'start' in ends.unsent['1']
        with pytest.raises(exceptions.BusUnavailable):
            ends.report(1)
    finally:
        leaving.start()
    ends.back.start(20)
    ends.work.start(20)
    ends.talk(1)
    ends.work.close()
    ends.back.close()


@pytest.mark.parametrize('mortal', [pytest.param(
    'rabbitmq', marks=pytest.mark.xdist_group('mortal_rabbitmq'))],
    indirect=True)
def test_a_deleted_virtual_host_is_logged_without_a_traceback(
        mortal, caplog, impatient):
    def create():
        mortal.ctl('add_vhost', 'gone')
        mortal.ctl('set_permissions', '-p', 'gone',
                   parse.urlsplit(mortal.url).username, '.*', '.*', '.*')
    create()
    with talking(f'{mortal.url}gone', caplog) as ends:
        mortal.ctl('delete_vhost', 'gone')
        wait_until(lambda: 'not found' in (ends.work.problem or ''), 20.0)
        wait_until(lambda: any('after inf tries' in record.getMessage()
                               for record in caplog.records))
        assert [one for one in caplog.records if one.exc_info] == []
        create()
        ends.talk('after', 20)


@pytest.mark.parametrize('scheme', ['rabbit', 'redis'])
def test_a_host_that_never_answers_does_not_hold_up_the_start(scheme):
    with socket.create_server(('127.0.0.1', 0)) as silent:
        ends = Ends(f'{scheme}://u:p@127.0.0.1:{silent.getsockname()[1]}/')
        with took_at_most(2), pytest.raises(exceptions.BusUnavailable):
            ends.work.start(0.5)
