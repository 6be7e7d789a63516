# SPDX-License-Identifier: Apache-2.0
"""The error of a member that cannot enter ZooKeeper names the real cause."""

import contextlib
import socket
import ssl
import subprocess
import threading

import kazoo.client
import kazoo.security
import pytest
from tooz import coordination as tooz

from distperiodic import coordinator
from distperiodic import exceptions
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.operator.coordination_probe import CoordinationProbe
from tests import logged
from tests import services
from tests import waiting
from tests.services import ports

SESSION = 2.0


def refused(url, group='g'):
    """Return the errors of a member and of a command for *url*.

    Neither leaves a client behind, which would retry forever.
    """
    before = {*threading.enumerate()}
    ring = coordinator.HashRing(url, group, session_timeout=SESSION)
    try:
        with pytest.raises(exceptions.CoordinationUnavailable) as of_member:
            ring.start(4)
    finally:
        ring.stop()
    with (pytest.raises(exceptions.CoordinationUnavailable) as of_command,
          CoordinationProbe(url, session_timeout=SESSION,
                            clock=SystemClock()) as looking):
        looking.entries(group)
    waiting.wait_until(lambda: not {*threading.enumerate()} - before)
    told = str(of_member.value), str(of_command.value)
    assert [text for text in told if 'time-out' in text] == []
    assert [text for text in told if '\n' in text or '; ' not in text] == []
    return told


def said(told, *parts):
    return [(part, text) for part in parts for text in told
            if part not in text] == []


@contextlib.contextmanager
def client(server, **options):
    """Another client that is connected."""
    one = kazoo.client.KazooClient(
        server.url.removeprefix('zookeeper://'), **options)
    one.start(20)
    try:
        yield one
    finally:
        one.stop()
        one.close()


@pytest.mark.parametrize('place', ['theirs', 'theirs/below'])
def test_one_without_a_right_to_the_place(zookeeper, place):
    with client(zookeeper, auth_data=[('digest', 'one:else')]) as somebody:
        somebody.ensure_path('/theirs', acl=[
            kazoo.security.make_digest_acl('one', 'else', all=True)])
    address = zookeeper.url.removeprefix('zookeeper://')

    told = refused(f'zookeeper://me:hunter2@{address}?namespace={place}')

    assert said(told, f' /{place}; ', 'backend_url', 'cdrw', '?namespace=',
                'me:***@')
    assert 'hunter2' not in ''.join(told)


def test_no_connection_is_left_for_this_host():
    with (services.zookeeper(its_own=True, connections=1) as server,
          client(server)):
        told = refused(server.url)

    assert said(told, 'maxClientCnxns')


def test_a_member_changes_its_entry_and_leaves_with_the_only_connection(
        caplog):
    """A server that allows no second connection must not delay a stop, which
    first takes the member off the ring.
    """
    with (services.zookeeper(its_own=True, connections=2) as server,
          CoordinationProbe(server.url, session_timeout=60.0,
                            clock=SystemClock()) as probe):
        one = ToozMembership(server.url, 'one', clock=SystemClock(),
                             announced=Announced(points=40),
                             session_timeout=60.0)
        one.join('g')
        one.start()
        try:
            one.wait_joined(20)
            one.publish(points=0)
            waiting.wait_until(
                lambda: [entry.member.points
                         for entry in probe.entries('g')] == [0])
            one.publish(slots=1)
        finally:
            one.stop(30)
        waiting.wait_until(lambda: not probe.entries('g'))

    assert logged.lines(caplog, 'leaving took too long') == []
    assert logged.lines(caplog, 'not in the group') == []


def test_tls_with_a_port_that_has_none(zookeeper):
    told = refused(f'{zookeeper.url}?use_ssl=true')

    assert said(told, 'use_ssl', 'certfile')


@pytest.fixture
def encrypted(tmp_path):
    """Return the port of a server with a self-signed certificate."""
    subprocess.run(
        ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days',
         '2', '-subj', '/CN=localhost', '-keyout', 'key.pem', '-out',
         'cert.pem'], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / 'cert.pem', tmp_path / 'key.pem')

    def serve():
        with contextlib.suppress(OSError):
            while True:
                channel, _ = listening.accept()
                with channel, contextlib.suppress(OSError):
                    channel.settimeout(2)
                    context.wrap_socket(channel, server_side=True).close()
    with socket.create_server((ports.HOST, 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_a_certificate_without_a_known_authority_is_refused(encrypted):
    told = refused(f'zookeeper://{ports.HOST}:{encrypted}?use_ssl=true')

    # The text in parentheses is from OpenSSL.
    assert said(told, '(self', 'ca=FILE')


def test_a_plain_connection_to_a_port_with_tls_is_refused(encrypted):
    told = refused(f'zookeeper://{ports.HOST}:{encrypted}')

    assert said(told, 'use_ssl=true')


def test_a_group_of_the_service_itself_is_not_ours(zookeeper):
    """A service may have its own tooz group of the same name."""
    theirs = tooz.get_coordinator(zookeeper.url, b'theirs')
    theirs.start(start_heart=False)
    ours = coordinator.HashRing(zookeeper.url, 'cinder', member_id='ours',
                                session_timeout=SESSION)
    try:
        theirs.join_group_create(b'cinder')
        ours.start(15)

        assert ours.get_members('cinder') == ['ours']
        assert theirs.get_members(b'cinder').get(10) == {b'theirs'}
    finally:
        ours.stop()
        theirs.stop()
