# SPDX-License-Identifier: Apache-2.0
"""The state of a group in one sentence, and as rows: its members, their
shares, and what is wrong.
"""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic.core import wording
from distperiodic.core.member import Member
from distperiodic.operator import cells
from distperiodic.operator import health
from distperiodic.operator.health import Facts
from distperiodic.operator.health import Finding

_RESULTS = 'ok', 'warn', 'fail'
# The columns of members, and those that only programs get: of the row of the
# group and of the findings.
_COLUMNS = ('Role', 'Member', 'Host', 'Joined', 'Up (s)', 'Points', 'Share',
            'Of fair', 'Partition', 'Slots', 'State')
_MORE = ('Result', 'Finding', 'Needed slots', 'Code', 'Severity', 'Since',
         'About', 'Remedy')
_NONE = cells.Cell('', None)
# Maximum number of partitions whose use of slots the sentence contains.
_PARTITIONS = 3


class GroupStatus:
    """The state of a group, given the facts about it."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.findings = health.findings(facts)
        #: 0 without findings, 1 with warnings, and 2 with a failure.
        self.code = health.exit_code(self.findings)
        #: One line about the group.
        self.headline = _headline(
            facts, self.findings, health.notes(facts))

    @property
    def result(self) -> str:
        """The state in one word, for programs."""
        return _RESULTS[self.code]

    def columns(self, people: bool
                ) -> dict[str, Callable[[Mapping[str, object]], object]]:
        """Return the values of a row, by the title of the column.

        :param people: True leaves out the columns that only programs get.
        """
        return {title: functools.partial(_cell, title)
                for title in (_COLUMNS if people else (*_COLUMNS, *_MORE))}

    def rows(self, people: bool) -> list[dict[str, object]]:
        """Return the facts about each member and each worker, by title.

        :param people: False adds a row about the group, and one for each
            finding.
        """
        rows = list(_rows(self.facts))
        if people:
            return rows
        slots = self.facts.capacities
        return [{'Role': 'group', 'Member': self.facts.group,
                 'Result': self.result, 'Finding': self.headline,
                 **({'Slots': sum(one.slots for one in slots),
                     'Needed slots': round(
                         sum(one.needed for one in slots), 3)}
                    if slots else {})},
                *rows, *({'Role': 'finding', **{
                    title: one.shown.get(cells.key(title))
                    for title in _MORE}} for one in self.findings)]


def _cell(title: str, row: Mapping[str, object]) -> object:
    return row.get(title, _NONE)


def _headline(facts: Facts, found: Sequence[Finding],
              notes: Sequence[str]) -> str:
    """Return one line about the group."""
    processes = []
    if facts.live is not None:
        processes = [
            wording.plural(len(facts.live.on_ring), 'member'),
            *(f'{wording.plural(len(some), "worker")} in partition {topic}'
              for topic, some in sorted(facts.live.workers.items()) if some)]
    elif facts.stored:
        processes = [wording.plural(len(facts.reporting), 'member')]
    text = f'Group {facts.group!r}: '
    if processes:
        text += f'{", ".join(processes)}; '
    failures = sum(one.severity == 'failure' for one in found)
    text += ', '.join(
        wording.plural(number, word) for number, word in (
            (failures, 'failure'), (len(found) - failures, 'warning'))
        if number) or 'all is well'
    fullest = sorted(facts.capacities, reverse=True,
                     key=lambda one: one.needed / max(1, one.slots))
    return '; '.join([
        text, *(one.text for one in fullest[:_PARTITIONS]), *notes])


def _rows(facts: Facts) -> Iterator[dict[str, object]]:
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
        for row in facts.reporting:
            yield who('worker' if row.part else 'member', row.part, row.name)
        return

    def since(one: Member) -> dict[str, object]:
        joined = group.joined.get(one.entry)
        return {} if joined is None else {
            'Joined': wording.second(joined), 'Up (s)': cells.age(
                max(0, (facts.now - joined) // 1000000))}
    for member in group.members:
        name = member.identity
        share = group.ring.share(name) if member.points else 0.0
        fair = group.of_fair(name) if member.points else 0.0
        yield {**who('member', '', name), **since(member),
               'Points': member.points,
               'Share': cells.Cell(
                   wording.percent(share), round(share, 6)),
               'Of fair': cells.Cell(f'{fair:.2f}', round(fair, 4))}
    states = {worker.process: str(worker.role)
              for partition in facts.partitions
              for worker in partition.workers}
    for partition, workers in sorted(group.workers.items()):
        for worker in workers:
            yield {**who(f'worker, {states[worker.process]}'
                         if worker.process in states else 'worker',
                         partition, worker.identity),
                   **since(worker), 'Slots': worker.slots}
