# SPDX-License-Identifier: Apache-2.0
"""Batches and reports over a real RabbitMQ, also during faults of the broker.
"""

import contextlib
import gzip
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
import time

import amqp
import pytest

from distperiodic import exceptions
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.drivers import EXAMPLE
from distperiodic.core import message
from tests import services
from tests.ends import LATE
from tests.ends import PATIENCE
from tests.ends import Ends
from tests.ends import connected
from tests.ends import entry
from tests.ends import run_in_child
from tests.ends import took_at_most
from tests.logged import lines
from tests.waiting import wait_until

# The tests share a server, which one process starts.
pytestmark = pytest.mark.xdist_group('messaging')


@pytest.fixture
def ends(rabbitmq):
    with connected(rabbitmq.url) as ends:
        yield ends


@pytest.fixture(scope='module')
def mortal():
    """Return a broker that the tests of this file may break and repair."""
    with services.rabbitmq(its_own=True) as server:
        yield server


@pytest.fixture
def fragile(mortal):
    with connected(mortal.url) as ends:
        ends.talk('before')
        yield ends


def by_hand(server):
    user, _, rest = server.url.removeprefix('rabbit://').partition(':')
    password, _, host = rest.rstrip('/').partition('@')
    return amqp.Connection(host, userid=user, password=password)


# -- round trips

def test_reports_of_many_small_runs_share_messages(rabbitmq, ends):
    with by_hand(rabbitmq) as connection, connection.channel() as channel:
        channel.queue_declare('spy' + ends.group, auto_delete=True)
        channel.queue_bind('spy' + ends.group, 'distperiodic',
                           ends.reports_queue)
        for number in range(1000):
            ends.report(number)
        wait_until(lambda: len(ends.reports) == 1000)
        assert ends.reported == [str(n) for n in range(1000)]
        told = channel.queue_declare('spy' + ends.group, passive=True)
        assert told.message_count < 20


def test_a_name_too_long_for_amqp_is_refused_at_once():
    with pytest.raises(exceptions.ConfigError,
                       match=r'\b255\b.*; .*partition'):
        Ends('fake://', partition='p' * 250)


def test_the_hosts_own_options_are_left_alone(ends):
    assert ends.conf.oslo_messaging_rabbit.amqp_durable_queues is False
    assert ends.conf.oslo_messaging_rabbit.rabbit_quorum_queue is False


@pytest.mark.parametrize('quorum', [True, False])
def test_the_type_of_the_queues_is_changed_by_a_rolling_restart(
        rabbitmq, quorum):
    """Processes with different types of queues understand each other. An
    abandoned queue does no harm.
    """
    group = f'rolling-{quorum}'
    scheduler = Ends(rabbitmq.url, group=group, quorum=not quorum)
    worker = Ends(rabbitmq.url, group=group, quorum=quorum)
    scheduler.back, scheduler.batches = worker.back, worker.batches
    scheduler.worker = worker.worker
    try:
        scheduler.work.start(20)
        worker.back.start(20)
        scheduler.talk('1')
    finally:
        scheduler.work.close(3)
        worker.back.close(3)


def test_an_exchange_with_other_properties_is_named_with_the_remedy(rabbitmq):
    with connected(rabbitmq.url) as ends:
        ends.talk('1')
        other = Ends(f'{rabbitmq.url}?amqp_durable_queues=false')
        with pytest.raises(exceptions.BusUnavailable) as raised:
            other.work.start(5)

    told = str(raised.value)
    assert re.search(
        r"\bexchange 'distperiodic' .*\bdurable\b.*'false'.*'true'.*; .*"
        r'transport_url\b.*\[oslo_messaging_rabbit\]', told)
    assert 'password' not in told
    assert '\n' not in told


@pytest.mark.parametrize(('quorum', 'kind'), [
    (False, 'classic'), (True, 'quorum')])
def test_each_process_has_one_durable_queue_that_expires_without_it(
        mortal, quorum, kind):
    with connected(mortal.url, quorum=quorum) as ends:
        ends.talk(1)
        listed = mortal.ctl('-q', 'list_queues', 'name', 'durable',
                            'auto_delete', 'type', 'arguments')
    lines = [line.split('\t') for line in listed.splitlines()
             if ends.group in line]

    assert {name for name, *_ in lines} == {
        ends.work_queue, ends.reports_queue}
    for _, durable, auto_delete, type_, arguments in lines:
        assert (durable, auto_delete) == ('true', 'false')
        assert type_.removeprefix('rabbit_') == kind
        # A killed process cannot delete its queue.
        assert 'x-expires' in arguments


