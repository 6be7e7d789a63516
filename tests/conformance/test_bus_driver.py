# SPDX-License-Identifier: Apache-2.0
"""Guarantees of every driver of a message bus; see
:class:`distperiodic.ports.BusDriver`.
"""

import threading
import time
import uuid

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import bus
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.notices import TaskNotices
from distperiodic.core import message
from tests import ends as both
from tests.ends import BROKERS
from tests.ends import connected
from tests.ends import entry
from tests.ends import took_at_most
from tests.waiting import wait_until


@pytest.fixture
def ends(url):
    with connected(url) as ends:
        yield ends


of_brokers = pytest.mark.parametrize('url', BROKERS, indirect=True)


def test_a_batch_arrives_and_its_report_comes_back(ends):
    ends.send(1)
    wait_until(lambda: ends.got == ['1'] and ends.sent == ['1'])
    ends.report(1)
    wait_until(lambda: ends.reported == ['1'])

    assert ends.unsent == {}
    # A driver of another package need not know whether its broker answers.
    assert ends.work.problem is ends.back.problem is None
    assert ends.work.dropped == ends.back.dropped == {}
    assert ends.reports == [message.Report('1', ends.worker, [0, 1])]


def test_many_batches_keep_their_order(ends):
    """Each batch arrives. A batch that the broker confirms late may arrive
    twice; the worker then drops the second copy.
    """
    for number in range(200):
        ends.send(number)
    numbers = [str(n) for n in range(200)]
    wait_until(lambda: set(ends.got) >= set(numbers)
               and len(ends.sent) == 200)

    assert list(dict.fromkeys(ends.got)) == ends.sent == numbers


@pytest.mark.parametrize('partition', ['a.b', '#', 'ü x', '*.*'])
def test_any_name_of_a_partition_is_a_queue_of_its_own(url, partition):
    with (connected(url, group='g.*', partition=partition) as odd,
          connected(url, group='g.*', partition='a') as other):
        other.talk(1)
        odd.talk(2)

        assert odd.got == ['2']
        assert odd.back.dropped == {}


@of_brokers
def test_a_batch_without_a_receiver_is_reported_unsent_at_once(ends):
    with took_at_most(both.PATIENCE):
        ends.send(1, worker=entry('worker-9'))
        wait_until(lambda: ends.unsent)

    # The error text names the missing queue.
    assert '.worker-9~' in ends.unsent['1']
    assert ends.sent == []


def test_two_processes_of_one_name_do_not_share_a_queue(url):
    with (connected(url) as ends,
          connected(url, group=ends.group) as others):
        for number in range(20):
            ends.send(number)
            ends.report(number)
        ends.talk('last')
        wait_until(lambda: len(ends.reported) == 21)

        assert ends.got == [*map(str, range(20)), 'last']
        assert others.got == others.reported == []
        assert others.work.dropped == others.back.dropped == {}


def test_signed_messages_are_accepted_and_others_are_dropped(url):
    with (connected(url, keys=['new', 'old'],
                    worker_keys=['old', 'new']) as ends,
          connected(url, keys=['new'], worker_keys=['guess']) as others):
        ends.talk(1)
        others.send(2)
        wait_until(lambda: others.back.dropped)

        [(_, reason)] = others.back.dropped
        assert 'sign' in reason
        assert others.got == []


@of_brokers
def test_a_queue_ends_with_its_process(url):
    with connected(url) as ends:
        ends.talk(1)
    probe = drivers.probe(ends.conf, url)
    queues = [ends.work_queue, ends.reports_queue]

    # close() returns after its time limit at the latest; the deletion may end
    # later.
    wait_until(lambda: probe.queues(probe.find(), queues)
               == dict.fromkeys(queues))


@pytest.mark.parametrize('url', ['rabbitmq', 'quorum'], indirect=True)
def test_a_queue_ends_although_a_last_message_arrives(url, monkeypatch):
    with connected(url) as ends:
        ends.talk(1)
        server = ends.back._connection._server
        forget = server.forget_queue

        def forget_after_a_message(name):
            ends.send(2)
            wait_until(lambda: ends.sent == ['1', '2'])
            forget(name)
        monkeypatch.setattr(server, 'forget_queue', forget_after_a_message)
        ends.back.close(5)
        probe = drivers.probe(ends.conf, url)
        left = probe.queues(probe.find(), [ends.work_queue])

    assert '2' not in ends.got
    assert left == {ends.work_queue: None}


