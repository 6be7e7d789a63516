# SPDX-License-Identifier: Apache-2.0
"""Claims in a database: SQLite, PostgreSQL, MySQL or MariaDB.

Each move is one UPDATE under the condition that a row stands in the lease
that the mover holds, in a state that the move may leave; the states come
from core.claim. Who won is read back by the mark that the move leaves: the
name of the lease it moves into, which nobody else uses. The lease itself is
inserted last, so a call that is made again, after its answer was lost, runs
into its own lease, is rolled back, and reads what the first one did.

How many claims stand in a lease is counted down; the last one takes it away.
A move changes claims before leases, but a take-over takes the lease first:
else one that is renewed at the same moment could be taken over as well.
Where both meet, the database refuses one of them and it is made again.
"""

import collections
import functools
import json
import logging
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception

from distperiodic import exceptions
from distperiodic.adapters import database
from distperiodic.adapters import schema
from distperiodic.adapters import sql_moves
from distperiodic.adapters import tables
from distperiodic.core import claim as claim_
from distperiodic.core import ring as ring_
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import FINISHED
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import Lease
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

LOG = logging.getLogger(__name__)

T = TypeVar('T')

_WAITS_FROM = MOVES[Move.START][0]
_SUPERSEDED_FROM = MOVES[Move.SUPERSEDE][0]

#: Looks at what is left of a claim while others take and end it.
_LOOKS = 20
#: Characters of an error or a traceback that are kept.
_TOLD = 100_000

# Of what is claimed: the ticks of periodic jobs.
_KIND = 'job'
# Earlier than any tick.
_FIRST = -2 ** 63

_claim = tables.claim
_lease = tables.lease


