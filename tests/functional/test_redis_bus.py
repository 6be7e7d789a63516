# SPDX-License-Identifier: Apache-2.0
"""Batches and reports over a real Redis, also during its faults."""

import contextlib
import logging
import socket
import subprocess
import sys
import threading

import pytest
import redis as client
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.redis import client as clients
from tests import services
from tests.ends import LATE
from tests.ends import Ends
from tests.ends import connected
from tests.ends import took_at_most
from tests.logged import lines
from tests.services import ports
from tests.waiting import wait_until

# The tests share a server, which one process starts.
pytestmark = pytest.mark.xdist_group('redis_bus')

AWAY = 'the broker cannot be reached'
BACK = 'the broker answers again'
LOST = 'the broker lost a queue'


@pytest.fixture(scope='module')
def mortal():
    """Return a server that the tests of this file may break and repair."""
    with services.redis(its_own=True) as server:
        yield server


@pytest.fixture
def ends(mortal, caplog):
    caplog.set_level(logging.INFO, 'distperiodic')
    with connected(mortal.url) as ends:
        ends.talk('before')
        caplog.clear()
        yield ends


@contextlib.contextmanager
def by_hand(server):
    with client.Redis.from_url(server.url) as connection:
        yield connection


def numbers(count):
    return [str(number) for number in range(count)]


def send_both_ways(ends, count):
    for number in range(count):
        ends.send(number)
        ends.report(number)


def wait_for_all(ends, count):
    wait_until(lambda: set(numbers(count)) <= set(ends.got), 30)
    wait_until(lambda: set(numbers(count)) <= set(ends.reported), 30)


# -- faults of the server

def test_a_server_that_is_away_is_logged_once_and_its_return_too(
        mortal, ends, caplog):
    mortal.kill()
    try:
        for number in range(100):
            ends.send(number)
        wait_until(lambda: len(ends.unsent) == 100)
        ends.report('late')
    finally:
        mortal.start()
    ends.talk('after', 20)

    # Each end has its own connection.
    assert len(lines(caplog, AWAY)) == len(lines(caplog, BACK)) == 2


def test_a_queue_that_was_deleted_is_declared_again(mortal, ends, caplog):
    with by_hand(mortal) as connection:
        for number in range(3):
            connection.flushall()
            ends.talk(number, 20)

    assert {line['queue'] for line in lines(caplog, LOST)} == {
        ends.work_queue, ends.reports_queue}
    assert lines(caplog, AWAY) == []


def test_a_server_that_pauses_its_clients_loses_nothing(mortal):
    with connected(mortal.url, patience=60.0) as ends:
        ends.talk('before')
        with by_hand(mortal) as connection:
            connection.client_pause(5000)
        send_both_ways(ends, 50)
        wait_for_all(ends, 50)

        assert ends.unsent == {}


def test_messages_read_on_a_lost_connection_are_neither_lost_nor_doubled(
        mortal):
    with (connected(mortal.url, patience=60.0) as ends,
          by_hand(mortal) as connection):
        ends.talk('before')
        for start in range(0, 1000, 100):
            for number in range(start, start + 100):
                ends.send(number)
            connection.execute_command('CLIENT', 'KILL', 'TYPE', 'normal',
                                       'SKIPME', 'yes')
        wait_until(lambda: set(numbers(1000)) <= set(ends.got), 60)

        # A message whose confirmation was lost is sent again.
        assert len(ends.got) < 1050
        assert list(dict.fromkeys(ends.got))[1:] == numbers(1000)
        wait_until(lambda: connection.xlen(ends.work_queue) == 0)


def test_messages_that_another_connection_left_unfinished_are_taken(mortal):
    with connected(mortal.url) as ends, by_hand(mortal) as connection:
        ends.back.close(3)
        connection.xgroup_create(ends.work_queue, 'distperiodic', '0',
                                 mkstream=True)
        ends.send(1)
        wait_until(lambda: ends.sent == ['1'])
        assert connection.xreadgroup(
            'distperiodic', 'dead', {ends.work_queue: '>'})

        ends.back.start(20)

        wait_until(lambda: ends.got == ['1'])
        wait_until(lambda: connection.xlen(ends.work_queue) == 0)


