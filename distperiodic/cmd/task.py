# SPDX-License-Identifier: Apache-2.0
"""``distperiodic task list|cancel|retry``: list tasks, and control them."""

import argparse
from collections.abc import Iterator

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core.workflow import Status
from distperiodic.operator.lists import task_list

# Number of stuck tasks that are read at a time.
_PAGE = 500


class TaskList(task_list.Tasks, display.List):
    for_people = ('table',)


class TaskCancel(RecordedCommand):
    """Cancel a task, and roll back the steps that it has done.

    A task that has not started is cancelled at once. A task that runs is
    rolled back after its current step, or at once if this step does not run
    now. If the rollback of a step is stuck, it is given up, and the steps
    before that step are rolled back.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument('task', metavar='ID', help='id of the task')

    def act(self, session: Session) -> None:
        task, client = session.parsed.task, session.client
        with session.recorded(task) as record:
            status = client.cancel(task, session.actor.why)
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


class TaskRetry(RecordedCommand):
    """Continue tasks that are stuck, have failed or were cancelled.

    A task that has failed or was cancelled starts again from its first step.
    A stuck task continues in the direction in which it is stuck, unless an
    option gives the other direction. Exit code 1: a task was not retried.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
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

    def act(self, session: Session) -> int:
        code = configured.FINE
        some = list(self._tasks(session))
        for task in some:
            try:
                self._retry(session, task)
            except exceptions.DistperiodicError as exc:
                if len(some) == 1:
                    raise
                code = configured.FINDING
                session.print(f'not retried: {configured.one_line(exc)}')
        if not some:
            session.print('no task is stuck')
        return code

    def _tasks(self, session: Session) -> Iterator[str]:
        """Yield the ids of the tasks that the command line selects.

        :raises ConfigError: it selects none, or in two ways.
        """
        parsed, client = session.parsed, session.client
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

    def _retry(self, session: Session, task: str) -> None:
        back = session.parsed.back
        with session.recorded(task, back=back) as record:
            status = session.client.retry(task, back)
            record.outcome = f'it is {status.replace("_", " ")}'
        session.print(f'retried {task}; it is {status.replace("_", " ")}')
