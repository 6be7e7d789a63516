# SPDX-License-Identifier: Apache-2.0
"""The database: its tables, its commands, and the errors while it is
unavailable.
"""

import contextlib
import multiprocessing
import pathlib
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import types
import uuid

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic import migration
from alembic import script
from oslo_db import exception as db_exception

from distperiodic import exceptions
from distperiodic import migrations
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import column_types
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects import mysql
from distperiodic.adapters.sql.engine import check
from distperiodic.adapters.sql.limits import IDLE
from distperiodic.adapters.sql.session import finish_in
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.control import Verb
from distperiodic.operator import admin
from distperiodic.operator.auditing import Actor
from distperiodic.operator.group_reader import GroupStore
from distperiodic.operator.members import MemberAdmin
from tests import claiming
from tests import proxy
from tests import waiting
from tests.functional import commands


@pytest.fixture
def sqlite_url(tmp_path):
    return f'sqlite:///{tmp_path}/claims.sqlite'


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def empty(request):
    """Return the URL of a database without tables."""
    if request.param == 'sqlite':
        yield request.getfixturevalue('sqlite_url')
        return
    url = sa.make_url(request.getfixturevalue(request.param).url)
    if request.param == 'postgresql':
        name = f'tests_{uuid.uuid4().hex[:8]}'
        _administer(url, f'CREATE DATABASE {name}')
        yield url.set(database=name).render_as_string(hide_password=False)
        _administer(url, f'DROP DATABASE {name}')
        return
    # The MariaDB user is not allowed to create databases.
    shown = url.render_as_string(hide_password=False)
    _drop_tables(shown)
    yield shown
    _drop_tables(shown)
    schema.sync(shown)


def _administer(url, statement):
    engine = sa.create_engine(
        url.set(drivername='postgresql+psycopg2'),
        isolation_level='AUTOCOMMIT')
    with engine.connect() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


def _drop_tables(url):
    engine = database.make_engine(url)
    with engine.begin() as connection:
        tables.metadata.drop_all(connection)
        connection.execute(sa.text(
            f'DROP TABLE IF EXISTS {schema.VERSION_TABLE}'))
    engine.dispose()


LATER = f'{int(schema.VERSION) + 1:04}'
MIGRATION = f"""\
import sqlalchemy as sa
from alembic import op

revision = '{LATER}'
down_revision = '{schema.VERSION}'


def upgrade():
    found = sa.inspect(op.get_bind()).get_columns('distperiodic_claim')
    if 'later' not in [one['name'] for one in found]:
        op.add_column('distperiodic_claim', sa.Column(
            'later', sa.Integer, server_default='7'))
"""


@pytest.fixture
def upgraded(empty, tmp_path):
    """Create the tables of this release. Return a function that replaces this
    release by a later one, which has one more migration.
    """
    schema.sync(empty)
    configuration = schema.configuration
    folder = tmp_path / 'migrations'
    shutil.copytree(pathlib.Path(migrations.__file__).parent, folder)
    (folder / 'versions' / 'later.py').write_text(MIGRATION)

    def of_later(connection):
        found = configuration(connection)
        found.set_main_option('script_location', str(folder))
        return found

    # The fixture 'monkeypatch' might end after 'empty', which would then make
    # the tables of the later release.
    with pytest.MonkeyPatch.context() as patches:
        def upgrade():
            patches.setattr(schema, 'configuration', of_later)
            patches.setattr(schema, 'VERSION', LATER)
        yield upgrade


def claim(store, *objects, job='poll', tick=1):
    return claiming.claim(store, job, tick, objects, lease=uuid.uuid4().hex,
                          holder='api-1', seconds=60.0, supersede=False)


# -- tables

def test_the_migrations_make_the_tables_that_the_store_uses(empty):
    schema.sync(empty)

    engine = database.make_engine(empty)
    with engine.connect() as connection:
        found = autogenerate.compare_metadata(
            migration.MigrationContext.configure(connection, opts={
                'version_table': schema.VERSION_TABLE,
                'compare_type': True,
                'include_name': lambda name, kind, parents: (
                    kind != 'table' or name.startswith('distperiodic_'))}),
            tables.metadata)
    engine.dispose()

    assert found == []


