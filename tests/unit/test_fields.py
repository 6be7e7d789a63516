# SPDX-License-Identifier: Apache-2.0
"""Limit on the mutable state of the classes of the flow.

A reader of a class must remember each field that may change. So a class of
the flow has few such fields. Fields that other classes change count as well.
"""

import ast
import collections
import pathlib

from distperiodic import flow

FLOW = pathlib.Path(flow.__file__).parent
#: Maximum number of a class's fields that may change after __init__.
MOST = 8

# Methods that change the object on which they are called.
_CHANGES = {
    'add', 'append', 'appendleft', 'clear', 'discard', 'extend',
    'extendleft', 'heappop', 'heappush', 'insert', 'move_to_end', 'pop',
    'popitem', 'popleft', 'remove', 'reverse', 'rotate', 'setdefault', 'sort',
    'subtract', 'update'}


def _field(node):
    """Yield (owner, name) of each field to which *node*, as a target, assigns.
    """
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        yield ast.unparse(node.value), node.attr
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _field(one)


def _changed(function, made):
    """Yield (owner, name) of each field that *function* changes.

    :param made: True to ignore assignments of *function* to fields of self.
    """
    for node in ast.walk(function):
        targets = []
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                pass
            case (ast.AugAssign(target=target) | ast.For(target=target)
                  | ast.AnnAssign(target=target)):
                targets = [target]
            case ast.Call(func=ast.Attribute(value, name)) if (
                    name in _CHANGES):
                # A function of heapq changes its first argument.
                targets = [value, *node.args[:1]] if name.startswith(
                    'heap') else [value]
        for target in targets:
            for owner, name in _field(target):
                plain = isinstance(target, ast.Attribute) and isinstance(
                    node, (ast.Assign, ast.AnnAssign))
                if not (made and plain and owner == 'self'):
                    yield owner, name


def classes():
    """The classes of the flow, each with its fields that may change after
    __init__.
    """
    fields, inside = {}, collections.defaultdict(set)
    outside = set()
    for path in sorted(FLOW.rglob('*.py')):
        for made in ast.walk(ast.parse(path.read_text())):
            if not isinstance(made, ast.ClassDef):
                continue
            name = f'{path.stem}.{made.name}'
            fields[name] = set()
            for function in made.body:
                if not isinstance(function, ast.FunctionDef):
                    continue
                begins = function.name == '__init__'
                if begins:
                    fields[name] = {
                        attr for node in ast.walk(function)
                        if isinstance(node, (ast.Assign, ast.AnnAssign))
                        for target in getattr(node, 'targets', None)
                        or [node.target]
                        for owner, attr in _field(target) if owner == 'self'}
                for owner, attr in _changed(function, begins):
                    if owner == 'self':
                        inside[name].add(attr)
                    else:
                        outside.add(attr)
    # The types are unknown: a changed field counts for each class with a
    # field of the same name.
    return {name: inside[name] | (found & outside)
            for name, found in fields.items()}


def test_each_class_of_the_flow_has_few_fields_that_change():
    assert {name: sorted(changing) for name, changing in classes().items()
            if len(changing) > MOST} == {}
