# SPDX-License-Identifier: Apache-2.0
"""Queries and commands of an operator on partitions with one active worker."""

from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import tables
from distperiodic.core import wording
from distperiodic.core.member import identity_of
from distperiodic.core.standby import Role
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_partition = tables.partition
_worker = tables.partition_worker


class ServingWorker(NamedTuple):
    """A worker of a partition, at the time of its last heartbeat."""

    #: Name of the worker's process.
    process: str
    role: Role
    #: Instant since which the worker has had this role, in microseconds.
    since: int
    #: Seconds since the worker's last heartbeat.
    age: float

    @property
    def identity(self) -> str:
        """Member id of the worker."""
        return identity_of(self.process)


class PartitionState(NamedTuple):
    """A partition that has had a worker with ``mode = standby``."""

    name: str
    #: Process of the active worker. Empty means that no worker is active.
    active: str
    #: Fence of the active worker. It grows when a worker becomes active.
    fence: int
    #: When the active worker became active, in microseconds. If no worker is
    #: active, this is when the last active worker released the partition.
    since: int
    #: Seconds until the lease of the active worker expires.
    left: float
    #: Member that an operator has chosen as the next active worker, and the
    #: name of this operator.
    promoted: str
    promoted_by: str
    #: The workers of the partition, in order of name, without workers in
    #: ``mode = shared`` and workers that have stopped.
    workers: tuple[ServingWorker, ...]

    @property
    def choice(self) -> str:
        """The choice of an operator that has no effect yet, in words."""
        return (f'{self.promoted} is next, chosen by {self.promoted_by}'
                if self.promoted else '')

    def present(self, within: float) -> list[ServingWorker]:
        """Return the workers with a heartbeat in the last *within* seconds."""
        return [one for one in self.workers if one.age <= within]


def partitions(store: GroupReader) -> list[PartitionState]:
    """Return all partitions that have had a worker with ``mode = standby``, in
    order of name.
    """
    return store.read_snapshot(lambda connection: _read(connection, store))


def partition(store: GroupReader, name: str) -> PartitionState:
    """Return one partition.

    :raises ConfigError: no partition with this name has ever had a worker
        with ``mode = standby``.
    """
    return _one(partitions(store), store, name)


def promote(store: GroupStore, name: str, member: str, *, by: str,
            within: float) -> PartitionState:
    """Choose *member* as the next active worker of a partition.

    The active worker then finishes its runs and releases the partition. A
    later choice replaces an earlier choice. The choice of the active
    worker only removes an earlier choice.

    :param by: Operator, for the record.
    :param within: A worker that has sent no heartbeat for this number of
        seconds cannot be chosen.
    :returns: The partition before this change.
    :raises ConfigError: there is no such partition, or *member* is not one
        of its workers, is stopping, or has sent no heartbeat for *within*
        seconds.
    """
    def work(connection: sa.Connection) -> PartitionState:
        # Lock the row: otherwise *member* could become active before the
        # choice is written, and the choice would never be deleted.
        _update(store, connection, name, starts=_partition.c.starts + 1)
        found = _one(_read(connection, store), store, name)
        _check_candidate(found, member, within)
        active = identity_of(found.active) == member
        _update(
            store, connection, name, promoted=None if active else member,
            promoted_by=None if active else by[:tables.LONGEST_REASON])
        return found
    return store.write(work)


def effect_of(before: PartitionState, member: str) -> str:
    """Return the effect of a choice in words.

    :param before: The partition before *member* was chosen.
    """
    active = wording.identity(before.active)
    if active == member:
        return f'{member} is already active'
    return f'{member} is next; ' + (
        'no worker is active now' if not active else
        f'{active} releases the partition when its runs have ended'
        if before.left > 0 else
        f'the lease of {active} has expired, so {member} takes over')


def _update(store: GroupStore, connection: sa.Connection, name: str,
            **values: Any) -> None:
    connection.execute(sa.update(_partition).where(
        _partition.c.space == store.namespace,
        _partition.c.name == name).values(values))


def _check_candidate(found: PartitionState, member: str,
                     within: float) -> None:
    present = found.present(within)
    able = sorted({one.identity for one in present
                   if one.role is not Role.STOPPING})
    if member in able:
        return
    if any(one.identity == member for one in present):
        raise exceptions.ConfigError(
            f'worker {member!r} of partition {found.name!r} is stopping: it '
            'finishes its runs and hands the partition over; choose it when '
            'distperiodic partition show has it as standby')
    raise exceptions.ConfigError(
        f'no worker {member!r} stands by in partition {found.name!r}; '
        + (f'those that do are {", ".join(map(repr, able))}'
           if able else 'none does: start distperiodic worker '
           f'--partition {found.name}'))


def _read(connection: sa.Connection,
          group: GroupReader) -> list[PartitionState]:
    now = group.dialect.lease_now
    workers: dict[str, list[ServingWorker]] = {}
    for row in connection.execute(sa.select(
            _worker, (now - _worker.c.seen).label('age')).where(
                _worker.c.space == group.namespace,
                _worker.c.role.not_in([Role.SHARED, Role.GONE])
            ).order_by(_worker.c.worker)):
        workers.setdefault(row.partition, []).append(ServingWorker(
            row.worker, Role(row.role), row.since, max(0.0, row.age / 1e6)))
    return [_partition_of(row, tuple(workers.get(row.name, ())))
            for row in connection.execute(sa.select(
                _partition, (_partition.c.until - now).label('left')).where(
                    _partition.c.space == group.namespace
                ).order_by(_partition.c.name))
            if row.fence or row.name in workers]


def _partition_of(row: Any, workers: tuple[ServingWorker, ...]
                  ) -> PartitionState:
    return PartitionState(
        row.name, row.worker or '', row.fence, row.since, row.left / 1e6,
        row.promoted or '', row.promoted_by or '', workers)


def _one(partitions: list[PartitionState], group: GroupReader,
         name: str) -> PartitionState:
    for partition in partitions:
        if partition.name == name:
            return partition
    known = ', '.join(repr(one.name) for one in partitions)
    raise exceptions.ConfigError(
        f'group {group.namespace!r} has no partition {name!r} with mode = '
        'standby in this database; '
        + (f'it has {known}' if known else
           'a partition appears when its first worker has run; check '
           '[distperiodic] group'))