def test_a_migration_makes_tables_with_the_options_of_the_database(empty):
    """Check properties that autogenerate does not compare: engines, fill
    factors, collations and column lengths.
    """
    schema.sync(empty)
    engine = database.make_engine(empty)
    with engine.begin() as connection:
        if 'postgresql' in empty:
            found = dict(connection.execute(sa.text(
                'SELECT relname, reloptions FROM pg_class '
                "WHERE array_to_string(reloptions, ',') LIKE '%fillfactor%'"
            )).all())
            assert found == {
                'distperiodic_claim': ['fillfactor=45'],
                **{f'distperiodic_{name}': ['fillfactor=70'] for name in (
                    'history', 'lease', 'member', 'partition',
                    'partition_worker', 'pool', 'pool_bucket', 'pool_task',
                    'queue', 'task')}}
            # SQLAlchemy 2.0 does not reflect collations.
            collations = dict(connection.execute(sa.text(
                'SELECT column_name, collation_name '
                'FROM information_schema.columns '
                "WHERE table_name = 'distperiodic_claim'")).all())
            assert collations['object'] == collations['worker'] == 'C'
        if 'mysql' in empty:
            [_, made] = connection.execute(sa.text(
                'SHOW CREATE TABLE distperiodic_claim')).one()
            for part in ('`object` varbinary(1020)', 'ENGINE=InnoDB',
                         'CHARSET=utf8mb4', 'ascii_bin'):
                assert part in made
    engine.dispose()


def test_a_sync_can_be_repeated(empty):
    assert schema.version(empty) is None
    assert schema.sync(empty) == (None, schema.VERSION)
    assert schema.sync(empty) == (schema.VERSION, schema.VERSION)
    assert schema.version(empty) == schema.VERSION
    schema.check(empty)


def test_two_syncs_at_once_do_not_disturb_each_other(empty):
    results, barrier = [], threading.Barrier(3)

    def sync():
        barrier.wait(10)
        results.append(schema.sync(empty)[1])
    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [schema.VERSION] * 3


@pytest.mark.parametrize('empty', ['mariadb'], indirect=True)
def test_a_sync_goes_on_where_another_node_has_advanced(
        empty, upgraded):
    """A lock of one node of a cluster has no effect on another node, so the
    version may change between two statements of a sync.
    """
    upgraded()
    advanced = []

    def advance(connection, cursor, statement, *_):
        if statement.startswith(
                f'UPDATE {schema.VERSION_TABLE}') and not advanced:
            advanced.append(statement)
            set_version(empty, LATER)
    sa.event.listen(sa.Engine, 'before_cursor_execute', advance)
    try:
        assert schema.sync(empty) == (LATER, LATER)
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', advance)

    assert advanced
    schema.check(empty)


@pytest.mark.parametrize('empty', ['mariadb'], indirect=True)
def test_a_sync_that_another_node_aborts_is_repeated(empty, upgraded):
    """A node of Galera aborts statements that read a table while another node
    alters it.
    """
    before = schema.VERSION
    upgraded()
    aborted = []

    def abort(connection, cursor, statement, *_):
        if statement.startswith('SHOW CREATE TABLE') and not aborted:
            aborted.append(statement)
            raise connection.dialect.loaded_dbapi.OperationalError(
                1213, 'Deadlock found when trying to get lock; try '
                'restarting transaction')
    sa.event.listen(sa.Engine, 'before_cursor_execute', abort)
    try:
        assert schema.sync(empty) == (before, LATER)
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', abort)

    assert aborted


def test_the_statements_of_a_sync_have_no_limit(mariadb):
    """A migration of a large table takes longer than a statement of the
    store may take.
    """
    limits = {'read_timeout', 'write_timeout'}

    assert not limits & set(check(mariadb.url, bounded=False).query)
    assert limits <= set(check(mariadb.url).query)
    given = sa.make_url(mariadb.url).update_query_dict(
        {'read_timeout': '90'}).render_as_string(hide_password=False)
    assert check(given, bounded=False).query['read_timeout'] == '90'


def test_a_sync_that_waits_too_long_for_another_one_names_it(
        mariadb, monkeypatch):
    monkeypatch.setattr(mysql, '_LOCK_WAIT', 1)
    engine = database.make_engine(mariadb.url)
    with engine.connect() as connection:
        connection.execute(sa.select(
            sa.func.get_lock(mysql.name_of_lock(
                schema.VERSION_TABLE), 1)))

        with pytest.raises(exceptions.StoreUnavailable,
                           match='another process has been upgrading'):
            schema.sync(mariadb.url)
    engine.dispose()

    assert schema.sync(mariadb.url)[1] == schema.VERSION


def test_a_sync_does_not_wait_for_that_of_another_database(
        mariadb, monkeypatch):
    monkeypatch.setattr(mysql, '_LOCK_WAIT', 1)
    engine = database.make_engine(mariadb.url)
    with engine.connect() as connection:
        connection.execute(sa.text('USE information_schema'))
        connection.execute(sa.select(
            sa.func.get_lock(mysql.name_of_lock(
                schema.VERSION_TABLE), 1)))

        assert schema.sync(mariadb.url)[1] == schema.VERSION
    engine.dispose()


def test_the_version_is_that_of_the_last_migration(sqlite_url):
    engine = database.make_engine(sqlite_url)
    with engine.connect() as connection:
        found = script.ScriptDirectory.from_config(
            schema.configuration(connection))
    engine.dispose()

    assert found.get_heads() == [schema.VERSION]
    revisions = [one.revision for one in found.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True)