def test_a_message_read_after_the_bus_was_closed_is_not_passed_on(mortal):
    """The process could no longer report on it."""
    with connected(mortal.url) as ends, by_hand(mortal) as connection:
        ends.talk('before')
        ends.back.close(0)
        # The thread that reads waits for the next message.
        ends.send(1)
        wait_until(lambda: '1' in ends.sent or '1' in ends.unsent)
        wait_until(lambda: not connection.exists(ends.work_queue))

        assert ends.got == ['before']


def test_a_server_out_of_memory_refuses_with_a_log_line(mortal, ends, caplog):
    with by_hand(mortal) as connection:
        connection.config_set('maxmemory', 1)
        try:
            ends.send(1)
            with took_at_most(LATE):
                wait_until(lambda: ends.unsent)
        finally:
            connection.config_set('maxmemory', 0)

    assert 'maxmemory' in ends.unsent['1']
    ends.talk('after', 20)
    assert len(lines(caplog, 'the broker refuses messages')) == 1
    assert len(lines(caplog, 'the broker accepts messages again')) == 1
    assert lines(caplog, AWAY) == []


def test_a_replica_that_is_promoted_carries_the_messages():
    with (services.redis_failover() as (master, replica, sentinel),
          connected(f'redis://{ports.HOST}:{sentinel.port}/0?sentinel=tests',
                    patience=60.0) as ends):
        ends.talk('before')
        with by_hand(replica) as connection:
            wait_until(lambda: connection.exists(
                ends.work_queue, ends.reports_queue) == 2, 20)

            master.kill()
            send_both_ways(ends, 20)
            wait_for_all(ends, 20)

            assert connection.info('replication')['role'] == 'master'
        assert ends.unsent == {}


def test_a_replica_that_was_promoted_too_early_gets_the_queues_again():
    """The promoted replica does not have the queues. So messages are reported
    as unsent until the queues are declared again.
    """
    with (services.redis_failover() as (master, replica, sentinel),
          connected(f'redis://{ports.HOST}:{sentinel.port}/0?sentinel=tests',
                    patience=60.0) as ends,
          by_hand(replica) as connection):
        connection.replicaof('NO', 'ONE')
        connection.flushall()

        master.kill()

        wait_until(lambda: connection.exists(
            ends.work_queue, ends.reports_queue) == 2, 30)
        ends.talk('after', 20)


# -- contents of the server

def test_the_queue_of_a_killed_process_expires(mortal, ends):
    with by_hand(mortal) as connection:
        for key in ends.work_queue, ends.reports_queue:
            assert 0 < connection.ttl(key) <= 1800


def test_a_queue_that_is_not_read_is_bounded(mortal, ends):
    ends.back.close(3)
    with by_hand(mortal) as connection:
        connection.xgroup_create(ends.work_queue, 'distperiodic', '0',
                                 mkstream=True)
        with connection.pipeline(transaction=False) as pipeline:
            for _ in range(12_000):
                pipeline.xadd(ends.work_queue, {'message': '{}'})
            pipeline.execute()

        ends.send(1)
        wait_until(lambda: ends.sent == ['before', '1'])

        assert connection.xlen(ends.work_queue) < 10_200


GARBAGE = {
    'another field': {'x': 'y'},
    'nothing': {'message': ''},
    'no text': {'message': b'\xff\x00'},
    'deep': {'message': '[' * 200_000},
    'a huge number': {'message': '{"v": ' + '9' * 10_000 + '}'},
    'a list': {'message': '[1]'},
    'null': {'message': 'null'},
    'an unknown version': {'message': '{"v": 2, "kind": "run"}'},
}


def test_garbage_is_counted_and_does_not_stop_the_work(mortal, ends, caplog):
    with by_hand(mortal) as connection:
        for entry in GARBAGE.values():
            connection.xadd(ends.work_queue, entry)

    ends.talk('after')

    assert sum(ends.back.dropped.values()) == len(GARBAGE)
    assert [r for r in caplog.records if r.exc_info] == []


def test_a_message_that_would_fill_the_memory_is_not_parsed(mortal, ends):
    with by_hand(mortal) as connection:
        connection.xadd(ends.work_queue, {'message': b' ' * (21 * 2 ** 20)})

    ends.talk('after')

    [(_, reason)] = ends.back.dropped
    assert f'{21 * 2 ** 20} bytes' in reason


# -- starts that cannot succeed

