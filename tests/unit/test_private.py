# SPDX-License-Identifier: Apache-2.0
"""The state directory of a service is protected from other users."""

import os
import stat

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.coordination import driver
from distperiodic.adapters.local import private
from distperiodic.adapters.local.process_slot import ProcessSlot
from distperiodic.cmd import shell
from distperiodic.store import check_store
from tests.configured import configuration


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def settings(tmp_path):
    """The settings of a service that keeps its claims in a file."""
    return opts.settings(configuration(state_path=str(tmp_path / 'state')))


def use_for_locks(settings):
    ProcessSlot(settings.state_path, 'scheduler').leave()


def use_for_claims(settings):
    check_store(settings, cfg.ConfigOpts())


def sync_from_outside(settings):
    config = os.path.dirname(settings.state_path) + '/service.conf'
    with open(config, 'w') as file:
        file.write(f'[distperiodic]\nstate_path = {settings.state_path}\n')
    assert shell.main(['db', 'sync', '--config-file', config]) == 0


uses = pytest.mark.parametrize('use', [use_for_locks, use_for_claims])


@pytest.mark.parametrize(
    'use', [use_for_locks, use_for_claims, sync_from_outside])
def test_new_files_are_private_to_this_user(settings, use):
    before = os.umask(0)
    try:
        use(settings)
    finally:
        os.umask(before)

    assert mode_of(settings.state_path) == 0o700
    made = os.listdir(settings.state_path)
    assert made
    assert {mode_of(os.path.join(settings.state_path, name))
            for name in made} == {0o600}


@uses
def test_a_directory_of_another_user_is_refused(settings, use, monkeypatch):
    os.mkdir(settings.state_path, 0o700)
    if os.geteuid():
        monkeypatch.setattr(private.os, 'geteuid', lambda: 4711)
    else:
        os.chown(settings.state_path, 4711, 4711)

    with pytest.raises(exceptions.ConfigError,
                       match='belongs to another user .*; set .*state_path'):
        use(settings)


@uses
def test_a_directory_that_everybody_may_write_is_refused(settings, use):
    os.mkdir(settings.state_path)
    os.chmod(settings.state_path, 0o1777)  # noqa: S103

    with pytest.raises(exceptions.ConfigError,
                       match='is writable by all users, so .*; set'):
        use(settings)


@uses
def test_a_directory_that_everybody_may_replace_is_refused(settings, use):
    os.chmod(os.path.dirname(settings.state_path), 0o777)  # noqa: S103

    with pytest.raises(exceptions.ConfigError,
                       match='is in a directory without the sticky bit'):
        use(settings)


@uses
def test_a_link_in_place_of_the_directory_is_refused(settings, use, tmp_path):
    (tmp_path / 'elsewhere').mkdir(0o700)
    os.symlink(tmp_path / 'elsewhere', settings.state_path)

    with pytest.raises(exceptions.ConfigError,
                       match="is a symbolic link.*/elsewhere' instead, if"):
        use(settings)

    assert os.listdir(tmp_path / 'elsewhere') == []


@pytest.mark.parametrize(('use', 'name'), [
    (use_for_locks, 'scheduler.0.lock'),
    (use_for_claims, 'distperiodic.sqlite')])
def test_a_link_in_place_of_a_file_is_not_followed(
        settings, use, name, tmp_path):
    target = tmp_path / 'elsewhere'
    os.mkdir(settings.state_path, 0o700)
    os.symlink(target, os.path.join(settings.state_path, name))

    with pytest.raises(exceptions.ConfigError, match='symbolic link'):
        use(settings)

    assert not target.exists()


def test_a_file_that_is_there_is_left_as_it_is(tmp_path):
    path = tmp_path / 'claims.sqlite'
    path.write_text('rows')
    path.chmod(0o640)

    private.make_file(str(path))

    assert path.read_text() == 'rows'
    assert mode_of(path) == 0o640


def test_a_group_in_a_directory_behind_a_link_is_refused(tmp_path):
    """The owner of the link could let this process join another group."""
    (tmp_path / 'real').mkdir(0o700)
    os.symlink(tmp_path / 'real', tmp_path / 'link')
    driver.check_private(f'file://{tmp_path}/real')
    driver.check_private(f'file://{tmp_path}/missing')

    with pytest.raises(exceptions.ConfigError,
                       match='backend_url .*/link. is a symbolic link'):
        driver.check_private(f'file://{tmp_path}/link/')


def test_a_group_in_a_directory_that_everybody_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)

    with pytest.raises(exceptions.ConfigError,
                       match='backend_url .* is writable by all .*file:///'):
        driver.check_private(f'file://{tmp_path}')
