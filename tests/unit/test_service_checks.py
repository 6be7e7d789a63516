# SPDX-License-Identifier: Apache-2.0
"""Warnings about the workflows file when a service starts."""

import dataclasses

import pytest
from oslo_config import cfg

from distperiodic import PeriodicTasks
from distperiodic import opts
from distperiodic import tasks
from distperiodic.service import checks
from tests.logged import lines


class Modules(PeriodicTasks):

    @tasks.command('a', 'run')
    def run(self, context, parameters):
        pass


@pytest.fixture
def warn(tmp_path):
    """Return a function that checks a file with this text; None: no file."""
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    path = tmp_path / 'workflows.yaml'
    settings = dataclasses.replace(
        opts.settings(conf), workflows=str(path))

    def of(text, kind='scheduler'):
        if text is not None:
            path.write_text(text)
        checks.warn_of_workflows(settings, Modules(None), kind)
        return path
    return of


def test_a_service_is_content_with_workflows_whose_commands_it_has(
        warn, caplog):
    warn('grow: [{normal: {module: a, command: run}}]')

    assert not lines(caplog)


def test_a_service_gives_the_place_of_an_error_in_the_workflows(warn, caplog):
    path = warn('grow:\n  - normal: {module: a, command: run, retry: no}\n')

    [line] = lines(caplog, 'workflows unusable')
    assert line['error'].startswith(f'{path}:2:')
    assert 'grow[0].normal.retry' in line.text


def test_a_service_names_a_file_of_workflows_that_it_cannot_read(
        warn, caplog):
    path = warn(None, 'worker')

    [line] = lines(caplog, 'workflows unusable')
    assert str(path) in line['error']


def test_only_a_scheduler_names_commands_that_it_does_not_have(warn, caplog):
    text = """
        grow: [{normal: {module: a, command: run}}]
        move: [{normal: {module: b, command: go},
                rollback: {module: b, command: back}}]
    """
    warn(text, 'worker')
    assert not lines(caplog)

    warn(text)

    [line] = lines(caplog, 'workflows with unknown commands')
    assert line.has(commands='b.back,b.go', types='move')


@pytest.mark.parametrize(('text', 'hint'), [
    ('[distperiodic]\nbackend_ulr = file:///x', "'backend_url'"),
    ('[distperiodic]\nexecutor = process', '[partition:NAME]'),
    ('[distperiodc]\nbackend_url = file:///x', "'distperiodic'"),
    ('[distperiodic]\nhash-ring-replicas-count = 3', None),
    ('[partition:a]\nexecutor = process\n[nova]\nhost = a', None)])
def test_a_service_names_options_without_effect(
        tmp_path, caplog, text, hint):
    path = tmp_path / 'service.conf'
    path.write_text(text)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)])

    checks.warn_of_options(conf)

    found = lines(caplog, 'option unknown')
    assert len(found) == (hint is not None)
    assert hint is None or hint in caplog.text
