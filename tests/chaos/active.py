# SPDX-License-Identifier: Apache-2.0
"""Faults of the active worker, and choices of an operator.

Three workers serve the partition :data:`tests.chaos.cluster.ALONE`. The faults
of other modules may affect these workers, too. But most of those faults
overlap a fault of a server, and then no worker has to take over. So each fault
of this module except :func:`ask` first reserves the active worker and all
servers, and waits for a worker that is able to take over. The fault keeps the
servers reserved until another worker has begun a run, or until the time limit
for this run is over.
"""

import contextlib
import os
import signal
import subprocess
import time
from typing import NamedTuple

from tests import programs
from tests.chaos import processes
from tests.chaos.cluster import ALONE
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SPARES
from tests.chaos.network import CUTS
from tests.chaos.pace import PACE
from tests.chaos.promises import PROMISE
from tests.chaos.promises import SLACK
from tests.chaos.promises import START

_SOON = 0.1
# Maximum number of seconds to wait for a worker that is able to take over.
_SPARE = START + 2.0 * PACE
# Maximum number of commands with which an operator replaces the active worker.
_TRIES = 3
#: Seconds until the command of an operator must have ended.
ANSWERS = 60.0 * PACE
#: A member id that no worker has.
NOBODY = 'nobody'


class Asked(NamedTuple):
    """A command of an operator that chooses the next active worker."""

    #: When the command began and ended, in microseconds.
    begin: int
    end: int
    member: str
    #: Exit code of the command. None means that it did not end in time.
    code: int | None
    #: Output of the command.
    text: str

    @property
    def answer(self):
        """Return the kind of the answer."""
        if self.code != 0:
            return 'refused'
        return ('needless' if 'is already active' in self.text
                else 'accepted')


def kill(fault):
    """Kill the active worker. Start its host after the take-over."""
    host = yield from _take_active(fault)
    host.program.kill()
    yield from _until_replaced(fault, host)
    yield fault.seconds
    host.start()


def freeze(fault):
    """Suspend the active worker. Continue it after another worker has taken
    over.
    """
    host = yield from _take_active(fault)
    begin, pids = time.time_ns() // 1000, host.program.children
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    yield from _until_replaced(fault, host)
    yield fault.seconds
    for pid in pids:
        yield from processes.go_on(fault, pid, begin)


def cut_off(fault):
    """Cut the active worker off from ZooKeeper and PostgreSQL, and sometimes
    from the broker. The process of the worker continues to run.
    """
    host = yield from _take_active(fault)
    ways = [host.ways[name] for name in SERVERS
            if name != 'broker' or fault.random.random() < 0.5]
    for way in ways:
        way.set(fault.random.choice(CUTS))
    yield from _until_replaced(fault, host)
    yield fault.seconds
    for way in ways:
        way.set('pass')


def promote(fault):
    """Make an operator choose another worker, while nothing is wrong."""
    host = yield from _take_active(fault)
    active = host.name
    for _ in range(_TRIES):
        asked = yield from _ask(fault, fault.random.choice(
            _spares(fault, active)
            or [name for name in SPARES if name != active]))
        if asked.answer == 'accepted':
            break
        if asked.answer == 'needless':
            # This worker has become active in the meantime.
            active = asked.member
        # Or the member was down. The operator asks again when one is able.
        yield from fault.until(
            lambda active=active: _spares(fault, active), _SPARE)
    yield from _until_replaced(fault, host)
    # The command itself is no fault.
    fault.befell.clear()


def ask(fault):
    """Make an operator choose a worker at any time. The worker may be down, or
    may not exist.
    """
    active, members = fault.cluster.active(), [*SPARES]
    if fault.random.random() < 0.8 and active is not None:
        members.remove(active)
    yield from _ask(fault, NOBODY if fault.random.random() < 0.1
                    else fault.random.choice(members))


def _take_active(fault):
    """Reserve the host of the active worker and all servers. Return the host
    as soon as another worker is able to take over, but at the latest after
    ``_SPARE`` seconds. If the worker is no longer active by then, begin again
    with the new active worker.

    Like all faults, reserve hosts before servers, so that no two faults wait
    for each other.
    """
    while True:
        name = yield from _wait_for_active(fault)
        yield from fault.take(name)
        yield from fault.take(*SERVERS)
        yield from fault.until(lambda name=name: _spares(fault, name),
                               _SPARE)
        host = fault.cluster.hosts[name]
        if fault.cluster.active() == name and host.program.children:
            fault.befell = {name}
            fault.began = time.time_ns() // 1000
            return host
        fault.release()


def _wait_for_active(fault):
    while True:
        name = fault.cluster.active()
        if name is not None and fault.is_free(name):
            return name
        yield _SOON


def _spares(fault, active):
    """Return the other workers that no fault has affected lately."""
    since = time.time_ns() // 1000 - int(START * 1e6)
    lately = {name for window in fault.driver.windows
              if window.end > since and window.kind != 'rolling restart'
              for name in window.befell}
    return [name for name in SPARES if name != active
            and fault.is_free(name) and name not in lately]


def _until_replaced(fault, host):
    """Wait until another worker has begun a run, or should have done so. Then
    release the servers.
    """
    yield from fault.until(
        lambda: fault.cluster.active() not in (host.name, None),
        PROMISE + SLACK + 1.0 * PACE)
    fault.release(*SERVERS)


def _ask(fault, member):
    """Make an operator choose *member* by a command. Record the answer, and
    return it.
    """
    fault.happened = True
    found = []

    def command():
        begin = time.time_ns() // 1000
        code, text = None, ''
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*programs.PYTHON, '-m', 'distperiodic.cmd.shell',
                 'partition', 'promote', ALONE, member, '--config-file',
                 fault.cluster.client_config], cwd=programs.ROOT, text=True,
                capture_output=True, timeout=ANSWERS, check=False)
            code, text = done.returncode, (done.stdout + done.stderr).strip()
        found.append(Asked(
            begin, time.time_ns() // 1000, member, code, text))
        fault.driver.asked += found
    yield from fault.apart(command)
    return found[0]
