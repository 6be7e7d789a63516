# SPDX-License-Identifier: Apache-2.0
"""The alerts for Prometheus: each finding has one, and each has a page."""

import pathlib
import re

import pytest
import yaml

from distperiodic.core import metric_table
from distperiodic.operator import health

ROOT = pathlib.Path(__file__).parents[2]
RULES = ROOT / 'etc' / 'prometheus' / 'distperiodic.rules.yml'
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())['groups']
          for rule in group['rules']]
NAMES = [rule['alert'] for rule in ALERTS]
PAGE = (ROOT / 'doc' / 'source' / 'howto' / 'alerts.rst').read_text()
#: Codes whose alert uses a metric that has the name of the job.
BY_METRIC = ['ticks-lost']


def test_each_code_of_a_finding_has_one_alert():
    codes = [code for rule in ALERTS
             for found in re.findall(r'code=~?"([^"]+)"', rule['expr'])
             for code in found.split('|')]

    assert sorted([*codes, *BY_METRIC]) == sorted(health.CODES)


def test_an_alert_uses_only_metrics_that_exist():
    used = {name for rule in ALERTS
            for name in re.findall(r'distperiodic_\w+', rule['expr'])}

    assert used - metric_table.BY_NAME.keys() == set()


def test_each_alert_has_a_section_that_its_annotation_names():
    sections = re.findall(r'^(Distperiodic\w+)\n~+\n\n(\w+),', PAGE,
                          re.MULTILINE)

    assert sections == [
        (rule['alert'], rule['labels']['severity'].capitalize())
        for rule in ALERTS]
    assert [rule['annotations']['runbook_url'] for rule in ALERTS] == [
        f'howto/alerts.html#{name.lower()}' for name in NAMES]


@pytest.mark.parametrize('rule', ALERTS, ids=NAMES)
def test_a_section_states_the_time_after_which_its_alert_fires(rule):
    text = PAGE.partition(f'{rule["alert"]}\n~')[2]
    after = f'after {rule["for"]}' if 'for' in rule else 'at once'

    assert f', {after}. ' in text.partition('\nDistperiodic')[0].replace(
        '\n', ' ')


def test_each_alert_has_a_test_in_which_it_fires_and_clears():
    tests = yaml.safe_load(RULES.with_name(
        'distperiodic.rules.test.yml').read_text())['tests']

    assert [one['name'] for one in tests] == NAMES
    assert [
        [bool(case.get('exp_alerts')) for case in one['alert_rule_test']]
        for one in tests] == [[False, True, False]] * len(NAMES)
