# SPDX-License-Identifier: Apache-2.0
"""``distperiodic partition list|show|promote``: partitions and their workers.
"""

import argparse
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.operator import cells
from distperiodic.operator.lists import partition_list
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distperiodic.operator.partitions import PartitionState
    from distperiodic.operator.partitions import ServingWorker


class PartitionList(partition_list.Partitions, display.List):
    pass


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('partition', metavar='NAME',
                        help='name of the partition')


class PartitionShow(display.List):
    """Show the workers of a partition with one active worker.

    The state of a worker is "gone" if it has sent no heartbeat for
    session_timeout.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_partition(parser)

    def fetch(self, sources: Sources) -> 'Sequence[ServingWorker]':
        settings = sources.check_store()
        from distperiodic.operator import partitions
        found = partitions.partition(
            sources.store, settings.topic_of(sources.parsed.partition))
        self.sentence = (
            f'Active since {configured.second(found.since)}: '
            f'{configured.identity(found.active)}.'
            if found.active else 'No worker is active.')
        if found.choice:
            self.sentence += f' {found.choice}.'
        self.columns = {
            'Worker': lambda one: one.identity,
            'State': lambda one: state_of(
                one, found, settings.session_timeout),
            'Since': lambda one: configured.second(one.since),
            'Heartbeat (s)': lambda one: cells.age(one.age),
            'Process': lambda one: one.process}
        return found.workers


def state_of(worker: 'ServingWorker', partition: 'PartitionState',
             timeout: float) -> str:
    """Return the state of a worker in one word."""
    if worker.age > timeout:
        return 'gone'
    if worker.role == 'active' and worker.process != partition.active:
        # This worker has not read the row since another worker took over.
        return 'standby'
    return str(worker.role)


class PartitionPromote(RecordedCommand):
    """Make another worker of a partition active.

    The active worker finishes its runs and releases the partition. If it has
    sent no heartbeat for session_timeout, the other worker takes over at once.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        _add_partition(parser)
        parser.add_argument(
            'member', metavar='WORKER',
            help='name of the worker, as "partition show" prints it')

    def act(self, session: Session) -> None:
        settings = session.check_store()
        from distperiodic.operator import partitions
        parsed = session.parsed
        with session.recorded(
                parsed.partition, member=parsed.member) as record:
            before = partitions.promote(
                session.store, settings.topic_of(parsed.partition),
                parsed.member, by=session.actor.name,
                within=settings.session_timeout)
            record.outcome = partitions.effect_of(before, parsed.member)
        session.prepare_hint()('partition promote')
        session.print(record.outcome)
