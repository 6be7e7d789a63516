# SPDX-License-Identifier: Apache-2.0
"""Faults of the servers; see :mod:`tests.chaos.faults`."""

import contextlib
import os
import signal

import psutil
import pytest
import sqlalchemy as sa

from tests import waiting
from tests.chaos import journal
from tests.chaos.pace import PACE

# Seconds for which the tests wait for a lock in the database.
_PATIENCE = 3 * PACE
# Seconds within which at least one process must listen to a queue.
_QUEUES = 15.0 * PACE


def kill(fault, *names):
    """Kill servers, and start them again with their data."""
    yield from fault.take(*names)
    found = [getattr(fault.cluster, name) for name in names]
    for server in found:
        _kill(server)
    yield fault.seconds
    for server in found:
        yield from _start(fault, server)


def _kill(server):
    # PostgreSQL's child processes end only when they detect that the server is
    # gone. So kill them too.
    left = psutil.Process(server.pid).children(recursive=True)
    server.kill()
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _start(fault, server):
    server.start(wait=False)
    while True:
        if not server.running:
            # The start failed because a part of the old server still existed.
            yield 0.5
            server.start(wait=False)
        answered = yield from fault.until(
            lambda: server.answers() or not server.running, 60.0 * PACE)
        if answered and server.running:
            return


def wipe(fault, name):
    """Kill a server, and start it again without any data."""
    yield from fault.take(name)
    server = getattr(fault.cluster, name)
    server.kill()
    server.wipe()
    yield fault.seconds
    yield from _start(fault, server)


def freeze(fault, name):
    """Stop all processes of a server, and continue them later."""
    yield from fault.take(name)
    server = getattr(fault.cluster, name)
    first = psutil.Process(server.pid)
    for number in signal.SIGSTOP, signal.SIGCONT:
        for one in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        if number is signal.SIGSTOP:
            yield fault.seconds


def run_out(fault, resource):
    """Make the broker run out of a resource, so that it accepts no messages.
    """
    yield from fault.take('broker')
    yield from fault.apart(lambda: fault.cluster.bus.run_out(resource))
    yield fault.seconds
    yield from fault.apart(lambda: fault.cluster.bus.recover(resource))


def delete_queue(fault):
    """Delete the queue of a member, with its messages."""
    yield from fault.take('broker')
    fault.happened = False

    def delete():
        found = sorted(fault.cluster.queues().values())
        return found and fault.cluster.bus.delete_queue(
            fault.random.choice(found))

    def delete_soon():
        # After another fault of the broker, the members create their queues
        # again, one after another.
        waiting.wait_until(delete, _QUEUES)
        fault.happened = True
    # The call fails if no process listens to a queue in time.
    with contextlib.suppress(pytest.fail.Exception):
        yield from fault.apart(delete_soon)


def command(fault, method):
    """Call the method of the bus with the name *method*, which disturbs the
    server of the bus.
    """
    yield from fault.take('broker')
    yield from fault.apart(getattr(fault.cluster.bus, method))


def end_connections(fault):
    """Make the database end all connections except that of this test."""
    yield from fault.take('postgresql')
    with _asking(fault.cluster) as connection:
        connection.execute(sa.text(
            'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
            'WHERE pid <> pg_backend_pid()'))


def lock(fault):
    """Lock the table of claims for the duration of the fault."""
    yield from fault.take('postgresql')
    with _asking(fault.cluster) as connection:
        connection.execute(sa.text(
            'LOCK TABLE distperiodic_claim IN ACCESS EXCLUSIVE MODE'))
        yield fault.seconds


def fill_disk(fault):
    """Fill the file system of the database for the duration of the fault."""
    yield from fault.take('postgresql')
    big = fault.cluster.disk / 'big'
    _fill(big)
    yield fault.seconds
    big.unlink()
    server = fault.cluster.postgresql
    if not server.running:
        yield from _start(fault, server)
    yield from fault.until(server.answers)


def _fill(path):
    """Create a file that takes all free space."""
    found = os.statvfs(path.parent)
    size, piece = 0, found.f_bavail * found.f_frsize
    with path.open('wb') as file:
        # Other processes write to this file system, too.
        while piece >= 4096:
            try:
                os.posix_fallocate(file.fileno(), size, piece)
                size += piece
            except OSError:
                piece //= 2


@contextlib.contextmanager
def _asking(cluster):
    engine = journal.connect(cluster.postgresql.url)
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(
                f"SET lock_timeout = '{_PATIENCE}s'"))
            yield connection
    finally:
        engine.dispose()
