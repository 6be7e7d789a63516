# SPDX-License-Identifier: Apache-2.0
"""Queries on ticks and objects, for operator commands.

A query that needs several statements reads one snapshot of the database.
Otherwise a claim could end between two statements, and the statements would
contradict each other.
"""

from array import array
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import counting
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.dialects.dialect import Selection
from distperiodic.adapters.sql.pauses_in_force import not_over
from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import State
from distperiodic.core.explanation import ClaimStanding
from distperiodic.core.outcomes import COLUMNS
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.core.outcomes import Counts
from distperiodic.core.reason import Reason
from distperiodic.core.tick_exceptions import ObjectPast
from distperiodic.core.tick_exceptions import past_of
from distperiodic.operator import object_past
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import Pausing
from distperiodic.operator.group_reader import StoredJob
from distperiodic.operator.group_reader import pause_of

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease
_paused = tables.paused_object

# Number of failures that are returned for one object.
_FAILED = 3
# Maximum number of rows of exceptions that are read to explain ticks.
_EXCEPTIONS = 5_000
# SQL expression for the slice of the ring that contains a position. The ring
# has 64 slices.
_SLICE = _claim.c.position.op('>>')(sa.literal_column('58'))
_STANDS_OPEN = _claim.c.state.in_(set(State) - ENDINGS - {State.LISTED})
_FREE = sa.case((_STANDS_OPEN, 0), else_=1).label('free')
# Columns of the history, by the reason for the objects that they count.
_COUNTERS = {outcome.reason: name for name, outcome in OUTCOMES.items()
             if outcome.reason is not None}


class Account(NamedTuple):
    """The store's data on one job, from a given tick on."""

    #: Time of the store's clock when the data was read.
    now: int
    #: First tick of the audit. The history of earlier ticks may be pruned.
    begins: int
    #: Text of the schedule in force. An empty text means an unknown schedule.
    schedule: str
    #: The instant since which the schedule has been in force.
    schedule_since: int
    attended: audit.AttendedInterval | None
    #: The instant at which an operator paused the job. None means that the job
    #: is not paused.
    paused: int | None
    ticks: dict[int, Counts]
    #: Listed objects that are not in ``placed``: for each group of equal rows,
    #: one of the rows and the size of the group.
    alike: list[tuple[due.Row, int]]
    #: Listed objects whose position on the ring matters: for each group of
    #: rows that differ only in position, one of the rows and all positions.
    placed: list[tuple[due.Row, Sequence[int]]]


class Failed(NamedTuple):
    """A run that failed for good."""

    tick: int
    attempt: int
    #: The worker of the run. An empty text means that the run was never
    #: started.
    worker: str
    error: str


class Object(NamedTuple):
    """The store's data on one object of a job; times in microseconds."""

    #: Time of the store's clock when the data was read.
    now: int
    #: None means that the store has no row for the job.
    job: StoredJob | None
    #: None means that the store has no row for the object.
    claim: ClaimStanding | None
    fence: int = 0
    attempt: int = 0
    #: The worker to which the last run of the claim was granted. An empty text
    #: means that no run was granted.
    worker: str = ''
    #: The tick of the claim before the last claim. None means that there is no
    #: such claim.
    previous: int | None = None
    #: Instant at which a run of the object last succeeded. None means that no
    #: run has succeeded.
    served: int | None = None
    #: Reason, from the history of the tick that is this object's watermark,
    #: for the last skip or for ending claims that must not run again. An empty
    #: text means that no reason is recorded.
    skip_reason: str = ''
    #: The newest failures, the newest first.
    failed: Sequence[Failed] = ()
    #: Instant since which the object waits, or has waited, for the start of a
    #: run. None means that it was never claimed.
    waiting: int | None = None
    #: The pause of the object itself. None means that it is not paused.
    pause: Pausing | None = None


class TickFacts(NamedTuple):
    """The store's data on one tick of an object."""

    #: The instant since which the job's schedule has been in force.
    schedule_since: int
    #: The first tick that the history covers.
    begins: int
    #: As in :class:`~distperiodic.core.explanation.Past`.
    rows_begin: int
    #: The newest runs of the object for this tick that failed for good, the
    #: newest first.
    failed: Sequence[Failed]
    #: The exceptions of this tick.
    past: ObjectPast
    #: Number of objects of this tick by outcome. Empty means that the history
    #: has no row for this tick.
    counts: dict[Reason, int]


