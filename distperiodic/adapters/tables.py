# SPDX-License-Identifier: Apache-2.0
"""The tables of the store.

Each claim is one row that is changed in place: of its columns only those
that never change are indexed, so that a move rewrites no index (on
PostgreSQL a HOT update, half the price of another one).

Ids are compared byte for byte in all databases. MySQL's text types ignore
case or trailing blanks, so there an id is kept as bytes.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql

from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State

#: The longest id of an object, in characters.
LONGEST_ID = 255
#: The longest name of a holder of leases, in characters.
LONGEST_HOLDER = 255
#: The longest reason for which something was skipped, in characters.
LONGEST_REASON = 200
#: The longest text of an object's own schedule, in characters.
LONGEST_RULE = 300

_MYSQL = ('mysql', 'mariadb')
#: What the columns hold; never change a number, tables are full of them.
STATE_CODES = {
    State.CLAIMED: 1, State.RUNNING: 2, State.RETRY: 3, State.LISTED: 4,
    State.COMMITTED: 5,
    State.DONE: 10, State.DEAD: 11, State.SKIPPED: 12,
    State.SUPERSEDED: 13, State.CANCELLED: 14,
}
_STATES = {code: state for state, code in STATE_CODES.items()}
SKIPPED_CODES = {
    SkippedBy.MISFIRE: 1, SkippedBy.OVERLAP: 2, SkippedBy.PAUSE: 3,
    SkippedBy.LOST: 4,
}
_SKIPPED = {code: by for by, code in SKIPPED_CODES.items()}


def _written(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _read(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


class Exact(sa.TypeDecorator[str]):
    """Text that equals only itself."""

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int):
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Any) -> Any:
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.VARBINARY(4 * self.length))
        if dialect.name == 'postgresql':
            return dialect.type_descriptor(
                postgresql.VARCHAR(self.length, collation='C'))
        return dialect.type_descriptor(sa.String(self.length))

    def process_bind_param(self, value: str | None, dialect: Any) -> Any:
        return _written(value) if dialect.name in _MYSQL else value

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        return _read(value)

    # Both are called for each value of hundreds of rows, so only where they
    # do something, and no more than that.

    def bind_processor(self, dialect: Any) -> Any:
        return _written if dialect.name in _MYSQL else None

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return _read if dialect.name in _MYSQL else None


class StateColumn(sa.TypeDecorator[State]):
    """A state as its number."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: State | None, dialect: Any) -> Any:
        return None if value is None else STATE_CODES[value]

    def process_result_value(self, value: Any, dialect: Any) -> State | None:
        return None if value is None else _STATES[value]


