# SPDX-License-Identifier: Apache-2.0
"""Two clocks for a store in a SQLite file: one for leases, one for ticks.

The clock of a database server is under the control of its operator. The wall
clock of the host of a SQLite file, however, may be set at any time. So both
clocks of such a store are derived from the time since the host's boot, which
cannot be set. A row of the database holds the offsets of both clocks from that
time, so all processes of the host agree, even after a restart. The clocks
differ in the way in which they follow the wall clock:

* The lease clock is for leases, buckets and heartbeats. At its first use after
  a boot, it takes the time of the wall clock, unless it would go back. From
  then on it ignores the wall clock.
* The clock for ticks is for all other times. If the wall clock is set
  forward, the clock for ticks follows at once. If the wall clock is set back,
  the clock for ticks runs at half speed until the wall clock has caught up. So
  it never stops, and it never goes back by more than 0.1 s.

::

    shown |          .  wall clock
          |         /
          |        / _-'  half speed, until both meet
          |       /-'
          |      /|    /
          |     / |  /
          |    /  |/  the wall clock was set back
          +-------+------------------------- time since the boot
                 knee
"""

import functools
import logging
import pathlib
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.local.clock import SystemClock

if TYPE_CHECKING:
    # This module loads many modules of which most commands need none.
    from distperiodic import ports

LOG = logging.getLogger(__name__)

_BOOT_ID = pathlib.Path('/proc/sys/kernel/random/boot_id')

# A difference between two clocks is ignored up to this number of microseconds:
# on a busy host, this much time may pass between the two readings. So a clock
# may still go back by up to this much.
_TOLERATED = 100_000
# Maximum microseconds between the readings of the host's two clocks, and
# maximum number of attempts to read them that close together.
_APART = 1_000
_READINGS = 3
# Microseconds after which the state is recorded again even if it has not
# changed. If the wall clock is behind after a boot, both clocks continue from
# the time that was recorded last.
_RECORDED = 60_000_000

# Seconds by which the wall clock may be set forward without a warning.
_WARN_AHEAD = 1.0

#: Names of the SQL functions that are registered with a SQLite connection.
NOW = 'distperiodic_now'
LEASE_NOW = 'distperiodic_lease_now'
TICK_OFFSET = 'distperiodic_tick_offset'
#: Name of the table with the state of the clocks.
TABLE = 'distperiodic_clock'


class ClockReading(NamedTuple):
    """The host's clocks at one moment, in microseconds."""

    #: Id of the boot.
    boot: str
    #: Time since the boot.
    up: int
    #: Time since the epoch.
    wall: int


class ClockState(NamedTuple):
    """Offsets of both clocks from the time since a boot, in microseconds."""

    #: Id of the boot.
    boot: str
    #: Lease clock minus the time since the boot.
    lease: int
    #: Clock for ticks minus the time since the boot, before the knee.
    offset: int
    #: Time since the boot at which the clock for ticks began to run at half
    #: speed. None means that it runs at full speed.
    knee: int | None
    #: Time since the boot at which this state was recorded.
    seen: int

    def now(self, up: int) -> int:
        """Return a lower bound of the clock for ticks at uptime *up*."""
        if self.knee is None or up <= self.knee:
            return self.offset + up
        return self.offset + self.knee + (up - self.knee) // 2

    def at(self, read: ClockReading) -> 'ClockState':
        """Return the state after a reading of the host's clocks."""
        if read.boot != self.boot or read.up < self.seen - _TOLERATED:
            return self._booted(read)
        if self.knee is not None:
            if read.wall < self.now(read.up):
                return self
            return self._replace(
                offset=read.wall - read.up, knee=None, seen=read.up)
        ahead = read.wall - read.up - self.offset
        if ahead > _TOLERATED:
            return self._replace(offset=read.wall - read.up, seen=read.up)
        if ahead < -_TOLERATED:
            return self._replace(knee=read.up, seen=read.up)
        return self

    def _booted(self, read: ClockReading) -> 'ClockState':
        """Return the state after a boot, in which neither clock goes back."""
        last = self.now(self.seen)
        now = max(read.wall, last)
        lease = max(read.wall, self.lease + self.seen)
        return ClockState(read.boot, lease - read.up, now - read.up,
                          None if now == read.wall else read.up, read.up)


