# SPDX-License-Identifier: Apache-2.0
"""``distperiodic status``: the members of a group, their shares, and problems.

The command reads the coordination service and the store when it runs. It sends
no request to a member and keeps no data, except that --watch remembers the
processes that it has seen. The store records which processes took part in
recent ticks. If such a process is not in the group now, the command reports
the process as gone.
"""

import argparse
import contextlib
import dataclasses
import datetime
import sys
import threading
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.core.member import Member
    from distperiodic.core.ring import Ring
    from distperiodic.operator.activity import Failing
    from distperiodic.operator.coordination_probe import CoordinationProbe
    from distperiodic.operator.partitions import Partition

FINE, WARNING, FAILURE = 0, 1, 2
_RESULTS = {FINE: 'ok', WARNING: 'warn', FAILURE: 'fail'}

#: Seconds for which a process that is gone is reported.
MISSED_FOR = 600.0

#: A share above this multiple of the fair share causes a warning.
UNEVEN = 1.5


@dataclasses.dataclass(frozen=True)
class Group:
    """The schedulers of one group and its workers, at one moment."""

    name: str
    members: 'tuple[Member, ...]'
    ring: 'Ring'
    #: Workers by partition.
    workers: 'dict[str, tuple[Member, ...]]'
    #: Instant at which each entry joined, in microseconds. None means
    #: unknown.
    joined: dict[str, int | None]
    unknown_entries: list[str]
    #: All groups of the coordination service, for a hint if the name is wrong.
    groups: list[str]
    #: Clock of each member minus the service's clock, in seconds, by entry.
    skews: dict[str, float]

    def of_fair(self, identity: str) -> float:
        """Return the share of a member in multiples of its fair share."""
        points = self.ring.members
        fair = points[identity] / sum(points.values())
        return self.ring.share(identity) / fair


@dataclasses.dataclass(frozen=True)
class Book:
    """Facts that the store records about a group.

    If the store cannot be read, only ``trouble`` is set.
    """

    #: For each process that is gone, by identity, the last tick in which it
    #: took part, or the time at which --watch last saw it, in microseconds.
    gone: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failing: 'Sequence[Failing]' = ()
    paused: Sequence[str] = ()
    #: Partitions with one active worker.
    partitions: 'Sequence[Partition]' = ()
    #: Reason why the store could not be read. Empty means that the store was
    #: read, or that there is no store.
    trouble: str = ''


def read_book(settings: 'opts.Settings', group: Group) -> Book:
    """Read the facts about the group that the store has recorded."""
    from distperiodic.operator.activity import Activity
    from distperiodic.operator.partitions import PartitionQueries
    if not settings.connection:
        return Book()
    try:
        configured.check_file(settings.connection)
        with contextlib.closing(Activity(
                settings.connection, namespace=settings.group
        )) as store, contextlib.closing(PartitionQueries(
                settings.connection, namespace=settings.group)) as queries:
            holders = store.recent_holders(
                store.group.now() - round(MISSED_FOR * 1e6))
            return Book(
                _gone(group, holders), store.failing(),
                [job.name for job in store.group.jobs()
                 if job.paused_since is not None],
                queries.partitions())
    except exceptions.DistperiodicError as exc:
        return Book(trouble=configured.one_line(exc))


def _gone(group: Group, holders: Mapping[str, int]) -> dict[str, int]:
    """Return the processes of *holders* that are not in the group.

    A process that has rejoined under the same name does not count as gone.
    """
    live = {one.identity
            for some in (group.members, *group.workers.values())
            for one in some}
    gone: dict[str, int] = {}
    for holder, tick in holders.items():
        identity = configured.identity(holder)
        if identity not in live:
            gone[identity] = max(tick, gone.get(identity, tick))
    return gone


