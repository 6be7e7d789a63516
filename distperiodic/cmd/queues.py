# SPDX-License-Identifier: Apache-2.0
"""``distperiodic queue list|show|resume|halt|set``: ordered queues of tasks.
"""

import argparse
import shlex
from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core.workflow import Status
from distperiodic.operator import cells
from distperiodic.operator.lists import queue_list

if TYPE_CHECKING:
    from distperiodic import tasks


class QueueList(queue_list.Queues, display.List):
    for_people = ('table',)


def _add_queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('queue', metavar='NAME', help='name of the queue')


class QueueShow(display.Details):
    """Show an ordered queue, the member that serves it, and its tasks in the
    order in which they run.
    """

    essential = ('Id', 'Type', 'Status')
    for_people = ('table',)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_queue(parser)
        configured.add_limit(parser, 'waiting tasks')

    def facts(self, session: Session) -> Mapping[str, object]:
        name, client = session.parsed.queue, session.client
        [queue] = client.queues(name)
        tasks = [] if queue.head is None else [client.get(queue.head)]
        tasks += [task for task in client.list(
            Status.WAITING, queue=name, limit=session.parsed.limit)
            if task.id != queue.head]
        listed, rows = self.listing(_TASKS, tasks)
        if rows:
            self.below = listed, rows
        servers = queue_list.servers_of(session)
        titles, [facts] = self.listing(queue_list.columns_of(servers), [queue])
        fields = dict(zip(map(str.lower, titles), facts, strict=True))
        if servers.why:
            fields['member'] = f'{fields["member"]}: {servers.why}'
        if self.people:
            return {name: value for name, value in fields.items()
                    if value != ''}
        fields['tasks'] = [
            {cells.key(title): value or None
             for title, value in zip(listed, row, strict=True)}
            for row in rows]
        return fields


_TASKS: 'Mapping[str, Callable[[tasks.Task], object]]' = {
    'Id': lambda task: task.id,
    'Type': lambda task: task.type,
    'Status': lambda task: task.status.value,
    'Created at': lambda task: cells.time_of(task.created_at),
    'Due at': lambda task: cells.time_of(task.due_at)}


class _QueueAction(RecordedCommand):
    """Base class of commands that change one queue."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        _add_queue(parser)


class QueueResume(_QueueAction):
    """Resume a halted queue with its next task."""

    def act(self, session: Session) -> None:
        name, client = session.parsed.queue, session.client
        with session.recorded(name) as record:
            resumed = client.resume_queue(name)
            if not resumed:
                record.outcome = 'it was not halted'
        session.print(f'resumed {name}' if resumed else
                      f'{name} was not halted; nothing was changed')


class QueueHalt(_QueueAction):
    """Halt a queue: its running task is finished, and no other task starts."""

    def act(self, session: Session) -> None:
        name, client = session.parsed.queue, session.client
        with session.recorded(name) as record:
            halted = client.halt_queue(name, session.actor.why)
            if not halted:
                record.outcome = 'it was already halted'
        [queue] = client.queues(name)
        if halted:
            session.print(
                f'halted {name}; to resume it: distperiodic queue resume '
                f'{shlex.quote(name)}')
        else:
            session.print(
                f'{name} was already halted, at '
                f'{cells.time_of(queue.halted_at).for_people}: '
                f'{queue.halted_why}; nothing was changed')


class QueueSet(_QueueAction):
    """Set what a queue does when a task fails.

    If the queue does not exist, it is created.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--on-failure', required=True, choices=('halt', 'go_on'),
            metavar='CHOICE',
            help='halt: the queue halts until it is resumed; go_on: its next '
                 'task runs')

    def act(self, session: Session) -> None:
        name, on_failure = session.parsed.queue, session.parsed.on_failure
        client = session.client
        with session.recorded(name, on_failure=on_failure):
            client.set_queue(name, on_failure=on_failure)
        session.print(f'when a task fails, {name} '
                      + ('goes on' if on_failure == 'go_on' else 'halts'))
