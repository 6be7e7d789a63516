# SPDX-License-Identifier: Apache-2.0
"""Dead objects: their number, and the command that runs them again."""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import history as sql_history
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import Transactions
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.outcomes import REQUEUED
from distperiodic.operator import bulk
from distperiodic.operator.admin import claims_in_chunks
from distperiodic.operator.auditing import Actor
from distperiodic.operator.bulk import BulkResult
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_claim = tables.claim
_failure = tables.failure

_DEAD = MOVES[Move.REQUEUE][0]

# Number of rows that are read and changed together. The limit keeps
# transactions short.
_AT_A_TIME = 1000


class DeadFilter(NamedTuple):
    """The dead objects that a command selects. They meet all conditions.

    An object whose failure is no longer recorded does not meet a condition on
    the failure.
    """

    #: Name of the job. None means all jobs.
    job: str | None = None
    #: Ids of the objects. None means all objects.
    objects: Sequence[str] | None = None
    #: First instant of the failure, in microseconds. None means any instant.
    since: int | None = None
    #: Text that the error contains. None means any error.
    error: str | None = None


class DeadObject(NamedTuple):
    """An object that an operator can run again."""

    job: str
    object: str
    #: Microseconds since the epoch.
    tick: int
    #: An empty text means that the error is no longer recorded.
    error: str


def number(store: GroupReader, which: DeadFilter) -> int:
    """Return the number of dead objects that *which* selects.

    :raises ConfigError: the store has no such job.
    """
    numbers = list(store.names(which.job))
    return store.read(lambda connection: connection.scalar(
        sa.select(sa.func.count()).select_from(_claim).where(
            _claim.c.job.in_(numbers), *_dead(store, which)))) or 0


def first(store: GroupReader, which: DeadFilter,
          limit: int) -> list[DeadObject]:
    """Return the first dead objects that *which* selects, by job and id.

    :raises ConfigError: the store has no such job.
    """
    names = store.names(which.job)
    found: list[DeadObject] = []
    for job, name in names.items():
        found += [
            DeadObject(name, row.object, row.tick, row.error or '')
            for row in store.rows(
                sa.select(_claim.c.object, _claim.c.tick,
                          _failures().with_only_columns(_failure.c.error)
                          .order_by(_failure.c.id.desc()).limit(1)
                          .scalar_subquery().label('error'))
                .where(_claim.c.job == job, *_dead(store, which))
                .order_by(_claim.c.object).limit(limit - len(found)))]
        if len(found) == limit:
            break
    return found


def requeue(store: GroupStore, which: DeadFilter, actor: Actor, *,
            shown: int | None = None) -> BulkResult:
    """Requeue the dead claims that *which* selects.

    Each object runs again for the tick of its dead claim, from the first
    attempt. Objects that were claimed for a later tick, or that are no
    longer listed, are left out.

    :param shown: See :func:`.bulk.check_shown`.
    :raises ConfigError: the store has no such job, or more objects match than
        were shown.
    """
    names = store.names(which.job)
    given = set(which.objects or ())
    with bulk.recorded(
            store, actor, 'dead requeue', which.job or 'all jobs', 'object',
            **_arguments(which), shown=shown,
            found=number(store, which)) as tally:
        for job in names:
            for found in tally.within(claims_in_chunks(
                    store, [_claim.c.job == job, *_dead(store, which)],
                    _AT_A_TIME)):
                by_tick: dict[int, list[str]] = {}
                for row in found:
                    by_tick.setdefault(row.tick, []).append(row.object)
                for tick, keys in by_tick.items():
                    requeued = _requeue(store, job, tick, keys)
                    tally.add(len(keys), len(requeued), (
                        f'object {key!r} was claimed for a later tick, or '
                        'delisted, meanwhile' for key in keys
                        if key not in requeued))
                given.difference_update(row.object for row in found)
        if tally.result.matched:
            # The operator named these objects, so they count as selected.
            tally.add(len(given), 0, (f'object {key!r} is not dead'
                                      for key in sorted(given)))
    return tally.result


def _arguments(which: DeadFilter) -> dict[str, object]:
    """Return the conditions for the record of the action."""
    objects = which.objects
    one = objects is not None and len(objects) == 1
    return {'object': objects[0] if objects and one else None,
            'objects': None if one or objects is None else list(objects),
            'since': which.since, 'error': which.error}


def _dead(store: GroupReader, which: DeadFilter
          ) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of *which*, except that on the job."""
    found: list[sa.ColumnElement[bool]] = [
        _claim.c.state.in_(_DEAD), _claim.c.since.is_not(None)]
    if which.objects is not None:
        found.append(_claim.c.object.in_(which.objects))
    failures = _failures()
    if which.since is not None:
        failures = failures.where(_failure.c.at >= which.since)
    if which.error is not None:
        failures = failures.where(
            store.dialect.contains(_failure.c.error, which.error))
    if which.since is not None or which.error is not None:
        found.append(failures.exists())
    return found


def _failures() -> sa.Select[int]:
    """Build a query of the last failure of a dead claim of the outer query.

    If the object was requeued before, its earlier failures are left out.
    """
    return sa.select(_failure.c.id).where(
        _failure.c.job == _claim.c.job,
        _failure.c.object == _claim.c.object,
        _failure.c.tick == _claim.c.tick,
        _failure.c.fence == _claim.c.fence).correlate(_claim)


def _requeue(store: GroupStore, job: int, tick: int,
             keys: list[str]) -> set[str]:
    """Requeue the claims of *keys*, and return the keys of those that still
    were dead.
    """
    name = uuid.uuid4().hex

    def work(tx: Transaction) -> set[str]:
        back: dict[str, Claim] = {}
        tx.move(tx.sql.requeue, job, keys, back,
                {'of_tick': tick, 'into': name})
        if back:
            sql_history.count(tx, job, tick, '', dead=-len(back))
            sql_history.record(tx, job, tick, REQUEUED,
                               {tick - 1: list(back)}, holder='')
            tx.make(NewLease(name, '', 0.0), State.CLAIMED, job, tick,
                    list(back))
        return set(back)
    return Transactions(store.database).write_once(work, lambda tx: {
        claim.object for claim in tx.standing(job, keys, name)})
