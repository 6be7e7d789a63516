# SPDX-License-Identifier: Apache-2.0
"""The processes of a partition with ``executor = process``.

Each test starts real processes.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.processes import Processes
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from tests.programs import is_over
from tests.waiting import wait_until

ALONE = os.path.join(os.path.dirname(__file__), 'alone')
sys.path.insert(0, ALONE)
misbehaving = importlib.import_module('misbehaving')
Modules, run = misbehaving.Modules, misbehaving.run
# Maximum seconds until a run has ended whose process has ended.
AT_ONCE = 10


@pytest.fixture
def processes(request):
    made = Processes(
        Modules(None), [], 'tests', getattr(request, 'param', 1))
    yield made
    made.close()


def began(told, number=1):
    """Wait until *number* processes have begun. Return their pids."""
    return wait_until(lambda: told.exists() and len(
        found := told.read_text().split()) >= number and [*map(int, found)],
        60)


def handlers():
    """Return the pids of the living processes for handlers."""
    found = set()
    for one in psutil.Process().children():
        # The process may end at any moment.
        with contextlib.suppress(psutil.NoSuchProcess):
            if 'distperiodic-handler' in one.cmdline() and not is_over(
                    one.pid):
                found.add(one.pid)
    return found


def test_an_idle_process_that_is_killed_is_replaced(processes):
    killed = json.loads(run(processes))['pid']
    assert killed in handlers()
    os.kill(killed, signal.SIGKILL)

    # It is replaced although no run needs it.
    wait_until(lambda: handlers() and killed not in handlers())
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
def test_processes_start_before_the_first_run(processes):
    wait_until(lambda: len(handlers()) == 3, 60)


@pytest.mark.parametrize('processes', [2], indirect=True)
def test_a_run_ends_at_once_however_its_process_ends(processes, tmp_path):
    monotonic = SystemClock().monotonic
    file, told = tmp_path / 'file', tmp_path / 'told'
    file.touch()
    for how, problem in (
            ('exit', 'its process ended with exit code 3'),
            ('crash', 'its process was ended by signal 11'),
            ('stop', 'it was stopped by a signal for 2 s'),
            # Such a process kills itself.
            ('close', 'its process was ended by signal 9'),
            ('reopen', 'its process was ended by signal 9'),
            ('fork', 'its process ended with exit code 4'),
            ('leave', '7'),
            ('interrupt', ''),
            ('unpleasant', 'an exception without a text'),
            ('strange', '\ud800')):
        run(processes)

        start = monotonic()
        with pytest.raises(Exception) as caught:
            run(processes, None, how=how, file=str(file), told=str(told))

        assert str(caught.value) == problem, how
        assert monotonic() - start < AT_ONCE, how
        assert file.read_text() == '', how
    wait_until(lambda: len(handlers()) == 2)
    # Nothing is left of the processes that the handlers forked.
    wait_until(lambda: all(map(is_over, {*began(told)} - handlers())))


def test_a_process_that_is_stopped_while_it_is_idle_delays_no_run(processes):
    stopped = json.loads(run(processes))['pid']
    os.kill(stopped, signal.SIGSTOP)

    assert json.loads(run(processes))['pid'] != stopped
    assert is_over(stopped)


def test_processes_of_a_handler_end_at_its_timeout(
        processes, tmp_path):
    told = tmp_path / 'told'
    run(processes)

    with pytest.raises(TimeoutError):
        run(processes, 3.0, how='start', told=str(told))

    wait_until(lambda: all(map(is_over, began(told, 2))))


def test_processes_of_a_handler_end_with_the_service(processes, tmp_path):
    told = tmp_path / 'told'
    outcomes = []

    def ended():
        try:
            run(processes, None, how='start', told=str(told))
        except Exception as exc:
            outcomes.append(exc)
    thread = threading.Thread(target=ended)
    thread.start()
    pids = began(told, 2)

    monotonic = SystemClock().monotonic
    start = monotonic()
    processes.close()
    thread.join()

    assert monotonic() - start < AT_ONCE
    assert isinstance(outcomes[0], ChildProcessError)
    wait_until(lambda: all(map(is_over, pids)))
    assert handlers() == set()


def test_processes_of_a_handler_end_with_a_service_that_is_killed(tmp_path):
    told = tmp_path / 'told'
    service = subprocess.Popen([sys.executable, '-c', (
        'import misbehaving\n'
        'from distperiodic.adapters.local.processes import Processes\n'
        'made = Processes(misbehaving.Modules(None), [], "tests", 1)\n'
        f'misbehaving.run(made, None, how="start", told={str(told)!r})')],
        env=os.environ | {'PYTHONPATH': ALONE})
    pids = began(told, 2)

    service.kill()
    service.wait()

    wait_until(lambda: all(map(is_over, pids)))


@pytest.mark.parametrize('raises', [False, True])
def test_a_child_that_a_handler_forked_reports_nothing(processes, raises):
    first = json.loads(run(processes))['pid']

    # The child would report an outcome of the same run, and run the next one.
    for _ in range(3):
        assert json.loads(run(processes, how='fork_and_return',
                              raises=raises))['pid'] == first

    wait_until(lambda: all(
        is_over(one.pid) for one in psutil.Process(first).children()))


def test_a_child_that_returns_from_a_handler_ends_well(processes):
    with pytest.raises(Exception, match='status 0'):
        run(processes, how='fork_and_wait')


def test_a_process_ends_with_the_lease_of_its_run(processes, tmp_path):
    told = tmp_path / 'told'
    monotonic = SystemClock().monotonic
    run(processes)

    with pytest.raises(ports.LeaseEnded):
        run(processes, None, monotonic() + 1, how='start', told=str(told))

    wait_until(lambda: all(map(is_over, began(told))))
    run(processes)


def test_a_handler_learns_that_its_run_is_cancelled(processes, tmp_path):
    context = Context(RunInput('task:m.run', 't', 0, 1, 1))
    context.cancelled = True
    run(processes, how='cancelled', context=context)


def test_processes_that_cannot_be_built_fail_their_runs_at_once(monkeypatch):
    made = Modules(None)
    monkeypatch.setenv('TEST_HANDLERS_FAIL', '1')
    made = Processes(made, [], 'tests', 2)
    try:
        with pytest.raises(ChildProcessError, match='as soon as they start'):
            run(made)
        monkeypatch.delenv('TEST_HANDLERS_FAIL')

        def recovered():
            try:
                return run(made)
            except ChildProcessError:
                return None
        wait_until(recovered, 60)
    finally:
        made.close()


@pytest.mark.parametrize('processes', [3], indirect=True)
@pytest.mark.parametrize('kills', [
    10, pytest.param(100, marks=pytest.mark.full)])
def test_processes_killed_at_random_moments_hang_no_run(
        processes, tmp_path, kills):
    """Some runs fail with their process. Each run ends, and none twice."""
    random_ = random.Random(7)
    done, lost, over = [], [], threading.Event()
    pause = threading.Event()

    def work():
        while not over.is_set():
            try:
                run(processes, 30.0, how='sleep', seconds=0.002)
                done.append(1)
            except ChildProcessError as exc:
                lost.append(str(exc))
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(kills):
        before = len(done)
        wait_until(lambda: len(done) > before, 60)  # noqa: B023
        victim = random_.choice(sorted(wait_until(handlers)))
        # Some processes are killed while they start.
        pause.wait(random_.random() * 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, (signal.SIGKILL, signal.SIGTERM)[number % 2])
    before = len(done)
    wait_until(lambda: len(done) > before + 20, 60)
    over.set()
    for thread in threads:
        thread.join(AT_ONCE)

    assert not any(thread.is_alive() for thread in threads)
    wait_until(lambda: len(handlers()) == 3, 60)
