# SPDX-License-Identifier: Apache-2.0
"""What the store writes down of each tick, in the transaction of the move.

A row of the history adds up what one member did in one tick. What was ended
in a session of its handler's is counted when the store next sees it.
"""

from collections.abc import Sequence
from typing import Any

from distperiodic.adapters import sql_moves
from distperiodic.adapters import sql_transaction
from distperiodic.adapters import tables
from distperiodic.core.claim import Failure

#: Characters of an error or a traceback that are kept.
_TOLD = 100_000


def count(tx: sql_transaction.Transaction, number: int, tick: int,
          holder: str, *, late: int = 0, because: str = '',
          **counts: int) -> None:
    """Add to what the history has of *tick*.

    :param late: how many of them add to the lateness.
    :param because: why they were not run.
    """
    tx.connection.execute(tx.sql.count_of, more(
        number, tick, holder, late=late, because=because, **counts))


def more(number: int, tick: int, holder: str, *, late: int = 0,
         because: str = '', **counts: int) -> dict[str, Any]:
    """What :func:`count` adds, for a statement that does more than that."""
    return _more(number, tick, counts, late, because) | {'runner': holder}


def count_in(tx: sql_transaction.Transaction, number: int, tick: int,
             lease: str, *, because: str = '', **counts: int) -> None:
    """The same for who holds *lease*."""
    tx.connection.execute(tx.sql.count_in, _more(
        number, tick, counts, because=because) | {'stands_in': lease})


def count_committed(tx: sql_transaction.Transaction, number: int,
                   keys: Sequence[str], lease: str) -> int:
    """Count those of *keys* that were ended in a session of their handler's;
    how many there were.
    """
    rows = tx.changed(tx.sql.count_committed, {
        'of_job': number, 'keys': tx.dialect.keys(keys),
        'stands_in': lease})
    if rows:
        count(tx, number, rows[0].tick, rows[0].worker or '', done=len(rows))
    return len(rows)


def tell(tx: sql_transaction.Transaction, number: int, dead: Sequence[Any],
         told: dict[str, Failure]) -> None:
    """Keep what was told of runs that are dead.

    :param dead: their rows.
    :param told: by key.
    """
    tx.connection.execute(
        tables.failure.insert().values(at=tx.dialect.now),
        [{'job': number, 'object': row.object, 'tick': row.tick,
          'fence': row.fence, 'attempt': row.attempt, 'worker': row.worker,
          'error': _kept(told[row.object].error),
          'traceback': _kept(told[row.object].traceback)} for row in dead])


def _more(number: int, tick: int, counts: dict[str, int], late: int = 0,
          because: str = '') -> dict[str, Any]:
    """The parameters of what adds to the history."""
    return {'of_job': number, 'at_tick': tick, 'more_late': late,
            'because': because[:tables.LONGEST_REASON] or None, **{
                f'more_{name}': counts.get(name, 0)
                for name in sql_moves.COUNTED}}


def _kept(text: str) -> str:
    """What somebody's exception said, as all databases take it."""
    return text[:_TOLD].replace('\0', '\\0').encode(
        errors='backslashreplace').decode()
