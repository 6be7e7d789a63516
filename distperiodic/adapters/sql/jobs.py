# SPDX-License-Identifier: Apache-2.0
"""The jobs in a database, with their schedules and attended intervals."""

import random
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.pauses_in_force import is_paused
from distperiodic.adapters.sql.pauses_in_force import not_over
from distperiodic.core import due
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.job_set import RECORDS_PER_GAP
from distperiodic.core.job_set import adopted
from distperiodic.core.job_set import mark_of
from distperiodic.core.pause import Pause
from distperiodic.core.schedule import SECOND
from distperiodic.ports import Checked
from distperiodic.ports import JobStatus

_job = tables.job
_paused = tables.paused_object

#: Range of job numbers. The range begins far above 1, because an earlier
#: release numbered the jobs from 1.
_NUMBERS = 2 ** 20, 2 ** 31 - 1
#: Seconds for which a cached number is used. If the tables are recreated,
#: statements use an old number, and find no rows, until the cache expires.
_CACHED = 10.0


def kind_and_name(job: str) -> tuple[str, str]:
    """Return the kind of *job*, and its name within that kind.

    The name of a command is ``task:module.command``; all other names are names
    of periodic jobs.
    """
    if job.startswith(COMMAND_PREFIX):
        return tables.COMMAND, job[len(COMMAND_PREFIX):]
    return tables.KIND, job


class Numbers:
    """Cache of the numbers by which rows refer to jobs.

    If the tables are recreated, the jobs get other numbers. So the numbers are
    read again every few seconds, and with each new connection.
    """

    def __init__(self, database: Database, namespace: str,
                 monotonic: Callable[[], float]):
        self._database = database
        self._jobs = _Jobs(database.dialect, namespace)
        self._monotonic = monotonic
        self._numbers: dict[str, int] = {}
        self._opened = 0
        self._read_at = 0.0

    def of(self, job: str) -> int:
        """Return the number of *job*; create the row of a new job."""
        if (self._opened != self._database.opened
                or self._monotonic() - self._read_at > _CACHED):
            self._database.read(lambda connection: self._keep(
                self._jobs.read(connection)))
        number = self._numbers.get(job)
        if number is None:
            rows = self._database.write(
                lambda connection: self._jobs.create_missing(
                    connection, {job}))
            number = rows[job].id
            self._numbers[job] = number
        return number

    def within(self, connection: sa.Connection,
               needed: Collection[str]) -> Mapping[str, int]:
        """Return the numbers of the jobs *needed*, and possibly of other jobs.

        Missing rows are created. Their numbers are not cached, since the
        caller's transaction may be rolled back.
        """
        if (self._opened == self._database.opened
                and self._monotonic() - self._read_at <= _CACHED
                and self._numbers.keys() >= set(needed)):
            return self._numbers
        return self.read_commands(connection, needed).known

    def read_commands(self, connection: sa.Connection,
                      needed: Collection[str]) -> 'Commands':
        """Read the numbers of the commands *needed*, together with the time.

        Missing rows are created.
        """
        rows: dict[str, Any] = self._jobs.read_commands(connection, needed)
        if not rows or rows.keys() < set(needed):
            rows = self._jobs.create_missing(connection, set(needed))
        now = next(iter(rows.values())).now
        return Commands(self, {
            name: row.id for name, row in rows.items()}, now)

    def forget(self) -> None:
        """Clear the cache."""
        self._numbers.clear()

    def read(self, connection: sa.Connection,
             needed: Iterable[str]) -> dict[str, Any]:
        """Return the rows of all jobs, by name.

        Rows of *needed* that are missing are created.
        """
        rows = self._jobs.create_missing(connection, set(needed))
        self._keep(rows)
        return rows

    def read_existing(self, needed: Collection[str]) -> dict[str, Any] | None:
        """Return the rows of all jobs, by name, without creating any.

        None means that the rows of some of *needed* are missing.
        """
        rows = self._database.read(self._jobs.read)
        self._keep(rows)
        return rows if rows.keys() >= set(needed) else None

    def _keep(self, rows: Mapping[str, Any]) -> None:
        self._numbers = {name: row.id for name, row in rows.items()}
        self._opened = self._database.opened
        self._read_at = self._monotonic()


