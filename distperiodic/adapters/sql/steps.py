# SPDX-License-Identifier: Apache-2.0
"""Steps of tasks in a database: from ready to claimed, and on to the next.

    ready ── take ──► claimed ── start ──► running ── advance ──► next ready
                         ▲                    │                 or task ended
                         └──── take over ◄────┘

A claim of a step is a claim like any other: the object is the task, and the
job is the command. The end of a run, and the move of its task, are one
transaction.
"""

import json
import logging
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import ports
from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.dialect import Dialect
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.statements import Statements
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import in_order
from distperiodic.adapters.sql.transaction import run_once
from distperiodic.core import workflow
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.claim import names_of_leases
from distperiodic.core.job import Delivery
from distperiodic.core.ring import positions_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.workflow import Outcome
from distperiodic.core.workflow import Status

LOG = logging.getLogger(__name__)

_claim = tables.claim
_lease = tables.lease
_queue = tables.queue
_ready = tables.ready
_task = tables.task

#: Number of losses of a run with its worker after which its task is stuck.
MOST_LOSSES = 5
# Microseconds between the ticks of two commands of a task.
_BETWEEN = 1000
# Codes of records.
_DONE = workflow.CODES[Status.SUCCEEDED]
_RUNNING = workflow.CODES[Status.RUNNING]
_FAILED = workflow.CODES[Status.FAILED]


class _End(NamedTuple):
    """End of one run of a command, before the store counts it."""

    task: task_rows.Task
    outcome: Outcome
    #: Whether the command runs again.
    again: bool
    error: str = ''
    #: What the command returned.
    result: Mapping[str, Any] | None = None


