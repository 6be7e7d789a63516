# SPDX-License-Identifier: Apache-2.0
"""``distperiodic status``: who is there, and who has how much.

All of it is read from the coordination service at the moment of asking; the
command keeps nothing and asks no member, so it cannot show yesterday's news.
"""

import argparse
import dataclasses
import datetime
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from cliff import lister

from distperiodic.cmd import configured

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.adapters import survey as survey_
    from distperiodic.core import member as member_
    from distperiodic.core import ring as ring_

FINE, WARNING, FAILURE = 0, 1, 2

#: A share above this many times the fair one is worth a remark.
UNEVEN = 1.5


@dataclasses.dataclass(frozen=True)
class Group:
    """The schedulers of one group and its workers, at one moment."""

    name: str
    members: 'tuple[member_.Member, ...]'
    ring: 'ring_.Ring'
    #: Partition to its workers.
    workers: 'dict[str, tuple[member_.Member, ...]]'
    #: Entry to the moment it joined, in microseconds.
    joined: dict[str, int | None]
    strangers: list[str]
    #: The groups there are, for whoever looked for the wrong one.
    groups: list[str]
    #: The service's own clock minus the members', by entry, in seconds.
    skews: dict[str, float]

    def of_fair(self, identity: str) -> float:
        """The share of a member, in fair shares by its points."""
        points = self.ring.members
        fair = points[identity] / sum(points.values())
        return self.ring.share(identity) / fair


def look(survey: 'survey_.Survey', name: str) -> Group:
    """Read the group *name* and the groups of its workers.

    :raises CoordinationUnavailable: the service did not answer.
    """
    from distperiodic import service
    from distperiodic.core import member as member_
    from distperiodic.core import ring as ring_
    groups = survey.groups()
    entries = survey.entries(name) or []
    members, strangers = member_.settle(e.name for e in entries)
    prefix = service.worker_group(name, '')
    workers = {}
    for group in groups:
        if group.startswith(prefix):
            found = survey.entries(group) or []
            workers[group.removeprefix(prefix)], odd = member_.settle(
                e.name for e in found)
            strangers += odd
            entries = entries + found
    return Group(
        name, members, ring_.Ring(member_.ring_members(members)), workers,
        {e.name: e.joined for e in entries}, strangers, groups,
        {e.name: (e.joined - e.created) / 1e6 for e in entries
         if e.joined is not None and e.created is not None})


class Status(configured.Table, lister.Lister):
    """Show members with their shares, and workers by partition.

    Exit code 0: all is well; 1: somebody is there, but something is odd;
    2: nobody is there, or it cannot be known.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--watch', type=configured.seconds, metavar='N',
            help='show it again every N seconds, until Ctrl-C')
        return parser

    def run(self, parsed: argparse.Namespace) -> int:
        self.code = FAILURE
        pause = threading.Event()
        while True:
            again = parsed.watch is not None
            try:
                super().run(parsed)
            except BrokenPipeError:
                raise
            except Exception as exc:
                self.app.LOG.error(exc)
                if self.app_args is not None and self.app_args.debug:
                    raise
                self.code = _code_of(exc)
                again = again and self.code == FAILURE
            if not again:
                return self.code
            pause.wait(parsed.watch)

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        from distperiodic.adapters import clock
        from distperiodic.adapters import survey
        _, settings = self.backend(parsed)
        now = clock.SystemClock()
        with survey.Survey(
                settings.backend_url, clock=now,
                session_timeout=settings.session_timeout) as looking:
            group = look(looking, settings.group)
        if parsed.watch and parsed.formatter == 'table' and (
                sys.stdout.isatty()):
            self.app.stdout.write('\x1b[H\x1b[2J')
        self.code, text = judge(group, settings)
        at = datetime.datetime.fromtimestamp(
            now.now() // 1000000, datetime.UTC)
        # As the table has it, wherever whoever looks may be.
        self.sentence = f'{at:%H:%M:%S}Z  {text}'
        return (('Role', 'Member', 'Host', 'Joined', 'Points', 'Share',
                 'Of fair', 'Partition', 'Slots'),
                _rows(group, parsed.formatter == 'table'))


def _code_of(exc: Exception) -> int:
    """An option that cannot be used is an error like in any command; a
    service that does not answer is what this command is there to tell.
    """
    from distperiodic import exceptions
    return 1 if isinstance(exc, exceptions.ConfigError) else FAILURE


def judge(group: Group, settings: 'opts.Settings') -> tuple[int, str]:
    """The exit code, and the sentence that says the same."""
    members = [m for m in group.members if m.points]
    workers = {p: w for p, w in group.workers.items() if w}
    there = ', '.join(
        [configured.plural(len(members), 'member'),
         *(f'{configured.plural(len(w), "worker")} in partition {p}'
           for p, w in sorted(workers.items()))])
    if not members:
        if workers:
            return FAILURE, (
                f'Nobody schedules: group {group.name!r} has {there}; start '
                'distperiodic scheduler.')
        known = [g for g in group.groups if '.workers.' not in g]
        hint = (f' The service knows the groups {configured.listed(known)}.'
                if known and group.name not in known else '')
        return FAILURE, (
            f'Nobody is there: group {group.name!r} has no members; start '
            f'distperiodic scheduler, or correct [distperiodic] group.{hint}')
    odd = []
    if settings.dispatcher == 'messaging' and not any(
            m.slots for w in workers.values() for m in w):
        odd.append('no worker takes work: start distperiodic worker')
    formats = {m.ring_format for m in members}
    if len(formats) > 1:
        odd.append(
            f'members offer different ring formats '
            f'({", ".join(map(str, sorted(formats)))}) and use '
            f'{min(formats)}: finish the upgrade')
    largest = max(members, key=lambda m: group.of_fair(m.identity))
    if group.of_fair(largest.identity) > UNEVEN:
        odd.append(
            f'{largest.identity} has {group.of_fair(largest.identity):.2f} '
            'times its fair share: raise hash_ring_replicas_count, see '
            'distperiodic ring simulate')
    if group.strangers:
        odd.append(f'entries that are none of ours and own nothing: '
                   f'{configured.listed(group.strangers)}')
    start = f'Group {group.name!r}: {there}'
    if odd:
        return WARNING, f'{start}. But ' + '; '.join(odd) + '.'
    return FINE, f'{start}; all is well.'


def _rows(group: Group, for_people: bool) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = []
    for member in group.members:
        share = group.ring.share(member.identity) if member.points else 0.0
        fair = group.of_fair(member.identity) if member.points else 0.0
        rows.append((
            'member', member.identity, _host(member.identity),
            _moment(group.joined.get(member.entry)), member.points,
            configured.percent(share) if for_people else round(share, 6),
            f'{fair:.2f}' if for_people else round(fair, 4),
            '' if for_people else None, '' if for_people else None))
    for partition, workers in sorted(group.workers.items()):
        rows.extend((
            'worker', worker.identity, _host(worker.identity),
            _moment(group.joined.get(worker.entry)),
            *(3 * ('' if for_people else None,)), partition, worker.slots)
            for worker in workers)
    return rows


def _host(identity: str) -> str:
    """The host in an identity that the library made."""
    return identity.partition(':')[0] if ':' in identity else '-'


def _moment(micros: int | None) -> str:
    if micros is None:
        return '-'
    return datetime.datetime.fromtimestamp(
        micros // 1000000, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
