# SPDX-License-Identifier: Apache-2.0
"""The rows of new tasks and of their queues, in a transaction of the caller.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.dialect import Dialect
from distperiodic.adapters.sql.jobs import Commands
from distperiodic.adapters.sql.jobs import Numbers
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core.workflow import Status
from distperiodic.operator import new_task
from distperiodic.operator.new_task import NewTask

_queue = tables.queue
_task = tables.task


class TaskInsertion:
    """Insertion of the tasks of one group."""

    def __init__(self, dialect: Dialect, namespace: str):
        self._dialect = dialect
        self._namespace = namespace

    def insert(self, tx: Transaction, tasks: Sequence[NewTask],
               queues: Sequence[str], numbers: Numbers | Commands, now: int,
               repeated: bool = False) -> list[str]:
        """Insert tasks, and return their ids.

        If a task with the same key exists, the new task is not inserted, and
        the id of the existing task is returned.

        :param queues: Queues that may start with one of the tasks.
        :param now: Time of the submission, in microseconds of the store's
            clock.
        :param repeated: True if an earlier try may have been committed.
        :raises InvalidTask: A key belongs to a task with another type, queue
            or parameters.
        """
        connection = tx.connection
        keyed: dict[str, NewTask] = {}
        for task in tasks:
            if task.key is not None:
                new_task.check_alike(keyed.setdefault(task.key, task), task)
        written = self._existing(tx, _task.c.id, [
            task.id for task in tasks]) if repeated else {}
        new = [task for task in tasks if task.id not in written]
        if new:
            differ: dict[str, list[Any]] = {
                'id': [task.id for task in new],
                'type': [task.type for task in new],
                'key': [task.key for task in new],
                'queue': [task.queue for task in new],
                'priority': [task.priority for task in new],
                'due': [task.due for task in new],
                'definition': [new_task.definition_text(task.definition)
                               for task in new],
                'parameters': [task.parameters for task in new],
                'digest': [new_task.digest(task) for task in new],
                # The tasks of one call keep their order.
                'created': [now + index for index in range(len(new))],
            }
            # Send a value that is the same for all tasks only once: a workflow
            # may be long, and often all tasks have the same workflow.
            same = {name: values[0] for name, values in differ.items()
                    if name != 'id' and len(set(values)) == 1}
            self._dialect.insert_new(connection, _task, {
                name: values for name, values in differ.items()
                if name not in same
            }, **same, space=self._namespace, status=Status.WAITING,
                cursor=0, step=0, back=0, move=0, records='{}')
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

    def _existing(self, tx: Transaction, column: Any, values: Sequence[str],
                  *conditions: Any) -> dict[str, Any]:
        return {row[0]: row for row in tx.connection.execute(
            sa.select(column.label('found'), _task.c.id, _task.c.type,
                      _task.c.digest)
            .where(self._dialect.among(column), *conditions),
            {'keys': self._dialect.keys(values)})}

    def lock_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        """Lock the rows of queues, and create the missing rows."""
        lock = sa.update(_queue).where(
            _queue.c.space == self._namespace,
            self._dialect.among(_queue.c.name)).values(
                changes=_queue.c.changes + 1)
        keys = {'keys': self._dialect.keys(names)}
        found = 0
        # A scheduler may delete the row of an unused queue between the two
        # statements.
        while found < len(names):
            self.create_queues(tx, names)
            found = tx.connection.execute(lock, keys).rowcount

    def keep_queues(self, tx: Transaction, names: Sequence[str]) -> None:
        """Protect the rows of queues from deletion until the commit.

        Missing rows are created. Other submissions do not wait for this lock.
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
