# SPDX-License-Identifier: Apache-2.0
"""By when a due tick had to be claimed: guarantee G4, from what the world
knows.

Two things are promised, and the earlier one holds:

- its owner, by the ring as it truly was, claims it promptly: from the later
  of its due time and the moment at which the owner became the owner and could
  see that it is, or became able;
- any other member that is able claims it in a late look, whatever the owner
  does and whatever is known of it.

A member is able while it is alive, knows that it is a member, does not stand
still, and is answered by the store. The bounds count from the last moment at
which it was not.
"""

from tests.oracle.due import Owners
from tests.oracle.facts import FOREVER
from tests.oracle.facts import Facts
from tests.oracle.facts import Span
from tests.oracle.facts import without


class Able:
    """Who was able to claim, and when."""

    def __init__(self, facts: Facts, owners: Owners):
        self._bounds = facts.bounds
        self._owners = owners
        owners.deadline = self.prompt
        self._in_force = facts.in_force
        self._any: dict[str, list[Span]] = {}
        self._reading: dict[str, list[Span]] = {}
        self._jobs = {one.name: one.jobs for one in facts.schedulers}
        self._aware = {one.name: one.aware for one in facts.schedulers}
        for one in facts.schedulers:
            if one.entered is None:
                continue
            self._any[one.name] = without(
                one.entered, one.left, one.unable)
            self._reading[one.name] = without(
                one.entered, one.left, [*one.unable, *one.unread])

    def _has(self, process: str, job: str, at: int) -> bool:
        """Whether a process was started with *job* as it is in force."""
        in_force = None
        for since, one in self._in_force[job]:
            if since <= at:
                in_force = one
        mine = self._jobs[process].get(job)
        return (mine is not None and in_force is not None
                and mine.schedule_text() == in_force.schedule_text())

    def deadline(self, job: str, name: str, since: int, known: int) -> int:
        """When an object that waits to be claimed since then must be.

        :param known: from when on the store may know it. Nobody but who
            reads its catalogue can claim it before.
        """
        return min(self.prompt(job, name, since),
                   self._late(job, max(since, known)))

    def prompt(self, job: str, name: str, since: int) -> int:
        """The same, by its owner, who reads its catalogue for it."""
        for process, begin, end in self._owners.spans(name, since):
            begin = self._aware[process](begin)
            for span in self._reading.get(process, ()):
                from_ = max(begin, span.begin, since)
                until = from_ + self._bounds.prompt
                if until <= min(end, span.end) and self._has(
                        process, job, from_):
                    return until
        return FOREVER

    def _late(self, job: str, since: int) -> int:
        found = FOREVER
        for process, spans in self._any.items():
            for span in spans:
                from_ = max(span.begin, since)
                until = from_ + self._bounds.late
                if until <= span.end and self._has(process, job, from_):
                    found = min(found, until)
                    break
        return found
