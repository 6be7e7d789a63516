# SPDX-License-Identifier: Apache-2.0
"""Election of the active worker of a partition with ``mode = standby``.

A partition has at most one active worker. One row of the store records this
worker, a fence that grows with each take-over, and the end of the worker's
lease by the store's clock. The heartbeats of the active worker renew the
lease. The other workers stand by. A standby worker takes over if the lease has
expired, and the active worker has left the group or an operator has chosen the
standby worker as the next active one. If the active worker has released the
partition, the row names no worker, and a standby worker can take over at once.

This module decides when a worker sends which request. The store decides
whether the request succeeds.
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core.member import Member

#: Seconds for which a worker waits before it takes over, so that a preferred
#: worker can take over first.
HEAD_START = 0.3
#: Longest interval between two heartbeats, in seconds.
_INTERVAL = 1.0
#: Minimum number of heartbeats per lease.
_PER_LEASE = 5
# Fraction of a lease's duration. In this last part of the lease, the holder no
# longer trusts the lease.
_MARGIN = 0.1


class Role(enum.StrEnum):
    """State of one worker of the partition."""

    #: The store has not answered yet.
    STARTING = 'starting'
    STANDBY = 'standby'
    ACTIVE = 'active'
    #: The worker starts no new runs. An active worker releases the partition
    #: after its last run.
    STOPPING = 'stopping'
    #: The worker is configured without ``mode = standby``. It starts its first
    #: run only if the partition has no worker with ``mode = standby``, and
    #: runs jobs while no worker is active.
    SHARED = 'shared'
    #: The worker has stopped after its last run. The entry of the worker may
    #: still be in the group.
    GONE = 'gone'


class PartitionWorker(NamedTuple):
    """A worker of a partition."""

    partition: str
    #: Name of the process; see :attr:`distperiodic.core.member.Member.process`
    worker: str


class Active(NamedTuple):
    """The active worker of a partition.

    A worker passes this to the store when it starts runs. The store starts
    them only if the worker is still active with this fence.
    """

    partition: str
    #: As in :class:`PartitionWorker`.
    worker: str
    fence: int


class Standing(NamedTuple):
    """The row of a partition at one moment."""

    #: Name of the active process. Empty means that no worker is active.
    worker: str
    #: Number that grows with each take-over.
    fence: int
    #: Seconds, by the store's clock, until the lease of the active worker
    #: expires. 0 or less means that it has expired.
    left: float
    #: Member that an operator has chosen as the next active worker. Empty
    #: means that no member is chosen.
    promoted: str
    #: Processes that may run jobs without ``mode = standby``. If there are
    #: any, the partition was not acquired.
    shared: tuple[str, ...] = ()


class ElectionRequest(enum.Enum):
    """Request of a worker to the store."""

    #: Record a heartbeat, and renew the lease if this worker is active.
    BEAT = enum.auto()
    #: Become the active worker.
    ACQUIRE = enum.auto()
    #: Stop being the active worker.
    RELEASE = enum.auto()


def is_preferred(identity: str, preferred: str) -> bool:
    """Return whether *preferred* names the member *identity* or its host."""
    return bool(preferred) and preferred in (
        identity, identity.rpartition(':')[0])


class Election:
    """One worker's side of the election.

    The caller gets a request from :meth:`next`, sends the request to the
    store, and passes the answer to :meth:`answered`. Only one request may be
    open at a time. All times are seconds of the monotonic clock.

    :param me: This worker.
    :param lease: Seconds until the lease of the active worker expires.
    :param preferred: Host or member that takes over first if several workers
        may take over. Empty means that no worker is preferred.
    """

    def __init__(self, me: Member, *, lease: float, preferred: str = ''):
        self._me = me
        self._lease = lease
        self._preferred = preferred
        self.interval = min(_INTERVAL, lease / _PER_LEASE)
        self.role = Role.STARTING
        self.standing: Standing | None = None
        #: Time at which the request that *standing* answers was sent.
        self._read_at = 0.0
        self._next_beat = 0.0
        self._pending = False
        #: True if a request for release was sent after the last answer. The
        #: store may then have released the partition.
        self._releasing = False
        #: Time since which this worker has been able to take over. None means
        #: that it cannot take over now.
        self._open_since: float | None = None
        #: Time before which this worker does not take over.
        self._postponed_until = 0.0
        self._leaving = False

    @property
    def fence(self) -> int:
        """Fence of the last known take-over."""
        return self.standing.fence if self.standing is not None else 0

    @property
    def holds(self) -> bool:
        """True if the last answer named this worker as the active one."""
        return self._is_mine(self.standing)

    def trusted(self, now: float) -> bool:
        """Return whether this worker is certainly the active one."""
        # Do not use the role: a worker that leaves is STOPPING, even if it was
        # never active.
        return (self.holds and not self._releasing
                and now < self._read_at + self._lease * (1.0 - _MARGIN))

    def expired(self, now: float) -> bool:
        """Return whether the lease of this worker may have expired."""
        return self.holds and now >= self._read_at + self._lease

    def leave(self) -> None:
        """Start no more runs, and release the partition after the last run."""
        self._leaving = True
        self.role = Role.STOPPING

    def rejoin(self) -> None:
        """Take part again after :meth:`leave`."""
        self._leaving = False

    def hurry(self) -> None:
        """Make the next heartbeat due now.

        Call this if the row of the partition may have changed.
        """
        self._next_beat = 0.0

    def next(self, now: float, members: Mapping[str, str] | None,
             busy: bool) -> ElectionRequest | None:
        """Return the request to send now. None means no request.

        :param members: Identities of the workers in the group, by process.
            None means that the workers are not known for certain.
        :param busy: True if runs of this worker have not ended.
        """
        if self._pending:
            return None
        standing = self.standing
        if self._is_mine(standing):
            if self.role is Role.ACTIVE and self._hands_over(
                    standing, members):
                self.role = Role.STOPPING
            if self.role is Role.STOPPING and not busy:
                return ElectionRequest.RELEASE
        elif not self._leaving and self._may_acquire(now, members):
            return ElectionRequest.ACQUIRE
        return ElectionRequest.BEAT if now >= self._next_beat else None

    def requested(self, request: ElectionRequest, now: float) -> None:
        """Record that the *request* of :meth:`next` was sent."""
        self._pending = True
        # From now on another worker may become active, even before the answer
        # arrives. Even a request without an answer may have succeeded.
        self._releasing |= request is ElectionRequest.RELEASE
        self._next_beat = now + self.interval

    def postpone(self, now: float) -> None:
        """Do not take over for one heartbeat interval."""
        self._postponed_until = now + self.interval

    def failed(self) -> None:
        """Record that the request was not answered."""
        self._pending = False

    def answered(self, standing: Standing, requested_at: float) -> None:
        """Record the row that the store returned."""
        self._pending = self._releasing = False
        self.standing = standing
        self._read_at = requested_at
        if self._is_mine(standing):
            if self.role is not Role.STOPPING:
                self.role = Role.ACTIVE
            self._open_since = None
        elif not self._leaving:
            self.role = Role.STANDBY

    def _is_mine(self, standing: Standing | None) -> bool:
        return standing is not None and standing.worker == self._me.process

    def _hands_over(self, standing: Standing | None,
                    members: Mapping[str, str] | None) -> bool:
        """Return whether an operator has chosen another member to take over.

        The choice is valid even if the members are not known for certain. The
        store returns the choice only while the chosen member sends heartbeats.
        The chosen member can acquire a released partition without knowing the
        members.
        """
        return (standing is not None
                and standing.promoted not in ('', self._me.identity)
                and (members is None
                     or standing.promoted in members.values()))

    def _may_acquire(self, now: float,
                     members: Mapping[str, str] | None) -> bool:
        if not self._is_open(now, members):
            self._open_since = None
            return False
        if self._open_since is None:
            self._open_since = now
        return (now >= self._postponed_until
                and now - self._open_since >= self._patience(members))

    def _is_open(self, now: float, members: Mapping[str, str] | None) -> bool:
        """Return whether this worker, to its knowledge, may take over."""
        standing, me = self.standing, self._me
        if (standing is not None and not standing.worker
                and standing.promoted == me.identity and members is None):
            # The previous active worker has released the partition after its
            # last run. The members are needed only to decide whether an active
            # worker has left the group, and there is no active worker.
            return True
        if standing is None or members is None or (
                self._me.process not in members):
            return False
        if not standing.worker:
            return True
        if now < self._read_at + standing.left:
            return False
        # The lease has expired. The active worker must also have left the
        # group, unless an operator has chosen this worker as its successor.
        return (standing.worker not in members
                or standing.promoted == self._me.identity)

    def _patience(self, members: Mapping[str, str] | None) -> float:
        """Return the seconds for which this worker waits before a take-over.

        During this time, a worker that is preferred or that an operator has
        chosen can take over first.
        """
        standing, mine = self.standing, self._me.identity
        assert standing is not None
        if standing.promoted:
            if standing.promoted == mine:
                return 0.0
            assert members is not None
            return self._lease if standing.promoted in members.values() else (
                HEAD_START)
        if not self._preferred or is_preferred(mine, self._preferred):
            return 0.0
        if not standing.fence:
            # The processes of a new partition start one after the other, so
            # wait for the preferred one.
            return self._lease
        assert members is not None
        return HEAD_START if any(
            is_preferred(identity, self._preferred)
            for identity in members.values()) else 0.0
