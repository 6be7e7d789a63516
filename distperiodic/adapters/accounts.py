# SPDX-License-Identifier: Apache-2.0
"""What the store knows of ticks and objects, for commands that look.

All that one answer is made of is read at one moment of the database: between
two of them a claim could end, and its end be missing here or there.
"""

import operator
from array import array
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa

from distperiodic.adapters import control
from distperiodic.adapters import tables
from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core import reason
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import State

T = TypeVar('T')

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease

# Failures that are told of one object.
_FAILED = 3
# Rows that are fetched at once, where there may be a million: a server ends a
# transaction in which nothing is asked for 2 s.
_ROWS = 10_000
_FIRST = operator.itemgetter(0)
# A 64th of the ring, and how many are fetched at once.
_SLICE = _claim.c.position.op('>>')(sa.literal_column('58'))
_SLICES = 8
_STANDS_OPEN = _claim.c.state.in_(set(State) - ENDINGS - {State.LISTED})
# Columns of the history, by what they count.
_BECAME = {
    reason.Reason.RAN: 'done', reason.Reason.DEAD: 'dead',
    reason.Reason.SUPERSEDED: 'superseded',
    reason.Reason.CANCELLED: 'cancelled',
    reason.Reason.PASSED_OVER: 'by_misfire', reason.Reason.LOST: 'by_lost',
    reason.Reason.SKIPPED_BY_OVERLAP: 'by_overlap',
    reason.Reason.SKIPPED_BY_PAUSE: 'by_pause'}


class Account(NamedTuple):
    """What the store has of one job and a stretch of time."""

    #: Of the store, at the moment of reading.
    now: int
    #: The first tick that it can tell of: what was before may be pruned.
    begins: int
    #: The text of the schedule in force; empty: nobody knows.
    schedule: str
    #: Since when it holds.
    schedule_since: int
    attended: audit.Attendance | None
    #: Since when an operator has paused it. None: it is not paused.
    paused: int | None
    ticks: dict[int, audit.Counts]
    #: Listed objects, with the number of those alike.
    alike: list[tuple[due.Row, int]]
    #: Those whose place on the ring matters: one of those alike otherwise,
    #: and the places of all.
    placed: list[tuple[due.Row, Sequence[int]]]


class Failed(NamedTuple):
    """A run that failed for the last time."""

    tick: int
    attempt: int
    #: Who ran it; empty: nobody.
    worker: str
    error: str


class Object(NamedTuple):
    """What the store has of one object of a job; times in microseconds."""

    #: Of the store, at the moment of reading.
    now: int
    #: The job as the store knows it. None: it does not.
    job: control.Job | None
    #: None: nobody ever claimed it.
    claim: reason.Standing | None
    fence: int = 0
    attempt: int = 0
    #: The worker to which the last run of its last tick was granted; empty:
    #: none was.
    worker: str = ''
    #: The tick that it was claimed for before. None: there is none.
    previous: int | None = None
    #: When a run of it was last done. None: never.
    served: int | None = None
    #: What was said of the tick that it was skipped for, by whoever skipped
    #: last; empty: nothing.
    told: str = ''
    #: The newest first.
    failed: Sequence[Failed] = ()


class Tick(NamedTuple):
    """What the store has of one tick of an object."""

    #: Since when the job has its schedule.
    schedule_since: int
    #: The first tick that the history can tell of.
    begins: int
    #: The object's run for this tick that failed for good. None: none did.
    failed: Failed | None
    #: Number of objects of this tick, by what became of them. Where nothing
    #: is recorded of it: what was given up of earlier ticks with the next.
    counts: dict[reason.Reason, int]
    #: Why the last ones were skipped; empty: none were.
    told: str


class Unserved(NamedTuple):
    """An object, and when it was served."""

    object: str
    tick: int
    state: State
    #: When a run of it was last done, in microseconds. None: never.
    served: int | None


