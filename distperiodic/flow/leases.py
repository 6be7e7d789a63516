# SPDX-License-Identifier: Apache-2.0
"""Where claims stand, and how the leases on them are renewed."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import job as job_
from distperiodic.core.claim import Authority


class Book(NamedTuple):
    """Where the claims of some jobs stand."""

    authority: Authority
    #: By name.
    jobs: Mapping[str, job_.Job]
    store: ports.StoreQueue
    #: Whether their runs are granted in the scheduler and not by the workers.
    grants_here: bool
    #: Seconds between two looks for leases that ended.
    sweep: float = 0.0
    #: Seconds without a renewal after which the leases of a process that is
    #: gone from its group are taken over. 0: it cannot be known.
    silent: float = 0.0

    @property
    def shared(self) -> bool:
        """Whether all members and workers claim in this store. If not,
        nothing but one scheduler knows of the claims.
        """
        return self.authority is Authority.STORE


class Keeper:
    """Renews leases, with one question at a time for each holder.

    :param seconds: for which they are held from then on.
    """

    def __init__(self, store: ports.StoreQueue, seconds: float):
        self._store = store
        self._seconds = seconds
        #: Holders whose leases the store is asked to renew.
        self._asking: set[str] = set()

    def renew(self, holder: str, leases: Sequence[str],
              renewed: Callable[[set[str]], None]) -> None:
        """Renew *leases*, unless the last answer for *holder* is awaited.

        :param renewed: takes the names of those that it still holds.
        """
        if holder in self._asking:
            # The store is slow, or away.
            return
        self._asking.add(holder)

        def answered(held: set[str]) -> None:
            self._asking.discard(holder)
            renewed(held)

        def failed() -> None:
            self._asking.discard(holder)
        self._store.ask(
            lambda store: store.renew(
                leases, holder=holder, seconds=self._seconds),
            answered, failed, first=True)
