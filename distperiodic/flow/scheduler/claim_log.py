# SPDX-License-Identifier: Apache-2.0
"""Log lines about ticks that do not run.

One line can report the ticks of many objects or jobs.
"""

import logging
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import schedule
from distperiodic.core.job import Job
from distperiodic.core.schedule import Instant
from distperiodic.flow import log_throttle

LOG = logging.getLogger(__name__)

#: Reason for a skip by the overlap policy.
BUSY = 'an earlier run is still in progress'
# Seconds for which the skips of a job are collected for one log line.
_THROTTLE = 0.9


class ClaimLog:
    """The log lines of one member, for all jobs."""

    def __init__(self, clock: ports.Clock):
        self._throttle = log_throttle.LogThrottle(clock, _THROTTLE)
        #: For each job: the job, a tick, an object, and the number of skips
        #: since the last log line. The key is the name of the job.
        self._skipped: dict[
            str, tuple[Job, Instant, str, int]] = {}
        #: Ticks that were given up since the last log line: the name of their
        #: job, their number, and the reason.
        self._missed: list[tuple[str, int, str]] = []
        #: Lost ticks since the last log line: the newest tick, an object, the
        #: number of objects, and the reason. The key is the name of the job.
        self._lost: dict[str, tuple[Instant, str, int, str]] = {}

    def skipped(self, job: Job, tick: Instant,
                objects: Sequence[str], number: int) -> None:
        """Record skips of objects whose earlier run is still in progress.

        :param number: Number of skips.
        """
        first = objects[0]
        known = self._skipped.get(job.name)
        if known is not None:
            _, tick, first, before = known
            number += before
        self._skipped[job.name] = job, tick, first, number

    def missed(self, job: str, number: int, reason: str) -> None:
        """Record that *number* ticks of objects were given up."""
        self._missed.append((job, number, reason))

    def lost(self, job: str, tick: Instant, objects: Sequence[str],
             number: int, reason: str) -> None:
        """Record that ticks of *number* of *objects* were lost.

        :param tick: The newest of these ticks.
        """
        known, first, before, _ = self._lost.get(
            job, (tick, objects[0], 0, reason))
        self._lost[job] = max(known, tick), first, before + number, reason

    def report(self) -> None:
        """Log the collected skips, and the ticks that were given up."""
        for name in list(self._skipped):
            if self._throttle.allow(name):
                job, tick, first, number = self._skipped.pop(name)
                LOG.info(
                    'skipped: job=%s tick=%s objects=%d first=%r overlap=%s '
                    'reason=%s', name,
                    schedule.datetime_of(tick).isoformat(), number, first,
                    job.overlap.value, BUSY)
        lost, self._lost = self._lost, {}
        for name, (tick, first, number, reason) in lost.items():
            LOG.warning(
                'ticks lost: job=%s objects=%d first=%r until=%s reason=%s; '
                'see: distperiodic audit %s', name, number, first,
                schedule.datetime_of(tick).isoformat(), reason, name)
        if not self._missed:
            return
        # Log one warning for all jobs: a process that was suspended has missed
        # ticks of all its jobs.
        missed, self._missed = self._missed, []
        name, _, reason = missed[0]
        LOG.warning(
            'ticks dropped: jobs=%d ticks=%d first=%s reason=%s',
            len({one[0] for one in missed}), sum(one[1] for one in missed),
            name, reason)
        for name, number, reason in missed[1:]:
            LOG.debug('ticks dropped: job=%s ticks=%d reason=%s', name,
                      number, reason)
