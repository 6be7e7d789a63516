# SPDX-License-Identifier: Apache-2.0
"""Reads of catalogues: one at a time for each job, and again after a failure.

    ask ─► reading ─► answered ─► the tick goes on
              │           └─ raised ─► again after a pause, or at the next tick
              └─ slow ─► its ticks are held, other jobs go on

While a catalogue cannot be read the listing in the store stays as it is: its
objects stay due, and a late look claims them.
"""

import itertools
import logging
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import job as job_
from distperiodic.core import ring as ring_
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import quiet
from distperiodic.flow.worker import runs

LOG = logging.getLogger(__name__)

# Seconds from a catalogue method that failed to the next attempt: the first,
# and the longest. Each waits twice as long as the one before, and beyond the
# first none waits longer than a quarter of the period.
_PAUSES = 1.0, 60.0
# Seconds after which a method that has not returned is worth a line.
_SLOW = 1.0


class Read(NamedTuple):
    """A read that was asked for."""

    ticket: int
    #: For whose arcs; None: what it lists may be outdated.
    ring: ring_.Ring | None
    #: The instant for which it lists the objects.
    at: Instant
    #: Monotonic seconds.
    began: float


class _Failure(NamedTuple):
    #: Number of reads that failed since one did not.
    number: int
    #: When it is read again for the same tick, in monotonic seconds.
    again: float
    #: The tick; a newer one does not wait.
    tick: Instant


class CatalogueReads:
    """For all jobs of one member."""

    def __init__(self, clock: ports.Clock, reader: ports.CatalogueReader,
                 identity: str):
        self._clock = clock
        self._reader = reader
        self._identity = identity
        self._tickets = itertools.count(1)
        #: Reads under way, and failures, by job.
        self._reads: dict[str, Read] = {}
        self._failures: dict[str, _Failure] = {}
        self._throttle = quiet.Quiet(clock, 30.0)

    def under_way(self, job: str) -> bool:
        """Whether a read of *job* has not returned."""
        return job in self._reads

    def ask(self, job: job_.Job, ring: ring_.Ring, at: Instant) -> None:
        """Have the objects of our arcs read."""
        read = self._reads[job.name] = Read(
            next(self._tickets), ring, at, self._clock.monotonic())
        self._reader.read(job, at, read.ticket, ring.arcs(self._identity))

    def outdate(self, job: str) -> None:
        """What is being read may be outdated when it is answered."""
        read = self._reads.get(job)
        if read is not None:
            self._reads[job] = read._replace(ring=None)

    def answered(self, job: str, ticket: int) -> Read | None:
        """The read that was answered; None: nobody waits for it."""
        read = self._reads.get(job)
        if read is None or read.ticket != ticket:
            return None
        return self._reads.pop(job)

    def succeeded(self, job: str) -> None:
        """Start over with the pauses."""
        self._failures.pop(job, None)

    def failed(self, job: job_.Job, tick: Instant, error: Exception) -> None:
        """Record a failure; see :meth:`pause`."""
        known = self._failures.get(job.name)
        number = known.number if known else 0
        first, longest = _PAUSES
        period = job.schedule.period_us(tick) / SECOND
        # No power of two is too big for a float before the longest is due.
        pause = min(first * 2 ** min(number, 64), max(first, period / 4),
                    longest)
        self._failures[job.name] = _Failure(
            number + 1, self._clock.monotonic() + pause, tick)
        LOG.error(
            'catalogue failed: job=%s method=%s error=%s; it is read again '
            'in %.0f s, or for the next tick if that is sooner', job.name,
            job.objects, runs.text_of(error), pause)

    def pause(self, job: str, tick: Instant) -> float:
        """Seconds until *job* may be read for *tick*; 0: it may now."""
        known = self._failures.get(job)
        if known is None or tick > known.tick:
            return 0.0
        return max(0.0, known.again - self._clock.monotonic())

    def report_slow(self, job: job_.Job) -> None:
        """Log that a tick waits for a method that does not return."""
        seconds = self._clock.monotonic() - self._reads[job.name].began
        # One that was called just before its tick is not slow.
        if seconds >= _SLOW and self._throttle.may(job.name):
            LOG.warning(
                'catalogue slow: job=%s method=%s seconds=%.1f; until the '
                'method returns no new object is listed, and without a '
                'store nothing of this job starts; other jobs go on',
                job.name, job.objects, seconds)
