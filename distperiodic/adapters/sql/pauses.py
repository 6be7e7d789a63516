# SPDX-License-Identifier: Apache-2.0
"""The rows of paused objects, and their number in the row of the job.

Each function runs in a transaction that has locked the row of the job with
:func:`lock`. So no other transaction counts the same rows.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import sqlalchemy as sa

from distperiodic.adapters.sql import tables

_job = tables.job
_paused = tables.paused_object

# Number of rows that one statement selects by their ids.
_AT_A_TIME = 500


def lock(connection: sa.Connection, number: int) -> None:
    """Lock the row of a job until the end of the transaction."""
    connection.execute(sa.select(_job.c.id).where(
        _job.c.id == number).with_for_update())


def ended(now: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that the pause of an object has ended by itself."""
    return _paused.c.paused_until <= now


def delete(connection: sa.Connection, number: int,
           keys: Iterable[str]) -> None:
    """Delete the pauses of *keys*."""
    for some in batches(sorted(keys)):
        connection.execute(sa.delete(_paused).where(
            _paused.c.job == number, _paused.c.object.in_(some)))


def count(connection: sa.Connection, number: int) -> None:
    """Record the number of paused objects in the row of the job."""
    total = connection.scalar(sa.select(sa.func.count()).select_from(
        _paused).where(_paused.c.job == number))
    connection.execute(sa.update(_job).where(_job.c.id == number).values(
        paused_objects=total or None))


def batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield *keys* in parts that one statement may select."""
    for at in range(0, len(keys), _AT_A_TIME):
        yield keys[at:at + _AT_A_TIME]
