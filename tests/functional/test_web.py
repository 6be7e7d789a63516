# SPDX-License-Identifier: Apache-2.0
"""The page of a real group, in a browser, and beside the commands."""

import contextlib
import json
import os
import re
import socket
import urllib.request

import pytest
import sqlalchemy as sa
from werkzeug.test import Client

from distperiodic import exceptions
from distperiodic import tasks
from distperiodic import web
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.operator import auditing
from distperiodic.operator import group_reader
from distperiodic.operator.group_reader import GroupStore
from tests import programs
from tests.configured import configuration
from tests.functional import commands
from tests.functional import watched
from tests.functional.browsing import NARROW
from tests.functional.browsing import WIDE
from tests.functional.browsing import chromium
from tests.functional.browsing import page_of
from tests.functional.browsing import resize
from tests.functional.browsing import show
from tests.functional.browsing import start
from tests.functional.browsing import twin
from tests.functional.browsing import violations
from tests.functional.browsing import width_of
from tests.functional.browsing import write_config
from tests.functional.places import SECOND
from tests.functional.places import Place
from tests.functional.places import user_who_reads
from tests.services.behind import Behind
from tests.waiting import wait_until

# One process starts the services and the browser.
pytestmark = pytest.mark.xdist_group('web')

PATHS = ('/', '/jobs', '/jobs/ping_hosts', '/jobs/rebalance',
         '/jobs/ping_hosts/objects/host-7', '/jobs/ping_hosts/objects/host-1',
         '/tasks', '/tasks/STUCK', '/queues', '/pools', '/partitions',
         '/members', '/ring', '/events', '/jobs/none', '/tasks?status=late')
#: Seconds for which a finding may take to appear.
PATIENCE = 90
# Statements that last for a minute, by database.
_SLOW = {
    'postgresql': 'SELECT pg_sleep(60)', 'mysql': (
        'SELECT count(*) FROM information_schema.columns a, '
        'information_schema.columns b, information_schema.columns c'),
    'sqlite': (
        'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n '
        'WHERE i < 1000000000) SELECT count(*) FROM n')}


# -- the same as the commands, in each database


COMMANDS = {
    '/jobs': 'job list', '/tasks': 'task list',
    '/tasks?limit=2&type=vm.boot': 'task list --limit 2 --type vm.boot',
    '/queues': 'queue list', '/pools': 'pool list',
    '/partitions': 'partition list', '/events': 'events',
    '/events?since=1h&limit=1': 'events --since 1h --limit 1',
    '/jobs/poll/objects/b': 'why poll b'}


def test_the_twin_of_each_page_is_the_output_of_its_command(place):
    fill(place)
    client = Client(web.application(conf_of(place)))
    for path, argv in COMMANDS.items():
        _, shown = place.tell(*argv.split())
        found = client.get(f'/api{path}')

        assert (path, found.status_code, found.json) == (path, 200, shown)
        assert (path, client.get(path).status_code) == (path, 200)


def conf_of(place):
    return configuration(connection=place.url, group=place.group)


def fill(place):
    """Fill a store with what each of the lists shows."""
    place.run('poll', place.now - 9 * SECOND, 'a', 'b', dead=['b'])
    client = tasks.Client(conf_of(place))
    for _ in range(3):
        client.submit('vm.boot', {}, queue='db')
    client.close()
    with contextlib.closing(GroupStore(
            place.url, place.group)) as store, auditing.recorded(
                store, auditing.Actor('me', 'here', 'because'), 'job pause',
                'poll'):
        pass


def test_the_findings_of_the_first_page_are_those_of_status(place):
    fill(place)
    client = Client(web.application(conf_of(place)))
    _, shown = place.tell('status')
    found = client.get('/api/').json

    assert [one['code'] for one in found['findings']] != []
    assert found['findings'] == [
        one for one in shown if one['role'] == 'finding']


def test_a_statement_of_a_page_ends_in_time(place):
    reader = group_reader.open_reader(place.url, place.group, 0.5)
    slow = sa.text(_SLOW[reader.dialect.name])
    began = place.store.now()

    with pytest.raises(exceptions.StoreUnavailable):
        reader.rows(slow)
    assert place.store.now() - began < 20 * SECOND
    reader.close()


