# SPDX-License-Identifier: Apache-2.0
"""Operator queries and commands on the store.

They only read and write tables; no process of the service takes part.
Schedulers see the changes at their next sweep.
"""

import functools
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import claiming
from distperiodic.adapters.sql import history as sql_history
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import due
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease

_DEAD = MOVES[Move.REQUEUE][0]

# Number of rows that are read and changed at once, and number of claims in a
# triggered lease. Both keep transactions short.
_AT_A_TIME = 1000
_IN_A_LEASE = 500


class Ticked(NamedTuple):
    """The outcome of a tick, counted in objects."""

    job: str
    #: Microseconds since the epoch.
    tick: int
    due: int
    done: int
    dead: int
    skipped: int
    #: Skipped objects by cause.
    by_misfire: int
    by_overlap: int
    by_pause: int
    by_lost: int
    superseded: int
    cancelled: int
    #: Number of failed runs that were scheduled for a retry.
    retried: int
    taken_over: int
    #: Number of schedulers and workers in its history. A trigger or a requeue
    #: by an operator counts as one more.
    members: int
    #: Milliseconds from the tick to the claim, over all claimed objects: the
    #: mean, and the maximum.
    mean: int
    latest: int
    #: A reason for which objects were skipped. Empty means none was skipped.
    reason: str

    @property
    def open(self) -> int:
        """Number of objects without an outcome yet."""
        return self.due - (self.done + self.dead + self.skipped
                           + self.superseded + self.cancelled)


class Job(NamedTuple):
    """The store's data on a job."""

    name: str
    #: Newest tick in the history, in microseconds. None means there is none.
    tick: int | None
    #: In microseconds. None means not paused.
    paused_since: int | None
    paused_by: str
    paused_why: str
    #: The instant from which its schedule holds, or core.due.ALWAYS.
    schedule_since: int


class Triggered(NamedTuple):
    """The result of a request to run objects at once."""

    tick: int
    objects: int
    #: Number of objects that were not claimed, since a claim of an earlier
    #: tick is still open.
    busy: int


class Dead(NamedTuple):
    """A dead claim, and how its last run failed."""

    job: str
    object: str
    #: Microseconds since the epoch.
    tick: int
    attempt: int
    #: The worker of the last run. Empty means no run was granted.
    worker: str
    #: When it ended, in microseconds, and why. None and empty mean that the
    #: record of the failure is pruned.
    at: int | None
    error: str
    #: Also empty if tracebacks were not requested.
    traceback: str