@of_brokers
def test_a_probe_finds_the_queues_of_live_processes(url, ends):
    ends.talk(1)
    probe = drivers.probe(ends.conf, url)

    found = probe.queues(probe.find(), [ends.work_queue, 'distperiodic.none'])

    assert found['distperiodic.none'] is None
    assert found[ends.work_queue].consumers == 1


@of_brokers
def test_a_queue_that_has_had_no_message_has_a_consumer(url, ends):
    probe = drivers.probe(ends.conf, url)

    wait_until(lambda: probe.queues(
        probe.find(), [ends.work_queue])[ends.work_queue] == (0, 1))


@of_brokers
def test_a_probe_deletes_the_queues_of_dead_processes(url, ends):
    probe = drivers.probe(ends.conf, url)

    probe.delete(probe.find(), [ends.work_queue, 'distperiodic.none'])

    ends.send(1)
    wait_until(lambda: ends.unsent or ends.got)


@of_brokers
def test_a_notice_reaches_all_its_receivers(url):
    heard = []
    conf = cfg.ConfigOpts()
    conf([])
    drivers.url_of(conf)
    conf.set_override('transport_url', url)
    group = uuid.uuid4().hex
    buses = [bus.MessagingWorkBus(
        bus.Endpoint(conf, None, group=group, me=entry(f'api-{n}')),
        on_report=print, on_unsent=print, on_sent=print,
        on_notice=lambda tasks, n=n: heard.append((n, list(tasks))))
        for n in range(3)]
    notices = TaskNotices(conf, group=group)
    for one in buses:
        one.start(20)
    try:
        notices.notify(['t'])
        wait_until(lambda: len(heard) == 3)
        assert sorted(heard) == [(n, ['t']) for n in range(3)]

        buses[0].close(5)
        notices.notify(['u'])
        wait_until(lambda: len(heard) == 5)
    finally:
        notices.close(5)
        for one in buses:
            one.close(5)

    assert sorted(heard)[1:] == sorted(
        [(n, [task]) for n in (1, 2) for task in ('t', 'u')])


@of_brokers
def test_a_cast_without_a_receiver_is_refused(url):
    carrier = drivers.driver_of(url).carrier(
        cfg.ConfigOpts(), url, inbox=None,
        monotonic=SystemClock().monotonic)
    carrier.open(5)
    try:
        with pytest.raises(exceptions.NoConsumer):
            carrier.cast(f'distperiodic.{uuid.uuid4().hex}', 'all', {})
    finally:
        carrier.close(5)


def test_closing_sends_the_messages_that_wait(ends):
    ends.report('first')
    for number in range(10):
        ends.send(number)
        ends.report(number)
    ends.back.close(3)
    wait_until(lambda: len(ends.reported) == 11)
    ends.work.close(3)

    assert len(ends.sent) + len(ends.unsent) == 10


def test_an_idle_bus_closes_at_once(ends):
    ends.talk(1)
    # After this time, a listener of oslo.messaging that is not woken checks
    # again only in four seconds.
    time.sleep(3)
    with took_at_most(1):
        ends.work.close(10)
    with took_at_most(1):
        ends.back.close(10)


def test_no_thread_is_left_after_closing(url):
    before = set(threading.enumerate())
    with connected(url) as ends:
        ends.talk(1)

    wait_until(lambda: not [t for t in set(threading.enumerate()) - before
                            if t.is_alive()])


def test_a_closed_bus_can_be_started_again(ends):
    ends.talk(1)
    ends.work.close(3)
    ends.back.close(3)
    ends.send(2)
    # The error text says that the bus is closed, and names no broker fault.
    assert 'start' in ends.unsent['2']
    ends.back.start(20)
    ends.work.start(20)
    ends.talk(3)


@of_brokers
def test_a_forked_child_can_start_a_bus_and_leaves_its_parents_alone(ends):
    ends.talk(1)

    def child():
        ends.send('child')
        assert 'start()' in ends.unsent['child']
        ends.work.close(1)
        ends.back.close(1)
        ends.scheduler = ends.work.me = entry('api-2')
        ends.worker = ends.back.me = entry('worker.2')
        ends.work.start(20)
        ends.back.start(20)
        ends.talk('anew')
        ends.work.close(3)
        ends.back.close(3)
        return True

    assert both.run_in_child(child) == 0
    ends.talk(2)
