# SPDX-License-Identifier: Apache-2.0
"""Planted bugs of tasks, to check that the oracle finds them.

The bugs are in the store. See :mod:`tests.simulation.bugs`.
"""

import itertools
import json
import types
from unittest import mock

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import task_rows
from distperiodic.adapters.sql.steps import SqlSteps
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import workflow
from distperiodic.core.workflow import Status
from tests.simulation.bugs import Bug

_task = tables.task


class _TaskBug(Bug):
    """A bug in the steps of tasks, or in their transitions."""

    given = types.MappingProxyType({'sql': True, 'tasks': True})

    def steps(self, kind):
        """Return the class of the steps, derived from the correct class."""
        moves = self.moves(task_rows.Moves)

        class Steps(kind):
            def _moves(self, tx, now):
                return moves(tx, self._numbers, self._namespace, now)
        return Steps

    def moves(self, kind):
        """Return the class of the transitions, derived from the correct class.
        """
        return kind

    def sql_store(self, kind):
        steps = self.steps(SqlSteps)

        class Store(kind):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                self._steps.__class__ = steps
        return Store


class _Undone(Exception):
    """This exception is raised to roll back a transaction."""


def _not_committed(database, call):
    """Return the answer of *call*, and roll back its transaction."""
    answers = []
    run = database.run

    def without_commit(work, begin, **options):
        def undone(begun):
            answers.append(work(begun))
            raise _Undone
        return run(undone, begin, **options)
    database.run = without_commit
    try:
        call()
    except _Undone:
        return answers[0]
    finally:
        del database.run


class MessageBeforeCommit(_TaskBug):
    """A worker begins the next step before the transaction is committed, and
    the commit fails.
    """

    def steps(self, kind):
        class Steps(kind):
            _calls = itertools.count()

            def advance(self, *arguments, **options):
                def call():
                    return super(Steps, self).advance(*arguments, **options)
                if options['proceed'] is None or next(self._calls) % 3:
                    return call()
                return _not_committed(self._database, call)
        return super().steps(Steps)


class AnswerBeforeCommit(_TaskBug):
    """A client receives the id of a task before the task is committed."""

    def task_store(self, kind):
        class Store(kind):
            _calls = itertools.count()

            def submit(self, tasks):
                def call():
                    return super(Store, self).submit(tasks)
                if next(self._calls) % 5:
                    return call()
                return _not_committed(self._database, call)
        return Store


#: Settings that make results late.
_LATE = types.MappingProxyType({
    **_TaskBug.given, 'faults': 4 * ('freeze long', 'cut from store'),
    'local': False, 'schedulers': 1, 'workers': 2})


class StaleFence(_TaskBug):
    """A result advances its task even if the fence of the result is old."""

    given = _LATE

    def steps(self, kind):
        class Steps(kind):
            def advance(self, ended, **options):
                answer = super().advance(ended, **options)

                def move(tx):
                    moves = self._moves(tx, self._now(tx))
                    tasks = task_rows.locked(
                        tx, sorted(ended.done.keys() - answer.done))
                    for task in tasks.values():
                        if task.position.active:
                            moves.move(task, workflow.advance(
                                task.definition, task.position,
                                workflow.CommandOutcome.DONE, False),
                                after=ended.lease.tick)
                    moves.write()
                self._transactions.write(move)
                return answer
        return super().steps(Steps)


class LateResult(_TaskBug):
    """The values in a result are stored although the result came too late."""

    given = _LATE

    def steps(self, kind):
        class Steps(kind):
            def advance(self, ended, **options):
                answer = super().advance(ended, **options)

                def add(connection):
                    for key in ended.done.keys() - answer.done:
                        found = connection.scalar(sa.select(
                            _task.c.parameters).where(_task.c.id == key))
                        connection.execute(sa.update(_task).where(
                            _task.c.id == key).values(parameters=json.dumps({
                                **json.loads(found),
                                **json.loads(ended.done[key] or '{}')})))
                self._database.write(add)
                return answer
        return super().steps(Steps)


class RollbackOrder(_TaskBug):
    """Steps are rolled back in the order in which they ran, not in the reverse
    order.
    """

    def moves(self, kind):
        class Moves(kind):
            def move(self, task, position, **options):
                if position.status is Status.ROLLING_BACK:
                    begin = 0
                    if task.position.back:
                        begin = task.position.step + 1
                    undone = [step for step in range(
                        begin, position.cursor + 1)
                        if task.definition[step].rollback is not None]
                    if undone:
                        position = position._replace(step=undone[0])
                super().move(task, position, **options)
        return Moves


class DoubleSubmit(_TaskBug):
    """Two tasks may have the same key."""

    def task_store(self, kind):
        class Store(kind):
            def submit(self, tasks):
                return super().submit([
                    one._replace(key=None) for one in tasks])
        return Store


class LeftTooSoon(_TaskBug):
    """A task leaves its queue when it fails, before it is rolled back."""

    def moves(self, kind):
        class Moves(kind):
            def move(self, task, position, **options):
                super().move(task, position, **options)
                if position.status is Status.ROLLING_BACK and task.row.queue:
                    self._left[task.row.queue] = task.row.id, False
        return Moves


class LastComesFirst(_TaskBug):
    """The newest task of a queue runs next."""

    def moves(self, kind):
        class Moves(kind):
            def choose_head(self, name, *ended, **options):
                newest = task_rows._LOCK_NEXT.order_by(None).order_by(
                    _task.c.created.desc())
                with mock.patch.object(task_rows, '_LOCK_NEXT', newest):
                    super().choose_head(name, *ended, **options)
        return Moves


class HaltIgnored(_TaskBug):
    """A queue continues after a failed task."""

    def moves(self, kind):
        class Moves(kind):
            def choose_head(self, name, ended=None, failed=False, **options):
                super().choose_head(name, ended, **options)
        return Moves


class NextStepForgotten(_TaskBug):
    """A crash between two transactions loses the next step of a task."""

    def moves(self, kind):
        calls = itertools.count()

        class Moves(kind):
            def write(self):
                if self._ready and next(calls) % 10 == 9:
                    self._ready.clear()
                super().write()
        return Moves


class LossesForgotten(_TaskBug):
    """A step runs again after each loss of its worker, even if it may run at
    most once.
    """

    def steps(self, kind):
        class Steps(kind):
            def lost(self, tx: Transaction, claims, lease, old, keys):
                return claims
        return super().steps(Steps)


BUGS = {
    'message before commit': MessageBeforeCommit(),
    'answer before commit': AnswerBeforeCommit(),
    'cursor moved by a stale fence': StaleFence(),
    'late result counted': LateResult(),
    'rollback order': RollbackOrder(),
    'double submit by key': DoubleSubmit(),
    'queue left too soon': LeftTooSoon(),
    'last comes first': LastComesFirst(),
    'halt ignored': HaltIgnored(),
    'next step forgotten': NextStepForgotten(),
    'losses of steps forgotten': LossesForgotten(),
}
