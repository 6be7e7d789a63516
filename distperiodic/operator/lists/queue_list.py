# SPDX-License-Identifier: Apache-2.0
"""Ordered queues of tasks."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.core.ring import Ring
from distperiodic.core.task import Queue
from distperiodic.core.task import queue_ring_key
from distperiodic.core.waiting import MOST_COUNTED
from distperiodic.operator import cells
from distperiodic.operator.sources import Sources


class QueueServers(NamedTuple):
    """The members that serve queues."""

    #: None means that the members are unknown.
    ring: Ring | None
    #: Reason why the members are unknown. Empty means that they are known.
    why: str

    def of(self, queue: str) -> str:
        """Return the identity of the member that serves *queue*."""
        if self.ring is None:
            return 'unknown'
        return self.ring.owner_of(queue_ring_key(queue))


def servers_of(sources: Sources) -> QueueServers:
    """Return the members that serve queues now.

    If the members are unknown, the result contains only the reason. The
    command still shows the facts that are in the store.
    """
    if not sources.settings.backend_url:
        return QueueServers(
            None, 'backend_url is empty, so any process with this store may '
            'serve a queue')
    try:
        group = sources.group
    except exceptions.CoordinationUnavailable as exc:
        return QueueServers(None, wording.one_line(exc))
    if not len(group.ring):
        return QueueServers(
            None, f'group {sources.settings.group!r} has no scheduler on the '
            'ring')
    return QueueServers(group.ring, '')


def columns_of(servers: QueueServers
             ) -> Mapping[str, Callable[[Queue], object]]:
    """Return the facts about a queue, by title."""
    return {
        'Queue': lambda queue: queue.name,
        'State': lambda queue: 'open' if queue.halted_at is None
        else 'halted',
        'Member': lambda queue: servers.of(queue.name),
        'Waiting': lambda queue: cells.Cell(
            f'{queue.waiting:,} or more' if queue.waiting >= MOST_COUNTED
            else queue.waiting, queue.waiting),
        'Head': lambda queue: queue.head or '',
        'Head status': lambda queue: '' if queue.head_status is None
        else queue.head_status.value,
        'On failure': lambda queue: 'go_on' if queue.goes_on else 'halt',
        'Halted at': lambda queue: cells.time_of(queue.halted_at),
        'Why': lambda queue: queue.halted_why or '',
        'By task': lambda queue: queue.halted_by or ''}


class Queues(cells.DeclaredList[Queue]):
    """Show the ordered queues: which are halted, and who serves them."""

    essential: Sequence[str] = (
        'Queue', 'State', 'Member', 'Waiting', 'Head status', 'Why')
    empty = 'There is no ordered queue yet.'

    def fetch(self, sources: Sources) -> Sequence[Queue]:
        from distperiodic.operator import task_queries
        found = task_queries.queues(sources.store)
        servers = servers_of(sources)
        self.columns = columns_of(servers)
        halted = sum(queue.halted_at is not None for queue in found)
        if halted:
            self.sentence = (
                f'{wording.plural(halted, "queue")} of {len(found):,} '
                f'{"is" if halted == 1 else "are"} halted.')
        if found and servers.why:
            self.sentence = ' '.join(filter(None, [
                self.sentence, f'The members are unknown: {servers.why}.']))
        return found
