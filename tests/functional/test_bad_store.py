# SPDX-License-Identifier: Apache-2.0
"""A program reports, in one line, a store that it cannot use.

If the fault is permanent, the program ends before it forks. If the fault may
be repaired, the program logs it and waits, and no tick is lost.
"""

import os
import pathlib
import re
import uuid

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic import periodic
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.service import SchedulerService
from distperiodic.service import WorkerService
from tests import forks
from tests import programs
from tests import waiting
from tests.configured import configuration
from tests.functional import commands
from tests.functional.cluster import Cluster

TASKS = '''
import pathlib

from distperiodic import PeriodicTasks
from distperiodic import periodic_task


class Tasks(PeriodicTasks):

    def hosts(self, context):
        return ['a', 'b']

    @periodic_task(spacing=1, objects='hosts', misfire='all', overlap='wait')
    def NAME(self, context, host):
        with open(pathlib.Path(__file__).with_name('ran'), 'a') as ran:
            print('NAME', host, int(context.tick.timestamp()), context.attempt,
                  file=ran)
        if pathlib.Path(__file__).with_name('hang').exists():
            context.cancelled or __import__('threading').Event().wait()
'''


class Service:
    """The files of a service, and its program."""

    def __init__(self, place: pathlib.Path, connection: str):
        self.place = place
        self.group = f'test-{uuid.uuid4().hex[:8]}'
        self.write('ping')
        self.connect(connection)

    def write(self, job):
        (self.place / 'bad_store_tasks.py').write_text(
            TASKS.replace('NAME', job))

    def connect(self, connection):
        self.config = self.place / 'service.conf'
        self.config.write_text(
            '[DEFAULT]\ngraceful_shutdown_timeout = 10\n'
            f'[distperiodic]\nconnection = {connection}\n'
            f'group = {self.group}\nlease = 15\n'
            f'state_path = {self.place}\n')

    @property
    def argv(self):
        return ('scheduler', '--tasks', 'bad_store_tasks:Tasks',
                '--config-file', self.config)

    def refused(self, **environment):
        """Return the one line that the program prints when it refuses to
        start.
        """
        told = commands.run(*self.argv, cwd=self.place, **environment)
        assert told.returncode == 2, told.stderr
        lines = [line for line in told.stderr.splitlines()
                 if line.startswith('distperiodic: ')]
        assert [*lines] == told.stderr.splitlines()[-1:], told.stderr
        assert 'Traceback' not in told.stderr
        return lines[0]

    def running(self, before=()):
        """Start the program.

        :param before: A program that runs it, such as ``unshare``.
        """
        if before:
            return commands.Running(
                self.place / 'log', *self.argv, cwd=self.place, before=before)
        return forks.Program(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', *self.argv],
            self.place / 'log', cwd=self.place, env=commands.ENVIRONMENT)

    def ran(self):
        """Return (job, object, tick, attempt) of each run, as the handlers
        wrote them.
        """
        path = self.place / 'ran'
        if not path.exists():
            return []
        return [(job, key, int(tick), int(attempt)) for job, key, tick, attempt
                in (line.split() for line in path.read_text().splitlines())]

    def wait_ran(self, after=0, timeout=30):
        """Wait for two ticks later than *after*. Return the newest tick."""
        return waiting.wait_until(
            lambda: len({run[2] for run in self.ran() if run[2] > after}) > 1
            and max(run[2] for run in self.ran()), timeout,
            f'nothing ran after {after}; see {self.place}/log')


@pytest.fixture
def postgresql_url(postgresql):
    """Return the URL of a new, empty database."""
    url = sa.make_url(postgresql.url)
    name = f'tests_{uuid.uuid4().hex[:8]}'
    execute(postgresql.url, f'CREATE DATABASE {name}')
    yield url.set(database=name).render_as_string(hide_password=False)
    execute(postgresql.url, f'DROP DATABASE {name} WITH (FORCE)')


def execute(url, statement):
    engine = database.make_engine(url)
    with engine.connect().execution_options(
            isolation_level='AUTOCOMMIT') as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


# -- permanent faults