class Accounts(control.Control):
    """The store of one group, for commands that look."""

    def object(self, job: str, key: str) -> Object:
        """All that the store has of one object."""
        def work(connection: sa.Connection) -> Object:
            now = connection.scalar(sa.select(self._dialect.now))
            assert now is not None
            known = next((one for one in self._jobs_in(connection)
                          if one.name == job), None)
            if known is None:
                return Object(now, None, None)
            ours = sa.and_(
                _job.c.space == self._space, _job.c.name == job)
            row = connection.execute(
                sa.select(_claim, _lease.c.holder,
                          # As the clock shows it that people go by.
                          (_lease.c.until - self._dialect.lease_now
                           + self._dialect.now).label('until'),
                          _history.c.reason.label('told'))
                .select_from(_claim.join(_job, _job.c.id == _claim.c.job)
                             .outerjoin(_lease, _lease.c.id == _claim.c.lease)
                             .outerjoin(_history, sa.and_(
                                 _history.c.job == _claim.c.job,
                                 _history.c.tick == _claim.c.settled,
                                 _history.c.reason.is_not(None))))
                .where(ours, _claim.c.object == key).limit(1)).one_or_none()
            if row is None:
                return Object(now, known, None)
            failed = connection.execute(
                sa.select(_failure.c.tick, _failure.c.attempt,
                          sa.func.coalesce(_failure.c.worker, ''),
                          _failure.c.error)
                .where(_failure.c.job == row.job, _failure.c.object == key)
                .order_by(_failure.c.id.desc()).limit(_FAILED)).all()
            return Object(
                now, known, reason.Standing(
                    row.tick, row.settled, row.skipped_by, row.state,
                    row.holder or '', row.until, row.since),
                row.fence, row.attempt, row.worker or '', row.previous,
                row.served, row.told or '',
                [Failed(*one) for one in failed])
        return self._at_one_moment(work)

    def schedule_of(self, job: str, key: str) -> tuple[str, bool]:
        """Return the text of the schedule that an object follows (empty: not
        recorded), and whether it is its own.

        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)

        def work(connection: sa.Connection) -> tuple[str, bool]:
            row = connection.execute(
                sa.select(_job.c.schedule, _claim.c.rule)
                .select_from(_job.outerjoin(_claim, sa.and_(
                    _claim.c.job == _job.c.id, _claim.c.object == key)))
                .where(_job.c.id == number)).one()
            return row.rule or row.schedule or '', bool(row.rule)
        return self._database.look(work)

    def tick(self, job: str, key: str, tick: int) -> Tick:
        """Return what the store has of one tick of an object.

        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)

        def work(connection: sa.Connection) -> Tick:
            since, begins = (
                due.ALWAYS if moment is None else moment
                for moment in connection.execute(
                    sa.select(_job.c.schedule_since, _job.c.pruned_before)
                    .where(_job.c.id == number)).one())
            failed = connection.execute(
                sa.select(_failure.c.tick, _failure.c.attempt,
                          sa.func.coalesce(_failure.c.worker, ''),
                          _failure.c.error)
                .where(_failure.c.job == number, _failure.c.object == key,
                       _failure.c.tick == tick)
                .order_by(_failure.c.id.desc()).limit(1)).one_or_none()
            sums = [sa.cast(sa.func.sum(_history.c[name]), sa.BigInteger)
                    .label(name) for name in (*_BECAME.values(), 'missed')]
            # The tick itself, or else the next that anything is recorded of.
            row = connection.execute(
                sa.select(_history.c.tick, *sums,
                          sa.func.max(_history.c.reason).label('reason'))
                .where(_history.c.job == number, _history.c.tick >= tick)
                .group_by(_history.c.tick).order_by(_history.c.tick)
                .limit(1)).one_or_none()
            counts: dict[reason.Reason, int] = {}
            if row is not None and row.tick == tick:
                counts = {of: getattr(row, name)
                          for of, name in _BECAME.items()}
            elif row is not None:
                lost = min(row.missed, row.by_lost)
                counts = {reason.Reason.LOST: lost,
                          reason.Reason.PASSED_OVER: row.missed - lost}
            return Tick(
                since, begins, None if failed is None else Failed(*failed),
                counts, '' if row is None else row.reason or '')
        return self._at_one_moment(work)

    def unserved(self, job: str, seconds: float,
                 limit: int) -> list[Unserved]:
        """Objects of which no run was done for so many seconds, those that
        wait the longest first.

        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)

        def work(connection: sa.Connection) -> list[Unserved]:
            return [Unserved(*row) for row in connection.execute(
                sa.select(_claim.c.object, _claim.c.tick, _claim.c.state,
                          _claim.c.served)
                .where(_claim.c.job == number, sa.or_(
                    _claim.c.served.is_(None),
                    _claim.c.served
                    < self._dialect.now - round(seconds * 1e6)))
                .order_by(sa.func.coalesce(_claim.c.served, 0),
                          _claim.c.object).limit(limit))]
        return self._database.look(work)

    def lists(self, job: str) -> bool:
        """Return whether anything of *job* was ever listed.

        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)
        return self._database.look(lambda connection: connection.execute(
            sa.select(_claim.c.object).where(_claim.c.job == number)
            .limit(1)).first() is not None)

    def account(self, job: str, since: int, schedule: str = '') -> Account:
        """What became of the ticks of *job*.

        :param since: the first tick, in microseconds.
        :param schedule: the text of its schedule, where the store has none.
        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)

        def work(connection: sa.Connection) -> Account:
            row = connection.execute(
                sa.select(_job, self._dialect.now.label('now'))
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
                else audit.Attendance(row.attended_since, row.attended_until),
                row.paused_since, self._ticks(connection, number, begins),
                list(_alike(connection, number, begins, by_phase)),
                [] if by_phase is None
                else _placed(connection, number, by_phase))
        return self._at_one_moment(work)

    def not_listed(self, job: str, objects: Collection[str]) -> set[str]:
        """Those of *objects* that the store has no listing of.

        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)

        listed = _claim.c.job == number, _claim.c.since.is_not(None)

        def work(connection: sa.Connection) -> set[str]:
            missing = set(objects)
            if connection.dialect.name == 'postgresql':
                for (some,) in connection.execute(
                        sa.select(sa.func.array_agg(_claim.c.object))
                        .where(*listed).group_by(_SLICE)
                        .execution_options(yield_per=_SLICES)):
                    missing.difference_update(some)
            else:
                for rows in connection.execute(
                        sa.select(_claim.c.object).where(*listed)
                        .execution_options(yield_per=_ROWS)).partitions():
                    missing.difference_update(map(_FIRST, rows))
            return missing
        return self._database.look(work)

    def _at_one_moment(self, work: Callable[[sa.Connection], T]) -> T:
        def look(connection: sa.Connection) -> T:
            self._dialect.look_at_one_moment(connection)
            return work(connection)
        return self._database.look(look)

    def _ticks(self, connection: sa.Connection, number: int,
               since: int) -> dict[int, audit.Counts]:
        names = [name for name in audit.Counts._fields if name != 'open']
        counted = connection.execute(
            sa.select(_history.c.tick, *(
                sa.cast(sa.func.sum(_history.c[name]), sa.BigInteger)
                for name in names))
            .where(_history.c.job == number, _history.c.tick >= since)
            .group_by(_history.c.tick)).all()
        found = {row.tick: audit.Counts(*row[1:]) for row in counted}
        for tick, still_open in connection.execute(
                sa.select(_claim.c.tick, sa.func.count())
                .where(_claim.c.job == number, _claim.c.tick >= since,
                       _STANDS_OPEN)
                .group_by(_claim.c.tick)):
            found[tick] = found.get(tick, audit.Counts())._replace(
                open=still_open)
        return found


