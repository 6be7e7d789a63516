# SPDX-License-Identifier: Apache-2.0
"""Conditions that the pause of a job or of an object is in force."""

from typing import Any

import sqlalchemy as sa


def is_paused(row: Any) -> bool:
    """Return whether an operator has paused the job or the object of *row*.

    The row has the columns of the pause, and the time of the store's clock as
    ``now``.
    """
    return row.paused_since is not None and (
        row.paused_until is None or row.now < row.paused_until)


def not_over(table: sa.Table, now: Any) -> sa.ColumnElement[bool]:
    """Return the condition that a pause has not ended by itself.

    :param table: The table of jobs or of paused objects.
    :param now: Time of the store's clock.
    """
    return sa.or_(table.c.paused_until.is_(None), table.c.paused_until > now)
