# SPDX-License-Identifier: Apache-2.0
"""Failed functional and chaos tests run once more, alone; see
:mod:`tests.rerun`.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import rerun

PLANTED = '''
import os
import pathlib
import pytest

def first(name):
    try:
        pathlib.Path(f'{__file__}.{name}').touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

@pytest.fixture
def setup_fails_once():
    assert not first('setup')

@pytest.fixture
def teardown_fails_once():
    yield
    assert not first('teardown')

def test_passes():
    pass

@pytest.mark.xdist_group('own')
@pytest.mark.parametrize('x', ['a b', 'c::d[e]'])
def test_fails_once(x):
    assert not first(x)

def test_setup(setup_fails_once):
    pass

def test_teardown(teardown_fails_once):
    pass
'''
XDIST = ('-p', 'xdist.plugin', '-n', '2', '--dist', 'loadgroup',
         '--max-worker-restart', '0')
FAILS = 'def test_fails(): assert False\n'
CRASHES = '''
def test_crashes_once():
    if first('crash'):
        os._exit(0)
'''


@pytest.fixture
def tree(tmp_path):
    """A directory with the root and the suites of a project."""
    (tmp_path / 'pytest.ini').touch()
    # Without the package of the tests, which takes long to import.
    shutil.copy(rerun.__file__, tmp_path / 'conftest.py')
    for suite in 'chaos', 'functional', 'unit':
        (tmp_path / 'tests' / suite).mkdir(parents=True)
    return tmp_path


def call(tree, *args):
    """Run pytest until it ends."""
    return subprocess.run(
        [sys.executable, '-m', 'pytest', '--rerun-failed', *args], cwd=tree,
        text=True, capture_output=True,
        # tox makes all environments of pytest share a cache.
        env={name: value for name, value in os.environ.items()
             if name != 'TOX_ENV_DIR'} | {
                 'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'})


def run(tree, *args):
    """Return the exit code of pytest, the number of tests with each outcome,
    and the flaky tests.
    """
    ran = call(tree, *args)
    lines = ran.stdout.splitlines()
    numbers = {outcome: int(number) for number, outcome in re.findall(
        r'(\d+) (passed|failed|flaky|error)', lines[-1])}
    return ran.returncode, numbers, [
        line.removeprefix('FLAKY tests/').removesuffix(
            ': failed once, then passed alone')
        for line in lines if line.startswith('FLAKY')]


@pytest.mark.parametrize(
    'options', [(), XDIST], ids=['one process', 'more processes'])
def test_tests_that_fail_once_are_flaky_and_the_run_succeeds(tree, options):
    for suite in 'chaos', 'functional':
        (tree / f'tests/{suite}/test_{suite}.py').write_text(PLANTED)
    names = ['test_fails_once[a b]', 'test_fails_once[c::d[e]]', 'test_setup',
             'test_teardown']
    chaos, functional = (
        [f'{suite}/test_{suite}.py::{name}' for name in names]
        for suite in ('chaos', 'functional'))

    code, numbers, flaky = run(tree, 'tests/chaos', *options)
    assert (code, flaky) == (0, chaos)
    assert numbers == {'passed': 2, 'flaky': 4}

    code, numbers, flaky = run(tree, 'tests/functional', *options)
    assert (code, flaky) == (0, chaos + functional)
    assert numbers == {'passed': 2, 'flaky': 4}

    code, numbers, flaky = run(tree, 'tests/functional', *options)
    assert (code, flaky) == (0, chaos + functional)
    assert numbers == {'passed': 5}


def test_each_test_runs_again_in_a_process_of_its_own(tree):
    (tree / 'tests/functional/test_other.py').write_text(PLANTED + """
left = []

@pytest.mark.parametrize('x', 'ab')
def test_needs_a_new_process(x):
    left.append(x)
    assert not first(x) and left == [x]
""")

    code, numbers, _ = run(tree)
    assert (code, numbers) == (0, {'passed': 2, 'flaky': 6})


@pytest.mark.parametrize(
    'options', [(), XDIST], ids=['one process', 'more processes'])
def test_the_output_of_the_first_time_is_shown(tree, options):
    (tree / 'tests/functional/test_other.py').write_text(PLANTED + """
def test_speaks():
    print('it is', 'slow')
    assert not first('speaks')
""")
    ran = call(tree, '-k', 'speaks', *options)

    assert ran.returncode == 0
    assert ran.stdout.count('it is slow') == 1


@pytest.mark.parametrize(('suite', 'text', 'failed'), [
    ('functional', FAILS, {'failed': 1}),
    ('functional', CRASHES, {'failed': 1}),
    ('functional', 'import nowhere', {'error': 1}),
    ('unit', '', {'failed': 2, 'error': 2})],
    ids=['fails twice', 'crashes', 'cannot be collected', 'unit test'])
def test_other_failures_are_not_excused(tree, suite, text, failed):
    (tree / 'tests/functional/test_flaky.py').write_text(PLANTED)
    (tree / f'tests/{suite}/test_other.py').write_text(PLANTED + text)

    code, numbers, flaky = run(tree, *XDIST)
    assert code != 0
    assert failed.items() <= numbers.items()
    assert all(one.startswith('functional/') for one in flaky)


def test_after_some_failed_twice_the_rest_counts_as_failed(tree):
    (tree / 'tests/functional/test_other.py').write_text(
        PLANTED + 'def test_z_last():\n    assert not first("z")\n')
    (tree / 'tests/functional/test_a.py').write_text(
        'import pytest\n'
        '@pytest.mark.parametrize("x", range(5))\n'
        + FAILS.replace('()', '(x)'))

    code, numbers, flaky = run(tree, *XDIST)
    assert (code, numbers['failed'], flaky) == (1, 8, [])
