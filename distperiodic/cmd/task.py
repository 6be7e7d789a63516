# SPDX-License-Identifier: Apache-2.0
"""``distperiodic task list|cancel|retry``: list tasks, and control them."""

import abc
import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import bulk
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core.task import TaskFilter
from distperiodic.core.workflow import Status
from distperiodic.operator.lists import task_list

if TYPE_CHECKING:
    from distperiodic.operator.bulk import BulkResult


class TaskList(task_list.Tasks, display.List):
    for_people = ('table',)


class _TasksAction(RecordedCommand):
    """Base class of commands on one task, or on many."""

    #: Verb of the command.
    verb = ''
    #: True if the command may select tasks without a status.
    any_status = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            'tasks', metavar='ID', nargs='*', help='id of a task')
        self.add_status(task_list.add_conditions(parser, self.verb))
        bulk.add_dry_run(parser)

    def add_status(
            self, group: 'argparse._MutuallyExclusiveGroup') -> None:
        """Add further options that select tasks by their status."""

    def act(self, session: Session) -> int:
        parsed = session.parsed
        which = self._which(session)
        if parsed.dry_run:
            self._preview(session, which)
            return configured.FINE
        if len(parsed.tasks) == 1:
            self.change_one(session, parsed.tasks[0])
            return configured.FINE
        result = self.change(session, which)
        if not result.matched:
            self._check(session)
            session.print(f'no such task can be {self.past}; nothing was '
                          'changed')
            return configured.FINE
        return bulk.report(session, self.past, result)

    @property
    def past(self) -> str:
        """Past participle of the verb."""
        return {'cancel': 'cancelled', 'retry': 'retried'}[self.verb]

    def _which(self, session: Session) -> TaskFilter:
        """Return the filter that the command line gives.

        :raises ConfigError: it gives none, or ids as well as a filter.
        """
        parsed = session.parsed
        given = [one for one in (parsed.status, parsed.type, parsed.queue)
                 if one is not None]
        if bool(parsed.tasks) is bool(given) or (
                given and parsed.status is None and not self.any_status):
            raise exceptions.ConfigError(
                'give either the ids of tasks, or '
                + ('--status, --type or --queue' if self.any_status else
                   '--status or --all-stuck, which --type and --queue may '
                   'limit')
                + '; to list tasks: distperiodic task list')
        if parsed.tasks:
            return TaskFilter(ids=parsed.tasks)
        return self.selected(parsed.status, parsed.type, parsed.queue)

    def _check(self, session: Session) -> None:
        """Raise an error if a task or the queue that the user named does not
        exist.
        """
        parsed = session.parsed
        if parsed.queue is not None:
            session.client.queues(parsed.queue)
        for task in parsed.tasks:
            session.client.get(task)

    def _preview(self, session: Session, which: TaskFilter) -> None:
        from distperiodic.operator import bulk_tasks
        if which.ids is not None:
            which = which._replace(statuses=self.possible())
        number = bulk_tasks.number(session.store, which)
        if not number:
            self._check(session)
        bulk.preview(
            session, self.verb, 'task', number, (
                f'{task.id} {task.type}: {task.status.replace("_", " ")}'
                + (f': {configured.one_line(task.message)}'
                   if task.message else '')
                for task in bulk_tasks.first(
                    session.store, which, bulk.SHOWN)))

    @abc.abstractmethod
    def possible(self) -> Sequence[Status]:
        """Return the statuses of the tasks that the command can change."""

    @abc.abstractmethod
    def selected(self, status: str | None, type_: str | None,
                 queue: str | None) -> TaskFilter:
        """Return the filter of the tasks to change.

        :raises InvalidTask: the command cannot change such tasks.
        """

    @abc.abstractmethod
    def change(self, session: Session, which: TaskFilter) -> 'BulkResult':
        """Change the tasks that *which* selects."""

    @abc.abstractmethod
    def change_one(self, session: Session, task: str) -> None:
        """Change a task, and print its new status."""


class TaskCancel(_TasksAction):
    """Cancel tasks, and roll back the steps that they have done.

    A task that has not started is cancelled at once. A task that runs is
    rolled back after its current step, or at once if this step does not run
    now. If the rollback of a step is stuck, it is given up, and the steps
    before that step are rolled back. Exit code 1: a task was not cancelled.
    """

    verb = 'cancel'
    any_status = True

    def possible(self) -> Sequence[Status]:
        from distperiodic.operator import bulk_tasks
        return bulk_tasks.CANCELLABLE

    def selected(self, status: str | None, type_: str | None,
                 queue: str | None) -> TaskFilter:
        from distperiodic.operator import bulk_tasks
        return bulk_tasks.to_cancel(status, type_, queue)

    def change(self, session: Session, which: TaskFilter) -> 'BulkResult':
        from distperiodic.operator import bulk_tasks
        return bulk_tasks.cancel(
            session.store, session.client, which, session.actor)

    def change_one(self, session: Session, task: str) -> None:
        with session.recorded(task) as record:
            status = session.client.cancel(task, session.actor.why)
            record.outcome = f'it is {status.replace("_", " ")}'
        session.print(f'{_CANCELLED[status]} {task}{_LATER[status]}')


_CANCELLED = {
    Status.CANCELLED: 'cancelled', Status.RUNNING: 'cancelling',
    Status.WAITING: 'cancelling', Status.ROLLING_BACK: 'cancelling'}
_LATER = {
    Status.CANCELLED: '',
    Status.RUNNING: '; it is rolled back after its current step',
    Status.WAITING: '; it is rolled back after its first step',
    Status.ROLLING_BACK: '; it is rolling back'}


class TaskRetry(_TasksAction):
    """Continue tasks that are stuck, have failed or were cancelled.

    A task that has failed or was cancelled starts again from its first step.
    A stuck task continues in the direction in which it is stuck, unless an
    option gives the other direction. Exit code 1: a task was not retried.
    """

    verb = 'retry'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            '--forward', dest='back', action='store_const', const=False,
            help='run the stuck step again, and then the steps after it')
        which.add_argument(
            '--back', dest='back', action='store_const', const=True,
            help='roll back the stuck step, and then the steps before it')

    def add_status(
            self, group: 'argparse._MutuallyExclusiveGroup') -> None:
        group.add_argument(
            '--all-stuck', dest='status', action='store_const',
            const=Status.STUCK.value, help='the same as --stuck')

    def possible(self) -> Sequence[Status]:
        from distperiodic.operator import bulk_tasks
        return bulk_tasks.RETRIABLE

    def selected(self, status: str | None, type_: str | None,
                 queue: str | None) -> TaskFilter:
        from distperiodic.operator import bulk_tasks
        assert status is not None
        return bulk_tasks.to_retry(status, type_, queue)

    def change(self, session: Session, which: TaskFilter) -> 'BulkResult':
        from distperiodic.operator import bulk_tasks
        return bulk_tasks.retry(session.store, session.client, which,
                                session.actor, session.parsed.back)

    def change_one(self, session: Session, task: str) -> None:
        back = session.parsed.back
        with session.recorded(task, back=back) as record:
            status = session.client.retry(task, back)
            record.outcome = f'it is {status.replace("_", " ")}'
        session.print(f'retried {task}; it is {status.replace("_", " ")}')