# -- absent processes

def test_a_message_for_another_process_is_dropped_with_a_log_line(
        rabbitmq, ends, caplog):
    caplog.set_level(logging.INFO, 'distperiodic')
    for number in range(5):
        batch = message.Batch(
            str(number), 'poll', 1_700_000_000_000_000, ['a'], [1], [1],
            ends.scheduler, entry('worker.1'), 'lease-1', ends.partition)
        publish(rabbitmq, ends.work_queue,
                cast_of(message.encode_batch(batch)))
        publish(rabbitmq, ends.reports_queue, cast_of(message.encode_reports(
            [message.Report(str(number), ends.worker, [0])],
            to=entry('api-1'))))
    ends.send('last')
    wait_until(lambda: ends.got)
    wait_until(lambda: sum(ends.work.dropped.values()) == 5)
    assert ends.got == ['last']
    assert sum(ends.back.dropped.values()) == 5
    assert ends.reports == []
    dropped = [line for line in lines(caplog) if 'dropped' in line.event]
    assert len(dropped) == 2
    assert {line.level for line in dropped} == {'INFO'}


def test_a_message_for_another_term_of_the_process_is_delivered(ends):
    """The bus delivers the message. It is the receiver that compares the term,
    and answers.
    """
    ends.send(1, worker=ends.worker.replace('~1~', '~2~'))
    ends.report(1, ends.scheduler.replace('~1~', '~2~'))
    wait_until(lambda: ends.got == ['1'] and ends.reported == ['1'])


def test_reports_wait_for_a_scheduler_that_comes_back(ends):
    ends.work.close(3)
    ends.report(1)
    time.sleep(0.5)
    ends.work.start(20)
    wait_until(lambda: ends.reported == ['1'])


def test_reports_for_a_scheduler_that_is_gone_can_be_forgotten(
        ends, caplog):
    gone = entry('api-9')
    for number in range(5):
        ends.report(number, gone)
    ends.back.forget(gone)
    wait_until(lambda: sum(ends.back.dropped.values()) == 5)
    [line] = lines(caplog, 'message dropped')
    assert gone in line['origin']
    ends.talk('still')


# -- garbage and forgery

def enveloped(inner):
    return json.dumps({'oslo.version': '2.0',
                       'oslo.message': json.dumps(inner)}).encode()


def cast_of(payload, **more):
    return enveloped({'method': 'hear', 'args': {'message': payload}, **more})


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('/tmp/distperiodic-was-here',)  # noqa: S108


GARBAGE = {
    'nothing': b'',
    'bytes': b'\x00\xff\xfe garbage \x80',
    'text': b'hello',
    'a list': b'[1, 2, 3]',
    'pairs': b'[["a", 1], ["b", 2]]',
    'a number': b'17',
    'null': b'null',
    'nan': b'NaN',
    'an empty object': b'{}',
    'an object': b'{"objects": ["a"]}',
    'half an object': b'{"oslo.version": "2.0", "oslo.mess',
    'deep': b'[' * 200_000,
    'a huge number': b'{"v": ' + b'9' * 10_000 + b'}',
    'an envelope of nothing': b'{"oslo.version": "2.0", '
                              b'"oslo.message": ""}',
    'an envelope of a list': enveloped([1]),
    'an envelope of a number': enveloped(1),
    'an envelope of text': enveloped('text'),
    'an envelope of another version': b'{"oslo.version": "9.0", '
                                      b'"oslo.message": "{}"}',
    'an envelope of a strange version': b'{"oslo.version": [], '
                                        b'"oslo.message": {}}',
    'no method': enveloped({'args': {}}),
    'another method': enveloped({'method': 'exec', 'args': {'x': 1}}),
    'arguments that are none': enveloped({'method': 'hear', 'args': [1]}),
    'no message': enveloped({'method': 'hear', 'args': {}}),
    'a context that breaks the driver': enveloped(
        {'method': 'hear', 'args': {}, '_context_self': 1}),
    'an id that is a list': cast_of({}, _unique_id=[1]),
    'an unknown version': cast_of({'v': 2, 'kind': 'run'}),
    'an unknown kind': cast_of({'v': 1, 'kind': 'exec'}),
    'a truncated batch': cast_of({'v': 1, 'kind': 'run', 'job': 'poll'}),
    'reports for a worker': cast_of(message.encode_reports(
        [message.Report('1', 'w~1~1~f1')], to='s~1~1~f1')),
}


