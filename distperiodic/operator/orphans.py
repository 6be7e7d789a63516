# SPDX-License-Identifier: Apache-2.0
"""Claims of jobs that a scheduler does not know.

A scheduler ignores them, since other schedulers may know the job. But if the
job was renamed, no scheduler does, and its claims wait forever. So a scheduler
checks for them at start.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database


def unknown_jobs(connection_url: str, namespace: str,
                 known: Iterable[str]) -> dict[str, int]:
    """Return the jobs of *space* that have objects in the store and are not
    *known*, and the number of open claims of each.

    :raises StoreUnavailable: the database does not answer.
    """
    job, claim, lease = tables.job, tables.claim, tables.lease
    query = sa.select(
        job.c.name, sa.func.coalesce(sa.func.sum(lease.c.remaining), 0)
    ).outerjoin(lease, lease.c.job == job.c.id).where(
        job.c.space == namespace, job.c.name.not_in(sorted(known)),
        sa.exists().where(claim.c.job == job.c.id)
    ).group_by(job.c.name).order_by(job.c.name)
    place = Database(connection_url, schema.check_connection)
    try:
        rows = place.write(lambda connection: connection.execute(query).all())
    finally:
        place.close()
    return {name: int(number) for name, number in rows}
