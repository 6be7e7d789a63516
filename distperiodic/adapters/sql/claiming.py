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
         keys: list[str], lease: str, *, settle: bool = True,
         won: dict[str, Claim] | None = None
         ) -> tuple[Claimed, dict[int, list[str]]]:
    """Claim the objects *keys* that can be claimed; do not create the lease.

    This function never waits for a row that a handler's open transaction has
    locked. It changes only claims that have ended or were not started, and no
    handler runs under such a claim.

    :param number: Number of the job.
    :param keys: The objects of *request*.
    :param lease: Name of the lease.
    :param settle: True sets the watermark to the tick, so that this tick and
        all earlier ticks can no longer be claimed. False is for a tick that an
        operator triggers: earlier ticks that are due stay due.
    :param won: Claims that the caller has already moved into the lease,
        because the last claims of these objects, if any, had ended. None means
        that the caller has not tried to move any claims.
    :returns: the result, and the objects of superseded claims, by tick.
    """
    taking = _Taking(tx, number, request, lease, settle, won or {})
    if won is None and tx.dialect.passes_locked:
        # In the steady state, all claims of the previous tick have ended, and
        # this statement claims all objects.
        taking.move_ended(keys)
    won, superseded = taking.won, taking.superseded
    rest = [key for key in keys if key not in won]
    if rest and request.schedule.text and not tx.connection.scalar(
            tx.sql.is_in_force,
            {'of_job': number, **of_schedule(request.schedule)}):
        # An earlier call whose answer was lost may have claimed some of these
        # objects.
        return Claimed(
            [*won.values(), *tx.standing(number, rest, lease)],
            [], 0, [], [], outdated=True), superseded
    rows: dict[str, Any] = {}
    for attempt in range(_ATTEMPTS):
        if not rest:
            break
        rows = tx.rows_of(number, rest)
        # The answers "too early" and "too late" mean that nothing was claimed.
        # So check the time only if the lease has no claims yet, neither from
        # this call nor from an earlier call whose answer was lost.
        if not (attempt or won or any(
                row.lease == lease for row in rows.values())):
            refused = _out_of_time(request, _now(tx, rows))
            if refused is not None:
                return refused, superseded
        rest = taking.claim(rest, rows)
    if settle:
        # No run of these objects was in progress, so they are not busy. For
        # example, it may have become too late for the tick.
        taking.behind += [listing.row_of(rows[key]) for key in rest]
    else:
        taking.found[Decision.BUSY] += rest
    return Claimed([won[key] for key in keys if key in won],
                   taking.found[Decision.BUSY],
                   sum(map(len, superseded.values())),
                   taking.behind, taking.found[Decision.WAIT],
                   unlisted=tuple(taking.found[Decision.UNLISTED])), superseded


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
                 request: ClaimRequest, lease: str, settle: bool,
                 won: dict[str, Claim]):
        self._tx = tx
        self._number = number
        self._request = request
        self._lease = lease
        self._settle = settle
        self._into = _parameters(request) | {'into': lease}
        #: Claims in the lease, by object.
        self.won = won
        #: Objects of superseded claims, by tick.
        self.superseded: dict[int, list[str]] = collections.defaultdict(list)
        self.behind: list[due.Row] = []
        #: Objects by the decision about them.
        self.found: dict[Decision, list[str]] = {one: [] for one in Decision}

    def move_ended(self, keys: list[str]) -> None:
        """Claim those of *keys* whose last claim, if any, has ended."""
        sql, settle = self._tx.sql, self._settle
        self._tx.move(
            sql.claim_ended if settle else sql.trigger, self._number, keys,
            self.won, self._into | (_limits(self._request) if settle else {}))

    def claim(self, keys: list[str], rows: dict[str, Any]) -> list[str]:
        """Claim the objects *keys* that can be claimed.

        :param rows: Rows of the objects.
        :returns: the objects that could be claimed by these rows, and are not
            claimed: another member may have changed the rows first.
        """
        decisions = {key: decision_on(
            self._request, rows.get(key), self._lease, self._settle)
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


def at_once(tx: transaction.Transaction, number: int, request: ClaimRequest,
            keys: list[str], lease: NewLease) -> dict[str, Claim]:
    """Claim the objects whose last claim, if any, has ended.

    If the single statement claims all of *keys*, it also counts them in the
    history and creates the lease. For the parameters see :func:`take`.

    :returns: the acquired claims, by object.
    :raises DBDuplicateEntry: the lease exists: an earlier call has already
        acquired these claims.
    """
    return tx.claim_at_once(
        number, request.tick, keys, lease,
        _parameters(request) | _limits(request))


def _parameters(request: ClaimRequest) -> dict[str, Any]:
    """Return the parameters of each statement that claims objects."""
    return {'of_tick': request.tick, 'of_rule': request.rule,
            'most': request.max_attempts, 'first': first_fence(request.tick),
            **of_schedule(request.schedule)}


def _limits(request: ClaimRequest) -> dict[str, Any]:
    """Return the parameters of the statements that settle the tick."""
    return {'of_due': request.claimable_from,
            'of_end': LAST if request.until is None else request.until,
            'least': request.min_watermark,
            'least_since': request.min_listing}


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
