# SPDX-License-Identifier: Apache-2.0
"""Actions of the page: who may act, what is asked first, and what is done."""

import contextlib
import html
import json
import re
import shutil
import sys
import urllib.parse

import pytest
import sqlalchemy as sa
from oslo_context import context
from oslo_policy import opts as policy_opts
from werkzeug.test import Client

from distperiodic import exceptions
from distperiodic import tasks
from distperiodic import web
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.members import SqlMembers
from distperiodic.core.control import Me
from distperiodic.core.control import MemberOutcome
from distperiodic.core.pause import Pause
from distperiodic.core.standby import Role
from distperiodic.operator import activity
from distperiodic.operator import admin
from distperiodic.operator import auditing
from distperiodic.operator import bulk_tasks
from distperiodic.operator import members
from distperiodic.operator.group_reader import GroupStore
from distperiodic.web import server
from distperiodic.web import site
from distperiodic.web.identity import USER_OF_PROCESS
from distperiodic.web.verbs import VERBS
from tests.configured import configuration
from tests.unit.paged import SECOND
from tests.unit.paged import Group

#: The environment of a request of a user with the role admin.
ADMIN = {USER_OF_PROCESS: 'me'}
CONFIRMED = {
    'HTTP_X_IDENTITY_STATUS': 'Confirmed', 'HTTP_X_USER_ID': 'u1',
    'HTTP_X_USER_NAME': 'alice', 'HTTP_X_ROLES': 'admin,member'}
HOSTILE = (
    '<script>alert(1)</script>', '"onmouseover="alert(1)', 'a/b%2fc?d#e',
    '\u202eevil', "{{ 7 * 7 }}", 'a&b=c', ' blank ', '..', 'x/pause')


@pytest.fixture(scope='module')
def empty(tmp_path_factory):
    """Return a database file with empty tables, to copy."""
    file = tmp_path_factory.mktemp('page') / 'claims.sqlite'
    schema.sync(f'sqlite:///{file}')
    return file


class ActingGroup(Group):
    """A group, and its page with actions."""

    def __init__(self, url, conf, client):
        super().__init__(url, conf, client)
        self.conf = conf

    def add_member(self, name, part, host):
        """Add the row of a member that has just reported."""
        engine = database.make_engine(self.url)
        with engine.begin() as connection:
            connection.execute(sa.insert(tables.member).values(
                space='tests', part=part, name=name, process=f'{name}~1',
                seen=self.now, state=json.dumps({'host': host})))
        engine.dispose()

    def events(self):
        with contextlib.closing(GroupStore(self.url, 'tests')) as store:
            return auditing.events(store, since=0, limit=100)

    def post(self, path, environ=ADMIN, **more):
        return self.client.post(path, environ_overrides=environ, **more)

    def confirm(self, path, environ=ADMIN, **fields):
        """Send the form of the confirmation."""
        answer = self.post(path, environ)
        assert answer.status_code == 200, answer.text
        return self.post(form_of(answer.text)['action'], environ, data={
            'token': form_of(answer.text)['token'], **fields})

    def paused_objects(self):
        return self.store.attend({'poll': 60.0}, {})['poll'].paused_objects

    def paused(self):
        with contextlib.closing(GroupStore(self.url, 'tests')) as store:
            return {job.name: job.paused_why for job in store.jobs()
                    if job.paused_since is not None}


def form_of(text):
    """Return the address and the token of the form of a confirmation."""
    return {'action': html.unescape(re.search(
        r'<form class="confirm" method="post" action="([^"]*)"', text)[1]),
            'token': re.search(r'name="token" value="([^"]*)"', text)[1]}


@pytest.fixture
def make(tmp_path, empty):
    """Return a function that returns a group and its page with options."""
    made = []

    def make_group(**options):
        url = f'sqlite:///{shutil.copy(empty, tmp_path)}'
        conf = configuration(
            group='tests', connection=url, **{'web_actions': True} | options)
        made.append(ActingGroup(url, conf, Client(web.application(conf))))
        made[-1].run('poll', 'a', 'b', dead=['b'])
        return made[-1]
    yield make_group
    for group in made:
        group.store.close()


@pytest.fixture
def group(make):
    return make()


#: An address of each action.
ADDRESSES = [
    '/jobs/poll/pause', '/jobs/poll/resume', '/jobs/pause?job=poll',
    '/jobs/poll/trigger', '/jobs/poll/trigger?object=a',
    '/jobs/poll/requeue', '/tasks/x/cancel', '/tasks/x/retry',
    '/tasks/cancel?type=x', '/tasks/retry?status=stuck',
    '/queues/db/halt', '/queues/db/resume', '/members/api/drain',
    '/members/api/undrain?partition=vm', '/members/drain?host=h',
    '/partitions/vm/promote?worker=w']


# -- off


@pytest.mark.parametrize('path', ADDRESSES)
def test_an_action_that_is_off_names_the_option(make, path):
    group = make(web_actions=False)
    page, twin = group.post(path), group.post(f'/api{path}')

    assert (page.status_code, twin.status_code) == (403, 403)
    assert 'web_actions = true' in twin.json['error']
    assert 'web_actions = true' in page.text
    assert group.events() == []


@pytest.mark.parametrize('path', ['/jobs/poll', '/jobs', '/tasks', '/members'])
def test_a_page_without_actions_has_no_form_that_acts(make, path):
    group = make(web_actions=False)
    answer = group.client.get(path, environ_overrides=ADMIN)

    assert answer.status_code == 200
    assert 'method="post"' not in answer.text
    assert answer.headers['Referrer-Policy'] == 'no-referrer'


# -- the steps of an action


def test_a_job_is_paused_after_its_confirmation(group):
    shown = group.post('/jobs/poll/pause')

    assert group.paused() == {}
    assert 'Pause job poll?' in shown.text
    assert group.events() == []
    answer = group.confirm('/jobs/poll/pause', reason='  too   slow ')
    assert answer.status_code == 303
    assert group.paused() == {'poll': 'too slow'}
    [event] = group.events()
    assert event[2:] == (
        'me', event.host, 'job pause', 'poll', {}, 'too slow', 'done')
    page = group.client.get(answer.location, environ_overrides=ADMIN)
    [notice] = re.findall('notice" role="status">(.*?)</p>', page.text)
    assert re.search('job pause.*poll.*done', notice)