def object_of(store: GroupReader, job: str, key: str) -> Object:
    """Return the store's data on one object."""
    def work(connection: sa.Connection) -> Object:
        now = connection.scalar(sa.select(store.dialect.now))
        assert now is not None
        known = next((one for one in store.jobs_in(connection)
                      if one.name == job), None)
        if known is None:
            return Object(now, None, None)
        in_group = sa.and_(
            _job.c.space == store.namespace, _job.c.name == job)
        row = connection.execute(
            sa.select(_claim, _lease.c.holder,
                      # Convert the time from the lease clock to the clock
                      # for ticks, which operators see.
                      (_lease.c.until - store.dialect.lease_now
                       + store.dialect.now).label('until'),
                      _history.c.reason.label('skip_reason'))
            .select_from(_claim.join(_job, _job.c.id == _claim.c.job)
                         .outerjoin(_lease, _lease.c.id == _claim.c.lease)
                         .outerjoin(_history, sa.and_(
                             _history.c.job == _claim.c.job,
                             _history.c.tick == _claim.c.settled,
                             _history.c.reason.is_not(None))))
            .where(in_group, _claim.c.object == key)
            .limit(1)).one_or_none()
        pause = None if not known.paused_objects else connection.execute(
            sa.select(_paused, sa.literal(now).label('now'))
            .join(_job, _job.c.id == _paused.c.job)
            .where(in_group, _job.c.kind == tables.KIND,
                   _paused.c.object == key, not_over(_paused, now))
        ).one_or_none()
        pausing = None if pause is None else pause_of(pause)
        if row is None:
            return Object(now, known, None, pause=pausing)
        return Object(
            now, known, ClaimStanding(
                row.tick, row.settled, row.skipped_by, row.state,
                row.holder or '', row.until, row.since,
                Attributes(row.rule), row.delisted),
            row.fence, row.attempt, row.worker or '', row.previous,
            row.served, row.skip_reason or '',
            _failures_of(connection, row.job, key, _FAILED), row.waiting,
            pausing)
    return store.read_snapshot(work)


def schedule_of(store: GroupReader, job: str, key: str) -> tuple[str, bool]:
    """Return the text of the schedule that an object follows.

    The second value is True if the schedule is the object's own, and False
    if it is the schedule of the job. An empty text means that no schedule
    is recorded.

    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    [row] = store.rows(
        sa.select(_job.c.schedule, _claim.c.rule)
        .select_from(_job.outerjoin(_claim, sa.and_(
            _claim.c.job == _job.c.id, _claim.c.object == key)))
        .where(_job.c.id == number))
    return row.rule or row.schedule or '', bool(row.rule)


def ticks(store: GroupReader, job: str, key: str,
          some: Sequence[int]) -> dict[int, TickFacts]:
    """Return the store's data on some ticks of an object, by tick.

    :param some: The ticks, at least one.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)

    def work(connection: sa.Connection) -> dict[int, TickFacts]:
        since, begins, rows_begin = (
            due.ALWAYS if moment is None else moment
            for moment in connection.execute(
                sa.select(_job.c.schedule_since, _job.c.pruned_before,
                          _job.c.claims_pruned)
                .where(_job.c.id == number)).one())
        failed = _failures_of(connection, number, key, _FAILED * len(some),
                              _failure.c.tick.in_(some))
        counts = {row.tick: {outcome: getattr(row, name)
                             for outcome, name in _COUNTERS.items()}
                  for row in connection.execute(
            sa.select(_history.c.tick, *counting.sums(_COUNTERS.values()))
            .where(_history.c.job == number, _history.c.tick.in_(some))
            .group_by(_history.c.tick))}
        found = object_past.about(object_past.exceptions(
            connection, number, min(some), max(some), _EXCEPTIONS), key)
        return {tick: TickFacts(
            since, begins, rows_begin,
            [one for one in failed if one.tick == tick],
            past_of(found, key, tick), counts.get(tick, {}))
            for tick in some}
    return store.read_snapshot(work)


