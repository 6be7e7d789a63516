# SPDX-License-Identifier: Apache-2.0
"""Active worker of each partition, and heartbeats of the partition's workers.

A partition has one row. Each change of the active worker is an UPDATE of this
row on a condition, such as that the fence has not changed since it was read.
The caller then reads the result from the row. A transaction that starts runs,
or lets a worker share the partition, changes the row first. So such a
transaction and a take-over cannot commit at the same time: one of the two
waits for the other, or is aborted and repeated.
"""

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.core.member import identity_of
from distperiodic.core.standby import Active
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.core.standby import Standing

_partition = tables.partition
_worker = tables.partition_worker

# Microseconds from the last heartbeat of a worker after which its row may be
# deleted.
_REMEMBERED = 86_400_000_000


class PartitionStatements:
    """SQL statements about partitions, for one kind of database."""

    def __init__(self, dialect: Dialect):
        now, lease_now = dialect.now, dialect.lease_now
        this = sa.and_(
            _partition.c.space == sa.bindparam('of_space'),
            _partition.c.name == sa.bindparam('of_name'))
        by = sa.bindparam('of_worker', type_=_partition.c.worker.type)
        fence = sa.bindparam('of_fence', type_=sa.BigInteger)
        its = sa.and_(
            _worker.c.space == sa.bindparam('of_space'),
            _worker.c.partition == sa.bindparam('of_name'),
            _worker.c.worker == by)
        self.read = sa.select(
            _partition.c.worker, _partition.c.fence, _partition.c.promoted,
            (_partition.c.until - lease_now).label('left')).where(this)
        self.renew = lease_terms.renewal(
            dialect, _partition, this, _partition.c.worker == by)
        expired = lease_terms.expired(_partition.c.until, lease_now)
        free = sa.or_(_partition.c.worker.is_(None), expired)
        #: Acquire a free partition, unless another worker has acquired the
        #: partition since the caller read the row.
        self.acquire = sa.update(_partition).where(
            this, free, _partition.c.fence == fence).values(
                worker=by, fence=_partition.c.fence + 1, since=now,
                until=lease_terms.new_end(lease_now), promoted=None,
                promoted_by=None)
        vacant: dict[str, Any] = {'worker': None, 'since': now, 'until': 0}
        #: Release a partition, unless this worker has acquired the
        #: partition again in the meantime.
        self.release = sa.update(_partition).where(
            this, _partition.c.worker == by,
            _partition.c.fence == fence).values(vacant)
        self.give_up = sa.update(_partition).where(
            this, _partition.c.worker == by).values(vacant)
        #: Take the partition from a worker whose lease has expired.
        self.void = sa.update(_partition).where(
            this, _partition.c.worker.is_not(None), expired).values(
                vacant | {'fence': _partition.c.fence + 1})
        in_force = sa.and_(
            this, _partition.c.worker == by, _partition.c.fence == fence,
            lease_terms.in_force(_partition.c.until, lease_now))
        locked = {'starts': _partition.c.starts + 1}
        #: Change the row of the partition if the worker is active. The change
        #: locks the row.
        self.hold = sa.update(_partition).where(in_force).values(locked)
        self.lock = sa.update(_partition).where(this).values(locked)
        self.in_force = sa.select(_partition.c.fence).where(in_force)
        self.seen = sa.update(_worker).where(its).values(
            seen=lease_now, since=sa.case(
                (_worker.c.role == sa.bindparam('new_role'),
                 _worker.c.since), else_=now),
            role=sa.bindparam('new_role'))
        self.known = sa.select(_worker.c.worker).where(its)
        self.depart = sa.update(_worker).where(its).values(
            role=Role.GONE, since=now)
        present = _worker.c.seen > lease_now - sa.bindparam(
            'microseconds', type_=sa.BigInteger)
        #: Select the workers and their roles. ``present`` is 1 if the worker
        #: has sent a heartbeat recently.
        self.workers = sa.select(
            _worker.c.worker, _worker.c.role,
            sa.case((present, 1), else_=0).label('present')).where(
                _worker.c.space == sa.bindparam('of_space'),
                _worker.c.partition == sa.bindparam('of_name'))
        #: Select the workers that can become active.
        self.candidates = sa.select(_worker.c.worker).where(
            _worker.c.space == sa.bindparam('of_space'),
            _worker.c.partition == sa.bindparam('of_name'),
            _worker.c.role.not_in(
                [Role.STOPPING, Role.SHARED, Role.GONE]), present)
        self.withdraw = sa.update(_partition).where(
            this, _partition.c.promoted == sa.bindparam('of_member')).values(
                promoted=None, promoted_by=None)
        self.forget = sa.delete(_worker).where(
            _worker.c.space == sa.bindparam('of_space'),
            _worker.c.partition == sa.bindparam('of_name'),
            _worker.c.seen < lease_now - _REMEMBERED)


def _sharing(workers: Sequence[Any],
             members: Collection[str] | None) -> tuple[str, ...]:
    """Return the processes that may share a partition.

    :param workers: Rows of :attr:`PartitionStatements.workers`.
    :param members: Other processes in the group. None means unknown.
    """
    recorded = {row.worker for row in workers if row.role is Role.SHARED
                and (row.present or members is None)}
    others = {row.worker for row in workers if row.role is not Role.SHARED}
    return tuple(sorted(recorded | (set(members or ()) - others)))


