# SPDX-License-Identifier: Apache-2.0
"""Commands of an operator on the jobs and claims of one group.

The commands only read and write tables; no process of the service takes part.
Schedulers see the changes at their next sweep.
"""

import collections
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import claiming
from distperiodic.adapters.sql import history as sql_history
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.pruning import prune_steps
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.adapters.sql.transaction import Transactions
from distperiodic.core import wording
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import State
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import NewLease
from distperiodic.core.pruning import Ages
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_claim = tables.claim
_job = tables.job

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

    @property
    def outcome(self) -> str:
        """The numbers, for the record of the action."""
        return (f'{wording.plural(self.objects, "object")}, {self.busy} busy'
                + (f', {self.overtaken} overtaken' if self.overtaken else ''))


def prune(store: GroupStore, ages: Ages) -> collections.Counter[str]:
    """Delete old rows, and return the number of deleted rows by kind."""
    deleted: collections.Counter[str] = collections.Counter()
    for step in prune_steps(store.database, store.namespace, ages):
        deleted[step.kind] += step.rows
    return deleted


def pause(store: GroupStore, job: str, *, by: str, why: str) -> None:
    """Skip the ticks of *job*, beginning with the schedulers' next sweep.

    Objects that are already claimed still run.

    :raises ConfigError: the store has no such job.
    """
    _set_paused(store, job, {
        'paused_since': store.dialect.now,
        'paused_by': by[:tables.LONGEST_REASON],
        'paused_why': why[:tables.LONGEST_REASON]})


def resume(store: GroupStore, job: str) -> bool:
    """Resume *job* at its next tick.

    :returns: True if the job was paused.
    :raises ConfigError: the store has no such job.
    """
    paused = any(one.name == job and one.paused_since is not None
                 for one in store.jobs())
    _set_paused(store, job, dict.fromkeys(
        ('paused_since', 'paused_by', 'paused_why')))
    return paused


def _set_paused(store: GroupStore, job: str, values: dict[str, Any]) -> None:
    [number] = store.names(job)
    store.write(lambda connection: connection.execute(
        sa.update(_job).where(_job.c.id == number).values(values)))


def trigger(store: GroupStore, job: str, *, key: str | None) -> Triggered:
    """Run *job* at once.

    Claim the objects of the job for a tick at the current time. The claims
    are put into new leases that have no holder and expire at once. The
    next sweep takes over these leases. Ticks of the schedule are not
    affected: the policies of the job still decide on the ticks that were
    already due.

    :param key: Id of the object. None means all objects. Objects that
        are not listed are left out.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    tick = store.now()
    total = Triggered(tick, 0, 0)
    listed = [_claim.c.job == number, _claim.c.since.is_not(None)]
    for keys in [[key]] if key is not None else (
            [row.object for row in found]
            for found in claims_in_chunks(store, listed, _IN_A_LEASE)):
        some = _trigger(store, job, number, tick, keys)
        total = Triggered(tick, total.objects + some.objects,
                          total.busy + some.busy,
                          total.overtaken + some.overtaken)
    return total


def _trigger(store: GroupStore, job: str, number: int, tick: int,
             keys: list[str]) -> Triggered:
    """Claim *keys* in one transaction."""
    name = uuid.uuid4().hex

    def work(tx: Transaction) -> Triggered:
        claimed, _ = claiming.take(
            tx, number, ClaimRequest(job, tick, keys, supersede=False),
            keys, name, settle=False)
        if won := len(claimed.won):
            tx.make(NewLease(name, '', 0.0), State.CLAIMED, number, tick,
                    [one.object for one in claimed.won],
                    counted=sql_history.increments(
                        number, tick, '', due=won))
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
