# SPDX-License-Identifier: Apache-2.0
"""Two clocks for a store that lives on one host, in a SQLite file.

The clock of a database server is set by its operator, but the clock of the
host of a SQLite file may be set by anyone at any time. So two clocks are
derived from the time since the host booted, which cannot be set. A row of the
database holds their offsets, so that all processes of the host agree, also
after a restart:

* The lease clock starts at the wall clock on its first use after a boot, and
  ignores the wall clock from then on.
* The other clock serves everything else. It follows the wall clock forward at
  once. If the wall clock is set back, this clock runs at half speed until the
  wall clock has caught up. So it neither stops nor shows a time twice.

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
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import tables

LOG = logging.getLogger(__name__)

_BOOT_ID = pathlib.Path('/proc/sys/kernel/random/boot_id')

# Microseconds by which a clock may still go back. A busy host may let that
# much time pass between two readings, so smaller differences are ignored.
_TOLERATED = 100_000
# Maximum microseconds between the readings of two clocks, and the number of
# attempts to read them so close together.
_APART = 1_000
_READINGS = 3
# Microseconds after which the state is recorded again even without a change.
# If the wall clock is behind after a boot, the clocks continue from the
# recorded time.
_RECORDED = 60_000_000

# Seconds by which the wall clock may be set forward without a warning.
_WARN_AHEAD = 1.0

#: Names of the SQL functions that are registered with a SQLite connection.
NOW = 'distperiodic_now'
LEASE_NOW = 'distperiodic_lease_now'
_clock = tables.clock


class Reading(NamedTuple):
    """The host's clocks at one moment, in microseconds."""

    #: Id of the boot.
    boot: str
    #: Time since the boot.
    up: int
    #: Time since the epoch.
    wall: int


class State(NamedTuple):
    """The offsets of both clocks from the time since a boot; microseconds."""

    #: Id of the boot.
    boot: str
    #: Lease clock minus the time since the boot.
    lease: int
    #: The other clock minus the time since the boot, before the knee.
    offset: int
    #: Time since the boot from which the other clock runs at half speed. None
    #: means that the wall clock was not set back.
    knee: int | None
    #: Time since the boot at which this state was recorded.
    seen: int

    def now(self, up: int) -> int:
        """Return a lower bound of the clock for ticks at uptime *up*."""
        if self.knee is None or up <= self.knee:
            return self.offset + up
        return self.offset + self.knee + (up - self.knee) // 2

    def at(self, read: Reading) -> 'State':
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

    def _booted(self, read: Reading) -> 'State':
        """Return the state after a boot, in which neither clock goes back."""
        last = self.now(self.seen)
        now = max(read.wall, last)
        lease = max(read.wall, self.lease + self.seen)
        return State(read.boot, lease - read.up, now - read.up,
                     None if now == read.wall else read.up, read.up)


#: State before the first use: the clocks start at the wall clock.
NEW = State('', 0, 0, None, 0)


def now(state: State, read: Reading) -> int:
    """Return the clock for ticks."""
    return max(read.wall, state.at(read).now(read.up))


def lease_now(state: State, read: Reading) -> int:
    """Return the clock for leases."""
    return state.at(read).lease + read.up


class HostClock:
    """Both clocks, with their state in a database that one host uses."""

    def __init__(self, clock: ports.Clock | None = None):
        self._clock = clock or SystemClock()
        self._boot = _boot_id()
        #: The state that was last read from the database.
        self._last_state: State | None = None

    def read(self) -> Reading:
        """Read the host's clocks."""
        best: tuple[int, Reading] | None = None
        for _ in range(_READINGS):
            before = round(self._clock.monotonic() * 1e6)
            wall = self._clock.now()
            after = round(self._clock.monotonic() * 1e6)
            if best is None or after - before < best[0]:
                best = after - before, Reading(
                    self._boot, (before + after) // 2, wall)
            if best[0] <= _APART:
                break
        assert best is not None
        return best[1]

    def register(self, connection: Any) -> None:
        """Add the functions of this module to a connection of sqlite3."""
        for name, value in (NOW, now), (LEASE_NOW, lease_now):
            connection.create_function(
                name, len(State._fields), functools.partial(
                    self._answer, value))

    def _answer(self, value: Any, *row: Any) -> int:
        found: int = value(State(*row), self.read())
        return found

    def keep(self, connection: sa.Connection) -> None:
        """Record changes of the host's clocks, in a transaction that writes.
        """
        last = self._last_state
        if last is not None and last.knee is None and _is_recorded(
                last, self.read()):
            return
        state = _state_in(connection)
        # Read the clocks after the row, so that they are never older.
        read = self.read()
        if not _is_recorded(state, read):
            _warn(state, read)
            state = state.at(read)._replace(seen=read.up)
            connection.execute(sa.update(_clock).values(**state._asdict()))
        self._last_state = state

    def now_in(self, session: Any) -> int:
        """Return the clock for ticks, in a session of the caller."""
        return now(_state_in(session), self.read())


def _warn(state: State, read: Reading) -> None:
    """Log a warning if the wall clock was set."""
    after = state.at(read)
    if state.boot != after.boot:
        return
    ahead = (read.wall - state.now(read.up)) / 1e6
    if after.knee is not None and state.knee is None:
        LOG.warning(
            'wall clock set back: seconds=%.1f; until the wall clock '
            'has caught up, ticks come at half speed; no tick comes twice; '
            'leases are not affected', -ahead)
    elif after.offset != state.offset and ahead > _WARN_AHEAD:
        LOG.warning(
            'wall clock set forward: seconds=%.1f; the misfire policies '
            'decide which of the ticks in between run; leases are not '
            'affected', ahead)


def _is_recorded(state: State, read: Reading) -> bool:
    """Return whether the row is up to date."""
    return state.at(read) is state and read.up - state.seen < _RECORDED


def _state_in(connection: Any) -> State:
    row = connection.execute(sa.select(_clock)).one_or_none()
    return NEW if row is None else State(*row)


@functools.cache
def _boot_id() -> str:
    """Return the id of the host's boot, or '' if the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ''