def test_a_user_who_can_only_read_can_open_each_page(postgresql, tmp_path):
    place = Place(postgresql.url, tmp_path)
    fill(place)
    with user_who_reads(postgresql.url) as url:
        client = Client(web.application(configuration(
            connection=url, group=place.group)))
        answers = {path: client.get(path).status_code for path in (
            '/', '/jobs', '/jobs/poll', '/jobs/poll/objects/b', '/tasks',
            '/queues', '/pools', '/partitions', '/members', '/events')}
    place.store.close()

    assert answers == dict.fromkeys(answers, 200)


@pytest.mark.parametrize('fault', ['freeze', 'kill'])
@pytest.mark.parametrize(('server', 'code'), [
    ('postgresql', 'store-unavailable'), ('mariadb', 'store-unavailable'),
    ('zookeeper', 'coordination-unavailable')])
def test_the_first_page_answers_while_a_server_is_away(
        request, tmp_path, server, code, fault):
    behind = Behind(request.getfixturevalue(server))
    place = Place(f'sqlite:///{tmp_path}/claims.sqlite' if server ==
                  'zookeeper' else behind.url, tmp_path)
    fill(place)
    place.store.close()
    client = Client(web.application(configuration(
        connection=place.url, group=place.group, **(
            {'backend_url': behind.url} if server == 'zookeeper' else {}))))
    getattr(behind, fault)()
    try:
        began = SystemClock().monotonic()
        page, found = client.get('/'), client.get('/api/')
        took = SystemClock().monotonic() - began
        lists = client.get('/tasks')
    finally:
        behind.kill()

    assert (page.status_code, found.status_code) == (200, 200)
    assert code in [one['code'] for one in found.json['findings']]
    assert code in page.text
    # Two pages, of which each may wait for a connection.
    assert took < 40
    assert lists.status_code == (200 if server == 'zookeeper' else 503)


# -- the command


def test_the_command_serves_the_page_until_it_is_stopped(place_of_sqlite):
    place = place_of_sqlite
    log = place.config.parent / 'web.log'
    with page_of(place.config, log) as (url, program):
        with urllib.request.urlopen(f'{url}api/') as answer:  # noqa: S310
            assert json.load(answer)['group'] == place.group
        program.terminate()

        assert program.wait() == 0
    assert 'Traceback' not in log.read_text()


def test_a_port_in_use_is_one_line(place_of_sqlite):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        told = place_of_sqlite.refuse('web', '--listen', f'127.0.0.1:{port}')

    assert 'Address already in use' in told


@pytest.mark.parametrize('address', [
    '8088', 'nowhere.invalid:80', '1.1.1.1:1'])
def test_an_address_that_cannot_be_used_is_one_line(place_of_sqlite, address):
    told = place_of_sqlite.refuse('web', '--listen', address)

    assert address in told and '--listen' in told


# -- a browser


@pytest.fixture(scope='module')
def url(tmp_path_factory, zookeeper, rabbitmq, postgresql):
    """Return the URL of the page of a group in which objects and a task fail.
    """
    place = tmp_path_factory.mktemp('page')
    config = write_config(place, zookeeper, rabbitmq, postgresql)
    with contextlib.ExitStack() as stack:
        start(stack, config, ['scheduler', '--workers', '2'],
              ['worker', '--workers', '2'], ['worker', '--partition', 'vm'])
        for parameter in ('Cpu=2', 'Fail=true'):
            assert commands.call(
                'task', 'submit', 'create_instance', '--param', parameter,
                '--config-file', config).returncode == 0
        url, _ = stack.enter_context(page_of(config, place / 'web.log'))
        wait_until(lambda: {
            'object-failing', 'task-stuck'} <= {
                one['code'] for one in twin(url, '/')['findings']},
            programs.STARTING, f'no findings; see the logs in {place}')
        yield url.rstrip('/')


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp('chromium')) as found:
        yield found


@pytest.mark.parametrize('path', PATHS)
def test_a_page_fits_its_window_and_is_accessible(url, browser, path):
    show(browser, url, path)
    for width in WIDE, NARROW:
        resize(browser, width)

        assert width_of(browser) <= width
        assert violations(browser) == []
    # The browser reports what the policy of the page forbids.
    assert [one['message'] for one in browser.get_log('browser')
            if 'status of 40' not in one['message']] == []


