# SPDX-License-Identifier: Apache-2.0
"""A fork is like a new process that runs a module."""

import os
import signal
import subprocess

import pytest

from tests import forks
from tests.programs import PYTHON
from tests.programs import ROOT

MODULE = '''
import atexit
import os
import sys
import threading

atexit.register(print, 'the last word')
print(__name__, sys.argv[1:], os.getcwd(), os.environ['ONE'], os.getpid(),
      threading.active_count(), sorted(os.listdir('/proc/self/fd')))
print(sys.stdin.readline())
sys.exit(int(sys.argv[1]))
'''


@pytest.fixture
def start(tmp_path):
    (tmp_path / 'said.py').write_text(MODULE)
    return lambda *args: forks.Popen(
        [*PYTHON, '-m', 'said', *args], cwd=tmp_path, stderr=2,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={'ONE': '1', 'PYTHONPATH': str(ROOT)})


def test_a_module_runs_as_in_a_new_process(start, tmp_path):
    # The first fork runs meanwhile.
    first, one = start('7'), start('3', 'x y')
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0)
    assert one.poll() is None
    one.stdin.close()

    assert one.wait(30) == 3 == one.poll()
    assert one.stdout.read().splitlines() == [
        f"__main__ ['3', 'x y'] {tmp_path} 1 {one.pid} 1 "
        "['0', '1', '2', '3']", '',
        'the last word']
    first.stdin.close()
    assert first.wait(30) == 7


def test_a_signal_ends_a_fork():
    with open(os.devnull) as nothing:
        one = forks.Popen(
            [*PYTHON, '-m', 'timeit', '-n', '1', '-r', '1',
             'import signal; signal.pause()'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=nothing)
    assert one.poll() is None
    one.send_signal(signal.SIGTERM)
    assert one.wait(30) == -signal.SIGTERM
    one.kill()
