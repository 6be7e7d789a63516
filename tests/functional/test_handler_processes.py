# SPDX-License-Identifier: Apache-2.0
"""The processes of a partition with ``executor = process``.

Each test starts real processes.
"""

import contextlib
import json
import math
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
from distperiodic.adapters.local.process_links import Call
from distperiodic.adapters.local.processes import Processes
from distperiodic.core.context import Context
from distperiodic.core.workflow import StepInput
from tests.functional.misbehaving import Modules
from tests.waiting import wait_until

# Maximum seconds until a run has ended whose process has ended.
AT_ONCE = 10


@pytest.fixture(scope='module')
def shared():
    """A pool whose second process is ready while the first is replaced."""
    made = Processes(Modules(None), [], 'tests', 2)
    yield made
    made.close()


@pytest.fixture
def processes(request):
    made = Processes(
        Modules(None), [], 'tests', getattr(request, 'param', 1))
    yield made
    made.close()


def run(processes, timeout=30.0, until=math.inf, context=None, **parameters):
    """Run a command. Return its result, which contains the pid, as JSON."""
    step = StepInput('t', 0, False, 30.0, parameters)
    return processes.run(
        Call('task:m.run', 't', 0, 1, 1, None, 'null', step, '',
             until, (parameters,)),
        context or Context('task:m.run', 't', 0, 1, 1, None, lambda: True,
                           step=step),
        timeout, lambda: until)


def began(told, number=1):
    """Wait until *number* processes have begun. Return their pids."""
    return wait_until(lambda: told.exists() and len(
        found := told.read_text().split()) >= number and [*map(int, found)],
        60)


def lives(pid):
    return (psutil.pid_exists(pid)
            and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def handlers():
    """Return the pids of the living processes for handlers."""
    return {one.pid for one in psutil.Process().children()
            if one.status() != psutil.STATUS_ZOMBIE
            and 'distperiodic-handler' in one.cmdline()}


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


@pytest.mark.parametrize('how, problem', [
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
    ('strange', '\ud800'),
])
def test_a_run_ends_at_once_however_its_process_ends(
        shared, tmp_path, how, problem):
    monotonic = SystemClock().monotonic
    run(shared)
    file = tmp_path / 'file'
    file.touch()

    start = monotonic()
    with pytest.raises(Exception) as caught:
        run(shared, None, how=how, file=str(file),
            told=str(tmp_path / 'told'))

    assert str(caught.value) == problem
    assert monotonic() - start < AT_ONCE
    assert file.read_text() == ''
    assert json.loads(run(shared))['pid'] in handlers()
    # Nothing is left of the processes that the handler forked.
    wait_until(lambda: not any(map(lives, set(
        began(tmp_path / 'told')) - handlers())))


def test_a_process_that_is_stopped_while_it_is_idle_delays_no_run(processes):
    stopped = json.loads(run(processes))['pid']
    os.kill(stopped, signal.SIGSTOP)

    assert json.loads(run(processes))['pid'] != stopped
    assert not lives(stopped)


def test_what_a_handler_started_dies_with_it_at_its_timeout(
        shared, tmp_path):
    told = tmp_path / 'told'
    run(shared)

    with pytest.raises(TimeoutError):
        run(shared, 3.0, how='start', told=str(told))

    wait_until(lambda: not any(map(lives, began(told, 2))))


def test_what_a_handler_started_dies_with_the_service(processes, tmp_path):
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
    wait_until(lambda: not any(map(lives, pids)))
    assert handlers() == set()


def test_what_a_handler_started_dies_with_a_service_that_is_killed(tmp_path):
    told = tmp_path / 'told'
    service = subprocess.Popen([sys.executable, '-c', (
        'from tests.functional import test_handler_processes as t\n'
        'made = t.Processes(t.Modules(None), [], "tests", 1)\n'
        f't.run(made, None, how="start", told={str(told)!r})')])
    pids = began(told, 2)

    service.kill()
    service.wait()

    wait_until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize('raises', [False, True])
def test_a_child_that_a_handler_forked_reports_nothing(processes, raises):
    first = json.loads(run(processes))['pid']

    # The child would report an outcome of the same run, and run the next one.
    for _ in range(3):
        assert json.loads(run(processes, how='fork_and_return',
                              raises=raises))['pid'] == first

    wait_until(lambda: not [
        one for one in psutil.Process(first).children()
        if one.status() != psutil.STATUS_ZOMBIE])


def test_a_child_that_returns_from_a_handler_ends_well(shared):
    with pytest.raises(Exception, match='status 0'):
        run(shared, how='fork_and_wait')


def test_a_process_ends_with_the_lease_of_its_run(shared, tmp_path):
    told = tmp_path / 'told'
    monotonic = SystemClock().monotonic
    run(shared)

    with pytest.raises(ports.LeaseEnded):
        run(shared, None, monotonic() + 1, how='start', told=str(told))

    wait_until(lambda: not any(map(lives, began(told))))
    run(shared)


def test_a_handler_learns_that_its_run_is_cancelled(shared, tmp_path):
    context = Context('task:m.run', 't', 0, 1, 1, None, lambda: True)
    context.cancelled = True
    run(shared, how='cancelled', context=context)


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
def test_processes_killed_at_random_moments_hang_no_run(processes, tmp_path):
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
    for number in range(50):
        victim = wait_until(handlers).pop()
        # Some processes are killed while they start.
        pause.wait(random_.random() * 0.15)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, (signal.SIGKILL, signal.SIGTERM)[number % 2])
    before = len(done)
    wait_until(lambda: len(done) > before + 20, 60)
    over.set()
    for thread in threads:
        thread.join(AT_ONCE)

    assert not any(thread.is_alive() for thread in threads)
    wait_until(lambda: len(handlers()) == 3, 60)
