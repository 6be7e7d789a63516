# SPDX-License-Identifier: Apache-2.0
"""Values that the components of one process share.

A service creates one value and passes it to its flow. A component passes the
value on to the components that it creates.
"""

import dataclasses
from collections.abc import Callable
from random import Random

from distperiodic import ports
from distperiodic.core.partition import NONE
from distperiodic.core.partition import Partitions
from distperiodic.flow import events
from distperiodic.flow.counters import Counters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wiring:
    """Values that the components of a worker or a scheduler share."""

    #: The clock of the leases and ticks. If the process uses a store that
    #: others share, it shows the time of the store.
    clock: ports.Clock
    #: Returns the name of a new lease.
    new_lease: Callable[[], str]
    #: Returns whether this process is certainly still a member under the given
    #: entry.
    sure: Callable[[str], bool]
    #: Seconds until a lease expires.
    lease: float = 60.0
    #: Seconds after a tick until other members claim objects that their owner
    #: has not claimed. A first run that starts after this time is late.
    late_after: float = 5.0
    #: Receives the events of this process.
    sink: ports.EventSink = dataclasses.field(
        default_factory=ports.ClosedSink)
    #: Creates the spans of batches. None means that there are no spans.
    tracer: ports.Tracer | None = None
    #: Source of the jitter of pauses.
    random: Random = dataclasses.field(default_factory=Random)
    #: Configuration of the partitions, by topic.
    partitions: Partitions = dataclasses.field(default_factory=lambda: NONE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerWiring(Wiring):
    """Values that the components of a scheduler share."""

    #: Views of *group*, on whose ring this member has the name *identity*.
    membership: ports.Membership
    group: str
    identity: str
    #: Returns this member's entry; called for each claim and each batch.
    me: Callable[[], str]
    #: Sends batches to workers.
    bus: ports.WorkBus
    reader: ports.CatalogueReader
    #: Puts events into the inbox of this process.
    put: events.Put
    #: Numbers that all components count.
    counters: Counters = dataclasses.field(default_factory=Counters)
    #: Maximum number of claims in one batch, and in one lease of a shared
    #: store.
    batch_size: int = 500