def account(store: GroupReader, job: str, since: int,
            schedule: str = '') -> Account:
    """Return the data for an audit of the ticks of *job*.

    :param since: First tick, in microseconds.
    :param schedule: Text of the schedule to use if the store has none.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)

    def work(connection: sa.Connection) -> Account:
        row = connection.execute(
            sa.select(_job, store.dialect.now.label('now'))
            .where(_job.c.id == number)).one()
        begins = max(since, row.pruned_before or 0)
        text = row.schedule or schedule
        by_phase = None
        if text:
            rule, spread = audit.named(text)
            if spread:
                by_phase = _decided_by_phase(
                    begins, rule.at_or_before(row.now) or row.now)
        return Account(
            row.now, begins, text,
            due.ALWAYS if row.schedule_since is None
            else row.schedule_since,
            None if row.attended_since is None
            else audit.AttendedInterval(
                row.attended_since, row.attended_until),
            pause_of(row).since, _ticks(connection, number, begins),
            list(_alike(connection, number, begins, by_phase)),
            [] if by_phase is None
            else _placed(
                store.dialect, connection, number, by_phase))
    return store.read_snapshot(work)


def not_listed(store: GroupReader, job: str,
               objects: Collection[str]) -> set[str]:
    """Return the ids in *objects* that the store does not list.

    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    listed = _claim.c.job == number, _claim.c.since.is_not(None)

    def work(connection: sa.Connection) -> set[str]:
        missing = set(objects)
        for _, some in store.dialect.gather(connection, Selection(
                _claim.c.object, listed, (), _claim.c.object, _SLICE)):
            missing.difference_update(some)
        return missing
    return store.read_snapshot(work)


def _failures_of(connection: sa.Connection, number: int, key: str, limit: int,
                 *which: sa.ColumnElement[bool]) -> list[Failed]:
    """Return the newest failures of an object, the newest first."""
    return [Failed(*row) for row in connection.execute(
        sa.select(_failure.c.tick, _failure.c.attempt,
                  sa.func.coalesce(_failure.c.worker, ''), _failure.c.error)
        .where(_failure.c.job == number, _failure.c.object == key, *which)
        .order_by(_failure.c.id.desc()).limit(limit))]


def _ticks(connection: sa.Connection, number: int,
           since: int) -> dict[int, Counts]:
    counted = connection.execute(
        sa.select(_history.c.tick, *counting.sums(COLUMNS))
        .where(_history.c.job == number, _history.c.tick >= since)
        .group_by(_history.c.tick)).all()
    found = {row.tick: counting.counts(row) for row in counted}
    for tick, still_open in connection.execute(
            sa.select(_claim.c.tick, sa.func.count())
            .where(_claim.c.job == number, _claim.c.tick >= since,
                   _STANDS_OPEN)
            .group_by(_claim.c.tick)):
        found[tick] = found.get(tick, Counts())._replace(
            open=still_open)
    return found


def _decided_by_phase(begins: int, newest: int) -> sa.ColumnElement[bool]:
    """Return the SQL condition for the objects whose position matters.

    The condition is for a job that spreads its objects over the period. For
    such a job, the position determines whether an object was due for the first
    tick after its listing, and whether it is due for the newest tick.
    """
    return sa.and_(
        _claim.c.rule == '',
        sa.or_(_claim.c.since >= begins, _claim.c.settled < newest))


def _alike(connection: sa.Connection, number: int, begins: int,
           excluded: sa.ColumnElement[bool] | None
           ) -> Iterator[tuple[due.Row, int]]:
    """Yield a row and the group's size for each group of equal listed objects.

    :param excluded: Objects to leave out.
    """
    columns = [
        # Replace all instants before the beginning of the audit by the same
        # instant, so that more rows fall into one group.
        sa.case((column < begins, begins - 1), else_=column).label(name)
        for name, column in (('settled', _claim.c.settled),
                             ('since', _claim.c.since))]
    columns += [_claim.c.rule.label('rule'), _FREE]
    which = [_claim.c.job == number, _claim.c.since.is_not(None)]
    if excluded is not None:
        which.append(sa.not_(excluded))
    inner = sa.select(*columns).where(*which).subquery()
    for row in connection.execute(
            sa.select(inner, sa.func.count().label('number'))
            .group_by(*inner.c)):
        yield due.Row('', 0, row.settled, row.since,
                      Attributes(row.rule), bool(row.free)), row.number


def _placed(dialect: Dialect, connection: sa.Connection, number: int,
            which: sa.ColumnElement[bool]
            ) -> list[tuple[due.Row, Sequence[int]]]:
    # Do not create a Python object for each row: there may be a million rows.
    found: dict[tuple[Any, ...], array[int]] = {}
    alike = (_claim.c.settled, _claim.c.since, _FREE)
    listed = (_claim.c.job == number, _claim.c.since.is_not(None), which)
    for group, positions in dialect.gather(connection, Selection(
            _claim.c.position, listed, alike, _claim.c.object, _SLICE)):
        found.setdefault(group, array('q')).extend(positions)
    return [(due.Row('', places[0], settled, since, PLAIN, bool(free)), places)
            for (settled, since, free), places in found.items()]
