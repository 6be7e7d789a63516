# SPDX-License-Identifier: Apache-2.0
"""Read access to the rows of one group, for queries and commands of operators.

Queries only read, through a :class:`GroupReader`. Commands that write also use
the :class:`Database` directly.
"""

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
from distperiodic.core import due

T = TypeVar('T')

_history = tables.history
_job = tables.job


class Job(NamedTuple):
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


def connect(connection_url: str) -> Database:
    """Return a database connection, which is opened at its first use.

    :raises ConfigError: the URL is invalid.
    """
    return Database(connection_url, schema.check_connection)


class Snapshot:
    """An open transaction that only reads, which several queries share.

    All of them see the database at one moment, and none of them spends the
    round trips of a transaction of its own.
    """

    def __init__(self, database: Database, connection: sa.Connection):
        self.dialect = database.dialect
        self._connection = connection

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work* in the open transaction."""
        return work(self._connection)

    def close(self) -> None:
        """Do nothing: the transaction belongs to its creator."""


def reader(source: 'str | Snapshot', namespace: str) -> 'GroupReader':
    """Return read access to the rows of one group.

    :param source: URL of the database, or an open transaction.
    :raises ConfigError: the URL is invalid.
    """
    return GroupReader(
        connect(source) if isinstance(source, str) else source, namespace)


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
    """Read-only access to the rows of one group over a connection."""

    def __init__(self, database: Database | Snapshot, namespace: str):
        #: Runs a function in a transaction that only reads.
        self.read = database.read
        #: Closes the connection; the next call opens a new one.
        self.close = database.close
        self.dialect = database.dialect
        self.namespace = namespace
        self._shared = isinstance(database, Snapshot)

    def read_snapshot(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work* in a transaction whose reads all use one snapshot."""
        def read(connection: sa.Connection) -> T:
            if not self._shared:
                self.dialect.use_snapshot(connection)
            return work(connection)
        return self.read(read)

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

    def jobs(self) -> list[Job]:
        """Return all jobs in the store, in order of name."""
        return self.read(self.jobs_in)

    def jobs_in(self, connection: sa.Connection) -> list[Job]:
        """Return all jobs, in a transaction of the caller."""
        newest = sa.select(sa.func.max(_history.c.tick)).where(
            _history.c.job == _job.c.id).scalar_subquery()
        found = connection.execute(
            sa.select(_job, newest.label('tick')).where(
                _job.c.space == self.namespace,
                _job.c.kind == tables.KIND)).all()
        return sorted(Job(row.name, row.tick, row.paused_since,
                          row.paused_by or '', row.paused_why or '',
                          due.ALWAYS if row.schedule_since is None
                          else row.schedule_since, row.schedule or '')
                      for row in found)
