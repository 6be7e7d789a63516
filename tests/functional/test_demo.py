# SPDX-License-Identifier: Apache-2.0
"""Runs of the demo, to the end and interrupted."""

import re
import shutil
import signal

import psutil
import pytest

from tests import waiting
from tests.functional import commands


class Stage:
    """Runs demos whose files are all in one directory."""

    def __init__(self, place):
        self.place = place

    def play(self, *argv):
        return commands.run('demo', *argv, TMPDIR=str(self.place))

    def begin(self, *argv):
        return commands.Running(self.place / 'log', 'demo', *argv,
                                TMPDIR=str(self.place))

    def members(self):
        """Return the processes of the demos that were started here."""
        return [p.pid for p in psutil.process_iter(['cmdline'])
                if 'distperiodic.demo.member' in (p.info['cmdline'] or [])
                and str(self.place) in ' '.join(p.info['cmdline'])]

    def directories(self):
        return list(self.place.glob('distperiodic-demo-*'))


@pytest.fixture
def stage(tmp_path):
    """Return a stage. After the test, no process and no file may be left."""
    made = Stage(tmp_path)
    yield made
    # The kernel needs a moment to end the processes.
    waiting.wait_until(lambda: not made.members(), 5,
                       'the demo left processes behind')
    assert not made.directories()


#: Regular expression for the first line with a number of objects for each
#: member. When this line appears, all members have joined.
ALL_JOINED = re.compile(r'member-1\D+\d+.*member-2\D+\d+.*member-3\D+\d+')


def number(text, name):
    found = re.search(rf'{name} +([0-9,]+)', text)
    assert found, text
    return int(found[1].replace(',', ''))


def check_account(told, hosts):
    """Check the facts that every summary must contain, however fast the
    machine is.
    """
    assert told.returncode == 0, told.stdout + told.stderr
    text = told.stdout
    ticks, due = re.search(
        rf'([0-9]+) ticks x {hosts} hosts = ([0-9,]+) pings due',
        text).groups()
    due = int(due.replace(',', ''))
    assert due == int(ticks) * hosts
    assert due == sum(number(text, name) for name in (
        'served once', 'served twice', 'missed'))
    assert number(text, 'missed') == 0
    # Runs that a killed or frozen member had not ended are repeated.
    assert number(text, 'served twice') <= hosts / 10
    summary = text.partition(' pings due')[2]
    for line in ('member-4 joins', 'member-2 is killed',
                 'member-3 is frozen', 'member-3 wakes'):
        row = re.search(rf'{line}: seen after [0-9.]+ s, ([0-9]+) hosts '
                        r'moved, ([0-9]+) had to', summary)
        assert row, text
        moved, least = row.groups()
        assert moved == least
    # The exit code proves that a member rejoined by itself.
    assert 'Guarantee: ' in text


def test_the_demo_needs_no_server_and_ends_by_itself(stage):
    for _ in range(3):
        told = stage.play('--seconds', '32', '--objects', '60')
        # The demo gives up if the machine is so busy that its members notice
        # no change before the next one.
        if 'less busy' not in told.stderr:
            break

    check_account(told, 60)
    # Without a terminal the demo prints one line per tick.
    assert len(re.findall(r'^[0-9:.]+  tick ', told.stdout, re.M)) >= 12
    assert '\x1b' not in told.stdout


@pytest.mark.full
def test_the_demo_over_zookeeper_rabbitmq_and_postgresql(
        stage, zookeeper, rabbitmq, postgresql):
    import sqlalchemy as sa

    from distperiodic.adapters.local.clock import SystemClock
    from distperiodic.adapters.sql import schema
    from distperiodic.operator.coordination_probe import CoordinationProbe
    schema.sync(postgresql.url)
    told = stage.play('--seconds', '36', '--objects', '60',
                      '--backend-url', zookeeper.url,
                      '--transport-url', rabbitmq.url,
                      '--connection', postgresql.url)

    check_account(told, 60)
    assert 'worker-1 ' in told.stdout
    with CoordinationProbe(zookeeper.url, session_timeout=2,
                clock=SystemClock()) as looking:
        assert not [g for g in looking.groups() if g.startswith('demo-')]
    engine = sa.create_engine(
        sa.make_url(postgresql.url).set(drivername='postgresql+psycopg2'))
    with engine.connect() as connection:
        assert not connection.scalars(sa.text(
            "SELECT name FROM distperiodic_job WHERE space LIKE 'demo-%'"
        )).all()
    assert 'loopback-only' not in told.stdout + told.stderr


@pytest.mark.parametrize('how', [
    pytest.param(signal.SIGINT, id='SIGINT'),
    *(pytest.param(how, id=how.name, marks=pytest.mark.full)
      for how in (signal.SIGTERM, signal.SIGHUP))])
def test_a_demo_that_is_broken_off_leaves_nothing(how, stage):
    with stage.begin() as demo:
        waiting.wait_until(lambda: ALL_JOINED.search(demo.said()), 60,
                           'the members did not start')
        assert len(stage.members()) == 3
        demo.process.send_signal(how)
        code = demo.process.wait(20)

        assert code == 130
        assert 'Traceback' not in demo.said()
        assert demo.said().splitlines()[-1].startswith('distperiodic: ')


def test_members_die_with_a_demo_that_is_killed(stage):
    with stage.begin() as demo:
        waiting.wait_until(lambda: ALL_JOINED.search(demo.said()), 60,
                           'the members did not start')
        demo.process.kill()
        demo.process.wait(10)
        waiting.wait_until(lambda: not stage.members(), 5,
                           'the members continued')
    # The killed process could not remove its directory.
    directory, = stage.directories()
    shutil.rmtree(directory)


@pytest.mark.parametrize('argv', [
    ('--backend-url', 'zokeeper://host'),
    ('--backend-url', 'zookeeper://127.0.0.1:1'),
    ('--backend-url', 'memcached://127.0.0.1'),
    ('--transport-url', 'rabbit://u:sesame@127.0.0.1:1/'),
    ('--transport-url', 'rabbit:/u:sesame@'),
    ('--connection', 'postgresql://u:sesame@127.0.0.1:1/x'),
    ('--connection', 'postgresq://u:sesame@127.0.0.1/x'),
    ('--objects', '0'), ('--members', '1'), ('--members', '13'),
], ids=' '.join)
def test_an_unusable_option_of_the_demo_is_one_line(argv, stage):
    told = stage.play(*argv)

    # A server that does not answer is not an error of the command line.
    assert told.returncode == (1 if '127.0.0.1:1' in argv[1] else 2)
    assert told.stdout == ''
    assert told.stderr.count('\n') == 1
    assert 'sesame' not in told.stderr
