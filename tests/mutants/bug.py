# SPDX-License-Identifier: Apache-2.0
"""A planted bug: one exact replacement in one file of the product.

A bug is a block of lines. Blank lines separate the blocks::

    bug: a result counts, whoever holds the lease
    in: distperiodic/adapters/local/memory.py
    suites: unit/test_memory.py, conformance/memory
     the line before, unchanged
    -the line that is replaced
    +the line that takes its place

The lines that begin with a space or a minus must occur exactly once in the
file, as consecutive lines and in this order. Lines that begin with # are
comments.
"""

import pathlib
import re
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


class DoesNotApply(Exception):
    """The text that a bug replaces does not occur exactly once."""


class Bug(NamedTuple):
    #: One sentence that describes the bug in the words of the domain.
    name: str
    #: The file's path, relative to the root of the repository.
    path: str
    #: The suites to try, in order; see :mod:`tests.mutants.suite`.
    suites: tuple[str, ...]
    #: Whole lines: the lines in the file, and the lines that replace them.
    old: str
    new: str

    def plant(self, root):
        """Replace the text in the tree at *root*.

        :raises DoesNotApply: The file or its text has changed.
        """
        path = root / self.path
        path.write_text(self.planted(root))

    def planted(self, root):
        """Return the text of the file with the bug in it."""
        path = root / self.path
        if not path.exists():
            raise DoesNotApply(f'there is no {self.path}')
        text = '\n' + path.read_text()
        # The pattern also finds overlapping occurrences.
        found = len(re.findall(f'(?={re.escape(self.old)})', text))
        if found != 1:
            raise DoesNotApply(
                f'the patch no longer applies: its text occurs {found} times '
                f'in {self.path}')
        return text.replace(self.old, self.new)[1:]


def bugs():
    """Return all bugs, file by file, in the order of their lines."""
    return [bug for path in sorted(HERE.glob('*.txt'))
            for bug in read(path.read_text())]


def read(text):
    """Yield the bugs in the text of one file."""
    lines = [line for line in text.split('\n') if not line.startswith('#')]
    for block in '\n'.join(lines).split('\n\n'):
        if block.strip():
            yield _read_one(block.strip('\n').split('\n'))


def _read_one(lines):
    head = {}
    for name in ('bug', 'in', 'suites'):
        key, _, value = lines.pop(0).partition(': ')
        if key != name:
            raise ValueError(f'{name}: is missing before {value!r}')
        head[name] = value.strip()
    strange = [line for line in lines if line[:1] not in (' ', '-', '+')]
    if strange:
        raise ValueError(f'{head["bug"]}: what is {strange[0]!r}?')
    old, new = (
        '\n'.join(['', *(line[1:] for line in lines if line[0] in signs), ''])
        for signs in (' -', ' +'))
    return Bug(head['bug'], head['in'], tuple(
        suite.strip() for suite in head['suites'].split(',')), old, new)
