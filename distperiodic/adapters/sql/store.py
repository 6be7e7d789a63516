# SPDX-License-Identifier: Apache-2.0
"""Claims in a database that one of the dialects supports.

Each transition of claims from one state to another is one UPDATE.
:mod:`distperiodic.core.claim` defines the allowed transitions. The UPDATE
changes a claim only if the claim is in a state that the transition may leave
and, if the claim is open, in the lease that the caller names. Claims that end
leave their lease, but keep its name. Any other transition also writes the name
of a new lease into each claim. No other call uses this name, so the name
identifies the claims that the call has acquired.

The new lease itself is inserted last. If a caller repeats a call because the
answer was lost, this insert fails, since the lease exists. The repeated call
is then rolled back, and returns the result of the first call.

The row of a lease contains the number of its claims, and is deleted when the
last claim leaves. A take-over changes the lease before its claims: otherwise a
lease could be taken over although its holder renews it at the same moment. All
other transitions change the claims first. If the different orders cause a
deadlock, the database aborts one of the transactions, and the store repeats
this transaction.
"""

import collections
import functools
import itertools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import claiming
from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import jobs as sql_jobs
from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import listing
from distperiodic.adapters.sql import pruning
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import takeover
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.members import SqlMembers
from distperiodic.adapters.sql.partitions import SqlPartitions
from distperiodic.adapters.sql.statements import Statements
from distperiodic.adapters.sql.steps import SqlSteps
from distperiodic.adapters.sql.steps import placed
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import Transactions
from distperiodic.adapters.sql.transaction import in_order
from distperiodic.core import due
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import Lease
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.outcomes import SKIPPED
from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep
from distperiodic.core.ring import Arc
from distperiodic.core.standby import Active
from distperiodic.core.telemetry import QueueHalted
from distperiodic.core.telemetry import TaskMoved

T = TypeVar('T')

_WAITS_FROM = MOVES[Move.START][0]

_lease = tables.lease