def _decided_by_phase(begins: int, newest: int) -> sa.ColumnElement[bool]:
    """Objects whose place on the ring says whether they were due, for the
    first tick that counts for them or for the last.
    """
    return sa.and_(
        sa.func.coalesce(_claim.c.rule, '') == '',
        sa.or_(_claim.c.since >= begins, _claim.c.settled < newest))


_RULE = sa.func.coalesce(_claim.c.rule, '', type_=_claim.c.rule.type)
_FREE = sa.case((_STANDS_OPEN, 0), else_=1).label('free')


def _alike(connection: sa.Connection, number: int, begins: int,
           but: sa.ColumnElement[bool] | None
           ) -> Iterator[tuple[due.Row, int]]:
    """Listed objects, those alike in one row.

    :param but: those that are left out.
    """
    columns = [
        # What was before is all the same.
        sa.case((column < begins, begins - 1), else_=column).label(name)
        for name, column in (('settled', _claim.c.settled),
                             ('since', _claim.c.since))]
    columns += [_RULE.label('rule'), _FREE]
    which = [_claim.c.job == number, _claim.c.since.is_not(None)]
    if but is not None:
        which.append(sa.not_(but))
    inner = sa.select(*columns).where(*which).subquery()
    for row in connection.execute(
            sa.select(inner, sa.func.count().label('number'))
            .group_by(*inner.c)):
        yield due.Row('', 0, row.settled, row.since, row.rule,
                      bool(row.free)), row.number


def _placed(connection: sa.Connection, number: int,
            which: sa.ColumnElement[bool]
            ) -> list[tuple[due.Row, Sequence[int]]]:
    # Not one object of Python's for each row: there may be a million.
    found: dict[tuple[int, int, int], array[int]] = {}
    alike = (_claim.c.settled, _claim.c.since, _FREE)
    listed = (_claim.c.job == number, _claim.c.since.is_not(None), which)
    if connection.dialect.name == 'postgresql':
        for *key, positions in connection.execute(
                sa.select(*alike, sa.func.array_agg(_claim.c.position))
                .where(*listed).group_by(*alike)):
            found[tuple(key)] = array('q', positions)
    else:
        for position, *key in connection.execute(
                sa.select(_claim.c.position, *alike).where(*listed)
                .execution_options(yield_per=_ROWS)):
            places = found.get(kind := tuple(key))
            if places is None:
                places = found[kind] = array('q')
            places.append(position)
    return [(due.Row('', places[0], settled, since, '', bool(free)), places)
            for (settled, since, free), places in found.items()]
