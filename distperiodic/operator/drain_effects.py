# SPDX-License-Identifier: Apache-2.0
"""The work that a drain would leave without any member to do it.

This module does not need the store, so commands without one start faster.
"""

from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic.core import wording
from distperiodic.operator.member_rows import MemberRow

# Key of the jobs of a scheduler in its report.
_TOPICS = 'topics'


def left_without(rows: Iterable[MemberRow], chosen: Sequence[MemberRow],
                 within: float) -> list[str]:
    """Return a clause for each kind of work that stops with a drain.

    If no scheduler is left, nothing is claimed. If none is left that has a
    job, this job is not claimed. If no worker of a partition is left, nothing
    of this partition runs.

    :param chosen: The members to drain.
    :param within: Maximum age of a member's report, in seconds.
    """
    keys = {(one.part, one.name) for one in chosen}

    def works(one: MemberRow) -> bool:
        return one.live(within) and not one.drained
    left = [one for one in rows
            if works(one) and (one.part, one.name) not in keys]
    parts = {one.part for one in chosen} - {one.part for one in left}
    found = [
        _clause(f'worker of partition {part}', 'none of its jobs runs')
        if part else _clause('scheduler', 'nothing is claimed')
        for part in sorted(parts)]
    jobs = sorted(_jobs(filter(works, chosen)) - _jobs(left))
    # Without a store, no scheduler reports its jobs.
    if jobs and '' not in parts and all(
            _TOPICS in one.state for one in left if not one.part):
        found.insert(0, _clause(
            f'scheduler with job {wording.listed(jobs)}',
            f'{"it is" if len(jobs) == 1 else "they are"} not claimed'))
    return found


def _clause(member: str, effect: str) -> str:
    return (f'no {member} is left that is running and not drained; {effect} '
            'until one is started or undrained')


def _jobs(some: Iterable[MemberRow]) -> set[str]:
    """Return the jobs that these members have reported."""
    return {job for member in some
            for jobs in member.state.get(_TOPICS, {}).values()
            for job in jobs}
