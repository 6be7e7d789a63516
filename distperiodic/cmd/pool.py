# SPDX-License-Identifier: Apache-2.0
"""``distperiodic pool list|show|reset``: pools of a task dispenser."""

import argparse
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.operator.cells import Output
from distperiodic.operator.lists import pool_list

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from distperiodic.operator.task_pools import Held
    from distperiodic.operator.task_pools import LiveBucket


class PoolList(pool_list.TaskPools, display.List):
    pass


def _add_pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('pool', metavar='POOL', help='name of the pool')


class PoolShow(display.Table):
    """Show the buckets of a pool, or its tasks.

    A bucket expires when its worker has made no call for bucket_timeout.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_pool(parser)
        parser.add_argument(
            '--tasks', action='store_true',
            help='show the tasks: those in buckets, then the free ones, the '
                 'highest score first')
        parser.add_argument(
            '--worker', metavar='WORKER',
            help='show the tasks in the bucket of this worker')
        configured.add_limit(parser, 'tasks')

    def act(self, session: Session) -> Output:
        from distperiodic.operator import task_pools
        parsed = session.parsed
        if not parsed.tasks and parsed.worker is None:
            buckets = task_pools.buckets(session.store, parsed.pool)
            if not buckets:
                self.sentence = ('No worker has a task; to show the free '
                                 'tasks: --tasks.')
            return self.listing(_BUCKETS, buckets)
        found = task_pools.tasks(
            session.store, parsed.pool, parsed.worker, parsed.limit)
        if not found:
            self.sentence = (
                'The pool has no task.' if parsed.worker is None else
                f'Worker {parsed.worker!r} has no task.')
        elif len(found) == parsed.limit:
            self.sentence = f'The first {len(found)}; see --limit.'
        return self.listing(_TASKS, found)


_BUCKETS: 'Mapping[str, Callable[[LiveBucket], object]]' = {
    'Worker': lambda bucket: bucket.worker,
    'Tasks': lambda bucket: bucket.tasks,
    'Expires': lambda bucket: configured.moment(bucket.until)}
_TASKS: 'Mapping[str, Callable[[Held], object]]' = {
    'Task': lambda held: held.task,
    # This column distinguishes the number 1 from the text '1'.
    'Type': lambda held: type(held.task).__name__,
    'Score': lambda held: held.score,
    'Worker': lambda held: held.worker or ''}


class PoolReset(RecordedCommand):
    """Delete all tasks of a pool: free, in buckets, and done.

    Workers lose the tasks in their buckets: check_tasks() and tasks_done()
    return False for these tasks. Done tasks are forgotten, so
    recreate_task_pool() may offer them again.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        _add_pool(parser)
        parser.add_argument(
            '--yes', action='store_true', help='delete the tasks')

    def act(self, session: Session) -> None:
        from distperiodic.operator import task_pools
        pool = session.parsed.pool
        if not session.parsed.yes:
            raise exceptions.ConfigError(
                f'nothing was changed: this command deletes all tasks of pool '
                f'{pool!r}, including those that workers have; to '
                'delete them, add --yes')
        with session.recorded(pool) as record:
            number = task_pools.reset(session.store, pool)
            record.outcome = configured.plural(number, 'task')
        session.print(
            f'deleted {configured.plural(number, "task")} of pool {pool}')
