# SPDX-License-Identifier: Apache-2.0
"""``distperiodic dump``: the state of a group without secrets and ids."""

import json
import os
import stat
import time

import pytest

from tests.functional import commands
from tests.functional.places import SECOND

#: Passwords and keys in the configuration.
SECRETS = {
    'backend_url': 'zk-planted-1', 'transport_url': 'mq-planted-2',
    'signing_key': 'key-planted-3', 'partition': 'part planted 4',
    'old_key': 'key/planted://5'}
#: Texts that only a dump with ids may contain.
IDS = ['object-planted', 'is ill', 'reason-planted', 'no room']
PARAMETER = 'parameter-planted'
URLS = f'''backend_url = zookeeper://me:{SECRETS["backend_url"]}@127.0.0.1:1
dispatcher = messaging
signing_key = {SECRETS["signing_key"]}
signing_key = {SECRETS["old_key"]}
signing_key = k7

[DEFAULT]
transport_url = rabbit://me:{SECRETS["transport_url"]}@127.0.0.1:1/

[partition:mysql]
transport_url = rabbit://me:part%20planted%204@127.0.0.1:1,me:x9planted@h/
'''


def dumped(place, *argv, code=1):
    """Return the output of a dump, and its value."""
    told = commands.call('dump', '--timeout', '40', *argv, '--config-file',
                         place.config, cwd=place.config.parent)
    assert (told.returncode, told.stderr) == (code, '')
    return told.stdout, json.loads(told.stdout)


@pytest.fixture
def busy(desk):
    """A group with dead objects, stuck tasks and actions of operators, whose
    ZooKeeper and broker are down.
    """
    place = desk.place
    place.run('poll', place.now - SECOND, 'object-planted', 'b',
              dead=['object-planted'])
    place.ask('job', 'pause', 'poll', '--object', 'object-planted',
              '--why', 'reason-planted')
    task = desk.submit('short', '--param', f'Secret={PARAMETER}')
    desk.run()
    for _ in range(2):
        desk.run('b', 'no room')
    waits = desk.submit('single', '--queue', 'q', '--key', 'object-planted')
    desk.serve('a.run', runs=[{
        'job': 'poll', 'object': 'object-planted', 'tick': 0, 'attempt': 1,
        'age_s': 1.0, 'progress': None}])
    place.ask('task', 'cancel', waits, '--why', 'reason-planted')
    with place.config.open('a') as file:
        file.write(URLS)
    return place, [task, waits]


def hidden(place):
    """Return all texts that no dump may contain."""
    password = place.url.partition('://')[2].rpartition('@')[0].partition(
        ':')[2]
    return [*SECRETS.values(), 'part%20planted%204', 'x9planted', PARAMETER,
            *filter(None, [password])]


def test_a_dump_has_the_state_without_ids_and_secrets(busy):
    place, tasks = busy

    text, found = dumped(place)

    assert [one for one in [*hidden(place), *IDS, *tasks]
            if one in text] == []
    assert 'unavailable' in found['group']
    assert found['database']['kind'] in text
    assert found['database']['rows']['distperiodic_claim'] >= 2
    [job] = found['jobs']
    assert (job['name'], job['paused_objects']) == ('poll', 1)
    assert {tick['job'] for tick in found['history']} == {'poll'}
    assert {one['about'] for one in found['health']['findings']} >= {
        'object poll', 'task'}
    assert {one['verb'] for one in found['events']} >= {
        'job pause', 'task cancel', 'task submit'}
    assert [one['name'] for one in found['queues']] == ['q']
    assert [one['name'] for one in found['members']] == ['api-1']
    options = found['options']
    assert options['distperiodic']['backend_url'] == (
        'zookeeper://me:***@127.0.0.1:1')
    assert options['distperiodic']['signing_key'] == 3 * ['***']
    assert options['distperiodic']['group'] == place.group
    assert options['DEFAULT']['transport_url'].startswith('rabbit://me:***@')
    assert found['versions']['packages']['SQLAlchemy']
    assert {one['check'] for one in found['doctor']} >= {
        'options_usable', 'store_reachable', 'coordination_join'}


def test_a_dump_with_ids_still_has_no_secrets(busy):
    place, tasks = busy

    text, _ = dumped(place, '--with-ids')

    assert [one for one in hidden(place) if one in text] == []
    assert [one for one in [*IDS, *tasks] if one not in text] == []


def test_a_dump_without_any_server_is_bounded_and_private(tmp_path):
    config, output = tmp_path / 'service.conf', tmp_path / 'dump.json'
    config.write_text(
        '[distperiodic]\nconnection = postgresql://me:pg-planted-6@127.0.0.1:'
        f'1/db\n{URLS}')
    begun = time.monotonic()

    told = commands.call('dump', '--output', output, '--timeout', '20',
                         '--config-file', config, cwd=tmp_path)

    assert time.monotonic() - begun < 40
    assert (told.returncode, told.stderr) == (1, '')
    assert 'group' in told.stdout and 'jobs' in told.stdout
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    text = output.read_text()
    found = json.loads(text)
    assert {name for name, part in found.items()
            if isinstance(part, dict) and 'unavailable' in part} >= {
        'group', 'database', 'jobs', 'members', 'history', 'events'}
    assert found['options']['distperiodic']['dispatcher'] == 'messaging'
    assert [one for one in [*SECRETS.values(), 'pg-planted-6']
            if one in text] == []


def test_a_dump_that_cannot_be_written_is_one_line(place_of_sqlite):
    assert 'give another --output' in place_of_sqlite.refuse(
        'dump', '--output', '/nowhere/dump.json')


@pytest.mark.parametrize('kind', ['link', 'pipe', 'directory'])
def test_a_dump_replaces_only_a_regular_file(place_of_sqlite, kind):
    place = place_of_sqlite
    kept, path = place.config.parent / 'kept', place.config.parent / 'there'
    kept.write_text('kept')
    {'link': lambda: path.symlink_to(kept), 'pipe': lambda: os.mkfifo(path),
     'directory': path.mkdir}[kind]()
    before = sorted(place.config.parent.iterdir())

    assert 'is no regular file' in place.refuse('dump', '--output', path)
    assert sorted(place.config.parent.iterdir()) == before
    assert not path.is_file() or path.is_symlink()
    assert kept.read_text() == 'kept'
