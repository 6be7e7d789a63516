# SPDX-License-Identifier: Apache-2.0
"""No password or key appears in any output.

The tests put secrets into all URLs and options, enable all logs, and search
all output for the secrets.
"""

import contextlib
import logging
import re
import subprocess
import time
import uuid
from urllib import error
from urllib import request

import kazoo.client
import kazoo.security
import pytest
from cliff import commandmanager
from oslo_config import cfg

from distperiodic import coordinator
from distperiodic import exceptions
from distperiodic.adapters.messaging.bus import Endpoint
from distperiodic.adapters.messaging.bus import MessagingWorkBus
from tests import programs
from tests import services
from tests import waiting
from tests.functional import commands
from tests.functional import test_cmd
from tests.services import ports
from tests.services.rabbitmq import PASSWORD

COORDINATION = 'planted-zookeeper'
FILE = 'planted-key-file'
KEY = 'planted-signing-key'
#: Password of the test servers RabbitMQ and PostgreSQL.
SERVER = PASSWORD
#: ZooKeeper's digest of user and password. A dictionary attack on it reveals
#: the password.
DIGEST = kazoo.security.make_digest_acl_credential(
    'me', COORDINATION).partition(':')[2]
SECRETS = [COORDINATION, FILE, KEY, SERVER, DIGEST]

#: Arguments of every command, except commands that do not end.
COMMANDS = {
    'audit': [], 'db prune': ['--history', '1'], 'db sync': [],
    'db version': [], 'dead list': [],
    'dead requeue': ['--all', 'poll'],
    'doctor': ['--tasks', 'nodes:Nodes'], 'dump': [], 'history': [],
    'job list': [],
    'job pause': ['poll', '--why', 'x'], 'job resume': ['poll'],
    'job trigger': ['poll'], 'next': [], 'objects': ['poll'],
    'ring explain': ['poll', 'node-3'],
    'ring show': [], 'ring simulate': ['--members', '3', '--objects', '100'],
    'running': [], 'status': [], 'why': ['poll', 'node-3'],
    'task submit': ['mysql.init_instance', '--key', 'k', '--queue', 'q'],
    'task list': [], 'task show': ['none'], 'task cancel': ['none'],
    'task retry': ['none'], 'queue list': [], 'queue show': ['q'],
    'queue halt': ['q'], 'queue resume': ['q'],
    'queue set': ['q', '--on-failure', 'go_on'],
    'partition list': [], 'partition show': ['none'],
    'partition promote': ['none', 'none'],
    'pool list': [], 'pool show': ['none'],
    'pool reset': ['none', '--yes'],
    'events': [], 'member list': [], 'member show': ['none'],
    'member drain': ['none'], 'member undrain': ['none'],
    'member set': ['pool_size', '4', 'none'],
    'member unset': ['pool_size', 'none'],
    # Without a terminal, this prints an error.
    'metrics': [], 'top': [], 'waiting': [],
}
LOUDLY = ['--debug', '-v', '-v']
GO_ON = {'demo', 'scheduler', 'web', 'worker'}
PAGES = '/', '/api/', '/members', '/ring', '/events', '/jobs/none'


def found(text):
    """Return the planted secrets in *text*, each with the lines that contain
    it.
    """
    return [(secret, line) for secret in SECRETS
            for line in text.splitlines() if secret in line]


def guarded(server):
    """Return the URL of a ZooKeeper server for a user with a password."""
    return re.sub('//', f'//me:{COORDINATION}@', server.url, count=1) + (
        f'?namespace=guarded/{uuid.uuid4().hex[:8]}')


@pytest.fixture
def service(tmp_path, zookeeper, rabbitmq, postgresql):
    made = test_cmd.Service(
        tmp_path, guarded(zookeeper), rabbitmq.url,
        connection=postgresql.url, signing_key=KEY)
    text = made.config.read_text()
    made.config.write_text(text.replace('[DEFAULT]\n', (
        '[DEFAULT]\ndefault_log_levels = kazoo=DEBUG,tooz=DEBUG,amqp=DEBUG,'
        'kombu=DEBUG,oslo.messaging=DEBUG,oslo_messaging=DEBUG,'
        'sqlalchemy=DEBUG,oslo_service=DEBUG\n')))
    return made


