# SPDX-License-Identifier: Apache-2.0
"""Admission of batches under ``max_in_flight``.

The process that requests the grant of a batch from the store decides when the
batch may start.

The store counts the runs of all processes under each limit. Between two
counts, a process knows only of the runs that it begins and ends itself. The
store executes the requests of a process in order. So a count includes all
requests that this process sent before it, and none that it sent later.

A process that has just ended a run usually begins its next run soon. A count
in between would be too low, so the process uses the highest of the recent
counts. While a limit is reached, batches wait here in the order of their
arrival. A waiting batch starts when a run under the limit ends in this
process, or when a new count shows that there is room. A batch that waits too
long is refused. This loses no work, because no run of the batch was started.
"""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from distperiodic.core.partition import Limit
from distperiodic.core.recent_maximum import RecentMaximum
from distperiodic.core.refusal import Refusal

#: Seconds that a batch waits before it is refused.
PATIENCE = 1.0

#: Number of this process's own runs under each limit, at the time when a count
#: was requested.
Snapshot = Mapping[Limit, int]

_Item = TypeVar('_Item')


class _Waiting(NamedTuple, Generic[_Item]):
    item: _Item
    job: str
    since: float


class AdmissionGate(Generic[_Item]):
    """Admission of batches in one process: the limits of its jobs, and the
    batches that wait. See the docstring of this module.

    :param limits: Limits of each job.
    """

    def __init__(self, limits: Mapping[
            str, tuple[Limit, ...]]):
        self._limits = limits
        #: Number of runs that began here and have not ended.
        self._here = {limit: 0 for job_limits in limits.values()
                      for limit in job_limits}
        self._elsewhere = {limit: RecentMaximum() for limit in self._here}
        self._queue: collections.deque[_Waiting[_Item]] = collections.deque()

    def jobs(self, names: Iterable[str]) -> list[str]:
        """Return the jobs whose runs count under the limits of *names*.

        :param names: Names of jobs.
        """
        if not self._here:
            return []
        return list(dict.fromkeys(
            job for name in names for limit in self._limits[name]
            for job in limit.jobs))

    @property
    def waiting(self) -> list[str]:
        """The jobs of the waiting batches."""
        return list(dict.fromkeys(entry.job for entry in self._queue))

    def full(self, job: str) -> Limit | None:
        """Return a limit of *job* that is reached.

        None means that, as far as this process knows, no limit is reached.
        """
        for limit in self._limits[job]:
            if (self._here[limit] + self._elsewhere[limit].value
                    >= limit.most):
                return limit
        return None

    def enqueue(self, item: _Item, job: str, now: float) -> None:
        """Append *item* to the waiting items."""
        self._queue.append(_Waiting(item, job, now))

    def acquire(self, job: str, runs: int) -> None:
        """Record that *runs* runs of *job* begin."""
        for limit in self._limits[job]:
            self._here[limit] += runs

    def release(self, job: str, runs: int) -> None:
        """Record that *runs* runs of *job* ended."""
        self.acquire(job, -runs)

    def snapshot(self) -> Snapshot:
        """Return the number of this process's own runs under each limit.

        Call this when a count is requested.
        """
        return dict(self._here)

    def record_count(self, job: str, running: Mapping[str, int],
                     snapshot: Snapshot, now: float) -> tuple[
                         int, Refusal | None]:
        """Record a count of the store.

        :param running: Number of runs of each job in all processes.
        :param snapshot: Result of :meth:`snapshot` when the count was
            requested.
        :returns: The number of runs by which a limit of *job* is exceeded, and
            the refusal for these runs. If several limits are exceeded, the
            larger number counts. 0 and None mean that no limit is exceeded.
        """
        over, refusal = 0, None
        for limit in self._limits[job]:
            number = sum(running.get(name, 0) for name in limit.jobs)
            self._elsewhere[limit].record(number - snapshot[limit], now)
            if number - limit.most > over:
                over, refusal = number - limit.most, limit.refusal
        return over, refusal

    def next(self) -> _Item | None:
        """Remove and return the first waiting item that may start.

        None means that no item may start.
        """
        for at, entry in enumerate(self._queue):
            if self.full(entry.job) is None:
                del self._queue[at]
                return entry.item
        return None

    def clear(self) -> list[_Item]:
        """Remove and return all waiting items."""
        items = [entry.item for entry in self._queue]
        self._queue.clear()
        return items

    def expired(self, now: float) -> list[tuple[_Item, Refusal]]:
        """Remove and return the items that have waited too long.

        :returns: Pairs of an item and its refusal.
        """
        over = []
        while self._queue and now - self._queue[0].since > PATIENCE:
            item, job, _ = self._queue.popleft()
            limit = self.full(job) or self._limits[job][0]
            over.append((item, limit.refusal))
        return over
