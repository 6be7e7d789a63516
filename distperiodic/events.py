# SPDX-License-Identifier: Apache-2.0
"""Events of a process that runs a service, for the program that embeds it::

    from distperiodic import events

    def watch(event):
        if isinstance(event, events.TicksLost):
            page_the_operator(event.job, event.tick)

    unsubscribe = events.subscribe(watch)

The attribute :data:`KINDS` contains all events.
"""

from collections.abc import Callable

from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.core.claim import SkippedBy
from distperiodic.core.telemetry import KINDS
from distperiodic.core.telemetry import BatchDispatched
from distperiodic.core.telemetry import CatalogueFailed
from distperiodic.core.telemetry import CatalogueListed
from distperiodic.core.telemetry import ClaimPath
from distperiodic.core.telemetry import ClaimsReclaimed
from distperiodic.core.telemetry import ClaimsTakenOver
from distperiodic.core.telemetry import Event
from distperiodic.core.telemetry import LeaseLost
from distperiodic.core.telemetry import MemberActive
from distperiodic.core.telemetry import MemberJoined
from distperiodic.core.telemetry import MemberLeft
from distperiodic.core.telemetry import MemberRole
from distperiodic.core.telemetry import MessageRefused
from distperiodic.core.telemetry import ObjectsClaimed
from distperiodic.core.telemetry import QueueHalted
from distperiodic.core.telemetry import ResultsRejected
from distperiodic.core.telemetry import RunOutcome
from distperiodic.core.telemetry import RunsEnded
from distperiodic.core.telemetry import RunsRetried
from distperiodic.core.telemetry import RunsStarted
from distperiodic.core.telemetry import RunsTimed
from distperiodic.core.telemetry import TaskMoved
from distperiodic.core.telemetry import TickDue
from distperiodic.core.telemetry import TicksLost
from distperiodic.core.telemetry import TicksSkipped
from distperiodic.core.workflow import Status

__all__ = [
    'KINDS',
    'BatchDispatched',
    'CatalogueFailed',
    'CatalogueListed',
    'ClaimPath',
    'ClaimsReclaimed',
    'ClaimsTakenOver',
    'Event',
    'LeaseLost',
    'MemberActive',
    'MemberJoined',
    'MemberLeft',
    'MemberRole',
    'MessageRefused',
    'ObjectsClaimed',
    'QueueHalted',
    'ResultsRejected',
    'RunOutcome',
    'RunsEnded',
    'RunsRetried',
    'RunsStarted',
    'RunsTimed',
    'SkippedBy',
    'Status',
    'TaskMoved',
    'TickDue',
    'TicksLost',
    'TicksSkipped',
    'subscribe',
]


def subscribe(function: Callable[[Event], object]) -> Callable[[], None]:
    """Pass each event of this process, from now on, to *function*.

    A thread of its own calls the function, one event at a time. So the
    function may be slow, block or raise an exception: it delays neither the
    service nor other subscribers. At most 10,000 events wait for it; further
    ones are dropped, counted and logged. An exception is logged, at most once
    a minute. A subscription that is made before a fork holds in each child.

    :param function: Called with an event. Its result is ignored.
    :returns: Function that ends the subscription. It may be called repeatedly.
    :raises TypeError: *function* cannot be called, or is a coroutine function.
    """
    return SUBSCRIBERS.subscribe(function)
