# SPDX-License-Identifier: Apache-2.0
"""``distperiodic partition list|show|promote``: partitions and their workers.
"""

import argparse
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distperiodic.operator.partitions import PartitionState
    from distperiodic.operator.partitions import PartitionWorker


class PartitionList(display.List['PartitionState']):
    """Show the partitions that have options or have used mode = standby.

    Standby is the number of workers that wait to take over. Heartbeat is the
    age of the last heartbeat of the active worker.
    """

    empty = 'No partition has options, and none has used mode = standby.'

    def fetch(self, session: Session) -> 'list[PartitionState]':
        from distperiodic.operator import partitions
        settings = session.settings
        found: dict[str, PartitionState] = {}
        if settings.connection:
            found = {one.name: one
                     for one in partitions.partitions(session.store)}
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
            'Active': lambda one: configured.identity(one.active),
            'Since': lambda one: configured.second(one.since)
            if one.active else '',
            'Heartbeat': lambda one: next((
                display.age(worker.age) for worker in one.workers
                if worker.process == one.active), ''),
            'Standby': lambda one: sum(
                worker.process != one.active
                for worker in one.present(settings.session_timeout)),
            'Activations': lambda one: one.fence}
        return [found.get(name) or partitions.PartitionState(
            name, '', 0, 0, 0.0, '', '', ())
            for name in sorted({*found, *settings.partitions})]


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('partition', metavar='NAME',
                        help='name of the partition')


class PartitionShow(display.List['PartitionWorker']):
    """Show the workers of a partition with one active worker.

    The state of a worker is "gone" if it has sent no heartbeat for
    session_timeout.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_partition(parser)

    def fetch(self, session: Session) -> 'Sequence[PartitionWorker]':
        settings = session.check_store()
        from distperiodic.operator import partitions
        found = partitions.partition(
            session.store, settings.topic_of(session.parsed.partition))
        self.sentence = (
            f'Active since {configured.second(found.since)}: '
            f'{configured.identity(found.active)}.'
            if found.active else 'No worker is active.')
        if found.promoted:
            self.sentence += (f' {found.promoted} is next, chosen by '
                              f'{found.promoted_by}.')
        self.columns = {
            'Worker': lambda one: one.identity,
            'State': lambda one: state_of(
                one, found, settings.session_timeout),
            'Since': lambda one: configured.second(one.since),
            'Heartbeat': lambda one: display.age(one.age),
            'Process': lambda one: one.process}
        return found.workers


def state_of(worker: 'PartitionWorker', partition: 'PartitionState',
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
        with session.recorded(parsed.partition, member=parsed.member):
            before = partitions.promote(
                session.store, settings.topic_of(parsed.partition),
                parsed.member, by=session.actor.name,
                within=settings.session_timeout)
        session.prepare_hint()('partition promote')
        active = configured.identity(before.active)
        if active == parsed.member:
            text = f'{parsed.member} is already active'
        else:
            text = (f'{parsed.member} is next; '
                    + (f'{active} releases the partition when its runs have '
                       'ended' if active else 'no worker is active now'))
        session.print(text)
