# SPDX-License-Identifier: Apache-2.0
"""``distperiodic partition list|show|promote``: partitions and their workers.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cliff import command
from cliff import lister

from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import display

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.operator.partitions import Partition
    from distperiodic.operator.partitions import Worker


class PartitionList(display.Table, lister.Lister):
    """Show the partitions that have options or have used mode = standby.

    Standby is the number of workers that wait to take over. Heartbeat is the
    age of the last heartbeat of the active worker.
    """

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic import opts
        people = parsed.formatter not in display.FOR_PROGRAMS
        settings = opts.settings(self.configuration(parsed))
        found: dict[str, Partition] = {}
        if settings.connection:
            from distperiodic.operator.partitions import PartitionQueries
            with self.store(parsed, PartitionQueries) as queries:
                found = {one.name: one for one in queries.partitions()}
        if not settings.connection:
            self.sentence = (
                'Without a store no partition has one active worker; to use '
                'mode = standby, set [distperiodic] connection.')
        elif not (found or settings.partitions):
            self.sentence = ('No partition has options, and none has used '
                             'mode = standby.')
        return (('Partition', 'Mode', 'Active', 'Since', 'Heartbeat',
                 'Standby', 'Activations'),
                [_row(topic, settings, found.get(topic), people)
                 for topic in sorted({*found, *settings.partitions})])


def _row(topic: str, settings: 'opts.Settings', found: 'Partition | None',
         people: bool) -> Sequence[object]:
    configured_ = settings.partitions.get(topic)
    standby = configured_ is not None and configured_.standby
    if found is None:
        return topic, 'standby' if standby else 'shared', *([''] * 3), 0, 0
    present = found.present(settings.session_timeout)
    active = [one for one in found.workers if one.process == found.active]
    return (topic, 'standby' if standby else 'standby, not in this file',
            configured.identity(found.active),
            configured.second(found.since) if found.active else '',
            _age(active[0].age, people) if active else '',
            sum(one.process != found.active for one in present),
            found.fence)


def _age(seconds: float, people: bool) -> object:
    return configured.age(seconds) if people else round(seconds, 3)


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('partition', metavar='NAME',
                        help='name of the partition')


class PartitionShow(display.Table, lister.Lister):
    """Show the workers of a partition with one active worker.

    The state of a worker is "gone" if it has sent no heartbeat for
    session_timeout.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_partition(parser)
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.partitions import PartitionQueries
        people = parsed.formatter not in display.FOR_PROGRAMS
        settings = self.database(parsed)
        with self.store(parsed, PartitionQueries) as queries:
            found = queries.partition(settings.topic_of(parsed.partition))
        identity = configured.identity(found.active)
        self.sentence = (
            f'Active since {configured.second(found.since)}: {identity}.'
            if found.active else 'No worker is active.')
        if found.promoted:
            self.sentence += (f' {found.promoted} is next, chosen by '
                              f'{found.promoted_by}.')
        return ('Worker', 'State', 'Since', 'Heartbeat', 'Process'), [
            (one.identity, state_of(one, found, settings.session_timeout),
             configured.second(one.since), _age(one.age, people), one.process)
            for one in found.workers]


def state_of(worker: 'Worker', partition: 'Partition',
             timeout: float) -> str:
    """Return the state of a worker in one word."""
    if worker.age > timeout:
        return 'gone'
    if worker.role == 'active' and worker.process != partition.active:
        # This worker has not read the row since another worker took over.
        return 'standby'
    return str(worker.role)


class PartitionPromote(acting.Acting, command.Command):
    """Make another worker of a partition active.

    The active worker finishes its runs and releases the partition. If it has
    sent no heartbeat for session_timeout, the other worker takes over at once.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_partition(parser)
        parser.add_argument(
            'member', metavar='WORKER',
            help='name of the worker, as "partition show" prints it')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.operator.partitions import PartitionAdmin
        settings = self.database(parsed)
        actor = self.actor(parsed)
        with self.store(parsed, PartitionAdmin) as admin, self.audited(
                parsed, parsed.partition, member=parsed.member):
            before = admin.promote(
                settings.topic_of(parsed.partition), parsed.member,
                by=f'{actor.who}@{actor.host}',
                within=settings.session_timeout)
        self.prepare_hint(parsed)('partition promote')
        active = configured.identity(before.active)
        if active == parsed.member:
            text = f'{parsed.member} is already active'
        else:
            text = (f'{parsed.member} is next; '
                    + (f'{active} releases the partition when its runs have '
                       'ended' if active else 'no worker is active now'))
        self.print(text)