class SqlClaimStore:
    """See :class:`distperiodic.ports.ClaimStore`.

    A store belongs to one thread; any number of stores, in any processes,
    may work on one database. Nothing connects before the first call.
    """

    def __init__(self, connection_url: str, *, space: str, **options: Any):
        """Check the URL.

        :param connection_url: as SQLAlchemy takes it.
        :param space: what keeps the jobs of services apart that share a
            database.
        :param options: of oslo.db's engine.
        :raises ConfigError: the URL cannot work.
        """
        self._database = database.Database(
            connection_url, schema.check_connection, **options)
        self._dialect = self._database.dialect
        self._space = space
        self._jobs: dict[str, int] = {}
        self._sql = sql_moves.Statements(self._dialect)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._database.close()

    def forget(self) -> None:
        """Delete all that this space has in the database."""
        def work(connection: sa.Connection) -> None:
            ours = sa.select(tables.job.c.id).where(
                tables.job.c.space == self._space)
            for table in (_claim, _lease, tables.failure, tables.history):
                connection.execute(
                    sa.delete(table).where(table.c.job.in_(ours)))
            connection.execute(sa.delete(tables.job).where(
                tables.job.c.space == self._space))
        self._database.run(work)
        self._jobs.clear()

    def now(self) -> int:
        return self._database.run(lambda connection: connection.execute(
            sa.select(self._dialect.now)).scalar_one())

    # What goes into a new lease.

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, holder: str, seconds: float, supersede: bool,
              fresh: bool = True, after: int | None = None) -> Claimed:
        keys = _usable(objects)
        if not keys:
            return Claimed([], [], 0)
        number = self._number(job)
        least = _FIRST if after is None else after

        def work(connection: sa.Connection) -> Claimed:
            claimed, void = self._claim(
                connection, number, tick, keys, lease, supersede, fresh,
                least)
            for old in sorted(void):
                self._count(connection, number, old, holder,
                            superseded=void[old])
            if claimed.won:
                won = len(claimed.won)
                self._count(connection, number, tick, holder, due=won,
                            late=won)
                self._make(connection, lease, State.CLAIMED, number, tick,
                           [one.object for one in claimed.won], holder,
                           seconds, superseded=claimed.superseded)
            return claimed

        def again(connection: sa.Connection) -> Claimed:
            rows = self._look(connection, number, keys)
            there = [rows[key] for key in keys if key in rows]
            # What is of an earlier tick it would have taken if it could.
            late = {row.object: row.settled for row in there
                    if row.state in ENDINGS and row.settled < least}
            return Claimed(
                [_claim_of(row) for row in there
                 if row.lease == lease and row.state in _WAITS_FROM],
                [row.object for row in there
                 if row.settled < tick and row.object not in late],
                connection.scalar(
                    sa.select(_lease.c.superseded)
                    .where(_lease.c.id == lease)) or 0,
                list(late.items()))
        return self._once(work, again)

    def _claim(self, connection: sa.Connection, number: int, tick: int,
               keys: list[str], lease: str, supersede: bool, fresh: bool,
               least: int) -> tuple[Claimed, collections.Counter[int]]:
        """What became of them, and how many of which tick are void."""
        won: dict[str, Claim] = {}
        busy: list[str] = []
        behind: list[tuple[str, int]] = []
        void: collections.Counter[int] = collections.Counter()
        into = {'into': lease, 'of_tick': tick}
        ended_into = {**into, 'least': least}
        # In the steady state each object ended its last tick, and this is
        # all there is to do.
        self._move(connection, self._sql.claim_ended, number, keys, won,
                   ended_into)
        rest = [key for key in keys if key not in won]
        for _ in range(_LOOKS):
            if not rest:
                break
            rows = self._look(connection, number, rest)
            new: list[str] = []
            ended: list[str] = []
            unstarted: dict[tuple[str, int], list[str]] = (
                collections.defaultdict(list))
            uncounted: dict[str, list[str]] = collections.defaultdict(list)
            for key in rest:
                row = rows.get(key)
                if row is None:
                    if fresh:
                        new.append(key)
                elif row.lease == lease:
                    won[key] = _claim_of(row)
                elif row.settled >= tick:
                    continue
                elif row.state in ENDINGS and row.settled < least:
                    behind.append((key, row.settled))
                elif row.state in ENDINGS:
                    ended.append(key)
                    if row.lease.endswith(FINISHED):
                        uncounted[row.lease.removesuffix(FINISHED)].append(
                            key)
                elif supersede and row.state in _SUPERSEDED_FROM:
                    unstarted[row.lease, row.tick].append(key)
                else:
                    busy.append(key)
            if new:
                self._dialect.insert_new(
                    connection, _claim,
                    {'object': new, 'position': ring_.positions_of(new)},
                    job=number, tick=tick, settled=tick, state=State.CLAIMED,
                    fence=claim_.first_fence(tick),
                    attempt=1, lease=lease)
            for old in sorted(uncounted):
                self._leave(connection, old, self._count_finished(
                    connection, number, uncounted[old], old))
            if ended:
                self._move(connection, self._sql.claim_ended, number, ended,
                           won, ended_into)
            for old, its_tick in sorted(unstarted):
                moved = self._move(
                    connection, self._sql.claim_unstarted, number,
                    unstarted[old, its_tick], won, into | {'stands_in': old})
                void[its_tick] += moved
                self._leave(connection, old, moved)
            # Somebody may have been faster: see what became of it.
            rest = [key for key in (*new, *ended, *(
                key for some in unstarted.values() for key in some))
                if key not in won]
        busy += rest
        return Claimed([won[key] for key in keys if key in won], busy,
                       void.total(), behind), void

    def start(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, into: str, holder: str,
              seconds: float) -> list[Claim]:
        keys = _usable(objects)
        if not keys:
            return []
        number = self._number(job)

        def work(connection: sa.Connection) -> list[Claim]:
            granted: dict[str, Claim] = {}
            self._move(connection, self._sql.start, number, keys, granted,
                       {'stands_in': lease, 'into': into, 'runner': holder})
            if granted:
                self._make(connection, into, State.RUNNING, number, tick,
                           list(granted), holder, seconds)
                self._leave(connection, lease, len(granted))
            return _in_order(keys, granted)

        def again(connection: sa.Connection) -> list[Claim]:
            if holder != connection.scalar(
                    sa.select(_lease.c.holder).where(_lease.c.id == into)):
                return []
            return self._standing(connection, number, keys, into)
        return self._once(work, again)

    def fail(self, job: str, tick: int, failures: Sequence[Failure], *,
             lease: str, into: str | None, seconds: float = 0.0) -> int:
        told = {failure.object: failure for failure in failures}
        keys = _usable(list(told))
        if not keys:
            return 0
        number = self._number(job)
        if into is None:
            return self._database.run(lambda connection: self._end(
                connection, number, keys, lease, State.DEAD, told))
        name = into

        def work(connection: sa.Connection) -> int:
            waiting: dict[str, Claim] = {}
            self._move(connection, self._sql.retry, number, keys, waiting,
                       {'stands_in': lease, 'into': name})
            if waiting:
                self._count_in(connection, number, tick, lease,
                               retried=len(waiting))
                self._make(connection, name, State.RETRY, number, tick,
                           list(waiting), '', seconds)
                self._leave(connection, lease, len(waiting))
            return len(waiting)
        return self._once(work, lambda connection: len(self._standing(
            connection, number, keys, name)))

    def take_back(self, job: str, tick: int, objects: Sequence[str], *,
                  leases: Sequence[str], into: str, holder: str,
                  seconds: float, ran: bool = True) -> list[Claim]:
        keys = _usable(objects)
        if not keys or not leases:
            return []
        number = self._number(job)

        def work(connection: sa.Connection) -> list[Claim]:
            anew: dict[str, Claim] = {}
            left: dict[str, int] = {}
            for old in sorted(set(leases)):
                if rest := [key for key in keys if key not in anew]:
                    left[old] = self._move(
                        connection, self._sql.take_back, number, rest, anew,
                        {'stands_in': old, 'into': into,
                         'tries': int(ran)})
            if anew:
                self._make(connection, into, State.CLAIMED, number, tick,
                           list(anew), holder, seconds)
                for old, moved in left.items():
                    self._leave(connection, old, moved)
            return _in_order(keys, anew)
        return self._once(work, lambda connection: self._standing(
            connection, number, keys, into))

    # What leaves a lease for good.

    def finish(self, job: str, tick: int, objects: Sequence[str], *,
               lease: str) -> int:
        return self._ended(job, objects, lease, State.DONE)

    def drop(self, job: str, tick: int, objects: Sequence[str], *,
             lease: str, ending: State, reason: str = '') -> int:
        if ENDING_MOVES.get(ending) in (None, Move.FINISH):
            raise ValueError(
                f'{ending} is not an ending of what was not run')
        return self._ended(job, objects, lease, ending, reason)

    def _ended(self, job: str, objects: Sequence[str], lease: str,
               ending: State, reason: str = '') -> int:
        keys = _usable(objects)
        if not keys:
            return 0
        number = self._number(job)
        told = ({key: Failure(key, reason) for key in keys}
                if ending is State.DEAD else {})
        return self._database.run(lambda connection: self._end(
            connection, number, keys, lease, ending, told))

    def _end(self, connection: sa.Connection, number: int, keys: list[str],
             lease: str, ending: State, told: dict[str, Failure]) -> int:
        parameters = {'of_job': number, 'keys': self._dialect.keys(keys),
                      'stands_in': lease}
        sql = self._sql.end[ending]
        rows = self._changed(connection, sql.change, parameters)
        if rows and told:
            connection.execute(
                tables.failure.insert().values(at=self._dialect.now),
                [{'job': number, 'object': row.object, 'tick': row.tick,
                  'fence': row.fence, 'attempt': row.attempt,
                  'worker': row.worker,
                  'error': _told(told[row.object].error),
                  'traceback': _told(told[row.object].traceback)}
                 for row in rows])
        if rows:
            # All that stand in one lease are of one tick.
            self._count_in(connection, number, rows[0].tick, lease,
                           **{ending.value: len(rows)})
        left = len(rows)
        if ending is State.DONE and left < len(keys):
            left += self._count_finished(connection, number, keys, lease)
        self._leave(connection, lease, left)
        if len(rows) < len(keys):
            # With those of a call before, whose answer was lost.
            return connection.execute(sql.after, parameters).scalar_one()
        return len(rows)

    # What is decided without a claim.

    def skip(self, job: str, tick: int, objects: Sequence[str], *,
             holder: str, reason: str, ticks: int = 1) -> int:
        keys = _usable(objects)
        if not keys:
            return 0
        number = self._number(job)

        def work(connection: sa.Connection) -> int:
            rows = self._changed(connection, self._sql.skip, {
                'of_job': number, 'keys': self._dialect.keys(keys),
                'of_tick': tick})
            if rows:
                self._count(connection, number, tick, holder,
                            because=reason[:tables.LONGEST_REASON],
                            due=len(rows) * ticks, skipped=len(rows) * ticks)
            return len(rows)
        return self._database.run(work)

    def paused(self, jobs: Sequence[str]) -> dict[str, str]:
        rows = self._database.run(lambda connection: connection.execute(
            sa.select(tables.job.c.name, tables.job.c.paused_why).where(
                tables.job.c.space == self._space,
                tables.job.c.kind == _KIND,
                tables.job.c.paused_since.is_not(None))).all())
        return {row.name: row.paused_why or '' for row in rows
                if row.name in jobs}

    # Leases.

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        if not leases or not holder:
            return set()
        parameters = {'keys': self._dialect.keys(leases), 'runner': holder,
                      'microseconds': round(seconds * 1e6)}

        def work(connection: sa.Connection) -> set[str]:
            if self._dialect.returning:
                return set(connection.execute(
                    self._sql.renew.returning(_lease.c.id),
                    parameters).scalars())
            connection.execute(self._sql.renew, parameters)
            del parameters['microseconds']
            return set(connection.execute(
                self._sql.renewed, parameters).scalars())
        return self._database.run(work)

    def overdue(self, jobs: Sequence[str], *, holder: str, seconds: float,
                gone: Sequence[str], limit: int,
                silent: float = 0.0) -> list[Lease]:
        numbers = {self._number(job): job for job in dict.fromkeys(jobs)}
        if not numbers or limit < 1:
            return []
        over: sa.ColumnElement[bool] = _lease.c.until <= self._dialect.now
        if lost := [name for name in gone if name]:
            over = over | (_lease.c.holder.in_(lost) & (
                _lease.c.until <= self._until(seconds - silent)))
        found = self._database.run(lambda connection: connection.execute(
            sa.select(_lease.c.id, _lease.c.job, _lease.c.tick,
                      _lease.c.state)
            .where(_lease.c.job.in_(list(numbers)), over)
            .order_by(_lease.c.until, _lease.c.id).limit(limit)).all())
        taken: list[Lease] = []
        for old in found:
            name = uuid.uuid4().hex
            try:
                claims = self._database.run(functools.partial(
                    self._take_over, old=old, name=name, over=over,
                    holder=holder, seconds=seconds))
            except exceptions.StoreUnavailable:
                if not taken:
                    raise
                # What was taken over is known to nobody else.
                break
            if claims:
                taken.append(Lease(name, numbers[old.job], old.tick, claims,
                                   old.state))
        return taken

    def _take_over(self, connection: sa.Connection, *, old: Any, name: str,
                   over: sa.ColumnElement[bool], holder: str,
                   seconds: float) -> list[Claim]:
        connection.execute(
            sa.update(_lease).where(_lease.c.id == old.id, over)
            .values(id=name, state=State.CLAIMED, holder=holder,
                    until=self._until(seconds)))
        objects = connection.scalar(
            sa.select(_lease.c.objects).where(_lease.c.id == name))
        if objects is None:
            # Somebody else was first, or its holder is there again.
            return []
        keys = json.loads(objects)
        anew: dict[str, Claim] = {}
        self._move(connection, self._sql.take_over, old.job, keys, anew,
                   {'stands_in': old.id, 'into': name, 'tries': 1})
        if len(anew) < len(keys):
            self._count_finished(connection, old.job, keys, old.id)
        if not anew:
            connection.execute(sa.delete(_lease).where(_lease.c.id == name))
            return []
        self._count(connection, old.job, old.tick, holder,
                    taken_over=len(anew))
        connection.execute(
            sa.update(_lease).where(_lease.c.id == name)
            .values(remaining=len(anew), objects=json.dumps(list(anew))))
        return _in_order(keys, anew)

    def _make(self, connection: sa.Connection, name: str, state: State,
              number: int, tick: int, objects: list[str], holder: str,
              seconds: float, *, superseded: int = 0) -> None:
        connection.execute(
            sa.insert(_lease).values(until=self._until(seconds)), {
                'id': name, 'job': number, 'tick': tick, 'state': state,
                'holder': holder, 'remaining': len(objects),
                'superseded': superseded, 'objects': json.dumps(objects)})

    def _leave(self, connection: sa.Connection, name: str,
               count: int) -> None:
        """So many claims stand in that lease no more."""
        if not count:
            return
        parameters = {'stands_in': name, 'so_many': count}
        if connection.execute(
                self._sql.last_leave, parameters).rowcount == 1:
            return
        connection.execute(self._sql.leave, parameters)
        # Others may have left it since the first look.
        connection.execute(
            self._sql.last_leave, parameters | {'so_many': 0})

    # The history.

    def _count(self, connection: sa.Connection, number: int, tick: int,
               holder: str, *, late: int = 0, because: str | None = None,
               **counts: int) -> None:
        """Add to what the history has of *tick*.

        :param late: how many of them add to the lateness.
        :param because: why they were skipped.
        """
        connection.execute(self._sql.count_of, _more(
            number, tick, counts, late, because) | {'runner': holder})

    def _count_in(self, connection: sa.Connection, number: int, tick: int,
                  lease: str, **counts: int) -> None:
        """The same for who holds *lease*."""
        connection.execute(self._sql.count_in, _more(
            number, tick, counts) | {'stands_in': lease})

    def _count_finished(self, connection: sa.Connection, number: int,
                        keys: Sequence[str], lease: str) -> int:
        """Count those of *keys* that were ended in a session of their
        handler's; how many there were.
        """
        rows = self._changed(connection, self._sql.finished, {
            'of_job': number, 'keys': self._dialect.keys(keys),
            'stands_in': lease, 'finished_in': claim_.finished_lease(lease)})
        if rows:
            self._count(connection, number, rows[0].tick,
                        rows[0].worker or '', done=len(rows))
        return len(rows)

    def _until(self, seconds: float) -> sa.ColumnElement[int]:
        return self._dialect.now + sa.literal(
            round(seconds * 1e6), sa.BigInteger)

    # How it is done.

    def _once(self, work: Callable[[sa.Connection], T],
              again: Callable[[sa.Connection], T]) -> T:
        """Do *work*, or tell what it did when it was done before."""
        try:
            return self._database.run(work)
        except db_exception.DBDuplicateEntry:
            return self._database.run(again)

    def _move(self, connection: sa.Connection, sql: sql_moves.Step,
              number: int, keys: Sequence[str], moved: dict[str, Claim],
              parameters: dict[str, Any]) -> int:
        """Move what may be moved of *keys* into a lease; how many did.

        :param moved: they are added to it.
        """
        parameters = {**parameters, 'of_job': number,
                      'keys': self._dialect.keys(keys)}
        before = len(moved)
        if self._dialect.returning:
            rows = connection.execute(sql.move_returning, parameters).all()
        else:
            connection.execute(sql.move, parameters)
            rows = []
        if len(rows) < len(keys) and sql.reads_back:
            rows = connection.execute(self._sql.standing, {
                name: parameters[name]
                for name in ('of_job', 'keys', 'into')}).all()
        moved.update((row.object, _claim_of(row)) for row in rows)
        return len(moved) - before

    def _changed(self, connection: sa.Connection, sql: sql_moves.Change,
                 parameters: dict[str, Any]) -> Sequence[Any]:
        """Make a change; the rows that were changed."""
        if self._dialect.returning:
            return connection.execute(sql.move_returning, parameters).all()
        rows = connection.execute(sql.before, parameters).all()
        connection.execute(sql.move, parameters)
        return rows

    def _standing(self, connection: sa.Connection, number: int,
                  keys: Sequence[str], lease: str) -> list[Claim]:
        """The open claims in a lease."""
        rows = connection.execute(self._sql.standing, {
            'of_job': number, 'keys': self._dialect.keys(keys),
            'into': lease})
        return _in_order(keys, {row.object: _claim_of(row) for row in rows})

    def _look(self, connection: sa.Connection, number: int,
              keys: Sequence[str]) -> dict[str, Any]:
        return {row.object: row for row in connection.execute(
            self._sql.look, {'of_job': number,
                             'keys': self._dialect.keys(keys)})}

    def _number(self, job: str) -> int:
        """What the rows have in the place of the job's name."""
        number = self._jobs.get(job)
        if number is None:
            number = self._jobs[job] = self._database.run(
                lambda connection: self._find_job(connection, job))
        return number

    def _find_job(self, connection: sa.Connection, job: str) -> int:
        names = {'space': self._space, 'kind': _KIND, 'name': job}
        find = sa.select(tables.job.c.id).where(*(
            tables.job.c[column] == name for column, name in names.items()))
        number = connection.scalar(find)
        if number is None:
            self._dialect.insert_new(connection, tables.job, {
                column: [name] for column, name in names.items()})
            number = connection.scalar(find)
        assert number is not None
        return number


