# SPDX-License-Identifier: Apache-2.0
"""The figures of the demo, computed from the records of the handlers.

The demo counts runs only by these records, and not by the library's own
reports. One run is due for each host and tick. A run is served if a ping of
the host for this tick has finished, in any process. The run is served twice if
more than one such ping has finished, and missed if none has finished.
"""

import collections
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence


class PingedTick:
    """The finished runs of one tick."""

    def __init__(self) -> None:
        #: The processes that have run the ping, by host.
        self.runs: dict[str, list[str]] = collections.defaultdict(list)
        #: Seconds from the tick to the start of each run.
        self.late: list[float] = []

    @property
    def twice(self) -> int:
        """Number of hosts that were served more than once."""
        return sum(len(processes) > 1 for processes in self.runs.values())

    def served_by(self) -> collections.Counter[str]:
        """Return the number of hosts that each process served last."""
        return collections.Counter(
            processes[-1] for processes in self.runs.values())


def lateness(late: Sequence[float]) -> str:
    """Return quantiles of *late*, such as 'p50 11 ms, p99 43 ms'."""
    placed = sorted(late) or [0.0]
    return ', '.join(
        f'p{part} {placed[len(placed) * part // 100] * 1000:,.0f} ms'
        for part in (50, 99))


def moves(before: Mapping[str, str], after: Mapping[str, str],
          who: Collection[str]) -> tuple[int, int]:
    """Return the number of hosts that moved, and of those that had to move.

    A host has to move if its old owner left or its new owner joined.

    :param before: The owner of each host before a change. Empty means that
        there were no members.
    :param after: The same after the change.
    :param who: Members that joined or left.
    """
    moved = [{before[host], after[host]} for host in before.keys() & after
             if before[host] != after[host]]
    return len(moved), sum(not owners.isdisjoint(who) for owners in moved)
