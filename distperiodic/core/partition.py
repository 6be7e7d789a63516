# SPDX-License-Identifier: Apache-2.0
"""Partitions: their configuration, and the limits of the jobs in them."""

import dataclasses
import types
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.refusal import Refusal


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """Configuration of one partition.

    All members that read the same configuration file have the same partitions.
    """

    name: str
    max_in_flight: int | None = None  # None means no limit
    executor: str | None = None  # 'process'; None means threads
    mode: str | None = None  # 'standby'; None means shared
    preferred: str | None = None  # host or member
    pool_size: int | None = None  # None means the option of the service
    handler: str | None = None  # None means the class of the service
    other_names: tuple[str, ...] = ()  # of other sections with the same topic
    #: URL of its own broker. None means the broker of the service.
    transport_url: str | None = dataclasses.field(default=None, repr=False)

    @property
    def standby(self) -> bool:
        """True if at most one worker may be active."""
        return self.mode == 'standby'


#: Partitions by topic.
Partitions = Mapping[str, Partition]
#: The partitions of a service that has configured none.
NONE: Partitions = types.MappingProxyType({})


class Limit(NamedTuple):
    """Limit on the number of concurrent runs of some jobs.

    The runs of all members of the group count.
    """

    #: Maximum number of concurrent runs of all *jobs* together.
    most: int
    jobs: tuple[str, ...]
    #: Code with which a worker refuses a run beyond the limit.
    refusal: Refusal


def limits_of(jobs: Mapping[str, Job],
              partitions: Partitions) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of each job: its own, and the limit of its partition.

    The limit of a partition does not apply to jobs with scope ``'member'``,
    because workers do not run these jobs.
    """
    of_partition = {}
    for name, partition in partitions.items():
        within = tuple(sorted(
            job.name for job in jobs.values() if job.topic == name
            and job.scope is not Scope.MEMBER))
        if partition.max_in_flight is not None and within:
            limit = Limit(partition.max_in_flight, within,
                          Refusal.PARTITION_LIMIT)
            of_partition.update(dict.fromkeys(within, limit))
    limits = {}
    for job in jobs.values():
        found = []
        if job.max_in_flight is not None:
            found.append(Limit(
                job.max_in_flight, (job.name,), Refusal.JOB_LIMIT))
        if job.name in of_partition:
            found.append(of_partition[job.name])
        limits[job.name] = tuple(found)
    return limits