class SqlPartitions:
    """Partitions in a database; see
    :class:`distperiodic.ports.PartitionStore`.
    """

    def __init__(self, database: Database, namespace: str):
        self._database = database
        self._dialect = database.dialect
        self._namespace = namespace

    @property
    def _sql(self) -> PartitionStatements:
        found: PartitionStatements = self._dialect.once(PartitionStatements)
        return found

    def _of(self, worker: PartitionWorker | Active) -> dict[str, Any]:
        return {'of_space': self._namespace, 'of_name': worker.partition,
                'of_worker': worker.worker}

    def beat(self, worker: PartitionWorker, role: Role, *,
             seconds: float) -> Standing:
        its = self._of(worker)

        def work(connection: sa.Connection) -> Standing:
            connection.execute(
                self._sql.renew, its | lease_terms.term(seconds))
            self._seen(connection, its, role)
            standing = self._read(connection, its)
            if not standing.promoted:
                return standing
            # Withdraw the choice of an operator if the chosen member cannot
            # become active, or has sent no heartbeat for too long.
            if standing.promoted in {
                    identity_of(one) for one in connection.execute(
                        self._sql.candidates, its | lease_terms.term(seconds)
                    ).scalars()}:
                return standing
            connection.execute(
                self._sql.withdraw, its | {'of_member': standing.promoted})
            return standing._replace(promoted='')
        return self._database.write(work)

    def acquire(self, worker: PartitionWorker, *, fence: int, seconds: float,
                members: Collection[str] | None) -> Standing:
        its = self._of(worker)
        lease = its | lease_terms.term(seconds)

        def work(connection: sa.Connection) -> Standing:
            connection.execute(self._sql.lock, its)
            # Read the workers in a separate statement, which sees the changes
            # that were committed while this transaction waited for the row.
            shared = _sharing(
                connection.execute(self._sql.workers, lease).all(), members)
            if not shared:
                connection.execute(
                    self._sql.acquire, lease | {'of_fence': fence})
                connection.execute(self._sql.forget, its)
            standing = self._read(connection, its)
            self._seen(connection, its, Role.ACTIVE
                       if standing.worker == worker.worker else Role.STANDBY)
            return standing._replace(shared=shared)
        return self._database.write(work)

    def share(self, worker: PartitionWorker, *, seconds: float,
              starting: bool) -> set[str]:
        its = self._of(worker)
        lease = its | lease_terms.term(seconds)

        def work(connection: sa.Connection) -> set[str]:
            self._read(connection, its)
            connection.execute(self._sql.lock, its)
            standing = self._read(connection, its)
            prevent = {standing.worker} - {''}
            if starting:
                if standing.left <= 0:
                    prevent = set()
                prevent |= {
                    row.worker for row in connection.execute(
                        self._sql.workers, lease)
                    if row.present and row.role not in (
                        Role.SHARED, Role.GONE)}
            if prevent:
                return prevent
            if starting:
                connection.execute(self._sql.void, its)
                connection.execute(self._sql.forget, its)
            self._seen(connection, its, Role.SHARED)
            return set()
        return self._database.write(work)

    def release(self, worker: PartitionWorker, *, fence: int) -> Standing:
        its = self._of(worker)

        def work(connection: sa.Connection) -> Standing:
            connection.execute(self._sql.release, its | {'of_fence': fence})
            self._seen(connection, its, Role.STANDBY)
            return self._read(connection, its)
        return self._database.write(work)

    def depart(self, worker: PartitionWorker) -> None:
        its = self._of(worker)

        def work(connection: sa.Connection) -> None:
            connection.execute(self._sql.give_up, its)
            connection.execute(self._sql.depart, its)
        self._database.write(work)

    def is_in_force(self, active: Active) -> bool:
        its = self._of(active)
        return self._database.read(
            lambda connection: connection.execute(
                self._sql.in_force, its | {'of_fence': active.fence}
            ).first()) is not None

    def hold(self, connection: sa.Connection, active: Active) -> bool:
        """Return whether *active* is the active worker.

        If so, lock the row of the partition until the transaction ends.

        Call this at the beginning of a transaction that starts runs.
        """
        its = self._of(active) | {'of_fence': active.fence}
        connection.execute(self._sql.hold, its)
        return connection.execute(
            self._sql.in_force, its).first() is not None

    def _read(self, connection: sa.Connection,
              its: dict[str, Any]) -> Standing:
        row = connection.execute(self._sql.read, its).first()
        if row is None:
            self._dialect.insert_new(
                connection, _partition, {'name': [its['of_name']]},
                space=self._namespace, fence=0, since=0, until=0, starts=0)
            row = connection.execute(self._sql.read, its).one()
        return Standing(row.worker or '', row.fence, row.left / 1e6,
                        row.promoted or '')

    def _seen(self, connection: sa.Connection, its: dict[str, Any],
              role: Role) -> None:
        """Record a heartbeat."""
        found = its | {'new_role': role}
        for _ in range(2):
            connection.execute(self._sql.seen, found)
            if connection.execute(self._sql.known, its).first() is not None:
                return
            self._dialect.insert_new(
                connection, _worker, {'worker': [its['of_worker']]},
                space=self._namespace, partition=its['of_name'],
                role=Role.STARTING, since=0, seen=0)
