# SPDX-License-Identifier: Apache-2.0
"""Rows of tasks, and the changes to these rows when a task advances.

After each transaction, exactly one of these conditions is true of a task: the
task has ended or is stuck; it waits in its queue and is not the head; its next
step has a row in the table of ready steps; or its next step is claimed. So
nothing needs repair after a crash at any moment.
"""

import functools
import json
from collections.abc import Container
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.jobs import Commands
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import definitions
from distperiodic.core import trace_context
from distperiodic.core import workflow
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.telemetry import QueueHalted
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status

_task = tables.task
_ready = tables.ready
_queue = tables.queue


#: Key of the record that concerns the whole task, and not one command.
WHOLE = ''
#: End of the keys of records of rollbacks.
_ROLLBACK = 'r'


def first_records(trace: str | None) -> str:
    """Return the JSON text of the records of a new task.

    :param trace: Trace context of the submitter's span. None means that it had
        none.
    """
    return '{}' if trace is None else json.dumps({WHOLE: {'trace': trace}})


def has_no_record(task: Any) -> sa.ColumnElement[bool]:
    """Return the condition that no command of a task has a record.

    :param task: Table of the tasks, or an alias.
    """
    return sa.or_(task.c.records == first_records(None), task.c.records.like(
        first_records('_' * trace_context.LENGTH)))


class TaskRow:
    """Row of a task, with its JSON columns decoded."""

    __slots__ = ('_changed', '_parameters', 'definition', 'position',
                 'records', 'row')

    def __init__(self, row: Any):
        self.row = row
        self.definition = _definition(row.definition)
        #: Records of the commands, by step and direction; see :meth:`record`.
        #: The record with the key :data:`WHOLE` concerns the whole task.
        self.records: dict[str, dict[str, Any]] = json.loads(row.records)
        self.position = Position(
            row.status, row.cursor, row.step, bool(row.back))
        self._parameters: dict[str, Any] | None = None
        self._changed = False

    @property
    def parameters(self) -> dict[str, Any]:
        """Values that the steps share. Do not change them."""
        if self._parameters is None:
            self._parameters = json.loads(self.row.parameters)
        return self._parameters

    def merge(self, result: Mapping[str, Any]) -> None:
        """Merge the result of the current command into the parameters.

        The record of the command keeps the values that the result replaces, so
        that :meth:`forget` can restore them.
        """
        old = self.parameters
        self.record()['replaced'] = {
            name: [old[name]] if name in old else []
            for name, value in result.items()
            if name not in old or old[name] != value}
        self._parameters = {**old, **result}
        self._changed = True

    def forget(self, first: int) -> None:
        """Forget the results and records of commands that run again.

        Forget all rollbacks, and the normal commands of the steps from *first*
        on. The parameters become those with which the normal command of step
        *first* ran.
        """
        def last_first(name: str) -> tuple[int, int]:
            # The rollbacks ran after the normal commands, in reverse order.
            step = int(name.removesuffix(_ROLLBACK))
            return (0, step) if name.endswith(_ROLLBACK) else (1, -step)
        gone = [name for name in self.records if name != WHOLE and (
            name.endswith(_ROLLBACK) or int(name) >= first)]
        parameters = dict(self.parameters)
        for name in sorted(gone, key=last_first):
            replaced = self.records.pop(name).get('replaced', {})
            for value, old in replaced.items():
                del parameters[value]
                if old:
                    parameters[value] = old[0]
        self._changed = self._changed or parameters != self.parameters
        self._parameters = parameters

    @property
    def changed_parameters(self) -> str | None:
        """JSON text of the parameters. None means that they are unchanged."""
        return json.dumps(self._parameters) if self._changed else None

    @property
    def action(self) -> workflow.Action:
        """Command that runs now, or will run next."""
        return workflow.action_at(self.definition, self.position)

    @property
    def failure(self) -> str:
        """Reason why the task is rolled back."""
        for step in range(self.position.cursor, -1, -1):
            record = self.records.get(str(step), {})
            if record.get('code') == workflow.CODES[Status.FAILED]:
                name = self.definition[step].normal.name
                return f'{name}: {record.get("message", "")}'
        return f'cancelled: {self.row.cancelled_by}'

    @property
    def restarts(self) -> int:
        """Number of times that an operator has restarted the task.

        A restart lets the task run forward again after steps were rolled back.
        """
        return int(self.records.get(WHOLE, {}).get('restarts', 0))

    @property
    def trace(self) -> str | None:
        """Trace context of the submitter's span. None means that it had none.
        """
        return trace_context.parse_trace(
            self.records.get(WHOLE, {}).get('trace'))

    def record(self) -> dict[str, Any]:
        """Return the record of the current command, which may be changed.

        The keys of the record are ``code``, ``message``, ``attempts`` (all
        runs that are over, including the lost ones), ``failures``, ``losses``,
        ``started``, ``ended`` and ``worker`` (the process of the last run). A
        key is missing if it has no value yet. Only ``failures`` and ``losses``
        decide whether the command runs again. ``replaced`` has the parameters
        that the result of the command has replaced: for each name, a list of
        the old value, which is empty if there was none.
        """
        return self.records.setdefault(record_key(self.position), {})


