# SPDX-License-Identifier: Apache-2.0
"""Books and lease keepers.

A book connects jobs with the store that holds their claims. A lease keeper
renews leases in a store.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core.claim import Authority
from distperiodic.core.job import Job
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call


class Book(NamedTuple):
    """Jobs, the store of their claims, and the authority over these claims."""

    authority: Authority
    #: Jobs by name.
    jobs: Mapping[str, Job]
    store: ports.StoreQueue
    #: True if this scheduler grants the runs. False means that the workers
    #: request the grants from the store themselves.
    grants_here: bool
    #: Seconds between two searches for expired leases.
    sweep_interval: float = 0.0
    #: If a process has left its group, its leases are taken over this many
    #: seconds after their last renewal. 0 means that this scheduler does not
    #: search the store for holders that have left.
    silence_timeout: float = 0.0

    @property
    def shared(self) -> bool:
        """True if all members and workers share this store.

        False means that the store holds only the claims of this scheduler.
        """
        return self.authority is Authority.STORE


class LeaseKeeper:
    """Renewal of leases, with at most one pending request per holder.

    :param seconds: Seconds until a renewed lease expires.
    """

    def __init__(self, store: ports.StoreQueue, seconds: float):
        self._calls = store.urgent
        self._seconds = seconds
        #: Holders with a pending renewal request.
        self._pending: set[str] = set()

    def renew(self, holder: str, leases: Sequence[str]
              ) -> Procedure[set[str] | None]:
        """Renew *leases*, unless a renewal for *holder* is still pending.

        :returns: Names of the leases that *holder* still holds. None means
            that a renewal was pending.
        :raises CallFailed: The call can never succeed.
        """
        if holder in self._pending:
            # The store is slow or unreachable. A second request would not be
            # answered earlier.
            return None
        self._pending.add(holder)
        try:
            return (yield from call(
                self._calls, ports.ClaimStore.renew, leases, holder=holder,
                seconds=self._seconds))
        finally:
            self._pending.discard(holder)
