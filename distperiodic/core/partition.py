# SPDX-License-Identifier: Apache-2.0
"""What is configured of a partition, and what limits the jobs in it."""

import dataclasses
import types
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core import job as job_
from distperiodic.core.refusal import Refusal


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """One partition, the same on every member that reads the same options."""

    name: str
    max_in_flight: int | None = None  # objects at once; None: no own limit


#: By name.
Partitions = Mapping[str, Partition]
#: Nothing is configured of any.
NONE: Partitions = types.MappingProxyType({})


class Limit(NamedTuple):
    """So many runs of these jobs together may go on at once, anywhere."""

    most: int
    jobs: tuple[str, ...]
    #: With what code a run is refused that would be one too many.
    refusal: Refusal


def limits_of(jobs: Mapping[str, job_.Job],
              partitions: Partitions) -> dict[str, tuple[Limit, ...]]:
    """Job to its limits: its own one and that of its partition, if any.

    What runs on every member runs in the member itself, and is none of a
    partition's.
    """
    of_partition = {}
    for name, partition in partitions.items():
        within = tuple(sorted(
            job.name for job in jobs.values() if job.topic == name
            and job.scope is not job_.Scope.MEMBER))
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
