# SPDX-License-Identifier: Apache-2.0
"""A group as the coordination service lists it at one moment."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distperiodic.core.job_set import JobRings
from distperiodic.core.job_set import JobSet
from distperiodic.core.member import Member
from distperiodic.core.member import resolve_entries
from distperiodic.core.member import ring_members
from distperiodic.core.member import worker_group
from distperiodic.core.ring import Ring

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import ports
    from distperiodic.operator.coordination_probe import CoordinationProbe


@dataclasses.dataclass(frozen=True)
class Group:
    """The schedulers of one group and its workers, at one moment."""

    name: str
    members: tuple[Member, ...]
    ring: Ring
    #: Workers by the topic of their partition.
    workers: dict[str, tuple[Member, ...]]
    #: Instant at which each entry joined, in microseconds. None means
    #: unknown.
    joined: dict[str, int | None]
    unknown_entries: list[str]
    #: All groups of the coordination service, for a hint if the name is wrong.
    groups: list[str]
    #: Clock of each member minus the service's clock, in seconds, by entry.
    skews: dict[str, float]
    #: Jobs of the members, by :attr:`.Member.jobs`.
    job_sets: Mapping[int, JobSet] = dataclasses.field(default_factory=dict)

    def ring_of(self, job: str, schedule: str) -> Ring:
        """Return the ring of a job; see :meth:`.JobRings.of`.

        If the members publish no jobs, it is the ring of the group.
        """
        if not self.job_sets:
            return self.ring
        return JobRings(
            self.ring, {one.identity: one.jobs for one in self.members},
            self.job_sets).of(job, schedule)

    @property
    def on_ring(self) -> tuple[Member, ...]:
        """The members that own objects."""
        return tuple(one for one in self.members if one.points)

    def of_fair(self, identity: str) -> float:
        """Return the share of a member in multiples of its fair share."""
        points = self.ring.members
        fair = points[identity] / sum(points.values())
        return self.ring.share(identity) / fair


def read_group(settings: 'opts.Settings', clock: 'ports.Clock') -> Group:
    """Read the configured group from the coordination service.

    :raises CoordinationUnavailable: the service did not answer.
    """
    from distperiodic.operator.coordination_probe import CoordinationProbe
    with CoordinationProbe(
            settings.backend_url, clock=clock,
            session_timeout=settings.session_timeout) as probe:
        return look(probe, settings.group)


def look(probe: 'CoordinationProbe', name: str) -> Group:
    """Read the group *name* and the groups of its workers.

    :raises CoordinationUnavailable: the service did not answer.
    """
    groups = probe.groups()
    entries = probe.entries(name) or []
    members, unknown_entries = resolve_entries(e.name for e in entries)
    prefix = worker_group(name, '')
    workers = {}
    for group in groups:
        if group.startswith(prefix):
            found = probe.entries(group) or []
            workers[group.removeprefix(prefix)], odd = resolve_entries(
                e.name for e in found)
            unknown_entries += odd
            entries = entries + found
    return Group(
        name, members, Ring(ring_members(members)), workers,
        {e.name: e.joined for e in entries}, unknown_entries, groups,
        {e.name: (e.joined - e.created) / 1e6 for e in entries
         if e.joined is not None and e.created is not None},
        {e.jobs.digest: e.jobs for e in entries if e.jobs is not None})