def test_rows_of_the_release_before_go_on(empty, upgraded):
    store = SqlClaimStore(empty, namespace='tests')
    claim(store, 'a', 'b')
    store.close()
    engine = database.make_engine(empty)
    rows = sa.select(tables.claim).order_by(tables.claim.c.object)
    with engine.connect() as connection:
        kept = connection.execute(rows).all()
    before = schema.VERSION
    upgraded()

    with pytest.raises(exceptions.SchemaError, match=(
            rf'\b{before}\b.*\b{LATER}\b.*: distperiodic db sync$')):
        schema.check(empty)
    assert schema.sync(empty) == (before, LATER)

    schema.check(empty)
    with engine.connect() as connection:
        assert schema.missing(connection) == []
        assert connection.execute(rows).all() == kept
        assert connection.scalars(sa.select(sa.column('later')).select_from(
            tables.claim)).all() == [7, 7]
    engine.dispose()


def test_each_state_has_a_number():
    assert set(column_types.STATE_CODES) == set(State)
    assert len(set(column_types.STATE_CODES.values())) == len(State)


def test_tables_and_versions_of_the_service_itself_are_left_alone(
        sqlite_url):
    engine = database.make_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(sa.text(
            'CREATE TABLE alembic_version (version_num TEXT)'))
        connection.execute(sa.text(
            "INSERT INTO alembic_version VALUES ('theirs')"))
    schema.sync(sqlite_url)

    with engine.connect() as connection:
        assert connection.execute(sa.text(
            'SELECT version_num FROM alembic_version')).scalar() == 'theirs'
    engine.dispose()


def set_version(url, version):
    table = sa.table(schema.VERSION_TABLE, sa.column('version_num'))
    engine = database.make_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.update(table).values(version_num=version))
    engine.dispose()


@pytest.mark.parametrize('version', ['0000', '9999'])
def test_tables_of_another_release_are_refused_in_one_line(
        empty, version):
    schema.sync(empty)
    set_version(empty, version)
    store = SqlClaimStore(empty, namespace='tests')

    with pytest.raises(exceptions.SchemaError) as raised:
        claim(store, 'a')
    with pytest.raises(exceptions.SchemaError, match=(
            rf'\b{version}\b.*\b{schema.VERSION}\b.*; ')):
        schema.sync(empty)
    set_version(empty, schema.VERSION)

    assert version in str(raised.value)
    assert 'distperiodic db sync' in str(raised.value)
    assert 'loopback-only' not in str(raised.value)
    assert len(claim(store, 'a').won) == 1, 'it was not checked again'
    store.close()


def test_an_error_for_a_database_without_tables_names_the_remedy(empty):
    store = SqlClaimStore(empty, namespace='tests')

    with pytest.raises(exceptions.SchemaError, match='distperiodic db sync'):
        claim(store, 'a')
    with pytest.raises(exceptions.SchemaError, match='distperiodic db sync'):
        schema.check(empty)
    store.close()


# -- URLs that cannot work

@pytest.mark.parametrize(('url', 'told'), [
    ('', "'' .*; .*postgresql://USER:"),
    ('localhost/db', "'localhost/db' .*; .*postgresql://USER:"),
    ('postgres://me:sesame@host/db', "'postgres'; .*'postgresql'"),
    ('oracle://me:sesame@host/db',
     "'oracle'; .*mysql, postgresql, sqlite"),
    ('postgresql+asyncpg://me:sesame@host/db',
     r"'postgresql\+asyncpg'; .*mysql, postgresql, sqlite"),
    ('postgresql://me:sesame@host', '; .*postgresql://me:.*@host/DATABASE'),
    ('mysql://me:sesame@host:port/db', 'port.*; .*postgresql://USER:'),
    ('oracle://host/db?user=me&password=sesame',
     "'oracle'; .*mysql, postgresql, sqlite"),
    ('sqlite://', "'sqlite://' .*sqlite:////"),
    ('sqlite:///:memory:', r"'sqlite:///:memory:'.*; .*\bfile\b"),
])
def test_a_url_that_cannot_work_is_refused_in_one_line(url, told):
    with pytest.raises(exceptions.ConfigError, match=told) as raised:
        SqlClaimStore(url, namespace='tests')

    assert 'sesame' not in str(raised.value)
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize(('lacks', 'scheme', 'told'), [
    (('psycopg', 'psycopg2'), 'postgresql', "'psycopg[binary]'"),
    (('psycopg',), 'postgresql+psycopg', "'psycopg[binary]'"),
    (('psycopg2',), 'postgresql+psycopg2', 'psycopg2-binary'),
    (('pymysql',), 'mariadb', 'PyMySQL'),
])
def test_a_driver_that_is_not_installed_is_named(
        monkeypatch, lacks, scheme, told):
    for module in lacks:
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(exceptions.ConfigError,
                       match=re.escape(f'pip install {told}') + '$'):
        SqlClaimStore(f'{scheme}://me@host/db', namespace='tests')


