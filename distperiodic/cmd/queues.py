# SPDX-License-Identifier: Apache-2.0
"""``distperiodic queue list|show|resume|halt|set``: ordered queues of tasks.
"""

import argparse
import shlex
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core.ring import Ring
from distperiodic.core.task import MOST_COUNTED
from distperiodic.core.task import queue_ring_key
from distperiodic.core.workflow import Status

if TYPE_CHECKING:
    from distperiodic import tasks


class _Servers(NamedTuple):
    """The members that serve queues."""

    #: None means that the members are unknown.
    ring: 'Ring | None'
    #: Reason why the members are unknown. Empty means that they are known.
    why: str

    def of(self, queue: str) -> str:
        """Return the identity of the member that serves *queue*."""
        if self.ring is None:
            return 'unknown'
        return self.ring.owner_of(queue_ring_key(queue))


def _servers(session: Session) -> _Servers:
    """Return the members that serve queues now.

    If the members are unknown, the result contains only the reason. The
    command still shows the facts that are in the store.
    """
    if not session.settings.backend_url:
        return _Servers(None, 'backend_url is empty, so any process with this '
                        'store may serve a queue')
    try:
        group = session.group
    except exceptions.CoordinationUnavailable as exc:
        return _Servers(None, configured.one_line(exc))
    if not len(group.ring):
        return _Servers(
            None, f'group {session.settings.group!r} has no scheduler on the '
            'ring')
    return _Servers(group.ring, '')


def _columns(servers: _Servers
             ) -> 'Mapping[str, Callable[[tasks.Queue], object]]':
    """Return the facts about a queue, by title."""
    return {
        'Queue': lambda queue: queue.name,
        'State': lambda queue: 'open' if queue.halted_at is None
        else 'halted',
        'Member': lambda queue: servers.of(queue.name),
        'Waiting': lambda queue: display.Cell(
            f'{queue.waiting:,} or more' if queue.waiting >= MOST_COUNTED
            else queue.waiting, queue.waiting),
        'Head': lambda queue: queue.head or '',
        'Head status': lambda queue: '' if queue.head_status is None
        else queue.head_status.value,
        'On failure': lambda queue: 'go_on' if queue.goes_on else 'halt',
        'Halted at': lambda queue: display.time_of(queue.halted_at),
        'Why': lambda queue: queue.halted_why or '',
        'By task': lambda queue: queue.halted_by or ''}


class QueueList(display.List['tasks.Queue']):
    """Show the ordered queues: which are halted, and who serves them."""

    essential = ('Queue', 'State', 'Member', 'Waiting', 'Head status', 'Why')
    for_people = ('table',)
    empty = 'There is no ordered queue yet.'

    def fetch(self, session: Session) -> 'Sequence[tasks.Queue]':
        found = session.client.queues()
        servers = _servers(session)
        self.columns = _columns(servers)
        halted = sum(queue.halted_at is not None for queue in found)
        if halted:
            self.sentence = (
                f'{configured.plural(halted, "queue")} of {len(found):,} '
                f'{"is" if halted == 1 else "are"} halted.')
        if found and servers.why:
            self.sentence = ' '.join(filter(None, [
                self.sentence, f'The members are unknown: {servers.why}.']))
        return found


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
        servers = _servers(session)
        titles, [facts] = self.listing(_columns(servers), [queue])
        fields = dict(zip(map(str.lower, titles), facts, strict=True))
        if servers.why:
            fields['member'] = f'{fields["member"]}: {servers.why}'
        if self.people:
            return {name: value for name, value in fields.items()
                    if value != ''}
        fields['tasks'] = [
            {display.key(title): value or None
             for title, value in zip(listed, row, strict=True)}
            for row in rows]
        return fields


_TASKS: 'Mapping[str, Callable[[tasks.Task], object]]' = {
    'Id': lambda task: task.id,
    'Type': lambda task: task.type,
    'Status': lambda task: task.status.value,
    'Created at': lambda task: display.time_of(task.created_at),
    'Due at': lambda task: display.time_of(task.due_at)}


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
                f'{display.time_of(queue.halted_at).for_people}: '
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
