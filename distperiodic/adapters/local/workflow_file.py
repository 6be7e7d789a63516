# SPDX-License-Identifier: Apache-2.0
"""Reader of workflow files in YAML or JSON, which locates each error."""

import functools
from typing import Any

import yaml

from distperiodic.core import definitions
from distperiodic.core import workflow
from distperiodic.exceptions import InvalidWorkflow


def read_workflows(path: str) -> dict[str, workflow.Definition]:
    """Return the workflows in the file *path*, by type.

    :raises InvalidWorkflow: The file cannot be read, or a workflow is
        invalid. The message gives the line and the column.
    """
    try:
        with open(path, encoding='utf-8') as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidWorkflow(
            f'{path}: {getattr(exc, "strerror", None) or exc}; correct '
            '[distperiodic] workflows, or make the file readable as UTF-8'
        ) from None
    # A YAML parser accepts JSON, except for tabs between values.
    if path.endswith('.json'):
        text = text.replace('\t', ' ')
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_unique(root)
        source = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f':{mark.line + 1}:{mark.column + 1}' if mark else ''
        raise InvalidWorkflow(
            f'{path}{where}: {exc.problem or exc.context}') from None
    except (yaml.YAMLError, ValueError) as exc:
        # A value with a tag such as !!int may not be a number.
        raise InvalidWorkflow(
            f'{path}: {" ".join(str(exc).split())}') from None
    except RecursionError:
        raise InvalidWorkflow(
            f'{path}: the values are nested too deeply, or contain '
            'themselves; write each workflow as a list of steps') from None
    return definitions.parse_workflows(
        {} if source is None else source, path,
        functools.partial(_locate, root))


def _check_unique(node: Any) -> None:
    """Check that each key of a dictionary is text, and occurs once.

    YAML itself would accept a repeated key, and use its last value.

    :raises yaml.MarkedYAMLError: A key is not text, or occurs twice.
    """
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem='a key must be text, not a list or a dictionary',
                    problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f'{key.value!r} is given twice',
                    problem_mark=key.start_mark)
            seen.add(key.value)
            _check_unique(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_unique(item)


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
                 if key.value == part] if isinstance(
                     node, yaml.MappingNode) else []
        if not found:
            break
        node = found[0]
    if node is None:
        return ''
    return f':{node.start_mark.line + 1}:{node.start_mark.column + 1}'
