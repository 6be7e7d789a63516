# SPDX-License-Identifier: Apache-2.0
"""Claims of objects, for tests that do not need a scheduler."""

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
            Listed(key, options.get('rule', ''), tick - 1)
            for key in dict.fromkeys(objects) if key not in listed], [],
            at=tick)
    return store.claim(
        ClaimRequest(job, tick, objects, supersede, **options,
                     schedule=KnownSchedule(schedule, schedule_since)),
        NewLease(lease, holder, seconds))
