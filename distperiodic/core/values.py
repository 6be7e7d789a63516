# SPDX-License-Identifier: Apache-2.0
"""Bounds for values that come from outside: how deep, how large, of what kind.

Parameters, results and progress are checked where they enter. After the check
they can be written as JSON, read from it, compared, copied and shown without
an error, whatever they were made of.
"""

import itertools
import json
import math
import reprlib
from typing import Any

#: Maximum number of lists and dictionaries around a value. Python's own limit
#: depends on the calls in progress, so it is reached at another depth wherever
#: the value is read.
MAX_DEPTH = 100
#: Maximum number of decimal digits of an integer. Each such integer can be
#: converted to a float and to text.
MAX_DIGITS = 300
_MAX_INT: int = 10 ** MAX_DIGITS
_KINDS = 'use text, numbers, true, false, None, lists and dictionaries'


class InvalidValue(ValueError):
    """A value that is not allowed. The text names its place and the remedy."""

    def __init__(self, problem: str):
        super().__init__()
        self._problem = problem
        #: Keys and indexes on the path to the value, the last one first.
        self._path: list[str] = []

    def add(self, part: str) -> None:
        """Add a key or an index in front of the path to the value."""
        self._path.append(part)

    def __str__(self) -> str:
        path = ''.join(reversed(self._path)).removeprefix('.')
        if len(path) > 100:
            path = f'{path[:97]}...'
        return f'{path}: {self._problem}' if path else self._problem


def json_text(value: Any, most: int, *, sort_keys: bool = False) -> str:
    """Return the JSON text of a value.

    :param most: Maximum number of characters of the text.
    :raises InvalidValue: The value is of another kind than JSON has, is nested
        too deeply, contains itself, is too large, or has a key that is not
        text.
    """
    try:
        # A text is at least as long as the value, and often not much longer.
        # The exact length is known, and shown, if it is not extreme.
        plain = _plain(value, MAX_DEPTH, _Room(4 * most))
        text = json.dumps(plain, sort_keys=sort_keys)
    except RecursionError:
        raise _too_deep() from None
    if len(text) > most:
        raise InvalidValue(too_large(str(len(text)), most))
    return text


class _Room:
    """Characters that a value may still have."""

    def __init__(self, most: int):
        self._most = self.left = most

    def take(self, number: int) -> None:
        self.left -= number
        if self.left < 0:
            raise InvalidValue(
                too_large(f'more than {self._most}', self._most // 4))


def too_large(number: str, most: int) -> str:
    """Return the problem of a value with too many characters as JSON."""
    return (f'the value has {number} characters as JSON, but the limit is '
            f'{most}; store the data elsewhere, and its location here')


def _too_deep() -> InvalidValue:
    return InvalidValue(
        f'the value is nested more than {MAX_DEPTH} levels deep, or contains '
        'itself; use fewer levels')


def _plain(value: Any, depth: int, room: _Room) -> Any:
    """Return a copy of *value* that consists of JSON's own types.

    A value may be of a subclass with methods of its own. So call only the
    methods of JSON's types.

    :param depth: Maximum number of lists and dictionaries in each other.
    """
    room.take(2)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _plain_text(value, room)
    if isinstance(value, int):
        number = int.__pos__(value)
        if not -_MAX_INT < number < _MAX_INT:
            raise InvalidValue(
                f'the number has more than {MAX_DIGITS} digits; use text')
        return number
    if isinstance(value, float):
        real = float.__pos__(value)
        if not math.isfinite(real):
            raise InvalidValue(f'JSON has no number {real}; {_KINDS}')
        return real
    if not isinstance(value, (dict, list, tuple)):
        raise InvalidValue(
            f'JSON has no {kind_of(value)}, {shown(value)}; {_KINDS}')
    if not depth:
        raise _too_deep()
    part = ''
    try:
        if isinstance(value, dict):
            found = {}
            # Another thread may change the dictionary meanwhile.
            for key, item in list(dict.items(value)):
                part = ''
                if not isinstance(key, str):
                    raise InvalidValue(
                        f'the key {shown(key)} is not text; use text as keys')
                name = _plain_text(key, room)
                part = f'.{shown(name)[1:-1]}'
                found[name] = _plain(item, depth - 1, room)
            return found
        items = []
        for index, item in enumerate(
                list.copy(value) if isinstance(value, list)
                else tuple.__iter__(value)):
            part = f'[{index}]'
            items.append(_plain(item, depth - 1, room))
        return items
    except InvalidValue as exc:
        exc.add(part)
        raise


def _plain_text(value: str, room: _Room) -> str:
    text = str.__str__(value)
    room.take(len(text))
    if not text.isascii():
        # A lone surrogate is valid in JSON, but no database stores it.
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidValue(
                f'the text {shown(text)} is not valid Unicode ({exc.reason}); '
                'use text without lone surrogates') from None
    return text


def kind_of(value: object) -> str:
    """Return the name of a value's type."""
    return type(value).__name__[:60]


class _Short(reprlib.Repr):
    """Writer of the start of a value, which takes limited time and memory."""

    def repr_dict(self, value: Any, level: int) -> str:
        # The method of the base class sorts all keys.
        if level <= 0:
            return '{...}'
        pairs = []
        for at, key in enumerate(value):
            if at == self.maxdict:
                pairs.append('...')
                break
            pairs.append(f'{self.repr1(key, level - 1)}: '
                         f'{self.repr1(value[key], level - 1)}')
        return f'{{{", ".join(pairs)}}}'

    def repr_set(self, value: Any, level: int) -> str:
        # The method of the base class sorts all items.
        some = list(itertools.islice(value, self.maxlist + 1))
        return f'{{{self.repr_list(some, level)[1:-1]}}}'

    def repr_frozenset(self, value: Any, level: int) -> str:
        return f'frozenset({self.repr_set(value, level)})'

    def repr_bytes(self, value: Any, level: int) -> str:
        return repr(value[:self.maxstring])

    def repr_int(self, value: Any, level: int) -> str:
        if -_MAX_INT < value < _MAX_INT:
            return int.__repr__(value)
        return f'an integer of {value.bit_length()} bits'


def _short(most: int) -> _Short:
    short = _Short()
    short.maxlevel = 6
    short.maxstring = short.maxother = 2 * most
    short.maxdict = short.maxlist = short.maxtuple = 30
    return short


def shown(value: object, most: int = 60) -> str:
    """Return *value* for an error message, of at most *most* characters.

    The function raises no error, whatever *value* is.
    """
    try:
        if type(value) is str:
            text = repr(value[:most])
            if len(value) > most:
                text += '...'
        else:
            text = _short(most).repr(value)
    except Exception:
        text = f'<{kind_of(value)}>'
    return text if len(text) <= most else f'{text[:most - 3]}...'
