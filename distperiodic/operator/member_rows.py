# SPDX-License-Identifier: Apache-2.0
"""The members of one group, as read from their rows or their replies.

This module does not need the store, so commands without one start faster.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from distperiodic.core.control import host_of
from distperiodic.core.member_facts import ProcessReport

if TYPE_CHECKING:
    from distperiodic.operator.activity import CurrentRun


class MemberRow(NamedTuple):
    """A member, as read from its row or its reply; times in microseconds."""

    #: Partition of a worker. Empty means that the member is a scheduler.
    part: str
    name: str
    #: The process that reported last. Empty means that the process has
    #: stopped.
    process: str
    #: Time since the member's last report. None means that the member has not
    #: replied.
    age: int | None
    state: Mapping[str, Any]
    drained: bool
    #: When the member was drained, the operator who drained it, and the
    #: reason. These are None and empty texts if the member is not drained, or
    #: if there is no record of the drain.
    drained_at: int | None
    drained_by: str
    drained_why: str
    #: Number of threads that an operator has set. None means that the option
    #: ``pool_size`` applies.
    pool_size: int | None
    #: Instant of the member's last report. None means that the member has not
    #: replied.
    seen: int | None = None

    @property
    def role(self) -> str:
        return 'worker' if self.part else 'scheduler'

    @property
    def label(self) -> str:
        """Role, partition and name, which identify a member in its group."""
        return f'{self.role} {self.part}/{self.name}' if self.part else (
            f'{self.role} {self.name}')

    @property
    def host(self) -> str:
        """Empty means unknown."""
        host = self.state.get('host')
        return host if isinstance(host, str) else ''

    def is_on(self, host: str) -> bool:
        """Return whether the member has reported *host*, or is named after it.
        """
        return host in (self.host, host_of(self.name))

    @property
    def pid(self) -> int | None:
        pid = self.state.get('pid')
        return pid if type(pid) is int else None

    @property
    def facts(self) -> ProcessReport:
        """The facts in the member's last report."""
        return ProcessReport(self.state, self.seen or 0)

    @property
    def stopped(self) -> bool:
        return not self.process

    @property
    def runs(self) -> 'list[CurrentRun]':
        """The runs in the member's last report.

        A report contains only runs that are not in the store: runs of jobs
        that run on every member, and all runs if there is no store.
        """
        from distperiodic.operator.activity import CurrentRun
        return [CurrentRun(
            run['job'], run['object'], self.process, run['tick'],
            round(run['age_s'] * 1e6) + (self.age or 0), run['attempt'],
            run['progress'], None)
            for run in self.state.get('runs', ())]

    def live(self, seconds: float) -> bool:
        """Return True if the process runs and has reported within *seconds*.
        """
        return not (self.stopped or self.silent(seconds))

    def silent(self, seconds: float) -> bool:
        """Return True if a running process has not reported for *seconds*.

        This includes a process that has not replied to a query.
        """
        return bool(self.process) and (
            self.age is None or self.age > seconds * 1e6)


class Answer(NamedTuple):
    """The answer of one member to an action; times in microseconds."""

    part: str
    name: str
    #: None means that the member has not answered.
    at: int | None
    process: str
    done: bool
    outcome: str
    #: Id of the action.
    action: str


def by_process(rows: Iterable[MemberRow]) -> dict[str, MemberRow]:
    """Return the members by the names of their processes.

    Members of different roles and partitions may have the same name, but never
    the same process. The holder of a lease or of a row of the history is the
    name of a process and of its tenure.
    """
    return {row.process: row for row in rows if row.process}


def topics(rows: Iterable[MemberRow]) -> dict[str, str]:
    """Return the partition of each periodic job, by the name of the job.

    The schedulers report these partitions. If several differ, the one that
    reported last is right.
    """
    found: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.seen or 0):
        by_topic = row.state.get('topics')
        if isinstance(by_topic, dict):
            found.update((job, topic) for topic, jobs in by_topic.items()
                         if isinstance(jobs, list) for job in jobs
                         if isinstance(job, str))
    return found


def slots(rows: Iterable[MemberRow], within: float) -> dict[str, int]:
    """Return the number of slots of the live members, by partition.

    Drained members are left out.

    :param within: Maximum age of a member's report, in seconds.
    """
    found: dict[str, int] = {}
    for row in rows:
        if row.live(within) and not row.drained:
            for pool in row.facts.pools:
                found[pool.partition] = (
                    found.get(pool.partition, 0) + pool.size)
    return found


def role(member: MemberRow | Answer) -> str:
    """Return the kind of a member, in words."""
    return f'worker of {member.part}' if member.part else 'scheduler'


def roles(members: 'Iterable[MemberRow]') -> Callable[[str], str]:
    """Return a function that returns the kind of a process, in words.

    Its argument is the name of the process, or of the process and its tenure.
    An empty result means unknown, because the process has ended.
    """
    processes = by_process(members)

    def role_of(holder: str) -> str:
        found = processes.get(holder) or processes.get(
            holder.rpartition('~')[0])
        return '' if found is None else role(found)
    return role_of
