# SPDX-License-Identifier: Apache-2.0
"""The status of each job in the store, and the attendance of this member.

Every scheduler regularly reads the status of its jobs. The status of a job
shows whether an operator paused the job, which schedule is in force, since
when schedulers have attended the job without a gap, and up to which instant
all due ticks were found claimed or given up. The gaps distinguish a tick that
no scheduler could claim from a tick that was lost.
"""

import logging
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import due
from distperiodic.core.job import Job
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant

LOG = logging.getLogger(__name__)

# Range of a gap, in seconds. A job counts as unattended after one of its
# periods without a scheduler; a shorter or longer period is replaced by a
# limit of this range.
_GAPS = 2.0, 30.0


class _Reopened(NamedTuple):
    """A job in which objects were listed after a scan."""

    #: Instant at which this process noticed that.
    noticed: Instant
    #: Whether :meth:`Attendance.reopened` has returned the job.
    returned: bool = False


class Attendance:
    """Attendance of all jobs of one member.

    :param interval: Seconds between two reads of the status.
    """

    def __init__(self, clock: ports.Clock, store: ports.StoreQueue,
                 jobs: Mapping[str, Job], interval: float):
        self._clock = clock
        self._store = store
        self._jobs = jobs
        self._interval = interval
        now = clock.now()
        self._gaps = {
            name: min(max(job.schedule.period_us(now) / SECOND, _GAPS[0]),
                      _GAPS[1]) for name, job in jobs.items()}
        self._statuses: dict[str, ports.JobStatus] = {}
        #: Jobs whose schedule in force differs from that of this process.
        self._outdated: set[str] = set()
        #: Scans to record at the next read, by job.
        self._checked: dict[str, ports.Checked] = {}
        #: Jobs in which objects were listed after a scan, until the next scan
        #: counts.
        self._reopened: dict[str, _Reopened] = {}
        self._pending = False
        #: True if the schedules of this process were put in force.
        self._adopted = False
        #: Time of the last request, as monotonic seconds and as an instant.
        self._requested = clock.monotonic(), clock.now()
        #: Callbacks that wait for the next answer.
        self._waiting: list[Callable[[], None]] = []

    def sweep(self) -> None:
        """Read the status of the jobs if a read is due."""
        if self._clock.monotonic() - self._requested[0] >= self._interval:
            self.refresh()

    def hurry(self) -> None:
        """Read the status at the next sweep; an operator has changed it."""
        self._requested = (self._clock.monotonic() - self._interval,
                           self._requested[1])

    def refresh(self, then: Callable[[], None] | None = None) -> None:
        """Read the status of the jobs, and record that they are attended.

        :param then: Called when the status is known.
        """
        if then is not None:
            self._waiting.append(then)
        if self._pending:
            return
        self._pending = True
        self._requested = self._clock.monotonic(), self._clock.now()
        gaps, checked = self._gaps, self._checked
        self._checked = {}

        def known(statuses: dict[str, ports.JobStatus]) -> None:
            self._pending = False
            self._report(statuses)
            self._note_reopened(statuses, checked)
            self._statuses = statuses
            self._outdated = {
                name for name, status in statuses.items()
                if status.schedule not in (
                    '', self._jobs[name].schedule_text())}
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

        def failed() -> None:
            self._pending = False

        def adopted(_: None) -> None:
            self._adopted = True
        if not self._adopted:
            schedules = {name: job.schedule_text()
                         for name, job in self._jobs.items()}
            self._store.submit(lambda store: store.adopt(schedules), adopted)
        self._store.submit(lambda store: store.attend(gaps, checked),
                           known, failed)

    def _report(self, statuses: Mapping[str, ports.JobStatus]) -> None:
        for name in sorted(statuses):
            before, after = self._statuses.get(name), statuses[name]
            if after.paused is not None and (
                    before is None or before.paused is None):
                LOG.info('job paused: job=%s reason=%s; its ticks are '
                         'skipped; to resume it: distperiodic job resume',
                         name, after.paused)
            elif before is not None and before.paused is not None and (
                    after.paused is None):
                LOG.info('job resumed: job=%s; it continues with its next '
                         'tick', name)
            text = self._jobs[name].schedule_text()
            if after.schedule not in ('', text) and (
                    before is None or before.schedule != after.schedule):
                LOG.warning(
                    'schedule replaced: job=%s ours=%r in_force=%r; a process '
                    'that started later has another schedule, so this process '
                    'makes no claims for the job; restart it with the new '
                    'code',
                    name, text, after.schedule)

    def _note_reopened(self, statuses: Mapping[str, ports.JobStatus],
                       recorded: Mapping[str, ports.Checked]) -> None:
        for name, status in statuses.items():
            before = self._statuses.get(name)
            known = before.checked if before else due.ALWAYS
            scan = recorded.get(name)
            if status.checked < max(known, scan.until if scan else known):
                self._reopened.setdefault(name, _Reopened(self._clock.now()))
            elif status.checked > known:
                self._reopened.pop(name, None)

    def reopened(self) -> list[str]:
        """Return the jobs in which objects were listed after a scan, once for
        each time.
        """
        found = [name for name, one in self._reopened.items()
                 if not one.returned]
        for name in found:
            self._reopened[name] = self._reopened[name]._replace(returned=True)
        return found

    def reopened_at(self, job: str) -> Instant:
        """Return the instant since which *job* is to be scanned again.
        :data:`~distperiodic.core.due.ALWAYS` means that it is not.
        """
        found = self._reopened.get(job)
        return found.noticed if found else due.ALWAYS

    @property
    def known(self) -> bool:
        """True if any read was answered."""
        return bool(self._statuses)

    def fresh(self) -> bool:
        """Return whether the last read is recent enough to judge lost ticks.
        """
        seconds, instant = self._requested
        recent = 2 * self._interval + 1.0
        return (not self._pending
                and self._clock.monotonic() - seconds <= recent
                # The store's clock may have been set forward.
                and self._clock.now() - instant <= recent * SECOND)

    def paused(self, job: str) -> str | None:
        """Return the reason why *job* is paused, or None if it is not paused.
        """
        status = self._statuses.get(job)
        return status.paused if status else None

    def outdated(self, job: str) -> bool:
        """Return whether another schedule than this process's own is in force.
        """
        return job in self._outdated

    def since(self, job: str) -> Instant:
        """Return the instant from which the schedule in force applies."""
        status = self._statuses.get(job)
        return status.since if status else due.ALWAYS

    def attended(self, job: str) -> Instant | None:
        """Return the instant since which the job was attended without a gap.

        None means that it is not attended.
        """
        status = self._statuses.get(job)
        return status.attended if status else None

    def gap_us(self, job: str) -> int:
        """Return the longest time without a scheduler that is not a gap yet.

        :returns: Microseconds.
        """
        return int(self._gaps[job] * SECOND)

    def checked(self, job: str) -> Instant:
        """Return the instant up to which all due ticks were found decided."""
        scan = self._checked.get(job)
        return scan.until if scan else self._recorded(job)

    def expected(self, job: str) -> Instant:
        """Return the instant that the store must still have recorded for a
        scan that begins now to count.
        """
        scan = self._checked.get(job)
        return scan.expected if scan else self._recorded(job)

    def _recorded(self, job: str) -> Instant:
        status = self._statuses.get(job)
        return status.checked if status else due.ALWAYS

    def record_checked(self, job: str, scan: ports.Checked) -> None:
        """Record a scan that found all due ticks decided."""
        self._checked[job] = scan._replace(
            until=max(scan.until, self.checked(job)))
