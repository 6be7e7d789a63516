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

from distperiodic import ports
from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import listing
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql import transaction
from distperiodic.adapters.sql.statements import LAST
from distperiodic.adapters.sql.statements import of_schedule
from distperiodic.core import due
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import Decision
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import decide
from distperiodic.core.outcomes import BY_OBJECT
from distperiodic.core.outcomes import ENDED

_lease = tables.lease
_WAITS_FROM = MOVES[Move.START][0]

#: Maximum number of passes over the rows of the objects that are not claimed
#: yet. Objects that are listed during a pass need a second one. Any further
#: pass is needed only if other members change these rows at the same time.
_ATTEMPTS = 20


def take(tx: transaction.Transaction, number: int, request: ClaimRequest,
         keys: list[str], lease: NewLease, *, settle: bool = True) -> Claimed:
    """Claim the objects *keys* that can be claimed, and count the claims.

    This function never waits for a row that a handler's open transaction has
    locked. It changes only claims that have ended or were not started, and no
    handler runs under such a claim.

    :param number: Number of the job.
    :param keys: The objects of *request*.
    :param lease: Lease of the claims. It is created if there are claims.
    :param settle: True sets the watermark to the tick, so that this tick and
        all earlier ticks can no longer be claimed. False is for a tick that an
        operator triggers: earlier ticks that are due stay due.
    :raises DBDuplicateEntry: the lease exists: an earlier call has already
        acquired these claims.
    """
    taking = _Taking(tx, number, request, lease, settle)
    # In the steady state, all claims of the previous tick have ended, and one
    # statement claims all objects.
    if settle and tx.sql.claim_at_once is not None:
        if taking.claim_at_once(keys):
            return Claimed(
                transaction.in_order(keys, taking.won), [], 0, [], [])
    elif tx.dialect.passes_locked:
        taking.move_ended(keys)
    won = taking.won
    rest = [key for key in keys if key not in won]
    if rest and request.schedule.text and not tx.connection.scalar(
            tx.sql.is_in_force,
            {'of_job': number, **of_schedule(request.schedule)}):
        # An earlier call whose answer was lost may have claimed some of these
        # objects.
        return taking.counted(Claimed(
            [*won.values(), *tx.standing(number, rest, lease.id)],
            [], 0, [], [], outdated=True))
    rows: dict[str, Any] = {}
    for attempt in range(_ATTEMPTS):
        if not rest:
            break
        rows = tx.rows_of(number, rest)
        # The answers "too early" and "too late" mean that nothing was claimed.
        # So check the time only if the lease has no claims yet, neither from
        # this call nor from an earlier call whose answer was lost.
        if not (attempt or won or any(
                row.lease == lease.id for row in rows.values())):
            refused = _out_of_time(request, _now(tx, rows))
            if refused is not None:
                return refused
        rest = taking.claim(rest, rows)
    if settle:
        # No run of these objects was in progress, so they are not busy. For
        # example, it may have become too late for the tick.
        taking.behind += [listing.row_of(rows[key]) for key in rest]
    else:
        taking.found[Decision.BUSY] += rest
    return taking.counted(Claimed(
        transaction.in_order(keys, won), taking.found[Decision.BUSY],
        sum(map(len, taking.superseded.values())),
        taking.behind, taking.found[Decision.WAIT],
        unlisted=tuple(taking.found[Decision.UNLISTED])))


def _out_of_time(request: ClaimRequest, now: int) -> Claimed | None:
    """Return the answer if it is too early or too late for *request*."""
    begin = request.claimable_from - EARLIEST
    if now < begin:
        return Claimed([], [], 0, [], [], begin - now)
    if request.until is not None and now > request.until:
        return Claimed([], [], 0, [], [], over=True)
    return None


