# SPDX-License-Identifier: Apache-2.0
"""Reader of workflow files in YAML or JSON, which reports where errors are.

A file whose name ends with ``.json`` is read as JSON, and any other file as
YAML 1.1. A YAML parser would read some values of JSON differently, such as
numbers with an exponent and escaped characters outside the Basic Multilingual
Plane.
"""

import functools
import json
import os
import re
import stat
from typing import Any

import yaml

from distperiodic.core import definitions
from distperiodic.core import workflow
from distperiodic.core.values import shown
from distperiodic.exceptions import InvalidWorkflow

# Maximum number of bytes of a file. PyYAML reads some 100,000 bytes a second.
_LONGEST = 2_000_000
# Maximum number of lists and dictionaries around a value. A valid file has 4.
_DEEPEST = 20
# Maximum number of values, if each alias is replaced by its value.
_MOST_VALUES = 500_000
# Maximum number of characters of a problem, which may quote the file.
_LONGEST_PROBLEM = 300
_TOO_DEEP = ('the values are nested too deeply, or contain themselves; write '
             'each workflow as a list of steps')
_TWICE = '{!r} is given twice; remove or rename one of them'
# Strings and brackets of a JSON text.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
_SPACE = re.compile(r'[ \t\n\r]*')


class _Unreadable(Exception):
    """An error in the text of a file, and its place as ``':LINE:COLUMN'``."""

    def __init__(self, text: str, place: str):
        super().__init__(text)
        self.place = place


def read_workflows(path: str) -> dict[str, workflow.Definition]:
    """Return the workflows in the file *path*, by type.

    :raises InvalidWorkflow: The file cannot be read, or a workflow is
        invalid. The message gives the line and the column.
    """
    try:
        text = _content(path).decode('utf-8-sig')
    except (OSError, ValueError) as exc:
        raise InvalidWorkflow(
            f'{path}: {getattr(exc, "strerror", None) or exc}; correct '
            '[distperiodic] workflows, or make the file readable as UTF-8'
        ) from None
    read = _read_json if path.lower().endswith('.json') else _read_yaml
    try:
        source, locate = read(text)
    except _Unreadable as exc:
        problem = str(exc)
        if len(problem) > _LONGEST_PROBLEM:
            half = _LONGEST_PROBLEM // 2
            problem = f'{problem[:half]}...{problem[-half:]}'
        raise InvalidWorkflow(f'{path}{exc.place}: {problem}') from None
    return definitions.parse_workflows(
        {} if source is None else source, path, locate)


def _content(path: str) -> bytes:
    """Return the content of a regular file.

    :raises OSError: The file cannot be read, or is not a regular file. A
        device or a FIFO may have no end, or never answer.
    :raises ValueError: The file is too long, or its path is invalid.
    """
    # Opening a FIFO without O_NONBLOCK waits for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, 'rb') as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError('not a regular file')
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ValueError(f'longer than {_LONGEST} bytes')
    return content


def _place(text: str, offset: int) -> str:
    before = text[:offset].split('\n')
    return f':{len(before)}:{len(before[-1]) + 1}'


# -- JSON

def _read_json(text: str) -> tuple[Any, definitions.Locate]:
    """Return the value of a JSON text, and a function that locates its parts.

    :raises _Unreadable: The text is not JSON, has a key twice, or is nested
        too deeply.
    """
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += {'[': 1, '{': 1, ']': -1, '}': -1}.get(token[0], 0)
        if depth > _DEEPEST:
            raise _Unreadable(_TOO_DEEP, _place(text, token.start()))
    try:
        source = _DECODER.decode(text)
    except json.JSONDecodeError as exc:
        raise _Unreadable(
            f'{exc.msg}; correct the JSON here, or rename the file if it is '
            'YAML', f':{exc.lineno}:{exc.colno}') from None
    offsets: dict[definitions.Path, int] = {}
    _record_offsets(text, _skip(text, 0), (), offsets)

    def locate(path: definitions.Path) -> str:
        while path not in offsets:
            path = path[:-1]
        return _place(text, offsets[path])
    return source, locate


def _record_offsets(text: str, at: int, path: definitions.Path,
                    offsets: dict[definitions.Path, int]) -> int:
    """Record the offset of a value, and of the values in it, by their paths.

    :param text: A valid JSON text.
    :param at: Offset of the value.
    :param path: Path to the value.
    :returns: The offset after the value.
    :raises _Unreadable: A dictionary has a key twice.
    """
    offsets[path] = at
    opening = text[at]
    if opening not in '[{':
        return _DECODER.raw_decode(text, at)[1]
    part: str | int
    index, at = 0, _skip(text, at + 1)
    while text[at] not in ']}':
        part = index
        if opening == '{':
            part, colon = _DECODER.raw_decode(text, at)
            if (*path, part) in offsets:
                raise _Unreadable(_TWICE.format(part), _place(text, at))
            at = _skip(text, _skip(text, colon) + 1)
        end = _record_offsets(text, at, (*path, part), offsets)
        at = _skip(text, end)
        if text[at] == ',':
            at = _skip(text, at + 1)
        index += 1
    return at + 1


