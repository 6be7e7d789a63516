# SPDX-License-Identifier: Apache-2.0
"""The clocks of a store that lives on one host, in a SQLite file.

A database server's clock is set by whoever runs the server; the clock of the
host of a SQLite file may be set by anybody, at any time. So two clocks are
derived from the time since the host booted, which nobody can set. What they
are derived by is a row of the database, so that all processes of the host
agree, those of now and later ones:

* leases are judged by a clock that knows nothing of the wall clock but its
  time at the first use after a boot;
* everything else goes by a clock that follows the wall clock forward at once.
  Where that is set back it goes on at half speed from where it was, until the
  wall clock has caught up: it neither stops nor shows a time twice.

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
from distperiodic.adapters import clock as clock_
from distperiodic.adapters import tables

LOG = logging.getLogger(__name__)

_BOOT_ID = pathlib.Path('/proc/sys/kernel/random/boot_id')

# Microseconds by which the clock may go back all the same: so much may lie
# between two readings of a busy host.
_TOLERATED = 100_000
# Microseconds for which two clocks may be read apart, and times that it is
# tried again.
_APART = 1_000
_READINGS = 3
# Microseconds after which it is recorded that the host is still up: after a
# boot whose wall clock is behind, the clocks go on from there.
_RECORDED = 60_000_000

# Seconds by which a wall clock may be put right without a warning.
_TOLD = 1.0

#: SQL functions of a connection to SQLite, and what they take.
NOW = 'distperiodic_now'
LEASE_NOW = 'distperiodic_lease_now'
_clock = tables.clock


class Reading(NamedTuple):
    """The clocks of the host at one moment, in microseconds."""

    #: Which boot it is.
    boot: str
    #: Since then.
    up: int
    #: Since the epoch.
    wall: int


class State(NamedTuple):
    """How the clocks follow from the time since a boot; microseconds."""

    boot: str
    #: What the clock of leases is ahead of the time since the boot.
    lease: int
    #: The same of the other one, up to its knee.
    offset: int
    #: The time since the boot from which it runs at half speed. None: the
    #: wall clock was not set back.
    knee: int | None
    #: The time since the boot at which this was recorded.
    seen: int

    def now(self, up: int) -> int:
        """The least that the clock shows at *up*."""
        if self.knee is None or up <= self.knee:
            return self.offset + up
        return self.offset + self.knee + (up - self.knee) // 2

    def at(self, read: Reading) -> 'State':
        """The state as it is once the clocks of the host are read."""
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
        """The state after a boot: neither clock goes back."""
        last = self.now(self.seen)
        now = max(read.wall, last)
        lease = max(read.wall, self.lease + self.seen)
        return State(read.boot, lease - read.up, now - read.up,
                     None if now == read.wall else read.up, read.up)


#: Before the first use: the clocks begin with the wall clock.
NEW = State('', 0, 0, None, 0)


def now(state: State, read: Reading) -> int:
    """The clock that ticks go by."""
    return max(read.wall, state.at(read).now(read.up))


def lease_now(state: State, read: Reading) -> int:
    """The clock that leases go by."""
    return state.at(read).lease + read.up


class HostClock:
    """Both clocks, as the processes of one host keep them in a database."""

    def __init__(self, clock: ports.Clock | None = None):
        self._clock = clock or clock_.SystemClock()
        self._boot = _boot_id()
        #: The row as it was read last.
        self._known: State | None = None

    def read(self) -> Reading:
        """Read the clocks of the host."""
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
        """Give a connection of sqlite3's the functions of this module."""
        for name, value in (NOW, now), (LEASE_NOW, lease_now):
            connection.create_function(
                name, len(State._fields), functools.partial(
                    self._answer, value))

    def _answer(self, value: Any, *row: Any) -> int:
        found: int = value(State(*row), self.read())
        return found

    def keep(self, connection: sa.Connection) -> None:
        """Record what became of the clocks of the host, in a transaction that
        writes.
        """
        known = self._known
        if known is not None and known.knee is None and _is_recorded(
                known, self.read()):
            return
        state = _state_in(connection)
        # Only now, or it could be older than the row.
        read = self.read()
        if not _is_recorded(state, read):
            _warn(state, read)
            state = state.at(read)._replace(seen=read.up)
            connection.execute(sa.update(_clock).values(**state._asdict()))
        self._known = state

    def now_in(self, session: Any) -> int:
        """The clock that ticks go by, in a session of somebody else's."""
        return now(_state_in(session), self.read())


def _warn(state: State, read: Reading) -> None:
    """Log that somebody has set the wall clock."""
    after = state.at(read)
    if state.boot != after.boot:
        return
    ahead = (read.wall - state.now(read.up)) / 1e6
    if after.knee is not None and state.knee is None:
        LOG.warning(
            'wall clock set back: seconds=%.1f; ticks come at half speed '
            'until it has caught up, and none comes twice; leases are not '
            'affected', -ahead)
    elif after.offset != state.offset and ahead > _TOLD:
        LOG.warning(
            'wall clock set forward: seconds=%.1f; what was due meanwhile is '
            'decided by the misfire policies; leases are not affected', ahead)


def _is_recorded(state: State, read: Reading) -> bool:
    """Whether the row need not be written."""
    return state.at(read) is state and read.up - state.seen < _RECORDED


def _state_in(connection: Any) -> State:
    row = connection.execute(sa.select(_clock)).one_or_none()
    return NEW if row is None else State(*row)


@functools.cache
def _boot_id() -> str:
    """Which boot of the host this is; empty where nobody numbers them."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ''
