# SPDX-License-Identifier: Apache-2.0
"""``distperiodic dead list|requeue``: objects whose runs failed for good."""

import argparse

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.operator.lists import dead_list


class DeadList(dead_list.DeadObjects, display.List):
    pass


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
