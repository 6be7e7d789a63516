# SPDX-License-Identifier: Apache-2.0
"""``distperiodic dead list|requeue``: objects whose runs failed for good."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import selection
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session

if TYPE_CHECKING:
    from distperiodic.operator.activity import Failing


class DeadList(display.List['Failing']):
    """Show the objects that failed for good and have not succeeded since.

    An object stays in the list until it succeeds. In a row is the number of
    ticks that have failed since the last success. In the state dead, the
    object waits for its next tick or for "dead requeue"; in any other state, a
    later tick is claimed already.
    """

    cut = 'The newest {}; see --limit.'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_job(parser)
        parser.add_argument(
            '--object', metavar='OBJECT', help='show only this object')
        parser.add_argument(
            '--traceback', action='store_true',
            help='also show the traceback of the error')
        configured.add_limit(parser, 'objects, those of the newest ticks')

    def fetch(self, session: Session) -> 'list[Failing]':
        from distperiodic.operator import activity
        from distperiodic.operator import members
        parsed = session.parsed
        job = configured.job_of(parsed)
        found = activity.failing(
            session.store, job=job, limit=parsed.limit, key=parsed.object,
            tracebacks=parsed.traceback)
        role_of = selection.roles(members.members(session.store))
        columns: dict[str, Callable[[Failing], object]] = {
            'Job': lambda dead: dead.job,
            'Object': lambda dead: dead.object,
            'Tick': lambda dead: configured.moment(dead.tick),
            'Attempt': lambda dead: dead.attempt,
            'Worker': lambda dead: dead.worker,
            'Role': lambda dead: role_of(dead.worker),
            'At': lambda dead: configured.moment(dead.at),
            'In a row': lambda dead: dead.runs,
            'State': lambda dead: dead.state.value,
            'Error': lambda dead: configured.one_line(dead.error)}
        if parsed.traceback:
            columns['Traceback'] = lambda dead: display.Lines(dead.traceback)
        self.columns = columns
        self.empty = (
            'No object has failed without a later success.'
            if parsed.object is None else
            f'Object {parsed.object!r} has not failed without a later '
            'success.')
        return found


class DeadRequeue(RecordedCommand):
    """Run dead objects again, for the tick in which they failed.

    The count of attempts restarts at 1. The objects run at the next sweep of a
    scheduler.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        configured.add_job(parser)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            '--object', metavar='OBJECT', help='run only this object')
        which.add_argument(
            '--all', action='store_true', help='run all dead objects')

    def act(self, session: Session) -> None:
        from distperiodic.operator import admin
        key = session.parsed.object
        job = configured.job_of(session.parsed)
        with session.recorded(job or 'all jobs', object=key) as record:
            number = admin.requeue(session.store, job=job, key=key)
            record.outcome = configured.plural(number, 'object')
        if not number and key is not None:
            raise exceptions.ConfigError(
                f'object {key!r} is not dead, so nothing was changed; to list '
                'the dead objects: distperiodic dead list')
        session.print(f'requeued {configured.plural(number, "object")}')