@pytest.mark.parametrize(('url', 'error', 'why'), [
    ('redis://', exceptions.ConfigError, 'names no server'),
    ('redis://u:s3cr3t@h:port/0', exceptions.ConfigError, 'port'),
    ('redis://u:s3cr3t@h:99999/0', exceptions.ConfigError, 'out of range'),
    ('redis://u:s3cr3t@h/name', exceptions.ConfigError, "'name'"),
    ('redis://u:s3cr3t@h/0?no_such=1', exceptions.ConfigError, 'no_such'),
    ('redis://u:s3cr3t@a,b/0', exceptions.ConfigError, '?sentinel=NAME'),
    ('redis://u:s3cr3t@h/0?ssl_ca_certs=/f', exceptions.ConfigError,
     'rediss://'),
    ('redis+x://u:s3cr3t@h/0', exceptions.ConfigError, 'redis+x'),
    ('redis://u:s3cr3t@127.0.0.1:1/0', exceptions.BusUnavailable, 'refused'),
    ('redis://u:s3cr3t@no.such.host.invalid/0', exceptions.BusUnavailable,
     'no.such.host'),
    ('redis://u:s3cr3t@127.0.0.1:1/0?sentinel=m', exceptions.BusUnavailable,
     "'m'"),
])
def test_a_wrong_url_gives_one_clear_line_in_time(url, error, why, caplog):
    ends = Ends(url)
    for bus in (ends.work, ends.back):
        with took_at_most(6), pytest.raises(error) as refusal:
            bus.start(1.0)
        assert why in str(refusal.value)
        assert '\n' not in str(refusal.value)
        assert 's3cr3t' not in str(refusal.value) + caplog.text
        assert refusal.value.__cause__ is None


@pytest.fixture(scope='module')
def guarded():
    """Return a server with a password."""
    with services.redis('--requirepass', 'r1ght', its_own=True) as server:
        server.url = f'redis://:r1ght@{ports.HOST}:{server.port}'
        yield server


@pytest.mark.parametrize(('login', 'why'), [
    ('', 'NOAUTH|Authentication'), (':wr0ng@', 'WRONGPASS|invalid'),
    ('someone:wr0ng@', "'someone'")])
def test_a_refused_login_is_reported_at_once(guarded, login, why, caplog):
    ends = Ends(f'redis://{login}{ports.HOST}:{guarded.port}/0')

    with (took_at_most(5),
          pytest.raises(exceptions.BusUnavailable, match=why) as refusal):
        ends.work.start(10)

    assert 'correct the user and the password' in str(refusal.value)
    assert 'wr0ng' not in str(refusal.value) + caplog.text
    ends.work.close()


def test_a_password_may_have_any_character(guarded):
    with by_hand(guarded) as one:
        one.acl_setuser('odd', enabled=True, keys=['distperiodic.*'],
                        passwords=['+a/b?c@d%e'],
                        commands=clients.RIGHTS.split()[1:])
    for quoted in 'a%2Fb%3Fc%40d%25e', 'a/b?c@d%25e':
        with connected(
                f'redis://odd:{quoted}@{ports.HOST}:{guarded.port}/0'
        ) as ends:
            ends.talk(1)


def test_missing_rights_of_a_user_are_named(guarded):
    with by_hand(guarded) as one:
        one.acl_setuser('idle', enabled=True, passwords=['+p'],
                        commands=['+@connection'])
    ends = Ends(f'redis://idle:p@{ports.HOST}:{guarded.port}/0')

    with pytest.raises(exceptions.BusUnavailable, match=r'\+xgroup\|create'):
        ends.work.start(10)
    probe = drivers.probe(
        cfg.ConfigOpts(), f'redis://idle:p@{ports.HOST}:{guarded.port}/0')
    with pytest.raises(exceptions.BusUnavailable, match='SETUSER idle'):
        probe.check_rights(probe.find(), 'distperiodic.tests.doctor')


def test_the_documented_rights_are_enough_and_no_wider(guarded):
    with by_hand(guarded) as one:
        one.acl_setuser('bus', enabled=True, passwords=['+p'],
                        keys=['distperiodic.*'],
                        commands=clients.RIGHTS.split()[1:])
        one.execute_command('ACL', 'LOG', 'RESET')
    url = f'redis://bus:p@{ports.HOST}:{guarded.port}/0'
    probe = drivers.probe(cfg.ConfigOpts(), url)
    with connected(url) as ends:
        ends.talk(3)
    probe.check_rights(probe.find(), 'distperiodic.tests.doctor')

    with by_hand(guarded) as one:
        # The client tells its name and release, and needs no answer.
        assert {entry[b'object'] for entry in one.execute_command(
            'ACL', 'LOG')} <= {b'client|setinfo'}
        user = client.Redis.from_url(url)
        for command in ('FLUSHALL', 'SWAPDB 0 1', 'KEYS *',
                        'GET distperiodic.x'):
            with pytest.raises(client.exceptions.NoPermissionError):
                user.execute_command(*command.split())
        user.close()
    assert probe.queues(probe.find(), ['distperiodic.tests.doctor']) == {
        'distperiodic.tests.doctor': None}


