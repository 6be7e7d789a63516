# SPDX-License-Identifier: Apache-2.0
"""What an operator looks up in the store, and does to it.

No process of the service has a part in it: all is read from the tables and
written there, and schedulers find it at their next sweep.
"""

import functools
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters import sql_claiming
from distperiodic.adapters import sql_history
from distperiodic.adapters import sql_store
from distperiodic.adapters import tables
from distperiodic.adapters.sql_transaction import Transaction
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

# Rows that are changed in one transaction, so that none lasts long.
_AT_A_TIME = 1000
_IN_A_LEASE = 500


class Ticked(NamedTuple):
    """What became of a tick, counted in objects."""

    job: str
    #: Microseconds since the epoch.
    tick: int
    due: int
    done: int
    dead: int
    skipped: int
    #: The same, by what had them skipped.
    by_misfire: int
    by_overlap: int
    by_pause: int
    by_lost: int
    superseded: int
    cancelled: int
    #: Times that a run failed and was to be tried again.
    retried: int
    taken_over: int
    #: How many schedulers and workers had a part in it.
    members: int
    #: Milliseconds from the tick to the claim, of what was claimed: in the
    #: mean, and the most.
    mean: int
    latest: int
    #: Why the last ones were skipped; empty: none was.
    reason: str

    @property
    def open(self) -> int:
        """Not at an end."""
        return self.due - (self.done + self.dead + self.skipped
                           + self.superseded + self.cancelled)


class Job(NamedTuple):
    """A job as the store knows it."""

    name: str
    #: The newest in the history, in microseconds. None: there is none.
    tick: int | None
    #: In microseconds. None: it is not paused.
    paused_since: int | None
    paused_by: str
    paused_why: str
    #: Since when its schedule holds: an instant, or core.due.ALWAYS.
    schedule_since: int


class Triggered(NamedTuple):
    """What became of an attempt to have objects run at once."""

    tick: int
    objects: int
    #: Their earlier tick has not come to its end, and is not given up.
    busy: int


class Dead(NamedTuple):
    """A claim that is dead, and what was told of it."""

    job: str
    object: str
    #: Microseconds since the epoch.
    tick: int
    attempt: int
    #: Who ran it last; empty: nobody.
    worker: str
    #: When it ended, in microseconds, and why. None and empty: what was told
    #: is pruned.
    at: int | None
    error: str
    #: Empty as well where nobody asked for it.
    traceback: str


