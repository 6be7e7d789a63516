# SPDX-License-Identifier: Apache-2.0
"""Fences of a database that was restored from a backup.

After the backup was made, the services went on, and created fences that the
backup does not contain. A fence is derived from a time in milliseconds
(:func:`~distperiodic.core.claim.first_fence`), so a fence of the present is
higher than every fence that was created before.
"""

import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.core.claim import first_fence


def raise_fences(connection_url: str) -> int:
    """Raise all fences above those that were created before this call.

    No service may run during the call.

    :returns: Number of claims.
    :raises SchemaError: The tables are missing, or are older or newer than
        this release.
    :raises StoreUnavailable: The database is unavailable.
    """
    database = Database(connection_url, schema.check_connection,
                        bounded=False)
    claims = tables.claim

    def work(connection: sa.Connection) -> int:
        fence = first_fence(
            connection.execute(sa.select(database.dialect.now)).scalar_one())
        connection.execute(sa.update(tables.partition).where(
            tables.partition.c.fence < fence).values(fence=fence))
        connection.execute(sa.update(claims).where(
            claims.c.fence < fence).values(fence=fence))
        return connection.scalar(
            sa.select(sa.func.count()).select_from(claims)) or 0
    try:
        return database.write(work)
    finally:
        database.close()
