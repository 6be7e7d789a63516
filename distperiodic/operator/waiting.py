# SPDX-License-Identifier: Apache-2.0
"""Work that waits for a worker: how much, and since when.

There is no index of the claims that wait, because such an index would double
the cost of each change of a claim. But each claim that waits is in a lease,
and a lease has hundreds of claims. So the numbers come from the leases, and
the oldest claims are found by reading the claims of some leases. If a job has
more leases, only the leases of its oldest and newest ticks are read: a claim
that supersedes another moves to the newest lease, and keeps its place in the
line.
"""

import json
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core import audit
from distperiodic.core.claim import State
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.schedule import Instant
from distperiodic.operator.group_reader import GroupReader

_claim = tables.claim
_job = tables.job
_lease = tables.lease
_ready = tables.ready

# Maximum numbers of leases of one job, and of all leases, whose claims are
# read. Half of the leases of a job are those of its newest ticks.
_LEASES_OF_JOB, _LEASES = 8, 64
# Maximum number of ready steps that are read, and of claims of one lease.
_STEPS, _CLAIMS = 1000, 100


class Waiting(NamedTuple):
    """Work of one job that is due and has not been started."""

    #: Name of the job. The name of a command begins with
    #: :data:`~distperiodic.core.job.COMMAND_PREFIX`.
    job: str
    #: Number of claims and of ready steps that wait. If *complete* is false,
    #: more steps are ready.
    number: int
    #: Instant since which the oldest of them waits, in microseconds. If
    #: *complete* is false, an older one may exist.
    since: Instant
    #: The object, or the task, that has waited since then.
    object: str
    #: True if this work is claimed. False means that it is a ready step that
    #: no scheduler has claimed.
    claimed: bool
    #: True if all work that waits was read.
    complete: bool


class Starving(NamedTuple):
    """A claimed object that has waited for several periods of its schedule."""

    job: str
    object: str
    #: Instant since which the object has waited for a start, in microseconds.
    since: Instant
    #: Number of periods of the object's schedule since then.
    periods: float
    #: True if a later claim has superseded the one that waited first. False
    #: means that no later tick was claimed.
    superseded: bool


class _Lease(NamedTuple):
    id: str
    job: int
    tick: int
    remaining: int


def waiting(store: GroupReader) -> list[Waiting]:
    """Return the jobs with work that waits, in order of name."""
    def read(connection: sa.Connection) -> list[Waiting]:
        names = {number: name for number, (name, _) in _jobs(
            store, connection).items()}
        leases = _leases(store, connection, names)
        number: dict[int, int] = {}
        for lease in leases:
            number[lease.job] = number.get(lease.job, 0) + lease.remaining
        oldest: dict[int, tuple[Instant, str, bool]] = {}
        some = _some(leases)
        for lease in some:
            for row in _claims(store, connection, lease, 1):
                found = row.waiting, row.object, True
                oldest[lease.job] = min(
                    oldest.get(lease.job, found), found)
        steps = _steps(store, connection, names)
        for step in steps:
            number[step.job] = number.get(step.job, 0) + 1
            found = step.due, step.task, False
            oldest[step.job] = min(oldest.get(step.job, found), found)
        opened = {lease.id for lease in some}
        cut = {lease.job for lease in leases if lease.id not in opened}
        if len(steps) == _STEPS:
            cut |= {step.job for step in steps}
        return sorted(Waiting(
            names[job], number[job], *oldest[job], job not in cut)
            for job in oldest)
    return store.read_snapshot(read)


def starving(store: GroupReader, periods: float, limit: int) -> list[Starving]:
    """Return objects that have waited for at least *periods* periods.

    The objects that have waited longest come first.
    """
    def read(connection: sa.Connection) -> list[Starving]:
        jobs = _jobs(store, connection)
        now = connection.scalar(sa.select(store.dialect.now))
        assert now is not None
        found = []
        for lease in _some(_leases(store, connection, jobs)):
            name, schedule = jobs[lease.job]
            for row in _claims(
                    store, connection, lease, min(limit, _CLAIMS)):
                period = audit.period_of(row.rule or schedule, now)
                if period and now - row.waiting >= periods * period:
                    found.append(Starving(
                        name, row.object, row.waiting,
                        (now - row.waiting) / period,
                        row.tick > row.waiting))
        return sorted(found, key=lambda one: (
            one.since, one.job, one.object))[:limit]
    return store.read_snapshot(read)


def _jobs(store: GroupReader, connection: sa.Connection
          ) -> dict[int, tuple[str, str | None]]:
    """Return the name and the schedule of each job and command."""
    return {row.id: (
        COMMAND_PREFIX * (row.kind == tables.COMMAND) + row.name,
        row.schedule) for row in connection.execute(
            sa.select(_job.c.id, _job.c.kind, _job.c.name, _job.c.schedule)
            .where(_job.c.space == store.namespace))}


def _leases(store: GroupReader, connection: sa.Connection,
            jobs: Iterable[int]) -> list[_Lease]:
    """Return the leases of claims that wait, in order of their ticks."""
    return [_Lease(*row) for row in connection.execute(
        sa.select(_lease.c.id, _lease.c.job, _lease.c.tick,
                  _lease.c.remaining)
        .where(_lease.c.job.in_(list(jobs)),
               _lease.c.state == State.CLAIMED, _lease.c.remaining > 0)
        .order_by(_lease.c.tick, _lease.c.id))]


def _claims(store: GroupReader, connection: sa.Connection, lease: _Lease,
            limit: int) -> Sequence[Any]:
    """Return the claims in *lease* that have waited longest."""
    keys = connection.scalar(sa.select(_lease.c.objects).where(
        _lease.c.id == lease.id))
    return connection.execute(
        sa.select(_claim.c.object, _claim.c.rule, _claim.c.tick,
                  _claim.c.waiting).where(
            _claim.c.job == lease.job,
            _claim.c.object.in_(json.loads(keys or '[]')),
            _claim.c.lease == lease.id, _claim.c.state == State.CLAIMED)
        .order_by(_claim.c.waiting, _claim.c.object).limit(limit)).all()


def _steps(store: GroupReader, connection: sa.Connection,
           jobs: Mapping[int, str]) -> Sequence[Any]:
    """Return ready steps that no scheduler has claimed, the oldest first.
    """
    return connection.execute(
        sa.select(_ready.c.job, _ready.c.task, _ready.c.due).where(
            _ready.c.delayed == 0, _ready.c.job.in_(list(jobs)))
        .order_by(_ready.c.due).limit(_STEPS)).all()


def _some(leases: Sequence[_Lease]) -> list[_Lease]:
    """Select the leases whose claims are read."""
    by_job: dict[int, list[_Lease]] = {}
    for lease in leases:
        by_job.setdefault(lease.job, []).append(lease)
    found = []
    half = _LEASES_OF_JOB // 2
    for some in by_job.values():
        found += (some if len(some) <= _LEASES_OF_JOB
                  else [*some[:half], *some[-half:]])
    return sorted(found, key=lambda one: one.tick)[:_LEASES]
