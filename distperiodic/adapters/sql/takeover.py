# SPDX-License-Identifier: Apache-2.0
"""Take-over, in a database, of leases that expired or whose holder is gone.

A take-over changes the lease before its claims: it renames the lease, on the
condition that the lease is still overdue. A holder that renews the lease at
the same moment therefore keeps all of the claims or none.
"""

import json
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import transaction
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.core.claim import Claim
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest

_lease = tables.lease


#: See :meth:`distperiodic.adapters.sql.steps.SqlSteps.lost`.
Lost = Callable[[transaction.Transaction, list[Claim], str, Any,
                 Sequence[str]], list[Claim]]


class ClaimLocked(Exception):
    """A handler's open transaction has locked a claim of the lease.

    A later attempt finds the claim ended or unlocked.
    """


class TakeoverStatements:
    """Statements about overdue leases.

    A lease is overdue if it has expired, or if its holder is gone and has not
    renewed it for *silence_timeout* seconds. A lease with a retry that is kept
    for another process is overdue *retry_after* seconds after it has expired.
    See :meth:`distperiodic.ports.ClaimStore.take_over_expired`.

    :param gone: True if the statements take a list of holders that are gone.
    """

    def __init__(self, dialect: Dialect, gone: bool):
        retry = _lease.c.state == State.RETRY
        over = lease_terms.expired(_lease.c.until, dialect.lease_now) & (
            ~retry | _lease.c.holder.in_(sa.bindparam('ours', expanding=True))
            | lease_terms.expired(
                _lease.c.until, dialect.lease_now - sa.bindparam(
                    'retry_after', type_=sa.BigInteger)))
        if gone:
            lost = _lease.c.holder.in_(sa.bindparam('gone', expanding=True))
            silent = dialect.lease_now + sa.bindparam(
                'unheard', type_=sa.BigInteger)
            over = over | (
                ~retry & lost & lease_terms.expired(_lease.c.until, silent))
        some = _lease.c.job.in_(sa.bindparam('of_jobs', expanding=True))
        #: Select the holders of leases of some jobs.
        self.holders = sa.select(_lease.c.holder).distinct().where(
            some, _lease.c.holder != '')
        named = dialect.among(_lease.c.id)
        #: Select leases of some jobs: first the leases with one of the given
        #: names, then the overdue leases.
        self.find = sa.select(
            _lease.c.id, _lease.c.job, _lease.c.tick, _lease.c.state,
            _lease.c.holder, dialect.at_tick_clock(_lease.c.made).label('made')
        ).where(some, over | named).order_by(
            sa.case((named, 0), else_=1), _lease.c.until, _lease.c.id
        ).limit(sa.bindparam('at_most', type_=sa.Integer))
        #: Take over one lease, if it is still overdue.
        this = _lease.c.id == sa.bindparam('stands_in')
        self.take = sa.update(_lease).where(this, over).values(
            id=sa.bindparam('into'), state=State.CLAIMED,
            holder=sa.bindparam('runner'),
            until=lease_terms.new_end(dialect.lease_now))


def statements(dialect: Dialect) -> dict[bool, TakeoverStatements]:
    """Return the statements without and with a list of holders that are
    gone.
    """
    return {gone: TakeoverStatements(dialect, gone) for gone in (False, True)}


class Search(NamedTuple):
    """A search for overdue leases."""

    sql: TakeoverStatements
    #: Parameters of the statements.
    parameters: dict[str, Any]


def search(sql: Mapping[bool, TakeoverStatements], request: TakeOverRequest,
           into: NewLease) -> Search:
    """Return the search for overdue leases.

    :param sql: The statements with (True) and without (False) a list of
        holders that are gone.
    """
    lost = [name for name in request.gone if name]
    parameters: dict[str, Any] = {
        'ours': ['', into.holder, *lost],
        'retry_after': round(request.retry_after * 1e6)}
    if lost:
        # Up to this remaining time of a lease, its holder counts as silent.
        parameters |= {'gone': lost, 'unheard': round(
            (into.seconds - request.silence_timeout) * 1e6)}
    return Search(sql[bool(lost)], parameters)


def find(tx: transaction.Transaction, numbers: Sequence[int],
         search: Search, names: Sequence[str]) -> Sequence[Any]:
    """Find leases of some jobs: overdue leases, and those with one of *names*.

    Leases with one of *names* come first. The other leases follow in the order
    of their expiry. The result has at most as many leases as there are names.
    """
    return tx.connection.execute(search.sql.find, {
        **search.parameters, 'of_jobs': numbers,
        'keys': tx.dialect.keys(names), 'at_most': len(names)}).all()


def standing(tx: transaction.Transaction, old: Any) -> list[Claim]:
    """Return the open claims of a lease that an earlier call took over."""
    objects = tx.connection.scalar(
        sa.select(_lease.c.objects).where(_lease.c.id == old.id))
    return tx.standing(old.job, json.loads(objects or '[]'), old.id)


def take_over(tx: transaction.Transaction, old: Any, search: Search,
              into: NewLease, lost: Lost | None) -> list[Claim]:
    """Take over an overdue lease and its open claims.

    :param old: Row of the lease. If the lease is no longer overdue, it does
        not change, and the result is empty.
    :param into: The lease under its new name and its new holder.
    :param lost: Function that records lost runs of steps. None means that the
        claims belong to a periodic job.
    :returns: the claims, with new fences.
    :raises ClaimLocked: a handler's open transaction has locked a claim. The
        caller must roll back.
    """
    tx.connection.execute(search.sql.take, {
        **search.parameters, 'stands_in': old.id, 'into': into.id,
        'runner': into.holder} | lease_terms.term(into.seconds))
    objects = tx.connection.scalar(
        sa.select(_lease.c.objects).where(_lease.c.id == into.id))
    if objects is None:
        # Another process was first, or the holder has renewed the lease.
        return []
    keys = json.loads(objects)
    standing = {one.object for one in tx.standing(old.job, keys, old.id)}
    if not standing.issubset(tx.unlocked(old.job, sorted(standing))):
        raise ClaimLocked
    claims: dict[str, Claim] = {}
    tx.move(tx.sql.take_over, old.job, keys, claims,
            {'stands_in': old.id, 'into': into.id, 'tries': 1})
    if lost is not None and old.state is State.RUNNING:
        kept = lost(tx, list(claims.values()), into.id, old, keys)
        claims = {claim.object: claim for claim in kept}
    elif len(claims) < len(keys):
        history.count_committed(tx, old.job, keys, old.id)
    if not claims:
        tx.connection.execute(
            sa.delete(_lease).where(_lease.c.id == into.id))
        return []
    if old.holder and old.state is not State.RETRY:
        # A lease without a holder contains claims that an operator has
        # requeued or triggered. No holder of these or of a retry died, so they
        # do not count as taken over.
        history.count(tx, old.job, old.tick, into.holder,
                      taken_over=len(claims))
    # If the call is repeated, it returns the claims in the recorded order.
    taken = transaction.in_order(keys, claims)
    tx.connection.execute(
        sa.update(_lease).where(_lease.c.id == into.id)
        .values(remaining=len(taken),
                objects=json.dumps([one.object for one in taken])))
    return taken
