# SPDX-License-Identifier: Apache-2.0
"""The alerts, as Prometheus evaluates them."""

import subprocess

import pytest

from tests.programs import ROOT
from tests.services import server

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
