# SPDX-License-Identifier: Apache-2.0
"""How commands show lists and records, to people and to programs."""

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured

# Characters in a line that everything fits into.
_NARROWEST = 40


class Nothing(str):
    """What people read where programs read null."""


NEVER = Nothing('never')
#: The formats that programs read.
FOR_PROGRAMS = ('json', 'yaml', 'csv')


def key(title: str) -> str:
    """The title of a column as programs read it: 'Mean late (ms)' is
    'mean_late_ms'.
    """
    return re.sub('[^a-z0-9]+', '_', title.lower()).strip('_')


class Display(configured.Configured):
    """A part of a cliff command that shows a list or a record.

    People read titles, and lines that fit their terminal. Programs read keys
    in snake_case, which end in the unit where there is one, and null where
    nothing is known.
    """

    #: The columns that are left of a table that is too wide; none: each row
    #: becomes a block of lines.
    essential: Sequence[str] = ()

    _normalize_column_name = staticmethod(key)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        for action in parser._actions:
            if action.choices and action.metavar is None:
                # Lists of choices do not break into lines.
                action.metavar = action.dest.upper()
                action.help = (f'{action.help} '
                               f'({", ".join(map(str, action.choices))})')
            if '--sort-ascending' in action.option_strings:
                # That is how it is sorted anyway.
                action.help = argparse.SUPPRESS
        return parser

    def _generate_columns_and_selector(
            self, parsed: argparse.Namespace,
            columns: Sequence[str]) -> Any:
        """:raises ConfigError: -c names no column that there is."""
        command: Any = super()
        try:
            return command._generate_columns_and_selector(parsed, columns)
        except ValueError:
            raise exceptions.ConfigError(
                f'there is no column {configured.listed(parsed.columns)}; '
                f'the columns are {", ".join(map(key, columns))}') from None

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        command: Any = super()
        if parsed.formatter in FOR_PROGRAMS:
            return command.produce_output(
                parsed, list(map(key, columns)), _known(data))
        line = _line(parsed)
        if line is None:
            return command.produce_output(parsed, columns, data)
        if not isinstance(self, lister.Lister):
            parsed.max_width = line
            return command.produce_output(parsed, columns, data)
        rows = [list(row) for row in data]
        tables = [(columns, rows)]
        if not parsed.columns:
            tables.append(_shortened(columns, rows, self.essential))
        for shown, cells in tables:
            if _fits(shown, cells, line):
                return command.produce_output(parsed, shown, cells)
        app: Any = self.app
        print(_blocks(columns, rows, line), file=app.stdout)
        return 0


class Table(Display):
    """A part of a cliff lister: a sentence above its table."""

    #: What is said above the table; on stderr where a program reads it.
    sentence = ''

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        # It refuses columns that are not there.
        self._generate_columns_and_selector(parsed, columns)
        if self.sentence:
            app: Any = self.app  # type: ignore[attr-defined]
            line = _line(parsed)
            print(self.sentence if line is None else '\n'.join(
                textwrap.fill(part, line)
                for part in self.sentence.splitlines()),
                  file=app.stdout if parsed.formatter == 'table'
                  else app.stderr)
        return super().produce_output(parsed, columns, data)


def _known(data: Any) -> Any:
    """The same with None for what there is not, in a list or a record."""
    return [
        _known(one) if isinstance(one, (list, tuple)) else
        None if one == '' or isinstance(one, Nothing) else one
        for one in data]


def _line(parsed: argparse.Namespace) -> int | None:
    """Characters in a line for people; None: as many as it takes."""
    if parsed.formatter != 'table' or parsed.max_width > 0:
        return None
    if os.environ.get('COLUMNS', '').isdigit() or sys.stdout.isatty():
        return width(default=80)
    return None


def _fits(columns: Sequence[str], rows: Sequence[Sequence[Any]],
          line: int) -> bool:
    """Whether a table of it is no wider than *line*."""
    widest = [max(len(part) for cell in cells
                  for part in str(cell).splitlines() or [''])
              for cells in zip(columns, *rows, strict=True)]
    return sum(widest) + 3 * len(widest) + 1 <= line


def _shortened(columns: Sequence[str], rows: Sequence[Sequence[Any]],
               essential: Sequence[str]
               ) -> tuple[Sequence[str], list[list[Any]]]:
    """The columns of a narrow table; all, where it is another table."""
    if not essential or not set(essential).issubset(columns):
        essential = columns
    kept = [at for at, name in enumerate(columns) if name in essential]
    return ([columns[at] for at in kept],
            [[row[at] for at in kept] for row in rows])


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[Any]],
            line: int) -> str:
    """A block of lines for each row, without what is empty."""
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
    """Characters in a line of the terminal; COLUMNS goes first.

    :param default: where there is neither.
    """
    return max(_NARROWEST, shutil.get_terminal_size((default, 24)).columns)
