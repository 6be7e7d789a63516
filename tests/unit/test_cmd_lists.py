# SPDX-License-Identifier: Apache-2.0
"""Lists that are declared as queries."""

import contextlib
import io
import json

import pytest

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import shell
from distperiodic.cmd import terminal
from distperiodic.operator import cells


class _Numbers(display.List):
    """A list of seconds."""

    for_people = ('table',)
    only_people = ('Word',)
    only_programs = ('Digits',)
    empty = 'There is no number.'
    cut = 'The first {}.'
    columns = {
        'Age (s)': lambda number: cells.age(number),
        'At': lambda number: cells.instant(number * 1_000_000 + 500_000),
        'Word': lambda number: f'no. {number}',
        'Digits': lambda number: len(str(number))}
    numbers = (90, 3600)

    def add_options(self, parser):
        configured.add_limit(parser, 'numbers')

    def fetch(self, session):
        return self.numbers[:session.parsed.limit]


def listed(*argv, kind=_Numbers):
    """Return the output of a list, and its errors."""
    application = shell.Shell()
    output, errors = io.StringIO(), io.StringIO()
    application.stdout = terminal.Printable(output)
    application.stderr = terminal.Printable(errors)
    command = kind(application, None)
    command.run(command.get_parser('command').parse_args(argv))
    return output.getvalue(), errors.getvalue()


def test_programs_get_the_unit_of_an_age_and_people_its_words():
    told, _ = listed('-f', 'json')
    assert json.loads(told) == [
        {'age_s': 90, 'at': '1970-01-01T00:01:30.500000Z', 'digits': 2},
        {'age_s': 3600, 'at': '1970-01-01T01:00:00.500000Z', 'digits': 4}]

    told, _ = listed()
    assert [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in told.splitlines() if '|' in line] == [
        ['Age', 'At', 'Word'],
        ['1m30s', '1970-01-01T00:01:30Z', 'no. 90'],
        ['1h', '1970-01-01T01:00:00Z', 'no. 3600']]


@pytest.mark.parametrize(('argv', 'sentence'), [
    ([], ''), (['--limit', '1'], 'The first 1.\n'),
    (['--limit', '3'], '')])
def test_a_list_that_reaches_its_limit_may_be_cut(argv, sentence):
    assert listed(*argv, '-f', 'csv')[1] == sentence


def test_an_empty_list_has_its_titles_and_a_sentence():
    class Empty(_Numbers):
        numbers = ()

    told, sentence = listed('-f', 'csv', kind=Empty)

    assert told == '"age_s","at","digits"\n'
    assert sentence == 'There is no number.\n'


@pytest.mark.parametrize('argv', [
    ['job', 'list'], ['why', 'ping', 'node-1']], ids=' '.join)
def test_a_command_opens_the_store_once(argv, tmp_path, monkeypatch):
    url = f'sqlite:///{tmp_path}/claims'
    file = tmp_path / 'service.conf'
    file.write_text(f'[distperiodic]\nconnection = {url}\n')
    schema.sync(url)
    with contextlib.closing(SqlClaimStore(
            url, namespace='distperiodic')) as claims:
        claims.adopt({'ping': 'every 60000000'})
    opened, connect = [], schema.connect

    def counted(*args, **limits):
        opened.append(connect(*args, **limits))
        return opened[-1]
    monkeypatch.setattr(schema, 'connect', counted)

    assert shell.main([*argv, '--config-file', str(file)]) < 2
    assert len(opened) == 1