def _usable(objects: Iterable[str]) -> list[str]:
    """Each of *objects* once, in their order.

    :raises InvalidObject: one of them has no place in a row.
    """
    keys = list(dict.fromkeys(objects))
    for key in keys:
        if len(key) > tables.LONGEST_ID or '\0' in key:
            raise exceptions.InvalidObject(
                f'the id {key[:200]!r} has {len(key)} characters'
                f'{" and a NUL among them" * (chr(0) in key)}; the store '
                f'takes ids of up to {tables.LONGEST_ID}, without NUL')
    return keys


def _in_order(keys: Sequence[str], found: dict[str, Claim]) -> list[Claim]:
    return [found[key] for key in keys if key in found]


def _claim_of(row: Any) -> Claim:
    return Claim(row.object, row.fence, row.attempt, row.tick)


def _more(number: int, tick: int, counts: dict[str, int], late: int = 0,
          because: str | None = None) -> dict[str, Any]:
    """The parameters of what adds to the history."""
    return {'of_job': number, 'at_tick': tick, 'more_late': late,
            'because': because, **{
                f'more_{name}': counts.get(name, 0)
                for name in sql_moves.COUNTED}}


def _told(text: str) -> str:
    """What somebody's exception said, as all databases take it."""
    return text[:_TOLD].replace('\0', '\\0').encode(
        errors='backslashreplace').decode()


def finish_in(session: Any, *, space: str, job: str, key: str,
              lease: str) -> bool:
    """End a run as done in somebody's session, which commits it or not;
    False: it does not stand in that lease.

    It is not counted here: the row of the history would be kept from all
    others until that session is over. It goes to a lease of its own, from
    which the store counts it.
    """
    number = sa.select(tables.job.c.id).where(
        tables.job.c.space == space, tables.job.c.kind == _KIND,
        tables.job.c.name == job).scalar_subquery()
    before, after = MOVES[Move.FINISH]
    ours = _claim.c.job == number, _claim.c.object == key
    finished = claim_.finished_lease(lease)
    session.execute(sa.update(_claim).where(
        *ours, _claim.c.lease == lease, _claim.c.state.in_(before)).values(
            state=after, lease=finished))
    return session.scalar(sa.select(sa.func.count()).where(
        *ours, _claim.c.lease.in_([lease, finished]),
        _claim.c.state == after)) == 1
