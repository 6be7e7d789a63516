# SPDX-License-Identifier: Apache-2.0
"""Output of commands: programs get stable keys, and people get lines that fit
the terminal.
"""

import io
import json
import re
import tomllib

import pytest
from cliff import lister

from distperiodic.cmd import checks
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import doctor
from distperiodic.cmd import findings
from distperiodic.cmd import shell
from distperiodic.cmd import terminal
from distperiodic.cmd.check import Check
from distperiodic.operator import cells
from tests.unit import test_documentation


@pytest.mark.parametrize(('title', 'key'), [
    ('Job', 'job'), ('Of fair', 'of_fair'), ('last tick', 'last_tick'),
    ('Mean late (ms)', 'mean_late_ms'), ('join_moves', 'join_moves')])
def test_programs_read_keys_of_one_style(title, key):
    assert cells.key(title) == key


@pytest.mark.parametrize('argv', [
    ['ring', 'show', '--members', 'a,b'],
    ['ring', 'show', '--arcs', '--members', 'a,b'],
    ['ring', 'explain', 'poll', 'h1', '--members', 'a,b'],
    ['ring', 'simulate', '--objects', '10'],
    ['doctor', '--offline']], ids=' '.join)
def test_each_key_is_in_snake_case(argv, capsys):
    shell.main([*argv, '-f', 'json'])

    told = json.loads(capsys.readouterr().out)
    for row in told if isinstance(told, list) else [told]:
        assert [key for key in row
                if not re.fullmatch('[a-z]+(_[a-z]+)*', key)] == []


def test_a_number_is_a_number_for_programs(capsys):
    shell.main(['ring', 'show', '--members', 'a,b', '-f', 'json'])

    [row, _] = json.loads(capsys.readouterr().out)
    assert {name: type(value) for name, value in row.items()} == {
        'member': str, 'points': int, 'share': float, 'fair': float,
        'of_fair': float, 'arcs': int, 'ring_format': int}


@pytest.mark.parametrize('name', ['Of fair', 'of_fair', 'OF_FAIR'])
def test_a_column_is_named_by_its_title_or_its_key(name, capsys):
    assert shell.main(['ring', 'show', '--members', 'a', '-f', 'csv',
                       '-c', name]) == 0

    assert capsys.readouterr().out.splitlines() == ['"of_fair"', '1.0']


def shown(columns, rows, *argv):
    """Return the output of a command with these rows."""
    class Command(display.Display, lister.Lister):
        def act(self, session):
            return columns, rows
    application = shell.Shell()
    output = io.StringIO()
    application.stdout = terminal.Printable(output)
    command = Command(application, None)
    command.run(command.get_parser('command').parse_args(argv))
    return output.getvalue()


def test_nothing_known_is_null_for_programs():
    assert json.loads(shown(
        'abcde', [['', cells.NEVER, 'never', 0, None]], '-f', 'json')) == [
        {'a': None, 'b': None, 'c': 'never', 'd': 0, 'e': None}]


@pytest.mark.parametrize('format_', ['table', 'value'])
def test_an_id_forges_no_row(format_):
    told = shown(['Object', 'Error'], [['a\nb | c', 'x'], ['d', 'y']],
                 '-f', format_)

    assert len([line for line in told.splitlines() if '+-' not in line]) == (
        2 + (format_ == 'table'))
    assert r'a\nb | c' in told


def test_the_lines_of_a_traceback_are_kept():
    told = shown(['Traceback'], [[cells.Lines('a\n  b\x07')]],
                 '-f', 'value')

    assert told == 'a\n  b\\x07\n'


@pytest.mark.parametrize('argv', [
    ['ring', 'show', '--members', 'a-very-long-host-name:1,b,c'],
    ['ring', 'show', '--arcs', '--members', 'a=2,b=1'],
    ['ring', 'explain', 'poll', 'h1', '--members', 'a,b'],
    ['ring', 'simulate', '--objects', '10'],
    ['doctor', '--offline'],
    ['job', 'pause', '--help'], ['history', '--help']], ids=' '.join)
def test_60_columns_are_enough(argv, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '60')
    shell.main(argv)

    told = capsys.readouterr().out
    assert told
    assert [line for line in told.splitlines() if len(line) > 60] == []


def test_a_narrow_table_keeps_its_essential_columns(capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '60')
    shell.main(['ring', 'show', '--arcs', '--members', 'a=2,b=1'])

    told = capsys.readouterr().out
    assert re.search(r'^Low +-9223372036854775808$', told, re.MULTILINE)
    shell.main(['ring', 'show', '--members', 'a-rather-long-host-name:1,b'])

    told = capsys.readouterr().out
    assert '| Member ' in told
    assert 'Arcs' not in told
    # A record that is too wide in both forms is still printed in full.
    shell.main(['ring', 'show', '--members', f'{"a" * 50}:1,b'])

    told = capsys.readouterr().out
    assert re.search(r'^Arcs +\d+$', told, re.MULTILINE)


def test_a_row_that_is_too_wide_becomes_a_block(monkeypatch):
    monkeypatch.setenv('COLUMNS', '40')

    assert shown(
        ('Job', 'Tick', 'Why'),
        [('poll', '2026-01-31T06:00:00Z',
          'the disks of both h1 and h2 are full'),
         ('sync', '2026-01-31T06:00:00Z', '')]).splitlines() == [
        'Job   poll', 'Tick  2026-01-31T06:00:00Z',
        'Why   the disks of both h1 and h2 are', '      full', '',
        'Job   sync', 'Tick  2026-01-31T06:00:00Z']


class _Terminal:
    def __init__(self):
        self.text = ''

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize(('value', 'coloured'), [('1', False), ('', True)])
def test_no_color_is_respected(value, coloured, monkeypatch):
    monkeypatch.setenv('NO_COLOR', value)
    application = shell.Shell()
    application.stdout = _Terminal()
    check = Check('x', 'ring', True, lambda case: None)

    monkeypatch.setattr(checks, 'run_all', lambda case: [
        (check, findings.ok('fine'))])
    command = doctor.Doctor(application, None)
    command.run(command.get_parser('doctor').parse_args(['--offline']))

    assert ('\x1b[' in application.stdout.text) is coloured


@pytest.mark.parametrize(('seconds', 'text'), [
    (0.25, '0.2s'), (59, '59s'), (60, '1m'), (3 * 3600 + 725, '3h12m'),
    (90_000, '1d1h')])
def test_an_age_has_two_units_at_most(seconds, text):
    assert configured.age(seconds) == text


def test_each_command_takes_its_job_as_an_argument():
    """No command has an option --job in place of the argument."""
    project = tomllib.loads((
        test_documentation.ROOT / 'pyproject.toml').read_text())['project']
    for name in project['entry-points']['distperiodic.cli']:
        parser = _parser(name.replace('_', ' '))
        assert not re.search(r'--job\b(?!-)', parser.format_help()), name


def _parser(name):
    application = shell.Shell()
    factory, _, _ = application.command_manager.find_command(name.split())
    return factory(application, application.options).get_parser(name)


@pytest.mark.parametrize(
    'command', ['history', 'next', 'running', 'audit', 'dead list'])
def test_a_job_that_is_named_twice_is_refused(command, capsys):
    """The command rejects its arguments before it opens a store."""
    assert shell.main([*command.split(), 'poll', '--job', 'sync']) == 2

    assert 'are both given' in capsys.readouterr().err
