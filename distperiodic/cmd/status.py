# SPDX-License-Identifier: Apache-2.0
"""``distperiodic status``: the members of a group, their shares, and problems.

The command reads the coordination service and the store when it runs. It sends
no request to a member and keeps no data, except that --watch remembers the
processes that it has seen. :mod:`distperiodic.operator.health` finds the
problems.
"""

import argparse
import datetime
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session

if TYPE_CHECKING:
    from distperiodic.core.member import Member
    from distperiodic.operator.health import Facts
    from distperiodic.operator.health import Finding

_RESULTS = 'ok', 'warn', 'fail'
# The columns of members, and those that only programs get: of the row of the
# group and of the findings.
_COLUMNS = ('Role', 'Member', 'Host', 'Joined', 'Up (s)', 'Points', 'Share',
            'Of fair', 'Partition', 'Slots', 'State')
_MORE = ('Result', 'Finding', 'Code', 'Severity', 'Since', 'About', 'Remedy')
_PEOPLE = {'Up (s)': 'Up'}


class Status(display.Table):
    """Show members with shares, workers by partition, and problems.

    Exit code 0: all is well; 1: there are warnings; 2: there is a failure.
    """

    essential = ('Role', 'Member', 'Up', 'Share', 'Slots')

    def add_options(self, parser: argparse.ArgumentParser) -> None:
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

    def run(self, parsed: argparse.Namespace) -> int:
        pause = threading.Event()
        #: Last time that this command saw each process, by partition and name.
        self._seen: dict[tuple[str, str], int] = {}
        while True:
            code = super().run(parsed)
            if parsed.watch is None:
                return code
            pause.wait(parsed.watch)

    def act(self, session: Session) -> display.Output:
        from distperiodic.operator import health
        from distperiodic.operator import health_facts
        parsed, clock = session.parsed, session.clock
        if not session.settings.connection:
            # Without a store, only the coordination service knows the group.
            session.check_backend()
        facts = health_facts.read(
            session.settings, clock, seen=dict(self._seen),
            expected=parsed.expect, expected_workers=parsed.expect_workers)
        found = health.findings(facts)
        self.code = health.exit_code(found)
        self._remember(facts, clock.now())
        if parsed.watch and parsed.formatter == 'table' and (
                sys.stdout.isatty()):
            self.app.stdout.write('\x1b[H\x1b[2J')
        headline = _headline(facts, found, health.notes(facts))
        at = datetime.datetime.fromtimestamp(
            clock.now() // 1000000, datetime.UTC)
        # Use UTC, like the table, and not the local time zone.
        self.sentence = '\n'.join([
            f'{at:%H:%M:%S}Z  {headline}', *(one.line for one in found)])
        people = parsed.formatter == 'table'
        rows = _rows(facts, people)
        if people:
            return tuple(_PEOPLE.get(name, name) for name in _COLUMNS), rows
        none = (None,) * len(_MORE)
        return (*_COLUMNS, *_MORE), [
            _row('group', facts.group, result=_RESULTS[self.code],
                 finding=headline),
            *((*row, *none) for row in rows),
            *(_row('finding', None, **one.shown) for one in found)]

    def _remember(self, facts: 'Facts', now: int) -> None:
        """Remember the processes that are in the group now."""
        from distperiodic.operator import health
        self._seen = {
            **{key: seen for key, seen in self._seen.items()
               if now - seen <= health.GONE_FOR * 1e6},
            **dict.fromkeys(health.entered(facts) or (), now)}


def _row(role: str, member: str | None, **more: object) -> Sequence[object]:
    return (role, member, *(None,) * (len(_COLUMNS) - 2),
            *(more.get(display.key(name)) for name in _MORE))


def _headline(facts: 'Facts', found: 'Sequence[Finding]',
              notes: Sequence[str]) -> str:
    """Return one line about the group."""
    processes = []
    if facts.live is not None:
        processes = [
            configured.plural(len(facts.live.on_ring), 'member'),
            *(f'{configured.plural(len(some), "worker")} in partition {topic}'
              for topic, some in sorted(facts.live.workers.items()) if some)]
    elif facts.stored:
        live = [one for one in facts.members if not (
            one.stopped or one.silent(facts.session_timeout))]
        processes = [configured.plural(len(live), 'member')]
    text = f'Group {facts.group!r}: '
    if processes:
        text += f'{", ".join(processes)}; '
    failures = sum(one.severity == 'failure' for one in found)
    text += ', '.join(
        configured.plural(number, word) for number, word in (
            (failures, 'failure'), (len(found) - failures, 'warning'))
        if number) or 'all is well'
    return '; '.join([text, *notes])


def _rows(facts: 'Facts', for_people: bool) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    none = '' if for_people else None
    group = facts.live
    known = {(row.part, row.name): row for row in facts.members}

    def state(part: str, name: str) -> str | None:
        row = known.get((part, name))
        return 'drained' if row is not None and row.drained else none
    if group is None:
        return [('worker' if row.part else 'member', row.name,
                 _host(row.name, none), *(none,) * 5, row.part or none, none,
                 state(row.part, row.name))
                for row in facts.members
                if not (row.stopped or row.silent(facts.session_timeout))]

    def who(role: str, one: 'Member') -> Sequence[object]:
        joined = group.joined.get(one.entry)
        return (role, one.identity, _host(one.identity, none),
                none if joined is None else configured.second(joined),
                none if joined is None else _up(
                    facts.now - joined, for_people))
    for member in group.members:
        share = group.ring.share(member.identity) if member.points else 0.0
        fair = group.of_fair(member.identity) if member.points else 0.0
        rows.append((
            *who('member', member), member.points,
            configured.percent(share) if for_people else round(share, 6),
            f'{fair:.2f}' if for_people else round(fair, 4), none, none,
            state('', member.identity)))
    states = {worker.process: str(worker.role)
              for partition in facts.partitions
              for worker in partition.workers}
    for partition, workers in sorted(group.workers.items()):
        rows.extend(
            (*who(f'worker, {states[worker.process]}'
                  if worker.process in states else 'worker', worker),
             none, none, none, partition, worker.slots,
             state(partition, worker.identity))
            for worker in workers)
    return rows


def _host(identity: str, none: str | None) -> str | None:
    """Return the host in an identity that the library created."""
    return identity.partition(':')[0] if ':' in identity else none


def _up(micros: int, for_people: bool) -> object:
    seconds = max(0, micros // 1000000)
    return configured.age(seconds) if for_people else seconds
