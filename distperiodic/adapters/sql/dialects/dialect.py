# SPDX-License-Identifier: Apache-2.0
"""The differences between databases: SQL, drivers, errors and limits.

Each database has a subclass of :class:`Dialect` in a module of its own, and an
entry in ``registry.py``. No other module asks for the name of a database.

A process uses one database, but imports the modules of all. So they import
SQLAlchemy's dialects only in functions: these imports take a sixth of the time
of a command.
"""

import contextlib
import enum
import functools
import operator
import pathlib
from array import array
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from distperiodic.adapters.sql.host_clock import HostClock

#: Key of connection.info: True if the next transaction only reads.
READ_ONLY = 'distperiodic read only'

# Number of rows per fetch of a result that may have a million rows.
_ROWS = 10_000
_FIRST = operator.itemgetter(0)


class Remedy(enum.Enum):
    """Action that an operator must take if a database refuses calls."""

    RIGHTS = (
        'nothing is claimed until its administrator grants this user the '
        'missing rights; to list these rights, run: distperiodic doctor')
    DISK = 'free space on the disk of the database'
    CONNECTIONS = (
        'raise the limit of the user (CONNECTION LIMIT, max_user_connections) '
        'or of the server (max_connections): each scheduler and each worker '
        'needs two connections')


class Room(enum.Enum):
    """Room that a page of a table needs for the next versions of its rows."""

    #: For rows that change in place.
    CHANGING = enum.auto()
    #: For rows of which one transaction may change all that are in the same
    #: page.
    TOGETHER = enum.auto()


class Driver(NamedTuple):
    """A driver of a database."""

    #: Name in SQLAlchemy's URLs.
    name: str
    #: Python module of the driver.
    module: str
    #: Package to install with pip.
    package: str


class Selection(NamedTuple):
    """Up to millions of rows, of which only one column is needed.

    :attr:`unique` differs from row to row, and contains no NUL.
    """

    column: sa.Column[Any]
    #: Conditions on the rows.
    which: Sequence[sa.ColumnElement[bool]]
    #: Expressions that divide the rows into groups.
    groups: Sequence[sa.ColumnElement[Any]]
    unique: sa.Column[Any]
    #: Expression that has at most a few dozen values, each in a similar number
    #: of rows.
    slices: sa.ColumnElement[Any]


#: Function that converts a value for the driver, or a value of the driver.
Converter = Callable[[Any], Any]
#: Values of the expressions that define a group, and values of a column in
#: rows of the group.
Group = tuple[tuple[Any, ...], Iterable[Any]]


