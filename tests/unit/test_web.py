# SPDX-License-Identifier: Apache-2.0
"""The page: its addresses, its answers, and texts that a browser could obey.
"""

import html
import json
import re
import shutil
import socket
import sys
import urllib.parse

import pytest
from werkzeug.test import Client

from distperiodic import exceptions
from distperiodic import web
from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import schema
from distperiodic.operator import activity
from distperiodic.web import server
from distperiodic.web import site
from distperiodic.web.page import Addresses
from tests.configured import configuration
from tests.unit.paged import SECOND
from tests.unit.paged import Group

#: Addresses of pages that need no row.
PLAIN = ('/', '/jobs', '/tasks', '/queues', '/pools', '/partitions',
         '/members', '/events')
HOSTILE = (
    '<script>alert(1)</script>', '"onmouseover="alert(1)', 'a/b%2fc?d#e',
    '/etc/passwd', '..', '.', '\u202eevil', 'h\x1b]0;owned\x07\r\nx', '%',
    "{{ 7 * 7 }}", 'x' * 255, ' blank ', 'objects/objects')


@pytest.fixture(scope='module')
def empty(tmp_path_factory):
    """Return a database file with empty tables, to copy."""
    file = tmp_path_factory.mktemp('page') / 'claims.sqlite'
    schema.sync(f'sqlite:///{file}')
    return file


@pytest.fixture(scope='module')
def page():
    """Return a configuration, and a client of its page.

    The templates are compiled once.
    """
    conf = configuration(group='tests')
    return conf, Client(web.application(conf))


@pytest.fixture
def group(tmp_path, empty, page):
    made = Group(f'sqlite:///{shutil.copy(empty, tmp_path)}', *page)
    yield made
    made.store.close()


def hrefs(text):
    """Return the addresses in a page."""
    return [html.unescape(one) for one in re.findall(
        r'(?:href|src|action)="([^"]*)"', text)]


@pytest.mark.parametrize('path', [*PLAIN, '/jobs/poll',
                                  '/jobs/poll/objects/b'])
def test_a_page_answers_and_forbids_foreign_content(group, path):
    group.run('poll', 'a', 'b', dead=['b'])
    answer = group.get(path)

    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers['Content-Security-Policy']
    assert 'unsafe' not in answer.headers['Content-Security-Policy']
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'
    assert answer.headers['Referrer-Policy'] == 'no-referrer'
    assert 'Set-Cookie' not in answer.headers
    # The policy forbids scripts and styles within the page.
    assert not re.search(r'<style|<script(?! src=)|[ "]style=|[ "]on\w+="',
                         answer.text)


@pytest.mark.parametrize('path', [*PLAIN, '/jobs/poll'])
def test_a_page_has_a_twin_for_programs(group, path):
    group.run('poll', 'a')

    assert group.get(f'/api{path}').is_json


def test_the_addresses_begin_with_the_prefix_of_the_page(group):
    group.run('poll', 'a', 'b', dead=['b'])
    for path in (*PLAIN, '/jobs/poll'):
        text = group.get(path, base_url='http://host/per%20iodic').text
        found = [one for one in hrefs(text) if not one.startswith(('#', '?'))]

        assert len(found) > 8
        assert [one for one in found
                if not one.startswith('/per%20iodic/')] == []


def test_each_link_of_the_first_page_can_be_opened(group):
    group.run('poll', 'a', 'b', dead=['b'])
    paths = {one for one in hrefs(group.text('/'))
             if one.startswith('/') and 'static' not in one}

    assert '/jobs/poll/objects/b' in paths
    assert {path: group.get(path).status_code for path in paths
            if path != '/ring'} == dict.fromkeys(paths - {'/ring'}, 200)


@pytest.mark.parametrize('key', HOSTILE)
def test_a_hostile_id_is_text_and_can_be_opened(group, key):
    group.run('poll', key, dead=[key])
    links = [one for one in hrefs(group.text('/jobs/poll'))
             if '/objects/' in one or 'object=' in one]
    texts = [group.text(one) for one in ['/', *links]]

    assert len(links) >= 2
    for text in texts:
        assert '<script>alert' not in text
        assert not re.search('[\x00-\x09\x0b-\x1f\x7f\u202e]', text)
        assert '49' not in re.findall(r'<bdi[^>]*>(.*?)</bdi>', text)
    for link in links:
        assert json.loads(group.text(f'/api{link}'))['object'] == key


@pytest.mark.parametrize(('path', 'status', 'why'), [
    ('/jobs/none', 404, "no job 'none'"),
    ('/jobs/poll/objects/none', 404, "object 'none' of job 'poll'"),
    ('/jobs/none/objects/a', 404, "job 'none' is not in the store"),
    ('/jobs/poll/objects', 400, '?object=ID'),
    ('/tasks/none', 404, "no task 'none'"),
    ('/tasks?status=late', 400, "status is 'late'"),
    ('/tasks?limit=0', 400, "filter limit: '0' cannot be used"),
    ('/tasks?limit=5000', 400, 'from 1 to 1000'),
    ('/tasks?stuck=1&status=failed', 400, 'not allowed with'),
    ('/tasks?after=none', 404, "none"),
    ('/events?since=soon', 400, "filter since: 'soon' cannot be used"),
    ('/events?since=2999-01-01', 400, 'is in the future'),
    ('/jobs?tasks=os:system', 400, "no filter 'tasks'"),
    ('/pools?limit=3', 400, 'the filters are: none'),
    ('/jobs/poll/objects/a?at=soon', 400, "filter at: 'soon'"),
    ('/none', 404, "/none'"), ('/ring', 503, 'backend_url')])
