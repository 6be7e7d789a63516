# SPDX-License-Identifier: Apache-2.0
"""Commands of operators over each kind of bus: their receivers, the replies,
and the messages that are dropped.
"""

import dataclasses
import uuid

import pytest
from oslo_config import cfg

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import bus
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.command_bus import CommandBus
from distperiodic.core.control import Verb
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.ports import Inbox
from tests.ends import BROKERS
from tests.ends import entry
from tests.waiting import wait_until

SECOND = 1_000_000
of_brokers = pytest.mark.parametrize('url', BROKERS, indirect=True)


class Steered:
    """The buses of a scheduler, a worker and an operator.

    :param keys: The signing keys of the scheduler and the worker.
    :param refusal: Their answer to a command. None means that they obey it.
    """

    def __init__(self, url, keys=('key',), operator_keys=('key',),
                 refusal=None):
        self.group = uuid.uuid4().hex[:8]
        self.refusal = refusal
        self.heard = []
        conf = cfg.ConfigOpts()
        conf([])
        endpoint = bus.Endpoint(
            conf, url, group=self.group, me=entry('api-1'), keys=keys)
        self.scheduler = bus.MessagingWorkBus(
            endpoint, on_report=print, on_unsent=print, on_sent=print,
            on_control=lambda request: self.hear('scheduler', request))
        self.worker = bus.MessagingReportBus(
            endpoint, partition='default', on_batch=print,
            on_control=lambda request: self.hear('worker', request))
        self.operator = CommandBus(conf, [url], group=self.group,
                                   keys=operator_keys)

    def hear(self, who, request):
        self.heard.append((who, request))
        return self.refusal

    def request(self, **changes):
        request = ControlRequest(
            uuid.uuid4().hex, self.group, Verb.DRAIN, {}, [], 'ops@host',
            'new kernel', SystemClock().now(), self.operator.word)
        return dataclasses.replace(request, **changes)

    def send(self, **changes):
        request = self.request(**changes)
        assert self.operator.send(request, 10) == {}
        return request

    @property
    def dropped(self):
        """Reasons for which the scheduler and the worker dropped messages."""
        return [[reason for _, reason in one.dropped]
                for one in (self.scheduler, self.worker)]

    def __enter__(self):
        self.scheduler.start(20)
        self.worker.start(20)
        assert self.operator.open(20) == {}
        return self

    def __exit__(self, *exc):
        self.operator.close(5)
        self.scheduler.close(5)
        self.worker.close(5)


@pytest.fixture
def steered(url):
    with Steered(url) as made:
        yield made


@of_brokers
def test_a_process_receives_the_messages_to_each_of_its_names(url):
    conf = cfg.ConfigOpts()
    conf([])
    word, got = uuid.uuid4().hex, []
    topics = [f'distperiodic.{word}.{name}' for name in ('one', 'two')]
    carrier = drivers.driver_of(url).carrier(
        conf, url, inbox=Inbox(
            f'distperiodic.{word}', 'own', got.append, print,
            [f'{topic}.all' for topic in topics]),
        monotonic=SystemClock().monotonic)
    carrier.open(20)
    try:
        for number, topic in enumerate(topics):
            carrier.cast(topic, 'all', {'n': number})
        carrier.cast(f'distperiodic.{word}', 'own', {'n': 2})
        wait_until(lambda: len(got) == 3)
    finally:
        carrier.close(5)

    assert sorted(one['n'] for one in got) == [0, 1, 2]


@of_brokers
def test_a_command_reaches_schedulers_and_workers(steered):
    request = steered.send(members=[('', 'api-1', '')])

    wait_until(lambda: len(steered.heard) == 2)
    assert sorted(steered.heard, key=str) == [
        ('scheduler', request), ('worker', request)]
    assert steered.dropped == [[], []]


@of_brokers
def test_the_replies_reach_only_the_operator_of_the_command(steered):
    request = steered.send()
    replies = [ControlReply(request.id, part, 'api-1', 'api-1~1', True, 'done')
               for part in ('', 'default')]

    steered.scheduler.reply(replies[0], steered.operator.word)
    steered.worker.reply(replies[1], steered.operator.word)
    # A reply to a command of another operator.
    steered.worker.reply(dataclasses.replace(
        replies[1], request='f' * 32), steered.operator.word)

    got = []
    wait_until(lambda: got.extend(steered.operator.received())
               or len(got) == 2)
    assert sorted(got, key=str) == sorted(replies, key=str)
    wait_until(lambda: steered.operator.dropped)


@of_brokers
def test_a_reply_to_a_command_that_has_ended_does_no_harm(steered):
    steered.worker.reply(
        ControlReply('f' * 32, '', 'api-1', 'api-1~1', True, 'done'), 'gone')
    steered.send()

    wait_until(lambda: len(steered.heard) == 2)


@of_brokers
@pytest.mark.parametrize('changes, said', [
    ({'verb': 'member paint'}, "an unknown command, 'member paint'"),
    ({'group': 'another'}, "a command to another group, 'another'"),
    ({'sent': -3600 * SECOND}, 'a command that is older than 60 s'),
    ({'sent': 3600 * SECOND},
     'a command from more than 60 s in the future; compare the clocks'),
])
def test_a_bad_command_is_dropped_and_counted(steered, changes, said):
    if 'sent' in changes:
        changes = {'sent': SystemClock().now() + changes['sent']}
    steered.send(**changes)
    steered.send(**changes)

    wait_until(lambda: steered.dropped == [[said], [said]])
    wait_until(lambda: list(steered.worker.dropped.values()) == [2])
    assert steered.heard == []


@of_brokers
def test_a_command_that_is_replayed_is_dropped_and_counted(steered):
    request = steered.send()
    wait_until(lambda: len(steered.heard) == 2)

    assert steered.operator.send(request, 10) == {}

    said = 'a command that was received before'
    wait_until(lambda: steered.dropped == [[said], [said]])
    assert len(steered.heard) == 2


@of_brokers
@pytest.mark.parametrize('keys, said', [
    ((), 'the message is not signed'), (('guess',), 'wrong signature')])
def test_a_command_of_an_operator_without_the_key_is_dropped(
        url, keys, said):
    with Steered(url, operator_keys=keys) as made:
        made.send()

        wait_until(lambda: all(made.dropped))
        assert all(one[0].startswith(said) for one in made.dropped)
        assert made.heard == []


@of_brokers
def test_a_command_that_a_member_refuses_is_counted(url):
    with Steered(url, refusal='not here') as made:
        made.send()

        wait_until(lambda: made.dropped == [['not here'], ['not here']])


def test_a_broker_that_is_away_costs_its_timeout_and_is_named():
    conf = cfg.ConfigOpts()
    conf([])
    made = CommandBus(conf, ['rabbit://ops:secret@127.0.0.1:9/'],
                      group='cloud', hears=True)
    clock = SystemClock()
    began = clock.monotonic()

    failures = made.open(2)
    made.close(1)

    assert list(failures) == ['rabbit://***@127.0.0.1:9/']
    assert 'secret' not in str(failures)
    assert clock.monotonic() - began < 5
