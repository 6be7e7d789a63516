# SPDX-License-Identifier: Apache-2.0
"""Validation of the arguments of the task client's methods.

Errors name the argument, its value and the remedy.
"""

import datetime
import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import tables
from distperiodic.core import schedule
from distperiodic.core import task_values
from distperiodic.core import values
from distperiodic.core.task import TaskPage
from distperiodic.core.workflow import Status

# Greatest LIMIT that all databases accept.
_MOST_ROWS = 2 ** 63 - 1


def _is_name(value: Any, most: int) -> bool:
    return _is_text(value) and 0 < len(value) <= most


def _is_text(value: Any) -> bool:
    """Return True if *value* is text that all databases can store."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return '\0' not in value


def task_id(value: Any) -> str:
    """Return *value* if it can be the id of a task.

    :raises UnknownTask: *value* cannot be an id.
    """
    if not _is_name(value, tables.LONGEST_TASK):
        raise exceptions.UnknownTask(
            f'{shown(value)} is not the id of a task; to list them: '
            'distperiodic task list')
    return str(value)


def check_name(what: str, value: Any, most: int = tables.LONGEST_NAME, *,
               optional: bool = False) -> None:
    """Check an argument that is a name.

    :param what: Name of the argument.
    :param most: Maximum number of characters.
    :param optional: True if *value* may be None.
    :raises InvalidTask: *value* cannot be used.
    """
    if not _is_name(value, most) and not (optional and value is None):
        raise exceptions.InvalidTask(
            f'{what} is {shown(value)}; give 1 to {most} characters of valid '
            f'Unicode without NUL{", or None" if optional else ""}')


def page(status: Any, type_: Any, queue: Any, limit: Any,
         after: Any) -> TaskPage:
    """Return the page of tasks that these arguments select.

    :raises InvalidTask: an argument cannot be used.
    :raises UnknownTask: *after* cannot be an id.
    """
    if status is not None and status not in tuple(Status):
        raise exceptions.InvalidTask(
            f'status is {shown(status)}; give one of '
            f'{", ".join(Status)}')
    check_name('type', type_, optional=True)
    check_name('queue', queue, optional=True)
    check_whole('limit', limit, 1, _MOST_ROWS)
    return TaskPage(
        None if status is None else Status(status), type_, queue, limit,
        None if after is None else task_id(after))


def check_reason(why: Any) -> None:
    """Check the reason for an action. An empty text is allowed.

    :raises InvalidTask: *why* cannot be used.
    """
    if not _is_text(why):
        raise exceptions.InvalidTask(
            f'why is {shown(why)}; give text of valid Unicode without NUL')


def check_session(session: Any) -> None:
    """Check an argument that is a session or a connection of SQLAlchemy.

    :raises InvalidTask: *session* cannot be used.
    """
    # Queries of operators use this module, and do not need the ORM, which is
    # slow to load.
    from sqlalchemy import orm
    if not isinstance(
            session, (orm.Session, orm.scoped_session, sa.Connection)):
        raise exceptions.InvalidTask(
            f'session is {shown(session)}; give an SQLAlchemy Session, '
            'scoped_session or Connection, or None')


def parameters_text(parameters: Any) -> str:
    """Return the JSON text of the parameters of a task.

    :raises InvalidTask: The parameters cannot be stored.
    """
    found = {} if parameters is None else parameters
    if not isinstance(found, Mapping):
        raise exceptions.InvalidTask(
            f'parameters are {shown(parameters)}; give a dictionary')
    try:
        return task_values.parameters_text(found)
    except exceptions.InvalidTask as exc:
        raise exceptions.InvalidTask(f'parameters {exc}') from None


def instant(at: Any) -> int | None:
    """Return the instant of an aware datetime, or None if *at* is None.

    :raises InvalidTask: *at* cannot be used.
    """
    if at is None:
        return None
    if not isinstance(at, datetime.datetime) or at.utcoffset() is None:
        raise exceptions.InvalidTask(
            f'at is {shown(at)}; give an aware datetime, such as '
            'datetime.now(UTC) + timedelta(hours=1)')
    found = schedule.instant_of(at)
    if not schedule.FIRST_INSTANT <= found <= schedule.LAST_INSTANT:
        raise exceptions.InvalidTask(
            f'at is {at.isoformat()}, which is outside the years 1 to 9999 in '
            'UTC; give another instant, or None to start at once')
    return found


def check_whole(what: str, value: Any, least: int, most: int) -> None:
    """Check an argument that is a whole number.

    :raises InvalidTask: *value* cannot be used.
    """
    if type(value) is not int or not least <= value <= most:
        raise exceptions.InvalidTask(
            f'{what} is {shown(value)}; give a whole number from {least} to '
            f'{most}')


def check_timeout(timeout: Any) -> None:
    """Check a number of seconds, or None.

    :raises InvalidTask: *timeout* cannot be used.
    """
    if timeout not in (None, math.inf) and (
            schedule.finite_number(timeout) is None):
        raise exceptions.InvalidTask(
            f'timeout is {shown(timeout)}; give a number of seconds, or None '
            'for no limit')


def shown(value: object) -> str:
    """Return *value* for an error message, shortened if it is long."""
    return values.shown(value, 100)
