# SPDX-License-Identifier: Apache-2.0
"""Two kinds of processes divide the tests of a run; see :mod:`tests.lanes`."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests import lanes

RECORDED = '''
import json
import os
import pathlib
import time

import pytest

RECORD = pathlib.Path(__file__).parents[2] / 'record'


@pytest.fixture(autouse=True)
def recorded(request):
    begin = time.monotonic()
    yield
    with RECORD.open('a') as file:
        file.write(json.dumps([
            request.path.parent.name, request.node.name, begin,
            time.monotonic(), os.environ['PYTEST_XDIST_WORKER'],
            os.nice(0)]) + '\\n')

@pytest.mark.parametrize('number', range(9))
def test_passes(number):
    time.sleep(0.02)
'''
LIVES = RECORDED + '''
@pytest.mark.xdist_group('life')
@pytest.mark.parametrize('number', range(2))
def test_lives(number):
    time.sleep(0.4)
'''


@pytest.fixture
def tree(tmp_path):
    """A directory with the root and the suites of a project."""
    (tmp_path / 'pytest.ini').touch()
    shutil.copy(lanes.__file__, tmp_path / 'conftest.py')
    for suite in 'chaos', 'functional', 'unit':
        place = tmp_path / 'tests' / suite
        place.mkdir(parents=True)
        (place / f'test_{suite}.py').write_text(
            LIVES if suite == 'chaos' else RECORDED)
    return tmp_path


def run(tree, *args, dist='loadgroup'):
    return subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'xdist.plugin', '--dist',
         dist, *args, 'tests'], cwd=tree, text=True, capture_output=True,
        env=os.environ | {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'})


@pytest.mark.parametrize('suites', [
    ('chaos', 'functional', 'unit'), ('chaos', 'functional'),
    ('chaos', 'unit'), ('unit',)], ids=' '.join)
def test_only_patient_tests_run_beside_a_life(tree, suites):
    for suite in {'chaos', 'functional', 'unit'}.difference(suites):
        shutil.rmtree(tree / 'tests' / suite)

    ran = run(tree, '-n', '4', '--patient', '2')

    assert ran.returncode == 0, ran.stdout
    record = [json.loads(line)
              for line in (tree / 'record').read_text().splitlines()]
    assert sorted((suite, name) for suite, name, *_ in record) == sorted(
        [(suite, f'test_passes[{number}]') for suite in suites
         for number in range(9)]
        + [('chaos', f'test_lives[{number}]') for number in range(2)
           if 'chaos' in suites])
    lived = max((end for _, name, _, end, *_ in record
                 if name.startswith('test_lives')), default=0)
    for suite, name, begin, _, worker, niceness in record:
        if suite == 'functional' or name.startswith('test_lives'):
            assert niceness == os.nice(0)
            assert worker in ('gw2', 'gw3')
        else:
            assert niceness == max(lanes.LOW, os.nice(0))
        assert suite != 'functional' or begin > lived


@pytest.mark.parametrize('number', [1, 2])
def test_fewer_tests_than_processes_run(tree, number):
    for suite in 'chaos', 'unit':
        shutil.rmtree(tree / 'tests' / suite)

    ran = run(tree, '-n', '3', '--patient', '2', *(
        f'--deselect=tests/functional/test_functional.py::test_passes[{one}]'
        for one in range(number, 9)))

    assert ran.returncode == 0, ran.stdout
    assert f'{number} passed' in ran.stdout


def test_no_process_repeats_the_life_of_a_process_that_crashed(tree):
    shutil.rmtree(tree / 'tests' / 'unit')
    file = tree / 'tests' / 'chaos' / 'test_chaos.py'
    file.write_text(LIVES.replace(
        'time.sleep(0.4)', 'number or os._exit(1)'))

    ran = run(tree, '-n', '4', '--patient', '2', '--max-worker-restart', '0')

    assert ran.returncode != 0
    assert 'test_lives' not in (tree / 'record').read_text()


def test_a_run_that_would_divide_a_life_is_refused(tree):
    ran = run(tree, '-n', '3', '--patient', '1', dist='load')

    assert ran.returncode != 0
    assert 'add this option' in ran.stdout + ran.stderr


def test_a_run_without_a_process_for_other_tests_is_refused(tree):
    ran = run(tree, '-n', '2', '--patient', '2')

    assert ran.returncode != 0
    assert '--patient=2 leaves no process' in ran.stdout + ran.stderr