def look(survey: 'CoordinationProbe', name: str) -> Group:
    """Read the group *name* and the groups of its workers.

    :raises CoordinationUnavailable: the service did not answer.
    """
    from distperiodic import service
    from distperiodic.core.member import resolve_entries
    from distperiodic.core.member import ring_members
    from distperiodic.core.ring import Ring
    groups = survey.groups()
    entries = survey.entries(name) or []
    members, unknown_entries = resolve_entries(e.name for e in entries)
    prefix = service.worker_group(name, '')
    workers = {}
    for group in groups:
        if group.startswith(prefix):
            found = survey.entries(group) or []
            workers[group.removeprefix(prefix)], odd = resolve_entries(
                e.name for e in found)
            unknown_entries += odd
            entries = entries + found
    return Group(
        name, members, Ring(ring_members(members)), workers,
        {e.name: e.joined for e in entries}, unknown_entries, groups,
        {e.name: (e.joined - e.created) / 1e6 for e in entries
         if e.joined is not None and e.created is not None})


class Status(display.Table, lister.Lister):
    """Show members with shares, workers by partition, and problems.

    Exit code 0: all is well; 1: there are members, but something is wrong;
    2: there are no members, or the state is unknown.
    """

    essential = ('Role', 'Member', 'Up', 'Share', 'Slots')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--expect', type=configured.positive, metavar='N',
            help='number of schedulers expected; fewer cause a warning')
        parser.add_argument(
            '--expect-workers', type=configured.positive, metavar='N',
            help='number of workers expected in all partitions together; '
                 'fewer cause a warning')
        parser.add_argument(
            '--watch', type=configured.seconds, metavar='N',
            help='show the group every N seconds, until Ctrl-C')
        return parser

    def run(self, parsed: argparse.Namespace) -> int:
        self.code = FAILURE
        pause = threading.Event()
        #: Last time that this command saw each process, by identity.
        self._seen: dict[str, int] = {}
        while True:
            again = parsed.watch is not None
            try:
                super().run(parsed)
            except exceptions.ConfigError:
                raise
            except exceptions.DistperiodicError as exc:
                # An unavailable service is a result of this command, not an
                # error.
                self.app.LOG.error(exc)
                self.code = FAILURE
            if not again:
                return self.code
            pause.wait(parsed.watch)

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        from distperiodic.adapters.local.clock import SystemClock
        from distperiodic.operator import coordination_probe as survey
        _, settings = self.backend(parsed)
        now = SystemClock()
        with survey.CoordinationProbe(
                settings.backend_url, clock=now,
                session_timeout=settings.session_timeout) as probe:
            group = look(probe, settings.group)
        book = self._missed(group, read_book(settings, group), now.now())
        if parsed.watch and parsed.formatter == 'table' and (
                sys.stdout.isatty()):
            self.app.stdout.write('\x1b[H\x1b[2J')
        self.code, text = judge(
            group, settings, book, parsed.expect, parsed.expect_workers)
        at = datetime.datetime.fromtimestamp(
            now.now() // 1000000, datetime.UTC)
        # Use UTC, like the table, and not the local time zone.
        self.sentence = f'{at:%H:%M:%S}Z  {text}'
        people = parsed.formatter == 'table'
        rows = _rows(group, book, now.now(), people)
        if people:
            return tuple(_PEOPLE.get(name, name) for name in _COLUMNS), [
                row[:len(_COLUMNS)] for row in rows]
        return (*_COLUMNS, 'Result', 'Finding'), [
            ('group', group.name, *(None,) * 8, _RESULTS[self.code], text),
            *((*row, None, None) for row in rows)]

    def _missed(self, group: Group, book: Book, now: int) -> Book:
        """Add to *book* the processes that this command saw and that are gone.
        """
        missed = _gone(group, {
            name: seen for name, seen in self._seen.items()
            if now - seen <= MISSED_FOR * 1e6})
        for some in (group.members, *group.workers.values()):
            self._seen.update((one.identity, now) for one in some)
        return dataclasses.replace(book, gone={**missed, **book.gone})


def judge(group: Group, settings: 'opts.Settings', book: Book | None = None,
          expected: int | None = None,
          expected_workers: int | None = None) -> tuple[int, str]:
    """Return the exit code and a sentence that explains it.

    :param book: The store's facts. None means that no facts are known.
    :param expected: Number of schedulers expected. None means any number.
    :param expected_workers: Number of workers expected. None means any number.
    """
    book = book or Book()
    members = [m for m in group.members if m.points]
    workers = {p: w for p, w in group.workers.items() if w}
    processes = ', '.join(
        [configured.plural(len(members), 'member'),
         *(f'{configured.plural(len(w), "worker")} in partition {p}'
           for p, w in sorted(workers.items()))])
    if not members:
        if workers:
            return FAILURE, (
                f'No schedulers: group {group.name!r} has {processes}; start '
                'distperiodic scheduler, or undrain a scheduler.')
        known = [g for g in group.groups if '.workers.' not in g]
        hint = (' The coordination service has the groups '
                f'{configured.listed(known)}.'
                if known and group.name not in known else '')
        return FAILURE, (
            f'No members: group {group.name!r} has no scheduler on the ring; '
            'start distperiodic scheduler, undrain a scheduler, or correct '
            f'[distperiodic] group.{hint}')
    odd = [*_too_few('member', len(members), expected),
           *_too_few('worker', sum(map(len, workers.values())),
                     expected_workers)]
    if book.gone:
        one = len(book.gone) == 1
        odd.append(
            f'gone within the last {MISSED_FOR / 60:g} minutes: '
            f'{configured.listed(sorted(book.gone))}; unless you stopped '
            f'{"it; see its log" if one else "them; see their logs"}')
    odd += [f'partition {partition.name} has no active worker: see '
            f'distperiodic partition show {partition.name}'
            for partition in book.partitions
            if partition.name in workers and not partition.active]
    standby = {partition.name for partition in book.partitions}
    if settings.dispatcher == 'messaging' and not any(
            m.slots or p in standby for p, w in workers.items() for m in w):
        odd.append('no worker accepts work: start distperiodic worker')
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
    if group.unknown_entries:
        odd.append('entries of other programs, which own nothing: '
                   f'{configured.listed(group.unknown_entries)}')
    odd += [
        f'{configured.plural(one.objects, "object")} of job {one.job} failed '
        f'for good and {"has" if one.objects == 1 else "have"} not succeeded '
        f'since, such as {one.example!r}: see distperiodic dead list '
        f'{one.job}' for one in book.failing]
    if book.trouble:
        odd.append(f'the store cannot be read: {book.trouble}')
    start = f'Group {group.name!r}: {processes}'
    paused = (f'; paused: {configured.listed(book.paused)}'
              if book.paused else '')
    if odd:
        return WARNING, f'{start}. But ' + '; '.join(odd) + f'{paused}.'
    return FINE, f'{start}; all is well{paused}.'


def _too_few(word: str, found: int, expected: int | None) -> list[str]:
    if expected is None or found >= expected:
        return []
    return [f'{configured.plural(expected, word)} expected, '
            f'{expected - found} missing']


_COLUMNS = ('Role', 'Member', 'Host', 'Joined', 'Up (s)', 'Points', 'Share',
            'Of fair', 'Partition', 'Slots')
_PEOPLE = {'Up (s)': 'Up'}


def _rows(group: Group, book: Book, now: int,
          for_people: bool) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = []
    none = '' if for_people else None

    def who(role: str, one: 'Member') -> Sequence[Any]:
        joined = group.joined.get(one.entry)
        return (role, one.identity, _host(one.identity, none),
                none if joined is None else configured.second(joined),
                none if joined is None else _up(now - joined, for_people))
    for member in group.members:
        share = group.ring.share(member.identity) if member.points else 0.0
        fair = group.of_fair(member.identity) if member.points else 0.0
        rows.append((
            *who('member', member), member.points,
            configured.percent(share) if for_people else round(share, 6),
            f'{fair:.2f}' if for_people else round(fair, 4), none, none))
    states = {worker.process: str(worker.role)
              for partition in book.partitions
              for worker in partition.workers}
    for partition, workers in sorted(group.workers.items()):
        rows.extend(
            (*who(f'worker, {states[worker.process]}'
                  if worker.process in states else 'worker', worker),
             none, none, none, partition, worker.slots)
            for worker in workers)
    rows.extend(
        ('gone', identity, _host(identity, none), *(none,) * 7)
        for identity in sorted(book.gone))
    return rows


def _host(identity: str, none: str | None) -> str | None:
    """Return the host in an identity that the library created."""
    return identity.partition(':')[0] if ':' in identity else none


def _up(micros: int, for_people: bool) -> Any:
    seconds = max(0, micros // 1000000)
    return configured.age(seconds) if for_people else seconds
