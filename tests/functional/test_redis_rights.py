# SPDX-License-Identifier: Apache-2.0
"""A Redis user with the documented rights, and one that lacks a right."""

import pytest
import redis as client

from distperiodic import exceptions
from distperiodic.adapters.coordination import driver
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.redis import client as bus
from distperiodic.operator.coordination_probe import CoordinationProbe
from tests import logged
from tests import services
from tests import waiting
from tests.functional import commands
from tests.services import ports

# The tests share a server, which one process starts.
pytestmark = pytest.mark.xdist_group('redis_rights')

# tests/unit/test_documentation.py compares the page with these rights.
BUS = bus.RIGHTS.split()
GROUPS = ['~distperiodic_*', *driver.REDIS_COMMANDS.split()]


@pytest.fixture(scope='module')
def server():
    with services.redis(its_own=True) as server:
        yield server


@pytest.fixture
def allow(server):
    """Return a function that gives rights to a user and returns its URL."""
    def allow(*rights):
        connection.execute_command(
            'ACL', 'SETUSER', 'me', 'reset', 'on', '>hunter2', *rights)
        return f'redis://me:hunter2@{ports.HOST}:{server.port}'
    with client.Redis(ports.HOST, server.port) as connection:
        yield allow
        connection.flushall()


def joined(url, seconds):
    """Return a member of group g, once it has joined or cannot."""
    one = ToozMembership(url, 'one', clock=SystemClock(),
                         announced=Announced(points=40), session_timeout=10.0)
    one.join('g')
    one.start()
    try:
        one.wait_joined(seconds)
    except exceptions.CoordinationUnavailable:
        one.stop()
        raise
    return one


def test_a_user_with_the_listed_rights_can_use_the_bus(allow):
    probe = drivers.driver_of(url := allow(*BUS)).probe(None, url)

    probe.check_rights(probe.find(), 'distperiodic.doctor')


def test_a_member_with_the_listed_rights_joins_and_leaves(allow, caplog):
    url = allow(*GROUPS)
    one = joined(url, 20)
    try:
        with CoordinationProbe(url, session_timeout=10.0,
                               clock=SystemClock()) as probe:
            assert [entry.member.points for entry in probe.entries('g')
                    ] == [40]
            one.publish(points=0)
            waiting.wait_until(
                lambda: [entry.member.points for entry in probe.entries('g')]
                == [0])
            one.stop()
            assert probe.entries('g') == []
            probe.delete_group('g')
            assert probe.groups() == []
    finally:
        one.stop()
    assert [line.text for line in logged.lines(caplog)
            if line.level in ('WARNING', 'ERROR')] == []


# A command, one within a transaction, and one within a script.
@pytest.mark.parametrize('missing', ['+mget', '+multi', '+hset'])
def test_a_missing_right_is_one_line_with_the_remedy(
        allow, caplog, missing):
    url = allow(*(right for right in GROUPS if right != missing))

    with pytest.raises(exceptions.CoordinationUnavailable) as caught:
        joined(url, 2)

    told = str(caught.value)
    assert 'hunter2' not in told
    assert told.endswith('ACL SETUSER me ' + ' '.join(GROUPS))
    [line] = [line for line in logged.lines(caplog)
              if line.level in ('WARNING', 'ERROR')]
    assert (line.event, line.error) == ('not in the group', None)


def test_status_reports_a_missing_right(allow, tmp_path):
    url = allow(*(right for right in GROUPS if right != '+smembers'))
    config = tmp_path / 'service.conf'
    config.write_text(f'[distperiodic]\nbackend_url = {url}\n')
    config.chmod(0o600)

    told = commands.run('status', '--config-file', config, cwd=tmp_path)

    assert told.returncode == 2
    assert "'smembers'" in told.stdout + told.stderr
    assert 'ACL SETUSER me' in told.stdout + told.stderr
    assert 'Traceback' not in told.stderr
