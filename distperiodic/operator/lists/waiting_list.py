# SPDX-License-Identifier: Apache-2.0
"""The work that is due and has not been started."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.waiting import Waiting


class WaitingJobs(cells.DeclaredList['Waiting']):
    """Show the jobs and commands with work that waits for a worker.

    Object is the object, or the task, that has waited longest. A command is a
    step of a task: the name begins with "task:". If a job has very many
    claims, only some of them are read: Waiting is then a minimum for a
    command, and an object that has waited even longer may exist.
    """

    essential: Sequence[str] = ('Job', 'Waiting', 'Longest')
    empty = 'Nothing waits for a worker.'

    def fetch(self, sources: Sources) -> 'list[Waiting]':
        from distperiodic.operator import waiting
        now = sources.store.now()
        self.columns = {
            'Job': lambda one: one.job,
            'Waiting': lambda one: one.number,
            'Longest (s)': lambda one: cells.age(
                max(0, now - one.since) / 1e6),
            'Object': lambda one: one.object,
            'Claimed': lambda one: 'yes' if one.claimed else 'no',
            'Since': lambda one: wording.second(one.since)}
        return waiting.waiting(sources.store)