class StoreAdmin(SqlClaimStore):
    """The store of one group, for operator commands."""

    def history(self, *, job: str | None, since: int,
                limit: int) -> list[Ticked]:
        """Return the outcome of ticks, the newest first.

        :param job: Name of the job. None means all jobs.
        :param since: First tick, in microseconds.
        :param limit: Maximum number of rows; a row is one job and tick.
        :raises ConfigError: the store has no such job.
        """
        names = self._named(job)
        counted = ('due', 'done', 'dead', 'skipped', 'by_misfire',
                   'by_overlap', 'by_pause', 'by_lost', 'superseded',
                   'cancelled', 'retried', 'taken_over', 'lateness')
        found = self._database.read(lambda connection: connection.execute(
            sa.select(
                _history.c.job, _history.c.tick,
                *(sa.cast(sa.func.sum(_history.c[name]), sa.BigInteger)
                  .label(name) for name in counted),
                sa.func.count().label('members'),
                sa.func.max(_history.c.latest).label('latest'),
                sa.func.max(_history.c.reason).label('reason'))
            .where(_history.c.job.in_(list(names)), _history.c.tick >= since)
            .group_by(_history.c.job, _history.c.tick)
            .order_by(_history.c.tick.desc(), _history.c.job)
            .limit(limit)).all())
        return [Ticked(
            names[row.job], row.tick, row.due, row.done, row.dead,
            row.skipped, row.by_misfire, row.by_overlap, row.by_pause,
            row.by_lost, row.superseded, row.cancelled, row.retried,
            row.taken_over,
            row.members,
            # Skipped objects were not claimed, so they have no lateness.
            round(row.lateness / max(1, row.due - row.skipped)), row.latest,
            row.reason or '') for row in found]

    def dead(self, *, job: str | None, limit: int,
             key: str | None = None,
             tracebacks: bool = False) -> list[Dead]:
        """Return dead claims, the newest ticks first.

        :param job: Name of the job. None means all jobs.
        :param key: Id of the object. None means all objects.
        :param tracebacks: Whether to return tracebacks; each may be long.
        :raises ConfigError: the store has no such job.
        """
        names = self._named(job)
        which: list[sa.ColumnElement[bool]] = [
            _claim.c.job.in_(list(names)), _claim.c.state.in_(_DEAD)]
        if key is not None:
            which.append(_claim.c.object == key)
        found = self._database.read(lambda connection: connection.execute(
            sa.select(_claim.c.job, _claim.c.object, _claim.c.tick,
                      _claim.c.attempt, _claim.c.worker, _failure.c.at,
                      _failure.c.error,
                      (_failure.c.traceback if tracebacks else
                       sa.literal('')).label('traceback'))
            .outerjoin_from(_claim, _failure, sa.and_(*(
                _failure.c[name] == _claim.c[name]
                for name in ('job', 'object', 'tick', 'fence'))))
            .where(*which)
            .order_by(_claim.c.tick.desc(), _claim.c.job, _claim.c.object)
            .limit(limit)).all())
        return [Dead(names[row.job], row.object, row.tick, row.attempt,
                     row.worker or '', row.at, row.error or '',
                     row.traceback or '')
                for row in found]

    def requeue(self, *, job: str | None, key: str | None) -> int:
        """Requeue dead claims.

        Each object runs again for the tick in which it died, from its first
        attempt. An object that was claimed for a later tick is left out.

        :param job: Name of the job. None means all jobs.
        :param key: Id of the object. None means all objects.
        :returns: Number of requeued claims.
        :raises ConfigError: the store has no such job.
        """
        return sum(self._requeue_of(number, key)
                   for number in self._named(job))

    def _requeue_of(self, number: int, key: str | None) -> int:
        dead = [_claim.c.job == number, _claim.c.state.in_(_DEAD)]
        if key is not None:
            dead.append(_claim.c.object == key)
        requeued, last = 0, ''
        while True:
            found = self._database.read(functools.partial(
                _read, sa.select(_claim.c.object, _claim.c.tick)
                .where(*dead, _claim.c.object > last)
                .order_by(_claim.c.object).limit(_AT_A_TIME)))
            together: dict[int, list[str]] = {}
            for row in found:
                together.setdefault(row.tick, []).append(row.object)
            for tick, keys in together.items():
                requeued += self._requeue(number, tick, keys)
            if len(found) < _AT_A_TIME:
                return requeued
            last = found[-1].object

    def _requeue(self, number: int, tick: int, keys: list[str]) -> int:
        name = uuid.uuid4().hex

        def work(tx: Transaction) -> int:
            back: dict[str, Claim] = {}
            tx.move(tx.sql.requeue, number, keys, back,
                    {'of_tick': tick, 'into': name})
            if back:
                sql_history.count(tx, number, tick, '', dead=-len(back))
                tx.make(name, State.CLAIMED, number, tick, list(back), '',
                        0.0)
            return len(back)
        return self._once(
            work, lambda tx: len(tx.standing(number, keys, name)))

    def _named(self, job: str | None = None) -> dict[int, str]:
        """Return the jobs of the group that the store knows, by number.

        :param job: Name of the only job to return. None means all jobs.
        :raises ConfigError: the store has no such job.
        """
        names = {row.id: row.name for row in self._database.read(
            lambda connection: connection.execute(
                sa.select(_job.c.id, _job.c.name)
                .where(_job.c.space == self._namespace)
                .order_by(_job.c.name)).all())}
        if job is None:
            return names
        if job not in names.values():
            known = ', '.join(repr(name) for name in names.values())
            raise exceptions.ConfigError(
                f'group {self._namespace!r} has no job {job!r} in this '
                'database; '
                + (f'it has {known}' if known else
                   'it has none before a scheduler has run; look at '
                   '[distperiodic] group'))
        return {number: name for number, name in names.items()
                if name == job}

    def check_job(self, job: str) -> None:
        """Check that the store has *job*.

        :raises ConfigError: the store has no such job.
        """
        self._named(job)

    def jobs(self) -> list[Job]:
        """Return all jobs that the store has, by name."""
        return self._database.read(self._jobs_in)

    def _jobs_in(self, connection: sa.Connection) -> list[Job]:
        newest = sa.select(sa.func.max(_history.c.tick)).where(
            _history.c.job == _job.c.id).scalar_subquery()
        found = connection.execute(
            sa.select(_job, newest.label('tick')).where(
                _job.c.space == self._namespace)).all()
        return sorted(Job(row.name, row.tick, row.paused_since,
                          row.paused_by or '', row.paused_why or '',
                          due.ALWAYS if row.schedule_since is None
                          else row.schedule_since)
                      for row in found)

    def pause(self, job: str, *, by: str, why: str) -> None:
        """Skip ticks of *job* from the schedulers' next sweep on. Claimed
        objects still run.

        :raises ConfigError: the store has no such job.
        """
        self._set_paused(job, {
            'paused_since': self._dialect.now,
            'paused_by': by[:tables.LONGEST_REASON],
            'paused_why': why[:tables.LONGEST_REASON]})

    def resume(self, job: str) -> bool:
        """Resume *job* at its next tick.

        :returns: Whether it was paused.
        :raises ConfigError: the store has no such job.
        """
        paused = any(one.name == job and one.paused_since is not None
                     for one in self.jobs())
        self._set_paused(job, dict.fromkeys(
            ('paused_since', 'paused_by', 'paused_why')))
        return paused

    def _set_paused(self, job: str, values: dict[str, Any]) -> None:
        [number] = self._named(job)
        self._database.write(lambda connection: connection.execute(
            sa.update(_job).where(_job.c.id == number).values(values)))

    def trigger(self, job: str, *, key: str | None) -> Triggered:
        """Run *job* at once.

        Claim its objects for a tick of this moment, in expired leases without
        a holder. The next sweep takes these leases over. Ticks of the
        schedule are not affected: the job's own policies still decide on
        those that were due before.

        :param key: Id of the object. None means all objects. Objects that
            are not listed are left out.
        :raises ConfigError: the store has no such job.
        """
        [number] = self._named(job)
        tick = self.now()
        won = busy = 0
        for keys in [[key]] if key is not None else self._objects(number):
            some_won, some_busy = self._trigger(number, tick, keys)
            won += some_won
            busy += some_busy
        return Triggered(tick, won, busy)

    def _trigger(self, number: int, tick: int,
                 keys: list[str]) -> tuple[int, int]:
        """Return how many of *keys* were claimed, and how many are busy."""
        name = uuid.uuid4().hex

        def work(tx: Transaction) -> tuple[int, int]:
            claimed, _ = claiming.take(
                tx, number, tick, keys, name, supersede=False, due_at=tick,
                fresh=False, settle=False)
            if won := len(claimed.won):
                tx.make(name, State.CLAIMED, number, tick,
                        [one.object for one in claimed.won], '', 0.0,
                        counted=sql_history.increments(
                            number, tick, '', due=won, late=won))
            return won, len(claimed.busy) + len(claimed.waiting)

        def again(tx: Transaction) -> tuple[int, int]:
            won = len(tx.standing(number, keys, name))
            return won, sum(row.tick < tick
                            and row.state in OPEN
                            for row in tx.rows_of(number, keys).values())
        return self._once(work, again)

    def _objects(self, number: int) -> Iterator[list[str]]:
        """Yield all listed objects of a job, in chunks."""
        last = ''
        while True:
            found = [row.object for row in self._database.read(
                functools.partial(
                    _read, sa.select(_claim.c.object).where(
                        _claim.c.job == number, _claim.c.object > last,
                        _claim.c.since.is_not(None))
                    .order_by(_claim.c.object).limit(_IN_A_LEASE)))]
            if not found:
                return
            yield found
            last = found[-1]


def _read(query: Any, connection: sa.Connection) -> Sequence[Any]:
    return connection.execute(query).all()