def test_an_error_is_one_clear_line(group, path, status, why):
    group.run('poll', 'a')
    page, twin = group.get(path), group.get(f'/api{path}')

    assert (page.status_code, twin.status_code) == (status, status)
    assert twin.json.keys() == {'error'}
    assert why in twin.json['error']
    [shown] = re.findall(r'role="alert">(.*?)</p>', page.text)
    assert why in html.unescape(shown)


def test_the_page_only_reads(group):
    assert {group.client.post(path).status_code
            for path in ('/', '/jobs', '/api/', '/tasks/x')} == {405}


def test_an_empty_field_of_a_form_is_no_filter(group):
    assert group.get('/tasks?status=&type=&queue=&limit=&after='
                     ).status_code == 200


def test_a_filter_in_the_address_is_in_the_form(group):
    text = group.text('/tasks?type=%3Cb%3E&stuck=1')

    assert 'name="type" value="&lt;b&gt;"' in text
    assert re.search(r'name="stuck" value="1" checked', text)
    assert "No task with status &#39;stuck&#39; of type" in text


def test_the_page_polls_only_if_the_address_has_poll(group):
    assert 'id="poll"' not in group.text('/jobs')
    assert 'id="poll" data-seconds="10"' in group.text('/jobs?poll=10')


def test_a_store_that_is_away_is_a_finding_and_the_page_answers(tmp_path):
    client = Client(web.application(configuration(
        connection=f'sqlite:///{tmp_path}/none.sqlite', group='tests')))
    page, twin = client.get('/'), client.get('/api/')

    assert page.status_code == 200
    assert [one['code'] for one in twin.json['findings']] == [
        'store-unavailable']
    assert twin.json['numbers']['late'] is None
    assert page.text.count('<dd>unknown</dd>') >= 3
    assert client.get('/jobs').status_code == 503


def test_an_unexpected_error_is_logged_and_not_shown(
        group, monkeypatch, caplog):
    def fails(request):
        raise RuntimeError('secret')
    monkeypatch.setattr(site, 'PAGES', {'/': fails})
    client = Client(web.application(configuration(
        connection=group.url, group='tests')))
    answer = client.get('/')

    assert answer.status_code == 500
    assert 'secret' not in answer.text
    assert 'page failed: address=' in caplog.text


def test_the_ticks_of_a_job_are_marked_by_the_worst_outcome(group):
    group.run('poll', 'a', 'b', ago=30)
    group.run('poll', 'a', 'b', dead=['b'], ago=20)
    group.run('poll', 'a', 'b', dead=['a', 'b'], ago=10)

    assert re.findall(r'<li class="(\w+)" title="[^"]*: (\d[^"]*)"',
                      group.text('/jobs/poll')) == [
        ('good', '2 done'), ('some', '1 done, 1 failed'),
        ('dead', '2 failed')]


def lines(text):
    """Return the map of exceptions: the marks of each line, by its name."""
    return {html.unescape(name): re.findall(
        r'aria-hidden="true">(.*?)</span>', marks) for name, marks in
        re.findall(r'<tr><th scope="row">(?:<a[^>]*><bdi[^>]*>)?(.*?)(?:</bdi>'
                   r'</a>)?</th>(.*?)</tr>', text, re.DOTALL)}


def test_the_map_of_a_job_has_the_objects_that_did_not_run(group):
    group.run('poll', 'a', 'b', 'c', ago=30)
    group.run('poll', 'a', 'b', 'c', dead=['b'], ago=20)
    group.run('poll', 'a', ago=10)
    group.skip('poll', 'b', 'c', ago=10)

    assert lines(group.text('/jobs/poll')) == {
        'b': ['', 'F', '-'], 'c': ['', '', '-']}
    found = group.get('/api/jobs/poll').json['exceptions']
    assert [one['object'] for one in found['objects']] == ['b', 'c']
    assert list(found['objects'][0]['ticks'].values()) == [
        'dead', 'skipped: paused']
    assert (found['number'], found['unknown']) == (2, 0)


def test_a_job_shows_its_longest_runs_and_their_objects(group):
    group.run('poll', 'a', 'b', ran=2, ago=30)
    group.run('poll', 'a', ran=7, ago=20)
    # Two workers share the tick.
    group.run('poll', 'b', ran=3, ago=10)
    group.run('poll', 'c', ran=1, ago=10, worker='w-2')
    group.run('poll', 'd', ran=4, ago=15)

    text = group.text('/jobs/poll')

    assert re.findall(r'<li>([^<]*?) <a href="/jobs/poll/objects/(\w)">',
                      text) == [('7.0 s', 'a'), ('4.0 s', 'd'), ('3.0 s', 'b')]
    assert [one['slowest_object'] for one in
            group.get('/api/jobs/poll').json['ticks']] == ['b', 'd', 'a', 'a']


