# SPDX-License-Identifier: Apache-2.0
"""Queries on the recent history and the current state of one group.

:meth:`Activity.listings` and :meth:`Activity.unserved` read all objects of a
job, and :meth:`Activity.runs` reads all leases of runs. The other queries read
fewer rows, such as the newest failures, or the history from a given tick
on.
"""

import json
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import counting
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.pauses_in_force import not_over
from distperiodic.core import histogram
from distperiodic.core.claim import State
from distperiodic.core.histogram import Histogram
from distperiodic.core.outcomes import COLUMNS
from distperiodic.core.outcomes import Counts
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import Pausing
from distperiodic.operator.group_reader import pause_of
from distperiodic.operator.group_reader import paused_objects

_claim = tables.claim
_failure = tables.failure
_history = tables.history
_job = tables.job
_lease = tables.lease
_paused = tables.paused_object

# Maximum number of rows of the history that :meth:`Activity.loads` reads.
_LOADED = 20_000
# Maximum number of failures that :meth:`Activity.failing` reads.
_FAILURES = 20_000
# Seconds for which the last success of a job is searched in the history.
_SUCCESS_WITHIN = 86_400.0


class Ticked(NamedTuple):
    """The outcome of a tick."""

    job: str
    #: Microseconds since the epoch.
    tick: int
    counts: Counts
    #: Number of schedulers and workers in the tick's history. All entries
    #: without a member together count as one more, for example those of a
    #: trigger or a requeue by an operator.
    members: int
    #: The first runs of the objects, by the time from the instant at which the
    #: object was due to the start of its handler.
    late: Histogram
    #: All runs that have ended, by their duration.
    ran: Histogram
    #: Object of the longest run. Empty means unknown: all runs were short.
    slowest: str
    #: Reason for a skip, or for ending claims that must not run again. An
    #: empty text means that no reason is recorded.
    reason: str


class _Times(NamedTuple):
    """The fields of these names of :class:`Ticked`."""

    late: Histogram
    ran: Histogram
    slowest: str


_NO_TIMES = _Times(Histogram(), Histogram(), '')


class Load(NamedTuple):
    """The work of one job in a recent interval."""

    job: str
    #: Average number of objects per second that were due and not skipped. An
    #: object counts once for each tick. 0.0 if there were less than two ticks.
    per_second: float
    #: As in :class:`Ticked`, for all ticks of the interval.
    late: Histogram
    ran: Histogram
    #: Length of the interval in seconds.
    seconds: float

    @property
    def busy(self) -> float:
        """Average number of slots that ran handlers of the job."""
        return self.ran.sum / 1e6 / self.seconds

    @property
    def needed(self) -> float:
        """Average number of slots that would run all that was due.

        This is the number of due runs per second times the mean duration of a
        run.
        """
        return self.per_second * (self.ran.mean or 0) / 1e6


class Failing(NamedTuple):
    """An object that has failed for good, and has not succeeded since."""

    job: str
    object: str
    #: Number of runs that have failed for good since the last success. Only
    #: the newest failures are counted.
    runs: int
    #: Instant of the first of these failures, in microseconds.
    first: int
    #: Instant of the last of these failures, with its tick, attempt, worker
    #: and error. An empty worker means that no run was granted.
    at: int
    tick: int
    attempt: int
    worker: str
    error: str
    #: Empty if no traceback was recorded or requested.
    traceback: str
    #: State of the object's claim. Only a dead object can be requeued; for any
    #: other object, a later tick is claimed already.
    state: State


class CurrentRun(NamedTuple):
    """A run in progress; times in microseconds."""

    job: str
    object: str
    #: The worker to which the run was granted. An empty text means that the
    #: worker is not recorded.
    worker: str
    tick: int
    #: Time since the run was granted.
    age: int
    attempt: int
    #: The run's last progress report, as JSON. None means that the run has
    #: not reported any progress.
    progress: str | None
    #: Instant at which the lease of the run expires. None means that the run
    #: has no lease, because the run is not in the store.
    until: int | None


