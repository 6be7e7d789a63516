# SPDX-License-Identifier: Apache-2.0
"""``distperiodic db sync|version|prune``: the tables of the store.

Only ``db sync`` alters tables, so only this command needs a database user with
the privilege to alter tables.
"""

import argparse
from collections.abc import Mapping

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core import redaction
from distperiodic.core.pruning import Ages
from distperiodic.operator import cells


class DbSync(RecordedCommand):
    """Create the tables, or upgrade them to the version of this release.

    If the tables have this version, the command changes nothing. Services of
    the previous release may run during the upgrade. The record for "events" is
    written last, because its table may not exist before.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--restored', action='store_true',
            help='the database was restored from a backup, and no service '
                 'runs: also raise all fences above those that were created '
                 'after the backup')

    def act(self, session: Session) -> None:
        from distperiodic.adapters.local import private
        from distperiodic.adapters.sql import schema
        settings = session.check_store(must_exist=False)
        if settings.embedded:
            private.make_directory(settings.state_path)
            private.make_file(settings.store_file)
        before, after = schema.sync(settings.connection)
        if before is None:
            message = f'created the tables, version {after}'
        elif before == after:
            message = f'the tables already have version {after}'
        else:
            message = f'upgraded the tables from version {before} to {after}'
        if session.parsed.restored:
            from distperiodic.adapters.sql import restored
            number = restored.raise_fences(settings.connection)
            message += ('; raised the fences of '
                        + configured.plural(number, 'claim'))
        with session.recorded('tables') as record:
            record.outcome = message
        session.print(message)


class DbVersion(display.Details):
    """Show the version of the tables, and the version this release needs.

    The exit code is 0 if the versions are the same, and 1 if they differ.
    """

    def facts(self, session: Session) -> Mapping[str, object]:
        from distperiodic.adapters.sql import schema
        url = session.check_store().connection
        found = schema.version(url)
        if found is None:
            todo = 'distperiodic db sync'
        elif found < schema.VERSION:
            todo = 'distperiodic db sync'
        elif found > schema.VERSION:
            todo = 'install the release that created these tables'
        else:
            todo = 'nothing'
        if found != schema.VERSION:
            self.code = configured.FINDING
        return {'database': redaction.redact(url),
                'version': found or cells.Nothing('none'),
                'needed': schema.VERSION, 'do next': todo}


class DbPrune(RecordedCommand):
    """Delete old rows in small steps, while services keep running.

    Each option deletes one kind of rows. Without an option, all rows of its
    kind are kept.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--history', type=configured.days, metavar='DAYS',
            help='delete the history of ticks that are older than this')
        parser.add_argument(
            '--dead', type=configured.days, metavar='DAYS',
            help='delete the records of runs that failed for good more than '
                 'this many days ago; the dead claims themselves stay until '
                 'the next tick of their objects')
        parser.add_argument(
            '--claims', type=configured.days, metavar='DAYS',
            help='delete the claims of objects that are no longer listed, and '
                 'all claims of jobs that no longer run, if no tick was '
                 'claimed or skipped for this many days; give more days than '
                 'the longest period of any job')
        parser.add_argument(
            '--tasks', type=configured.days, metavar='DAYS',
            help='delete the tasks that ended more than this many days ago, '
                 'with their claims; a task stays if it is stuck, or if it '
                 'halted a queue that was not resumed')

    def act(self, session: Session) -> None:
        from distperiodic.operator import admin
        parsed = session.parsed
        kinds = {'history': parsed.history, 'dead': parsed.dead,
                 'claims': parsed.claims, 'tasks': parsed.tasks}
        if all(days is None for days in kinds.values()):
            raise exceptions.ConfigError(
                'no kind of rows is selected; give --history DAYS, --dead '
                'DAYS, --claims DAYS or --tasks DAYS')
        with session.recorded('old rows', **kinds) as record:
            pruned = admin.prune(session.store, Ages(**kinds))
            record.outcome = (
                f'pruned history={pruned["history"]} '
                f'dead={pruned["failures"]} claims={pruned["claims"]} '
                f'tasks={pruned["tasks"]}')
        session.print(record.outcome)
