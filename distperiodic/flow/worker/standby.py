# SPDX-License-Identifier: Apache-2.0
"""Participation of a worker in the election of the active worker.

:mod:`distperiodic.core.standby` decides which request is next. This module
sends the requests to the store, one at a time. Through callbacks, it informs
the rest of the worker when the worker becomes active, and when it is no longer
active.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.core.member import Member
from distperiodic.core.member import identity_of
from distperiodic.core.standby import Active
from distperiodic.core.standby import Election
from distperiodic.core.standby import ElectionRequest
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.core.standby import Standing
from distperiodic.flow.procedure import CallFailed
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call_partitions
from distperiodic.flow.procedure import perform
from distperiodic.flow.procedure import start

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RoleCallbacks:
    """Functions by which the role of a worker affects its runs."""

    #: Returns True if runs of this worker have not ended.
    busy: Callable[[], bool]
    #: Called when this worker may have gained or lost the right to start runs.
    changed: Callable[[], None]
    #: Called when the runs of this worker must be cancelled: another worker
    #: has taken over the partition, or may have done so. This may also happen
    #: while this worker is leaving.
    lost: Callable[[], None]


class Standby:
    """Participation of this worker in the election of the active worker.

    :param members: Returns the identities of the workers in the group, by
        process. None means that the workers are not known for certain. The
        threads of the store queue call this function, too.
    :param lease: Seconds until the lease of the active worker expires.
    :param preferred: Host or member that takes over first. Empty means that no
        worker is preferred.
    """

    def __init__(self, partition: str, me: Member, *,
                 store: ports.StoreQueue, clock: ports.Clock,
                 members: Callable[[], Mapping[str, str] | None],
                 callbacks: RoleCallbacks, lease: float,
                 preferred: str = ''):
        self._partition = partition
        self._me = me
        self._worker = PartitionWorker(partition, me.process)
        self._calls = store.urgent
        self._clock = clock
        self._members = members
        self._callbacks = callbacks
        self._lease = lease
        self._election = Election(me, lease=lease, preferred=preferred)
        self._role = Role.STARTING
        self._closed = self._departed = False
        #: The processes that last prevented this worker from becoming active.
        self._shared: tuple[str, ...] = ()
        #: True if the processes in _shared were logged.
        self._reported = False
        #: True if *lost* was called after the last answer, because the lease
        #: had expired while the members were unknown.
        self._cut_off = False
        #: This worker and its fence, if it is the active worker. The threads
        #: of the pool read this attribute, so it is only replaced as a whole.
        self._active: Active | None = None

    @property
    def role(self) -> Role:
        return self._role

    def active(self) -> Active | None:
        """Return this worker and its fence, for requests that start runs.

        None means that this worker must not start any run.
        """
        return self._active if self.trusted() else None

    def trusted(self) -> bool:
        """Return whether this worker is certainly the active worker."""
        return self._election.trusted(self._clock.monotonic())

    def hurry(self) -> None:
        """Send the next request at once.

        Call this when the members of the group have changed, or when an
        operator has chosen the next active worker.
        """
        self._election.hurry()
        self.sweep()

    def sweep(self) -> None:
        """Send the next request if a request is due.

        Call this several times per second.
        """
        if self._departed:
            return
        now = self._clock.monotonic()
        members = self._members()
        if (members is None and not self._cut_off
                and self._election.expired(now)):
            # The lease has expired. The members are unknown, so other workers
            # may regard this worker as gone, and take over before the store
            # answers.
            self._cut_off = True
            LOG.warning(
                'partition uncertain: partition=%s member=%s; the lease has '
                'expired before the store answered, and the members of the '
                'group are unknown, so the runs of this worker are cancelled',
                self._partition, self._me.identity)
            self._callbacks.lost()
        request = self._election.next(now, members, self._callbacks.busy())
        self._note()
        if request is None:
            return
        self._election.requested(request, now)
        start(self._request(request, now))

    def _request(self, request: ElectionRequest,
                 now: float) -> Procedure[None]:
        try:
            standing = yield from perform(
                self._calls, functools.partial(self._perform, request))
        except CallFailed:
            self._election.failed()
        else:
            self._answered(standing, now)

    def leave(self) -> None:
        """Start no more runs, and release the partition after the last run."""
        self._election.leave()
        self._note()

    def close(self) -> None:
        """Leave as in :meth:`leave`, and ignore later calls of :meth:`rejoin`.

        Call this when the process stops.
        """
        self._closed = True
        self.leave()

    def rejoin(self) -> None:
        """Take part in the election again after :meth:`leave`."""
        if not self._closed:
            self._election.rejoin()

    def depart(self) -> None:
        """Record in the store that this worker has ended.

        Call this after its last run.
        """
        self._departed = True
        # The store queue executes the calls in order, so this call takes
        # effect after any heartbeat that is still in the queue.
        start(call_partitions(
            self._calls, ports.PartitionStore.depart, self._worker))

    def _perform(self, request: ElectionRequest,
                 store: ports.ClaimStore) -> Standing:
        partitions, worker = store.partitions, self._worker
        assert partitions is not None
        if request is ElectionRequest.RELEASE:
            return partitions.release(worker, fence=self._election.fence)
        if request is ElectionRequest.ACQUIRE:
            # The store may have been unreachable since the election decided to
            # send this request, so check the conditions again.
            standing = self._election.standing
            members = self._members()
            if standing is not None and (
                    not standing.worker or members is not None and (
                        standing.worker not in members
                        or standing.promoted == self._me.identity)):
                return partitions.acquire(
                    worker, fence=standing.fence, seconds=self._lease,
                    members=None if members is None
                    else members.keys() - {worker.worker})
        return partitions.beat(worker, self._role, seconds=self._lease)

    def _wait_for(self, shared: tuple[str, ...]) -> None:
        """Postpone the next attempt, because some workers take no part in the
        election.

        :param shared: These workers. They are logged only if the next attempt
            finds the same workers, because the first heartbeat of a new worker
            may still be under way.
        """
        self._election.postpone(self._clock.monotonic())
        if shared != self._shared:
            self._shared, self._reported = shared, False
        elif not self._reported:
            self._reported = True
            LOG.warning(
                'partition shared: partition=%s member=%s workers=%s; these '
                'workers run its jobs without mode = standby, so this one '
                'does not become active beside them; stop them, or set the '
                'same mode in [partition:%s] of all processes',
                self._partition, self._me.identity,
                ','.join(map(identity_of, shared)), self._partition)

    def _answered(self, standing: Standing, requested_at: float) -> None:
        if standing.shared:
            self._wait_for(standing.shared)
        held, fence = self._election.holds, self._election.fence
        self._cut_off = False
        self._election.answered(standing, requested_at)
        # Compare the fences, because the worker that has taken over may
        # already have released the partition.
        lost = held and standing.fence != fence
        if lost:
            LOG.warning(
                'partition lost: partition=%s member=%s; another worker has '
                'taken over', self._partition, self._me.identity)
        self._note()
        if lost:
            self._callbacks.lost()
        # The answer may show that the partition is free. Take it over now and
        # not at the next sweep, as the heartbeat itself may have waited for a
        # sweep after its interval.
        self.sweep()

    def _note(self) -> None:
        """Call *changed* if the role has changed."""
        role = self._election.role
        if role is self._role:
            return
        self._role = role
        if role is Role.ACTIVE:
            self._active = Active(
                self._partition, self._me.process, self._election.fence)
            LOG.info('partition active: partition=%s member=%s fence=%d; '
                     'this worker runs its jobs', self._partition,
                     self._me.identity, self._election.fence)
        else:
            self._active = None
            if role is Role.STANDBY:
                LOG.info('partition standby: partition=%s member=%s; this '
                         'worker waits to take over', self._partition,
                         self._me.identity)
            else:
                LOG.info('partition stopping: partition=%s member=%s; this '
                         'worker finishes its runs and releases the '
                         'partition', self._partition, self._me.identity)
        self._callbacks.changed()
