# SPDX-License-Identifier: Apache-2.0
"""Access to the rows of one group, for queries and commands of operators.

A query takes a :class:`GroupReader`, which only reads. A command that writes
takes a :class:`GroupStore`.
"""

import copy
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import engine
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.dialects.registry import kind_of
from distperiodic.adapters.sql.pauses_in_force import is_paused
from distperiodic.adapters.sql.pauses_in_force import not_over
from distperiodic.core import due

T = TypeVar('T')

_history = tables.history
_job = tables.job
_paused = tables.paused_object


class StoredJob(NamedTuple):
    """The store's data on a job."""

    name: str
    #: Newest tick in the history, in microseconds. None means that the history
    #: has no tick of the job.
    tick: int | None
    #: Instant of the pause, in microseconds. None means that the job is not
    #: paused.
    paused_since: int | None
    paused_by: str
    paused_why: str
    #: The instant since which the job's schedule has been in force.
    #: core.due.ALWAYS means that it is the first schedule of the job, or that
    #: no schedule is recorded.
    schedule_since: int
    #: Text of the schedule in force. Empty means that none is recorded.
    schedule: str
    #: Instant at which the pause ends by itself. None means that the job is
    #: not paused, or until an operator resumes it.
    paused_until: int | None = None
    #: Number of paused objects.
    paused_objects: int = 0


def check_file(connection_url: str) -> None:
    """Check that a database file exists: a connection would create the file.

    :raises ConfigError: the file does not exist, or the URL cannot be used.
    """
    url = engine.check(connection_url)
    file = kind_of(url).file_of(url)
    if file is not None and not file.exists():
        raise exceptions.ConfigError(
            f'connection names the file {file}, which does not '
            'exist; correct connection, or create the file and its tables: '
            'distperiodic db sync')


class GroupReader:
    """Read-only access to the rows of one group.

    The queries on a group are functions that take it.
    """

    def __init__(self, database: Database, namespace: str):
        #: Closes the connection; the next call opens a new one.
        self.close = database.close
        self.dialect = database.dialect
        self.namespace = namespace
        self._read = database.read
        #: Connection of the open transaction that all reads share. None means
        #: that each read is a transaction of its own.
        self._shared: sa.Connection | None = None

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work* in a transaction that only reads."""
        return (self._read(work) if self._shared is None
                else work(self._shared))

    def read_snapshot(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work* in a transaction whose reads all use one snapshot."""
        def read(connection: sa.Connection) -> T:
            if self._shared is None:
                self.dialect.use_snapshot(connection)
            return work(connection)
        return self.read(read)

    def share(self, work: 'Callable[[GroupReader], T]') -> T:
        """Run *work* with a reader whose reads share one transaction.

        All reads see the database at one moment, and none of them spends the
        round trips of a transaction of its own.
        """
        def read(connection: sa.Connection) -> T:
            shared = copy.copy(self)
            shared._shared = connection
            return work(shared)
        return self.read_snapshot(read)

    def rows(self, query: sa.Executable) -> Sequence[Any]:
        """Return the rows of *query*."""
        return self.read(lambda connection: connection.execute(query).all())

    def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""
        return self.read(lambda connection: connection.execute(
            sa.select(self.dialect.now)).scalar_one())

    def names(self, job: str | None = None) -> dict[int, str]:
        """Return the names of the group's jobs in the store, by number.

        :param job: Name of the only job to return. None means all jobs.
        :raises ConfigError: the store has no such job.
        """
        names = {row.id: row.name for row in self.rows(
            sa.select(_job.c.id, _job.c.name)
            .where(_job.c.space == self.namespace,
                   _job.c.kind == tables.KIND).order_by(_job.c.name))}
        if job is None:
            return names
        if job not in names.values():
            known = ', '.join(repr(name) for name in names.values())
            raise exceptions.ConfigError(
                f'group {self.namespace!r} has no job {job!r} in this '
                'database; '
                + (f'it has {known}' if known else
                   'it has no jobs until a scheduler has run; check '
                   '[distperiodic] group'))
        return {number: name for number, name in names.items()
                if name == job}

    def jobs(self) -> list[StoredJob]:
        """Return all jobs in the store, in order of name."""
        return self.read(self.jobs_in)

    def jobs_in(self, connection: sa.Connection) -> list[StoredJob]:
        """Return all jobs, in a transaction of the caller."""
        newest = sa.select(sa.func.max(_history.c.tick)).where(
            _history.c.job == _job.c.id).scalar_subquery()
        found = connection.execute(
            sa.select(_job, newest.label('tick'),
                      self.dialect.now.label('now')).where(
                _job.c.space == self.namespace,
                _job.c.kind == tables.KIND)).all()
        counts = paused_objects(connection, found)
        return sorted((
            StoredJob(row.name, row.tick, *pause_of(row)[:3],
                      due.ALWAYS if row.schedule_since is None
                      else row.schedule_since, row.schedule or '',
                      pause_of(row).until, counts.get(row.id, 0))
            for row in found), key=lambda job: job.name)


class Pausing(NamedTuple):
    """The pause of a job or of an object, with its operator.

    If there is no pause, the instants are None, and the texts are empty.
    """

    since: int | None
    by: str
    why: str
    #: Instant at which the pause ends by itself. None means that it lasts
    #: until an operator ends it.
    until: int | None


def pause_of(row: Any) -> Pausing:
    """Return the pause in a row that has its columns, and the time ``now``."""
    return Pausing(
        row.paused_since, row.paused_by or '', row.paused_why or '',
        row.paused_until) if is_paused(row) else Pausing(None, '', '', None)


def paused_objects(connection: sa.Connection,
                   rows: Sequence[Any]) -> dict[int, int]:
    """Return the number of paused objects of each job that has some.

    :param rows: Rows of jobs, each with the time of the store's clock as
        ``now``.
    """
    numbers = [row.id for row in rows if row.paused_objects]
    if not numbers:
        return {}
    return {row.job: row.number for row in connection.execute(
        sa.select(_paused.c.job, sa.func.count().label('number')).where(
            _paused.c.job.in_(numbers), not_over(_paused, rows[0].now))
        .group_by(_paused.c.job))}


def open_reader(connection_url: str, namespace: str,
                statement: float) -> GroupReader:
    """Return a reader, whose connection is opened at its first use.

    :param statement: Maximum seconds of one statement.
    :raises ConfigError: the URL is invalid.
    """
    return GroupReader(
        schema.connect(connection_url, statement=statement), namespace)


class GroupStore(GroupReader):
    """Access to the rows of one group, for the commands of operators.

    The connection is opened at its first use.

    :param connection_url: URL of the database.
    :raises ConfigError: the URL is invalid.
    """

    def __init__(self, connection_url: str, namespace: str):
        self.database = schema.connect(connection_url)
        super().__init__(self.database, namespace)
        #: Runs a function in a transaction that may write.
        self.write = self.database.write
