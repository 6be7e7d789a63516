# SPDX-License-Identifier: Apache-2.0
"""The store's clock, as one process carries it on.

Members that claim in one store go by its clock, and by their own only from
one look at it to the next, with the monotonic clock. So it is no matter what
the wall clock of a member says, nor when somebody sets it.

The time never goes back. Where the store's clock is behind it, it goes on at
half speed until the two meet.
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
# wrong by half of that, or that differs from what was expected: the store's
# clock was set, or runs at another speed for a while.
_SOON = 1.0
# A look asks so often, unless an answer takes less than so many seconds. The
# first answer may have waited for a connection, before the clock was read.
_QUESTIONS, _AT_ONCE = 3, 0.005
# Seconds by which an answer may differ from what was expected.
_EXPECTED = 0.1
# Seconds by which clocks may differ without a warning.
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
        #: What was shown when it was looked at last, and when that was by the
        #: monotonic clock.
        self._shown: tuple[Instant, Instant] = 0, 0
        #: When the store's clock and what is shown meet.
        self._meet: Instant = 0
        self._next = clock.monotonic()
        self._asking = False
        #: Until when it is looked at often.
        self._restless = self._next
        #: What the wall clock was ahead of the monotonic one at that time.
        self._wall = self._wall_base()
        self._told = quiet.Quiet(clock, 600.0)

    def now(self) -> Instant:
        base = self._base
        if base is None:
            return self._clock.now()
        up = int(self._clock.monotonic() * SECOND)
        time = base + up
        if time >= self._meet:
            return time
        shown, then = self._shown
        return shown + (up - then) // 2

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sweep(self) -> None:
        """Look at the store's clock when it is time to; call it often."""
        # The clock that was set may be the store's, too.
        now = self._clock.monotonic()
        if abs(self._wall_base() - self._wall) > _TOLERATED * SECOND:
            # A store that goes by it may change its speed a little later.
            self._restless = now + _EVERY
            self.look()
        elif now >= self._next:
            self.look()

    def look(self) -> None:
        """Look at it now: what it said may not be true any more."""
        if self._asking:
            return
        self._asking = True
        self._wall = self._wall_base()
        self._store.ask(self._compare, self._compared, self._failed)

    def _up(self) -> Instant:
        return int(self._clock.monotonic() * SECOND)

    def _wall_base(self) -> Instant:
        return self._clock.now() - self._up()

    def _compare(self, store: ports.ClaimStore) -> tuple[Instant, float]:
        """What the store's clock says at zero of the monotonic one, by the
        answer that took the least time, and how long that took (Cristian's
        algorithm, Distributed Computing 3, 1989).
        """
        best: tuple[Instant, float] | None = None
        for _ in range(_QUESTIONS):
            before = self._clock.monotonic()
            now = store.now()
            took = self._clock.monotonic() - before
            if best is None or took < best[1]:
                # It was read somewhere in between.
                best = now - round((before + took / 2) * SECOND), took
            if took < _AT_ONCE:
                break
        assert best is not None
        return best

    def _compared(self, answer: tuple[Instant, float]) -> None:
        self._asking = False
        first, (base, took) = self._base is None, answer
        up = self._up()
        self._shown = (base + up if first else self.now()), up
        self._base = base
        self._meet = 2 * self._shown[0] - base - up
        behind = (self._shown[0] - base - up) / SECOND
        now = self._clock.monotonic()
        calm = (took <= _SOON and behind <= _EXPECTED
                and now >= self._restless)
        self._next = now + (_EVERY if calm else _SOON)
        self._compare_with_wall(took)
        if behind > _TOLERATED + took and self._told.may('set back'):
            LOG.warning(
                'store clock set back: seconds=%.1f; ticks come at half '
                'speed until it has caught up, and the store refuses those '
                'that it has not reached; they run then', behind)
        if first:
            self._tell()

    def _compare_with_wall(self, took: float) -> None:
        assert self._base is not None
        ahead = (self._wall_base() - self._base) / SECOND
        if abs(ahead) > _TOLERATED + took and self._told.may('skew'):
            LOG.warning(
                'clock differs: ahead=%.1f; jobs go by the clock of the '
                'store; set the clock of this machine, or that of the '
                'database', ahead)

    def _failed(self) -> None:
        self._asking = False
        self._next = self._clock.monotonic() + _SOON
