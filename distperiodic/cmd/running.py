# SPDX-License-Identifier: Apache-2.0
"""``distperiodic running``: the runs in progress, with worker and age."""

import argparse
import json
from collections.abc import Sequence

from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import of_members


class Running(display.Table, lister.Lister):
    """Show the runs that are in progress, the oldest first.

    The worker is the process of this role to which the run was granted, where
    it may still wait for a thread. The age is the time since the grant. A run
    whose lease has expired is shown until a scheduler takes it over. Runs of
    jobs that run on every member come from the last reports of the members.
    """

    essential = ('Job', 'Object', 'Worker', 'Role', 'Age')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_job(parser)
        configured.add_limit(parser, 'runs')
        parser.add_argument(
            '--older-than', type=configured.duration, default=0.0,
            metavar='TIME',
            help='show only runs that are older than TIME, such as 90s, 30m, '
                 '1h or 7d; default: all runs')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.activity import Activity
        from distperiodic.operator.member_rows import by_process
        from distperiodic.operator.members import MemberQueries
        people = parsed.formatter not in display.FOR_PROGRAMS
        job = configured.job_of(parsed)
        settings = self.database(parsed)
        with self.store(parsed, MemberQueries) as members:
            runs = members.runs(job, settings.session_timeout,
                                older_than=parsed.older_than)
            processes = by_process(members.members())
        with self.store(parsed, Activity) as activity:
            try:
                runs += activity.runs(
                    job, parsed.limit, older_than=parsed.older_than)
            except exceptions.ConfigError as exc:
                if not runs:
                    raise exceptions.ConfigError(
                        f'{exc}. A job that runs on every member is listed '
                        'only while it runs') from exc
        runs.sort(key=lambda run: -run.age)
        del runs[parsed.limit:]
        if not runs:
            self.sentence = 'Nothing is running.'
        elif len(runs) == parsed.limit:
            self.sentence = f'The oldest {len(runs)}; see --limit.'
        return (('Job', 'Object', 'Worker', 'Role',
                 'Age' if people else 'Age (s)', 'Attempt', 'Tick',
                 'Lease ends', 'Progress'),
                [(run.job, run.object, configured.identity(run.worker),
                  of_members.role_of(run.worker, processes),
                  _age(run.age, people), run.attempt,
                  configured.moment(run.tick),
                  '' if run.until is None else configured.second(run.until),
                  _progress(run.progress, people)) for run in runs])


def _age(micros: int, for_people: bool) -> object:
    seconds = max(0, micros) / 1e6
    return configured.age(seconds) if for_people else round(seconds, 3)


def _progress(text: str | None, for_people: bool) -> object:
    """Return the progress that a run reported.

    The result for people is the JSON text, and for programs the JSON value.
    """
    if for_people or text is None:
        return text or ''
    return json.loads(text)
