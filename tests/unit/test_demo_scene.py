# SPDX-License-Identifier: Apache-2.0
"""The demo reports processes that fail."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from distperiodic.demo.scene import Scene
from distperiodic.demo.scene import Seat


@pytest.mark.parametrize(('state', 'code', 'failed'), [
    ('up', 0, []), ('up', 3, ['member-1 (exit code 3)']),
    ('is killed', 3, [])])
def test_a_process_that_ends_with_an_error_is_named(state, code, failed):
    scene = Scene(Console(file=io.StringIO()), None, seconds=30.0, members=1,
                  hosts=1, urls=('', '', ''))
    process = subprocess.Popen([sys.executable, '-c', f'exit({code})'])
    process.wait()
    scene.seats['member-1'] = Seat(process, state)

    scene.end()

    assert scene.failed == failed