@pytest.mark.parametrize(('lacks', 'driver'), [
    ('none', 'psycopg'), ('psycopg2', 'psycopg'), ('psycopg', 'psycopg2')])
def test_a_url_without_a_driver_takes_the_one_that_is_there(
        monkeypatch, lacks, driver):
    monkeypatch.setitem(sys.modules, lacks, None)

    url = check('postgresql://me@host/db')

    assert url.drivername == f'postgresql+{driver}'


# -- unavailable databases

def unavailable(store):
    with pytest.raises(exceptions.StoreUnavailable) as raised:
        claim(store, 'a', tick=9)
    text = str(raised.value)
    assert '\n' not in text
    assert 'sesame' not in text
    assert 'loopback-only' not in text
    return text


@pytest.mark.parametrize('scheme', ['postgresql', 'mysql'])
def test_a_server_that_is_not_there_is_one_line(scheme):
    with socket.socket() as unused:
        unused.bind(('127.0.0.1', 0))
        port = unused.getsockname()[1]
        store = SqlClaimStore(
            f'{scheme}://me:sesame@127.0.0.1:{port}/db', namespace='tests')

        assert 'me:***@127.0.0.1' in unavailable(store)


@pytest.fixture
def psycopg2(postgresql):
    """Return the PostgreSQL server, with a URL for the other driver."""
    url = sa.make_url(postgresql.url).set(drivername='postgresql+psycopg2')
    return types.SimpleNamespace(
        url=url.render_as_string(hide_password=False))


@pytest.mark.parametrize('service', ['postgresql', 'psycopg2', 'mariadb'])
def test_a_password_that_is_wrong_is_one_line(request, service):
    url = request.getfixturevalue(service).url
    store = SqlClaimStore(
        url.replace('loopback-only', 'sesame'), namespace='tests')

    unavailable(store)


@pytest.mark.parametrize('service', ['postgresql_server', 'mariadb_server'])
def test_a_server_that_comes_back_is_used_again(request, service):
    server = request.getfixturevalue(service)
    schema.sync(server.url)
    store = SqlClaimStore(server.url, namespace='tests')
    assert len(claim(store, 'a').won) == 1

    server.stop()
    unavailable(store)
    server.start()
    assert len(claim(store, 'b').won) == 1

    server.stop()
    server.start()
    assert len(claim(store, 'c').won) == 1, 'the old connection was used'
    assert claim(store, 'a', 'b', 'c').won == []
    store.close()


@pytest.mark.parametrize('mode', ['drop', 'drop_s2c'])
@pytest.mark.parametrize(('service', 'bounds'), [
    ('postgresql', {'connect_timeout': '2'}),
    ('psycopg2', {'connect_timeout': '2'}),
    ('mariadb', {'connect_timeout': '2', 'read_timeout': '2'})])
def test_a_server_that_goes_silent_is_waited_for_no_longer_than_that(
        request, service, bounds, mode, monkeypatch):
    monkeypatch.setattr(database, 'SILENT', 2)
    url = request.getfixturevalue(service).url
    schema.sync(url)
    with proxy.Proxy.before(url) as way:
        store = SqlClaimStore(
            sa.make_url(way.url).set(query=bounds)
            .render_as_string(hide_password=False), namespace='tests')
        job = uuid.uuid4().hex
        assert claim(store, 'a', job=job).won

        with way.being(mode):
            began = time.monotonic()
            unavailable(store)
            assert time.monotonic() - began < 30

        assert claim(store, 'b', job=job).won
        store.close()


@pytest.mark.parametrize('empty', ['postgresql'], indirect=True)
def test_a_table_that_was_changed_meanwhile_is_used_as_it_is_now(empty):
    """After the change the server rejects its prepared statements."""
    schema.sync(empty)
    store = SqlClaimStore(empty, namespace='tests')
    for tick in range(1, 10):
        claim(store, 'a', tick=tick)
    engine = database.make_engine(empty)
    with engine.begin() as connection:
        connection.execute(sa.text(
            'ALTER TABLE distperiodic_claim ALTER attempt TYPE bigint'))
    engine.dispose()

    assert len(claim(store, 'b', tick=10).won) == 1
    store.close()


@pytest.mark.parametrize('empty', ['postgresql'], indirect=True)
def test_a_query_planned_for_an_empty_table_does_not_scan_a_full_one(empty):
    schema.sync(empty)
    store = SqlClaimStore(empty, namespace='tests')
    for tick in range(1, 10):
        claim(store, 'a', tick=tick)

    for first in range(0, 5000, 100):
        claim(store, *(f'object-{n}' for n in range(first, first + 100)))
    for tick in range(2, 20):
        claim(store, *(f'object-{n}' for n in range(100)), tick=tick)
    store.close()

    engine = database.make_engine(empty)
    with engine.begin() as connection:
        connection.execute(sa.text('SELECT pg_stat_clear_snapshot()'))

        def read():
            return connection.execute(sa.text(
                'SELECT seq_tup_read, idx_scan FROM pg_stat_user_tables '
                "WHERE relname = 'distperiodic_claim'")).one()
        waiting.wait_until(lambda: read().idx_scan > 1000, 20)
        assert read().seq_tup_read < 5000
    engine.dispose()


