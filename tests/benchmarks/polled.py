# SPDX-License-Identifier: Apache-2.0
"""The polling rules of db-scheduler, simulated on a virtual clock.

db-scheduler is a Java library, whose nodes poll one table. Here only its rules
are simulated (``FetchCandidates`` and ``LockAndFetchCandidates`` of version
16, with the limits of ``PollingStrategyConfig``). The database, the poll and
the start of a run take no time, so the results are the best that the rules
permit.

``fetch``
    A node reads the executions that have been due longest, three for each of
    its threads. Each thread picks the next one that nobody has picked. The
    node reads again when the executions that are left from a full read are no
    more than half of its threads.
``lock-and-fetch``
    A node picks executions when it reads, as many as it has free threads. It
    reads again when the executions that it has picked are no more than half of
    its threads, if the last read was full.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable

#: Seconds between the polls of a node.
POLL = 10.0
RULES = {'fetch': 3.0, 'lock-and-fetch': 1.0}
_LOWER = 0.5


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of an execution, in seconds since the start of the world."""

    key: int
    due: float
    start: float
    end: float


class _Node:
    """One process.

    :ivar queue: the executions that the last read returned and that no thread
        has begun.
    :ivar left: number of executions of the last read that have not ended.
    :ivar full: whether the last read returned as many as were asked for.
    """

    def __init__(self, threads):
        self.free = threads
        self.queue = []
        self.left = 0
        self.read = 0
        self.full = False


class World:
    """Nodes that poll one table.

    :param rule: a key of ``RULES``.
    :param takes: returns the seconds of a run, by the key of its execution.
    :param every: seconds between the end of a run and the next due time of
        its execution (a fixed delay), or None: each execution runs once.
    :param apart: seconds between the polls of one node and the next one.
    """

    def __init__(self, rule: str, nodes: int, threads: int, objects: int,
                 takes: Callable[[int], float],
                 every: float | None = None, apart: float = 0.0) -> None:
        self.runs: list[Run] = []
        self._rule, self._threads = rule, threads
        self._takes, self._every = takes, every
        self._due = {key: 0.0 for key in range(objects)}
        self._nodes = [_Node(threads) for _ in range(nodes)]
        self._number = itertools.count()
        self._events: list[tuple] = []
        for n, node in enumerate(self._nodes):
            self._at(n * apart, self._poll, node)

    def live(self, seconds: float) -> list[Run]:
        """Return the runs that began within *seconds*, in order."""
        while self._events and self._events[0][0] < seconds:
            self.now, _, act, args = heapq.heappop(self._events)
            act(*args)
        return self.runs

    def _at(self, at, act, *args):
        heapq.heappush(self._events, (at, next(self._number), act, args))

    def _poll(self, node):
        self._fetch(node)
        self._at(self.now + POLL, self._poll, node)

    def _fetch(self, node):
        most = int(RULES[self._rule] * self._threads)
        picking = self._rule == 'lock-and-fetch'
        if picking:
            most -= len(node.queue) + self._threads - node.free
            if most <= 0:
                return
        found = sorted(
            (due, key) for key, due in self._due.items() if due <= self.now)
        found = found[:most]
        node.read += 1
        if picking:
            node.queue += found
            for _, key in found:
                del self._due[key]
        else:
            # What is left of an earlier read is stale.
            node.queue = found
        node.left = len(found)
        node.full = most == len(found)
        self._begin(node)

    def _begin(self, node):
        while node.free and node.queue:
            due, key = node.queue.pop(0)
            if self._rule == 'fetch':
                if self._due.get(key) != due:
                    self._ended(node, node.read)
                    continue
                del self._due[key]
            node.free -= 1
            end = self.now + self._takes(key)
            self.runs.append(Run(key, due, self.now, end))
            self._at(end, self._end, node, key, node.read)

    def _end(self, node, key, read):
        node.free += 1
        if self._every is not None:
            self._due[key] = self.now + self._every
        self._ended(node, read)
        self._begin(node)

    def _ended(self, node, read):
        if self._rule == 'fetch':
            if read != node.read:
                return
            node.left -= 1
            left = node.left
        else:
            left = len(node.queue) + self._threads - node.free
        if node.full and left <= int(_LOWER * self._threads):
            node.full = False
            self._at(self.now, self._fetch, node)
