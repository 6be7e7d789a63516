# SPDX-License-Identifier: Apache-2.0
"""Reads the facts in the store from which :mod:`.health` finds what is wrong.

The number of statements is constant, except that jobs are read some hundred at
a time. No statement reads all objects, all tasks or all of the history.
"""

import contextlib
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import counting
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.pauses_in_force import is_paused
from distperiodic.core import audit
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.operator import activity
from distperiodic.operator import group_reader
from distperiodic.operator import health
from distperiodic.operator import live_processes
from distperiodic.operator import members
from distperiodic.operator import partitions
from distperiodic.operator import task_queries
from distperiodic.operator import waiting
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore
from distperiodic.operator.group_reader import pause_of
from distperiodic.operator.group_reader import paused_objects

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import ports
    from distperiodic.operator.live_group import Group

_claim = tables.claim
_history = tables.history
_job = tables.job
_lease = tables.lease

#: Number of sweep intervals after which a ready step has waited for too long.
_SWEEPS = 5
#: Seconds for which lost ticks are reported.
_LOST_FOR = 600.0
# Seconds of the history, and maximum number of its rows, from which the use of
# the slots is computed.
_LOADED_FOR, _LOADED = 600.0, 2000
# Maximum number of failing objects and of stuck tasks that are read.
_OBJECTS, _TASKS = 1000, 10
# Number of jobs whose ticks one statement reads.
_AT_A_TIME = 200
# Seconds after which no further facts are read from a slow store, and maximum
# seconds of a request if many are needed.
_PATIENCE, _FAST = 5.0, 0.05


def expired(store: GroupReader) -> health.ExpiredLeases | None:
    """Return the lease that expired first. None means that no lease has
    expired.
    """
    ended = sa.and_(_lease.c.until < store.dialect.lease_now,
                    _job.c.space == store.namespace)
    joined = _lease.join(_job, _job.c.id == _lease.c.job)

    def read(connection: sa.Connection) -> health.ExpiredLeases | None:
        first = connection.execute(
            sa.select(_job.c.name, store.dialect.at_tick_clock(
                _lease.c.until).label('until'))
            .select_from(joined).where(ended)
            .order_by(_lease.c.until).limit(1)).one_or_none()
        if first is None:
            return None
        number = connection.scalar(sa.select(
            sa.func.count()).select_from(joined).where(ended))
        return health.ExpiredLeases(first.name, first.until, number or 0)
    return store.read_snapshot(read)


def jobs(store: GroupReader, now: Instant,
         unattended: float) -> list[health.JobFacts]:
    """Return what is known about each job, in order of name.

    :param unattended: Seconds after which a job that no scheduler attends
        may have no scheduler.
    """
    def work(connection: sa.Connection) -> list[health.JobFacts]:
        newest = sa.select(sa.func.max(_history.c.tick)).where(
            _history.c.job == _job.c.id).scalar_subquery()
        rows = connection.execute(
            sa.select(_job, newest.label('newest'),
                      store.dialect.now.label('now')).where(
                _job.c.space == store.namespace,
                _job.c.kind == tables.KIND)
            .order_by(_job.c.name)).all()
        periods = {row.id: audit.period_of(row.schedule, now)
                   for row in rows}
        ticks = _recent(connection, {
            row.id: (row.newest, periods[row.id]) for row in rows
            if row.newest is not None}, now)
        paused = paused_objects(connection, rows)
        return [health.JobFacts(
            row.name, periods[row.id], is_paused(row), attended,
            attended is not None and attended < now - unattended * SECOND
            and _is_listed(connection, row.id),
            ticks.get(row.id, ()), row.schedule or '', pause_of(row).until,
            paused.get(row.id, 0))
            for row in rows for attended in [_attended_until(row)]]
    return store.read_snapshot(work)


