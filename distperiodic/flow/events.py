# SPDX-License-Identifier: Apache-2.0
"""Events, which are put into the one inbox of a process.

Every component that reports events receives the ``put`` of the inbox in its
constructor. The thread of the flow handles one event at a time::

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
    """The answer to a read of a job's catalogue."""

    job: str
    #: Identifies the read that is answered.
    ticket: int
    reading: catalogue.Reading | Exception


class Called(NamedTuple):
    """A callback for the thread of the flow, such as an answer of the store.
    """

    call: Callable[[], None]


class Accepted(NamedTuple):
    """A batch that arrived at a worker."""

    batch: message.Batch


class Sent(NamedTuple):
    """A batch that the broker has confirmed."""

    batch: message.Batch


class Unsent(NamedTuple):
    """A batch whose transfer to the broker failed. It may arrive nevertheless.
    """

    batch: message.Batch
    #: Reason of the failure, for the log.
    reason: str


class Reported(NamedTuple):
    """Reports from workers on their batches."""

    reports: Sequence[message.Report]


class Ran(NamedTuple):
    """The end of runs in this process's pool, not recorded in the store yet.
    """

    report: message.Report
    #: Membership entry of the scheduler that receives the report.
    to_entry: str


class ResultsWait(NamedTuple):
    """The pool of this process has results to collect."""


class Ended(NamedTuple):
    """The end of runs, recorded in the store if there is one."""

    report: message.Report


class Released(NamedTuple):
    """Objects of a job whose runs have ended."""

    job: Job
    objects: Sequence[str]


class ClockDiffers(NamedTuple):
    """A difference of the store's clock from this process's estimate of it."""

    job: str


class Unlisted(NamedTuple):
    """Objects that a claim named, but that the store does not list."""

    job: str
    objects: Sequence[str]


class Submitted(NamedTuple):
    """Tasks that were changed or have a step that is ready."""

    tasks: Sequence[str]


class Woken(NamedTuple):
    """A wake-up: a condition that each turn of the flow checks has changed."""


class Stopped(NamedTuple):
    """The request to end the flow."""


Event = (Viewed | CatalogueRead | Called | Accepted | Sent | Unsent
         | Reported | Ran | ResultsWait | Ended | Released | ClockDiffers
         | Unlisted | Submitted | Woken | Stopped)

#: Puts an event into the inbox. Any thread may call it; it never blocks.
Put = Callable[[Event], None]
