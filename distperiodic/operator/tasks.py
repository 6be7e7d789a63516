# SPDX-License-Identifier: Apache-2.0
"""Tasks of one group: to submit, to read and to steer them.

This only reads and writes tables. Schedulers find what they have to do at
their next sweep, or at once if somebody tells them.
"""

import hashlib
import itertools
import json
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import session as sql_session
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.statements import Statements
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import workflow
from distperiodic.core.claim import State
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.task import Command
from distperiodic.core.task import Step
from distperiodic.core.task import Task
from distperiodic.core.task import command_of
from distperiodic.core.task import moment
from distperiodic.core.workflow import Status
from distperiodic.operator.group_reader import connect

T = TypeVar('T')

_claim = tables.claim
_job = tables.job
_lease = tables.lease
_queue = tables.queue
_ready = tables.ready
_task = tables.task
_task_at_head = tables.task.alias()


class NewTask(NamedTuple):
    """A task to submit."""

    id: str
    type: str
    definition: workflow.Definition
    #: JSON text of a dictionary, with sorted keys.
    parameters: str
    key: str | None
    queue: str | None
    #: Earliest instant of its first step. None means at once.
    due: int | None
    priority: int


class Running(NamedTuple):
    """The claim of a task's present command."""

    state: State
    attempt: int
    #: Worker to which the run was granted. None means none yet.
    worker: str | None
    #: Holder of the lease. Empty means that it has none.
    holder: str
    #: When the run was granted, in microseconds. None means not yet.
    granted: int | None
    #: When its lease expires: for a retry, when it is due.
    until: int


class QueueRow(NamedTuple):
    """An ordered queue."""

    name: str
    #: Id of the task that may run. None means none.
    head: str | None
    #: None means that there is no head.
    head_status: Status | None
    waiting: int
    goes_on: bool
    #: When it was halted, in microseconds. None means not halted.
    halted: int | None
    halted_why: str | None
    halted_by: str | None


