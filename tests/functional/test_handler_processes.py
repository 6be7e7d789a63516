# SPDX-License-Identifier: Apache-2.0
"""The processes of a partition with ``executor = process``.

Each test starts real processes.
"""

import json
import math
import os
import signal
import threading

import psutil
import pytest

from distperiodic import PeriodicTasks
from distperiodic import tasks
from distperiodic.adapters.local.processes import Call
from distperiodic.adapters.local.processes import Processes
from distperiodic.core.context import Context
from distperiodic.core.workflow import StepInput
from tests.waiting import wait_until


class Modules(PeriodicTasks):

    @tasks.command('m', 'who')
    def who(self, context, parameters):
        return {'pid': os.getpid()}


@pytest.fixture
def processes(request):
    made = Processes(
        Modules(None), [], 'tests', getattr(request, 'param', 1))
    yield made
    made.close()


def run(processes):
    """Run a command. Return its result, which contains the pid, as JSON."""
    step = StepInput('t', 0, False, 30.0, {})
    return processes.run(
        Call('task:m.who', 't', 0, 1, 1, None, 'null', step, '',
             math.inf, ({},)),
        Context('task:m.who', 't', 0, 1, 1, None, lambda: True, step=step),
        30.0, lambda: math.inf)


def children():
    return {one.pid for one in psutil.Process().children(recursive=True)}


def test_an_idle_process_that_is_killed_is_replaced(processes):
    killed = json.loads(run(processes))['pid']
    assert killed in children()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in {
        one.pid for one in psutil.Process().children()
        if one.status() != psutil.STATUS_ZOMBIE})

    assert json.loads(run(processes))['pid'] != killed


def test_processes_outlive_the_thread_of_the_first_run(processes):
    ran = []
    thread = threading.Thread(target=lambda: ran.append(run(processes)))
    thread.start()
    thread.join()

    # The thread of the first run has ended. Its processes must still run.
    for _ in range(3):
        assert run(processes) == ran[0]


@pytest.mark.parametrize('processes', [3], indirect=True)
def test_the_processes_that_are_replaced_together_end_together(processes):
    run(processes)
    wait_until(lambda: len(handlers()) == 3)
    before = handlers()
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    # The pool has noticed its end: not even a zombie is left.
    wait_until(lambda: not psutil.pid_exists(killed))

    run(processes)

    assert not handlers() & before
    wait_until(lambda: len(handlers()) == 3)


def handlers():
    """Return the pids of the living processes for handlers."""
    return {one.pid for one in psutil.Process().children()
            if one.status() != psutil.STATUS_ZOMBIE
            and any('spawn_main' in word for word in one.cmdline())}
