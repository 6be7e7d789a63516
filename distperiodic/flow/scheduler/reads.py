# SPDX-License-Identifier: Apache-2.0
"""Reads of catalogues: one at a time for each job, with retries.

    request ─► read ─► answered ─► the tick continues
                │         └─ raised ─► again after a pause, or at the next tick
                └─ slow ─► the job's ticks wait, other jobs continue

While a catalogue cannot be read, the listing in the store does not change. In
a store that members share, the listed objects are still due at each tick, and
late scans claim them.

The report of the process shows the catalogues that cannot be read. It is
written by the thread of the flow, so it also shows a method that never
returns.
"""

import itertools
import logging
from typing import Any
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core.job import Job
from distperiodic.core.ring import Ring
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import log_throttle
from distperiodic.flow.worker import runs

LOG = logging.getLogger(__name__)

# Seconds until a failed catalogue method is called again: the first pause, and
# the longest pause. Each pause is twice as long as the previous one, but at
# most a quarter of the period, or the first pause if that is longer.
_PAUSES = 1.0, 60.0
# Seconds after which a method that has not returned is logged as slow.
_SLOW = 1.0
# Minimum seconds between two log lines about failures of one job with the same
# type of error.
_LOG_AGAIN = 60.0
# Maximum number of characters of an error in a report.
_REPORTED_ERROR = 300


class Read(NamedTuple):
    """A read that was requested."""

    ticket: int
    #: The ring at the time of the request. None means that the answer may be
    #: outdated.
    ring: Ring | None
    #: Instant for which the objects are read: a tick or, after a change of the
    #: ring, the time of the first request.
    at: Instant
    #: Monotonic time of the request, in seconds.
    began: float


class _Failure(NamedTuple):
    #: Number of consecutive failures.
    number: int
    #: Monotonic time of the next attempt for the same tick, in seconds.
    again: float
    #: Tick of the failed read. A read for a newer tick need not wait for the
    #: end of the pause.
    tick: Instant
    #: Monotonic time of the first of these failures, in seconds.
    since: float
    #: Error of the last failure, as one line.
    error: str


class CatalogueReads:
    """The reads of all catalogues of one member."""

    def __init__(self, clock: ports.Clock, reader: ports.CatalogueReader,
                 identity: str):
        self._clock = clock
        self._reader = reader
        self._identity = identity
        self._tickets = itertools.count(1)
        #: Pending reads by job, and failures by job.
        self._reads: dict[str, Read] = {}
        self._failures: dict[str, _Failure] = {}
        #: Monotonic time of the last successful read of each job, in seconds.
        self._read: dict[str, float] = {}
        self._throttle = log_throttle.LogThrottle(clock, 30.0)
        self._failed_throttle = log_throttle.LogThrottle(clock, _LOG_AGAIN)

    def under_way(self, job: str) -> bool:
        """Return whether a read of *job* is pending."""
        return job in self._reads

    def request(self, job: Job, ring: Ring, at: Instant) -> None:
        """Request a read of the objects on this member's arcs of *ring*."""
        read = self._reads[job.name] = Read(
            next(self._tickets), ring, at, self._clock.monotonic())
        self._reader.read(job, at, read.ticket, ring.arcs(self._identity))

    def invalidate(self, job: str) -> None:
        """Record that the answer to a pending read may be outdated."""
        read = self._reads.get(job)
        if read is not None:
            self._reads[job] = read._replace(ring=None)

    def answered(self, job: str, ticket: int) -> Read | None:
        """Remove and return the read with this *ticket*.

        None means that this read is not pending.
        """
        read = self._reads.get(job)
        if read is None or read.ticket != ticket:
            return None
        return self._reads.pop(job)

    def succeeded(self, job: str) -> None:
        """Record a successful read, and forget the failures of *job*."""
        now = self._read[job] = self._clock.monotonic()
        known = self._failures.pop(job, None)
        if known is not None:
            LOG.info('catalogue read: job=%s failures=%d seconds=%.0f; it '
                     'can be read again', job, known.number,
                     now - known.since)

    def failed(self, job: Job, tick: Instant, error: Exception) -> str:
        """Record a failure; see :meth:`pause`.

        :returns: The error as one line.
        """
        known = self._failures.get(job.name)
        number = known.number if known else 0
        first, longest = _PAUSES
        period = job.schedule.period_us(tick) / SECOND
        # Limit the exponent, because a float cannot represent a larger power.
        pause = min(first * 2 ** min(number, 64), max(first, period / 4),
                    longest)
        now, text = self._clock.monotonic(), runs.text_of(error)
        self._failures[job.name] = _Failure(
            number + 1, now + pause, tick, known.since if known else now,
            text)
        loud = self._failed_throttle.allow(
            f'{job.name} {type(error).__name__}')
        # Put the traceback into the message, because a formatter would write
        # exc_info without escaping the control characters of the exception.
        LOG.log(
            logging.ERROR if loud else logging.DEBUG,
            'catalogue failed: job=%s method=%s failures=%d error=%s; it is '
            'read again in %.0f s, or for the next tick if that is sooner; '
            'the same failure is logged at level debug for a while%s',
            job.name, job.objects, number + 1, text, pause,
            f'\n{runs.traceback_of(error)}'.rstrip()
            if loud and known is None else '')
        return text

    def facts(self) -> list[dict[str, Any]]:
        """Return the catalogues that fail, or whose read is slow.

        Each is in the form in which a report contains a
        :class:`~distperiodic.core.member_facts.CatalogueFact`. The longest
        failures come first.
        """
        now = self._clock.monotonic()
        slow = {job: now - read.began
                for job, read in list(self._reads.items())
                if now - read.began >= _SLOW}
        failures = dict(self._failures)

        def age(since: float | None) -> float | None:
            return None if since is None else round(now - since, 3)
        found = [{
            'job': job,
            'error': known.error[:_REPORTED_ERROR] if (
                known := failures.get(job)) else '',
            'failing_s': age(known.since if known else None),
            'reading_s': round(slow[job], 3) if job in slow else None,
            'read_s': age(self._read.get(job))}
            for job in slow.keys() | failures.keys()]
        return sorted(found, key=lambda one: (
            -max(one['failing_s'] or 0.0, one['reading_s'] or 0.0),
            one['job']))

    def pause(self, job: str, tick: Instant) -> float:
        """Return the seconds until *job* may be read for *tick*.

        0 means now.
        """
        known = self._failures.get(job)
        if known is None or tick > known.tick:
            return 0.0
        return max(0.0, known.again - self._clock.monotonic())

    def report_slow(self, job: Job) -> None:
        """Log that a tick waits for the pending read of *job*."""
        seconds = self._clock.monotonic() - self._reads[job.name].began
        # The read may have begun only just before the tick.
        if seconds >= _SLOW and self._throttle.allow(job.name):
            LOG.warning(
                'catalogue slow: job=%s method=%s seconds=%.1f; until the '
                'method returns, no new object is listed, and without a '
                'store no object of this job starts; other jobs continue',
                job.name, job.objects, seconds)
