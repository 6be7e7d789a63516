# SPDX-License-Identifier: Apache-2.0
"""The permission to run a partition, for a worker without ``mode = standby``.

Other workers of the partition may have ``mode = standby``, by mistake or
during a change of the configuration. If none of these is active, the store
grants the permission for the duration of a lease
(:mod:`distperiodic.core.standby`). While another worker is standing by, the
store also refuses the permission to a worker that starts. No other worker
becomes active before the lease has expired or its holder has departed.
"""

import logging
from collections.abc import Callable
from collections.abc import Collection

from distperiodic import ports
from distperiodic.core.member import Member
from distperiodic.core.member import identity_of
from distperiodic.core.standby import PartitionWorker
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call_partitions
from distperiodic.flow.procedure import start

LOG = logging.getLogger(__name__)

# Number of renewals per lease.
_PER_LEASE = 3
# The last part of a lease, as a fraction of its duration, in which the holder
# no longer trusts the lease.
_MARGIN = 0.1


class Sharing:
    """The lease under which a worker shares its partition.

    :param granted_at: Monotonic time in seconds at which the first lease was
        requested. The worker has this lease when it starts.
    :param changed: Called when :attr:`prevented` has changed. If the attribute
        is True, this callback must cancel the runs of this worker.
    :param lease: Seconds until the lease expires.
    """

    def __init__(self, partition: str, me: Member, *, granted_at: float,
                 store: ports.StoreQueue, clock: ports.Clock,
                 changed: Callable[[], None], lease: float):
        self._partition = partition
        self._me = me
        self._worker = PartitionWorker(partition, me.process)
        self._calls = store.urgent
        self._clock = clock
        self._changed = changed
        self._lease = lease
        #: Monotonic time at which the current lease was requested. The threads
        #: of the pool read this attribute.
        self._granted_at = self._requested_at = granted_at
        self._pending = self._departed = False
        #: True if another worker is active.
        self.prevented = False

    def trusted(self) -> bool:
        """Return whether this worker may run jobs.

        A worker may run jobs while its lease lasts and no other worker is
        active.
        """
        return (not self.prevented and self._clock.monotonic()
                < self._granted_at + self._lease * (1.0 - _MARGIN))

    def sweep(self) -> None:
        """Renew the lease if a renewal is due.

        Call this several times per second.
        """
        now = self._clock.monotonic()
        if self._pending or self._departed or (
                now < self._requested_at + self._lease / _PER_LEASE):
            return
        self._requested_at = now
        start(self._renew(now))

    def _renew(self, now: float) -> Procedure[None]:
        self._pending = True
        try:
            active = yield from call_partitions(
                self._calls, ports.PartitionStore.share, self._worker,
                seconds=self._lease, starting=False)
        finally:
            self._pending = False
        self._answered(active, now)

    def depart(self) -> None:
        """Record in the store that this worker has ended.

        Call this after its last run.
        """
        # Prevent further renewals, which would record this worker again.
        self._departed = True
        start(call_partitions(
            self._calls, ports.PartitionStore.depart, self._worker))

    def _answered(self, active: Collection[str],
                  requested_at: float) -> None:
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
