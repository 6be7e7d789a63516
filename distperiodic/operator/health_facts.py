# SPDX-License-Identifier: Apache-2.0
"""Reads the facts about a group from which :mod:`.health` finds what is wrong.

The number of statements is constant, except that jobs are read some hundred at
a time. No statement reads all objects, all tasks or all of the history.
"""

import contextlib
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.core import audit
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.wording import one_line
from distperiodic.operator import group_reader
from distperiodic.operator import health
from distperiodic.operator import live_processes
from distperiodic.operator.activity import Activity
from distperiodic.operator.live_group import Group
from distperiodic.operator.live_group import read_group
from distperiodic.operator.members import MemberQueries
from distperiodic.operator.partitions import PartitionQueries
from distperiodic.operator.store_probe import StoreProbe
from distperiodic.operator.task_queries import TaskQueries

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import ports

_claim = tables.claim
_history = tables.history
_job = tables.job

#: Number of sweep intervals after which a ready step has waited for too long.
_SWEEPS = 5
#: Seconds for which lost ticks are reported.
_LOST_FOR = 600.0
# Maximum number of failing objects and of stuck tasks that are read.
_OBJECTS, _TASKS = 1000, 10
# Number of jobs whose ticks one statement reads.
_AT_A_TIME = 200
# Number of requests that measure the round trip.
_TRIALS = 3


class HealthQueries:
    """Read-only queries on the health of one group.

    :raises StoreUnavailable: Any method may raise this error.
    """

    def __init__(self, connection_url: str | Database, *, namespace: str):
        self._database = group_reader.connect(connection_url)
        self.group = group_reader.GroupReader(self._database, namespace)
        self.close = self.group.close

    def facts(self, settings: 'opts.Settings', clock: 'ports.Clock',
              live: Group | None) -> Mapping[str, Any]:
        """Return the fields of :class:`.health.Facts` that the store knows.

        :param live: The group in the coordination service. None means that it
            is unknown.
        """
        def of(kind: Any) -> Any:
            return kind(self._database, namespace=self.group.namespace)
        now = self.group.now()
        members = of(MemberQueries).members()
        tasks = of(TaskQueries)
        expired = of(StoreProbe).overdue_lease()
        return {
            'stored': True, 'now': now, 'round_trip': self._round_trip(clock),
            'members': members,
            'processes': live_processes.of_rows(members, settings, live),
            'jobs': self.jobs(now, settings.session_timeout),
            'failing': of(Activity).failing(limit=_OBJECTS),
            'expired': None if expired is None else health.Lease(
                expired.job, now - round(expired.age * SECOND),
                expired.number),
            'partitions': of(PartitionQueries).partitions(),
            'overdue': tasks.overdue(_SWEEPS * settings.sweep_interval),
            'stuck': tasks.stuck(_TASKS), 'halted': tasks.halted()}

    def _round_trip(self, clock: 'ports.Clock') -> float:
        """Return the seconds of the fastest of several requests."""
        taken = []
        for _ in range(_TRIALS):
            began = clock.monotonic()
            self.group.now()
            taken.append(clock.monotonic() - began)
        return min(taken)

    def jobs(self, now: Instant, unattended: float) -> list[health.JobFacts]:
        """Return what is known about each job, in order of name.

        :param unattended: Seconds after which a job that no scheduler attends
            may have no scheduler.
        """
        def work(connection: sa.Connection) -> list[health.JobFacts]:
            newest = sa.select(sa.func.max(_history.c.tick)).where(
                _history.c.job == _job.c.id).scalar_subquery()
            rows = connection.execute(
                sa.select(_job, newest.label('newest')).where(
                    _job.c.space == self.group.namespace,
                    _job.c.kind == tables.KIND)
                .order_by(_job.c.name)).all()
            periods = {row.id: audit.period_of(row.schedule, now)
                       for row in rows}
            ticks = _recent(connection, {
                row.id: (row.newest, periods[row.id]) for row in rows
                if row.newest is not None}, now)
            return [health.JobFacts(
                row.name, periods[row.id], row.paused_since is not None,
                row.attended_until,
                _listed(connection, row.id)
                if row.attended_until is not None and row.attended_until
                < now - unattended * SECOND else 0,
                ticks.get(row.id, ())) for row in rows]
        return self.group.read_snapshot(work)


def _listed(connection: sa.Connection, number: int) -> int:
    """Return 1 if the job has a listed object, else 0."""
    return int(connection.execute(sa.select(_claim.c.object).where(
        _claim.c.job == number, _claim.c.since.is_not(None)).limit(1)
    ).first() is not None)


def _recent(connection: sa.Connection,
            newest: Mapping[int, tuple[Instant, int | None]],
            now: Instant) -> dict[int, list[health.Recent]]:
    """Return the last ticks of each job, and those that lost objects.

    :param newest: The newest tick of each job, and the job's period.
    """
    found: dict[int, list[health.Recent]] = {}
    columns = [sa.cast(sa.func.sum(_history.c[name]), sa.BigInteger)
               for name in ('due', 'superseded', 'by_lost')]
    numbers = list(newest)
    for at in range(0, len(numbers), _AT_A_TIME):
        some = {number: newest[number]
                for number in numbers[at:at + _AT_A_TIME]}
        last = [sa.and_(
            _history.c.job == number,
            _history.c.tick >= tick - (health.SUPERSEDED + 1) * (period or 0))
            for number, (tick, period) in some.items()]
        lost = sa.and_(
            _history.c.job.in_(list(some)), _history.c.by_lost > 0,
            _history.c.tick >= now - round(_LOST_FOR * SECOND))
        for which in (sa.or_(*last), lost):
            for number, *values in connection.execute(
                    sa.select(_history.c.job, _history.c.tick, *columns)
                    .where(which)
                    .group_by(_history.c.job, _history.c.tick)
                    .order_by(_history.c.tick.desc())):
                one = health.Recent(*values)
                if one not in found.setdefault(number, []):
                    found[number].append(one)
    return found


def read(settings: 'opts.Settings', clock: 'ports.Clock',
         **known: Any) -> health.Facts:
    """Return the facts about the configured group.

    If the store or the coordination service cannot be read, the facts give the
    reason.

    :param known: Further fields of :class:`.health.Facts` that the caller
        knows.
    """
    live, coordination = None, ''
    if settings.backend_url:
        try:
            live = read_group(settings, clock)
        except exceptions.CoordinationUnavailable as exc:
            coordination = one_line(exc)
    fields: dict[str, Any] = {'now': clock.now()}
    if settings.connection:
        try:
            with _queries(settings) as queries:
                fields |= queries.facts(settings, clock, live)
        except exceptions.DistperiodicError as exc:
            fields['store'] = one_line(exc)
    return health.Facts(
        group=settings.group, session_timeout=settings.session_timeout,
        sweep_interval=settings.sweep_interval,
        messaging=settings.dispatcher == 'messaging', live=live,
        topics={one.name: topic
                for topic, one in settings.partitions.items()},
        coordination=coordination, **fields, **known)


@contextlib.contextmanager
def _queries(settings: 'opts.Settings') -> Iterator[HealthQueries]:
    if settings.embedded and not os.path.exists(settings.store_file):
        # A connection would create the file.
        raise exceptions.ConfigError(
            f'{settings.store_file} does not exist: no service has created '
            'it; start distperiodic scheduler, or use --config-file to name '
            'the file that sets backend_url, connection or state_path')
    group_reader.check_file(settings.connection)
    with contextlib.closing(HealthQueries(
            settings.connection, namespace=settings.group)) as queries:
        yield queries
