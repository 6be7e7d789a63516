# SPDX-License-Identifier: Apache-2.0
"""Events for the inbox of a process.

Each service of a process has one inbox. The constructor of each component that
reports events receives a function ``put``, which puts an event into the inbox.
The thread of the flow handles one event at a time::

    bus, pool, store, group, catalogues ─┐
                                         ├─► inbox ─► the flow's thread
    dispatcher, claimer, grants ─────────┘
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core import catalogue
from distperiodic.core import message
from distperiodic.core.job import Job
from distperiodic.core.member import View


class Viewed(NamedTuple):
    """A new view of a group."""

    view: View


class CatalogueRead(NamedTuple):
    """The result of a read of a job's catalogue."""

    job: str
    #: Number that identifies the read; see
    #: :meth:`distperiodic.ports.CatalogueReader.read`.
    ticket: int
    reading: catalogue.Reading | Exception


class Called(NamedTuple):
    """A function that the thread of the flow calls.

    For example, it handles an answer of the store.
    """

    call: Callable[[], None]


class Accepted(NamedTuple):
    """A batch that this worker has received."""

    batch: message.Batch


class Sent(NamedTuple):
    """A batch that the broker has accepted."""

    batch: message.Batch


class Unsent(NamedTuple):
    """A batch that could not be sent to the broker.

    The batch may nevertheless arrive at its worker.
    """

    batch: message.Batch
    #: Reason for the failure, for the log.
    reason: str


class Reported(NamedTuple):
    """Reports from workers on their batches."""

    reports: Sequence[message.Report]


class Ran(NamedTuple):
    """A report on a batch that the pool of this process runs.

    The store has not recorded the outcomes in the report yet.
    """

    report: message.Report
    #: Membership entry of the scheduler that receives the report.
    to_entry: str


class ResultsWait(NamedTuple):
    """A signal that the pool of this process has results to collect."""


class Ended(NamedTuple):
    """A report on a batch whose runs this process grants.

    The store of the claims has already recorded each result that counts.
    """

    report: message.Report


class Released(NamedTuple):
    """Objects of a job whose runs have ended."""

    job: Job
    objects: Sequence[str]


class ClockDiffers(NamedTuple):
    """A signal that this process's estimate of the store's clock is wrong."""

    job: str


class Unlisted(NamedTuple):
    """Objects that could not be claimed, because the store does not list them.
    """

    job: str
    objects: Sequence[str]


class Submitted(NamedTuple):
    """Tasks that were submitted or changed, and may have a step to run."""

    tasks: Sequence[str]


class Woken(NamedTuple):
    """A signal without data.

    After each event, the flow checks several conditions. This event makes it
    check them at once.
    """


class Stopped(NamedTuple):
    """A request to end the flow."""


Event = (Viewed | CatalogueRead | Called | Accepted | Sent | Unsent
         | Reported | Ran | ResultsWait | Ended | Released | ClockDiffers
         | Unlisted | Submitted | Woken | Stopped)

#: Function that puts an event into the inbox. Any thread may call it. It never
#: blocks.
Put = Callable[[Event], None]
