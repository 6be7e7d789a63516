# SPDX-License-Identifier: Apache-2.0
"""``distperiodic job list|pause|resume|trigger``: jobs as the store has them.

Schedulers read what is written here at their next sweep.
"""

import argparse
import getpass
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from cliff import command
from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import listed
from distperiodic.core import due

if TYPE_CHECKING:
    from distperiodic.core import job as job_


class JobList(configured.Table, lister.Lister):
    """Show the jobs that were ever claimed, and which are paused.

    With --tasks also those that were not, and what the schedule of each is.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        listed.add_option(parser, 'it has the schedules')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        from distperiodic.adapters import control as control_
        tasks = listed.load(self, parsed)
        with self.control(parsed) as control:
            jobs = {job.name: job for job in control.jobs()}
            now = control.now()
        if not jobs:
            self.sentence = 'No scheduler has claimed anything yet.'
        defined = {} if tasks is None else tasks.jobs
        plan = [] if tasks is None else ['Schedule', 'Next tick']
        rows: list[Sequence[Any]] = []
        for name in sorted({*jobs, *defined}):
            job = jobs.get(name) or control_.Job(
                name, None, None, '', '', due.ALWAYS)
            rows.append((
                name, *(_plan(defined.get(name), now) if plan else ()),
                _moment(job.tick), _moment(job.paused_since),
                job.paused_by, job.paused_why))
        return ('Job', *plan, 'Last tick', 'Paused since', 'By',
                'Why'), rows


def _plan(job: 'job_.Job | None', now: int) -> tuple[str, str]:
    """The schedule of a job, and its next tick; paused or not."""
    if job is None:
        return 'not in --tasks', ''
    if not job.enabled:
        return f'{job.schedule.describe()}, disabled', ''
    return job.schedule.describe(), _moment(job.schedule.after(now))


def _moment(micros: int | None) -> str:
    return '' if micros is None else configured.moment(micros)


class _OfJob(configured.Configured, command.Command):
    """A command about one job."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('job', metavar='JOB', help='its name')
        return parser

    def say(self, text: str) -> None:
        app: Any = self.app
        print(text, file=app.stdout)


class JobPause(_OfJob):
    """Have the ticks of a job skipped until it is resumed.

    What was claimed before goes on to its end.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--why', required=True, metavar='TEXT',
            help='shown to whoever wonders; it is in the history, too')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.adapters import local
        by = f'{_user()}@{local.host_name()}'
        with self.control(parsed) as control:
            control.pause(parsed.job, by=by, why=parsed.why)
        self.say(f'paused {parsed.job}; schedulers notice at their next '
                 'sweep')


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as somebody that its files do not name.
        return f'uid-{os.getuid()}'


class JobResume(_OfJob):
    """Let a job go on with its next tick."""

    def take_action(self, parsed: argparse.Namespace) -> None:
        with self.control(parsed) as control:
            paused = control.resume(parsed.job)
        if not paused:
            self.say(f'{parsed.job} was not paused; nothing was changed')
            return
        self.say(f'resumed {parsed.job}; it goes on with its next tick')


class JobTrigger(_OfJob):
    """Have a job run once at the next sweep, paused or not.

    Objects are those that were claimed before. One whose earlier tick has not
    come to its end is left out. What was due before and nobody has claimed
    yet stays due: misfire decides on it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--object', metavar='OBJECT', help='the id of one object')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        with self.control(parsed) as control:
            told = control.trigger(parsed.job, key=parsed.object)
        if not told.objects:
            what = (f'no object of job {parsed.job!r} can'
                    if parsed.object is None else
                    f'object {parsed.object!r} of job {parsed.job!r} cannot')
            raise exceptions.ConfigError(
                f'{what} run now: '
                + ('an earlier tick is not over; wait for its end' if told.busy
                   else 'nobody ever claimed it; a scheduler has to find it '
                   'in the catalogue first'))
        left_out = (f', left out {told.busy} whose earlier tick is not over'
                    if told.busy else '')
        self.say(f'triggered {configured.plural(told.objects, "object")} for '
                 f'tick {configured.moment(told.tick)}{left_out}')
