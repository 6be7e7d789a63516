# SPDX-License-Identifier: Apache-2.0
"""The screen of ``distperiodic top``: what it shows, and what its keys do.

This module reads neither the store nor the terminal.
"""

import enum
import textwrap
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from distperiodic.cmd.display import rows_that_fit
from distperiodic.core import printable
from distperiodic.core import wording
from distperiodic.operator.health import Finding
from distperiodic.operator.health import Severity

#: Maximum number of findings that are shown.
_FINDINGS = 5
_KEYS = ('q quit   space pause   / filter   ↑ ↓ select   '
         'enter why   esc clear')
_COLOURS = {Severity.FAILURE: 'bold red', Severity.WARNING: 'yellow'}


class ScreenRow(NamedTuple):
    """One row of a section."""

    cells: Sequence[str]
    #: The job and the object that the row names. None means that the row
    #: names no object.
    about: tuple[str, str] | None = None

    def matches(self, text: str) -> bool:
        """Return whether a cell contains *text*, ignoring case."""
        return any(text.lower() in cell.lower() for cell in self.cells)


class Section(NamedTuple):
    """A list on the screen."""

    title: str
    columns: Sequence[str]
    rows: Sequence[ScreenRow]
    #: Sentence about the list, for example that it is empty.
    sentence: str = ''
    #: Columns to keep if the table is too wide.
    essential: Sequence[str] = ()


class Snapshot(NamedTuple):
    """The state of a group at one moment."""

    #: Microseconds since the epoch.
    at: int
    headline: str
    findings: Sequence[Finding]
    sections: Sequence[Section]


class Wish(enum.Enum):
    """Requests of the user that need the command."""

    QUIT = enum.auto()
    ANSWER = enum.auto()


class Screen:
    """State of the screen, and its picture."""

    def __init__(self) -> None:
        #: None means that the group was not read yet.
        self.snapshot: Snapshot | None = None
        #: True if the user has paused the screen.
        self.paused = False
        self.filter = ''
        #: The account of an object, which covers the lists. None means that
        #: the lists are shown.
        self.answer: Mapping[str, object] | None = None
        self._typing = False
        #: Place of the selected row among those that name an object, and the
        #: object: after the next read it may be in another place.
        self._at = 0
        self._chosen: tuple[str, str] | None = None

    def press(self, key: str) -> Wish | None:
        """Handle a key: a character, ``up``, ``down``, ``enter``, ``escape``
        or ``backspace``.
        """
        if self.answer is not None:
            self.answer = None
        elif self._typing and key not in ('enter', 'escape', 'up', 'down'):
            self.filter = (self.filter[:-1] if key == 'backspace'
                           else self.filter + key)
        elif key == 'enter':
            if not self._typing:
                return Wish.ANSWER if self.selected else None
            self._typing = False
        elif key == 'escape':
            self._typing, self.filter = False, ''
        elif key in ('up', 'k', 'down', 'j'):
            self._select(1 if key in ('down', 'j') else -1)
        elif key == '/':
            self._typing = True
        elif key == ' ':
            self.paused = not self.paused
        elif key == 'q':
            return Wish.QUIT
        return None

    def _select(self, step: int) -> None:
        about, selected = self._about(), self.selected
        if selected is not None:
            self._at = max(0, min(
                about.index(selected) + step, len(about) - 1))
            self._chosen = about[self._at]

    @property
    def selected(self) -> tuple[str, str] | None:
        """The job and the object of the selected row. None: no row has one."""
        about = self._about()
        if self._chosen in about:
            return self._chosen
        return about[min(self._at, len(about) - 1)] if about else None

    def _about(self) -> list[tuple[str, str]]:
        return [row.about for section in self._sections()
                for row in section.rows if row.about is not None]

    def _sections(self) -> list[Section]:
        """Return the sections with the rows that match the filter."""
        return [] if self.snapshot is None else [
            one._replace(rows=[
                row for row in one.rows if row.matches(self.filter)])
            for one in self.snapshot.sections]

    def draw(self, width: int, height: int) -> RenderableType:
        """Return the picture, for a terminal of this size in characters."""
        if self.answer is not None:
            return Group(_details(self.answer), Text(
                '\nany key: back to the lists', 'dim'))
        if self.snapshot is None:
            return Text('reading the group ...', 'dim')
        shown = self.snapshot
        head = [Text(f'{wording.second(shown.at)}  ', 'dim').append(
            printable.escaped(shown.headline), 'bold' if shown.findings
            else 'bold green'), *_findings(shown.findings, width)]
        foot = Text(_KEYS, 'dim')
        if self.paused:
            foot = Text('paused; space continues   ', 'reverse') + foot
        if self.filter or self._typing:
            foot = Text(f'filter: {printable.escaped(self.filter)}'
                        + '█' * self._typing + '   ', 'bold') + foot
        return Group(*(_cut(line) for line in head), *self._tables(
            width, height - len(head) - 1), _cut(foot))

    def _tables(self, width: int, lines: int) -> Iterator[RenderableType]:
        """Yield the sections, in at most *lines* lines."""
        sections = self._sections()
        selected = self.selected
        for number, one in enumerate(sections):
            # The title, and the heads of the columns.
            share = lines // (len(sections) - number)
            rows = _around(selected, one.rows, max(0, share - 3))
            title = f'{one.title} ({len(one.rows)})'
            if len(rows) < len(one.rows):
                title = f'{one.title} ({len(rows)} of {len(one.rows)})'
            yield _cut(Text(title, 'bold cyan').append(
                f'  {printable.escaped(one.sentence)}', 'dim'))
            lines -= 2 + len(rows)
            if rows:
                lines -= 1
                yield _table(one, rows, selected, width)
            yield Text()


