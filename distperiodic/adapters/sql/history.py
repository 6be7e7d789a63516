# SPDX-License-Identifier: Apache-2.0
"""History of ticks, written together with the changes that it counts.

One row of the history sums up the work of one member for one tick of a job.
The row is written in the transaction that changes the claims. A run that ended
in the handler's own transaction is counted later, when the store next
processes its claim.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.transaction import Transaction
from distperiodic.core.claim import Failure
from distperiodic.core.claim import SkippedBy
from distperiodic.core.outcomes import COLUMNS
from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import SKIPPED
from distperiodic.core.tick_exceptions import KEPT
from distperiodic.core.tick_exceptions import packed
from distperiodic.core.tick_exceptions import span_of
from distperiodic.ports import NO_TIMES
from distperiodic.ports import RunTimes

#: Maximum number of characters of a stored error or traceback.
_MAX_TEXT = 100_000
# Parameters that are added up, and those whose newest value applies.
_MORE = tuple(f'more_{name}' for name in COLUMNS)
_NEWEST = 'newest_started', 'newest_ran', 'newest_slowest'


def count(tx: Transaction, number: int, tick: int,
          holder: str, *, reason: str = '', **counts: int) -> None:
    """Add *counts* to the history of *tick*.

    :param reason: Reason why the objects did not run.
    """
    tx.connection.execute(tx.sql.count_of, _parameters(
        number, tick, counts, reason, NO_TIMES) | {'runner': holder})


def increments(number: int, tick: int, holder: str, *, reason: str = '',
               times: RunTimes = NO_TIMES, **counts: int) -> dict[str, Any]:
    """Return the parameters that :func:`count` binds.

    Other statements that add to the history bind the same parameters.
    """
    return _parameters(number, tick, counts, reason, times) | {
        'runner': holder}


def merged(counts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up the counts of each job, tick and member.

    The caller then executes fewer statements.

    :param counts: Results of :func:`increments` without a reason, the oldest
        first.
    """
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    for one in counts:
        key = one['of_job'], one['at_tick'], one['runner']
        before = found.get(key)
        found[key] = one if before is None else one | {
            name: before[name] + value for name, value in one.items()
            if name.startswith('more_')} | {
            name: one[name] or before[name] for name in _NEWEST}
    return list(found.values())


def add(tx: Transaction, counts: Sequence[dict[str, Any]]) -> None:
    """Add several counts, each in the form that :func:`increments` returns."""
    if counts:
        tx.connection.execute(tx.sql.count_of, counts if len(counts) > 1
                              else counts[0])


def count_in(tx: Transaction, number: int, tick: int,
             lease: str, *, reason: str = '', times: RunTimes = NO_TIMES,
             **counts: int) -> None:
    """Add *counts* to the history, for the member that holds *lease*."""
    tx.connection.execute(tx.sql.count_in, _parameters(
        number, tick, counts, reason, times) | {'stands_in': lease})
    if times.behind:
        _record_late(tx, number, tick, times.behind, lease=lease)


def count_committed(tx: Transaction, number: int,
                    keys: Sequence[str], lease: str,
                    times: RunTimes = NO_TIMES) -> int:
    """Count the runs of *keys* that ended in their handlers' transactions.

    :param times: Times of the runs that were not recorded before.
    :returns: Number of these runs.
    """
    rows = tx.changed(tx.sql.count_committed, {
        'of_job': number, 'keys': tx.dialect.keys(keys),
        'stands_in': lease})
    if rows:
        tick, worker = rows[0].tick, rows[0].worker or ''
        add(tx, [increments(number, tick, worker, times=times,
                            done=len(rows))])
        if times.behind:
            _record_late(tx, number, tick, times.behind, holder=worker)
    return len(rows)


