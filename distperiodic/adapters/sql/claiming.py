# SPDX-License-Identifier: Apache-2.0
"""Claims of objects for a tick, in a database.

In the steady state, all claims of the previous tick have ended, and one UPDATE
claims all objects. Otherwise, and always on MySQL, the rows of the objects
that are not claimed yet are read. The handling of an object depends on its
row: for example, the object is not listed, its last claim has ended, or its
last claim was not started. If several members try to claim an object, the
first member acquires the claim.
"""

import collections
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import listing
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import transaction
from distperiodic.adapters.sql.statements import ANY_SCHEDULE
from distperiodic.adapters.sql.statements import CLOSED
from distperiodic.adapters.sql.statements import LAST
from distperiodic.adapters.sql.statements import KnownSchedule
from distperiodic.core import due
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import UNBOUNDED
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.ring import positions_of

_SUPERSEDED_FROM = MOVES[Move.SUPERSEDE][0]
_UNCOUNTED = MOVES[Move.COUNT][0]

#: Lower bound of all ticks.
FIRST = -2 ** 63
#: Maximum number of passes over the rows of the objects that are not claimed
#: yet. Objects that are listed during a pass need a second one. Any further
#: pass is needed only if other members change these rows at the same time.
_ATTEMPTS = 20


def take(tx: transaction.Transaction, number: int, tick: int,
         keys: list[str], lease: str, *, supersede: bool, due_at: int,
         include_new: bool, until: int = LAST, min_watermark: int = FIRST,
         min_since: int = FIRST, max_attempts: int = UNBOUNDED,
         rule: str = '', known: KnownSchedule = ANY_SCHEDULE,
         settle: bool = True, won: dict[str, Claim] | None = None
         ) -> tuple[Claimed, collections.Counter[int]]:
    """Claim the objects *keys* that can be claimed; do not create the lease.

    This function never waits for a row that a handler's open transaction has
    locked. It changes only claims that have ended or were not started, and no
    handler runs under such a claim.

    For the parameters without a description, see
    :meth:`distperiodic.ports.ClaimStore.claim`.

    :param min_watermark: Objects with an earlier watermark are not claimed,
        and their rows are returned in ``behind``.
    :param min_since: If an object was listed before this instant, and its
        watermark is before the instant at which it was listed, the object is
        not claimed, but returned as behind.
    :param settle: True sets the watermark to *tick*, so that this tick and all
        earlier ticks can no longer be claimed. False is for a tick that an
        operator triggers: earlier ticks that are due stay due.
    :param won: Claims that the caller has already moved into the lease,
        because the last claims of these objects, if any, had ended. None means
        that the caller has not tried to move any claims.
    :returns: the result, and the number of superseded claims of each tick.
    """
    busy: list[str] = []
    waiting: list[str] = []
    behind: list[due.Row] = []
    unlisted: list[str] = []
    superseded: collections.Counter[int] = collections.Counter()
    into = {'into': lease, 'of_tick': tick, 'most': max_attempts,
            'of_rule': rule, **known.parameters(),
            'first': first_fence(tick)}
    ended_into = (
        {**into, 'least': min_watermark, 'least_since': min_since,
         'of_due': due_at, 'of_end': until}
        if settle else into)
    step = tx.sql.claim_ended if settle else tx.sql.trigger
    if won is None:
        won = {}
        if tx.dialect.passes_locked:
            # In the steady state, all claims of the previous tick have ended,
            # and this statement claims all objects.
            tx.move(step, number, keys, won, ended_into)
    rest = [key for key in keys if key not in won]
    if rest and known.text and not tx.connection.scalar(
            tx.sql.is_in_force, {'of_job': number, **known.parameters()}):
        # An earlier call whose answer was lost may have claimed some of these
        # objects.
        return Claimed(
            [*won.values(), *tx.standing(number, rest, lease)],
            [], 0, [], [], outdated=True), superseded
    for attempt in range(_ATTEMPTS):
        if not rest:
            break
        rows = tx.rows_of(number, rest)
        # The answers "too early" and "too late" mean that nothing was claimed.
        # So check the time only if the lease has no claims yet, neither from
        # this call nor from an earlier call whose answer was lost.
        if not (attempt or won or any(
                row.lease == lease for row in rows.values())):
            now = _now(tx, rows)
            if now < due_at - EARLIEST:
                return Claimed([], [], 0, [], [],
                               due_at - EARLIEST - now), superseded
            if now > until:
                return Claimed([], [], 0, [], [], over=True), superseded
        new: list[str] = []
        delisted: list[str] = []
        ended: list[str] = []
        unstarted: dict[tuple[str, int], list[str]] = (
            collections.defaultdict(list))
        uncounted: dict[str, list[str]] = collections.defaultdict(list)
        for key in rest:
            row = rows.get(key)
            if row is None:
                (new if include_new else unlisted).append(key)
            elif row.lease == lease:
                won[key] = transaction.claim_of(row)
            elif row.since is None:
                (delisted if include_new else unlisted).append(key)
            elif (row.settled >= tick or not follows(row, rule)
                  if settle else row.tick >= tick):
                continue
            elif is_behind(row, min_watermark, min_since):
                behind.append(listing.row_of(row))
            elif row.state in CLOSED:
                ended.append(key)
            elif row.state in _UNCOUNTED:
                # The last run has ended, but is not in the history yet. Count
                # the run before a new claim replaces the claim of this run.
                ended.append(key)
                uncounted[row.lease].append(key)
            elif row.state not in _SUPERSEDED_FROM:
                busy.append(key)
            elif supersede:
                unstarted[row.lease, row.tick].append(key)
            else:
                waiting.append(key)
        if new:
            tx.dialect.insert_new(
                tx.connection, tables.claim,
                {'object': new, 'position': positions_of(new)},
                job=number, tick=tick, settled=tick, state=State.CLAIMED,
                fence=first_fence(tick), attempt=1, lease=lease,
                since=tick, rule=rule, waiting=tick)
        relisted = _relisted(tx, number, tick, delisted, rule)
        busy += [key for key in delisted if key not in relisted]
        for old in sorted(uncounted):
            tx.leave(old, history.count_committed(
                tx, number, uncounted[old], old))
        if ended:
            tx.move(step, number, ended, won, ended_into)
        for old, old_tick in sorted(unstarted):
            moved = tx.move(
                tx.sql.claim_unstarted, number, unstarted[old, old_tick], won,
                into | {'stands_in': old})
            superseded[old_tick] += moved
            tx.leave(old, moved)
        # Read the rows that were inserted or listed again. Another member may
        # have changed the other rows first, so read these again as well.
        rest = [key for key in (*new, *relisted, *ended, *(
            key for objects in unstarted.values() for key in objects))
            if key not in won]
    for key in rest:
        if settle and key in rows:
            # No run of the object was in progress, so it is not busy. For
            # example, it may have become too late for the tick.
            behind.append(listing.row_of(rows[key]))
        else:
            busy.append(key)
    return Claimed([won[key] for key in keys if key in won], busy,
                   superseded.total(), behind, waiting,
                   unlisted=tuple(unlisted)), superseded


def is_behind(row: Any, min_watermark: int, min_since: int) -> bool:
    """Return whether a listed object has an earlier tick that is not settled.

    For the parameters see :func:`take`.
    """
    return bool(row.settled < min_watermark
                or row.settled < row.since < min_since)


def follows(row: Any, rule: str) -> bool:
    """Return whether the object follows the schedule *rule*."""
    return bool(row.rule == rule)


def _relisted(tx: transaction.Transaction, number: int, tick: int,
              delisted: list[str], rule: str) -> set[str]:
    """List *delisted* objects again, except those whose rows are locked.

    :returns: the objects that are listed again.
    """
    free = tx.unlocked(number, delisted)
    if free:
        tx.connection.execute(tx.sql.relist, {
            'of_job': number, 'keys': tx.dialect.keys(free),
            'of_tick': tick, 'of_rule': rule})
    return set(free)


def _now(tx: transaction.Transaction, rows: dict[str, Any]) -> int:
    """Return the store's time at which *rows* were read.

    Without rows, return the store's current time.
    """
    for row in rows.values():
        return int(row.now)
    return int(tx.connection.execute(sa.select(tx.dialect.now)).scalar_one())
