# SPDX-License-Identifier: Apache-2.0
"""The jobs that schedulers have recorded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core import wording
from distperiodic.core.job import Job
from distperiodic.operator import cells
from distperiodic.operator import health
from distperiodic.operator.health import Finding
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.group_reader import StoredJob


class Jobs(cells.DeclaredList['StoredJob']):
    """Show the jobs that schedulers have recorded, and which are paused.

    Health has the codes of the findings about a job and its objects. With
    --tasks the command also shows the jobs that no scheduler has recorded, and
    takes the schedules from it, not from the store.
    """

    def fetch(self, sources: Sources) -> 'list[StoredJob]':
        from distperiodic.operator.group_reader import StoredJob
        tasks, store = sources.tasks, sources.store
        jobs = {job.name: job for job in store.jobs()}
        now = store.now()
        if not jobs:
            self.sentence = 'No scheduler has recorded a job yet.'
        found = health.findings(sources.facts()) if jobs else []
        defined = {} if tasks is None else tasks.jobs

        def plan(job: StoredJob) -> tuple[str, str]:
            return (_recorded_plan(job, now) if tasks is None
                    else _plan(defined.get(job.name), now))
        self.columns = {
            'Job': lambda job: job.name,
            'Schedule': lambda job: plan(job)[0],
            'Next tick': lambda job: plan(job)[1],
            'Last tick': lambda job: _moment(job.tick),
            'Health': lambda job: _health(
                health.concerning(found, job.name), job.name in jobs),
            'Paused since': lambda job: _moment(job.paused_since),
            'Until': lambda job: _moment(job.paused_until),
            'Paused objects': lambda job: job.paused_objects or '',
            'By': lambda job: job.paused_by,
            'Why': lambda job: job.paused_why}
        return [jobs.get(name) or StoredJob(
            name, None, None, '', '', due.ALWAYS, '')
            for name in sorted({*jobs, *defined})]


def _health(found: Sequence[Finding], recorded: bool) -> str:
    """Return the codes of the findings about a job."""
    codes = sorted({one.code for one in found})
    return ', '.join(codes) or ('ok' if recorded else '')


def _plan(job: Job | None, now: int) -> tuple[str, str]:
    """Return the schedule and the next tick of a job, even if it is paused."""
    if job is None:
        return 'not in --tasks', ''
    if not job.enabled:
        return f'{job.schedule.describe()}, disabled', ''
    return job.schedule.describe(), _moment(job.schedule.after(now))


def next_ticks(job: 'StoredJob', now: int, number: int) -> list[str]:
    """Return the next ticks of a job by the schedule in the store."""
    found: list[str] = []
    if (recorded := audit.recorded(job.schedule)) is None:
        return found
    rule, _ = recorded
    at = now
    for _ in range(number):
        at = rule.after(at)
        found.append(wording.moment(at))
    return found


def _recorded_plan(job: 'StoredJob', now: int) -> tuple[str, str]:
    """Return the schedule of a job in the store, and its next tick, even if
    the job is paused.
    """
    if (recorded := audit.recorded(job.schedule)) is None:
        return '', ''
    rule, _ = recorded
    return rule.describe(), _moment(rule.after(now))


def _moment(micros: int | None) -> str:
    return '' if micros is None else wording.moment(micros)
