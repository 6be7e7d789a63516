# SPDX-License-Identifier: Apache-2.0
"""The status of each job, and the record that schedulers serve the job.

Every scheduler that shares a store regularly reads the status of its jobs from
the store. Each read also records that the scheduler serves those of these jobs
that are not paused. The status states:

- the pause of the job and of single objects, if operators have paused them,
- the schedule in force,
- the instant since which schedulers have served the job without a gap,
- the instant up to which scans found all due ticks settled.

The misfire policy may give up a tick that was not claimed in time. If the tick
was due in a gap, it is passed over, because no scheduler was able to claim it.
If schedulers served the job at the due time, and long enough afterwards to
claim the tick, it is lost.
"""

import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import due
from distperiodic.core.job import Job
from distperiodic.core.job_set import attendance_gap
from distperiodic.core.job_set import mark_of
from distperiodic.core.pause import Pause
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import datetime_of
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler.callbacks import Callbacks

LOG = logging.getLogger(__name__)


class _Reopened(NamedTuple):
    """A job that must be scanned again, because objects were listed since the
    last scan of the job.
    """

    #: Instant at which this process noticed these objects.
    noticed: Instant
    #: True if :meth:`Attendance.reopened` has returned the job.
    returned: bool = False


class _SchedulesInForce:
    """Comparison of the schedules in force with those of this process."""

    def __init__(self, jobs: Mapping[str, Job]):
        self._jobs = jobs
        #: Number of changes that this process has seen.
        self.changes = 0
        #: Jobs whose schedule in force differs from that of this process.
        self.outdated: set[str] = set()
        #: Schedules in force for which the line 'schedule replaced' was
        #: logged, by job.
        self._logged: dict[str, str] = {}

    def note(self, before: Mapping[str, ports.JobStatus],
             after: Mapping[str, ports.JobStatus]) -> None:
        """Compare the status of all jobs, after it was read."""
        in_force = {name: one.schedule for name, one in before.items()}
        self.changes += any(in_force.get(name) != one.schedule
                            for name, one in after.items())
        ours = {name: self._jobs[name].schedule_text() for name in after}
        self.outdated = {name for name, one in after.items()
                         if one.schedule not in ('', ours[name])}
        for name in sorted(after):
            found = after[name].schedule
            if name not in self.outdated:
                self._logged.pop(name, None)
            elif in_force.get(name) == found != self._logged.get(name):
                # At the first read, this process may just not have put its
                # schedule in force yet.
                self._logged[name] = found
                LOG.warning(
                    'schedule replaced: job=%s ours=%r in_force=%r; another '
                    'member has a newer schedule, so this process makes no '
                    'claims for the job while that member is present; restart '
                    'it with the new code', name, ours[name], found)


