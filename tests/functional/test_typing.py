# SPDX-License-Identifier: Apache-2.0
"""A user's program, checked by a strict type checker."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import distperiodic

pytest.importorskip('mypy')

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = '''
from collections.abc import Iterable

from distperiodic import ConfigError
from distperiodic import Context
from distperiodic import DistperiodicError
from distperiodic import PeriodicTasks
from distperiodic import RunReplaced
from distperiodic import SchedulerService
from distperiodic import TaskDispenser
from distperiodic import WorkerService
from distperiodic import periodic_task


class Tasks(PeriodicTasks):

    def hosts(self, context: Context) -> Iterable[str]:
        return ['h1', 'h2']

    @periodic_task(spacing=5, objects='hosts', misfire='skip', retries=2)
    def ping(self, context: Context, host: str) -> None:
        if context.is_current():
            print(f'{context.tick:%H:%M:%S} {host}')

    @periodic_task
    def beat(self, context: Context) -> None:
        self.ping(context, 'h1')


def serve(tasks: Tasks) -> SchedulerService | None:
    try:
        return SchedulerService(tasks.conf, tasks)
    except (ConfigError, RunReplaced, DistperiodicError):
        return None


def pull(tasks: Tasks, open_tasks: dict[str, int]) -> list[str | int]:
    pool = TaskDispenser(tasks.conf, 'pool')
    pool.recreate_task_pool(open_tasks)
    pool.recreate_task_pool({1: 0.5}, as_of=pool.now())
    if pool.tasks_done('ann', ['a']) or pool.stats().done:
        pool.give_back('ann', [1, 'b'])
    return pool.assign_tasks(10, 'ann')


def work(tasks: Tasks) -> WorkerService:
    return WorkerService(tasks.conf, tasks)
'''


def check(tmp_path, text):
    """Return the output of mypy --strict for a program."""
    (tmp_path / 'program.py').write_text(text)
    told = subprocess.run(
        [sys.executable, '-m', 'mypy', '--strict', '--follow-imports=silent',
         '--disable-error-code=import-untyped', '--config-file=',
         f'--cache-dir={ROOT}/.mypy_cache/users', 'program.py'],
        cwd=tmp_path, env={'MYPYPATH': str(ROOT), 'PATH': '/usr/bin:/bin'},
        capture_output=True, text=True)
    assert told.stderr == ''
    return told.stdout


@pytest.mark.timeout(600)
def test_a_program_with_decorated_methods_is_strict(tmp_path):
    assert check(tmp_path, PROGRAM).startswith('Success')

    text = PROGRAM + '''

from distperiodic import no_such_name

reveal_type(Tasks().ping)
Tasks().ping('h1')


class Wrong(PeriodicTasks):

    @periodic_task(spaceing=5)
    def beat(self, context: Context) -> None:
        pass

    @periodic_task(spacing='5')
    def other(self, context: Context) -> None:
        context.tack
'''
    wrong = check(tmp_path, text)
    # The decorator preserves the type of a method.
    assert 'def (context: distperiodic.core.context.Context, host: str)' in (
        wrong)
    lines = text.splitlines()
    found = {lines[int(number) - 1].strip() for number in re.findall(
        r'^program.py:(\d+): error', wrong, re.MULTILINE)}
    assert found == {
        'from distperiodic import no_such_name', "Tasks().ping('h1')",
        '@periodic_task(spaceing=5)', "@periodic_task(spacing='5')",
        'context.tack'}
    assert 'Missing positional argument "host"' in wrong
    assert 'has no attribute "no_such_name"' in wrong
    assert '"Context" has no attribute "tack"' in wrong


def test_each_name_is_there_for_people_and_type_checkers():
    tree = ast.parse((ROOT / 'distperiodic' / '__init__.py').read_text())
    imported = [alias.name for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                and node.module.startswith('distperiodic')
                for alias in node.names]

    assert sorted(imported) == sorted(distperiodic.__all__)
    for name in distperiodic.__all__:
        assert getattr(distperiodic, name).__name__ == name


def test_the_package_alone_loads_nothing():
    told = subprocess.run(
        [sys.executable, '-c',
         'import sys, distperiodic; distperiodic.Context; '
         'distperiodic.ConfigError; distperiodic.PeriodicTasks; '
         'print([name for name in ("oslo_messaging", "oslo_service", '
         '"eventlet", "sqlalchemy", "tooz") if name in sys.modules])'],
        capture_output=True, text=True, check=True, cwd=ROOT)

    assert told.stdout == '[]\n'
