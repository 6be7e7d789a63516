# SPDX-License-Identifier: Apache-2.0
"""The deadline for the claim of a due tick (guarantee G4), computed from the
record of the world.

The library makes two promises. A claim must come before the earlier of the two
deadlines:

- The owner by the true ring claims promptly. Its bound counts from the latest
  of three moments: the tick is due; the member has become the owner and is
  able to detect this; the member is able to claim.
- Any other member that is able to claim does so in a late scan. This promise
  does not depend on the owner, or on knowledge about the owner.

A member is able to claim while it is alive, knows that it is a member, is not
stalled, receives answers from the store, and has the schedule of the job that
is in force. The owner must also be able to read the catalogue. The bounds
count from the end of the last interval in which the member was not able.
"""

import functools

from tests.oracle.due import Owners
from tests.oracle.facts import FOREVER
from tests.oracle.facts import Facts
from tests.oracle.facts import Span
from tests.oracle.facts import without


class Able:
    """The intervals in which each member was able to claim."""

    def __init__(self, facts: Facts, owners: Owners):
        self._bounds = facts.bounds
        self._owners = owners
        owners.deadline = self.prompt
        self._in_force = facts.in_force
        self._any: dict[str, list[Span]] = {}
        self._reading: dict[str, list[Span]] = {}
        self._jobs = {one.name: one.jobs for one in facts.schedulers}
        self._aware = {
            one.name: functools.cache(functools.partial(owners.aware, one))
            for one in facts.schedulers}
        for one in facts.schedulers:
            if one.entered is None:
                continue
            self._any[one.name] = without(
                one.entered, one.left, one.unable)
            self._reading[one.name] = without(
                one.entered, one.left, [*one.unable, *one.unread])

    def _has(self, process: str, job: str, at: int) -> bool:
        """Return whether a process was started with the schedule of *job*
        that is in force at *at*.
        """
        in_force = None
        for since, one in self._in_force[job]:
            if since <= at:
                in_force = one
        mine = self._jobs[process].get(job)
        return (mine is not None and in_force is not None
                and mine.schedule_text() == in_force.schedule_text())

    def deadline(self, job: str, name: str, since: int, known: int) -> int:
        """Return the deadline for the claim of an object that has been waiting
        since *since*.

        :param known: time from which the store may know the object. Before
            this time only a member that reads the catalogue can claim it.
        """
        return min(self.prompt(job, name, since),
                   self._late(job, max(since, known)))

    def prompt(self, job: str, name: str, since: int) -> int:
        """Return the deadline for a claim by the owner. The owner must be able
        to read the catalogue until then.
        """
        for process, begin, end in self._owners.spans((job, name), since):
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
