# SPDX-License-Identifier: Apache-2.0
"""The output of lists and records, for people and for programs."""

import abc
import argparse
import importlib.metadata
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import stevedore
from cliff import display
from cliff import lister
from cliff import show

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import terminal
from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import Session
from distperiodic.core import printable
from distperiodic.operator import cells
from distperiodic.operator.cells import DeclaredList
from distperiodic.operator.cells import Output
from distperiodic.operator.cells import key

T = TypeVar('T')

# Minimum width of a line, in characters, even on a narrower terminal.
_NARROWEST = 40


#: The output formats that programs read.
FOR_PROGRAMS = ('json', 'yaml', 'csv')


class _Formats(stevedore.ExtensionManager[Any]):
    """The output formats of cliff. The base class would search all installed
    packages for further ones, which can take longer than the command.
    """

    def list_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        found = importlib.metadata.distribution('cliff').entry_points
        return list(found.select(group=self.namespace))


class Display(Configured, display.DisplayCommandBase[Any]):
    """Base class of commands that show a list or a record.

    Output for people has titles, and lines that fit the terminal. Output for
    programs has keys in snake_case, in which the unit of a number comes last,
    and null for unknown values.
    """

    #: Columns to keep if the table is too wide. If these columns do not fit
    #: either, or if there are none, each row becomes a block of lines.
    essential: Sequence[str] = ()
    #: Output formats with the forms of values that people read.
    for_people: Sequence[str] = ('table', 'value')
    #: Exit code of the command.
    code = configured.FINE

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager[Any]:
        return _Formats(self.formatter_namespace, invoke_on_load=True)

    def run(self, parsed: argparse.Namespace) -> int:
        return super().run(parsed) or self.code

    def take_action(self, parsed: argparse.Namespace) -> Output:
        #: True if people read the output.
        self.people = parsed.formatter in self.for_people
        with Session(parsed, self) as session:
            return self.act(session)

    @abc.abstractmethod
    def act(self, session: Session) -> Output:
        """Return the titles and the values of the list or the record."""

    @staticmethod
    def _normalize_column_name(column_name: str) -> str:
        return key(column_name)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        for action in parser._actions:
            if action.choices and action.metavar is None:
                # argparse does not wrap a list of choices in the usage.
                action.metavar = action.dest.upper()
                action.help = (f'{action.help} '
                               f'({", ".join(map(str, action.choices))})')
            if '--sort-ascending' in action.option_strings:
                # Lists are sorted in ascending order by default.
                action.help = argparse.SUPPRESS
        return parser

    def _generate_columns_and_selector(
            self, parsed: argparse.Namespace,
            columns: Sequence[str]) -> tuple[list[str], list[bool] | None]:
        """Select the columns that -c names.

        :raises ConfigError: no column that -c names exists.
        """
        try:
            return super()._generate_columns_and_selector(parsed, columns)
        except ValueError:
            raise exceptions.ConfigError(
                f'there is no column {configured.listed(parsed.columns)}; '
                f'the columns are {", ".join(map(key, columns))}') from None

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        # In the base class this method is abstract. Lister or ShowOne follows.
        command: Any = super()
        produce: Callable[[argparse.Namespace, Sequence[str], Any], int] = (
            command.produce_output)
        app: Any = self.app
        if parsed.formatter in FOR_PROGRAMS:
            out = app.stdout
            if not out.isatty():
                # A program compares ids, so csv needs them as they are.
                app.stdout = terminal.Output(out.stream)
            try:
                return produce(
                    parsed, list(map(key, columns)), cells.known(data))
            finally:
                app.stdout = out
        data = _printable(data)
        line = _line(parsed)
        if line is None:
            return produce(parsed, columns, data)
        if not isinstance(self, lister.Lister):
            parsed.max_width = line
            try:
                return produce(parsed, columns, data)
            finally:
                parsed.max_width = 0
        rows = [list(row) for row in data]
        shown = rows_that_fit(
            columns, rows, () if parsed.columns else self.essential, line)
        if shown is not None:
            return produce(parsed, *shown)
        print(_blocks(columns, rows, line), file=app.stdout)
        return 0

    def listing(self, columns: Mapping[str, Callable[[T], object]],
                rows: Iterable[T]) -> Output:
        """Return the titles of *columns*, and their values in each row."""
        return cells.table(columns, rows, self.people)