def _attended_until(row: Any) -> Instant | None:
    """Return the instant until which a job was attended. None means never.

    Schedulers do not record that they attend a paused job, and do not know at
    once that a pause has ended.
    """
    attended: Instant | None = row.attended_until
    return None if attended is None else max(
        attended, row.paused_until or attended)


def _is_listed(connection: sa.Connection, number: int) -> bool:
    """Return whether the job has a listed object."""
    return connection.execute(sa.select(_claim.c.object).where(
        _claim.c.job == number, _claim.c.since.is_not(None)).limit(1)
    ).first() is not None


def _recent(connection: sa.Connection,
            newest: Mapping[int, tuple[Instant, int | None]],
            now: Instant) -> dict[int, list[health.Recent]]:
    """Return the last ticks of each job, and those that lost objects.

    :param newest: The newest tick of each job, and the job's period.
    """
    found: dict[int, list[health.Recent]] = {}
    columns = counting.sums(('due', 'superseded', 'by_lost'))
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
         live: 'Group | None', job: str | None, key: str | None,
         store_of: Callable[[], GroupReader] | None = None
         ) -> dict[str, Any]:
    """Return the fields of :class:`.health.Facts` that the store knows.

    The parameters are those of :func:`.health_facts.read`.

    :param live: The group in the coordination service, if it was read.
    :raises StoreUnavailable: the store does not answer.
    :raises ConfigError: the URL is invalid, or names a file that does not
        exist.
    :raises SchemaError: the schema version does not match this release.
    """
    _check_exists(settings)
    with (contextlib.closing(GroupStore(settings.connection, settings.group))
          if store_of is None else contextlib.nullcontext(store_of())
          ) as store:
        return store.share(lambda shared: _stored(
            settings, clock, live, shared, job, key))


def _stored(settings: 'opts.Settings', clock: 'ports.Clock',
            live: 'Group | None', store: GroupReader, job: str | None,
            key: str | None) -> dict[str, Any]:
    began = clock.monotonic()
    took: list[float] = []

    def timed(ask: Callable[[], Any]) -> Any:
        start = clock.monotonic()
        answer = ask()
        took.append(clock.monotonic() - start)
        return answer
    now = timed(store.now)
    rows = timed(lambda: members.members(store))
    fields = {
        'stored': True, 'now': now, 'members': rows,
        'processes': live_processes.of_rows(rows, settings, live),
        'halted': timed(lambda: task_queries.halted(store))}
    unread = []
    # If the store is slow, the answer must not be late as well: leave out what
    # needs further requests.
    for name, ask in {
            'failing': lambda: activity.failing(
                store, job=job, key=key, limit=_OBJECTS),
            'jobs': lambda: jobs(store, now, settings.session_timeout),
            'partitions': lambda: partitions.partitions(store),
            'stuck': lambda: task_queries.stuck(store, _TASKS),
            'overdue': lambda: task_queries.overdue(
                store, _SWEEPS * settings.sweep_interval),
            'expired': lambda: expired(store),
            'loads': lambda: activity.loads(
                store, now - round(_LOADED_FOR * SECOND), _LOADED),
            'starving': lambda: waiting.starving(store, 1.0, _OBJECTS),
            }.items():
        if min(took) >= health.SLOW or clock.monotonic() - began > (
                # The last reads some hundred leases, one after the other.
                _PATIENCE) or name == 'starving' and min(took) > _FAST:
            unread.append(name)
        else:
            fields[name] = timed(ask)
    return fields | {'unread': unread, 'round_trip': min(took)}


def _check_exists(settings: 'opts.Settings') -> None:
    """Check that an SQLite file exists: a connection would create the file.

    :raises ConfigError: the file does not exist.
    """
    if settings.embedded and not os.path.exists(settings.store_file):
        raise exceptions.ConfigError(
            f'{settings.store_file} does not exist: no service has created '
            'it; start distperiodic scheduler, or use --config-file to name '
            'the file that sets backend_url, connection or state_path')
    group_reader.check_file(settings.connection)
