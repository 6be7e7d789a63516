# SPDX-License-Identifier: Apache-2.0
"""``distperiodic dead list|requeue``: objects whose runs failed for good."""

import argparse
from collections.abc import Sequence

from cliff import command
from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import of_members


class DeadList(display.Table, lister.Lister):
    """Show the objects that failed for good and have not succeeded since.

    An object stays in the list until it succeeds. In a row is the number of
    ticks that have failed since the last success. In the state dead, the
    object waits for its next tick or for "dead requeue"; in any other state, a
    later tick is claimed already.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_job(parser)
        parser.add_argument(
            '--object', metavar='OBJECT', help='show only this object')
        parser.add_argument(
            '--traceback', action='store_true',
            help='also show the traceback of the error')
        configured.add_limit(parser, 'objects, those of the newest ticks')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.activity import Activity
        from distperiodic.operator.member_rows import by_process
        from distperiodic.operator.members import MemberQueries
        job = configured.job_of(parsed)
        with self.store(parsed, Activity) as activity:
            found = activity.failing(
                job=job, limit=parsed.limit, key=parsed.object,
                tracebacks=parsed.traceback)
        with self.store(parsed, MemberQueries) as members:
            processes = by_process(members.members())
        if not found:
            self.sentence = (
                'No object has failed without a later success.'
                if parsed.object is None else
                f'Object {parsed.object!r} has not failed without a later '
                'success.')
        elif len(found) == parsed.limit:
            self.sentence = f'The newest {len(found)}; see --limit.'
        return (('Job', 'Object', 'Tick', 'Attempt', 'Worker', 'Role', 'At',
                 'In a row', 'State', 'Error',
                 *(['Traceback'] if parsed.traceback else [])),
                [(dead.job, dead.object, configured.moment(dead.tick),
                  dead.attempt, dead.worker,
                  of_members.role_of(dead.worker, processes),
                  configured.moment(dead.at),
                  dead.runs, dead.state.value,
                  configured.one_line(dead.error),
                  *([display.Lines(dead.traceback)]
                    if parsed.traceback else []))
                 for dead in found])


class DeadRequeue(acting.Acting, command.Command):
    """Run dead objects again, for the tick in which they failed.

    The count of attempts restarts at 1. The objects run at the next sweep of a
    scheduler.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_job(parser)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            '--object', metavar='OBJECT', help='run only this object')
        which.add_argument(
            '--all', action='store_true', help='run all dead objects')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.operator.admin import StoreAdmin
        job = configured.job_of(parsed)
        with (self.store(parsed, StoreAdmin) as admin,
              self.audited(parsed, job or 'all jobs',
                           object=parsed.object) as record):
            number = admin.requeue(job=job, key=parsed.object)
            record.outcome = configured.plural(number, 'object')
        if not number and parsed.object is not None:
            raise exceptions.ConfigError(
                f'object {parsed.object!r} is not dead, so nothing was '
                'changed; to list the dead objects: distperiodic dead list')
        self.print(f'requeued {configured.plural(number, "object")}')