class SqlSteps:
    """Steps in a database; see :class:`distperiodic.ports.StepStore`."""

    def __init__(self, database: Database, sql: Statements, numbers: Numbers,
                 namespace: str):
        self._database = database
        self._sql = sql
        self._numbers = numbers
        self._namespace = namespace
        #: Tasks that became stuck in the present transaction.
        self._stuck: list[task_rows.Task] = []

    # -- ready ─► claimed

    def take(self, jobs: Mapping[str, int], *, tasks: Sequence[str] | None,
             into: str, holder: str, seconds: float) -> list[Lease]:
        numbers = {name: self._numbers.of(name) for name in jobs}

        def work(tx: Transaction) -> list[Lease]:
            return self._take_all(tx, numbers, jobs, tasks, into, holder,
                                  seconds, State.CLAIMED)
        return run_once(self._database, self._sql, work, lambda tx: (
            self._taken_before(tx, numbers, into)))

    def proceed(self, jobs: Mapping[str, int], *, tasks: Sequence[str],
                into: str, holder: str, seconds: float
                ) -> list[tuple[Lease, dict[str, workflow.StepInput]]]:
        numbers = {name: self._numbers.of(name) for name in jobs}

        def work(tx: Transaction) -> list[tuple[
                Lease, dict[str, workflow.StepInput]]]:
            return with_inputs(tx, self._take_all(
                tx, numbers, jobs, tasks, into, holder, seconds,
                State.RUNNING))

        def with_inputs(tx: Transaction, leases: list[Lease]) -> list[tuple[
                Lease, dict[str, workflow.StepInput]]]:
            return [(lease, self._inputs(tx.connection, [
                one.object for one in lease.claims])) for lease in leases]
        return run_once(self._database, self._sql, work, lambda tx: (
            with_inputs(tx, self._taken_before(tx, numbers, into))))

    def _take_all(self, tx: Transaction, numbers: Mapping[str, int],
                  jobs: Mapping[str, int], tasks: Sequence[str] | None,
                  into: str, holder: str, seconds: float, state: State
                  ) -> list[Lease]:
        wanted = None if tasks is None else [
            *tasks, *self._heads_after(tx, tasks)]
        names = iter(names_of_leases(into, 10_000))
        taken = []
        for job, number in sorted(numbers.items()):
            taken += self._take(tx, job, number, jobs[job], wanted, names,
                                holder, seconds, state)
        return taken or self._taken_before(tx, numbers, into)

    def _heads_after(self, tx: Transaction, tasks: Sequence[str]
                     ) -> Sequence[str]:
        """Return the present heads of the queues of *tasks*."""
        return tx.connection.execute(tx.dialect.once(_heads), {
            'keys': tx.dialect.keys(tasks)}).scalars().all()

    def _take(self, tx: Transaction, job: str, number: int, limit: int,
              tasks: Sequence[str] | None, names: Any, holder: str,
              seconds: float, state: State) -> list[Lease]:
        """Claim steps of one command.

        :param state: RUNNING grants their runs to the holder, too.
        """
        rows = tx.connection.execute(
            _NEXT if tasks is None else tx.dialect.once(_next_of), {
                'of_job': number, 'at_most': limit,
                **({} if tasks is None else {
                    'keys': tx.dialect.keys(tasks)})}).all()
        if not rows:
            return []
        now = self._now(tx)
        second = max(now, *(row.after for row in rows)) // SECOND * SECOND
        by_tick: dict[int, list[Any]] = {}
        for row in rows:
            # Tasks that are at the same step share a tick, so one message can
            # carry them. The ticks of a task grow with its moves, and so do
            # its fences.
            by_tick.setdefault(second + _BETWEEN * row.move, []).append(row)
        taken = []
        for tick in sorted(by_tick):
            name = next(names)
            keys = [row.task for row in by_tick[tick]]
            won = self._claim(tx, number, tick, keys, name)
            if not won:
                continue
            if state is State.RUNNING:
                tx.move(tx.sql.start, number, list(won), won, {
                    'stands_in': name, 'into': name, 'runner': holder})
            tx.make(name, state, number, tick, list(won), holder, seconds,
                    counted=history.increments(
                        number, tick, holder, due=len(won)))
            tx.connection.execute(tx.dialect.once(_no_more_ready), {
                'keys': tx.dialect.keys(list(won))})
            starting = [row.task for row in by_tick[tick]
                        if row.starts and row.task in won]
            if starting:
                tx.connection.execute(tx.dialect.once(_starting), {
                    'keys': tx.dialect.keys(starting), 'at': now})
            taken.append(Lease(
                name, job, tick, in_order(keys, won), state))
        return taken

    def _claim(self, tx: Transaction, number: int, tick: int,
               keys: list[str], lease: str) -> dict[str, Claim]:
        """Claim steps, and return the claims by task."""
        # A command has a row already if an earlier step of the task ran it.
        tx.dialect.insert_new(
            tx.connection, _claim,
            {'object': keys, 'position': positions_of(keys)},
            job=number, tick=tick, settled=tick, state=State.CLAIMED,
            fence=first_fence(tick), attempt=1, lease=lease, since=tick,
            rule='')
        won = {one.object: one for one in tx.standing(number, keys, lease)}
        rest = [key for key in keys if key not in won]
        if rest:
            tx.move(tx.sql.claim_step, number, rest, won, {
                'into': lease, 'of_tick': tick, 'first': first_fence(tick)})
        return won

    def _taken_before(self, tx: Transaction, numbers: Mapping[str, int],
                      into: str) -> list[Lease]:
        """Return the leases that an earlier call created, whose answer was
        lost.
        """
        jobs = {number: job for job, number in numbers.items()}
        rows = tx.connection.execute(
            sa.select(_lease).where(_lease.c.id.in_(
                names_of_leases(into, 20)))).all()
        return [Lease(row.id, jobs[row.job], row.tick, tx.standing(
            row.job, json.loads(row.objects), row.id), row.state)
            for row in rows if row.job in jobs]

    def wake(self) -> bool:
        """Make steps ready that were delayed, and choose heads of queues.

        :returns: Whether there may be more of them.
        """
        def due(connection: sa.Connection) -> tuple[list[str], list[str]]:
            return (list(connection.execute(
                sa.select(_ready.c.task).where(
                    _ready.c.delayed == 1, _ready.c.due <= sa.select(
                        self._database.dialect.now).scalar_subquery()
                ).order_by(_ready.c.due).limit(_AT_A_TIME)).scalars()),
                list(connection.execute(
                    sa.select(_queue.c.name).where(
                        _queue.c.space == self._namespace,
                        _queue.c.head.is_(None), _queue.c.halted.is_(None),
                        sa.exists().where(
                            _task.c.space == self._namespace,
                            _task.c.queue == _queue.c.name,
                            _task.c.status == Status.WAITING)
                    ).limit(_AT_A_TIME)).scalars()))
        delayed, queues = self._database.read(due)
        if not (delayed or queues):
            return False

        def work(tx: Transaction) -> None:
            if delayed:
                tx.connection.execute(sa.update(_ready).where(
                    tx.dialect.among(_ready.c.task)).values(delayed=0),
                    {'keys': tx.dialect.keys(delayed)})
            moves = self._moves(tx, self._now(tx))
            for name in sorted(queues):
                moves.choose_head(name)
            moves.write()
        self._run(work)
        return max(len(delayed), len(queues)) == _AT_A_TIME

    # -- claimed ─► running

    def load(self, objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        return self._database.read(
            lambda connection: self._inputs(connection, objects))

    def _inputs(self, connection: sa.Connection,
                objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        dialect = self._database.dialect
        tasks = [task_rows.Task(row) for row in connection.execute(
            dialect.once(_some), {'keys': dialect.keys(objects)})]
        return {task.row.id: workflow.StepInput(
            task.row.id, task.position.step, task.position.back,
            task.action.timeout, task.parameters) for task in tasks}

    # -- running ─► the next step

    def advance(self, job: str, tick: int,
                done: Mapping[str, str | None], failed: Mapping[str, str], *,
                lease: str, into: str,
                pause: Callable[[int], float]) -> ports.Advanced:
        number = self._numbers.of(job)
        keys = [*done, *failed]

        def work(tx: Transaction) -> ports.Advanced:
            self._stuck.clear()
            tasks = task_rows.locked(tx, keys)
            ends = {}
            for key, result in done.items():
                if key in tasks:
                    ends[key] = _ended_well(tasks[key], result)
            for key, error in failed.items():
                if key in tasks:
                    ends[key] = _ended_badly(tasks[key], error)
            return self._end(tx, number, tick, ends, lease, into, pause)

        def again(tx: Transaction) -> ports.Advanced:
            """Return what an earlier call did, whose answer was lost."""
            waiting = tx.standing(number, keys, into)
            return self._ended_before(
                tx, number, keys, lease, {one.object for one in waiting})
        advanced = run_once(self._database, self._sql, work, again)
        self.report_stuck()
        return advanced

    def report_stuck(self) -> None:
        """Log the tasks that became stuck in the last transaction. Call this
        after its commit.
        """
        for task in self._stuck:
            LOG.error(
                'task stuck: task=%s type=%s step=%d command=%s rollback=%s '
                'reason=%r; it needs an operator: distperiodic task show, '
                'then task retry or task cancel', task.row.id, task.row.type,
                task.position.step, task.action.name, task.position.back,
                task.record().get('message', ''))
        self._stuck.clear()

    def _end(self, tx: Transaction, number: int, tick: int,
             ends: dict[str, _End], lease: str, into: str,
             pause: Callable[[int], float]) -> ports.Advanced:
        of_lease = _lease.c.id == lease
        made, worker, now = tx.connection.execute(sa.select(
            sa.select(_lease.c.made).where(of_lease).scalar_subquery(),
            sa.select(_lease.c.holder).where(of_lease).scalar_subquery(),
            tx.dialect.now)).one()
        moves = self._moves(tx, now)
        left = 0
        # A command that ended its run in a transaction of its own is done,
        # whatever happened to it afterwards.
        committed = self._count_committed(tx, number, list(ends), lease)
        for row in committed:
            end = ends[row.object] = _committed(
                ends[row.object].task, row.progress)
            self._follow(moves, end, row, made, worker, now)
        left += len(committed)
        by_state: dict[State, list[str]] = {}
        counted = {row.object for row in committed}
        for key, end in ends.items():
            if key not in counted:
                state = (State.RETRY if end.again else State.DONE
                         if end.outcome is Outcome.DONE else State.DEAD)
                by_state.setdefault(state, []).append(key)
        rows: dict[State, Sequence[Any]] = {}
        for state in (State.DONE, State.DEAD):
            if state in by_state:
                rows[state] = tx.changed(tx.sql.end[state].change, {
                    'of_job': number, 'stands_in': lease,
                    'keys': tx.dialect.keys(by_state[state])})
                if rows[state]:
                    ended: dict[str, Any] = {state.value: len(rows[state])}
                    history.count_in(tx, number, tick, lease, **ended)
        waiting: dict[str, Claim] = {}
        if State.RETRY in by_state:
            tx.move(tx.sql.retry, number, by_state[State.RETRY], waiting,
                    {'stands_in': lease, 'into': into})
        for row in (*rows.get(State.DONE, ()), *rows.get(State.DEAD, ()),
                    *waiting.values()):
            self._follow(moves, ends[row.object], row, made, worker, now)
            left += 1
        moves.write()
        if waiting:
            history.count_in(tx, number, tick, lease, retried=len(waiting))
            tx.make(into, State.RETRY, number, tick, list(waiting), '',
                    min(pause(one.attempt) for one in waiting.values()))
        tx.leave(lease, left)
        if left < len(ends):
            return self._ended_before(
                tx, number, list(ends), lease, set(waiting))
        return ports.Advanced(
            counted | {row.object for row in rows.get(State.DONE, ())},
            set(waiting), {row.object for row in rows.get(State.DEAD, ())})

    def _follow(self, moves: task_rows.Moves, end: _End, row: Any,
                made: int | None, worker: str | None, now: int) -> None:
        """Record the end of a run, and move its task.

        :param made: When the run was granted. None means unknown.
        :param worker: Process that ran it. None means unknown.
        """
        task, position = end.task, end.task.position
        record = task.record()
        record['attempts'] = record.get('attempts', 0) + 1
        record.setdefault('started', now if made is None else made)
        if worker is not None:
            record['worker'] = worker
        record['code'] = (_RUNNING if end.again else _DONE
                          if end.outcome is Outcome.DONE else _FAILED)
        if end.error:
            record['message'] = end.error
            record['failures'] = record.get('failures', 0) + 1
        if end.again:
            moves.save(task)
            return
        record['ended'] = now
        if end.result:
            task.parameters.update(end.result)
        message = None
        if end.outcome is not Outcome.DONE:
            message = f'{task.action.name}: {end.error}'
            if task.row.message and position.back:
                message = f'{task.row.message}; rollback {message}'
        moves.move(task, workflow.advance(
            task.definition, position, end.outcome,
            task.row.cancelled_by is not None), after=row.tick,
            message=message)
        if task.position.status is Status.STUCK:
            self._stuck.append(task)

    def _count_committed(self, tx: Transaction, number: int,
                         keys: Sequence[str], lease: str) -> Sequence[Any]:
        """Count runs that ended in transactions of their handlers.

        :returns: their rows, with the result as ``progress``.
        """
        rows = tx.connection.execute(tx.dialect.once(_committed_rows), {
            'of_job': number, 'stands_in': lease,
            'keys': tx.dialect.keys(keys)}).all()
        if rows:
            history.count_committed(
                tx, number, [row.object for row in rows], lease)
        return rows

    def _ended_before(self, tx: Transaction, number: int,
                      keys: Sequence[str], lease: str,
                      retried: set[str]) -> ports.Advanced:
        """Return the ends in *lease*, by this call or an earlier one."""
        found = {state: set(tx.connection.execute(
            tx.sql.end[state].after, {
                'of_job': number, 'stands_in': lease,
                'keys': tx.dialect.keys(keys)}).scalars())
            for state in (State.DONE, State.DEAD)}
        return ports.Advanced(found[State.DONE], retried, found[State.DEAD])

    # -- running ─► lost

    def lost(self, tx: Transaction, number: int, claims: list[Claim],
             lease: str, old_lease: str, keys: Sequence[str]) -> list[Claim]:
        """Record that runs were lost with their worker.

        The caller has just moved *claims* into *lease*. After its commit it
        calls :meth:`report_stuck`.

        :param old_lease: The lease in which they ran.
        :param keys: All tasks that were in *old_lease*.
        :returns: The claims that run again.
        """
        self._stuck.clear()
        tasks = task_rows.locked(tx, keys)
        now = self._now(tx)
        moves = self._moves(tx, now)
        for row in self._count_committed(tx, number, list(tasks), old_lease):
            self._follow(moves, _committed(tasks[row.object], row.progress),
                         row, None, None, now)
        kept: list[Claim] = []
        over: dict[str, Claim] = {}
        for claim in claims:
            task = tasks.get(claim.object)
            if task is None:
                # Its row was deleted, so there is nothing left to run.
                continue
            record = task.record()
            record['losses'] = record.get('losses', 0) + 1
            once = task.action.delivery is Delivery.AT_MOST_ONCE
            if once or record['losses'] > MOST_LOSSES:
                over[claim.object] = claim
            else:
                moves.save(task)
                kept.append(claim)
        if over:
            rows = tx.changed(tx.sql.end[State.DEAD].change, {
                'of_job': number, 'stands_in': lease,
                'keys': tx.dialect.keys(list(over))})
            history.count(tx, number, rows[0].tick, '', dead=len(rows))
            for row in rows:
                task = tasks[row.object]
                once = task.action.delivery is Delivery.AT_MOST_ONCE
                self._follow(moves, _End(
                    task, Outcome.FAILED if once else Outcome.LOST, False,
                    'its worker was lost, and the step runs at most once'
                    if once else f'lost with {MOST_LOSSES + 1} workers'),
                    row, None, None, now)
        moves.write()
        return kept

    # -- helpers

    @staticmethod
    def _now(tx: Transaction) -> int:
        return int(tx.connection.execute(
            sa.select(tx.dialect.now)).scalar_one())

    def _moves(self, tx: Transaction, now: int) -> task_rows.Moves:
        return task_rows.Moves(tx, self._numbers, self._namespace, now)

    def _run(self, work: Callable[[Transaction], Any]) -> Any:
        return self._database.write(lambda connection: work(Transaction(
            connection, self._database.dialect, self._sql)))


# Number of delayed steps, and of queues, that are handled at once.
_AT_A_TIME = 500

_NEXT = sa.select(_ready).where(
    _ready.c.job == sa.bindparam('of_job'), _ready.c.delayed == 0,
).order_by(_ready.c.precedence, _ready.c.due, _ready.c.task).limit(
    sa.bindparam('at_most', type_=sa.Integer)).with_for_update(
        skip_locked=True)


def _next_of(dialect: Dialect) -> Any:
    return _NEXT.where(dialect.among(_ready.c.task))


def _heads(dialect: Dialect) -> Any:
    return sa.select(_queue.c.head).distinct().join(_task, sa.and_(
        _queue.c.space == _task.c.space, _queue.c.name == _task.c.queue)
    ).where(dialect.among(_task.c.id), _queue.c.head.is_not(None))


def _some(dialect: Dialect) -> Any:
    return sa.select(_task).where(dialect.among(_task.c.id))


def _committed_rows(dialect: Dialect) -> Any:
    return sa.select(
        _claim.c.object, _claim.c.tick, _claim.c.progress, _claim.c.worker
    ).where(
        _claim.c.job == sa.bindparam('of_job'),
        _claim.c.lease == sa.bindparam('stands_in'),
        _claim.c.state == State.COMMITTED, dialect.among(_claim.c.object))


def _no_more_ready(dialect: Dialect) -> Any:
    return sa.delete(_ready).where(dialect.among(_ready.c.task))


def _starting(dialect: Dialect) -> Any:
    return sa.update(_task).where(
        dialect.among(_task.c.id), _task.c.status == Status.WAITING
    ).values(status=Status.RUNNING, started=sa.func.coalesce(
        _task.c.started, sa.bindparam('at', type_=sa.BigInteger)))


def _ended_well(task: task_rows.Task, result: str | None) -> _End:
    found = json.loads(result) if result else None
    if found and (problem := workflow.parameters_problem(
            {**task.parameters, **found})):
        return _ended_badly(
            task, f'the parameters with its result {problem}')
    return _End(task, Outcome.DONE, False, result=found)


def _committed(task: task_rows.Task, result: str | None) -> _End:
    """Return the end of a run that its handler has committed: it must not
    run again, even if its result cannot be kept.
    """
    return _ended_well(task, result)._replace(again=False)


def _ended_badly(task: task_rows.Task, error: str) -> _End:
    failures = task.record().get('failures', 0) + 1
    return _End(task, Outcome.FAILED, failures <= task.action.retry
                and task.action.delivery is not Delivery.AT_MOST_ONCE
                # A rollback has its retries even if it is due to a request.
                and (task.position.back or task.row.cancelled_by is None),
                error)
