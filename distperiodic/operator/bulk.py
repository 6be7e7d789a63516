# SPDX-License-Identifier: Apache-2.0
"""Actions of operators on all rows that meet some conditions.

An action reads and changes the rows in chunks, each in a transaction of its
own. Rows that change between the count and the action, or between the reading
and the change of a chunk, count as they are when the action reaches them. If
the operator has confirmed a number of rows, no more rows are changed. One
record describes the whole action.
"""

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import auditing
from distperiodic.operator.auditing import Actor
from distperiodic.operator.group_reader import GroupStore

_Row = TypeVar('_Row')

# Maximum number of reasons in a result.
_PROBLEMS = 10

#: Clause of an outcome about rows that the operator had not seen.
LEFT = 'more match now and were left unchanged'


class BulkResult(NamedTuple):
    """The outcome of an action on many rows."""

    #: Number of rows that met the conditions when the action reached them.
    matched: int
    #: Number of these rows that the action changed.
    done: int
    #: For each of the first rows that were not changed, the reason.
    problems: list[str]
    noun: str
    #: True if the action ended at a row that its operator had not seen.
    left: bool = False

    @property
    def text(self) -> str:
        """The number of changed rows, such as '411 of 412 objects'."""
        text = (wording.plural(self.done, self.noun)
                if self.done == self.matched <= 1 else
                f'{self.done:,} of {wording.plural(self.matched, self.noun)}')
        return f'{text}; {LEFT}' if self.left else text


class BulkTally:
    """Counts of an action in progress.

    :param noun: Word for one row, such as 'task'.
    :param most: Maximum number of rows. None means any number.
    """

    def __init__(self, noun: str, most: int | None):
        self._most = most
        self.result = BulkResult(0, 0, [], noun)

    def within(self, chunks: Iterable[Sequence[_Row]]
               ) -> Iterator[Sequence[_Row]]:
        """Yield the first rows of *chunks*, as many as the action may still
        change, each chunk after the counts of the one before were added.
        """
        if self.result.left:
            return
        for rows in chunks:
            some = rows if self._most is None else rows[
                :self._most - self.result.matched]
            if len(some) < len(rows):
                self.result = self.result._replace(left=True)
            if some:
                yield some
            if self.result.left:
                return

    def add(self, matched: int, done: int,
            problems: Iterable[str] = ()) -> None:
        """Add the counts of a chunk, after its commit."""
        before = self.result
        self.result = before._replace(
            matched=before.matched + matched, done=before.done + done,
            problems=[*before.problems, *problems][:_PROBLEMS])


def check_shown(shown: int | None, found: int, noun: str) -> None:
    """Check that an operator has seen the number of rows that match now.

    :param shown: Number of rows that the operator has seen. None means that
        the operator has confirmed no number.
    :param found: Number of rows that match now.
    :raises ConfigError: more rows match now.
    """
    if shown is not None and found > shown:
        raise exceptions.ConfigError(
            f'{wording.plural(shown, noun)} had been shown, but '
            f'{found:,} match now, so nothing was changed; look at them, and '
            'confirm the new number')


@contextlib.contextmanager
def recorded(store: GroupStore, actor: Actor, verb: str, target: str,
             noun: str, *, found: int | None, shown: int | None,
             **arguments: Any) -> Iterator[BulkTally]:
    """Record the action in the body, which counts its rows in the tally.

    :param noun: Word for one row, such as 'task'.
    :param found: Number of rows that meet the conditions now. None means that
        the operator has named the rows.
    :param shown: See :func:`check_shown`.
    :param arguments: Conditions on the rows. Values of None are left out.
    :raises ConfigError: see :func:`check_shown`.
    :raises StoreUnavailable: the store did not answer. The message contains
        the number of rows that the action had changed before.
    """
    tally = BulkTally(noun, shown)
    with auditing.recorded(store, actor, verb, target, **{
            name: value for name, value in {
                **arguments, 'found': found}.items()
            if value is not None}) as record:
        check_shown(shown, found or 0, noun)
        try:
            yield tally
        except exceptions.StoreUnavailable as exc:
            if not tally.result.done:
                raise
            record.before_error = (
                f'{wording.plural(tally.result.done, noun)}, then an error')
            raise exceptions.StoreUnavailable(
                f'{verb} had changed '
                f'{wording.plural(tally.result.done, noun)} before this '
                f'error, and may have changed more: {exc}') from exc
        record.outcome = tally.result.text