# Cache the result: thousands of tasks may have the same workflow.
@functools.lru_cache(maxsize=200)
def _definition(text: str) -> workflow.Definition:
    return definitions.parse_definition(json.loads(text))


def record_key(position: Position) -> str:
    """Return the key of a command among the records of a task."""
    return f'{position.step}{_ROLLBACK if position.back else ""}'


def locked(tx: Transaction, ids: Sequence[str]) -> dict[str, TaskRow]:
    """Lock the rows of tasks, and return the tasks by id."""
    return {row.id: TaskRow(row) for row in tx.connection.execute(
        tx.dialect.once(_lock), {'keys': tx.dialect.keys(ids)})}


def _lock(dialect: Dialect) -> Any:
    return sa.select(_task).where(dialect.among(_task.c.id)).order_by(
        _task.c.id).with_for_update()


class Ready(NamedTuple):
    """A step that becomes ready."""

    task: str
    job: str
    precedence: int
    due: int
    delayed: int
    after: int
    move: int
    starts: int


class Moves:
    """Changes of the positions of tasks, which are written together.

    :param now: Time of the store's clock, in microseconds since the epoch.
    """

    def __init__(self, tx: Transaction, numbers: Numbers | Commands,
                 namespace: str, now: int):
        self._tx = tx
        self._numbers = numbers
        self._namespace = namespace
        self._now = now
        #: Changed columns, by task.
        self._updates: dict[str, dict[str, Any]] = {}
        self._ready: dict[str, Ready] = {}
        #: Tasks whose next step becomes ready. Their rows are locked.
        self._tasks: dict[str, TaskRow] = {}
        #: Queues in which a task has ended, each with the id of this task, and
        #: True if the task failed.
        self._left: dict[str, tuple[str, bool]] = {}
        #: Queues in which a task waits again.
        self._chosen: set[str] = set()
        #: Queues that these changes have halted.
        self.halted: list[QueueHalted] = []

    def save(self, task: TaskRow, message: str | None = None) -> None:
        """Save the records of a task; its position does not change."""
        self._update(task, task.position, message, task.row.move)

    def move(self, task: TaskRow, position: Position, *, after: int = 0,
             message: str | None = None) -> None:
        """Move a task to *position*.

        :param after: Tick of the command that has ended; 0 if no command has
            ended.
        :param message: Error of the task. None keeps the old error.
        """
        move = task.row.move + 1
        self._update(task, position, message, move)
        task.position = position
        if position.status is Status.WAITING and task.row.queue is not None:
            self._chosen.add(task.row.queue)
        elif position.active:
            self.make_ready(task, after, move)
        elif position.status in workflow.ENDED and task.row.queue is not None:
            self._left[task.row.queue] = (
                task.row.id, position.status is Status.FAILED)

    def make_ready(self, task: TaskRow, after: int, move: int) -> None:
        """Make the current command of a task ready.

        The caller has locked the row of the task.
        """
        self._tasks[task.row.id] = task
        if task.position.status is Status.WAITING:
            self.start(task.row.id, task.action, task.row.priority,
                       task.row.due, move)
        else:
            self._ready[task.row.id] = Ready(
                task.row.id, COMMAND_PREFIX + task.action.name,
                -task.row.priority, self._now, 0, after, move, 0)

    def start(self, task: str, action: workflow.Action, priority: int,
              due: int | None, move: int = 0) -> None:
        """Make the first command of a task ready.

        :param due: Earliest instant at which the command may start. None means
            at once.
        """
        delayed = due is not None and due > self._now
        self._ready[task] = Ready(
            task, COMMAND_PREFIX + action.name, -priority,
            due if due is not None and delayed else self._now, int(delayed),
            0, move, 1)

    def ready(self, jobs: Container[str]) -> list[tuple[Ready, TaskRow]]:
        """Return the steps of *jobs* that become ready now, with their tasks.

        Call :meth:`turn_queues` first.
        """
        return [(one, self._tasks[one.task]) for one in self._ready.values()
                if one.job in jobs and not one.delayed
                and one.task in self._tasks]

    @property
    def unclaimed(self) -> set[str]:
        """Tasks whose next step becomes ready now and was not claimed.

        Call :meth:`turn_queues` first.
        """
        return {one.task for one in self._ready.values() if not one.delayed}

    def begin(self, task: TaskRow) -> None:
        """Record that the ready step of a task is claimed."""
        del self._ready[task.row.id]
        if task.position.status is not Status.WAITING:
            return
        task.position = task.position._replace(status=Status.RUNNING)
        self._update(task, task.position, None, task.row.move)
        if task.row.started is None:
            self._updates[task.row.id]['started'] = self._now

    def _update(self, task: TaskRow, position: Position, message: str | None,
                move: int) -> None:
        ended = position.status in workflow.ENDED
        self._updates[task.row.id] = {
            'id': task.row.id, 'status': position.status,
            'cursor': position.cursor, 'step': position.step,
            'back': int(position.back), 'move': move, 'message': message,
            'started': None, 'ended': self._now if ended else None,
            'parameters': task.changed_parameters,
            'records': json.dumps(task.records)}

    def write(self) -> None:
        """Write all changes."""
        if self._updates:
            # Write the rows in the order in which they were locked.
            rows = [self._updates[key] for key in sorted(self._updates)]
            self._tx.dialect.update_rows(self._tx.connection, _task, {
                name: [row[name] for row in rows] for name in rows[0]},
                keeps=('message', 'started', 'parameters'))
        # Choose heads after the new statuses are written: the status in the
        # row of a task decides whether the task waits in its queue.
        self.turn_queues()
        if self._ready:
            insert_ready(self._tx, self._numbers, list(self._ready.values()))

    def turn_queues(self) -> None:
        """Choose the next heads of the queues whose heads have ended.

        :meth:`write` also does this. Call this method before :meth:`write`
        only if none of the tasks that advance was waiting: changes that are
        not written yet have no effect here.
        """
        for name in sorted(self._left.keys() | self._chosen):
            self.choose_head(name, *self._left.get(name, ()),
                             again=name in self._chosen)
        self._left.clear()
        self._chosen.clear()

    def choose_head(self, name: str, ended: str | None = None,
                    failed: bool = False, *, again: bool = False) -> None:
        """Let the next task of a queue run, unless the queue is halted.

        :param ended: Task that has ended, and leaves the queue.
        :param failed: True if that task failed. The queue then halts, unless
            it is set to continue after failures.
        :param again: True if a task waits again. If the head has not started,
            a waiting task that was submitted earlier then replaces the head.
        """
        connection = self._tx.connection
        ours = {'of_space': self._namespace, 'of_queue': name}
        # Lock the queue first, in a separate statement: only a later statement
        # sees all tasks that were submitted before the lock was acquired.
        row = connection.execute(_LOCK_QUEUE, ours).one()
        leaves = row.head is not None and row.head == ended
        stands = row.head is not None and not leaves
        if stands and not again:
            return
        halts = leaves and failed and not row.goes_on
        following = None
        goes_on = row.halted is None and not halts
        if leaves and goes_on and self._tx.dialect.writes_in_with:
            self._begin_head(connection.execute(
                self._tx.dialect.once(_turn), ours).one_or_none())
            return
        if goes_on:
            # Lock the task as well: otherwise another transaction could cancel
            # it in the meantime.
            following = connection.execute(_LOCK_NEXT, ours).one_or_none()
        if following is None:
            if not leaves:
                return
        elif stands and (
                following.id == row.head or not hold(self._tx, row.head)):
            return
        if halts and ended is not None:
            self.halted.append(QueueHalted(name, ended))
        halted, why, by = (self._now, 'a task failed', ended) if halts else (
            row.halted, row.halted_why, row.halted_by)
        connection.execute(_SET_HEAD, {
            **ours, 'new_head': None if following is None else following.id,
            'new_halted': halted, 'new_halted_why': why, 'new_halted_by': by})
        self._begin_head(following)

    def _begin_head(self, row: Any) -> None:
        """Make the first command of the new head of a queue ready.

        :param row: Row of the task. None means that the queue has no head.
        """
        if row is not None:
            self.make_ready(TaskRow(row), 0, row.move)


