# SPDX-License-Identifier: Apache-2.0
"""Claims of jobs that a scheduler does not know.

They are left alone, since others may know the job. But where it was renamed
nobody does, and its claims wait for ever: so a scheduler asks when it starts.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from distperiodic.adapters import database
from distperiodic.adapters import schema
from distperiodic.adapters import tables


def unknown_jobs(connection_url: str, space: str,
                 known: Iterable[str]) -> dict[str, int]:
    """The jobs of *space* that have claims and are not *known*, and how many
    of their claims have not come to an end.

    :raises StoreUnavailable: nobody can say.
    """
    job, claim, lease = tables.job, tables.claim, tables.lease
    query = sa.select(
        job.c.name, sa.func.coalesce(sa.func.sum(lease.c.remaining), 0)
    ).outerjoin(lease, lease.c.job == job.c.id).where(
        job.c.space == space, job.c.name.not_in(sorted(known)),
        sa.exists().where(claim.c.job == job.c.id)
    ).group_by(job.c.name).order_by(job.c.name)
    place = database.Database(connection_url, schema.check_connection)
    try:
        rows = place.run(lambda connection: connection.execute(query).all())
    finally:
        place.close()
    return {name: int(number) for name, number in rows}