def test_a_job_is_resumed(group):
    group.confirm('/jobs/poll/pause', reason='slow')
    answer = group.confirm('/jobs/poll/resume')

    assert answer.status_code == 303
    assert group.paused() == {}
    assert [one.verb for one in group.events()] == ['job resume', 'job pause']


def test_a_page_has_the_buttons_of_the_possible_actions(group):
    def buttons():
        text = group.client.get('/jobs/poll', environ_overrides=ADMIN).text
        return set(re.findall(
            r'<form method="post" action="/jobs/poll/(\w+)"', text))

    assert 'pause' in buttons() and 'resume' not in buttons()
    group.confirm('/jobs/poll/pause', reason='slow')
    assert 'resume' in buttons() and 'pause' not in buttons()


def test_get_never_acts(group):
    for path in ADDRESSES:
        for prefix in ('', '/api'):
            assert group.client.get(
                prefix + path, environ_overrides=ADMIN
            ).status_code in (404, 405)
    assert group.events() == []


def test_a_reason_that_is_needed_is_required(group):
    answer = group.confirm('/jobs/poll/pause', reason='  ')

    assert answer.status_code == 400
    assert 'needs a reason' in answer.text
    assert group.events() == []


def test_a_form_that_is_sent_twice_acts_once(group):
    first = form_of(group.post('/jobs/poll/pause').text)
    sent = {'token': first['token'], 'reason': 'slow'}
    one = group.post(first['action'], data=sent)
    group.confirm('/jobs/poll/resume')
    two = group.post(first['action'], data=sent)

    assert (one.status_code, two.status_code) == (303, 303)
    assert one.location == two.location
    assert group.paused() == {}
    assert len(group.events()) == 2


def test_a_job_that_does_not_exist_is_not_found(group):
    page, twin = group.post('/jobs/none/pause'), group.post(
        '/api/jobs/none/pause', headers={'X-Requested-With': 'x'})

    assert (page.status_code, twin.status_code) == (404, 404)
    assert "no job 'none'" in twin.json['error']
    assert group.events() == []


@pytest.mark.parametrize('name', HOSTILE)
def test_the_confirmation_shows_a_hostile_name_as_text(group, name):
    group.run(name, 'a')
    page = group.client.get('/jobs/' + urllib.parse.quote(
        name, safe='') if name != '..' else '/jobs/poll',
        environ_overrides=ADMIN)
    assert page.status_code == 200
    path = ('/jobs/pause?' + urllib.parse.urlencode({'job': name})
            if name == '..' else
            f'/jobs/{urllib.parse.quote(name, safe="")}/pause')
    if name != '..':
        assert path in page.text
    shown = group.post(path)

    assert shown.status_code == 200
    assert '<script>alert' not in shown.text
    assert '\u202e' not in shown.text and '49' not in shown.text.partition(
        '<h1>')[2].partition('</h1>')[0]
    assert group.confirm(path, reason=name).status_code == 303
    assert group.paused() == {name: name.strip()}


def test_the_addresses_of_an_action_begin_with_the_prefix(group):
    shown = group.post('/jobs/poll/pause', base_url='http://host/per%20iodic')
    form = form_of(shown.text)
    answer = group.post(
        '/jobs/poll/pause', base_url='http://host/per%20iodic',
        data={'token': form['token'], 'reason': 'slow'})

    assert form['action'] == '/per%20iodic/jobs/poll/pause'
    assert answer.location.startswith('/per%20iodic/jobs/poll?done=')


# -- other sites


def test_a_form_without_a_token_only_asks(group):
    answer = group.post('/jobs/poll/pause', data={'reason': 'slow'})

    assert answer.status_code == 200
    assert group.events() == []


@pytest.mark.parametrize('token', ['', 'x', 'WyJtZSJd.x.y'])
def test_a_forged_token_is_refused(group, token):
    answer = group.post('/jobs/poll/pause', data={
        'reason': 'slow', 'token': token})

    assert answer.status_code == 403
    assert group.events() == []


@pytest.mark.parametrize(('path', 'environ', 'cookie'), [
    ('/jobs/poll/pause', {USER_OF_PROCESS: 'other'}, True),
    ('/jobs/poll/resume', ADMIN, True), ('/jobs/tick/pause', ADMIN, True),
    ('/jobs/poll/pause', ADMIN, False)])
def test_a_token_is_for_one_operator_browser_and_target(
        group, path, environ, cookie):
    group.run('tick', 'a')
    form = form_of(group.post('/jobs/poll/pause').text)
    if not cookie:
        group.client.delete_cookie('distperiodic-form')
    answer = group.post(path, environ, data={
        'token': form['token'], 'reason': 'slow'})

    assert answer.status_code == 403
    assert 'this form is that of another' in answer.text
    assert group.events() == []


@pytest.mark.parametrize('headers', [
    {'Origin': 'https://evil.example'}, {'Origin': 'null'},
    {'Origin': 'http://localhost.evil.example'},
    {'Sec-Fetch-Site': 'cross-site'}, {'Sec-Fetch-Site': 'same-site'}])
def test_a_request_of_another_site_is_refused(group, headers):
    form = form_of(group.post('/jobs/poll/pause').text)
    page = group.post(form['action'], headers=headers, data={
        'token': form['token'], 'reason': 'slow'})
    twin = group.post(
        '/api/jobs/poll/pause', json={'reason': 'slow'},
        headers={**headers, 'X-Requested-With': 'x'})

    assert (page.status_code, twin.status_code) == (403, 403)
    assert 'another site' in page.text
    assert group.events() == []


@pytest.mark.parametrize('headers', [
    {'Origin': 'http://localhost'}, {'Sec-Fetch-Site': 'same-origin'}])
