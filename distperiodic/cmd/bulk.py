# SPDX-License-Identifier: Apache-2.0
"""The option ``--dry-run``, and the output of actions on many rows."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd.session import Session
from distperiodic.core import printable

if TYPE_CHECKING:
    from distperiodic.operator.bulk import BulkResult

#: Maximum number of rows that ``--dry-run`` shows.
SHOWN = 10


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add the option that shows the effect of an action on many rows."""
    parser.add_argument(
        '--dry-run', action='store_true',
        help='only print the number of selected rows, and the first '
             f'{SHOWN} of them')


def preview(session: Session, verb: str, noun: str, number: int,
            rows: Iterable[str]) -> None:
    """Print the rows that an action would change.

    :param rows: The first rows, as text.
    """
    session.print(f'would {verb} {configured.plural(number, noun)}'
                  + ('; the first of them:' if number > SHOWN else
                     ':' if number else ''))
    for row in rows:
        session.print(f'  {printable.escaped(row)}')


def report(session: Session, past: str, result: 'BulkResult') -> int:
    """Print the outcome of an action, and return the exit code.

    :param past: Verb of the action, such as 'requeued'.
    """
    session.print(f'{past} {result.text}')
    for problem in result.problems:
        session.print(f'not {past}: {printable.escaped(problem)}')
    return (configured.FINE if result.done == result.matched
            else configured.FINDING)