def publish(server, queue, body, **properties):
    properties.setdefault('content_type', 'application/json')
    properties.setdefault('content_encoding', 'utf-8')
    with by_hand(server) as connection, connection.channel() as channel:
        channel.basic_publish_confirm(
            amqp.Message(body, **properties), routing_key=queue,
            mandatory=True)


def test_a_flood_of_garbage_is_counted_and_does_not_stop_the_work(
        rabbitmq, ends, caplog):
    caplog.set_level(logging.INFO)
    rounds = 20
    with by_hand(rabbitmq) as connection, connection.channel() as channel:
        for _ in range(rounds):
            for body in GARBAGE.values():
                for queue in (ends.work_queue, ends.reports_queue):
                    channel.basic_publish(
                        amqp.Message(body, content_type='application/json',
                                     content_encoding='utf-8'),
                        routing_key=queue)
    # Send only once, while talk() would send again after some seconds.
    with took_at_most(5):
        ends.send('after')
        wait_until(lambda: ends.got)
        ends.report('after')
        wait_until(lambda: ends.reported)
    for bus in (ends.work, ends.back):
        assert sum(bus.dropped.values()) == rounds * len(GARBAGE)
        assert len(bus.dropped) < len(GARBAGE)
    assert ends.got == ['after']
    assert [r for r in caplog.records if r.exc_info] == []
    assert len([r for r in caplog.records
                if r.levelno >= logging.WARNING]) < 2 * len(GARBAGE)


@pytest.mark.parametrize('properties', [
    {'content_type': 'application/x-python-serialize',
     'content_encoding': 'binary'},
    {'content_type': 'application/x-yaml'},
    {'content_type': 'no such type'},
    {'content_encoding': 'no such encoding'},
    {'application_headers': {'compression': 'application/x-gzip'}},
    {'application_headers': {'compression': 'no such thing'}},
], ids=str)
def test_a_body_of_another_kind_is_not_opened(rabbitmq, ends, properties,
                                              caplog):
    body = pickle.dumps(Bomb())
    publish(rabbitmq, ends.work_queue, body, **properties)
    ends.talk('after')
    assert sum(ends.back.dropped.values()) == 1
    assert not os.path.exists('/tmp/distperiodic-was-here')  # noqa: S108
    assert [r for r in caplog.records if r.exc_info] == []


def most_memory():
    """Return the peak memory of this process since the last call, in bytes."""
    with open('/proc/self/status') as status:
        found = next(line for line in status if line.startswith('VmHWM'))
    with open('/proc/self/clear_refs', 'w') as clear:
        clear.write('5')
    return int(found.split()[1]) * 1024


@pytest.mark.parametrize('packed', [True, False])
def test_a_message_that_would_fill_the_memory_is_not_decompressed(
        rabbitmq, ends, packed):
    """A compressed body of a few hundred kilobytes can expand to hundreds of
    megabytes. When a long body is parsed, it takes more memory than its
    length.
    """
    if packed:
        body = gzip.compress(b'[' + b'0,' * 150_000_000 + b'0]')
        properties = {'application_headers': {
            'compression': 'application/x-gzip'}}
        assert len(body) < 400_000
    else:
        body = b'[' + b'[],' * 20_000_000 + b'0]'
        properties = {}
    publish(rabbitmq, ends.work_queue, b'{}')
    wait_until(lambda: ends.back.dropped)
    most_memory()
    before = most_memory()

    publish(rabbitmq, ends.work_queue, body, **properties)
    ends.talk('after', timeout=30)

    assert most_memory() - before < 4 * len(body) + 2 ** 24
    reasons = ' '.join(reason for _, reason in ends.back.dropped)
    assert ("compressed ('application/x-gzip')" if packed else
            f'{len(body)} bytes') in reasons