def test_a_server_that_may_only_be_read_is_one_line(postgresql):
    schema.sync(postgresql.url)
    store = SqlClaimStore(
        f'{postgresql.url}?options=-c%20default_transaction_read_only=on',
        namespace='tests')

    assert 'read-only' in unavailable(store)
    store.close()


@pytest.mark.parametrize('level', ['repeatable read', 'serializable'])
def test_a_statement_sees_the_commits_of_others_under_any_default_isolation(
        postgresql, level):
    url = sa.make_url(postgresql.url).update_query_dict({
        'options': '-c default_transaction_isolation='
                   + level.replace(' ', r'\ ')})
    engine = database.make_engine(url.render_as_string(hide_password=False))
    for isolation in 'AUTOCOMMIT', 'READ COMMITTED':
        with engine.connect().execution_options(
                isolation_level=isolation) as connection:
            assert connection.execute(sa.text(
                'SHOW transaction_isolation')).scalar() == 'read committed'
    engine.dispose()


def test_a_statement_that_takes_too_long_is_one_line(postgresql):
    schema.sync(postgresql.url)
    store = SqlClaimStore(
        f'{postgresql.url}?options=-c%20lock_timeout=200', namespace='tests')
    claim(store, 'locked', tick=1)
    engine = database.make_engine(postgresql.url)
    with engine.begin() as connection:
        connection.execute(sa.text(
            'LOCK TABLE distperiodic_claim IN EXCLUSIVE MODE'))
        assert 'lock timeout' in unavailable(store)
    engine.dispose()

    assert len(claim(store, 'locked-2').won) == 1
    store.close()


def test_a_transaction_that_has_waited_long_for_a_lock_is_not_repeated(
        sqlite_url, monkeypatch):
    """Nine waits of half a minute each would make the store unavailable for
    minutes, without a log line.
    """
    schema.sync(sqlite_url)
    seconds = [0.0]
    monkeypatch.setattr(SystemClock, 'monotonic', lambda self: seconds[0])
    place = database.Database(sqlite_url, lambda connection, shown: None)
    asked = []

    def wait_in_vain(connection):
        asked.append(connection)
        seconds[0] += 30.0
        raise db_exception.DBDeadlock(Exception('Lock wait timeout exceeded'))

    with contextlib.closing(place), pytest.raises(
            exceptions.StoreUnavailable, match='Lock wait timeout'):
        place.write(wait_in_vain)

    assert len(asked) == 1


@pytest.mark.parametrize('service', ['postgresql', 'mariadb'])
def test_one_that_stood_still_in_its_first_transaction_makes_it_again(
        request, service):
    url = request.getfixturevalue(service).url
    schema.sync(url)
    place = database.Database(url, lambda connection, shown: None)
    times = []

    def stand_still_at_first(connection):
        times.append(connection.execute(
            sa.select(sa.func.count()).select_from(tables.lease)).scalar())
        if len(times) == 1:
            time.sleep(2 * IDLE)
        return len(times)

    with contextlib.closing(place):
        assert place.read(stand_still_at_first) == 2


@pytest.mark.parametrize('service', ['postgresql', 'mariadb'])
def test_a_process_stopped_inside_a_transaction_blocks_no_other_for_long(
        request, service):
    url = request.getfixturevalue(service).url
    schema.sync(url)
    job = uuid.uuid4().hex
    store = SqlClaimStore(url, namespace='tests')
    claim(store, 'a', job=job)
    engine = database.make_engine(url)
    with engine.connect() as stopped:
        stopped.execute(sa.update(tables.lease).values(
            until=tables.lease.c.until))
        began = time.monotonic()
        over = []
        while not over and time.monotonic() < began + 20:
            with contextlib.suppress(exceptions.StoreUnavailable):
                over = store.take_over_expired(
                    TakeOverRequest([job], ['api-1'], 9),
                    NewLease(f'again-{job}', 'api-2', 60.0))
            took = time.monotonic() - began
        with contextlib.suppress(Exception):
            stopped.invalidate()
    engine.dispose()
    store.close()

    # An ordinary wait for a lock would take longer than this.
    assert took < 8
    assert [one.claims[0].object for one in over] == ['a']


