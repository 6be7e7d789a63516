# SPDX-License-Identifier: Apache-2.0
"""A request for a page, and its answer."""

import argparse
import copy
import dataclasses
import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple
from urllib.parse import quote
from urllib.parse import urlencode

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator.auditing import Event
from distperiodic.operator.cells import DeclaredList
from distperiodic.operator.sources import Sources
from distperiodic.web.query_filters import OF_PAGE
from distperiodic.web.query_filters import Field
from distperiodic.web.query_filters import QueryFilters
from distperiodic.web.verbs import VERBS
from distperiodic.web.verbs import PageVerb

if TYPE_CHECKING:
    from distperiodic.web.access import Access


# Option of the list, as the sentence of a command names it.
_OPTION = re.compile(r'(?<=see )--(\w+)')


class Button(NamedTuple):
    """A button that requests an action."""

    label: str
    address: str


class ActionNotice(NamedTuple):
    """An action that was just carried out, and the answers to it."""

    event: Event
    #: Number of members that were asked, and the labels of those that have not
    #: answered.
    asked: int
    missing: Sequence[str]


class NotFound(Exception):
    """There is no such job, object or task. The text is for the user."""


class PageSources(Sources):
    """The sources of the lists of one page."""

    def with_filters(self, parsed: argparse.Namespace) -> 'PageSources':
        """Return these sources for another list of the same page."""
        # Open the store here, so that the lists of a page share it.
        if self.settings.connection:
            assert self.store
        found = copy.copy(self)
        found.parsed = parsed
        return found


class Addresses:
    """The addresses of pages.

    :param root: Prefix under which the page is mounted.
    """

    def __init__(self, root: str):
        self.root = quote(root.rstrip('/'))

    def __call__(self, *parts: str) -> str:
        """Return the address of a page, given the parts of its path."""
        if parts and parts[-1] in ('.', '..'):
            # A browser would remove this part of a path.
            return (f'{self(*parts[:-1])}?object='
                    f'{quote(parts[-1], safe="")}')
        return '/'.join([self.root, *(
            quote(one, safe='') for one in parts or ('',))])

    def twin(self, here: str, query: str) -> str:
        """Return the address of the same page for programs.

        :param here: Path of the page, without the prefix.
        """
        return f'{self.root}/api{quote(here)}' + (query and f'?{query}')

    def filtered(self, section: str, filters: Mapping[str, str]) -> str:
        """Return the address of a list with filters."""
        return self(section) + (filters and f'?{urlencode(filters)}' or '')

    def action(self, verb: PageVerb, names: Mapping[str, str]) -> str:
        """Return the address of an action on a target."""
        parts, query = verb.parts(names)
        return self(*parts) + (query and f'?{query}')

    def object(self, job: str, key: str) -> str:
        return self('jobs', job, 'objects', key)

    def about(self, about: str, jobs: Sequence[str]) -> str | None:
        """Return the address of what a finding concerns.

        :param jobs: Names of the jobs of the group.
        """
        kind, _, name = about.partition(' ')
        if kind == 'object':
            job = next((one for one in sorted(jobs, key=len, reverse=True)
                        if name.startswith(f'{one}/')), None)
            return None if job is None else self.object(
                job, name.removeprefix(f'{job}/'))
        if kind == 'job':
            return self('jobs', name)
        if kind == 'task':
            return self('tasks', name)
        page = {'scheduler': 'members', 'worker': 'members', 'group': 'ring',
                'queue': 'queues', 'partition': 'partitions'}.get(kind)
        return None if page is None else self(page)


@dataclasses.dataclass
class PageRequest:
    """A request for a page."""

    sources: PageSources
    addresses: Addresses
    #: Names and values in the query string.
    given: Sequence[tuple[str, str]]
    access: 'Access'

    def value(self, name: str) -> str:
        """Return a value in the query string. Empty means that it is missing.
        """
        return dict(self.given).get(name, '')

    def button(self, verb: str, label: str = '', **names: str) -> list[Button]:
        """Return the button of an action in a list.

        The list is empty if the client may not carry out the action.

        :param label: Text of the button. Empty means that of the action.
        :param names: Names of the target.
        """
        found = VERBS[verb]
        # Without a store, an action could not be recorded.
        if not (self.access.may(found, names)
                and self.sources.settings.connection):
            return []
        return [Button(label or found.label, self.addresses.action(
            found, names))]


