# SPDX-License-Identifier: Apache-2.0
"""The names of the package; tests/typed_program.py checks their types."""

import ast
import pathlib
import subprocess
import sys

import distperiodic

ROOT = pathlib.Path(__file__).parents[2]


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