def test_a_host_that_compresses_its_messages_does_not_compress_ours(
        rabbitmq, caplog):
    with connected(f'{rabbitmq.url}?kombu_compression=gzip') as ends:
        ends.talk('1')

        assert ends.back.dropped == ends.work.dropped == {}


def test_a_forged_call_is_not_answered_and_delays_no_message(rabbitmq, ends):
    """oslo.messaging would wait a minute for each absent caller."""
    for number in range(20):
        publish(rabbitmq, ends.work_queue, cast_of(
            {}, _msg_id=f'm{number}', _reply_q=f'nobody{number}'))
    with took_at_most(5):
        ends.talk('after')


def test_a_message_doubled_by_the_broker_is_delivered_once(rabbitmq, ends):
    ends.send(1)
    wait_until(lambda: ends.got == ['1'])
    batch = message.encode_batch(ends.batches[0])
    for _ in range(2):
        publish(rabbitmq, ends.work_queue,
                cast_of(batch | {'id': '2'}, _unique_id='u'))
    ends.talk('after')
    assert ends.got == ['1', '2', 'after']


def test_signed_messages_are_accepted_and_others_are_dropped(rabbitmq):
    with connected(rabbitmq.url, keys=['new', 'old'],
                   worker_keys=['old', 'new']) as ends:
        ends.send(1)
        wait_until(lambda: ends.got == ['1'])
        forged = message.encode_batch(ends.batches[0], ['guess'])
        publish(rabbitmq, ends.work_queue, cast_of(forged))
        del forged['mac']
        publish(rabbitmq, ends.work_queue, cast_of(forged))
        # The scheduler knows both keys, so it accepts the worker's signature.
        ends.report(1)
        wait_until(lambda: ends.reported == ['1'])
        ends.send(2)
        wait_until(lambda: ends.got == ['1', '2'])
        # A wrong signature and a missing signature are two different reasons.
        reasons = {reason for _, reason in ends.back.dropped}
        assert len(reasons) == 2
        assert all('sign' in reason for reason in reasons)


# -- faults of the broker

def test_a_new_connection_is_as_proof_against_garbage_as_the_first(
        mortal, fragile, caplog):
    mortal.ctl('close_all_connections', 'test')
    fragile.talk('after', 20)

    for body in GARBAGE.values():
        publish(mortal, fragile.work_queue, body)
    fragile.talk('after-garbage')

    assert [r for r in caplog.records if r.exc_info
            and r.name.startswith('oslo')] == []


# The default run kills and restarts the whole broker.
@pytest.mark.full
def test_a_broker_application_stopped_and_started(mortal, fragile):
    mortal.ctl('stop_app')
    try:
        fragile.send(1)
        with took_at_most(LATE):
            wait_until(lambda: fragile.unsent)
    finally:
        mortal.ctl('start_app')
    fragile.talk('after', 20)


@contextlib.contextmanager
def out_of_memory(server):
    server.ctl('set_vm_memory_high_watermark', '0.0000001')
    try:
        # The broker informs its connections after the command has returned.
        # Until then the broker confirms the messages from these connections.
        wait_until(lambda: 'running' not in server.ctl(
            '--quiet', 'list_connections', 'state').split())
        yield
    finally:
        server.ctl('set_vm_memory_high_watermark', '0.4')


def test_a_broker_out_of_memory_is_reported_in_time(mortal, fragile):
    with out_of_memory(mortal):
        with took_at_most(1):
            for number in range(100):
                fragile.send(number)
            fragile.report('late')
        with took_at_most(LATE):
            wait_until(lambda: len(fragile.unsent) == 100)
        for number in '0', '99':
            assert re.search(rf'\b{PATIENCE:g} s\b.*\bmemory\b',
                             fragile.unsent[number])
    fragile.talk('after', 20)
    wait_until(lambda: 'late' in fragile.reported)


# In the default run, the broker is down while a bus closes.
@pytest.mark.full
def test_closing_while_the_broker_is_out_of_memory_is_bounded(mortal):
    ends = Ends(mortal.url)
    ends.back.start(20)
    ends.work.start(20)
    with out_of_memory(mortal):
        ends.send(1)
        ends.report(1)
        with took_at_most(1.5):
            ends.work.close(1)
        with took_at_most(1.5):
            ends.back.close(1)
        assert 'closed' in ends.unsent['1']


