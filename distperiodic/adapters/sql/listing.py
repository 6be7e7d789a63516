# SPDX-License-Identifier: Apache-2.0
"""The listed objects in a database, with their schedules and watermarks.

Only differences are written. No statement waits for the locked row of a claim:
otherwise the open transaction of one handler would delay all jobs.
"""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from distperiodic import ports
from distperiodic.adapters.sql import jobs
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core import due
from distperiodic.core.attributes import Attributes
from distperiodic.core.attributes import attributes_of
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import State
from distperiodic.core.claim import first_fence
from distperiodic.core.ring import Arc
from distperiodic.core.ring import positions_of

_claim = tables.claim
_history = tables.history

#: Columns to change, with their new values.
_Change = tuple[tuple[str, Any], ...]


def row_of(row: Any) -> due.Row:
    """Convert a row that :attr:`.statements.Statements.look` selects."""
    return due.Row(row.object, row.position, row.settled, row.since,
                   _attributes_of(row), row.state not in OPEN, row.ended,
                   row.began)


def _attributes_of(row: Any) -> Attributes:
    """Return the attributes of an object, which are the last columns of *row*.
    """
    return attributes_of([*row[-len(tables.ATTRIBUTES):]])


def _listed(rows: Iterable[Any]) -> list[due.Row]:
    """Convert rows that :attr:`.statements.Statements.list_range` selects."""
    return [due.Row(key, position, settled, since, attributes_of(own), free,
                    ended, began)
            for key, position, settled, since, free, ended, began, *own
            in rows]


def some(tx: Transaction, number: int,
         keys: Sequence[str]) -> list[due.Row]:
    """Return the rows of the listed objects among *keys*.

    See :meth:`distperiodic.ports.ClaimStore.rows_of`.
    """
    return _listed(tx.connection.execute(
        tx.sql.list_some, {'of_job': number, 'keys': tx.dialect.keys(keys)}))


def on_arc(tx: Transaction, number: int, arc: Arc,
           before: int | None, limit: int) -> list[due.Row]:
    """Return the rows of listed objects on an arc of the ring.

    See :meth:`distperiodic.ports.ClaimStore.rows`.
    """
    parameters = {'of_job': number, 'low': arc.low, 'high': arc.high,
                  'at_most': limit}
    statement = tx.sql.list_range
    if before is not None:
        statement = tx.sql.list_behind
        parameters['of_tick'] = before
    return _listed(tx.connection.execute(statement, parameters))


def settled(tx: Transaction, number: int, tick: int) -> int:
    """Return the number of objects that were claimed or skipped for *tick*.

    See :meth:`distperiodic.ports.ClaimStore.settled`.
    """
    return int(tx.connection.scalar(
        sa.select(sa.func.sum(_history.c.due - _history.c.missed)).where(
            _history.c.job == number, _history.c.tick == tick)) or 0)


def sync(tx: Transaction, number: int,
         listed: dict[str, ports.Listed], delisted: list[str],
         readings: Sequence[int]) -> list[str]:
    """Record the objects that a catalogue lists; write only differences.

    See :meth:`distperiodic.ports.ClaimStore.sync`.

    :param readings: Instant for which the catalogue was read, followed by the
        instants of later readings.
    """
    at = readings[0]
    gone_keys = [key for key in delisted if key not in listed]
    rows = tx.rows_of(number, [*listed, *gone_keys])
    _insert(tx, number, [one for key, one in listed.items()
                         if key not in rows], at)
    left = _update(tx, number, rows, listed, gone_keys, readings)
    if any(key not in rows or _differs(rows[key], one, at)
           for key, one in listed.items()):
        # Do this last: other transactions wait for the row of the job until
        # the commit.
        jobs.uncheck(tx.connection, number, at)
    return left


def _update(tx: Transaction, number: int, rows: dict[str, Any],
            listed: dict[str, ports.Listed], gone_keys: list[str],
            readings: Sequence[int]) -> list[str]:
    """Change the rows of objects that differ from the catalogue.

    :returns: Objects that could not be changed.
    """
    at = readings[0]
    differ, gone = _differences(rows, listed, gone_keys, at)
    # Objects that this reading delists or lists with another schedule, but
    # whose recorded schedule applies from an instant after *at*: another
    # process has recorded a newer reading of the catalogue.
    later = [key for key, row in rows.items() if row.since is not None
             and row.since > at and (
                 key not in listed
                 or _attributes_of(row) != listed[key].attributes)]
    if not differ and not gone:
        return later
    free = set(tx.unlocked(number, [*differ, *gone]))
    # Read the rows again: they may have changed before they were locked.
    rows = tx.rows_of(number, sorted(free))
    still_differ, still_listed = _differences(rows, listed, gone_keys, at)
    changes: dict[_Change, list[str]] = collections.defaultdict(list)
    for key in still_differ:
        changes[_change(rows[key], listed[key], readings)].append(key)
    if still_listed:
        changes[('since', None), ('delisted', at)] = still_listed
    for change, objects in changes.items():
        tx.connection.execute(
            sa.update(_claim).where(
                _claim.c.job == number, tx.dialect.among(_claim.c.object))
            .values(dict(change)), {'keys': tx.dialect.keys(objects)})
    return later + [key for key in (*differ, *gone) if key not in free]


def _differences(rows: dict[str, Any], listed: dict[str, ports.Listed],
                 gone_keys: list[str], at: int
                 ) -> tuple[list[str], list[str]]:
    """Return the objects whose rows differ from their entries in *listed*, and
    those of *gone_keys* whose rows still list them.
    """
    return ([key for key, one in listed.items()
             if key in rows and _differs(rows[key], one, at)],
            [key for key in gone_keys
             if key in rows and _is_listed_until(rows[key], at)])


def _insert(tx: Transaction, number: int,
            new: list[ports.Listed], at: int) -> None:
    """Insert rows for the listed objects *new*, which have no rows."""
    if not new:
        return
    ticks = [one.settled for one in new]
    keys = [one.object for one in new]
    tx.dialect.insert_new(
        tx.connection, _claim, {
            'object': keys, 'position': positions_of(keys),
            **{name: [getattr(one.attributes, name) for one in new]
               for name in Attributes._fields},
            'tick': ticks,
            'settled': ticks,
            'fence': [first_fence(tick) for tick in ticks]},
        job=number, state=State.LISTED, attempt=0, lease='', since=at)


def _differs(row: Any, one: ports.Listed, at: int) -> bool:
    return row.since is None or (
        _attributes_of(row) != one.attributes and row.since <= at)


def _change(row: Any, one: ports.Listed,
            readings: Sequence[int]) -> _Change:
    since = readings[0] if row.since is not None else due.listed_again(
        readings, row.delisted)
    return (('since', since), *one.attributes._asdict().items(),
            ('settled', max(row.settled, one.settled)))


def _is_listed_until(row: Any, at: int) -> bool:
    return row.since is not None and row.since <= at