def test_the_dark_page_is_accessible(url, browser):
    browser.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': [
        {'name': 'prefers-color-scheme', 'value': 'dark'}]})
    try:
        for path in ('/', '/jobs/ping_hosts', '/tasks/STUCK'):
            show(browser, url, path)
            dark = browser.execute_script(
                'return getComputedStyle(document.body).backgroundColor')

            assert max(map(int, re.findall(r'\d+', dark))) < 60
            assert violations(browser) == []
    finally:
        browser.execute_cdp_cmd('Emulation.setEmulatedMedia', {
            'features': []})


def test_a_hostile_id_runs_no_script_and_opens_its_page(url, browser):
    for key in watched.HOSTILE:
        show(browser, url, '/jobs/ping_hosts')
        field = browser.find_element('name', 'object')
        # A field of one line has no end of a line.
        browser.execute_script(
            'arguments[0].value = arguments[1]', field, key)
        field.submit()
        wait_until(lambda: 'object=' in browser.current_url)

        assert browser.title != 'obeyed'
        if '\n' not in key:
            assert browser.find_element('css selector', 'h1').text


def test_a_script_shows_the_time_since_an_instant(url, browser):
    show(browser, url, '/jobs')
    times = browser.find_elements('css selector', 'td time')

    assert times
    for one in times:
        assert re.fullmatch(r'now|in \d+ \w+|\d+ \w+ ago', one.text)
        assert re.fullmatch(r'\d{4}-.*Z', one.get_attribute('title'))


def test_without_scripts_a_page_shows_the_instants(url, browser):
    browser.execute_cdp_cmd(
        'Emulation.setScriptExecutionDisabled', {'value': True})
    try:
        show(browser, url, '/jobs')
        texts = [one.text for one in browser.find_elements(
            'css selector', 'td time')]
    finally:
        browser.execute_cdp_cmd(
            'Emulation.setScriptExecutionDisabled', {'value': False})

    assert texts
    assert all(re.fullmatch(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ', text)
               for text in texts)


def test_a_page_polls_while_it_is_visible(url, browser):
    def instant():
        return browser.execute_script(
            "return document.querySelector('.asof time').dateTime")
    show(browser, url, '/?poll=2')
    browser.execute_script('window.kept = true')
    before = instant()
    wait_until(lambda: instant() != before, 30, 'the page stays as it was')

    assert browser.execute_script('return window.kept')
    # A request that has begun before may end later.
    begun = browser.execute_async_script(
        'const [done] = arguments; '
        "Object.defineProperty(document, 'hidden', {get: () => true}); "
        'const hidden = performance.now(); '
        'setTimeout(() => done(performance.getEntriesByType("resource")'
        '.filter(entry => entry.startTime > hidden).length), 6000)')
    assert begun == 0


def test_a_list_is_filtered_by_its_form(url, browser):
    show(browser, url, '/tasks')
    browser.find_element('name', 'status').send_keys('stuck')
    browser.find_element('css selector', 'form.filters button').click()
    wait_until(lambda: 'status=stuck' in browser.current_url)
    rows = browser.find_elements('css selector', 'tbody tr')

    assert len(rows) == 1
    rows[0].find_element('css selector', 'a').click()
    wait_until(lambda: browser.find_elements('css selector', '.steps'))
    assert browser.find_element(
        'css selector', '.step[aria-current]').text.startswith('undo')


def test_each_member_is_on_the_page_of_members(url, browser):
    show(browser, url, '/members')
    names = [one.text for one in browser.find_elements(
        'css selector', '.member .name')]

    assert sorted(names) == sorted(
        one['member'] for one in twin(url, '/members'))
    assert len(browser.find_elements('css selector', '.bar.share')) == 2


def test_the_ring_has_a_bar_for_each_share(url, browser):
    show(browser, url, '/ring')

    assert len(browser.find_elements('css selector', '.bar.share')) == len(
        twin(url, '/ring')) == 2


def test_the_picture_of_the_documentation_can_be_drawn(
        url, browser, tmp_path):
    show(browser, url, '/', height=860)

    # The variable names the file in the documentation, to draw it anew.
    assert browser.save_screenshot(
        os.environ.get('PAGE_PICTURE', str(tmp_path / 'page.png')))