def everything(service, *argv):
    """Return all output of a command."""
    done = commands.run(*LOUDLY, *argv, '--config-file', service.config,
                        cwd=service.place)
    return done.stdout + done.stderr


def pages(service):
    """Return pages of the group, and the log of the program that serves them.
    """
    address = f'127.0.0.1:{ports.free_port()}'
    said = ''
    with commands.Running(
            service.place / 'web.log', *LOUDLY, 'web', '--listen', address,
            '--config-file', service.config, cwd=service.place) as web:
        waiting.wait_until(lambda: address in web.said(), 60)
        for page in PAGES:
            try:
                with request.urlopen(f'http://{address}{page}') as answer:
                    said += answer.read().decode()
            except error.HTTPError as exc:
                said += exc.read().decode()
        web.terminate()
        web.wait(60)
        return said + web.said()


def test_every_command_is_checked():
    names = {name for name, _ in commandmanager.CommandManager(
        'distperiodic.cli')}

    assert names == set(COMMANDS) | GO_ON


# The test runs more than forty programs in sequence.
@pytest.mark.timeout(600)
def test_no_service_and_no_command_prints_a_secret(service):
    said = {'db sync': everything(service, 'db', 'sync')}
    with (service.start('scheduler', before=LOUDLY) as scheduler,
          service.start('worker', before=LOUDLY) as worker):
        waiting.wait_until(lambda: service.lines('ended'),
                           programs.STARTING, 'nothing was done')
        for name, options in COMMANDS.items():
            said[name] = everything(service, *name.split(), *options)
        for program in scheduler, worker:
            program.hang_up()
        time.sleep(3)
        for program in scheduler, worker:
            program.terminate()
            program.wait(60)
            said[program.log.stem] = program.said()
    said['web'] = pages(service)

    # Each command has run, and the programs have logged at DEBUG.
    assert [name for name, text in said.items() if '--help' in text] == []
    assert 'Sending request' in said['scheduler']
    assert 'Sending request' in said['status']
    assert service.group in said['web'] and 'findings' in said['web']
    assert {name: found(text) for name, text in said.items()
            if found(text)} == {}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_no_demo_prints_a_secret(service):
    said = everything(service, 'db', 'sync') + everything(
        service, 'demo', '--seconds', '30', '--objects', '20')

    assert 'ping' in said
    assert found(said) == []


