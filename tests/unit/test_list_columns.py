# SPDX-License-Identifier: Apache-2.0
"""The columns of all lists, which operators know and programs read.

A change of a title is a change for users. Review it in ``list_columns.csv``,
and mention it in the release notes: the line ``table`` of a command has the
titles for people, and the line ``json`` has the keys for programs.
"""

import argparse
import contextlib
import csv
import pathlib

import pytest

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.cmd import display
from distperiodic.cmd import shell
from distperiodic.cmd.session import Session
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.operator import cells

# Arguments of the commands that cannot run without.
_ARGUMENTS = {'objects': ['ping'], 'partition show': ['mysql'],
              'ring show': ['--members', 'a']}
_FILE = pathlib.Path(__file__).with_name('list_columns.csv')


def lists():
    """Return the commands that show a declared list, by name."""
    manager = shell.Shell().command_manager
    commands = {name: manager.find_command(name.split())[0]
                for name, _ in manager}
    return {name: kind for name, kind in sorted(commands.items())
            if issubclass(kind, display.List)}


@pytest.fixture
def config_file(tmp_path):
    """Return the configuration of a group with a job and a partition."""
    url = f'sqlite:///{tmp_path}/claims'
    schema.sync(url)
    with contextlib.closing(SqlClaimStore(
            url, namespace='distperiodic')) as store:
        store.adopt({'ping': 'every 60000000'})
        store.partitions.beat(
            PartitionWorker('mysql', 'w:0~00000000000000aa'), Role.STANDBY,
            seconds=60.0)
    file = tmp_path / 'service.conf'
    file.write_text(f'[distperiodic]\nconnection = {url}\n')
    return file


def test_the_columns_of_all_lists_are_those_of_the_table(config_file):
    found = []
    for name, kind in lists().items():
        command = kind(shell.Shell(), argparse.Namespace(), cmd_name=name)
        parsed = command.get_parser(name).parse_args([
            *_ARGUMENTS.get(name, []), '--config-file', str(config_file)])
        with Session(parsed, command) as session:
            command.fetch(session)
        titles, _ = command.output((), people=True)
        found.append([name, 'table', *titles])
        titles, _ = command.output((), people=False)
        found.append([name, 'json', *map(cells.key, titles)])

    assert found == list(csv.reader(_FILE.open()))
