# SPDX-License-Identifier: Apache-2.0
"""``distperiodic job list|pause|resume|trigger``: the jobs in the store.

With a store, the commands change rows. Schedulers read these rows at their
next sweep, or at once if they receive a hint over the bus, and then answer.
"""

import argparse
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import job_order
from distperiodic.cmd import listed
from distperiodic.core import due
from distperiodic.core.control import Verb
from distperiodic.core.suggestion import did_you_mean

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.core import job as core_job
    from distperiodic.operator.admin import StoreAdmin
    from distperiodic.operator.admin import Triggered
    from distperiodic.operator.auditing import Record
    from distperiodic.operator.group_reader import GroupReader
    from distperiodic.operator.group_reader import Job
    from distperiodic.operator.health import Finding


class JobList(display.Table, lister.Lister):
    """Show the jobs that schedulers have recorded, and which are paused.

    Health has the codes of the findings about a job and its objects. With
    --tasks the command also shows the jobs that no scheduler has recorded, and
    takes the schedules from it, not from the store.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        listed.add_option(parser, 'it provides the schedules')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.adapters.local.clock import SystemClock
        from distperiodic.operator import health
        from distperiodic.operator import health_facts
        from distperiodic.operator.group_reader import Job
        from distperiodic.operator.queries import StoreQueries
        tasks = listed.load(self, parsed)
        with self.store(parsed, StoreQueries) as queries:
            jobs = {job.name: job for job in queries.group.jobs()}
            now = queries.group.now()
        if not jobs:
            self.sentence = 'No scheduler has recorded a job yet.'
        found = health.findings(health_facts.read(
            self.database(parsed), SystemClock())) if jobs else []
        defined = {} if tasks is None else tasks.jobs
        rows: list[Sequence[object]] = []
        for name in sorted({*jobs, *defined}):
            job = jobs.get(name) or Job(
                name, None, None, '', '', due.ALWAYS, '')
            rows.append((
                name, *(_recorded_plan(job, now) if tasks is None
                        else _plan(defined.get(name), now)),
                _moment(job.tick), _health(
                    health.concerning(found, name), name in jobs),
                _moment(job.paused_since), job.paused_by, job.paused_why))
        return ('Job', 'Schedule', 'Next tick', 'Last tick', 'Health',
                'Paused since', 'By', 'Why'), rows


def _health(found: 'Sequence[Finding]', recorded: bool) -> str:
    """Return the codes of the findings about a job."""
    codes = sorted({one.code for one in found})
    return ', '.join(codes) or ('ok' if recorded else '')


def _plan(job: 'core_job.Job | None', now: int) -> tuple[str, str]:
    """Return the schedule and the next tick of a job, even if it is paused."""
    if job is None:
        return 'not in --tasks', ''
    if not job.enabled:
        return f'{job.schedule.describe()}, disabled', ''
    return job.schedule.describe(), _moment(job.schedule.after(now))


def _recorded_plan(job: 'Job', now: int) -> tuple[str, str]:
    """Return the schedule of a job in the store, and its next tick, even if
    the job is paused.
    """
    from distperiodic.core import audit
    try:
        rule, _ = audit.named(job.schedule)
    except exceptions.InvalidSchedule:
        # No schedule is recorded, or a later release has written it.
        return '', ''
    return rule.describe(), _moment(rule.after(now))


def _moment(micros: int | None) -> str:
    return '' if micros is None else configured.moment(micros)


class JobPause(job_order.JobsOrder):
    """Skip the ticks of jobs until they are resumed.

    Claimed runs are finished. If a job is already paused, the new reason
    replaces the previous reason, and the command prints the previous one.
    Each scheduler answers when it applies the pause. A job belongs to the
    group: to pause one member, drain it with "member drain".
    """

    verb = Verb.PAUSE
    reason_required = True

    def change(self, admin: 'StoreAdmin', job: 'Job', record: 'Record',
               parsed: argparse.Namespace) -> str:
        actor = self.actor(parsed)
        admin.pause(job.name, by=f'{actor.who}@{actor.host}', why=parsed.why)
        before = '' if job.paused_since is None else (
            f' (it was already paused, at {_moment(job.paused_since)} by '
            f'{job.paused_by}: {job.paused_why}; the new reason replaces this '
            'one)')
        return f'paused {job.name}{before}'


class JobResume(job_order.JobsOrder):
    """Resume jobs from their next ticks on.

    Each scheduler answers when the pause no longer applies.
    """

    verb = Verb.RESUME

    def change(self, admin: 'StoreAdmin', job: 'Job', record: 'Record',
               parsed: argparse.Namespace) -> str:
        if admin.resume(job.name):
            return f'resumed {job.name}; it continues with its next tick'
        record.outcome = 'it was not paused'
        return f'{job.name} was not paused; nothing was changed'


class JobTrigger(job_order.JobOrder):
    """Run a job once now, paused or not.

    The command runs all objects that schedulers have listed. With --tasks it
    also runs the objects that the catalogue lists now, even before the first
    tick of the job. An object whose earlier tick has not ended is left out.
    Earlier ticks that are not claimed yet stay due: misfire decides whether
    they run. Each scheduler answers with the number of objects that it has
    claimed.
    """

    verb = Verb.TRIGGER
    note = job_order.ONCE
    effect = 'it searches for triggered objects {}'

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('job', metavar='JOB', help='name of the job')
        parser.add_argument(
            '--object', metavar='OBJECT', help='run only this object')
        listed.add_option(
            parser, 'the command reads its catalogue, and also runs objects '
            'that no scheduler has listed yet')
        return parser

    def arguments(self, parsed: argparse.Namespace,
                  settings: 'opts.Settings') -> dict[str, object]:
        if parsed.tasks is not None:
            raise exceptions.ConfigError(
                'without a store, schedulers run the objects that they have '
                'listed themselves; omit --tasks, or set [distperiodic] '
                'connection')
        return {'job': parsed.job, 'object': parsed.object}

    def write(self, parsed: argparse.Namespace) -> int:
        from distperiodic.operator.admin import StoreAdmin
        tasks = listed.load(self, parsed)
        with (contextlib.closing(self.admin(parsed)) as members,
              self.store(parsed, StoreAdmin) as admin):
            found = None
            if tasks is not None:
                found = self._read(admin.group, tasks, parsed)
            elif parsed.job not in admin.group.names().values():
                self._refuse_unknown(admin.group, parsed.job)
            schedulers = job_order.schedulers_of(members.members())
            hint = self.prepare_hint(parsed)
            with self.audited(parsed, parsed.job,
                              object=parsed.object) as record:
                if found is not None:
                    self._list(*found, parsed)
                result = admin.trigger(parsed.job, key=parsed.object)
                record.outcome = (
                    f'{configured.plural(result.objects, "object")}, '
                    f'{result.busy} busy')
                if result.overtaken:
                    record.outcome += f', {result.overtaken} overtaken'
                if result.objects:
                    members.request_answers(record, schedulers,
                                            tick=result.tick)
            self._report(result, parsed, tasks)
            hint(self.verb)
            return self.await_schedulers(
                members, schedulers, {parsed.job: record}, parsed)

    def _report(self, result: 'Triggered', parsed: argparse.Namespace,
                tasks: 'periodic.PeriodicTasks | None') -> None:
        """Print the number of triggered objects.

        :raises ConfigError: no object can run now.
        """
        if not result.objects:
            what = (f'no object of job {parsed.job!r} can'
                    if parsed.object is None else
                    f'object {parsed.object!r} of job {parsed.job!r} cannot')
            raise exceptions.ConfigError(
                f'{what} run now: '
                + ('an earlier tick has not ended; wait until it has'
                   if result.busy
                   else 'a later tick is already claimed; if this run is not '
                   'enough, give the command again' if result.overtaken
                   else 'the catalogue lists no object' if tasks is not None
                   else 'no scheduler has listed it; give --tasks to read the '
                   'catalogue'))
        left_out = ''.join(
            f', left out {number} {which}' for number, which in (
                (result.busy, 'whose earlier tick has not ended'),
                (result.overtaken, 'that are already claimed for a later tick')
            ) if number)
        self.print(
            f'triggered {configured.plural(result.objects, "object")} for '
            f'tick {configured.moment(result.tick)}{left_out}')

    def _refuse_unknown(self, group: 'GroupReader', job: str) -> None:
        """Raise an error that explains how to run a job without a record.

        :raises ConfigError: always.
        """
        try:
            group.names(job)
        except exceptions.ConfigError as exc:
            raise exceptions.ConfigError(
                f'{exc}. If the name is correct, no scheduler has recorded '
                'the job yet: give --tasks MODULE:CLASS to run it now'
            ) from exc

    def _read(self, group: 'GroupReader', tasks: 'periodic.PeriodicTasks',
              parsed: argparse.Namespace
              ) -> 'tuple[core_job.Job, listed.Listed]':
        """Return the job, and the objects that its catalogue lists now.

        :raises ConfigError: there is no such job or object, or the catalogue
            cannot be read.
        """
        from distperiodic.core.job import Scope
        job = tasks.jobs.get(parsed.job)
        if job is None:
            raise exceptions.ConfigError(
                f'--tasks {parsed.tasks!r} has no job {parsed.job!r}'
                + (did_you_mean(parsed.job, tasks.jobs)
                   or f'; it has {", ".join(tasks.jobs)}'))
        if job.scope is Scope.MEMBER or not job.enabled:
            raise exceptions.ConfigError(
                f'job {job.name!r} is disabled in its code; enable it'
                if not job.enabled else
                f'each member runs job {job.name!r} for itself, without '
                "claims; give it scope='group' or objects=")
        found = listed.read(tasks, job, group.now())
        if isinstance(found, str):
            raise exceptions.ConfigError(
                f'job {job.name!r}: {found}; omit --tasks to run the objects '
                'that schedulers have already listed')
        if parsed.object is not None and parsed.object not in found.ids:
            raise exceptions.ConfigError(
                f'object {parsed.object!r} of job {job.name!r} cannot run '
                f'now: {job.objects or "the job"} does not list it')
        return job, found

    def _list(self, job: 'core_job.Job', found: listed.Listed,
              parsed: argparse.Namespace) -> None:
        """Add the job's objects to the listing, as a scheduler would."""
        from distperiodic.adapters.sql.store import SqlClaimStore
        from distperiodic.operator.queries import StoreQueries
        with (self.store(parsed, StoreQueries) as accounts,
              self.store(parsed, SqlClaimStore) as claims):
            listed.record(accounts, claims, job, found, parsed.object)
