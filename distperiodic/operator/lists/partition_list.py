# SPDX-License-Identifier: Apache-2.0
"""Partitions, and their active workers."""

from typing import TYPE_CHECKING

from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.partitions import PartitionState


class Partitions(cells.DeclaredList['PartitionState']):
    """Show the partitions that have options or have used mode = standby.

    Standby is the number of workers that wait to take over. Heartbeat is the
    age of the last heartbeat of the active worker.
    """

    empty = 'No partition has options, and none has used mode = standby.'

    def fetch(self, sources: Sources) -> 'list[PartitionState]':
        from distperiodic.operator import partitions
        settings = sources.settings
        found: dict[str, PartitionState] = {}
        if settings.connection:
            found = {one.name: one
                     for one in partitions.partitions(sources.store)}
            self.sentence = ' '.join(
                f'{name}: {one.choice}.' for name, one in found.items()
                if one.choice)
        else:
            self.sentence = (
                'Without a store no partition has one active worker; to use '
                'mode = standby, set [distperiodic] connection.')

        def mode(name: str) -> str:
            options = settings.partitions.get(name)
            if options is not None and options.standby:
                return 'standby'
            return 'standby, not in this file' if name in found else 'shared'
        self.columns = {
            'Partition': lambda one: one.name,
            'Mode': lambda one: mode(one.name),
            'Active': lambda one: wording.identity(one.active),
            'Since': lambda one: wording.second(one.since)
            if one.active else '',
            'Heartbeat (s)': lambda one: next((
                cells.age(worker.age) for worker in one.workers
                if worker.process == one.active), ''),
            'Standby': lambda one: sum(
                worker.process != one.active
                for worker in one.present(settings.session_timeout)),
            'Activations': lambda one: one.fence}
        return [found.get(name) or partitions.PartitionState(
            name, '', 0, 0, 0.0, '', '', ())
            for name in sorted({*found, *settings.partitions})]
