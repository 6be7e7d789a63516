# SPDX-License-Identifier: Apache-2.0
"""``distperiodic job list|pause|resume|trigger``: the jobs in the store.

Schedulers read the changes of these commands at their next sweep.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from cliff import command
from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import listed
from distperiodic.core import due
from distperiodic.core.suggestion import did_you_mean

if TYPE_CHECKING:
    from distperiodic import periodic
    from distperiodic.core import job as core_job
    from distperiodic.operator.group_reader import GroupReader
    from distperiodic.operator.group_reader import Job


class JobList(display.Table, lister.Lister):
    """Show the jobs that schedulers have claimed, and which are paused.

    With --tasks the command also shows the jobs that were never claimed, and
    the schedule of each job.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        listed.add_option(parser, 'it provides the schedules')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        from distperiodic.operator.group_reader import Job
        from distperiodic.operator.queries import StoreQueries
        tasks = listed.load(self, parsed)
        with self.store(parsed, StoreQueries) as queries:
            jobs = {job.name: job for job in queries.group.jobs()}
            now = queries.group.now()
        if not jobs:
            self.sentence = 'No scheduler has claimed anything yet.'
        defined = {} if tasks is None else tasks.jobs
        plan = [] if tasks is None else ['Schedule', 'Next tick']
        rows: list[Sequence[Any]] = []
        for name in sorted({*jobs, *defined}):
            job = jobs.get(name) or Job(
                name, None, None, '', '', due.ALWAYS)
            rows.append((
                name, *(_plan(defined.get(name), now) if plan else ()),
                _moment(job.tick), _moment(job.paused_since),
                job.paused_by, job.paused_why))
        return ('Job', *plan, 'Last tick', 'Paused since', 'By',
                'Why'), rows


def _plan(job: 'core_job.Job | None', now: int) -> tuple[str, str]:
    """Return the schedule and the next tick of a job, paused or not."""
    if job is None:
        return 'not in --tasks', ''
    if not job.enabled:
        return f'{job.schedule.describe()}, disabled', ''
    return job.schedule.describe(), _moment(job.schedule.after(now))


def _moment(micros: int | None) -> str:
    return '' if micros is None else configured.moment(micros)


class _OfJob(acting.Acting, command.Command):
    """Base class of commands about one job."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('job', metavar='JOB', help='name of the job')
        return parser


class _OfJobs(_OfJob):
    """Base class of commands about one job or all jobs."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = acting.Acting.get_parser(self, prog_name)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            'job', metavar='JOB', nargs='?', help='name of the job')
        which.add_argument(
            '--all', action='store_true',
            help='all jobs of this group in the database')
        return parser

    def names(self, parsed: argparse.Namespace,
              group: 'GroupReader') -> 'list[Job]':
        """Return the jobs that the command line names.

        :raises ConfigError: the store has no jobs.
        """
        names = group.names(parsed.job).values()
        jobs = [job for job in group.jobs() if job.name in names]
        if not jobs:
            raise exceptions.ConfigError(
                'no scheduler of this group has claimed anything yet, so the '
                'group has no jobs; check [distperiodic] group')
        return jobs


class JobPause(_OfJobs):
    """Skip the ticks of a job, or of all jobs, until it is resumed.

    Claimed runs are finished. If the job is already paused, the new reason
    replaces the previous reason, and the command prints the previous one.
    """

    reason_required = True

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.operator.admin import StoreAdmin
        actor = self.actor(parsed)
        with self.store(parsed, StoreAdmin) as admin:
            for job in self.names(parsed, admin.group):
                with self.audited(parsed, job.name):
                    admin.pause(job.name, by=f'{actor.who}@{actor.host}',
                                why=parsed.why)
                before = '' if job.paused_since is None else (
                    f' (it was already paused, at {_moment(job.paused_since)} '
                    f'by {job.paused_by}: {job.paused_why}; the new reason '
                    'replaces this one)')
                self.print(f'paused {job.name}{before}; schedulers apply '
                           'the pause at their next sweep')
        self.prepare_hint(parsed)('job pause')


class JobResume(_OfJobs):
    """Resume a job, or all jobs, from the next tick on."""

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.operator.admin import StoreAdmin
        with self.store(parsed, StoreAdmin) as admin:
            for job in self.names(parsed, admin.group):
                with self.audited(parsed, job.name) as record:
                    resumed = admin.resume(job.name)
                    if not resumed:
                        record.outcome = 'it was not paused'
                if resumed:
                    self.print(f'resumed {job.name}; it continues with its '
                               'next tick')
                else:
                    self.print(f'{job.name} was not paused; nothing was '
                               'changed')
        self.prepare_hint(parsed)('job resume')


class JobTrigger(_OfJob):
    """Run a job once at the next sweep, paused or not.

    The command runs all objects that schedulers have listed. With --tasks it
    also runs the objects that the catalogue lists now, even before the first
    tick of the job. An object whose earlier tick has not ended is left out.
    Earlier ticks that are not claimed yet stay due: misfire decides whether
    they run.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--object', metavar='OBJECT', help='run only this object')
        listed.add_option(
            parser, 'the command reads its catalogue, and also runs objects '
            'that no scheduler has listed yet')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.operator.admin import StoreAdmin
        tasks = listed.load(self, parsed)
        with self.store(parsed, StoreAdmin) as admin:
            found = None
            if tasks is not None:
                found = self._read(admin.group, tasks, parsed)
            elif parsed.job not in admin.group.names().values():
                self._refuse_unknown(admin.group, parsed.job)
            with self.audited(parsed, parsed.job,
                              object=parsed.object) as record:
                if found is not None:
                    self._list(*found, parsed)
                result = admin.trigger(parsed.job, key=parsed.object)
                record.outcome = (
                    f'{configured.plural(result.objects, "object")}, '
                    f'{result.busy} busy')
        if not result.objects:
            what = (f'no object of job {parsed.job!r} can'
                    if parsed.object is None else
                    f'object {parsed.object!r} of job {parsed.job!r} cannot')
            raise exceptions.ConfigError(
                f'{what} run now: '
                + ('an earlier tick has not ended; wait until it has'
                   if result.busy
                   else 'the catalogue lists no object' if tasks is not None
                   else 'no scheduler has listed it; give --tasks to read the '
                   'catalogue'))
        left_out = (
            f', left out {result.busy} whose earlier tick has not ended'
            if result.busy else '')
        self.print(
            f'triggered {configured.plural(result.objects, "object")} for '
            f'tick {configured.moment(result.tick)}{left_out}')
        self.prepare_hint(parsed)('job trigger')

    def _refuse_unknown(self, group: 'GroupReader', job: str) -> None:
        """Raise an error that explains how to run a job before its first tick.

        :raises ConfigError: always.
        """
        try:
            group.names(job)
        except exceptions.ConfigError as exc:
            raise exceptions.ConfigError(
                f'{exc}. If the name is correct, the job has had no tick yet: '
                'give --tasks MODULE:CLASS to run it now') from exc

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
                f'job {job.name!r} '
                + ('is disabled in its code; enable it' if not job.enabled
                   else 'runs in each member for itself, without claims; '
                   "give it scope='group' or objects="))
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
        """List the job's objects in the store, as a scheduler would."""
        from distperiodic.adapters.sql.store import SqlClaimStore
        from distperiodic.operator.queries import StoreQueries
        with (self.store(parsed, StoreQueries) as accounts,
              self.store(parsed, SqlClaimStore) as claims):
            listed.record(accounts, claims, job, found, parsed.object)