def _around(selected: tuple[str, str] | None, rows: Sequence[ScreenRow],
            most: int) -> Sequence[ScreenRow]:
    """Return at most *most* rows, with the selected one if it is among them.
    """
    at = next((at for at, row in enumerate(rows)
               if row.about is not None and row.about == selected), 0)
    begin = max(0, at - most + 1)
    return rows[begin:begin + most]


def _cut(line: Text) -> Text:
    line.no_wrap, line.overflow = True, 'ellipsis'
    return line


def _findings(findings: Sequence[Finding], width: int) -> Iterator[Text]:
    for one in findings[:_FINDINGS]:
        since = '' if one.since is None else (
            f' (since {wording.second(one.since)})')
        for text, style in (
                (f'{one.severity.value} {one.code}: {one.about}: {one.text}'
                 f'{since}', _COLOURS[one.severity]),
                (f'do: {one.remedy}', 'dim')):
            for line in textwrap.wrap(
                    printable.escaped(text), width, max_lines=2,
                    placeholder=' …', initial_indent='  ' * (style == 'dim'),
                    subsequent_indent='    '):
                yield Text(line, style)
    if len(findings) > _FINDINGS:
        yield Text(f'and {len(findings) - _FINDINGS} more: distperiodic '
                   'status', 'dim')


def _table(section: Section, rows: Sequence[ScreenRow],
           selected: tuple[str, str] | None, width: int) -> Table:
    columns, cells = _columns_that_fit(section, [
        [printable.escaped(cell) for cell in row.cells] for row in rows],
        width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0),
                  header_style='dim')
    for column in columns:
        table.add_column(column, no_wrap=True, overflow='ellipsis')
    for row, texts in zip(rows, cells, strict=True):
        chosen = selected is not None and row.about == selected
        table.add_row(*(Text(str(text)) for text in texts),
                      style='reverse' if chosen else None)
    return table


def _columns_that_fit(
        section: Section, cells: Sequence[Sequence[object]], width: int
        ) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return the columns, the essential ones, or the first of all that fit."""
    columns = section.columns
    essential: Sequence[str] = [
        one for one in section.essential if one in columns]
    shown = rows_that_fit(columns, cells, essential, width)
    while shown is None and len(columns) > 1:
        columns, cells = columns[:-1], [row[:-1] for row in cells]
        shown = rows_that_fit(columns, cells, (), width)
    return shown or (columns, cells)


def _details(facts: Mapping[str, object]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(Text(name, 'dim'), Text(
            printable.escaped_lines(str(value))))
    return table
