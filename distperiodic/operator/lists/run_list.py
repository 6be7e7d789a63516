# SPDX-License-Identifier: Apache-2.0
"""The runs in progress."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator import filters
from distperiodic.operator import member_rows
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.activity import CurrentRun


class Runs(cells.DeclaredList['CurrentRun']):
    """Show the runs that are in progress, the oldest first.

    The worker is the process of this role to which the run was granted, where
    it may still wait for a thread. The age is the time since the grant. A run
    whose lease has expired is shown until a scheduler takes it over. Runs of
    jobs that run on every member come from the last reports of the members.
    """

    essential: Sequence[str] = ('Job', 'Object', 'Worker', 'Role', 'Age')
    empty = 'Nothing is running.'
    cut = 'The oldest {}; see --limit.'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        filters.add_job(parser)
        filters.add_limit(parser, 'runs')
        parser.add_argument(
            '--older-than', type=filters.duration, default=0.0,
            metavar='TIME',
            help='show only runs that are older than TIME, such as 90s, 30m, '
                 '1h or 7d; default: all runs')

    def fetch(self, sources: Sources) -> 'list[CurrentRun]':
        from distperiodic.operator import activity
        from distperiodic.operator import members
        parsed = sources.parsed
        job = filters.job_of(parsed)
        store = sources.store
        runs = members.runs(store, job, sources.settings.session_timeout,
                            older_than=parsed.older_than)
        role_of = member_rows.roles(members.members(store))
        try:
            runs += activity.runs(
                store, job, parsed.limit, older_than=parsed.older_than)
        except exceptions.ConfigError as exc:
            if not runs:
                raise exceptions.ConfigError(
                    f'{exc}. A job that runs on every member is listed only '
                    'while it runs') from exc
        self.columns = {
            'Job': lambda run: run.job,
            'Object': lambda run: run.object,
            'Worker': lambda run: wording.identity(run.worker),
            'Role': lambda run: role_of(run.worker),
            'Age (s)': lambda run: cells.age(max(0, run.age) / 1e6),
            'Attempt': lambda run: run.attempt,
            'Tick': lambda run: wording.moment(run.tick),
            'Lease ends': lambda run: '' if run.until is None
            else wording.second(run.until),
            'Progress': lambda run: _progress(run.progress)}
        runs.sort(key=lambda run: -run.age)
        return runs[:parsed.limit]


def _progress(text: str | None) -> object:
    """Return the progress that a run reported: JSON text for people, and the
    JSON value for programs.
    """
    return '' if text is None else cells.Cell(text, json.loads(text))
