# SPDX-License-Identifier: Apache-2.0
"""``distperiodic queue list|show|resume|halt|set``: ordered queues of tasks.
"""

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from cliff import command
from cliff import lister
from cliff import show

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import of_tasks
from distperiodic.cmd import ring as ring_cmd
from distperiodic.core.task import queue_ring_key
from distperiodic.core.workflow import Status

if TYPE_CHECKING:
    from distperiodic import tasks
    from distperiodic.core.ring import Ring


class _OfMembers(of_tasks.OfTasks):
    """Base class of commands that show the members that serve queues."""

    def servers(self, parsed: argparse.Namespace) -> '_Servers':
        """Return the members that serve queues now.

        If the members are unknown, the result contains only the reason. The
        command still shows the facts that are in the store.
        """
        if not self.database(parsed).backend_url:
            return _Servers(None, 'backend_url is empty, so any process with '
                            'this store may serve a queue')
        try:
            group, settings = ring_cmd.group_of(self, parsed)
        except exceptions.CoordinationUnavailable as exc:
            return _Servers(None, configured.one_line(exc))
        if not len(group.ring):
            return _Servers(
                None, f'group {settings.group!r} has no scheduler on the ring')
        return _Servers(group.ring, '')


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


class QueueList(_OfMembers, display.Table, lister.Lister):
    """Show the ordered queues: which are halted, and who serves them."""

    essential = ('Queue', 'State', 'Member', 'Waiting', 'Head status', 'Why')

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        people = parsed.formatter == 'table'
        with self.client(parsed) as client:
            found = client.queues()
        servers = self.servers(parsed)
        halted = sum(queue.halted_at is not None for queue in found)
        if not found:
            self.sentence = 'There is no ordered queue yet.'
        elif halted:
            self.sentence = (
                f'{configured.plural(halted, "queue")} of {len(found):,} '
                f'{"is" if halted == 1 else "are"} halted.')
        if found and servers.why:
            self.sentence = ' '.join(filter(None, [
                self.sentence, f'The members are unknown: {servers.why}.']))
        rows = [_fields(queue, servers, people) for queue in found]
        return tuple(_TITLES), [tuple(row) for row in rows]


_TITLES = ('Queue', 'State', 'Member', 'Waiting', 'Head', 'Head status',
           'On failure', 'Halted at', 'Why', 'By task')


def _fields(queue: 'tasks.Queue', servers: _Servers,
            people: bool) -> Sequence[object]:
    """Return the facts about a queue, in the order of the titles."""
    return (
        queue.name, 'open' if queue.halted_at is None else 'halted',
        servers.of(queue.name),
        of_tasks.number(queue.waiting) if people else queue.waiting,
        queue.head or '',
        '' if queue.head_status is None else queue.head_status.value,
        'go_on' if queue.goes_on else 'halt',
        of_tasks.instant(queue.halted_at, people), queue.halted_why or '',
        queue.halted_by or '')


class _OfQueue(of_tasks.OfTasks):
    """Base class of commands about one queue."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('queue', metavar='NAME', help='name of the queue')
        return parser


class QueueShow(_OfMembers, _OfQueue, display.Display, show.ShowOne):
    """Show an ordered queue, the member that serves it, and its tasks in the
    order in which they run.
    """

    essential = ('Id', 'Type', 'Status')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_limit(parser, 'waiting tasks')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], Sequence[object]]:
        people = parsed.formatter == 'table'
        with self.client(parsed) as client:
            [queue] = client.queues(parsed.queue)
            tasks = [] if queue.head is None else [client.get(queue.head)]
            tasks += [task for task in client.list(
                Status.WAITING, queue=parsed.queue, limit=parsed.limit)
                if task.id != queue.head]
        self._rows = [
            (task.id, task.type, task.status.value,
             of_tasks.instant(task.created_at, people),
             of_tasks.instant(task.due_at, people)) for task in tasks]
        servers = self.servers(parsed)
        fields = dict(zip(map(str.lower, _TITLES),
                          _fields(queue, servers, people), strict=True))
        if servers.why:
            fields['member'] = f'{fields["member"]}: {servers.why}'
        if people:
            fields = {name: value for name, value in fields.items()
                      if value != ''}
        else:
            fields['tasks'] = [
                {display.key(title): value or None
                 for title, value in zip(_COLUMNS, row, strict=True)}
                for row in self._rows]
        return tuple(fields), tuple(fields.values())

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        code = super().produce_output(parsed, columns, data)
        if parsed.formatter == 'table' and not parsed.columns and self._rows:
            self.print_rows(parsed, _COLUMNS, self._rows)
        return code


_COLUMNS = ('Id', 'Type', 'Status', 'Created at', 'Due at')


class QueueResume(acting.Acting, _OfQueue, command.Command):
    """Resume a halted queue with its next task."""

    def take_action(self, parsed: argparse.Namespace) -> None:
        with (self.client(parsed) as client,
              self.audited(parsed, parsed.queue) as record):
            resumed = client.resume_queue(parsed.queue)
            if not resumed:
                record.outcome = 'it was not halted'
        self.print(f'resumed {parsed.queue}' if resumed else
                   f'{parsed.queue} was not halted; nothing was changed')


class QueueHalt(acting.Acting, _OfQueue, command.Command):
    """Halt a queue: its running task is finished, and no other task starts."""

    def take_action(self, parsed: argparse.Namespace) -> None:
        with self.client(parsed) as client:
            with self.audited(parsed, parsed.queue) as record:
                halted = client.halt_queue(parsed.queue, parsed.why)
                if not halted:
                    record.outcome = 'it was already halted'
            [queue] = client.queues(parsed.queue)
        if halted:
            self.print(
                f'halted {parsed.queue}; to resume it: distperiodic queue '
                f'resume {shlex.quote(parsed.queue)}')
        else:
            self.print(
                f'{parsed.queue} was already halted, at '
                f'{of_tasks.instant(queue.halted_at, True)}: '
                f'{queue.halted_why}; nothing was changed')


class QueueSet(acting.Acting, _OfQueue, command.Command):
    """Set what a queue does when a task fails.

    If the queue does not exist, it is created.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--on-failure', required=True, choices=('halt', 'go_on'),
            metavar='CHOICE',
            help='halt: the queue halts until it is resumed; go_on: its next '
                 'task runs')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        with (self.client(parsed) as client,
              self.audited(parsed, parsed.queue,
                           on_failure=parsed.on_failure)):
            client.set_queue(parsed.queue, on_failure=parsed.on_failure)
        self.print(
            f'when a task fails, {parsed.queue} '
            + ('goes on' if parsed.on_failure == 'go_on' else 'halts'))
