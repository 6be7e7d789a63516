# SPDX-License-Identifier: Apache-2.0
"""A browser, and the page of a group that it opens."""

import contextlib
import json
import re
import stat
import urllib.request
import uuid

from axe_core_python.base import AXE_SCRIPT
from selenium import webdriver

from distperiodic.adapters.sql import schema
from tests import forks
from tests import programs
from tests.functional import watched
from tests.waiting import wait_until

#: Widths of windows, in pixels.
WIDE, NARROW = 1300, 420
_CHROMIUM = (
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic',
    '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--hide-scrollbars')


@contextlib.contextmanager
def page_of(config, log):
    """Serve a page. The value is its URL, and the program."""
    program = forks.Program(
        [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', 'web',
         '--listen', '127.0.0.1:0', '--config-file', config], log)
    with program:
        [url] = wait_until(
            lambda: re.findall(r'the page: (\S+)', program.said()), 60,
            f'no page; see {log}')
        yield url, program


def write_config(place, zookeeper, rabbitmq, postgresql, **options):
    """Write the configuration of a group with all servers. Return its file."""
    config = place / 'service.conf'
    workflows = place / 'workflows.json'
    workflows.write_text(json.dumps(watched.WORKFLOWS))
    schema.sync(postgresql.url)
    group = f'nodewatch-{uuid.uuid4().hex[:4]}'
    config.write_text(
        f'[DEFAULT]\ntransport_url = {rabbitmq.url}\n'
        f'[distperiodic]\nconnection = {postgresql.url}\ngroup = {group}\n'
        f'backend_url = {zookeeper.url}\ndispatcher = messaging\n'
        f'session_timeout = 8\npool_size = 4\nworkflows = {workflows}\n'
        f'state_path = {place}/state\n' + ''.join(
            f'{name} = {value}\n' for name, value in options.items()))
    config.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return config


def start(stack, config, *services):
    """Start services with the tasks :class:`watched.Nodes`, until *stack*
    ends.
    """
    for number, argv in enumerate(services):
        stack.enter_context(forks.Program(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', *argv,
             '--tasks', 'tests.functional.watched:Nodes',
             '--config-file', config], config.parent / f'{number}.log'))


def twin(url, path):
    with urllib.request.urlopen(  # noqa: S310
            f'{url.rstrip("/")}/api{path}') as answer:
        return json.load(answer)


@contextlib.contextmanager
def chromium(place):
    """Start a browser with its files in the directory *place*."""
    options = webdriver.ChromeOptions()
    options.binary_location = '/usr/bin/chromium'
    for argument in (*_CHROMIUM, f'--user-data-dir={place}'):
        options.add_argument(argument)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    driver = webdriver.Chrome(
        options, webdriver.ChromeService('/usr/bin/chromedriver'))
    # The rules of axe need a while on a machine that other tests use, too.
    driver.set_script_timeout(120)
    try:
        yield driver
    finally:
        driver.quit()


def show(browser, url, path, width=WIDE, height=900):
    """Open a page in a window of this size."""
    if path.endswith('STUCK'):
        [stuck] = twin(url, '/tasks?stuck=1')
        path = f'/tasks/{stuck["id"]}'
    resize(browser, width, height)
    browser.get(url + path)


def resize(browser, width, height=900):
    browser.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', {
        'width': width, 'height': height, 'deviceScaleFactor': 1,
        'mobile': width == NARROW})


def width_of(browser):
    """Return the width that the page in the browser needs, in pixels."""
    return browser.execute_script(
        'return document.documentElement.scrollWidth')


def violations(browser):
    """Return what the page in the browser violates of the rules of axe."""
    if browser.execute_script('return !window.axe'):
        browser.execute_script(AXE_SCRIPT)
    # It would also list each element that obeys a rule.
    found = browser.execute_async_script(
        "axe.run({resultTypes: ['violations']})"
        '.then(arguments[arguments.length - 1])')
    return [(one['id'], [node['html'] for node in one['nodes']][:3])
            for one in found['violations']
            if one['impact'] in ('serious', 'critical')]
