# SPDX-License-Identifier: Apache-2.0
"""Audit of tasks, in the classes of :mod:`distperiodic.core.audit`.

A task that has not ended is always in one of a few conditions: it waits in its
queue, its next step is ready, or its next step is claimed. A task in none of
these conditions is lost, because no process looks for it.
"""

import collections
from collections.abc import Iterable
from typing import NamedTuple

from distperiodic.core.audit import Fate
from distperiodic.core.waiting import Wait
from distperiodic.core.workflow import Status

#: Condition of a task: it has ended, is stuck or runs (a status), it waits (a
#: reason), or it is lost or unexplained (a class).
Condition = Status | Wait | Fate

_FATES: dict[Condition, Fate] = {
    Status.SUCCEEDED: Fate.ON_TIME,
    # Both need an operator.
    Status.FAILED: Fate.DEAD, Status.STUCK: Fate.DEAD,
    Status.CANCELLED: Fate.CANCELLED,
    Fate.LOST: Fate.LOST, Fate.UNEXPLAINED: Fate.UNEXPLAINED}


class Alike(NamedTuple):
    """Tasks of one type in one condition."""

    type: str
    condition: Condition
    #: Module of their next command. Empty means that the module is irrelevant.
    module: str
    number: int


def fate(condition: Condition) -> Fate:
    """Return the class of a task in *condition*."""
    return _FATES.get(condition, Fate.PENDING)


def by_type(tasks: Iterable[Alike]) -> dict[str, collections.Counter[Fate]]:
    """Return the number of tasks by class, for each type."""
    found: dict[str, collections.Counter[Fate]] = {}
    for alike in tasks:
        found.setdefault(alike.type, collections.Counter())[
            fate(alike.condition)] += alike.number
    return found


def phrase(tasks: Iterable[Alike]) -> str:
    """Return the number of tasks for each condition and module, as text."""
    numbers: collections.Counter[tuple[int, str, str]] = collections.Counter()
    for alike in tasks:
        numbers[_ORDER[alike.condition], alike.condition.replace('_', ' '),
                alike.module] += alike.number
    return ', '.join(
        f'{number:,} {text}{f" (module {module})" if module else ""}'
        for (_, text, module), number in sorted(numbers.items()))


# Members of different enumerations with the same text are equal. The first of
# them sets the order.
_ORDER: dict[Condition, int] = {}
for _condition in (
        Status.SUCCEEDED, Status.FAILED, Status.STUCK, Status.CANCELLED,
        Status.RUNNING, Status.ROLLING_BACK, *Wait, Fate.LOST,
        Fate.UNEXPLAINED):
    _ORDER.setdefault(_condition, len(_ORDER))