def test_a_job_without_exceptions_has_no_map(group):
    group.run('poll', 'a', 'b')

    assert 'class="map"' not in group.text('/jobs/poll')


def test_the_map_of_many_objects_has_the_worst_and_the_parts_of_the_ring(
        group):
    keys = [f'{n:03}' for n in range(60)]
    group.run('poll', *keys, ago=30)
    group.run('poll', *keys, dead=['059'], ago=20)
    group.skip('poll', *keys, ago=10)

    found = group.get('/api/jobs/poll').json['exceptions']
    assert [one['object'] for one in found['objects']][0] == '059'
    assert len(found['objects']) == 50
    assert [sum(part[at] for part in found['parts'])
            for at in range(3)] == [0, 1, 60]
    text = group.text('/jobs/poll')
    assert 'The worst 50 of 60 objects' in text
    assert len(lines(text)) == 66


def test_an_object_that_ran_late_is_in_the_map(group):
    group.run('poll', 'a', 'b', ago=30, behind=('a',))

    assert lines(group.text('/jobs/poll')) == {'a': ['l']}


def test_the_map_shows_how_many_objects_are_not_kept(group, monkeypatch):
    monkeypatch.setattr(history, 'KEPT', 1)
    group.run('poll', 'a', 'b', ago=30)
    group.skip('poll', 'a', 'b', ago=20)

    text = group.text('/jobs/poll')
    assert lines(text) == {}
    assert '2 more outcomes of objects whose ids were not kept' in text


def test_the_page_of_an_object_has_its_last_ticks(group):
    # No tick comes due while this test runs, except at midnight.
    spacing = 86_400 * SECOND
    group.store.adopt({'poll': f'every {spacing}'})
    start = group.now - group.now % spacing - 6 * spacing
    for at in range(6):
        tick = start + at * spacing
        group.run('poll', 'a', *(['b'] if at % 2 else []), tick=tick,
                  dead=['a'] if at == 1 else [])
        if not at % 2 and at:
            group.skip('poll', 'b', tick=tick)

    def marks(key):
        text = group.text(f'/jobs/poll/objects/{key}')
        return re.findall(r'<li class="\w+" title="[^"]*"><span aria-hidden='
                          r'"true">(.*?)</span>', text)[-7:-1]
    assert marks('a') == ['.', 'F', '.', '.', '.', '.']
    assert marks('b') == ['.', '-', '.', '-', '.']


def test_failing_objects_are_grouped_by_their_error(group):
    group.run('poll', 'a', 'b', dead=['a', 'b'])
    text = group.text('/jobs/poll')

    assert [html.unescape(one) for one in re.findall(
        '<code>(.*?)</code>', text)] == ['a is ill', 'b is ill']


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, 'distperiodic.web.site')
    monkeypatch.delattr(web, 'site')
    monkeypatch.setitem(sys.modules, 'flask', None)

    with pytest.raises(exceptions.ConfigError,
                       match=r"pip install 'distperiodic\[web\]'"):
        web.application(configuration())


@pytest.mark.parametrize('host', ['127.0.0.1', '::1', 'localhost'])
def test_an_address_of_this_host_is_recognized(host):
    assert server.is_loopback(host)


@pytest.mark.parametrize(('name', 'status'), [
    ('127.0.0.1:8088', 200), ('localhost', 200), ('[::1]:8088', 200),
    ('[::1]', 200), ('127.0.0.1', 200), ('evil.example:8088', 403),
    ('127.0.0.1.evil.example', 403), ('10.0.0.1', 403)])
def test_the_command_answers_to_the_names_of_its_host_only(name, status):
    """Otherwise another site could read the page through a browser."""
    def page(environ, start):
        start('200 OK', [])
        return []

    assert Client(server.of_this_host(page)).get(
        '/', headers={'Host': name}).status_code == status


def test_a_part_that_is_not_read_in_time_leaves_the_rest(
        group, monkeypatch):
    def slow(*arguments, **more):
        raise exceptions.StoreUnavailable('canceling statement')
    group.run('poll', 'a', 'b', dead=['b'])
    monkeypatch.setattr(activity, 'failing', slow)
    text = group.text('/jobs/poll')

    assert 'This part cannot be read now: canceling statement.' in text
    assert '1 done, 1 failed' in text
    assert group.get('/api/jobs/poll').json['failing'] is None


def test_a_port_in_use_is_one_clear_line():
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(exceptions.ConfigError,
                           match=f'--listen 127.0.0.1:{port}: Address alr'):
            server.serve(lambda environ, start: [], '127.0.0.1', port, print)


def test_a_name_in_an_address_is_encoded_once(group):
    group.run('poll', 'a/b')

    assert f'/jobs/poll/objects/{urllib.parse.quote("a/b", safe="")}' in str(
        Addresses('').object('poll', 'a/b'))
