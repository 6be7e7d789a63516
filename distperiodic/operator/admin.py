# SPDX-License-Identifier: Apache-2.0
"""Commands of an operator on the jobs and claims of one group.

The commands only read and write tables; no process of the service takes part.
Schedulers see the changes at their next sweep.
"""

import collections
import uuid
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import claiming
from distperiodic.adapters.sql import pauses
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import is_repeated
from distperiodic.adapters.sql.pauses_in_force import not_over
from distperiodic.adapters.sql.pruning import prune_steps
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import Transactions
from distperiodic.core import wording
from distperiodic.core.claim import OPEN
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import NewLease
from distperiodic.core.pause import MOST_OBJECTS
from distperiodic.core.pruning import Ages
from distperiodic.operator import bulk
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_claim = tables.claim
_job = tables.job
_paused = tables.paused_object

# Number of claims in a triggered lease. The limit keeps transactions short.
_IN_A_LEASE = 500


class Triggered(NamedTuple):
    """The result of a request to run objects at once."""

    tick: int
    objects: int
    #: Number of objects that were not claimed because their claim for an
    #: earlier tick is still open.
    busy: int
    #: Number of objects that were not claimed because a later tick of them is
    #: already claimed.
    overtaken: int = 0
    #: True if more objects are listed than the command was allowed to claim.
    left: bool = False

    @property
    def outcome(self) -> str:
        """The numbers, for the record of the action."""
        return (f'{wording.plural(self.objects, "object")}, {self.busy} busy'
                + (f', {self.overtaken} overtaken' if self.overtaken else '')
                + (f'; {bulk.LEFT}' if self.left else ''))


def prune(store: GroupStore, ages: Ages) -> collections.Counter[str]:
    """Delete old rows, and return the number of deleted rows by kind."""
    deleted: collections.Counter[str] = collections.Counter()
    for step in prune_steps(store.database, store.namespace, ages):
        deleted[step.kind] += step.rows
    return deleted


def pause(store: GroupStore, job: str, *, by: str, why: str,
          until: int | None = None) -> None:
    """Skip the ticks of *job*, beginning with the schedulers' next sweep.

    Objects that are already claimed still run.

    :param until: Instant at which the pause ends by itself: ticks that are due
        then or later run. None means until an operator ends it.
    :raises ConfigError: the store has no such job.
    """
    _set_paused(store, job, _pause(store, by, why, until))


def resume(store: GroupStore, job: str) -> bool:
    """Resume *job* at its next tick.

    :returns: True if the job was paused.
    :raises ConfigError: the store has no such job.
    """
    paused = any(one.name == job and one.paused_since is not None
                 for one in store.jobs())
    _set_paused(
        store, job, dict.fromkeys(('paused_since', 'paused_by', 'paused_why'))
        # Schedulers do not attend a paused job. So the end of its pause is
        # kept, until one of them attends it again.
        | {'paused_until': sa.case(
            (_job.c.paused_until < store.dialect.now, _job.c.paused_until),
            else_=store.dialect.now)}, _job.c.paused_since.is_not(None))
    return paused


def _pause(store: GroupStore, by: str, why: str,
           until: int | None) -> dict[str, Any]:
    """Return the columns of a pause that begins now."""
    return {'paused_since': store.dialect.now,
            'paused_by': by[:tables.LONGEST_REASON],
            'paused_why': why[:tables.LONGEST_REASON],
            'paused_until': until}


def _set_paused(store: GroupStore, job: str, values: dict[str, Any],
                *which: sa.ColumnElement[bool]) -> None:
    [number] = store.names(job)
    store.write(lambda connection: connection.execute(
        sa.update(_job).where(_job.c.id == number, *which).values(values)))


def pause_objects(store: GroupStore, job: str, objects: Collection[str], *,
                  by: str, why: str, until: int | None = None) -> list[str]:
    """Skip the ticks of *objects*, beginning with the schedulers' next sweep.

    Objects that are already claimed still run. If an object is already paused,
    the new pause replaces the old one.

    :param until: As in :func:`pause`.
    :returns: The objects that were paused already.
    :raises ConfigError: the store has no such job, no scheduler has listed one
        of the objects, or too many objects of the job would be paused. Nothing
        is changed.
    """
    [number] = store.names(job)
    keys = sorted(set(objects))
    of_job = _paused.c.job == number

    def work(connection: sa.Connection) -> list[str]:
        pauses.lock(connection, number)
        listed = _found(connection, _claim, number, keys,
                        _claim.c.since.is_not(None))
        missing = [key for key in keys if key not in listed]
        if missing:
            raise exceptions.ConfigError(
                'no scheduler has listed the '
                f'{"object" if len(missing) == 1 else "objects"} '
                f'{wording.listed(list(map(repr, missing)))} of job {job!r}, '
                'so nothing was paused; to list the objects: distperiodic '
                f'objects {job}')
        # Objects that were deleted since they were paused must not count. Read
        # them first: MySQL would lock the claims that a DELETE reads, and wait
        # for the transactions of handlers.
        pauses.delete(connection, number, connection.scalars(
            sa.select(_paused.c.object).where(of_job, sa.or_(
                pauses.ended(store.dialect.now),
                ~sa.exists().where(_claim.c.job == number,
                                   _claim.c.object == _paused.c.object)))))
        before = _found(connection, _paused, number, keys)
        total = connection.scalar(sa.select(sa.func.count()).select_from(
            _paused).where(of_job)) or 0
        if total + len(keys) - len(before) > MOST_OBJECTS:
            raise exceptions.ConfigError(
                f'job {job!r} would have {total + len(keys) - len(before):,} '
                f'paused objects, but at most {MOST_OBJECTS:,} can be paused; '
                f'pause the job itself: distperiodic job pause {job}')
        values = _pause(store, by, why, until)
        for some in pauses.batches(keys):
            store.dialect.insert_new(
                connection, _paused, {'object': some}, job=number,
                paused_since=0, paused_by='', paused_why='')
            connection.execute(sa.update(_paused).where(
                of_job, _paused.c.object.in_(some)).values(values))
        pauses.count(connection, number)
        return sorted(before)
    return store.write(work)