@pytest.mark.parametrize(('query', 'why'), [
    ('ssl_ca_certs=/no/such@place/ca.pem', 'ssl_ca_certs=/no/such@place/ca')])
def test_a_missing_file_is_reported_at_once(query, why):
    with pytest.raises(exceptions.ConfigError, match=why):
        drivers.probe(cfg.ConfigOpts(), f'rediss://u:p@h/0?{query}')


def test_an_unknown_database_is_reported_at_once(mortal):
    ends = Ends(f'{mortal.url}/99')

    with (took_at_most(5),
          pytest.raises(exceptions.BusUnavailable, match='no such database')):
        ends.work.start(10)


@contextlib.contextmanager
def an_old_server(version):
    """Run a server that answers like a Redis of *version*. Yield its port."""
    text = f'# Server\r\nredis_version:{version}\r\n'.encode()
    answer = b'$%d\r\n%s\r\n' % (len(text), text)

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                channel = listener.accept()[0]
                with channel:
                    while asked := channel.recv(4096):
                        channel.sendall(answer if b'INFO' in asked.replace(
                            b'SETINFO', b'') else b'+OK\r\n' * asked.count(
                                b'*'))

    with socket.create_server(('127.0.0.1', 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_server_that_is_too_old_is_reported_at_once():
    with an_old_server('6.0.16') as port:
        ends = Ends(f'redis://{ports.HOST}:{port}/0')
        with (took_at_most(5), pytest.raises(
                exceptions.BusUnavailable,
                match=r'Redis 6\.0\.16, .* 6\.2; upgrade')):
            ends.work.start(10)


def test_an_unknown_bus_is_refused_with_those_there_are():
    with pytest.raises(exceptions.ConfigError) as refusal:
        drivers.driver_of('valkey://u:s3cr3t@h/0')

    told = str(refusal.value)
    assert "'valkey'" in told
    assert 'fake, kombu, rabbit, redis, rediss; ' in told
    assert 's3cr3t' not in told


def test_without_the_client_the_extra_is_named():
    code = ('import sys; sys.modules["redis"] = None\n'
            'from distperiodic.adapters.messaging import drivers\n'
            'try: drivers.driver_of("redis://u:s3cr3t@h/0")\n'
            'except drivers.ConfigError as exc: print(exc)')

    done = subprocess.run([sys.executable, '-c', code], check=True,
                          capture_output=True, text=True)

    assert "pip install 'distperiodic[redis]'" in done.stdout
    assert 's3cr3t' not in done.stdout + done.stderr
    assert 'Traceback' not in done.stderr


# -- probes

def test_a_probe_finds_a_policy_that_loses_messages(mortal):
    probe = drivers.probe(cfg.ConfigOpts(), mortal.url)
    host = probe.find()
    assert probe.weaknesses(host) == []

    with by_hand(mortal) as connection:
        connection.config_set('maxmemory-policy', 'allkeys-lru')
        try:
            [found] = probe.weaknesses(host)
        finally:
            connection.config_set('maxmemory-policy', 'noeviction')

    assert 'allkeys-lru' in found.problem
    assert 'noeviction' in found.remedy


def test_a_probe_finds_a_replica_and_follows_a_sentinel():
    with services.redis_failover() as (master, replica, sentinel):
        [found] = drivers.probe(
            cfg.ConfigOpts(), replica.url).weaknesses(drivers.probe(
                cfg.ConfigOpts(), replica.url).hosts[0])
        assert 'replica' in found.problem
        probe = drivers.probe(
            cfg.ConfigOpts(),
            f'redis://{ports.HOST}:{sentinel.port}/0?sentinel=tests')
        assert probe.weaknesses(probe.find()) == []


@pytest.mark.parametrize(('login', 'open_'), [('', True), (':p@', False)])
def test_a_server_without_a_password_is_open_to_all(login, open_):
    probe = drivers.probe(cfg.ConfigOpts(), f'redis://{login}h/0')

    assert (probe.open_to_all(probe.hosts[0]) is not None) is open_
