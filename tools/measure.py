#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count what makes the code hard to change, and print one line for each count.

``tox -e measure`` runs this. Run it before and after a change of the design.
"""

import ast
import collections
import io
import pathlib
import re
import sys
import tokenize
import tomllib

from radon.complexity import cc_visit

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / 'distperiodic'
_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
          tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}
# Cyclomatic complexity from which radon gives the grade D.
_D = 21


def main():
    trees = {path: ast.parse(path.read_text())
             for path in sorted(PACKAGE.rglob('*.py'))}
    modules = [path for path in trees if path.name != '__init__.py']
    flow = {path: tree for path, tree in trees.items()
            if path.is_relative_to(PACKAGE / 'flow')}
    classes = collections.Counter(
        node.name for tree in trees.values() for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith('_'))
    files = collections.Counter(path.name for path in modules)
    print_line('code lines', sum(code_lines(path) for path in trees))
    print_line('modules', len(modules))
    print_line('widest port method (parameters)', *max(
        functions(trees[PACKAGE / 'ports.py'], constructors=False)))
    print_line('widest constructor (parameters)', *max(
        found for tree in trees.values()
        for found in functions(tree, constructors=True)))
    print_line('closures and lambdas in flow', sum(
        closures(tree) for tree in flow.values()))
    print_line('comparisons with the name of a dialect', sum(
        len(re.findall(r"(?:==|!=|in|is) \(?'(?:postgresql|mysql|sqlite)'",
                       path.read_text()))
        for path in modules
        # The name of a backend of tooz is not that of a dialect.
        if path.parent.name not in {'dialects', 'coordination'}))
    print_line('class names used twice or more', *repeated(classes))
    print_line('file names used twice or more', *repeated(files))
    blocks = [f'{block.name} ({block.complexity})' for path in modules
              for block in cc_visit(path.read_text())
              if block.complexity >= _D]
    print_line('blocks of complexity D or worse', len(blocks),
               ', '.join(blocks))
    print_line('migrations', len(list(
        (PACKAGE / 'migrations' / 'versions').glob('[0-9]*.py'))))
    print_line('release notes', len(list(
        (ROOT / 'releasenotes' / 'notes').glob('*.yaml'))))
    overrides = tomllib.loads((ROOT / 'pyproject.toml').read_text())[
        'tool']['mypy'].get('overrides', [])
    print_line('exemptions from strict types', sum(
        len(one['module']) for one in overrides
        if one.keys() - {'module', 'ignore_missing_imports'}))


def print_line(title, number, which=''):
    print(f'{title:44} {number:6}  {which}'.rstrip())


def code_lines(path):
    """Return the number of lines with code: no blank lines, no comments and no
    docstrings.
    """
    source = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(
                    first.value, ast.Constant) and isinstance(
                    first.value.value, str):
                lines.difference_update(
                    range(first.lineno, first.end_lineno + 1))
    return len(lines)


def functions(tree, constructors):
    """Yield the number of parameters and the name of each method."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and (
                        (node.name == '__init__') == constructors):
                    arguments = node.args
                    yield (len(arguments.posonlyargs + arguments.args
                               + arguments.kwonlyargs) - 1,
                           f'{owner.name}.{node.name}')


def closures(tree):
    """Return the number of lambdas, and of functions within functions."""
    number = 0
    for node in ast.walk(tree):
        number += isinstance(node, ast.Lambda)
        if isinstance(node, ast.FunctionDef):
            number += sum(isinstance(inner, ast.FunctionDef)
                          for inner in ast.walk(node)) - 1
    return number


def repeated(numbers):
    names = sorted(name for name, number in numbers.items() if number > 1)
    return len(names), ', '.join(names)


if __name__ == '__main__':
    sys.exit(main())
