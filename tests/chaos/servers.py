# SPDX-License-Identifier: Apache-2.0
"""What befalls the servers; see :mod:`tests.chaos.faults`."""

import contextlib
import os
import signal

import psutil
import pytest
import sqlalchemy as sa

from tests.chaos import journal

# Seconds that the tests wait for a database that is in trouble.
_PATIENCE = 3


def kill(fault, *names):
    """They are killed, and come back with the data they had."""
    yield from fault.take(*names)
    found = [getattr(fault.cluster, name) for name in names]
    for server in found:
        _kill(server)
    yield fault.seconds
    for server in found:
        yield from _start(fault, server)


def _kill(server):
    # PostgreSQL's own processes end only when they see that it is gone.
    left = psutil.Process(server.pid).children(recursive=True)
    server.kill()
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _start(fault, server):
    server.start(wait=False)
    while True:
        if not server.running:
            # It found something of its former self that was not gone yet.
            yield 0.5
            server.start(wait=False)
        if (yield from fault.until(
                lambda: server.answers() or not server.running, 60.0)) and (
                    server.running):
            return


def wipe(fault, name):
    """It is killed, and comes back without any data."""
    yield from fault.take(name)
    server = getattr(fault.cluster, name)
    server.kill()
    server.wipe()
    yield fault.seconds
    yield from _start(fault, server)


def freeze(fault, name):
    """All of its processes are stopped, and go on later."""
    yield from fault.take(name)
    server = getattr(fault.cluster, name)
    first = psutil.Process(server.pid)
    for number in signal.SIGSTOP, signal.SIGCONT:
        for one in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        if number is signal.SIGSTOP:
            yield fault.seconds


def alarm(fault, on, off):
    """The broker runs out of something, and accepts nothing."""
    yield from fault.take('rabbitmq')
    yield from fault.apart(lambda: fault.cluster.rabbitmq.ctl(*on))
    yield fault.seconds
    yield from fault.apart(lambda: fault.cluster.rabbitmq.ctl(*off))


def delete_queue(fault):
    """The queue of a member is deleted, with what is in it."""
    yield from fault.take('rabbitmq')
    fault.happened = False

    def delete():
        # After another fault of the broker they are made anew one by one.
        for _ in range(10):
            found = sorted(fault.cluster.queues().values())
            if found:
                fault.cluster.rabbitmq.ctl(
                    'delete_queue', fault.random.choice(found))
                fault.happened = True
                return
    # It may go just then.
    with contextlib.suppress(pytest.fail.Exception):
        yield from fault.apart(delete)


def close_connections(fault):
    """The broker closes all connections."""
    yield from fault.take('rabbitmq')
    yield from fault.apart(lambda: fault.cluster.rabbitmq.ctl(
        'close_all_connections', 'by the tests'))


def end_connections(fault):
    """The database ends all connections but ours."""
    yield from fault.take('postgresql')
    with _asking(fault.cluster) as connection:
        connection.execute(sa.text(
            'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
            'WHERE pid <> pg_backend_pid()'))


def lock(fault):
    """Somebody locks the claims for a while."""
    yield from fault.take('postgresql')
    with _asking(fault.cluster) as connection:
        connection.execute(sa.text(
            'LOCK TABLE distperiodic_claim IN ACCESS EXCLUSIVE MODE'))
        yield fault.seconds


def fill_disk(fault):
    """The file system of the database is full for a while."""
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
    """Make a file that takes all that is free."""
    found = os.statvfs(path.parent)
    size, piece = 0, found.f_bavail * found.f_frsize
    with path.open('wb') as file:
        # Others write there as well.
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