def hold(tx: Transaction, head: str) -> bool:
    """Prevent the head of a queue from starting.

    :returns: True if the head had not started.
    """
    waits = tx.connection.execute(
        sa.select(_ready.c.task).where(
            _ready.c.task == head, _ready.c.starts == 1
        ).with_for_update()).one_or_none() is not None
    if waits:
        tx.connection.execute(sa.delete(_ready).where(
            _ready.c.task == head))
    return waits


_OF_QUEUE = (_queue.c.space == sa.bindparam('of_space'),
             _queue.c.name == sa.bindparam('of_queue'))
# A submission in a caller's transaction locks the row only against deletion.
# With key_share, PostgreSQL does not wait for such a lock. MySQL has no lock
# of this kind, and waits.
_LOCK_QUEUE = sa.select(_queue).where(*_OF_QUEUE).with_for_update(
    key_share=True)
_LOCK_NEXT = sa.select(_task).where(
    _task.c.space == sa.bindparam('of_space'),
    _task.c.queue == sa.bindparam('of_queue'),
    _task.c.status == Status.WAITING).order_by(
        _task.c.created, _task.c.id).limit(1).with_for_update()
_SET_HEAD = sa.update(_queue).where(*_OF_QUEUE).values(
    changes=_queue.c.changes + 1, **{
        name: sa.bindparam(f'new_{name}', type_=_queue.c[name].type)
        for name in ('head', 'halted', 'halted_why', 'halted_by')})


def _turn(_: Dialect) -> Any:
    """Build the statement that makes the next task the head of its queue.

    The statement locks and returns this task. If no task waits, the queue then
    has no head, and the statement returns no row. Use this statement only with
    a database that :attr:`~.Dialect.writes_in_with`.
    """
    following = _LOCK_NEXT.cte('following')
    turned = sa.update(_queue).where(*_OF_QUEUE).values(
        head=sa.select(following.c.id).scalar_subquery(),
        changes=_queue.c.changes + 1)
    return sa.select(following).add_cte(turned.cte('turned'))


def insert_ready(tx: Transaction, numbers: Numbers | Commands,
                 rows: Sequence[Ready]) -> None:
    """Insert rows of steps that are ready."""
    found: Mapping[str, int] = numbers.within(
        tx.connection, {row.job for row in rows})
    tx.dialect.insert_new(tx.connection, _ready, {
        'task': [row.task for row in rows],
        'job': [found[row.job] for row in rows],
        **{name: [getattr(row, name) for row in rows] for name in (
            'precedence', 'due', 'delayed', 'after', 'move', 'starts')}})