def test_a_handler_that_never_commits_its_end_blocks_no_other_for_long(
        postgresql):
    """The store also handles a host that loses power after a handler has ended
    its run, but before the commit.
    """
    schema.sync(postgresql.url)
    job = uuid.uuid4().hex
    runs = f'runs-{job}'
    store = SqlClaimStore(postgresql.url, namespace='tests')
    claim(store, 'a', job=job)
    [lease] = store.take_over_expired(
        TakeOverRequest([job], ['api-1'], 9),
        NewLease(f'mine-{job}', 'api-1', 60.0))
    assert store.start(lease.held, ['a'], NewLease(runs, 'worker-1', 60.0))
    engine = sa.create_engine(sa.make_url(postgresql.url).set(
        drivername='postgresql+psycopg'))
    with engine.connect() as session:
        assert finish_in(
            session, namespace='tests', job=job, key='a', lease=runs)
        began = time.monotonic()
        over = []
        while not over and time.monotonic() < began + 25:
            with contextlib.suppress(exceptions.StoreUnavailable):
                over = store.take_over_expired(
                    TakeOverRequest([job], ['worker-1'], 9),
                    NewLease(f'again-{job}', 'api-2', 60.0))
        with pytest.raises(sa.exc.DBAPIError):
            session.commit()
            session.execute(sa.select(1))
        session.invalidate()
    engine.dispose()
    store.close()

    assert [one.claims[0].object for one in over] == ['a']


