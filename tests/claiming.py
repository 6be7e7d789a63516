# SPDX-License-Identifier: Apache-2.0
"""Claims of objects, for tests that do not need a scheduler."""

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import KnownSchedule
from distperiodic.core.claim_request import NewLease
from distperiodic.ports import Listed


def claim(store, job, tick, objects, *, lease, holder, seconds, supersede,
          listing=True, schedule='', schedule_since=None, **options):
    """Claim *objects* in a new lease of *holder*.

    :param listing: True first lists the objects that the store does not list,
        from *tick* on. False leaves them out.
    """
    if listing and store.now() >= tick - EARLIEST:
        listed = {row.object for row in store.rows_of(job, objects)}
        store.sync(job, [
            Listed(key, Attributes(options.get('rule', '')), tick - 1)
            for key in dict.fromkeys(objects) if key not in listed], [],
            readings=[tick])
    return store.claim(
        ClaimRequest(job, tick, objects, supersede, **options,
                     schedule=KnownSchedule(schedule, schedule_since)),
        NewLease(lease, holder, seconds))


def claim_at_tick(store, job, tick, objects, *, lease, **options):
    """Claim *objects* in a database as if this had been done at *tick*."""
    before = store.now()
    claimed = claim(store, job, tick, objects, lease=lease, **options)
    # A claim that superseded another one waits since then.
    store.database.write(lambda connection: connection.execute(
        sa.update(tables.claim).values(waiting=tick).where(
            tables.claim.c.lease == lease,
            tables.claim.c.waiting >= before)))
    return claimed
