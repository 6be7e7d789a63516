# SPDX-License-Identifier: Apache-2.0
"""Tasks, in the order of their submission."""

import argparse
from collections.abc import Sequence

from distperiodic.core import wording
from distperiodic.core.task import Task
from distperiodic.core.workflow import Status
from distperiodic.operator import cells
from distperiodic.operator import filters
from distperiodic.operator.sources import Sources


def add_conditions(parser: argparse.ArgumentParser,
                   what: str) -> 'argparse._MutuallyExclusiveGroup':
    """Add the options that select tasks.

    :param what: Effect of the options, for their help.
    :returns: the group of the options that select a status.
    """
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        '--status', metavar='STATUS',
        help=f'{what} only tasks with this status: {", ".join(Status)}')
    which.add_argument(
        '--stuck', dest='status', action='store_const',
        const=Status.STUCK.value,
        help=f'{what} only stuck tasks, which need an operator')
    parser.add_argument(
        '--type', metavar='TYPE', help=f'{what} only tasks of this type')
    parser.add_argument(
        '--queue', metavar='QUEUE',
        help=f'{what} only tasks of this ordered queue')
    return which


class Tasks(cells.DeclaredList[Task]):
    """Show tasks, in the order in which they were submitted.

    A long list has pages. For the next page, pass the last id of this page to
    --after.
    """

    essential: Sequence[str] = ('Id', 'Type', 'Status', 'Step')
    only_people = ('Step',)
    only_programs = ('Code', 'Cursor', 'Steps')
    columns = {
        'Id': lambda task: task.id,
        'Type': lambda task: task.type,
        'Status': lambda task: task.status.value,
        'Step': lambda task: f'{task.cursor + 1} of {len(task.steps)}',
        'Code': lambda task: task.code,
        'Cursor': lambda task: task.cursor,
        'Steps': lambda task: len(task.steps),
        'Queue': lambda task: task.queue or '',
        'Key': lambda task: task.key or '',
        'Priority': lambda task: task.priority,
        'Created at': lambda task: cells.time_of(task.created_at),
        'Due at': lambda task: cells.time_of(task.due_at),
        'Started at': lambda task: cells.time_of(task.started_at),
        'Ended at': lambda task: cells.time_of(task.ended_at),
        'Message': lambda task: wording.one_line(task.message or '')}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_conditions(parser, 'show')
        filters.add_limit(parser, 'tasks')
        parser.add_argument(
            '--after', metavar='ID',
            help='show only tasks that were submitted after this task')

    def fetch(self, sources: Sources) -> list[Task]:
        from distperiodic.operator import task_queries
        parsed, store = sources.parsed, sources.store
        found = task_queries.page(
            store, parsed.status, parsed.type, parsed.queue, parsed.limit,
            parsed.after)
        if found:
            self.cut = 'The first {}; for more: --after ' + found[-1].id
        elif parsed.queue is not None:
            # This raises an error if the queue does not exist.
            task_queries.queues(store, parsed.queue)
        self.empty = ' '.join([
            'No task', *(f'{word} {value!r}' for word, value in (
                ('with status', parsed.status), ('of type', parsed.type),
                ('in queue', parsed.queue), ('after', parsed.after))
                if value is not None)]) + '.'
        return found
