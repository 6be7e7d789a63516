# SPDX-License-Identifier: Apache-2.0
"""What happened, as values that are put into the one inbox of a process.

Every part that reports events gets the ``put`` of the inbox in its
constructor. The thread of the flow handles one event at a time::

    bus, pool, store, group, catalogues ─┐
                                         ├─► inbox ─► the flow's thread
    dispatcher, claimer, grants ─────────┘
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core import catalogue
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message


class Viewed(NamedTuple):
    """There is a new view of a group."""

    view: member_.View


class CatalogueRead(NamedTuple):
    """A read of a job's catalogue has ended."""

    job: str
    #: Of the question that is answered.
    ticket: int
    reading: catalogue.Reading | Exception


class Called(NamedTuple):
    """A callback to run in the thread of the flow, such as one that takes
    an answer of the store.
    """

    call: Callable[[], None]


class Accepted(NamedTuple):
    """A batch has come to a worker."""

    batch: message.Batch


class Sent(NamedTuple):
    """The broker has a batch."""

    batch: message.Batch


class Unsent(NamedTuple):
    """A batch could not be handed to the broker; it may arrive all the same.
    """

    batch: message.Batch
    #: In words, for the log.
    reason: str


class Reported(NamedTuple):
    """Workers say what became of batches."""

    reports: Sequence[message.Report]


class Ran(NamedTuple):
    """Runs of the pool of this process have ended; nothing is recorded."""

    report: message.Report
    #: The membership entry of the scheduler that it is for.
    to_entry: str


class ResultsWait(NamedTuple):
    """The pool of this process has results to collect."""


class Ended(NamedTuple):
    """Runs have ended, and the store has recorded it where there is one."""

    report: message.Report


class Released(NamedTuple):
    """These objects of a job run no more."""

    job: job_.Job
    objects: Sequence[str]


class ClockDiffers(NamedTuple):
    """The store's clock is not where we take it to be."""

    job: str


class Unlisted(NamedTuple):
    """The store does not list objects that were to be claimed."""

    job: str
    objects: Sequence[str]


class Woken(NamedTuple):
    """Somebody changed what the flow looks at in each turn."""


class Stopped(NamedTuple):
    """The flow is to end."""


Event = (Viewed | CatalogueRead | Called | Accepted | Sent | Unsent
         | Reported | Ran | ResultsWait | Ended | Released | ClockDiffers
         | Unlisted | Woken | Stopped)

#: Puts an event into the inbox; any thread may, and never waits.
Put = Callable[[Event], None]