@pytest.mark.parametrize(('connection', 'said'), [
    ('localhost/claims', "'localhost/claims' .*; .*postgresql://USER:"),
    ('oracle://me:sesame@host/db', "'oracle'.*; .*mysql, postgresql, sqlite"),
    ('postgresql://me:sesame@host', '; .*postgresql://me:.*@host/DATABASE'),
    ('sqlite:///{place}/new.sqlite', 'new.sqlite .*; .*distperiodic db sync'),
])
def test_a_connection_that_cannot_work_is_refused_at_start(
        tmp_path, connection, said):
    told = Service(tmp_path, connection.format(place=tmp_path)).refused()

    assert re.search(said, told)
    assert 'sesame' not in told


@pytest.mark.parametrize('kind', [
    SchedulerService, WorkerService])
def test_an_embedded_service_refuses_it_at_its_start(tmp_path, kind):
    """The error is raised where the launcher receives it, not in a thread."""
    conf = configuration(connection='oracle://host/db',
                         backend_url=f'file://{tmp_path}')

    with pytest.raises(exceptions.ConfigError, match="'oracle'"):
        kind(conf, periodic.PeriodicTasks(conf)).start()


def test_a_driver_that_is_not_installed_is_refused_at_start(tmp_path):
    for module in 'psycopg', 'psycopg2':
        (tmp_path / f'{module}.py').write_text('raise ImportError\n')
    service = Service(tmp_path, 'postgresql://me:sesame@host/db')

    assert "pip install 'psycopg[binary]'" in service.refused(
        PYTHONPATH=f'{tmp_path}:{commands.ROOT}')


@pytest.mark.parametrize(('broken', 'said'), [
    ('ALTER TABLE distperiodic_claim DROP CONSTRAINT distperiodic_claim_pkey',
     r'distperiodic_claim .*\(object, job\).*; '),
    ('ALTER TABLE distperiodic_lease DROP CONSTRAINT distperiodic_lease_pkey',
     r'distperiodic_lease .*\(id\).*; '),
    ('ALTER TABLE distperiodic_job DROP CONSTRAINT distperiodic_job_of',
     r'distperiodic_job .*\(space, kind, name\).*; '),
])
def test_tables_without_a_key_are_refused_with_the_statement_to_add_it(
        tmp_path, postgresql_url, broken, said):
    schema.sync(postgresql_url)
    execute(postgresql_url, broken)
    service = Service(tmp_path, postgresql_url)

    told = service.refused()

    assert re.search(said, told)
    remedy = re.search('ALTER TABLE .*', told)[0]
    execute(postgresql_url, remedy)
    schema.check(postgresql_url)


def test_a_key_that_mariadb_lost_is_put_back_by_the_same_line(
        tmp_path, mariadb):
    schema.sync(mariadb.url)
    execute(mariadb.url, 'ALTER TABLE distperiodic_claim DROP PRIMARY KEY')
    try:
        told = Service(tmp_path, mariadb.url).refused()
    finally:
        execute(mariadb.url,
                'ALTER TABLE distperiodic_claim ADD PRIMARY KEY (object, job)')

    assert told.endswith(
        'ALTER TABLE distperiodic_claim ADD PRIMARY KEY (object, job)')


def test_a_search_path_without_a_schema_is_refused(tmp_path, postgresql_url):
    service = Service(
        tmp_path, f'{postgresql_url}?options=-csearch_path%3Dmissing')

    assert '(missing); create the schema' in service.refused()
    told = commands.run('db', 'sync', '--config-file', service.config,
                        cwd=tmp_path)
    assert told.returncode == 2
    assert '(missing); create the schema' in told.stderr
    assert told.stderr.count('\n') == 1


def test_a_table_that_is_gone_is_refused_at_start(tmp_path, postgresql_url):
    schema.sync(postgresql_url)
    execute(postgresql_url, 'DROP TABLE distperiodic_history')

    assert re.search('distperiodic_history; .*distperiodic db sync',
                     Service(tmp_path, postgresql_url).refused())


# -- faults that may be repaired while the service runs

def away(running, error):
    """Return the log lines about an unavailable store with this error of the
    database.
    """
    return [line for line in running.logged('store away')
            if error in line['reason']]