def test_a_request_of_this_site_is_accepted(group, headers):
    form = form_of(group.post('/jobs/poll/pause').text)

    assert group.post(form['action'], headers=headers, data={
        'token': form['token'], 'reason': 'slow'}).status_code == 303


@pytest.mark.parametrize(('scheme', 'secure'), [
    ('http', False), ('https', True)])
def test_the_cookie_is_for_this_site_only(group, scheme, secure):
    cookie = group.post('/jobs/poll/pause', base_url=f'{scheme}://localhost'
                        ).headers['Set-Cookie']

    assert 'SameSite=Strict' in cookie and 'HttpOnly' in cookie
    assert ('Secure' in cookie) == secure


def test_processes_with_one_secret_accept_the_forms_of_each_other(
        group, tmp_path):
    def page(**options):
        return Client(web.application(configuration(
            group='tests', connection=group.url, web_actions=True,
            **options)))

    def send(first, second):
        text = first.post('/jobs/poll/pause', environ_overrides=ADMIN)
        cookie = first.get_cookie('distperiodic-form')
        second.set_cookie('distperiodic-form', cookie.value)
        return second.post('/jobs/poll/pause', environ_overrides=ADMIN, data={
            'token': form_of(text.text)['token'], 'reason': 'slow'})

    assert send(page(web_secret='s' * 32),
                page(web_secret='s' * 32)).status_code == 303
    refused = send(page(), page())
    assert refused.status_code == 403
    assert 'web_secret' in refused.text


# -- identities


@pytest.mark.parametrize(('source', 'environ'), [
    ('local', {}), ('remote_user', {}), ('keystone', {}),
    ('local', {'REMOTE_USER': 'admin'}), ('local', CONFIRMED),
    ('remote_user', CONFIRMED), ('keystone', CONFIRMED),
    ('remote_user', {'HTTP_REMOTE_USER': 'admin'}),
    ('remote_user', ADMIN), ('keystone', ADMIN),
    ('keystone', {'REMOTE_USER': 'admin', **CONFIRMED}),
    ('local', {'HTTP_DISTPERIODIC_USER': 'me'}),
    ('keystone', {**CONFIRMED, 'HTTP_KEYSTONE_TOKEN_INFO': '{}'}),
    ('keystone', {**CONFIRMED, 'HTTP_X_IDENTITY_STATUS': 'Invalid',
                  'keystone.token_info': {}})])
def test_an_identity_that_the_server_has_not_set_is_unknown(
        make, source, environ):
    group = make(web_identity=source)
    page = group.post('/jobs/poll/pause', environ)
    shown = group.client.get('/jobs/poll', environ_overrides=environ)

    assert page.status_code == 403
    assert 'name="token"' not in page.text
    assert 'You can only read' in shown.text
    assert 'method="post"' not in shown.text
    assert group.post('/api/jobs/poll/pause', environ, json={'reason': 'x'},
                      headers={'X-Requested-With': 'x'}).status_code == 403
    assert group.events() == []


def test_the_user_of_a_request_is_not_in_the_log_lines_of_later_ones(make):
    environ = {**CONFIRMED, 'keystone.token_info': {}}
    before = context.get_current()

    make(web_identity='keystone').client.get('/', environ_base=environ)

    assert context.get_current() is before


def test_a_user_of_keystone_acts_with_the_role_admin(make):
    group = make(web_identity='keystone')
    environ = {**CONFIRMED, 'keystone.token_info': {},
               'REMOTE_ADDR': '10.0.0.7'}
    answer = group.confirm('/jobs/poll/pause', environ, reason='slow')

    assert answer.status_code == 303
    [event] = group.events()
    assert (event.who, event.host) == ('alice (u1)', '10.0.0.7')


def test_a_queue_and_a_task_show_the_operator_of_the_page(make):
    group = make(web_identity='keystone')
    environ = {**CONFIRMED, 'keystone.token_info': {},
               'REMOTE_ADDR': '10.0.0.7'}
    with contextlib.closing(tasks.Client(group.conf)) as client:
        task = client.submit('vm.boot', {}, queue='q')
        group.confirm('/queues/q/halt', environ, reason='full')
        group.confirm(f'/tasks/{task}/cancel', environ, reason='late')

        assert client.queues('q')[0].halted_why == 'alice (u1)@10.0.0.7: full'
    with contextlib.closing(GroupStore(group.url, 'tests')) as store:
        [row] = store.rows(sa.select(tables.task.c.cancelled_by))
    assert row.cancelled_by == 'alice (u1)@10.0.0.7: late'


@pytest.mark.parametrize(('source', 'environ'), [
    ('remote_user', {'REMOTE_USER': 'alice'}),
    ('keystone', {**CONFIRMED, 'HTTP_X_ROLES': 'member',
                  'keystone.token_info': {}})])
def test_a_user_without_the_role_is_refused_with_the_rule(
        make, source, environ):
    group = make(web_identity=source)
    page = group.post('/jobs/poll/pause', environ)
    shown = group.client.get('/jobs/poll', environ_overrides=environ)

    assert page.status_code == 403
    assert 'alice' in page.text
    assert 'distperiodic:job:pause' in page.text
    assert 'method="post"' not in shown.text
    assert group.events() == []


def with_policy(make, file):
    """Return a group whose page has this policy file."""
    group = make(web_identity='remote_user')
    conf = configuration(
        group='tests', connection=group.url, web_actions=True,
        web_identity='remote_user')
    conf.register_opts(policy_opts._options, group='oslo_policy')
    conf.set_override('policy_file', str(file), 'oslo_policy')
    group.client = Client(web.application(conf))
    return group


