# SPDX-License-Identifier: Apache-2.0
"""Rows of tasks, and the changes that a move of a task makes to them.

A task is always in exactly one of these conditions, which each transaction
preserves: it has ended or is stuck; it waits for its turn in its queue; its
next step has a row in the table of ready steps; or that step is claimed. So a
crash at any moment leaves nothing to repair.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialect import Dialect
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import workflow
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status

_task = tables.task
_ready = tables.ready
_queue = tables.queue


class Task:
    """A row of a task, with its JSON read."""

    __slots__ = ('definition', 'parameters', 'position', 'records', 'row')

    def __init__(self, row: Any):
        self.row = row
        self.definition = workflow.parse_definition(
            json.loads(row.definition))
        self.parameters: dict[str, Any] = json.loads(row.parameters)
        #: By step and direction: see :meth:`record`.
        self.records: dict[str, dict[str, Any]] = json.loads(row.records)
        self.position = Position(
            row.status, row.cursor, row.step, bool(row.back))

    @property
    def action(self) -> workflow.Action:
        """Command that runs, or is next."""
        return workflow.action_at(self.definition, self.position)

    def record(self) -> dict[str, Any]:
        """Return the record of the present command, which may be changed.

        Its keys are ``code``, ``message``, ``attempts``, ``failures``,
        ``losses``, ``started``, ``ended`` and ``worker`` (the holder of the
        last run); those that have no value yet are missing.
        """
        return self.records.setdefault(record_key(self.position), {})


def record_key(position: Position) -> str:
    """Return the key of a command among the records of a task."""
    return f'{position.step}{"r" if position.back else ""}'


def locked(tx: Transaction, ids: Sequence[str]) -> dict[str, Task]:
    """Lock the rows of tasks, and return the tasks by id."""
    return {row.id: Task(row) for row in tx.connection.execute(
        tx.dialect.once(_lock), {'keys': tx.dialect.keys(ids)})}


def _lock(dialect: Dialect) -> Any:
    return sa.select(_task).where(dialect.among(_task.c.id)).order_by(
        _task.c.id).with_for_update()


class _Ready(NamedTuple):
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
    """Changes of positions of tasks, to be written together.

    :param now: The store's clock, in microseconds since the epoch.
    """

    def __init__(self, tx: Transaction, numbers: Numbers, namespace: str,
                 now: int):
        self._tx = tx
        self._numbers = numbers
        self._namespace = namespace
        self._now = now
        self._updates: list[dict[str, Any]] = []
        self._ready: list[_Ready] = []
        #: Queues whose head has ended: the id of the head, and whether the
        #: queue halts unless it goes on.
        self._left: dict[str, tuple[str, bool]] = {}
        #: Queues in which a task waits again.
        self._chosen: set[str] = set()

    def save(self, task: Task, message: str | None = None) -> None:
        """Write what a task has recorded; its position does not change."""
        self._update(task, task.position, message, task.row.move)

    def move(self, task: Task, position: Position, *, after: int = 0,
             message: str | None = None) -> None:
        """Move a task to *position*.

        :param after: Tick of the command that has ended, if one has.
        :param message: Error of the task. None keeps the old one.
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

    def make_ready(self, task: Task, after: int, move: int) -> None:
        """Make the present command of a task ready."""
        if task.position.status is Status.WAITING:
            self.start(task.row.id, task.action, task.row.priority,
                       task.row.due, move)
        else:
            self._ready.append(_Ready(
                task.row.id, COMMAND_PREFIX + task.action.name,
                -task.row.priority, self._now, 0, after, move, 0))

    def start(self, task: str, action: workflow.Action, priority: int,
              due: int | None, move: int = 0) -> None:
        """Make the first command of a task ready.

        :param due: Earliest instant of the command. None means at once.
        """
        delayed = due is not None and due > self._now
        self._ready.append(_Ready(
            task, COMMAND_PREFIX + action.name, -priority,
            due if due is not None and delayed else self._now, int(delayed),
            0, move, 1))

    def _update(self, task: Task, position: Position, message: str | None,
                move: int) -> None:
        ended = position.status in workflow.ENDED
        self._updates.append({
            'of_task': task.row.id, 'new_status': position.status,
            'new_cursor': position.cursor, 'new_step': position.step,
            'new_back': int(position.back), 'new_move': move,
            'new_message': task.row.message if message is None else message,
            'new_ended': self._now if ended else None,
            'new_parameters': json.dumps(task.parameters),
            'new_records': json.dumps(task.records)})

    def write(self) -> None:
        """Write all changes."""
        connection = self._tx.connection
        if self._updates:
            connection.execute(_MOVE, self._updates)
        for name in sorted(self._left):
            self._leave_queue(name, *self._left[name])
        for name in sorted(self._chosen):
            self.choose_head(name)
        if self._ready:
            insert_ready(self._tx, self._numbers, self._ready)

    def choose_head(self, name: str) -> None:
        """Let the next task of a queue run, unless the queue is halted."""
        connection = self._tx.connection
        row = connection.execute(sa.select(_queue).where(
            *_named(self._namespace, name)).with_for_update()).one()
        if row.head is not None or row.halted is not None:
            return
        following = connection.execute(sa.select(_task).where(
            _task.c.space == self._namespace, _task.c.queue == name,
            _task.c.status == Status.WAITING).order_by(
                _task.c.created, _task.c.id).limit(1)).one_or_none()
        if following is None:
            return
        connection.execute(sa.update(_queue).where(
            *_named(self._namespace, name)).values(
                head=following.id, changes=_queue.c.changes + 1))
        self.make_ready(Task(following), 0, following.move)

    def _leave_queue(self, name: str, head: str, failed: bool) -> None:
        """Take *head* off a queue, and let the next task run.

        :param failed: Whether *head* failed, so that the queue halts unless
            it goes on after failures.
        """
        connection = self._tx.connection
        halts = sa.and_(sa.literal(failed), _queue.c.goes_on == 0)
        connection.execute(sa.update(_queue).where(
            *_named(self._namespace, name), _queue.c.head == head
        ).values(
            head=None, changes=_queue.c.changes + 1,
            halted=sa.case((halts, self._now), else_=_queue.c.halted),
            halted_why=sa.case(
                (halts, 'a task failed'), else_=_queue.c.halted_why),
            halted_by=sa.case((halts, head), else_=_queue.c.halted_by)))
        self.choose_head(name)


def _named(namespace: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _queue.c.space == namespace, _queue.c.name == name


_MOVE = sa.update(_task).where(_task.c.id == sa.bindparam('of_task')).values({
    name: sa.bindparam(f'new_{name}', type_=_task.c[name].type) for name in (
        'status', 'cursor', 'step', 'back', 'move', 'message', 'ended',
        'parameters', 'records')})


def insert_ready(tx: Transaction, numbers: Numbers,
                 rows: Sequence[_Ready]) -> None:
    """Insert rows of steps that are ready."""
    found: Mapping[str, int] = numbers.within(
        tx.connection, {row.job for row in rows})
    tx.dialect.insert_new(tx.connection, _ready, {
        'task': [row.task for row in rows],
        'job': [found[row.job] for row in rows],
        **{name: [getattr(row, name) for row in rows] for name in (
            'precedence', 'due', 'delayed', 'after', 'move', 'starts')}})