GOOD = {
    'backend_url': f'zookeeper://me:{COORDINATION}@127.0.0.1:1',
    'transport_url': f'rabbit://me:{SERVER}@127.0.0.1:1/',
    'connection': f'postgresql://me:{SERVER}@127.0.0.1:1/db',
}
MISTAKES = {
    'nothing listens': {},
    'a file that is none': {
        'backend_url': f'zookeeper://me:{COORDINATION}@127.0.0.1:1?use_ssl=1&'
                       f'keyfile_password={FILE}&certfile=/no&keyfile=/no'},
    'a path': {'backend_url': f'zookeeper://me:{COORDINATION}@h/nova'},
    'a slash in a password': {
        'backend_url': f'zookeeper://me:a/{COORDINATION}@h'},
    'no scheme': {'backend_url': f'me:{COORDINATION}@h'},
    'an unknown option': {'backend_url': f'redis://me:{COORDINATION}@h?x=y'},
    'a driver that is none': {
        'backend_url': f'zookeper://me:{COORDINATION}@h'},
    'a port that is none': {
        'backend_url': f'zookeeper://me:{COORDINATION}@127.0.0.1:one',
        'transport_url': f'rabbit://me:{SERVER}@127.0.0.1:one/',
        'connection': f'postgresql://me:{SERVER}@127.0.0.1:one/db'},
    'no broker': {
        'backend_url': 'file:///tmp/distperiodic-secrets',
        'transport_url': f'me:{SERVER}@127.0.0.1',
        'connection': f'me:{SERVER}@127.0.0.1'},
    'an unknown driver': {
        'backend_url': 'file:///tmp/distperiodic-secrets',
        'transport_url': f'rabit://me:{SERVER}@127.0.0.1',
        'connection': f'oracle://me:{SERVER}@127.0.0.1/x'},
    'an unknown option of a broker': {
        'backend_url': 'file:///tmp/distperiodic-secrets',
        'transport_url': f'rabbit://me:{SERVER}@127.0.0.1/?x=y',
        'connection': f'postgresql://me:{SERVER}@127.0.0.1:1/db?x=y'},
    'no Redis': {
        'backend_url': 'file:///tmp/distperiodic-secrets',
        'transport_url': f'redis://me:{SERVER}@127.0.0.1:1/0'},
    'a Redis that cannot be': {
        'backend_url': 'file:///tmp/distperiodic-secrets',
        'transport_url': f'rediss://me:{SERVER}@127.0.0.1:1/x?y=z'},
    'an option that cannot be': {'send_timeout': 'nan'},
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_no_error_prints_a_secret(tmp_path, mistake):
    urls = GOOD | MISTAKES[mistake]
    service = test_cmd.Service(
        tmp_path, urls.pop('backend_url'), urls.pop('transport_url'),
        signing_key=KEY, **urls)
    with (service.start('scheduler', before=LOUDLY) as scheduler,
          service.start('worker', before=LOUDLY) as worker):
        said = {name: everything(service, *name.split(), *COMMANDS[name])
                for name in ('doctor', 'status', 'db sync')}
        said['demo'] = everything(service, 'demo')
        for program in scheduler, worker:
            # A program ends, fails to start, or starts and tries to connect.
            waiting.wait_until(
                lambda program=program: not program.running or re.search(
                    ' (WARNING|ERROR) | member=', program.said()), 20)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(2)
            said[program.log.stem] = program.said()

    assert all(said.values())
    assert {name: found(text) for name, text in said.items()
            if found(text)} == {}


@pytest.mark.parametrize('level', [logging.DEBUG, 1])
@pytest.mark.parametrize('password', [SERVER, 'wrong'])
def test_redis_logs_no_secret_at_any_level(caplog, level, password):
    caplog.set_level(level)
    with services.redis('--requirepass', SERVER, its_own=True) as server:
        bus = MessagingWorkBus(
            Endpoint(
                cfg.ConfigOpts(), server.url.replace('//', f'//:{password}@'),
                group='g', me='a~1~1~f1', keys=[KEY]),
            on_report=print, on_unsent=print, on_sent=print)
        with contextlib.suppress(exceptions.BusUnavailable):
            bus.start(20)
            server.kill()
            waiting.wait_until(lambda: 'cannot be reached' in caplog.text)
        bus.close()

    assert found(caplog.text) == []
    assert 'wrong' not in caplog.text


@pytest.mark.parametrize('level', [logging.DEBUG, 1])
def test_no_library_logs_a_secret_at_any_level(
        zookeeper, rabbitmq, caplog, level):
    """kazoo and oslo.messaging log more details below DEBUG."""
    caplog.set_level(level)
    for name in 'kazoo.client', 'oslo_messaging', 'amqp', 'kombu':
        caplog.set_level(level, name)
    ring = coordinator.HashRing(guarded(zookeeper), 'g', session_timeout=2)
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    bus = MessagingWorkBus(
        Endpoint(conf, rabbitmq.url, group=uuid.uuid4().hex, me='a~1~1~f1',
                 keys=[KEY]),
        on_report=print, on_unsent=print, on_sent=print)
    try:
        bus.start(20)
        ring.start(20)
    finally:
        ring.stop()
        bus.close()

    assert 'Sending request' in caplog.text
    assert found(caplog.text) == []
    assert re.findall(r'passwd(?:=|: )(?!b?\*\*\*).*', caplog.text) == []