def test_a_policy_file_allows_a_user_one_action_on_one_target(
        make, tmp_path):
    file = tmp_path / 'policy.yaml'
    file.write_text('"distperiodic:job:pause": '
                    '"user_id:alice and \'poll\':%(job)s"\n')
    group = with_policy(make, file)
    group.run('tick', 'a')
    alice, bob = {'REMOTE_USER': 'alice'}, {'REMOTE_USER': 'bob'}

    assert group.post('/jobs/tick/pause', alice).status_code == 403
    assert group.post('/jobs/poll/resume', alice).status_code == 403
    assert group.post('/jobs/poll/pause', bob).status_code == 403
    assert group.confirm(
        '/jobs/poll/pause', alice, reason='slow').status_code == 303
    file.write_text('"distperiodic:job:pause": [')
    assert group.post('/jobs/poll/pause', alice).status_code == 403


@pytest.fixture
def ruled(make, tmp_path):
    """Return a function that returns a group with a rule for drains."""
    def make_ruled(rule):
        file = tmp_path / 'policy.yaml'
        file.write_text(f'"distperiodic:member:drain": {rule}\n')
        group = with_policy(make, file)
        for name in 'vm:0', 'vm:1', 'vm (b)':
            group.add_member(name, '', 'vm')
        return group
    return make_ruled


@pytest.mark.parametrize(('rule', 'allowed'), [
    # The first rule is that of the page "Mount the page in a service".
    (r"""'"vm\x3a0":%(member)s or "vm":%(host)s'""",
     ['/members/vm:0/drain', '/members/drain?host=vm']),
    (r"""'"vm\x20\x28b\x29":%(member)s'""", ['/members/vm (b)/drain']),
    ("""'"vm:0":%(member)s'""", [])])
def test_a_rule_names_a_member_with_a_colon_by_an_escape(
        ruled, rule, allowed):
    group = ruled(rule)

    assert [path for path in (
        '/members/vm:0/drain', '/members/vm:1/drain', '/members/vm (b)/drain',
        '/members/drain?host=vm')
        if group.post(path, {'REMOTE_USER': 'bob'}).status_code == 200
    ] == allowed


@pytest.mark.parametrize('path', [
    '/members/mine/drain?host=h', '/members/drain?host=h&partition=mine',
    '/members/drain?host=', '/tasks/x/cancel?queue=mine',
    '/tasks/x/retry?type=mine', '/jobs/poll/requeue?error='])
def test_a_name_without_effect_is_refused_because_the_policy_reads_it(
        group, path):
    for name, part, host in (('h', '', 'h'), ('mine', 'mine', 'mine'),
                             ('old', '', '')):
        group.add_member(name, part, host)
    page, twin = group.post(path), group.post(
        f'/api{path}', headers={'X-Requested-With': 'x'})

    assert (page.status_code, twin.status_code) == (400, 400)
    assert group.events() == []


# -- the other actions


def test_an_object_is_run_now(group):
    shown = group.post('/jobs/poll/trigger?object=a')
    group.confirm('/jobs/poll/trigger?object=a', reason='try')

    assert 'Run object a of job poll now?' in shown.text
    [event] = group.events()
    assert (event.verb, event.target, event.why) == (
        'job trigger', 'poll', 'try')
    assert event.arguments['object'] == 'a'
    assert event.outcome == '1 object, 0 busy'


def test_an_object_is_paused_until_an_instant_and_resumed(group):
    def buttons():
        text = group.client.get(
            '/jobs/poll/objects/a', environ_overrides=ADMIN).text
        return set(re.findall(
            r'action="/jobs/poll/(\w+)\?object=a"', text))

    assert buttons() == {'pause', 'trigger'}
    group.confirm('/jobs/poll/pause?object=a', reason='new disk', until='2h')
    assert buttons() == {'resume', 'trigger'}
    assert group.paused() == {}
    [event] = group.events()
    assert event.arguments['objects'] == ['a']
    until = event.arguments['until']
    assert until >= group.now + 7200 * SECOND
    assert group.paused_objects() == {'a': Pause('new disk', until)}
    group.confirm('/jobs/poll/resume?object=a')
    assert buttons() == {'pause', 'trigger'}
    group.confirm('/jobs/poll/resume?object=a')
    assert group.events()[0].outcome == 'it was not paused'


def test_an_object_whose_pause_has_ended_is_not_resumed(group):
    with contextlib.closing(GroupStore(group.url, 'tests')) as store:
        admin.pause_objects(store, 'poll', ['a'], by='me', why='slow',
                            until=store.now() + 1)
    group.confirm('/jobs/poll/resume?object=a')

    assert group.events()[0].outcome == 'it was not paused'


def test_one_of_several_paused_objects_is_resumed(group):
    for key in 'a', 'b':
        group.confirm(f'/jobs/poll/pause?object={key}', reason=key)
    group.confirm('/jobs/poll/resume?object=a')

    assert group.paused_objects() == {'b': Pause('b')}
    assert [(one.verb, one.arguments['objects']) for one in group.events()
            ] == [('job resume', ['a']), ('job pause', ['b']),
                  ('job pause', ['a'])]
    # Schedulers read the paused objects only of jobs with such a number.
    with contextlib.closing(GroupStore(group.url, 'tests')) as store:
        assert [row.paused_objects for row in store.rows(
            sa.select(tables.job.c.paused_objects))] == [1]


@pytest.mark.parametrize(('until', 'status', 'why'), [
    ('soon', 400, "until: 'soon' cannot be used"),
    ('2001-01-01', 400, "until: 2001-01-01 is not in the future")])
def test_an_end_of_a_pause_that_cannot_be_used_is_one_clear_line(
        group, until, status, why):
    answer = group.post(
        '/api/jobs/poll/pause', json={'reason': 'x', 'until': until},
        headers={'X-Requested-With': 'x'})

    assert answer.status_code == status
    assert why in answer.json['error']
    assert group.events() == []


def test_all_objects_of_a_job_are_counted_before_they_run(group):
    shown = group.post('/jobs/poll/trigger')

    assert 'Run 2 objects of job poll now?' in shown.text
    assert {'/jobs/poll/objects/a', '/jobs/poll/objects/b'} <= set(
        re.findall('href="([^"]*)"', shown.text))
    answer = group.confirm('/jobs/poll/trigger')
    assert group.events()[0].outcome == '2 objects, 0 busy'
    assert answer.location.startswith('/jobs/poll?done=')
    again = group.confirm('/jobs/poll/trigger')
    assert again.status_code == 303
    assert group.events()[0].outcome == '0 objects, 2 busy'