def test_a_user_without_rights_is_one_line(postgresql):
    schema.sync(postgresql.url)
    engine = database.make_engine(postgresql.url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE USER reader PASSWORD 'sesame'"))
        connection.execute(sa.text(
            f'GRANT SELECT ON {schema.VERSION_TABLE} TO reader'))
    engine.dispose()
    url = postgresql.url.replace('tests:loopback-only', 'reader:sesame')
    store = SqlClaimStore(url, namespace='tests')

    told = unavailable(store)
    assert 'permission denied' in told
    # The server answers, so the error must not suggest another value of the
    # option ``connection``.
    assert re.search('; .*distperiodic doctor$', told)
    assert '[distperiodic] connection' not in told
    store.close()


def test_a_file_that_cannot_be_opened_is_one_line(tmp_path):
    store = SqlClaimStore(
        f'sqlite:///{tmp_path}/missing/claims.sqlite', namespace='tests')

    assert 'unable to open database file' in unavailable(store)


def test_a_full_disk_is_one_line(sqlite_url, tmp_path):
    schema.sync(sqlite_url)
    store = SqlClaimStore(sqlite_url, namespace='tests')
    store.now()
    # SQLite raises this limit to the present number of pages of the file.
    store.database.write(lambda connection: connection.exec_driver_sql(
        'PRAGMA max_page_count = 1').scalar())

    with pytest.raises(exceptions.StoreUnavailable, match='full'):
        claim(store, *(f'{n:0200}' for n in range(200)), tick=9)

    assert len(claim(store, 'a').won) == 1
    store.close()


def test_a_store_goes_on_in_a_forked_child(empty):
    schema.sync(empty)
    store = SqlClaimStore(empty, namespace='tests')
    claim(store, 'a')
    answers = multiprocessing.get_context('fork').SimpleQueue()

    def child():
        answers.put(len(claim(store, 'a', 'b').won))
        store.close()
    process = multiprocessing.get_context('fork').Process(target=child)
    process.start()
    process.join(30)

    assert answers.get() == 1
    assert [one.object for one in claim(store, 'b', 'c').won] == ['c']
    store.close()


def test_services_that_share_a_database_have_nothing_to_do_with_each_other(
        empty):
    schema.sync(empty)
    nodes = SqlClaimStore(empty, namespace='nodes')
    volumes = SqlClaimStore(empty, namespace='volumes')

    assert len(claim(nodes, 'a').won) == 1
    assert len(claim(volumes, 'a').won) == 1
    into = NewLease('again', 'x', 60.0)
    assert volumes.take_over_expired(
        TakeOverRequest(['poll'], ['api-1'], 9), into)[0].claims != []
    assert nodes.take_over_expired(
        TakeOverRequest(['poll'], [], 9), into) == []
    for store in nodes, volumes:
        store.close()


def test_a_namespace_can_be_deleted_and_used_again(empty):
    schema.sync(empty)
    ours = SqlClaimStore(empty, namespace='ours')
    theirs = SqlClaimStore(empty, namespace='theirs')
    claim(theirs, 'a')
    claim(ours, 'a')
    with contextlib.closing(GroupStore(empty, 'ours')) as group:
        admin.pause_objects(group, 'poll', ['a'], by='me@here', why='x')
        MemberAdmin(group, Actor('me', 'here')).order(
            Verb.DRAIN, [], 'host h1', ['h1'])

    ours.forget()

    for table in tables.paused_object, tables.drained_host:
        assert ours.database.read(lambda connection, table=table: (
            connection.execute(sa.select(table)).all())) == []
    assert len(claim(ours, 'a').won) == 1
    assert claim(theirs, 'a').won == []
    for store in ours, theirs:
        store.close()


def test_a_session_of_another_database_ends_no_run_and_is_one_line(empty):
    url = check(empty)
    for engine in database.make_engine(empty), sa.create_engine(url):
        with (engine.connect() as session,
              pytest.raises(exceptions.ConfigError) as raised):
            finish_in(
                session, namespace='group', job='poll', key='a', lease='one')
        engine.dispose()
        told = str(raised.value)
        assert "'poll'" in told
        assert 'context.finish()' in told
        assert str(url.database) in told
        assert re.search(
            r'; .*\[distperiodic\] connection\b.*distperiodic db sync', told)
        assert '\n' not in told
        assert str(url.password) not in told


def test_dead_objects_are_kept_with_their_errors(empty):
    schema.sync(empty)
    store = SqlClaimStore(empty, namespace='tests')
    claiming.claim(store, 'poll', 5, ['a', 'b'], lease='one', holder='api-1',
                   seconds=60.0, supersede=False)
    store.start(
        HeldLease('one', 'poll', 5), ['a'], NewLease('two', 'w-1', 60.0))

    for _ in range(2):
        assert store.fail(
            HeldLease('two', 'poll', 5),
            [Failure('a', 'bad \U0001f4a3 \0 \ud800', 'x' * 200_000)],
            None) == {'a'}
        assert store.discard(
            HeldLease('one', 'poll', 5), ['b'], State.DEAD,
            reason='no such job') == 1

    engine = database.make_engine(empty)
    with engine.connect() as connection:
        kept = connection.execute(sa.select(tables.failure).order_by(
            tables.failure.c.object)).all()
    engine.dispose()
    assert [(row.object, row.tick, row.attempt, row.worker) for row in kept
            ] == [('a', 5, 1, 'w-1'), ('b', 5, 1, None)]
    assert kept[0].error == 'bad \U0001f4a3 \\0 \\ud800'
    assert len(kept[0].traceback) == 100_000
    assert kept[1].error == 'no such job'
    assert abs(kept[0].at - store.now()) < 60_000_000
    store.close()


# -- commands

def configuration(tmp_path, url):
    path = tmp_path / 'service.conf'
    path.write_text(f'[distperiodic]\nconnection = {url}\n')
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


def test_the_commands_make_and_show_the_tables(tmp_path, sqlite_url):
    config = configuration(tmp_path, sqlite_url)

    def ask(*argv):
        return commands.run(*argv, '--config-file', config)
    # Create a file without tables.
    sqlite3.connect(sqlite_url.removeprefix('sqlite:///')).close()
    missing = ask('db', 'version', '-f', 'value')
    first, again = ask('db', 'sync'), ask('db', 'sync')
    there = ask('db', 'version', '-f', 'value')

    assert missing.returncode == 1
    assert missing.stdout.split()[1:] == [
        'none', schema.VERSION, 'distperiodic', 'db', 'sync']
    assert (first.returncode, again.returncode) == (0, 0)
    for told in first, again:
        [line] = told.stdout.splitlines()
        assert re.search(rf'\b{schema.VERSION}\b', line)
    # The answer distinguishes new tables from existing ones.
    assert first.stdout != again.stdout
    assert there.returncode == 0
    assert there.stdout.split()[1:] == [
        schema.VERSION, schema.VERSION, 'nothing']
    with sqlite3.connect(sqlite_url.removeprefix('sqlite:///')) as opened:
        assert opened.execute('PRAGMA journal_mode').fetchone() == ('wal',)


def test_a_read_of_a_file_does_not_create_the_file(tmp_path, sqlite_url):
    config = configuration(tmp_path, sqlite_url)
    for argv in ['db', 'version'], ['history'], ['job', 'list'], [
            'doctor', '-f', 'json']:
        told = commands.run(*argv, '--config-file', config)

        assert told.returncode == 2
        said = told.stdout + told.stderr
        assert f' {tmp_path}/claims.sqlite' in said
        assert 'distperiodic db sync' in said
    assert [path.name for path in tmp_path.iterdir()] == [config.name]


def test_a_service_refuses_a_file_that_is_no_database(tmp_path, sqlite_url):
    """If the service accepted such a file, it would log a traceback for each
    attempt to connect.
    """
    path = tmp_path / 'claims.sqlite'
    path.write_text('no more than a text\n' * 99)

    with pytest.raises(exceptions.SchemaError, match=(
            rf'{sqlite_url}: .*; .*\bpath\b')) as raised:
        schema.check(sqlite_url)
    # The error must not recommend this command, because it would not help to
    # create tables.
    assert 'distperiodic db sync' not in str(raised.value)

    # An empty file is a database without tables.
    path.write_bytes(b'')
    with pytest.raises(exceptions.SchemaError, match='distperiodic db sync$'):
        schema.check(sqlite_url)


def test_a_check_keeps_the_locks_of_this_process(sqlite_url, tmp_path):
    """A check must not release the file locks of this process.

    Without these locks, another process that closes the database takes itself
    for the last user. That process then removes the log to which this process
    still writes.
    """
    schema.sync(sqlite_url)
    path = tmp_path / 'claims.sqlite'
    count = [sys.executable, '-c', (
        'import sqlite3, sys; '
        'connection = sqlite3.connect(sys.argv[1]); '
        'print(*connection.execute("SELECT count(*) FROM own").fetchone()); '
        'connection.close()'), str(path)]

    def counted():
        return int(subprocess.run(  # noqa: S603
            count, capture_output=True, check=True, timeout=30).stdout)

    with contextlib.closing(sqlite3.connect(
            path, isolation_level=None)) as connection:
        assert connection.execute('PRAGMA journal_mode').fetchone() == (
            'wal',)
        connection.execute('CREATE TABLE own (x INTEGER)')
        schema.check(sqlite_url)
        assert counted() == 0
        connection.execute('INSERT INTO own VALUES (1)')
        assert counted() == 1


@pytest.mark.parametrize('command', [
    ['db', 'sync'], ['db', 'version'], ['history'], ['audit']],
    ids=' '.join)
def test_a_file_that_is_no_database_is_one_line(
        tmp_path, sqlite_url, command):
    (tmp_path / 'claims.sqlite').write_text('no more than a text\n' * 99)

    told = commands.run(*command, '--config-file',
                        configuration(tmp_path, sqlite_url))

    assert (told.returncode, told.stdout) == (1, '')
    # This text is from SQLite itself.
    assert re.match(f'distperiodic: .*{sqlite_url}: file is not a database; ',
                    told.stderr)
    assert told.stderr.count('\n') == 1


def test_tables_that_were_made_by_half_are_refused_in_one_line(empty):
    """On MySQL a sync that is killed leaves the tables that it has created."""
    schema.sync(empty)
    engine = database.make_engine(empty)
    with engine.begin() as connection:
        connection.execute(sa.text(f'DROP TABLE {schema.VERSION_TABLE}'))
    engine.dispose()

    with pytest.raises(exceptions.SchemaError) as raised:
        schema.sync(empty)

    assert re.search(
        rf'distperiodic_claim\b.*; .*\b{schema.VERSION_TABLE}\b.* drop .*'
        r'\bdistperiodic_ .*distperiodic db sync$', str(raised.value))


@pytest.mark.parametrize('command', ['sync', 'version'])
def test_a_command_without_a_database_is_one_line(tmp_path, command):
    without = commands.run('db', command, '--config-file',
                           configuration(tmp_path, 'none'))
    gone = commands.run('db', command, '--config-file', configuration(
        tmp_path, 'postgresql://me:sesame@127.0.0.1:1/db'))

    assert (without.returncode, gone.returncode) == (2, 1)
    for told in without, gone:
        assert told.stderr.count('\n') == 1
        assert told.stdout == ''
    assert re.search(r'\[distperiodic\] connection\b.*; .*--config-file',
                     without.stderr)
    assert 'Connection refused' in gone.stderr
    assert 'sesame' not in gone.stderr


@pytest.mark.parametrize('encoding', ['LATIN1', 'SQL_ASCII'])
def test_a_database_that_cannot_store_each_text_is_refused(
        postgresql, encoding):
    """Otherwise an error text would roll back the outcomes of other runs."""
    url = sa.make_url(postgresql.url)
    name = f'tests_{uuid.uuid4().hex[:8]}'
    _administer(url, f"CREATE DATABASE {name} ENCODING '{encoding}' "
                     "LOCALE 'C' TEMPLATE template0")

    with pytest.raises(exceptions.SchemaError) as raised:
        schema.sync(url.set(database=name).render_as_string(
            hide_password=False))

    assert re.search(f"{encoding}\\b.*; .* ENCODING 'UTF8'",
                     str(raised.value))
    _administer(url, f'DROP DATABASE {name}')


def test_fences_grow_after_a_restore(empty, tmp_path):
    """The backup has an older fence than the last run before the restore."""
    schema.sync(empty)

    def fence(tick, holder):
        store = SqlClaimStore(empty, namespace='tests')
        try:
            won = claiming.claim(store, 'poll', tick, ['a'],
                                 lease=uuid.uuid4().hex, holder=holder,
                                 seconds=60.0, supersede=True).won
            return won[0].fence
        finally:
            store.close()
    store = SqlClaimStore(empty, namespace='tests')
    now = store.now()
    store.close()
    fence(now - 9_000_000, 'api-1')
    engine = database.make_engine(empty)
    backup = sa.select(tables.claim)
    with engine.begin() as connection:
        [row] = connection.execute(backup).mappings()
        saved = dict(row)
    before = [fence(now - n * 1_000_000, 'api-1') for n in (8, 7, 6)]
    with engine.begin() as connection:
        connection.execute(sa.update(tables.claim).values(saved))
    engine.dispose()

    told = commands.run('db', 'sync', '--restored', '--config-file',
                        configuration(tmp_path, empty))

    assert (told.returncode, told.stderr) == (0, '')
    assert re.search(r'fences of 1 claim$', told.stdout.strip())
    assert fence(now - 6_000_000, 'api-2') > before[-1]
