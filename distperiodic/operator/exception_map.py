# SPDX-License-Identifier: Apache-2.0
"""Map of the exceptions of a job: objects by ticks."""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.core.outcomes import REQUEUED
from distperiodic.core.reason import Reason
from distperiodic.core.ring import positions_of
from distperiodic.core.tick_exceptions import TickException
from distperiodic.operator import object_past
from distperiodic.operator.group_reader import GroupReader

#: Maximum number of objects in a map.
MOST_OBJECTS = 50
#: Number of parts of the ring in a map of more objects.
PARTS = 16
# Maximum number of rows, and of ids in them, that are read for a map.
_ROWS, _IDS = 1000, 20_000
# Number of bits of a position below the number of its part of the ring.
_BELOW = 64 - (PARTS - 1).bit_length()
# Outcomes after which work was not done at all come first.
_WORST = (Reason.LOST, Reason.DEAD, Reason.SUPERSEDED)


class ObjectRow(NamedTuple):
    """The exceptions of one object."""

    object: str
    #: Outcome at each tick. None means that there is no exception.
    reasons: Sequence[Reason | None]


class ExceptionMap(NamedTuple):
    """The exceptions of some ticks."""

    ticks: Sequence[int]
    #: The objects with exceptions, the worst first, at most
    #: :data:`MOST_OBJECTS`.
    objects: Sequence[ObjectRow]
    #: Number of objects with exceptions.
    number: int
    #: Numbers of objects by part of the ring and by tick. Empty means that
    #: *objects* has all objects.
    parts: Sequence[Sequence[int]]
    #: Number of exceptions whose objects are unknown, because the ids are not
    #: kept, or because there are too many to read.
    unknown: int


def read(store: GroupReader, job: str, ticks: Sequence[int]) -> ExceptionMap:
    """Return the exceptions of some ticks of a job.

    :param ticks: The ticks, the oldest first.
    :raises ConfigError: the store has no such job.
    """
    [number] = store.names(job)
    if not ticks:
        return ExceptionMap(ticks, (), 0, (), 0)
    return of(store.read_snapshot(
        lambda connection: object_past.exceptions(
            connection, number, ticks[0], ticks[-1], _ROWS)), ticks)


def of(found: Iterable[TickException],
       ticks: Sequence[int]) -> ExceptionMap:
    """Return the map of some exceptions.

    :param found: Exceptions, those of the first importance last. If there are
        too many ids, those of the last exceptions are read.
    :param ticks: As in :func:`read`.
    """
    read: list[tuple[TickException, list[int]]] = []
    unknown, left = 0, _IDS
    for one in reversed(list(found)):
        columns = [at for at, tick in enumerate(ticks) if one.covers(tick)]
        if not columns or (one.outcome != REQUEUED
                           and _reason_of(one) is None):
            continue
        if one.objects is not None:
            left -= one.number
        if one.objects is None or left < 0:
            unknown += one.number
        else:
            read.append((one, columns))
    rows: dict[str, list[Reason | None]] = {}
    for one, columns in reversed(read):
        reason = _reason_of(one)
        for key in one.keys():
            row = rows.setdefault(key, [None] * len(ticks))
            for at in columns:
                row[at] = reason
    named = {key: row for key, row in rows.items() if any(row)}
    return ExceptionMap(
        ticks, [ObjectRow(key, named[key])
                for key in sorted(named, key=lambda key: _rank(
                    key, named[key]))[:MOST_OBJECTS]],
        len(named), _parts(named, len(ticks))
        if len(named) > MOST_OBJECTS else (), unknown)


def _reason_of(one: TickException) -> Reason | None:
    if one.outcome == LATE:
        return Reason.RAN_LATE
    return OUTCOMES[one.outcome].reason if one.outcome in OUTCOMES else None


def _rank(key: str, row: Sequence[Reason | None]) -> tuple[int, int, str]:
    """Return the place of an object: the worst objects are the first."""
    return (-sum(one in _WORST for one in row),
            -sum(one is not None for one in row), key)


def _parts(rows: dict[str, list[Reason | None]],
           ticks: int) -> list[list[int]]:
    found = [[0] * ticks for _ in range(PARTS)]
    for position, row in zip(positions_of(list(rows)), rows.values(),
                             strict=True):
        part = found[(position >> _BELOW) + PARTS // 2]
        for at, reason in enumerate(row):
            part[at] += reason is not None
    return found