class Dialect:
    """The SQL of one kind of database.

    All connections of a process to such databases share one instance, and the
    statements that it has built.

    :param returning: True if an UPDATE can return the rows that it has
        changed.
    """

    #: Names that SQLAlchemy has for this database. The first one is shown.
    names: ClassVar[tuple[str, ...]] = ()

    # URLs and connections.

    #: Drivers; the first one that is installed is used.
    drivers: ClassVar[tuple[Driver, ...]] = ()
    #: Schemes of a URL that leaves the choice of the driver to this library.
    schemes: ClassVar[tuple[str, ...]] = ()
    #: Schemes that users confuse with one of *schemes*.
    misspellings: ClassVar[tuple[str, ...]] = ()
    #: True if the database is a file of this host.
    in_file: ClassVar[bool] = False
    #: URL options. Most of them limit the duration of waits: by default,
    #: drivers wait forever, or nearly so.
    options: ClassVar[Mapping[str, str]] = {}
    #: URL options that limit the duration of each statement.
    statement_options: ClassVar[Mapping[str, str]] = {}
    #: Options of oslo.db's engine.
    engine_options: ClassVar[Mapping[str, Any]] = {}
    #: Statement that limits the duration of the waits of a new connection.
    limits: ClassVar[str] = ''
    #: True if a statement in the driver's autocommit mode saves the round
    #: trips of a transaction.
    autocommit: ClassVar[bool] = False
    #: True if no timeout of the driver applies to a server that does not
    #: answer.
    waits_forever: ClassVar[bool] = False

    # Errors.

    #: Remedies by the error code of the database.
    remedies: ClassVar[Mapping[str | int, Remedy]] = {}
    #: Remedies by a part of the error messages of databases and drivers that
    #: give no code.
    remedies_by_text: ClassVar[Mapping[str, Remedy]] = {
        'disk is full': Remedy.DISK, 'No space left': Remedy.DISK,
        'too many connections': Remedy.CONNECTIONS,
        'too many clients': Remedy.CONNECTIONS,
        'connection slots': Remedy.CONNECTIONS}
    #: Error codes for a stale prepared statement.
    stale: ClassVar[frozenset[str]] = frozenset()
    #: Error codes for a step of an upgrade of the tables that another process
    #: has completed, or is just taking.
    steps_done: ClassVar[frozenset[int]] = frozenset()

    # Abilities.

    #: True if an UPDATE does not wait for a locked row whose committed version
    #: does not match the condition of the UPDATE.
    passes_locked: ClassVar[bool] = True
    #: True if transactions lock single rows. False means that the database has
    #: one writer at a time.
    locks_rows: ClassVar[bool] = True
    #: True if WITH can contain statements that write, so that one statement
    #: can do the work of several.
    writes_in_with: ClassVar[bool] = False
    #: True if the statement that :meth:`merge` builds returns rows.
    merge_returns: ClassVar[bool] = False
    #: True if each statement that alters tables is a transaction of its own.
    commits_ddl: ClassVar[bool] = False
    #: Storage engine whose transactions can be rolled back. Empty means that
    #: the database has only one engine.
    storage_engine: ClassVar[str] = ''

    #: Options of SQLAlchemy for the tables.
    table_options: ClassVar[Mapping[str, Any]] = {}

    #: SQL that reads the clock for ticks, in microseconds since the epoch.
    _NOW: ClassVar[str] = ''

    def __init__(self, returning: bool):
        self._built: dict[Callable[[Dialect], Any], Any] = {}
        self.returning = returning
        #: SQL expression that reads the clock for ticks.
        self.now: sa.ColumnElement[int] = self._clock(self._NOW)
        #: SQL expression that reads the clock for leases, which is also the
        #: clock for buckets and heartbeats.
        self.lease_now = self.now

    @property
    def name(self) -> str:
        """Name of the database, to show to users."""
        return self.names[0]

    @staticmethod
    def _clock(sql: str) -> sa.ColumnElement[int]:
        return sa.literal_column(f'({sql})', sa.BigInteger)

    # URLs and connections.

    @staticmethod
    def file_of(url: sa.URL) -> pathlib.Path | None:
        """Return the path of the database file.

        None means that the database is not a file, or that the path is
        unknown.
        """
        return None

    @staticmethod
    def is_foreign(path: pathlib.Path) -> bool:
        """Return whether the file *path* is not such a database."""
        return False

    def listen(self, engine: sa.Engine, bounded: bool,
               statement: float | None) -> None:
        """Prepare each connection that *engine* will open.

        :param bounded: True limits the duration of waits and statements.
        :param statement: Maximum seconds of one statement. None means the
            limit of this library.
        """
        def opened(connection: Any, record: Any) -> None:
            if bounded:
                with connection.cursor() as cursor:
                    cursor.execute(self.limits)
                    if statement is not None:
                        cursor.execute(self.limit(round(statement * 1e3)))
                connection.commit()
            self._join(connection)
            # Each statement must see the changes that others have committed.
            # Otherwise a process could not detect that another process was
            # first. This also ends the autocommit mode.
            engine.dialect.set_isolation_level(connection, 'READ COMMITTED')
        sa.event.listen(engine, 'connect', opened)

    @staticmethod
    def limit(milliseconds: int) -> str:
        """Return the statement that limits the duration of each statement."""
        raise NotImplementedError

    def _join(self, connection: Any) -> None:
        """Make a connection see the commits of other nodes of a cluster."""

    def host_clock(self) -> HostClock | None:
        """Return a new clock of the host, if it is the clock of the database.
        """
        return None

    def use_snapshot(self, connection: sa.Connection) -> None:
        """Make all reads of this transaction use one snapshot.

        Call this method before any other statement.
        """
        connection.execute(sa.text(
            'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ'))

    # Connections that the application has opened.

    def limit_idle(self, session: Any, seconds: int) -> None:
        """Limit the seconds for which a transaction may be idle.

        A limit that is set already stays. This does nothing if the database
        has no such limit for one transaction.
        """

    def now_for(self, session: Any) -> Any:
        """Return the time of the clock for ticks, for a statement on
        *session*.

        :returns: an SQL expression, or the time in microseconds.
        """
        return self.now

    # Schema.

    def check_encoding(self, connection: sa.Connection, shown: str) -> None:
        """Check that the database can store every text.

        Ids and errors are Unicode. In another encoding, one text that cannot
        be stored would roll back the whole transaction, with the outcomes of
        other runs.

        :param shown: URL without its password.
        :raises SchemaError: The encoding of the database is not UTF-8.
        """

    def check_search_path(self, connection: sa.Connection,
                          shown: str) -> None:
        """Check that the database has a schema for the tables.

        :param shown: URL without its password.
        :raises SchemaError: search_path names no schema that exists.
        """

    def upgrading(self, connection: sa.Connection, version_table: str
                  ) -> contextlib.AbstractContextManager[None]:
        """Hold a lock, since Alembic does not serialize concurrent upgrades.

        :raises StoreUnavailable: another process holds the lock for too long.
        """
        return contextlib.nullcontext()

    def leave_room(self, table: str, room: Room) -> str:
        """Return a statement that reserves room for changed rows in a table.

        The statement is empty if the database needs no room.
        """
        return ''

    def store_uncompressed(self, table: str, column: str) -> str:
        """Return a statement that turns off the compression of a column.

        The statement is empty if the database compresses no column by itself.
        """
        return ''

    # Types of columns.

    @staticmethod
    def lease_name() -> TypeEngine[str]:
        """Return the type of a short ASCII text."""
        return sa.String(100)

    @staticmethod
    def long_text() -> TypeEngine[str]:
        """Return the type of a text of up to 16 MB."""
        return sa.Text()

    @staticmethod
    def long_binary() -> TypeEngine[bytes]:
        """Return the type of up to 16 MB of bytes."""
        return sa.LargeBinary()

    @staticmethod
    def serial() -> TypeEngine[int]:
        """Return the type of the numbers that the database gives to rows."""
        return sa.BigInteger()

    @staticmethod
    def exact(length: int) -> TypeEngine[Any]:
        """Return the type of a text that is compared byte for byte."""
        return sa.String(length)

    @staticmethod
    def converters() -> tuple[Converter | None, Converter | None]:
        """Return functions that convert such a text to the value of the
        driver, and back.

        None means that nothing is converted.
        """
        return None, None

    # Expressions and parameters.

    def at_tick_clock(self, at: sa.ColumnElement[int]
                      ) -> sa.ColumnElement[int]:
        """Convert an instant of the clock for leases to the clock for ticks.
        """
        return at

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Return the condition that *column* is one of the bound *keys*."""
        raise NotImplementedError

    def keys(self, keys: Sequence[str]) -> Any:
        """Return the value to bind as the parameter ``keys``."""
        raise NotImplementedError

    @staticmethod
    def contains(column: sa.ColumnElement[str], text: str
                 ) -> sa.ColumnElement[bool]:
        """Return the condition that *column* contains exactly *text*."""
        return sa.func.instr(column, text) > 0

    def prefer_index(self, query: Any, table: sa.Table, index: str) -> Any:
        """Return *query* with a hint to read *table* by *index*, if the
        database could otherwise choose a much slower plan.
        """
        return query

    # Statements.

    def once(self, build: 'Callable[[Dialect], Any]') -> Any:
        """Return the statement that *build* returns for this dialect.

        A process builds the statement only once, since building it takes
        longer than executing it. *build* may also return several statements.
        """
        found = self._built.get(build)
        if found is None:
            found = self._built[build] = build(self)
        return found

    @staticmethod
    def insert(table: sa.Table) -> Any:
        """Return SQLAlchemy's INSERT for this database."""
        raise NotImplementedError

    @staticmethod
    def or_nothing(insert: Any) -> Any:
        """Return *insert* without the rows whose key already exists."""
        return insert.on_conflict_do_nothing()

    @staticmethod
    def _new(insert: Any) -> Any:
        """Return the columns of the row to insert."""
        return insert.excluded

    @staticmethod
    def _or_update(insert: Any, values: Sequence[tuple[str, Any]],
                   only_if: Any = None) -> Any:
        """Return *insert* that changes a row whose key already exists.

        :param only_if: Condition on the existing row. None means no condition.
        """
        return insert.on_conflict_do_update(
            index_elements=[
                one.name for one in insert.table.primary_key.columns],
            set_=dict(values), where=only_if)

    def add_up(self, table: sa.Table, values: dict[str, Any],
               newest: Sequence[str], nothing: Sequence[str] = (),
               given: Any = None) -> Any:
        """Return a statement that inserts a row, or adds to an existing row.

        If a row with the same key exists, the new numbers are added to the
        numbers in that row.

        :param newest: Columns that take the new value, if it is not NULL.
        :param nothing: Columns of an existing row that do not change.
        :param given: Subquery from which *values* are selected. It returns at
            most one row; if it returns no row, nothing is inserted. None means
            that *values* are inserted as they are.
        """
        insert = self.insert(table)
        insert = (insert.values(values) if given is None
                  else insert.from_select(list(values), sa.select(
                      *values.values()).select_from(given)))
        new = self._new(insert)
        keys = [column.name for column in table.primary_key.columns]
        found: list[tuple[str, Any]] = []
        for column in table.c:
            if column.name in nothing:
                continue
            if column.name in newest:
                found.append((column.name, sa.func.coalesce(
                    new[column.name], column)))
            elif column.name not in keys:
                found.append((column.name, column + new[column.name]))
        return self._or_update(insert, found)

    def insert_new(self, connection: sa.Connection, table: sa.Table,
                   differ: dict[str, Sequence[Any]], **same: Any) -> None:
        """Insert rows, except those whose key already exists.

        :param differ: Columns whose values differ from row to row, each with
            one value per row.
        :param same: Columns that have the same value in all rows.
        """
        connection.execute(
            _insert_new(self, table), self.rows(differ, **same))

    def merge(self, table: sa.Table, differ: Sequence[str],
              same: Sequence[str],
              change: Callable[[Any], Sequence[tuple[str, Any]]],
              only_if: Any, returning: Sequence[Any]) -> Any:
        """Return a statement that inserts rows, or changes existing rows.

        :meth:`rows` returns the parameters of the statement.

        :param differ: Columns whose values differ from row to row.
        :param same: Columns that have the same value in all rows.
        :param change: Function that returns the columns to set in an existing
            row, with their new values, in the order of assignment. The columns
            of its argument have the values of the row to insert.
        :param only_if: Condition on an existing row. A row that does not meet
            the condition is not changed. MySQL evaluates the condition before
            each assignment, so only the last assignment may set a column that
            the condition reads.
        :param returning: Columns that the statement returns, if
            :attr:`merge_returns` is true.
        """
        insert = self._insert_rows(table, differ, same)
        merge = self._or_update(insert, change(self._new(insert)), only_if)
        return merge.returning(*returning) if self.merge_returns else merge

    def _insert_rows(self, table: sa.Table, differ: Sequence[str],
                     same: Sequence[str]) -> Any:
        """Return an INSERT whose parameters :meth:`rows` returns."""
        return self.insert(table)

    def rows(self, differ: dict[str, Sequence[Any]], **same: Any) -> Any:
        """Return the parameters of a statement that inserts rows.

        For *differ* and *same*, see :meth:`insert_new`.
        """
        return [{**same, **dict(zip(differ, values, strict=True))}
                for values in zip(*differ.values(), strict=True)]

    def update_rows(self, connection: sa.Connection, table: sa.Table,
                    differ: dict[str, Sequence[Any]], keeps: Sequence[str]
                    ) -> None:
        """Update rows of a table whose primary key is one column.

        :param differ: The key and the columns that change, each with one value
            per row.
        :param keeps: Columns in which None means that the row keeps its old
            value.
        """
        connection.execute(
            _update_rows(table, tuple(differ), tuple(keeps)),
            [{f'new_{name}': value for name, value in zip(
                differ, values, strict=True)}
             for values in zip(*differ.values(), strict=True)])

    # Reads for operators.

    def gather(self, connection: sa.Connection,
               selection: Selection) -> Iterator[Group]:
        """Yield the values of a column, group by group.

        A group may be yielded in several parts.
        """
        result = connection.execute(
            sa.select(selection.column, *selection.groups)
            .where(*selection.which).execution_options(yield_per=_ROWS))
        if not selection.groups:
            for rows in result.partitions():
                yield (), map(_FIRST, rows)
            return
        # Do not keep a Python object for each number.
        new: Callable[[], Any] = (
            functools.partial(array, 'q')
            if stored_type(selection.column) is int else list)
        found: dict[tuple[Any, ...], Any] = {}
        for value, *group in result:
            values = found.get(key := tuple(group))
            if values is None:
                values = found[key] = new()
            values.append(value)
        yield from found.items()

    # Checks of ``distperiodic doctor``.

    def refused_sequences(self, connection: sa.Connection,
                          tables: Sequence[str]) -> list[str]:
        """Return those of *tables* whose sequence this user may not use.

        Sequences supply the numbers of new rows. Where they have privileges of
        their own, the name of the column is ``id``.
        """
        return []

    def other_engines(self, connection: sa.Connection) -> dict[str, str]:
        """Return the tables that do not use :attr:`storage_engine`, with their
        engines.
        """
        return {}

    def journal_problem(self, connection: sa.Connection) -> str:
        """Return why readers block writers. Empty means that they do not."""
        return ''


# The statements below are cached: building one takes longer than executing it
# for one row.

@functools.cache
def _insert_new(dialect: Dialect, table: sa.Table) -> Any:
    """Build the INSERT of :meth:`Dialect.insert_new`."""
    return dialect.or_nothing(dialect.insert(table))


@functools.cache
def _update_rows(table: sa.Table, differ: tuple[str, ...],
                 keeps: tuple[str, ...]) -> Any:
    """Build the UPDATE of :meth:`Dialect.update_rows`."""
    [key] = table.primary_key.columns
    new = {name: sa.bindparam(f'new_{name}', type_=table.c[name].type)
           for name in differ}
    return sa.update(table).where(key == new[key.name]).values({
        name: sa.func.coalesce(value, table.c[name])
        if name in keeps else value
        for name, value in new.items() if name != key.name})


def stored_type(column: sa.Column[Any]) -> type:
    """Return the Python type of the values that *column* stores."""
    stored: TypeEngine[Any] = getattr(column.type, 'impl', column.type)
    return stored.python_type