class TaskStore:
    """The tasks of one group, in a database.

    :raises StoreUnavailable: Any method may raise it; see
        :class:`distperiodic.ports.ClaimStore`.
    """

    def __init__(self, connection_url: str, *, namespace: str):
        self._database = connect(connection_url)
        self._dialect = self._database.dialect
        self._sql = Statements(self._dialect)
        self._namespace = namespace
        self._numbers = Numbers(
            self._database, namespace, SystemClock().monotonic)
        self.close = self._database.close

    # -- submit

    def submit(self, tasks: Sequence[NewTask]) -> list[str]:
        """Write tasks, and return their ids.

        A task whose key exists is not written; its id is that of the existing
        task.

        :raises InvalidTask: A key exists for another type, or with other
            parameters.
        """
        tries = itertools.count()

        def work(tx: Transaction) -> list[str]:
            # The first try may have been committed without an answer.
            repeated = next(tries) > 0
            queues = sorted({task.queue for task in tasks
                             if task.queue is not None})
            if queues:
                # The row of a queue is locked from here to the commit. So the
                # tasks of a queue are committed in the order of their times.
                self._lock_queues(tx, queues)
            return self._insert(tx, tasks, queues, self._now(tx), repeated)
        return self._run(work)

    def submit_in(self, session: Any, tasks: Sequence[NewTask]) -> list[str]:
        """Write tasks in the transaction of *session*; the caller commits it.

        Its place in a queue is that of the time of this call. The queue is
        not locked until the caller commits, unless the task is its first one.
        So tasks that are submitted later and committed earlier may run first.

        :raises ConfigError: The session belongs to another database.
        """
        is_session = hasattr(session, 'get_bind')
        bind = session.get_bind() if is_session else session
        connection = session.connection() if is_session else session
        try:
            if bind.dialect.name == self._dialect.name:
                tx = Transaction(connection, self._dialect, self._sql)
                queues = {task.queue for task in tasks
                          if task.queue is not None}
                if queues:
                    self._create_queues(tx, sorted(queues))
                return self._insert(
                    tx, tasks, [], sql_session.now_in(connection, bind))
        except (sa_exception.DBAPIError, db_exception.DBError) as exc:
            if not sql_session.lacks_tables(exc):
                raise
        raise exceptions.ConfigError(
            f'the session belongs to {sql_session.shown(bind)}, which does '
            'not hold the tasks; set [distperiodic] connection to that '
            'database and run: distperiodic db sync')

    def _insert(self, tx: Transaction, tasks: Sequence[NewTask],
                queues: Sequence[str], now: int,
                repeated: bool = False) -> list[str]:
        connection = tx.connection
        keyed = {task.key: task for task in tasks if task.key is not None}
        written = self._existing(tx, _task.c.id, [
            task.id for task in tasks]) if repeated else {}
        new = [task for task in tasks if task.id not in written]
        if new:
            self._dialect.insert_new(connection, _task, {
                'id': [task.id for task in new],
                'type': [task.type for task in new],
                'key': [task.key for task in new],
                'queue': [task.queue for task in new],
                'priority': [task.priority for task in new],
                'due': [task.due for task in new],
                'definition': [_definition_text(task.definition)
                               for task in new],
                'parameters': [task.parameters for task in new],
                'digest': [_digest(task) for task in new],
            }, space=self._namespace, status=Status.WAITING, cursor=0, step=0,
                back=0, move=0, created=now, records='{}')
        taken = {}
        if keyed:
            taken = self._existing(
                tx, _task.c.key, list(keyed), _task.c.space == self._namespace)
            for key, row in taken.items():
                _check_same(keyed[key], row)
        ids = [task.id if task.key is None or task.key not in taken
               else taken[task.key].id for task in tasks]
        moves = task_rows.Moves(tx, self._numbers, self._namespace, now)
        inserted = set(ids)
        for task in new:
            if task.queue is None and task.id in inserted:
                moves.start(task.id, task.definition[0].normal,
                            task.priority, task.due)
        for name in queues:
            moves.choose_head(name)
        moves.write()
        return ids

    def _existing(self, tx: Transaction, column: Any, values: Sequence[str],
                  *conditions: Any) -> dict[str, Any]:
        return {row[0]: row for row in tx.connection.execute(
            sa.select(column.label('found'), _task.c.id, _task.c.type,
                      _task.c.digest)
            .where(self._dialect.among(column), *conditions),
            {'keys': self._dialect.keys(values)})}

    def _lock_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        self._create_queues(tx, names)
        tx.connection.execute(sa.update(_queue).where(
            _queue.c.space == self._namespace,
            self._dialect.among(_queue.c.name)).values(
                changes=_queue.c.changes + 1),
            {'keys': self._dialect.keys(names)})

    def _create_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        self._dialect.insert_new(
            tx.connection, _queue, {'name': names}, space=self._namespace,
            changes=0, goes_on=0)

    # -- read

    def get(self, task: str) -> tuple[task_rows.Task, Running | None]:
        """Return a task, and the claim of its present command if it has one.

        :raises UnknownTask: No task of the group has this id.
        """
        return self._database.read(
            lambda connection: read(connection, self._namespace, task))

    def page(self, *, status: Status | None, type_: str | None,
             queue: str | None, limit: int,
             after: str | None) -> list[task_rows.Task]:
        """Return tasks in the order in which they were submitted.

        :param after: Id of a task; return only later ones.
        :raises UnknownTask: No task has the id *after*.
        """
        conditions = [_task.c.space == self._namespace]
        if status is not None:
            conditions.append(_task.c.status == status)
        if type_ is not None:
            conditions.append(_task.c.type == type_)
        if queue is not None:
            conditions.append(_task.c.queue == queue)

        def work(connection: sa.Connection) -> list[task_rows.Task]:
            if after is not None:
                created = connection.scalar(sa.select(_task.c.created).where(
                    _task.c.space == self._namespace, _task.c.id == after))
                if created is None:
                    raise unknown(self._namespace, after)
                conditions.append(sa.or_(
                    _task.c.created > created, sa.and_(
                        _task.c.created == created, _task.c.id > after)))
            return [task_rows.Task(row) for row in connection.execute(
                sa.select(_task).where(*conditions)
                .order_by(_task.c.created, _task.c.id).limit(limit))]
        return self._database.read(work)

    def queues(self, name: str | None = None) -> list[QueueRow]:
        """Return the ordered queues by name.

        :raises UnknownTask: No queue has the name *name*.
        """
        waiting = sa.select(sa.func.count()).where(
            _task.c.space == self._namespace, _task.c.queue == _queue.c.name,
            _task.c.status == Status.WAITING).scalar_subquery()
        query = sa.select(
            _queue, waiting.label('waiting'),
            _task_at_head.c.status.label('head_status')).outerjoin(
                _task_at_head, _task_at_head.c.id == _queue.c.head).where(
                    _queue.c.space == self._namespace).order_by(_queue.c.name)
        if name is not None:
            query = query.where(_queue.c.name == name)
        rows = self._database.read(
            lambda connection: connection.execute(query).all())
        if name is not None and not rows:
            raise self._unknown_queue(name)
        return [QueueRow(row.name, row.head, row.head_status, row.waiting,
                         bool(row.goes_on), row.halted, row.halted_why,
                         row.halted_by)
                for row in rows]

    # -- steer

    def cancel(self, task: str, by: str) -> Status:
        """Cancel a task, and return its status.

        :param by: Who asks, and why.
        :raises UnknownTask: No task of the group has this id.
        :raises InvalidTask: The task has ended.
        """
        def work(tx: Transaction) -> Status:
            # In the order in which a claim locks the rows.
            waits = tx.connection.execute(sa.select(_ready.c.task).where(
                _ready.c.task == task).with_for_update()).one_or_none()
            found = self._locked(tx, task)
            position = found.position
            if position.status in workflow.ENDED:
                raise exceptions.InvalidTask(
                    f'task {task!r} has ended: it {_past(position.status)}; '
                    'nothing is left to cancel')
            queued = (waits is None and position.status is Status.WAITING)
            tx.connection.execute(sa.update(_task).where(
                _task.c.id == task).values(
                    cancelled_by=by[:tables.LONGEST_REASON]))
            following = workflow.cancel(
                found.definition, position,
                started=waits is None and not queued)
            if following is None and not position.back and (
                    self._forgo_retry(tx, found)):
                following = workflow.roll_back(
                    found.definition, position, position.step, True)
            if following is None:
                return position.status
            if waits is not None:
                tx.connection.execute(
                    sa.delete(_ready).where(_ready.c.task == task))
            self._move(tx, found, following)
            return following.status
        return self._run(work)

    def _forgo_retry(self, tx: Transaction, task: task_rows.Task) -> bool:
        """End the claim of a command that waits for a retry. Return whether it
        did.
        """
        job = COMMAND_PREFIX + task.action.name
        number = self._numbers.within(tx.connection, {job})[job]
        lease = tx.connection.scalar(sa.select(_claim.c.lease).where(
            _claim.c.job == number, _claim.c.object == task.row.id,
            _claim.c.state == State.RETRY))
        if lease is None:
            return False
        ended = tx.changed(tx.sql.end[State.CANCELLED].change, {
            'of_job': number, 'keys': self._dialect.keys([task.row.id]),
            'stands_in': lease})
        tx.leave(lease, len(ended))
        return bool(ended)

    def retry(self, task: str, back: bool | None) -> Status:
        """Let a task go on, and return its status.

        :param back: See :func:`distperiodic.core.workflow.retry`.
        :raises UnknownTask: No task of the group has this id.
        :raises InvalidTask: The task cannot go on from where it is.
        """
        def work(tx: Transaction) -> Status:
            found = self._locked(tx, task)
            before = found.position
            following = workflow.retry(found.definition, before, back)
            if following is None:
                raise exceptions.InvalidTask(
                    f'task {task!r} cannot be retried: it '
                    f'{_past(before.status)}; only a task that is stuck, or '
                    'has failed or was cancelled, can be')
            found.records.pop(task_rows.record_key(following), None)
            if not following.back:
                # Keep the records of the steps that do not run again.
                kept = {task_rows.record_key(following._replace(step=step))
                        for step in range(following.step)}
                found.records = {name: record for name, record
                                 in found.records.items() if name in kept}
                tx.connection.execute(sa.update(_task).where(
                    _task.c.id == task).values(
                        cancelled_by=None, ended=None))
            self._move(tx, found, following, '')
            return following.status
        return self._run(work)

    def resume(self, queue: str) -> bool:
        """Let a halted queue go on. Return whether it was halted.

        :raises UnknownTask: No queue has this name.
        """
        return self._set_queue(queue, halted=None, halted_why=None,
                               halted_by=None)

    def halt(self, queue: str, why: str) -> bool:
        """Halt a queue after its present task. Return whether it was not.

        :raises UnknownTask: No queue has this name.
        """
        return self._set_queue(
            queue, halted=self._dialect.now,
            halted_why=why[:tables.LONGEST_REASON], halted_by=None)

    def set_goes_on(self, queue: str, goes_on: bool) -> None:
        """Set whether a queue goes on after a task that failed. The queue is
        created if it is new.
        """
        def work(tx: Transaction) -> None:
            self._lock_queues(tx, [queue])
            tx.connection.execute(sa.update(_queue).where(
                _queue.c.space == self._namespace, _queue.c.name == queue
            ).values(goes_on=int(goes_on)))
        self._run(work)

    def _hold(self, tx: Transaction, head: str | None) -> bool:
        """Keep the head of a queue from starting. Return whether it had not
        started.
        """
        waits = head is not None and tx.connection.execute(
            sa.select(_ready.c.task).where(
                _ready.c.task == head, _ready.c.starts == 1
            ).with_for_update()).one_or_none() is not None
        if waits:
            tx.connection.execute(sa.delete(_ready).where(
                _ready.c.task == head))
        return waits

    def _set_queue(self, name: str, **values: Any) -> bool:
        def work(tx: Transaction) -> bool:
            ours = (_queue.c.space == self._namespace, _queue.c.name == name)
            row = tx.connection.execute(sa.select(_queue).where(
                *ours).with_for_update()).one_or_none()
            if row is None:
                raise self._unknown_queue(name)
            halts = values['halted'] is not None
            if (row.halted is not None) is halts:
                return False
            head = row.head
            if halts and self._hold(tx, head):
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

    def _move(self, tx: Transaction, task: task_rows.Task,
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

    def _locked(self, tx: Transaction, task: str) -> task_rows.Task:
        found = task_rows.locked(tx, [task]).get(task)
        if found is None or found.row.space != self._namespace:
            raise unknown(self._namespace, task)
        return found

    def _unknown_queue(self, name: str) -> exceptions.UnknownTask:
        return exceptions.UnknownTask(
            f'group {self._namespace!r} has no queue {name[:100]!r} in this '
            'database; to list them: distperiodic queue list')

    def _run(self, work: Callable[[Transaction], T]) -> T:
        return self._database.write(lambda connection: work(Transaction(
            connection, self._dialect, self._sql)))


def read(connection: sa.Connection, namespace: str, task: str
         ) -> tuple[task_rows.Task, Running | None]:
    """Return a task, and the claim of its present command if it has one.

    :raises UnknownTask: No task of the group has this id.
    """
    row = connection.execute(sa.select(_task).where(
        _task.c.space == namespace, _task.c.id == task)).one_or_none()
    if row is None:
        raise unknown(namespace, task)
    found = task_rows.Task(row)
    if not found.position.active:
        return found, None
    claim = connection.execute(
        sa.select(_claim.c.state, _claim.c.attempt, _claim.c.worker,
                  _lease.c.holder, _lease.c.made, _lease.c.until)
        .join(_lease, _lease.c.id == _claim.c.lease)
        .join(_job, _job.c.id == _claim.c.job)
        .where(_claim.c.object == task, _job.c.space == namespace,
               _job.c.kind == tables.COMMAND,
               _job.c.name == found.action.name)).one_or_none()
    if claim is None:
        return found, None
    return found, Running(
        claim.state, claim.attempt, claim.worker, claim.holder,
        claim.made if claim.state is State.RUNNING else None, claim.until)


def task_of(found: task_rows.Task, running: Running | None) -> Task:
    """Return a task as a program sees it.

    :param running: The claim of its present command. None means that it has
        none, or that it is unknown.
    """
    row, position = found.row, found.position
    live = None
    if running is not None and running.state is State.RUNNING:
        live = task_rows.record_key(position)
    steps = []
    for index, step in enumerate(found.definition):
        halves: dict[bool, Command | None] = {True: None}
        for back, action in ((False, step.normal), (True, step.rollback)):
            if action is None:
                continue
            name = task_rows.record_key(
                position._replace(step=index, back=back))
            record = found.records.get(name)
            if name == live and running is not None:
                record = {**(record or {}), 'code': 2,
                          'attempts': running.attempt,
                          'worker': running.worker or ''}
                record.setdefault('started', running.granted)
            halves[back] = command_of(action, record, not back)
        normal = halves[False]
        assert normal is not None
        steps.append(Step(normal, halves[True]))
    created = moment(row.created)
    assert created is not None
    return Task(
        row.id, row.type, row.key, position.status, row.message or None,
        position.cursor, row.queue, row.priority, found.parameters, created,
        moment(row.due), moment(row.started), moment(row.ended),
        tuple(steps))


def unknown(namespace: str, task: str) -> exceptions.UnknownTask:
    """Return the error for the id of a task that does not exist."""
    return exceptions.UnknownTask(
        f'group {namespace!r} has no task {task[:100]!r} in this database; '
        'to list them: distperiodic task list')


def _past(status: Status) -> str:
    return {Status.WAITING: 'waits', Status.RUNNING: 'is running',
            Status.ROLLING_BACK: 'is rolling back', Status.STUCK: 'is stuck',
            Status.CANCELLED: 'was cancelled'}.get(status, str(status))


def _digest(task: NewTask) -> str | None:
    """Return the digest of what a task with a key was submitted with."""
    if task.key is None:
        return None
    return hashlib.sha256(
        f'{task.type}\0{task.queue}\0{task.parameters}'.encode()).hexdigest()


def _check_same(task: NewTask, row: Any) -> None:
    if row.id != task.id and row.digest != _digest(task):
        raise exceptions.InvalidTask(
            f'key {task.key!r} belongs to task {row.id!r}, of type '
            f'{row.type!r}, which was submitted with another type, queue or '
            'parameters; choose another key')


_texts: dict[workflow.Definition, str] = {}


def _definition_text(definition: workflow.Definition) -> str:
    """Return the JSON text of a workflow."""
    text = _texts.get(definition)
    if text is None:
        if len(_texts) > 1000:
            _texts.clear()
        text = _texts[definition] = json.dumps(workflow.as_data(definition))
    return text