def test_dead_objects_are_counted_before_they_are_requeued(group):
    group.run('ping', 'a', 'b', 'c', 'd', dead=['a', 'b', 'c'])
    page = group.client.get('/jobs/ping', environ_overrides=ADMIN).text
    shown = group.post('/jobs/ping/requeue?error=a+is')

    assert 'action="/jobs/ping/requeue"' in page
    assert 'action="/jobs/ping/requeue?error=a+is+ill"' in page
    assert 'Requeue 1 dead object of job ping?' in shown.text
    assert re.findall(r'href="/jobs/ping/objects/(\w)"', shown.text) == ['a']
    group.confirm('/jobs/ping/requeue?object=b')
    form = form_of(group.post('/jobs/ping/requeue').text)
    group.confirm('/jobs/ping/requeue?object=a', reason='mended')
    answer = group.post(form['action'], data={
        'token': form['token'], 'reason': 'the rest'})

    assert answer.location.startswith('/jobs/ping?done=')
    assert [(one.verb, one.arguments.get('object'), one.why, one.outcome)
            for one in group.events()] == [
        ('dead requeue', None, 'the rest', '1 object; 2 when it was '
         'confirmed'),
        ('dead requeue', 'a', 'mended', '1 object'),
        ('dead requeue', 'b', '', '1 object')]
    page = group.client.get('/jobs/ping', environ_overrides=ADMIN).text
    assert '/requeue' not in page


def test_dead_objects_that_were_not_shown_are_not_requeued(group):
    group.run('ping', 'a', 'b', 'c', dead=['a'])
    form = form_of(group.post('/jobs/ping/requeue').text)
    group.run('ping', 'b', 'c', dead=['b', 'c'], ago=4)
    answer = group.post(form['action'], data={'token': form['token']})

    assert answer.status_code == 409
    assert ('1 object had been shown, but 3 match now, so nothing was '
            'changed') in answer.text
    assert '<a href="/jobs/ping">Back' in answer.text
    [event] = group.events()
    assert event.outcome.startswith('not done: 1 object had been shown')
    assert 'Requeue 3 dead objects' in group.post('/jobs/ping/requeue').text
    group.confirm('/jobs/ping/requeue')
    assert group.events()[0].outcome == '3 of 3 objects'


def test_objects_that_were_not_shown_are_not_run(group):
    form = form_of(group.post('/jobs/poll/trigger').text)
    group.run('poll', 'c', ago=4)
    answer = group.post(form['action'], data={'token': form['token']})

    assert answer.status_code == 409
    assert '2 objects had been shown, but 3 match now' in answer.text
    group.confirm('/jobs/poll/trigger?object=c')
    assert [one.outcome.partition(':')[0] for one in group.events()] == [
        '1 object, 0 busy', 'not done']


@pytest.fixture
def submitted(group):
    """Return the ids of tasks that were submitted to *group*."""
    with contextlib.closing(tasks.Client(group.conf)) as client:
        yield [client.submit('vm.boot', {}, queue=queue)
               for queue in ('q', 'q', None)]


def status_of(group):
    with contextlib.closing(tasks.Client(group.conf)) as client:
        return [task.status.value for task in client.list()]


def test_a_task_is_cancelled_and_retried(group, submitted):
    first, path = submitted[2], f'/tasks/{submitted[2]}'

    assert f'action="{path}/cancel"' in group.client.get(
        path, environ_overrides=ADMIN).text
    answer = group.confirm(f'{path}/cancel', reason='wrong host')
    assert answer.location.startswith(f'{path}?done=')
    assert status_of(group) == ['waiting', 'waiting', 'cancelled']
    assert f'action="{path}/retry"' in group.client.get(
        path, environ_overrides=ADMIN).text
    again = group.confirm(f'{path}/cancel')
    assert again.status_code == 409
    assert 'has ended' in again.text
    group.confirm(f'{path}/retry', direction='as it was')
    assert status_of(group) == ['waiting'] * 3
    assert [(one.verb, one.target, one.why) for one in group.events()] == [
        ('task retry', first, ''), ('task cancel', first, ''),
        ('task cancel', first, 'wrong host')]
    assert group.events()[1].outcome.startswith('not done')


def test_tasks_of_a_filter_are_counted_before_they_are_changed(
        group, submitted):
    page = group.client.get('/tasks?queue=q', environ_overrides=ADMIN).text
    shown = group.post('/tasks/cancel?queue=q')

    assert 'action="/tasks/cancel?queue=q"' in page
    assert '/tasks/cancel' not in group.client.get(
        '/tasks', environ_overrides=ADMIN).text
    assert 'Cancel 2 tasks?' in shown.text
    assert set(re.findall(r'href="/tasks/(\w+)"', shown.text)) == set(
        submitted[:2])
    form = form_of(shown.text)
    group.confirm(f'/tasks/{submitted[0]}/cancel')
    answer = group.post(form['action'], data={'token': form['token']})
    assert answer.location.startswith('/tasks?queue=q&done=')
    assert status_of(group) == ['cancelled', 'cancelled', 'waiting']
    assert group.events()[0].outcome == '1 task; 2 when it was confirmed'
    assert 'status=cancelled' in group.client.get(
        '/tasks?status=cancelled', environ_overrides=ADMIN).text
    group.confirm('/tasks/retry?status=cancelled&queue=q')
    assert status_of(group) == ['waiting'] * 3
    assert group.events()[0].outcome == '2 of 2 tasks'


@pytest.mark.parametrize('path', [
    '/tasks/cancel?type=vm.boot', '/tasks/retry?status=cancelled'])
