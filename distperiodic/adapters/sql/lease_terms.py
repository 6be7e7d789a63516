# SPDX-License-Identifier: Apache-2.0
"""The terms of leases: of claims, of partitions and of buckets of tasks.

Each of them has a holder, and an instant ``until`` of the lease clock. From
this instant on, the lease has expired, and others may take what it holds.
"""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql.dialects.dialect import Dialect


def term(seconds: float) -> dict[str, int]:
    """Return the parameter of statements with a :func:`new_end`.

    :param seconds: Seconds until the lease expires.
    """
    return {'microseconds': round(seconds * 1e6)}


def new_end(now: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Build the instant at which a lease of the bound term expires.

    :param now: Time of the lease clock.
    """
    return now + sa.bindparam('microseconds', type_=sa.BigInteger)


def renewal(dialect: Dialect, table: sa.Table,
            *held: sa.ColumnElement[bool]) -> Any:
    """Build the statement that renews leases.

    :param held: Conditions on the holder, and on the leases.
    """
    return sa.update(table).where(*held).values(
        until=new_end(dialect.lease_now))


def expired(until: Any, now: Any) -> sa.ColumnElement[bool]:
    """Build the condition that a lease has expired.

    :param now: Time of the lease clock.
    """
    found: sa.ColumnElement[bool] = until <= now
    return found


def in_force(until: Any, now: Any) -> sa.ColumnElement[bool]:
    """Build the condition that a lease has not expired.

    :param now: Time of the lease clock.
    """
    return sa.not_(expired(until, now))
