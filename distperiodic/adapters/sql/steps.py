# SPDX-License-Identifier: Apache-2.0
"""Steps of tasks in a database, from the claim of a step to the next step.

    ready ── take ──► claimed ── start ──► running ── advance ──► next ready
                         ▲                    │                 or task ended
                         └──── take over ◄────┘

The claim of a step is a normal claim, whose object is the task and whose job
is the command. One transaction records the end of a run and advances the task.
The same transaction may claim the steps that the worker runs next.

Each transition leaves the rows in a state from which another transition can
continue after a crash.
"""

import itertools
import json
import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import ports
from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import step_statements as sql
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.partitions import SqlPartitions
from distperiodic.adapters.sql.step_statements import grant
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import Transactions
from distperiodic.adapters.sql.transaction import in_order
from distperiodic.core import task_values
from distperiodic.core import workflow
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim import place_of
from distperiodic.core.claim_request import NewLease
from distperiodic.core.job import Delivery
from distperiodic.core.schedule import SECOND
from distperiodic.core.telemetry import QueueHalted
from distperiodic.core.telemetry import TaskMoved
from distperiodic.core.workflow import CommandOutcome
from distperiodic.core.workflow import Status

LOG = logging.getLogger(__name__)

_claim = tables.claim
_lease = tables.lease
_queue = tables.queue
_ready = tables.ready
_task = tables.task

#: Number of times that a step may be lost with its worker. If it is lost once
#: more, its task becomes stuck. A step that runs at most once fails at its
#: first loss.
MOST_LOSSES = 5
# Microseconds between the ticks of two consecutive commands of a task that run
# within the same second.
_BETWEEN = 1000
# Codes of statuses in the record of a step.
_DONE = workflow.CODES[Status.SUCCEEDED]
_RUNNING = workflow.CODES[Status.RUNNING]
_FAILED = workflow.CODES[Status.FAILED]


class _End(NamedTuple):
    """End of one run of a command, which the store has not recorded yet."""

    task: task_rows.TaskRow
    outcome: CommandOutcome
    #: True if the command is retried.
    again: bool
    error: str = ''
    #: Result of the command.
    result: Mapping[str, Any] | None = None


#: A lease of granted steps, with the inputs of these steps by task.
_Granted = tuple[Lease, dict[str, workflow.StepInput]]


class _Lease(NamedTuple):
    """The lease in which a step ran."""

    id: str
    #: When the run was granted. None means unknown.
    made: int | None = None
    #: Process that ran the step. None means unknown.
    holder: str | None = None


