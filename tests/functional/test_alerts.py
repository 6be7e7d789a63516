# SPDX-License-Identifier: Apache-2.0
"""The alerts, and the queries of the dashboard, as Prometheus reads them."""

import subprocess

import pytest
import yaml

from tests.programs import ROOT
from tests.services import server
from tests.unit.test_dashboard import KEDA
from tests.unit.test_dashboard import QUERIES

DIRECTORY = ROOT / 'etc' / 'prometheus'


@pytest.fixture(scope='module')
def promtool():
    return server.program('promtool', 'prometheus')


@pytest.mark.parametrize('command, file', [
    ('check', 'distperiodic.rules.yml'),
    ('test', 'distperiodic.rules.test.yml')])
def test_prometheus_accepts_the_rules_and_each_alert_fires_and_clears(
        promtool, command, file):
    done = subprocess.run(
        [promtool, command, 'rules', DIRECTORY / file], capture_output=True,
        text=True, timeout=120)

    assert (done.returncode, 'SUCCESS' in done.stdout) == (0, True), (
        done.stdout + done.stderr)


def test_prometheus_can_parse_each_query_of_the_dashboard_and_of_keda(
        promtool, tmp_path):
    queries = [query.replace('$__rate_interval', '5m') for query in QUERIES]
    queries += [one['metadata']['query'] for one in KEDA['spec']['triggers']]
    file = tmp_path / 'rules.yml'
    file.write_text(yaml.safe_dump({'groups': [{'name': 'queries', 'rules': [
        {'record': f'query_{number}', 'expr': query}
        for number, query in enumerate(queries)]}]}))

    done = subprocess.run([promtool, 'check', 'rules', file],
                          capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr
