# SPDX-License-Identifier: Apache-2.0
"""The outboxes block no caller, and report each batch exactly once."""

import threading
import time

import pytest

from distperiodic import exceptions
from distperiodic.adapters.messaging.outbox import BatchOutbox
from distperiodic.adapters.messaging.report_outbox import ReportOutbox
from distperiodic.core import message
from tests.logged import lines
from tests.waiting import wait_until

SCHEDULER = 'api-1~9f2c41d07be3a655~1~f1.r40'
WORKER = 'worker-1~00c0ffee00c0ffee~1~f1.s10'
PATIENCE = 0.3


def a_batch(number):
    return message.Batch(str(number), 'poll', 0, ['a'], [1], [1], SCHEDULER,
                         WORKER, 'lease-1')


def a_report(number, objects=1):
    return message.Report(str(number), WORKER, list(range(objects)))


class Broker:
    """A broker that confirms, fails, or hangs until the test releases it."""

    def __init__(self):
        self.published = []
        self.attempts = 0
        self.trouble = None
        self.silent = threading.Event()
        self.silent.set()
        self.seconds = 0.0

    def fall_silent(self):
        self.silent.clear()

    def speak(self):
        self.silent.set()

    def publish(self, *what):
        self.attempts += 1
        self.silent.wait()
        time.sleep(self.seconds)
        if self.trouble is not None:
            raise self.trouble
        self.published.append(what)


@pytest.fixture
def broker():
    broker = Broker()
    yield broker
    broker.speak()


class Told(BatchOutbox):
    """An outbox that records which batches it reported as sent or unsent."""

    def __init__(self, broker, capacity=100, patience=60.0):
        self.sent, self.unsent = [], {}
        super().__init__(
            broker.publish, lambda batch: self.sent.append(batch.id),
            self.note_unsent, capacity=capacity, patience=patience,
            monotonic=time.monotonic)

    def note_unsent(self, batch, reason):
        assert batch.id not in self.unsent, 'told twice'
        self.unsent[batch.id] = reason

    @property
    def told(self):
        return sorted([*self.sent, *self.unsent], key=int)


@pytest.fixture
def box(broker):
    box = Told(broker)
    box.start()
    yield box
    broker.speak()
    box.close(5)


@pytest.fixture
def hasty(broker):
    """An outbox that gives up soon."""
    box = Told(broker, patience=PATIENCE)
    box.start()
    yield box
    broker.speak()
    box.close(5)


def numbers(count):
    return [str(n) for n in range(count)]


def test_batches_are_sent_in_order_and_each_is_reported(broker, box):
    for n in range(50):
        box.put(a_batch(n))
    wait_until(lambda: len(box.sent) == 50)
    assert box.sent == numbers(50)
    assert [batch.id for batch, in broker.published] == numbers(50)
    assert box.unsent == {}


@pytest.mark.parametrize('refusal', [
    exceptions.NoConsumer('no such queue'),
    exceptions.InvalidMessage('too long')])
def test_a_batch_that_is_refused_is_reported_at_once_and_once(
        broker, box, refusal):
    broker.trouble = refusal
    box.put(a_batch(0))
    wait_until(lambda: box.unsent)
    assert box.unsent == {'0': str(refusal)}
    assert broker.attempts == 1


def test_trouble_is_tried_again_and_then_forgotten(broker, box):
    broker.trouble = exceptions.BusUnavailable('refused')
    box.put(a_batch(0))
    wait_until(lambda: broker.attempts > 1)
    broker.trouble = None
    wait_until(lambda: box.sent == ['0'])
    assert box.unsent == {}


def test_trouble_that_lasts_is_reported_with_its_reason(broker, hasty):
    broker.trouble = ValueError('a driver may raise anything')
    for n in range(20):
        hasty.put(a_batch(n))
    wait_until(lambda: len(hasty.unsent) == 20, PATIENCE + 2)
    assert set(hasty.unsent.values()) == {
        'the broker confirmed nothing for 0.3 s (a driver may raise '
        'anything)'}
    assert broker.attempts < 20


