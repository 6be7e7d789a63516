# SPDX-License-Identifier: Apache-2.0
"""The program: its commands, and errors of one line."""

import subprocess
import sys

import pytest

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import shell

pytestmark = pytest.mark.usefixtures('logging_as_it_was')


def test_a_command_that_is_not_there_is_one_line(capsys):
    assert shell.main(['ring', 'shwo']) == 1

    said = capsys.readouterr()
    assert said.out == ''
    assert said.err.count('\n') == 1
    assert "no command 'ring'" in said.err
    assert 'ring show' in said.err


@pytest.mark.parametrize('argv', [
    ['--nonsense'],
    ['--log-file'],
    ['status', '--nonsense'],
    ['ring', 'simulate', '--members', '0'],
    ['ring', 'simulate', '--members', 'many'],
    ['ring', 'explain'],
    ['scheduler'],
    ['demo', '--seconds', '5'],
    ['status', '--config-file', '/does/not/exist.conf'],
    ['ring', 'simulate', '-f', 'nonsense'],
    ['ring', 'show', '--members', 'a', '-c', 'nonsense'],
], ids=' '.join)
def test_a_wrong_option_is_one_line_and_code_1(argv, capsys):
    assert shell.main(argv) == 1

    said = capsys.readouterr()
    assert said.out == ''
    assert said.err.startswith('distperiodic: ')
    assert said.err.count('\n') == 1


def test_an_error_of_ours_is_one_line_even_if_its_text_is_not(
        capsys, monkeypatch):
    def fail(*args):
        raise exceptions.CoordinationUnavailable('no\nanswer; start it')
    monkeypatch.setattr(configured.Configured, 'configuration', fail)

    assert shell.main(['ring', 'simulate']) == 1
    assert capsys.readouterr().err == 'distperiodic: no answer; start it\n'


def test_an_error_nobody_expected_names_its_kind_and_how_to_see_more(
        capsys, monkeypatch):
    def fail(*args):
        raise KeyError('x')
    monkeypatch.setattr(configured.Configured, 'configuration', fail)

    assert shell.main(['ring', 'simulate']) == 1
    said = capsys.readouterr().err
    assert said.startswith("distperiodic: KeyError: 'x'; ")
    assert '--debug' in said
    assert said.count('\n') == 1


def test_with_debug_an_error_has_its_traceback(capsys, monkeypatch):
    def fail(*args):
        raise exceptions.ConfigError('wrong')
    monkeypatch.setattr(configured.Configured, 'configuration', fail)

    assert shell.main(['--debug', 'ring', 'simulate']) == 1
    assert 'Traceback' in capsys.readouterr().err


def test_without_a_command_it_says_which_there_are(capsys):
    with pytest.raises(SystemExit):
        shell.main([])

    told = capsys.readouterr().out
    for name in ('demo', 'doctor', 'ring explain', 'ring show',
                 'ring simulate', 'scheduler', 'status', 'worker'):
        assert f'\n  {name} ' in told


def test_starting_the_program_loads_nothing_slow():
    slow = ['eventlet', 'kazoo', 'oslo_messaging', 'rich', 'tooz']
    loaded = subprocess.run(
        [sys.executable, '-c',
         'import sys; from distperiodic.cmd import shell; '
         'shell.main(["ring", "simulate", "--objects", "10"]); '
         f'print([n for n in {slow!r} if n in sys.modules])'],
        capture_output=True, text=True, check=True).stdout

    assert loaded.splitlines()[-1] == '[]'


def test_the_commands_choose_threads_for_whoever_asks_first():
    chosen = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c',
         'import distperiodic.cmd.shell, oslo_messaging; '
         'from oslo_service import backend; '
         'print(backend.get_backend_type().value)'],
        capture_output=True, text=True, check=True).stdout

    assert chosen.strip() == 'threading'


@pytest.mark.parametrize(('number', 'word', 'text'), [
    (1, 'member', '1 member'), (3, 'member', '3 members'),
    (2, 'entry', '2 entries'), (1200, 'object', '1,200 objects')])
def test_numbers_are_told_with_their_word(number, word, text):
    assert configured.plural(number, word) == text
