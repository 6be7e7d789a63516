# SPDX-License-Identifier: Apache-2.0
"""The servers of the tests behave as the tests require.

The default run has only the cases with servers that start fast. Its other
tests kill and restart each of these servers as well.
"""

import subprocess
import sys

import amqp
import kazoo.client
import psutil
import pytest

from tests import services
from tests.waiting import wait_until


@pytest.fixture
def client(zookeeper_server):
    """Return a client that is connected to its own ZooKeeper."""
    client = kazoo.client.KazooClient(
        zookeeper_server.url.removeprefix('zookeeper://'), timeout=2.0)
    client.start(timeout=10)
    yield client
    client.stop()
    client.close()


def connected(client):
    return wait_until(lambda: client.connected, 20, 'no connection')


@pytest.mark.full
def test_zookeeper_keeps_its_data_over_a_kill(zookeeper_server, client):
    client.create('/kept')
    before = zookeeper_server.pid

    zookeeper_server.kill()
    wait_until(lambda: not client.connected, 5, 'the client noticed nothing')
    assert not zookeeper_server.running
    zookeeper_server.start()

    connected(client)
    assert client.exists('/kept')
    assert zookeeper_server.pid != before


@pytest.mark.full
def test_zookeeper_forgets_its_data_when_wiped(zookeeper_server, client):
    client.create('/forgotten')

    zookeeper_server.stop()
    zookeeper_server.wipe()
    zookeeper_server.start()

    # The old client has seen later transactions than the wiped server has, so
    # the server rejects the client.
    anew = kazoo.client.KazooClient(
        zookeeper_server.url.removeprefix('zookeeper://'))
    anew.start(timeout=10)
    try:
        assert not anew.exists('/forgotten')
    finally:
        anew.stop()
        anew.close()


@pytest.mark.full
def test_a_frozen_zookeeper_goes_on_when_thawed(zookeeper_server, client):
    before = zookeeper_server.pid

    zookeeper_server.freeze()
    wait_until(lambda: not client.connected, 5, 'the client noticed nothing')
    zookeeper_server.thaw()

    connected(client)
    assert zookeeper_server.pid == before


@pytest.mark.full
def test_zookeeper_grants_a_session_of_one_second(zookeeper_server, client):
    session, _ = client.client_id

    assert 'minSessionTimeout=1000' in zookeeper_server.ask('conf')
    assert f'{session:x}' in zookeeper_server.ask('cons')


@pytest.mark.full
def test_an_ensemble_serves_without_one_and_not_without_two(
        zookeeper_ensemble):
    leader = zookeeper_ensemble.leader()
    one, other = zookeeper_ensemble.followers()

    leader.kill()
    wait_until(lambda: one.answers() and other.answers(), 30,
               'no new leader was elected')
    one.kill()
    wait_until(lambda: not other.answers(), 30,
               'the last one still serves')

    one.start()
    leader.start()
    assert len(zookeeper_ensemble.followers()) == 2


@pytest.mark.full
def test_rabbitmq_keeps_durable_messages_over_a_kill(rabbitmq_server):
    def connection():
        return amqp.Connection(
            f'127.0.0.1:{rabbitmq_server.port}', userid='tests',
            password='loopback-only', confirm_publish=True)  # noqa: S106

    with connection() as link:
        channel = link.channel()
        channel.queue_declare('kept', durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message('a word', delivery_mode=2),
                              routing_key='kept')
    # Erlang may write the log of its metadata up to 2 s after the answer.
    rabbitmq_server.ctl('eval', 'mnesia:sync_log().')
    rabbitmq_server.kill()
    rabbitmq_server.start()
    with connection() as link:
        assert link.channel().basic_get('kept').body == 'a word'

    rabbitmq_server.stop()
    rabbitmq_server.wipe()
    rabbitmq_server.start()
    assert 'kept' not in rabbitmq_server.ctl('list_queues', '--silent')


@pytest.mark.full
def test_rabbitmq_obeys_its_command_line_tool(rabbitmq_server):
    rabbitmq_server.ctl('stop_app')
    with pytest.raises(OSError):
        rabbitmq_server.answers()

    rabbitmq_server.ctl('start_app')
    assert rabbitmq_server.answers()


@pytest.mark.parametrize('service', [
    services.redis, services.etcd,
    pytest.param(services.postgresql, marks=pytest.mark.full),
    pytest.param(services.mariadb, marks=pytest.mark.full)])
def test_each_comes_back_on_the_same_port(service):
    with service(its_own=True) as server:
        server.kill()
        with pytest.raises(OSError):
            server.answers()

        server.start()
        assert server.answers()


def test_a_url_in_the_environment_is_taken(monkeypatch):
    monkeypatch.setenv('DISTPERIODIC_TEST_REDIS_URL', 'redis://127.0.0.1:1')

    with services.redis() as server:
        assert server.url == 'redis://127.0.0.1:1'


def test_a_missing_program_fails_the_test_and_names_the_package_to_install(
        monkeypatch):
    monkeypatch.setenv('PATH', '/nowhere')
    monkeypatch.setattr(services.container, 'docker_answers', lambda: False)

    with (pytest.raises(pytest.fail.Exception,
                        match='apt-get install redis-server'),
          services.redis(its_own=True)):
        pass


@pytest.mark.parametrize('service', [
    'redis', 'postgresql', *(
        pytest.param(name, marks=pytest.mark.full)
        for name in ('zookeeper', 'rabbitmq', 'etcd', 'mariadb'))])
def test_a_server_listens_on_loopback_only_and_ends_with_a_killed_test_run(
        service):
    """This test does not cover containers, because testcontainers itself ends
    them.
    """
    run = subprocess.Popen(
        [sys.executable, '-c',
         'import time; from tests import services\n'
         'services.container.docker_answers = lambda: False\n'
         f'with services.{service}(its_own=True) as server:\n'
         '    print(server.pid, flush=True); time.sleep(60)'],
        stdout=subprocess.PIPE, text=True)
    with run:
        server = psutil.Process(int(run.stdout.readline()))
        listening = {
            link.laddr.ip for link in server.net_connections('inet')
            if link.status == psutil.CONN_LISTEN}
        run.kill()

    assert listening
    assert listening <= {'127.0.0.1', '::ffff:127.0.0.1', '::1'}

    wait_until(lambda: not server.is_running(), 5, f'{server} still runs')
