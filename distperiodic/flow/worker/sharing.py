# SPDX-License-Identifier: Apache-2.0
"""Permission of a worker without ``mode = standby`` to run its partition.

The store gives it for a lease, as long as no worker of the partition is active
(:mod:`distperiodic.core.standby`). No worker becomes active before the lease
has expired.
"""

import logging
from collections.abc import Callable
from collections.abc import Collection

from distperiodic import ports
from distperiodic.core.member import Member
from distperiodic.core.member import identity_of

LOG = logging.getLogger(__name__)

# Number of renewals per lease.
_PER_LEASE = 3
# Fraction of a lease, at its end, in which its holder does not trust it.
_MARGIN = 0.1


class Sharing:
    """The lease under which a worker shares its partition.

    :param granted_at: Monotonic time at which the lease was requested that the
        worker has when it starts, in seconds.
    :param changed: Called when another worker has become active, and when none
        is any more. Its runs are to be cancelled in the first case.
    :param lease: Seconds until the lease expires.
    """

    def __init__(self, partition: str, me: Member, *, granted_at: float,
                 store: ports.StoreQueue, clock: ports.Clock,
                 changed: Callable[[], None], lease: float):
        self._partition = partition
        self._me = me
        self._store = store
        self._clock = clock
        self._changed = changed
        self._lease = lease
        #: When the current lease was requested. The threads that run the work
        #: read it.
        self._granted_at = self._requested_at = granted_at
        self._pending = self._departed = False
        #: Whether another worker is active.
        self.prevented = False

    def trusted(self) -> bool:
        """Return whether this worker may run jobs: none is active."""
        return (not self.prevented and self._clock.monotonic()
                < self._granted_at + self._lease * (1.0 - _MARGIN))

    def sweep(self) -> None:
        """Renew the lease, if that is due. Call this several times a second.
        """
        now = self._clock.monotonic()
        if self._pending or self._departed or (
                now < self._requested_at + self._lease / _PER_LEASE):
            return
        self._requested_at = now
        self._pending = True

        def renew(store: ports.ClaimStore) -> Collection[str]:
            assert store.partitions is not None
            return store.partitions.share(
                self._partition, self._me.process, seconds=self._lease,
                starting=False)

        self._store.submit(
            renew, lambda active: self._answered(active, now), self._failed,
            urgent=True)

    def depart(self) -> None:
        """Record that this worker is gone. Call it after the last run."""
        def work(store: ports.ClaimStore) -> None:
            assert store.partitions is not None
            store.partitions.depart(self._partition, self._me.process)
        # No later renewal may record this worker again.
        self._departed = True
        self._store.submit(work, lambda _: None, urgent=True)

    def _failed(self) -> None:
        self._pending = False

    def _answered(self, active: Collection[str],
                  requested_at: float) -> None:
        self._pending = False
        if not active:
            self._granted_at = requested_at
        if self.prevented == bool(active):
            return
        self.prevented = bool(active)
        if active:
            LOG.warning(
                'partition not shared: partition=%s member=%s active=%s; that '
                'worker has mode = standby, so this one cancels its runs and '
                'starts none; set the same mode in [partition:%s] of all '
                'processes, and restart them', self._partition,
                self._me.identity, ','.join(map(identity_of, active)),
                self._partition)
        else:
            LOG.info('partition shared again: partition=%s member=%s; no '
                     'worker is active, so this one runs its jobs',
                     self._partition, self._me.identity)
        self._changed()
