# SPDX-License-Identifier: Apache-2.0
"""The actions on tasks: on one, or on all that match a filter."""

import abc
from collections.abc import Mapping
from typing import Any

from distperiodic.core import wording
from distperiodic.core.task import Task
from distperiodic.core.task import TaskFilter
from distperiodic.core.workflow import Status
from distperiodic.operator import bulk_tasks
from distperiodic.operator import task_queries
from distperiodic.operator.action_sources import ActionSources
from distperiodic.operator.bulk import BulkResult
from distperiodic.web.actions import FIRST
from distperiodic.web.actions import Order
from distperiodic.web.actions import PageAction
from distperiodic.web.actions import Preview
from distperiodic.web.actions import conclude
from distperiodic.web.page import Addresses
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageTable
from distperiodic.web.query_filters import BadField
from distperiodic.web.query_filters import Field
from distperiodic.web.query_filters import Incomplete
from distperiodic.web.verbs import VERBS


class _TaskAction(PageAction):
    """Base class of the actions on tasks."""

    names = 'task', 'status', 'type', 'queue'
    alone = ('task',)

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        if 'task' in names:
            return to('tasks', names['task'])
        return to.filtered('tasks', names)

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        store = request.sources.store
        if 'task' in names:
            found = task_queries.look(store, names['task']).task
            return Preview(f'{self.verb.label} task {found.id}?', [
                f'It is of type {found.type}, and '
                f'{found.status.replace("_", " ")}.', *self.effect])
        which = self.selected(names)
        number = bulk_tasks.number(store, which)
        return Preview(
            f'{self.verb.label} {wording.plural(number, "task")}?',
            [f'These are the {bulk_tasks.words(which)}.', *self.effect],
            number, _table(request, bulk_tasks.first(store, which, FIRST)))

    def act(self, sources: ActionSources, order: Order) -> None:
        if 'task' in order.names:
            task = order.names['task']
            with sources.record(self.verb.name, task,
                                **self.arguments(order)) as record:
                status = self.change_one(sources, task, order)
                record.outcome = f'it is {status.replace("_", " ")}'
        else:
            conclude(sources, order, self.change(
                sources, self.selected(order.names), order))

    #: Sentences about the consequences.
    effect: tuple[str, ...]

    def arguments(self, order: Order) -> dict[str, Any]:
        """Return the arguments of the action on one task, for its record."""
        return {}

    @abc.abstractmethod
    def selected(self, names: Mapping[str, str]) -> TaskFilter:
        """Return the filter of the tasks to change.

        :raises Incomplete: the names select none.
        """

    @abc.abstractmethod
    def change_one(self, sources: ActionSources, task: str,
                   order: Order) -> Status:
        """Change a task, and return its new status."""

    @abc.abstractmethod
    def change(self, sources: ActionSources, which: TaskFilter,
               order: Order) -> BulkResult:
        """Change the tasks that *which* selects."""


def _table(request: PageRequest, some: list[Task]) -> PageTable:
    titles = 'Id', 'Type', 'Status', 'Message'
    rows = [(task.id, task.type, task.status.value,
             wording.one_line(task.message or '')) for task in some]
    return PageTable(
        titles, rows, {'Id': lambda row: request.addresses(
            'tasks', row['Id'])}, '',
        [dict(zip(map(str.lower, titles), row, strict=True))
         for row in rows])


class CancelTasks(_TaskAction):

    verb = VERBS['task cancel']
    effect = ('What it has done is rolled back. A step that runs now is '
              'finished first.',)

    def selected(self, names: Mapping[str, str]) -> TaskFilter:
        if not names:
            raise Incomplete('no task is named; give a task, or status, type '
                             'or queue')
        return bulk_tasks.to_cancel(
            names.get('status'), names.get('type'), names.get('queue'))

    def change_one(self, sources: ActionSources, task: str,
                   order: Order) -> Status:
        actor = sources.actor
        return sources.client.cancel(task, actor.why, actor.name)

    def change(self, sources: ActionSources, which: TaskFilter,
               order: Order) -> BulkResult:
        return bulk_tasks.cancel(
            sources.store, sources.client, which, sources.actor,
            shown=order.number)


#: Directions of a stuck task, by their values in a form.
_BACK = {'as it was': None, 'forward': False, 'back': True}


class RetryTasks(_TaskAction):

    verb = VERBS['task retry']
    effect = ('A task that has failed or was cancelled starts again from its '
              'first step. A stuck task continues in the chosen direction: '
              'forward runs the stuck step again, back rolls it back.',)
    fields = Field(
        'direction', 'Direction of stuck tasks', '',
        'Direction in which a stuck task continues', tuple(_BACK), False,
        False),

    def selected(self, names: Mapping[str, str]) -> TaskFilter:
        if 'status' not in names:
            raise Incomplete(
                'no task is named; give a task, or status = '
                + ', '.join(bulk_tasks.RETRIABLE))
        return bulk_tasks.to_retry(
            names['status'], names.get('type'), names.get('queue'))

    def arguments(self, order: Order) -> dict[str, Any]:
        back = _back(order)
        return {} if back is None else {'back': back}

    def change_one(self, sources: ActionSources, task: str,
                   order: Order) -> Status:
        return sources.client.retry(task, _back(order))

    def change(self, sources: ActionSources, which: TaskFilter,
               order: Order) -> BulkResult:
        return bulk_tasks.retry(sources.store, sources.client, which,
                                sources.actor, _back(order),
                                shown=order.number)


def _back(order: Order) -> bool | None:
    """Return the direction that the operator has chosen.

    :raises BadField: there is no such direction.
    """
    given = order.fields.get('direction') or next(iter(_BACK))
    if given not in _BACK:
        raise BadField(f'direction is {given!r}; give one of '
                       + ', '.join(_BACK))
    return _BACK[given]