def _skip(text: str, at: int) -> int:
    """Return the offset of the first character at or after *at* that is not a
    space.
    """
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _integer(text: str) -> int | float:
    # Python refuses to convert a text of very many digits to an int.
    return int(text) if len(text) < 1000 else float(text)


_DECODER = json.JSONDecoder(parse_int=_integer)


# -- YAML

def _loader(text: str) -> Any:
    """Return a YAML loader that locates the values that Python cannot
    represent. It also limits the depth of the values.
    """
    loader = yaml.SafeLoader(text)
    compose, construct = loader.compose_node, loader.construct_object
    depth = 0

    def compose_node(parent: Any, index: Any) -> Any:
        nonlocal depth
        if depth > _DEEPEST:
            raise _Unreadable(
                _TOO_DEEP, _mark(loader.peek_event().start_mark))
        depth += 1
        try:
            return compose(parent, index)
        finally:
            depth -= 1

    def construct_object(node: Any, deep: bool = False) -> Any:
        try:
            return construct(node, deep)
        except (ArithmeticError, AttributeError, LookupError,
                ValueError):
            kind = node.tag.rpartition(':')[2]
            raise _Unreadable(
                f'{shown(node.value)} is not a valid {kind}; correct the '
                'value, or put it in quotes without a tag',
                _mark(node.start_mark)) from None

    loader.compose_node = compose_node
    loader.construct_object = construct_object
    return loader


def _read_yaml(text: str) -> tuple[Any, definitions.Locate]:
    """Return the value of a YAML text, and a function that locates its parts.

    :raises _Unreadable: The text is not YAML, has a key twice, has a key or a
        value that is not allowed, or is nested too deeply.
    """
    try:
        loader = _loader(text)
        root = loader.get_single_node()
        source = None
        if root is not None:
            _check_keys(root, 0, {})
            _check_number(root, {})
            source = loader.construct_document(root)
    except yaml.reader.ReaderError as exc:
        raise _Unreadable(
            f'the character {chr(exc.character)!r} is not allowed in YAML; '
            'remove it, or write it as an escape in double quotes',
            _place(text, exc.position)) from None
    except yaml.MarkedYAMLError as exc:
        problem, remedy = exc.problem, 'correct the YAML here'
        if isinstance(exc, yaml.composer.ComposerError):
            problem = ', '.join(filter(None, [exc.context, problem]))
        elif isinstance(exc, yaml.constructor.ConstructorError):
            remedy = ('write a text, a number, a list or a dictionary, '
                      'without a tag')
        raise _Unreadable(
            f'{problem or exc.context}; {remedy}',
            _mark(exc.problem_mark or exc.context_mark)) from None
    return source, functools.partial(_locate, root)


def _mark(mark: Any) -> str:
    return '' if mark is None else f':{mark.line + 1}:{mark.column + 1}'


def _check_keys(node: Any, depth: int, checked: dict[int, int]) -> None:
    """Check that no key is a list or a dictionary, or occurs twice.

    YAML itself would accept a repeated key, and use its last value.

    :param depth: Number of values around *node*. A value that contains itself
        is infinitely deep.
    :param checked: Greatest depth at which each node was checked, by the
        identity of the node. A node with an alias is part of several others.
    :raises _Unreadable: A key is a list or a dictionary, a key occurs twice,
        or the values are nested too deeply.
    """
    if checked.get(id(node), -1) >= depth:
        return
    checked[id(node)] = depth
    if depth > _DEEPEST:
        raise _Unreadable(_TOO_DEEP, _mark(node.start_mark))
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Unreadable(
                    'a key must be text, not a list or a dictionary; write '
                    'the key as text', _mark(key.start_mark))
            if key.value in seen:
                raise _Unreadable(
                    _TWICE.format(key.value), _mark(key.start_mark))
            seen.add(key.value)
            _check_keys(value, depth + 1, checked)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, depth + 1, checked)


def _check_number(node: Any, numbers: dict[int, int]) -> int:
    """Return the number of values in *node*, with each alias replaced.

    :param numbers: Results for the nodes that were counted, by the identity of
        the node.
    :raises _Unreadable: There are too many values.
    """
    known = numbers.get(id(node))
    if known is not None:
        return known
    number = 1
    if isinstance(node, yaml.MappingNode):
        number += sum(_check_number(value, numbers) for _, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        number += sum(_check_number(item, numbers) for item in node.value)
    if number > _MOST_VALUES:
        raise _Unreadable(
            f'the aliases repeat values too often: {number} values, but the '
            f'limit is {_MOST_VALUES}; use fewer aliases',
            _mark(node.start_mark))
    numbers[id(node)] = number
    return number


def _locate(root: Any, path: definitions.Path) -> str:
    """Return ``':LINE:COLUMN'`` of the value at *path*.

    If this value does not exist, return the place of the innermost value on
    the path that exists.
    """
    node = root
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            continue
        found = [value for key, value in getattr(node, 'value', ())
                 if key.value == str(part)] if isinstance(
                     node, yaml.MappingNode) else []
        if not found:
            break
        node = found[0]
    return '' if node is None else _mark(node.start_mark)
