# SPDX-License-Identifier: Apache-2.0
"""Estimate of the store's clock in one process.

Members that share a store use the store's clock. A member queries this clock
once a minute. It repeats the query after a second if the answer is unreliable,
or if its own wall clock was set during the last minute. Between two queries,
the member measures the time since the last query with its own monotonic clock.
So the member's wall clock does not affect the estimate.

The estimate never goes back. If the store's clock turns out to be behind the
estimate, the estimate advances at half speed until both are equal.
"""

import logging
from collections.abc import Callable

from distperiodic import ports
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import log_throttle
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import perform
from distperiodic.flow.procedure import start

LOG = logging.getLogger(__name__)

# Seconds between two queries. In that time, a quartz clock drifts by less than
# 0.01 s.
_INTERVAL = 60.0
# Seconds until the next query after an unreliable answer. Also the maximum
# response time of a reliable answer, because a slow answer may be wrong by
# half of its response time. An answer that is behind the estimate is
# unreliable, too, because an operator may be correcting the store's clock at
# that moment.
_RETRY_AFTER = 1.0
# A query sends up to _QUERIES requests, because the first request may be slow:
# it may have to open a connection. After a response that took less than _FAST
# seconds, no further request is sent.
_QUERIES, _FAST = 3, 0.005
# Seconds by which a reliable answer may be behind the estimate.
_EXPECTED = 0.1
# Seconds by which two clocks may differ without a warning.
_TOLERATED = 1.0


class StoreClock:
    """Estimate of the store's time; see :class:`distperiodic.ports.Clock`.

    :param known: Called when the store's time becomes known. Until then,
        :meth:`now` returns the time of the local wall clock.
    """

    def __init__(self, clock: ports.Clock, store: ports.StoreQueue,
                 known: Callable[[], None]):
        self._clock = clock
        self._store = store
        self._on_known = known
        #: The store's time when the monotonic clock was zero. None means
        #: unknown.
        self._base: Instant | None = None
        #: Response time of the last query, in seconds.
        self._took = 0.0
        #: The estimate at the last answer, and the monotonic clock at that
        #: moment, both in microseconds.
        self._shown: tuple[Instant, Instant] = 0, 0
        #: The store's time at which an estimate that was ahead is right again.
        self._meet: Instant = 0
        self._next = clock.monotonic()
        self._pending = False
        #: Monotonic time in seconds. Until then, the store's clock is queried
        #: every second instead of every minute.
        self._frequent_until = self._next
        #: Difference between the local wall clock and the monotonic clock at
        #: the last query.
        self._wall = self._wall_base()
        self._throttle = log_throttle.LogThrottle(clock, 600.0)

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
        """Query the store's clock if a query is due.

        Call this several times per second.
        """
        now = self._clock.monotonic()
        if abs(self._wall_base() - self._wall) > _TOLERATED * SECOND:
            # The local wall clock was set. The same may happen to the store's
            # clock later, so query it often for a while.
            self._frequent_until = now + _INTERVAL
            self.sync()
        elif now >= self._next:
            self.sync()

    def sync(self) -> None:
        """Query the store's clock now, unless a query is already pending.

        Call this when the estimate may be wrong.
        """
        if self._pending:
            return
        self._pending = True
        self._wall = self._wall_base()
        start(self._sync())

    def _sync(self) -> Procedure[None]:
        try:
            base, took = yield from perform(self._store, self._measure)
        except CallFailed:
            self._next = self._clock.monotonic() + _RETRY_AFTER
        else:
            self._measured(base, took)
        finally:
            self._pending = False

    def _up(self) -> Instant:
        return int(self._clock.monotonic() * SECOND)

    def _wall_base(self) -> Instant:
        return self._clock.now() - self._up()

    def _measure(self, store: ports.ClaimStore) -> tuple[Instant, float]:
        """Return the time of the store when the monotonic clock was zero.

        The answer with the shortest response time is used (Cristian's
        algorithm, Distributed Computing 3, 1989).

        :returns: The store's time, and the response time in seconds.
        """
        best: tuple[Instant, float] | None = None
        for _ in range(_QUERIES):
            before = self._clock.monotonic()
            now = store.now()
            took = self._clock.monotonic() - before
            if best is None or took < best[1]:
                # The store read its clock between the request and the answer.
                # Assume the middle.
                best = now - round((before + took / 2) * SECOND), took
            if took < _FAST:
                break
        assert best is not None
        return best

    def _measured(self, base: Instant, took: float) -> None:
        first = self._base is None
        self._took = took
        up = self._up()
        self._shown = (base + up if first else self.now()), up
        self._base = base
        self._meet = 2 * self._shown[0] - base - up
        behind = (self._shown[0] - base - up) / SECOND
        now = self._clock.monotonic()
        reliable = (took <= _RETRY_AFTER and behind <= _EXPECTED
                    and now >= self._frequent_until)
        self._next = now + (_INTERVAL if reliable else _RETRY_AFTER)
        self._compare_with_wall()
        if behind > _TOLERATED + took and self._throttle.allow('set back'):
            LOG.warning(
                'store clock set back: seconds=%.1f; until the clock has '
                'caught up, ticks come at half speed, and the store refuses '
                'ticks that its clock has not reached; refused ticks run '
                'later', behind)
        if first:
            self._on_known()

    @property
    def ahead(self) -> float | None:
        """Seconds by which the local wall clock is ahead of the store's clock.

        None means unknown: the store answered never, or slowly.
        """
        return None if self._base is None or self._took > _TOLERATED else (
            self._wall_base() - self._base) / SECOND

    def _compare_with_wall(self) -> None:
        ahead = self.ahead
        if ahead is None or abs(ahead) <= _TOLERATED + self._took:
            return
        if self._throttle.allow('skew'):
            LOG.warning(
                'clock differs: ahead=%.1f; jobs follow the clock of the '
                'store; correct the clock of this machine, or that of the '
                'database', ahead)
