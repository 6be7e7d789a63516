# SPDX-License-Identifier: Apache-2.0
"""``distperiodic doctor`` finds the faults of a real store, and names a
remedy.
"""

import json
import re
import socketserver
import threading
import uuid

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.cmd import store_checks
from distperiodic.operator import store_probe
from tests import claiming
from tests.functional import commands
from tests.functional.places import DAY
from tests.functional.places import SECOND
from tests.functional.places import Place


@pytest.fixture
def examine():
    """Return a function that runs doctor and returns its rows about the store,
    by check.
    """
    def ask(place, *argv):
        told = commands.call('doctor', '--config-file', place.config,
                             '-f', 'json', *argv, cwd=place.config.parent)
        found = {row['check']: row for row in json.loads(told.stdout)
                 if row['area'] in ('store', 'health')}
        worst = {row['result'] for row in found.values()}
        assert told.returncode == (
            2 if 'fail' in worst else 1 if 'warn' in worst else 0)
        return found
    return ask


def execute(place, *statements):
    engine = database.make_engine(place.url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(
                sa.text(statement) if isinstance(statement, str)
                else statement)
    engine.dispose()


def wrong(found):
    """Return the checks with a warning or a failure."""
    return {name: row['result'] for name, row in found.items()
            if row['result'] in ('warn', 'fail')}


def test_a_store_that_is_well_is_fine(place, examine):
    place.run('poll', place.now, 'a')

    found = examine(place)

    assert wrong(found) == {}
    assert found['store_reachable']['result'] == 'ok'
    assert 'claim ' in found['store_size']['finding']


def test_without_a_store_nothing_of_it_is_checked(tmp_path, examine):
    config = tmp_path / 'service.conf'
    config.write_text('[distperiodic]\nconnection = none\n')
    config.chmod(0o600)
    place = type('Place', (), {'config': config})

    found = examine(place)

    assert {row['result'] for row in found.values()} == {'skip'}
    assert re.search(r'\bconnection\b', found['store_reachable']['finding'])


def test_a_store_that_cannot_be_used_is_reported_once(
        place_of_sqlite, examine):
    place = place_of_sqlite
    execute(place, sa.update(sa.table(
        schema.VERSION_TABLE, sa.column('version_num'))).values(
            version_num='0000'))

    found = examine(place)

    assert wrong(found) == {'store_reachable': 'fail'}
    assert 'db sync' in found['store_reachable']['remedy']
    assert 'store_reachable' in found['store_schema']['finding']


def test_a_store_that_is_away_is_asked_once(tmp_path, examine):
    """A store that hangs takes ten seconds per attempt."""
    asked = []

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self):
            asked.append(self.client_address)

    with socketserver.TCPServer(('127.0.0.1', 0), HangUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = tmp_path / 'service.conf'
        config.write_text(
            '[distperiodic]\nconnection = postgresql://me@127.0.0.1:'
            f'{server.server_address[1]}/db?sslmode=disable&'
            'gssencmode=disable\n')
        config.chmod(0o600)

        found = examine(type('Place', (), {'config': config}))
        server.shutdown()

    assert wrong(found) == {'store_reachable': 'fail'}
    assert len(asked) == 1


@pytest.mark.parametrize(('statements', 'missing', 'refused'), [
    (['CREATE TABLE other AS SELECT * FROM distperiodic_claim',
      'DROP TABLE distperiodic_claim',
      'ALTER TABLE other RENAME TO distperiodic_claim'],
     r'\bdistperiodic_claim .* {} .*\(object, job\)', True),
    (['CREATE TABLE other (id INTEGER PRIMARY KEY, space, kind, name, '
      'paused_since, paused_by, paused_why)',
      'DROP TABLE distperiodic_job',
      'ALTER TABLE other RENAME TO distperiodic_job'],
     r'\bdistperiodic_job .* {} .*\(space, kind, name\)', True),
    (['DROP INDEX distperiodic_lease_until'],
     r'\(until\) .*\bdistperiodic_lease\b', False),
    (['ALTER TABLE distperiodic_claim DROP COLUMN served'],
     r'\bdistperiodic_claim\.served\b', False)],
    ids=['primary key', 'unique key', 'index', 'column'])
def test_a_key_that_was_dropped_is_found(
        place_of_sqlite, examine, statements, missing, refused):
    place = place_of_sqlite
    execute(place, *statements)
    missing = missing.format(re.escape(place.url))

    found = examine(place)

    assert found['store_schema']['result'] == 'fail'
    assert found['store_schema']['remedy']
    assert re.search(missing, found['store_schema']['finding'])
    if refused:
        with pytest.raises(exceptions.SchemaError, match=missing):
            schema.check(place.url)
    else:
        schema.check(place.url)


def test_a_key_that_was_dropped_is_found_on_a_server(
        postgresql, tmp_path, examine):
    place = Place(postgresql.url, tmp_path)
    execute(place, 'ALTER TABLE distperiodic_history '
            'DROP CONSTRAINT distperiodic_history_pkey')
    try:
        found = examine(place)
        with pytest.raises(exceptions.SchemaError):
            schema.check(place.url)
    finally:
        execute(place, 'ALTER TABLE distperiodic_history '
                'ADD PRIMARY KEY (job, tick, member)')
        place.store.close()

    assert '(job, tick, member)' in found['store_schema']['finding']
    assert wrong(examine(place)) == {}


@pytest.fixture
def reader(postgresql, tmp_path):
    """Return a place whose user has only the rights that a test grants."""
    url = sa.make_url(postgresql.url)
    name = f'reader_{uuid.uuid4().hex[:8]}'
    place = Place(postgresql.url, tmp_path)
    execute(place, f"CREATE ROLE {name} LOGIN PASSWORD '{url.password}'",
            f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}')
    place.reader = name
    place.config.write_text(place.config.read_text().replace(
        place.url, url.set(username=name).render_as_string(
            hide_password=False)))
    yield place
    execute(place, f'DROP OWNED BY {name}', f'DROP ROLE {name}')
    place.store.close()


def test_rights_that_are_missing_are_found(reader, examine):
    found = examine(reader)
    refused = found['store_rights']['finding']

    assert found['store_rights']['result'] == 'fail'
    assert re.search(r'\bINSERT\b.*\bdistperiodic_', refused)
    assert 'permission denied' in refused
    assert 'sesame' not in refused
    execute(reader, 'GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA '
            f'public TO {reader.reader}')
    refused = examine(reader)['store_rights']['finding']
    assert re.search(r'\bUSAGE\b.*\bdistperiodic_job\b', refused)
    assert 'INSERT' not in refused
    execute(reader, 'GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO '
            f'{reader.reader}')
    assert wrong(examine(reader)) == {}


def test_a_database_that_is_read_only_is_found(reader, examine):
    execute(reader, 'GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA '
            f'public TO {reader.reader}',
            f'ALTER ROLE {reader.reader} SET default_transaction_read_only '
            '= on')

    found = examine(reader)

    assert 'read-only transaction' in found['store_rights']['finding']
    assert 'read-only' in found['store_rights']['remedy']


@pytest.mark.parametrize(('server', 'fault', 'end', 'wanted'), [
    ('postgresql', (
        'CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql '
        "AS $$ BEGIN RAISE EXCEPTION 'No space left on device' USING "
        "ERRCODE = '53100'; END $$",
        'CREATE TRIGGER refuse BEFORE INSERT ON distperiodic_member '
        'FOR EACH ROW EXECUTE FUNCTION refuse()'),
     'DROP FUNCTION refuse CASCADE',
     ('store_rights', 'No space left on device',
      'free space on the disk of the database')),
    ('mariadb', ('ALTER TABLE distperiodic_lease ENGINE=MyISAM',),
     'ALTER TABLE distperiodic_lease ENGINE=InnoDB',
     ('store_engine', 'distperiodic_lease: MyISAM',
      'ALTER TABLE NAME ENGINE=InnoDB for each of them'))],
    ids=['a full disk', 'a table without transactions'])
def test_a_fault_of_the_database_is_found(
        server, fault, end, wanted, request, tmp_path, examine):
    place = Place(request.getfixturevalue(server).url, tmp_path)
    execute(place, *fault)
    try:
        found = examine(place)
    finally:
        execute(place, end)
        place.store.close()

    check, finding, remedy = wanted
    assert wrong(found) == {check: 'fail'}
    assert finding in found[check]['finding']
    assert found[check]['remedy'] == remedy


def test_a_limit_of_connections_is_found(reader, examine):
    execute(reader, f'ALTER ROLE {reader.reader} CONNECTION LIMIT 1')
    url = next(line.partition(' = ')[2] for line
               in reader.config.read_text().splitlines()
               if line.startswith('connection'))
    store = SqlClaimStore(url, namespace='others')
    store.now()

    found = examine(reader)
    store.close()

    [told] = {str(row) for row in found.values() if row['result'] == 'fail'}
    assert 'too many connections' in told
    assert 'CONNECTION LIMIT' in told


def test_a_clock_that_is_off_is_found(
        mariadb, tmp_path, examine, monkeypatch):
    place = Place(mariadb.url, tmp_path)
    now, words = SystemClock.now, []
    for seconds in 5, -5:
        with monkeypatch.context() as patch:
            patch.setattr(SystemClock, 'now', lambda self, seconds=seconds: (
                now(self) + seconds * SECOND))
            found = examine(place)

        assert wrong(found) == {'store_clock': 'warn'}
        off, of_it = re.fullmatch(
            r'([0-9.]+) s (.*)', found['store_clock']['finding']).groups()
        assert float(off) == pytest.approx(5, abs=0.5)
        words.append(of_it)
    place.store.close()
    # The texts for a clock that is ahead and for one that is behind differ.
    assert words[0] != words[1]


def test_leases_that_are_not_taken_over_are_found(place_of_sqlite, examine):
    place = place_of_sqlite
    claiming.claim(place.store, 'poll', place.now, ['a'], lease='one',
                   holder='api-1', seconds=0.0, supersede=False)
    assert wrong(examine(place)) == {}

    execute(place, sa.update(tables.lease).values(
        until=place.now - 60 * SECOND))
    found = examine(place)

    assert wrong(found)['lease-expired'] == 'warn'
    assert re.search(r'job poll: .*\b1 lease\b',
                     found['lease-expired']['finding'])


def test_large_tables_are_found_if_no_scheduler_deletes_old_rows(
        place_of_sqlite, examine, monkeypatch):
    place = place_of_sqlite
    monkeypatch.setattr(store_checks, '_MANY', 2)
    place.run('poll', place.now, 'a')
    # A large history is not a fault while its rows are recent.
    assert wrong(examine(place)) == {}

    place.run('poll', place.now - 40 * DAY, 'b')
    found = examine(place)

    assert wrong(found) == {'store_size': 'warn'}
    assert 'history_retention is 30 days' in found['store_size']['finding']
    assert 'start a scheduler' in found['store_size']['remedy']

    with place.config.open('a') as file:
        file.write('history_retention = 0\n')
    found = examine(place)

    assert wrong(found) == {'store_size': 'warn'}
    assert 'history_retention is 0' in found['store_size']['finding']
    assert 'db prune --history' in found['store_size']['remedy']


def test_a_large_number_of_failures_is_found(
        place_of_sqlite, examine, monkeypatch):
    place = place_of_sqlite
    monkeypatch.setattr(store_checks, '_MANY', 2)
    place.run('poll', place.now, 'a', 'b', dead=['a', 'b'])

    found = examine(place)

    assert wrong(found) == {'store_size': 'warn', 'object-dead': 'warn'}
    assert 'dead list' in found['store_size']['remedy']


def test_jobs_that_the_tasks_do_not_define_are_found(place_of_sqlite, examine):
    place = place_of_sqlite
    place.write_tasks("""
        @periodic_task(spacing=60, scope='group', name='poll')
        def poll(self, context):
            pass
    """)
    place.run('poll', place.now, 'poll')
    tasks = ['--tasks', 'tasks:Tasks']
    assert examine(place)['store_jobs']['result'] == 'skip'
    assert wrong(examine(place, *tasks)) == {}

    place.run('pol', place.now, 'a')
    found = examine(place, *tasks)

    assert wrong(found) == {'store_jobs': 'warn'}
    assert re.search(r'--tasks\b.* pol$', found['store_jobs']['finding'])


@pytest.mark.parametrize('what', ['a network disk', 'another journal'])
def test_a_file_that_does_not_keep_others_out_is_found(
        place_of_sqlite, examine, monkeypatch, what):
    if what == 'a network disk':
        mounts = place_of_sqlite.config.parent / 'mounts'
        mounts.write_text('/dev/vda / ext4 rw 0 0\n'
                          f'nas:/x {mounts.parent} nfs4 rw 0 0\n')
        monkeypatch.setattr(store_probe, '_MOUNTS', str(mounts))
    else:
        monkeypatch.setattr(
            store_probe, 'journal_problem',
            lambda store: 'journal_mode is delete')

    found = examine(place_of_sqlite)

    assert set(wrong(found)) == {'store_file'}


def test_the_disk_of_a_file_is_that_of_the_longest_place():
    mounts = ['/dev/vda / ext4 rw 0 0', 'nas:/x /mnt/nas nfs rw 0 0',
              '/dev/vdb /mnt/nas/local xfs rw 0 0']

    assert store_probe.network_disk('/mnt/nas/db', mounts) == 'nfs'
    assert store_probe.network_disk('/mnt/nas/local/db', mounts) is None
    assert store_probe.network_disk('/mnt/nasty/db', mounts) is None