@dataclasses.dataclass
class Page:
    """The answer to a request, for people and for programs."""

    title: str
    template: str
    #: The values that the template needs.
    values: dict[str, Any]
    #: The same page for programs: what JSON can represent.
    data: Any
    #: Name of the section of the site.
    section: str = ''
    buttons: Sequence[Button] = ()
    #: The action that led to this page. None means that there is none.
    notice: ActionNotice | None = None
    #: Address of the page to show instead. Empty means this page.
    instead: str = ''


def record(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record for programs, as a command prints it with -f json."""
    return dict(zip(map(cells.key, fields), cells.known(fields.values()),
                    strict=True))


#: Function that returns the address to which the value of a cell links, given
#: the values of the row by title.
Link = Callable[[Mapping[str, Any]], str]


@dataclasses.dataclass
class PageTable:
    """A list as it stands on a page."""

    titles: Sequence[str]
    #: Values that people read.
    rows: Sequence[Sequence[Any]]
    #: Addresses by the title of the column.
    links: Mapping[str, Link]
    sentence: str
    #: The rows as programs read them. None means that they are unknown.
    data: list[dict[str, Any]] | None
    fields: Sequence[Field] = ()
    about: str = ''
    #: Rows as the list has them, without conversion.
    found: Sequence[Any] = ()
    #: Titles of columns whose values the page shows elsewhere.
    hidden: Sequence[str] = ()
    #: True leaves out the columns that contain only zeros.
    without_zeros: bool = False
    #: Returns the buttons of a row, given its values by title.
    actions: Callable[[Mapping[str, Any]], Sequence[Button]] | None = None

    @property
    def shown(self) -> list[int]:
        """Numbers of the columns that have a value in any row."""
        nothing = ('', None, 0) if self.without_zeros else ('', None)
        return [at for at, title in enumerate(self.titles)
                if title not in self.hidden and any(
                    row[at] not in nothing for row in self.rows)]

    @property
    def buttons(self) -> list[Sequence[Button]]:
        """Buttons of each row. Empty if no row has any."""
        if self.actions is None:
            return []
        found = [self.actions(dict(zip(self.titles, row, strict=True)))
                 for row in self.rows]
        return found if any(found) else []

    def link(self, title: str, row: Sequence[Any]) -> str | None:
        """Return the address to which a cell links, or None."""
        address = self.links.get(title)
        values = dict(zip(self.titles, row, strict=True))
        if address is None or values[title] in ('', None):
            return None
        return address(values)


def read_list(request: PageRequest, declared: DeclaredList[Any],
              links: Mapping[str, Link], *positional: str,
              given: Sequence[tuple[str, str]] | None = None) -> PageTable:
    """Return a list for a page.

    :param positional: Values of filters that the address of the page gives.
    :param given: Names and values of filters. None means those of the query
        string.
    :raises BadFilter: a filter cannot be used.
    """
    filters = QueryFilters(declared)
    values = request.given if given is None else given
    sources = request.sources.with_filters(
        filters.parse(values, *positional))
    titles, rows = declared.read(sources, True)
    people = _OPTION.sub(r'filter \1', declared.sentence)
    found = declared.rows
    keys, data = declared.output(found, False)
    about = [' '.join(part.split()) for part in (
        declared.__doc__ or '').split('\n\n')]
    return PageTable(
        titles, rows, links, people,
        [dict(zip(map(cells.key, keys), row, strict=True))
         for row in cells.known(data)],
        filters.fields([pair for pair in values if pair[0] not in OF_PAGE]),
        about[0].removeprefix('Show ')[:1].upper()
        + about[0].removeprefix('Show ')[1:], found)


def read_part(request: PageRequest, declared: DeclaredList[Any],
              links: Mapping[str, Link], *positional: str,
              given: Sequence[tuple[str, str]]) -> PageTable:
    """Return a list that is a part of a page; see :func:`read_list`.

    If it cannot be read in time, its sentence gives the reason.
    """
    try:
        return read_list(request, declared, links, *positional, given=given)
    except exceptions.StoreUnavailable as exc:
        return PageTable((), (), {}, 'This part cannot be read now: '
                     f'{wording.one_line(exc)}.', None)
