# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the ticks of a job, read from the store.

Every account of an object's earlier ticks is computed from these exceptions.
"""

import collections
from collections.abc import Iterable

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.outcomes import LATE
from distperiodic.core.tick_exceptions import SPANS
from distperiodic.core.tick_exceptions import TickException

_exception = tables.exception


def about(found: Iterable[TickException], key: str) -> list[TickException]:
    """Return the exceptions that concern the object *key*, or may do so."""
    return [one for one in found if one.objects is None or one.has(key)]


def exceptions(connection: sa.Connection, number: int, first: int,
               last: int, limit: int) -> list[TickException]:
    """Return the exceptions of the ticks from *first* to *last*: those that
    ran late, and then all others, the oldest first.

    Objects whose ids are not kept, or not read because of *limit*, follow as
    numbers, one for each tick and outcome.

    :param number: Number of the job.
    :param limit: Maximum number of rows with ids. The last are read.
    """
    # Each class is one short range of an index. Otherwise all later exceptions
    # would be read.
    covers = (_exception.c.after < last, sa.or_(*(
        sa.and_(_exception.c.job == number, _exception.c.span == span,
                _exception.c.tick.between(
                    first, min(last + length, SPANS[-1])))
        for span, length in enumerate(SPANS))))
    found = [
        TickException(row.outcome, row.after, row.tick, row.member, row.at,
                      row.reason or '', row.number, row.objects)
        for row in connection.execute(
            sa.select(_exception).where(
                *covers, _exception.c.objects.is_not(None))
            # MariaDB would read the rows in the order of another index, and
            # so all later ones.
            .order_by(sa.case((_exception.c.outcome == LATE, 1), else_=0),
                      (_exception.c.tick + 0).desc(), _exception.c.id.desc())
            .limit(limit))]
    found.reverse()
    left: collections.Counter[tuple[str, int, int]] = collections.Counter()
    key = _exception.c.outcome, _exception.c.after, _exception.c.tick
    for row in connection.execute(
            sa.select(*key, sa.cast(sa.func.sum(_exception.c.number),
                                    sa.BigInteger).label('number'))
            .where(*covers).group_by(*key)):
        left[row.outcome, row.after, row.tick] = row.number
    for one in found:
        left[one.outcome, one.after, one.tick] -= one.number
    return found + [
        TickException(*key, '', 0, '', number, None)
        for key, number in sorted(left.items()) if number > 0]