class SqlClaimStore:
    """Claim store in a database; see :class:`distperiodic.ports.ClaimStore`.

    A store belongs to one thread. Any number of stores, in any processes, may
    use one database. The store connects at the first call.
    """

    def __init__(self, connection_url: str, *, namespace: str,
                 report: Callable[[TaskMoved | QueueHalted],
                                  None] = lambda event: None,
                 **options: Any):
        """Prepare the store and check the URL, without connecting.

        :param connection_url: URL in SQLAlchemy's form.
        :param namespace: Namespace for the jobs of one service, so that
            several services can share a database.
        :param report: Called with each move of a task, and with each queue
            that halts, after the commit of a call in which a run has ended.
        :param options: Options of oslo.db's engine.
        :raises ConfigError: the URL is invalid.
        """
        #: The database connection. The thread that owns the store may also use
        #: the connection for other work.
        self.database = Database(
            connection_url, schema.check_connection, **options)
        self._dialect = self.database.dialect
        self._namespace = namespace
        self._numbers = sql_jobs.Numbers(
            self.database, namespace, SystemClock().monotonic)
        self._sql: Statements = self._dialect.once(Statements)
        transactions = Transactions(self.database)
        self._read, self._run = transactions.read, transactions.write
        self._once = transactions.write_once
        self._partitions = SqlPartitions(self.database, namespace)
        self._members = SqlMembers(self.database)
        self._steps = SqlSteps(
            self.database, self._numbers, namespace, self._partitions, report)
        self._overdue: Mapping[bool, takeover.TakeoverStatements] = (
            self._dialect.once(takeover.statements))

    @property
    def steps(self) -> SqlSteps:
        return self._steps

    @property
    def partitions(self) -> SqlPartitions:
        return self._partitions

    @property
    def members(self) -> SqlMembers:
        return self._members

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self.database.close()

    def forget(self) -> None:
        """Delete all rows of this namespace from the database."""
        def work(connection: sa.Connection) -> None:
            ours = sa.select(tables.job.c.id).where(
                tables.job.c.space == self._namespace)
            for table in (tables.claim, _lease, tables.failure,
                          tables.exception, tables.history,
                          tables.paused_object):
                connection.execute(
                    sa.delete(table).where(table.c.job.in_(ours)))
            connection.execute(sa.delete(tables.ready).where(
                tables.ready.c.job.in_(ours)))
            for table in (tables.task, tables.queue, tables.job,
                          tables.partition, tables.partition_worker,
                          tables.member, tables.drained_host, tables.action,
                          tables.answer):
                connection.execute(sa.delete(table).where(
                    table.c.space == self._namespace))
            pools = sa.select(tables.pool.c.id).where(
                tables.pool.c.space == self._namespace)
            for table in tables.pool_task, tables.bucket:
                connection.execute(
                    sa.delete(table).where(table.c.pool.in_(pools)))
            connection.execute(sa.delete(tables.pool).where(
                tables.pool.c.space == self._namespace))
        self.database.write(work)
        self._numbers.forget()

    def now(self) -> int:
        return self.database.read(lambda connection: connection.execute(
            sa.select(self._dialect.now)).scalar_one())

    # Jobs, and the objects that their catalogues list.

    def adopt(self, schedules: Mapping[str, str],
              others: Mapping[str, Collection[int] | None] | None = None
              ) -> None:
        def work(connection: sa.Connection) -> None:
            sql_jobs.adopt(connection, self._numbers.read(
                connection, schedules), schedules, others or {})
        if schedules:
            self.database.write(work)

    def attend(self, jobs: Mapping[str, float],
               checked: Mapping[str, ports.Checked]
               ) -> dict[str, ports.JobStatus]:
        # Usually there is nothing to write. A read-only transaction is then
        # enough, and it blocks no other process.
        rows = self._numbers.read_existing(jobs.keys())
        if rows is not None:
            found = sql_jobs.attendance(rows, jobs, checked)
            if not found.changes:
                if not sql_jobs.has_paused_objects(rows, jobs):
                    return found.found
                return self.database.read(
                    lambda connection: sql_jobs.with_paused_objects(
                        connection, rows, found.found))

        def work(connection: sa.Connection) -> dict[str, ports.JobStatus]:
            rows = self._numbers.read(connection, jobs)
            found = sql_jobs.attendance(rows, jobs, checked)
            sql_jobs.attend(connection, found)
            return (sql_jobs.with_paused_objects(connection, rows, found.found)
                    if sql_jobs.has_paused_objects(rows, jobs)
                    else found.found)
        return self.database.write(work)

    def sync(self, job: str, listed: Sequence[ports.Listed],
             delisted: Sequence[str], *,
             readings: Sequence[int]) -> list[str]:
        by_key = {one.object: one for one in listed}
        _usable(by_key)
        for one in listed:
            length = len(one.attributes.rule)
            if length > tables.LONGEST_RULE:
                raise exceptions.InvalidObject(
                    f'the schedule of object {one.object!r} is a text of '
                    f'{length} characters; the store accepts up to '
                    f'{tables.LONGEST_RULE}')
        gone = _usable(delisted)
        if not by_key and not gone:
            return []
        number = self._number(job)
        return self._run(lambda tx: listing.sync(
            tx, number, by_key, gone, readings))

    def rows(self, job: str, arc: Arc, *, before: int | None = None,
             limit: int) -> list[due.Row]:
        number = self._number(job)
        return self._read(lambda tx: listing.on_arc(
            tx, number, arc, before, limit))

    def rows_of(self, job: str, objects: Sequence[str]) -> list[due.Row]:
        keys = _usable(objects)
        if not keys:
            return []
        number = self._number(job)
        return self._read(lambda tx: listing.some(tx, number, keys))

    def settled(self, job: str, tick: int) -> int:
        number = self._number(job)
        return self._read(lambda tx: listing.settled(tx, number, tick))

    # Transitions into a new lease.

    def claim(self, request: ClaimRequest, lease: NewLease) -> Claimed:
        keys = _usable(request.objects)
        if not keys:
            return Claimed([], [], 0, [], [])
        number = self._number(request.job)
        return self._once(
            functools.partial(claiming.take, number=number, request=request,
                              keys=keys, lease=lease),
            functools.partial(claiming.repeated, number=number,
                              request=request, keys=keys, lease=lease.id))

    def start(self, lease: HeldLease, objects: Sequence[str], into: NewLease,
              active: Active | None = None) -> list[Claim]:
        keys = _usable(objects)
        if not keys:
            return []
        number = self._number(lease.job)

        def work(tx: Transaction) -> list[Claim]:
            if active is not None and not self._partitions.hold(
                    tx.connection, active):
                return []
            granted: dict[str, Claim] = {}
            tx.move(tx.sql.start, number, keys, granted,
                    {'stands_in': lease.id, 'into': into.id,
                     'runner': into.holder})
            if granted:
                tx.make(into, State.RUNNING, number, lease.tick, list(granted))
                tx.leave(lease.id, len(granted))
            return in_order(keys, granted)

        def again(tx: Transaction) -> list[Claim]:
            if into.holder != tx.connection.scalar(
                    sa.select(_lease.c.holder).where(_lease.c.id == into.id)):
                return []
            return tx.standing(number, keys, into.id)
        return self._once(work, again)

    def fail(self, lease: HeldLease, failures: Sequence[Failure],
             into: NewLease | None,
             times: ports.RunTimes = ports.NO_TIMES) -> set[str]:
        by_object = {failure.object: failure for failure in failures}
        keys = _usable(list(by_object))
        if not keys:
            return set()
        number = self._number(lease.job)
        if into is None:
            return self._run(lambda tx: claiming.end(
                tx, number, keys, lease.id, State.DEAD, by_object,
                times=times))
        # A forged batch may name a longer sender. Then no process has this
        # name, so any process may take the retry over after retry_after.
        retry = into._replace(holder=into.holder[:tables.LONGEST_HOLDER])

        def work(tx: Transaction) -> set[str]:
            waiting: dict[str, Claim] = {}
            tx.move(tx.sql.retry, number, keys, waiting,
                    {'stands_in': lease.id, 'into': retry.id})
            if waiting:
                history.count_in(tx, number, lease.tick, lease.id, times=times,
                                 retried=len(waiting))
                tx.make(retry, State.RETRY, number, lease.tick, list(waiting))
                tx.leave(lease.id, len(waiting))
            if len(waiting) < len(keys):
                # A handler may end its run in its own transaction, and raise
                # an exception afterwards. Such a run counts as done.
                tx.leave(lease.id, history.count_committed(
                    tx, number, keys, lease.id,
                    ports.NO_TIMES if waiting else times))
            return set(waiting)
        return self._once(work, lambda tx: {
            one.object for one in tx.standing(number, keys, retry.id)})

    def save_progress(self, lease: HeldLease,
                      progress: Mapping[str, str]) -> None:
        number = self._number(lease.job)
        if keys := _usable(progress):
            parameters = [
                {'of_job': number, 'stands_in': lease.id, 'key': key,
                 'new_progress': progress[key]} for key in sorted(keys)]
            self._run(lambda tx: tx.connection.execute(
                self._sql.save_progress, parameters))

    def load_progress(self, lease: HeldLease,
                      objects: Sequence[str]) -> dict[str, str]:
        keys = _usable(objects)
        if not keys:
            return {}
        parameters = {'of_job': self._number(lease.job),
                      'stands_in': lease.id,
                      'keys': self._dialect.keys(keys)}
        return self._run(lambda tx: {
            row.object: row.progress for row in tx.connection.execute(
                self._sql.load_progress, parameters)})

    def reclaim(self, leases: Sequence[HeldLease], objects: Sequence[str],
                into: NewLease, *, count_attempt: bool = True) -> list[Claim]:
        keys = _usable(objects)
        if not keys or not leases:
            return []
        number = self._number(leases[0].job)
        names = sorted({lease.id for lease in leases})

        def work(tx: Transaction) -> list[Claim]:
            reclaimed: dict[str, Claim] = {}
            left: dict[str, int] = {}
            found = tx.rows_of(number, keys)
            if any(row.lease == into.id for row in found.values()):
                # An earlier call has reclaimed these objects, but its answer
                # was lost.
                return tx.standing(number, keys, into.id)
            rows = {key: row for key, row in found.items()
                    if row.lease in names}
            # Skip rows that a handler's open transaction has locked: their
            # runs are about to end. Wait for all other locks, which are held
            # briefly: the caller forgets each claim that is not returned, so
            # a claim that is skipped here would not run before its lease
            # expires.
            began = [key for key, row in rows.items()
                     if count_attempt and row.state == State.RUNNING]
            ending = set(began).difference(tx.unlocked(number, began))
            for old in names:
                rest = [key for key, row in rows.items()
                        if row.lease == old and key not in ending]
                if rest:
                    left[old] = tx.move(
                        tx.sql.reclaim, number, rest, reclaimed,
                        {'stands_in': old, 'into': into.id,
                         'tries': int(count_attempt)})
            if reclaimed:
                tx.make(into, State.CLAIMED, number, leases[0].tick,
                        list(reclaimed))
                for old, moved in left.items():
                    tx.leave(old, moved)
            return in_order(keys, reclaimed)
        return self._once(
            work, lambda tx: tx.standing(number, keys, into.id))

    # Transitions that end claims.

    def finish(self, lease: HeldLease, objects: Sequence[str],
               times: ports.RunTimes = ports.NO_TIMES) -> set[str]:
        return self._end(lease, objects, State.DONE, times=times)

    def discard(self, lease: HeldLease, objects: Sequence[str],
                ending: State, reason: str = '') -> int:
        if ENDING_MOVES.get(ending) in (None, Move.FINISH):
            raise ValueError(
                f'{ending} is not an outcome of an object that did not run')
        return len(self._end(lease, objects, ending, reason))

    def _end(self, lease: HeldLease, objects: Sequence[str],
             ending: State, reason: str = '',
             times: ports.RunTimes = ports.NO_TIMES) -> set[str]:
        keys = _usable(objects)
        if not keys:
            return set()
        number = self._number(lease.job)
        failures = ({key: Failure(key, reason) for key in keys}
                    if ending is State.DEAD else {})
        return self._run(lambda tx: claiming.end(
            tx, number, keys, lease.id, ending, failures, reason, times))

    # Decisions without a claim.

    def skip(self, request: SkipRequest) -> list[int]:
        keys = _usable(request.objects)
        if not keys:
            return []
        number, missed = self._number(request.job), request.missed

        def work(tx: Transaction) -> list[int]:
            settled: dict[int, list[str]] = collections.defaultdict(list)
            for key, last in tx.skip(number, request, keys).items():
                settled[last].append(key)
            if settled:
                before = 0 if missed is None else sum(
                    missed(last) * len(objects)
                    for last, objects in settled.items())
                every = sum(map(len, settled.values())) + before
                history.count(
                    tx, number, request.tick, request.holder,
                    reason=request.reason, due=every, skipped=every,
                    missed=before, **{SKIPPED[request.by]: every})
                history.record(
                    tx, number, request.tick, SKIPPED[request.by], settled,
                    holder=request.holder, reason=request.reason)
            return [last for last, objects in settled.items()
                    for _ in objects]
        return self._run(work)

    # Leases.

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        if not leases or not holder:
            return set()
        selection = {'keys': self._dialect.keys(leases), 'runner': holder}
        parameters = selection | lease_terms.term(seconds)

        def work(connection: sa.Connection) -> set[str]:
            if self._dialect.returning:
                return set(connection.execute(
                    self._sql.renew.returning(_lease.c.id),
                    parameters).scalars())
            connection.execute(self._sql.renew, parameters)
            return set(connection.execute(
                self._sql.renewed, selection).scalars())
        return self.database.write(work)

    def release(self, leases: Sequence[str]) -> None:
        if leases:
            self.database.write(lambda connection: connection.execute(
                self._sql.release, {'keys': self._dialect.keys(leases)}))

    def take_over_expired(self, request: TakeOverRequest,
                          into: NewLease) -> list[Lease]:
        numbers = {self._number(job): job
                   for job in dict.fromkeys(request.jobs)}
        if not numbers or request.limit < 1:
            return []
        search = takeover.search(self._overdue, request, into)
        parts = {part.id: part
                 for part in itertools.islice(into.parts(), request.limit)}
        # Usually no lease can be taken over. Search in a read-only
        # transaction, which does not wait for writers.
        found = self._read(lambda tx: takeover.find(
            tx, list(numbers), search, list(parts)))
        if not found:
            return []
        # Leases that an earlier call took over; the answer to it was lost.
        known = [old for old in found if old.id in parts]
        free = [part for name, part in parts.items()
                if name not in {old.id for old in known}]

        def again(tx: Transaction, old: Any) -> list[Claim]:
            claims = takeover.standing(tx, old)
            return placed(tx, claims) if numbers[old.job].startswith(
                COMMAND_PREFIX) else claims
        taken = [Lease(old.id, numbers[old.job], old.tick, self._run(
            functools.partial(again, old=old)), State.RUNNING)
            for old in known]

        def take_over(tx: Transaction, old: Any,
                      lease: NewLease) -> list[Claim]:
            self._steps.forget_ended()
            steps = numbers[old.job].startswith(COMMAND_PREFIX)
            claims = takeover.take_over(
                tx, old, search, lease, self._steps.lost if steps else None)
            return placed(tx, claims) if steps else claims
        for old in found:
            if old.id in parts or not free:
                continue
            try:
                claims = self._run(functools.partial(
                    take_over, old=old, lease=free[0]))
            except takeover.ClaimLocked:
                continue
            self._steps.report_ended()
            if claims:
                taken.append(Lease(free.pop(0).id, numbers[old.job], old.tick,
                                   claims, old.state))
        return taken

    def holders(self, jobs: Sequence[str]) -> set[str]:
        numbers = [self._number(job) for job in dict.fromkeys(jobs)]
        return self._read(lambda tx: set(tx.connection.execute(
            self._overdue[False].holders, {'of_jobs': numbers}).scalars()))

    def prune(self, ages: Ages) -> Iterator[PruneStep]:
        return pruning.prune_steps(self.database, self._namespace, ages)

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        numbers = {self._number(job): job for job in jobs}
        return {numbers[number]: int(count) for number, count in self._run(
            lambda tx: tx.connection.execute(
                self._sql.running, {'of_jobs': list(numbers)}).all())}

    def _number(self, job: str) -> int:
        """Return the number by which rows refer to *job*."""
        return self._numbers.of(job)


def _usable(objects: Iterable[str]) -> list[str]:
    """Return *objects* in order, without duplicates.

    :raises InvalidObject: an id is too long, or contains NUL.
    """
    keys = list(dict.fromkeys(objects))
    for key in keys:
        if len(key) > tables.LONGEST_ID or '\0' in key:
            raise exceptions.InvalidObject(
                f'the id {key[:200]!r} has {len(key)} characters'
                f'{" and a NUL among them" * (chr(0) in key)}; the store '
                f'accepts up to {tables.LONGEST_ID}, without NUL')
    return keys
