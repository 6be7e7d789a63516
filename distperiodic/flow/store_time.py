# SPDX-License-Identifier: Apache-2.0
"""The store's clock, as one process carries it on.

Members that claim in one store go by its clock, and by their own only from
one look at it to the next, with the monotonic clock. So it is no matter what
the wall clock of a member says, nor when somebody sets it.
"""

import logging
from collections.abc import Callable

from distperiodic import ports
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import quiet

LOG = logging.getLogger(__name__)

# Seconds between two looks; quartz drifts by less than 0.01 s in that time.
_EVERY = 60.0
# Seconds until the next look after an answer that took long, since it may be
# wrong by half of that.
_SOON = 1.0
#: Seconds by which a wall clock may differ from the store's and nobody is
#: told.
_TOLERATED = 1.0


class StoreTime:
    """See :class:`distperiodic.ports.Clock`.

    :param known: called when the time is known for the first time; until then
        there is none.
    """

    def __init__(self, clock: ports.Clock, store: ports.StoreQueue,
                 known: Callable[[], None]):
        self._clock = clock
        self._store = store
        self._tell = known
        #: The store's clock at zero of the monotonic one. None: not known.
        self._base: Instant | None = None
        self._next = clock.monotonic()
        self._asking = False
        self._told = quiet.Quiet(clock, 600.0)

    def now(self) -> Instant:
        if self._base is None:
            return self._clock.now()
        return self._base + int(self._clock.monotonic() * SECOND)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sweep(self) -> None:
        """Look at the store's clock when it is time to; call it often."""
        if self._clock.monotonic() >= self._next:
            self.look()

    def look(self) -> None:
        """Look at it now: what it said may not be true any more."""
        if self._asking:
            return
        self._asking = True
        self._store.ask(self._compare, self._compared, self._failed)

    def _compare(self, store: ports.ClaimStore) -> tuple[Instant, float]:
        # The store was read somewhere in between.
        before = self._clock.monotonic()
        now = store.now()
        took = self._clock.monotonic() - before
        return now - int((before + took / 2) * SECOND), took

    def _compared(self, answer: tuple[Instant, float]) -> None:
        self._asking = False
        first = self._base is None
        self._base, took = answer
        self._next = self._clock.monotonic() + (
            _EVERY if took <= _SOON else _SOON)
        ahead = (self._clock.now() - self.now()) / SECOND
        if abs(ahead) > _TOLERATED + took and self._told.may('skew'):
            LOG.warning(
                'clock differs: ahead=%.1f; jobs go by the clock of the '
                'store; set the clock of this machine, or that of the '
                'database', ahead)
        if first:
            self._tell()

    def _failed(self) -> None:
        self._asking = False
        self._next = self._clock.monotonic() + _SOON
