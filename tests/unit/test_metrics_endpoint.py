# SPDX-License-Identifier: Apache-2.0
"""The option ``metrics_listen`` of the processes of a host."""

import contextlib
import os
import signal
import socket
import sys
import time
import urllib.request

import pytest
from prometheus_client import parser

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.core.listen import Address
from distperiodic.core.listen import parse_address
from distperiodic.core.telemetry import TickDue
from distperiodic.service import metrics_endpoint
from tests.configured import configuration
from tests.logged import lines
from tests.services.ports import free_port
from tests.unit.test_tally_files import Process
from tests.waiting import wait_until


@pytest.fixture
def settings(tmp_path):
    return opts.settings(configuration(
        state_path=str(tmp_path / 'state'),
        metrics_listen=f'127.0.0.1:{free_port()}'))


def scraped(address):
    """Return the values of a page by name and labels, or None until the page
    is served.
    """
    try:
        with urllib.request.urlopen(  # noqa: S310
                f'http://{address}/metrics', timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    return {(one.name, tuple(sorted(one.labels.items()))): one.value
            for family in parser.text_string_to_metric_families(text)
            for one in family.samples}


def sample(found, name, **labels):
    """Return the sum of the values of *name* that have *labels*."""
    return sum(value for (of, pairs), value in found.items()
               if of == name and labels.items() <= dict(pairs).items())


def ready(settings):
    return scraped(settings.metrics_listen)


@pytest.mark.parametrize(('text', 'host', 'port'), [
    ('127.0.0.1:9464', '127.0.0.1', 9464), ('[::1]:80', '::1', 80),
    ('example.org:65535', 'example.org', 65535)])
def test_an_address_is_a_host_and_a_port(text, host, port):
    assert parse_address(text, 'x') == Address(host, port)
    assert str(Address(host, port)) == text


def test_port_0_is_an_address_where_the_system_may_choose_a_port():
    assert parse_address('[::1]:0', 'x', lowest=0) == Address('::1', 0)


@pytest.mark.parametrize('text', [
    'x', '9464', ':9464', 'x:', 'x:0', 'x:65536', '::1:80', 'a b:80',
    'http://x:80'])
def test_another_form_of_an_address_is_refused(text):
    with pytest.raises(exceptions.ConfigError, match='metrics_listen'):
        opts.settings(configuration(metrics_listen=text))


def test_nothing_listens_or_counts_without_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(SUBSCRIBERS, 'count', None)
    settings = opts.settings(configuration(state_path=str(tmp_path)))

    metrics_endpoint.check(settings)
    metrics_endpoint.start(settings)()

    assert not [*tmp_path.iterdir()]


def test_the_metrics_of_two_services_of_a_process_are_served_until_both_stop(
        settings):
    stops = [metrics_endpoint.start(settings) for _ in range(2)]
    SUBSCRIBERS.put(TickDue('test-of-endpoint', 60))

    found = wait_until(lambda: ready(settings))
    assert sample(found, 'distperiodic_ticks_due_total',
                  job='test-of-endpoint') == 1
    stops[0]()
    assert ready(settings)
    stops[1]()
    assert wait_until(lambda: ready(settings) is None)


@contextlib.contextmanager
def forked(act):
    """Run *act* in a child, which ends with the block."""
    child = os.fork()
    if not child:
        try:
            act()
            time.sleep(60)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_service_of_a_forked_child_adds_its_values(settings):
    def serve():
        metrics_endpoint.check(settings)
        metrics_endpoint.start(settings)
        SUBSCRIBERS.put(TickDue('test-of-a-child', 60))
    stop = metrics_endpoint.start(settings)
    wait_until(lambda: ready(settings))
    with forked(serve):
        wait_until(lambda: sample(
            ready(settings), 'distperiodic_ticks_due_total',
            job='test-of-a-child') == 1)
    stop()


def test_a_forked_child_does_not_keep_the_address_of_its_parent(settings):
    stop = metrics_endpoint.start(settings)
    wait_until(lambda: ready(settings))
    with forked(lambda: None):
        stop()

        wait_until(lambda: metrics_endpoint.check(settings) or True)


def test_an_address_in_use_is_refused_in_one_line_before_the_start(settings):
    with socket.socket() as other:
        other.bind(('127.0.0.1', parse_address(
            settings.metrics_listen, '').port))
        other.listen()

        with pytest.raises(exceptions.ConfigError) as caught:
            metrics_endpoint.check(settings)
    assert settings.metrics_listen in str(caught.value)
    assert 'another program listens' in str(caught.value)
    assert '\n' not in str(caught.value)


def test_an_address_that_a_process_of_the_service_serves_is_not_refused(
        settings):
    stop = metrics_endpoint.start(settings)
    wait_until(lambda: ready(settings))

    metrics_endpoint.check(settings)
    stop()


def test_an_address_in_use_is_logged_once_and_tried_again(settings, caplog):
    with socket.socket() as other:
        other.bind(('127.0.0.1', parse_address(
            settings.metrics_listen, '').port))
        other.listen()
        stop = metrics_endpoint.start(settings)
        wait_until(lambda: lines(caplog, 'metrics not served'))
        assert 'another program listens' in metrics_endpoint.problem(settings)

    wait_until(lambda: ready(settings))
    assert len(lines(caplog, 'metrics not served')) == 1
    assert wait_until(lambda: metrics_endpoint.problem(settings) == '')
    stop()


@pytest.mark.parametrize('name', ['server.lock', '*-*.json'])
def test_files_that_were_deleted_are_a_problem_with_the_remedy(
        settings, name, tmp_path):
    stop = metrics_endpoint.start(settings)
    wait_until(lambda: ready(settings))
    assert metrics_endpoint.problem(settings) == ''

    [file] = (tmp_path / 'state').glob(f'*/{name}')
    file.unlink()

    found = wait_until(lambda: metrics_endpoint.problem(settings))
    assert all(word in found for word in (
        str(file.parent), 'state_path', 'restart'))
    assert '\n' not in found
    stop()


def test_a_process_that_serves_and_hangs_is_a_problem_until_it_ends(
        settings, tmp_path):
    name = settings.metrics_listen.replace(':', '-')
    path = tmp_path / 'state' / f'metrics-{name}'
    with contextlib.ExitStack() as stack:
        server = Process(str(path), 1)
        stack.callback(server.kill)
        assert server.serves
        stop = metrics_endpoint.start(settings)
        stack.callback(stop)
        wait_until(lambda: len([*path.glob('*.json')]) == 2)
        assert metrics_endpoint.problem(settings) == ''

        os.utime(path / 'server.lock', (0, 0))

        found = wait_until(lambda: metrics_endpoint.problem(settings))
        assert settings.metrics_listen in found
        server.kill()
        wait_until(lambda: ready(settings))
        wait_until(lambda: metrics_endpoint.problem(settings) == '')


def test_a_slow_write_is_not_taken_for_a_hang(
        settings, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_endpoint, '_PAUSE_FACTOR', 1e9)
    monkeypatch.setattr(metrics_endpoint, '_HANGS', 1.0)
    stop = metrics_endpoint.start(settings)
    wait_until(lambda: ready(settings))
    [file] = tmp_path.glob('state/*/server.lock')
    os.utime(file, (0, 0))

    wait_until(lambda: file.stat().st_mtime > 0)
    stop()


def test_values_that_cannot_be_read_are_a_problem_until_they_can(
        settings, tmp_path):
    stop = metrics_endpoint.start(settings)
    wait_until(lambda: ready(settings))
    [place] = (tmp_path / 'state').iterdir()
    (place / 'ended.json').mkdir()
    ready(settings)

    assert str(place) in metrics_endpoint.problem(settings)
    (place / 'ended.json').rmdir()
    assert ready(settings)
    assert metrics_endpoint.problem(settings) == ''
    stop()


def test_a_missing_library_is_one_line_with_the_remedy(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, 'prometheus_client', None)

    for call in metrics_endpoint.check, metrics_endpoint.start:
        with pytest.raises(exceptions.ConfigError,
                           match=r'distperiodic\[metrics\]'):
            call(settings)