def resume_objects(store: GroupStore, job: str,
                   objects: Collection[str] | None = None) -> list[str]:
    """Resume *objects* at their next ticks.

    :param objects: None means all paused objects of the job.
    :returns: The objects that were paused.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    resumed: set[str] = set()

    def work(connection: sa.Connection) -> list[str]:
        pauses.lock(connection, number)
        if not is_repeated(connection):
            resumed.clear()
        in_force = not_over(_paused, store.dialect.now)
        # The answer to the commit of an earlier try may have been lost.
        resumed.update(
            connection.scalars(sa.select(_paused.c.object).where(
                _paused.c.job == number, in_force)) if objects is None else
            _found(connection, _paused, number, sorted(set(objects)),
                   in_force))
        pauses.delete(connection, number, resumed)
        pauses.count(connection, number)
        return sorted(resumed)
    return store.write(work)


def _found(connection: sa.Connection, table: sa.Table, number: int,
           keys: Sequence[str], *which: sa.ColumnElement[bool]) -> set[str]:
    """Return those of *keys* that have a row of the job in *table*.

    :param which: Conditions on the rows.
    """
    found: set[str] = set()
    for some in pauses.batches(keys):
        found.update(connection.scalars(sa.select(table.c.object).where(
            table.c.job == number, table.c.object.in_(some), *which)))
    return found


def trigger(store: GroupStore, job: str, *, key: str | None,
            most: int | None = None) -> Triggered:
    """Run *job* at once.

    Claim the objects of the job for a tick at the current time. The claims
    are put into new leases that have no holder and expire at once. The
    next sweep takes over these leases. Ticks of the schedule are not
    affected: the policies of the job still decide on the ticks that were
    already due.

    :param key: Id of the object. None means all objects. Objects that
        are not listed are left out.
    :param most: Maximum number of objects. None means any number.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    tick = store.now()
    total = Triggered(tick, 0, 0)
    listed = [_claim.c.job == number, _claim.c.since.is_not(None)]
    tally = bulk.BulkTally('object', most)
    for keys in tally.within([[key]] if key is not None else (
            [row.object for row in found]
            for found in claims_in_chunks(store, listed, _IN_A_LEASE))):
        some = _trigger(store, job, number, tick, list(keys))
        tally.add(len(keys), some.objects)
        total = Triggered(tick, total.objects + some.objects,
                          total.busy + some.busy,
                          total.overtaken + some.overtaken)
    return total._replace(left=tally.result.left)


def _trigger(store: GroupStore, job: str, number: int, tick: int,
             keys: list[str]) -> Triggered:
    """Claim *keys* in one transaction."""
    name = uuid.uuid4().hex

    def work(tx: Transaction) -> Triggered:
        claimed = claiming.take(
            tx, number, ClaimRequest(job, tick, keys, supersede=False),
            keys, NewLease(name, '', 0.0), settle=False)
        won = len(claimed.won)
        busy = len(claimed.busy) + len(claimed.waiting)
        return Triggered(tick, won, busy, len(keys) - won - busy
                         - len(claimed.unlisted))

    def again(tx: Transaction) -> Triggered:
        others = [row for row in tx.rows_of(number, keys).values()
                  if row.since is not None and row.lease != name]
        return Triggered(
            tick, len(tx.standing(number, keys, name)),
            sum(row.tick < tick and row.state in OPEN for row in others),
            sum(row.tick >= tick for row in others))
    return Transactions(store.database).write_once(work, again)


def claims_in_chunks(
        store: GroupReader, which: list[sa.ColumnElement[bool]],
        size: int) -> Iterator[Sequence[Any]]:
    """Yield the objects and ticks of some claims, in chunks.

    :param which: Conditions on the claims.
    """
    last = ''
    while found := store.rows(
            sa.select(_claim.c.object, _claim.c.tick)
            .where(*which, _claim.c.object > last)
            .order_by(_claim.c.object).limit(size)):
        yield found
        last = found[-1].object