class Control(sql_store.SqlClaimStore):
    """The store of one group, for commands."""

    def history(self, *, job: str | None, since: int,
                limit: int) -> list[Ticked]:
        """What became of ticks, the newest first.

        :param job: of this one; None: of all.
        :param since: the first tick, in microseconds.
        :raises ConfigError: there is no such job.
        """
        names = self._named(job)
        counted = ('due', 'done', 'dead', 'skipped', 'by_misfire',
                   'by_overlap', 'by_pause', 'by_lost', 'superseded',
                   'cancelled', 'retried', 'taken_over', 'lateness')
        found = self._database.look(lambda connection: connection.execute(
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
            # What was skipped was not claimed.
            round(row.lateness / max(1, row.due - row.skipped)), row.latest,
            row.reason or '') for row in found]

    def dead(self, *, job: str | None, limit: int,
             key: str | None = None,
             tracebacks: bool = False) -> list[Dead]:
        """What is dead, the newest ticks first.

        :param job: of this one; None: of all.
        :param key: this object; None: all.
        :param tracebacks: tell them, too; each may be long.
        :raises ConfigError: there is no such job.
        """
        names = self._named(job)
        which: list[sa.ColumnElement[bool]] = [
            _claim.c.job.in_(list(names)), _claim.c.state.in_(_DEAD)]
        if key is not None:
            which.append(_claim.c.object == key)
        found = self._database.look(lambda connection: connection.execute(
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
        """Put back what is dead: it runs again for the tick it died in, from
        its first attempt, unless a later tick was claimed since.

        :param job: of this one; None: of all.
        :param key: this object; None: all.
        :returns: how many claims.
        :raises ConfigError: there is no such job.
        """
        return sum(self._requeue_of(number, key)
                   for number in self._named(job))

    def _requeue_of(self, number: int, key: str | None) -> int:
        dead = [_claim.c.job == number, _claim.c.state.in_(_DEAD)]
        if key is not None:
            dead.append(_claim.c.object == key)
        requeued, last = 0, ''
        while True:
            found = self._database.look(functools.partial(
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
        """The jobs of the group, by number: one, or all that somebody has
        claimed.

        :raises ConfigError: there is no such job.
        """
        names = {row.id: row.name for row in self._database.look(
            lambda connection: connection.execute(
                sa.select(_job.c.id, _job.c.name)
                .where(_job.c.space == self._space)
                .order_by(_job.c.name)).all())}
        if job is None:
            return names
        if job not in names.values():
            known = ', '.join(repr(name) for name in names.values())
            raise exceptions.ConfigError(
                f'group {self._space!r} has no job {job!r} in this database; '
                + (f'it has {known}' if known else
                   'it has none before a scheduler has run; look at '
                   '[distperiodic] group'))
        return {number: name for number, name in names.items()
                if name == job}

    def check_job(self, job: str) -> None:
        """:raises ConfigError: nobody has ever claimed anything of it."""
        self._named(job)

    def jobs(self) -> list[Job]:
        """All jobs that somebody has claimed, by name."""
        return self._database.look(self._jobs_in)

    def _jobs_in(self, connection: sa.Connection) -> list[Job]:
        newest = sa.select(sa.func.max(_history.c.tick)).where(
            _history.c.job == _job.c.id).scalar_subquery()
        found = connection.execute(
            sa.select(_job, newest.label('tick')).where(
                _job.c.space == self._space)).all()
        return sorted(Job(row.name, row.tick, row.paused_since,
                          row.paused_by or '', row.paused_why or '',
                          due.ALWAYS if row.schedule_since is None
                          else row.schedule_since)
                      for row in found)

    def pause(self, job: str, *, by: str, why: str) -> None:
        """Have the ticks of *job* skipped from the schedulers' next sweep on.
        What was claimed goes on.

        :raises ConfigError: there is no such job.
        """
        self._set_paused(job, {
            'paused_since': self._dialect.now,
            'paused_by': by[:tables.LONGEST_REASON],
            'paused_why': why[:tables.LONGEST_REASON]})

    def resume(self, job: str) -> bool:
        """Let *job* go on with its next tick.

        :returns: whether it was paused.
        :raises ConfigError: there is no such job.
        """
        paused = any(one.name == job and one.paused_since is not None
                     for one in self.jobs())
        self._set_paused(job, dict.fromkeys(
            ('paused_since', 'paused_by', 'paused_why')))
        return paused

    def _set_paused(self, job: str, values: dict[str, Any]) -> None:
        [number] = self._named(job)
        self._database.run(lambda connection: connection.execute(
            sa.update(_job).where(_job.c.id == number).values(values)))

    def trigger(self, job: str, *, key: str | None) -> Triggered:
        """Have *job* run at once: claims of a tick of this moment wait in
        leases of nobody, and the next sweep takes them over. Nothing of what
        was due before is settled by it: the job's own policies decide on
        that, as if nobody had triggered.

        :param key: this object; None: all. Only those that are listed are.
        :raises ConfigError: there is no such job.
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
        """How many of *keys* were claimed, and how many are busy."""
        name = uuid.uuid4().hex

        def work(tx: Transaction) -> tuple[int, int]:
            claimed, _ = sql_claiming.take(
                tx, number, tick, keys, name, supersede=False, due_at=tick,
                fresh=False, settle=False)
            if won := len(claimed.won):
                tx.make(name, State.CLAIMED, number, tick,
                        [one.object for one in claimed.won], '', 0.0,
                        counted=sql_history.more(
                            number, tick, '', due=won, late=won))
            return won, len(claimed.busy) + len(claimed.waiting)

        def again(tx: Transaction) -> tuple[int, int]:
            won = len(tx.standing(number, keys, name))
            return won, sum(row.tick < tick
                            and row.state in OPEN
                            for row in tx.look(number, keys).values())
        return self._once(work, again)

    def _objects(self, number: int) -> Iterator[list[str]]:
        """All objects that a job has listed, some at a time."""
        last = ''
        while True:
            found = [row.object for row in self._database.look(
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