class ObjectCount(NamedTuple):
    """The number of objects of a job that follow one schedule."""

    job: str
    #: Text of the job's schedule in force. An empty text means that no
    #: schedule is recorded yet.
    schedule: str
    #: The instant since which the schedule has been in force. core.due.ALWAYS
    #: means that it is the first schedule of the job. None means that no
    #: schedule is recorded.
    schedule_since: int | None
    #: The pause of the job.
    pause: Pausing
    #: Number of paused objects of the job, whichever schedule they follow.
    paused_objects: int
    #: Text of the objects' own schedule. An empty text means that the objects
    #: follow the schedule of the job.
    rule: str
    objects: int


class Unserved(NamedTuple):
    """An object, and the instant of its last successful run."""

    object: str
    tick: int
    state: State
    #: Instant at which a run of the object last succeeded, in microseconds.
    #: None means that no run has succeeded.
    served: int | None
    #: The pause of the object itself.
    pause: Pausing


def failing(store: GroupReader, *, job: str | None = None,
            key: str | None = None, since: int | None = None,
            error: str | None = None,
            limit: int, tracebacks: bool = False) -> list[Failing]:
    """Return the objects that have failed for good, those of the newest
    ticks first.

    An object counts if it is listed and has not succeeded since its
    failure. Only the newest failures are read.

    :param job: Name of the job. None means all jobs.
    :param key: Id of the object. None means all objects.
    :param since: First instant of the last failure, in microseconds. None
        means any instant.
    :param error: Text that the last error contains. None means any error.
    :param limit: Maximum number of objects to return.
    :param tracebacks: True returns tracebacks; each may be long.
    :raises ConfigError: the store has no such job.
    """
    names = store.names(job)
    which: list[sa.ColumnElement[bool]] = [
        _failure.c.job.in_(list(names))]
    if key is not None:
        which.append(_failure.c.object == key)
    newest = (
        sa.select(_failure.c.id, _failure.c.job, _failure.c.object,
                  _failure.c.at).where(*which)
        .order_by(_failure.c.id.desc()).limit(_FAILURES).subquery())
    series = (
        sa.select(newest.c.job, newest.c.object, _claim.c.state,
                  sa.func.count().label('runs'),
                  sa.func.min(newest.c.at).label('first'),
                  sa.func.max(newest.c.id).label('last'))
        .select_from(newest.join(_claim, sa.and_(
            _claim.c.job == newest.c.job,
            _claim.c.object == newest.c.object)))
        .where(newest.c.at > sa.func.coalesce(_claim.c.served, 0),
               _claim.c.since.is_not(None))
        .group_by(newest.c.job, newest.c.object, _claim.c.state)
        .subquery())
    last = []
    if since is not None:
        last.append(_failure.c.at >= since)
    if error is not None:
        last.append(store.dialect.contains(_failure.c.error, error))
    return [Failing(
        names[row.job], row.object, row.runs, row.first, row.at, row.tick,
        row.attempt, row.worker or '', row.error, row.traceback or '',
        row.state)
        for row in store.rows(
            sa.select(
                series, _failure.c.at, _failure.c.tick,
                _failure.c.attempt, _failure.c.worker, _failure.c.error,
                (_failure.c.traceback if tracebacks else
                 sa.literal('')).label('traceback'))
            .join(_failure, _failure.c.id == series.c.last)
            .where(*last)
            .order_by(_failure.c.tick.desc(), series.c.job,
                      series.c.object)
            .limit(limit))]