class Attendance:
    """Status of all jobs of one member; see the docstring of this module.

    :param interval: Seconds between two reads of the status.
    :param members: Returns the hashes of the schedules that the members on the
        ring have for a job. None means that they are unknown. Without a group
        there are none.
    :param patience: Seconds after which a view shows each change of the group.
    """

    def __init__(self, clock: ports.Clock, store: ports.StoreQueue,
                 jobs: Mapping[str, Job], interval: float, *,
                 members: Callable[[str], Collection[int] | None] = (
                     lambda job: ()),
                 patience: float = 0.0):
        self._clock = clock
        self._store = store
        self._jobs = jobs
        self._interval = interval
        now = clock.now()
        self._gaps = {
            name: attendance_gap(job.schedule.period_us(now) / SECOND)
            for name, job in jobs.items()}
        self._statuses: dict[str, ports.JobStatus] = {}
        self._schedules = _SchedulesInForce(jobs)
        self._members = members
        self._patience = int(patience * SECOND)
        #: Results of scans to record at the next read, by job.
        self._checked: dict[str, ports.Checked] = {}
        #: Jobs that must be scanned again. A job remains here until the store
        #: has recorded its next scan.
        self._reopened: dict[str, _Reopened] = {}
        self._pending = False
        #: True if the schedules of this process were put in force.
        self._adopted = False
        #: Time of the last request, in monotonic seconds and as an instant.
        self._requested = clock.monotonic(), clock.now()
        self._callbacks = Callbacks()
        #: Pauses that only this process knows, by job.
        self._volatile: dict[str, Pause] = {}

    def sweep(self) -> None:
        """Read the status of the jobs if a read is due."""
        if self._clock.monotonic() - self._requested[0] >= self._interval:
            self.refresh()

    def hurry(self) -> None:
        """Make a read due at the next sweep.

        Call this when an operator has changed the status of a job.
        """
        self._requested = (self._clock.monotonic() - self._interval,
                           self._requested[1])

    def refresh(self, then: Callable[[], None] | None = None) -> None:
        """Read the status of the jobs, and record that this scheduler serves
        them.

        :param then: Called when the status is known.
        """
        if then is not None:
            self._callbacks.register(then, current=True)
        if self._pending:
            return
        self._callbacks.begin()
        self._pending = True
        self._requested = self._clock.monotonic(), self._clock.now()
        gaps, checked = self._gaps, self._checked
        self._checked = {}
        schedules = {name: job.schedule_text()
                     for name, job in self._jobs.items()
                     if not self._adopted
                     or name in self._schedules.outdated}
        if schedules:
            start(self._adopt(schedules))
        start(self._attend(gaps, checked))

    def _adopt(self, schedules: dict[str, str]) -> Procedure[None]:
        yield from call(
            self._store, ports.ClaimStore.adopt, schedules,
            {name: self._others(name) for name in schedules})
        self._adopted = True

    def _attend(self, gaps: dict[str, float],
                checked: dict[str, ports.Checked]) -> Procedure[None]:
        try:
            statuses = yield from call(
                self._store, ports.ClaimStore.attend, gaps, checked)
        finally:
            self._pending = False
        self._report(statuses)
        self._schedules.note(self._statuses, statuses)
        self._note_reopened(statuses, checked)
        self._statuses = statuses
        self._callbacks.call()
        if self._callbacks.need_another:
            self.refresh()

    def _others(self, job: str) -> Collection[int] | None:
        """Return the schedules that members have for *job*, as hashes.

        None means that this process must not put its schedule in force.
        """
        others = self._members(job)
        if others is None or self._adopted and not others:
            # Without a group, a process does so only when it starts.
            return None
        status = self._statuses.get(job)
        if (status is not None and status.schedule
                and self._clock.now() - status.since <= self._patience):
            # The member that put the schedule in force may not be in the view
            # yet.
            return {*others, mark_of(status.schedule)}
        return others

    def rings_changed(self) -> None:
        """Check soon whether schedules of this process may come into force.

        Call this when members have joined or left.
        """
        if self._schedules.outdated:
            self.hurry()

    def read_again(self, then: Callable[[], None]) -> None:
        """Read the status of the jobs with a request that begins now.

        A pending request may have read the status before an operator changed
        it.

        :param then: Called when the status is known. If the request fails, it
            is called after a later one.
        """
        self._callbacks.register(then)
        self.refresh()

    @property
    def schedules(self) -> int:
        """Number of changes of the schedules in force that this process has
        seen.
        """
        return self._schedules.changes

    def serves(self, job: str) -> bool:
        """Return whether this process schedules *job*."""
        return job in self._jobs

    def _report(self, statuses: Mapping[str, ports.JobStatus]) -> None:
        for name in sorted(statuses):
            before, after = self._statuses.get(name), statuses[name]
            if after.paused is not None and (
                    before is None or before.paused is None):
                self._log_paused(name, after.paused)
            elif before is not None and before.paused is not None and (
                    after.paused is None):
                self._log_resumed(name)
            known = () if before is None else before.paused_objects.keys()
            if after.paused_objects.keys() != set(known):
                LOG.info('objects paused: job=%s objects=%d before=%d; their '
                         'ticks are skipped; to list them: distperiodic '
                         'objects --paused', name, len(after.paused_objects),
                         len(known))

    @staticmethod
    def _log_paused(job: str, pause: Pause) -> None:
        LOG.info('job paused: job=%s reason=%s until=%s; its ticks are '
                 'skipped; to resume it: distperiodic job resume', job,
                 pause.why, 'resumed' if pause.until is None
                 else datetime_of(pause.until).isoformat())

    @staticmethod
    def _log_resumed(job: str) -> None:
        LOG.info('job resumed: job=%s; it continues with its next tick', job)

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
        """Return the jobs that must be scanned again.

        A job is returned once each time that objects were listed after a scan.
        """
        found = [name for name, one in self._reopened.items()
                 if not one.returned]
        for name in found:
            self._reopened[name] = self._reopened[name]._replace(returned=True)
        return found

    def reopened_at(self, job: str) -> Instant:
        """Return the instant since which *job* must be scanned again.

        :data:`~distperiodic.core.due.ALWAYS` means that no new scan is needed.
        """
        found = self._reopened.get(job)
        return found.noticed if found else due.ALWAYS

    @property
    def known(self) -> bool:
        """True if the status of the jobs has been read at least once."""
        return bool(self._statuses)

    def fresh(self) -> bool:
        """Return whether the last read is recent.

        Otherwise this process cannot distinguish lost ticks from ticks that
        were due in a gap.
        """
        seconds, instant = self._requested
        recent = 2 * self._interval + 1.0
        return (not self._pending
                and self._clock.monotonic() - seconds <= recent
                # If the store's clock was set forward, the last read is not
                # recent by this clock.
                and self._clock.now() - instant <= recent * SECOND)

    def paused(self, job: str) -> Pause | None:
        """Return the pause of *job*. None means that it is not paused."""
        status = self._statuses.get(job)
        return self._volatile.get(job, status.paused if status else None)

    def paused_objects(self, job: str) -> Mapping[str, Pause]:
        """Return the paused objects of *job*, by id."""
        status = self._statuses.get(job)
        return status.paused_objects if status else {}

    def is_over(self, until: Instant) -> bool:
        """Return whether a pause with this end has ended by itself."""
        return self._clock.now() >= until

    def set_paused(self, job: str, why: str | None) -> bool:
        """Pause or resume *job* in this process only.

        The pause is not recorded, so it ends with the process.

        :param why: Reason of the pause. None resumes the job.
        :returns: True if this call has paused or resumed the job.
        """
        before = job in self._volatile
        if why is None:
            self._volatile.pop(job, None)
        else:
            self._volatile[job] = Pause(why)
        changed = before is (why is None)
        if changed and why is None:
            self._log_resumed(job)
        elif changed:
            self._log_paused(job, self._volatile[job])
        return changed

    @property
    def volatile(self) -> list[str]:
        """Names of the jobs that are paused in this process only."""
        return sorted(self._volatile)

    def outdated(self, job: str) -> bool:
        """Return whether the schedule in force differs from the schedule that
        this process knows.
        """
        return job in self._schedules.outdated

    def in_force(self, job: str) -> str:
        """Return the text of the schedule in force.

        Empty means that it is not known.
        """
        status = self._statuses.get(job)
        return status.schedule if status else ''

    def since(self, job: str) -> Instant:
        """Return the instant from which the schedule in force applies."""
        status = self._statuses.get(job)
        return status.since if status else due.ALWAYS

    def attended(self, job: str) -> Instant | None:
        """Return the instant since which schedulers have served the job
        without a gap.

        None means that no service is recorded. A store in memory records none.
        """
        status = self._statuses.get(job)
        return status.attended if status else None

    def gap_us(self, job: str) -> int:
        """Return the time without a scheduler above which there is a gap.

        :returns: Microseconds.
        """
        return int(self._gaps[job] * SECOND)

    def checked(self, job: str) -> Instant:
        """Return the instant up to which scans found all due ticks decided."""
        scan = self._checked.get(job)
        return scan.until if scan else self._recorded(job)

    def expected(self, job: str) -> Instant:
        """Return the value of :attr:`distperiodic.ports.Checked.expected` for
        a scan that begins now.
        """
        scan = self._checked.get(job)
        return scan.expected if scan else self._recorded(job)

    def _recorded(self, job: str) -> Instant:
        status = self._statuses.get(job)
        return status.checked if status else due.ALWAYS

    def record_checked(self, job: str, scan: ports.Checked) -> None:
        """Record the result of a scan that found all due ticks decided.

        The next read sends the result to the store.
        """
        self._checked[job] = scan._replace(
            until=max(scan.until, self.checked(job)))
