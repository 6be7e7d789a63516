# SPDX-License-Identifier: Apache-2.0
"""The right of a worker to run the jobs of its partition.

With ``mode = standby``, the workers of a partition elect the worker that runs
the jobs of the partition. Otherwise all of its workers run these jobs, unless
one of them is active. Without a store, a worker always has this right.
"""

import contextlib

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.local.store_thread import StoreThread
from distperiodic.core.member import identity_of
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.flow.worker.sharing import Sharing
from distperiodic.flow.worker.standby import RoleCallbacks
from distperiodic.flow.worker.standby import Standby
from distperiodic.ports import Clock


class PartitionRole:
    """Role of one worker among the workers of its partition.

    The main thread of the service calls all methods, unless their docstrings
    say otherwise.

    :param topic: Topic of the jobs that the worker runs.
    :param member: Membership of the worker.
    :param group: Group that the workers of the partition join.
    """

    def __init__(self, topic: str, member: ToozMembership, group: str, *,
                 settings: opts.Settings, store: StoreThread | None,
                 clock: Clock, callbacks: RoleCallbacks):
        self._topic = topic
        self._member = member
        self._group = group
        self._settings = settings
        self._store = store
        self._clock = clock
        self._callbacks = callbacks
        #: None means that the workers share the partition.
        self.standby: Standby | None = None
        #: None means that there is no store, that this worker takes part in an
        #: election, or that the store has not answered yet.
        self._sharing: Sharing | None = None
        partition = settings.partitions.get(topic)
        if store is not None and partition is not None and partition.standby:
            self.standby = Standby(
                topic, member.me, store=store, clock=clock,
                members=self._members, callbacks=callbacks,
                lease=settings.session_timeout,
                preferred=partition.preferred or '')

    def _members(self) -> dict[str, str] | None:
        """Return the identities of the workers in the group, by process.

        None means that the workers are not known for certain.
        """
        try:
            view = self._member.view(self._group)
        except exceptions.ViewUnknown:
            return None
        if not view.trusted(self._clock.monotonic()):
            return None
        return {one.process: one.identity for one in view.members}

    def start_sharing(self, partition: str) -> None:
        """Acquire the right to share the partition if there is no election.

        :param partition: Name of the partition, for the error message.
        :raises ConfigError: Other workers of the partition take part in an
            election.
        :raises StoreUnavailable: The store does not answer.
        """
        if self._store is None or self.standby is not None:
            return
        from distperiodic.adapters.sql.store import SqlClaimStore

        settings = self._settings
        me, granted_at = self._member.me, self._clock.monotonic()
        with contextlib.closing(SqlClaimStore(
                settings.connection, namespace=settings.group)) as store:
            others = store.partitions.share(
                PartitionWorker(self._topic, me.process),
                seconds=settings.session_timeout, starting=True)
        if others:
            # Otherwise this worker and an active worker could both run jobs.
            raise exceptions.ConfigError(
                f'partition {self._topic!r} has mode = standby for '
                f'{", ".join(sorted(map(identity_of, others)))}, but not for '
                'this worker; set the same mode in '
                f'[{opts.PARTITION}{partition}] of all processes, or '
                'stop the others first')
        self._sharing = Sharing(
            self._topic, me, granted_at=granted_at, store=self._store,
            clock=self._clock, changed=self._sharing_changed,
            lease=settings.session_timeout)

    def _sharing_changed(self) -> None:
        self._callbacks.changed()
        if not self.open:
            self._callbacks.lost()

    @property
    def open(self) -> bool:
        """True if schedulers may send work to this worker."""
        if self.standby is not None:
            return self.standby.role is Role.ACTIVE
        return self._sharing is None or not self._sharing.prevented

    def shares(self) -> bool:
        """Return False if this worker may no longer share its partition.

        Threads of the pool call this before each run.
        """
        return self._sharing is None or self._sharing.trusted()

    def hurry(self) -> None:
        """Check the state of the election at once."""
        if self.standby is not None:
            self.standby.hurry()

    def sweep(self) -> None:
        """Send the next request to the store, if one is due.

        Call this several times a second.
        """
        for one in (self.standby, self._sharing):
            if one is not None:
                one.sweep()

    def set_drained(self, drained: bool) -> None:
        """Let another worker take over the partition while *drained*."""
        if self.standby is not None:
            if drained:
                self.standby.leave()
            else:
                self.standby.rejoin()

    def close(self) -> None:
        """Give up the partition for good, because the process stops."""
        if self.standby is not None:
            self.standby.close()

    def depart(self) -> None:
        """Record that this worker has ended. Call this after the last run."""
        for one in (self.standby, self._sharing):
            if one is not None:
                one.depart()
