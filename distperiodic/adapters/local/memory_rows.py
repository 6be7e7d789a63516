# SPDX-License-Identifier: Apache-2.0
"""The rows of claims in memory."""

import array
import bisect
import collections
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from distperiodic.core import due
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import FENCES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.ring import positions_of

new_tuple = tuple.__new__
# Number of delisted objects of a job above which some are forgotten. A
# delisted object needs little memory, and forgetting requires a pass over all
# rows.
KEPT = 10_000
# Maximum number of ticks of a job for which the number of settled objects is
# kept.
TICKS = 1000


class LeaseRow:
    """A lease, with its holder, its claims and its expiry time."""

    __slots__ = ('holder', 'id', 'job', 'retry', 'rows', 'tick', 'until')

    def __init__(self, lease: str, job: str, tick: int, holder: str,
                 until: int):
        self.id = lease
        self.job = job
        self.tick = tick
        self.holder = holder
        self.until = until
        #: True if the claims wait for a retry.
        self.retry = False
        self.rows: dict[str, ClaimRow] = {}


class EndedClaim(NamedTuple):
    """An object without an open claim.

    Objects whose claims ended in the same way at the same time share one
    instance.
    """

    #: Last tick for which the object was claimed. If the object was never
    #: claimed, this is its first watermark.
    tick: int
    settled: int
    #: None means not listed.
    since: int | None
    attributes: Attributes
    ended: int | None
    started: int | None


class ClaimRow:
    """A claim that has not ended, and its object.

    :param before: The row of the object that this row replaces.
    """

    __slots__ = ('attempt', 'attributes', 'ended', 'fence', 'lease', 'losses',
                 'progress', 'settled', 'since', 'started', 'state', 'tick',
                 'waiting')

    def __init__(self, claim: Claim, lease: LeaseRow,
                 before: 'ClaimRow | EndedClaim'):
        _, self.fence, self.attempt, tick, _, self.waiting, self.losses = claim
        self.tick = self.settled = tick
        self.state = State.CLAIMED
        self.lease = lease
        self.progress: str | None = None
        self.since: int | None = before.since
        self.attributes: Attributes = before.attributes
        self.ended: int | None = before.ended
        self.started: int | None = before.started


class JobRows(dict[str, 'ClaimRow | EndedClaim']):
    """The objects of one job.

    An object with an open claim has a ClaimRow, and any other object has an
    EndedClaim. There are two exceptions, in which the ClaimRow is kept when
    the claim ends. In the first, the fence cannot be derived from the tick,
    because the clock was set back. In the second, the claim had more than one
    attempt.
    """

    __slots__ = ('_keys', '_positions', '_unplaced', 'delisted', 'floor',
                 'forget_at', 'settled')

    def __init__(self) -> None:
        super().__init__()
        #: Delisted objects, each with the instant of the catalogue reading
        #: that no longer contained the object.
        self.delisted: dict[str, int] = {}
        #: Number of delisted objects above which delist() forgets some.
        self.forget_at = KEPT
        #: A lower bound for new fences, above the fences of all forgotten
        #: objects.
        self.floor = 0
        #: Number of objects that were claimed or skipped, by tick.
        self.settled: collections.Counter[int] = collections.Counter()
        # Objects sorted by position, and new objects that are not sorted yet.
        self._positions = array.array('q')
        self._keys: list[str] = []
        self._unplaced: list[str] = []

    def add(self, key: str, row: 'ClaimRow | EndedClaim') -> None:
        """Add a new object."""
        self[key] = row
        self._unplaced.append(key)

    def settle(self, tick: int, number: int) -> None:
        """Count *number* more objects as claimed or skipped for *tick*."""
        self.settled[tick] = self.settled.get(tick, 0) + number
        if len(self.settled) > TICKS:
            for old in sorted(self.settled)[:TICKS // 2]:
                del self.settled[old]

    def between(self, low: int, high: int,
                before: int | None) -> Iterator[due.Row]:
        """Yield listed objects from *low* to *high*, sorted by position.

        :param before: see :meth:`distperiodic.ports.ClaimStore.rows`.
        """
        if self._unplaced:
            self._place([*zip(self._positions, self._keys, strict=True), *zip(
                positions_of(self._unplaced), self._unplaced,
                strict=True)])
        for at in range(bisect.bisect_left(self._positions, low),
                        len(self._positions)):
            position = self._positions[at]
            if position > high:
                return
            key = self._keys[at]
            row = self[key]
            if row.since is not None and (
                    before is None or row.settled < before
                    or row.attributes.rule != ''):
                yield listed_row(key, position, row, row.since)

    def _place(self, found: list[tuple[int, str]]) -> None:
        found.sort()
        self._positions = array.array('q', [place for place, _ in found])
        self._keys = [key for _, key in found]
        self._unplaced = []

    def delist(self, key: str, at: int) -> None:
        """Record one more delisted object; if there are many, forget old ones.

        A delisted object is forgotten if it has no open claim and its
        watermark is before *at*. If it is listed again, its schedule applies
        from a later instant, so its old ticks are not claimed again.
        """
        self.delisted[key] = at
        if len(self.delisted) <= self.forget_at:
            return
        for key in [key for key, row in self.items() if (
                row.since is None and row.settled < at and (
                    isinstance(row, EndedClaim) or row.state in ENDINGS))]:
            row = self.pop(key)
            self.floor = max(
                self.floor, first_fence(row.tick) + FENCES
                if isinstance(row, EndedClaim) else row.fence + 1)
        self._place([(place, key) for place, key in zip(
            self._positions, self._keys, strict=True) if key in self])
        self._unplaced = [key for key in self._unplaced if key in self]
        self.delisted = {key: at for key, at in self.delisted.items()
                         if key in self}
        self.forget_at = max(KEPT, 2 * len(self.delisted))


def listed_row(key: str, position: int, row: ClaimRow | EndedClaim,
            since: int) -> due.Row:
    free = isinstance(row, EndedClaim) or row.state in ENDINGS
    began = row.started
    if isinstance(row, ClaimRow):
        if row.state is State.CLAIMED:
            began = None
        elif row.attempt > 1:
            began = row.tick
    return due.Row(key, position, row.settled, since, row.attributes,
                   free, row.ended, began)


def row_with(row: ClaimRow | EndedClaim,
             **values: Any) -> ClaimRow | EndedClaim:
    """Return *row* with the given values; a ClaimRow is changed in place."""
    if isinstance(row, EndedClaim):
        return row._replace(**values)
    for name, value in values.items():
        setattr(row, name, value)
    return row