class _Taking:
    """The claims of one call of :func:`take`, and its parameters."""

    def __init__(self, tx: transaction.Transaction, number: int,
                 request: ClaimRequest, lease: NewLease, settle: bool):
        self._tx = tx
        self._number = number
        self._request = request
        self._lease = lease
        self._settle = settle
        self._into: dict[str, Any] = {
            'of_tick': request.tick, 'of_rule': request.rule,
            'most': request.max_attempts, 'first': first_fence(request.tick),
            'into': lease.id, **of_schedule(request.schedule)}
        #: Parameters of the statements that settle the tick.
        self._limits: dict[str, Any] = {
            'of_due': request.claimable_from,
            'of_end': LAST if request.until is None else request.until,
            'least': request.min_watermark,
            'least_since': request.min_listing} if settle else {}
        #: Claims in the lease, by object.
        self.won: dict[str, Claim] = {}
        #: Objects of superseded claims, by tick.
        self.superseded: dict[int, list[str]] = collections.defaultdict(list)
        self.behind: list[due.Row] = []
        #: Objects by the decision about them.
        self.found: dict[Decision, list[str]] = {one: [] for one in Decision}

    def claim_at_once(self, keys: list[str]) -> bool:
        """Claim those of *keys* whose last claim, if any, has ended.

        :returns: True if all of *keys* were claimed. The statement has then
            also added them to the history, and created the lease.
        """
        self.won = self._tx.claim_at_once(
            self._number, self._request.tick, keys, self._lease,
            self._into | self._limits)
        return len(self.won) == len(keys)

    def move_ended(self, keys: list[str]) -> None:
        """Claim those of *keys* whose last claim, if any, has ended."""
        sql = self._tx.sql
        self._tx.move(
            sql.claim_ended if self._settle else sql.trigger, self._number,
            keys, self.won, self._into | self._limits)

    def claim(self, keys: list[str], rows: dict[str, Any]) -> list[str]:
        """Claim the objects *keys* that can be claimed.

        :param rows: Rows of the objects.
        :returns: the objects that could be claimed by these rows, and are not
            claimed: another member may have changed the rows first.
        """
        decisions = {key: decision_on(
            self._request, rows.get(key), self._lease.id, self._settle)
            for key in keys}
        for key, decision in decisions.items():
            self.found[decision].append(key)

        def decided(*some: Decision) -> list[str]:
            return [key for key in keys if decisions[key] in some]
        self.won.update((key, transaction.claim_of(rows[key]))
                        for key in decided(Decision.HELD))
        self.behind += [listing.row_of(rows[key])
                        for key in decided(Decision.BEHIND)]
        for (lease, _), some in _by_lease(decided(Decision.COUNT), rows):
            self._tx.leave(lease, history.count_committed(
                self._tx, self._number, some, lease))
        ended = decided(Decision.CLAIM, Decision.COUNT)
        if ended:
            self.move_ended(ended)
        unstarted = decided(Decision.SUPERSEDE)
        for (lease, tick), some in _by_lease(unstarted, rows):
            moved = self._tx.move(
                self._tx.sql.claim_unstarted, self._number, some, self.won,
                self._into | {'stands_in': lease})
            if moved:
                self.superseded[tick] += [
                    key for key in some if key in self.won]
            self._tx.leave(lease, moved)
        return [key for key in (*ended, *unstarted) if key not in self.won]

    def counted(self, claimed: Claimed) -> Claimed:
        """Create the lease, and add the claims to the history.

        :returns: *claimed*.
        """
        tx, lease, tick = self._tx, self._lease, self._request.tick
        for old, some in sorted(self.superseded.items()):
            history.count(tx, self._number, old, lease.holder,
                          superseded=len(some))
            history.record(tx, self._number, old, 'superseded',
                           {old - 1: some}, holder=lease.holder)
        if claimed.won:
            tx.make(lease, State.CLAIMED, self._number, tick,
                    [one.object for one in claimed.won],
                    superseded=claimed.superseded,
                    counted=history.increments(
                        self._number, tick, lease.holder,
                        due=len(claimed.won)))
        return claimed


