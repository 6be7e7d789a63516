# SPDX-License-Identifier: Apache-2.0
"""Lists that are declared as queries, and the values in their cells.

A command and a page show the same list: the declaration has its columns, its
filters, its rows, and the sentences about an empty or incomplete list.
"""

import abc
import argparse
import datetime
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Generic
from typing import NamedTuple
from typing import TypeAlias
from typing import TypeVar

from distperiodic.core import schedule
from distperiodic.core import wording
from distperiodic.operator.sources import Sources


class Nothing(str):
    """Text that people see in place of an unknown value; programs get null."""


class Lines(str):
    """Text whose ends of lines are its author's, for example a traceback."""


NEVER = Nothing('never')
T = TypeVar('T')
#: The titles, and the values of each row or of the record.
Output: TypeAlias = tuple[Sequence[str], Sequence[Any]]


def key(title: str) -> str:
    """Return a column's key for programs.

    For example, 'Mean late (ms)' becomes 'mean_late_ms'.
    """
    return re.sub('[^a-z0-9]+', '_', title.lower()).strip('_')


class Cell(NamedTuple):
    """A value that people and programs read in different forms."""

    for_people: object
    for_programs: object


def age(seconds: float | None) -> Cell:
    """Return a length of time, in seconds for programs. None is unknown."""
    return Cell('', None) if seconds is None else Cell(
        wording.age(seconds), round(seconds, 3))


def instant(micros: int | None) -> Cell:
    """Return an instant, in whole seconds for people. None is unknown."""
    return Cell('', '') if micros is None else Cell(
        wording.second(micros), wording.moment(micros))


def time_of(at: datetime.datetime | None) -> Cell:
    """Return an aware datetime as :func:`instant` does."""
    return instant(None if at is None else schedule.instant_of(at))


def table(columns: Mapping[str, Callable[[T], object]], rows: Iterable[T],
          people: bool) -> Output:
    """Return the titles of *columns*, and their values in each row.

    :param people: True for the values that people read.
    """
    def form(value: object) -> object:
        return value if not isinstance(value, Cell) else (
            value.for_people if people else value.for_programs)
    return (
        [title.removesuffix(' (s)' * people) for title in columns],
        [[form(value(row)) for value in columns.values()] for row in rows])


def known(data: Iterable[object]) -> list[Any]:
    """Return *data* with None in place of empty and unknown values."""
    return [
        known(one) if isinstance(one, (list, tuple)) else
        None if one == '' or isinstance(one, Nothing) else one
        for one in data]


class DeclaredList(abc.ABC, Generic[T]):
    """Base class of lists, each declared as a query.

    Programs get the unit of an age in its title. One object serves one
    request: :meth:`fetch` may set the attributes that depend on the rows.
    """

    #: Columns to keep if the table is too wide. If these columns do not fit
    #: either, or if there are none, each row becomes a block of lines.
    essential: Sequence[str] = ()
    #: The value in each column, by the title of the column.
    columns: Mapping[str, Callable[[T], object]]
    #: Titles of the columns that only people, or only programs, get.
    only_people: Sequence[str] = ()
    only_programs: Sequence[str] = ()
    #: The sentence above the table.
    sentence = ''
    #: The sentence if there is no row.
    empty = ''
    #: The sentence if there are as many rows as the option --limit allows.
    cut = 'The first {}; see --limit.'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that select the rows."""

    @abc.abstractmethod
    def fetch(self, sources: Sources) -> Sequence[T]:
        """Return the rows of the list."""

    def read(self, sources: Sources, people: bool) -> Output:
        """Return the titles and the values, and set the sentence.

        :param people: True for the values that people read.
        """
        #: The rows that :meth:`fetch` has returned.
        self.rows = self.fetch(sources)
        if not self.rows:
            self.sentence = self.sentence or self.empty
        elif len(self.rows) == getattr(sources.parsed, 'limit', None):
            self.sentence = ' '.join(filter(None, [
                self.cut.format(len(self.rows)), self.sentence]))
        return self.output(self.rows, people)

    def output(self, rows: Sequence[T], people: bool) -> Output:
        """Return the titles and the values of rows that were read.

        :param people: True for the values that people read.
        """
        omitted = self.only_programs if people else self.only_people
        return table({
            title: value for title, value in self.columns.items()
            if title not in omitted}, rows, people)
