# SPDX-License-Identifier: Apache-2.0
"""The list of bugs that ``tox -e mutants`` plants in the product."""

import collections

import pytest
import yaml

from tests.mutants import known
from tests.mutants import suite as suites
from tests.mutants.bug import ROOT
from tests.mutants.bug import DoesNotApply
from tests.mutants.bug import bugs
from tests.mutants.bug import read

BUGS = bugs()
_RECORD = 'run: python -m tests.mutants --record --only NAME'


def failed(check):
    """Return the error of each bug that does not pass *check*."""
    found = {}
    for one in BUGS:
        try:
            check(one)
        except (DoesNotApply, SyntaxError, yaml.YAMLError) as exc:
            found[one.name] = str(exc)
    return found


def test_each_bug_can_still_be_planted():
    assert failed(lambda one: one.planted(ROOT)) == {}, (
        'the product has changed: change the lines of these bugs in '
        f'tests/mutants/*.txt, too, and for each of them {_RECORD}')


@pytest.mark.full
def test_a_file_with_a_planted_bug_can_be_parsed():
    def parse(one):
        text = one.planted(ROOT)
        if one.path.endswith('.yml'):
            yaml.safe_load(text)
        else:
            compile(text, one.path, 'exec')
    assert failed(parse) == {}


def test_each_bug_has_a_name_of_its_own():
    names = collections.Counter(bug.name for bug in BUGS)

    assert [name for name, times in names.items() if times > 1] == []


def test_a_suite_names_a_file_of_tests():
    for name in {name for one in BUGS for name in one.suites}:
        files = [word for word in suites.suite(name).command
                 if word.startswith('tests/')]

        assert files or name in ('simulation', 'simulation/standby'), name
        assert all((ROOT / path).is_file() for path in files), name


def bug(text):
    (one,) = read(text)
    return one


def test_a_bug_replaces_whole_lines_and_keeps_its_context(tmp_path):
    (tmp_path / 'a.py').write_text('one\ntwo\ntwo three\n')
    planted = bug(
        'bug: x\nin: a.py\nsuites: unit/a.py\n one\n-two\n+four\n')

    planted.plant(tmp_path)

    assert (tmp_path / 'a.py').read_text() == 'one\nfour\ntwo three\n'


@pytest.mark.parametrize('text', ['', 'one\n', 'two\ntwo\n'])
def test_a_bug_whose_text_does_not_stand_there_once_is_not_planted(
        tmp_path, text):
    (tmp_path / 'a.py').write_text(text)
    planted = bug('bug: x\nin: a.py\nsuites: unit/a.py\n-two\n+four\n')

    with pytest.raises(DoesNotApply, match='no longer applies'):
        planted.plant(tmp_path)


@pytest.mark.parametrize(('code', 'output', 'caught'), [
    (0, '3 passed\n', None),
    (1, '.F\nFAILED tests/unit/test_a.py::test_b - AssertionError\n1 failed',
     'test_a.py::test_b'),
    (1, 'E\nERROR tests/unit/test_a.py::test_b - x\n', 'test_a.py::test_b'),
    (1, 'F\nFAILED tests/unit/test_a.py::test_b[one or two]\n1 failed',
     'test_a.py::test_b[one or two]'),
])
def test_a_test_that_fails_has_caught_a_bug(code, output, caught):
    assert suites.suite('unit/test_a.py').caught(code, output) == caught


@pytest.mark.parametrize(('code', 'output'), [
    (2, 'ERROR tests/unit/test_a.py\n'), (4, ''), (5, 'no tests ran\n')])
def test_a_suite_that_judged_nothing_has_caught_nothing(code, output):
    with pytest.raises(suites.Unusable):
        suites.suite('unit/test_a.py').caught(code, output)


def test_each_bug_was_caught_by_a_suite_that_it_names():
    caught = known.read()
    names = {bug.name for bug in BUGS}

    assert names - caught.keys() == set(), f'for each of them {_RECORD}'
    assert caught.keys() - names == set(), (
        'remove the lines of these bugs from tests/mutants/caught.csv')
    assert [bug.name for bug in BUGS
            if caught[bug.name][0] not in bug.suites] == [], (
        f'for each of them {_RECORD}')


def test_each_test_that_caught_a_bug_exists():
    """If such a test is missing, the whole suite runs for each bug that the
    test caught.
    """
    missing = []
    texts = {}
    for suite, test in sorted(set(known.read().values())):
        kind = suite.partition('/')[0]
        if kind != 'simulation':
            file, *_, name = test.partition('[')[0].split('::')
            path = ROOT / 'tests' / kind / file
            if path not in texts:
                texts[path] = path.read_text()
            if f'def {name}(' not in texts[path]:
                missing.append(f'{suite} {test}')

    assert missing == [], (
        'correct the names of these tests in tests/mutants/caught.csv, or '
        f'for each bug of such a test {_RECORD}')


def test_most_bugs_are_caught_without_a_slow_test():
    suites = [suite for suite, _ in known.read().values()]

    slow = sum(suite.startswith('functional/') for suite in suites)
    assert slow <= len(suites) / 10, (
        'write a unit or conformance test for the new bug, and name it first')
