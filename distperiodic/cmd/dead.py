# SPDX-License-Identifier: Apache-2.0
"""``distperiodic dead list|requeue``: objects whose runs failed for good."""

import argparse

from distperiodic import exceptions
from distperiodic.cmd import bulk
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
    scheduler. Exit code 1: an object was not requeued.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        configured.add_job(parser)
        parser.add_argument(
            '--object', dest='objects', action='append', metavar='OBJECT',
            help='run only this object; may be repeated')
        dead_list.add_conditions(parser, 'run only objects')
        parser.add_argument(
            '--all', action='store_true', help='run all dead objects')
        bulk.add_dry_run(parser)

    def act(self, session: Session) -> int:
        from distperiodic.operator import dead_objects
        parsed, store = session.parsed, session.store
        which = dead_objects.DeadFilter(
            configured.job_of(parsed), parsed.objects,
            None if parsed.since is None else parsed.since.before(
                store.now()), parsed.error)
        if parsed.all is not (which._replace(job=None)
                              == dead_objects.DeadFilter()):
            raise exceptions.ConfigError(
                'give either --object, --since or --error, or --all')
        if parsed.dry_run:
            number = dead_objects.number(store, which)
            if not number:
                self._refuse_unknown(parsed)
            bulk.preview(
                session, 'requeue', 'object', number, (
                    f'{dead.job} {dead.object}: tick '
                    f'{configured.moment(dead.tick)}: '
                    f'{configured.one_line(dead.error)}'
                    for dead in dead_objects.first(store, which, bulk.SHOWN)))
            return configured.FINE
        result = dead_objects.requeue(store, which, session.actor)
        if result.matched:
            return bulk.report(session, 'requeued', result)
        self._refuse_unknown(parsed)
        session.print('no such object is dead: requeued 0 objects')
        return configured.FINE

    @staticmethod
    def _refuse_unknown(parsed: argparse.Namespace) -> None:
        """Raise ConfigError if the user named objects, none of which is dead.
        """
        if parsed.objects:
            names = [repr(one) for one in dict.fromkeys(parsed.objects)]
            raise exceptions.ConfigError(
                (f'object {names[0]} is not dead' if len(names) == 1 else
                 f'none of the objects {configured.listed(names, 9)} is dead')
                + (', or its failure is another one'
                   if parsed.since or parsed.error else '')
                + ', so nothing was changed; to list the dead objects: '
                'distperiodic dead list')
