# SPDX-License-Identifier: Apache-2.0
"""Five numbers about a group: its members, late objects, runs, failures, and
the agreement about the ring.
"""

import collections
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core.claim import State
from distperiodic.core.schedule import Instant
from distperiodic.operator.health import Facts

if TYPE_CHECKING:
    from distperiodic.operator.group_reader import GroupReader

# Seconds for which failures count.
_FAILED_FOR = 3600.0


class GroupNumbers(NamedTuple):
    """Numbers about a group. None means that a number is unknown."""

    #: Live schedulers and workers, and those of them that are drained.
    members: int | None
    drained: int
    #: Objects that have waited for a start for longer than their period.
    late: int | None
    #: Runs that are granted to workers.
    running: int | None
    #: Runs of periodic jobs that failed for good in the last hour.
    failed: int | None
    #: Schedulers that see the same members as most others do, and schedulers
    #: whose view is known.
    views_agree: int
    views: int


def of_facts(facts: Facts) -> GroupNumbers:
    """Return the numbers that the facts about a group contain."""
    members = facts.members_by_role
    views = collections.Counter(
        view.digest for row in facts.reporting if not row.part
        for view in [row.facts.view] if view is not None)
    return GroupNumbers(
        None if members is None else sum(members.values()),
        sum(row.drained for row in facts.reporting),
        len(facts.starving) if facts.stored and (
            'starving' not in facts.unread) else None,
        None, None, max(views.values(), default=0), views.total())


def with_store(numbers: GroupNumbers, store: 'GroupReader',
               now: Instant) -> GroupNumbers:
    """Return the numbers with those that only the store knows.

    A number that the store does not return in time stays unknown.
    """
    import sqlalchemy as sa

    from distperiodic.adapters.sql import tables
    lease, job, history = tables.lease, tables.job, tables.history
    space = job.c.space == store.namespace
    def total(query: sa.Select[Any]) -> int | None:
        try:
            [[number]] = store.rows(query)
        except exceptions.StoreUnavailable:
            return None
        return int(number or 0)
    return numbers._replace(
        running=total(
            sa.select(sa.func.sum(lease.c.remaining))
            .select_from(lease.join(job, job.c.id == lease.c.job))
            .where(space, lease.c.state == State.RUNNING)),
        failed=total(
            sa.select(sa.func.sum(history.c.dead)).where(
                history.c.job.in_(sa.select(job.c.id).where(
                    space, job.c.kind == tables.KIND)),
                history.c.tick >= now - round(_FAILED_FOR * 1e6))))
