# SPDX-License-Identifier: Apache-2.0
"""Pools of task dispensers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.task_pools import Pool


class TaskPools(cells.DeclaredList['Pool']):
    """Show the pools of the group, and how many tasks each pool has.

    Free tasks can be assigned. Workers is the number of buckets with tasks.
    Done tasks are remembered for at least done_retention days, so that they
    are not offered again.
    """

    empty = 'No pool exists; recreate_task_pool() creates one.'
    columns = {
        'Pool': lambda pool: pool.name,
        'Free': lambda pool: pool.stats.free,
        'Assigned': lambda pool: pool.stats.assigned,
        'Workers': lambda pool: len(pool.stats.buckets),
        'Done': lambda pool: pool.stats.done,
        'Last recreated': lambda pool: wording.moment(pool.recreated)}

    def fetch(self, sources: Sources) -> 'Sequence[Pool]':
        from distperiodic.operator import task_pools
        return task_pools.pools(sources.store)
