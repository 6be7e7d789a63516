# SPDX-License-Identifier: Apache-2.0
"""Queries on the present state: active members, runs, failing objects.

:meth:`Activity.listings` reads all objects of a job, and
:meth:`Activity.runs` all leases of runs. The other queries read only the
recent history or the newest failures.
"""

import json
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.claim import State
from distperiodic.operator.admin import StoreAdmin

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease

# Number of newest failures that are examined.
_FAILURES = 1000


class Failing(NamedTuple):
    """Objects of one job that failed for good and have not succeeded since."""

    job: str
    objects: int
    #: One of them.
    example: str


class Run(NamedTuple):
    """An object that is running; times in microseconds."""

    job: str
    object: str
    #: The worker to which the run was granted. Empty means not recorded.
    worker: str
    tick: int
    #: Time since it was granted. None means an earlier release granted it.
    age: int | None
    attempt: int
    #: The run's last progress report, as JSON. None means there is none.
    progress: str | None
    #: When its lease expires.
    until: int


class Listing(NamedTuple):
    """The number of objects of a job that follow one schedule."""

    job: str
    #: Text of the job's schedule in force. Empty means not recorded yet.
    schedule: str
    #: The instant from which it holds, or core.due.ALWAYS. None means not
    #: recorded yet.
    schedule_since: int | None
    paused: bool
    #: Text of the objects' own schedule. Empty means they follow the job's.
    rule: str
    objects: int


class Activity(StoreAdmin):
    """Queries on the present state of one group, for operator commands."""

    def recent_holders(self, since: int) -> dict[str, int]:
        """Return members with entries in recent history, and the newest tick
        of each.

        :param since: First tick, in microseconds.
        """
        names = self._named()
        return {row.member: row.tick for row in self._database.read(
            lambda connection: connection.execute(
                sa.select(_history.c.member,
                          sa.func.max(_history.c.tick).label('tick'))
                .where(_history.c.job.in_(list(names)),
                       _history.c.tick >= since, _history.c.member != '')
                .group_by(_history.c.member)).all())}

    def failing(self) -> list[Failing]:
        """Return jobs with objects that failed for good and have not
        succeeded since. Only the newest failures are examined.
        """
        names = self._named()
        newest = (
            sa.select(_failure.c.job, _failure.c.object, _failure.c.at)
            .where(_failure.c.job.in_(list(names)))
            .order_by(_failure.c.id.desc()).limit(_FAILURES).subquery())
        found = self._database.read(lambda connection: connection.execute(
            sa.select(
                newest.c.job,
                sa.func.count(newest.c.object.distinct()).label('objects'),
                sa.func.min(newest.c.object).label('example'))
            .select_from(newest.join(_claim, sa.and_(
                _claim.c.job == newest.c.job,
                _claim.c.object == newest.c.object)))
            .where(newest.c.at > sa.func.coalesce(_claim.c.served, 0),
                   _claim.c.since.is_not(None))
            .group_by(newest.c.job)).all())
        return sorted(Failing(names[row.job], row.objects, row.example)
            for row in found)

    def runs(self, job: str | None, limit: int) -> list[Run]:
        """Return runs in progress, the longest-running first.

        :param job: Name of the job. None means all jobs.
        :raises ConfigError: the store has no such job.
        """
        names = self._named(job)

        def work(connection: sa.Connection) -> list[Run]:
            runs: list[Run] = []
            # Claims are not indexed by lease, but a lease names its objects.
            for lease in connection.execute(
                    sa.select(_lease.c.id, _lease.c.job, _lease.c.objects,
                              (_lease.c.until - self._dialect.lease_now
                               + self._dialect.now).label('until'),
                              (self._dialect.lease_now - _lease.c.made
                               ).label('age'))
                    .where(_lease.c.job.in_(list(names)),
                           _lease.c.state == State.RUNNING)
                    .order_by(sa.func.coalesce(_lease.c.made, 0),
                              _lease.c.id)).all():
                keys = json.loads(lease.objects)
                runs += [
                    Run(names[lease.job], row.object, row.worker or '',
                        row.tick, lease.age, row.attempt, row.progress,
                        lease.until)
                    for row in connection.execute(
                        sa.select(_claim).where(
                            _claim.c.job == lease.job,
                            _claim.c.object.in_(keys),
                            _claim.c.lease == lease.id,
                            _claim.c.state == State.RUNNING)
                        .order_by(_claim.c.object))]
                if len(runs) >= limit:
                    break
            return runs[:limit]
        return self._database.read(work)

    def listings(self, job: str | None) -> list[Listing]:
        """Return the number of listed objects per job and schedule.

        :param job: Name of the job. None means all jobs.
        :raises ConfigError: the store has no such job.
        """
        names = self._named(job)
        rule = sa.func.coalesce(_claim.c.rule, '', type_=_claim.c.rule.type)
        listed = (
            sa.select(_claim.c.job, rule.label('rule'),
                      sa.func.count().label('objects'))
            .where(_claim.c.job.in_(list(names)),
                   _claim.c.since.is_not(None))
            .group_by(_claim.c.job, rule).subquery())
        found = self._database.read(lambda connection: connection.execute(
            sa.select(_job.c.id, _job.c.schedule, _job.c.schedule_since,
                      _job.c.paused_since, listed.c.rule, listed.c.objects)
            .select_from(_job.outerjoin(listed, listed.c.job == _job.c.id))
            .where(_job.c.id.in_(list(names)))).all())
        return sorted(Listing(
            names[row.id], row.schedule or '', row.schedule_since,
            row.paused_since is not None, row.rule or '', row.objects or 0)
            for row in found)