def test_a_silent_broker_blocks_no_sender_and_all_batches_are_reported(
        broker, hasty):
    broker.fall_silent()
    for n in range(20):
        hasty.put(a_batch(n))
    wait_until(lambda: len(hasty.unsent) == 20, PATIENCE + 2)
    assert hasty.sent == []
    # The batch in progress arrives late, and is not reported again.
    broker.speak()
    wait_until(lambda: [batch.id for batch, in broker.published] == ['0'])
    hasty.put(a_batch(20))
    wait_until(lambda: len(hasty.told) == 21)
    assert '0' not in hasty.sent


def test_a_slow_broker_is_waited_for_as_long_as_it_confirms(broker):
    box = Told(broker, patience=1.0)
    box.start()
    broker.seconds = 0.2
    for n in range(8):
        box.put(a_batch(n))
    wait_until(lambda: len(box.told) == 8, 30)
    assert box.unsent == {}
    box.close(5)


def test_a_full_outbox_refuses_at_once(broker):
    broker.fall_silent()
    box = Told(broker, capacity=3)
    box.start()
    box.put(a_batch(0))
    wait_until(lambda: broker.attempts == 1)
    for n in range(1, 6):
        box.put(a_batch(n))
    assert box.unsent == {'4': '3 batches are already waiting',
                          '5': '3 batches are already waiting'}
    broker.speak()
    box.close(5)
    assert box.sent == numbers(4)


def test_closing_sends_the_waiting_batches_and_refuses_later_ones(broker, box):
    broker.seconds = 0.01
    for n in range(10):
        box.put(a_batch(n))
    box.close(5)
    assert box.sent == numbers(10)
    box.put(a_batch(10))
    assert box.unsent == {'10': 'the bus is closed'}


def test_closing_before_a_silent_broker_is_bounded_and_reports_all(
        broker, box):
    broker.fall_silent()
    for n in range(5):
        box.put(a_batch(n))
    began = time.monotonic()
    box.close(0.1)
    assert time.monotonic() - began < 1
    assert box.told == numbers(5)
    assert 'closed' in box.unsent['0']


def test_a_callback_that_raises_stops_nothing(broker, caplog):
    def broken(*what):
        raise RuntimeError('in the callback')

    box = BatchOutbox(
        broker.publish, broken, broken, capacity=10, patience=PATIENCE,
        monotonic=time.monotonic)
    box.start()
    for n in range(3):
        box.put(a_batch(n))
    wait_until(lambda: len(broker.published) == 3)
    box.close(5)
    box.put(a_batch(4))
    assert len([line for line in lines(caplog) if line.error]) == 4


# Reports.

class Reports(ReportOutbox):
    def __init__(self, broker, **options):
        self.lost = []
        options.setdefault('linger', 0.05)
        super().__init__(
            broker.publish,
            lambda report, to, reason: self.lost.append((report.batch,
                                                         reason)),
            monotonic=time.monotonic, **options)


@pytest.fixture
def reports(broker):
    box = Reports(broker)
    box.start()
    yield box
    broker.speak()
    box.close(5)


def arrived(broker, to=None):
    return [report.batch for scheduler, parcel in broker.published
            for report in parcel if to in (None, scheduler)]


def test_the_first_report_leaves_at_once_and_the_next_ones_together(
        broker):
    box = Reports(broker, linger=1.0)
    box.start()
    box.put(a_report(0), 'a')
    wait_until(lambda: arrived(broker) == ['0'])
    for n in range(1, 20):
        box.put(a_report(n), 'a')
    wait_until(lambda: len(arrived(broker)) == 20)
    assert arrived(broker) == numbers(20)
    assert len(broker.published) == 2
    box.close(5)


def test_a_message_is_not_larger_than_it_must_be(broker):
    box = Reports(broker, linger=60.0, most=100)
    box.start()
    broker.fall_silent()
    box.put(a_report(0), 'a')
    wait_until(lambda: broker.attempts == 1)
    for n, objects in enumerate([60, 40, 60, 60, 150, 1], 1):
        box.put(a_report(n, objects), 'a')
    broker.speak()
    wait_until(lambda: len(arrived(broker)) == 6)
    sizes = [[r.size for r in parcel] for _, parcel in broker.published]
    assert sizes == [[1], [60, 40], [60], [60], [150]]
    # The last report waits for more reports until the outbox is closed.
    box.close(5)
    assert arrived(broker) == numbers(7)