class Table(Display, lister.Lister):
    """Base class of commands that show a sentence above their table."""

    #: The sentence above the table. For programs it is printed on stderr.
    sentence = ''

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        # Reject unknown columns before anything is printed.
        self._generate_columns_and_selector(parsed, columns)
        if self.sentence:
            line = _line(parsed)
            print(self.sentence if line is None else '\n'.join(
                textwrap.fill(part, line)
                for part in self.sentence.splitlines()),
                  file=self.app.stdout if parsed.formatter == 'table'
                  else self.app.stderr)
        return super().produce_output(parsed, columns, data)


class Details(Display, show.ShowOne):
    """Base class of commands that show one record."""

    #: Titles and rows of the table that people see below the record.
    below: Output | None = None

    def act(self, session: Session) -> Output:
        facts = self.facts(session)
        return tuple(facts), tuple(facts.values())

    @abc.abstractmethod
    def facts(self, session: Session) -> Mapping[str, object]:
        """Return the facts of the record, by name."""

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        code = super().produce_output(parsed, columns, data)
        if self.below is not None and parsed.formatter == 'table' and (
                not parsed.columns):
            titles, rows = self.below[0], _printable(self.below[1])
            line = _line(parsed)
            shown = (titles, rows) if line is None else rows_that_fit(
                titles, rows, self.essential, line)
            if shown is not None:
                self.formatter.emit_list(*shown, self.app.stdout, parsed)
            elif line is not None:
                print(_blocks(titles, rows, line), file=self.app.stdout)
        return code


class List(Table, DeclaredList[Any]):
    """Base class of commands that show a list."""

    def act(self, session: Session) -> Output:
        return self.read(session, self.people)


def _printable(data: Iterable[object]) -> list[Any]:
    """Return *data* with escapes where an id could forge a line."""
    return [
        _printable(one) if isinstance(one, (list, tuple)) else
        printable.escaped(one) if type(one) is str else one
        for one in data]


def _line(parsed: argparse.Namespace) -> int | None:
    """Return the maximum length of a line, in characters.

    None means that lines are not limited: the output is for programs, or has a
    given width, or does not go to a terminal while COLUMNS is not set.
    """
    if parsed.formatter != 'table' or parsed.max_width > 0:
        return None
    if os.environ.get('COLUMNS', '').isdigit() or sys.stdout.isatty():
        return width(default=80)
    return None


def _fits(columns: Sequence[str], rows: Sequence[Sequence[object]],
          line: int) -> bool:
    """Return True if the table is at most *line* characters wide."""
    widest = [max(len(part) for cell in cells
                  for part in str(cell).splitlines() or [''])
              for cells in zip(columns, *rows, strict=True)]
    return sum(widest) + 3 * len(widest) + 1 <= line


def rows_that_fit(
        columns: Sequence[str], rows: Sequence[Sequence[object]],
        essential: Sequence[str], line: int
        ) -> tuple[Sequence[str], Sequence[Sequence[object]]] | None:
    """Return the table, or only its essential columns, if they fit in a line.

    :param essential: Names of columns. Empty means all columns.
    :returns: Columns and rows. None means that even the essential columns do
        not fit.
    """
    for table in ((columns, rows), _shortened(columns, rows, essential)):
        if _fits(*table, line):
            return table
    return None


def _shortened(columns: Sequence[str], rows: Sequence[Sequence[object]],
               essential: Sequence[str]
               ) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return only the essential columns.

    If an essential column is missing in this table, return all columns.
    """
    if not essential or not set(essential).issubset(columns):
        essential = columns
    kept = [at for at, name in enumerate(columns) if name in essential]
    return ([columns[at] for at in kept],
            [[row[at] for at in kept] for row in rows])


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[object]],
            line: int) -> str:
    """Return a block of lines for each row, without empty values."""
    indent = max(map(len, columns)) + 2
    return '\n\n'.join(
        '\n'.join(
            textwrap.fill(
                str(cell), line, initial_indent=f'{name:<{indent}}',
                subsequent_indent=' ' * indent, break_on_hyphens=False)
            for name, cell in zip(columns, row, strict=True)
            if str(cell) not in ('', 'None'))
        for row in rows)


def width(default: int) -> int:
    """Return the number of characters in a line of the terminal.

    The environment variable COLUMNS has priority.

    :param default: Number to return if there is no terminal and no COLUMNS.
    """
    return max(_NARROWEST, shutil.get_terminal_size((default, 24)).columns)