class SkippedByColumn(sa.TypeDecorator[SkippedBy]):
    """What had something skipped, as its number."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: SkippedBy | None, dialect: Any
                           ) -> Any:
        return None if value is None else SKIPPED_CODES[value]

    def process_result_value(self, value: Any, dialect: Any
                             ) -> SkippedBy | None:
        return None if value is None else _SKIPPED[value]


#: Names of leases, made by whoever makes the lease.
LeaseName = sa.String(100).with_variant(
    mysql.VARCHAR(100, charset='ascii', collation='ascii_bin'), *_MYSQL)
#: MySQL's own TEXT ends at 64 KiB.
LongText = sa.Text().with_variant(mysql.MEDIUMTEXT(), *_MYSQL)

_OF_TABLES: dict[str, Any] = {
    'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4',
    'mysql_row_format': 'DYNAMIC',
}
# Room in each page for the next version of a row that changes in place.
_CHANGING: dict[str, Any] = {'postgresql_with': {'fillfactor': 70}}
# A batch may change all rows of a page at once, and what they were before
# stays until it is committed: there must be room for each of them twice.
_TOGETHER: dict[str, Any] = {'postgresql_with': {'fillfactor': 45}}

#: Of what claims are: the ticks of periodic jobs.
KIND = 'job'

metadata = sa.MetaData()

#: What claims are of, by name. The claims have its number: a name is long.
job = sa.Table(
    'distperiodic_job', metadata,
    #: A random number, so that none comes again when the tables are made
    #: anew: a process that still has one of the old tables finds nothing.
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('space', Exact(100), nullable=False),
    sa.Column('kind', Exact(20), nullable=False),
    sa.Column('name', Exact(200), nullable=False),
    #: Microseconds of the store's clock. None: it is not paused.
    sa.Column('paused_since', sa.BigInteger),
    sa.Column('paused_by', sa.String(LONGEST_REASON)),
    sa.Column('paused_why', sa.String(LONGEST_REASON)),
    #: The text of the schedule in force. None: not recorded yet.
    sa.Column('schedule', Exact(LONGEST_RULE + 100)),
    #: The instant from which it holds.
    sa.Column('schedule_since', sa.BigInteger),
    #: From when until when schedulers have attended it without a gap, in
    #: microseconds of the store's clock. None: nobody has.
    sa.Column('attended_since', sa.BigInteger),
    sa.Column('attended_until', sa.BigInteger),
    #: Up to here all that was due was found claimed or settled.
    sa.Column('checked', sa.BigInteger),
    #: The history of ticks before this may be pruned. None: of none is.
    sa.Column('pruned_before', sa.BigInteger),
    sa.UniqueConstraint('space', 'kind', 'name', name='distperiodic_job_of'),
    **_OF_TABLES)

claim = sa.Table(
    'distperiodic_claim', metadata,
    # The object comes first, and no other index begins with the job: until
    # it has statistics PostgreSQL would read all rows of the job to find 500.
    sa.Column('object', Exact(LONGEST_ID), primary_key=True),
    sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
    #: Its place on the ring.
    sa.Column('position', sa.BigInteger, nullable=False),
    sa.Column('tick', sa.BigInteger, nullable=False),
    #: The tick before this one. None: this is the first.
    sa.Column('previous', sa.BigInteger),
    #: The newest tick that nobody may claim any more: this one, or a later
    #: one that was skipped. Less than this one that an operator triggered:
    #: what was due before that stays due.
    sa.Column('settled', sa.BigInteger, nullable=False),
    #: Why it was skipped last. None: it never was.
    sa.Column('skipped_by', SkippedByColumn),
    sa.Column('state', StateColumn, nullable=False),
    sa.Column('fence', sa.BigInteger, nullable=False),
    sa.Column('attempt', sa.Integer, nullable=False),
    #: The lease that it stands in, or stood in last.
    sa.Column('lease', LeaseName, nullable=False),
    #: Who was granted the last run of this tick. None: nobody yet.
    sa.Column('worker', Exact(LONGEST_HOLDER)),
    #: When a run of it was last done, in microseconds of the store's clock.
    #: None: never.
    sa.Column('served', sa.BigInteger),
    #: What the run said of itself. None: nothing.
    sa.Column('progress', LongText),
    #: The instant from which its schedule counts. None: it is not listed.
    sa.Column('since', sa.BigInteger),
    #: The text of its own schedule; empty: it follows its job's. None: not
    #: recorded yet.
    sa.Column('rule', Exact(LONGEST_RULE)),
    #: For a part of the ring of one job.
    sa.Index('distperiodic_claim_position', 'position', 'job'),
    **_OF_TABLES, **_TOGETHER)

lease = sa.Table(
    'distperiodic_lease', metadata,
    sa.Column('id', LeaseName, primary_key=True),
    sa.Column('job', sa.Integer, nullable=False),
    sa.Column('tick', sa.BigInteger, nullable=False),
    #: The state of all that stand in it.
    sa.Column('state', StateColumn, nullable=False),
    #: Nobody's: empty.
    sa.Column('holder', Exact(LONGEST_HOLDER), nullable=False),
    #: Microseconds of the clock of leases.
    sa.Column('until', sa.BigInteger, nullable=False),
    #: By the same clock: when it was made, and its runs granted, if they
    #: were. None: by an earlier release.
    sa.Column('made', sa.BigInteger),
    #: How many claims stand in it.
    sa.Column('remaining', sa.Integer, nullable=False),
    #: How many claims of earlier ticks it made void.
    sa.Column('superseded', sa.Integer, nullable=False),
    #: Objects that were put into it, as JSON. Claims are not indexed by
    #: their lease, so this is how they are found.
    sa.Column('objects', LongText, nullable=False),
    sa.Index('distperiodic_lease_until', 'until'),
    **_OF_TABLES, **_CHANGING)

#: What became of each tick, counted in objects: a row of each member that had
#: a part in it. Over all members ``due`` is the sum of the endings (done,
#: dead, skipped, superseded, cancelled) and of what is still open.
history = sa.Table(
    'distperiodic_history', metadata,
    sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('tick', sa.BigInteger, primary_key=True, autoincrement=False),
    #: Who held the lease: the scheduler that claimed, the worker that ran.
    #: Empty: nobody did.
    sa.Column('member', Exact(LONGEST_HOLDER), primary_key=True),
    #: Claimed, or skipped without a claim.
    sa.Column('due', sa.BigInteger, nullable=False),
    sa.Column('done', sa.BigInteger, nullable=False),
    #: Less what an operator has put back; that is due no second time.
    sa.Column('dead', sa.BigInteger, nullable=False),
    #: Also each by what had it skipped.
    sa.Column('skipped', sa.BigInteger, nullable=False),
    sa.Column('by_misfire', sa.BigInteger, nullable=False),
    sa.Column('by_overlap', sa.BigInteger, nullable=False),
    sa.Column('by_pause', sa.BigInteger, nullable=False),
    sa.Column('by_lost', sa.BigInteger, nullable=False, server_default='0'),
    #: Of what was skipped, what was due for ticks before this one: they are
    #: counted in the newest of the ticks that were missed together.
    sa.Column('missed', sa.BigInteger, nullable=False),
    sa.Column('superseded', sa.BigInteger, nullable=False),
    sa.Column('cancelled', sa.BigInteger, nullable=False),
    #: Failed, to be tried again; each time counts.
    sa.Column('retried', sa.BigInteger, nullable=False),
    #: Of leases that ended or whose holder was gone; each time counts.
    sa.Column('taken_over', sa.BigInteger, nullable=False),
    #: From the tick to its claim, in milliseconds of the store's clock: the
    #: sum over what was claimed, and the longest. What a job spreads over its
    #: period has its phase in it.
    sa.Column('lateness', sa.BigInteger, nullable=False),
    sa.Column('latest', sa.BigInteger, nullable=False),
    #: How many were claimed later than ``late_claim_after``.
    sa.Column('late', sa.BigInteger, nullable=False),
    #: Why the last ones were skipped. None: none was.
    sa.Column('reason', sa.String(LONGEST_REASON)),
    **_OF_TABLES, **_CHANGING)

#: One row: how the clocks of a SQLite file's host follow from the time since
#: its boot, in microseconds; see :mod:`distperiodic.adapters.host_clock`.
clock = sa.Table(
    'distperiodic_clock', metadata,
    sa.Column('boot', sa.String(64), primary_key=True),
    sa.Column('lease', sa.BigInteger, nullable=False),
    sa.Column('offset', sa.BigInteger, nullable=False),
    sa.Column('knee', sa.BigInteger),
    sa.Column('seen', sa.BigInteger, nullable=False),
    **_OF_TABLES)

#: Runs that failed for the last time.
failure = sa.Table(
    'distperiodic_failure', metadata,
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer, 'sqlite'),
              primary_key=True),
    sa.Column('job', sa.Integer, nullable=False),
    sa.Column('object', Exact(LONGEST_ID), nullable=False),
    sa.Column('tick', sa.BigInteger, nullable=False),
    sa.Column('fence', sa.BigInteger, nullable=False),
    sa.Column('attempt', sa.Integer, nullable=False),
    #: None: it was never started.
    sa.Column('worker', Exact(LONGEST_HOLDER)),
    sa.Column('error', LongText, nullable=False),
    sa.Column('traceback', LongText, nullable=False),
    #: Microseconds of the store's clock.
    sa.Column('at', sa.BigInteger, nullable=False),
    sa.Index('distperiodic_failure_object', 'job', 'object'),
    **_OF_TABLES)