def test_queues_that_were_deleted_are_declared_again(mortal, fragile):
    with by_hand(mortal) as connection, connection.channel() as channel:
        channel.queue_delete(fragile.work_queue)
        channel.queue_delete(fragile.reports_queue)
    fragile.talk('after', 20)


def test_an_exchange_that_was_deleted_is_declared_again(mortal, fragile):
    with by_hand(mortal) as connection, connection.channel() as channel:
        channel.exchange_delete('distperiodic')
    fragile.send(1)
    wait_until(lambda: fragile.unsent or fragile.sent)
    # AMQP does not inform the listeners that the exchange is gone. A listener
    # binds its queue again only when it connects.
    mortal.ctl('close_all_connections', 'test')
    fragile.talk('after', 20)


def test_an_idle_bus_closes_at_once(ends):
    """A listener of oslo.messaging checks only every five seconds whether it
    must stop.
    """
    ends.talk(1)
    time.sleep(7)
    with took_at_most(1):
        ends.work.close(10)
        ends.back.close(10)


def test_a_report_after_closing_is_dropped_and_counted():
    """A worker that stops may give up waiting for a run that then ends."""
    ends = Ends('fake://')
    ends.back.start(20)
    ends.back.close(3)

    ends.report(1)

    [(origin, reason)] = ends.back.dropped
    assert ends.scheduler in origin
    assert 'closed' in reason


# -- starts that cannot succeed

@pytest.mark.parametrize(('url', 'error', 'why'), [
    ('rabit://u:s3cr3t@127.0.0.1:5672/', exceptions.ConfigError, 'rabit'),
    ('rabbit://u:s3cr3t@127.0.0.1:port/', exceptions.ConfigError, 'port'),
    ('rabbit://u:s3cr3t@127.0.0.1:99999/', exceptions.DistperiodicError,
     '99999'),
    ('127.0.0.1:5672', exceptions.ConfigError, EXAMPLE),
    ('u:s3cr3t@127.0.0.1', exceptions.ConfigError, EXAMPLE),
    ('u:s3cr3t', exceptions.ConfigError, EXAMPLE),
    ('rabbit://', exceptions.ConfigError, f'transport_url = {EXAMPLE}'),
    ('', exceptions.ConfigError, f'transport_url = {EXAMPLE}'),
    ('rabbit://u:s3cr3t@127.0.0.1/?ssl=perhaps', exceptions.ConfigError,
     'perhaps'),
    ('rabbit://u:s3cr3t@127.0.0.1/?no_such=1', exceptions.ConfigError,
     'no_such'),
    ('rabbit://u:s3cr3t@no.such.host.invalid/', exceptions.BusUnavailable,
     'no.such.host'),
    ('rabbit://u:s3cr3t@127.0.0.1:1/', exceptions.BusUnavailable,
     'Connection refused'),
    ('kafka://u:s3cr3t@127.0.0.1:1/', exceptions.ConfigError, 'kafka'),
])
def test_a_wrong_url_gives_one_clear_line_in_time(url, error, why, caplog):
    ends = Ends(url)
    for bus in (ends.work, ends.back):
        with took_at_most(4), pytest.raises(error) as refusal:
            bus.start(1.0)
        assert why in str(refusal.value)
        assert '\n' not in str(refusal.value)
        assert 's3cr3t' not in str(refusal.value) + caplog.text
        assert refusal.value.__cause__ is None


def test_options_that_contradict_each_other_are_named(rabbitmq):
    ends = Ends(f'{rabbitmq.url}?rabbit_ha_queues=1', quorum=True)
    with (took_at_most(5),
          pytest.raises(exceptions.ConfigError, match='not both')):
        ends.work.start(10)


