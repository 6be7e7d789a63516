# SPDX-License-Identifier: Apache-2.0
"""The rows of new tasks and of their queues, in a transaction of the caller.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.jobs import Commands
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.jobs import kind_and_name
from distperiodic.adapters.sql.statements import ClaimChange
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import new_task
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.new_task import NewTask
from distperiodic.core.workflow import Status

_job = tables.job
_queue = tables.queue
_ready = tables.ready
_task = tables.task

# Columns of a task that has not started.
_UNSTARTED = {'status': Status.WAITING, 'cursor': 0, 'step': 0, 'back': 0,
              'move': 0}


class TaskInsertion:
    """Insertion of the tasks of one group."""

    def __init__(self, dialect: Dialect, namespace: str):
        self._dialect = dialect
        self._namespace = namespace

    def insert_at_once(self, tx: Transaction, task: NewTask) -> bool:
        """Insert, with one statement, a task that is in no queue.

        :returns: False if nothing was inserted: the database has no such
            statement, a task with the same key exists, or the command of the
            first step has no row yet. In this case call :meth:`insert`.
        """
        if not self._dialect.writes_in_with:
            return False
        _, command = kind_and_name(
            COMMAND_PREFIX + task.definition[0].normal.name)
        return tx.connection.execute(self._dialect.once(_insert_at_once), {
            **{f'new_{name}': value
               for name, value in _columns(task).items()},
            'of_space': self._namespace, 'of_command': command,
        }).one_or_none() is not None

    def insert(self, tx: Transaction, tasks: Sequence[NewTask],
               queues: Sequence[str], numbers: Numbers | Commands, now: int,
               repeated: bool = False) -> list[str]:
        """Insert tasks, and return their ids.

        If a task with the same key exists, the new task is not inserted, and
        the id of the existing task is returned.

        :param queues: Queues whose next task may start at once. If such a
            queue has no head, a waiting task becomes its head.
        :param now: Time of the submission, in microseconds of the store's
            clock.
        :param repeated: True if an earlier try may have been committed.
        :raises InvalidTask: A key belongs to a task with another type, queue
            or parameters.
        """
        keyed: dict[str, NewTask] = {}
        for task in tasks:
            if task.key is not None:
                new_task.check_alike(keyed.setdefault(task.key, task), task)
        written = self._existing(tx, _task.c.id, [
            task.id for task in tasks]) if repeated else {}
        new = [task for task in tasks if task.id not in written]
        if new:
            self._insert_rows(tx, new, now)
        taken = {}
        if keyed:
            taken = self._existing(
                tx, _task.c.key, list(keyed), _task.c.space == self._namespace)
            for key, row in taken.items():
                new_task.check_same(keyed[key], row)
        ids = [task.id if task.key is None or task.key not in taken
               else taken[task.key].id for task in tasks]
        moves = task_rows.Moves(tx, numbers, self._namespace, now)
        inserted = set(ids)
        for task in new:
            if task.queue is None and task.id in inserted:
                moves.start(task.id, task.definition[0].normal,
                            task.priority, task.due)
        for name in queues:
            moves.choose_head(name)
        moves.write()
        return ids

    def _insert_rows(self, tx: Transaction, new: Sequence[NewTask],
                     now: int) -> None:
        """Insert tasks, except those whose key exists."""
        given = [_columns(task) for task in new]
        differ: dict[str, list[Any]] = {
            name: [columns[name] for columns in given] for name in given[0]}
        # The tasks of one call keep their order.
        differ['created'] = [now + index for index in range(len(new))]
        # If all tasks have the same value in a column, send the value only
        # once: workflows may be long, and often all tasks have the same
        # workflow.
        same = {name: values[0] for name, values in differ.items()
                if name != 'id' and len(set(values)) == 1}
        self._dialect.insert_new(tx.connection, _task, {
            name: values for name, values in differ.items()
            if name not in same
        }, **same, **_UNSTARTED, space=self._namespace)

    def _existing(self, tx: Transaction, column: Any, values: Sequence[str],
                  *conditions: Any) -> dict[str, Any]:
        return {row[0]: row for row in tx.connection.execute(
            sa.select(column.label('found'), _task.c.id, _task.c.type,
                      _task.c.digest)
            .where(self._dialect.among(column), *conditions),
            {'keys': self._dialect.keys(values)})}

    def lock_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        """Lock the rows of queues, and create the missing rows."""
        which = (_queue.c.space == self._namespace,
                 self._dialect.among(_queue.c.name))
        move = sa.update(_queue).where(*which).values(
            changes=_queue.c.changes + 1)
        lock = ClaimChange(
            move, move.returning(_queue.c.name),
            sa.select(_queue.c.name).where(*which).order_by(
                _queue.c.name).with_for_update())
        keys = {'keys': self._dialect.keys(names)}
        found = 0
        # A scheduler may delete the row of an unused queue between the two
        # statements.
        while found < len(names):
            self.create_queues(tx, names)
            found = len(tx.changed(lock, keys))

    def keep_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        """Protect the rows of queues from deletion until the commit.

        Missing rows are created. In PostgreSQL, other submissions and
        schedulers do not wait for this lock. In MySQL, they do.
        """
        keep = sa.select(_queue.c.name).where(
            _queue.c.space == self._namespace,
            self._dialect.among(_queue.c.name)).with_for_update(
                read=True, key_share=True)
        keys = {'keys': self._dialect.keys(names)}
        found = 0
        while found < len(names):
            self.create_queues(tx, names)
            found = len(tx.connection.execute(keep, keys).all())

    def create_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        """Create the missing rows of queues."""
        self._dialect.insert_new(
            tx.connection, _queue, {'name': names}, space=self._namespace,
            changes=0, goes_on=0)


def _columns(task: NewTask) -> dict[str, Any]:
    """Return the columns of a task that do not depend on the database."""
    return {
        'id': task.id, 'type': task.type, 'key': task.key,
        'queue': task.queue, 'priority': task.priority, 'due': task.due,
        'definition': new_task.definition_text(task.definition),
        'parameters': task.parameters, 'digest': new_task.digest(task),
        'records': task_rows.first_records(task.trace)}


def _insert_at_once(dialect: Dialect) -> Any:
    """Build the statement that inserts a task and its first ready step.

    If the command has no row, or the key exists, it inserts nothing.
    """
    command = sa.select(_job.c.id, dialect.now.label('now')).where(
        _job.c.space == sa.bindparam('of_space'),
        _job.c.kind == tables.COMMAND,
        _job.c.name == sa.bindparam('of_command')).cte('command')
    columns = {
        **{name: sa.bindparam(f'new_{name}', type_=_task.c[name].type)
           for name in ('id', 'type', 'key', 'queue', 'priority', 'due',
                        'definition', 'parameters', 'digest', 'records')},
        **{name: sa.literal(value, _task.c[name].type)
           for name, value in _UNSTARTED.items()},
        'space': sa.bindparam('of_space'), 'created': command.c.now}
    task = dialect.or_nothing(dialect.insert(_task).from_select(
        list(columns), sa.select(*columns.values()).select_from(command)
    )).returning(
        _task.c.id, _task.c.due, _task.c.priority).cte('task')
    delayed = task.c.due > command.c.now
    step = {
        'task': task.c.id, 'job': command.c.id,
        'precedence': -task.c.priority, 'delayed': sa.case(
            (delayed, 1), else_=0),
        'due': sa.case((delayed, task.c.due), else_=command.c.now),
        'after': sa.literal_column('0'), 'move': sa.literal_column('0'),
        'starts': sa.literal_column('1')}
    return dialect.insert(_ready).from_select(
        list(step), sa.select(*step.values()).select_from(
            task.join(command, sa.true()))).returning(_ready.c.task)
