# SPDX-License-Identifier: Apache-2.0
"""Faults of schedulers and workers; see :mod:`tests.chaos.faults`."""

import contextlib
import os
import signal
import time

from tests.chaos.pace import PACE

# Seconds to wait for a process to pass an armed failpoint. If no process
# passes it, the fault does not occur.
_PATIENCE = 15.0 * PACE


def kill(fault, kind):
    """Kill all processes of a host, and start the host again later."""
    host = yield from fault.take_host(kind)
    host.program.kill()
    yield fault.seconds
    host.start()


def freeze(fault, kind):
    """Stop each service process of a host for the duration of the fault.

    The launcher, which is the parent of these processes, continues to run.
    """
    host = yield from fault.take_host(kind)
    for pid in host.program.children:
        yield from _stop(fault, pid)


def _stop(fault, pid):
    begin = time.time_ns() // 1000
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    yield fault.seconds
    yield from go_on(fault, pid, begin)


def go_on(fault, pid, begin):
    """Continue a process that was stopped at *begin*.

    The recorded stall includes 0.3 s after the end of the stop, times
    the pace. In this time the process may still start work that it should no
    longer start.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    yield 0.3 * PACE
    fault.stall(pid, begin)


def strike(fault, number):
    """Kill or stop the next process that passes the failpoint of the fault.

    :param number: SIGKILL or SIGSTOP.
    """
    name = fault.fault.point
    armed = fault.cluster.place / 'points' / name
    begin = time.time_ns() // 1000
    # A process must not find the file before it is complete.
    written = armed.with_name(f'{name} (incomplete)')
    written.write_text(number.name)
    written.rename(armed)

    def is_taken():
        nonlocal begin
        now = time.time_ns() // 1000
        if not armed.exists():
            return True
        # This time is not later than the moment at which the process passes
        # the point.
        begin = now
        return False
    yield from fault.until(is_taken, _PATIENCE)
    armed.unlink(missing_ok=True)
    for taken in armed.parent.glob(f'{name}.*'):
        pid = int(taken.name.rpartition('.')[2])
        fault.began, fault.happened = begin, True
        fault.befell.add(pid)
        if number is signal.SIGSTOP:
            yield fault.seconds
            yield from go_on(fault, pid, begin)
        taken.unlink()


def roll(fault):
    """Restart all hosts, one after another."""
    for host in fault.cluster.hosts.values():
        yield from fault.take(host.name)
        began = time.monotonic()
        host.program.terminate()
        ended = yield from fault.until(
            lambda host=host: not host.program.running, 40.0 * PACE)
        if not ended:
            fault.find(f'{host.name} was asked to end and did not within '
                       f'{time.monotonic() - began:.0f} s')
            host.program.kill()
        host.start()
        yield 1.0 * PACE
        fault.end('restart', host.name)


def change_points(fault):
    """Change a scheduler's number of points on the ring, and then restore it.

    On SIGHUP, the scheduler reads the new number.
    """
    host = yield from fault.take_host('scheduler')
    for points in fault.random.choice([8, 80, 200]), 40:
        host.points = points
        host.configure()
        host.program.hang_up()
        yield fault.seconds


def take_name(fault):
    """Start a second process with the name of a running process."""
    host = yield from fault.take_host()
    # During a restart of ZooKeeper, the second process might join before the
    # first one. So reserve ZooKeeper, to prevent other faults of ZooKeeper.
    yield from fault.take('zookeeper')
    fault.befell.discard('zookeeper')
    fault.happened = yield from fault.until(
        lambda: _told_by(fault.cluster, host, 'point'))
    if not fault.happened:
        return
    log = host.place / 'twin.log'
    twin = host.spawn(host.configure(
        'twin.conf', state_path=host.place / 'twin'), log)
    yield fault.seconds
    pids = twin.kill()
    # If another fault killed or stopped the first process at a failpoint, the
    # second process may have acquired its name. Otherwise the second process
    # must not run anything.
    if not _told_by(fault.cluster, host, 'struck'):
        fault.driver.strangers.update(pids)


def _told_by(cluster, host, what):
    """Return whether a process of *host* has recorded *what* in the ledger."""
    pids = set(host.program.children)
    return any(line['what'] == what and line['pid'] in pids
               for line in cluster.told())


def step_clock(fault):
    """Set the wall clock of one host ahead or back for the duration of the
    fault.
    """
    host = yield from fault.take_host()
    host.turn_clock(fault.random.choice([-20.0, -3.0, -1.0, 1.0, 3.0, 20.0]))
    yield fault.seconds
    host.turn_clock(0.0)


def fill_log(fault):
    """Restart a host with a log on a full device, and later restart it with
    its own log file.
    """
    host = yield from fault.take_host()
    host.program.kill()
    host.start(log='/dev/full')
    yield fault.seconds
    host.program.kill()
    host.start()