class Commands(NamedTuple):
    """Numbers of commands, as the current transaction has read them."""

    numbers: Numbers
    known: Mapping[str, int]
    #: Time of the database's clock when the numbers were read.
    now: int

    def within(self, connection: sa.Connection,
               needed: Collection[str]) -> Mapping[str, int]:
        """Return the numbers of the commands; see :meth:`Numbers.within`."""
        if self.known.keys() >= set(needed):
            return self.known
        return self.numbers.within(connection, needed)


def _now(dialect: Dialect) -> Any:
    return sa.select(dialect.now).scalar_subquery().label('now')


def _all(dialect: Dialect) -> Any:
    return sa.select(_job, _now(dialect)).where(
        _job.c.space == sa.bindparam('of_space'))


def _commands(dialect: Dialect) -> Any:
    # A service may have thousands of jobs, so read only the rows that are
    # needed.
    return sa.select(_job.c.name, _job.c.id, _now(dialect)).where(
        _job.c.space == sa.bindparam('of_space'),
        _job.c.kind == tables.COMMAND, dialect.among(_job.c.name))


class _Jobs:
    """The rows of all jobs of one namespace."""

    def __init__(self, dialect: Dialect, namespace: str):
        self._dialect = dialect
        self._namespace = namespace

    def read(self, connection: sa.Connection) -> dict[str, Any]:
        """Return the rows by name."""
        return {row.name if row.kind == tables.KIND
                else COMMAND_PREFIX + row.name: row
                for row in connection.execute(
                    self._dialect.once(_all), {'of_space': self._namespace})}

    def read_commands(self, connection: sa.Connection,
                      needed: Collection[str]) -> dict[str, Any]:
        """Return the rows, by name, of the commands *needed*.

        Each row has the current time as ``now``.
        """
        return {COMMAND_PREFIX + row.name: row for row in connection.execute(
            self._dialect.once(_commands), {
                'of_space': self._namespace, 'keys': self._dialect.keys(
                    [kind_and_name(job)[1] for job in needed])})}

    def create_missing(self, connection: sa.Connection,
                       needed: set[str]) -> dict[str, Any]:
        """Create the missing rows of *needed*, and return all rows by name."""
        rows = self.read(connection)
        while missing := sorted(needed.difference(rows)):
            # A row is not inserted if its number belongs to another job. The
            # loop then tries another number.
            numbers = random.sample(range(*_NUMBERS), len(missing))
            kinds, names = zip(*map(kind_and_name, missing), strict=True)
            self._dialect.insert_new(
                connection, _job,
                {'name': names, 'kind': kinds, 'id': numbers},
                space=self._namespace)
            rows = self.read(connection)
        return rows


def adopt(connection: sa.Connection, rows: Mapping[str, Any],
          schedules: Mapping[str, str],
          others: Mapping[str, Collection[int] | None]) -> None:
    """Put *schedules* in force.

    See :meth:`distperiodic.ports.ClaimStore.adopt`.
    """
    for name in sorted(schedules):
        row, text = rows[name], schedules[name]
        if row.schedule == text:
            continue
        since, found = due.ALWAYS, [mark_of(text)]
        if row.schedule is not None:
            known = [int(mark, 16) for mark in row.definitions.split()]
            changed = adopted(known, found[0], others.get(name, ()))
            if changed is None:
                continue
            since, found = row.now, changed
        # Another process may have put a schedule in force meanwhile.
        connection.execute(sa.update(_job).where(
            _job.c.id == row.id, sa.or_(
                _job.c.schedule.is_(None), _job.c.schedule == row.schedule)
        ).values(schedule=text, schedule_since=since,
                 definitions=' '.join(f'{mark:x}' for mark in found)))


class AttendedJobs(NamedTuple):
    """Status of attended jobs, and the changes that are to be written."""

    found: dict[str, JobStatus]
    #: Numbers of the jobs whose attended interval begins now.
    begun: list[int]
    #: Numbers of the jobs whose attended interval continues, and must be
    #: extended to now.
    continuing: list[int]
    #: For each job to update, its number, the recorded instant up to which its
    #: ticks are checked, and the new instant.
    checked: list[dict[str, int]]
    #: Time of the database's clock.
    now: int

    @property
    def changes(self) -> bool:
        return bool(self.begun or self.continuing or self.checked)