def runs(store: GroupReader, job: str | None, limit: int, *,
         older_than: float = 0.0, process: str | None = None
         ) -> list[CurrentRun]:
    """Return runs in progress, the longest-running first.

    :param job: Name of the job. None means all jobs.
    :param process: Name, without the tenure, of the process that holds the
        leases of the runs. None means all processes.
    :param older_than: Minimum number of seconds since the grant of a run.
    :raises ConfigError: the store has no such job.
    """
    names = store.names(job)
    held = sa.true() if process is None else _lease.c.holder.startswith(
        f'{process}~', autoescape=True)

    def work(connection: sa.Connection) -> list[CurrentRun]:
        runs: list[CurrentRun] = []
        # There is no index of claims by lease, but the row of a lease
        # lists its objects.
        for lease in connection.execute(
                sa.select(_lease.c.id, _lease.c.job, _lease.c.objects,
                          (_lease.c.until - store.dialect.lease_now
                           + store.dialect.now).label('until'),
                          (store.dialect.lease_now - _lease.c.made
                           ).label('age'))
                .where(_lease.c.job.in_(list(names)),
                       _lease.c.state == State.RUNNING, held,
                       _lease.c.made <= store.dialect.lease_now
                       - round(older_than * 1e6))
                .order_by(_lease.c.made, _lease.c.id)).all():
            keys = json.loads(lease.objects)
            runs += [
                CurrentRun(names[lease.job], row.object, row.worker or '',
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
    return store.read(work)


def listings(store: GroupReader, job: str | None) -> list[ObjectCount]:
    """Return the number of listed objects per job and schedule.

    :param job: Name of the job. None means all jobs.
    :raises ConfigError: the store has no such job.
    """
    names = store.names(job)
    listed = (
        sa.select(_claim.c.job, _claim.c.rule,
                  sa.func.count().label('objects'))
        .where(_claim.c.job.in_(list(names)),
               _claim.c.since.is_not(None))
        .group_by(_claim.c.job, _claim.c.rule).subquery())
    def work(connection: sa.Connection) -> list[ObjectCount]:
        found = connection.execute(
            sa.select(_job, store.dialect.now.label('now'), listed.c.rule,
                      listed.c.objects)
            .select_from(_job.outerjoin(listed, listed.c.job == _job.c.id))
            .where(_job.c.id.in_(list(names)))).all()
        paused = paused_objects(connection, found)
        return sorted((ObjectCount(
            names[row.id], row.schedule or '', row.schedule_since,
            pause_of(row), paused.get(row.id, 0), row.rule or '',
            row.objects or 0) for row in found),
            key=lambda one: (one.job, one.rule))
    return store.read_snapshot(work)


def unserved(store: GroupReader, job: str, seconds: float,
             limit: int, *, paused: bool = False) -> list[Unserved]:
    """Return objects without a successful run in the last *seconds*.

    The object that has waited longest comes first.

    :param paused: True returns only paused objects.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    in_force = sa.and_(
        _paused.c.job == _claim.c.job, _paused.c.object == _claim.c.object,
        not_over(_paused, store.dialect.now))
    return [Unserved(
        row.object, row.tick, row.state, row.served, pause_of(row))
        for row in store.rows(
        sa.select(_claim.c.object, _claim.c.tick, _claim.c.state,
                  _claim.c.served, store.dialect.now.label('now'),
                  _paused.c.paused_since, _paused.c.paused_by,
                  _paused.c.paused_why, _paused.c.paused_until)
        .select_from(_claim.join(_paused, in_force, isouter=not paused))
        .where(_claim.c.job == number, sa.or_(
            _claim.c.served.is_(None),
            _claim.c.served
            < store.dialect.now - round(seconds * 1e6)))
        .order_by(sa.func.coalesce(_claim.c.served, 0),
                  _claim.c.object).limit(limit))]


def lists(store: GroupReader, job: str) -> bool:
    """Return whether the store has a row for any object of *job*.

    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    return bool(store.rows(
        sa.select(_claim.c.object).where(_claim.c.job == number)
        .limit(1)))


def history(store: GroupReader, *, job: str | None, since: int,
            limit: int) -> list[Ticked]:
    """Return the outcome of ticks, the newest first.

    :param job: Name of the job. None means all jobs.
    :param since: First tick, in microseconds.
    :param limit: Maximum number of rows; a row is one job and tick.
    :raises ConfigError: the store has no such job.
    """
    names = store.names(job)
    found = store.rows(
        sa.select(
            _history.c.job, _history.c.tick,
            *counting.sums(COLUMNS),
            sa.func.count().label('members'),
            sa.func.max(_history.c.reason).label('reason'))
        .where(_history.c.job.in_(list(names)), _history.c.tick >= since)
        .group_by(_history.c.job, _history.c.tick)
        .order_by(_history.c.tick.desc(), _history.c.job)
        .limit(limit))
    times = _times(store, names, *(
        edge(row.tick for row in found) for edge in (min, max))
        ) if found else {}
    ticks = []
    for row in found:
        counts = counting.counts(row)
        ticks.append(Ticked(
            names[row.job], row.tick,
            counts._replace(open=counts.due - counts.ended), row.members,
            *times.get((row.job, row.tick), _NO_TIMES), row.reason or ''))
    return ticks


def _times(store: GroupReader, jobs: Collection[int], first: int, last: int
           ) -> dict[tuple[int, int], _Times]:
    """Return the times of starts and runs, by job and tick.

    :param jobs: Numbers of the jobs.
    :param first: First tick.
    :param last: Last tick.
    """
    found: dict[tuple[int, int], _Times] = {}
    for row in store.rows(
            sa.select(_history.c.job, _history.c.tick,
                      _history.c.started, _history.c.ran,
                      _history.c.slowest)
            .where(_history.c.job.in_(list(jobs)),
                   _history.c.tick.between(first, last),
                   _history.c.ran.is_not(None))):
        late, ran, slowest = found.get((row.job, row.tick), _NO_TIMES)
        more = Histogram.parse(row.ran)
        found[row.job, row.tick] = _Times(
            late + Histogram.parse(row.started), ran + more,
            (row.slowest or '') if more.max > ran.max else slowest)
    return found


def last_successes(store: GroupReader) -> dict[str, int]:
    """Return the newest tick of the last day at which an object of a job
    succeeded, by the name of the job.
    """
    # The primary key gives the rows of a job from the newest tick on, so a job
    # that succeeds costs a few rows.
    newest = (
        sa.select(_history.c.tick)
        .where(_history.c.job == _job.c.id, _history.c.done > 0,
               _history.c.tick >= store.dialect.now
               - round(_SUCCESS_WITHIN * 1e6))
        .order_by(_history.c.tick.desc()).limit(1)
        .correlate(_job).scalar_subquery())
    return {row.name: row.tick for row in store.rows(
        sa.select(_job.c.name, newest.label('tick')).where(
            _job.c.space == store.namespace, _job.c.kind == tables.KIND))
        if row.tick is not None}


def loads(store: GroupReader, since: int, limit: int = _LOADED
          ) -> list[Load]:
    """Return the work of each job since an instant.

    The interval begins with the oldest tick that is read. Only the rows of
    the newest ticks are read.

    :param since: Instant in microseconds.
    :param limit: Maximum number of rows to read.
    """
    names = store.names()
    now = store.now()
    rows = store.rows(
        sa.select(_history.c.job, _history.c.tick,
                  (_history.c.due - _history.c.skipped).label('due'),
                  _history.c.started, _history.c.ran)
        .where(_history.c.job.in_(list(names)),
               _history.c.tick >= since, _history.c.tick <= now)
        .order_by(_history.c.tick.desc()).limit(limit))
    by_job: dict[int, list[Any]] = {}
    for row in rows:
        by_job.setdefault(row.job, []).append(row)
    seconds = max(1, now - rows[-1].tick) / 1e6 if rows else 0.0
    found = []
    for number, some in by_job.items():
        newest, oldest = some[0].tick, some[-1].tick
        due = sum(row.due for row in some if row.tick < newest)
        found.append(Load(
            names[number], int(due) / (newest - oldest) * 1e6
            if newest > oldest else 0.0,
            histogram.total(Histogram.parse(row.started) for row in some),
            histogram.total(Histogram.parse(row.ran) for row in some),
            seconds))
    return sorted(found, key=lambda one: one.job)


def unknown_jobs(store: GroupReader, known: Iterable[str]) -> dict[str, int]:
    """Return the jobs of the store that are not *known* and have objects.

    Each job is returned with the number of its open claims. A scheduler
    ignores the claims of an unknown job, since other schedulers may know
    the job. If the job was renamed, no scheduler knows the old name, and
    the claims under that name wait forever.
    """
    return {row.name: int(row.open) for row in store.rows(
        sa.select(_job.c.name, sa.func.coalesce(
            sa.func.sum(_lease.c.remaining), 0).label('open'))
        .outerjoin(_lease, _lease.c.job == _job.c.id)
        .where(_job.c.space == store.namespace,
               _job.c.kind == tables.KIND,
               _job.c.name.not_in(sorted(known)),
               sa.exists().where(_claim.c.job == _job.c.id))
        .group_by(_job.c.name).order_by(_job.c.name))}
