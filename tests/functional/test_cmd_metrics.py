# SPDX-License-Identifier: Apache-2.0
"""``distperiodic metrics`` on each database, without a process of the group.
"""

import contextlib
import socket

import pytest
from prometheus_client import parser

from distperiodic.core import metric_table as table
from tests import claiming
from tests.functional import commands
from tests.functional.places import SECOND
from tests.unit.test_metrics_endpoint import free_port
from tests.unit.test_metrics_endpoint import sample
from tests.unit.test_metrics_endpoint import scraped
from tests.waiting import wait_until


def samples(text):
    return {(one.name, tuple(sorted(one.labels.items()))): one.value
            for family in parser.text_string_to_metric_families(text)
            for one in family.samples}


@contextlib.contextmanager
def serving(place, tmp_path, *options):
    """Serve the metrics of a group. Yield the process and a function that
    reads them.
    """
    address = f'127.0.0.1:{free_port()}'
    running = commands.Running(
        tmp_path / 'metrics.log', 'metrics', '--listen', address,
        '--config-file', place.config, *options)
    try:
        wait_until(lambda: scraped(address), 60)
        yield running, lambda: scraped(address)
    finally:
        running.kill()


def test_the_text_has_what_the_store_knows(place):
    place.run('ping', place.now - 5 * SECOND, 'a', 'b', dead=['b'])
    claiming.claim(place.store, 'ping', place.now, ['a'], lease='l',
                   holder='api-1', seconds=60.0, supersede=False)

    found = samples(place.ask('metrics'))

    assert sample(found, table.STORE_UP.name) == 1
    assert sample(found, table.RUNS_WAITING.name, partition='default') == 1
    assert sample(found, table.LAST_SUCCESS.name, job='ping') == pytest.approx(
        (place.now - 5 * SECOND) / 1e6, abs=1)
    assert sample(found, table.FINDINGS.name, code='object-dead') == 1
    assert sample(found, table.FINDINGS.name, code='queue-halted') == 0
    assert sample(found, table.FACTS_COMPLETE.name) == 1


def test_the_file_for_a_collector_is_replaced(place_of_sqlite, tmp_path):
    file = tmp_path / 'collected' / 'distperiodic.prom'
    file.parent.mkdir()
    file.write_text('old')

    assert place_of_sqlite.ask('metrics', '--output', file) == ''

    assert sample(samples(file.read_text()), table.STORE_UP.name) == 1
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_each_scrape_reads_the_store_or_shows_that_it_is_away(
        place_of_sqlite, tmp_path):
    place = place_of_sqlite
    file = tmp_path / 'claims.sqlite'
    with serving(place, tmp_path) as (running, read):
        assert sample(read(), table.STORE_UP.name) == 1
        claiming.claim(place.store, 'ping', place.now, ['a'], lease='l',
                       holder='api-1', seconds=60.0, supersede=False)
        wait_until(lambda: sample(read(), table.RUNS_WAITING.name) == 1, 60)

        file.rename(tmp_path / 'away')

        found = wait_until(lambda: (lambda now: sample(
            now, table.STORE_UP.name) == 0 and now)(read()), 60)
        assert sample(found, table.FINDINGS.name, code='store-unavailable')
        assert sample(found, table.FACTS_COMPLETE.name) == 0

        (tmp_path / 'away').rename(file)
        wait_until(lambda: sample(read(), table.STORE_UP.name) == 1, 60)
        running.terminate()
        running.wait()
    said = (tmp_path / 'metrics.log').read_text()
    assert said.count('does not exist') == 1
    assert 'Traceback' not in said


def test_an_expected_member_that_is_missing_is_a_finding(
        place_of_sqlite, tmp_path):
    place = place_of_sqlite
    place.config.write_text(
        place.config.read_text() + f'backend_url = file://{tmp_path}/ring\n')

    found = samples(place.ask('metrics', '--expect', 2))

    assert sample(found, table.FINDINGS.name, code='too-few') == 1
    assert sample(found, table.COORDINATION_UP.name) == 1


def test_missing_tables_are_one_line_and_a_metric(place_of_sqlite, tmp_path):
    (tmp_path / 'empty.sqlite').touch()
    config = tmp_path / 'empty.conf'
    config.write_text('[distperiodic]\n'
                      f'connection = sqlite:///{tmp_path}/empty.sqlite\n')

    told = commands.call('metrics', '--config-file', config, cwd=tmp_path)

    assert told.returncode == 1
    assert sample(samples(told.stdout), table.STORE_UP.name) == 0
    assert told.stderr.count('\n') == 1
    assert 'distperiodic db sync' in told.stderr


@pytest.mark.parametrize('options, words', [
    (['--listen', 'nowhere'], ['nowhere', '127.0.0.1:9464']),
    (['--listen', '192.0.2.1:9465'], ['192.0.2.1:9465', 'address']),
    (['--output', '/nowhere/file.prom'], ['/nowhere/file.prom', 'directory']),
    (['--output', 'a', '--listen', 'b'], ['not allowed with'])])
def test_an_argument_that_cannot_be_used_is_refused_in_one_line(
        place_of_sqlite, options, words):
    told = place_of_sqlite.refuse('metrics', *options)

    assert [word for word in words if word not in told] == []


def test_a_port_in_use_is_refused_in_one_line(place_of_sqlite):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'

        told = place_of_sqlite.refuse('metrics', '--listen', address)

    assert address in told and 'in use' in told


def test_a_configuration_without_a_group_is_refused_in_one_line(
        place_of_sqlite):
    place_of_sqlite.config.write_text('[distperiodic]\nconnection = none\n')

    assert 'backend_url' in place_of_sqlite.refuse('metrics')
