# SPDX-License-Identifier: Apache-2.0
"""Audit of tasks, with the classes of :mod:`distperiodic.core.audit`.

A task that has neither ended nor become stuck must be in one of three states:
it waits in its queue, its next step is ready or delayed, or its next step is
claimed. Otherwise the task is lost, because no process will find it.
"""

import collections
from collections.abc import Iterable
from typing import NamedTuple

from distperiodic.core.outcomes import Fate
from distperiodic.core.waiting import Wait
from distperiodic.core.workflow import Status

#: Condition of a task. If the task has ended, is stuck or runs, the condition
#: is the status of the task. If the task waits, the condition is the reason
#: for the wait. If the task is lost or unexplained, the condition is a class
#: of the audit.
Condition = Status | Wait | Fate

_FATES: dict[Condition, Fate] = {
    Status.SUCCEEDED: Fate.ON_TIME,
    # Failed and stuck tasks need an operator.
    Status.FAILED: Fate.DEAD, Status.STUCK: Fate.DEAD,
    Status.CANCELLED: Fate.CANCELLED,
    Fate.LOST: Fate.LOST, Fate.UNEXPLAINED: Fate.UNEXPLAINED}
# Class of all other conditions.
_WAITING = Fate.PENDING
#: Classes that no task is in.
NOT_OF_TASKS = frozenset(Fate) - {*_FATES.values(), _WAITING}


class Alike(NamedTuple):
    """Number of tasks of one type that are in one condition."""

    type: str
    condition: Condition
    #: Module of the next command of these tasks. Empty means that the module
    #: is irrelevant.
    module: str
    number: int


def fate(condition: Condition) -> Fate:
    """Return the class of a task in *condition*."""
    return _FATES.get(condition, _WAITING)


def by_type(tasks: Iterable[Alike]) -> dict[str, collections.Counter[Fate]]:
    """Return the number of tasks by class, for each type."""
    found: dict[str, collections.Counter[Fate]] = {}
    for alike in tasks:
        found.setdefault(alike.type, collections.Counter())[
            fate(alike.condition)] += alike.number
    return found


def phrase(tasks: Iterable[Alike]) -> str:
    """Return the numbers of tasks by condition and module, as text."""
    numbers: collections.Counter[tuple[int, str, str]] = collections.Counter()
    for alike in tasks:
        numbers[_ORDER[alike.condition], alike.condition.replace('_', ' '),
                alike.module] += alike.number
    return ', '.join(
        f'{number:,} {text}{f" (module {module})" if module else ""}'
        for (_, text, module), number in sorted(numbers.items()))


# Order of the conditions in the result of phrase(). Members of different
# enumerations are equal if they have the same text. The first of such members
# determines the place in the order.
_ORDER: dict[Condition, int] = {}
for _condition in (
        Status.SUCCEEDED, Status.FAILED, Status.STUCK, Status.CANCELLED,
        Status.RUNNING, Status.ROLLING_BACK, *Wait, Fate.LOST,
        Fate.UNEXPLAINED):
    _ORDER.setdefault(_condition, len(_ORDER))
