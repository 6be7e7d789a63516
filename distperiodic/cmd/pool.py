# SPDX-License-Identifier: Apache-2.0
"""``distperiodic pool list|show|reset``: pools of a task dispenser."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cliff import command
from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display

if TYPE_CHECKING:
    from distperiodic.operator.task_pools import Held


class PoolList(display.Table, lister.Lister):
    """Show the pools of the group, and how many tasks each pool has.

    Free tasks can be assigned. Workers is the number of buckets with tasks.
    Done tasks are remembered for at least done_retention days, so that they
    are not offered again.
    """

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.task_pools import PoolQueries
        with self.store(parsed, PoolQueries) as queries:
            pools = queries.pools()
        if not pools:
            self.sentence = ('No pool exists; recreate_task_pool() creates '
                             'one.')
        return (('Pool', 'Free', 'Assigned', 'Workers', 'Done',
                 'Last recreated'),
                [(pool.name, pool.stats.free, pool.stats.assigned,
                  len(pool.stats.buckets), pool.stats.done,
                  configured.moment(pool.recreated)) for pool in pools])


def _add_pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('pool', metavar='POOL', help='name of the pool')


class PoolShow(display.Table, lister.Lister):
    """Show the buckets of a pool, or its tasks.

    A bucket expires when its worker has made no call for bucket_timeout.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_pool(parser)
        parser.add_argument(
            '--tasks', action='store_true',
            help='show the tasks: those in buckets, then the free ones, the '
                 'highest score first')
        parser.add_argument(
            '--worker', metavar='WORKER',
            help='show the tasks in the bucket of this worker')
        configured.add_limit(parser, 'tasks')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.task_pools import PoolQueries
        with self.store(parsed, PoolQueries) as queries:
            if parsed.tasks or parsed.worker is not None:
                return self._tasks(queries.tasks(
                    parsed.pool, parsed.worker, parsed.limit), parsed)
            buckets = queries.buckets(parsed.pool)
        if not buckets:
            self.sentence = ('No worker has a task; to show the free tasks: '
                             '--tasks.')
        return ('Worker', 'Tasks', 'Expires'), [
            (bucket.worker, bucket.tasks, configured.moment(bucket.until))
            for bucket in buckets]

    def _tasks(self, found: 'Sequence[Held]', parsed: argparse.Namespace
               ) -> tuple[Sequence[str], list[Sequence[object]]]:
        if not found:
            self.sentence = (
                'The pool has no task.' if parsed.worker is None else
                f'Worker {parsed.worker!r} has no task.')
        elif len(found) == parsed.limit:
            self.sentence = f'The first {len(found)}; see --limit.'
        # The column Type distinguishes the number 1 from the text '1'.
        return ('Task', 'Type', 'Score', 'Worker'), [
            (held.task, type(held.task).__name__, held.score,
             held.worker or '') for held in found]


class PoolReset(acting.Acting, command.Command):
    """Delete all tasks of a pool: free, in buckets, and done.

    Workers lose the tasks in their buckets: check_tasks() and tasks_done()
    return False for these tasks. Done tasks are forgotten, so
    recreate_task_pool() may offer them again.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_pool(parser)
        parser.add_argument(
            '--yes', action='store_true', help='delete the tasks')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.operator.task_pools import PoolAdmin
        if not parsed.yes:
            raise exceptions.ConfigError(
                f'nothing was changed: this command deletes all tasks of pool '
                f'{parsed.pool!r}, including those that workers have; to '
                'delete them, add --yes')
        with (self.store(parsed, PoolAdmin) as admin,
              self.audited(parsed, parsed.pool) as record):
            number = admin.reset(parsed.pool)
            record.outcome = configured.plural(number, 'task')
        self.print(f'deleted {configured.plural(number, "task")} of pool '
                   f'{parsed.pool}')