def test_a_full_disk_is_reported_and_the_service_goes_on_when_there_is_room(
        tmp_path):
    """The SQLite file is on a file system of 1 MB, which the test fills."""
    place = tmp_path / 'small'
    place.mkdir()
    service = Service(tmp_path, f'sqlite:///{place}/claims.sqlite')
    inside = ['unshare', '--mount', *['--map-root-user'] * (
        os.geteuid() != 0), 'sh', '-c',
        f'mount -t tmpfs -o size=1m tmpfs {place} && '
        f'{" ".join(commands.PROGRAM)} db sync --config-file '
        f'{service.config} && exec "$@"', 'sh']
    with service.running(inside) as running:
        first = service.wait_ran()
        filler = (pathlib.Path(f'/proc/{running.process.pid}/root')
                  / place.relative_to('/') / 'filler')
        with pytest.raises(OSError, match='No space'), (
                filler.open('wb', buffering=0)) as full:
            while True:
                full.write(b'x' * 4096)

        waiting.wait_until(
            lambda: away(running, 'disk is full'), 20)
        stopped = max(run[2] for run in service.ran())
        filler.unlink()
        last = service.wait_ran(after=stopped)

        assert running.logged('store back')
        assert_each_once(service, first, last - 1)


def test_a_server_that_turns_read_only_is_waited_for(
        tmp_path, postgresql_url):
    """PostgreSQL becomes read-only when the server becomes the standby of
    another server.
    """
    schema.sync(postgresql_url)
    name = sa.make_url(postgresql_url).database
    writable = (f'{postgresql_url}?options='
                '-c%20default_transaction_read_only=off')

    def turn(word):
        execute(writable, f'ALTER DATABASE {name} '
                f'SET default_transaction_read_only = {word}')
        execute(writable, 'SELECT pg_terminate_backend(pid) '
                'FROM pg_stat_activity WHERE datname = current_database() '
                'AND pid <> pg_backend_pid()')
    service = Service(tmp_path, postgresql_url)
    with service.running() as running:
        first = service.wait_ran()

        turn('on')
        waiting.wait_until(
            lambda: away(running, 'read-only transaction'), 20)
        stopped = max(run[2] for run in service.ran())
        turn('off')
        last = service.wait_ran(after=stopped)

        assert len(running.logged('store away')) <= 3
        assert_each_once(service, first, last - 1)


def test_a_file_that_may_only_be_read_is_waited_for(tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    service = Service(tmp_path, url)
    for path in tmp_path.glob('claims.sqlite*'):
        path.chmod(0o444)
    # File modes do not restrict root, unless it has dropped the capability
    # dac_override.
    plain = ['setpriv', '--bounding-set', '-dac_override'] * (
        os.geteuid() == 0)
    with service.running(plain) as running:
        waiting.wait_until(
            lambda: away(running, 'readonly database'), 20)
        assert service.ran() == []
        for path in tmp_path.glob('claims.sqlite*'):
            path.chmod(0o644)

        first = service.wait_ran()

        assert_each_once(service, first, service.wait_ran(after=first) - 1)


@pytest.mark.parametrize('kind', ['scheduler', 'worker'])
def test_a_service_whose_store_is_away_stops_at_once(
        tmp_path, zookeeper, rabbitmq, kind):
    """The service does not wait for ``graceful_shutdown_timeout``, which is 20
    s here.
    """
    cluster = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url,
        connection='postgresql://me@127.0.0.1:1/db')
    program = cluster.start(kind)
    try:
        waiting.wait_until(
            lambda: cluster.logged('the store not started'), 30)
        program.terminate()

        assert program.wait(12) == 0
    finally:
        cluster.close()


def test_a_renamed_job_is_reported_once_and_its_claims_are_left_alone(
        tmp_path, postgresql_url):
    schema.sync(postgresql_url)
    service = Service(tmp_path, postgresql_url)
    (tmp_path / 'hang').touch()
    with service.running():
        waiting.wait_until(lambda: len(service.ran()) == 2, 20)
    (tmp_path / 'hang').unlink()
    service.write('pong')

    with service.running() as running:
        service.wait_ran(after=max(run[2] for run in service.ran()))
        [line] = running.logged('claims of unknown jobs')

    assert line.has(jobs="'ping'", open=2)
    # The remedy is to keep the old name.
    assert 'name=' in line.text
    assert [run for run in service.ran() if run[0] == 'ping'] == (
        service.ran()[:2])


def assert_each_once(service, first, last):
    """Check that each tick between the two ran exactly once."""
    ran = sorted(run[1:3] for run in service.ran() if first <= run[2] <= last)

    assert ran == sorted((key, tick) for key in 'ab'
                         for tick in range(first, last + 1))
