# SPDX-License-Identifier: Apache-2.0
"""Commands that cancel or retry many tasks."""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from distperiodic import exceptions
from distperiodic import ports
from distperiodic import tasks
from distperiodic.adapters.sql import task_arguments
from distperiodic.adapters.sql import task_reader
from distperiodic.core import wording
from distperiodic.core.task import Task
from distperiodic.core.task import TaskFilter
from distperiodic.core.workflow import Status
from distperiodic.operator import bulk
from distperiodic.operator.auditing import Actor
from distperiodic.operator.bulk import BulkResult
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

#: Statuses of the tasks that can be cancelled, and that can be retried.
CANCELLABLE = (Status.WAITING, Status.RUNNING, Status.ROLLING_BACK,
               Status.STUCK)
RETRIABLE = Status.STUCK, Status.FAILED, Status.CANCELLED

# Number of tasks that are read and changed together. The limit keeps
# transactions short.
_AT_A_TIME = 100


def to_cancel(status: str | None = None, type_: str | None = None,
              queue: str | None = None) -> TaskFilter:
    """Return the filter of a command that cancels tasks.

    :param status: Status of the tasks. None means all tasks that have not
        ended.
    :raises InvalidTask: an argument cannot be used, or tasks with this status
        cannot be cancelled.
    """
    return _filter('cancelled', CANCELLABLE, status, type_, queue)


def to_retry(status: str, type_: str | None = None,
             queue: str | None = None) -> TaskFilter:
    """Return the filter of a command that retries tasks.

    :raises InvalidTask: an argument cannot be used, or tasks with this status
        cannot be retried.
    """
    return _filter('retried', RETRIABLE, status, type_, queue)


def _filter(past: str, possible: Sequence[Status], status: str | None,
            type_: str | None, queue: str | None) -> TaskFilter:
    page = task_arguments.page(status, type_, queue, 1, None)
    if page.status is not None and page.status not in possible:
        raise exceptions.InvalidTask(
            f'tasks with status {page.status} cannot be {past}; give one of '
            f'{", ".join(possible)}')
    return TaskFilter(
        tuple(possible) if page.status is None else (page.status,),
        page.type, page.queue)


def number(store: GroupReader, which: TaskFilter) -> int:
    """Return the number of tasks that *which* selects."""
    return store.read_snapshot(lambda connection: task_reader.number(
        connection, store.namespace, which))


def first(store: GroupReader, which: TaskFilter, limit: int) -> list[Task]:
    """Return the tasks that *which* selects and that were submitted first."""
    return store.read(lambda connection: task_reader.selected(
        connection, store.namespace, which, limit))


def cancel(store: GroupStore, client: tasks.Client, which: TaskFilter,
           actor: Actor, *, shown: int | None = None) -> BulkResult:
    """Cancel the tasks that *which* selects.

    Tasks that are submitted after the call has begun are left out.

    :param shown: See :func:`.bulk.check_shown`.
    :raises ConfigError: more tasks match than were shown.
    """
    return _change(store, which, actor, 'task cancel', shown,
                   lambda ids: client.cancel_many(
                       ids, actor.why, actor.name))


def retry(store: GroupStore, client: tasks.Client, which: TaskFilter,
          actor: Actor, back: bool | None = None, *,
          shown: int | None = None) -> BulkResult:
    """Retry the tasks that *which* selects, each once.

    :param back: See :meth:`distperiodic.tasks.Client.retry`.
    :param shown: See :func:`.bulk.check_shown`.
    :raises ConfigError: more tasks match than were shown.
    """
    return _change(store, which, actor, 'task retry', shown,
                   lambda ids: client.retry_many(ids, back), back=back)


def _change(store: GroupStore, which: TaskFilter, actor: Actor, verb: str,
            shown: int | None,
            change: Callable[[Sequence[str]], ports.TaskAnswers],
            **arguments: object) -> BulkResult:
    with bulk.recorded(
            store, actor, verb, words(which), 'task', **arguments, shown=shown,
            status=None if which.ids is not None else list(which.statuses),
            type=which.type, queue=which.queue,
            ids=None if which.ids is None else list(which.ids),
            found=None if which.ids is not None else number(store, which)
            ) as tally:
        for ids in tally.within(_chunks(store, which)):
            answers = change(ids)
            problems = [wording.one_line(answer)
                        for answer in answers.values()
                        if not isinstance(answer, Status)]
            tally.add(len(answers), len(answers) - len(problems), problems)
    return tally.result


def words(which: TaskFilter) -> str:
    """Return the filter in words."""
    if which.ids is not None:
        return wording.plural(len(which.ids), 'task')
    return ' '.join(['tasks', *(f'{word} {value!r}' for word, value in (
        ('with status', wording.listed(which.statuses)),
        ('of type', which.type), ('in queue', which.queue))
        if value is not None)])


def _chunks(store: GroupReader, which: TaskFilter
            ) -> Iterator[Sequence[str]]:
    """Yield the ids of the tasks that *which* selects.

    Each task is in one chunk, even if it meets the conditions again after it
    was changed: the tasks are read in the order of their submission.
    """
    if which.ids is not None:
        ids = list(dict.fromkeys(which.ids))
        for start in range(0, len(ids), _AT_A_TIME):
            yield ids[start:start + _AT_A_TIME]
        return
    begun, after = store.now(), None
    while True:
        found = store.read(functools.partial(
            task_reader.keys, namespace=store.namespace, which=which,
            limit=_AT_A_TIME, after=after, until=begun))
        if not found:
            return
        yield [id_ for _, id_ in found]
        after = found[-1]
