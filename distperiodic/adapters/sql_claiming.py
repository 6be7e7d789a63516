# SPDX-License-Identifier: Apache-2.0
"""How objects are claimed for a tick in a database.

In the steady state each object ended its last tick, and one UPDATE claims
them all. What is left is looked at and taken by what it is: never claimed,
ended since, or claimed and not started. Whoever was faster has it.
"""

import collections

import sqlalchemy as sa

from distperiodic.adapters import sql_history
from distperiodic.adapters import sql_transaction
from distperiodic.adapters import tables
from distperiodic.core import claim as claim_
from distperiodic.core import ring as ring_
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import FINISHED
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_SUPERSEDED_FROM = MOVES[Move.SUPERSEDE][0]

#: Earlier than any tick.
FIRST = -2 ** 63
#: Looks at what is left of a claim while others take and end it.
_LOOKS = 20


def take(tx: sql_transaction.Transaction, number: int, tick: int,
         keys: list[str], lease: str, *, supersede: bool, fresh: bool,
         least: int = FIRST, most: int = claim_.UNBOUNDED, settle: bool = True,
         won: dict[str, Claim] | None = None
         ) -> tuple[Claimed, collections.Counter[int]]:
    """Take what may be taken of *keys*; the lease is not made.

    :param least: what had its last tick before this one is behind.
    :param most: attempts, as in the port.
    :param settle: whether nobody may claim this tick or an earlier one from
        now on. If not, it is none of the schedule, and what was due stays due.
    :param won: those of *keys* that had ended and are in the lease by now.
        None: that was not tried yet.
    :returns: what became of them, and how many of which tick are void.
    """
    busy: list[str] = []
    behind: list[tuple[str, int]] = []
    void: collections.Counter[int] = collections.Counter()
    into = {'into': lease, 'of_tick': tick, 'most': most}
    ended_into = {**into, 'least': least} if settle else into
    step = tx.sql.claim_ended if settle else tx.sql.trigger
    if won is None:
        # In the steady state each object ended its last tick, and this is all
        # there is to do.
        won = {}
        tx.move(step, number, keys, won, ended_into)
    rest = [key for key in keys if key not in won]
    # Not if some were won: what is said to be early must have no lease.
    if rest and not won and (early := _early(tx, tick)):
        return Claimed([], [], 0, [], early), void
    for _ in range(_LOOKS):
        if not rest:
            break
        rows = tx.look(number, rest)
        new: list[str] = []
        ended: list[str] = []
        unstarted: dict[tuple[str, int], list[str]] = (
            collections.defaultdict(list))
        uncounted: dict[str, list[str]] = collections.defaultdict(list)
        for key in rest:
            row = rows.get(key)
            if row is None:
                if fresh:
                    new.append(key)
            elif row.lease == lease:
                won[key] = sql_transaction.claim_of(row)
            elif row.settled >= tick or not settle and row.tick >= tick:
                continue
            elif row.settled < least:
                behind.append((key, row.settled))
            elif row.state in ENDINGS:
                ended.append(key)
                if row.lease.endswith(FINISHED):
                    uncounted[row.lease.removesuffix(FINISHED)].append(key)
            elif supersede and row.state in _SUPERSEDED_FROM:
                unstarted[row.lease, row.tick].append(key)
            else:
                busy.append(key)
        if new:
            tx.dialect.insert_new(
                tx.connection, tables.claim,
                {'object': new, 'position': ring_.positions_of(new)},
                job=number, tick=tick, settled=tick, state=State.CLAIMED,
                fence=claim_.first_fence(tick), attempt=1, lease=lease)
        for old in sorted(uncounted):
            tx.leave(old, sql_history.count_finished(
                tx, number, uncounted[old], old))
        if ended:
            tx.move(step, number, ended, won, ended_into)
        for old, its_tick in sorted(unstarted):
            moved = tx.move(
                tx.sql.claim_unstarted, number, unstarted[old, its_tick], won,
                into | {'stands_in': old})
            void[its_tick] += moved
            tx.leave(old, moved)
        # Somebody may have been faster: see what became of it.
        rest = [key for key in (*new, *ended, *(
            key for some in unstarted.values() for key in some))
            if key not in won]
    busy += rest
    return Claimed([won[key] for key in keys if key in won], busy,
                   void.total(), behind), void


def _early(tx: sql_transaction.Transaction, tick: int) -> int:
    """Microseconds until *tick* may be claimed."""
    return max(0, tick - claim_.EARLIEST - tx.connection.execute(
        sa.select(tx.dialect.now)).scalar_one())
