# SPDX-License-Identifier: Apache-2.0
"""Counts of rows, up to a maximum that bounds the cost of a count, and sums of
the numbers in the history.
"""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.outcomes import COLUMNS
from distperiodic.core.outcomes import Counts
from distperiodic.core.waiting import MOST_COUNTED
from distperiodic.core.workflow import Status

_history = tables.history
_queue = tables.queue
_task = tables.task


def count(column: Any, value: Any, *conditions: Any) -> Any:
    """Return an SQL expression for a number of rows, at most
    :data:`MOST_COUNTED`.

    :param column: Column of the counted table. The rows in which this column
        is equal to *value* are counted. An index must find these rows.
    :param value: Column of the outer query.
    """
    # The last two conditions change only the query plan. If nearly all rows
    # have one value, PostgreSQL expects as many rows for every value, and
    # reads a million rows to count none. For a range, it expects few rows.
    conditions = (*conditions, column == value, column >= value,
                  column <= value)
    # MariaDB allows no reference to the outer query in a subquery with both
    # a count and a limit. So first determine whether the maximum is reached.
    last = sa.select(sa.literal(1)).where(*conditions).limit(1).offset(
        MOST_COUNTED - 1).scalar_subquery()
    exact = sa.select(sa.func.count()).where(*conditions).scalar_subquery()
    return sa.case((last.is_not(None), MOST_COUNTED), else_=exact)


def sums(names: Iterable[str]) -> list[sa.Label[int]]:
    """Return SQL expressions for sums of columns of the history.

    :param names: Names from :data:`distperiodic.core.outcomes.COLUMNS`. The
        expressions have the same names.
    """
    return [sa.cast(sa.func.sum(_history.c[name]), sa.BigInteger).label(name)
            for name in names]


def counts(row: sa.Row[Any]) -> Counts:
    """Return the :func:`sums` of all columns in a row of a result."""
    return Counts(**{name: row._mapping[name] for name in COLUMNS})


def waiting_in_queue(namespace: str) -> Any:
    """Return an SQL expression for the number of tasks of a queue that have
    not started, at most :data:`MOST_COUNTED`. Use it in a query of queues.
    """
    return count(_task.c.queue, _queue.c.name, _task.c.space == namespace,
                 _task.c.status == Status.WAITING)
