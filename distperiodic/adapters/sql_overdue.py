# SPDX-License-Identifier: Apache-2.0
"""How leases that nobody holds any more are taken over in a database.

A take-over takes the lease before its claims, by giving it a new name under
the condition that it is still overdue: a holder that renews it at the same
moment keeps all of it or nothing.
"""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters import dialect as dialect_
from distperiodic.adapters import sql_history
from distperiodic.adapters import sql_transaction
from distperiodic.adapters import tables
from distperiodic.core.claim import Claim
from distperiodic.core.claim import State

_lease = tables.lease


class Kept(Exception):
    """A handler's open session keeps a claim of a lease; whoever asks again
    finds it ended, or free.
    """


def is_over(dialect: dialect_.Dialect, gone: Sequence[str], seconds: float,
            silent: float) -> sa.ColumnElement[bool]:
    """Whether a lease ended, or its holder is gone and silent for long
    enough; see :meth:`distperiodic.ports.ClaimStore.overdue`.
    """
    over: sa.ColumnElement[bool] = _lease.c.until <= dialect.lease_now
    if lost := [name for name in gone if name]:
        over = over | (_lease.c.holder.in_(lost) & (
            _lease.c.until <= sql_transaction.until(
                dialect, seconds - silent)))
    return over


def holders(tx: sql_transaction.Transaction,
            numbers: Sequence[int]) -> set[str]:
    """See :meth:`distperiodic.ports.ClaimStore.holders`."""
    return set(tx.connection.execute(
        sa.select(_lease.c.holder).distinct().where(
            _lease.c.job.in_(numbers), _lease.c.holder != '')).scalars())


def find(tx: sql_transaction.Transaction, numbers: Sequence[int],
         over: sa.ColumnElement[bool],
         names: Sequence[str]) -> Sequence[Any]:
    """Leases of these jobs that are over, those that ended first, and those
    of these names; as many as there are names.
    """
    named = _lease.c.id.in_(names)
    return tx.connection.execute(
        sa.select(_lease.c.id, _lease.c.job, _lease.c.tick, _lease.c.state)
        .where(_lease.c.job.in_(numbers), over | named)
        .order_by(sa.case((named, 0), else_=1), _lease.c.until, _lease.c.id)
        .limit(len(names))).all()


def standing(tx: sql_transaction.Transaction, old: Any) -> list[Claim]:
    """What stands in a lease that was taken over before."""
    objects = tx.connection.scalar(
        sa.select(_lease.c.objects).where(_lease.c.id == old.id))
    return tx.standing(old.job, json.loads(objects or '[]'), old.id)


def take_over(tx: sql_transaction.Transaction, *, old: Any, name: str,
              over: sa.ColumnElement[bool], holder: str,
              seconds: float) -> list[Claim]:
    """Claim anew what is open in the lease *old*, if it is still over.

    :param name: what it is called from now on.
    :raises Kept: and nothing may be committed.
    """
    tx.connection.execute(
        sa.update(_lease).where(_lease.c.id == old.id, over)
        .values(id=name, state=State.CLAIMED, holder=holder,
                until=sql_transaction.until(tx.dialect, seconds)))
    objects = tx.connection.scalar(
        sa.select(_lease.c.objects).where(_lease.c.id == name))
    if objects is None:
        # Somebody else was first, or its holder is there again.
        return []
    keys = json.loads(objects)
    standing = {one.object for one in tx.standing(old.job, keys, old.id)}
    if not standing.issubset(tx.unlocked(old.job, sorted(standing))):
        raise Kept
    anew: dict[str, Claim] = {}
    tx.move(tx.sql.take_over, old.job, keys, anew,
            {'stands_in': old.id, 'into': name, 'tries': 1})
    if len(anew) < len(keys):
        sql_history.count_committed(tx, old.job, keys, old.id)
    if not anew:
        tx.connection.execute(sa.delete(_lease).where(_lease.c.id == name))
        return []
    sql_history.count(tx, old.job, old.tick, holder, taken_over=len(anew))
    tx.connection.execute(
        sa.update(_lease).where(_lease.c.id == name)
        .values(remaining=len(anew), objects=json.dumps(list(anew))))
    return sql_transaction.in_order(keys, anew)