def record(tx: Transaction, number: int, tick: int, outcome: str,
           objects: Mapping[int, Sequence[str]], *, holder: str | None = None,
           lease: str = '', reason: str = '') -> None:
    """Record the objects of an exception; see :data:`.tables.exception`.

    Call this in the transaction that counts the objects.

    :param outcome: Name of the number that counts them, or REQUEUED.
    :param objects: Objects by the instant after which they missed all of
        their ticks, up to *tick*.
    :param holder: Member that the history names. None means the holder of
        *lease*.
    """
    kept = tx.connection.execute(
        tx.sql.kept, {'of_job': number, 'at_tick': tick}).one()
    # While a whole job is paused, each tick skips each of its objects, so
    # their ids tell nothing, and would take much space.
    room = 0 if outcome == SKIPPED[SkippedBy.PAUSE] and (
        kept.paused_since is not None) else KEPT - kept.number
    rows = []
    for after, keys in sorted(objects.items()):
        rows.append(_exception(
            number, outcome, after, tick, len(keys), reason,
            packed(keys) if room >= len(keys) else None))
        room -= len(keys)
    _insert(tx, rows, holder, lease)


def _record_late(tx: Transaction, number: int, tick: int,
                 objects: Sequence[str], *, holder: str | None = None,
                 lease: str = '') -> None:
    """Record objects that began more than a period late; see :func:`record`.

    Objects with a schedule of their own are left out: the process that ran
    them does not know their period.
    """
    keys = tx.connection.execute(tx.sql.follows_job, {
        'of_job': number, 'keys': tx.dialect.keys(objects)}).scalars().all()
    if keys:
        _insert(tx, [_exception(
            number, LATE, tick - 1, tick, len(keys), ids=packed(keys))],
            holder, lease)


def _insert(tx: Transaction, rows: Sequence[dict[str, Any]],
            holder: str | None, lease: str) -> None:
    tx.connection.execute(
        tx.sql.record_in if holder is None else tx.sql.record_of,
        [row | ({'stands_in': lease} if holder is None
                else {'runner': holder}) for row in rows])


def record_numbers(tx: Transaction, number: int, found: Mapping[
        tuple[str, int, int], int]) -> None:
    """Record exceptions without the ids of their objects.

    :param found: Numbers of objects by outcome, by the instant after which
        they missed all of their ticks, and by the last of these ticks.
    """
    tx.connection.execute(tx.sql.record_of, [
        _exception(number, *which, objects) | {'runner': ''}
        for which, objects in sorted(found.items())])


def _exception(number: int, outcome: str, after: int, tick: int, objects: int,
               reason: str = '', ids: bytes | None = None) -> dict[str, Any]:
    """Return the parameters of a statement that records an exception."""
    return {'of_job': number, 'at_tick': tick, 'after_it': after,
            'of_span': span_of(after, tick), 'as_outcome': outcome,
            'because': reason[:tables.LONGEST_REASON] or None,
            'number': objects, 'ids': ids}


def record_failures(tx: Transaction, number: int, dead: Sequence[Any],
                    failures: dict[str, Failure]) -> None:
    """Record the failures of dead runs.

    :param dead: Rows of the dead claims.
    :param failures: Failures by object.
    """
    tx.connection.execute(
        tables.failure.insert().values(at=tx.dialect.now),
        [{'job': number, 'object': row.object, 'tick': row.tick,
          'fence': row.fence, 'attempt': row.attempt, 'worker': row.worker,
          'error': _storable(failures[row.object].error),
          'traceback': _storable(failures[row.object].traceback)}
         for row in dead])


def _parameters(number: int, tick: int, counts: dict[str, int],
                reason: str, times: RunTimes) -> dict[str, Any]:
    """Return the parameters of a statement that adds to the history."""
    return {'of_job': number, 'at_tick': tick,
            'because': reason[:tables.LONGEST_REASON] or None,
            'newest_started': times.started or None,
            'newest_ran': times.ran or None,
            'newest_slowest': times.slowest or None,
            **dict.fromkeys(_MORE, 0), 'more_late': times.late,
            **{f'more_{name}': number for name, number in counts.items()}}


def _storable(text: str) -> str:
    """Return the text of an exception in a form that all databases accept."""
    return text[:_MAX_TEXT].replace('\0', '\\0').encode(
        errors='backslashreplace').decode()
