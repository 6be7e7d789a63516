# SPDX-License-Identifier: Apache-2.0
"""``distperiodic task list|cancel|retry``: list tasks, and control them."""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cliff import command
from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import of_tasks
from distperiodic.core.workflow import Status

if TYPE_CHECKING:
    from distperiodic import tasks

# Number of stuck tasks that are read at a time.
_PAGE = 500


class TaskList(of_tasks.OfTasks, display.Table, lister.Lister):
    """Show tasks, in the order in which they were submitted.

    A long list has pages. For the next page, pass the last id of this page to
    --after.
    """

    essential = ('Id', 'Type', 'Status', 'Step')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            '--status', metavar='STATUS',
            help='show only tasks with this status: '
                 f'{", ".join(Status)}')
        which.add_argument(
            '--stuck', dest='status', action='store_const',
            const=Status.STUCK.value,
            help='show only stuck tasks, which need an operator')
        parser.add_argument(
            '--type', metavar='TYPE', help='show only tasks of this type')
        parser.add_argument(
            '--queue', metavar='QUEUE',
            help='show only tasks of this ordered queue')
        configured.add_limit(parser, 'tasks')
        parser.add_argument(
            '--after', metavar='ID',
            help='show only tasks that were submitted after this task')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        people = parsed.formatter == 'table'
        with self.client(parsed) as client:
            found = client.list(
                parsed.status, type=parsed.type, queue=parsed.queue,
                limit=parsed.limit, after=parsed.after)
            if not found and parsed.queue is not None:
                # This raises an error if the queue does not exist.
                client.queues(parsed.queue)
        if not found:
            self.sentence = _nothing(parsed)
        elif len(found) == parsed.limit:
            self.sentence = (f'The first {len(found)}; for more: --after '
                             f'{found[-1].id}')
        place = ('Step',) if people else ('Code', 'Cursor', 'Steps')
        return (('Id', 'Type', 'Status', *place, 'Queue', 'Key', 'Priority',
                 'Created at', 'Due at', 'Started at', 'Ended at',
                 'Message'),
                [_row(task, people) for task in found])


def _nothing(parsed: argparse.Namespace) -> str:
    """Return the sentence for a list without tasks."""
    return ' '.join([
        'No task', *(f'{word} {value!r}' for word, value in (
            ('with status', parsed.status), ('of type', parsed.type),
            ('in queue', parsed.queue), ('after', parsed.after))
            if value is not None)]) + '.'


def _row(task: 'tasks.Task', people: bool) -> Sequence[object]:
    total = len(task.steps)
    place = ((f'{task.cursor + 1} of {total}',) if people
             else (task.code, task.cursor, total))
    return (
        task.id, task.type, task.status.value, *place, task.queue or '',
        task.key or '', task.priority,
        *(of_tasks.instant(at, people) for at in (
            task.created_at, task.due_at, task.started_at, task.ended_at)),
        configured.one_line(task.message or ''))


class TaskCancel(acting.Acting, of_tasks.OfTasks, command.Command):
    """Cancel a task, and roll back the steps that it has done.

    A task that has not started is cancelled at once. A task that runs is
    rolled back after its current step, or at once if this step does not run
    now. If the rollback of a step is stuck, it is given up, and the steps
    before that step are rolled back.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('task', metavar='ID', help='id of the task')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        with (self.client(parsed) as client,
              self.audited(parsed, parsed.task) as record):
            status = client.cancel(parsed.task, parsed.why)
            record.outcome = f'it is {status.replace("_", " ")}'
        self.print(f'{_CANCELLED[status]} {parsed.task}{_LATER[status]}')


_CANCELLED = {
    Status.CANCELLED: 'cancelled', Status.RUNNING: 'cancelling',
    Status.WAITING: 'cancelling', Status.ROLLING_BACK: 'cancelling'}
_LATER = {
    Status.CANCELLED: '',
    Status.RUNNING: '; it is rolled back after its current step',
    Status.WAITING: '; it is rolled back after its first step',
    Status.ROLLING_BACK: '; it is rolling back'}


class TaskRetry(acting.Acting, of_tasks.OfTasks, command.Command):
    """Continue tasks that are stuck, have failed or were cancelled.

    A task that has failed or was cancelled starts again from its first step.
    A stuck task continues in the direction in which it is stuck, unless an
    option gives the other direction. Exit code 1: a task was not retried.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'tasks', metavar='ID', nargs='*', help='id of a task')
        parser.add_argument(
            '--all-stuck', action='store_true',
            help='retry all stuck tasks, or those that the following options '
                 'select')
        parser.add_argument(
            '--type', metavar='TYPE', help='only stuck tasks of this type')
        parser.add_argument(
            '--queue', metavar='QUEUE',
            help='only stuck tasks of this ordered queue')
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            '--forward', dest='back', action='store_const', const=False,
            help='run the stuck step again, and then the steps after it')
        which.add_argument(
            '--back', dest='back', action='store_const', const=True,
            help='roll back the stuck step, and then the steps before it')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> int:
        code = configured.FINE
        with self.client(parsed) as client:
            some = list(self._tasks(parsed, client))
            for task in some:
                try:
                    self._retry(parsed, client, task)
                except exceptions.DistperiodicError as exc:
                    if len(some) == 1:
                        raise
                    code = configured.FINDING
                    self.print(f'not retried: {configured.one_line(exc)}')
        if not some:
            self.print('no task is stuck')
        return code

    def _tasks(self, parsed: argparse.Namespace,
               client: 'tasks.Client') -> Iterator[str]:
        """Yield the ids of the tasks that the command line selects.

        :raises ConfigError: it selects none, or in two ways.
        """
        if bool(parsed.tasks) is parsed.all_stuck or (
                not parsed.all_stuck and (parsed.type or parsed.queue)):
            raise exceptions.ConfigError(
                'give either the ids of tasks, or --all-stuck, which --type '
                'and --queue may limit; to list stuck tasks: distperiodic '
                'task list --stuck')
        yield from parsed.tasks
        after = None
        while parsed.all_stuck:
            page = client.list(
                Status.STUCK.value, type=parsed.type, queue=parsed.queue,
                limit=_PAGE, after=after)
            for task in page:
                after = task.id
                yield after
            if len(page) < _PAGE:
                break

    def _retry(self, parsed: argparse.Namespace, client: 'tasks.Client',
               task: str) -> None:
        with self.audited(parsed, task, back=parsed.back) as record:
            status = client.retry(task, parsed.back)
            record.outcome = f'it is {status.replace("_", " ")}'
        self.print(f'retried {task}; it is {status.replace("_", " ")}')