class SqlSteps:
    """Steps in a database; see :class:`distperiodic.ports.StepStore`."""

    def __init__(self, database: Database, numbers: Numbers, namespace: str,
                 partitions: SqlPartitions,
                 report: Callable[[TaskMoved | QueueHalted], None]):
        self._database = database
        self._transactions = Transactions(database)
        self._partitions = partitions
        self._numbers = numbers
        self._namespace = namespace
        self._report = report
        #: Statement that claims and grants steps. None means that this
        #: database has no such statement.
        self._grant = database.dialect.once(grant) if (
            database.dialect.writes_in_with) else None
        #: Tasks that the current transaction has moved, and its changes.
        self._moved: list[task_rows.TaskRow] = []
        self._changes: list[task_rows.Moves] = []

    # -- ready ─► claimed

    def take(self, rooms: Sequence[Mapping[str, int]],
             tasks: Sequence[str] | None, into: NewLease) -> list[Lease]:
        idle: set[str] = set()
        taken = self._take_once(rooms, tasks, into, idle)
        if tasks is not None and idle:
            # A task that is submitted in a transaction of the service does not
            # become the head of its queue at once. Choose the heads in a
            # separate transaction, since it must lock a queue before it locks
            # a step.
            self._choose_heads(idle)
            taken += self._take_once(
                [_room_left(room, taken) for room in rooms], tasks,
                into._replace(id=f'{into.id}.1'), set())
        return taken

    def _take_once(self, rooms: Sequence[Mapping[str, int]],
                   tasks: Sequence[str] | None, into: NewLease,
                   idle: set[str]) -> list[Lease]:
        """Take steps in one transaction.

        :param idle: Set to which this method adds queues of *tasks*: those
            that have no head.
        """
        most = {name: steps for room in rooms
                for name, steps in room.items() if steps > 0}
        numbers = {name: self._numbers.of(name) for name in most}

        def work(tx: Transaction) -> list[Lease]:
            rows = (self._next(tx, numbers, most) if tasks is None
                    else self._next_of(tx, numbers, most, tasks, idle))
            for room in rooms:
                _fit(room, rows)
            if not rows:
                return self._taken_before(tx, numbers, into)
            return self._take(tx, numbers, rows, into)
        return self._transactions.write_once(work, lambda tx: (
            self._taken_before(tx, numbers, into)))

    @staticmethod
    def _next(tx: Transaction, numbers: Mapping[str, int],
              jobs: Mapping[str, int]) -> dict[str, list[Any]]:
        """Lock steps that are ready, and return them by command."""
        rows: dict[str, list[Any]] = {}
        for job in sorted(numbers):
            found = tx.connection.execute(
                tx.dialect.once(sql.ready_of_command), {
                    'of_job': numbers[job], 'at_most': jobs[job]}).all()
            if found:
                rows[job] = list(found)
        return rows

    @staticmethod
    def _next_of(tx: Transaction, numbers: Mapping[str, int],
                 jobs: Mapping[str, int], tasks: Sequence[str],
                 idle: set[str]) -> dict[str, list[Any]]:
        """Lock the ready steps of *tasks*, and return them by command.

        For a task without a ready step, the ready step of the head of its
        queue is locked instead.

        :param idle: Set to which this method adds queues of these tasks: those
            that have no head.
        """
        names = {number: job for job, number in numbers.items()}

        def of(keys: Sequence[str]) -> list[Any]:
            return [row for row in tx.connection.execute(
                tx.dialect.once(sql.ready_of_tasks), {
                    'keys': tx.dialect.keys(keys)}) if row.job in names]
        found = of(tasks)
        left = set(tasks).difference(row.task for row in found)
        if left:
            heads = set(tx.connection.execute(
                tx.dialect.once(sql.heads_after), {
                    'keys': tx.dialect.keys(list(left))}).scalars())
            # The step of a head may have been found already.
            heads.difference_update(row.task for row in found)
            if heads:
                found += of(sorted(heads))
            idle.update(tx.connection.execute(
                tx.dialect.once(sql.idle_queues), {
                    'keys': tx.dialect.keys(list(left))}).scalars())
        rows: dict[str, list[Any]] = {}
        for row in found:
            of_job = rows.setdefault(names[row.job], [])
            if len(of_job) < jobs[names[row.job]]:
                of_job.append(row)
        return rows

    def _take(self, tx: Transaction, numbers: Mapping[str, int],
              rows: Mapping[str, list[Any]], into: NewLease) -> list[Lease]:
        parts = into.parts()
        taken = []
        for job in sorted(rows):
            now = rows[job][0].now
            for tick, of_tick in _by_tick(rows[job], now):
                lease = next(parts)
                keys = [row.task for row in of_tick]
                won = tx.claim_steps(
                    numbers[job], tick, {row.task: row.due for row in of_tick},
                    lease, State.CLAIMED, now)
                if not won:
                    continue
                # If the call is repeated, it returns the claims in the
                # recorded order.
                keys = [key for key in keys if key in won]
                tx.make(lease, State.CLAIMED, numbers[job], tick, keys,
                        counted=history.increments(
                            numbers[job], tick, lease.holder, due=len(keys)))
                tx.connection.execute(tx.dialect.once(sql.no_more_ready), {
                    'keys': tx.dialect.keys(keys)})
                starting = [row.task for row in of_tick
                            if row.starts and row.task in won]
                if starting:
                    tx.connection.execute(tx.dialect.once(sql.starting), {
                        'keys': tx.dialect.keys(starting), 'at': now})
                taken.append(Lease(lease.id, job, tick, _placed(
                    in_order(keys, won),
                    {row.task: row.precedence for row in of_tick}),
                    State.CLAIMED))
        return taken

    @staticmethod
    def _taken_before(tx: Transaction, numbers: Mapping[str, int],
                      into: NewLease) -> list[Lease]:
        """Return the leases that an earlier attempt of this call created.

        The answer to the earlier attempt was lost.
        """
        jobs = {number: job for job, number in numbers.items()}
        parts, found = into.parts(), []
        while rows := tx.connection.execute(tx.dialect.once(sql.leases), {
                'keys': tx.dialect.keys([part.id for part in itertools.islice(
                    parts, _LEASES)])}).all():
            found += [row for row in rows if row.job in jobs]
        return [Lease(row.id, jobs[row.job], row.tick, placed(
            tx, tx.standing(row.job, json.loads(row.objects), row.id)),
            row.state) for row in found]

    def wake(self) -> bool:
        """Make delayed steps ready if they are due; choose heads of queues.

        :returns: True if more such steps or queues may be left.
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
            tx.connection.execute(sa.update(_ready).where(
                tx.dialect.among(_ready.c.task)).values(delayed=0),
                {'keys': tx.dialect.keys(delayed)})
        if delayed:
            self._transactions.write(work)
        if queues:
            self._choose_heads(queues)
        return max(len(delayed), len(queues)) == _AT_A_TIME

    def _choose_heads(self, queues: Collection[str]) -> None:
        """Choose a head for each of *queues* that has no head."""
        def work(tx: Transaction) -> None:
            moves = self._moves(tx, self._now(tx))
            for name in sorted(queues):
                moves.choose_head(name)
            moves.write()
        self._transactions.write(work)

    # -- claimed ─► running

    def load(self, objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        return self._database.read(
            lambda connection: self._inputs(connection, objects))

    def cancelled(self, tasks: Sequence[str]) -> set[str]:
        dialect = self._database.dialect
        return self._database.read(lambda connection: set(connection.execute(
            dialect.once(sql.cancelled),
            {'keys': dialect.keys(tasks)}).scalars()))

    def _inputs(self, connection: sa.Connection,
                objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        dialect = self._database.dialect
        return {row.id: _input(task_rows.TaskRow(row))
                for row in connection.execute(
                    dialect.once(sql.tasks), {'keys': dialect.keys(objects)})}

    # -- running ─► the next step

    def advance(self, ended: ports.EndedSteps, *, into: str,
                pause: Callable[[int], float],
                proceed: ports.Proceed | None = None) -> ports.Advanced:
        number = self._numbers.of(ended.lease.job)
        numbers = {} if proceed is None else {
            name: self._numbers.of(name) for name in proceed.jobs}
        keys = [*ended.done, *ended.failed]

        def work(tx: Transaction) -> ports.Advanced:
            self.forget_ended()
            # Lock the row of the partition first, as in the store's start().
            goes_on = proceed
            if proceed is not None and proceed.active is not None and not (
                    self._partitions.hold(tx.connection, proceed.active)):
                goes_on = None
            rows = tx.connection.execute(tx.dialect.once(sql.lock_ending), {
                'keys': tx.dialect.keys(keys),
                'of_lease': ended.lease.id}).all()
            advanced = ports.Advanced(set(), set(), set())
            if not rows:
                return advanced
            tasks = {row.id: task_rows.TaskRow(row) for row in rows}
            # A task that has ended has no current command.
            active = {key for key in tasks if tasks[key].position.active}
            ends = {key: _ended_well(tasks[key], result)
                    for key, result in ended.done.items() if key in active}
            ends |= {key: _ended_badly(tasks[key], error)
                     for key, error in ended.failed.items()
                     if key in active}
            if ends:
                run = _Lease(
                    ended.lease.id, rows[0].lease_made, rows[0].lease_holder)
                advanced = self._end(tx, number, ended, ends, run, into, pause,
                                     rows[0].now, goes_on, numbers)
            if sum(map(len, advanced[:3])) < len(tasks):
                # The call came too late, or it repeats an earlier call.
                return self._ended_before(
                    tx, number, ended, advanced.retried, proceed, numbers)
            return advanced

        def again(tx: Transaction) -> ports.Advanced:
            """Return the result of an earlier call whose answer was lost."""
            self.forget_ended()
            waiting = tx.standing(number, keys, into)
            return self._ended_before(
                tx, number, ended, {one.object for one in waiting}, proceed,
                numbers)
        advanced = self._transactions.write_once(work, again)
        self.report_ended()
        return advanced

    def forget_ended(self) -> None:
        """Forget the changes of a transaction that was rolled back.

        Call this at the beginning of each transaction.
        """
        self._moved.clear()
        self._changes.clear()

    def report_ended(self) -> None:
        """Report the tasks that the last transaction has moved, and the queues
        that it has halted.

        Tasks that became stuck are logged. Call this after the commit.
        """
        for changes in self._changes:
            for halted in changes.halted:
                self._report(halted)
        for task in self._moved:
            self._report(TaskMoved(
                task.row.id, task.row.type, task.position.status,
                task.position.step))
            if task.position.status is not Status.STUCK:
                continue
            LOG.error(
                'task stuck: task=%s type=%s step=%d command=%s rollback=%s '
                'reason=%r; it needs an operator: distperiodic task show, '
                'then task retry or task cancel', task.row.id, task.row.type,
                task.position.step, task.action.name, task.position.back,
                task.record().get('message', ''))
        self.forget_ended()

    def _end(self, tx: Transaction, number: int, ended: ports.EndedSteps,
             ends: dict[str, _End], run: _Lease, into: str,
             pause: Callable[[int], float], now: int,
             proceed: ports.Proceed | None,
             numbers: Mapping[str, int]) -> ports.Advanced:
        moves = self._moves(tx, now)
        self._changes.append(moves)
        done, dead, waiting = _end_claims(tx, number, ends, run.id, into)
        counts = []
        if done or dead or waiting:
            counts.append(history.increments(
                number, ended.lease.tick, run.holder or '', times=ended.times,
                done=len(done), dead=len(dead), retried=len(waiting)))
        left = 0
        for row in (*done, *dead, *waiting.values()):
            self._follow(moves, ends[row.object], row, run, now)
            left += 1
        counted: set[str] = set()
        if left < len(ends):
            # If a command ended its run in its own transaction, the run is
            # done, even if the command failed afterwards.
            for row in self._count_committed(tx, number, list(ends), run.id):
                self._follow(moves, _committed(
                    ends[row.object].task, row.progress), row, run, now)
                counted.add(row.object)
            left += len(counted)
        moves.turn_queues()
        granted, written, is_left = (
            ([], False, False) if proceed is None else self._proceed(
                tx, moves, numbers, proceed, now, counts, run.id, left))
        moves.write()
        if not written:
            counts = history.merged(counts)
        # Write the last count together with the first lease.
        last_count = (counts.pop() if granted and counts and not written
                      else None)
        history.add(tx, counts)
        if waiting:
            tx.make(NewLease(into, '', pause(max(
                one.attempt for one in waiting.values()))),
                State.RETRY, number, ended.lease.tick, list(waiting))
        if proceed is not None and not written:
            _make(tx, granted, numbers, proceed, last_count)
        if not is_left:
            tx.leave(run.id, left)
        return ports.Advanced(
            counted | {row.object for row in done}, set(waiting),
            {row.object for row in dead}, granted, moves.unclaimed)

    def _proceed(self, tx: Transaction, moves: task_rows.Moves,
                 numbers: Mapping[str, int], proceed: ports.Proceed,
                 now: int, counts: list[dict[str, Any]], ended: str, left: int
                 ) -> tuple[list[_Granted], bool, bool]:
        """Claim steps that have just become ready, and grant their runs.

        :param counts: List of counts to add to the history. This method
            appends the counts of the new claims, and removes the counts that
            it writes.
        :param ended: Lease of the runs that have ended.
        :param left: Number of these runs.
        :returns: the granted steps; True if their lease was created; and True
            if the lease *ended* was deleted.
        """
        tasks: dict[str, task_rows.TaskRow] = {}
        rows: dict[str, list[task_rows.Ready]] = {}
        for row, task in moves.ready(numbers):
            tasks[row.task] = task
            rows.setdefault(row.job, []).append(row)
        parts = proceed.into.parts()
        groups = [(job, tick, {row.task: row.due for row in of_tick},
                   next(parts)) for job in sorted(rows)
                  for tick, of_tick in _by_tick(rows[job], now)]
        granted = []
        written = is_left = False
        for job, tick, due, lease in groups:
            more = history.increments(
                numbers[job], tick, lease.holder, due=len(due))
            if self._grant is not None and len(groups) == 1:
                *others, last = history.merged([*counts, more])
                won, is_left = tx.grant_steps(
                    self._grant, numbers[job], tick, due, lease, last, ended,
                    left, now)
                written = len(won) == len(due)
                if written:
                    counts[:] = others
            else:
                won = tx.claim_steps(numbers[job], tick, due, lease,
                                     State.RUNNING, now)
            if not won:
                continue
            for key in won:
                moves.begin(tasks[key])
            if not written:
                counts.append(more | {'more_due': len(won)})
            granted.append((
                Lease(lease.id, job, tick, in_order(list(due), won),
                      State.RUNNING),
                {key: _input(tasks[key]) for key in won}))
        return granted, written, is_left

    def _follow(self, moves: task_rows.Moves, end: _End, row: Any,
                run: _Lease, now: int) -> None:
        """Record the end of a run, and advance its task.

        :param run: The lease of the run.
        """
        task, position = end.task, end.task.position
        record = _count_run(task, run, now)
        record['code'] = (_RUNNING if end.again else _DONE
                          if end.outcome is CommandOutcome.DONE else _FAILED)
        if end.error:
            record['message'] = end.error
            record['failures'] = record.get('failures', 0) + 1
        if end.again:
            moves.save(task)
            return
        record['ended'] = now
        if end.result:
            task.merge(end.result)
        message = None
        if end.outcome is not CommandOutcome.DONE:
            message = f'{task.action.name}: {end.error}'
            if task.row.message and position.back:
                message = f'{task.row.message}; rollback {message}'
        moves.move(task, workflow.advance(
            task.definition, position, end.outcome,
            task.row.cancelled_by is not None), after=row.tick,
            message=message)
        self._moved.append(task)

    def _count_committed(self, tx: Transaction, number: int,
                         keys: Sequence[str], lease: str) -> Sequence[Any]:
        """Count runs that ended in transactions of their handlers.

        :returns: the rows of these runs. The column ``progress`` has the
            result of the command.
        """
        rows = tx.connection.execute(tx.dialect.once(sql.committed), {
            'of_job': number, 'stands_in': lease,
            'keys': tx.dialect.keys(keys)}).all()
        if rows:
            history.count_committed(
                tx, number, [row.object for row in rows], lease)
        return rows

    def _ended_before(self, tx: Transaction, number: int,
                      steps: ports.EndedSteps, retried: set[str],
                      proceed: ports.Proceed | None,
                      numbers: Mapping[str, int]) -> ports.Advanced:
        """Return those of *steps* that have ended, and the runs that were
        granted in the same transaction.

        Either this call or an earlier call, which this call repeats, has
        recorded these ends.
        """
        ended, dead = (set(tx.connection.execute(
            tx.sql.end[state].after, {
                'of_job': number, 'stands_in': steps.lease.id,
                'keys': tx.dialect.keys(
                    [*steps.done, *steps.failed])}).scalars())
            for state in (State.DONE, State.DEAD))
        granted = [] if proceed is None else [
            (one, self._inputs(tx.connection, [
                claim.object for claim in one.claims]))
            for one in self._taken_before(tx, numbers, proceed.into)]
        # If the next step runs the same command, its claim has replaced the
        # claim of the step that ended.
        proceeding = {claim.object for one, _ in granted
                      for claim in one.claims}
        following = proceeding - ended - dead
        return ports.Advanced(
            ended | following.intersection(steps.done), retried,
            dead | following.intersection(steps.failed), granted,
            # Only the earlier call knew which steps became ready.
            (ended | dead) - proceeding)

    # -- running ─► lost

    def lost(self, tx: Transaction, claims: list[Claim], lease: str,
             old: Any, keys: Sequence[str]) -> list[Claim]:
        """Record that runs were lost with their worker.

        The caller has just moved *claims* into *lease*. The caller runs
        :meth:`forget_ended` at the beginning of its transaction, and
        :meth:`report_ended` after its commit.

        :param old: Row of the lease in which the lost runs were granted, with
            the name of the lease before the take-over.
        :param keys: All tasks that were in this lease.
        :returns: The claims that run again.
        """
        number, run = old.job, _Lease(old.id, old.made, old.holder)
        tasks = task_rows.locked(tx, keys)
        now = self._now(tx)
        moves = self._moves(tx, now)
        self._changes.append(moves)
        for row in self._count_committed(tx, number, list(tasks), old.id):
            self._follow(moves, _committed(tasks[row.object], row.progress),
                         row, run, now)
        kept: list[Claim] = []
        over: dict[str, Claim] = {}
        for claim in claims:
            task = tasks.get(claim.object)
            if task is None:
                # The row of the task was deleted, so nothing is left to run.
                continue
            record = task.record()
            record['losses'] = record.get('losses', 0) + 1
            once = task.action.delivery is Delivery.AT_MOST_ONCE
            if once or record['losses'] > MOST_LOSSES:
                over[claim.object] = claim
            else:
                _count_run(task, run, now)
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
                    task, CommandOutcome.FAILED if once
                    else CommandOutcome.LOST, False,
                    'its worker was lost, and the step runs at most once'
                    if once else f'lost with {MOST_LOSSES + 1} workers'),
                    row, run, now)
        moves.write()
        return kept

    # -- helpers

    @staticmethod
    def _now(tx: Transaction) -> int:
        return int(tx.connection.execute(
            sa.select(tx.dialect.now)).scalar_one())

    def _moves(self, tx: Transaction, now: int) -> task_rows.Moves:
        return task_rows.Moves(tx, self._numbers, self._namespace, now)


# Maximum number of delayed steps, and of queues, that one call handles.
_AT_A_TIME = 500

# Number of lease names that one statement searches for.
_LEASES = 100


def _room_left(room: Mapping[str, int],
               taken: Sequence[Lease]) -> dict[str, int]:
    """Return the room of one partition that claimed steps do not use.

    :param room: As in :meth:`.StepStore.take`.
    """
    used = sum(len(lease.claims) / room[lease.job] for lease in taken
               if lease.job in room)
    # Rounding errors must not cost a step.
    return {name: int(steps * (1.0 - used) + 1e-6)
            for name, steps in room.items()}


def _fit(room: Mapping[str, int], rows: dict[str, list[Any]]) -> None:
    """Remove the last steps of one partition if they exceed its room.

    :param rows: The steps by command, each list in the order of the claims.
    """
    if len(rows.keys() & room.keys()) < 2:
        return
    found = sorted(((row.precedence, row.due, row.task, name, row)
                    for name in room for row in rows.pop(name, ())),
                   key=lambda one: one[:3])
    used = 0.0
    for *_, name, row in found:
        if used > 1.0 - 1e-6:
            break
        used += 1.0 / room[name]
        rows.setdefault(name, []).append(row)


def placed(tx: Transaction, claims: list[Claim]) -> list[Claim]:
    """Return claims of steps that are not ready with their places in the line.

    The rows of claims do not contain the priorities of tasks.
    """
    keys = [one.object for one in claims]
    # The row of a task may have been deleted.
    return _placed(claims, dict.fromkeys(keys, 0) | {
        row.id: row.precedence for row in tx.connection.execute(
            tx.dialect.once(sql.precedences), {
                'keys': tx.dialect.keys(keys)})})


def _end_claims(tx: Transaction, number: int, ends: Mapping[str, _End],
                lease: str, into: str
                ) -> tuple[Sequence[Any], Sequence[Any], dict[str, Claim]]:
    """End the claims of runs in *lease*, or move them to the lease *into*.

    :returns: the rows of the claims that are done and dead, and the claims
        that wait for a retry, by task.
    """
    again = [key for key, end in ends.items() if end.again]

    def changed(state: State, keys: list[str]) -> Sequence[Any]:
        return tx.changed(tx.sql.end[state].change, {
            'of_job': number, 'stands_in': lease,
            'keys': tx.dialect.keys(keys)}) if keys else ()
    done, dead = (changed(state, [
        key for key, end in ends.items()
        if not end.again and (end.outcome is CommandOutcome.DONE) is is_done])
        for state, is_done in ((State.DONE, True), (State.DEAD, False)))
    waiting: dict[str, Claim] = {}
    if again:
        tx.move(tx.sql.retry, number, again, waiting,
                {'stands_in': lease, 'into': into})
    return done, dead, waiting


def _make(tx: Transaction, granted: Sequence[_Granted],
          numbers: Mapping[str, int], proceed: ports.Proceed,
          counted: dict[str, Any] | None) -> None:
    """Create the leases of granted steps.

    :param counted: Count to add to the history together with the first lease.
    """
    for lease, _ in granted:
        tx.make(proceed.into._replace(id=lease.id), State.RUNNING,
                numbers[lease.job], lease.tick,
                [one.object for one in lease.claims], counted=counted)
        counted = None


def _by_tick(rows: Sequence[Any], now: int
             ) -> list[tuple[int, list[Any]]]:
    """Group ready steps of one command by the tick for which they are claimed.

    Tasks that have run the same number of commands share a tick, so one
    message can carry them. Each further command of a task has a later tick and
    a higher fence.
    """
    second = max(now, *(row.after for row in rows)) // SECOND * SECOND
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(second + _BETWEEN * row.move, []).append(row)
    return sorted(found.items())


def _count_run(task: task_rows.TaskRow, run: _Lease,
               now: int) -> dict[str, Any]:
    """Record that a run of a task's current command has ended or was lost.

    :param run: The lease of the run.
    :returns: The record of the command, which may be changed.
    """
    record = task.record()
    record['attempts'] = record.get('attempts', 0) + 1
    record.setdefault('started', now if run.made is None else run.made)
    if run.holder:
        record['worker'] = run.holder
    return record


def _input(task: task_rows.TaskRow) -> workflow.StepInput:
    return workflow.StepInput(
        task.row.id, task.position.step, task.position.back,
        task.action.timeout, task.parameters, task.restarts,
        task.failure if task.position.back else None, task.trace)


def _placed(claims: Sequence[Claim],
            precedences: Mapping[str, int]) -> list[Claim]:
    """Return claims of steps with their places in the line.

    :param precedences: Precedence of the step of each task.
    """
    return [one._replace(place=place_of(precedences[one.object], one.waiting))
            for one in claims]


def _ended_well(task: task_rows.TaskRow, result: str | None) -> _End:
    found = json.loads(result) if result else None
    if found and (problem := task_values.merge_problem(
            task.parameters, found)):
        return _ended_badly(task, problem)
    return _End(task, CommandOutcome.DONE, False, result=found)


def _committed(task: task_rows.TaskRow, result: str | None) -> _End:
    """Return the end of a run that its handler has committed.

    The command must not run again, even if its result cannot be stored.
    """
    return _ended_well(task, result)._replace(again=False)


def _ended_badly(task: task_rows.TaskRow, error: str) -> _End:
    failures = task.record().get('failures', 0) + 1
    return _End(task, CommandOutcome.FAILED, failures <= task.action.retry
                and task.action.delivery is not Delivery.AT_MOST_ONCE
                # A rollback keeps its retries, even if an operator caused it
                # by cancelling the task.
                and (task.position.back or task.row.cancelled_by is None),
                error)