def _by_lease(keys: list[str], rows: dict[str, Any]
              ) -> list[tuple[tuple[str, int], list[str]]]:
    """Group objects by the lease and the tick of their last claims."""
    found: dict[tuple[str, int], list[str]] = collections.defaultdict(list)
    for key in keys:
        found[rows[key].lease, rows[key].tick].append(key)
    return sorted(found.items())


def repeated(tx: transaction.Transaction, number: int, request: ClaimRequest,
             keys: list[str], lease: str) -> Claimed:
    """Return the answer to a call of :func:`take` whose answer was lost."""
    rows = tx.rows_of(number, keys)
    decisions = {key: decision_on(request, rows.get(key), lease)
                 for key in keys}

    def decided(*some: Decision) -> list[str]:
        return [key for key in keys if decisions[key] in some]
    return Claimed(
        [transaction.claim_of(rows[key]) for key in decided(Decision.HELD)
         if rows[key].state in _WAITS_FROM],
        # The first call could not claim these objects.
        decided(Decision.CLAIM, Decision.COUNT, Decision.BUSY),
        tx.connection.scalar(
            sa.select(_lease.c.superseded).where(_lease.c.id == lease)) or 0,
        [listing.row_of(rows[key]) for key in decided(Decision.BEHIND)],
        decided(Decision.SUPERSEDE, Decision.WAIT),
        unlisted=tuple(decided(Decision.UNLISTED)))


def decision_on(request: ClaimRequest, row: Any, lease: str,
                settle: bool = True) -> Decision:
    """Return the decision about the object of *row*; see :func:`take`.

    :param row: None means that the store has no row of the object.
    """
    if row is None:
        return Decision.UNLISTED
    return decide(
        request, row.since, row.settled, row.state, held=row.lease == lease,
        passed=(row.settled >= request.tick
                or row.rule != request.rule
                if settle else row.tick >= request.tick))


def _now(tx: transaction.Transaction, rows: dict[str, Any]) -> int:
    """Return the store's time at which *rows* were read.

    Without rows, return the store's current time.
    """
    for row in rows.values():
        return int(row.now)
    return int(tx.connection.execute(sa.select(tx.dialect.now)).scalar_one())


def end(tx: transaction.Transaction, number: int, keys: list[str],
        lease: str, ending: State, failures: dict[str, Failure],
        reason: str = '', times: ports.RunTimes = ports.NO_TIMES, *,
        of_objects: bool = True) -> set[str]:
    """End claims in *lease*.

    :param of_objects: False means that the claims are those of tasks, whose
        outcomes are in the rows of the tasks.
    :returns: the objects whose claims in the lease now have the state
        *ending*.
    """
    parameters = {'of_job': number, 'keys': tx.dialect.keys(keys),
                  'stands_in': lease}
    sql = tx.sql.end[ending]
    rows = tx.changed(sql.change, parameters)
    if rows and failures:
        history.record_failures(tx, number, rows, failures)
    if rows:
        # All claims in a lease have the same tick.
        history.count_in(tx, number, rows[0].tick, lease,
                         reason=reason, times=times,
                         **{ENDED[ending]: len(rows)})
        if of_objects and ENDED[ending] in BY_OBJECT:
            history.record(
                tx, number, rows[0].tick, ENDED[ending],
                {rows[0].tick - 1: [row.object for row in rows]}, lease=lease,
                reason=reason)
    left = len(rows)
    if left < len(keys):
        left += history.count_committed(
            tx, number, keys, lease, ports.NO_TIMES if rows else times)
    tx.leave(lease, left)
    if len(rows) < len(keys):
        # Include the claims that an earlier call ended: the answer to that
        # call may have been lost.
        return set(tx.connection.execute(sql.after, parameters).scalars())
    return {row.object for row in rows}
