# SPDX-License-Identifier: Apache-2.0
"""How leases that nobody holds any more are taken over in a database.

A take-over takes the lease before its claims, by giving it a new name under
the condition that it is still overdue: a holder that renews it at the same
moment keeps all of it or nothing.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

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


class Statements:
    """What is asked of the leases that are over: they ended, or their holder
    is gone and silent for long enough; see
    :meth:`distperiodic.ports.ClaimStore.overdue`.

    :param gone: whether there are holders that are gone.
    """

    def __init__(self, dialect: dialect_.Dialect, gone: bool):
        over: sa.ColumnElement[bool] = _lease.c.until <= dialect.lease_now
        if gone:
            lost = _lease.c.holder.in_(sa.bindparam('gone', expanding=True))
            unheard = dialect.lease_now + sa.bindparam(
                'unheard', type_=sa.BigInteger)
            over = over | (lost & (_lease.c.until <= unheard))
        some = _lease.c.job.in_(sa.bindparam('of_jobs', expanding=True))
        #: Who holds leases of some jobs.
        self.holders = sa.select(_lease.c.holder).distinct().where(
            some, _lease.c.holder != '')
        named = dialect.among(_lease.c.id)
        #: Those of some jobs, and those of some names.
        self.find = sa.select(
            _lease.c.id, _lease.c.job, _lease.c.tick, _lease.c.state,
            _lease.c.holder
        ).where(some, over | named).order_by(
            sa.case((named, 0), else_=1), _lease.c.until, _lease.c.id
        ).limit(sa.bindparam('at_most', type_=sa.Integer))
        #: One of them, if it is still over.
        this = _lease.c.id == sa.bindparam('stands_in')
        self.take = sa.update(_lease).where(this, over).values(
            id=sa.bindparam('into'), state=State.CLAIMED,
            holder=sa.bindparam('runner'),
            until=dialect.lease_now + sa.bindparam(
                'microseconds', type_=sa.BigInteger))


class Search(NamedTuple):
    """A search for leases that are over."""

    sql: Statements
    #: Holders that are gone, and how long they may have been silent.
    gone: dict[str, Any]


def search(sql: Mapping[bool, Statements], gone: Sequence[str],
           seconds: float, silent: float) -> Search:
    """See :meth:`distperiodic.ports.ClaimStore.overdue`.

    :param sql: by whether there are holders that are gone.
    """
    lost = [name for name in gone if name]
    return Search(sql[bool(lost)], {
        'gone': lost, 'unheard': round((seconds - silent) * 1e6)
    } if lost else {})


def find(tx: sql_transaction.Transaction, numbers: Sequence[int],
         search: Search, names: Sequence[str]) -> Sequence[Any]:
    """Leases of these jobs that are over, those that ended first, and those
    of these names; as many as there are names.
    """
    return tx.connection.execute(search.sql.find, {
        **search.gone, 'of_jobs': numbers, 'keys': tx.dialect.keys(names),
        'at_most': len(names)}).all()


def standing(tx: sql_transaction.Transaction, old: Any) -> list[Claim]:
    """What stands in a lease that was taken over before."""
    objects = tx.connection.scalar(
        sa.select(_lease.c.objects).where(_lease.c.id == old.id))
    return tx.standing(old.job, json.loads(objects or '[]'), old.id)


def take_over(tx: sql_transaction.Transaction, *, old: Any, name: str,
              search: Search, holder: str,
              seconds: float) -> list[Claim]:
    """Claim anew what is open in the lease *old*, if it is still over.

    :param name: what it is called from now on.
    :raises Kept: and nothing may be committed.
    """
    tx.connection.execute(search.sql.take, {
        **search.gone, 'stands_in': old.id, 'into': name, 'runner': holder,
        'microseconds': round(seconds * 1e6)})
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
    if old.holder:
        # A lease without a holder is of retries, or of what an operator put
        # back: nobody died, so nothing is counted as taken over.
        sql_history.count(tx, old.job, old.tick, holder,
                          taken_over=len(anew))
    tx.connection.execute(
        sa.update(_lease).where(_lease.c.id == name)
        .values(remaining=len(anew), objects=json.dumps(list(anew))))
    return sql_transaction.in_order(keys, anew)
