# SPDX-License-Identifier: Apache-2.0
"""Batches that wait for a place under ``max_in_flight``, where they run.

Places are counted in the store; between two counts one process knows of what
it begins and ends itself. The store does in order what it is asked, so what
was asked before a count is in it, and what was asked after is not. A place
that one count shows as free may be between two runs of another process, so
the highest of the counts of a moment is believed. While no place is free, a
batch waits here, and has the place of what ends here, in the order in which
they came. It was not started, so nothing is lost if it waits in vain: it is
refused then.
"""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from distperiodic.core import partition as partition_
from distperiodic.core.refusal import Refusal

#: Seconds for which a batch waits.
PATIENCE = 1.0
# Seconds that a place may be empty between two runs.
_MOMENT = 0.2

#: What ran of this process's own, when.
Marks = Mapping[partition_.Limit, int]

_Item = TypeVar('_Item')


class _Kept(NamedTuple, Generic[_Item]):
    item: _Item
    job: str
    since: float


class _Highest:
    """The highest number of the last moment."""

    __slots__ = ('_begin', '_next', 'value')

    def __init__(self) -> None:
        self.value = 0
        #: The highest since then.
        self._next = 0
        self._begin = float('-inf')

    def see(self, number: int, now: float) -> None:
        age = now - self._begin
        if age > 2 * _MOMENT:
            self.value = self._next = number
            self._begin = now
        elif age > _MOMENT:
            self.value = max(self._next, number)
            self._next, self._begin = number, now
        else:
            self.value = max(self.value, number)
            self._next = max(self._next, number)


class Places(Generic[_Item]):
    """See :mod:`distperiodic.flow.worker.admission`.

    :param limits: of each job.
    """

    def __init__(self, limits: Mapping[
            str, tuple[partition_.Limit, ...]]):
        self._limits = limits
        #: How many run that were begun here and are not over.
        self._here = {limit: 0 for some in limits.values()
                      for limit in some}
        self._elsewhere = {limit: _Highest() for limit in self._here}
        self._kept: collections.deque[_Kept[_Item]] = collections.deque()

    def jobs(self, names: Iterable[str]) -> list[str]:
        """Those to count for the limits of the jobs *names*."""
        if not self._here:
            return []
        return list(dict.fromkeys(
            job for name in names for limit in self._limits[name]
            for job in limit.jobs))

    @property
    def waiting(self) -> list[str]:
        """The jobs of what waits."""
        return list(dict.fromkeys(kept.job for kept in self._kept))

    def full(self, job: str) -> partition_.Limit | None:
        """The limit under which no place for *job* is free; None: none is
        known to be.
        """
        for limit in self._limits[job]:
            if (self._here[limit] + self._elsewhere[limit].value
                    >= limit.most):
                return limit
        return None

    def keep(self, item: _Item, job: str, now: float) -> None:
        """Let *item* wait."""
        self._kept.append(_Kept(item, job, now))

    def take(self, job: str, runs: int) -> None:
        """So many runs of *job* begin."""
        for limit in self._limits[job]:
            self._here[limit] += runs

    def give_back(self, job: str, runs: int) -> None:
        """So many runs of *job* are over."""
        self.take(job, -runs)

    def mark(self) -> Marks:
        """To be taken when the store is asked for a count."""
        return dict(self._here)

    def counted(self, job: str, running: Mapping[str, int],
                mark: Marks, now: float) -> tuple[
                    int, Refusal | None]:
        """These runs went on, anywhere, after what was asked before *mark*.

        :returns: how many of them are too many for *job*, and with what
            code those are refused; 0 and None: none.
        """
        over, refusal = 0, None
        for limit in self._limits[job]:
            number = sum(running.get(of, 0) for of in limit.jobs)
            self._elsewhere[limit].see(number - mark[limit], now)
            if number - limit.most > over:
                over, refusal = number - limit.most, limit.refusal
        return over, refusal

    def next(self) -> _Item | None:
        """The first that waits and has a place now; None: none has."""
        for at, kept in enumerate(self._kept):
            if self.full(kept.job) is None:
                del self._kept[at]
                return kept.item
        return None

    def in_vain(self, now: float) -> list[tuple[_Item, Refusal]]:
        """Those that have waited too long, and how each is refused."""
        over = []
        while self._kept and now - self._kept[0].since > PATIENCE:
            item, job, _ = self._kept.popleft()
            limit = self.full(job) or self._limits[job][0]
            over.append((item, limit.refusal))
        return over
