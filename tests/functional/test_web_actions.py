# SPDX-License-Identifier: Apache-2.0
"""The actions of the page of a real group, in a browser."""

import contextlib
import json
import runpy
import urllib.parse

import pytest
from keystoneauth1 import fixture
from keystonemiddleware import auth_token
from keystonemiddleware.auth_token import InvalidToken
from selenium.webdriver.common.by import By
from werkzeug.test import Client

from distperiodic import web
from distperiodic.web.identity import USER_OF_PROCESS
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
from tests.functional.places import Place
from tests.functional.places import user_who_reads
from tests.waiting import wait_until

# One process starts the services and the browser. The tests of several files
# in one group alternate, and each change of file would start them again.
pytestmark = pytest.mark.xdist_group('web_actions')


class Site:
    """A page with actions, in a browser that acts for its user."""

    def __init__(self, url, config, browser):
        self.url, _, self.key = url.partition('/?key=')
        self.config = config
        self.browser = browser
        browser.get(url)

    def show(self, path, width=WIDE):
        show(self.browser, self.url, path, width)

    def twin(self, path):
        return twin(self.url, path)

    def find(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def press(self, path, address):
        """Press the button of a page that leads to *address*."""
        def buttons():
            self.show(path)
            return [form for form in self.find('.actions form')
                    if form.get_attribute('action') == self.url + address]
        # A failing object is dead only until its next tick.
        [form] = wait_until(buttons, 30, f'{path} has no button {address}')
        form.find_element(By.TAG_NAME, 'button').click()
        wait_until(lambda: self.find('form.confirm'))

    def confirm(self, reason=''):
        """Send the form of the confirmation. Return the notice."""
        [field] = self.find('.confirm input[name=reason]')
        field.send_keys(reason)
        [button] = self.find('.confirm button')
        button.click()
        return wait_until(lambda: self.find('.notice'))[0].text

    def submit(self, *argv):
        """Submit a task. Return its id."""
        told = commands.call(
            'task', 'submit', *argv, '--config-file', self.config)
        assert told.returncode == 0, told.stderr
        return told.stdout.strip()

    def status(self, task):
        return self.twin(f'/tasks/{task}')['status']

    def events(self):
        """Return the actions by command: target, reason and outcome."""
        return [(one['what'], one['target'], one['why'], one['outcome'])
                for one in json.loads(commands.call(
                    'events', '-f', 'json', '--config-file', self.config
                    ).stdout)]


@pytest.fixture(scope='module')
def site(tmp_path_factory, zookeeper, rabbitmq, postgresql):
    place = tmp_path_factory.mktemp('acting')
    config = write_config(
        place, zookeeper, rabbitmq, postgresql, web_actions='true')
    with config.open('a') as file:
        file.write('[partition:vm]\nmode = standby\n')
    with contextlib.ExitStack() as stack:
        start(stack, config, ['scheduler'], ['worker'],
              *[['worker', '--partition', 'vm']] * 2)
        url, _ = stack.enter_context(page_of(config, place / 'web.log'))
        browser = stack.enter_context(chromium(
            tmp_path_factory.mktemp('chromium')))
        found = Site(url, config, browser)
        found.submit('create_instance', '--param', 'Fail=true')
        wait_until(lambda: {
            'object-failing', 'task-stuck'} <= {
                one['code'] for one in found.twin('/')['findings']},
            programs.STARTING, f'no findings; see the logs in {place}')
        yield found


def test_a_job_is_paused_and_resumed_in_the_browser(site):
    site.press('/jobs/ping_hosts', '/jobs/ping_hosts/pause')
    notice = site.confirm('the switch is replaced')

    assert 'job pause' in notice and 'ping_hosts' in notice
    assert site.twin('/jobs/ping_hosts')['job']['why'] == (
        'the switch is replaced')
    assert site.events()[0][:3] == (
        'job pause', 'ping_hosts', 'the switch is replaced')

    def answered():
        site.browser.refresh()
        return '1 of 1 members have answered' in site.find('.notice')[0].text
    wait_until(answered, 30, 'the scheduler has not answered')
    site.press('/jobs/ping_hosts', '/jobs/ping_hosts/resume')
    site.confirm()
    assert site.twin('/jobs/ping_hosts')['job']['paused_since'] is None


def test_a_confirmation_needs_the_reason_of_a_pause(site):
    site.press('/jobs/rebalance', '/jobs/rebalance/pause')
    site.find('.confirm button')[0].click()

    assert site.find('.confirm input:invalid')
    assert site.twin('/jobs/rebalance')['job']['paused_since'] is None


def test_an_object_is_run_in_the_browser(site):
    site.press('/jobs/ping_hosts/objects/host-1',
               '/jobs/ping_hosts/trigger?object=host-1')
    site.confirm()

    assert site.events()[0][:2] == ('job trigger', 'ping_hosts')


def test_dead_objects_are_requeued_in_the_browser(site):
    site.press('/jobs/ping_hosts', '/jobs/ping_hosts/requeue')
    title = site.find('h1')[0].text
    site.confirm('the cable is back')

    assert 'Requeue' in title
    what, target, why, outcome = site.events()[0]
    assert (what, target, why) == (
        'dead requeue', 'ping_hosts', 'the cable is back')
    assert 'object' in outcome


def test_a_stuck_task_is_retried_and_cancelled_in_the_browser(site):
    [stuck] = site.twin('/tasks?stuck=1')
    path = f'/tasks/{stuck["id"]}'
    site.press(path, f'{path}/retry')
    site.confirm('the host is back')

    assert site.events()[0][:3] == (
        'task retry', stuck['id'], 'the host is back')
    wait_until(lambda: site.twin('/tasks?stuck=1'), 60,
               'the rollback did not fail again')
    site.press('/tasks?stuck=1', '/tasks/cancel?status=stuck')
    assert stuck['id'] in site.browser.page_source
    site.confirm('give up')
    what, _, why, outcome = site.events()[0]
    assert (what, why, outcome) == ('task cancel', 'give up', '1 task')


def test_a_reloaded_action_is_not_repeated(site):
    site.press('/jobs/ping_hosts/objects/host-2',
               '/jobs/ping_hosts/trigger?object=host-2')
    form = site.find('.confirm')[0]
    before = len(site.events())
    # The same form in two windows.
    sent = site.browser.execute_async_script(
        'const [form, done] = arguments; const send = () => fetch(form.action,'
        ' {method: "POST", body: new URLSearchParams(new FormData(form))})'
        '.then(answer => answer.url); '
        'Promise.all([send(), send(), send()]).then(done)', form)

    assert len(set(sent)) == 1
    assert '?done=' in sent[0]
    assert len(site.events()) == before + 1


def test_a_member_is_drained_and_undrained_in_the_browser(site):
    [name] = [one['member'] for one in site.twin('/members')
              if one['role'] == 'scheduler']
    site.press('/members', f'/members/{name.replace(":", "%3A")}/drain')
    site.confirm('a new kernel')

    def drained():
        return {one['member']: one['drained']
                for one in site.twin('/members')
                if one['role'] == 'scheduler'}
    assert drained() == {name: 'yes'}
    assert site.events()[0][:3] == ('member drain', name, 'a new kernel')
    site.press('/members', f'/members/{name.replace(":", "%3A")}/undrain')
    site.confirm()
    assert drained() == {name: 'no'}


def test_a_queue_is_halted_and_resumed_in_the_browser(site):
    def queue():
        [found] = [one for one in site.twin('/queues')
                   if one['queue'] == 'racks']
        return found['state'], found['why']
    first = site.submit('vm.reserve', '--queue', 'racks')
    wait_until(lambda: site.status(first) == 'succeeded', 60)
    site.press('/queues', '/queues/racks/halt')
    notice = site.confirm('the rack has no power')

    assert 'queue halt racks: done' in notice
    assert site.events()[0] == (
        'queue halt', 'racks', 'the rack has no power', 'done')
    state, why = queue()
    assert state == 'halted' and why.endswith(': the rack has no power')
    halted = site.submit('vm.reserve', '--queue', 'racks')
    other = site.submit('vm.reserve')
    wait_until(lambda: site.status(other) == 'succeeded', 60)
    assert site.status(halted) == 'waiting'
    site.press('/queues', '/queues/racks/resume')
    assert 'the rack has no power' in site.browser.page_source
    site.confirm('power is back')
    assert site.events()[0] == (
        'queue resume', 'racks', 'power is back', 'done')
    assert queue()[0] == 'open'
    wait_until(lambda: site.status(halted) == 'succeeded', 60,
               'the queue does not continue')


def test_a_standby_worker_is_promoted_in_the_browser(site):
    def partition():
        [found] = [one for one in site.twin('/partitions')
                   if one['partition'] == 'vm']
        return found
    wait_until(lambda: partition()['active'] and partition()['standby'],
               60, 'the partition has no spare worker')
    before = partition()
    [chosen] = {one['member'] for one in site.twin('/members')
                if one['role'] == 'worker of vm'} - {before['active']}
    site.press('/partitions', '/partitions/vm/promote?worker='
               + chosen.replace(':', '%3A'))
    title, text = (site.find(selector)[0].text for selector in ('h1', 'main'))
    notice = site.confirm('the disk of the other one is slow')

    assert chosen in title
    assert f'{before["active"]} is active' in text
    effect = (f'{chosen} is next; {before["active"]} releases the partition '
              'when its runs have ended')
    assert f'partition promote vm: {effect}' in notice
    assert site.events()[0] == (
        'partition promote', 'vm', 'the disk of the other one is slow',
        effect)
    wait_until(lambda: partition()['active'] == chosen, 60,
               f'{chosen} does not become active')
    assert partition()['activations'] == before['activations'] + 1
    task = site.submit('vm.reserve')
    wait_until(lambda: site.status(task) == 'succeeded', 60,
               f'{chosen} runs nothing')


@pytest.mark.parametrize(('path', 'address'), [
    ('/jobs/ping_hosts', '/jobs/ping_hosts/pause'),
    ('/jobs/ping_hosts', '/jobs/ping_hosts/trigger')])
def test_a_confirmation_fits_its_window_and_is_accessible(
        site, path, address):
    site.browser.get_log('browser')
    site.press(path, address)
    for width in WIDE, NARROW:
        resize(site.browser, width)

        assert width_of(site.browser) <= width
        assert violations(site.browser) == []
    assert site.browser.get_log('browser') == []


@pytest.mark.parametrize('path', [
    '/jobs/ping_hosts', '/members', '/jobs/ping_hosts/objects/host-7'])
def test_a_page_with_buttons_is_accessible(site, path):
    site.show(path)
    assert site.find('.actions button')
    for width in WIDE, NARROW:
        resize(site.browser, width)

        assert violations(site.browser) == []
        assert width_of(site.browser) <= width


def test_the_confirmation_of_a_hostile_id_runs_no_script(site):
    for key in watched.HOSTILE:
        if '\n' in key:
            continue
        site.show('/jobs/ping_hosts/objects?' + urllib.parse.urlencode(
            {'object': key}))
        [form] = [form for form in site.find('.actions form')
                  if '/trigger' in form.get_attribute('action')]
        form.find_element(By.TAG_NAME, 'button').click()
        wait_until(lambda: site.find('form.confirm'))

        assert site.browser.title != 'obeyed'
        site.confirm(key.replace('\u202e', ''))
        assert site.browser.title != 'obeyed'


def test_the_actions_work_without_scripts(site):
    site.browser.execute_cdp_cmd(
        'Emulation.setScriptExecutionDisabled', {'value': True})
    try:
        site.press('/jobs/rebalance', '/jobs/rebalance/pause')
        notice = site.confirm('no scripts')
        site.press('/jobs/rebalance', '/jobs/rebalance/resume')
        site.confirm()
    finally:
        site.browser.execute_cdp_cmd(
            'Emulation.setScriptExecutionDisabled', {'value': False})

    assert 'job pause' in notice


def test_a_form_of_another_site_does_not_act(site, tmp_path):
    before = site.events()
    file = tmp_path / 'evil.html'
    file.write_text(
        f'<form method="post" action="{site.url}/jobs/rebalance/pause">'
        '<input name="reason" value="evil"><button>x</button></form>')
    site.browser.get(f'file://{file}')
    site.find('button')[0].click()
    wait_until(lambda: site.browser.current_url.startswith(site.url))

    assert 'another site' in site.find('[role=alert]')[0].text
    assert site.events() == before


def test_a_user_who_can_only_read_gets_one_line(postgresql, tmp_path):
    place = Place(postgresql.url, tmp_path)
    place.run('poll', place.now, 'a')
    me = {USER_OF_PROCESS: 'me'}
    with user_who_reads(postgresql.url) as url:
        client = Client(web.application(configuration(
            connection=url, group=place.group, web_actions=True)))
        page = client.get('/jobs/poll', environ_overrides=me)
        asked = client.post('/jobs/poll/pause', environ_overrides=me)
        answer = client.post(
            '/api/jobs/poll/pause', environ_overrides=me,
            json={'reason': 'x'}, headers={'X-Requested-With': 'x'})
    place.store.close()

    assert (page.status_code, asked.status_code) == (200, 200)
    assert answer.status_code == 503
    assert 'permission denied' in answer.json['error']
    assert '\n' not in answer.json['error']


# -- the examples, which mount the page in a service


@pytest.fixture
def mounted(place_of_sqlite, monkeypatch):
    """Return a function that loads an example with these options."""
    def load(name, **options):
        place = place_of_sqlite
        place.run('poll', place.now, 'a')
        with place.config.open('a') as file:
            file.write('web_actions = true\n' + ''.join(
                f'{option} = {value}\n' for option, value in options.items())
                + '[keystone_authtoken]\nauth_type = password\n'
                'auth_url = http://127.0.0.1:1\nusername = nodewatch\n'
                'www_authenticate_uri = http://keystone.invalid\n'
                '[oslo_middleware]\nenable_proxy_headers_parsing = true\n')
        monkeypatch.setenv('OS_SERVICE_CONFIG', str(place.config))
        return Client(runpy.run_path(str(
            programs.ROOT / 'examples' / 'page' / name))['application'])
    return load


class Token:
    """A token of Keystone for a user with one role."""

    def __init__(self, role):
        self.data = fixture.V3Token(user_id='u1', user_name='alice')
        self.data.set_project_scope()
        self.data.add_role(name=role)


def test_the_example_behind_keystonemiddleware_trusts_only_its_tokens(
        mounted, place_of_sqlite, monkeypatch):
    tokens = {'of-admin': Token('admin').data, 'of-member': Token(
        'member').data}

    def fetch(self, token, **more):
        if token not in tokens:
            raise InvalidToken('no such token')
        return tokens[token]
    monkeypatch.setattr(auth_token.AuthProtocol, 'fetch_token', fetch)
    client = mounted('keystone.py', web_identity='keystone')

    def pause(token):
        return client.post('/api/jobs/poll/pause', json={'reason': 'x'},
                           headers={
            'X-Requested-With': 'x', 'X-Identity-Status': 'Confirmed',
            'X-Roles': 'admin', 'X-User-Id': 'u2', 'X-Auth-Token': token})

    assert client.get('/jobs').status_code == 401
    assert pause('').status_code == 401
    assert pause('none').status_code == 401
    refused = pause('of-member')
    assert refused.status_code == 403
    assert 'distperiodic:job:pause' in refused.json['error']
    assert pause('of-admin').status_code == 200
    [event] = place_of_sqlite.tell('events')[1]
    assert event['who'] == 'alice (u1)'

    # A proxy changes the host, and sends the name that the browser uses.
    asked = client.post('/jobs/poll/resume', headers={
        'X-Auth-Token': 'of-admin', 'X-Forwarded-Host': 'cloud.example',
        'X-Forwarded-Proto': 'https', 'Origin': 'https://cloud.example'})
    assert asked.status_code == 200
    assert 'Secure' in asked.headers['Set-Cookie']


def test_the_example_behind_a_plain_proxy_trusts_only_remote_user(
        mounted, place_of_sqlite):
    policy = place_of_sqlite.config.parent / 'policy.yaml'
    policy.write_text('"distperiodic:operator": "user_id:alice"\n')
    client = mounted('plain.py', web_identity='remote_user')

    def pause(environ, **headers):
        return client.post(
            '/periodic/api/jobs/poll/pause', json={'reason': 'x'},
            environ_overrides=environ,
            headers={'X-Requested-With': 'x', **headers})

    assert client.get('/').text == 'nodewatch\n'
    assert pause({}, **{'Remote-User': 'alice', 'X-Remote-User': 'alice'}
                 ).status_code == 403
    assert pause({'REMOTE_USER': 'bob'}).status_code == 403
    assert pause({'REMOTE_USER': 'alice'}).status_code == 200
    [event] = place_of_sqlite.tell('events')[1]
    assert event['who'] == 'alice'
