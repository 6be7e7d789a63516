# SPDX-License-Identifier: Apache-2.0
"""Deletion of old rows by a running service.

Once a minute, the service begins a turn, in which it deletes all rows that are
too old. It deletes them in small steps. Each step is one call in the queue of
the store, so the store answers other calls between the steps. After a short
time, the turn pauses until the next sweep.
"""

import collections
import logging
from collections.abc import Iterator

from distperiodic import ports
from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep

LOG = logging.getLogger(__name__)

# Seconds between the beginnings of two turns.
INTERVAL = 60.0
# One of this number of turns also deletes ended pauses and old ids of
# exceptions, because it reads more rows than it deletes.
_SURPLUS_EVERY = 10
# Seconds after a sweep during which the turn takes further steps.
_STEPPING = 0.1


class ServicePruner:
    """Deletion of old rows of one group."""

    def __init__(self, store: ports.StoreQueue, clock: ports.Clock,
                 ages: Ages):
        self._store = store
        self._clock = clock
        self._ages = ages
        self._next = clock.monotonic() + INTERVAL
        self._turns = 0
        self._until = 0.0
        #: True while the queue contains a step of this pruner.
        self._submitted = False
        #: Steps of the current turn. None means that there is no turn.
        self._steps: Iterator[PruneStep] | None = None
        #: Deleted rows of the current turn, by kind.
        self._deleted: collections.Counter[str] = collections.Counter()

    def sweep(self) -> None:
        """Continue the current turn, or begin a new turn if it is due."""
        now = self._clock.monotonic()
        if self._submitted or (self._steps is None and now < self._next):
            return
        if self._steps is None:
            self._next = now + INTERVAL
        self._until = now + _STEPPING
        self._submit()

    def _submit(self) -> None:
        self._submitted = True
        self._store.submit(self._step, self._stepped, self._end)

    def _step(self, store: ports.ClaimStore) -> PruneStep | None:
        """Take a step in a thread of the store.

        If a step fails, the iterator of the steps ends. Then the turn ends,
        too.
        """
        if self._steps is None:
            self._steps = store.prune(self._ages._replace(
                surplus=self._ages.surplus
                and self._turns % _SURPLUS_EVERY == 0))
            self._turns += 1
        return next(self._steps, None)

    def _stepped(self, step: PruneStep | None) -> None:
        self._submitted = False
        if step is None:
            self._end()
            return
        self._deleted[step.kind] += step.rows
        if self._clock.monotonic() < self._until:
            self._submit()

    def _end(self) -> None:
        self._submitted = False
        self._steps = None
        for kind, rows in self._deleted.items():
            if rows:
                LOG.debug('old rows deleted: kind=%r rows=%d', kind, rows)
        self._deleted.clear()
