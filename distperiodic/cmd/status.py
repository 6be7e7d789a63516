# SPDX-License-Identifier: Apache-2.0
"""``distperiodic status``: the members of a group, their shares, and problems.

The command reads the coordination service and the store when it runs. It sends
no request to a member and keeps no data, except that --watch remembers the
processes that it has seen. :mod:`distperiodic.operator.health` finds the
problems.
"""

import argparse
import datetime
import functools
import sys
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.core.member import Member
from distperiodic.operator import health
from distperiodic.operator import health_facts
from distperiodic.operator.health import Facts
from distperiodic.operator.health import Finding

_RESULTS = 'ok', 'warn', 'fail'
# The columns of members, and those that only programs get: of the row of the
# group and of the findings.
_COLUMNS = ('Role', 'Member', 'Host', 'Joined', 'Up (s)', 'Points', 'Share',
            'Of fair', 'Partition', 'Slots', 'State')
_MORE = ('Result', 'Finding', 'Code', 'Severity', 'Since', 'About', 'Remedy')
_NONE = display.Cell('', None)


class Status(display.Table):
    """Show members with shares, workers by partition, and problems.

    Exit code 0: all is well; 1: there are warnings; 2: there is a failure.
    """

    essential = ('Role', 'Member', 'Up', 'Share', 'Slots')
    for_people = ('table',)

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
        rows = list(_rows(facts))
        titles: Sequence[str] = _COLUMNS
        if not self.people:
            titles = *_COLUMNS, *_MORE
            rows = [{'Role': 'group', 'Member': facts.group,
                     'Result': _RESULTS[self.code], 'Finding': headline},
                    *rows, *({'Role': 'finding', **{
                        title: one.shown.get(display.key(title))
                        for title in _MORE}} for one in found)]
        return self.listing({title: functools.partial(_cell, title)
                             for title in titles}, rows)

    def _remember(self, facts: 'Facts', now: int) -> None:
        """Remember the processes that are in the group now."""
        self._seen = {
            **{key: seen for key, seen in self._seen.items()
               if now - seen <= health.GONE_FOR * 1e6},
            **dict.fromkeys(health.entered(facts) or (), now)}


def _cell(title: str, row: Mapping[str, object]) -> object:
    return row.get(title, _NONE)


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


def _rows(facts: 'Facts') -> Iterator[dict[str, object]]:
    """Yield the facts about each member and each worker, by title."""
    group = facts.live
    drained = {(row.part, row.name) for row in facts.members if row.drained}

    def who(role: str, part: str, name: str) -> dict[str, object]:
        found: dict[str, object] = {'Role': role, 'Member': name}
        if ':' in name:
            # The library has created this identity.
            found['Host'] = name.partition(':')[0]
        if part:
            found['Partition'] = part
        if (part, name) in drained:
            found['State'] = 'drained'
        return found
    if group is None:
        for row in facts.members:
            if not (row.stopped or row.silent(facts.session_timeout)):
                yield who('worker' if row.part else 'member', row.part,
                          row.name)
        return

    def since(one: 'Member') -> dict[str, object]:
        joined = group.joined.get(one.entry)
        return {} if joined is None else {
            'Joined': configured.second(joined), 'Up (s)': display.age(
                max(0, (facts.now - joined) // 1000000))}
    for member in group.members:
        name = member.identity
        share = group.ring.share(name) if member.points else 0.0
        fair = group.of_fair(name) if member.points else 0.0
        yield {**who('member', '', name), **since(member),
               'Points': member.points,
               'Share': display.Cell(
                   configured.percent(share), round(share, 6)),
               'Of fair': display.Cell(f'{fair:.2f}', round(fair, 4))}
    states = {worker.process: str(worker.role)
              for partition in facts.partitions
              for worker in partition.workers}
    for partition, workers in sorted(group.workers.items()):
        for worker in workers:
            yield {**who(f'worker, {states[worker.process]}'
                         if worker.process in states else 'worker',
                         partition, worker.identity),
                   **since(worker), 'Slots': worker.slots}