def test_the_url_of_the_configuration_is_used_if_none_is_given(rabbitmq):
    ends = Ends(None)
    with pytest.raises(exceptions.ConfigError,
                       match=f'transport_url = {EXAMPLE}'):
        ends.work.start(1)
    ends.conf.set_override('transport_url', 'rabbit://u:s3cr3t@h:x/')
    with pytest.raises(exceptions.ConfigError) as refusal:
        ends.work.start(1)
    assert 's3cr3t' not in str(refusal.value)
    ends.conf.set_override('transport_url', rabbitmq.url)
    ends.work.start(20)
    ends.back.start(20)
    ends.talk(1)
    ends.work.close()
    ends.back.close()


def test_a_wrong_password_is_reported_at_once(rabbitmq, caplog):
    user = rabbitmq.url.removeprefix('rabbit://').partition(':')[0]
    host = rabbitmq.url.rpartition('@')[2]
    ends = Ends(f'rabbit://{user}:s3cr%20et@{host}')
    with (took_at_most(5),
          pytest.raises(exceptions.BusUnavailable) as refusal):
        ends.work.start(10)
    assert 'ACCESS_REFUSED' in str(refusal.value)
    assert 's3cr' not in str(refusal.value) + caplog.text


# In the default run, a host that never answers does not hold up the start.
@pytest.mark.full
def test_a_broker_out_of_memory_does_not_hold_up_the_start(mortal):
    ends = Ends(mortal.url)
    before = set(threading.enumerate())
    with out_of_memory(mortal):
        for _ in range(4):
            with took_at_most(2), pytest.raises(exceptions.BusUnavailable):
                ends.back.start(0.5)
        # The four calls share one attempt to connect. The attempt has at most
        # two threads: its own, and the heartbeat of its connection.
        assert len(set(threading.enumerate()) - before) <= 2
    wait_until(lambda: not set(threading.enumerate()) - before)
    ends.back.start(20)
    ends.work.start(20)
    ends.talk(1)
    ends.work.close()
    ends.back.close()


# -- processes

def test_a_forked_child_gets_an_error_and_can_start_again(rabbitmq, ends):
    ends.talk(1)

    def child():
        ends.send('child')
        remedy = rf'\b{os.getppid()}\b.*\b{os.getpid()}\b.*; .*start\(\)'
        assert re.search(remedy, ends.unsent['child'])
        with pytest.raises(exceptions.BusUnavailable, match=remedy):
            ends.report('child')
        ends.scheduler = ends.work.me = entry('api-2')
        ends.worker = ends.back.me = entry('worker.2')
        ends.work.start(20)
        ends.back.start(20)
        ends.talk('anew')
        ends.work.close(3)
        ends.back.close(3)
        return True

    assert run_in_child(child) == 0
    ends.talk(2)


def test_importing_the_adapter_imports_no_messaging():
    """The first import of oslo.messaging fixes the backend of oslo.service for
    good.
    """
    code = ('import sys, distperiodic.adapters.messaging.bus; '
            'sys.exit(any(m.startswith(("oslo_messaging", "oslo_service", '
            '"kombu")) for m in sys.modules))')
    assert subprocess.run([sys.executable, '-c', code],
                          check=False).returncode == 0


def test_the_error_of_a_missing_right_names_the_right(mortal):
    """The login is accepted, so the password is not the problem."""
    mortal.ctl('add_user', 'limited', 's3cret')
    url = f'rabbit://limited:s3cret@{mortal.url.rpartition("@")[2]}'
    probe = drivers.probe(Ends(url).conf, url)
    ours = r'^distperiodic($|\.)'
    name = 'distperiodic.tests.doctor.1'

    for rights in [['', ours, ours], [ours, '', ours], [ours, ours, '']]:
        mortal.ctl('set_permissions', 'limited', *rights)
        probe.check(probe.find())
        with pytest.raises(exceptions.BusUnavailable,
                           match=r'refuses a right \(.*; .*set_permissions'):
            probe.check_rights(probe.find(), name)
    mortal.ctl('set_permissions', 'limited', '', ours, ours)
    ends = Ends(url)
    with (took_at_most(5), pytest.raises(
            exceptions.BusUnavailable,
            match=r'accepts the login, .*; .*set_permissions') as refusal):
        ends.work.start(10)
    assert 's3cret' not in str(refusal.value)
    ends.work.close()

    mortal.ctl('set_permissions', 'limited', ours, ours, ours)
    probe.check_rights(probe.find(), name)
    with connected(url) as ends:
        ends.talk(1)