def attendance(rows: Mapping[str, Any], jobs: Mapping[str, float],
               checked: Mapping[str, Checked]) -> AttendedJobs:
    """Return the status of *jobs* and the changes to write.

    See :meth:`distperiodic.ports.ClaimStore.attend`.
    """
    now = next((row.now for row in rows.values()), 0)
    found = AttendedJobs({}, [], [], [
        {'of_job': rows[name].id, 'expected': scan.expected,
         'up_to': scan.until}
        for name, scan in sorted(checked.items())
        if name in rows and _checked(rows[name], scan) == scan.until], now)
    for name, seconds in jobs.items():
        row, gap = rows[name], seconds * SECOND
        since = row.attended_since
        if is_paused(row):
            # A paused job does not count as attended, so its ticks do not
            # count as lost.
            found.found[name] = _status(
                row, since, checked.get(name))
            continue
        # The attended interval also begins again if the clock was set back by
        # more than *gap*: until the clock has caught up, the length of a gap
        # is unknown.
        if row.attended_until is None or (
                abs(now - row.attended_until) > gap):
            since = now
            found.begun.append(row.id)
        elif now - row.attended_until > gap / RECORDS_PER_GAP:
            found.continuing.append(row.id)
        found.found[name] = _status(
            row, since, checked.get(name))
    return found


def attend(connection: sa.Connection, found: AttendedJobs) -> None:
    """Write the changes that :func:`attendance` has found."""
    for numbers, columns in (
            (found.begun, ['attended_since', 'attended_until']),
            (found.continuing, ['attended_until'])):
        if numbers:
            connection.execute(
                sa.update(_job).where(_job.c.id.in_(sorted(numbers)))
                .values(dict.fromkeys(columns, found.now)))
    if found.checked:
        connection.execute(_CHECKED, found.checked)


def with_paused_objects(
        connection: sa.Connection, rows: Mapping[str, Any],
        statuses: dict[str, JobStatus]) -> dict[str, JobStatus]:
    """Return *statuses* with the paused objects of the jobs."""
    numbers = {rows[name].id: name for name in statuses
               if rows[name].paused_objects}
    paused: dict[str, dict[str, Pause]] = {}
    for row in connection.execute(sa.select(_paused).where(
            _paused.c.job.in_(sorted(numbers)),
            not_over(_paused, next(iter(rows.values())).now))):
        paused.setdefault(numbers[row.job], {})[row.object] = Pause(
            row.paused_why, row.paused_until)
    return {name: status if name not in paused else status._replace(
        paused_objects=paused[name]) for name, status in statuses.items()}


def has_paused_objects(rows: Mapping[str, Any],
                       jobs: Collection[str]) -> bool:
    """Return whether some of *jobs* may have paused objects."""
    return any(rows[name].paused_objects for name in jobs)


_CHECKED = sa.update(_job).where(
    _job.c.id == sa.bindparam('of_job'),
    sa.func.coalesce(_job.c.checked, due.ALWAYS) == sa.bindparam('expected')
).values(checked=sa.bindparam('up_to'))


def uncheck(connection: sa.Connection, number: int, at: int) -> None:
    """Record that no scan has checked the ticks of a job from *at* on.

    The instant up to which the job is checked always changes. A scan that is
    in progress expects the old instant, so its result does not count.
    """
    checked = sa.func.coalesce(_job.c.checked, 0)
    connection.execute(sa.update(_job).where(_job.c.id == number).values(
        checked=sa.case((checked < at, checked), else_=at) - 1))


def _checked(row: Any, scan: Checked | None) -> int:
    """Return the instant up to which the job of *row* is checked.

    :param scan: Result of a scan. It counts only if the recorded instant has
        not changed since the scan began.
    """
    recorded: int = due.ALWAYS if row.checked is None else row.checked
    if scan is not None and scan.expected == recorded < scan.until:
        return scan.until
    return recorded


def _status(row: Any, attended: int | None,
            scan: Checked | None) -> JobStatus:
    return JobStatus(
        Pause(row.paused_why or '', row.paused_until)
        if is_paused(row) else None,
        row.schedule or '',
        due.ALWAYS if row.schedule_since is None else row.schedule_since,
        attended, _checked(row, scan))