def test_tasks_that_were_not_shown_are_not_changed(group, submitted, path):
    if 'retry' in path:
        group.confirm(f'/tasks/{submitted[0]}/cancel')
    form = form_of(group.post(path).text)
    with contextlib.closing(tasks.Client(group.conf)) as client:
        more = client.submit('vm.boot', {})
        if 'retry' in path:
            client.cancel(more)
    before = status_of(group)
    answer = group.post(form['action'], data={'token': form['token']})

    assert answer.status_code == 409
    assert 'had been shown, but' in answer.text
    assert status_of(group) == before


def test_tasks_that_match_after_the_count_are_not_changed(
        group, submitted, monkeypatch):
    form = form_of(group.post('/tasks/cancel?type=vm.boot').text)
    counted = bulk_tasks.number

    def count(store, which):
        found = counted(store, which)
        with contextlib.closing(tasks.Client(group.conf)) as client:
            client.submit('vm.boot', {})
        return found
    monkeypatch.setattr(bulk_tasks, 'number', count)
    answer = group.post(form['action'], data={'token': form['token']})

    assert answer.status_code == 303
    assert status_of(group).count('waiting') == 1
    assert group.events()[0].outcome == (
        '3 of 3 tasks; more match now and were left unchanged')


def test_objects_that_are_listed_after_the_count_are_not_run(
        group, monkeypatch):
    form = form_of(group.post('/jobs/poll/trigger').text)
    count = activity.listings

    def listings(store, job):
        found = count(store, job)
        group.run('poll', 'c', ago=4)
        return found
    monkeypatch.setattr(activity, 'listings', listings)
    answer = group.post(form['action'], data={'token': form['token']})

    assert answer.status_code == 303
    assert group.events()[0].outcome == (
        '2 objects, 0 busy; more match now and were left unchanged')


def test_only_the_tasks_of_a_filter_are_retried(group, submitted):
    for task in submitted:
        group.confirm(f'/tasks/{task}/cancel')
    group.confirm('/tasks/retry?status=cancelled&queue=q&type=vm.boot',
                  direction='forward')

    assert status_of(group) == ['waiting', 'waiting', 'cancelled']
    assert group.events()[0].arguments['back'] is False
    group.confirm('/tasks/cancel?type=vm.none')
    assert status_of(group) == ['waiting', 'waiting', 'cancelled']


def test_a_queue_is_halted_and_resumed(group):
    client = tasks.Client(group.conf)
    client.submit('vm.boot', {}, queue='a/b')
    client.close()
    path = '/queues/a%2Fb'
    listed = group.client.get('/queues', environ_overrides=ADMIN).text

    assert f'action="{path}/halt"' in listed
    group.confirm(f'{path}/halt', reason='full')
    listed = group.client.get('/queues', environ_overrides=ADMIN).text
    assert 'me@' in listed and 'full' in listed
    assert f'action="{path}/resume"' in listed
    group.confirm(f'{path}/resume')
    group.confirm(f'{path}/resume')
    assert [(one.verb, one.target, one.outcome) for one in group.events()] == [
        ('queue resume', 'a/b', 'it was not halted'),
        ('queue resume', 'a/b', 'done'), ('queue halt', 'a/b', 'done')]


def test_members_are_drained_and_undrained(group):
    for part, name in (('', 'h:0'), ('vm', 'h:0'), ('vm', 'i:0')):
        group.add_member(name, part, name[0])
    group.confirm('/members/h:0/drain?partition=vm', reason='kernel')

    def drained():
        with contextlib.closing(GroupStore(group.url, 'tests')) as store:
            return [one.label for one in members.members(store)
                    if one.drained]
    assert drained() == ['worker vm/h:0']
    shown = group.post('/members/drain?host=h')
    assert 'Drain 2 members of host h?' in shown.text
    group.confirm('/members/drain?host=h')
    assert drained() == ['scheduler h:0', 'worker vm/h:0']
    # A member that joins later belongs to the drained host.
    with contextlib.closing(schema.connect(group.url)) as found:
        assert SqlMembers(found).read(Me('tests', '', 'h:7')).host_drained
    group.confirm('/members/h:0/undrain')
    assert drained() == ['worker vm/h:0']
    assert [(one.verb, one.target) for one in group.events()] == [
        ('member undrain', 'h:0'), ('member drain', 'host h'),
        ('member drain', 'h:0')]
    page = group.client.get('/members', environ_overrides=ADMIN).text
    assert 'action="/members/h%3A0/undrain?partition=vm"' in page
    assert 'action="/members/h%3A0/drain"' in page
    assert 'action="/members/drain?host=h"' in page
    assert '?host=i"' not in page


def test_the_members_that_have_not_answered_are_named(group):
    for part in '', 'vm':
        group.add_member('h:0', part, 'h')
    answer = group.confirm('/members/drain?host=h')
    [action] = group.events()
    with contextlib.closing(schema.connect(group.url)) as found:
        SqlMembers(found).answer(Me('tests', '', 'h:0'), 'h:0~1', {
            action.id: MemberOutcome(True, 'drained')})
    page = group.client.get(answer.location, environ_overrides=ADMIN)

    assert ('1 of 2 members have answered; no answer from h:0 (worker of vm)'
            in page.text)


def test_a_drain_that_leaves_no_worker_is_confirmed_with_a_warning(group):
    for name in 'h:0', 'i:0':
        group.add_member(name, 'vm', name[0])
    warning = 'no worker of partition vm is left'

    assert warning not in group.post('/members/h:0/drain?partition=vm').text
    group.confirm('/members/h:0/drain?partition=vm')
    shown = group.post('/members/drain?host=i')
    assert warning in shown.text.partition('<form class="confirm"')[0]
    assert warning not in group.post('/members/undrain?host=i').text
    asked = group.post('/api/members/drain?host=i', json={'dry_run': True},
                       headers={'X-Requested-With': 'x'})
    assert [one[:len(warning)] for one in asked.json['warnings']] == [warning]
    assert group.confirm('/members/drain?host=i').status_code == 303


