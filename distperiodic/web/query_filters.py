# SPDX-License-Identifier: Apache-2.0
"""The filters of a list in the address of a page.

A list declares its filters as options of a command line. The same parser reads
them from the query string: ``?status=stuck`` is ``--status stuck``.
"""

import argparse
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple
from typing import NoReturn

from distperiodic.operator.cells import DeclaredList

#: Names in a query string that are not filters of the list.
OF_PAGE = ('poll', 'done')
#: Maximum number of rows of one page.
MOST_ROWS = 1000


class BadFilter(Exception):
    """A filter in the address cannot be used. The text is for the user."""


class Incomplete(Exception):
    """The address lacks a name. The text is for the user."""


class BadField(Exception):
    """A field of a form cannot be used. The text is for the user."""


class Field(NamedTuple):
    """A filter as a field of a form."""

    name: str
    label: str
    #: Value in the address, or else the default.
    value: str
    help: str
    #: Values to choose from. Empty means any text.
    choices: tuple[str, ...]
    #: True if the filter has no value, and is on or off.
    flag: bool
    on: bool


class _Parser(argparse.ArgumentParser):

    def error(self, message: str) -> NoReturn:
        raise BadFilter(message.replace('argument --', 'filter ').replace(
            'argument ', 'filter '))


class QueryFilters:
    """The filters of one list."""

    def __init__(self, declared: DeclaredList[Any]):
        self._parser = _Parser(add_help=False, allow_abbrev=False)
        declared.add_options(self._parser)
        self._actions = {
            _name(action): action for action in self._parser._actions
            if action.help != argparse.SUPPRESS}

    def parse(self, given: Iterable[tuple[str, str]],
              *positional: str) -> argparse.Namespace:
        """Return the values of the filters.

        :param given: Names and values in the query string. An empty value is
            an empty field of a form, and is ignored.
        :param positional: Values that the path of the address gives.
        :raises BadFilter: there is no such filter, or its value cannot be
            used.
        """
        words: list[str] = []
        for name, value in given:
            if name in OF_PAGE or not value:
                continue
            action = self._actions.get(name)
            if action is None or positional and not action.option_strings:
                known = ', '.join(self._actions) or 'none'
                raise BadFilter(
                    f'there is no filter {name!r}; the filters are: {known}')
            if not action.option_strings:
                positional = value,
            elif action.nargs == 0:
                words.append(action.option_strings[-1])
            else:
                words.append(f'{action.option_strings[-1]}={value}')
        if positional:
            words += ['--', *positional]
        found = self._parser.parse_args(words)
        if getattr(found, 'limit', 0) > MOST_ROWS:
            raise BadFilter(
                f'filter limit: {found.limit} cannot be used; give a whole '
                f'number from 1 to {MOST_ROWS}')
        return found

    def fields(self, given: Iterable[tuple[str, str]]) -> list[Field]:
        """Return the filters as fields of a form."""
        values = dict(given)
        return [Field(
            name, name.replace('-', ' ').capitalize(),
            values.get(name, ''), (action.help or '').partition(';')[0],
            tuple(map(str, action.choices or ())), action.nargs == 0,
            bool(values.get(name)))
            for name, action in self._actions.items()]


def _name(action: argparse.Action) -> str:
    """Return the name of a filter in an address."""
    return (action.option_strings[-1].lstrip('-') if action.option_strings
            else action.dest)
