# SPDX-License-Identifier: Apache-2.0
"""SQLite databases that use virtual time, and fail at random.

The databases read the clocks of the world in place of the host's clocks. Each
statement and each commit may fail. A commit that reports an error may have
taken effect all the same.
"""

import functools
import itertools
import multiprocessing.util
import os
import pathlib
import shutil
import sqlite3
import tempfile

import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.host_clock import ClockReading
from distperiodic.adapters.sql.host_clock import HostClock

_ERRORS = 'disk I/O error', 'disk I/O error', 'database is locked'

_JOURNAL = '''
CREATE TABLE sim_journal (
    n INTEGER PRIMARY KEY, at, job, object, was_tick, tick, was_settled,
    settled, was_state, state, was_fence, fence, was_lease, lease, by,
    relisted);
CREATE TRIGGER sim_made AFTER INSERT ON distperiodic_claim BEGIN
    INSERT INTO sim_journal VALUES (
        NULL, sim_now(), NEW.job, NEW.object, NULL, NEW.tick, NULL,
        NEW.settled, NULL, NEW.state, NULL, NEW.fence, NULL, NEW.lease,
        NEW.skipped_by, 1);
END;
CREATE TRIGGER sim_changed AFTER UPDATE ON distperiodic_claim
WHEN (OLD.tick, OLD.settled, OLD.state, OLD.fence, OLD.lease) IS NOT (
    NEW.tick, NEW.settled, NEW.state, NEW.fence, NEW.lease) BEGIN
    INSERT INTO sim_journal VALUES (
        NULL, sim_now(), NEW.job, NEW.object, OLD.tick, NEW.tick,
        OLD.settled, NEW.settled, OLD.state, NEW.state, OLD.fence, NEW.fence,
        OLD.lease, NEW.lease, NEW.skipped_by,
        (OLD.since, OLD.rule) IS NOT (NEW.since, NEW.rule));
END;
CREATE TABLE sim_task (
    n INTEGER PRIMARY KEY, at, task, status, step, back, cursor, queue,
    created, cancelling, parameters, due);
CREATE TRIGGER sim_submits AFTER INSERT ON distperiodic_task BEGIN
    INSERT INTO sim_task VALUES (
        NULL, sim_now(), NEW.id, NEW.status, NEW.step, NEW.back, NEW.cursor,
        NEW.queue, NEW.created, NEW.cancelled_by IS NOT NULL, NEW.parameters,
        NEW.due);
END;
CREATE TRIGGER sim_moves AFTER UPDATE ON distperiodic_task BEGIN
    INSERT INTO sim_task VALUES (
        NULL, sim_now(), NEW.id, NEW.status, NEW.step, NEW.back, NEW.cursor,
        NEW.queue, NEW.created, NEW.cancelled_by IS NOT NULL, NEW.parameters,
        NEW.due);
END;
CREATE TABLE sim_adopted (n INTEGER PRIMARY KEY, at, job, text);
CREATE TRIGGER sim_adopts AFTER UPDATE ON distperiodic_job
WHEN OLD.schedule IS NOT NEW.schedule BEGIN
    INSERT INTO sim_adopted VALUES (NULL, sim_now(), NEW.name, NEW.schedule);
END;
'''


class Trouble:
    """The errors in the database of one world.

    :param share: share of the statements and of the commits that fail.
    """

    def __init__(self, world, clock, share):
        self.world = world
        self.clock = clock
        self.share = share
        # Connections of the services read the host's clocks. Replace these
        # clocks with those of the world.
        self._read = HostClock.read
        HostClock.read = lambda _: ClockReading(
            'one', self.world.t, self.clock.now())

    def close(self):
        """Restore the host's own clocks."""
        HostClock.read = self._read

    def strike(self, what):
        """Raise an error, with the probability ``share``."""
        if self.share and self.world.random.random() < self.share:
            self.world.happened(what)
            raise sqlite3.OperationalError(self.world.random.choice(_ERRORS))


class _Cursor(sqlite3.Cursor):
    trouble = None

    def execute(self, statement, *parameters):
        if self.trouble is not None:
            self.trouble.strike('statement failed')
        return super().execute(statement, *parameters)

    def executemany(self, statement, *parameters):
        if self.trouble is not None:
            self.trouble.strike('statement failed')
        return super().executemany(statement, *parameters)


class _Connection(sqlite3.Connection):
    trouble = None

    def cursor(self, factory=_Cursor):
        cursor = super().cursor(factory)
        cursor.trouble = self.trouble
        return cursor

    def commit(self):
        if self.trouble is not None:
            self.trouble.strike('commit failed')
        super().commit()
        if self.trouble is not None:
            self.trouble.strike('commit without an answer')


class Directory:
    """The directory with the databases of one process."""

    def __init__(self):
        memory = pathlib.Path('/dev/shm')  # noqa: S108
        self._path = pathlib.Path(tempfile.mkdtemp(
            dir=memory if os.access(memory, os.W_OK) else None))
        self._numbers = itertools.count()
        self._troubles = {}
        # The processes of a pool do not call the functions of atexit.
        multiprocessing.util.Finalize(
            None, shutil.rmtree, (self._path,), {'ignore_errors': True},
            exitpriority=0)
        sa.event.listen(sa.engine.Engine, 'do_connect', self._connecting)
        # Apply all migrations once, to a database that new() then copies.
        schema.sync(f'sqlite:///{self._path}/empty')
        with sqlite3.connect(self._path / 'empty') as connection:
            connection.create_function('sim_now', 0, lambda: 0)
            connection.executescript(_JOURNAL)
        connection.close()

    def new(self, trouble):
        """Create a database. Return its path."""
        path = f'{self._path}/{next(self._numbers)}'
        shutil.copy(self._path / 'empty', path)
        self._troubles[path] = trouble
        return path

    def delete(self, path):
        del self._troubles[path]
        for name in path, f'{path}-wal', f'{path}-shm':
            pathlib.Path(name).unlink(missing_ok=True)

    def open(self, path):
        """Return a connection for the simulation itself, which never fails."""
        connection = sqlite3.connect(path)
        self._set_clock(connection, self._troubles[path])
        return connection

    def _connecting(self, dialect, record, arguments, options):
        trouble = self._troubles.get(arguments[0] if arguments else None)
        if trouble is None:
            return None
        trouble.strike('connection failed')
        connection = sqlite3.connect(
            *arguments, **{**options, 'factory': _Connection})
        self._set_clock(connection, trouble)
        connection.trouble = trouble
        return connection

    @staticmethod
    def _set_clock(connection, trouble):
        world = trouble.world
        connection.create_function('sim_now', 0, lambda: world.now)


@functools.cache
def directory():
    """Return the directory of this process."""
    return Directory()


# Otherwise the processes of a pool would write databases with the same paths.
os.register_at_fork(after_in_child=directory.cache_clear)