@pytest.mark.parametrize(('left', 'plan', 'effect'), [
    (3600, 'h:0 is active: it finishes its runs and releases the partition',
     'h:0 releases the partition when its runs have ended'),
    (-1, 'The lease of h:0 has expired, so h:1 takes over',
     'the lease of h:0 has expired, so h:1 takes over')])
def test_a_worker_that_was_chosen_is_named_until_it_is_active(
        group, left, plan, effect):
    engine = database.make_engine(group.url)
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.partition).values(
            space='tests', name='vm', worker='h:0~1', fence=1,
            since=group.now, until=group.now + left * SECOND, starts=0))
        connection.execute(sa.insert(tables.partition_worker), [{
            'space': 'tests', 'partition': 'vm', 'worker': f'h:{n}~1',
            'role': role, 'since': group.now,
            'seen': group.now + 3600 * SECOND}
            for n, role in enumerate((Role.ACTIVE, Role.STANDBY))])
    engine.dispose()
    asked = group.post('/partitions/vm/promote?worker=h:1')
    answer = group.confirm('/partitions/vm/promote?worker=h:1')
    page = group.client.get(answer.location, environ_overrides=ADMIN)

    assert plan in asked.text
    assert group.events()[0].outcome == f'h:1 is next; {effect}'
    assert 'vm: h:1 is next, chosen by me@' in page.text
    group.confirm('/partitions/vm/promote?worker=h:0')
    assert 'is next' not in group.client.get('/partitions').text
    assert group.events()[0].outcome == 'h:0 is already active'


@pytest.mark.parametrize(('path', 'status', 'why'), [
    ('/jobs/none/trigger', 404, "no job 'none'"),
    ('/jobs/poll/trigger?object=none', 404, "object 'none'"),
    ('/jobs/poll/trigger?object=%00', 404, 'object'),
    ('/jobs/pause', 400, 'no job is named'),
    ('/jobs/poll/pause?object=none', 404, "object 'none'"),
    ('/jobs/poll/resume?object=none', 404, "object 'none'"),
    ('/jobs/none/requeue', 404, "no job 'none'"),
    ('/tasks/none/cancel', 404, "no task 'none'"),
    ('/tasks/cancel', 400, 'no task is named'),
    ('/tasks/retry?type=x', 400, 'no task is named'),
    ('/tasks/retry?status=running', 400, 'cannot be retried'),
    ('/tasks/cancel?status=ill', 400, "'ill'"),
    ('/jobs/poll/pause?size=3', 400, "no filter 'size'"),
    ('/queues/none/resume', 404, "'none'"),
    ('/members/none/drain', 404, "'none'"),
    ('/members/drain', 400, 'give member, or host'),
    ('/partitions/none/promote?worker=w', 404, "'none'"),
    ('/partitions/none/promote', 400, 'no worker is named')])
def test_a_target_that_cannot_be_used_is_one_clear_line(
        group, path, status, why):
    page = group.post(path)
    twin = group.post(f'/api{path}', json={'reason': 'x'},
                      headers={'X-Requested-With': 'x'})

    assert (page.status_code, twin.status_code) == (status, status)
    assert why in twin.json['error']
    assert group.events() == []


FILTER, INCOMPLETE, FORM, IMPOSSIBLE = (
    'This filter cannot be used', 'This address is incomplete',
    'This form cannot be used', 'This action is not possible now')


@pytest.mark.parametrize(('path', 'fields', 'title'), [
    ('/jobs/poll/pause', {'reason': 'x', 'until': 'soon'}, FORM),
    ('/jobs/poll/pause', {'reason': 'x', 'until': '2001-01-01'}, FORM),
    ('/jobs/poll/pause', {}, FORM),
    ('/jobs/poll/pause', {'token': 'x', 'reason': 'x'}, FORM),
    ('/tasks/cancelled/retry', {'direction': 'up'}, FORM),
    ('/tasks/cancelled/cancel', {}, IMPOSSIBLE),
    ('/tasks/retry?status=running', {}, FILTER),
    ('/tasks/retry?status=ill', {}, FILTER),
    ('/jobs/poll/pause?size=3', {}, FILTER),
    ('/members/drain?host=h&partition=vm', {}, FILTER),
    ('/tasks/cancel', {}, INCOMPLETE),
    ('/tasks/retry?type=x', {}, INCOMPLETE),
    ('/members/drain', {}, INCOMPLETE), ('/jobs/pause', {}, INCOMPLETE),
    ('/jobs/none/pause', {}, 'Not found'),
    ('/tasks/none/cancel', {}, 'Not found')])
def test_the_title_of_an_error_states_its_kind(
        group, submitted, path, fields, title):
    group.confirm(f'/tasks/{submitted[0]}/cancel')
    path = path.replace('cancelled', submitted[0])
    answer = group.post(path)
    if answer.status_code == 200:
        answer = group.post(path, data={
            'token': form_of(answer.text)['token'], **fields})

    assert re.findall('<h1>(.*?)</h1>', answer.text) == [title]


def test_an_action_may_have_been_carried_out_before_an_error_of_the_store(
        group, monkeypatch):
    def fails(*arguments, **more):
        raise exceptions.StoreUnavailable('the store does not answer')
    monkeypatch.setattr(admin, 'pause', fails)
    answer = group.confirm('/jobs/poll/pause', reason='slow')

    assert answer.status_code == 503
    assert '<h1>The outcome of this action is unknown</h1>' in answer.text
    assert 'the store does not answer; look at the page of events' in (
        answer.text)
    [event] = group.events()
    assert event.outcome == 'outcome unknown: the store does not answer'
    assert (event.not_done, event.unknown) == (False, True)


def test_a_reason_with_characters_that_no_database_stores_is_cleaned(group):
    for reason in 'a\x00b', 'a\ud800b', 'a\r\nb':
        group.post('/api/jobs/poll/pause', json={'reason': reason},
                   headers={'X-Requested-With': 'x'})

        assert group.paused() == {'poll': 'a b'}


# -- programs


