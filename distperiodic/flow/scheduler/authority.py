# SPDX-License-Identifier: Apache-2.0
"""Rules that determine for which objects a member may start ticks.

If members share a store, the store decides which claim succeeds. The ring only
prevents members from competing for the same objects. So a member may use its
last known view, even if the view is not trusted.

Without a shared store, the ring decides. A member that cannot trust its view
then starts nothing. A member also starts no ticks that were due before its
tenure began or before the last change of the ring, because other members may
have been responsible for these ticks. If a member is alone when it starts, it
may start all ticks since its start.
"""

from collections.abc import Mapping
from typing import NamedTuple
from typing import Protocol

from distperiodic import exceptions
from distperiodic.core import claim
from distperiodic.core.catalogue import Reading
from distperiodic.core.due import Row
from distperiodic.core.job import Job
from distperiodic.core.job_set import JobRings
from distperiodic.core.member import View
from distperiodic.core.ring import Ring
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.late_claims import LateClaimer
from distperiodic.flow.scheduler.listing import Listing
from distperiodic.flow.scheduler.listing import SharedListing
from distperiodic.flow.scheduler.part import Part
from distperiodic.flow.scheduler.timers import Pauses
from distperiodic.flow.wiring import SchedulerWiring


class MembershipChange(NamedTuple):
    """A change of the rings or of this member's tenure."""

    #: False means that other members may have owned the objects of this member
    #: meanwhile. All that this member knows about these objects must then be
    #: discarded.
    stayed: bool
    #: Instant from which ticks of the objects of this member can be due. None
    #: means that the rows of the store record this instant.
    since: Instant | None
    #: True if, without a shared store, other members may have owned the
    #: objects meanwhile. Waiting claims must then be abandoned, and the rows
    #: discarded.
    abandon: bool


class MemberAuthority(Protocol):
    """Rules for one member; see the docstring of this module."""

    #: Class that updates the listing of the store.
    listing: type[Listing]
    #: Class that claims objects which other members have not claimed in time.
    #: None means that members do not share the store.
    late_claimer: type[LateClaimer] | None
    #: Maximum number of rows in one read of the store.
    page: int
    #: Maximum number of objects in one claim.
    piece: int
    #: Pauses after claims.
    pauses: Pauses

    def owns(self, part: Part, row: Row) -> bool:
        """Return whether this member may claim the object of *row* now."""

    def view(self) -> View | None:
        """Return the view if the member may act on the view.

        None means that the member must not start any tick now.
        """

    def change(self, view: View) -> MembershipChange | None:
        """Return the change since the last call, or None if there is none."""

    def ring(self, view: View, job: Job) -> Ring:
        """Return the ring of *job* in *view*, which may have no members."""

    def must_read_again(self, reading: Reading | None) -> bool:
        """Return whether gained arcs need a new reading of the catalogue.

        :param reading: The last reading, if there is one.
        """


class _Authority:
    """Common part of both authorities.

    :param attendance: Knows the schedules that the store has put in force.
    """

    def __init__(self, wiring: SchedulerWiring, attendance: Attendance):
        self._clock = wiring.clock
        self._membership = wiring.membership
        self._group = wiring.group
        self._identity = wiring.identity
        self._attendance = attendance
        self._ring: Ring | None = None
        self._rings: JobRings | None = None
        self._schedules = 0
        #: This member's tenure in the last view. None means that this process
        #: was not a member.
        self._tenure: int | None = None

    def _known(self) -> View | None:
        try:
            view = self._membership.view(self._group)
        except exceptions.ViewUnknown:
            return None
        return view if self._identity in view.ring.members else None

    def _rings_changed(self, view: View) -> bool:
        """Return whether the ring of a job may have changed since the last
        call.
        """
        before = self._ring, self._rings, self._schedules
        self._ring, self._rings = view.ring, view.rings
        self._schedules = self._attendance.schedules
        return not (before[0] is self._ring and before[1] is self._rings
                    and before[2] == self._schedules)


class StoreAuthority(_Authority):
    """Rules with a store that members share.

    The rows of the store record the instant from which each object can be due.
    """

    listing: type[Listing] = SharedListing
    late_claimer: type[LateClaimer] | None = LateClaimer
    page = 2000
    # Each group of claims is a transaction of its own, so the pauses are
    # longer than without a shared store.
    pauses = Pauses(SECOND // 200, 10)

    def __init__(self, wiring: SchedulerWiring, attendance: Attendance):
        super().__init__(wiring, attendance)
        self.piece = wiring.batch_size

    def owns(self, part: Part, row: Row) -> bool:
        return part.owns(part.ring_seen, self._identity, row.position)

    def view(self) -> View | None:
        return self._known()

    def change(self, view: View) -> MembershipChange | None:
        changed = self._rings_changed(view)
        # Before this process has joined its group, the ring may contain an
        # earlier process with the same name, for which this process then acts.
        # Until this process has joined, other members may own the objects of
        # the earlier process, and may list objects that this process has not
        # read. So a new tenure discards the previous ring.
        tenure, self._tenure = (
            self._tenure, view.me.tenure if view.me else None)
        if not changed and tenure == self._tenure:
            return None
        return MembershipChange(tenure == self._tenure, None, False)

    def ring(self, view: View, job: Job) -> Ring:
        # The store rejects claims of members that have another schedule. A
        # member whose jobs are unknown is left out: two members that claim the
        # same objects do no harm, but objects that no member claims do.
        return view.ring_of(job.name, self._attendance.in_force(job.name))

    def must_read_again(self, reading: Reading | None) -> bool:
        # This member's last reading of the catalogue may be too old. The
        # previous owner of the arcs may have read the catalogue later, and may
        # have found objects that this member does not know.
        return True


class RingAuthority(_Authority):
    """Rules without a shared store: the ring decides."""

    listing: type[Listing] = Listing
    late_claimer: type[LateClaimer] | None = None
    # A store in memory is read at once.
    page = 1 << 62
    # The flow must not be busy with one claim for too long.
    piece = 2000
    pauses = Pauses(SECOND // 4000, 80)

    def __init__(self, wiring: SchedulerWiring, attendance: Attendance):
        super().__init__(wiring, attendance)
        self._began = self._clock.now()

    def owns(self, part: Part, row: Row) -> bool:
        return True

    def view(self) -> View | None:
        view = self._known()
        if (view is None or view.me is None
                or not view.trusted(self._clock.monotonic())):
            return None
        return view

    def change(self, view: View) -> MembershipChange | None:
        assert view.me is not None
        changed = self._rings_changed(view)
        tenure, self._tenure = self._tenure, view.me.tenure
        if not changed and tenure == self._tenure:
            return None
        if tenure is None and len(view.ring.members) == 1:
            # This member is alone and has just started. No other member was
            # responsible for earlier ticks.
            return MembershipChange(False, self._began, True)
        age = max(0, int((self._clock.monotonic() - view.since) * SECOND))
        stayed = tenure == self._tenure
        return MembershipChange(stayed, self._clock.now() - age, not stayed)

    def ring(self, view: View, job: Job) -> Ring:
        # Each object has one owner, whatever the schedules of the members. A
        # member whose jobs are unknown is included: otherwise it and another
        # member could both own its objects.
        return view.ring_of(job.name, unknown=True)

    def must_read_again(self, reading: Reading | None) -> bool:
        return reading is not None and reading.partial


#: Class of the rules, by the authority over the claims of a book.
RULES: Mapping[claim.Authority, type[StoreAuthority | RingAuthority]] = {
    claim.Authority.STORE: StoreAuthority, claim.Authority.RING: RingAuthority}