def test_reports_for_one_scheduler_do_not_wait_for_anothers(broker):
    def publish(to, parcel):
        if to == 'gone':
            raise exceptions.NoConsumer('no queue')
        broker.published.append((to, parcel))

    broker.publish = publish
    box = Reports(broker, patience=PATIENCE)
    box.start()
    for n in range(10):
        box.put(a_report(n), 'gone')
        box.put(a_report(n), 'here')
    wait_until(lambda: arrived(broker, 'here') == numbers(10))
    # A failure after the time limit ends the attempts for this report.
    wait_until(lambda: len(box.lost) == 10)
    assert sorted(box.lost) == [(str(n), 'no queue') for n in range(10)]
    box.close(5)


def test_reports_are_kept_in_order_over_trouble(broker, reports):
    broker.trouble = exceptions.BusUnavailable('refused')
    for n in range(10):
        reports.put(a_report(n), 'a')
    wait_until(lambda: broker.attempts > 1)
    broker.trouble = None
    wait_until(lambda: arrived(broker) == numbers(10))
    assert reports.lost == []


def test_attempts_back_off_to_a_limit(broker):
    box = Reports(broker, patience=60.0, longest_pause=0.1)
    box.start()
    broker.trouble = exceptions.BusUnavailable('refused')
    box.put(a_report(0), 'a')
    time.sleep(0.6)
    # The first retry comes after 0.05 s, the later ones every 0.1 s.
    assert broker.attempts <= 8
    wait_until(lambda: broker.attempts >= 4)
    broker.trouble = None
    wait_until(lambda: arrived(broker) == ['0'])
    box.close(5)


def test_memory_is_bounded_and_the_oldest_are_lost(broker):
    box = Reports(broker, capacity=100)
    box.start()
    broker.fall_silent()
    box.put(a_report(0), 'a')
    wait_until(lambda: broker.attempts == 1)
    for n in range(1, 21):
        box.put(a_report(n, 10), 'a')
    assert box.lost == [(str(n), 'too many reports are waiting')
                        for n in range(1, 11)]
    broker.speak()
    box.close(5)
    assert arrived(broker) == ['0', *(str(n) for n in range(11, 21))]


def test_a_report_that_cannot_be_encoded_does_not_stop_the_others(
        broker, reports):
    broker.trouble = exceptions.InvalidMessage('too long')
    reports.put(a_report(0), 'a')
    wait_until(lambda: reports.lost == [('0', 'too long')])
    broker.trouble = None
    reports.put(a_report(1), 'a')
    wait_until(lambda: arrived(broker) == ['1'])


def test_a_forgotten_report_is_not_sent_even_during_an_attempt(
        broker, reports):
    broker.fall_silent()
    broker.trouble = exceptions.BusUnavailable('refused')
    for n in range(5):
        reports.put(a_report(n), 'a')
    wait_until(lambda: broker.attempts == 1)
    reports.forget('a')
    reports.forget('never heard of')
    broker.speak()
    wait_until(lambda: len(reports.lost) == 5)
    broker.trouble = None
    reports.put(a_report(5), 'a')
    wait_until(lambda: arrived(broker) == ['5'])


def test_closing_sends_the_reports_that_wait(broker, reports):
    for n in range(20):
        reports.put(a_report(n), f'scheduler {n % 3}')
    reports.close(5)
    assert sorted(arrived(broker), key=int) == numbers(20)


def test_closing_is_bounded_and_reports_lost_reports(broker, reports):
    broker.trouble = exceptions.BusUnavailable('refused')
    for n in range(5):
        reports.put(a_report(n), 'a')
    began = time.monotonic()
    reports.close(0.1)
    assert time.monotonic() - began < 1
    wait_until(lambda: len(reports.lost) == 5)
