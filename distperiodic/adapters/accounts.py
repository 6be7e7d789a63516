# SPDX-License-Identifier: Apache-2.0
"""What the store knows of ticks and objects, for commands that look.

All that one answer is made of is read at one moment of the database: between
two of them a claim could end, and its end be missing here or there.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa

from distperiodic.adapters import control
from distperiodic.adapters import tables
from distperiodic.core import audit
from distperiodic.core import claim as claim_
from distperiodic.core import reason
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import FENCES
from distperiodic.core.claim import FINISHED
from distperiodic.core.claim import State

T = TypeVar('T')

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease

# Ids that are looked up by one statement.
_KEYS = 1000
# Failures that are told of one object.
_FAILED = 3
_STANDS_OPEN = sa.or_(
    _claim.c.state.in_(set(State) - ENDINGS - {State.LISTED}),
    # Ended in a session of its handler's, and not counted yet.
    _claim.c.lease.like(f'%{FINISHED}'))


class Account(NamedTuple):
    """What the store has of one job and a stretch of time."""

    #: Of the store, at the moment of reading.
    now: int
    #: The first tick of the history in that time. None: there is none.
    begins: int | None
    ticks: dict[int, audit.Counts]
    #: All objects that had a tick in that time.
    served: list[audit.Served]
    #: Those whose last tick was before *behind*, or that were asked for.
    rows: list[audit.Row]


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
    #: Who was granted the last run of its last tick; empty: nobody.
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
                sa.select(_claim, _lease.c.holder, _lease.c.until,
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
                    row.holder or '', row.until),
                row.fence, row.attempt, row.worker or '', row.previous,
                row.served, row.told or '',
                [Failed(*one) for one in failed])
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

    def account(self, job: str, since: int, behind: int | None,
                also: Iterable[str] = ()) -> Account:
        """What became of the ticks of *job*.

        :param since: the first tick, in microseconds.
        :param behind: rows are told one by one of those objects that were
            claimed or skipped for no such tick, nor a later one. None: of
            none.
        :param also: objects whose rows are told as well.
        :raises ConfigError: there is no such job.
        """
        [number] = self._named(job)
        keys = list(also)

        def work(connection: sa.Connection) -> Account:
            now = connection.scalar(sa.select(self._dialect.now))
            assert now is not None
            ticks = self._ticks(connection, number, since)
            rows = {}
            if behind is not None:
                rows = {row.object: row for row in _rows(
                    connection, number, _claim.c.settled < behind)}
            for at in range(0, len(keys), _KEYS):
                rows.update((row.object, row) for row in _rows(
                    connection, number,
                    _claim.c.object.in_(keys[at:at + _KEYS])))
            return Account(now, min(ticks, default=None), ticks,
                           list(_served(connection, number, since)),
                           list(rows.values()))
        return self._at_one_moment(work)

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


def _served(connection: sa.Connection, number: int,
            since: int) -> Iterator[audit.Served]:
    """How many objects were served alike, since then.

    When they were first is in their fences (see core.audit): those of one
    millisecond are alike, and so are all from before.
    """
    oldest = claim_.first_fence(since)
    fence = sa.case(
        (_claim.c.fence < oldest, oldest),
        else_=_claim.c.fence - _claim.c.fence % FENCES).label('fence')
    alike = (fence, _claim.c.settled)
    for row in connection.execute(
            sa.select(*alike, sa.func.count().label('number'))
            .where(_claim.c.job == number, _claim.c.settled >= since)
            .group_by(*alike)):
        yield audit.Served(audit.first_tick(row.fence), row.settled,
                           number=row.number)


def _rows(connection: sa.Connection, number: int,
          which: sa.ColumnElement[bool]) -> Iterator[audit.Row]:
    for row in connection.execute(
            sa.select(_claim.c.object, _claim.c.fence, _claim.c.settled,
                      _claim.c.tick, _claim.c.previous,
                      sa.case((_STANDS_OPEN, 1), else_=0).label('open'))
            .where(_claim.c.job == number, which)):
        yield audit.Row(row.object, audit.Served(
            audit.first_tick(row.fence), row.settled, bool(row.open)),
            row.tick, row.previous)
