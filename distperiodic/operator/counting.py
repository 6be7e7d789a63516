# SPDX-License-Identifier: Apache-2.0
"""Counts of rows that stop at a maximum, so their cost is bounded."""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.core.task import MOST_COUNTED
from distperiodic.core.workflow import Status

_queue = tables.queue
_task = tables.task


def count(column: Any, value: Any, *conditions: Any) -> Any:
    """Return an SQL expression: the number of rows, at most
    :data:`MOST_COUNTED`.

    :param column: Column of the counted table that is equal to *value*. An
        index must find the rows by this column.
    :param value: Column of the outer query.
    """
    # The last two conditions change nothing but the plan. If nearly all rows
    # have one value, PostgreSQL assumes this for every value, and reads a
    # million rows to count none. For a range, it assumes few rows.
    conditions = (*conditions, column == value, column >= value,
                  column <= value)
    # MariaDB allows no reference to the outer query in a subquery with both
    # a count and a limit. So find out first whether there are enough rows.
    last = sa.select(sa.literal(1)).where(*conditions).limit(1).offset(
        MOST_COUNTED - 1).scalar_subquery()
    exact = sa.select(sa.func.count()).where(*conditions).scalar_subquery()
    return sa.case((last.is_not(None), MOST_COUNTED), else_=exact)


def waiting_in_queue(namespace: str) -> Any:
    """Return an SQL expression for a query of queues: the number of tasks of
    the queue that have not started, at most :data:`MOST_COUNTED`.
    """
    return count(_task.c.queue, _queue.c.name, _task.c.space == namespace,
                 _task.c.status == Status.WAITING)