_clock = sa.table(TABLE, *map(sa.column, ClockState._fields))

#: State before the first use. The clocks start at the time of the wall clock.
NEW = ClockState('', 0, 0, None, 0)


def now(state: ClockState, read: ClockReading) -> int:
    """Return the time of the clock for ticks."""
    return max(read.wall, state.at(read).now(read.up))


def lease_now(state: ClockState, read: ClockReading) -> int:
    """Return the time of the lease clock."""
    return state.at(read).lease + read.up


def tick_offset(state: ClockState, read: ClockReading) -> int:
    """Return the time of the clock for ticks minus that of the lease clock.

    Both are computed from one reading of the host's clocks: between two
    readings, any time may pass.
    """
    return now(state, read) - lease_now(state, read)


class HostClock:
    """Both clocks, with their state in a database that only one host uses."""

    def __init__(self, clock: 'ports.Clock | None' = None):
        self._clock = clock or SystemClock()
        self._boot = _boot_id()
        #: The state that was last read from the database.
        self._last_state: ClockState | None = None

    def read(self) -> ClockReading:
        """Read the host's clocks."""
        best: tuple[int, ClockReading] | None = None
        for _ in range(_READINGS):
            before = round(self._clock.monotonic() * 1e6)
            wall = self._clock.now()
            after = round(self._clock.monotonic() * 1e6)
            if best is None or after - before < best[0]:
                best = after - before, ClockReading(
                    self._boot, (before + after) // 2, wall)
            if best[0] <= _APART:
                break
        assert best is not None
        return best[1]

    def register(self, connection: Any) -> None:
        """Register the SQL functions of the clocks with *connection*."""
        for name, value in ((NOW, now), (LEASE_NOW, lease_now),
                            (TICK_OFFSET, tick_offset)):
            connection.create_function(
                name, len(ClockState._fields), functools.partial(
                    self._answer, value))

    def _answer(self, value: Any, *row: Any) -> int:
        found: int = value(ClockState(*row), self.read())
        return found

    def keep(self, connection: sa.Connection) -> None:
        """Record the state of both clocks, if the record is out of date.

        Call this method in a transaction that writes.
        """
        last = self._last_state
        if last is not None and last.knee is None and _is_recorded(
                last, self.read()):
            return
        state = _state_in(connection)
        # Read the clocks of the host after the row, so that the reading is
        # never older than the recorded state.
        read = self.read()
        if not _is_recorded(state, read):
            _warn(state, read)
            state = state.at(read)._replace(seen=read.up)
            connection.execute(sa.update(_clock).values(**state._asdict()))
        self._last_state = state

    def now_in(self, session: Any) -> int:
        """Return the time of the clock for ticks, read over *session*."""
        return now(_state_in(session), self.read())


def _warn(state: ClockState, read: ClockReading) -> None:
    """Log a warning if the wall clock was set."""
    after = state.at(read)
    if state.boot != after.boot:
        return
    ahead = (read.wall - state.now(read.up)) / 1e6
    if after.knee is not None and state.knee is None:
        LOG.warning(
            'wall clock set back: seconds=%.1f; until the wall clock '
            'has caught up, jobs run at half their rate; no tick occurs '
            'twice; leases are not affected', -ahead)
    elif after.offset != state.offset and ahead > _WARN_AHEAD:
        LOG.warning(
            'wall clock set forward: seconds=%.1f; the misfire policies '
            'decide which of the missed ticks run; leases are not '
            'affected', ahead)


def _is_recorded(state: ClockState, read: ClockReading) -> bool:
    """Return whether *state*, read from the database, is up to date."""
    return state.at(read) is state and read.up - state.seen < _RECORDED


def _state_in(connection: Any) -> ClockState:
    row = connection.execute(sa.select(_clock)).one_or_none()
    return NEW if row is None else ClockState(*row)


@functools.cache
def _boot_id() -> str:
    """Return the id of the host's boot, or '' if it cannot be read."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ''
