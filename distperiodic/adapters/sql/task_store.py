# SPDX-License-Identifier: Apache-2.0
"""The tasks and ordered queues of one group, for the clients of tasks."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import claiming
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import session as sql_session
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_reader
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.database import is_repeated
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.task_insertion import TaskInsertion
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import Transactions
from distperiodic.core import workflow
from distperiodic.core.claim import State
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.new_task import NewTask
from distperiodic.core.task import Queue
from distperiodic.core.task import Task
from distperiodic.core.task import TaskPage
from distperiodic.core.workflow import Status

T = TypeVar('T')

_claim = tables.claim
_queue = tables.queue
_ready = tables.ready
_task = tables.task


class SqlTaskStore:
    """Tasks in a database: :class:`distperiodic.ports.TaskStore`."""

    def __init__(self, connection_url: str, *, namespace: str):
        self._database = schema.connect(connection_url)
        self._dialect = self._database.dialect
        self._run = Transactions(self._database).write
        self._namespace = namespace
        self._numbers = Numbers(
            self._database, namespace, SystemClock().monotonic)
        self._insertion = TaskInsertion(self._dialect, namespace)
        self.close = self._database.close

    # -- read

    def get(self, task: str) -> Task:
        return self._database.read(lambda connection: task_reader.task_of(
            *task_reader.read(
                connection, self._dialect, self._namespace, task)))

    def page(self, page: TaskPage) -> list[Task]:
        return self._database.read(lambda connection: task_reader.page(
            connection, self._namespace, page))

    def queues(self, name: str | None = None) -> list[Queue]:
        return self._database.read(lambda connection: task_reader.queues(
            connection, self._namespace, name))

    # -- submit

    def submit(self, tasks: Sequence[NewTask]) -> list[str]:
        insertion = self._insertion

        def work(tx: Transaction) -> list[str]:
            repeated = is_repeated(tx.connection)
            if (len(tasks) == 1 and tasks[0].queue is None and not repeated
                    and insertion.insert_at_once(tx, tasks[0])):
                return [tasks[0].id]
            queues = sorted({task.queue for task in tasks
                             if task.queue is not None})
            if queues:
                # The rows of the queues are locked from here to the commit, so
                # the tasks of a queue are committed in the order of their
                # times.
                insertion.lock_queues(tx, queues)
            commands = self._numbers.read_commands(tx.connection, {
                COMMAND_PREFIX + task.definition[0].normal.name
                for task in tasks})
            return insertion.insert(
                tx, tasks, queues, commands, commands.now, repeated)
        return self._run(work)

    def submit_in(self, session: Any, tasks: Sequence[NewTask]) -> list[str]:
        is_session = hasattr(session, 'get_bind')
        bind = session.get_bind() if is_session else session
        connection = session.connection() if is_session else session
        try:
            if bind.dialect.name == self._dialect.name:
                tx = Transaction(connection, self._dialect)
                queues = {task.queue for task in tasks
                          if task.queue is not None}
                if queues:
                    self._insertion.keep_queues(tx, sorted(queues))
                return self._insertion.insert(
                    tx, tasks, [], self._numbers,
                    sql_session.now_in(connection, bind))
        except (sa_exception.DBAPIError, db_exception.DBError) as exc:
            if not sql_session.lacks_tables(exc):
                raise
        raise exceptions.ConfigError(
            f'the session uses {sql_session.shown(bind)}, which has no '
            'distperiodic tables; pass a session of the database in '
            '[distperiodic] connection, or set connection to the database of '
            'the session and run: distperiodic db sync')

    # -- control

    def cancel(self, tasks: Sequence[str], by: str) -> ports.TaskAnswers:
        return self._each(tasks, lambda tx, task, before: self._cancel(
            tx, task, by[:tables.LONGEST_REASON], before))

    def retry(self, tasks: Sequence[str], back: bool | None
              ) -> ports.TaskAnswers:
        return self._each(tasks, lambda tx, task, before: self._retry(
            tx, task, back, before))

    def _each(self, tasks: Sequence[str],
              change: Callable[[Transaction, str, Status | None], Status]
              ) -> ports.TaskAnswers:
        """Change tasks in one transaction.

        :param change: Changes a task. Its third argument is the new status of
            the task in an earlier try of the transaction, which may have been
            committed although its answer was lost. None means no such try. If
            *change* raises an error about the task, it has written nothing.
        """
        earlier: dict[str, Status] = {}

        def work(tx: Transaction) -> ports.TaskAnswers:
            answers: ports.TaskAnswers = {}
            repeated = is_repeated(tx.connection)
            if not repeated:
                earlier.clear()
            # Transactions that change several tasks lock them in one order.
            for task in sorted(set(tasks)):
                try:
                    status = change(tx, task, earlier.get(task))
                except (exceptions.InvalidTask,
                        exceptions.UnknownTask) as exc:
                    answers[task] = exc
                else:
                    answers[task] = status
                    if not repeated:
                        earlier[task] = status
            return {task: answers[task] for task in tasks}
        return self._run(work)

    def _cancel(self, tx: Transaction, task: str, by: str,
                earlier: Status | None) -> Status:
        # Lock the rows in the order in which a claim locks them.
        waits = tx.connection.execute(sa.select(_ready.c.task).where(
            _ready.c.task == task).with_for_update()).one_or_none()
        found = self._locked(tx, task)
        position = found.position
        if earlier is not None and found.row.cancelled_by == by:
            return position.status
        if position.status in workflow.ENDED:
            raise exceptions.InvalidTask(
                f'task {task!r} has ended: it {_past(position.status)}; '
                'nothing is left to cancel')
        queued = (waits is None and position.status is Status.WAITING)
        tx.connection.execute(sa.update(_task).where(
            _task.c.id == task).values(cancelled_by=by))
        following = workflow.cancel(
            found.definition, position,
            started=waits is None and not queued)
        if following is None and not position.back:
            began = self._withdraw(tx, found)
            if began is not None:
                following = workflow.roll_back(
                    found.definition, position,
                    position.step if began else position.step - 1, True)
        if following is None:
            return position.status
        if waits is not None:
            tx.connection.execute(
                sa.delete(_ready).where(_ready.c.task == task))
        self._move(tx, found, following)
        return following.status

    def _withdraw(self, tx: Transaction,
                  task: task_rows.TaskRow) -> bool | None:
        """End the claim of a command that does not run.

        A worker that has received the command can no longer start it.

        :returns: True if an earlier attempt may have begun. None means that
            there is no such claim, because the command runs.
        """
        job = COMMAND_PREFIX + task.action.name
        number = self._numbers.within(tx.connection, {job})[job]
        # If a worker starts the command now, either the start waits for this
        # lock, or this statement waits for the start and finds another state.
        claim = tx.connection.execute(
            sa.select(_claim.c.lease, _claim.c.state, _claim.c.attempt).where(
                _claim.c.job == number, _claim.c.object == task.row.id,
                _claim.c.state.in_([State.CLAIMED, State.RETRY]))
            .with_for_update()).one_or_none()
        if claim is None:
            return None
        if task.row.id not in claiming.end(
                tx, number, [task.row.id], claim.lease, State.CANCELLED, {},
                of_objects=False):
            return None
        # Each lost run increases the number of attempts. A run that a worker
        # returns without starting it does not increase this number. So a
        # number above 1 means that an earlier attempt may have begun.
        return claim.state is State.RETRY or claim.attempt > 1

    def _retry(self, tx: Transaction, task: str, back: bool | None,
               earlier: Status | None) -> Status:
        found = self._locked(tx, task)
        before = found.position
        following = workflow.retry(found.definition, before, back)
        if following is None and earlier is not None:
            return before.status
        if following is None:
            raise exceptions.InvalidTask(
                f'task {task!r} cannot be retried: it '
                f'{_past(before.status)}; only a task that is stuck, or '
                'has failed or was cancelled, can be, and only a stuck '
                'task can be rolled back')
        if following.back:
            found.records.pop(task_rows.record_key(following), None)
        else:
            # The effects of the steps that run again were undone, so commands
            # must not see their results.
            found.forget(following.step)
            tx.connection.execute(sa.update(_task).where(
                _task.c.id == task).values(
                    cancelled_by=None, ended=None))
            if before.back:
                # Give the steps that run again new idempotency keys: a
                # receiver that remembers the keys of the undone effects would
                # ignore calls with the same keys.
                found.records.setdefault(task_rows.WHOLE, {})[
                    'restarts'] = found.restarts + 1
        self._move(tx, found, following, '')
        return following.status

    def resume(self, queue: str) -> bool:
        return self._set_queue(queue, halted=None, halted_why=None,
                               halted_by=None)

    def halt(self, queue: str, why: str) -> bool:
        return self._set_queue(
            queue, halted=self._dialect.now,
            halted_why=why[:tables.LONGEST_REASON], halted_by=None)

    def set_goes_on(self, queue: str, goes_on: bool) -> None:
        def work(tx: Transaction) -> None:
            self._insertion.lock_queues(tx, [queue])
            tx.connection.execute(sa.update(_queue).where(
                _queue.c.space == self._namespace, _queue.c.name == queue
            ).values(goes_on=int(goes_on)))
        self._run(work)

    def _set_queue(self, name: str, **values: Any) -> bool:
        def work(tx: Transaction) -> bool:
            ours = (_queue.c.space == self._namespace, _queue.c.name == name)
            row = tx.connection.execute(sa.select(_queue).where(
                *ours).with_for_update(key_share=True)).one_or_none()
            if row is None:
                raise task_reader.unknown_queue(self._namespace, name)
            halts = values['halted'] is not None
            if (row.halted is not None) is halts:
                return False
            head = row.head
            if halts and head is not None and task_rows.hold(tx, head):
                head = None
            tx.connection.execute(sa.update(_queue).where(*ours).values(
                head=head, changes=_queue.c.changes + 1, **values))
            if not halts:
                moves = self._moves(tx)
                moves.choose_head(name)
                moves.write()
            return True
        return self._run(work)

    # -- helpers

    def _move(self, tx: Transaction, task: task_rows.TaskRow,
              position: workflow.Position, message: str | None = None
              ) -> None:
        moves = self._moves(tx)
        moves.move(task, position, message=message)
        moves.write()

    def _moves(self, tx: Transaction) -> task_rows.Moves:
        return task_rows.Moves(
            tx, self._numbers, self._namespace, self._now(tx))

    def _now(self, tx: Transaction) -> int:
        return int(tx.connection.execute(
            sa.select(self._dialect.now)).scalar_one())

    def _locked(self, tx: Transaction, task: str) -> task_rows.TaskRow:
        found = task_rows.locked(tx, [task]).get(task)
        if found is None or found.row.space != self._namespace:
            raise task_reader.unknown(self._namespace, task)
        return found


def _past(status: Status) -> str:
    return {Status.WAITING: 'waits', Status.RUNNING: 'is running',
            Status.ROLLING_BACK: 'is rolling back', Status.STUCK: 'is stuck',
            Status.CANCELLED: 'was cancelled'}.get(status, str(status))