def test_a_program_acts_with_one_request(group):
    answer = group.post('/api/jobs/poll/pause', json={'reason': 'slow'},
                        headers={'X-Requested-With': 'curl'})

    assert answer.status_code == 200
    assert answer.json == {
        'verb': 'job pause', 'number': 1, 'effect': answer.json['effect'],
        'warnings': [], 'id': group.events()[0].id, 'outcome': 'done'}
    assert group.paused() == {'poll': 'slow'}


def test_a_program_can_ask_first(group):
    answer = group.post('/api/jobs/poll/pause', json={'dry_run': True},
                        headers={'X-Requested-With': 'curl'})

    assert answer.status_code == 200
    assert answer.json['number'] == 1
    assert group.events() == []


@pytest.mark.parametrize(('number', 'status', 'why'), [
    (1, 409, '1 object had been shown, but 2 match now'),
    ('1', 409, '1 object had been shown, but 2 match now'),
    (2, 200, ''), (3, 200, ''), (None, 200, ''),
    ('many', 400, "number is 'many'"), (-1, 400, 'number is -1'),
    ('-2', 400, "number is '-2'")])
def test_a_program_limits_an_action_to_the_number_of_its_dry_run(
        group, number, status, why):
    group.run('ping', 'a', 'b', dead=['a', 'b'])
    answer = group.post(
        '/api/jobs/ping/requeue', json={'number': number},
        headers={'X-Requested-With': 'curl'})

    assert answer.status_code == status
    assert why in answer.json.get('error', '')
    assert status != 200 or answer.json['outcome'].startswith(
        '2 of 2 objects')


def test_a_request_with_the_key_of_a_refused_action_is_refused(group):
    group.run('ping', 'a', 'b', dead=['a', 'b'])

    def requeue(number, key):
        return group.post(
            '/api/jobs/ping/requeue', json={'number': number}, headers={
                'X-Requested-With': 'curl', 'Idempotency-Key': key})
    answers = [requeue(1, '7'), requeue(2, '7')]
    [event] = group.events()

    assert [one.status_code for one in answers] == [409, 409]
    assert event.outcome in answers[1].json['error']
    assert 'another Idempotency-Key' in answers[1].json['error']
    assert requeue(2, '8').json['outcome'] == '2 of 2 objects'


def test_the_form_of_a_refused_action_is_refused_again(group, submitted):
    form = form_of(group.post(f'/tasks/{submitted[0]}/cancel').text)
    group.confirm(f'/tasks/{submitted[0]}/cancel')
    answers = [group.post(form['action'], data={'token': form['token']})
               for _ in range(2)]

    assert [one.status_code for one in answers] == [409, 409]
    assert 'not done: ' not in answers[0].text
    assert 'not done: ' in answers[1].text


def test_an_action_whose_outcome_cannot_be_read_has_not_failed(
        group, monkeypatch):
    def fails(*arguments):
        raise exceptions.StoreUnavailable('the store does not answer')
    monkeypatch.setattr(auditing, 'event', fails)
    answer = group.post('/api/jobs/poll/pause', json={'reason': 'slow'},
                        headers={'X-Requested-With': 'curl'})

    assert answer.status_code == 200
    assert answer.json['outcome'] is None
    assert answer.json['id'] == group.events()[0].id
    assert group.paused() == {'poll': 'slow'}


@pytest.mark.parametrize('path', ADDRESSES)
def test_without_a_store_no_action_is_possible_at_any_address(path):
    page = Client(web.application(configuration(
        web_actions=True, connection='none')))
    answer = page.post(f'/api{path}', headers={'X-Requested-With': 'curl'},
                       json={'reason': 'x'}, environ_overrides=ADMIN)

    assert answer.status_code == 503
    assert 'there is no database' in answer.json['error']


def test_a_request_of_a_program_needs_a_header(group):
    answer = group.post('/api/jobs/poll/pause', data={'reason': 'slow'})

    assert answer.status_code == 403
    assert 'X-Requested-With' in answer.json['error']
    assert group.events() == []


def test_a_request_with_the_same_key_acts_once(group):
    for reason in ('one', 'two'):
        answer = group.post(
            '/api/jobs/poll/pause', json={'reason': reason}, headers={
                'X-Requested-With': 'curl', 'Idempotency-Key': '7'})

    assert answer.status_code == 200
    assert group.paused() == {'poll': 'one'}
    assert len(group.events()) == 1


def test_a_key_is_that_of_one_operator_and_target(group):
    for job, who in ('poll', 'me'), ('tick', 'me'), ('poll', 'you'):
        group.run(job, 'a', ago=4 if who == 'me' else 3)
        answer = group.post(
            f'/api/jobs/{job}/pause', {USER_OF_PROCESS: who},
            json={'reason': who}, headers={
                'X-Requested-With': 'curl', 'Idempotency-Key': '7'})

        assert answer.status_code == 200
    assert group.paused() == {'poll': 'you', 'tick': 'me'}
    assert len(group.events()) == 3


# -- the command


def test_the_key_of_the_command_identifies_its_user(group):
    holder = server.KeyHolder(group.client.application, 'me')
    client = Client(holder)

    assert 'You can only read' in client.get('/jobs/poll').text
    assert client.get('/?key=wrong').status_code == 303
    assert 'You can only read' in client.get('/jobs/poll').text
    opened = client.get(f'/?key={holder.key}')
    assert (opened.status_code, opened.location) == (303, '/')
    assert 'SameSite=Strict' in opened.headers['Set-Cookie']
    assert 'HttpOnly' in opened.headers['Set-Cookie']
    assert 'You act as' in client.get('/jobs/poll').text


# -- declarations


def test_each_action_has_an_address_and_a_rule():
    assert site.ACTIONS.keys() == VERBS.keys()


def test_without_the_extra_the_error_names_it(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, 'distperiodic.web.policy', raising=False)
    monkeypatch.setitem(sys.modules, 'oslo_policy', None)

    with pytest.raises(exceptions.ConfigError,
                       match=r"pip install 'distperiodic\[web\]'"):
        web.application(configuration(web_actions=True))
