# SPDX-License-Identifier: Apache-2.0
"""Books and lease keepers.

A book connects jobs with the store that holds their claims. A lease keeper
renews leases in a store.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core.claim import Authority
from distperiodic.core.job import Job


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
        self._store = store
        self._seconds = seconds
        #: Holders with a pending renewal request.
        self._pending: set[str] = set()

    def renew(self, holder: str, leases: Sequence[str],
              renewed: Callable[[set[str]], None]) -> None:
        """Renew *leases*, unless a renewal for *holder* is still pending.

        :param renewed: Receives the names of the leases that *holder* still
            holds.
        """
        if holder in self._pending:
            # The store is slow or unreachable. A second request would not be
            # answered earlier.
            return
        self._pending.add(holder)

        def answered(held: set[str]) -> None:
            self._pending.discard(holder)
            renewed(held)

        def failed() -> None:
            self._pending.discard(holder)
        self._store.submit(
            lambda store: store.renew(
                leases, holder=holder, seconds=self._seconds),
            answered, failed, urgent=True)
